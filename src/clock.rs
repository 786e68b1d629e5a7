//! The sampler's clock: nanoseconds of a monotonic clock, real or fake.
//!
//! The sampler reads no other clock, so a simulated run replays exactly.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// A monotonic clock in nanoseconds since an arbitrary start.
pub trait Clock {
    /// Nanoseconds now. Never goes back.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Clone, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock with 0 at the time of the call.
    #[must_use]
    pub fn new() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when advanced; clones share the time.
#[derive(Clone, Debug, Default)]
pub struct FakeClock {
    now_ns: Rc<Cell<u64>>,
}

impl FakeClock {
    /// Moves forward to `at_ns`; a time in the past changes nothing.
    pub fn advance_to(&self, at_ns: u64) {
        self.now_ns.set(self.now_ns.get().max(at_ns));
    }

    /// Moves forward by `by_ns`.
    pub fn advance(&self, by_ns: u64) {
        self.now_ns.set(self.now_ns.get().saturating_add(by_ns));
    }
}

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fake_clock_never_goes_back_and_clones_share_it() {
        let clock = FakeClock::default();
        let same = clock.clone();
        clock.advance_to(100);
        same.advance_to(50);
        same.advance(1);
        assert_eq!(clock.now_ns(), 101);
    }
}
