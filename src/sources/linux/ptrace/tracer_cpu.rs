//! The tracer's own time on CPUs: while it runs, no other thread is on its CPU. Input: its sleeps. Output: the
//! stint on the current CPU.

use std::fs;
use std::time::Duration;

use super::on_cpu::{Lateness, Stint};
use super::sys;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::threads;

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
    stint: Option<Stint>,
    /// When the last sleep ended.
    slept_until_ns: u64,
}

impl TracerCpu {
    pub(super) fn new() -> TracerCpu {
        let schedstat = fs::File::open("/proc/thread-self/schedstat").ok();
        TracerCpu {
            schedstat,
            cpu_ns: 0,
            lateness: Lateness::default(),
            woke_late: false,
            stint: None,
            slept_until_ns: 0,
        }
    }

    pub(super) fn stint(&self) -> Option<Stint> {
        self.stint
    }

    /// When the last sleep ended.
    pub(super) fn slept_until_ns(&self) -> u64 {
        self.slept_until_ns
    }

    /// Sleeps until a traced thread may have stopped or exited.
    pub(super) fn sleep(&mut self, at_most_ns: u64, clock: &RealClock) {
        let due_ns = clock.now_ns().saturating_add(at_most_ns);
        let is_signalled = sys::sleep_for_signal(Duration::from_nanos(at_most_ns));
        self.slept_until_ns = clock.now_ns();
        self.wake((!is_signalled).then(|| self.slept_until_ns.saturating_sub(due_ns)));
    }

    /// Handles the end of a sleep: `late_ns` after the requested time, or by a signal.
    fn wake(&mut self, late_ns: Option<u64>) {
        // For the calling thread too, the kernel shows CPU time up to the last time it left its CPU.
        let cpu_ns = self.schedstat.as_ref().and_then(threads::sched).map(|sched| sched.cpu_ns);
        self.stint =
            cpu_ns.map(|cpu_ns| Stint { kept_ns: cpu_ns.saturating_sub(self.cpu_ns), late: self.woke_late });
        self.cpu_ns = cpu_ns.unwrap_or(0);
        self.woke_late = late_ns.is_some_and(|late_ns| self.lateness.is_unusual(late_ns));
    }
}
