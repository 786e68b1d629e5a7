//! Shares: counts are CPU time, for any distribution over threads and bursts.

use super::*;

#[test]
fn shares_match_the_cpu_time_of_phases() {
    for (seed, hz) in (1..).zip([100, 997, 1000]) {
        let _replay = replay(seed);
        for arch in ARCHES {
            let script = vec![
                run(5_000, &[0, 1, 2]),
                run(3_000, &[0, 1, 3, 4]),
                run(1_500, &[0, 5]),
                run(500, &[0, 1, 2, 6]),
            ];
            let mut config = process(arch, 2, 20, vec![script.clone(), script]);
            config.seed = seed;
            let recorded = record(&config, &options(hz, seed));
            recorded.check_balance();
            recorded.check_shares(recorded.ledger.captures() as f64 / 5.0);
            check_total(&recorded);
            // Stops take 10 us of it.
            assert!(recorded.profile.stats.samples > 2 * 20 * u64::from(hz) * 98 / 100);
            assert_eq!(recorded.incomplete(), 0);
        }
    }
}

/// Samples are CPU seconds × hz within 1 %.
fn check_total(recorded: &Recorded) {
    let (samples, expected) = (recorded.profile.stats.samples as f64, recorded.true_counts());
    assert!((samples - expected).abs() <= expected / 100.0, "{samples} samples, expected {expected}");
}

#[test]
fn eight_threads_on_two_cpus_share_the_samples_of_two_cpus() {
    let _replay = replay(3);
    let mut scripts: Vec<Vec<SimPhase>> =
        (0..6).map(|n| vec![run(730, &[0, 1, 10 + n]), run(410, &[0, 2, 20 + n])]).collect();
    scripts.push(vec![run(1_000, &[0, 3]), wait(9_000, &[0, 4])]);
    scripts.push(vec![run(300, &[0, 5]), wait(2_000, &[0, 6])]);
    for accounting_tick_ns in [4 * MS, 1_000] {
        let mut config = process(Arch::X86_64, 2, 20, scripts.clone());
        config.accounting_tick_ns = accounting_tick_ns;
        let recorded = record(&config, &options(997, 3));
        check_total(&recorded);
        assert!(recorded.profile.stats.samples.abs_diff(2 * 20 * 997) <= 20 * 997 / 50, "two CPUs' worth");
        recorded.check_balance();
        for index in 0..8 {
            let (shown, real) =
                (recorded.counts_of(thread(index)) as f64, recorded.true_counts_of(thread(index)));
            assert!(
                (shown - real).abs() <= 3.0 + real * 0.002,
                "thread {index}: {shown} of {real:.1} counts"
            );
        }
        recorded.check_shares(recorded.ledger.captures() as f64 / 4.0);
        // A thread that has waited for a CPU since its last sample has no new CPU time.
        let stops = recorded.profile.stats.stops;
        assert!(stops < 2 * 2 * 20 * 997, "{stops} stops");
    }
}

#[test]
fn short_bursts_count_with_their_cpu_time() {
    let _replay = replay(4);
    let scripts = vec![
        vec![run(100, &[0, 1]), wait(900, &[0, 2])],
        vec![run(100, &[0, 3]), wait(900, &[0, 2]), run(50, &[0, 4]), wait(450, &[0, 2])],
        vec![run(20, &[0, 5]), wait(380, &[0, 6])],
    ];
    for hz in [99, 997, 1000] {
        let recorded = record(&process(Arch::Aarch64, 2, 40, scripts.clone()), &options(hz, 4));
        recorded.check_balance();
        recorded.check_shares(recorded.ledger.captures() as f64 / 4.0);
        check_total(&recorded);
        assert_eq!(recorded.ledger.interrupted_waiting(), 0);
    }
}

/// Work that begins with each period of the rate, as with a timer of the same rate: sampling at fixed
/// intervals would see some of it never and some of it always.
#[test]
fn work_synchronous_to_the_rate_keeps_its_shares() {
    let scripts = [
        vec![run(100, &[0, 1]), run(200, &[0, 2]), run(700, &[0, 3])],
        vec![run(100, &[0, 1]), wait(300, &[0, 4]), run(300, &[0, 2]), wait(300, &[0, 4])],
        vec![run(500, &[0, 1]), run(1_000, &[0, 2]), run(500, &[0, 3])],
        vec![run(450, &[0, 1]), run(100, &[0, 2]), run(450, &[0, 3])],
    ];
    for (seed, script) in (1..).zip(scripts) {
        let _replay = replay(seed);
        let mut config = process(Arch::X86_64, 1, 40, vec![script]);
        // Stops take no time here, or the work would lose its phase.
        (config.stop_latency_ns, config.pause_ns) = (0, 0);
        let recorded = record(&config, &options(1000, seed));
        recorded.check_balance();
        // Consecutive ticks see consecutive phases.
        recorded.check_shares(40_000.0 / 8.0);
    }
}

#[test]
fn each_thread_of_a_random_process_has_its_cpu_time() {
    for seed in seeds(0..24) {
        let _replay = replay(seed);
        let recorded = record(&seeded(seed).without_faults(), &options(997, seed));
        recorded.check_balance();
        for id in recorded.truth.keys().map(|(id, _)| *id).collect::<BTreeSet<_>>() {
            let (shown, real) = (recorded.counts_of(id) as f64, recorded.true_counts_of(id));
            // CPU time since the last sample is lost when a thread exits.
            let slack = 2.0 + real * 0.01 + recorded.lost() as f64;
            assert!((shown - real).abs() <= slack, "{id:?}: {shown} of {real:.1} counts");
        }
        recorded.check_shares(recorded.ledger.captures() as f64 / 8.0);
    }
}
