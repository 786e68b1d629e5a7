//! Threads, CPUs and time: the result of a poll, the time of a stop, and accounting.

use super::*;

#[test]
fn oversubscribed_cpus_are_shared_fairly_and_accounted_to_the_nanosecond() {
    let scripts = (0..5).map(|n| vec![run(7, &[0, n]), run(2, &[0, 1, n])]).collect();
    let config = process(Arch::X86_64, 2, scripts);
    let (mut target, _, _) = start(&config);
    assert_eq!(events(&mut target, 3 * SECOND), []);
    let truth = target.truth();
    assert_eq!(truth.values().sum::<u64>(), 2 * 3 * SECOND);
    assert_eq!(target.ledger().idle_cpu_ns(), 0);
    for thread in 0..5 {
        let own: u64 = truth.iter().filter(|((id, _), _)| id.0 == LEADER.0 + thread).map(|(_, ns)| ns).sum();
        let fair = 2 * 3 * SECOND / 5;
        assert!(own.abs_diff(fair) < 10 * MS, "thread {thread} had {own} of {fair} ns");
    }
}

#[test]
fn run_and_wait_times_are_accounted_to_their_stack() {
    let config = process(Arch::X86_64, 2, vec![vec![run(3, &[0, 1]), wait(7, &[0, 2])]]);
    let (mut target, _, _) = start(&config);
    events(&mut target, SECOND);
    let stack = |leaf: &str| (LEADER, vec!["f0".to_owned(), leaf.to_owned()]);
    assert_eq!(target.truth(), Truth::from([(stack("f1"), 300 * MS)]));
    assert_eq!(target.ledger().truth_waiting(), Truth::from([(stack("f2"), 700 * MS)]));
    assert_eq!(target.ledger().idle_cpu_ns(), 2 * SECOND - 300 * MS);
}

#[test]
fn the_cpu_time_of_a_running_thread_lags_and_is_exact_off_the_cpu() {
    let config = process(Arch::X86_64, 1, vec![vec![run(10, &[0]), wait(10, &[0, 1])]]);
    let (mut target, clock, _) = start(&config);
    let status = |target: &mut SimTarget, at_ns: u64| {
        clock.advance_to(at_ns);
        let status = target.poll(LEADER).expect("alive");
        (status.cpu_ns, status.switches, status.activity)
    };
    assert_eq!(status(&mut target, 3 * MS), (0, 1, Activity::Runnable));
    assert_eq!(status(&mut target, 4 * MS), (4 * MS, 1, Activity::Runnable));
    assert_eq!(status(&mut target, 7 * MS), (4 * MS, 1, Activity::Runnable));
    assert_eq!(status(&mut target, 11 * MS), (10 * MS, 1, Activity::Waiting));
    assert_eq!(status(&mut target, 21 * MS), (11 * MS - MS, 2, Activity::Runnable));
    assert_eq!(target.poll(ThreadId(1)), Err(Fault::ThreadGone));
}

#[test]
fn a_running_thread_stops_after_the_latency_pauses_and_is_exact_afterwards() {
    let config = process(Arch::X86_64, 1, vec![vec![run(100, &[0, 1])]]);
    let (mut target, clock, mut capture) = start(&config);
    clock.advance_to(MS);
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    target.interrupt(LEADER, STACK_BYTES, false).expect("asking twice does nothing");
    assert_eq!(target.next(2 * MS, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(clock.now_ns(), MS + 2_000 + 8_000);
    assert_eq!(capture.pause_ns, 10_000);
    assert_eq!(target.next(2 * MS, &mut capture), Ok(TargetEvent::Timeout));
    assert_eq!(clock.now_ns(), 2 * MS);
    // It was switched out with exact accounting, and scheduled again.
    let status = target.poll(LEADER).expect("alive");
    assert_eq!((status.cpu_ns, status.switches), (MS + 2_000, 2));
    let ledger = target.ledger();
    assert_eq!((ledger.stops(), ledger.resumes(), ledger.stopped()), (1, 1, 0));
    assert_eq!((ledger.stopped_ns(), ledger.longest_stop_ns()), (8_000, 8_000));
}

#[test]
fn a_stop_of_a_thread_without_a_cpu_waits_for_its_turn_and_delays_no_other() {
    let config = process(Arch::X86_64, 1, vec![vec![run(100, &[0, 1])], vec![run(100, &[0, 2])]]);
    let (mut target, clock, mut capture) = start(&config);
    clock.advance_to(MS);
    target.interrupt(SECOND_THREAD, STACK_BYTES, false).expect("alive");
    // Until its slice starts at 3 ms no thread is stopped, and the other one continues.
    assert_eq!(target.next(2 * MS, &mut capture), Ok(TargetEvent::Timeout));
    assert_eq!(target.ledger().stops(), 0);
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    let leader_ns = clock.now_ns();
    assert_eq!(leader_ns, 2 * MS + 10_000, "not delayed by the other's pending stop");
    // The CPU was free for a moment, so the other thread was scheduled, and stopped, before its slice.
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(SECOND_THREAD, StopOutcome::Captured)));
    assert!(capture.pause_ns < 20_000, "the wait for a CPU is not a pause: {}", capture.pause_ns);
    assert_eq!(target.truth().values().sum::<u64>() + target.ledger().idle_cpu_ns(), clock.now_ns());
    assert_eq!(target.ledger().interrupted_waiting(), 0);
}

#[test]
fn a_stopped_thread_continues_its_slice_so_that_sampling_is_fair() {
    let config = process(Arch::X86_64, 1, vec![vec![run(100, &[0, 1])], vec![run(100, &[0, 2])]]);
    let (mut target, clock, mut capture) = start(&config);
    // Only the leader is sampled; it must not lose CPU share by that.
    while clock.now_ns() < 2 * SECOND {
        target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
        let tick_ns = clock.now_ns() + MS;
        while target.next(tick_ns, &mut capture) != Ok(TargetEvent::Timeout) {}
    }
    let shares: Vec<u64> = target.truth().into_values().collect();
    assert!(shares[0].abs_diff(shares[1]) < 50 * MS, "{shares:?}");
    assert!(target.ledger().captures() > 900);
}

#[test]
fn a_waiting_thread_is_interrupted_at_once_and_counted() {
    let config = process(Arch::X86_64, 1, vec![vec![wait(10, &[0, 1]), run(10, &[0])]]);
    let (mut target, clock, mut capture) = start(&config);
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::BeganToWait)));
    assert_eq!(target.ledger().interrupted_waiting(), 1);
    assert_eq!(target.ledger().captures(), 0);
    target.interrupt(LEADER, STACK_BYTES, true).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(target.ledger().last_capture().expect("captured").names, ["f0", "f1"]);
    let first = capture.clone();
    target.interrupt(LEADER, STACK_BYTES, true).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(
        (first.registers, first.stack),
        (capture.registers, capture.stack.clone()),
        "it stays where it waits"
    );
    assert!(clock.now_ns() < MS);
    events(&mut target, 15 * MS);
    assert_eq!(target.poll(LEADER).expect("alive").cpu_ns, 12 * MS - 10 * MS, "its wait was not prolonged");
}

#[test]
fn a_thread_that_begins_to_wait_before_the_stop_is_released_without_a_capture() {
    let config = process(Arch::X86_64, 1, vec![vec![run(1, &[0]), wait(10, &[0, 1])]]);
    let (mut target, clock, mut capture) = start(&config);
    clock.advance_to(MS - 1_000);
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::BeganToWait)));
    assert_eq!(target.ledger().interrupted_waiting(), 0, "it ran when it was asked");
    assert_eq!(target.poll(LEADER).map(|status| status.activity), Ok(Activity::Waiting));
}

#[test]
fn a_thread_under_job_control_shows_as_stopped() {
    let config = process(Arch::X86_64, 1, vec![vec![phase(SimActivity::Stopped, 10, &[0, 1])]]);
    let (mut target, _, _) = start(&config);
    assert_eq!(target.poll(LEADER).map(|status| status.activity), Ok(Activity::Stopped));
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    assert_eq!((target.ledger().interrupted_stopped(), target.ledger().interrupted_waiting()), (1, 0));
}

#[test]
fn threads_start_and_end_with_their_cpu_time_and_then_the_process_ends() {
    let mut config =
        process(Arch::X86_64, 4, vec![vec![run(5, &[0])], vec![run(5, &[0, 1])], vec![run(3, &[0, 2])]]);
    config.exit_ns = 20 * MS;
    config.exit = ExitStatus::Signal(11);
    config.terminate_ns = Some(4 * MS);
    (config.threads[1].start_ns, config.threads[1].exit_ns) = (2 * MS, Some(9 * MS));
    config.threads[2].looping = false;
    config.threads[2].stack_top_known = false;
    let (mut target, clock, mut capture) = start(&config);
    let mut threads = Vec::new();
    target.threads(&mut threads);
    assert_eq!(
        threads.iter().map(|(id, top)| (id.0, top.is_some())).collect::<Vec<_>>(),
        [(4242, true), (4244, false)]
    );
    let seen = events(&mut target, SECOND);
    let top = target.machine.threads[1].stack_top();
    let exited = |thread: u64, cpu_ms: u64| TargetEvent::ThreadExited {
        thread: ThreadId(thread),
        cpu_ns: Some(cpu_ms * MS),
    };
    assert!(top.is_some());
    assert_eq!(
        seen,
        [
            TargetEvent::ThreadStarted { thread: SECOND_THREAD, stack_top: top },
            exited(4244, 3),
            TargetEvent::Terminate,
            exited(4243, 7),
            exited(4242, 20),
            TargetEvent::Exited(ExitStatus::Signal(11)),
        ]
    );
    assert_eq!(clock.now_ns(), 20 * MS);
    assert_eq!(target.next(SECOND, &mut capture), Err(Fault::Gone), "told once");
    assert_eq!(target.poll(LEADER), Err(Fault::Gone));
    assert_eq!(target.interrupt(LEADER, 0, false), Err(Fault::Gone));
    assert_eq!(target.mappings(&mut Vec::new()), Err(Fault::Gone));
    assert_eq!(target.read_memory(Avma(0), &mut [0]), Err(Fault::Gone));
    target.threads(&mut threads);
    assert_eq!(threads, []);
}

#[test]
fn a_process_whose_threads_have_all_ended_exits() {
    let mut config = process(Arch::X86_64, 1, vec![vec![run(5, &[0])]]);
    config.threads[0].looping = false;
    let (mut target, clock, _) = start(&config);
    assert_eq!(events(&mut target, SECOND).last(), Some(&TargetEvent::Exited(ExitStatus::Code(0))));
    assert_eq!(clock.now_ns(), 5 * MS);
}

#[test]
fn a_target_created_late_has_no_past_events() {
    let mut config =
        process(Arch::X86_64, 2, vec![vec![run(5, &[0])], vec![run(5, &[0])], vec![run(5, &[0])]]);
    config.threads[1].start_ns = 5 * MS;
    (config.threads[2].start_ns, config.threads[2].exit_ns) = (6 * MS, Some(7 * MS));
    let clock = FakeClock::default();
    clock.advance_to(10 * MS);
    let mut target = SimTarget::new(config, clock);
    assert_eq!(events(&mut target, 20 * MS), []);
    let mut threads = Vec::new();
    target.threads(&mut threads);
    assert_eq!(threads.len(), 2);
}

#[test]
fn an_exec_leaves_one_thread_with_new_images_and_a_new_stack() {
    let mut config = process(Arch::X86_64, 2, vec![vec![run(5, &[0, 1])], vec![wait(5, &[0, 2])]]);
    let mut image = SimImage::new("/sim/next", Avma(0x5600_0000_0000), &["g0", "g1"]);
    image.after_exec = true;
    config.images.push(image);
    let stack = [FunctionId { image: 1, function: 0 }, FunctionId { image: 1, function: 1 }];
    config.exec = Some(SimExec { at_ns: 12 * MS, script: vec![SimPhase::new(SimActivity::Run, MS, &stack)] });
    let (mut target, clock, mut capture) = start(&config);
    let paths = |target: &mut SimTarget| {
        let mut mappings = Vec::new();
        target.mappings(&mut mappings).expect("mapped");
        mappings.into_iter().map(|mapping| mapping.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(&mut target), ["/sim/libalpha.so"]);
    let seen = events(&mut target, 20 * MS);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[0], TargetEvent::ThreadExited { thread: SECOND_THREAD, cpu_ns: Some(0) });
    assert!(matches!(seen[1], TargetEvent::Exec { thread: LEADER, stack_top: Some(_) }));
    assert_eq!(paths(&mut target), ["/sim/next"]);
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(target.ledger().last_capture().expect("captured").names, ["g0", "g1"]);
    assert_eq!(target.poll(LEADER).expect("alive").cpu_ns, clock.now_ns() - 8_000, "CPU time goes on");
}
