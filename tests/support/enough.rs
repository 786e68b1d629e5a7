//! Recordings that hold enough stacks to tell shares by.
#![allow(dead_code, reason = "each test uses a part")]

use super::Recorded;

/// Stacks of which shares are told: with fewer, anything would be right.
const STACKS_MIN: u64 = 30;

/// Recordings that are made to have so many.
const RECORDINGS_MAX: usize = 3;

/// Records until shares can be told by the stacks taken. A machine that stands still for half a second makes
/// one stack stand for so much that hundreds say as little as ten. The last recording is given back whatever
/// it has, for [`Recorded::check_stacks_taken`] to tell; `None` where `record` has none.
pub(crate) fn record_enough(mut record: impl FnMut() -> Option<Recorded>) -> Option<Recorded> {
    for _ in 1..RECORDINGS_MAX {
        let recorded = record()?;
        // 4: nothing was sampled.
        let is_empty = recorded.status.code() == Some(4);
        if !is_empty && (!recorded.status.success() || recorded.has_enough_stacks()) {
            return Some(recorded);
        }
        println!(
            "recorded again: {}, as much as {} stacks",
            recorded.status, recorded.stats["samples_effective"]
        );
    }
    record()
}

impl Recorded {
    /// [`Recorded::stacks_taken`], or the kernel's samples, which are no stops and stand for the same each.
    pub(crate) fn stacks_that_tell(&self) -> u64 {
        if self.figure("stops") > 0.0 { self.stacks_taken() } else { self.total() }
    }

    fn has_enough_stacks(&self) -> bool {
        self.stacks_that_tell() > STACKS_MIN
    }

    #[track_caller]
    pub(crate) fn check_stacks_taken(&self) {
        self.check(self.has_enough_stacks(), "hardly anything was sampled");
    }
}
