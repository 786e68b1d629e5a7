//! The tracer's own time on CPUs: while it runs, no other thread is on its CPU. Input: its sleeps and
//! wakeups. Output: the stint on the current CPU.

use std::fs;

use super::on_cpu::{Lateness, Stint};
use super::threads;

/// The tracer's CPU time, and since when it has had its CPU.
#[derive(Debug)]
pub(super) struct TracerCpu {
    /// `/proc/thread-self/schedstat`.
    schedstat: Option<fs::File>,
    /// Its CPU time up to the last sleep, nanoseconds.
    cpu_ns: u64,
    lateness: Lateness,
    /// The last wakeup was unusually late.
    woke_late: bool,
    /// From the wakeup before the last sleep to that sleep.
    pub(super) stint: Option<Stint>,
}

impl TracerCpu {
    pub(super) fn new() -> TracerCpu {
        let schedstat = fs::File::open("/proc/thread-self/schedstat").ok();
        TracerCpu { schedstat, cpu_ns: 0, lateness: Lateness::default(), woke_late: false, stint: None }
    }

    /// Handles the end of a sleep: `late_ns` after the requested time, or by a signal.
    pub(super) fn woke(&mut self, late_ns: Option<u64>) {
        // For the calling thread too, the kernel shows CPU time up to the last time it left its CPU.
        let cpu_ns = self.schedstat.as_ref().and_then(threads::sched).map(|sched| sched.cpu_ns);
        self.stint =
            cpu_ns.map(|cpu_ns| Stint { kept_ns: cpu_ns.saturating_sub(self.cpu_ns), late: self.woke_late });
        self.cpu_ns = cpu_ns.unwrap_or(0);
        self.woke_late = late_ns.is_some_and(|late_ns| self.lateness.is_unusual(late_ns));
    }
}
