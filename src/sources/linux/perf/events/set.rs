//! Open events and their rings.
//!
//! `Events` has them; the parts below it size and map rings, count lost samples (`LostSamples`), list CPUs and
//! choose the scope.
//!
//! Input: what to sample, and options. Output: the records of the rings, fill levels, and lost samples.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::{fs, io};

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::super::bpf::sample_filter::SampleFilter;
use super::super::ring::sys::{self, Ring};
use super::attributes::{
    EventOptions, PERIODS_BETWEEN_CHANGES, Scope, SwitchOptions, TickRates, attributes, programs_attributes,
    switch_attributes,
};
use super::thread_events::ThreadEvents;
use crate::sources::linux::perf::ring::{self, CLOCK_PERIOD_MIN, PerfRecord, Pressure, SampleId};

/// Interval of polls for CPUs that came or went, nanoseconds.
const CPUS_POLL_NS: u64 = 500_000_000;

/// Open events and their rings. They stop when this is dropped.
#[derive(Debug)]
pub(crate) struct Events {
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
    pub(crate) fn open(pids: &[pid_t], filter: &SampleFilter, options: EventOptions) -> io::Result<Events> {
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
    pub(crate) fn add_processes(&mut self, pids: &[pid_t], filter: &SampleFilter) -> io::Result<()> {
        let Events { rings, cpus, threads, options, .. } = self;
        pids.iter().try_for_each(|pid| threads.add_process(*pid, *options, filter, cpus, rings))
    }

    /// The sampling options of the events.
    pub(crate) fn options(&self) -> EventOptions {
        self.options
    }

    /// CPU time of all threads with events, and of their descendants, since the events were enabled, nanoseconds:
    /// each event counts in the kernel, and keeps the counts of events that inherited it (kernel/events/core.c,
    /// `sync_child_event`).
    pub(crate) fn counted_ns(&self) -> u64 {
        let rings = self.rings.iter().map(|(_, event)| event);
        let clocks = rings.chain(self.threads.clocks());
        clocks.filter_map(|event| sys::count(event).ok()).map(|(count, _)| count).sum()
    }

    /// Starts sampling.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn enable(&self) -> io::Result<()> {
        self.all().try_for_each(sys::enable)
    }

    /// Sets a new period around the requested one for the event of each CPU, so that work in step with the rate is
    /// seen in all of its phases. Each CPU gets its own: if ticks of two CPUs stay in step, they can delay a program
    /// on one of them whenever it waits for the other.
    ///
    /// Each change restarts a period, which costs half of one; the mean compensates for that
    /// (`cpu_time/tick_schedule.rs`). Returns the new period of each CPU, nanoseconds; none for events of threads,
    /// which keep their rate.
    pub(crate) fn randomize_periods(&self, rates: &mut TickRates) -> Vec<(u32, u64)> {
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
    pub(crate) fn cpus_changed(&mut self, now_ns: u64) -> bool {
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
    pub(crate) fn record_switches(&self, record: bool) -> bool {
        let turn = if record { sys::enable } else { sys::disable };
        // If one fails, the interval lacks its CPU and is discarded.
        self.switches.iter().map(turn).filter(Result::is_ok).count() == self.cpus.len()
    }

    /// Stops sampling; samples already taken can still be read.
    pub(crate) fn disable(&self) {
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
    pub(crate) fn drain(&mut self, scratch: &mut Vec<u8>, mut take: impl FnMut(SampleId, PerfRecord<'_>)) {
        let (rings, threads, until_ns) = (&mut self.rings, &mut self.threads, self.until_ns);
        let pressure = &mut self.pressure;
        for ((ring, event), cpu) in rings.iter_mut().zip(&self.cpus) {
            let mut lost = false;
            let fill = ring.drain(scratch, |bytes| {
                if let Some((id, event, record)) = ring::read(bytes)
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
    pub(crate) fn lost_samples(&mut self) -> Option<Vec<(u32, u64)>> {
        let lost = self.lost.since_before();
        self.pressure.lost |= lost.as_ref().is_some_and(|lost| !lost.is_empty());
        lost
    }

    /// Bytes of all rings.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.rings.iter().map(|(ring, _)| ring.data_bytes() as u64).sum()
    }

    /// Current fill level of the fullest ring.
    pub(crate) fn fill_per_mille(&self) -> u32 {
        self.rings.iter().map(|(ring, _)| ring.fill().per_mille).max().unwrap_or(0)
    }

    /// Fill levels of rings since the last call.
    pub(crate) fn take_pressure(&mut self) -> Pressure {
        std::mem::take(&mut self.pressure)
    }

    /// Ignores later samples: other events sample from this time on (monotonic clock).
    pub(crate) fn sample_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// Descriptors that are readable when a ring fills.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.rings.iter().map(|(_, event)| event.as_raw_fd())
    }
}

// ---- The rings of events: their size, and mapping them.
//
// Input: a number of CPUs, an event. Output: a size, a ring, or the reason for having none.

/// Total size of all rings, and maximum and minimum size of one: a quarter of a ring holds some tens of
/// milliseconds.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MAX: usize = 4 << 20;
pub(super) const RING_BYTES_MIN: usize = 512 << 10;
/// Maximum size of one if switches of many processes are sampled: thousands arrive while files of these are read.
const RING_BYTES_OF_MANY_MAX: usize = 16 << 20;
/// Size that any user may lock per CPU in addition to the control page (kernel.perf_event_mlock_kb, 516).
pub(super) const RING_BYTES_OF_EVERYBODY: usize = 512 << 10;
/// Reason for a ring that cannot be mapped.
const TOO_LITTLE_MEMORY: &str = "perf_event may lock no more memory: sudo, or raise `ulimit -l` \
                                 or sysctl kernel.perf_event_mlock_kb";

/// Size of the ring of each of this many CPUs, a power of two. `many`: switches of many processes are sampled.
pub(super) fn ring_bytes_for(cpus: usize, many: bool) -> usize {
    let most = if many { RING_BYTES_OF_MANY_MAX } else { RING_BYTES_MAX };
    let bytes = (RINGS_BYTES / cpus.max(1)).clamp(RING_BYTES_MIN, most);
    1 << bytes.ilog2()
}

pub(crate) fn map_ring(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
    Ring::map(event, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(io::ErrorKind::QuotaExceeded, TOO_LITTLE_MEMORY),
        _ => error,
    })
}

/// Whether an error is a limit of this program, with its own message.
pub(crate) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::QuotaExceeded
}

// ---- Samples that did not fit into the ring of their CPU, by the kernel's count for each event (Linux 6.0,
// perf_event_open(2), `PERF_FORMAT_LOST`).
//
// PERF_RECORD_LOST counts the records of all events of a ring together, and is written before the next record that
// fits: losses at the end of a recording have none.
//
// The count of an event is read only if its ring was full, since reading it interrupts the CPU.

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

// ---- Online CPUs, and the choice between events for CPUs and for threads. Output: CPU numbers, [`Scope`].

/// Maximum number of events for the threads of one process.
pub(super) const EVENTS_MAX: usize = 16_384;
/// Maximum number of CPUs to tick for a few threads.
pub(super) const CPUS_FOR_FEW_THREADS: usize = 16;

/// The suitable scope: events of threads cost a timer operation for each switch between them, and a descriptor per
/// thread and CPU; events of CPUs make every CPU tick, including idle ones.
pub(crate) fn scope_for(cpus: usize, threads: usize) -> Scope {
    if cpus > CPUS_FOR_FEW_THREADS && threads.saturating_mul(cpus) <= EVENTS_MAX && threads < cpus {
        Scope::Threads
    } else {
        Scope::Cpus
    }
}

/// The online CPUs, by number.
pub(crate) fn online_cpus() -> io::Result<Vec<c_int>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = cpu_list(&list);
    if cpus.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// Number of online CPUs, at least 1.
pub(crate) fn cpu_count() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len())
}

/// Number of CPUs that the kernel keeps values for, including those that may come online later.
pub(crate) fn possible_cpu_count() -> io::Result<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // The number of values follows from the highest number (include/linux/cpumask.h, `num_possible_cpus`).
    let cpus = cpu_list(&list).len();
    if cpus == 0 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// `0-3,8` (Documentation/admin-guide/cputopology.rst).
fn cpu_list(text: &str) -> Vec<c_int> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    });
    ranges.flat_map(|(first, last): (c_int, c_int)| first..=last).collect()
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

#[cfg(test)]
mod rings_tests {
    use super::super::attributes::Scope;
    use super::*;
    use super::{CPUS_FOR_FEW_THREADS, EVENTS_MAX, scope_for};

    /// What is opened for this many CPUs and threads: scope, number of descriptors, total ring size.
    fn opened(cpus: usize, threads: usize) -> (Scope, usize, usize) {
        match scope_for(cpus, threads) {
            Scope::Cpus => (Scope::Cpus, cpus, cpus * ring_bytes_for(cpus, false)),
            // One ring per CPU, whatever the number of threads.
            Scope::Threads => (Scope::Threads, cpus * threads, cpus * RING_BYTES_OF_EVERYBODY),
        }
    }

    #[test]
    fn descriptors_and_rings_are_bounded_by_the_number_of_cpus() {
        assert_eq!(opened(1, 2_000), (Scope::Cpus, 1, 4 << 20));
        assert_eq!(opened(2, 2_000), (Scope::Cpus, 2, 8 << 20));
        assert_eq!(opened(64, 2_000), (Scope::Cpus, 64, 32 << 20));
        assert_eq!(opened(64, 64), (Scope::Cpus, 64, 32 << 20));
        // Fewer threads than CPUs: below 64 × 64 events.
        assert_eq!(opened(64, 63), (Scope::Threads, 4_032, 32 << 20));
        assert_eq!(opened(64, 1), (Scope::Threads, 64, 32 << 20));
        for cpus in [1, 2, 3, 16, 17, 48, 64, 100, 128, 256, 1_024] {
            for threads in [1, 2, 15, 16, 17, 63, 64, 127, 128, 2_000, 100_000] {
                let (scope, descriptors, bytes) = opened(cpus, threads);
                assert!(descriptors <= cpus.max(EVENTS_MAX), "{cpus} CPUs, {threads} threads: {descriptors}");
                // From 64 CPUs on, the minimum size of a ring exceeds its share.
                let most = RINGS_BYTES.max(cpus * RING_BYTES_MIN);
                assert!(bytes <= most, "{cpus} CPUs, {threads} threads: {bytes} bytes of rings");
                let few = threads < cpus && cpus > CPUS_FOR_FEW_THREADS && cpus * threads <= EVENTS_MAX;
                assert_eq!(scope == Scope::Threads, few, "{cpus} CPUs, {threads} threads");
            }
        }
    }

    #[test]
    fn rings_are_powers_of_two_of_whole_pages() {
        for (many, most) in [(false, RING_BYTES_MAX), (true, RING_BYTES_OF_MANY_MAX)] {
            for cpus in 0..5_000 {
                let bytes = ring_bytes_for(cpus, many);
                let fits = (RING_BYTES_MIN..=most).contains(&bytes);
                assert!(bytes.is_power_of_two() && fits, "{cpus} CPUs: {bytes}");
            }
        }
    }
}

#[cfg(test)]
mod lost_samples_tests {
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

#[cfg(test)]
mod cpus_tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_ranges_and_numbers() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list("0\n"), [0]);
        assert_eq!(cpu_list(""), [] as [c_int; 0]);
    }

    #[test]
    fn few_threads_on_many_cpus_use_thread_events_and_others_cpu_events() {
        assert_eq!(scope_for(2, 1), Scope::Cpus);
        assert_eq!(scope_for(2, 2_001), Scope::Cpus);
        assert_eq!(scope_for(64, 1), Scope::Threads);
        assert_eq!(scope_for(64, 2_001), Scope::Cpus);
    }
}
