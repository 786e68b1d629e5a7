//! Schedule of a recording that stops threads: begin, ticks, end.
//!
//! `Ticks` draws the deadlines, `PollOrder` the order of threads in a tick.
//!
//! Input: the time. Output: when the next tick is due, and how much time each tick accounts for. Suspended time is
//! excluded.

use std::cmp::Reverse;

use super::Options;
use crate::rng::mix;
use crate::sources::{Activity, ThreadId};

/// The times of a recording, nanoseconds of the sampler's clock.
#[derive(Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    /// End of the recording, even if calls to the target take long.
    end_ns: u64,
    ticks: Ticks,
    /// Start of the last tick.
    ticked_ns: u64,
    /// Time from the previous tick to the last one.
    interval_ns: u64,
    /// Whether it is the final tick.
    closing: bool,
    /// Whether the target has ended.
    ended: bool,
}

impl Schedule {
    /// A recording without end from this time on.
    pub(super) fn new(now_ns: u64, options: &Options) -> Schedule {
        Schedule {
            start_ns: now_ns,
            end_ns: u64::MAX,
            ticks: Ticks::new(now_ns, options.hz, options.seed),
            ticked_ns: now_ns,
            interval_ns: 0,
            closing: false,
            ended: false,
        }
    }

    /// Begins the recording at this time, with the target attached.
    pub(super) fn begin(&mut self, now_ns: u64, options: &Options) {
        self.start_ns = now_ns;
        self.end_ns = options.duration_ns.map_or(u64::MAX, |duration_ns| now_ns.saturating_add(duration_ns));
        self.ticks = Ticks::new(now_ns, options.hz, options.seed);
    }

    /// Excludes a suspension of this length, up to this time.
    pub(super) fn exclude_suspension(&mut self, suspended_ns: u64, now_ns: u64) {
        self.start_ns += suspended_ns;
        self.end_ns = self.end_ns.saturating_add(suspended_ns);
        self.ticks.skip(suspended_ns);
        self.ticked_ns = now_ns;
    }

    /// Start of the recording.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Time of the next tick, or the end of the recording.
    pub(super) fn due_ns(&self) -> u64 {
        self.ticks.deadline_ns().min(self.end_ns)
    }

    /// Whether the recording's time is over.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns
    }

    /// Begins a tick; returns the time since the previous one.
    pub(super) fn begin_tick(&mut self, now_ns: u64) -> u64 {
        self.interval_ns = now_ns.saturating_sub(self.ticked_ns);
        self.ticked_ns = now_ns;
        self.interval_ns
    }

    /// Ends a tick; returns the number of ticks that fell due meanwhile and are dropped.
    pub(super) fn end_tick(&mut self, now_ns: u64) -> u64 {
        self.ticks.done(now_ns)
    }

    /// Ticks dropped so far.
    pub(super) fn late_ticks(&self) -> u64 {
        self.ticks.late()
    }

    /// Time between the last two ticks.
    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Makes the next tick the final one.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether this is the final tick.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Notes that the target has ended.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the target has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

// ---- When to sample: deadlines at a given rate, with seeded jitter, never caught up.
//
// The jitter is a random walk: each interval is half a period to one and a half. So work in step with the rate is
// sampled in every phase, and the time since the last tick, which a sample weighs, does not depend on the phase.
// An independent shift per tick fails at one of these: a small one covers a part of the phases, a large one gives
// late phases more weight than early ones.

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

// ---- The order in which a tick polls threads, and which of them it stops last.
//
// A tick without time for all threads leaves the rest to the next one.

/// Polling order.
#[derive(Debug, Default)]
pub(super) struct PollOrder {
    /// First thread that the last tick had no time for; the next tick starts there.
    next: Option<ThreadId>,
    /// Whether the source knows, for some threads, if they are on a CPU.
    knows_on_cpu: bool,
    /// Runnable threads at the last tick, and at this one so far.
    runnable: usize,
    seen_runnable: usize,
    threads: Vec<ThreadId>,
    /// Threads that may be on a CPU.
    maybe_running: Vec<ThreadId>,
}

impl PollOrder {
    /// Begins a tick; returns the threads in order.
    pub(super) fn begin(&mut self, threads: impl Iterator<Item = ThreadId>) -> Vec<ThreadId> {
        let mut order = std::mem::take(&mut self.threads);
        order.clear();
        order.extend(threads);
        order.sort_unstable();
        let start = self.next.take().map_or(0, |next| order.partition_point(|id| *id < next));
        order.rotate_left(start);
        self.seen_runnable = 0;
        self.maybe_running.clear();
        order
    }

    /// Ends polling early: this thread and later ones wait for the next tick.
    pub(super) fn stop_before(&mut self, id: ThreadId) {
        self.next = Some(id);
        self.seen_runnable = self.seen_runnable.max(self.runnable);
    }

    /// Notes a requested stop that is still pending: the thread had no CPU.
    pub(super) fn note_pending(&mut self) {
        self.seen_runnable += 1;
    }

    /// Notes the result of a poll.
    pub(super) fn note(&mut self, activity: Activity) {
        self.seen_runnable += usize::from(activity.wants_cpu());
        self.knows_on_cpu |= matches!(activity, Activity::Running | Activity::Ready);
    }

    /// Postpones a thread that may be on a CPU until after those that are.
    pub(super) fn postpone(&mut self, id: ThreadId) {
        self.maybe_running.push(id);
    }

    /// Ends polling. Takes back the list for reuse of its memory.
    pub(super) fn end(&mut self, threads: Vec<ThreadId>) {
        self.threads = threads;
        self.runnable = self.seen_runnable;
    }

    /// Number of runnable threads at the last tick.
    pub(super) fn runnable(&self) -> usize {
        self.runnable
    }

    /// Whether CPUs are outnumbered by runnable threads, so that threads known to be on one are stopped first.
    pub(super) fn are_scarce(&self, cpus: usize) -> bool {
        self.knows_on_cpu && self.runnable > cpus
    }

    /// Takes the postponed threads: those last seen using a CPU first, ties in random order.
    pub(super) fn take_postponed(
        &mut self,
        tick: u64,
        used_at_tick: impl Fn(ThreadId) -> Option<u64>,
    ) -> Vec<ThreadId> {
        let mut threads = std::mem::take(&mut self.maybe_running);
        threads.sort_by_cached_key(|id| (Reverse(used_at_tick(*id)), mix(id.0 ^ tick.rotate_left(32))));
        threads
    }

    /// Takes back the list from [`PollOrder::take_postponed`] for reuse of its memory.
    pub(super) fn give_back(&mut self, threads: Vec<ThreadId>) {
        self.maybe_running = threads;
    }
}

#[cfg(test)]
mod ticks_tests {
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

#[cfg(test)]
mod poll_order_tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<ThreadId> {
        numbers.iter().map(|number| ThreadId(*number)).collect()
    }

    #[test]
    fn a_tick_continues_with_the_threads_that_the_last_one_left_out() {
        let mut order = PollOrder::default();
        let threads = order.begin(ids(&[4, 1, 3, 2]).into_iter());
        assert_eq!(threads, ids(&[1, 2, 3, 4]));
        order.stop_before(ThreadId(3));
        order.end(threads);
        // The thread to start with may have ended.
        let threads = order.begin(ids(&[4, 1, 2]).into_iter());
        assert_eq!(threads, ids(&[4, 1, 2]));
        order.end(threads);
        assert_eq!(order.begin(ids(&[4, 1, 2]).into_iter()), ids(&[1, 2, 4]));
    }

    #[test]
    fn threads_that_used_a_cpu_last_come_first() {
        let mut order = PollOrder::default();
        order.note(Activity::Runnable);
        order.note(Activity::Runnable);
        order.end(Vec::new());
        assert!(!order.are_scarce(1), "nothing shows who has a CPU");
        order.begin(std::iter::empty());
        order.note(Activity::Ready);
        order.note_pending();
        order.end(Vec::new());
        assert!(order.are_scarce(1) && !order.are_scarce(2));
        for id in [1, 2, 3] {
            order.postpone(ThreadId(id));
        }
        let first = order.take_postponed(7, |id| Some(id.0 % 3));
        assert_eq!(first, ids(&[2, 1, 3]));
    }
}
