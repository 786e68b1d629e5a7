//! What a tick does with a thread that it looked at: ask it to stop, weigh a waiting stack
//! that is known again, or leave it alone.

use std::cmp::Reverse;

use super::stops::{StopDriver, Waits};
use crate::rng::mix;
use crate::sources::{Activity, Fault, ThreadId, ThreadStatus};

/// CPU time that a thread which is never found running may have before it is sampled where
/// it waits, in periods of the rate; where stops leave waits alone.
const CARRIED_PERIODS: u64 = 4;

impl StopDriver<'_> {
    /// Acts on a look: asks the thread to stop, or weighs a known waiting stack again.
    /// True if a stop is on its way.
    pub(super) fn decide(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let moved = self.note(id, status);
        if !self.may_stop {
            return false;
        }
        let Some(account) = self.recorder.accounts.get_mut(&id) else { return false };
        match status.activity {
            // Where only a stop tells, it also tells whether there is anything to record.
            Activity::Running | Activity::Untold => self.ask(id, false),
            // It uses no CPU time; where it waits for a CPU is where its time passes.
            Activity::Ready => self.options.idle && self.ask(id, false),
            // A thread that is ready but got no CPU since its last sample weighs nothing.
            // Without a change to show it may still be running on: then every runnable
            // thread has a CPU.
            Activity::Runnable if moved || self.runnable <= self.target.process().cpus => self.ask(id, false),
            Activity::Waiting if self.options.idle => self.decide_waiting(id, status),
            // It ran and waits again. Its time is carried to a sample that finds it running,
            // which shows where it was used; to find it waiting every time, chance alone
            // is not enough (e^-4).
            Activity::Waiting if moved && self.target.process().stops_waits_unseen => {
                let periods = if self.closing { 1 } else { CARRIED_PERIODS };
                account.carries(periods, self.options.hz) && self.ask(id, true)
            }
            // It is left alone, and its next stack must not stand for this time.
            Activity::Stopped if self.options.idle => {
                let stopped_ns = account.weigh_wall(status, self.clock.now_ns());
                self.recorder.lose("stopped by job control", stopped_ns);
                false
            }
            _ => false,
        }
    }

    /// Takes a look into account; whether the thread was on a CPU since its last sample.
    pub(super) fn note(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let tick = self.recorder.stats.ticks;
        let Some(account) = self.recorder.accounts.get_mut(&id) else { return false };
        account.see(status, tick);
        let moved = account.moved(status);
        self.earn(id);
        moved
    }

    /// Gives the budget the CPU time that a thread had. Where wall-clock time is recorded, or
    /// stops hold all threads, it is given that.
    pub(super) fn earn(&mut self, id: ThreadId) {
        if self.target.process().stops_hold_all || self.options.idle {
            return;
        }
        if let Some(account) = self.recorder.accounts.get_mut(&id) {
            self.budget.earn(account.newly_used_ns());
        }
    }

    /// Asks the threads that may be on a CPU, as many as CPUs are left for them: those first that
    /// were seen to use one last, and of these at random.
    pub(super) fn ask_doubtful(&mut self, cpus_left: usize) -> std::result::Result<(), Fault> {
        let mut doubtful = std::mem::take(&mut self.doubtful);
        let tick = self.recorder.stats.ticks;
        doubtful.sort_by_cached_key(|id| {
            let used_at_tick = self.recorder.accounts.get(id).map(|account| account.used_at_tick);
            (Reverse(used_at_tick), mix(id.0 ^ tick.rotate_left(32)))
        });
        let mut on_the_way = 0;
        for id in &doubtful {
            if on_the_way >= cpus_left {
                break;
            }
            // What was looked at before the others were asked is old by now.
            let Ok(status) = self.target.poll(*id) else { continue };
            if self.decide(*id, status) {
                on_the_way += 1;
                if on_the_way % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.doubtful = doubtful;
        Ok(())
    }

    fn decide_waiting(&mut self, id: ThreadId, status: ThreadStatus) -> bool {
        let Some(stop) = self.stops.get_mut(&id) else { return false };
        let stack = match stop.waits {
            Waits::With { stack, status: then } if then == status => stack,
            // Back from our stop, at the same place as far as the system tells.
            Waits::Returning { stack, at } if self.target.waits_at(id).is_none_or(|now| now == at) => {
                stop.waits = Waits::With { stack, status };
                stack
            }
            _ => return self.capture_waiting(id),
        };
        let Some(account) = self.recorder.accounts.get_mut(&id) else { return false };
        let weight_ns = account.weigh_wall(status, self.clock.now_ns());
        self.recorder.repeat(id, stack.node, stack.ended, weight_ns);
        false
    }

    pub(super) fn ask(&mut self, id: ThreadId, waiting: bool) -> bool {
        let stack_bytes = self.stack_bytes(id);
        let Some(stop) = self.stops.get_mut(&id) else { return false };
        match self.target.interrupt(id, stack_bytes, self.options.idle || waiting) {
            Ok(()) => {
                stop.asked = true;
                stop.asked_waiting = waiting;
                true
            }
            // Its end is told by an event, and what it used is counted then.
            Err(_) => false,
        }
    }
}
