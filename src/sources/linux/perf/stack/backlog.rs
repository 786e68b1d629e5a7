//! Reacts to rings that fill up: the reader gets priority, and less of each stack is copied, so that no sample is
//! lost while stack bytes can be saved.
//!
//! Input: after each read, the fill level of the fullest ring, and whether samples were lost. Output: the maximum
//! stack size, when it changes. The criterion is the fill level, not time: the delay of the reader depends on the
//! machine.

use super::super::events::options::STACK_BYTES;
use super::super::ring::pressure::Pressure;

/// Fill level at which less is copied.
const FULL_PER_MILLE: u32 = 500;
/// Fill level at which the reader is late.
const LATE_PER_MILLE: u32 = 400;
/// Fill level below which twice as much may be copied: a reader is woken at a quarter, and the excess doubles.
const ROOMY_PER_MILLE: u32 = 350;
/// Consecutive reads with room before more is copied; doubled each time that rings fill up.
const FIRST_PATIENCE: u32 = 16;
const PATIENCE_MAX: u32 = 4096;

/// The limit, and the recent fill levels.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Backlog {
    /// Maximum stack size; `u32::MAX`: no limit.
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
    /// The requested stack size, within the limit.
    pub(in crate::sources::linux::perf) fn limit(&self, wanted_bytes: u32) -> u32 {
        wanted_bytes.min(self.limit_bytes)
    }

    /// Whether the reader needs priority.
    pub(in crate::sources::linux::perf) fn is_late(pressure: Pressure) -> bool {
        pressure.lost || pressure.fill_per_mille >= LATE_PER_MILLE
    }

    /// Evaluates the fill level with `copied_bytes` per stack. Returns whether the limit changed.
    pub(in crate::sources::linux::perf) fn read(&mut self, pressure: Pressure, copied_bytes: u32) -> bool {
        if pressure.lost || pressure.fill_per_mille >= FULL_PER_MILLE {
            self.roomy = 0;
            let smaller = STACK_BYTES.into_iter().rev().filter(|bytes| *bytes < copied_bytes);
            // Losses show that half is not enough.
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

    /// Restarts counting: the events could not be reopened.
    pub(in crate::sources::linux::perf) fn stays(&mut self) {
        self.roomy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const RING_BYTES: u32 = 4 << 20;

    /// Pressure when the reader comes after this many ticks of a busy CPU, with stacks of this size.
    fn pressure(ticks: u32, stack_bytes: u32) -> Pressure {
        let fits = RING_BYTES / (stack_bytes + 400);
        Pressure { fill_per_mille: ticks.min(fits) * 1000 / fits, lost: ticks > fits }
    }

    #[test]
    fn stacks_shrink_before_samples_are_lost() {
        // The reader is increasingly delayed, as more threads are ready.
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
    fn a_suddenly_delayed_reader_loses_samples_once() {
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
    fn the_full_size_is_restored_with_room_and_retries_back_off() {
        let mut backlog = Backlog::default();
        let mut rng = Rng::new(3);
        let (mut changes, mut whole) = (0, 0);
        for round in 0..40_000u32 {
            let stack_bytes = backlog.limit(32 << 10);
            // A storm at the beginning, and one later.
            let storms = round < 10 || (20_000..20_010).contains(&round);
            let ticks = if storms { 80 } else { rng.within(0, 12) as u32 };
            changes += u32::from(backlog.read(pressure(ticks, stack_bytes), stack_bytes));
            whole += u32::from(backlog.limit(u32::MAX) == u32::MAX);
        }
        assert!(changes < 20, "{changes}");
        assert!(whole > 35_000, "{whole}");
    }

    #[test]
    fn the_minimum_size_does_not_shrink() {
        let mut backlog = Backlog::default();
        let full = Pressure { fill_per_mille: 1000, lost: true };
        assert!(!backlog.read(full, 4 << 10));
        assert!(Backlog::is_late(full) && !Backlog::is_late(Pressure::default()));
    }
}
