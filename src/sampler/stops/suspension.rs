//! Suspensions of a recording: the target is detached before, and the time until resumption is excluded.

use super::super::pushed::wait_while_suspended;
use super::super::target_processes::BY_NO_KNOWN_THREAD;
use super::{RunEnd, StopDriver, StopState};
use crate::sources::{CallThread, Fault};

/// Loss reason for CPU time used during a suspension.
pub(super) const SUSPENDED: &str = "used while stackprof was suspended";

/// Minimum number of thread and process events handled before the first tick after a suspension.
const EVENTS_MIN: usize = 1024;

impl StopDriver<'_> {
    /// Records to the end, across suspensions. Calls that belong to the tracer thread run there.
    pub(in super::super) fn record(&mut self) -> Result<(), Fault> {
        let thread = self.target.call_thread();
        let thread = thread.as_deref();
        let ended = self.record_segments(thread);
        if let (Err(Fault::Lost(_)), Some(thread)) = (&ended, thread) {
            // Detach at once: nothing serves traced threads any more.
            thread.call(&mut || self.target.release());
            thread.shut_down();
            thread.restart()?;
        }
        ended
    }

    fn record_segments(&mut self, thread: Option<&dyn CallThread>) -> Result<(), Fault> {
        let mut segment = Ok(RunEnd::Over);
        call(thread, &mut || {
            self.begin();
            segment = self.run();
        });
        while segment? == RunEnd::Suspended {
            if let Some(thread) = thread {
                thread.call(&mut || {
                    let clocks = self.process_clocks();
                    self.lose_unattributed_of_all(&clocks, BY_NO_KNOWN_THREAD);
                    self.target.release();
                });
                thread.shut_down();
            }
            let suspended_ns = wait_while_suspended(self.clock, self.live);
            if let Some(thread) = thread {
                thread.restart()?;
            }
            segment = Ok(RunEnd::Over);
            call(thread, &mut || segment = self.go_on(suspended_ns));
        }
        Ok(())
    }

    /// Resumes the recording, excluding `suspended_ns` from its time.
    fn go_on(&mut self, suspended_ns: u64) -> Result<RunEnd, Fault> {
        self.target.reattach()?;
        self.schedule.exclude_suspension(suspended_ns, self.clock.now_ns());
        self.recorder.stats.suspended_ns += suspended_ns;
        // Stops requested before will not be reported.
        for state in self.threads.values_mut() {
            *state = StopState::new(state.process);
        }
        // Before the events: usage before an exec does not belong to the next sample.
        self.skip_all();
        for _ in 0..EVENTS_MIN.max(2 * self.threads.len()) {
            if !self.one_event(0)? {
                break;
            }
        }
        let clocks = self.process_clocks();
        self.skip_all();
        self.lose_unattributed_of_all(&clocks, SUSPENDED);
        self.run()
    }

    fn skip_all(&mut self) {
        let ids: Vec<_> = self.threads.keys().copied().collect();
        for id in ids {
            if let Ok(status) = self.target.poll(id) {
                self.recorder.skip(id, status.cpu_ns, SUSPENDED);
            }
        }
    }
}

/// Runs a call in the target's tracer thread, or in this one if it has none.
fn call(thread: Option<&dyn CallThread>, body: &mut dyn FnMut()) {
    match thread {
        Some(thread) => thread.call(body),
        None => body(),
    }
}
