//! What follows from rings that fill up: the reader runs before others, and less of each stack is copied, so that no
//! sample is lost while bytes of stacks can be spared.
//!
//! Input: after each read how full the fullest ring was, and whether samples were lost; output: the most bytes of a
//! stack that are to be copied, when that changes. A ring is judged by what was in it and not by time: how late the
//! reader comes is up to the machine.

use super::events::WINDOWS_BYTES;

/// Ring that is this full when it is read: less is copied from now on.
const FULL_PER_MILLE: u32 = 500;
/// So full: the reader is late.
const LATE_PER_MILLE: u32 = 400;
/// With less than this, twice as much may be copied: a reader is woken at a quarter, and what is beyond doubles.
const ROOMY_PER_MILLE: u32 = 350;
/// Reads in a row with room until more is copied; doubled each time that rings filled up.
const FIRST_PATIENCE: u32 = 16;
const PATIENCE_MAX: u32 = 4096;

/// While a batch is worked on it is looked at this often how full rings are, nanoseconds; those that are so full are
/// read.
const LOOK_NS: u64 = 2_000_000;
const READ_PER_MILLE: u32 = 400;

/// How full rings were when they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pressure {
    /// The fullest one.
    pub(super) fill_per_mille: u32,
    /// Samples did not fit.
    pub(super) lost: bool,
}

impl Pressure {
    /// With samples that were read and wait, per mille of those that may.
    pub(super) fn with(self, held_per_mille: u32) -> Pressure {
        Pressure { fill_per_mille: self.fill_per_mille.max(held_per_mille), ..self }
    }
}

/// What rings had room for of late.
#[derive(Debug)]
pub(super) struct Backlog {
    looked_ns: u64,
    /// The most bytes of a stack that are copied; `u32::MAX`: all that is wanted.
    limit_bytes: u32,
    roomy: u32,
    patience: u32,
}

impl Default for Backlog {
    fn default() -> Backlog {
        Backlog { looked_ns: 0, limit_bytes: u32::MAX, roomy: 0, patience: FIRST_PATIENCE }
    }
}

impl Backlog {
    /// Whether it is time to look at rings within a batch.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.looked_ns) >= LOOK_NS;
        if is_due {
            self.looked_ns = now_ns;
        }
        is_due
    }

    /// Whether rings that are so full are read while a batch is worked on, beside so many that were read and wait.
    pub(super) fn reads_within_batch(fill_per_mille: u32, held_per_mille: u32) -> bool {
        fill_per_mille >= READ_PER_MILLE && held_per_mille < 1000
    }

    /// Of as many bytes as are wanted of each stack, those that there is room for.
    pub(super) fn limit(&self, wanted_bytes: u32) -> u32 {
        wanted_bytes.min(self.limit_bytes)
    }

    /// Whether the reader has to run before others.
    pub(super) fn is_late(pressure: Pressure) -> bool {
        pressure.lost || pressure.fill_per_mille >= LATE_PER_MILLE
    }

    /// Takes in how full the rings were, to which `copied_bytes` of each stack are copied; whether the limit changed.
    pub(super) fn read(&mut self, pressure: Pressure, copied_bytes: u32) -> bool {
        if pressure.lost || pressure.fill_per_mille >= FULL_PER_MILLE {
            self.roomy = 0;
            let smaller = WINDOWS_BYTES.into_iter().rev().filter(|bytes| *bytes < copied_bytes);
            // Lost ones show that half is not enough.
            let mut smaller = smaller.skip(usize::from(pressure.lost));
            let least = WINDOWS_BYTES[0];
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
            WINDOWS_BYTES.into_iter().find(|bytes| *bytes > self.limit_bytes).unwrap_or(u32::MAX);
        true
    }

    /// The events could not be opened anew: rings are judged by what is copied still.
    pub(super) fn stays(&mut self) {
        self.roomy = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const RING_BYTES: u32 = 4 << 20;

    /// A reader that comes after so many ticks of a CPU that never rests, to a ring with stacks of this size.
    fn pressure(ticks: u32, window_bytes: u32) -> Pressure {
        let fits = RING_BYTES / (window_bytes + 400);
        Pressure { fill_per_mille: ticks.min(fits) * 1000 / fits, lost: ticks > fits }
    }

    #[test]
    fn stacks_give_way_before_samples_do() {
        // The reader comes later and later, as it does where more and more threads are ready.
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for ticks in 20..850 {
            let window_bytes = backlog.limit(60 << 10);
            let now = pressure(ticks, window_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, window_bytes);
        }
        assert_eq!(lost, 0);
        assert_eq!(backlog.limit(60 << 10), 4 << 10);
    }

    #[test]
    fn a_reader_that_is_held_up_at_once_loses_samples_once() {
        let (mut backlog, mut lost) = (Backlog::default(), 0);
        for _ in 0..1_000 {
            let window_bytes = backlog.limit(60 << 10);
            let now = pressure(400, window_bytes);
            lost += u32::from(now.lost);
            backlog.read(now, window_bytes);
        }
        assert!(lost <= 2, "{lost} reads");
    }

    #[test]
    fn all_is_copied_again_when_there_is_room_and_ever_more_seldom_tried() {
        let mut backlog = Backlog::default();
        let mut rng = Rng::new(3);
        let (mut changes, mut whole) = (0, 0);
        for round in 0..40_000u32 {
            let window_bytes = backlog.limit(32 << 10);
            // A storm at the beginning, and another one.
            let storms = round < 10 || (20_000..20_010).contains(&round);
            let ticks = if storms { 80 } else { rng.within(0, 12) as u32 };
            changes += u32::from(backlog.read(pressure(ticks, window_bytes), window_bytes));
            whole += u32::from(backlog.limit(u32::MAX) == u32::MAX);
        }
        assert!(changes < 20, "{changes}");
        assert!(whole > 35_000, "{whole}");
    }

    /// A CPU that never rests, and batches that take long: of each sample so many ticks. The samples that are lost,
    /// and the most bytes that waited outside of the ring; `looks` says whether the ring is looked at at each tick.
    fn long_batches(ticks_of_sample: u32, looks: bool) -> (u32, usize) {
        const HELD_BYTES_MAX: usize = 8 << 20;
        let (mut backlog, mut lost, mut most) = (Backlog::default(), 0, 0);
        let (mut in_ring, mut held, mut batch) = (0_u32, Vec::<u32>::new(), 0_u32);
        let mut fits = |in_ring: &mut u32, window_bytes: u32| {
            let is_full = *in_ring >= RING_BYTES / (window_bytes + 400);
            lost += u32::from(is_full);
            *in_ring += u32::from(!is_full);
        };
        for tick in 0..3_000 {
            let window_bytes = backlog.limit(60 << 10);
            fits(&mut in_ring, window_bytes);
            let held_bytes: usize = held.iter().map(|bytes| *bytes as usize).sum();
            let held_per_mille = (held_bytes * 1000 / HELD_BYTES_MAX).min(1000) as u32;
            let now = pressure(in_ring, window_bytes);
            // The program begins: of its first samples each takes long. Later it catches up.
            let is_done = tick % ticks_of_sample.max(1) == 0 && tick < 600 || tick >= 600;
            if batch > 0 && is_done {
                batch -= if tick >= 600 { batch.min(20) } else { 1 };
            }
            let ends = batch == 0;
            if ends || looks && Backlog::reads_within_batch(now.fill_per_mille, held_per_mille) {
                held.extend(std::iter::repeat_n(window_bytes, std::mem::take(&mut in_ring) as usize));
                let held_bytes: usize = held.iter().map(|bytes| *bytes as usize).sum();
                most = most.max(held_bytes);
                let held_per_mille = (held_bytes * 1000 / HELD_BYTES_MAX).min(1000) as u32;
                backlog.read(now.with(if ends { 0 } else { held_per_mille }), window_bytes);
            }
            if ends {
                batch = std::mem::take(&mut held).len() as u32;
            }
        }
        (lost, most)
    }

    #[test]
    fn a_batch_that_takes_long_loses_no_samples_and_takes_bounded_memory() {
        for ticks_of_sample in [2, 4, 8, 16] {
            let (lost, most) = long_batches(ticks_of_sample, true);
            assert_eq!(lost, 0, "{ticks_of_sample} ticks a sample");
            assert!(most <= (8 << 20) + RING_BYTES as usize, "{most}");
            let (lost, _) = long_batches(ticks_of_sample, false);
            assert!(lost > 0, "without");
        }
    }

    #[test]
    fn what_waits_outside_of_rings_has_a_bound() {
        let reads = |fill, held| Backlog::reads_within_batch(fill, held);
        assert!(reads(400, 999) && !reads(399, 0) && !reads(1000, 1000));
    }

    #[test]
    fn rings_are_looked_at_now_and_then() {
        let mut backlog = Backlog::default();
        let looks = (1..=1_000).filter(|at| backlog.is_due(LOOK_NS + at * LOOK_NS / 10)).count();
        assert_eq!(looks, 100);
    }

    #[test]
    fn below_the_least_nothing_gives_way() {
        let mut backlog = Backlog::default();
        let full = Pressure { fill_per_mille: 1000, lost: true };
        assert!(!backlog.read(full, 4 << 10));
        assert!(Backlog::is_late(full) && !Backlog::is_late(Pressure::default()));
    }
}
