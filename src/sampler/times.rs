//! What a recorder puts on the axis of time beside samples: losses, events of processes, loads of images.

use super::recorded_process::ProcessIndex;
use super::recorder::Recorder;
use super::weights::periods_ns;
use crate::recording::timeline::EventKind;
use crate::sources::ThreadId;

impl Recorder<'_> {
    /// Time that is lost, nanoseconds, by its reason: the time up to now.
    pub fn lose(&mut self, reason: &'static str, lost_ns: u64) {
        self.lose_since(reason, self.clock.now_ns().saturating_sub(lost_ns), lost_ns);
    }

    /// Time that is lost somewhere between `since_ns` and now, nanoseconds, by its reason.
    pub(super) fn lose_since(&mut self, reason: &'static str, since_ns: u64, lost_ns: u64) {
        if lost_ns > 0 {
            *self.weights.lost_ns.entry(reason).or_default() += lost_ns;
            self.timeline.add_loss(reason, since_ns, self.clock.now_ns(), lost_ns);
        }
    }

    /// An event of a process now.
    pub(super) fn note_event(&mut self, kind: EventKind, pid: u32, text: &str) {
        self.timeline.add_event(kind, pid, self.clock.now_ns(), text);
    }

    /// When a thread started, on the engine's clock; `None` for one whose start was not seen.
    pub(super) fn set_start(&mut self, thread: ThreadId, started_ns: Option<u64>) {
        if let Some(account) = self.threads.get(&thread) {
            self.timeline.set_start(account.timeline_thread, started_ns);
        }
    }

    /// Times count from `at_ns` of the engine's clock on.
    pub(super) fn begin_times(&mut self, at_ns: u64) {
        self.stats.begun_ns = at_ns;
        self.timeline.begin(at_ns);
    }

    /// Samples that are lost and stand for a period each, by their reason.
    pub(super) fn lose_samples(&mut self, reason: &'static str, samples: u64) {
        self.lose(reason, periods_ns(samples, self.options.hz));
    }

    /// The images of a process changed, which was seen at `at_ns`: those that it loaded are events.
    pub(super) fn note_image_loads(&mut self, of: ProcessIndex, at_ns: u64) {
        if self.timeline.is_off() {
            return;
        }
        let Some(recorded) = self.processes.get_mut(of.0 as usize) else { return };
        for path in recorded.refresh.take_new_paths() {
            self.timeline.add_event(EventKind::ImageLoad, recorded.pid, at_ns, &path);
        }
    }
}
