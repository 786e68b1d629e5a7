//! The status of a thread by /proc, polled.
//!
//! A poll costs one `pread` of an open file for a thread that still sleeps, two for one that runs, three for
//! one that has begun to wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::pid_t;

use super::on_cpu;
use crate::sources::linux::proc::{self, Sched};
use crate::sources::linux::threads::sched;
use crate::sources::{Activity, Fault, ThreadStatus};

/// Whether `/proc/PID/task/TID/wchan` is `0` exactly for threads that do not wait. It costs a third of
/// reading the state from `stat`, and in the time between a poll and a stop a thread may stop running; but
/// kernels may hide it and always show `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wchan {
    /// No waiting thread was seen yet.
    #[default]
    Unknown,
    Reliable,
    Hidden,
}

/// The files of a thread in /proc, and what the last poll read from them.
#[derive(Debug)]
pub(super) struct PolledStatus {
    schedstat: File,
    stat: File,
    wchan: Option<File>,
    /// The result of the last poll.
    last: Option<ThreadStatus>,
    polled_ns: u64,
    sched: Sched,
    /// The counters when the thread was last on no CPU: exact.
    off_cpu: Sched,
    /// `wchan` was wrong about this thread: the next poll reads the state itself.
    is_wchan_wrong: bool,
    /// When a poll first showed no change since the previous one.
    still_since_ns: Option<u64>,
}

impl PolledStatus {
    pub(super) fn open(pid: pid_t, tid: pid_t) -> io::Result<PolledStatus> {
        Ok(PolledStatus {
            schedstat: File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?,
            stat: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            wchan: File::open(format!("/proc/{pid}/task/{tid}/wchan")).ok(),
            last: None,
            polled_ns: 0,
            sched: Sched::default(),
            off_cpu: Sched::default(),
            is_wchan_wrong: false,
            still_since_ns: None,
        })
    }

    /// The scheduler counters; also of an exited thread before it is reaped.
    pub(super) fn sched(&self) -> Option<Sched> {
        sched(&self.schedstat)
    }

    /// Polls the thread at `now_ns`.
    pub(super) fn poll(&mut self, now_ns: u64, wchan: &mut Wchan) -> Result<ThreadStatus, Fault> {
        self.polled_ns = now_ns;
        let sched = self.sched().ok_or(Fault::ThreadGone)?;
        let moved = std::mem::replace(&mut self.sched, sched) != sched;
        self.still_since_ns = if moved { None } else { self.still_since_ns.or(Some(now_ns)) };
        // A thread that slept and was not put on a CPU since still sleeps, or has not used its wakeup: its
        // state need not be read.
        if let Some(last) = self.last
            && last.activity == Activity::Waiting
            && !moved
        {
            return Ok(last);
        }
        let activity = match self.activity(wchan)? {
            Activity::Runnable => on_cpu::ready_or_running(self.off_cpu, sched),
            other => {
                self.off_cpu = sched;
                other
            }
        };
        let status = ThreadStatus { cpu_ns: sched.cpu_ns, switches: sched.switches, activity };
        self.last = Some(status);
        Ok(status)
    }

    fn activity(&mut self, wchan: &mut Wchan) -> Result<Activity, Fault> {
        if *wchan == Wchan::Reliable
            && !std::mem::take(&mut self.is_wchan_wrong)
            && self.waits_nowhere() == Some(true)
        {
            return Ok(Activity::Runnable);
        }
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).map_err(|_| Fault::ThreadGone)?;
        let state = proc::stat_state(&buffer[..len]).ok_or(Fault::ThreadGone)?;
        if *wchan == Wchan::Unknown && state == b'S' {
            // Zero may also mean that it was woken just now: then the next poll shows it.
            let waits_nowhere = self.waits_nowhere();
            let len = self.stat.read_at(&mut buffer, 0).map_err(|_| Fault::ThreadGone)?;
            *wchan = match (waits_nowhere, proc::stat_state(&buffer[..len])) {
                (Some(false), _) => Wchan::Reliable,
                (_, Some(b'S')) => Wchan::Hidden,
                _ => Wchan::Unknown,
            };
        }
        Ok(proc::activity(state))
    }

    /// Whether the thread waits at no place known to the kernel; `None` if not reported.
    fn waits_nowhere(&self) -> Option<bool> {
        let mut first = [0; 2];
        let len = self.wchan.as_ref()?.read_at(&mut first, 0).ok()?;
        Some(first[..len] == *b"0")
    }

    /// The start time of the last poll, and its counters.
    pub(super) fn last_poll(&self) -> (u64, Sched) {
        (self.polled_ns, self.sched)
    }

    /// Lower bound of the duration of a wait that a stop ended, nanoseconds.
    pub(super) fn waited_ns(&self, now_ns: u64) -> u64 {
        let slept = self.last.is_some_and(|last| last.activity == Activity::Waiting);
        let once = self.sched().is_some_and(|sched| sched.switches == self.sched.switches.wrapping_add(1));
        let since_ns = self.still_since_ns.filter(|_| slept && once);
        since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }

    /// Records the counters of the stopped thread.
    pub(super) fn set_off_cpu(&mut self, sched: Sched) {
        self.off_cpu = sched;
    }

    /// Records that the thread waited, or had exited, contrary to the last poll.
    pub(super) fn note_wrong_wchan(&mut self) {
        self.is_wchan_wrong = true;
    }

    /// The current or last CPU of the thread.
    pub(super) fn cpu(&self) -> Option<u32> {
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).ok()?;
        proc::stat_cpu(&buffer[..len])
    }
}
