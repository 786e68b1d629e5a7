//! Captures that wait for the images to be read again: a stack that leads to code in none is
//! torn only because a library was loaded since they were, and what reading them costs is
//! limited. When a program starts that is the rule: it loads its libraries in the first
//! milliseconds, and the first reading costs most.

use super::Recording;
use super::thread::Waits;
use crate::sources::{Capture, ThreadId};
use crate::walk::Ended;

/// Most captures that wait; a tick of all threads, or a hundred ticks of one.
const POSTPONED_MAX: usize = 128;
/// Most bytes of their stacks together.
const POSTPONED_BYTES_MAX: usize = 4 << 20;
/// After this many readings in a row that showed nothing new, torn stacks are taken as torn.
const FRUITLESS_MAX: u32 = 3;

/// What a stopped thread showed.
#[derive(Debug)]
pub(super) struct Captured {
    pub thread: ThreadId,
    pub capture: Capture,
    /// When it was taken in.
    pub at_ns: u64,
}

/// A capture whose walk is to be made again.
#[derive(Debug)]
pub(super) struct Postponed {
    captured: Captured,
    counts: u64,
    /// The address space it was captured in.
    space: u32,
}

impl Recording<'_> {
    /// Keeps the capture of a running thread whose walk ended so because the images were not
    /// read since, perhaps; gives back any other.
    pub(super) fn postpone(&mut self, captured: Captured, ended: Ended, counts: u64) -> Option<Captured> {
        let may_be_new_code = matches!(ended, Ended::BadFrame | Ended::Undescribed | Ended::Scanned)
            && self.images_read_ns < captured.at_ns
            && self.images_fruitless < FRUITLESS_MAX;
        if !may_be_new_code || !self.has_room_for(&captured.capture) {
            return Some(captured);
        }
        let account = self.accounts.get_mut(&captured.thread).filter(|account| !account.asked_waiting);
        let Some(account) = account else { return Some(captured) };
        account.waits = Waits::Unknown;
        self.postponed.push(Postponed { captured, counts, space: self.images.space() });
        None
    }

    fn has_room_for(&self, capture: &Capture) -> bool {
        let bytes: usize = self.postponed.iter().map(|one| one.captured.capture.stack.capacity()).sum();
        self.postponed.len() < POSTPONED_MAX && bytes + capture.stack.capacity() <= POSTPONED_BYTES_MAX
    }

    /// Walks those again that were captured before the images were read.
    pub(super) fn take_up_postponed(&mut self) {
        let read_ns = self.images_read_ns;
        self.walk_postponed(|one| one.captured.at_ns <= read_ns);
    }

    /// Walks all, or those of one thread, with what is known: no reading of the images can
    /// tell more about them.
    pub(super) fn settle_postponed(&mut self, thread: Option<ThreadId>) {
        self.walk_postponed(|one| thread.is_none_or(|thread| thread == one.captured.thread));
    }

    fn walk_postponed(&mut self, is_due: impl Fn(&Postponed) -> bool) {
        if !self.postponed.iter().any(&is_due) {
            return;
        }
        let (due, later) = std::mem::take(&mut self.postponed).into_iter().partition(is_due);
        self.postponed = later;
        for Postponed { captured, counts, space } in due {
            let ended = self.walk_with_known_images(captured.thread, &captured.capture);
            // What it led to may have been replaced since.
            let ended = if self.images.space() == space { ended } else { Ended::BadFrame };
            self.insert(captured.thread, ended, counts, false);
            self.spare.push(captured.capture);
        }
    }
}
