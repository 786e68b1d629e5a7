//! Samples that did not fit into the ring of their CPU, as the kernel counts them for each event (Linux 6.0,
//! perf_event_open(2), `PERF_FORMAT_LOST`).
//!
//! Records of what was lost (`PERF_RECORD_LOST`) count all that events wrote into a ring together, and are written
//! before the next record that fits: what was lost at the end of a recording, none tells of.
//!
//! An event is asked only where its ring was full: that interrupts its CPU.

use std::os::fd::OwnedFd;

use hashbrown::HashMap;

use super::super::ring::sys;

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct LostSamples {
    /// By CPU: what its event had lost when it was asked last.
    before: HashMap<u32, u64>,
    since: Vec<(u32, u64)>,
    /// An event was asked, and the kernel does not count.
    uncounted: bool,
}

impl LostSamples {
    /// Asks the event of a CPU.
    pub(super) fn count(&mut self, cpu: u32, event: &OwnedFd) {
        match sys::count(event) {
            Ok((_, Some(lost))) => self.counted(cpu, lost),
            Ok((_, None)) => self.uncounted = true,
            // It is over, with its CPU.
            Err(_) => {}
        }
    }

    fn counted(&mut self, cpu: u32, lost: u64) {
        let before = self.before.insert(cpu, lost).unwrap_or(0);
        if lost > before {
            self.since.push((cpu, lost - before));
        }
    }

    /// See [`super::Events::lost_samples`].
    pub(super) fn since_before(&mut self) -> Option<Vec<(u32, u64)>> {
        let since = std::mem::take(&mut self.since);
        (!self.uncounted).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_tells_what_it_lost_since_it_was_asked() {
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
