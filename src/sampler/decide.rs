//! What a tick does with a thread that it looked at: ask it to stop, weigh a waiting stack
//! that is known again, or leave it alone.

use super::Recording;
use super::thread::Waits;
use crate::target::{Activity, Look, ThreadId};

/// CPU time that a thread which is never found running may have before it is sampled where
/// it waits, in periods of the rate; where stops leave waits alone.
const CARRIED_PERIODS: u64 = 4;

impl Recording<'_> {
    /// Acts on a look: asks the thread to stop, or weighs a known waiting stack again.
    /// True if a stop is on its way.
    pub(super) fn decide(&mut self, id: ThreadId, look: Look) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        let moved = account.seen(look);
        match look.activity {
            // A thread that is ready but got no CPU since its last sample weighs nothing.
            // Without a change to show it may still be running on: then every runnable
            // thread has a CPU.
            Activity::Runnable if moved || self.runnable <= self.target.process().cpus => self.ask(id, false),
            Activity::Waiting if self.options.idle => self.decide_waiting(id, look),
            // It ran and waits again. Its time is carried to a sample that finds it running,
            // which shows where it was used; to find it waiting every time, chance alone
            // is not enough (e^-4).
            Activity::Waiting if moved && self.target.process().stops_waits_unseen => {
                let periods = if self.closing { 1 } else { CARRIED_PERIODS };
                account.carries(periods, self.options.hz) && self.ask(id, true)
            }
            // It is left alone, and its next stack must not stand for this time.
            Activity::Stopped if self.options.idle => {
                let counts = account.weigh_wall(look, self.clock.now_ns(), self.options.hz);
                self.lose("stopped by job control", counts);
                false
            }
            _ => false,
        }
    }

    fn decide_waiting(&mut self, id: ThreadId, look: Look) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        let stack = match account.waits {
            Waits::With { stack, look: then } if then == look => stack,
            // Back from our stop, at the same place as far as the system tells.
            Waits::Returning { stack, at } if self.target.waits_at(id).is_none_or(|now| now == at) => {
                account.waits = Waits::With { stack, look };
                stack
            }
            _ => return self.ask(id, true),
        };
        let counts = account.weigh_wall(look, self.clock.now_ns(), self.options.hz);
        self.trie.add(stack.node, counts);
        self.stats.samples_idle_reused += counts;
        self.weighed(stack.ended, counts);
        false
    }

    pub(super) fn ask(&mut self, id: ThreadId, waiting: bool) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        match self.target.interrupt(id, account.window_bytes, self.options.idle) {
            Ok(()) => {
                account.asked = true;
                account.asked_waiting = waiting;
                true
            }
            // Its end is told by an event, and what it used is counted then.
            Err(_) => false,
        }
    }
}
