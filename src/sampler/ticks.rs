//! When to sample: deadlines at a given rate, with seeded jitter, never caught up.
//!
//! The jitter is a random walk: each interval is half a period to one and a half. So work in step with the rate is
//! sampled in every phase, and the time since the last tick, which a sample weighs, does not depend on the phase.
//! An independent shift per tick fails at one of these: a small one covers a part of the phases, a large one gives
//! late phases more weight than early ones.

use crate::rng::mix;

/// Largest step of the shift from one tick to the next, as a share of the period. With a half, the phases of
/// consecutive ticks are independent. Otherwise a thread that waits between ticks would attribute the time of the
/// ticks that missed it to the first that does not, always where neighboring phases begin.
const STEP_SHARE: f64 = 0.5;

/// The shift reverses at this many periods, so that ticks stay near their schedule forever.
const SHIFT_PERIODS: f64 = 8.0;

const SECOND_NS: u64 = 1_000_000_000;

/// A schedule of ticks. Times are nanoseconds of the sampler's clock.
#[derive(Clone, Debug)]
pub(super) struct Ticks {
    start_ns: u64,
    hz: u32,
    seed: u64,
    next: u64,
    /// Offset of the next tick from its scheduled time, in periods.
    shift: f64,
    late: u64,
}

impl Ticks {
    /// `hz` ticks per second from `start_ns` on; the first is one period later.
    #[must_use]
    pub(super) fn new(start_ns: u64, hz: u32, seed: u64) -> Ticks {
        let mut ticks = Ticks { start_ns, hz: hz.max(1), seed, next: 1, shift: 0.0, late: 0 };
        ticks.step();
        ticks
    }

    /// When the next tick is due.
    #[must_use]
    pub(super) fn deadline_ns(&self) -> u64 {
        self.scheduled_ns(self.next).saturating_add_signed(self.shift_ns())
    }

    /// Completes the due tick; it is now `now_ns`. Ticks for which a whole period has passed are dropped and
    /// counted. Returns how many.
    pub(super) fn done(&mut self, now_ns: u64) -> u64 {
        self.next += 1;
        self.step();
        let past = now_ns.saturating_sub(self.start_ns).saturating_add_signed(-self.shift_ns());
        let index = (u128::from(past) * u128::from(self.hz) / u128::from(SECOND_NS)) as u64;
        let dropped = index.saturating_sub(self.next);
        self.late += dropped;
        self.next += dropped;
        dropped
    }

    /// Excludes a time in which nothing is recorded, as if it had not passed.
    pub(super) fn skip(&mut self, ns: u64) {
        self.start_ns = self.start_ns.saturating_add(ns);
    }

    /// Ticks dropped so far.
    #[must_use]
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    fn step(&mut self) {
        let random = mix(self.seed ^ self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
        self.shift += (unit * 2.0 - 1.0) * STEP_SHARE;
        if self.shift.abs() > SHIFT_PERIODS {
            self.shift = self.shift.signum() * 2.0 * SHIFT_PERIODS - self.shift;
        }
    }

    fn shift_ns(&self) -> i64 {
        (self.shift * SECOND_NS as f64 / f64::from(self.hz)) as i64
    }

    fn scheduled_ns(&self, index: u64) -> u64 {
        let offset = u128::from(index) * u128::from(SECOND_NS) / u128::from(self.hz);
        self.start_ns.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_stay_on_schedule_for_hours() {
        let mut ticks = Ticks::new(5_000, 997, 1);
        for second in 1..=7200u64 {
            for _ in 0..997 {
                let due = ticks.deadline_ns();
                ticks.done(due + 10_000);
            }
            let drift = ticks.deadline_ns().abs_diff(5_000 + second * SECOND_NS + SECOND_NS / 997);
            assert!(drift < 8_100_000, "{drift} ns off schedule after {second} s");
        }
        assert_eq!(ticks.late(), 0);
    }

    #[test]
    fn ticks_move_forward_and_are_spread_over_every_phase_of_a_period() {
        let mut ticks = Ticks::new(0, 1000, 7);
        let mut before = 0;
        // Ticks and the intervals before them, by tenth of the period.
        let mut phases = [(0u32, 0u64); 10];
        for _ in 0..100_000 {
            let due = ticks.deadline_ns();
            assert!((490_000..=1_510_000).contains(&(due - before)), "{before} to {due}");
            let phase = &mut phases[(due % 1_000_000 / 100_000) as usize];
            *phase = (phase.0 + 1, phase.1 + due - before);
            before = due;
            ticks.done(due);
        }
        for (phase, (count, time_ns)) in phases.iter().enumerate() {
            assert!((9_400..10_600).contains(count), "{count} of 100000 ticks in phase {phase}");
            let mean_ns = time_ns / u64::from(*count);
            assert!((975_000..1_025_000).contains(&mean_ns), "{mean_ns} ns before those in phase {phase}");
        }
    }

    #[test]
    fn late_ticks_are_dropped_and_counted_not_caught_up() {
        let mut ticks = Ticks::new(0, 1000, 0);
        // The first tick took until 50.5 ms: the ticks at 2 to 49 ms are dropped, the one at 50 ms is due, each
        // within the shift of the first two ticks.
        ticks.done(50_500_000);
        let late = ticks.late();
        assert!((47..=49).contains(&late), "{late}");
        assert!((49_500_000..=50_500_000).contains(&ticks.deadline_ns()));
        ticks.done(50_600_000);
        assert_eq!(ticks.late(), late);
        assert!(ticks.deadline_ns() > 50_500_000);
    }

    #[test]
    fn excluded_time_makes_no_tick_late() {
        let mut ticks = Ticks::new(0, 1000, 3);
        ticks.done(1_000_000);
        let due_ns = ticks.deadline_ns();
        ticks.skip(60 * SECOND_NS);
        assert_eq!(ticks.deadline_ns(), due_ns + 60 * SECOND_NS);
        ticks.done(ticks.deadline_ns());
        assert_eq!(ticks.late(), 0);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut ticks = Ticks::new(u64::MAX - 5, 1, 0);
        ticks.done(u64::MAX);
        assert!(ticks.deadline_ns() >= u64::MAX - SECOND_NS);
    }
}
