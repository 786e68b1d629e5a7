//! The executable memory of the probed process at the times of its samples: libraries are unloaded, and others take their
//! addresses.
//!
//! Input: records of mappings, and /proc/PID/maps at the start and where records were lost. Output: for each time
//! the mappings. No record reports that memory is unmapped; no sample has code there.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use libc::pid_t;

use super::super::clocks::monotonic_ns;
use super::super::events::attributes::mmap_attributes;
use super::super::events::cpus::online_cpus;
use super::super::events::rings::map_ring;
use super::super::process::mmap_history::MmapHistory;
use super::super::reorder::event::mapping;
use super::super::ring::record::{self, PerfRecord};
use super::super::ring::sys::{self, Ring};
use crate::binary::Mapping;
use crate::sources::linux::images::Maps;

/// Size of the ring of a CPU: a thousand mappings, of all processes.
const RING_BYTES: usize = 128 << 10;

/// A change of the mappings of code.
#[derive(Debug)]
enum Change {
    Mmap(Mapping),
    /// The whole list, as read from /proc.
    Read(Vec<Mapping>),
}

/// Mappings over time.
#[derive(Debug, Default)]
struct Timeline {
    /// Changes to come, by time (monotonic clock).
    due: VecDeque<(u64, Change)>,
    history: MmapHistory,
}

impl Timeline {
    /// Adds changes. Those of another CPU may be later than some of these.
    fn add(&mut self, changes: Vec<(u64, Change)>) {
        self.due.extend(changes);
        self.due.make_contiguous().sort_by_key(|(at_ns, _)| *at_ns);
    }

    /// The mappings at this time, which is not before an earlier one.
    fn at(&mut self, at_ns: u64) -> &[Mapping] {
        while self.due.front().is_some_and(|(from_ns, _)| *from_ns <= at_ns) {
            match self.due.pop_front() {
                Some((_, Change::Mmap(mapping))) => self.history.add(mapping),
                Some((_, Change::Read(list))) => self.history.replace(&list),
                None => {}
            }
        }
        self.history.list()
    }
}

/// The mappings of code of a process at the times of its samples.
#[derive(Debug)]
pub(in crate::sources::linux) struct TargetMappings {
    pid: pid_t,
    /// Each ring, and its event.
    rings: Vec<(Ring, OwnedFd)>,
    scratch: Vec<u8>,
    maps: Maps,
    timeline: Timeline,
}

impl TargetMappings {
    /// Follows the mappings of a process from now on.
    ///
    /// # Errors
    /// The kernel's, for the first event or ring.
    pub(in crate::sources::linux) fn open(pid: pid_t) -> io::Result<TargetMappings> {
        let mut rings = Vec::new();
        for cpu in online_cpus()? {
            let event = sys::open(&mmap_attributes(RING_BYTES), -1, cpu)?;
            let ring = map_ring(&event, RING_BYTES)?;
            sys::enable(&event)?;
            rings.push((ring, event));
        }
        let mut images = TargetMappings {
            pid,
            rings,
            scratch: Vec::new(),
            maps: Maps::default(),
            timeline: Timeline::default(),
        };
        if let Some(list) = images.read() {
            images.timeline.history.replace(&list);
        }
        Ok(images)
    }

    fn read(&mut self) -> Option<Vec<Mapping>> {
        let mut list = Vec::new();
        self.maps.read(self.pid, &mut list).is_ok().then_some(list)
    }

    /// Reads the records; calls `changed` with the time of each change (monotonic clock). All changes before a sample that
    /// was read earlier are among them.
    pub(in crate::sources::linux) fn drain(&mut self, mut changed: impl FnMut(u64)) {
        let (mut changes, mut has_lost) = (Vec::new(), false);
        for (ring, _) in &mut self.rings {
            ring.drain(&mut self.scratch, |bytes| match record::read(bytes) {
                Some((id, _, PerfRecord::Mmap(mmap))) if id.pid == self.pid => {
                    changes.extend(mapping(&mmap).map(|mapping| (id.time_ns, Change::Mmap(mapping))));
                }
                Some((_, _, PerfRecord::Lost(_))) => has_lost = true,
                _ => {}
            });
        }
        if has_lost && let Some(list) = self.read() {
            changes.push((monotonic_ns(), Change::Read(list)));
        }
        changes.iter().for_each(|(at_ns, _)| changed(*at_ns));
        self.timeline.add(changes);
    }

    /// The mappings at this time (monotonic clock), which is not before an earlier one.
    pub(in crate::sources::linux) fn at(&mut self, at_ns: u64) -> &[Mapping] {
        self.timeline.at(at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;
    use crate::binary::MappingKind;

    fn library(name: &str) -> Mapping {
        Mapping {
            avma: Avma(0x1000)..Avma(0x2000),
            file_offset: 0,
            path: name.to_owned(),
            kind: MappingKind::File,
            identity: (1, name.len() as u64),
        }
    }

    #[test]
    fn rings_are_read_one_after_the_other_and_mappings_replaced_in_order_of_time() {
        let mut timeline = Timeline::default();
        timeline.add(vec![(105, Change::Mmap(library("third"))), (100, Change::Read(vec![library("a")]))]);
        timeline.add(vec![(103, Change::Mmap(library("other")))]);
        for (at_ns, expected) in [(99, None), (100, Some("a")), (104, Some("other")), (200, Some("third"))] {
            let paths: Vec<&str> = timeline.at(at_ns).iter().map(|mapping| &*mapping.path).collect();
            assert_eq!(paths, Vec::from_iter(expected), "at {at_ns}");
        }
    }
}
