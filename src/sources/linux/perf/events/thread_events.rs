//! Events of the threads of processes, one for each thread and CPU, inherited by new threads and processes.
//!
//! Input: processes. Output: events that write into one ring per CPU. Each list of threads is read again until it
//! has nothing new, so that every unlisted thread was started by one with events. A listed thread may have
//! inherited events and then has two sets: see `DuplicateEvents`.

use std::io;
use std::os::fd::OwnedFd;

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::super::bpf::sample_filter::SampleFilter;
use super::super::ring::sys::{self, Ring};
use super::attributes::{EventOptions, attributes, record_programs, switch_attributes};
use super::set::{EVENTS_MAX, RING_BYTES_OF_EVERYBODY, map_ring};
use crate::sources::linux::perf::ring::{PerfRecord, SampleId};
use crate::sources::linux::proc;

/// Maximum number of passes over a list of threads or processes until one finds nothing new.
pub(crate) const PASSES_MAX: u32 = 8;
/// Reason for refusing to open more events.
const TOO_MANY_EVENTS: &str = "perf_event takes an event for each thread and CPU, which are too many here: \
                               sudo, with which it takes one for each CPU";

/// An event that was opened for a thread.
#[derive(Debug)]
struct ThreadEvent {
    tid: pid_t,
    /// Whether it samples by the timer; others record context switches.
    is_clock: bool,
    event: OwnedFd,
}

/// Events of threads other than the first one, which has the rings.
#[derive(Debug, Default)]
pub(super) struct ThreadEvents {
    events: Vec<ThreadEvent>,
    duplicates: DuplicateEvents,
}

impl ThreadEvents {
    /// Opens events for the threads of a process, except those that have ended.
    pub(super) fn add_process(
        &mut self,
        pid: pid_t,
        options: EventOptions,
        filter: &SampleFilter,
        cpus: &[c_int],
        rings: &mut Vec<(Ring, OwnedFd)>,
    ) -> io::Result<()> {
        let mut known: Vec<pid_t> = Vec::new();
        for _ in 0..PASSES_MAX {
            let Ok(listed) = proc::list(pid) else { break };
            let new: Vec<pid_t> = listed.into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                known.push(tid);
                match self.add_thread(tid, options, filter, cpus, rings) {
                    // Ended since the listing.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }

    fn add_thread(
        &mut self,
        tid: pid_t,
        options: EventOptions,
        filter: &SampleFilter,
        cpus: &[c_int],
        rings: &mut Vec<(Ring, OwnedFd)>,
    ) -> io::Result<()> {
        if self.events.len() + cpus.len() > EVENTS_MAX {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, TOO_MANY_EVENTS));
        }
        let first = rings.is_empty();
        let bytes = RING_BYTES_OF_EVERYBODY;
        let mut clock = attributes(options, bytes);
        // A separate event per thread would be too many.
        record_programs(&mut clock);
        let switches = options.switches.map(|switches| switch_attributes(options, switches, bytes));
        for (at, cpu) in cpus.iter().enumerate() {
            let event = sys::open(&clock, tid, *cpu)?;
            // Inherited events also have the program (kernel/events/core.c, `perf_event_alloc`).
            filter.attach_copy(&event);
            self.duplicates.opened(sys::number(&event)?, tid);
            if first {
                rings.push((map_ring(&event, bytes)?, event));
            } else {
                self.write_into_ring(rings.get(at), ThreadEvent { tid, is_clock: true, event })?;
            }
            if let Some(attributes) = &switches {
                let event = sys::open(attributes, tid, *cpu)?;
                self.duplicates.opened(sys::number(&event)?, tid);
                self.write_into_ring(rings.get(at), ThreadEvent { tid, is_clock: false, event })?;
            }
        }
        Ok(())
    }

    /// Redirects an event into the ring of its CPU.
    fn write_into_ring(&mut self, ring: Option<&(Ring, OwnedFd)>, one: ThreadEvent) -> io::Result<()> {
        if let Some((_, ring_of)) = ring {
            sys::write_into(&one.event, ring_of)?;
            self.events.push(one);
        }
        Ok(())
    }

    /// Whether a record counts: the second of two equal ones does not.
    pub(super) fn is_accepted(&mut self, id: SampleId, event: u64, record: &PerfRecord<'_>) -> bool {
        self.duplicates.is_accepted(id, event, record)
    }

    /// Closes the events of threads with two sets, and all events inherited from them.
    pub(super) fn close_duplicates(&mut self) {
        for tid in self.duplicates.too_many() {
            self.events.retain(|one| one.tid != tid);
        }
    }

    /// All events.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &OwnedFd> {
        self.events.iter().map(|one| &one.event)
    }

    /// Events that sample by the timer.
    pub(super) fn clocks(&self) -> impl Iterator<Item = &OwnedFd> {
        self.events.iter().filter(|one| one.is_clock).map(|one| &one.event)
    }
}

// ---- Threads with two sets of events: a thread that starts while events are being opened inherits those of its
// creator, and gets its own, too.
//
// Each sample has the number of the event that was opened for its thread or for an ancestor. Of two sets, the one
// opened last is closed: threads that inherited the other one were listed then.

/// Events of threads, and the threads that each of them samples.
#[derive(Debug, Default)]
pub(super) struct DuplicateEvents {
    /// By event number: the thread that it was opened for.
    opened_for: HashMap<u64, pid_t>,
    /// By thread: an event that samples it, and the thread it was opened for.
    by: HashMap<pid_t, (u64, pid_t)>,
    /// Threads with duplicate events.
    too_many: Vec<pid_t>,
}

impl DuplicateEvents {
    /// Records an event opened for a thread.
    pub(super) fn opened(&mut self, event: u64, tid: pid_t) {
        self.opened_for.insert(event, tid);
    }

    /// Whether a record counts: the second of two equal ones does not.
    pub(super) fn is_accepted(&mut self, id: SampleId, event: u64, record: &PerfRecord<'_>) -> bool {
        match record {
            PerfRecord::Sample(_) | PerfRecord::SwitchIn { .. } | PerfRecord::SwitchOut { .. } => {}
            // The number may be reused.
            PerfRecord::Exit => {
                self.by.remove(&id.tid);
                return true;
            }
            // Duplicates of these are harmless.
            _ => return true,
        }
        let Some(opened_for) = self.opened_for.get(&event).copied().filter(|_| id.tid > 0) else {
            return true;
        };
        let by = self.by.entry(id.tid).or_insert((event, opened_for));
        if by.1 == opened_for {
            return true;
        }
        // Numbers ascend (kernel/events/core.c, `perf_event_id`).
        let first = (event, opened_for).min(*by);
        self.too_many.push((event, opened_for).max(*by).1);
        *by = first;
        false
    }

    /// Threads with duplicate events to be closed, each once.
    pub(super) fn too_many(&mut self) -> Vec<pid_t> {
        let mut too_many = std::mem::take(&mut self.too_many);
        too_many.sort_unstable();
        too_many.dedup();
        for tid in &too_many {
            self.opened_for.retain(|_, of| of != tid);
            self.by.retain(|_, (_, of)| of != tid);
        }
        too_many
    }
}

#[cfg(test)]
mod duplicate_events_tests {
    use super::*;
    use crate::sources::linux::perf::ring::Sample;

    fn sample(duplicates: &mut DuplicateEvents, tid: pid_t, event: u64) -> bool {
        duplicates.is_accepted(
            SampleId { tid, pid: 7, ..SampleId::default() },
            event,
            &PerfRecord::Sample(Sample::EMPTY),
        )
    }

    /// Thread 7 has events 1 and 2, on two CPUs; 8 inherited these, and 3 and 4 were opened for it.
    fn two_sets() -> DuplicateEvents {
        let mut duplicates = DuplicateEvents::default();
        for (event, tid) in [(1, 7), (2, 7), (3, 8), (4, 8)] {
            duplicates.opened(event, tid);
        }
        duplicates
    }

    #[test]
    fn of_two_sets_the_later_one_is_closed() {
        for first in [1, 3] {
            let mut duplicates = two_sets();
            assert!(sample(&mut duplicates, 7, 1) && sample(&mut duplicates, 7, 2), "on each CPU");
            assert!(sample(&mut duplicates, 8, first));
            assert!(!sample(&mut duplicates, 8, 4 - first), "the same once more");
            assert!(sample(&mut duplicates, 8, 2), "the inherited ones stay");
            assert_eq!(duplicates.too_many(), [8]);
            assert!(duplicates.too_many().is_empty());
            assert!(sample(&mut duplicates, 8, 1));
        }
    }

    #[test]
    fn its_children_are_sampled_by_the_remaining_set() {
        let mut duplicates = two_sets();
        assert!(sample(&mut duplicates, 9, 3), "by those of 8");
        assert!(!sample(&mut duplicates, 9, 1), "and by those of 7");
        assert_eq!(duplicates.too_many(), [8], "though 8 was not seen with both");
        assert!(sample(&mut duplicates, 9, 1) && sample(&mut duplicates, 8, 2));
    }

    #[test]
    fn a_reused_thread_number_starts_afresh() {
        let mut duplicates = two_sets();
        assert!(sample(&mut duplicates, 9, 1) && !sample(&mut duplicates, 9, 3));
        assert!(duplicates.is_accepted(SampleId { tid: 9, ..SampleId::default() }, 1, &PerfRecord::Exit));
        assert!(sample(&mut duplicates, 9, 3));
        assert!(sample(&mut duplicates, 9, 77), "of an event that was not opened for a thread");
        assert!(duplicates.is_accepted(
            SampleId { tid: -1, ..SampleId::default() },
            1,
            &PerfRecord::Sample(Sample::EMPTY)
        ));
    }
}
