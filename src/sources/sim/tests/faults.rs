//! Each kind of fault is visible and counted, and leaves no thread stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn with_fault(fault: SimFault) -> SimConfig {
    let mut config = process(Arch::X86_64, 2, vec![vec![run(100, &[0, 1, 2])], vec![run(100, &[0, 3])]]);
    config.faults.push(fault);
    config
}

/// Interrupts the leader once at 1 ms. Returns the results of that and of the next event, and checks that the
/// fault was counted and all threads run.
fn first_stop(
    fault: FaultKind,
) -> (Result<(), Fault>, Result<TargetEvent, Fault>, Capture, SimTarget, FakeClock) {
    let (mut target, clock, mut capture) = start(&with_fault(SimFault::once(fault).from_time(MS)));
    clock.advance_to(MS);
    let asked = target.interrupt(LEADER, STACK_BYTES, false);
    let event = target.next(SECOND, &mut capture);
    let ledger = target.ledger();
    assert_eq!(ledger.faults().get(fault.name()), Some(&1), "{fault:?}");
    assert_eq!((ledger.stopped(), ledger.stops()), (0, ledger.resumes()), "{fault:?}");
    (asked, event, capture, target, clock)
}

const DEAD_LEADER: Result<TargetEvent, Fault> =
    Ok(TargetEvent::ThreadExited { thread: LEADER, cpu_ns: Some(MS) });

#[test]
fn a_thread_dies_between_poll_and_interrupt() {
    let (asked, event, _, mut target, _) = first_stop(FaultKind::DieBeforeInterrupt);
    assert_eq!(asked, Err(Fault::ThreadGone));
    assert_eq!(event, DEAD_LEADER);
    assert_eq!(target.poll(LEADER), Err(Fault::ThreadGone));
    assert!(target.poll(SECOND_THREAD).is_ok());
}

#[test]
fn a_thread_dies_between_interrupt_and_capture() {
    let (asked, event, _, target, _) = first_stop(FaultKind::DieBeforeCollect);
    assert_eq!(asked, Ok(()));
    assert_eq!(event, Ok(TargetEvent::ThreadExited { thread: LEADER, cpu_ns: Some(MS + 2_000) }));
    assert_eq!(target.ledger().died_stopped(), 1);
}

#[test]
fn a_stack_can_end_early_or_be_unreadable() {
    let (_, event, capture, _, _) = first_stop(FaultKind::ShortStack { bytes: 20 });
    assert_eq!(event, Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(capture.stack.len(), RED_ZONE_BYTES as usize + 20);
    let (_, event, _, target, _) = first_stop(FaultKind::Unreadable);
    assert!(matches!(
        event,
        Ok(TargetEvent::Stopped { thread: LEADER, outcome: StopOutcome::Unreadable(_) })
    ));
    assert_eq!(target.ledger().captures(), 0);
}

#[test]
fn a_stop_can_take_very_long() {
    let (_, event, capture, target, _) = first_stop(FaultKind::LongStop { pause_ns: 50 * MS });
    assert_eq!(event, Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(capture.pause_ns, 50 * MS + 2_000);
    assert_eq!(target.ledger().longest_stop_ns(), 50 * MS);
}

#[test]
fn the_clock_can_jump_while_the_target_runs() {
    let (_, event, capture, mut target, clock) = first_stop(FaultKind::ClockJump { by_ns: 30 * MS });
    assert_eq!(event, Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(capture.pause_ns, 10_000);
    assert_eq!(clock.now_ns(), 31 * MS + 10_000);
    target.poll(LEADER).expect("alive");
    assert_eq!(target.truth().values().sum::<u64>(), 2 * clock.now_ns() - 8_000);
}

#[test]
fn the_process_can_end_within_a_tick() {
    let (asked, event, mut capture, mut target, _) = first_stop(FaultKind::Exit);
    assert_eq!(asked, Err(Fault::Gone));
    assert_eq!(event, DEAD_LEADER);
    assert_eq!(target.poll(SECOND_THREAD), Err(Fault::Gone));
    assert!(matches!(
        target.next(SECOND, &mut capture),
        Ok(TargetEvent::ThreadExited { thread: SECOND_THREAD, .. })
    ));
    assert_eq!(target.next(SECOND, &mut capture), Ok(TargetEvent::Exited(ExitStatus::Code(0))));
    assert_eq!(target.next(SECOND, &mut capture), Err(Fault::Gone));
}

#[test]
fn the_process_can_exec_within_a_tick_even_with_a_stopped_leader() {
    let mut config = with_fault(SimFault::once(FaultKind::Exec).of_thread(SECOND_THREAD));
    let mut image = SimImage::new("/sim/next", Avma(0x5600_0000_0000), &["g0"]);
    image.after_exec = true;
    config.images.push(image);
    let script = vec![SimPhase::new(SimActivity::Run, MS, &[FunctionId { image: 1, function: 0 }])];
    config.exec = Some(SimExec { at_ns: u64::MAX, script });
    let (mut target, clock, mut capture) = start(&config);
    clock.advance_to(MS);
    target.interrupt(LEADER, STACK_BYTES, false).expect("not its fault");
    clock.advance_to(MS + 5_000);
    target.poll(LEADER).expect("it stands by now");
    assert_eq!(target.ledger().stopped(), 1);
    target.interrupt(SECOND_THREAD, STACK_BYTES, false).expect("alive until the leader goes on");
    let seen = events(&mut target, 2 * MS);
    assert_eq!(seen[0], stopped(LEADER, StopOutcome::Captured));
    assert!(
        seen.iter().any(|event| matches!(event, TargetEvent::ThreadExited { thread: SECOND_THREAD, .. }))
    );
    assert!(matches!(seen.last(), Some(TargetEvent::Exec { thread: LEADER, .. })), "{seen:?}");
    assert_eq!((target.ledger().stopped(), target.ledger().stops()), (0, target.ledger().resumes()));

    // The leader itself calls exec: it stops in its new program.
    config.faults = vec![SimFault::once(FaultKind::Exec)];
    let (mut target, _, _) = start(&config);
    target.interrupt(LEADER, STACK_BYTES, false).expect("goes on");
    assert_eq!(target.interrupt(SECOND_THREAD, STACK_BYTES, false), Err(Fault::ThreadGone));
    assert!(matches!(
        target.next(MS, &mut capture),
        Ok(TargetEvent::ThreadExited { thread: SECOND_THREAD, .. })
    ));
    assert!(matches!(target.next(MS, &mut capture), Ok(TargetEvent::Exec { .. })));
    assert_eq!(target.next(MS, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    assert_eq!(target.ledger().last_capture().expect("captured").names, ["g0"]);
}

#[test]
fn names_mappings_images_and_memory_can_be_refused() {
    let mut config = with_fault(SimFault::once(FaultKind::NoName).of_thread(SECOND_THREAD));
    config.faults.extend(
        [
            FaultKind::MappingsDenied,
            FaultKind::MappingsTransient,
            FaultKind::ImageDeleted,
            FaultKind::MemoryUnmapped,
        ]
        .map(SimFault::once),
    );
    let (mut target, _, _) = start(&config);
    assert_eq!(target.thread_name(LEADER).as_deref(), Some("t0"));
    assert_eq!(target.thread_name(SECOND_THREAD), None);
    assert_eq!(target.thread_name(SECOND_THREAD).as_deref(), Some("t1"));
    let mut mappings = Vec::new();
    assert!(matches!(target.mappings(&mut mappings), Err(Fault::Denied(_))));
    assert!(matches!(target.mappings(&mut mappings), Err(Fault::Transient(_))));
    assert_eq!(target.mappings(&mut mappings), Ok(()));
    let why = target.image_bytes(&mappings[0]).map(drop).expect_err("the fault of the configuration");
    assert_eq!(why.to_string(), "deleted from disk");
    assert!(target.image_bytes(&mappings[0]).is_ok());
    let text = mappings[0].avma.start;
    assert!(matches!(target.read_memory(text, &mut [0]), Err(Fault::Transient(_))));
    assert_eq!(target.read_memory(text, &mut [0]), Ok(1));
    assert!(target.ledger().faults().values().all(|count| *count == 1));
    assert_eq!(target.ledger().faults().len(), 5);
}

#[test]
fn a_panic_at_the_third_capture_leaves_no_thread_stopped() {
    let config = with_fault(SimFault::once(FaultKind::Panic).after(2));
    let (mut target, clock, mut capture) = start(&config);
    let ledger = target.ledger();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..100 {
            let _ = target.interrupt(LEADER, STACK_BYTES, false);
            let _ = target.interrupt(SECOND_THREAD, STACK_BYTES, false);
            let tick_ns = clock.now_ns() + MS;
            while target.next(tick_ns, &mut capture) != Ok(TargetEvent::Timeout) {}
        }
    }));
    let message = outcome.map(|()| String::new()).map_err(|panic| panic.downcast_ref::<String>().cloned());
    let text = message.expect_err("it panics").expect("a text");
    assert!(text.contains("seed 1"), "{text}");
    assert_eq!(ledger.captures(), 2);
    // The panicking stop was released at once; the other one lasts until the target is dropped.
    assert_eq!((ledger.stops(), ledger.stopped()), (4, 1));
    drop(target);
    assert_eq!((ledger.stops(), ledger.resumes(), ledger.stopped()), (4, 4, 0));
}

#[test]
fn dropping_the_target_releases_stops_that_were_not_collected() {
    let (mut target, clock, _) = start(&process(Arch::X86_64, 1, vec![vec![run(100, &[0])]]));
    let ledger = target.ledger();
    target.interrupt(LEADER, STACK_BYTES, false).expect("alive");
    clock.advance_to(MS);
    target.poll(LEADER).expect("alive");
    assert_eq!(ledger.stopped(), 1);
    drop(target);
    assert_eq!((ledger.stopped(), ledger.resumes()), (0, 1));
}

#[test]
fn a_fault_is_limited_to_its_time_thread_order_and_count() {
    let fault = SimFault { count: 2, ..SimFault::once(FaultKind::Unreadable) };
    let config = with_fault(fault.from_time(MS).after(1).of_thread(LEADER));
    let (mut target, clock, mut capture) = start(&config);
    let mut outcomes = Vec::new();
    for at_ns in [0, 2 * MS, 3 * MS, 4 * MS, 5 * MS] {
        clock.advance_to(at_ns);
        for thread in [LEADER, SECOND_THREAD] {
            target.interrupt(thread, STACK_BYTES, false).expect("alive");
            let event = target.next(SECOND, &mut capture);
            outcomes
                .push(matches!(event, Ok(TargetEvent::Stopped { outcome: StopOutcome::Unreadable(_), .. })));
        }
    }
    assert_eq!(outcomes, [false, false, false, false, true, false, true, false, false, false]);
}
