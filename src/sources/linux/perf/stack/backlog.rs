//! Reacts to rings that fill up: the reader gets priority, and less of each stack is copied, so that no sample is
//! lost while stack bytes can be spared.
//!
//! Input: after each read, how full the fullest ring was, and whether samples were lost. Output: the most bytes of a
//! stack to copy, when that changes. Fill is judged, not time: how late the reader runs is up to the machine.

use super::super::events::options::STACK_BYTES;
use super::super::ring::pressure::Pressure;

/// A ring this full when it is read: copy less.
const FULL_PER_MILLE: u32 = 500;
/// A ring this full: the reader is late.
const LATE_PER_MILLE: u32 = 400;
/// With less than this, twice as much may be copied: a reader is woken at a quarter, and what is beyond doubles.
const ROOMY_PER_MILLE: u32 = 350;
/// Reads in a row with room until more is copied; doubled each time that rings filled up.
const FIRST_PATIENCE: u32 = 16;
const PATIENCE_MAX: u32 = 4096;

/// The limit, and how the rings filled recently.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Backlog {
    /// The most bytes of a stack that are copied; `u32::MAX`: all that is requested.
    limit_bytes: u32,
    roomy: u32,
    patience: u32,
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { limit_bytes: u32::MAX, roomy: 0, patience: FIRST_PATIENCE }
    }
}

impl Backlog {
    /// The part of the requested bytes per stack that there is room for.
    pub(in crate::sources::linux::perf) fn limit(&self, wanted_bytes: u32) -> u32 {
        wanted_bytes.min(self.limit_bytes)
    }

    /// Whether the reader needs priority.
    pub(in crate::sources::linux::perf) fn is_late(pressure: Pressure) -> bool {
        pressure.lost || pressure.fill_per_mille >= LATE_PER_MILLE
    }

    /// Reads how full the rings were with `copied_bytes` per stack. Returns whether the limit changed.
    pub(in crate::sources::linux::perf) fn read(&mut self, pressure: Pressure, copied_bytes: u32) -> bool {
        if pressure.lost || pressure.fill_per_mille >= FULL_PER_MILLE {
            self.roomy = 0;
            let smaller = STACK_BYTES.into_iter().rev().filter(|bytes| *bytes < copied_bytes);
            // Lost ones show that half is not enough.
            let mut smaller = smaller.skip(usize::from(pressure.lost));
            let least = STACK_BYTES[0];
            let next = smaller.next().unwrap_or(least);
            if next < self.limit_bytes && next < copied_bytes {
                self.limit_bytes = next;
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                return true;
            }
            return false;
        }
        if self.limit_bytes == u32::MAX {
            return false;
        }
        self.roomy = if pressure.fill_per_mille < ROOMY_PER_MILLE { self.roomy + 1 } else { 0 };
        if self.roomy < self.patience {
            return false;
        }
        self.roomy = 0;
        self.limit_bytes =
            STACK_BYTES.into_iter().find(|bytes| *bytes > self.limit_bytes).unwrap_or(u32::MAX);
        true
    }

    /// The events could not be reopened: starts counting again.
    pub(in crate::sources::linux::perf) fn stays(&mut self) {
        self.roomy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const RING_BYTES: u32 = 4 << 20;

    /// A reader that comes after so many ticks of a CPU that never rests, to a ring with stacks of this size.
    fn pressure(ticks: u32, stack_bytes: u32) -> Pressure {
        let fits = RING_BYTES / (stack_bytes + 400);
        Pressure { fill_per_mille: ticks.min(fits) * 1000 / fits, lost: ticks > fits }
    }

    #[test]
    fn stacks_give_way_before_samples_do() {
        // The reader comes later and later, as it does where more and more threads are ready.
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for ticks in 20..850 {
            let stack_bytes = backlog.limit(60 << 10);
            let now = pressure(ticks, stack_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, stack_bytes);
        }
        assert_eq!(lost, 0);
        assert_eq!(backlog.limit(60 << 10), 4 << 10);
    }

    #[test]
    fn a_reader_that_is_held_up_at_once_loses_samples_once() {
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for _ in 0..1_000 {
            let stack_bytes = backlog.limit(60 << 10);
            let now = pressure(400, stack_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, stack_bytes);
        }
        assert!(lost <= 2, "{lost} reads");
    }

    #[test]
    fn all_is_copied_again_when_there_is_room_and_ever_more_seldom_tried() {
        let mut backlog = Backlog::default();
        let mut rng = Rng::new(3);
        let (mut changes, mut whole) = (0, 0);
        for round in 0..40_000u32 {
            let stack_bytes = backlog.limit(32 << 10);
            // A storm at the beginning, and another one.
            let storms = round < 10 || (20_000..20_010).contains(&round);
            let ticks = if storms { 80 } else { rng.within(0, 12) as u32 };
            changes += u32::from(backlog.read(pressure(ticks, stack_bytes), stack_bytes));
            whole += u32::from(backlog.limit(u32::MAX) == u32::MAX);
        }
        assert!(changes < 20, "{changes}");
        assert!(whole > 35_000, "{whole}");
    }

    #[test]
    fn below_the_least_nothing_gives_way() {
        let mut backlog = Backlog::default();
        let full = Pressure { fill_per_mille: 1000, lost: true };
        assert!(!backlog.read(full, 4 << 10));
        assert!(Backlog::is_late(full) && !Backlog::is_late(Pressure::default()));
    }
}
