//! Threads of a driven target from their first sight to their end, and the profile that is left
//! of all.

use super::postponed::Due;
use super::process::FIRST;
use super::stops::{Stop, StopDriver};
use super::thread::unknown_look;
use crate::addr::Avma;
use crate::recording::Profile;
use crate::sources::{Look, ThreadId};

/// The last looks at threads and their names take this long at most, nanoseconds.
const LAST_LOOKS_NS: u64 = 20_000_000;

impl StopDriver<'_> {
    /// Takes in the threads that the target has from the beginning.
    pub(super) fn add_threads(&mut self) {
        let mut threads = Vec::new();
        self.target.threads(&mut threads);
        for (id, stack_top) in threads {
            // Before the start nothing is lost yet.
            if self.live.shall_stop() {
                return;
            }
            let look = self.target.look(id);
            self.add_thread(id, stack_top, look.unwrap_or_else(|_| unknown_look()), true);
        }
    }

    pub(super) fn add_thread(&mut self, id: ThreadId, stack_top: Option<Avma>, look: Look, found: bool) {
        self.stops.insert(id, Stop::new());
        self.recorder.add_thread(FIRST, self.target, id, stack_top, look, found);
    }

    pub(super) fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) {
        self.walk_captured();
        self.walk_postponed(Due::ThreadEnded(id));
        self.stops.remove(&id);
        self.recorder.remove_thread(id, cpu_ns, "thread ended before its next sample");
    }

    /// Closes all accounts.
    pub(super) fn finish(mut self) -> Profile {
        self.walk_captured();
        self.walk_postponed(Due::All);
        if self.recorder.stats.duration_ns == 0 {
            self.recorder.stats.duration_ns = self.clock.now_ns() - self.start_ns;
        }
        let mut ids: Vec<ThreadId> = self.stops.keys().copied().collect();
        ids.sort_unstable();
        let until_ns = self.clock.now_ns().saturating_add(LAST_LOOKS_NS);
        let unsampled = if self.options.idle {
            "not sampled again before the end"
        } else {
            "used between looks and not caught running"
        };
        for id in ids {
            // Where calls are slow the last look of each thread has to do.
            let has_time = self.clock.now_ns() < until_ns;
            let look = if has_time { self.target.look(id).ok() } else { None };
            if has_time {
                // Threads name themselves after they start.
                self.recorder.rename(self.target, id);
            }
            self.recorder.remove_thread(id, look.map(|look| look.cpu_ns), unsampled);
        }
        self.recorder.finish(self.target)
    }
}
