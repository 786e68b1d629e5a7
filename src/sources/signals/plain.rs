//! Systems without Unix signals: only Ctrl-C, and no suspending.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::interruption::Signal;

/// Number of wakeups of `ctrlc`'s thread.
static CAME: AtomicU32 = AtomicU32::new(0);

pub(super) fn install<E>(set_handler: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    set_handler()
}

pub(super) fn unblock() {
    CAME.fetch_add(1, Ordering::SeqCst);
}

pub(super) fn take() -> Option<Signal> {
    let one_less = |count: u32| count.checked_sub(1);
    let came = CAME.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
    came.then_some(Signal::Interrupt)
}

pub(super) fn number(_signal: Signal) -> i32 {
    2
}

pub(super) fn end_by(_signal: Signal) -> ! {
    std::process::abort()
}

pub(super) fn stop_wanted() -> bool {
    false
}

pub(super) fn stop() {}

pub(super) fn wake() {}

pub(super) fn turns_of_sleeping_sampler() -> Option<u64> {
    None
}
