//! Port rights and memory of the profiler do not grow over hours.

use super::recorded::{Replay, options, record_unclean, recorded};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

#[test]
fn thread_churn_for_ten_thousand_ticks_leaks_nothing() {
    for seed in seeds(0..2) {
        let _replay = Replay(seed);
        let world = World::arm64(seed).process(seeded(500, seed, 10_000));
        let (kernel, recorded) = recorded(world, &options(10_000));
        let report = kernel.report();
        let threads = kernel.thread_ids().len();
        let ticks = recorded.profile.stats.ticks + recorded.profile.stats.ticks_skipped;
        assert!(ticks > 9_000 && threads > 500, "{ticks} ticks, {threads} threads");
        eprintln!("{ticks} ticks, {threads} threads, at most {} port names at one time", report.names_peak);
        // As many as there were threads at one time, plus the task and a token.
        assert!(report.names_peak < 40, "{} names at one time", report.names_peak);
        assert_eq!(report.arrays_peak, 1);
        assert!(recorded.stacks.len() > 100);
    }
}

#[test]
fn threads_keep_their_ids_when_port_names_are_reused() {
    for seed in seeds(0..6) {
        let _replay = Replay(seed);
        let world = World::arm64(seed).process(seeded(500, seed, 1_000));
        let (_, recorded) = recorded(world, &options(1_000));
        for (id, _, names) in recorded.stacks.keys() {
            let had = |truth: &Truth| truth.keys().any(|(of, real)| of == id && real == names);
            assert!(had(&recorded.truth) || had(&recorded.waits), "thread {id} never was in {names:?}");
        }
    }
}

#[test]
fn a_hold_is_short_and_makes_no_other_calls() {
    let kernel = World::arm64(1).process(canned(500)).build();
    record_unclean(&kernel, &options(1_000)).unwrap();
    let report = kernel.report();
    assert!(report.is_clean() && report.holds > 500, "{report}");
    // Four threads: about 2 + 4 × 4 µs to stop, 4 × (2.5 + 3.5) µs to copy.
    assert!(report.longest_hold_ns < 100 * US, "{} ns", report.longest_hold_ns);
}

#[test]
fn dead_threads_are_not_queried_again() {
    for seed in seeds(0..4) {
        let _replay = Replay(seed);
        let world = World::arm64(seed).process(seeded(500, seed, 1_000).ends(990 * MS, 0));
        let (kernel, _) = recorded(world, &options(1_000));
        kernel.assert_no_repeats();
    }
}
