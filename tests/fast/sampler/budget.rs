//! Overhead for the target: stops take a limited share of its time however long they are, and skipped ticks
//! lose no time.

use stackprof::arch::Arch;
use stackprof::sampler::Options;
use stackprof::sources::sim::SimConfig;

use super::processes::{SECOND, process, run};
use super::recording::{options, record, replay};

/// Stops of `pause_ns` at 997 Hz; returns ticks, skipped ticks, and the share of the time that the process was stopped.
fn run_with_stops(pause_ns: u64, max_stop: f64) -> (u64, u64, f64) {
    let script = vec![run(5_000, &[0, 1]), run(2_000, &[0, 2])];
    let config = SimConfig { pause_ns, ..process(Arch::X86_64, 1, 4, vec![script]) };
    let recorded = record(&config, &Options { max_stop, ..options(997, 5) });
    let stats = &recorded.profile.stats;
    recorded.check_balance();
    recorded.check_shares(600.0);
    (stats.ticks, stats.ticks_skipped, stats.stopped_ns as f64 / (4 * SECOND) as f64)
}

#[test]
fn long_stops_reduce_the_rate() {
    let _replay = replay(5);
    let (ticks, spared, share) = run_with_stops(8_000, 0.02);
    assert!(spared == 0 && ticks > 3_900, "{ticks} ticks, {spared} left out, {share} stood");
    for max_stop in [0.02, 0.002] {
        let (ticks, spared, share) = run_with_stops(50_000, max_stop);
        // The budget starts with 5 ms, while everything is cold, and may be overdrawn by its share of a
        // quarter of a second at the end.
        assert!(share <= max_stop * 1.01 + 0.005 / 4.0 + max_stop * 0.25 / 4.0, "{share} of the time stood");
        assert!(share >= max_stop * 0.95, "no more ticks are left out than need be: {share}");
        assert!(spared > 0 && ticks + spared > 3_900, "{ticks} ticks, {spared} left out");
    }
    let (_, spared, share) = run_with_stops(50_000, 1.0);
    assert!(spared == 0 && share > 0.045, "{spared} left out, {share} stood");
}
