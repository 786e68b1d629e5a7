//! The events that sample a process, and the rings that they write to: what is opened, for whom.
//!
//! On every CPU, for all that runs there ([`Scope::Cpus`]): one clock and one ring for each CPU,
//! however many threads come and go; a program in the kernel says which processes are sampled. Its
//! timer ticks whatever runs, so where a thread is found does not depend on when it was switched
//! to. An event beside it, which samples nothing, tells of programs, threads and images: of what did not fit
//! into the ring the kernel counts for each event, and so samples are counted apart from these. It takes rights over
//! the whole machine (CAP_PERFMON, or kernel.perf_event_paranoid ≤ 0).
//!
//! Where waits are recorded there is a second event beside each of these, which writes into the same
//! ring: it samples a thread that leaves its CPU, and tells of each switch. For waits alone the first
//! one counts only, and samples nothing.
//!
//! Where no waits are recorded, there is such a second event, too, which is enabled now and then only (`woken.rs`).
//!
//! Without these, for the threads of some processes ([`Scope::Threads`]): an event for each thread
//! and CPU, inherited by what it starts; one ring for each CPU, which all share (`events/of_threads.rs`).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{c_int, pid_t};

use super::backlog::Pressure;
use super::grid::PERIODS_BETWEEN_CHANGES;
use super::rates::Rates;
use super::record::{self, CLOCK_PERIOD_MIN, Id, PerfRecord};
use super::sieve::Sieve;
use super::sys::{self, Ring};
use super::window;

mod attributes;
mod lost;
mod of_threads;
mod twice;

use attributes::{attributes, programs_attributes, switch_attributes, tell_of_programs};
use lost::Lost;
pub(super) use of_threads::MAX_PASSES;
use of_threads::OfThread;
use twice::Twice;

const SECOND_NS: u64 = 1_000_000_000;

/// Whom the events are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that runs on each CPU, sifted by the kernel.
    Cpus,
    /// The threads of the process.
    Threads,
}

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct How {
    pub(super) scope: Scope,
    /// Samples that fall into the kernel are told, with the frames there.
    pub(super) kernel: bool,
    /// Samples per second of CPU time.
    pub(super) hz: u32,
    /// Stack bytes that are copied of each, by the event and beyond (`window::of_record`).
    pub(super) window_bytes: u32,
    /// What lies below the stack pointer is copied, too (`below.rs`).
    pub(super) below: bool,
    /// Pieces of deep stacks are read, too (`prefetch.rs`).
    pub(super) prefetch: bool,
    /// How threads are sampled that leave their CPUs, if they are.
    pub(super) switches: Option<Switches>,
}

/// How threads are sampled that leave their CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switches {
    /// Stack bytes that are copied of each.
    pub(super) window_bytes: u32,
    /// Nothing else is sampled.
    pub(super) alone: bool,
    /// With the frames in the kernel, which it takes some time to find.
    pub(super) kernel_frames: bool,
    /// Of many processes, of which files are to be read while they switch.
    pub(super) many: bool,
}

impl Switches {
    /// Of events that are enabled now and then.
    fn now_and_then(how: How) -> Switches {
        Switches {
            window_bytes: window::of_record(how.window_bytes).0,
            alone: false,
            kernel_frames: true,
            many: false,
        }
    }
}

impl How {
    /// Nanoseconds between two samples of a thread that runs all the time.
    pub(super) fn period_ns(self) -> u64 {
        SECOND_NS / u64::from(self.hz.max(1))
    }

    /// Whether threads that run are sampled.
    pub(super) fn samples_running(self) -> bool {
        !self.switches.is_some_and(|switches| switches.alone)
    }
}

/// Sizes of a window: multiples of 8, and a record with it has less than 64 KiB.
pub(super) const WINDOWS_BYTES: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, WINDOW_BYTES_MAX];
pub(super) const WINDOW_BYTES_MAX: u32 = 60 << 10;

/// The same of the stacks at which threads leave their CPUs.
pub(super) const SWITCH_WINDOWS_BYTES: [u32; 6] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 60 << 10];

/// Bytes of all rings together, and of one at most and at least: a quarter of one is some tens of
/// milliseconds.
const RINGS_BYTES: usize = 32 << 20;
const RING_BYTES_MAX: usize = 4 << 20;
const RING_BYTES_MIN: usize = 512 << 10;
/// The most of one where switches of many processes are sampled, which come by the thousand while files of
/// these are being read.
const RING_BYTES_OF_MANY_MAX: usize = 16 << 20;
/// What everybody may lock on each CPU beside a page for control (kernel.perf_event_mlock_kb, 516).
const RING_BYTES_OF_EVERYBODY: usize = 512 << 10;
/// Why no ring can be had.
const TOO_LITTLE_MEMORY: &str = "perf_event may lock no more memory: sudo, or raise `ulimit -l` \
                                 or sysctl kernel.perf_event_mlock_kb";
/// More events than this are not opened for the threads of one process.
const EVENTS_MAX: usize = 16_384;
/// Whether CPUs came or went is looked at this often, nanoseconds.
const CPUS_LOOK_NS: u64 = 500_000_000;
/// CPUs on which a timer may tick for the sake of a few threads.
const CPUS_FOR_FEW_THREADS: usize = 16;

/// Open events and their rings. They stop when this is dropped.
#[derive(Debug)]
pub(super) struct Events {
    /// Each ring and the event that it is mapped from.
    rings: Vec<(Ring, OwnedFd)>,
    /// The CPU of each ring.
    cpus: Vec<c_int>,
    /// What the event of each ring had counted when the CPUs were looked at last, and when that was.
    counted_ns: Vec<u64>,
    looked_ns: u64,
    lost: Lost,
    /// Since that was asked.
    pressure: Pressure,
    /// Events that write into the rings of others.
    others: Vec<OwnedFd>,
    /// Events of threads, which do the same, without those of the first thread, which the rings are of.
    of_threads: Vec<OfThread>,
    twice: Twice,
    /// Samples of the clock that are later do not count.
    until_ns: u64,
    /// Those that tell of switches now and then, one for each CPU.
    woken: Vec<OwnedFd>,
    pub(super) how: How,
}

/// Which scope fits: events of threads cost a timer for each switch between them, and a descriptor
/// for each thread and CPU; events of CPUs let each CPU tick, those that nothing runs on, too.
pub(super) fn scope_for(cpus: usize, threads: usize) -> Scope {
    if cpus > CPUS_FOR_FEW_THREADS && threads.saturating_mul(cpus) <= EVENTS_MAX && threads < cpus {
        Scope::Threads
    } else {
        Scope::Cpus
    }
}

/// Bytes of the ring of each of so many CPUs, a power of two. `many`: switches of many processes are sampled.
fn ring_bytes_for(cpus: usize, many: bool) -> usize {
    let most = if many { RING_BYTES_OF_MANY_MAX } else { RING_BYTES_MAX };
    let bytes = (RINGS_BYTES / cpus.max(1)).clamp(RING_BYTES_MIN, most);
    1 << bytes.ilog2()
}

fn map_ring(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
    Ring::map(event, bytes).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => io::Error::new(io::ErrorKind::QuotaExceeded, TOO_LITTLE_MEMORY),
        _ => error,
    })
}

/// Whether an error is one of the limits above, which have their own words.
pub(super) fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() == io::ErrorKind::QuotaExceeded
}

impl Events {
    /// Opens what samples processes: on CPUs all that `sieve` lets through, else those that are
    /// listed. Nothing is sampled before [`Events::enable`].
    ///
    /// # Errors
    /// What the kernel refused the first event or ring with.
    pub(super) fn open(pids: &[pid_t], sieve: &Sieve, how: How) -> io::Result<Events> {
        match how.scope {
            Scope::Cpus => Events::of_cpus(sieve, how),
            Scope::Threads => Events::of_threads(pids, sieve, how),
        }
    }

    fn none(how: How, cpus: Vec<c_int>) -> Events {
        Events {
            rings: Vec::new(),
            cpus,
            counted_ns: Vec::new(),
            looked_ns: 0,
            lost: Lost::default(),
            pressure: Pressure::default(),
            others: Vec::new(),
            of_threads: Vec::new(),
            twice: Twice::default(),
            until_ns: u64::MAX,
            woken: Vec::new(),
            how,
        }
    }

    /// With smaller rings if no more may be locked: without CAP_IPC_LOCK what is left of a limit
    /// that all recordings of a user share.
    fn of_cpus(sieve: &Sieve, how: How) -> io::Result<Events> {
        let mut ring_bytes = ring_bytes_for(cpu_count(), how.switches.is_some_and(|switches| switches.many));
        loop {
            match Events::of_cpus_with(sieve, how, ring_bytes) {
                Err(error) if is_limit(&error) && ring_bytes > RING_BYTES_MIN => ring_bytes /= 2,
                result => return result,
            }
        }
    }

    fn of_cpus_with(sieve: &Sieve, how: How, ring_bytes: usize) -> io::Result<Events> {
        let mut events = Events::none(how, Vec::new());
        for cpu in online_cpus()? {
            let event = match sys::open(&attributes(how, ring_bytes), -1, cpu) {
                Ok(event) => event,
                // Just coming or going: looked for again (`lack_a_cpu`).
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => continue,
                Err(error) => return Err(error),
            };
            sieve.put_before_copying(&event);
            let ring = map_ring(&event, ring_bytes)?;
            let programs = sys::open(&programs_attributes(how, ring_bytes), -1, cpu)?;
            sys::write_into(&programs, &event)?;
            events.others.push(programs);
            if let Some(switches) = how.switches {
                let beside = sys::open(&switch_attributes(how, switches, ring_bytes), -1, cpu)?;
                sieve.put_before(&beside);
                sys::write_into(&beside, &event)?;
                events.others.push(beside);
            } else if how.kernel {
                // Shares are right without it, but for time before threads run.
                let beside =
                    sys::open(&switch_attributes(how, Switches::now_and_then(how), ring_bytes), -1, cpu);
                if let Ok(beside) = beside
                    && sys::write_into(&beside, &event).is_ok()
                {
                    sieve.put_before(&beside);
                    events.woken.push(beside);
                }
            }
            events.rings.push((ring, event));
            events.cpus.push(cpu);
        }
        Ok(events)
    }

    /// Begins to sample.
    ///
    /// # Errors
    /// What the kernel refused it with.
    pub(super) fn enable(&self) -> io::Result<()> {
        self.all().try_for_each(sys::enable)
    }

    /// Lets the event of each CPU tick at another rate around the one that was asked for, so that
    /// work in step with the rate is seen in all of its phases. Each at its own: ticks of two CPUs that
    /// stay in step meet a program that they hold up on one of them just when it has to wait on the other.
    ///
    /// Each change begins a period anew, which costs half of one; the mean makes up for that
    /// (`grid.rs` says how often). The new distance on each CPU, nanoseconds; none for events of threads, whose
    /// rate stays.
    pub(super) fn vary(&self, rates: &mut Rates) -> Vec<(u32, u64)> {
        if self.how.scope != Scope::Cpus || !self.how.samples_running() {
            return Vec::new();
        }
        let makes_up_per_mille = 1000 / (2 * PERIODS_BETWEEN_CHANGES);
        let mut vary_one = |(cpu, (_, event)): (&c_int, &(Ring, OwnedFd))| {
            let cpu = cpu.unsigned_abs();
            let per_mille = rates.next_per_mille(cpu) + makes_up_per_mille;
            let period_ns = (self.how.period_ns() * 1000 / per_mille).max(CLOCK_PERIOD_MIN);
            // It ticks on as before where that fails.
            let _ = sys::set_period(event, period_ns);
            (cpu, period_ns)
        };
        self.cpus.iter().zip(&self.rings).map(&mut vary_one).collect()
    }

    /// Whether these are no longer the events that would be opened now: a CPU came, or one went, and
    /// may be back since. The event of a CPU that was away samples no more, and nothing says so but
    /// that it stands still. Events of threads are not asked: they go where their threads go.
    ///
    /// Looks now and then only; the first look makes up no mind.
    pub(super) fn lack_a_cpu(&mut self, now_ns: u64) -> bool {
        if self.how.scope != Scope::Cpus || now_ns.saturating_sub(self.looked_ns) < CPUS_LOOK_NS {
            return false;
        }
        self.looked_ns = now_ns;
        let count = |(_, event): &(Ring, OwnedFd)| sys::count(event).map_or(0, |(count, _)| count);
        let counted: Vec<u64> = self.rings.iter().map(count).collect();
        let before = std::mem::replace(&mut self.counted_ns, counted);
        before.iter().zip(&self.counted_ns).any(|(before, now)| before == now)
            || online_cpus().is_ok_and(|cpus| cpus != self.cpus)
    }

    /// Lets the events that tell of switches now and then tell of them, or no longer; whether there are any.
    pub(super) fn watch_switches(&self, watch: bool) -> bool {
        let turn = if watch { sys::enable } else { sys::disable };
        // One that fails leaves its CPU untold, and the window without figures.
        self.woken.iter().map(turn).filter(Result::is_ok).count() == self.cpus.len()
    }

    /// Samples no more; what was sampled can still be read.
    pub(super) fn disable(&self) {
        for event in self.woken.iter().chain(self.all().rev()) {
            // Fails only for an event that is over.
            let _ = sys::disable(event);
        }
    }

    /// Those that tell of programs before those that sample these.
    fn all(&self) -> impl DoubleEndedIterator<Item = &OwnedFd> {
        let of_threads = self.of_threads.iter().map(|one| &one.event);
        self.others.iter().chain(self.rings.iter().map(|(_, event)| event)).chain(of_threads)
    }

    /// Gives every record that is there to `take`: those of one CPU in their order, and of those that two events
    /// tell alike one.
    pub(super) fn drain(&mut self, scratch: &mut Vec<u8>, mut take: impl FnMut(Id, PerfRecord<'_>)) {
        let (rings, twice, until_ns) = (&mut self.rings, &mut self.twice, self.until_ns);
        let pressure = &mut self.pressure;
        for ((ring, event), cpu) in rings.iter_mut().zip(&self.cpus) {
            let mut lost = false;
            let fill = ring.drain(scratch, |bytes| {
                if let Some((id, event, record)) = record::read(bytes)
                    && twice.takes(id, event, &record)
                    && (id.time_ns < until_ns || !record.is_by_clock())
                {
                    lost |= matches!(record, PerfRecord::Lost(_));
                    take(id, record);
                }
            });
            // It may have run over while it was drained, too.
            pressure.fill_per_mille = pressure.fill_per_mille.max(fill.per_mille);
            if fill.may_have_lost || lost {
                self.lost.count(cpu.unsigned_abs(), event);
            }
        }
        self.close_those_that_are_too_many();
    }

    /// How full the fullest ring is now.
    pub(super) fn fill_per_mille(&self) -> u32 {
        self.rings.iter().map(|(ring, _)| ring.fill().per_mille).max().unwrap_or(0)
    }

    /// Samples that did not fit into rings since this was asked before: of which CPU, and how many. `None` where
    /// nobody counts them apart from other records.
    pub(super) fn lost_samples(&mut self) -> Option<Vec<(u32, u64)>> {
        let lost = self.lost.since_before();
        self.pressure.lost |= lost.as_ref().is_some_and(|lost| !lost.is_empty());
        lost
    }

    /// Bytes of all rings.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.rings.iter().map(|(ring, _)| ring.data_bytes() as u64).sum()
    }

    /// How full rings were since this was asked before.
    pub(super) fn take_pressure(&mut self) -> Pressure {
        std::mem::take(&mut self.pressure)
    }

    /// Others sample from this time on (monotonic clock).
    pub(super) fn sample_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// Descriptors that are readable when a ring fills.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.rings.iter().map(|(_, event)| event.as_raw_fd())
    }
}

/// The CPUs that are online, by number.
fn online_cpus() -> io::Result<Vec<c_int>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = cpu_list(&list);
    if cpus.is_empty() { Err(io::ErrorKind::InvalidData.into()) } else { Ok(cpus) }
}

/// How many CPUs are online, at least 1.
pub(super) fn cpu_count() -> usize {
    online_cpus().map_or(1, |cpus| cpus.len())
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
    use super::super::registers;
    use super::*;

    #[test]
    fn lists_of_cpus_are_ranges_and_numbers() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list("0\n"), [0]);
        assert_eq!(cpu_list(""), [] as [c_int; 0]);
    }

    #[test]
    fn few_threads_on_many_cpus_have_events_of_their_own_and_others_share_those_of_cpus() {
        assert_eq!(scope_for(2, 1), Scope::Cpus);
        assert_eq!(scope_for(2, 2_001), Scope::Cpus);
        assert_eq!(scope_for(64, 1), Scope::Threads);
        assert_eq!(scope_for(64, 2_001), Scope::Cpus);
    }

    /// What is opened for so many CPUs and threads: the scope, descriptors of events, bytes of rings.
    fn opened(cpus: usize, threads: usize) -> (Scope, usize, usize) {
        match scope_for(cpus, threads) {
            Scope::Cpus => (Scope::Cpus, cpus, cpus * ring_bytes_for(cpus, false)),
            // One ring for each CPU, whatever the number of threads.
            Scope::Threads => (Scope::Threads, cpus * threads, cpus * RING_BYTES_OF_EVERYBODY),
        }
    }

    #[test]
    fn what_is_opened_is_bounded_by_the_number_of_cpus() {
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
                // The least that a ring must hold is more than its share from 64 CPUs on.
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

    #[test]
    fn windows_keep_records_below_their_limit() {
        for bytes in WINDOWS_BYTES.into_iter().chain(SWITCH_WINDOWS_BYTES) {
            let rest = 8 + 16 + 8 + 8 + 8 + 8 * 130 + 8 + 8 * registers::COUNT as u32 + 16;
            assert!(bytes % 8 == 0 && bytes + rest < 1 << 16, "{bytes}");
        }
    }
}
