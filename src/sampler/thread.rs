//! One thread as the recorder sees it: where its stacks are kept, what it used, how far its stack extends.

use super::recorded_process::ProcessIndex;
use super::stack_extent::StackExtent;
use super::thread_clock::ThreadClock;
use super::wait_sampling::WaitSampling;
use crate::addr::Avma;
use crate::recording::timeline::ThreadIndex;
use crate::sources::{Activity, ThreadStatus};

/// Times that the name of a thread without one is asked for.
const NAME_TRIES: u8 = 8;

/// One thread's account.
#[derive(Debug)]
pub(super) struct ThreadAccount {
    pub(super) process: ProcessIndex,
    /// Index into the profile's tracks.
    pub(super) track: u32,
    /// Its place in the timeline, if that has room for it.
    pub(super) timeline_thread: Option<ThreadIndex>,
    /// Times that the name of a thread without one may still be asked for.
    name_tries_left: u8,
    pub(super) clock: ThreadClock,
    pub(super) stack: StackExtent,
    /// Which of its short waits are walked.
    pub(super) waits: WaitSampling,
}

impl ThreadAccount {
    /// Of a thread with this clock. `seed`, different for each thread, draws some of its short waits.
    pub(super) fn new(
        process: ProcessIndex,
        track: u32,
        timeline_thread: Option<ThreadIndex>,
        seed: u64,
        stack_top: Option<Avma>,
        clock: ThreadClock,
    ) -> ThreadAccount {
        ThreadAccount {
            process,
            track,
            timeline_thread,
            name_tries_left: NAME_TRIES,
            clock,
            stack: StackExtent::new(stack_top),
            waits: WaitSampling::new(seed),
        }
    }

    /// Whether the name of this thread, if it has none, may be asked for once more: then it is.
    pub(super) fn take_name_try(&mut self) -> bool {
        let may = self.name_tries_left > 0;
        self.name_tries_left = self.name_tries_left.saturating_sub(1);
        may
    }
}

/// A poll of a thread of which nothing is known yet.
pub(super) fn unknown_status() -> ThreadStatus {
    ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Runnable }
}
