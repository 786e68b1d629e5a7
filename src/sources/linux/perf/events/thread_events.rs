//! Events of the threads of processes, one for each thread and CPU, which what they start inherits.
//!
//! Input: processes; output: events that write into one ring for each CPU. Threads and processes that are started
//! meanwhile: each list is read again until it has nothing new, so that whoever is not listed was started by one
//! that has events. One that is listed may have inherited some and then has two sets: see `events/duplicate_events.rs`.

use std::io;
use std::os::fd::OwnedFd;

use libc::pid_t;

use super::super::bpf::sample_filter::SampleFilter;
use super::super::ring::sys;
use super::{
    EVENTS_MAX, EventOptions, Events, RING_BYTES_OF_EVERYBODY, attributes, map_ring, online_cpus,
    switch_attributes, tell_of_programs,
};
use crate::sources::linux::threads;

/// Passes over a list of threads or processes until one finds nothing new.
pub(in super::super) const MAX_PASSES: u32 = 8;
/// Why there are not as many events as it takes.
const TOO_MANY_EVENTS: &str = "perf_event takes an event for each thread and CPU, which are too many here: \
                               sudo, with which it takes one for each CPU";

/// An event that was opened for a thread.
#[derive(Debug)]
pub(super) struct OfThread {
    pub(super) tid: pid_t,
    /// It samples by the clock; the others tell of switches.
    is_clock: bool,
    pub(super) event: OwnedFd,
}

impl Events {
    pub(super) fn of_threads(pids: &[pid_t], sieve: &SampleFilter, how: EventOptions) -> io::Result<Events> {
        let mut events = Events::none(how, online_cpus()?);
        events.add_processes(pids, sieve)?;
        if events.rings.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(events) }
    }

    /// Opens events for the threads of further processes. Those that have ended since have none.
    ///
    /// # Errors
    /// What the kernel refused one with.
    pub(in super::super) fn add_processes(&mut self, pids: &[pid_t], sieve: &SampleFilter) -> io::Result<()> {
        pids.iter().try_for_each(|pid| self.add_process(*pid, sieve))
    }

    fn add_process(&mut self, pid: pid_t, sieve: &SampleFilter) -> io::Result<()> {
        let mut known: Vec<pid_t> = Vec::new();
        for _ in 0..MAX_PASSES {
            let Ok(listed) = threads::list(pid) else { break };
            let new: Vec<pid_t> = listed.into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                known.push(tid);
                match self.add_thread(tid, sieve) {
                    // Ended since the listing.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }

    fn add_thread(&mut self, tid: pid_t, sieve: &SampleFilter) -> io::Result<()> {
        if self.of_threads.len() + self.cpus.len() > EVENTS_MAX {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, TOO_MANY_EVENTS));
        }
        let first = self.rings.is_empty();
        let (how, bytes) = (self.how, RING_BYTES_OF_EVERYBODY);
        let mut clock = attributes(how, bytes);
        // An event more for each thread would be too many.
        tell_of_programs(&mut clock);
        let switches = how.switches.map(|switches| switch_attributes(how, switches, bytes));
        for (at, cpu) in self.cpus.clone().into_iter().enumerate() {
            let event = sys::open(&clock, tid, cpu)?;
            // Events that are inherited from it have the program, too (kernel/events/core.c, `perf_event_alloc`).
            sieve.put_copying_before(&event);
            self.twice.opened(sys::number(&event)?, tid);
            if first {
                self.rings.push((map_ring(&event, bytes)?, event));
            } else {
                self.write_into_ring(at, OfThread { tid, is_clock: true, event })?;
            }
            if let Some(attributes) = &switches {
                let event = sys::open(attributes, tid, cpu)?;
                self.twice.opened(sys::number(&event)?, tid);
                self.write_into_ring(at, OfThread { tid, is_clock: false, event })?;
            }
        }
        Ok(())
    }

    /// Lets an event of the CPU of this ring write into it.
    fn write_into_ring(&mut self, ring: usize, one: OfThread) -> io::Result<()> {
        if let Some((_, ring_of)) = self.rings.get(ring) {
            sys::write_into(&one.event, ring_of)?;
            self.of_threads.push(one);
        }
        Ok(())
    }

    /// Closes the events of threads that have two sets, with all that were inherited from them.
    pub(super) fn close_those_that_are_too_many(&mut self) {
        for tid in self.twice.too_many() {
            self.of_threads.retain(|one| one.tid != tid);
        }
    }

    /// CPU time of all threads that events are of, and of all that they started, since the events were enabled,
    /// nanoseconds: each counts in the kernel, too, and keeps what those counted that inherited it
    /// (kernel/events/core.c, `sync_child_event`).
    pub(in super::super) fn counted_ns(&self) -> u64 {
        let clocks = self.of_threads.iter().filter(|one| one.is_clock).map(|one| &one.event);
        let rings = self.rings.iter().map(|(_, event)| event);
        rings.chain(clocks).filter_map(|event| sys::count(event).ok()).map(|(count, _)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::super::super::bpf::bpf_sys::ProgramRing;
    use super::super::super::bpf::memory_copies::{CopyProgram, HEADER_BYTES, address};
    use super::super::Scope;
    use super::*;

    const WORD_BYTES: usize = 8;
    /// Far more than it takes until a thread that runs is sampled.
    const CPU_NS_MAX: u64 = 4_000_000_000;

    fn cpu_ns() -> u64 {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        schedstat.split(' ').next().unwrap().parse().unwrap()
    }

    fn own_tid() -> u64 {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    /// A program that tells of each sample, whose it is.
    fn program(ring: &ProgramRing) -> Vec<u64> {
        let mut program = CopyProgram::default();
        program.take_time();
        program.reserve(ring.descriptor(), WORD_BYTES, address(0));
        program.submit();
        program.end()
    }

    #[test]
    fn samples_of_a_thread_and_of_those_that_it_starts_have_the_program_that_copies() {
        let own = std::process::id().cast_signed();
        let mut sieve = SampleFilter::of_process(own);
        let ring = ProgramRing::create(1 << 20, HEADER_BYTES + WORD_BYTES);
        let ring = ring.and_then(|ring| sieve.copy(&program(&ring)).map(|()| ring));
        let mut ring = match ring {
            Ok(ring) => ring,
            // Who may load no program is told so.
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
                return assert!(!sieve.is_taken());
            }
        };
        assert!(sieve.is_taken());
        let how = EventOptions {
            scope: Scope::Threads,
            kernel: true,
            hz: 997,
            window_bytes: 4 << 10,
            below: false,
            prefetch: false,
            switches: None,
        };
        let events = Events::of_threads(&[own], &sieve, how).unwrap();
        events.enable().unwrap();
        let (started, found) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                started.store(own_tid(), Ordering::SeqCst);
                while !found.load(Ordering::SeqCst) && cpu_ns() < CPU_NS_MAX {
                    std::hint::spin_loop();
                }
            });
            let begun_ns = cpu_ns();
            while cpu_ns() - begun_ns < CPU_NS_MAX {
                ring.drain(|record| seen.push(u64::from_le_bytes(record[16..24].try_into().unwrap())));
                let wanted = [own_tid(), started.load(Ordering::SeqCst)];
                if wanted.iter().all(|tid| seen.contains(tid)) {
                    found.store(true, Ordering::SeqCst);
                    break;
                }
            }
        });
        assert!(found.into_inner(), "samples of {seen:?} only");
    }
}
