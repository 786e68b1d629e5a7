//! The threads of a process by /proc: listed, polled, named.
//!
//! A poll costs one `pread` of an open file for a thread that still sleeps, two for one that runs, three for
//! one that has begun to wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::pid_t;

use super::on_cpu::{self, Sched};
use super::proc;
use super::registers::Calls;
use super::timed_wait::RepeatedWait;
use crate::addr::Avma;
use crate::sources::{Activity, Fault, ThreadStatus};

/// A stop request without a stop so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
    pub(super) asked_ns: u64,
    /// When the poll before the request began.
    pub(super) polled_ns: u64,
    /// The scheduler counters of that poll.
    pub(super) before: Sched,
}

/// Whether `/proc/PID/task/TID/wchan` is `0` exactly for threads that do not wait. It costs a third of
/// reading the state from `stat`, and in the time between a poll and a stop a thread may stop running; but
/// kernels may hide it and always show `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wchan {
    /// No waiting thread was seen yet.
    #[default]
    Unknown,
    Tells,
    Hidden,
}

/// A traced thread.
#[derive(Debug)]
pub(super) struct Thread {
    /// Its process.
    pub(super) pid: pid_t,
    pub(super) status: PolledStatus,
    pub(super) pending: Option<Pending>,
    pub(super) stack_top: Option<Avma>,
    /// Prefetched stack ranges above the copied bytes: the first address of each range, ascending.
    pub(super) prefetch: Vec<u64>,
    pub(super) calls: Calls,
    /// A timed wait that it has restarted.
    pub(super) repeated: Option<RepeatedWait>,
    /// A signal that its process ignores has woken it from a wait that had to be restarted.
    pub(super) woken: bool,
    /// It was detached before the tracer exits.
    pub(super) detached: bool,
    /// Stopped by job control, and not continued since.
    pub(super) job_stopped: bool,
}

impl Thread {
    /// Opens a thread's files. Fails with "not found" if `tid` is not a thread of `pid`.
    pub(super) fn open(pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<Thread> {
        Ok(Thread {
            pid,
            status: PolledStatus::open(pid, tid)?,
            pending: None,
            stack_top,
            prefetch: Vec::new(),
            calls: Calls::default(),
            repeated: None,
            woken: false,
            detached: false,
            job_stopped: false,
        })
    }
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
    doubted: bool,
    /// When a poll first showed no change since the previous one.
    still_since_ns: Option<u64>,
}

impl PolledStatus {
    fn open(pid: pid_t, tid: pid_t) -> io::Result<PolledStatus> {
        Ok(PolledStatus {
            schedstat: File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?,
            stat: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            wchan: File::open(format!("/proc/{pid}/task/{tid}/wchan")).ok(),
            last: None,
            polled_ns: 0,
            sched: Sched::default(),
            off_cpu: Sched::default(),
            doubted: false,
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
        if *wchan == Wchan::Tells && !std::mem::take(&mut self.doubted) && self.waits_nowhere() == Some(true)
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
                (Some(false), _) => Wchan::Tells,
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
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
    }

    /// The current or last CPU of the thread.
    pub(super) fn cpu(&self) -> Option<u32> {
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).ok()?;
        proc::stat_cpu(&buffer[..len])
    }
}

/// The scheduler counters from an open `schedstat` of any thread.
pub(super) fn sched(schedstat: &File) -> Option<Sched> {
    let mut buffer = [0; 96];
    let len = schedstat.read_at(&mut buffer, 0).ok()?;
    proc::schedstat(&buffer[..len])
}

/// The name of an existing thread.
pub(super) fn name(pid: pid_t, tid: pid_t) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// The process of a thread and its parent, until the thread is reaped: `Tgid` and `PPid` of
/// `/proc/TID/status`.
pub(super) fn belongs_to(tid: pid_t) -> Option<(pid_t, pid_t)> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let number = |key| proc::status_value(&status, key)?.parse().ok();
    Some((number("Tgid")?, number("PPid")?))
}

/// A thread of a process that has not exited: the first one, unless it exited before the others, as by
/// `pthread_exit` in `main`. /proc shows memory, files and arguments of the process through it. `None`: the
/// process has exited.
pub(super) fn living(pid: pid_t) -> Option<pid_t> {
    let lives = |tid: &pid_t| {
        let stat = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
        !matches!(proc::stat_state(&stat), None | Some(b'Z' | b'X'))
    };
    Some(pid).filter(lives).or_else(|| list(pid).ok()?.into_iter().find(lives))
}

/// The initial stack pointer of a process's program. `None` also for a process without memory.
pub(super) fn start_stack(pid: pid_t) -> Option<Avma> {
    proc::stat_start_stack(&std::fs::read(format!("/proc/{}/stat", living(pid)?)).ok()?)
}

/// The tids of a process, from `/proc/PID/task`.
pub(super) fn list(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}
