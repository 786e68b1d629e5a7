//! The monotonic clock, which records of the kernel use, and the CPU clocks of threads and processes.
//!
//! The stages behind the rings read them through [`Clocks`], so that they also run on a simulated kernel.
#![allow(unsafe_code)]

use libc::pid_t;

/// The clocks of a machine.
pub(super) trait Clocks {
    /// The monotonic clock, used by records, nanoseconds.
    fn monotonic_ns(&self) -> u64;

    /// CPU time of all threads of a process so far, exited ones included, nanoseconds. `None` if the process no
    /// longer exists.
    fn process_cpu_ns(&self, pid: pid_t) -> Option<u64>;

    /// Brings the CPU clocks of these threads' processes up to date.
    fn update_thread_clocks(&self, tids: &mut dyn Iterator<Item = pid_t>);
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SystemClocks;

impl Clocks for SystemClocks {
    fn monotonic_ns(&self) -> u64 {
        monotonic_ns()
    }

    fn process_cpu_ns(&self, pid: pid_t) -> Option<u64> {
        process_cpu_ns(pid)
    }

    fn update_thread_clocks(&self, tids: &mut dyn Iterator<Item = pid_t>) {
        update_thread_clocks(tids);
    }
}

/// The CPU clock of a process (clock_getcpuclockid(3)), like [`Clocks::process_cpu_ns`].
pub(super) fn process_cpu_ns(pid: pid_t) -> Option<u64> {
    // CPUCLOCK_SCHED of a process: include/linux/posix-timers.h, `make_process_cpuclock`.
    const CPUCLOCK_SCHED: libc::clockid_t = 2;
    if pid <= 0 {
        return None;
    }
    clock_ns(!pid << 3 | CPUCLOCK_SCHED)
}

/// Brings the clocks of these threads' processes up to date: without, that of a running thread lags by up to a
/// scheduler tick (kernel/sched/cputime.c, `thread_group_cputime`; reading the clock of a thread updates it,
/// kernel/sched/core.c, `task_sched_runtime`).
pub(super) fn update_thread_clocks(tids: impl Iterator<Item = pid_t>) {
    // CPUCLOCK_SCHED of a thread: include/linux/posix-timers_types.h, CPUCLOCK_PERTHREAD_MASK.
    const OF_THREAD: libc::clockid_t = 4 | 2;
    for tid in tids.filter(|tid| *tid > 0) {
        let _ = clock_ns(!tid << 3 | OF_THREAD);
    }
}

/// The monotonic clock, like [`Clocks::monotonic_ns`].
pub(super) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of the calling thread, nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live and of the type that clock_gettime(2) fills.
    let is_read = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    is_read.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
