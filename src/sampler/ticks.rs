//! When to sample: absolute deadlines at a given rate, jittered by a seed, never caught up.

/// Largest shift of a tick from its place in the grid, as a share of the period: enough
/// that a target working in step with the grid is seen in every phase of its work.
const JITTER_SHARE: f64 = 0.1;

const SECOND_NS: u64 = 1_000_000_000;

/// A schedule of ticks. Times are nanoseconds of the engine's clock.
#[derive(Clone, Debug)]
pub(super) struct Ticks {
    start_ns: u64,
    hz: u32,
    seed: u64,
    next: u64,
    late: u64,
}

impl Ticks {
    /// `hz` ticks per second from `start_ns` on; the first is one period later.
    #[must_use]
    pub(super) fn new(start_ns: u64, hz: u32, seed: u64) -> Ticks {
        Ticks { start_ns, hz: hz.max(1), seed, next: 1, late: 0 }
    }

    /// When the next tick is due.
    #[must_use]
    pub(super) fn deadline_ns(&self) -> u64 {
        let random = splitmix64(self.seed ^ self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
        let period_ns = SECOND_NS as f64 / f64::from(self.hz);
        let jitter_ns = (unit * 2.0 - 1.0) * JITTER_SHARE * period_ns;
        self.grid_ns(self.next).saturating_add_signed(jitter_ns as i64)
    }

    /// The tick that was due has happened, and it is now `now_ns`: those whose whole
    /// period has passed in the meantime are dropped and counted.
    pub(super) fn done(&mut self, now_ns: u64) {
        self.next += 1;
        let past = now_ns.saturating_sub(self.start_ns);
        let index = (u128::from(past) * u128::from(self.hz) / u128::from(SECOND_NS)) as u64;
        if index > self.next {
            self.late += index - self.next;
            self.next = index;
        }
    }

    /// Ticks dropped so far.
    #[must_use]
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    fn grid_ns(&self, index: u64) -> u64 {
        let offset = u128::from(index) * u128::from(SECOND_NS) / u128::from(self.hz);
        self.start_ns.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }
}

/// Vigna's splitmix64: one step of a sequence good enough to spread ticks.
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_stay_on_the_grid_for_hours() {
        let mut ticks = Ticks::new(5_000, 997, 1);
        for second in 1..=7200u64 {
            for _ in 0..997 {
                let due = ticks.deadline_ns();
                ticks.done(due + 10_000);
            }
            let drift = ticks.deadline_ns().abs_diff(5_000 + second * SECOND_NS + SECOND_NS / 997);
            assert!(drift < 101_000, "{drift} ns off the grid after {second} s");
        }
        assert_eq!(ticks.late(), 0);
    }

    #[test]
    fn ticks_move_forward_and_are_spread_around_their_place() {
        let mut ticks = Ticks::new(0, 1000, 7);
        let (mut before, mut early) = (0, 0);
        for index in 1..=1000u64 {
            let due = ticks.deadline_ns();
            assert!(due > before);
            early += u64::from(due < index * 1_000_000);
            before = due;
            ticks.done(due);
        }
        assert!((400..600).contains(&early), "{early} of 1000 early");
    }

    #[test]
    fn late_ticks_are_dropped_and_counted_not_caught_up() {
        let mut ticks = Ticks::new(0, 1000, 0);
        // The first tick took until 5.5 ms: those of 2, 3 and 4 ms are gone, that of 5 ms is due.
        ticks.done(5_500_000);
        assert_eq!(ticks.late(), 3);
        assert!(ticks.deadline_ns().abs_diff(5_000_000) <= 100_000);
        ticks.done(5_600_000);
        assert_eq!(ticks.late(), 3);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut ticks = Ticks::new(u64::MAX - 5, 1, 0);
        ticks.done(u64::MAX);
        assert!(ticks.deadline_ns() >= u64::MAX - SECOND_NS);
    }
}
