//! The stop requests that threads have not followed yet. Input: requests, stops. Output: whom to wait for, and
//! how.

use hashbrown::HashMap;
use libc::pid_t;

use super::stop::StopRequest;
use super::thread::Thread;
use crate::clock::{Clock, RealClock};
use crate::sources::Fault;
use crate::sources::linux::sys::current_cpu;

/// How long to poll for the stop of a thread on another CPU before sleeping: it takes a few microseconds,
/// less than a sleep and a wakeup. A thread on this CPU stops only when we sleep.
const POLL_NS: u64 = 30_000;

/// Pending stop requests, by thread.
#[derive(Debug, Default)]
pub(super) struct StopRequests {
    pending: HashMap<pid_t, StopRequest>,
    /// Time until which to poll for their stops.
    poll_until_ns: u64,
}

impl StopRequests {
    /// Asks a thread to stop, unless that was done.
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] if it has exited.
    pub(super) fn send(
        &mut self,
        thread: &mut Thread,
        stack_bytes: usize,
        keep_waiting: bool,
        clock: &RealClock,
    ) -> Result<(), Fault> {
        if self.contains(thread.tid()) {
            return Ok(());
        }
        let request = StopRequest::send(thread, stack_bytes, keep_waiting, clock)?;
        self.pending.insert(thread.tid(), request);
        // Read only now: between the poll and the stop the thread may leave its CPU.
        if thread.status().cpu() != current_cpu() {
            self.poll_until_ns = clock.now_ns() + POLL_NS;
        }
        Ok(())
    }

    /// Removes the request of a thread that has stopped or exited.
    pub(super) fn take(&mut self, tid: pid_t) -> Option<StopRequest> {
        self.pending.remove(&tid)
    }

    /// Forgets all of them, because nothing is traced any longer.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn contains(&self, tid: pid_t) -> bool {
        self.pending.contains_key(&tid)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether to poll for the next stop instead of sleeping.
    pub(super) fn polls_at(&self, now_ns: u64) -> bool {
        !self.is_empty() && now_ns < self.poll_until_ns
    }
}
