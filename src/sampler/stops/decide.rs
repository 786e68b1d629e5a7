//! The tick's decision for a polled thread: request a stop, weigh its known waiting stack again, or leave it
//! alone.

use super::super::target_processes::observed;
use super::{StopDriver, WaitStack};
use crate::sources::{Activity, Fault, ThreadId, ThreadStatus};

/// If stops do not disturb waits: CPU time, in sampling periods, after which a thread never found running is
/// sampled where it waits.
const CARRIED_PERIODS: u64 = 4;

impl StopDriver<'_> {
    /// Acts on a poll: requests a stop, or weighs a known waiting stack again. Returns whether a stop is pending.
    pub(super) fn decide(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let moved = self.note(id, status);
        if !self.budget.may_stop() {
            return false;
        }
        let Some(account) = self.recorder.account_mut(id) else { return false };
        match status.activity {
            // If only a stop reveals the state, it also reveals whether there is anything to record.
            Activity::Running | Activity::Unknown => self.request_stop(id, false),
            // It uses no CPU time, but wall-clock time passes where it waits for a CPU.
            Activity::Ready => self.options.idle && self.request_stop(id, false),
            // A ready thread that got no CPU since its last sample weighs nothing. An unchanged status may also
            // mean that it kept running: then every runnable thread has a CPU.
            Activity::Runnable if moved || self.polls.runnable() <= self.target.process().cpus => {
                self.request_stop(id, false)
            }
            Activity::Waiting if self.options.idle => self.decide_waiting(id, status),
            // It ran and waits again. Its time is carried to a sample that finds it running, which shows where it
            // was used. Finding it waiting every time by chance is unlikely (e^-4).
            Activity::Waiting if moved && !self.target.process().stops_interrupt_syscalls => {
                let periods = if self.schedule.is_closing() { 1 } else { CARRIED_PERIODS };
                account.clock.used_at_least(periods, self.options.hz) && self.request_stop(id, true)
            }
            // Not stopped, and its next stack must not weigh this time.
            Activity::Stopped if self.options.idle => {
                let stopped_ns = account.clock.weigh_wall(status, self.clock.now_ns());
                self.recorder.lose("stopped by job control", stopped_ns);
                false
            }
            _ => false,
        }
    }

    /// Records a poll; returns whether the thread was on a CPU since its last sample.
    pub(super) fn note(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let tick = self.recorder.stats.ticks;
        let Some(account) = self.recorder.account_mut(id) else { return false };
        account.clock.update(status, tick);
        let moved = account.clock.ran_since_sample(status);
        self.earn(id);
        moved
    }

    /// Credits the budget with a thread's CPU time. Wall-clock recordings, and targets with stops that hold all
    /// threads, credit wall-clock time elsewhere.
    pub(super) fn earn(&mut self, id: ThreadId) {
        if self.target.process().stops_hold_all || self.options.idle {
            return;
        }
        if let Some(account) = self.recorder.account_mut(id) {
            self.budget.earn(account.clock.newly_used_ns());
        }
    }

    /// Requests stops of threads that may be on a CPU, as many as CPUs remain: those last seen using one first,
    /// ties in random order.
    pub(super) fn request_maybe_running(&mut self, cpus_left: usize) -> std::result::Result<(), Fault> {
        let (tick, recorder) = (self.recorder.stats.ticks, &self.recorder);
        let used_at_tick = |id| recorder.account(id).map(|account| account.clock.used_at_tick());
        let maybe_running = self.polls.take_postponed(tick, used_at_tick);
        let mut pending_stops = 0;
        for id in &maybe_running {
            if pending_stops >= cpus_left {
                break;
            }
            // The first poll is outdated after the other requests.
            let Ok(status) = self.target.poll(*id) else { continue };
            if self.decide(*id, status) {
                pending_stops += 1;
                if pending_stops % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.polls.give_back(maybe_running);
        Ok(())
    }

    fn decide_waiting(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let Some(state) = self.threads.get_mut(&id) else { return false };
        let stack = match state.wait_stack {
            WaitStack::With { stack, status: then } if then == status => stack,
            // Returned from our stop to the same place, as far as the system shows.
            WaitStack::Returning { stack, at } if self.target.waits_at(id).is_none_or(|now| now == at) => {
                state.wait_stack = WaitStack::With { stack, status };
                stack
            }
            _ => return self.capture_waiting(id),
        };
        let Some(account) = self.recorder.account_mut(id) else { return false };
        let weight_ns = account.clock.weigh_wall(status, self.clock.now_ns());
        self.recorder.repeat(id, stack.node, stack.ended, weight_ns);
        false
    }

    pub(super) fn request_stop(&mut self, id: ThreadId, waiting: bool) -> bool {
        let stack_bytes = self.stack_bytes(id);
        self.count_libraries(id, 0);
        let Some(state) = self.threads.get_mut(&id) else { return false };
        match self.target.interrupt(id, stack_bytes, self.options.idle || waiting) {
            Ok(()) => {
                state.stop_pending = true;
                state.was_waiting = waiting;
                true
            }
            // An event reports its end, and its usage is counted then.
            Err(_) => false,
        }
    }

    /// Counts the libraries of a thread's process before a capture, 0, or after it, 1.
    pub(super) fn count_libraries(&mut self, id: ThreadId, after: usize) {
        let Some(state) = self.threads.get_mut(&id) else { return };
        let of = self.processes.index(state.process);
        let process = observed(self.target, state.process);
        let counts = of.zip(process).and_then(|(of, process)| self.recorder.library_counts(of, process));
        state.libraries = match (after, state.libraries, counts) {
            (0, _, Some(counts)) => Some([counts; 2]),
            (_, Some([before, _]), Some(counts)) => Some([before, counts]),
            _ => None,
        };
    }
}
