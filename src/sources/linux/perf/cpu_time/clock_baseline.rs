//! With `-a`: CPU clocks of all processes at the beginning and end of the recording. They give the CPU time of a
//! process from its first sample on, and at the end that of processes without a sample.
//!
//! Input: pids and a clock. Output: nanoseconds.

use hashbrown::HashMap;
use libc::pid_t;

/// By process, until it is sampled or its number is reused.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct ClockBaseline(HashMap<pid_t, Clock>);

/// The clock of a process at both ends of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct Clock {
    pub(in crate::sources::linux::perf) began_ns: u64,
    /// `None` until the end, or if the process ended before.
    pub(in crate::sources::linux::perf) ended_ns: Option<u64>,
}

impl ClockBaseline {
    /// Reads the clocks of these processes, as far as they are readable.
    pub(in crate::sources::linux::perf) fn of(
        pids: &[pid_t],
        clock: impl Fn(pid_t) -> Option<u64>,
    ) -> ClockBaseline {
        let begin = |pid: &pid_t| Some((*pid, Clock { began_ns: clock(*pid)?, ended_ns: None }));
        ClockBaseline(pids.iter().filter_map(begin).collect())
    }

    /// Reads the clocks at the end of the recording.
    pub(in crate::sources::linux::perf) fn stop(&mut self, clock: impl Fn(pid_t) -> Option<u64>) {
        self.0.iter_mut().for_each(|(pid, of)| of.ended_ns = clock(*pid));
    }

    /// Removes a process that is sampled from now on; returns its initial clock.
    pub(in crate::sources::linux::perf) fn take(&mut self, pid: pid_t) -> Option<Clock> {
        self.0.remove(&pid)
    }

    /// CPU time of the remaining processes that did not end before the recording.
    pub(in crate::sources::linux::perf) fn unsampled_ns(&self) -> u64 {
        self.0.values().filter_map(|of| Some(of.ended_ns?.saturating_sub(of.began_ns))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_counted_by_its_samples_or_by_its_clock() {
        let mut baseline = ClockBaseline::of(&[4, 5, 6, 7, 8], |pid| (pid != 8).then_some(1_000));
        let found = Clock { began_ns: 1_000, ended_ns: None };
        assert_eq!((baseline.take(5), baseline.take(5), baseline.take(8)), (Some(found), None, None));
        assert_eq!(baseline.unsampled_ns(), 0, "it has not ended");
        baseline.stop(|pid| match pid {
            6 => Some(1_250),
            7 => None,
            _ => Some(9_000),
        });
        assert_eq!(baseline.take(4), Some(Clock { began_ns: 1_000, ended_ns: Some(9_000) }));
        assert_eq!(baseline.unsampled_ns(), 250);
    }
}
