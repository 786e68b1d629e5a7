//! What the target may stand still: a share of its time, and a length of a single stop.
//! Input: how long threads stood and how much time the target had; output: how much of a stack
//! may be copied, and whether a tick may stop threads at all.
//!
//! First the stack sizes give way, then the rate. A tick that is left out loses nothing: each
//! sample weighs the CPU time since the one before it. But all that passes between two stops
//! weighs for one stack, so ticks are left out evenly: a single long stop is paid back over
//! seconds, not by a tenth of a second in which nothing is seen. And what the machine does to a
//! stop now and then (a virtual CPU that is not run for milliseconds) is not what stops cost:
//! such a one is charged as a long one of the usual ones. The target stands all the same, so what
//! is not charged may not become more than the share once again.

/// A stop may take this much longer for the bytes that it copies, nanoseconds.
const COPY_NS: u64 = 100_000;
/// Stack sizes are not made smaller than this, whatever copying costs.
const STACK_LEAST_BYTES: usize = 64 << 10;
/// Nor than this if it fits into the time of a stop, however little of the share is left: a stop
/// itself costs as much, and stacks that are deeper than what is copied are worth less than fewer whole ones.
const STACK_SHORT_BYTES: usize = 256 << 10;
/// Nor larger: the default limit of a stack.
const STACK_MOST_BYTES: usize = 8 << 20;
/// Stops with stack sizes up to this measure what a stop costs without its bytes.
const SMALL_STACK_BYTES: usize = super::stack_size::FIRST_STACK_BYTES;
/// Cost of copying before any was measured, picoseconds for each byte: 10 GB/s.
const FIRST_PS_PER_BYTE: u64 = 100;
/// What may be stood at the beginning, when everything is cold, nanoseconds.
const FIRST_CREDIT_NS: i64 = 5_000_000;
/// Debt at which every tick is left out: the share of so much time, nanoseconds. From half as
/// much credit on, more and more are, so that their part settles where it fits what stops cost.
const EASES_NS: i128 = 250_000_000;
/// A stop was held up that takes so many times what one in ten takes longer than, ...
const HELD_UP_TIMES: u64 = 2;
/// ... and so much more, which caches that are cold do; nanoseconds.
const HELD_UP_NS: u64 = 50_000;
/// All of something, in millionths.
const WHOLE_PPM: i128 = 1_000_000;
/// Time in which nothing was stood is saved up for this long at most, nanoseconds.
const SAVED_UP_NS: i64 = 2_000_000_000;

/// The account of what the target stood.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    /// Millionths of its time that the target may stand; `None` is without limit.
    share_ppm: Option<u64>,
    /// What may still be stood, in millionths of nanoseconds.
    credit: i128,
    /// What stops that were held up may still take without being charged, in millionths of nanoseconds.
    held_up_credit: i128,
    /// What a stop with a small stack size takes, nanoseconds: a running median.
    floor_ns: u64,
    ps_per_byte: u64,
    /// The longest copy, nanoseconds.
    copy_ns: u64,
    /// What one stop in ten takes longer than, nanoseconds: a running estimate.
    long_ns: u64,
    /// What the ticks since the last one that might stop threads add up to, in millionths.
    due_ppm: i128,
}

impl Budget {
    /// Without limits, for a single look.
    pub(super) fn unlimited() -> Budget {
        Budget { copy_ns: u64::MAX / 1_000, ..Budget::new(1.0) }
    }

    /// `share` of its time (0.02 is 2 %) is what the target may stand; 1 or more is no limit.
    pub(super) fn new(share: f64) -> Budget {
        let share_ppm = (share < 1.0).then_some((share.max(0.0) * 1e6) as u64);
        Budget {
            share_ppm,
            credit: i128::from(FIRST_CREDIT_NS) * 1_000_000,
            held_up_credit: i128::from(FIRST_CREDIT_NS) * 1_000_000,
            floor_ns: 0,
            ps_per_byte: FIRST_PS_PER_BYTE,
            copy_ns: COPY_NS,
            long_ns: 0,
            due_ppm: 0,
        }
    }

    /// The target had so much time: CPU time, or wall-clock time where a stop holds all of it.
    pub(super) fn earn(&mut self, time_ns: u64) {
        if let Some(ppm) = self.share_ppm {
            let most = i128::from(SAVED_UP_NS) * i128::from(ppm).max(1);
            let most = most.max(i128::from(FIRST_CREDIT_NS) * 1_000_000);
            for credit in [&mut self.credit, &mut self.held_up_credit] {
                *credit = (*credit + i128::from(time_ns) * i128::from(ppm)).min(most);
            }
        }
    }

    /// A thread stood for so long while so many bytes were copied. Gives how much of that is not
    /// charged, because something else held the stop up, nanoseconds.
    pub(super) fn spend(&mut self, stood_ns: u64, copied_bytes: usize) -> u64 {
        let step_ns = self.long_ns / 256 + 16;
        self.long_ns = match self.long_ns {
            0 => stood_ns,
            long_ns if stood_ns > long_ns => long_ns + 9 * step_ns,
            long_ns => long_ns.saturating_sub(step_ns),
        };
        let mut held_up_ns = stood_ns.saturating_sub(HELD_UP_TIMES * self.long_ns + HELD_UP_NS);
        if self.share_ppm.is_some() {
            held_up_ns = held_up_ns.min(u64::try_from(self.held_up_credit / 1_000_000).unwrap_or(0));
            self.held_up_credit -= i128::from(held_up_ns) * 1_000_000;
        }
        self.credit -= i128::from(stood_ns - held_up_ns) * 1_000_000;
        if copied_bytes <= SMALL_STACK_BYTES {
            let step_ns = self.floor_ns / 32 + 16;
            self.floor_ns = match self.floor_ns {
                0 => stood_ns,
                floor_ns if stood_ns > floor_ns => floor_ns + step_ns,
                floor_ns => floor_ns.saturating_sub(step_ns),
            };
            // Stack sizes that had to become small would never be measured again.
            if self.ps_per_byte > FIRST_PS_PER_BYTE {
                self.ps_per_byte -= (self.ps_per_byte / 4096).max(1);
            }
        } else {
            // A running median: one stop that was held up by something else says little.
            let ps = stood_ns.saturating_sub(self.floor_ns).saturating_mul(1_000) / copied_bytes as u64;
            let step = self.ps_per_byte / 8 + 1;
            self.ps_per_byte = if ps > self.ps_per_byte {
                self.ps_per_byte + step
            } else {
                self.ps_per_byte.saturating_sub(step)
            };
        }
        held_up_ns
    }

    /// Whether this tick may stop threads. Ticks are jittered: those that are left at even
    /// distances see work in step with them in every phase, too.
    pub(super) fn allows_stops(&mut self) -> bool {
        let Some(ppm) = self.share_ppm else { return true };
        let most_debt = EASES_NS * i128::from(ppm.max(1));
        let part_ppm = (self.credit + most_debt) * WHOLE_PPM / (most_debt + most_debt / 2);
        self.due_ppm += part_ppm.clamp(0, WHOLE_PPM);
        let allowed = self.due_ppm >= WHOLE_PPM;
        if allowed {
            self.due_ppm -= WHOLE_PPM;
        }
        allowed
    }

    /// Bytes that a stop may copy: what fits into its time, and less while the share is used up.
    pub(super) fn stack_max_bytes(&self) -> usize {
        let fits = self.copy_ns * 1_000 / self.ps_per_byte.max(1);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        let fits = if self.is_short() { (fits / 4).max(fits.min(STACK_SHORT_BYTES)) } else { fits };
        (fits & !0xfff).clamp(STACK_LEAST_BYTES, STACK_MOST_BYTES)
    }

    /// Less than a hundredth of a second's share is left.
    fn is_short(&self) -> bool {
        self.share_ppm.is_some_and(|ppm| self.credit < i128::from(ppm) * 10_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Ticks of 1 ms of a busy thread whose stops take `stop_ns`; the share that it stood.
    fn share_stood(limit: f64, stop_ns: u64) -> (f64, u64) {
        let mut budget = Budget::new(limit);
        let (mut stood_ns, mut stops) = (0, 0);
        for _ in 0..20_000 {
            budget.earn(MS);
            if budget.allows_stops() {
                budget.spend(stop_ns, 1000);
                stood_ns += stop_ns;
                stops += 1;
            }
        }
        (stood_ns as f64 / (20_000.0 * MS as f64), stops)
    }

    #[test]
    fn cheap_stops_happen_at_every_tick_and_dear_ones_as_often_as_the_share_allows() {
        assert_eq!(share_stood(0.02, 15_000).1, 20_000);
        let (share, stops) = share_stood(0.02, 80_000);
        assert!((0.0195..0.0205).contains(&share), "{share} in {stops} stops");
        assert_eq!(share_stood(1.0, 900_000).1, 20_000, "no limit");
    }

    #[test]
    fn a_single_long_stop_leaves_no_long_time_unseen() {
        for stop_ns in [15_000, 30_000, 50_000] {
            let mut budget = Budget::new(0.02);
            let (mut unseen, mut longest) = (0, 0);
            for tick in 0..20_000 {
                budget.earn(MS);
                unseen += 1;
                if budget.allows_stops() {
                    budget.spend(if tick % 2_000 == 1_999 { 2 * MS } else { stop_ns }, 1000);
                    longest = longest.max(unseen);
                    unseen = 0;
                }
            }
            assert!(longest < 10, "{longest} ticks with stops of {stop_ns} ns");
        }
    }

    #[test]
    fn what_many_stops_take_is_what_stops_cost_and_what_few_take_is_not() {
        let stops = |of_thousand: u64| {
            let mut budget = Budget::new(0.02);
            let (mut stood_ns, mut stops) = (0, 0);
            for tick in 0..20_000 {
                budget.earn(MS);
                if budget.allows_stops() {
                    let stop_ns = if tick * 7919 % 1_000 < of_thousand { 3 * MS } else { 15_000 };
                    budget.spend(stop_ns, 1000);
                    stood_ns += stop_ns;
                    stops += 1;
                }
            }
            (stood_ns as f64 / (20_000.0 * MS as f64), stops)
        };
        let (share, many) = stops(200);
        assert!(share < 0.025, "{share} in {many} stops");
        let (_, few) = stops(6);
        assert!(few > 19_000, "{few} stops");
        // Whoever held them up: not more than the share for stops, and once more for these.
        for of_thousand in [20, 40, 80] {
            let (share, stops) = stops(of_thousand);
            assert!(share < 0.043, "{share} in {stops} stops with {of_thousand} of a thousand held up");
        }
    }

    #[test]
    fn a_long_rest_is_not_saved_up_for_ever() {
        let mut budget = Budget::new(0.02);
        budget.earn(3_600_000 * MS);
        let mut stops = 0;
        while budget.allows_stops() {
            budget.spend(MS, 1000);
            stops += 1;
        }
        assert!(stops <= 41, "{stops} ms in a row");
    }

    #[test]
    fn stack_sizes_are_what_fits_into_the_time_of_a_stop() {
        let mut budget = Budget::new(0.02);
        assert_eq!(budget.stack_max_bytes(), 1_000_000 & !0xfff);
        for _ in 0..64 {
            budget.earn(100 * MS);
            budget.spend(10_000, 32 << 10);
            // 1 GB/s.
            budget.spend(10_000 + (1 << 20), 1 << 20);
        }
        assert!((80_000..=120_000).contains(&budget.stack_max_bytes()), "{}", budget.stack_max_bytes());
        for _ in 0..64 {
            budget.spend(100 * MS, 1 << 20);
        }
        assert_eq!(budget.stack_max_bytes(), STACK_LEAST_BYTES);
        for _ in 0..100_000 {
            budget.earn(10 * MS);
            budget.spend(10_000, 16 << 10);
        }
        assert!(budget.stack_max_bytes() > 256 << 10, "{}", budget.stack_max_bytes());
        assert_eq!(Budget::unlimited().stack_max_bytes(), STACK_MOST_BYTES);
    }
}
