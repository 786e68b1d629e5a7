//! The threads of a process by /proc: listed, named.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use libc::pid_t;

use super::proc::{self, Sched};
use crate::addr::Avma;

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
pub(super) fn tgid_and_ppid(tid: pid_t) -> Option<(pid_t, pid_t)> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let number = |key| proc::status_value(&status, key)?.parse().ok();
    Some((number("Tgid")?, number("PPid")?))
}

/// A thread of a process that has not exited: the first one, unless it exited before the others, as by
/// `pthread_exit` in `main`. /proc shows memory, files and arguments of the process through it. `None`: the
/// process has exited.
pub(super) fn living_thread(pid: pid_t) -> Option<pid_t> {
    let lives = |tid: &pid_t| {
        let stat = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
        !matches!(proc::stat_state(&stat), None | Some(b'Z' | b'X'))
    };
    Some(pid).filter(lives).or_else(|| list(pid).ok()?.into_iter().find(lives))
}

/// The initial stack pointer of a process's program. `None` also for a process without memory.
pub(super) fn start_stack(pid: pid_t) -> Option<Avma> {
    proc::stat_start_stack(&std::fs::read(format!("/proc/{}/stat", living_thread(pid)?)).ok()?)
}

/// The tids of a process, from `/proc/PID/task`.
pub(super) fn list(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Time that the threads of a process, of many the first ones, have waited for a CPU, nanoseconds.
pub(super) fn delayed_ns(pid: pid_t) -> u64 {
    const THREADS_MAX: usize = 1000;
    let delay = |tid: pid_t| {
        let text = std::fs::read(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        Some(proc::schedstat(&text)?.delay_ns)
    };
    list(pid).unwrap_or_default().into_iter().take(THREADS_MAX).filter_map(delay).sum()
}
