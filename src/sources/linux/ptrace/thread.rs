//! A traced thread: its files in /proc and what is kept about it between stops.

use std::io;

use libc::pid_t;

use super::poll::PolledStatus;
use super::registers::{Block, Calls};
use super::{prefetch, sys};
use crate::addr::Avma;
use crate::sources::{Capture, ThreadId};

/// A traced thread.
#[derive(Debug)]
pub(super) struct Thread {
    tid: pid_t,
    /// Its process.
    pid: pid_t,
    stack_top: Option<Avma>,
    status: PolledStatus,
    /// Prefetched stack ranges above the copied bytes: the first address of each range, ascending.
    prefetch: Vec<u64>,
    calls: Calls,
    /// Stopped by job control, and not continued since.
    job_stopped: bool,
}

impl Thread {
    /// Opens a thread's files. Fails with "not found" if `tid` is not a thread of `pid`.
    pub(super) fn open(pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<Thread> {
        let status = PolledStatus::open(pid, tid)?;
        let (prefetch, calls) = (Vec::new(), Calls::default());
        Ok(Thread { tid, pid, stack_top, status, prefetch, calls, job_stopped: false })
    }

    pub(super) fn tid(&self) -> pid_t {
        self.tid
    }

    pub(super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// Stack pointer at its first instruction.
    pub(super) fn stack_top(&self) -> Option<Avma> {
        self.stack_top
    }

    pub(super) fn status(&self) -> &PolledStatus {
        &self.status
    }

    pub(super) fn status_mut(&mut self) -> &mut PolledStatus {
        &mut self.status
    }

    /// Its CPU time, nanoseconds; also of an exited thread before it is reaped. `None` after that, even if its tid
    /// is in use again.
    pub(super) fn cpu_ns(&self) -> Option<u64> {
        self.status.sched().map(|sched| sched.cpu_ns)
    }

    /// Replaces the ranges to prefetch.
    pub(super) fn set_prefetch(&mut self, ranges: &[u64]) {
        self.prefetch.clear();
        self.prefetch.extend_from_slice(ranges);
    }

    /// Reads the prefetched ranges of the stopped thread.
    pub(super) fn read_prefetched(&self, capture: &mut Capture) {
        prefetch::read(self.tid, &self.prefetch, &mut capture.prefetched);
        if !self.prefetch.is_empty() {
            capture.prefetched.blocked_signals = sys::blocked_signals(self.tid).ok();
        }
    }

    /// Called before a stop request if the thread may be waiting.
    pub(super) fn before_stop(&mut self) {
        self.calls.before_stop(self.tid);
    }

    /// Repairs its interrupted call. Returns whether registers changed and have to be written back.
    pub(super) fn repair_call(
        &mut self,
        registers: &mut Block,
        is_handled: impl FnMut() -> bool,
        is_filtered: impl FnMut() -> bool,
    ) -> bool {
        registers.repair_interrupted_call(&mut self.calls, is_handled, is_filtered)
    }

    /// Records that job control has stopped it.
    pub(super) fn enter_job_stop(&mut self) {
        self.job_stopped = true;
    }

    /// Records that it continues. Returns whether job control had stopped it.
    pub(super) fn leave_job_stop(&mut self) -> bool {
        std::mem::take(&mut self.job_stopped)
    }
}

pub(super) fn thread_id(tid: pid_t) -> ThreadId {
    ThreadId(tid.unsigned_abs().into())
}

pub(super) fn tid_of(thread: ThreadId) -> pid_t {
    pid_t::try_from(thread.0).unwrap_or(0)
}
