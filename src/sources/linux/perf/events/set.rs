//! Open events and their rings.
//!
//! Input: what to sample, and options. Output: the records of the rings, fill levels, and lost samples.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{c_int, pid_t};

use super::super::bpf::sample_filter::SampleFilter;
use super::super::ring::pressure::Pressure;
use super::super::ring::record::{self, CLOCK_PERIOD_MIN, PerfRecord, SampleId};
use super::super::ring::sys::{self, Ring};
use super::attributes::{attributes, programs_attributes, switch_attributes};
use super::cpus::{cpu_count, online_cpus};
use super::lost_samples::LostSamples;
use super::options::{EventOptions, Scope, SwitchOptions};
use super::rings::{RING_BYTES_MIN, is_limit, map_ring, ring_bytes_for};
use super::thread_events::ThreadEvents;
use super::tick_rates::{PERIODS_BETWEEN_CHANGES, TickRates};

/// Interval of polls for CPUs that came or went, nanoseconds.
const CPUS_POLL_NS: u64 = 500_000_000;

/// Open events and their rings. They stop when this is dropped.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Events {
    /// Each ring, and the event it is mapped from.
    rings: Vec<(Ring, OwnedFd)>,
    /// The CPU of each ring.
    cpus: Vec<c_int>,
    /// Count of each ring's event at the last poll of CPUs, and the time of that poll.
    counted_ns: Vec<u64>,
    polled_ns: u64,
    lost: LostSamples,
    /// Pressure since [`Events::take_pressure`].
    pressure: Pressure,
    /// Events that write into the rings of others.
    others: Vec<OwnedFd>,
    /// Events of threads that write into the rings, without those of the first thread, which own the rings.
    threads: ThreadEvents,
    /// Timer samples after this time are ignored.
    until_ns: u64,
    /// Events that record context switches at intervals, one per CPU.
    switches: Vec<OwnedFd>,
    options: EventOptions,
}

impl Events {
    /// Opens the events that sample processes: on CPUs everything that passes `filter`, otherwise the listed ones.
    /// Nothing is sampled before [`Events::enable`].
    ///
    /// # Errors
    /// The kernel's error for the first event or ring.
    pub(in crate::sources::linux::perf) fn open(
        pids: &[pid_t],
        filter: &SampleFilter,
        options: EventOptions,
    ) -> io::Result<Events> {
        match options.scope {
            Scope::Cpus => Events::of_cpus(filter, options),
            Scope::Threads => Events::of_threads(pids, filter, options),
        }
    }

    fn none(options: EventOptions, cpus: Vec<c_int>) -> Events {
        Events {
            rings: Vec::new(),
            cpus,
            counted_ns: Vec::new(),
            polled_ns: 0,
            lost: LostSamples::default(),
            pressure: Pressure::default(),
            others: Vec::new(),
            threads: ThreadEvents::default(),
            until_ns: u64::MAX,
            switches: Vec::new(),
            options,
        }
    }

    /// Uses smaller rings if no more memory may be locked: without CAP_IPC_LOCK, all recordings of a user share a
    /// limit.
    fn of_cpus(filter: &SampleFilter, options: EventOptions) -> io::Result<Events> {
        let mut ring_bytes =
            ring_bytes_for(cpu_count(), options.switches.is_some_and(|switches| switches.many));
        loop {
            match Events::of_cpus_with(filter, options, ring_bytes) {
                Err(error) if is_limit(&error) && ring_bytes > RING_BYTES_MIN => ring_bytes /= 2,
                result => return result,
            }
        }
    }

    fn of_cpus_with(filter: &SampleFilter, options: EventOptions, ring_bytes: usize) -> io::Result<Events> {
        let mut events = Events::none(options, Vec::new());
        for cpu in online_cpus()? {
            let event = match sys::open(&attributes(options, ring_bytes), -1, cpu) {
                Ok(event) => event,
                // The CPU comes or goes right now: the next poll notices (`cpus_changed`).
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(error),
            };
            filter.attach_with_copy(&event);
            let ring = map_ring(&event, ring_bytes)?;
            let programs = sys::open(&programs_attributes(options, ring_bytes), -1, cpu)?;
            sys::write_into(&programs, &event)?;
            events.others.push(programs);
            if let Some(switches) = options.switches {
                let beside = sys::open(&switch_attributes(options, switches, ring_bytes), -1, cpu)?;
                filter.attach(&beside);
                sys::write_into(&beside, &event)?;
                events.others.push(beside);
            } else if options.kernel {
                // Without it, shares are right except for time before threads run.
                let beside = sys::open(
                    &switch_attributes(options, SwitchOptions::at_intervals(options), ring_bytes),
                    -1,
                    cpu,
                );
                if let Ok(beside) = beside
                    && sys::write_into(&beside, &event).is_ok()
                {
                    filter.attach(&beside);
                    events.switches.push(beside);
                }
            }
            events.rings.push((ring, event));
            events.cpus.push(cpu);
        }
        Ok(events)
    }

    fn of_threads(pids: &[pid_t], filter: &SampleFilter, options: EventOptions) -> io::Result<Events> {
        let mut events = Events::none(options, online_cpus()?);
        events.add_processes(pids, filter)?;
        if events.rings.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(events) }
    }

    /// Opens events for the threads of further processes, except those that have ended.
    ///
    /// # Errors
    /// The kernel's error for an event.
    pub(in crate::sources::linux::perf) fn add_processes(
        &mut self,
        pids: &[pid_t],
        filter: &SampleFilter,
    ) -> io::Result<()> {
        let Events { rings, cpus, threads, options, .. } = self;
        pids.iter().try_for_each(|pid| threads.add_process(*pid, *options, filter, cpus, rings))
    }

    /// The sampling options of the events.
    pub(in crate::sources::linux::perf) fn options(&self) -> EventOptions {
        self.options
    }

    /// CPU time of all threads with events, and of their descendants, since the events were enabled, nanoseconds:
    /// each event counts in the kernel, and keeps the counts of events that inherited it (kernel/events/core.c,
    /// `sync_child_event`).
    pub(in crate::sources::linux::perf) fn counted_ns(&self) -> u64 {
        let rings = self.rings.iter().map(|(_, event)| event);
        let clocks = rings.chain(self.threads.clocks());
        clocks.filter_map(|event| sys::count(event).ok()).map(|(count, _)| count).sum()
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// The kernel's error.
    pub(in crate::sources::linux::perf) fn enable(&self) -> io::Result<()> {
        self.all().try_for_each(sys::enable)
    }

    /// Sets a new period around the requested one for the event of each CPU, so that work in step with the rate is
    /// seen in all of its phases. Each CPU gets its own: if ticks of two CPUs stay in step, they can delay a program
    /// on one of them whenever it waits for the other.
    ///
    /// Each change restarts a period, which costs half of one; the mean compensates for that
    /// (`cpu_time/tick_schedule.rs`). Returns the new period of each CPU, nanoseconds; none for events of threads,
    /// which keep their rate.
    pub(in crate::sources::linux::perf) fn randomize_periods(
        &self,
        rates: &mut TickRates,
    ) -> Vec<(u32, u64)> {
        if self.options.scope != Scope::Cpus || !self.options.samples_running() {
            return Vec::new();
        }
        let makes_up_per_mille = 1000 / (2 * PERIODS_BETWEEN_CHANGES);
        let mut set_one = |(cpu, (_, event)): (&c_int, &(Ring, OwnedFd))| {
            let cpu = cpu.unsigned_abs();
            let per_mille = rates.next_per_mille(cpu) + makes_up_per_mille;
            let period_ns = (self.options.period_ns() * 1000 / per_mille).max(CLOCK_PERIOD_MIN);
            // On failure it keeps its period.
            let _ = sys::set_period(event, period_ns);
            (cpu, period_ns)
        };
        self.cpus.iter().zip(&self.rings).map(&mut set_one).collect()
    }

    /// Whether a CPU came or went, and possibly returned since: then the events have to be reopened. The event of
    /// a CPU that went offline takes no more samples, which only its count shows. Events of threads are not
    /// polled: they follow their threads.
    ///
    /// Polls at intervals; the first poll only sets the baseline.
    pub(in crate::sources::linux::perf) fn cpus_changed(&mut self, now_ns: u64) -> bool {
        if self.options.scope != Scope::Cpus || now_ns.saturating_sub(self.polled_ns) < CPUS_POLL_NS {
            return false;
        }
        self.polled_ns = now_ns;
        let count = |(_, event): &(Ring, OwnedFd)| sys::count(event).map_or(0, |(count, _)| count);
        let counted: Vec<u64> = self.rings.iter().map(count).collect();
        let before = std::mem::replace(&mut self.counted_ns, counted);
        before.iter().zip(&self.counted_ns).any(|(before, now)| before == now)
            || online_cpus().is_ok_and(|cpus| cpus != self.cpus)
    }

    /// Starts or stops the events that record context switches at intervals. Returns whether there are any.
    pub(in crate::sources::linux::perf) fn record_switches(&self, record: bool) -> bool {
        let turn = if record { sys::enable } else { sys::disable };
        // If one fails, the interval lacks its CPU and is discarded.
        self.switches.iter().map(turn).filter(Result::is_ok).count() == self.cpus.len()
    }

    /// Stops sampling; samples already taken can still be read.
    pub(in crate::sources::linux::perf) fn disable(&self) {
        for event in self.switches.iter().chain(self.all().rev()) {
            // Fails only for an event that has ended.
            let _ = sys::disable(event);
        }
    }

    /// All events, those that record exec and mmap before those that sample.
    fn all(&self) -> impl DoubleEndedIterator<Item = &OwnedFd> {
        let of_threads = self.threads.iter();
        self.others.iter().chain(self.rings.iter().map(|(_, event)| event)).chain(of_threads)
    }

    /// Passes every record to `take`: those of one CPU in order, without duplicates.
    pub(in crate::sources::linux::perf) fn drain(
        &mut self,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(SampleId, PerfRecord<'_>),
    ) {
        let (rings, threads, until_ns) = (&mut self.rings, &mut self.threads, self.until_ns);
        let pressure = &mut self.pressure;
        for ((ring, event), cpu) in rings.iter_mut().zip(&self.cpus) {
            let mut lost = false;
            let fill = ring.drain(scratch, |bytes| {
                if let Some((id, event, record)) = record::read(bytes)
                    && threads.is_accepted(id, event, &record)
                    && (id.time_ns < until_ns || !record.is_by_clock())
                {
                    lost |= matches!(record, PerfRecord::Lost(_));
                    take(id, record);
                }
            });
            // It may have filled up during the read, too.
            pressure.fill_per_mille = pressure.fill_per_mille.max(fill.per_mille);
            if fill.may_have_lost || lost {
                self.lost.count(cpu.unsigned_abs(), event);
            }
        }
        self.threads.close_duplicates();
    }

    /// Samples that did not fit into rings since the last call, by CPU. `None` if the kernel does not count them
    /// separately from other records.
    pub(in crate::sources::linux::perf) fn lost_samples(&mut self) -> Option<Vec<(u32, u64)>> {
        let lost = self.lost.since_before();
        self.pressure.lost |= lost.as_ref().is_some_and(|lost| !lost.is_empty());
        lost
    }

    /// Bytes of all rings.
    pub(in crate::sources::linux::perf) fn ring_bytes(&self) -> u64 {
        self.rings.iter().map(|(ring, _)| ring.data_bytes() as u64).sum()
    }

    /// Current fill level of the fullest ring.
    pub(in crate::sources::linux::perf) fn fill_per_mille(&self) -> u32 {
        self.rings.iter().map(|(ring, _)| ring.fill().per_mille).max().unwrap_or(0)
    }

    /// Fill levels of rings since the last call.
    pub(in crate::sources::linux::perf) fn take_pressure(&mut self) -> Pressure {
        std::mem::take(&mut self.pressure)
    }

    /// Ignores later samples: other events sample from this time on (monotonic clock).
    pub(in crate::sources::linux::perf) fn sample_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// Descriptors that are readable when a ring fills.
    pub(in crate::sources::linux::perf) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.rings.iter().map(|(_, event)| event.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::super::super::bpf::bpf_sys::ProgramRing;
    use super::super::super::bpf::memory_copies::{CopyProgram, HEADER_BYTES, address};
    use super::*;

    const WORD_BYTES: usize = 8;
    /// Far more than it takes until a running thread is sampled.
    const CPU_NS_MAX: u64 = 4_000_000_000;

    fn cpu_ns() -> u64 {
        let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        schedstat.split(' ').next().unwrap().parse().unwrap()
    }

    fn own_tid() -> u64 {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    /// A program that records the thread of each sample.
    fn program(ring: &ProgramRing) -> Vec<u64> {
        let mut program = CopyProgram::default();
        program.take_time();
        program.reserve(ring.descriptor(), WORD_BYTES, address(0));
        program.submit();
        program.end()
    }

    #[test]
    fn samples_of_a_thread_and_its_descendants_run_the_copy_program() {
        let own = std::process::id().cast_signed();
        let mut filter = SampleFilter::of_process(own);
        let ring = ProgramRing::create(1 << 20, HEADER_BYTES + WORD_BYTES);
        let ring = ring.and_then(|ring| filter.copy(&program(&ring)).map(|()| ring));
        let mut ring = match ring {
            Ok(ring) => ring,
            // The kernel also refuses processes that may not load programs.
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
                return assert!(!filter.is_loaded());
            }
        };
        assert!(filter.is_loaded());
        let options = EventOptions {
            scope: Scope::Threads,
            kernel: true,
            hz: 997,
            stack_bytes: 4 << 10,
            red_zone: false,
            prefetch: false,
            switches: None,
        };
        let events = Events::open(&[own], &filter, options).unwrap();
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
