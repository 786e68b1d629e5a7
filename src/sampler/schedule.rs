//! Schedule of a recording that stops threads: begin, ticks, end.
//!
//! Input: the time. Output: when the next tick is due, and how much time each tick accounts for. Suspended time is
//! excluded.

use super::options::Options;
use super::ticks::Ticks;

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
