//! Schedules thread lists. Input: the cost of earlier lists. Output: when to begin, pause or continue one.
//! Must not depend on fast calls: a list of many threads takes as many calls, and a call may take any time.
//! So a long list is made in pieces, never twice for one tick, and its cost is bounded.

/// Least interval of lists, however short the ticks, nanoseconds …
const EVERY_NS: u64 = 500_000;
/// … and longest interval, however long the ticks, so that an exit is noticed.
const BETWEEN_TICKS_NS: u64 = 10_000_000;
/// After a list, wait this many times as long as it took: for ticks …
const TICK_COST: u64 = 3;
/// … and between them.
const BETWEEN_COST: u64 = 20;
/// Longest delay of a tick by a list, nanoseconds. The rest of the list is made before later ticks.
const PIECE_NS: u64 = 5_000_000;

/// Past and next lists of the threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Polls {
    /// When the last one ended, and its duration.
    ended_ns: u64,
    cost_ns: u64,
    /// Duration so far of the current one.
    so_far_ns: Option<u64>,
    /// A thread was found to have exited.
    hurry: bool,
}

impl Polls {
    /// Whether a list, or the rest of one, is due before a tick.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let times = if self.hurry { 1 } else { TICK_COST };
        self.so_far_ns.is_some() || now_ns >= self.after(EVERY_NS, times)
    }

    /// When a list is due regardless of ticks.
    pub(super) fn due_between_ticks_ns(&self) -> u64 {
        if self.so_far_ns.is_some() { 0 } else { self.after(BETWEEN_TICKS_NS, BETWEEN_COST) }
    }

    /// Requests a list soon, because of a known change.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Begins or continues a list at `now_ns`; returns when it has to pause. The tick is due at `tick_ns`.
    pub(super) fn begin(&mut self, now_ns: u64, tick_ns: u64) -> u64 {
        self.so_far_ns.get_or_insert(0);
        now_ns.max(tick_ns).saturating_add(PIECE_NS)
    }

    /// Ends a list or a piece of it, which took from `begun_ns` to `now_ns`.
    pub(super) fn end(&mut self, begun_ns: u64, now_ns: u64, done: bool) {
        let so_far_ns = self.so_far_ns.unwrap_or(0).saturating_add(now_ns.saturating_sub(begun_ns));
        *self = if done {
            Polls { ended_ns: now_ns, cost_ns: so_far_ns, so_far_ns: None, hurry: false }
        } else {
            Polls { so_far_ns: Some(so_far_ns), ..*self }
        };
    }

    fn after(&self, least_ns: u64, times: u64) -> u64 {
        self.ended_ns.saturating_add(self.cost_ns.saturating_mul(times).max(least_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_slow_list_is_not_due_again_at_once() {
        let mut polls = Polls::default();
        assert!(polls.is_due(EVERY_NS));
        polls.begin(MS, MS);
        polls.end(MS, 3 * MS, true);
        assert!(!polls.is_due(3 * MS) && !polls.is_due(9 * MS - 1) && polls.is_due(9 * MS));
        assert_eq!(polls.due_between_ticks_ns(), 43 * MS);
        polls.hurry();
        assert!(polls.is_due(5 * MS));
    }

    #[test]
    fn the_cost_of_a_list_is_that_of_all_its_pieces() {
        let mut polls = Polls::default();
        assert_eq!(polls.begin(10 * MS, 12 * MS), 17 * MS);
        polls.end(10 * MS, 17 * MS, false);
        assert!(polls.is_due(17 * MS), "the rest of it");
        assert_eq!(polls.begin(30 * MS, 20 * MS), 35 * MS);
        polls.end(30 * MS, 33 * MS, true);
        assert!(!polls.is_due(62 * MS) && polls.is_due(63 * MS));
    }
}
