//! When a recording that stops threads begins, ticks and ends.
//!
//! Input: the time. Output: when the next tick is due, and how much time each one is to account for. Time in which the
//! recording was suspended is left out.

use super::options::Options;
use super::ticks::Ticks;

/// The times of a recording, nanoseconds of the engine's clock.
#[derive(Debug)]
pub(super) struct Schedule {
    start_ns: u64,
    /// When the recording is over, whatever calls of the target cost.
    end_ns: u64,
    ticks: Ticks,
    /// When the last tick began.
    ticked_ns: u64,
    /// From the tick before to that one.
    interval_ns: u64,
    /// It was the last one.
    closing: bool,
    /// The target has ended.
    ended: bool,
}

impl Schedule {
    /// Of a recording without an end that begins at this time.
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

    /// The recording begins at this time: the target was found as it is.
    pub(super) fn begin(&mut self, now_ns: u64, options: &Options) {
        self.start_ns = now_ns;
        self.end_ns = options.duration_ns.map_or(u64::MAX, |duration_ns| now_ns.saturating_add(duration_ns));
        self.ticks = Ticks::new(now_ns, options.hz, options.seed);
    }

    /// Nothing was recorded for so long, up to this time.
    pub(super) fn leave_out(&mut self, suspended_ns: u64, now_ns: u64) {
        self.start_ns += suspended_ns;
        self.end_ns = self.end_ns.saturating_add(suspended_ns);
        self.ticks.skip(suspended_ns);
        self.ticked_ns = now_ns;
    }

    /// When the recording began.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// When the next tick is due, or the recording is over.
    pub(super) fn due_ns(&self) -> u64 {
        self.ticks.deadline_ns().min(self.end_ns)
    }

    /// Whether the recording is over, by its time.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_ns
    }

    /// A tick begins; the time since the one before.
    pub(super) fn begin_tick(&mut self, now_ns: u64) -> u64 {
        self.interval_ns = now_ns.saturating_sub(self.ticked_ns);
        self.ticked_ns = now_ns;
        self.interval_ns
    }

    /// The tick is done; how many were due meanwhile and are dropped.
    pub(super) fn end_tick(&mut self, now_ns: u64) -> u64 {
        self.ticks.done(now_ns)
    }

    /// Ticks dropped so far.
    pub(super) fn late_ticks(&self) -> u64 {
        self.ticks.late()
    }

    /// The time between the last two ticks.
    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The next tick is the last one.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether the tick is the last one.
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// The target has ended.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the target has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}
