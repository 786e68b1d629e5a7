//! CPU time of a test, independent of the load on the machine.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs::read_to_string;
use std::time::{Duration, Instant};

/// CPU time since its creation; elapsed time if the system does not report CPU time (only Linux does, in a
/// file).
pub(crate) struct CpuTime {
    read: fn() -> Option<Duration>,
    began: Option<Duration>,
    clock: Instant,
}

impl CpuTime {
    /// Measures the calling thread.
    pub(crate) fn start() -> CpuTime {
        CpuTime::of(of_this_thread)
    }

    /// Measures all threads of this program.
    pub(crate) fn of_all_threads() -> CpuTime {
        CpuTime::of(of_this_process)
    }

    fn of(read: fn() -> Option<Duration>) -> CpuTime {
        CpuTime { read, began: read(), clock: Instant::now() }
    }

    /// CPU time since the start, to within a scheduler tick.
    pub(crate) fn used(&self) -> Duration {
        match (self.began, (self.read)()) {
            (Some(began), Some(now)) => now.saturating_sub(began),
            _ => self.clock.elapsed(),
        }
    }
}

/// The first number of schedstat (Documentation/scheduler/sched-stats.rst).
fn of_this_thread() -> Option<Duration> {
    let text = read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// User and system time, fields 14 and 15 of proc_pid_stat(5), in hundredths of a second.
fn of_this_process() -> Option<Duration> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(14 - 3).take(2);
    fields.map(|field| field.parse::<u64>().ok().map(|ticks| Duration::from_millis(ticks * 10))).sum()
}
