//! A Cortex-M in a handler of an exception: what it interrupted may be on the process stack, which is copied
//! in the same stop where the stub tells its stack pointer.

use stackprof::addr::Avma;
use stackprof::sources::gdb::InitialState;
use stackprof::sources::{Capture, StopOutcome, Target, TargetEvent};

use super::fake::{Fake, Manner};
use super::targets::{PROCESS_SP, STACK_END};

const STACK_BYTES: usize = 0x200;

fn captured(manner: Manner) -> Capture {
    let fake = Fake::start(manner);
    let mut target = fake.attach(InitialState::Running).unwrap();
    let mut threads = Vec::new();
    target.threads(&mut threads);
    let mut capture = Capture::with_capacity(0);
    // What is spared of the first is used by the second.
    for _ in 0..2 {
        target.interrupt(threads[0].0, STACK_BYTES, true).unwrap();
        let event = target.next(u64::MAX, &mut capture).unwrap();
        assert!(matches!(event, TargetEvent::Stopped { outcome: StopOutcome::Captured, .. }), "{event:?}");
    }
    drop(target);
    assert!(fake.fate().harm.is_empty());
    capture
}

#[test]
fn the_process_stack_of_a_handler_is_copied_in_the_same_stop() {
    let capture = captured(Manner::handler());
    assert_eq!((capture.stack_base, capture.stack.len()), (Avma(STACK_END - 0x1000), STACK_BYTES));
    let other = capture.other_stack.unwrap();
    assert_eq!((other.base, other.bytes.len()), (Avma(PROCESS_SP), STACK_BYTES));
}

#[test]
fn a_thread_and_a_stub_without_that_stack_pointer_have_one_stack() {
    assert!(captured(Manner::board()).other_stack.is_none());
}
