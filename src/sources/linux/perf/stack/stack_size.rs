//! How many bytes of each stack the kernel copies: the smallest size that nearly all stacks fit
//! into. It begins with the largest of a record, so that the first samples are whole, goes down to what
//! they needed, grows to the largest at once and shrinks a step at a time. Input: what walks needed; output: the next size, when it is time for another.
//!
//! One size holds for all threads, since it is a property of the events, and changing it opens
//! them anew. What single threads need beyond it is prefetched (`prefetch.rs`) and no reason to grow; stacks
//! that no size is enough for are no reason to shrink what the others need. It grows when more than one stack in fifty ran out, and falls back, for as long as
//! it takes ever more stacks to try again, if that made hardly any of them whole: some chains
//! lead out of any size (goroutines, into the heap).

use super::super::events::options::{STACK_BYTES, SWITCH_STACK_BYTES};
use super::stack_tail::TAIL_BYTES;
use crate::sources::pushed::StackUse;

/// The size for stacks that no size is enough for, and the first one where the largest would be too much.
const USUAL_BYTES: u32 = 16 << 10;
/// The size for stacks that are copied at each switch, at first.
const USUAL_AT_SWITCH_BYTES: u32 = 8 << 10;
/// The sizes of a record, and one with the stack tail.
const SIZES_BYTES: [u32; 6] = {
    let [least, small, usual, large, whole] = STACK_BYTES;
    [least, small, usual, large, whole, whole + TAIL_BYTES]
};
/// Stacks that a decision is made by.
const STACKS: u32 = 256;
/// Stacks of the first round: the largest copies take a program some 20 us each, and a server's latencies tell of
/// a quarter of a second of them. So few do not show what will come, so its size is so many times what they needed.
const FIRST_STACKS: u32 = 32;
const FIRST_TIMES: usize = 4;
/// In the first round so many that ran out are enough, if they are most.
const PLAIN_STACKS: u32 = 24;
/// A size shrinks when all of so many rounds fit into the smaller one with room to spare.
const ROUNDS_TO_SHRINK: u32 = 16;
/// Rounds without a try after one in vain, doubled each time.
const FIRST_BACKOFF: u32 = 16;

/// The size of copies of stacks, and what stacks needed.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct StackSize {
    /// The sizes that there are, the smallest first.
    sizes: &'static [u32],
    /// Index of the one that it has, and of the usual one.
    size: usize,
    usual: usize,
    /// No round has ended yet.
    in_first_round: bool,
    stacks: u32,
    truncated: u32,
    /// Stacks that no size is enough for.
    unbounded: u32,
    /// The most that a stack of this round needed.
    max_needed: usize,
    /// Rounds in a row that would have fitted into less.
    rounds_fitting_smaller: u32,
    /// How many ran out before it grew, and which size it had.
    truncated_before: Option<u32>,
    grown_from: usize,
    backoff: u32,
    next_backoff: u32,
}

impl StackSize {
    /// The largest of a record, until the first round has shown what is needed.
    pub(in crate::sources::linux::perf) fn new() -> StackSize {
        StackSize { size: STACK_BYTES.len() - 1, ..StackSize::for_many_processes() }
    }

    /// Of the usual size.
    fn with(sizes: &'static [u32], usual_bytes: u32) -> StackSize {
        let usual = sizes.iter().position(|size| *size == usual_bytes).unwrap_or(0);
        StackSize {
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

    /// The usual size: of many processes the first samples, with all that is to be read of their
    /// images, would fill the rings.
    pub(in crate::sources::linux::perf) fn for_many_processes() -> StackSize {
        StackSize::with(&SIZES_BYTES, USUAL_BYTES)
    }

    /// Nothing can be had beyond the largest of a record.
    pub(in crate::sources::linux::perf) fn limit_to_record(&mut self) {
        self.sizes = &STACK_BYTES;
        self.size = self.size.min(self.sizes.len() - 1);
    }

    /// Of stacks at which threads leave their CPUs, which some do a hundred thousand times a second.
    pub(in crate::sources::linux::perf) fn of_switches() -> StackSize {
        StackSize::with(&SWITCH_STACK_BYTES, USUAL_AT_SWITCH_BYTES)
    }

    /// Pins the size: the events could not be reopened.
    pub(in crate::sources::linux::perf) fn pin(&mut self, bytes: u32) {
        self.size = self.sizes.iter().position(|size| *size == bytes).unwrap_or(self.size);
        (self.backoff, self.rounds_fitting_smaller) = (u32::MAX, 0);
    }

    /// The size, bytes.
    pub(in crate::sources::linux::perf) fn bytes(&self) -> u32 {
        self.sizes[self.size]
    }

    /// Takes note of a walk; the new size, if it changes now.
    pub(in crate::sources::linux::perf) fn walked(&mut self, needed: StackUse) -> Option<u32> {
        self.stacks += 1;
        if needed.unbounded {
            self.unbounded += 1;
        } else {
            // What lies above any size is prefetched or not at all.
            let is_above_all = needed.bytes > self.sizes.last().map_or(0, |most| *most as usize);
            self.truncated += u32::from(needed.truncated && !is_above_all);
            self.max_needed =
                self.max_needed.max(if is_above_all { self.bytes() as usize } else { needed.bytes });
        }
        // The next samples are not to wait where it is plain: in the first round that most ran out, later
        // that so many did as let it grow at the end of a round.
        let plain = if self.in_first_round {
            self.truncated >= PLAIN_STACKS && self.truncated * 2 > self.stacks - self.unbounded
        } else {
            self.may_grow() && self.truncated_before.is_none() && StackSize::are_many(self.truncated)
        };
        let round = if self.in_first_round { FIRST_STACKS } else { STACKS };
        if self.stacks < round && !plain {
            return None;
        }
        let before = self.size;
        if self.unbounded == self.stacks {
            self.size = self.size.min(self.usual);
        } else {
            self.stacks -= self.unbounded;
            self.decide();
        }
        (self.stacks, self.truncated, self.unbounded, self.max_needed) = (0, 0, 0, 0);
        (self.size != before).then(|| self.bytes())
    }

    fn decide(&mut self) {
        if std::mem::take(&mut self.in_first_round) {
            let fits = |bytes: &u32| self.max_needed * FIRST_TIMES < *bytes as usize;
            match self.sizes.iter().position(fits) {
                // None needed more than a record holds.
                Some(size) if self.truncated == 0 => self.size = size.min(STACK_BYTES.len() - 1),
                _ if self.truncated * 50 > self.stacks && self.size + 1 < self.sizes.len() => {
                    self.grow(self.usual)
                }
                // Most lead out of any size.
                _ if self.truncated * 2 > self.stacks => self.size = self.usual,
                _ => {}
            }
            return;
        }
        if let Some(truncated_before) = self.truncated_before.take()
            && self.truncated * 2 > truncated_before
        {
            // More was of no use to most of them.
            self.size = self.grown_from;
            self.backoff = self.next_backoff;
            self.next_backoff = self.next_backoff.saturating_mul(2);
            return;
        }
        if StackSize::are_many(self.truncated) {
            self.rounds_fitting_smaller = 0;
            if self.may_grow() {
                self.grow(self.size);
            } else {
                self.backoff = self.backoff.saturating_sub(1);
            }
            return;
        }
        let fits_less = self.size > 0
            && self.truncated == 0
            && self.max_needed + self.max_needed / 4 < self.sizes[self.size - 1] as usize;
        self.rounds_fitting_smaller = if fits_less { self.rounds_fitting_smaller + 1 } else { 0 };
        if self.rounds_fitting_smaller >= ROUNDS_TO_SHRINK {
            self.rounds_fitting_smaller = 0;
            self.size -= 1;
        }
    }

    /// Whether there is a larger size, and trying it was not in vain of late.
    fn may_grow(&self) -> bool {
        self.backoff == 0 && self.size + 1 < self.sizes.len()
    }

    /// Whether so many of a round that ran out are too many.
    fn are_many(truncated: u32) -> bool {
        truncated * 50 > STACKS
    }

    /// Takes the size that is enough for all, if that is known, or else the largest; if that is in vain, the size
    /// `from`.
    fn grow(&mut self, from: usize) {
        self.grown_from = from;
        let is_known = self.max_needed > self.bytes() as usize;
        let enough =
            self.sizes.iter().position(|size| self.max_needed + self.max_needed / 4 <= *size as usize);
        self.size = enough.filter(|_| is_known).unwrap_or(self.sizes.len() - 1);
        self.truncated_before = Some(self.truncated * STACKS / self.stacks.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::events::options::STACK_BYTES_MAX;
    use super::*;

    fn round(stack_size: &mut StackSize, bytes: usize) {
        for _ in 0..STACKS {
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
        let mut stack_size = StackSize::new();
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
            let mut stack_size = StackSize::new();
            for stack in 0..FIRST_STACKS {
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
        for mut stack_size in [StackSize::new(), StackSize::for_many_processes()] {
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
        let mut stack_size = StackSize::new();
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
        let mut stack_size = StackSize::new();
        round(&mut stack_size, 1_000);
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=STACKS / 50 {
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
        let mut stack_size = StackSize::new();
        for stack in 0..40 * STACKS {
            let unbounded = stack % 3 > 0;
            let bytes = if unbounded { stack_size.bytes() as usize } else { 50_000 };
            stack_size.walked(StackUse { bytes, truncated: false, needs_red_zone: false, unbounded });
        }
        assert_eq!(stack_size.bytes(), 60 << 10);
        for _ in 0..2 * STACKS {
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
        let mut stack_size = StackSize::new();
        for _ in 0..4 {
            round(&mut stack_size, 1_000);
        }
        assert_eq!(stack_size.bytes(), 4 << 10);
        for _ in 0..=STACKS / 50 {
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
        let mut stack_size = StackSize::new();
        let mut large = 0;
        for _ in 0..1_000 {
            round(&mut stack_size, 1 << 20);
            large += u32::from(stack_size.bytes() > 16 << 10);
        }
        assert!(large < 20, "{large} of 1000 rounds");
    }
}
