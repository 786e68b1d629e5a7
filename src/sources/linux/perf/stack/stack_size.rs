//! How many bytes of each stack the kernel copies: the smallest size that nearly all stacks fit into.
//!
//! Input: how much of its copy each walk used. Output: the next size, when it changes.
//!
//! The first round copies the most that a record holds and then picks a size by what stacks needed. After that the size
//! grows at once, to what is known to be enough or else to the largest, when more than [`TRUNCATED_MAX_PERCENT`] of a
//! round was truncated; it shrinks one step at a time. If growing did not complete at least half of the truncated stacks,
//! it goes back and waits for longer each time: some chains lead out of any size (goroutines, into the heap).
//!
//! One size holds for all threads: it is a property of the events, which are reopened to change it. What a single thread
//! needs beyond it is prefetched (`prefetch.rs`).

use super::super::events::options::{STACK_BYTES, SWITCH_STACK_BYTES};
use super::stack_tail::TAIL_BYTES;
use crate::sources::pushed::StackUse;

/// The size for stacks that no size is enough for, and the first one where the largest would be too much.
const USUAL_BYTES: u32 = 16 << 10;
/// The first size for stacks that are copied at each switch.
const USUAL_AT_SWITCH_BYTES: u32 = 8 << 10;
/// The sizes of a record, and one with the stack tail.
const SIZES_BYTES: [u32; 6] = {
    let [least, small, usual, large, whole] = STACK_BYTES;
    [least, small, usual, large, whole, whole + TAIL_BYTES]
};
/// Stacks per round; a decision is made at the end of each.
const ROUND_STACKS: u32 = 256;
/// Stacks of the first round. Few, since a copy of the largest size takes the program some 20 us, and a server's
/// latencies show it when that continues for a quarter of a second.
const FIRST_ROUND_STACKS: u32 = 32;
/// The first size is this many times what the stacks of the first round needed: so few do not show the deepest.
const FIRST_ROUND_HEADROOM: usize = 4;
/// Grow early if this many stacks, and more than half of the first round, were truncated.
const EARLY_GROW_TRUNCATED: u32 = 24;
/// Grow when more than this part of a round was truncated.
const TRUNCATED_MAX_PERCENT: u32 = 2;
/// A size has to leave room for this part of what was needed: one fourth.
const HEADROOM_DIVISOR: usize = 4;
/// Shrink when all stacks of this many rounds in a row fit into the smaller size with headroom.
const ROUNDS_TO_SHRINK: u32 = 16;
/// Rounds until growing is tried again after it was of no use; doubled each time.
const FIRST_BACKOFF: u32 = 16;

/// The size of copies of stacks, and what stacks needed.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct EventStackSize {
    /// The sizes to choose from, the smallest first.
    sizes: &'static [u32],
    /// Index of the current size, and of the usual one.
    size: usize,
    usual: usize,
    /// No round has ended yet.
    in_first_round: bool,
    stacks: u32,
    truncated: u32,
    /// Stacks that no size is enough for.
    unbounded: u32,
    /// The most bytes that a stack of this round needed.
    max_needed: usize,
    /// Rounds in a row whose stacks would have fitted into the smaller size.
    rounds_fitting_smaller: u32,
    /// In the round after growing: how many were truncated before it, and the size of then.
    truncated_before: Option<u32>,
    grown_from: usize,
    backoff: u32,
    next_backoff: u32,
}

impl EventStackSize {
    /// Begins with the most that a record holds, until the first round has shown what is needed.
    pub(in crate::sources::linux::perf) fn new() -> EventStackSize {
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

    /// Begins with the usual size: the first samples of many processes, whose images all have to be read, would fill the
    /// rings.
    pub(in crate::sources::linux::perf) fn for_many_processes() -> EventStackSize {
        EventStackSize::with(&SIZES_BYTES, USUAL_BYTES)
    }

    /// Limits the size to what a record holds: there is no stack tail.
    pub(in crate::sources::linux::perf) fn limit_to_record(&mut self) {
        self.sizes = &STACK_BYTES;
        self.size = self.size.min(self.sizes.len() - 1);
    }

    /// For stacks that are copied at context switches, of which some threads make a hundred thousand per second.
    pub(in crate::sources::linux::perf) fn for_switches() -> EventStackSize {
        EventStackSize::with(&SWITCH_STACK_BYTES, USUAL_AT_SWITCH_BYTES)
    }

    /// Pins the size: the events could not be reopened.
    pub(in crate::sources::linux::perf) fn pin(&mut self, bytes: u32) {
        self.size = self.sizes.iter().position(|size| *size == bytes).unwrap_or(self.size);
        (self.backoff, self.rounds_fitting_smaller) = (u32::MAX, 0);
    }

    /// The current size, bytes.
    pub(in crate::sources::linux::perf) fn bytes(&self) -> u32 {
        self.sizes[self.size]
    }

    /// Counts a walk; the new size, if it changes now.
    pub(in crate::sources::linux::perf) fn walked(&mut self, needed: StackUse) -> Option<u32> {
        self.stacks += 1;
        if needed.unbounded {
            self.unbounded += 1;
        } else {
            // What lies above every size can only be prefetched.
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
            // None needed more than a record holds.
            Some(size) if self.truncated == 0 => self.size = size.min(STACK_BYTES.len() - 1),
            _ if is_too_many(self.truncated, self.stacks) && self.size + 1 < self.sizes.len() => {
                self.grow(self.usual);
            }
            // Most lead out of any size.
            _ if self.truncated * 2 > self.stacks => self.size = self.usual,
            _ => {}
        }
    }

    /// Growing did not complete most of the truncated stacks: goes back, and waits for longer than last time.
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

    /// Takes the size that is enough for all, if it is known, or else the largest. [`EventStackSize::undo_growth`] goes
    /// back to the size `from`.
    fn grow(&mut self, from: usize) {
        self.grown_from = from;
        let is_known = self.max_needed > self.bytes() as usize;
        let enough = self.sizes.iter().position(|size| with_headroom(self.max_needed) <= *size as usize);
        self.size = enough.filter(|_| is_known).unwrap_or(self.sizes.len() - 1);
        self.truncated_before = Some(self.truncated * ROUND_STACKS / self.stacks.max(1));
    }
}

/// Whether this many truncated ones of `stacks` are more than [`TRUNCATED_MAX_PERCENT`].
fn is_too_many(truncated: u32, stacks: u32) -> bool {
    truncated * 100 > stacks * TRUNCATED_MAX_PERCENT
}

/// A size that these bytes fit into with room to spare.
fn with_headroom(needed: usize) -> usize {
    needed + needed / HEADROOM_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::super::super::events::options::STACK_BYTES_MAX;
    use super::*;

    fn round(stack_size: &mut EventStackSize, bytes: usize) {
        for _ in 0..ROUND_STACKS {
            let copied = stack_size.bytes() as usize;
            stack_size.walked(StackUse {
                bytes: bytes.min(copied),
                truncated: bytes > copied,
                needs_red_zone: false,
                unbounded: false,
            });
        }
    }

    #[test]
    fn it_grows_to_what_is_needed_and_shrinks_when_less_is() {
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
    fn the_first_stacks_leave_room_for_deeper_ones() {
        for (needed, copied) in [(900, 4 << 10), (1_500, 8 << 10), (5_000, 32 << 10), (20_000, 60 << 10)] {
            let mut stack_size = EventStackSize::new();
            for stack in 0..FIRST_ROUND_STACKS {
                assert_eq!(stack_size.bytes(), 60 << 10, "stack {stack}");
                stack_size.walked(StackUse {
                    bytes: needed,
                    truncated: false,
                    needs_red_zone: false,
                    unbounded: false,
                });
            }
            assert_eq!(stack_size.bytes(), copied, "for stacks of {needed}");
        }
    }

    #[test]
    fn stacks_beyond_the_largest_record_are_copied_by_a_program_where_that_helps() {
        for mut stack_size in [EventStackSize::new(), EventStackSize::for_many_processes()] {
            for _ in 0..4 {
                round(&mut stack_size, 200_000);
            }
            assert_eq!(
                (stack_size.bytes().min(STACK_BYTES_MAX), stack_size.bytes() > STACK_BYTES_MAX),
                (60 << 10, true)
            );
            for _ in 0..40 {
                round(&mut stack_size, 30_000);
            }
            assert_eq!(
                (stack_size.bytes().min(STACK_BYTES_MAX), stack_size.bytes() > STACK_BYTES_MAX),
                (60 << 10, false)
            );
        }
        let mut stack_size = EventStackSize::new();
        stack_size.limit_to_record();
        for _ in 0..4 {
            round(&mut stack_size, 200_000);
        }
        assert_eq!(
            (stack_size.bytes().min(STACK_BYTES_MAX), stack_size.bytes() > STACK_BYTES_MAX),
            (16 << 10, false),
            "it leads out of any size"
        );
    }

    #[test]
    fn it_grows_no_further_than_is_known_to_be_enough() {
        let mut stack_size = EventStackSize::new();
        round(&mut stack_size, 1_000);
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=ROUND_STACKS / 50 {
            stack_size.walked(StackUse {
                bytes: 20_000,
                truncated: true,
                needs_red_zone: false,
                unbounded: false,
            });
        }
        assert_eq!(stack_size.bytes(), 32 << 10);
    }

    #[test]
    fn stacks_that_no_size_is_enough_for_leave_the_others_theirs() {
        let mut stack_size = EventStackSize::new();
        for stack in 0..40 * ROUND_STACKS {
            let unbounded = stack % 3 > 0;
            let bytes = if unbounded { stack_size.bytes() as usize } else { 50_000 };
            stack_size.walked(StackUse { bytes, truncated: false, needs_red_zone: false, unbounded });
        }
        assert_eq!(stack_size.bytes(), 60 << 10);
        for _ in 0..2 * ROUND_STACKS {
            stack_size.walked(StackUse {
                bytes: 60 << 10,
                truncated: false,
                needs_red_zone: false,
                unbounded: true,
            });
        }
        assert_eq!(stack_size.bytes(), 16 << 10, "no others are left");
    }

    #[test]
    fn it_grows_at_once_when_stacks_become_deeper() {
        let mut stack_size = EventStackSize::new();
        for _ in 0..4 {
            round(&mut stack_size, 1_000);
        }
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=ROUND_STACKS / 50 {
            stack_size.walked(StackUse {
                bytes: 4 << 10,
                truncated: true,
                needs_red_zone: false,
                unbounded: false,
            });
        }
        assert!(stack_size.bytes() > 60 << 10);
    }

    #[test]
    fn stacks_that_leave_every_size_are_not_copied_in_vain_for_long() {
        let mut stack_size = EventStackSize::new();
        let mut large = 0;
        for _ in 0..1_000 {
            round(&mut stack_size, 1 << 20);
            large += u32::from(stack_size.bytes() > 16 << 10);
        }
        assert!(large < 20, "{large} of 1000 rounds");
    }
}
