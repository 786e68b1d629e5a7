//! One thread of the recorder: its group, its clock, the extent of its stack.

use super::recorded_process::ProcessIndex;
use super::stack_extent::StackExtent;
use super::thread_clock::ThreadClock;
use super::wait_sampling::WaitSampling;
use crate::addr::Avma;
use crate::recording::timeline::ThreadIndex;
use crate::sources::{Activity, ThreadStatus};

/// Attempts to read the name of a nameless thread.
const NAME_TRIES: u8 = 8;

/// One thread's account.
#[derive(Debug)]
pub(super) struct ThreadAccount {
    pub(super) process: ProcessIndex,
    /// Index into the profile's groups.
    pub(super) group: u32,
    /// Its index in the timeline, if that has room for it.
    pub(super) timeline_thread: Option<ThreadIndex>,
    /// Remaining attempts to read its name.
    name_tries_left: u8,
    pub(super) clock: ThreadClock,
    pub(super) stack: StackExtent,
    /// Selects the short waits to walk.
    pub(super) waits: WaitSampling,
}

impl ThreadAccount {
    /// `seed`, different for each thread, selects its short waits.
    pub(super) fn new(
        process: ProcessIndex,
        group: u32,
        timeline_thread: Option<ThreadIndex>,
        seed: u64,
        stack_top: Option<Avma>,
        clock: ThreadClock,
    ) -> ThreadAccount {
        ThreadAccount {
            process,
            group,
            timeline_thread,
            name_tries_left: NAME_TRIES,
            clock,
            stack: StackExtent::new(stack_top),
            waits: WaitSampling::new(seed),
        }
    }

    /// Uses up one attempt to read the name; returns whether there was one left.
    pub(super) fn take_name_try(&mut self) -> bool {
        let may = self.name_tries_left > 0;
        self.name_tries_left = self.name_tries_left.saturating_sub(1);
        may
    }
}

/// The status of a thread that was not polled yet.
pub(super) fn unknown_status() -> ThreadStatus {
    ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Runnable }
}
