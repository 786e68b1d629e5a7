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

/// What becomes of the memory.
#[derive(Debug)]
enum Change {
    /// Code was mapped.
    Mmap(Mapping),
    /// All of it, as read.
    Read(Vec<Mapping>),
}

/// The images of a process, in the order of its samples.
#[derive(Debug)]
pub(in crate::sources::linux) struct ProbedImages {
    pid: pid_t,
    /// Each ring, and its event.
    rings: Vec<(Ring, OwnedFd)>,
    scratch: Vec<u8>,
    maps: Maps,
    /// Changes at times (monotonic clock) that have not come.
    due: VecDeque<(u64, Change)>,
    history: MmapHistory,
}

impl ProbedImages {
    /// Follows the mappings of a process from now on.
    ///
    /// # Errors
    /// The kernel's, for the first event or ring.
    pub(in crate::sources::linux) fn open(pid: pid_t) -> io::Result<ProbedImages> {
        let mut rings = Vec::new();
        for cpu in online_cpus()? {
            let event = sys::open(&mmap_attributes(RING_BYTES), -1, cpu)?;
            let ring = map_ring(&event, RING_BYTES)?;
            sys::enable(&event)?;
            rings.push((ring, event));
        }
        let mut images = ProbedImages {
            pid,
            rings,
            scratch: Vec::new(),
            maps: Maps::default(),
            due: VecDeque::new(),
            history: MmapHistory::default(),
        };
        if let Some(list) = images.read() {
            images.history.replace(&list);
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
        changes.sort_by_key(|(at_ns, _)| *at_ns);
        if has_lost && let Some(list) = self.read() {
            changes.push((monotonic_ns(), Change::Read(list)));
        }
        for (at_ns, change) in changes {
            changed(at_ns);
            self.due.push_back((at_ns, change));
        }
        // The ring of another CPU may have an earlier one.
        self.due.make_contiguous().sort_by_key(|(at_ns, _)| *at_ns);
    }

    /// The mappings at this time (monotonic clock), which is not before an earlier one.
    pub(in crate::sources::linux) fn at(&mut self, at_ns: u64) -> &[Mapping] {
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
