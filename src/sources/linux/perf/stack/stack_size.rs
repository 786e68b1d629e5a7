//! How many bytes of each stack the kernel copies: the smallest size that fits nearly all stacks.
//!
//! Input: how much of its copy each walk used. Output: the next size, when it changes.
//!
//! The first round copies as much as fits into a record, and then picks a size by the needs of its stacks. After
//! that the size grows at once, to a size known to be enough or else to the largest, when more than
//! [`TRUNCATED_MAX_PERCENT`] of a round was truncated; it shrinks one step at a time. If growth did not complete
//! at least half of the truncated stacks, it is undone, with an increasing backoff: some chains lead out of any
//! size (goroutines, into the heap).
//!
//! One size applies to all threads: it is a property of the events, which are reopened to change it. Anything a
//! single thread needs beyond it is prefetched (`prefetch.rs`), or copied as its tail (`stack_tail.rs`).

use crate::sources::linux::perf::events::attributes::{STACK_BYTES, SWITCH_STACK_BYTES};
use crate::sources::pushed::StackUse;

/// The size for stacks that exceed any size, and the initial one if the largest would be too much.
const USUAL_BYTES: u32 = 16 << 10;
/// The initial size for stacks copied at each switch.
const USUAL_AT_SWITCH_BYTES: u32 = 8 << 10;
/// Stacks per round; a decision is made at the end of each.
const ROUND_STACKS: u32 = 256;
/// Stacks of the first round. Few, since a copy of the largest size takes the program some 20 us, which becomes
/// visible in a server's latencies if it continues for a quarter of a second.
const FIRST_ROUND_STACKS: u32 = 32;
/// The first size is this many times the need of the first round: so few stacks do not show the deepest.
const FIRST_ROUND_HEADROOM: usize = 4;
/// Grow early if this many stacks, and more than half of the first round, were truncated.
const EARLY_GROW_TRUNCATED: u32 = 24;
/// Grow when more than this part of a round was truncated.
const TRUNCATED_MAX_PERCENT: u32 = 2;
/// A size must leave this part of the needed bytes as headroom: one fourth.
const HEADROOM_DIVISOR: usize = 4;
/// Shrink when all stacks of this many consecutive rounds fit into the smaller size with headroom.
const ROUNDS_TO_SHRINK: u32 = 16;
/// Rounds after growth in vain until the next attempt; doubled each time.
const FIRST_BACKOFF: u32 = 16;

/// The size of stack copies, and the needs of stacks.
#[derive(Debug)]
pub(crate) struct EventStackSize {
    /// The available sizes, ascending.
    sizes: &'static [u32],
    /// Index of the current size, and of the usual one.
    size: usize,
    usual: usize,
    /// Whether no round has ended yet.
    in_first_round: bool,
    stacks: u32,
    truncated: u32,
    /// Stacks that exceed any size.
    unbounded: u32,
    /// Maximum bytes needed by a stack of this round.
    max_needed: usize,
    /// Consecutive rounds with stacks that fit into the smaller size.
    rounds_fitting_smaller: u32,
    /// In the round after growth: number of truncated stacks before it, and the previous size.
    truncated_before: Option<u32>,
    grown_from: usize,
    backoff: u32,
    next_backoff: u32,
}

impl EventStackSize {
    /// Begins with the maximum of a record, until the first round shows the need.
    pub(crate) fn new() -> EventStackSize {
        EventStackSize { size: STACK_BYTES.len() - 1, ..EventStackSize::for_many_processes() }
    }

    fn with(sizes: &'static [u32], usual_bytes: u32) -> EventStackSize {
        let usual = sizes.iter().position(|size| *size == usual_bytes).unwrap_or(0);
        EventStackSize {
            sizes,
            size: usual,
            usual,
            in_first_round: true,
            stacks: 0,
            truncated: 0,
            unbounded: 0,
            max_needed: 0,
            rounds_fitting_smaller: 0,
            truncated_before: None,
            grown_from: 0,
            backoff: 0,
            next_backoff: FIRST_BACKOFF,
        }
    }

    /// Begins with the usual size: the first samples of many processes, with all images yet to be read, would fill
    /// the rings.
    pub(crate) fn for_many_processes() -> EventStackSize {
        EventStackSize::with(&STACK_BYTES, USUAL_BYTES)
    }

    /// For stacks copied at context switches: some threads have a hundred thousand per second.
    pub(crate) fn for_switches() -> EventStackSize {
        EventStackSize::with(&SWITCH_STACK_BYTES, USUAL_AT_SWITCH_BYTES)
    }

    /// Pins the size: the events could not be reopened.
    pub(crate) fn pin(&mut self, bytes: u32) {
        self.size = self.sizes.iter().position(|size| *size == bytes).unwrap_or(self.size);
        (self.backoff, self.rounds_fitting_smaller) = (u32::MAX, 0);
    }

    /// The current size, bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.sizes[self.size]
    }

    /// Counts a walk; returns the new size, if it changes now.
    pub(crate) fn walked(&mut self, needed: StackUse) -> Option<u32> {
        self.stacks += 1;
        if needed.unbounded {
            self.unbounded += 1;
        } else {
            // Words above every size can only be prefetched.
            let is_above_all = needed.bytes > self.sizes.last().map_or(0, |most| *most as usize);
            self.truncated += u32::from(needed.truncated && !is_above_all);
            self.max_needed =
                self.max_needed.max(if is_above_all { self.bytes() as usize } else { needed.bytes });
        }
        let round = if self.in_first_round { FIRST_ROUND_STACKS } else { ROUND_STACKS };
        // Do not wait for the end of the round when it is already clear that the size must grow.
        if self.stacks < round && !self.grows_early() {
            return None;
        }
        let before = self.size;
        if self.unbounded == self.stacks {
            self.size = self.size.min(self.usual);
        } else {
            self.stacks -= self.unbounded;
            self.end_round();
        }
        (self.stacks, self.truncated, self.unbounded, self.max_needed) = (0, 0, 0, 0);
        (self.size != before).then(|| self.bytes())
    }

    /// Whether the size must grow, whatever the rest of the round shows.
    fn grows_early(&self) -> bool {
        if self.in_first_round {
            self.truncated >= EARLY_GROW_TRUNCATED && self.truncated * 2 > self.stacks - self.unbounded
        } else {
            self.may_grow() && self.truncated_before.is_none() && is_too_many(self.truncated, ROUND_STACKS)
        }
    }

    fn end_round(&mut self) {
        if std::mem::take(&mut self.in_first_round) {
            self.decide_first_round();
            return;
        }
        if let Some(truncated_before) = self.truncated_before.take()
            && self.truncated * 2 > truncated_before
        {
            self.undo_growth();
        } else if is_too_many(self.truncated, ROUND_STACKS) {
            self.grow_or_wait();
        } else {
            self.shrink_if_roomy();
        }
    }

    /// The size after the first round.
    fn decide_first_round(&mut self) {
        let fits = |bytes: &u32| self.max_needed * FIRST_ROUND_HEADROOM < *bytes as usize;
        match self.sizes.iter().position(fits) {
            Some(size) if self.truncated == 0 => self.size = size,
            _ if is_too_many(self.truncated, self.stacks) && self.size + 1 < self.sizes.len() => {
                self.grow(self.usual);
            }
            // Most exceed any size.
            _ if self.truncated * 2 > self.stacks => self.size = self.usual,
            _ => {}
        }
    }

    /// Undoes growth that did not complete most of the truncated stacks, and increases the backoff.
    fn undo_growth(&mut self) {
        self.size = self.grown_from;
        self.backoff = self.next_backoff;
        self.next_backoff = self.next_backoff.saturating_mul(2);
    }

    fn grow_or_wait(&mut self) {
        self.rounds_fitting_smaller = 0;
        if self.may_grow() {
            self.grow(self.size);
        } else {
            self.backoff = self.backoff.saturating_sub(1);
        }
    }

    fn shrink_if_roomy(&mut self) {
        let fits_smaller = self.size > 0
            && self.truncated == 0
            && with_headroom(self.max_needed) < self.sizes[self.size - 1] as usize;
        self.rounds_fitting_smaller = if fits_smaller { self.rounds_fitting_smaller + 1 } else { 0 };
        if self.rounds_fitting_smaller >= ROUNDS_TO_SHRINK {
            self.rounds_fitting_smaller = 0;
            self.size -= 1;
        }
    }

    /// Whether there is a larger size, and no backoff is running.
    fn may_grow(&self) -> bool {
        self.backoff == 0 && self.size + 1 < self.sizes.len()
    }

    /// Grows to a size known to be enough for all, or else to the largest. [`EventStackSize::undo_growth`] reverts
    /// to the size `from`.
    fn grow(&mut self, from: usize) {
        self.grown_from = from;
        let is_known = self.max_needed > self.bytes() as usize;
        let enough = self.sizes.iter().position(|size| with_headroom(self.max_needed) <= *size as usize);
        self.size = enough.filter(|_| is_known).unwrap_or(self.sizes.len() - 1);
        self.truncated_before = Some(self.truncated * ROUND_STACKS / self.stacks.max(1));
    }
}

/// Whether `truncated` of `stacks` is more than [`TRUNCATED_MAX_PERCENT`].
fn is_too_many(truncated: u32, stacks: u32) -> bool {
    truncated * 100 > stacks * TRUNCATED_MAX_PERCENT
}

/// A size that fits these bytes with headroom.
fn with_headroom(needed: usize) -> usize {
    needed + needed / HEADROOM_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(stack_size: &mut EventStackSize, bytes: usize) {
        for _ in 0..ROUND_STACKS {
            let copied = stack_size.bytes() as usize;
            stack_size.walked(StackUse {
                bytes: bytes.min(copied),
                truncated: bytes > copied,
                ..StackUse::default()
            });
        }
    }

    #[test]
    fn the_size_grows_to_the_need_and_shrinks_with_it() {
        let mut stack_size = EventStackSize::new();
        for _ in 0..4 {
            round(&mut stack_size, 50_000);
        }
        assert_eq!(stack_size.bytes(), 60 << 10);
        for _ in 0..100 {
            round(&mut stack_size, 1_000);
        }
        assert_eq!(stack_size.bytes(), 4 << 10);
    }

    #[test]
    fn the_first_round_leaves_room_for_deeper_stacks() {
        for (needed, copied) in [(900, 4 << 10), (1_500, 8 << 10), (5_000, 32 << 10), (20_000, 60 << 10)] {
            let mut stack_size = EventStackSize::new();
            for stack in 0..FIRST_ROUND_STACKS {
                assert_eq!(stack_size.bytes(), 60 << 10, "stack {stack}");
                stack_size.walked(StackUse { bytes: needed, ..StackUse::default() });
            }
            assert_eq!(stack_size.bytes(), copied, "for stacks of {needed}");
        }
    }

    #[test]
    fn stacks_larger_than_a_record_get_the_usual_size() {
        let mut stack_size = EventStackSize::new();
        for _ in 0..4 {
            round(&mut stack_size, 200_000);
        }
        assert_eq!(stack_size.bytes(), 16 << 10, "it leads out of any size");
    }

    #[test]
    fn the_size_grows_no_further_than_needed() {
        let mut stack_size = EventStackSize::new();
        round(&mut stack_size, 1_000);
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=ROUND_STACKS / 50 {
            stack_size.walked(StackUse { bytes: 20_000, truncated: true, ..StackUse::default() });
        }
        assert_eq!(stack_size.bytes(), 32 << 10);
    }

    #[test]
    fn stacks_that_exceed_any_size_do_not_affect_others() {
        let mut stack_size = EventStackSize::new();
        for stack in 0..40 * ROUND_STACKS {
            let unbounded = stack % 3 > 0;
            let bytes = if unbounded { stack_size.bytes() as usize } else { 50_000 };
            stack_size.walked(StackUse { bytes, unbounded, ..StackUse::default() });
        }
        assert_eq!(stack_size.bytes(), 60 << 10);
        for _ in 0..2 * ROUND_STACKS {
            stack_size.walked(StackUse { bytes: 60 << 10, unbounded: true, ..StackUse::default() });
        }
        assert_eq!(stack_size.bytes(), 16 << 10, "no others are left");
    }

    #[test]
    fn the_size_grows_at_once_when_stacks_become_deeper() {
        let mut stack_size = EventStackSize::new();
        for _ in 0..4 {
            round(&mut stack_size, 1_000);
        }
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=ROUND_STACKS / 50 {
            stack_size.walked(StackUse { bytes: 4 << 10, truncated: true, ..StackUse::default() });
        }
        assert_eq!(stack_size.bytes(), 60 << 10);
    }

    #[test]
    fn growth_in_vain_is_soon_undone() {
        let mut stack_size = EventStackSize::new();
        let mut large = 0;
        for _ in 0..1_000 {
            round(&mut stack_size, 1 << 20);
            large += u32::from(stack_size.bytes() > 16 << 10);
        }
        assert!(large < 20, "{large} of 1000 rounds");
    }
}
