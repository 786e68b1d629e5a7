//! Processes sampled by the kernel: rings are read in batches, images and names are read from /proc. Nothing is
//! stopped or changed.
//!
//! `PerfSource` is the source; `ProcessExits` are the exits that end a recording, `ReadAheadTimer` decides when
//! rings are read during walks.
//!
//! Drives the stages (`pipeline.rs`) by the content of the rings, and reopens events as the stages request.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{c_int, pid_t};

use super::bpf::sample_filter::SampleFilter;
use super::buffers::Usage;
use super::cpu_time::accounting::{BatchOptions, CpuTime};
use super::events::attributes::{EventOptions, Scope, TickRates};
use super::events::set::{self, Events};
use super::events::thread_events::PASSES_MAX;
use super::pipeline::{FIRST_BATCHES_NS, Pipeline, System};
use super::process::entry::ProcessEntry;
use super::process::filter::{self, ProcessFilter};
use super::process::table::ProcessTable;
use super::ring::sys;
use super::stack::stacks::{Backlog, Stacks};
use super::waits::WaitRecorder;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::clocks::monotonic_ns;
use crate::sources::linux::files::FilePages;
use crate::sources::linux::{launch, privileges, proc, sys as linux_sys};
use crate::sources::pushed::{IN_KERNEL, NOT_SAMPLED_AGAIN, PushedSource, SourceEvent, StackUse, TimedEvent};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

/// Time in which a starting program loads its libraries, nanoseconds.
const BEGINNING_NS: u64 = 300_000_000;
/// Bytes of buffers to free before pages are returned to the system.
const TRIM_BYTES: usize = 4 << 20;
/// Clocks that are compared are read within this time, or again, up to this many times.
const CLOCK_READS_NS: u64 = 3_000_000;
const CLOCK_READS_MAX: u32 = 8;
/// Pages of read files are returned after this many batches: a second or two.
const RELEASE_BATCHES: u32 = 16;
/// Rings are read up to this many times, until they hold what the clocks already count.
const READS_MAX: u32 = 4;
/// Time from a record until it can be read, nanoseconds.
const READABLE_AFTER_NS: u64 = 1_000_000;

/// Initial state of a source.
pub(super) struct SourceStart {
    /// The main process, or the placeholder for several.
    pub(super) main: ProcessEntry,
    /// Processes that end the recording when they end; none for a whole machine.
    pub(super) listed: Vec<pid_t>,
    /// Selects further processes.
    pub(super) filter: ProcessFilter,
    /// Whether it is a command that has not run yet.
    pub(super) launched: bool,
}

/// Start and end of a recording.
struct Times {
    began_ns: u64,
    /// End of sampling (monotonic clock), if it has ended.
    ended_ns: Option<u64>,
    /// The monotonic clock at the sampler's time 0.
    origin_ns: u64,
}

/// Memory of batches.
#[derive(Default)]
struct Memory {
    /// Use of the output records.
    usage: Usage,
    /// Maximum total size of the stacks in a batch.
    stacks_bytes: usize,
    /// Time of the last read (monotonic clock).
    read_ns: u64,
    /// Batches since pages of files were last returned.
    batches: u32,
    file_pages: FilePages,
    /// Bytes of buffers freed since pages were last returned.
    freed_bytes: usize,
}

/// Processes sampled by the kernel.
pub(crate) struct PerfSource {
    main: pid_t,
    clock: RealClock,
    events: Events,
    filter: SampleFilter,
    pipeline: Pipeline,
    /// Whether the reader has raised priority.
    preferred: bool,
    /// Exits of the processes that the recording ends with.
    exits: ProcessExits,
    launched: bool,
    times: Times,
    /// For a whole machine: its ticks at the beginning, total and idle, and at the end.
    machine: Option<[(u64, u64); 2]>,
    finished: bool,
    /// Tick rates of the CPUs.
    rates: TickRates,
    scratch: Vec<u8>,
    memory: Memory,
    read_ahead: ReadAheadTimer,
}

impl PerfSource {
    /// A source with open `events` and their `filter`.
    pub(super) fn new(
        begin: SourceStart,
        clock: RealClock,
        events: Events,
        filter: SampleFilter,
        stacks: Stacks,
    ) -> PerfSource {
        let SourceStart { main, listed, filter: selected, launched } = begin;
        let began_ns = clock.now_ns();
        let origin_ns = monotonic_ns().saturating_sub(began_ns);
        let pid = main.pid();
        let options = events.options();
        let mut processes = ProcessTable::new(selected, main, options.switches.is_some());
        processes.begin(launched);
        let waits =
            options.switches.map(|switches| WaitRecorder::new(switches.alone, launched.then_some(pid)));
        let pipeline = Pipeline::new(
            System::machine(),
            processes,
            CpuTime::new(pid, options.period_ns(), options.switches.is_none()),
            stacks,
            waits,
            origin_ns,
        );
        PerfSource {
            main: pid,
            clock,
            events,
            filter,
            pipeline,
            preferred: false,
            exits: ProcessExits::of(listed),
            launched,
            times: Times { began_ns, ended_ns: None, origin_ns },
            machine: None,
            finished: false,
            rates: TickRates::new(u64::from(pid.unsigned_abs())),
            scratch: Vec::new(),
            memory: Memory::default(),
            read_ahead: ReadAheadTimer::default(),
        }
    }

    /// Begins sampling.
    pub(super) fn enable(&mut self) -> std::io::Result<()> {
        self.pipeline.select_all();
        self.open_those_already_started()?;
        self.exclude_from_samples();
        if self.is_machine() {
            // All images have to be read first, while the rings fill.
            self.raise_priority();
        }
        self.read_clocks_together(|source| {
            source.pipeline.cpu_time.begin(&*source.pipeline.system.clocks);
            if source.is_machine() {
                source.machine = machine_ticks().map(|ticks| [ticks, ticks]);
                source
                    .pipeline
                    .cpu_time
                    .begin_machine(&filter::all_processes(), &*source.pipeline.system.clocks);
            }
        });
        let now_ns = monotonic_ns();
        self.events.enable()?;
        self.pipeline.processes.read_running(&*self.pipeline.system.procfs);
        self.list_threads(now_ns);
        Ok(())
    }

    /// Whether sampling has ended; its samples may still be read.
    fn is_disabled(&self) -> bool {
        self.times.ended_ns.is_some()
    }

    /// Whether all processes of the machine are recorded.
    fn is_machine(&self) -> bool {
        self.pipeline.processes.filter().is_all()
    }

    /// Reads clocks that are compared with each other; repeats if the reader was delayed in between.
    fn read_clocks_together(&mut self, read: impl Fn(&mut PerfSource)) {
        for _ in 0..CLOCK_READS_MAX {
            let before_ns = monotonic_ns();
            read(self);
            if monotonic_ns() - before_ns < CLOCK_READS_NS {
                break;
            }
        }
    }

    /// Lists the threads that may have been waiting since before this time (monotonic clock), if waits are
    /// recorded: those that keep waiting never have a record.
    fn list_threads(&mut self, now_ns: u64) {
        if self.pipeline.waits.is_none() {
            return;
        }
        // An idle CPU switches to process 0.
        self.filter.exclude(0, true);
        if self.launched {
            return;
        }
        if self.is_machine() {
            let has_memory = |pid: &pid_t| filter::has_user_memory(*pid);
            let pids: Vec<pid_t> = filter::all_processes().into_iter().filter(has_memory).collect();
            self.pipeline.select(&pids);
            self.pipeline.cpu_time.begin(&*self.pipeline.system.clocks);
        }
        self.pipeline.list_threads(now_ns);
    }

    /// Sets the process once the command runs.
    pub(super) fn set_spawned(&mut self, process: Process) {
        if let Some(main) = self.pipeline.processes.get_mut(self.main) {
            main.set_spawned(process);
        }
    }

    /// Samples these processes as well.
    pub(super) fn add(&mut self, pids: &[pid_t]) {
        self.pipeline.select(pids);
    }

    /// Makes the kernel drop the samples of excluded processes.
    fn exclude_from_samples(&mut self) {
        for (pid, excluded) in self.pipeline.processes.take_filter_changes() {
            self.filter.exclude(pid, excluded);
        }
    }

    /// Waits until there are records to read, the process has ended, or the interval is over.
    fn wait(&mut self, until_ns: u64) {
        let (now_ns, monotonic_ns) = (self.clock.now_ns(), monotonic_ns());
        let begins = now_ns - self.times.began_ns < BEGINNING_NS;
        let samples = !self.is_disabled() && !self.finished;
        let batch_ns = self.pipeline.batch_ns(begins, monotonic_ns, samples);
        let at_most_ns = batch_ns.min(until_ns.saturating_sub(now_ns));
        let new_stacks = self.pipeline.stacks.new_stacks().filter(|_| samples);
        // Batches for new threads have a minimum distance.
        let rest_ns = self.memory.read_ns.saturating_add(FIRST_BATCHES_NS).saturating_sub(monotonic_ns);
        let rest_ns = if new_stacks.is_some() { rest_ns.min(at_most_ns) } else { 0 };
        if rest_ns > 0 && self.exits.wait(self.events.descriptors(), rest_ns.div_ceil(1_000_000)) {
            return;
        }
        let at_most_ms = (at_most_ns - rest_ns).div_ceil(1_000_000);
        self.exits.wait(self.events.descriptors().chain(new_stacks), at_most_ms);
    }

    /// Reads the rings. Returns the time up to which everything was reported.
    fn read(&mut self, into: &mut Vec<TimedEvent>) -> u64 {
        if !self.finished {
            self.pipeline.poll_threads();
        }
        self.memory.freed_bytes += self.pipeline.spare.end_batch();
        let begun_ns = self.clock.now_ns();
        let origin_ns = self.times.origin_ns;
        self.memory.read_ns = begun_ns + origin_ns;
        let watermark_ns =
            if self.finished { u64::MAX } else { (begun_ns + origin_ns).saturating_sub(READABLE_AFTER_NS) };
        let options = self.events.options();
        for _ in 0..READS_MAX {
            let before_ns = monotonic_ns();
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            // If the reader was delayed in between, there may be more samples than the clocks count.
            if monotonic_ns() - before_ns < 2 * options.period_ns() {
                break;
            }
        }
        self.memory.freed_bytes += self.pipeline.stacks.read();
        self.pipeline.apply_latency();
        // User-only samples do not cover time in the kernel.
        let batch = BatchOptions { by_clock: options.kernel, last: self.finished };
        self.pipeline.flush(batch, watermark_ns, into);
        self.exclude_from_samples();
        self.release_memory(into);
        self.reduce_load();
        if !self.is_disabled() && !self.finished {
            let events = &self.events;
            self.pipeline.apply_interval_action(monotonic_ns(), |record| events.record_switches(record));
        }
        self.set_periods();
        if self.finished {
            self.finish(into);
        }
        begun_ns.saturating_sub(READABLE_AFTER_NS)
    }

    /// Frees memory that later batches do not need.
    fn release_memory(&mut self, into: &mut Vec<TimedEvent>) {
        let memory = &mut self.memory;
        let stacks = into.iter().filter_map(|record| match &record.event {
            SourceEvent::Sample(capture) => Some(capture.stack.len()),
            _ => None,
        });
        memory.stacks_bytes = memory.stacks_bytes.max(stacks.sum());
        memory.batches += 1;
        if memory.batches.is_multiple_of(RELEASE_BATCHES) {
            memory.file_pages.release();
        } else {
            memory.file_pages.bound_at_intervals(memory.read_ns);
        }
        let used = into.len();
        memory.freed_bytes += memory.usage.shrink(into, used);
        if memory.freed_bytes >= TRIM_BYTES {
            memory.freed_bytes = 0;
            linux_sys::trim_heap();
        }
    }

    /// Changes the rates, and reopens the events for other CPUs or namespaces, if due.
    fn set_periods(&mut self) {
        let since_ns = monotonic_ns();
        if !self.is_disabled() && self.pipeline.cpu_time.may_set_periods(since_ns) {
            let periods_ns = self.events.randomize_periods(&mut self.rates);
            self.pipeline.cpu_time.set_periods(since_ns, &periods_ns);
        }
        let misses =
            self.pipeline.processes.take_added().into_iter().any(|pid| self.filter.is_outside_namespace(pid));
        let lets_more_through = misses && self.filter.let_unknown_through().is_ok();
        if !self.is_disabled() && (lets_more_through || self.events.cpus_changed(since_ns)) {
            self.reopen(self.events.options());
        }
    }

    /// Reports the remaining waits and losses at the end of the recording.
    fn finish(&mut self, into: &mut Vec<TimedEvent>) {
        self.pipeline.end_waits(self.times.ended_ns.unwrap_or_else(monotonic_ns), into);
        self.pipeline.cpu_time.end(&*self.pipeline.system.clocks);
        if self.follows_by_inheritance() {
            self.pipeline.cpu_time.add_counted(self.events.counted_ns());
        }
        let options = self.events.options();
        if options.samples_running() {
            let reason = if options.kernel { NOT_SAMPLED_AGAIN } else { IN_KERNEL };
            self.pipeline.report_rest(self.clock.now_ns(), reason, into);
        }
    }

    /// Raises the priority of the reader.
    fn raise_priority(&mut self) {
        self.preferred = true;
        linux_sys::prefer_this_thread();
        // Without a reservation, rings are read when there is time, and less is copied.
        privileges::reserve_for_this_thread(set::cpu_count());
    }

    /// Reacts to rings that fill up.
    fn reduce_load(&mut self) {
        let pressure = self.pipeline.stacks.pressure(self.events.take_pressure());
        if self.is_disabled() {
            return;
        }
        if !self.preferred && Backlog::is_late(pressure) {
            // The next reads show whether that suffices.
            self.raise_priority();
            return;
        }
        if let Some(options) = self.pipeline.stacks.relieve(pressure, self.events.options()) {
            self.reopen(options);
        }
    }

    fn process_event(&self, event: SourceEvent) -> TimedEvent {
        let process = self.main.unsigned_abs();
        TimedEvent { at_ns: self.clock.now_ns(), process, thread: ThreadId(0), event }
    }

    fn exit_status(&self) -> ExitStatus {
        let status = self.launched.then(|| linux_sys::child_end(self.main)).flatten();
        status.unwrap_or(ExitStatus::Unknown)
    }
}

fn machine_ticks() -> Option<(u64, u64)> {
    proc::machine_ticks(&std::fs::read("/proc/stat").ok()?)
}

/// Reads all rings, and the numbers of lost samples.
fn read_rings(events: &mut Events, scratch: &mut Vec<u8>, pipeline: &mut Pipeline) {
    events.drain(scratch, |id, record| pipeline.push_record(id, record));
    pipeline.add_lost(events.lost_samples());
}

impl PerfSource {
    fn main(&self) -> &ProcessEntry {
        // The main process is never removed.
        let main = self.pipeline.processes.get(self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    fn main_mut(&mut self) -> &mut ProcessEntry {
        let main = self.pipeline.processes.get_mut(self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }
}

impl Observed for PerfSource {
    fn process(&self) -> &Process {
        self.main().process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.main_mut())
    }
}

impl PushedSource for PerfSource {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let pid = pid_t::try_from(process).ok()?;
        self.pipeline.processes.get_mut(pid).map(|process| process as &mut dyn Observed)
    }

    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        if self.finished {
            return Ok(None);
        }
        if self.is_disabled() {
            self.finished = true;
            self.read(into);
            return Ok(None);
        }
        self.wait(until_ns);
        if self.launched {
            launch::forward_signal(self.main);
        }
        self.finished = self.exits.all_exited();
        let reported_ns = self.read(into);
        if self.finished {
            let mut exit = self.process_event(SourceEvent::Exited(self.exit_status()));
            if let Some(exited_ns) = self.pipeline.processes.exited_ns(self.main) {
                exit.at_ns = exit.at_ns.min(exited_ns.saturating_sub(self.times.origin_ns));
            }
            into.push(exit);
            return Ok(None);
        }
        Ok(Some(reported_ns))
    }

    fn drain_rings(&mut self) {
        self.read_ahead();
    }

    fn set_time(&mut self, at_ns: u64) {
        self.pipeline.processes.set_time(at_ns.saturating_add(self.times.origin_ns));
    }

    fn end(&mut self) {
        if !self.is_disabled() {
            self.events.disable();
            self.times.ended_ns = Some(monotonic_ns());
            self.read_clocks_together(|source| {
                if let (Some([_, end]), Some(now)) = (&mut source.machine, machine_ticks()) {
                    *end = now;
                }
                source.pipeline.cpu_time.stop(&*source.pipeline.system.clocks);
            });
        }
    }

    fn exit_before(&mut self, until_ns: u64) -> Option<ExitStatus> {
        loop {
            self.exits.wait_alone(until_ns.saturating_sub(self.clock.now_ns()).div_ceil(1_000_000));
            if self.exits.all_exited() {
                return Some(self.exit_status());
            }
            if self.clock.now_ns() >= until_ns {
                return None;
            }
        }
    }

    fn walked(&mut self, thread: ThreadId, capture: Box<Capture>, needed: StackUse) {
        if self.is_disabled() {
            return self.pipeline.give_back(capture);
        }
        let (options, may_copy) = (self.events.options(), self.may_copy());
        let tid = pid_t::try_from(thread.0).unwrap_or(0);
        if let Some(options) = self.pipeline.take_back(tid, capture, needed, options, may_copy) {
            self.reopen(options);
        }
    }

    fn prefetches(&self) -> bool {
        self.pipeline.stacks.prefetches()
    }

    fn prefetch(&mut self, thread: ThreadId, ranges: &[u64]) {
        if let Ok(tid) = pid_t::try_from(thread.0) {
            self.pipeline.stacks.prefetch(tid, ranges);
        }
    }

    fn wait_walked(&mut self, capture: Box<Capture>, needed: Option<StackUse>) {
        let Some(needed) = needed.filter(|_| !self.is_disabled()) else {
            return self.pipeline.give_back(capture);
        };
        if let Some(options) = self.pipeline.take_back_at_switch(capture, needed, self.events.options()) {
            self.reopen(options);
        }
    }

    fn machine_idle(&self) -> Option<f64> {
        let [began, ended] = self.machine?;
        let (all, idle) = (ended.0.checked_sub(began.0)?, ended.1.checked_sub(began.1)?);
        (all > 0).then(|| idle as f64 / all as f64)
    }

    fn memory_bytes(&self) -> (u64, u64) {
        let ring_bytes = self.events.ring_bytes() + self.pipeline.stacks.ring_bytes();
        (ring_bytes, self.memory.stacks_bytes as u64)
    }

    fn target_cpu_ns(&self) -> Option<u64> {
        Some(self.pipeline.cpu_time.used_ns())
    }
}

// ---- The exits of the processes that a recording ends with.
//
// Input: pids. Output: whether all of them have ended.

/// Poll interval without a descriptor that shows the end of a process, milliseconds.
const POLL_MS: u64 = 10;

/// Processes that have not ended yet.
struct ProcessExits {
    /// Each with a descriptor that is readable after its end, if the kernel supports it.
    processes: Vec<(pid_t, Option<OwnedFd>)>,
    /// Descriptors that were readable at the last wait.
    readable: Vec<bool>,
    /// Whether there were none: the whole machine is recorded.
    is_system_wide: bool,
}

impl ProcessExits {
    /// For these processes; none for a whole machine.
    fn of(pids: Vec<pid_t>) -> ProcessExits {
        let is_system_wide = pids.is_empty();
        let processes = pids.into_iter().map(|pid| (pid, sys::watch_end(pid).ok())).collect();
        ProcessExits { processes, readable: Vec::new(), is_system_wide }
    }

    /// Their pids.
    fn pids(&self) -> Vec<pid_t> {
        self.processes.iter().map(|(pid, _)| *pid).collect()
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.processes.iter().filter_map(|(_, end)| end.as_ref()).map(AsRawFd::as_raw_fd)
    }

    /// Waits until a process has ended, another descriptor is readable, or the timeout expires; returns whether it
    /// was not the timeout.
    fn wait(&mut self, others: impl Iterator<Item = RawFd>, at_most_ms: u64) -> bool {
        let descriptors: Vec<RawFd> = self.descriptors().chain(others).collect();
        let at_most_ms = c_int::try_from(at_most_ms).unwrap_or(c_int::MAX);
        sys::wait_readable(&descriptors, at_most_ms, &mut self.readable);
        self.readable.contains(&true)
    }

    /// Waits until a process has ended, or the timeout expires.
    fn wait_alone(&mut self, at_most_ms: u64) {
        let is_polled = self.descriptors().count() < self.processes.len();
        self.wait(std::iter::empty(), if is_polled { at_most_ms.min(POLL_MS) } else { at_most_ms });
    }

    /// Whether all processes have ended, by the last wait.
    fn all_exited(&mut self) -> bool {
        let mut watched = self.readable.iter();
        self.processes.retain(|(pid, end)| match end {
            Some(_) => watched.next() != Some(&true),
            None => linux_sys::kill(*pid, 0).is_ok() && linux_sys::child_end(*pid).is_none(),
        });
        self.readable.clear();
        !self.is_system_wide && self.processes.is_empty()
    }
}

// ---- Reads rings between the events of a batch: a walk may take long, with images not yet read, and longest on a
// loaded machine.

impl PerfSource {
    /// Reads rings that fill up while a batch is walked, if due.
    fn read_ahead(&mut self) {
        if self.is_disabled() || self.finished || !self.read_ahead.is_due(monotonic_ns()) {
            return;
        }
        self.memory.file_pages.bound();
        if self.pipeline.stacks.reads_ahead(self.events.fill_per_mille()) {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            self.memory.freed_bytes += self.pipeline.stacks.read();
            self.reduce_load();
        }
    }
}

// ---- When to poll rings between the events of a batch: at intervals.
//
// Input: time. Output: whether to poll.

/// Interval at which rings are polled while a batch is walked, nanoseconds.
const POLL_NS: u64 = 2_000_000;

/// Time of the last poll.
#[derive(Debug, Default)]
struct ReadAheadTimer {
    polled_ns: u64,
}

impl ReadAheadTimer {
    /// Whether to poll the rings now.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.polled_ns) >= POLL_NS;
        if is_due {
            self.polled_ns = now_ns;
        }
        is_due
    }
}

// ---- Reopens the events, with other options, for other CPUs, or for processes started meanwhile: every process keeps
// events throughout, and none is sampled twice.

impl PerfSource {
    /// Opens events for already started children, if these inherited none.
    fn open_those_already_started(&mut self) -> std::io::Result<()> {
        if !self.follows_by_inheritance() || self.launched {
            return Ok(());
        }
        let mut listed = self.exits.pids();
        for _ in 0..PASSES_MAX {
            let running = self.pipeline.processes.running();
            let started: Vec<pid_t> = running.into_iter().filter(|pid| !listed.contains(pid)).collect();
            if started.is_empty() {
                break;
            }
            self.events.add_processes(&started, &self.filter)?;
            listed.extend(started);
            // A process started before its parent had events is in the next list.
            self.pipeline.select_all();
        }
        Ok(())
    }

    /// Whether children are sampled by inherited events.
    fn follows_by_inheritance(&self) -> bool {
        self.events.options().scope == Scope::Threads && self.pipeline.processes.filter().follows_children()
    }

    /// Whether events can have a BPF program that copies more of stacks. Events of CPUs are tried; reopening those
    /// of threads costs more, so it has to be known before.
    fn may_copy(&self) -> bool {
        self.events.options().scope == Scope::Cpus || self.filter.is_loaded()
    }

    /// Reopens the events, with other options or for other CPUs.
    fn reopen(&mut self, options: EventOptions) {
        let may_copy = self.may_copy();
        let filter = &mut self.filter;
        let options = self.pipeline.stacks.prepare(options, may_copy, |program| filter.copy(program));
        let inherited = self.follows_by_inheritance();
        let running = self.pipeline.processes.running();
        let new = Events::open(&running, &self.filter, options);
        let counted_ns = if inherited { self.events.counted_ns() } else { 0 };
        let new = new.and_then(|new| new.enable().map(|()| new));
        let new = new.and_then(|new| if inherited { self.with_started(new, running) } else { Ok(new) });
        let since_ns = monotonic_ns();
        let Ok(new) = new else {
            self.events.sample_until(u64::MAX);
            self.pipeline.cpu_time.abandon_interval();
            return self.pipeline.stacks.keep(self.events.options());
        };
        let periods_ns = new.randomize_periods(&mut self.rates);
        self.pipeline.replace_events(since_ns, counted_ns, &periods_ns);
        self.events.disable();
        let mut old = std::mem::replace(&mut self.events, new);
        read_rings(&mut old, &mut self.scratch, &mut self.pipeline);
        if let Some(waits) = &mut self.pipeline.waits {
            waits.accept_from(since_ns);
        }
    }

    /// Adds to new, enabled events those of processes started while they were opened, which inherited only the old
    /// ones: the records of these name the processes.
    fn with_started(&mut self, mut new: Events, mut listed: Vec<pid_t>) -> std::io::Result<Events> {
        // From here on, samples of both would count time twice.
        self.events.sample_until(monotonic_ns());
        for _ in 0..PASSES_MAX {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            let started = self.pipeline.events.started_by(&listed);
            if started.is_empty() {
                break;
            }
            new.add_processes(&started, &self.filter)?;
            new.enable()?;
            listed.extend(started);
        }
        Ok(new)
    }
}

#[cfg(test)]
mod read_ahead_timer_tests {
    use super::*;

    #[test]
    fn rings_are_polled_at_intervals() {
        let mut timer = ReadAheadTimer::default();
        let polls = (1..=1_000).filter(|at| timer.is_due(POLL_NS + at * POLL_NS / 10)).count();
        assert_eq!(polls, 100);
    }
}
