//! Methods of a target that a wrapper passes on to the target in one of its fields.

use std::result::Result;

pub use stackprof::addr::Avma;
pub use stackprof::sources::{Capture, Fault, Process, TargetEvent, ThreadId, ThreadStatus};

pub type Answer<T> = Result<T, Fault>;
pub type StartedThread = (ThreadId, Option<Avma>);

/// Defines these methods of `Observed` or `Target` in an implementation: `pass_on! { field: process threads }`.
#[rustfmt::skip]
macro_rules! pass_on {
    ($to:tt: $($method:ident)*) => { $($crate::pass_on::pass_on! { @ $to $method })* };
    (@ $to:tt process) => { fn process(&self) -> &$crate::pass_on::Process { self.$to.process() } };
    (@ $to:tt read_memory) => {
        fn read_memory(&mut self, from: $crate::pass_on::Avma, into: &mut [u8]) -> $crate::pass_on::Answer<usize> {
            self.$to.read_memory(from, into)
        }
    };
    (@ $to:tt threads) => {
        fn threads(&mut self, out: &mut Vec<$crate::pass_on::StartedThread>) { self.$to.threads(out); }
    };
    (@ $to:tt poll) => {
        fn poll(&mut self, thread: $crate::pass_on::ThreadId) -> $crate::pass_on::Answer<$crate::pass_on::ThreadStatus> {
            self.$to.poll(thread)
        }
    };
    (@ $to:tt interrupt) => {
        fn interrupt(&mut self, thread: $crate::pass_on::ThreadId, bytes: usize, keep: bool) -> $crate::pass_on::Answer<()> {
            self.$to.interrupt(thread, bytes, keep)
        }
    };
    (@ $to:tt next) => {
        fn next(&mut self, until_ns: u64, capture: &mut $crate::pass_on::Capture) -> $crate::pass_on::Answer<$crate::pass_on::TargetEvent> {
            self.$to.next(until_ns, capture)
        }
    };
    (@ $to:tt waits_at) => {
        fn waits_at(&mut self, thread: $crate::pass_on::ThreadId) -> Option<($crate::pass_on::Avma, $crate::pass_on::Avma)> {
            self.$to.waits_at(thread)
        }
    };
}
pub(crate) use pass_on;
