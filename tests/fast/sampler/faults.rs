//! Faults: each ends in a counted loss or an error, and leaves no thread stopped.

use super::*;

/// Records [`mixed`] with a fault; the rest of the profile is right in any case.
fn with_fault(fault: SimFault) -> Recorded {
    let recorded = record(&mixed_with(12, fault), &options(997, 12));
    assert!(recorded.ledger.faults().contains_key(fault.kind.name()), "{} did not happen", fault.kind.name());
    assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Code(0)));
    recorded.check_balance();
    recorded
}

#[test]
fn the_time_of_a_thread_that_exits_during_a_stop_is_counted() {
    for kind in [FaultKind::DieBeforeInterrupt, FaultKind::DieBeforeCollect] {
        for index in 0..4 {
            let _replay = replay(12);
            let recorded = with_fault(SimFault::once(kind).of_thread(thread(index)).from_time(SECOND));
            assert_eq!(recorded.profile.stats.threads_seen, 4);
            assert!(recorded.lost() <= 4 * 2, "{:?}", recorded.profile.stats.samples_lost);
            let shown = recorded.counts_of(thread(index)) as f64;
            assert!((shown - recorded.true_counts_of(thread(index))).abs() <= 4.0);
            recorded.check_shares(1_000.0);
        }
    }
}

/// The poll after a capture must keep what was counted before.
#[test]
fn a_thread_that_exits_between_capture_and_walk_counts_once() {
    for seed in seeds(0..20) {
        let _replay = replay(seed);
        let scripts = vec![vec![run(1_000, &[0, 1])], vec![run(1_000, &[0, 2])]];
        let mut config = process(Arch::X86_64, 2, 3, scripts);
        // The second stop lasts so long that the first thread exits meanwhile.
        config.threads[1].exit_ns = Some(2 * SECOND + seed * 40_000);
        let stop = SimFault::always(FaultKind::LongStop { pause_ns: 900_000 }).from_time(1_999 * MS);
        config.faults.push(stop);
        let recorded = record(&config, &options(997, seed));
        recorded.check_balance();
        assert!(recorded.lost() <= 8, "{:?}", recorded.profile.stats.samples_lost);
    }
}

#[test]
fn truncated_stacks_are_incomplete_with_the_same_weight() {
    for bytes in [0, 8, 24, 100, 1_000] {
        let _replay = replay(12);
        let fault = SimFault::always(FaultKind::ShortStack { bytes }).of_thread(thread(0)).from_time(SECOND);
        let recorded = with_fault(fault);
        let torn = recorded.stacks.iter().filter(|((id, complete, _), _)| *id == 4242 && !complete);
        let torn: u64 = torn.map(|(_, count)| count).sum();
        // Two thirds of the time; 1000 bytes hold the whole stack.
        let thread_counts = recorded.counts_of(thread(0));
        let expected = if bytes < 100 { thread_counts * 2 / 3 } else { torn };
        assert!(torn.abs_diff(expected) <= thread_counts / 20, "{bytes} bytes: {torn} of {thread_counts}");
        assert!((thread_counts as f64 - recorded.true_counts_of(thread(0))).abs() <= 4.0);
        assert_eq!(recorded.incomplete(), torn, "no other thread's");
    }
}

#[test]
fn an_unreadable_stack_is_one_loss_with_its_cause() {
    let _replay = replay(12);
    let fault = SimFault::always(FaultKind::Unreadable).of_thread(thread(0)).from_time(SECOND);
    let recorded = with_fault(fault);
    let lost = recorded.lost_by("stack is not mapped") as f64;
    let missing = recorded.true_counts_of(thread(0)) - recorded.counts_of(thread(0)) as f64;
    assert!(lost > 500.0 && (lost - missing).abs() <= 4.0, "{lost} lost of {missing:.1} missing");
    // Not carried over into the next readable stack.
    let fault = SimFault { count: 500, ..SimFault::always(FaultKind::Unreadable) };
    let recorded = with_fault(fault.of_thread(thread(0)).from_time(SECOND));
    let shown = recorded.counts_of(thread(0)) as f64;
    let missing = recorded.true_counts_of(thread(0)) - shown;
    assert!((missing - recorded.lost_by("stack is not mapped") as f64).abs() <= 4.0);
}

#[test]
fn long_stops_are_measured_and_missed_ticks_counted() {
    let _replay = replay(12);
    let fault = SimFault { count: 20, ..SimFault::always(FaultKind::LongStop { pause_ns: 5 * MS }) };
    let recorded = with_fault(fault.from_time(SECOND));
    let stats = &recorded.profile.stats;
    assert!(stats.pause.max_ns() >= 5 * MS && stats.pause.max_ns() >= recorded.ledger.longest_stop_ns());
    assert!(stats.pause.total_ns() >= recorded.ledger.stopped_ns(), "a pause is an upper bound");
    assert!((40..120).contains(&stats.ticks_late), "{} late", stats.ticks_late);
    recorded.check_shares(600.0);
}

#[test]
fn a_panic_during_a_stop_resumes_the_threads() {
    for skip in [0, 1, 7, 500] {
        let _replay = replay(12);
        let config = mixed_with(12, SimFault::once(FaultKind::Panic).after(skip));
        let options = options(997, 12);
        let mut message = None;
        let recorded = record_with(&config, &options, |target, clock, live| {
            let result = catch_unwind(AssertUnwindSafe(|| sampler::record(target, clock, &options, live)));
            let panic = result.expect_err("the injected panic comes through");
            message = panic.downcast_ref::<String>().cloned();
            // The thread that was being collected already runs; the target's drop releases the others.
            Err(stackprof::error::Error::new(ErrorKind::System, "panicked"))
        });
        assert!(recorded.is_err(), "record_with checked that nobody stands");
        assert!(message.unwrap().starts_with("injected while thread"));
    }
}

#[test]
fn clock_jumps_drop_ticks_and_the_rate_recovers() {
    let _replay = replay(13);
    let fault = SimFault::once(FaultKind::ClockJump { by_ns: 100 * MS }).from_time(SECOND);
    // A thread that computes is stopped at each tick.
    let script = vec![run(5_000, &[0, 1]), run(2_000, &[0, 2])];
    let config = SimConfig { faults: vec![fault], ..process(Arch::X86_64, 1, 3, vec![script]) };
    let mut ticks_ns = Vec::new();
    let options = options(997, 13);
    let recorded = record_with(&config, &options, |target, clock, live| {
        let mut watched = Watched::new(target, clock, |_| None);
        let result = sampler::record(&mut watched, clock, &options, live);
        ticks_ns = watched.ticks_ns;
        result
    })
    .unwrap();
    let stats = &recorded.profile.stats;
    assert!((98..=100).contains(&stats.ticks_late), "{} late", stats.ticks_late);
    assert!((stats.ticks + stats.ticks_late).abs_diff(997 * 3) <= 12, "{stats:?}");
    let before_ns = ticks_ns.iter().rposition(|at| *at < 1_001 * MS).unwrap();
    let gap_ns = ticks_ns[before_ns + 1] - ticks_ns[before_ns];
    assert!(gap_ns >= 100 * MS, "{gap_ns}");
    // Not caught up: at most the due tick follows at once.
    let after = ticks_ns.iter().filter(|at| (1_102 * MS..1_202 * MS).contains(*at)).count();
    assert!((94..=105).contains(&after), "{after} ticks in the 100 ms after the jump");
    recorded.check_balance();
    recorded.check_shares(600.0);
}

#[test]
fn many_clock_jumps_lose_no_time() {
    let _replay = replay(14);
    let recorded = with_fault(SimFault::rate(FaultKind::ClockJump { by_ns: 30 * MS }, 10_000));
    assert!(recorded.profile.stats.ticks_late > 300, "{:?}", recorded.profile.stats);
    assert!(recorded.profile.stats.ticks + recorded.profile.stats.ticks_late <= 997 * 3 + 12);
    // The remaining samples weigh more, also those of a thread started during a jump.
    assert!(recorded.lost() <= 45, "{:?}", recorded.profile.stats.samples_lost);
}

/// Its CPU time is known to begin at 0, however late its start is reported.
#[test]
fn a_thread_started_during_a_clock_jump_has_all_its_time() {
    let _replay = replay(14);
    let scripts = vec![vec![run(1_000, &[0, 1])], vec![run(1_000, &[0, 2])]];
    let mut config = process(Arch::X86_64, 2, 2, scripts);
    config.threads[1].start_ns = SECOND;
    config.faults = vec![SimFault::once(FaultKind::ClockJump { by_ns: 50 * MS }).from_time(999 * MS)];
    let recorded = record(&config, &options(997, 14));
    recorded.check_balance();
    assert!((recorded.counts_of(thread(1)) as f64 - recorded.true_counts_of(thread(1))).abs() <= 3.0);
}

#[test]
fn names_of_threads_and_images_may_be_missing() {
    let _replay = replay(12);
    let recorded = with_fault(SimFault::always(FaultKind::NoName).of_thread(thread(1)));
    let named: Vec<&str> = recorded.profile.threads().map(|thread| thread.name.as_str()).collect();
    assert_eq!(named, ["t0", "", "t2", "t3"]);
    recorded.check_shares(1_000.0);

    let recorded = with_fault(SimFault::always(FaultKind::ImageDeleted));
    assert_eq!(recorded.names.addresses_named, 0);
    assert!(recorded.names.addresses_unique > 0);
    let reasons: Vec<String> = recorded.names.addresses_unnamed.keys().map(ToString::to_string).collect();
    assert_eq!(reasons, ["deleted from disk"]);
}

#[test]
fn mappings_may_be_unreadable_or_changing() {
    for arch in ARCHES {
        let _replay = replay(12);
        let mut config = mixed_with(12, SimFault::always(FaultKind::MappingsDenied));
        config.arch = arch;
        let recorded = record(&config, &options(997, 12));
        recorded.check_balance();
        assert_eq!(recorded.names.addresses_named, 0);
        let denied = recorded.ledger.faults()[FaultKind::MappingsDenied.name()];
        assert!((2..=200).contains(&denied), "{denied} tries in 3 s");

        // Not visible in the result.
        config.faults = vec![SimFault::once(FaultKind::MappingsTransient)];
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
        recorded.check_shares(1_000.0);
        // Refused for a while: names appear later, also for earlier addresses.
        config.faults = vec![SimFault { count: 10, ..SimFault::always(FaultKind::MappingsDenied) }];
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
    }
}

#[test]
fn the_process_may_exit_within_a_tick() {
    for skip in [0, 1, 2, 3, 777] {
        let _replay = replay(12);
        let mut config = mixed_with(12, SimFault::once(FaultKind::Exit).after(skip));
        config.exit = ExitStatus::Signal(9);
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Signal(9)));
        recorded.check_balance();
        if skip == 777 {
            assert!(recorded.profile.stats.samples > 500);
            recorded.check_shares(300.0);
        }
    }
}

#[test]
fn a_system_error_leaves_no_thread_stopped() {
    let _replay = replay(12);
    let options = options(997, 12);
    let result = record_with(&mixed(12), &options, |target, clock, live| {
        let fail = |now_ns| (now_ns >= SECOND).then(|| Err(Fault::Fatal("waitpid failed".to_owned())));
        sampler::record(&mut Watched::new(target, clock, fail), clock, &options, live)
    });
    let error = result.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::System);
    assert_eq!(error.to_string(), "the recording failed: waitpid failed");
}
