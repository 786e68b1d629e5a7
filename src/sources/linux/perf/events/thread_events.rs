//! Events of the threads of processes, one for each thread and CPU, inherited by new threads and processes.
//!
//! Input: processes. Output: events that write into one ring per CPU. Each list of threads is read again until it has
//! nothing new, so that every unlisted thread was started by one with events. A listed thread may have inherited
//! events and then has two sets: see `events/duplicate_events.rs`.

use std::io;
use std::os::fd::OwnedFd;

use libc::{c_int, pid_t};

use super::super::bpf::sample_filter::SampleFilter;
use super::super::ring::record::{PerfRecord, SampleId};
use super::super::ring::sys::{self, Ring};
use super::attributes::{attributes, record_programs, switch_attributes};
use super::cpus::EVENTS_MAX;
use super::duplicate_events::DuplicateEvents;
use super::options::EventOptions;
use super::rings::{RING_BYTES_OF_EVERYBODY, map_ring};
use crate::sources::linux::threads;

/// Maximum number of passes over a list of threads or processes until one finds nothing new.
pub(in crate::sources::linux::perf) const PASSES_MAX: u32 = 8;
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
            let Ok(listed) = threads::list(pid) else { break };
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
