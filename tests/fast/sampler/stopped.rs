//! Which threads are stopped: those that ran, and for wall-clock profiles each wait once.

use super::*;

#[test]
fn only_threads_that_ran_are_stopped() {
    for seed in seeds(0..100) {
        let _replay = replay(seed);
        // Every other recording checks this, too.
        let recorded = record(&seeded(seed), &options(199, seed));
        assert_eq!(recorded.ledger.interrupted_waiting(), 0);
        assert_eq!(recorded.ledger.interrupted_stopped(), 0);
    }
}

#[test]
fn a_waiting_thread_is_stopped_about_once_per_wait_in_a_wall_clock_profile() {
    let _replay = replay(5);
    let scripts = vec![
        vec![run(2_000, &[0, 1]), wait(98_000, &[0, 2, 3])],
        vec![run(10, &[0, 4]), wait(49_990, &[0, 4, 5])],
        vec![wait(10_000_000, &[0, 6, 7])],
        vec![run(1_000, &[0, 8])],
    ];
    let config = process(Arch::X86_64, 2, 10, scripts);
    let recorded = record(&config, &idle(997, 5));
    // 100 waits, 200 waits and one; about as many stops.
    let stops = recorded.ledger.interrupted_waiting();
    assert!((301..=330).contains(&stops), "{stops} stops of waiting threads");
    check_wall(&recorded, 10 * SECOND);
    let reused = recorded.profile.stats.samples_idle_reused as f64;
    let waited = recorded.counts(recorded.ledger.truth_waiting().values().sum());
    assert!(reused > 0.97 * waited && reused <= waited, "{reused} of {waited} reused");
    for ((id, stack), ns) in recorded.ledger.truth_waiting() {
        let (shown, real) = (recorded.count(id, &stack) as f64, recorded.counts(ns));
        assert!((shown - real).abs() <= 0.02 * real + 2.0, "{id:?} {stack:?}: {shown} of {real}");
    }
}

/// Checks that each thread's counts are its wall-clock time.
fn check_wall(recorded: &Recorded, ns: u64) {
    for thread in recorded.profile.threads() {
        let shown = recorded.counts_of(stackprof::sources::ThreadId(thread.id));
        let real = recorded.counts(ns);
        assert!((shown as f64 - real).abs() <= 3.0, "thread {}: {shown} of {real:.1} counts", thread.id);
    }
}

#[test]
fn wall_clock_time_includes_ready_and_stopped_threads() {
    let _replay = replay(6);
    let mut scripts: Vec<Vec<SimPhase>> = (0..5).map(|n| vec![run(5_000, &[0, 1, n])]).collect();
    scripts.push(vec![run(50_000, &[0, 9]), phase(SimActivity::Stopped, 300_000, &[0, 9, 10])]);
    let recorded = record(&process(Arch::X86_64, 2, 10, scripts), &idle(997, 6));
    let total = (recorded.profile.stats.samples + recorded.lost()) as f64;
    let real = recorded.counts(6 * 10 * SECOND);
    assert!((total - real).abs() <= 12.0, "{total} of {real} counts");
    // Not attributed to the thread's next activity, and not silently dropped.
    let stopped = recorded.lost_by("stopped by job control") as f64;
    let ran = recorded.counts_of(thread(5)) as f64;
    assert!((stopped + ran - recorded.counts(10 * SECOND)).abs() <= 3.0, "{stopped} and {ran}");
    assert!(stopped > 5_000.0, "{stopped} counts under job control: {:?}", recorded.profile.stats);
}

/// Two waits at different places with hardly any time in between.
#[test]
fn a_wait_is_not_mistaken_for_the_previous_one() {
    let _replay = replay(7);
    let script = vec![wait(1_700, &[0, 1, 2]), run(2, &[0, 3]), wait(1_300, &[0, 4, 5]), run(2, &[0, 3])];
    let recorded = record(&process(Arch::X86_64, 1, 10, vec![script]), &idle(1000, 7));
    let [first, second] =
        [&[0, 1, 2], &[0, 4, 5]].map(|stack| recorded.count(thread(0), &names(stack)) as f64);
    let share = first / (first + second);
    assert!((share - 0.567).abs() < 0.02, "{first} and {second}");
}

#[test]
fn a_deep_wait_becomes_complete_if_it_can() {
    let _replay = replay(8);
    let script = vec![deep(SimActivity::Wait, 10_000_000, 3_000, 64, 1)];
    let config = process(Arch::X86_64, 1, 10, vec![script]);
    let recorded = record(&config, &idle(997, 8));
    assert!(recorded.incomplete() <= 5, "{:?}", recorded.profile.stats);
    let torn = SimFault::always(FaultKind::ShortStack { bytes: 4096 });
    let recorded = record(&SimConfig { faults: vec![torn], ..config }, &idle(997, 8));
    assert_eq!(recorded.profile.stats.stacks_complete, 0);
    assert!(recorded.ledger.captures() < 10, "asked again and again in vain");
}
