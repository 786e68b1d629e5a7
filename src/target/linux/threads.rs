//! The threads of a process as /proc shows them: found, looked at, named.
//!
//! A look costs one `pread` of a file kept open for a thread that sleeps on, two for
//! one that ran.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::pid_t;

use super::proc;
use crate::addr::Avma;
use crate::target::{Activity, Fault, Look};

/// A stop that was asked for and not yet seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) window_bytes: usize,
    pub(super) keep_waiting: bool,
    pub(super) asked_ns: u64,
}

/// A traced thread.
#[derive(Debug)]
pub(super) struct Thread {
    schedstat: File,
    stat: File,
    last: Option<Look>,
    last_cpu: Option<u32>,
    pub(super) pending: Option<Pending>,
    pub(super) stack_top: Option<Avma>,
}

impl Thread {
    /// Opens a thread's files. Fails with "not found" when `tid` is no thread of `pid`.
    pub(super) fn open(pid: pid_t, tid: pid_t, stack_top: Option<Avma>) -> io::Result<Thread> {
        Ok(Thread {
            schedstat: File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?,
            stat: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            last: None,
            last_cpu: None,
            pending: None,
            stack_top,
        })
    }

    /// CPU time in nanoseconds and times put on a CPU; also for a thread that has ended
    /// and was not reaped.
    pub(super) fn cpu(&self) -> Option<(u64, u64)> {
        let mut buffer = [0; 96];
        let len = self.schedstat.read_at(&mut buffer, 0).ok()?;
        proc::schedstat(&buffer[..len])
    }

    /// One look from outside.
    pub(super) fn look(&mut self) -> Result<Look, Fault> {
        let (cpu_ns, switches) = self.cpu().ok_or(Fault::ThreadGone)?;
        // A thread that slept and was not put on a CPU since sleeps still, or has not
        // used what woke it: no need to ask for its state.
        if let Some(last) = self.last
            && last.activity == Activity::Waiting
            && (last.cpu_ns, last.switches) == (cpu_ns, switches)
        {
            return Ok(last);
        }
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).map_err(|_| Fault::ThreadGone)?;
        let state = proc::stat_state(&buffer[..len]).ok_or(Fault::ThreadGone)?;
        let look = Look { cpu_ns, switches, activity: proc::activity(state) };
        self.last = Some(look);
        self.last_cpu = proc::stat_cpu(&buffer[..len]);
        Ok(look)
    }

    /// The CPU that the thread was on at the last look.
    pub(super) fn last_cpu(&self) -> Option<u32> {
        self.last_cpu
    }

    /// The stack pointer that the process's first thread began with.
    pub(super) fn start_stack(&self) -> Option<Avma> {
        let mut buffer = [0; 1024];
        let len = self.stat.read_at(&mut buffer, 0).ok()?;
        proc::stat_start_stack(&buffer[..len])
    }
}

/// The tids of a process, from `/proc/PID/task`.
pub(super) fn list(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}
