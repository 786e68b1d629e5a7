//! The cpu_time stage: what each sample weighs, and which CPU time is lost.
//!
//! `CpuTime` is the stage, `ProcessTime` what it keeps of a process, `DroppedSamples` those that the kernel dropped
//! or did not take.
//!
//! Input: the events of a batch with their processes, records of losses and context switches, CPU clocks. Output: the
//! same events with the CPU time of their threads, and lost time by cause.
//!
//! The CPU clock of a process counts what all of its threads use. The samples of a process share what it used since
//! the batch before (`process_clock.rs`), so counts add up to CPU seconds × hz, the time of threads that ended before a
//! sample included. The samples of a process that started since then weigh one period each: over many short processes
//! that adds up, those without a sample included. Invariant, for each process with a readable clock: weights +
//! losses = what its clock counted.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use libc::pid_t;

use super::super::buffers::Pool;
use super::process_clock::{ClockBaseline, CpuTimeShare, Division, ProcessClock, prefix_share_ns};
use super::tick_schedule::{BatchTicks, TickSchedule, Ticks, drop_unweighted};
use super::wakeup::{ClockReading, ClockReadings, IntervalAction, WakeupCharge, WakeupLatency};
use crate::sources::Capture;
use crate::sources::linux::clocks::Clocks;
use crate::sources::linux::perf::process::table::ProcessEvent;
use crate::sources::linux::perf::ring::{PerfRecord, SampleId};

/// Maximum number of processes with clocks read at both ends of an interval.
const CLOCKS_MAX: usize = 512;
/// Maximum number of threads with clocks updated for that, per process and in total: each takes a microsecond.
const THREADS_OF_ONE_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

/// The CPU time of one process.
#[derive(Debug, Default)]
struct ProcessTime {
    clock: ProcessClock,
    /// CPU time charged before its threads run.
    charge: WakeupCharge,
    /// CPU time of each sampled thread by the weights of its samples, nanoseconds.
    threads: HashMap<pid_t, u64>,
    /// Samples in the batch.
    samples: u64,
    /// Whether it was sampled, or is the main process.
    is_known: bool,
    has_ended: bool,
}

/// An event with the CPU time of its thread.
#[derive(Debug)]
pub(crate) enum WeighedEvent {
    /// A sample, and its thread's CPU time so far, nanoseconds: the difference to its last sample is the weight.
    Sample(Box<Capture>, u64),
    /// A sample with an unusable stack, for this reason, and its thread's CPU time so far.
    Missed(&'static str, u64),
    /// An exec to a program of this name; CPU time of the process's threads until then.
    Exec(String, HashMap<pid_t, u64>),
    /// The first event of a process to be reported, with this name.
    ProcessNamed(String),
    /// The thread was renamed.
    ThreadNamed(String),
    /// The thread exited.
    ThreadExit,
    /// The images of the process may have changed.
    ImagesStale,
}

/// The events of a batch, weighed.
#[derive(Debug)]
pub(crate) struct WeighedBatch {
    /// In time order.
    pub(crate) events: Vec<(SampleId, WeighedEvent)>,
    /// Time of the last event so far.
    pub(crate) last_ns: u64,
    /// Samples that did not fit into rings.
    pub(crate) lost: u64,
    /// Samples not taken while their event was throttled.
    pub(crate) throttled: u64,
    /// Late samples.
    pub(crate) late: u64,
}

/// How a batch is weighed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchOptions {
    /// Samples share the CPU time counted by the clocks of their processes; otherwise each weighs one period.
    pub(crate) by_clock: bool,
    /// Whether it is the last batch.
    pub(crate) last: bool,
}

/// CPU time of all sampled processes, and its losses.
#[derive(Debug)]
pub(crate) struct CpuTime {
    /// The main process, or 0 for several.
    main: pid_t,
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    schedule: TickSchedule,
    latency: WakeupLatency,
    losses: Losses,
    processes: BTreeMap<pid_t, ProcessTime>,
    /// With `-a`: processes that existed at the beginning and have no sample yet.
    baseline: ClockBaseline,
    /// CPU time of dropped samples that is not reported yet: less than a period.
    unreported_ns: u64,
    /// The part of it that was lost while an event was throttled.
    unreported_throttled_ns: u64,
    /// CPU time of removed processes.
    released_ns: u64,
    /// Weights of samples, plus all reported losses.
    weighed_ns: u64,
    /// CPU time by the counts of events, which include started processes with unread clocks.
    counted_ns: u64,
    last_ns: u64,
}

impl CpuTime {
    /// `main`: the main process, or 0 for several. `measures_latency`: events record context switches at intervals.
    pub(crate) fn new(main: pid_t, period_ns: u64, measures_latency: bool) -> CpuTime {
        CpuTime {
            main,
            period_ns,
            schedule: TickSchedule::default(),
            latency: if measures_latency { WakeupLatency::default() } else { WakeupLatency::off() },
            losses: Losses::new(period_ns),
            processes: BTreeMap::from([(main, ProcessTime { is_known: true, ..ProcessTime::default() })]),
            baseline: ClockBaseline::default(),
            unreported_ns: 0,
            unreported_throttled_ns: 0,
            released_ns: 0,
            weighed_ns: 0,
            counted_ns: 0,
            last_ns: 0,
        }
    }

    /// Begins to count for the processes so far: earlier CPU time is not recorded.
    pub(crate) fn begin(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.begin(*pid, clocks);
        }
    }

    /// With `-a`: these processes may be sampled later, and count from now on.
    pub(crate) fn begin_machine(&mut self, pids: &[pid_t], clocks: &dyn Clocks) {
        self.baseline = ClockBaseline::of(pids, |pid| clocks.process_cpu_ns(pid));
    }

    /// Ends sampling: later CPU time is not recorded.
    pub(crate) fn stop(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.stop_at(clocks.process_cpu_ns(*pid));
        }
        self.baseline.stop(|pid| clocks.process_cpu_ns(pid));
    }

    /// Reads the clocks for the last time.
    pub(crate) fn end(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.end(*pid, clocks);
        }
    }

    /// Reads a record of any kind; those of one CPU come in order. Returns a stack buffer that is not needed.
    pub(crate) fn push_record(&mut self, id: SampleId, record: &PerfRecord<'_>) -> Option<Box<Capture>> {
        self.losses.push_record(id, record);
        self.latency.push_record(id, record)
    }

    /// Keeps the stack of a thread that is about to leave its CPU. Returns a buffer that is not needed.
    pub(crate) fn push_stack(&mut self, id: SampleId, capture: Box<Capture>) -> Option<Box<Capture>> {
        self.latency.copied(id, capture)
    }

    /// Adds the samples that did not fit into the rings of CPUs since the last call; `None` if the kernel does not
    /// count them separately, so that `PERF_RECORD_LOST` covers all records.
    pub(crate) fn add_lost(&mut self, samples: Option<Vec<(u32, u64)>>, now_ns: u64) {
        let Some(samples) = samples else { return };
        self.losses.ignore_lost_records();
        for (cpu, samples) in samples {
            let period_ns = self.schedule.period_ns(cpu, now_ns).unwrap_or(self.period_ns);
            self.losses.drop_samples(samples, period_ns);
        }
    }

    /// Sets the periods of the events on these CPUs from this time on.
    pub(crate) fn set_periods(&mut self, since_ns: u64, periods_ns: &[(u32, u64)]) {
        self.schedule.set_periods(since_ns, self.period_ns, periods_ns);
    }

    /// Whether the periods are due to change.
    pub(crate) fn may_set_periods(&self, now_ns: u64) -> bool {
        self.schedule.may_change(now_ns)
    }

    /// Adds the counts of events that were closed.
    pub(crate) fn add_counted(&mut self, counted_ns: u64) {
        self.counted_ns += counted_ns;
    }

    /// A process has ended; it is removed some batches later.
    pub(crate) fn end_process(&mut self, pid: pid_t) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.has_ended = true;
        }
    }

    /// A thread exited and has no more samples: its CPU time.
    pub(crate) fn end_thread(&mut self, pid: pid_t, tid: pid_t) -> u64 {
        let process = self.processes.get_mut(&pid);
        process.and_then(|process| process.threads.remove(&tid)).unwrap_or(0)
    }

    /// Adds or removes a process, or frees its number.
    pub(crate) fn push_change(&mut self, pid: pid_t, change: &ProcessEvent) {
        match change {
            ProcessEvent::Added { started } => {
                let mut clock = ProcessClock::default();
                if *started {
                    clock.begin_with_process();
                } else if let Some(at) = self.baseline.take(pid) {
                    clock.begin_at(at.began_ns);
                    clock.stop_at(at.ended_ns);
                }
                self.processes.insert(pid, ProcessTime { clock, ..ProcessTime::default() });
            }
            ProcessEvent::PidReleased => {
                self.baseline.take(pid);
            }
            ProcessEvent::Removed => {
                if let Some(process) = self.processes.remove(&pid) {
                    self.released_ns += process.clock.used_ns();
                    self.weighed_ns += process.clock.weighed_ns();
                }
            }
            ProcessEvent::ProcessNamed(_)
            | ProcessEvent::Sample { .. }
            | ProcessEvent::Missed(_)
            | ProcessEvent::ThreadExit
            | ProcessEvent::ThreadNamed(_)
            | ProcessEvent::Exec(_)
            | ProcessEvent::ImagesStale => {}
        }
    }

    /// Weighs the events of a batch.
    pub(crate) fn weigh(
        &mut self,
        mut events: Vec<(SampleId, ProcessEvent)>,
        options: BatchOptions,
        clocks: &dyn Clocks,
        spare: &mut Pool<Box<Capture>>,
    ) -> WeighedBatch {
        let samples = self.count(&events);
        let dropped = self.losses.end_batch(samples, options.last);
        let mut shares = self.shares(dropped, samples, options.by_clock, clocks);
        let ticks = BatchTicks::of(&events, &self.schedule, self.period_ns);
        ticks.set_nominal_periods(&mut shares);
        let late = self.weigh_late(&ticks, &mut shares);
        if late > 0 {
            drop_unweighted(&mut events, &shares, &self.schedule);
        }
        let is_event = |event: &ProcessEvent| !event.is_table_change();
        let last_ns = events.iter().rev().find(|(_, event)| is_event(event)).map_or(0, |(id, _)| id.time_ns);
        self.last_ns = last_ns.max(self.last_ns);
        let mut weighed = Vec::with_capacity(events.len());
        for (id, event) in events {
            self.weigh_one(id, event, &mut shares, spare, &mut weighed);
        }
        let pids: Vec<pid_t> = self.processes.keys().copied().collect();
        for pid in pids {
            self.weigh_charge(pid, self.last_ns, options.last, spare, &mut weighed);
        }
        let (lost, throttled) = self.count_lost(&shares, dropped);
        WeighedBatch { events: weighed, last_ns: self.last_ns, lost, throttled, late }
    }

    /// Counts the samples of each process in a batch, and adds and removes processes. Returns the number of samples.
    fn count(&mut self, events: &[(SampleId, ProcessEvent)]) -> u64 {
        let mut samples = 0;
        for (id, event) in events {
            if !event.is_sample() {
                self.push_change(id.pid, event);
                continue;
            }
            samples += 1;
            self.schedule.observe_sample(id.cpu, id.time_ns);
            if let Some(process) = self.processes.get_mut(&id.pid) {
                process.samples += 1;
                process.is_known = true;
            }
        }
        samples
    }

    /// The CPU time shared by the samples of each process. `samples`: total of all processes; `dropped`: their
    /// process is unknown.
    fn shares(
        &mut self,
        dropped: DroppedSamples,
        samples: u64,
        by_clock: bool,
        clocks: &dyn Clocks,
    ) -> HashMap<pid_t, CpuTimeShare> {
        let mut division = Division::new(dropped.samples, samples);
        let mut shares = HashMap::new();
        for (pid, process) in &mut self.processes {
            // A whole machine has no clock; its processes do.
            let charged_to_main = dropped.samples > 0 && samples == 0 && *pid == self.main && *pid > 0;
            if process.samples == 0 && !charged_to_main {
                continue;
            }
            let dropped_of_process =
                if charged_to_main { dropped.samples } else { division.next(process.samples) };
            // Read even if unused, so that the next batch begins here.
            let used_ns = process.clock.share_ns(*pid, dropped.samples > 0, clocks).filter(|_| by_clock);
            let used_ns = used_ns.map(|used_ns| process.charge.withhold(used_ns));
            // Dropped samples may belong to other processes: attribute no more than are missing here.
            let missing = used_ns.map(|used_ns| (used_ns / self.period_ns).saturating_sub(process.samples));
            let dropped_of_process = dropped_of_process.min(missing.unwrap_or(dropped_of_process));
            process.samples = 0;
            let dropped_ns = dropped.part_ns(dropped_of_process);
            shares.insert(*pid, CpuTimeShare { used_ns, dropped_ns, ..CpuTimeShare::default() });
        }
        shares
    }

    /// Gives late samples the CPU time that samples on time leave of their process; returns the number of late ones.
    fn weigh_late(&mut self, ticks: &BatchTicks, shares: &mut HashMap<pid_t, CpuTimeShare>) -> u64 {
        let mut all_late = 0;
        for (pid, Ticks { late, on_time_ns, late_ns }) in ticks.iter() {
            let (Some(share), Some(process)) = (shares.get_mut(pid), self.processes.get_mut(pid)) else {
                continue;
            };
            // Unknown whether dropped samples were late.
            let Some(used_ns) = share.used_ns.filter(|_| share.dropped_ns == 0) else { continue };
            let given_ns = process.clock.late_left.of_batch(used_ns, *on_time_ns, *late_ns);
            if *late > 0 {
                share.give_late(*late, *late_ns, given_ns);
                all_late += *late;
            }
        }
        all_late
    }

    fn weigh_one(
        &mut self,
        id: SampleId,
        event: ProcessEvent,
        shares: &mut HashMap<pid_t, CpuTimeShare>,
        spare: &mut Pool<Box<Capture>>,
        into: &mut Vec<(SampleId, WeighedEvent)>,
    ) {
        let weighed = match event {
            ProcessEvent::Sample { capture, .. } => {
                WeighedEvent::Sample(capture, self.weigh_sample(id, shares))
            }
            ProcessEvent::Missed(reason) => WeighedEvent::Missed(reason, self.weigh_sample(id, shares)),
            ProcessEvent::ThreadExit => {
                if let Some(process) = self.processes.get_mut(&id.pid) {
                    process.charge.forget_thread(id.tid);
                }
                WeighedEvent::ThreadExit
            }
            ProcessEvent::Exec(name) => {
                let Some(process) = self.processes.get_mut(&id.pid) else { return };
                process.charge.end();
                self.weigh_charge(id.pid, id.time_ns, false, spare, into);
                let process = self.processes.get_mut(&id.pid);
                let threads = process.map(|process| std::mem::take(&mut process.threads));
                WeighedEvent::Exec(name, threads.unwrap_or_default())
            }
            ProcessEvent::ProcessNamed(name) => WeighedEvent::ProcessNamed(name),
            ProcessEvent::ThreadNamed(name) => WeighedEvent::ThreadNamed(name),
            ProcessEvent::ImagesStale => WeighedEvent::ImagesStale,
            ProcessEvent::Added { .. } | ProcessEvent::PidReleased | ProcessEvent::Removed => return,
        };
        into.push((id, weighed));
    }

    /// The CPU time of the thread of a sample, with the weight of this sample.
    fn weigh_sample(&mut self, id: SampleId, shares: &mut HashMap<pid_t, CpuTimeShare>) -> u64 {
        let period_ns = self.schedule.period_ns(id.cpu, id.time_ns).unwrap_or(self.period_ns);
        let is_late = self.schedule.is_late(id.cpu, id.time_ns);
        let weight_ns = shares.get_mut(&id.pid).map_or(period_ns, |share| match share.late {
            late if late > 0 && is_late => share.next_late_ns(),
            _ => share.next_ns(period_ns),
        });
        self.add_weight(id, weight_ns)
    }

    /// Adds a weight to a thread; returns its CPU time so far.
    fn add_weight(&mut self, id: SampleId, weight_ns: u64) -> u64 {
        let Some(process) = self.processes.get_mut(&id.pid) else { return weight_ns };
        process.clock.add_weight(weight_ns);
        let used_ns = process.threads.entry(id.tid).or_default();
        *used_ns += weight_ns;
        *used_ns
    }

    /// Adds samples for CPU time charged before threads of a process ran; in the `last` batch, for all of it.
    fn weigh_charge(
        &mut self,
        pid: pid_t,
        at_ns: u64,
        last: bool,
        spare: &mut Pool<Box<Capture>>,
        into: &mut Vec<(SampleId, WeighedEvent)>,
    ) {
        let period_ns = self.period_ns;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if last {
            process.charge.finalize();
        }
        let mut due = Vec::new();
        while let Some((tid, capture, weight_ns)) = process.charge.next_charge(period_ns, last) {
            // The pool gets the copy back later.
            drop(spare.take());
            due.push((SampleId { pid, tid, time_ns: at_ns, cpu: 0 }, weight_ns, Box::new(capture.clone())));
        }
        process.charge.finish();
        for (id, weight_ns, capture) in due {
            let used_ns = self.add_weight(id, weight_ns);
            into.push((id, WeighedEvent::Sample(capture, used_ns)));
        }
    }

    /// Counts unassigned CPU time of a batch, in samples: those that did not fit into rings, and those not taken
    /// while the event was throttled.
    fn count_lost(&mut self, shares: &HashMap<pid_t, CpuTimeShare>, dropped: DroppedSamples) -> (u64, u64) {
        let mut batch_ns = 0;
        for (pid, share) in shares {
            let rest_ns = share.rest_ns();
            batch_ns += rest_ns;
            if let Some(process) = self.processes.get_mut(pid) {
                process.clock.add_dropped(rest_ns);
            }
        }
        self.unreported_ns += batch_ns;
        self.unreported_throttled_ns += prefix_share_ns(batch_ns, dropped.samples, dropped.throttled);
        let all = self.unreported_ns / self.period_ns;
        let throttled = all.min(self.unreported_throttled_ns / self.period_ns);
        self.unreported_ns %= self.period_ns;
        self.unreported_throttled_ns -= throttled * self.period_ns;
        self.weighed_ns += all * self.period_ns;
        (all - throttled, throttled)
    }

    /// At the end of a recording: CPU time without a weight, in samples: of sampled processes, and with `-a` of
    /// the others.
    pub(crate) fn count_rest(&mut self) -> (u64, u64) {
        let unsampled = self.baseline.unsampled_ns() / self.period_ns;
        self.released_ns += unsampled * self.period_ns;
        self.weighed_ns += unsampled * self.period_ns;
        let weighed_ns: u64 = self.processes.values().map(|process| process.clock.weighed_ns()).sum();
        let samples = self.used_ns().saturating_sub(self.weighed_ns + weighed_ns) / self.period_ns;
        (samples, unsampled)
    }

    /// CPU time of all processes while they were sampled, nanoseconds.
    pub(crate) fn used_ns(&self) -> u64 {
        let by_clocks = self.processes.values().map(|process| process.clock.used_ns()).sum::<u64>();
        (self.released_ns + by_clocks).max(self.counted_ns)
    }
}

/// Wakeup latency: intervals in which context switches are recorded.
impl CpuTime {
    /// Whether to begin or end an interval.
    pub(crate) fn interval_action(&self, now_ns: u64) -> IntervalAction {
        self.latency.action(now_ns)
    }

    /// End of the open interval, if any (monotonic clock).
    pub(crate) fn interval_ends_ns(&self) -> Option<u64> {
        self.latency.ends_ns()
    }

    /// Begins an interval after its events record switches, or ends one before they stop.
    pub(crate) fn apply_interval_action(&mut self, action: IntervalAction, clocks: &dyn Clocks) {
        let (mut readings, mut threads_left) = (ClockReadings::new(), THREADS_MAX);
        let known = self.processes.iter().filter(|(_, process)| process.is_known && !process.has_ended);
        for (pid, process) in known.take(CLOCKS_MAX) {
            let threads = process.threads.len().min(THREADS_OF_ONE_MAX).min(threads_left);
            threads_left -= threads;
            clocks.update_thread_clocks(&mut process.threads.keys().copied().take(threads));
            let cpu_ns = clocks.process_cpu_ns(*pid);
            let at_ns = clocks.monotonic_ns();
            readings.extend(cpu_ns.map(|cpu_ns| (*pid, ClockReading { at_ns, cpu_ns })));
        }
        match action {
            IntervalAction::Open => self.latency.begin(clocks.monotonic_ns(), readings),
            IntervalAction::Close => self.latency.end(clocks.monotonic_ns(), readings),
            IntervalAction::None => {}
        }
    }

    /// Disables latency measurement: no event records context switches.
    pub(crate) fn turn_latency_off(&mut self) {
        self.latency.turn_off();
    }

    /// Discards an interval because its events closed early.
    pub(crate) fn abandon_interval(&mut self) {
        self.latency.abandon();
    }

    /// Applies the last interval if it was read completely. `finish` completes a stack.
    pub(crate) fn apply_latency(
        &mut self,
        spare: &mut Pool<Box<Capture>>,
        mut finish: impl FnMut(pid_t, pid_t, &mut Capture),
    ) {
        for (pid, used_ns, before_ns) in self.latency.measured() {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.charge.measure(used_ns, before_ns);
            }
        }
        for (pid, tid, mut capture) in self.latency.take_waits() {
            let Some(process) = self.processes.get_mut(&pid) else {
                spare.give_back(capture);
                continue;
            };
            finish(pid, tid, &mut capture);
            process.charge.add_stack(tid, capture, |capture| spare.give_back(capture));
        }
    }
}

/// CPU time of one process, for the simulated kernel to compare.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    /// Its clock when samples were last weighed.
    pub(crate) clock_ns: Option<u64>,
    /// Total weight of its samples.
    pub(crate) weighed_ns: u64,
    /// Its losses.
    pub(crate) lost_ns: u64,
}

#[cfg(test)]
impl CpuTime {
    /// Clocks of processes, and the time that accounts for each.
    pub(crate) fn balances(&self) -> BTreeMap<pid_t, Balance> {
        let balance = |process: &ProcessTime| {
            let (clock_ns, lost_ns) = process.clock.balance();
            Balance { clock_ns, weighed_ns: process.clock.weighed_ns(), lost_ns }
        };
        self.processes.iter().map(|(pid, process)| (*pid, balance(process))).collect()
    }
}

// ---- Samples that the kernel dropped, or did not take while throttled: their number and CPU time.
//
// Their process is unknown; they are attributed in proportion to the samples that arrived.

/// Dropped samples, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DroppedSamples {
    pub(super) samples: u64,
    /// Of these, samples not taken while their event was throttled.
    pub(super) throttled: u64,
    ns: u64,
}

impl DroppedSamples {
    /// The time of this many of them.
    pub(super) fn part_ns(self, samples: u64) -> u64 {
        prefix_share_ns(self.ns, self.samples, samples)
    }
}

/// Samples dropped since the last batch that had samples.
#[derive(Debug)]
pub(super) struct Losses {
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    dropped: DroppedSamples,
    /// Records read in the batch, and lost records of any kind, if the kernel does not count samples separately.
    records: u64,
    lost_records: u64,
    /// By CPU: start of the throttling of its event.
    throttled_since_ns: HashMap<u32, u64>,
}

impl Losses {
    pub(super) fn new(period_ns: u64) -> Losses {
        Losses {
            period_ns,
            dropped: DroppedSamples::default(),
            records: 0,
            lost_records: 0,
            throttled_since_ns: HashMap::new(),
        }
    }

    /// Reads a record of any kind.
    pub(super) fn push_record(&mut self, id: SampleId, record: &PerfRecord<'_>) {
        self.records += 1;
        match record {
            PerfRecord::Lost(records) => self.lost_records += records,
            PerfRecord::Throttle => {
                self.throttled_since_ns.insert(id.cpu, id.time_ns);
            }
            PerfRecord::Unthrottle => {
                if let Some(since_ns) = self.throttled_since_ns.remove(&id.cpu) {
                    let samples = id.time_ns.saturating_sub(since_ns) / self.period_ns;
                    self.drop_samples(samples, self.period_ns);
                    self.dropped.throttled += samples;
                }
            }
            _ => {}
        }
    }

    /// Adds dropped samples, with this period.
    pub(super) fn drop_samples(&mut self, samples: u64, period_ns: u64) {
        self.dropped.samples += samples;
        self.dropped.ns += samples * period_ns;
    }

    /// Discards the counts of `PERF_RECORD_LOST`: the kernel counts lost samples separately.
    pub(super) fn ignore_lost_records(&mut self) {
        self.lost_records = 0;
    }

    /// The dropped samples of a batch, which has this many `samples`. If the kernel does not count lost samples
    /// separately, their share among lost records is that among the records that were read. A batch without samples
    /// keeps them for the next one, whose samples show their process, unless it is the `last`.
    pub(super) fn end_batch(&mut self, samples: u64, last: bool) -> DroppedSamples {
        let guessed = self.lost_records.saturating_mul(samples) / self.records.max(1);
        self.drop_samples(guessed, self.period_ns);
        (self.records, self.lost_records) = (0, 0);
        if samples == 0 && !last { DroppedSamples::default() } else { std::mem::take(&mut self.dropped) }
    }
}

#[cfg(test)]
mod losses_tests {
    use super::*;

    fn push_record(losses: &mut Losses, time_ns: u64, cpu: u32, record: &PerfRecord<'_>) {
        losses.push_record(SampleId { time_ns, cpu, ..SampleId::default() }, record);
    }

    #[test]
    fn each_cpu_is_throttled_separately() {
        let mut losses = Losses::new(1_000_000);
        push_record(&mut losses, 1_000_000, 0, &PerfRecord::Throttle);
        push_record(&mut losses, 5_000_000, 1, &PerfRecord::Throttle);
        push_record(&mut losses, 4_000_000, 0, &PerfRecord::Unthrottle);
        push_record(&mut losses, 7_000_000, 1, &PerfRecord::Unthrottle);
        push_record(&mut losses, 9_000_000, 1, &PerfRecord::Unthrottle);
        assert_eq!(
            losses.end_batch(1, false),
            DroppedSamples { samples: 3 + 2, throttled: 3 + 2, ns: 5_000_000 }
        );
    }

    #[test]
    fn dropped_samples_are_kept_until_others_show_their_process() {
        let mut losses = Losses::new(1_000_000);
        losses.drop_samples(5, 1_000_000);
        assert_eq!(losses.end_batch(0, false).samples, 0);
        assert_eq!(losses.end_batch(1, false).samples, 5);
        losses.drop_samples(5, 1_000_000);
        assert_eq!(losses.end_batch(0, true).samples, 5, "no other batch comes");
    }

    #[test]
    fn without_sample_counts_lost_records_have_the_usual_share_of_samples() {
        let mut losses = Losses::new(1_000_000);
        for time_ns in 0..99 {
            push_record(&mut losses, time_ns, 0, &PerfRecord::SwitchIn { direct: false });
        }
        push_record(&mut losses, 99, 0, &PerfRecord::Lost(1_000));
        assert_eq!(losses.end_batch(10, false).samples, 100);
        push_record(&mut losses, 100, 0, &PerfRecord::Lost(1_000));
        losses.ignore_lost_records();
        assert_eq!(losses.end_batch(10, false).samples, 0);
    }
}
