//! Samples that did not fit into the ring of their CPU, by the kernel's count for each event (Linux 6.0,
//! perf_event_open(2), `PERF_FORMAT_LOST`). Input: events with full rings. Output: lost samples by CPU.
//!
//! PERF_RECORD_LOST counts the records of all events of a ring together, and is written before the next record
//! that fits: losses at the end of a recording have none.
//!
//! The count of an event is read only if its ring was full, since reading it interrupts the CPU.

use std::os::fd::OwnedFd;

use hashbrown::HashMap;

use super::super::ring::sys;

/// Samples that events lost, by CPU.
#[derive(Debug, Default)]
pub(super) struct LostSamples {
    /// By CPU: the count when it was read last.
    before: HashMap<u32, u64>,
    since: Vec<(u32, u64)>,
    /// Whether a count was read and the kernel does not count lost records.
    uncounted: bool,
}

impl LostSamples {
    /// Reads the count of the event of a CPU.
    pub(super) fn count(&mut self, cpu: u32, event: &OwnedFd) {
        match sys::count(event) {
            Ok((_, Some(lost))) => self.counted(cpu, lost),
            Ok((_, None)) => self.uncounted = true,
            // Its CPU went offline.
            Err(_) => {}
        }
    }

    fn counted(&mut self, cpu: u32, lost: u64) {
        let before = self.before.insert(cpu, lost).unwrap_or(0);
        if lost > before {
            self.since.push((cpu, lost - before));
        }
    }

    /// Samples that did not fit since the last call, by CPU; `None` if the kernel does not count them.
    pub(super) fn since_before(&mut self) -> Option<Vec<(u32, u64)>> {
        let since = std::mem::take(&mut self.since);
        (!self.uncounted).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_counts_what_it_lost_since_the_last_read() {
        let mut lost = LostSamples::default();
        for (cpu, all) in [(0, 5), (1, 7), (1, 7)] {
            lost.counted(cpu, all);
        }
        assert_eq!(lost.since_before(), Some(vec![(0, 5), (1, 7)]));
        assert_eq!(lost.since_before(), Some(vec![]));
        lost.counted(0, 6);
        assert_eq!(lost.since_before(), Some(vec![(0, 1)]));
        lost.uncounted = true;
        assert_eq!(lost.since_before(), None);
    }
}
