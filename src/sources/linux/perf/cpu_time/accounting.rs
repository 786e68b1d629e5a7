//! The cpu_time stage: what each sample weighs, and which CPU time is lost.
//!
//! The CPU clock of a process counts exactly what all of its threads have used, and its samples in a batch share what
//! was used since the batch before (`share.rs`: how). So counts add up to CPU seconds × hz, the time of threads that
//! ended before a sample included, and each sample has the same chance to be taken at any moment of that time. A process
//! that was not there at the end of the batch before has samples that stand for the distance of ticks each: many short
//! ones then add up rightly, those that were never sampled included.
//!
//! Input: the events of a batch with their processes, records of losses and context switches, clocks; output: the same
//! events with the CPU time of their threads, and what is lost. Invariant, of each process whose clock can be read:
//! weights and losses add up to what its clock counted.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use libc::pid_t;

use super::super::buffers::Pool;
use super::super::clocks::Clocks;
use super::super::process::event::ProcessEvent;
use super::super::ring::record::{PerfRecord, SampleId};
use super::clock_baseline::ClockBaseline;
use super::losses::{DroppedSamples, Losses};
use super::process_clock::ProcessClock;
use super::share::{CpuTimeShare, Division};
use super::tick_schedule::TickSchedule;
use super::wakeup_charge::WakeupCharge;
use super::wakeup_latency::{ClockReading, ClockReadings, IntervalAction, WakeupLatency};
use crate::sources::Capture;

/// Most processes whose clocks are read at the ends of an interval.
const CLOCKS_MAX: usize = 512;
/// Most threads whose clocks are updated for that, of one process and of all: each takes a microsecond.
const THREADS_OF_ONE_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

/// The CPU time of one process.
#[derive(Debug, Default)]
struct ProcessTime {
    clock: ProcessClock,
    /// CPU time from before its threads ran.
    charge: WakeupCharge,
    /// What each thread that was sampled used, as far as its samples show, nanoseconds.
    threads: HashMap<pid_t, u64>,
    /// Samples in the batch.
    samples: u64,
    /// A sample of it came, or the recording is of it.
    is_known: bool,
    has_ended: bool,
}

/// An event with the CPU time that its thread used.
#[derive(Debug)]
pub(in crate::sources::linux::perf) enum WeighedEvent {
    /// A sample, and what its thread used by then, nanoseconds: the weight is what that is more than at the one before.
    Sample(Box<Capture>, u64),
    /// A sample whose stack cannot be used, for this reason, and what its thread used by then.
    Missed(&'static str, u64),
    /// The process runs another program, of this name; what its threads used until then.
    Exec(String, HashMap<pid_t, u64>),
    /// An event that is no sample.
    Other(ProcessEvent),
}

/// The events of a batch, weighed.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct WeighedBatch {
    /// In the order of their times.
    pub(in crate::sources::linux::perf) events: Vec<(SampleId, WeighedEvent)>,
    /// The time of the last event so far.
    pub(in crate::sources::linux::perf) last_ns: u64,
    /// Samples that the kernel dropped.
    pub(in crate::sources::linux::perf) lost: u64,
    /// Samples that were taken late.
    pub(in crate::sources::linux::perf) late: u64,
}

/// How a batch is weighed.
#[derive(Clone, Copy, Debug)]
pub(in crate::sources::linux::perf) struct BatchOptions {
    /// Samples share what the clocks of their processes count, and else stand for a period each.
    pub(in crate::sources::linux::perf) by_clock: bool,
    /// No other batch comes.
    pub(in crate::sources::linux::perf) last: bool,
}

/// The CPU time of all processes that are sampled, and what was lost of it.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct CpuTime {
    /// The process that the recording is of, or what stands for all.
    main: pid_t,
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    schedule: TickSchedule,
    latency: WakeupLatency,
    losses: Losses,
    processes: BTreeMap<pid_t, ProcessTime>,
    /// Of a whole machine: the processes that were there and of which no sample came yet.
    baseline: ClockBaseline,
    /// Time of samples that were dropped and not reported yet: less than a period.
    unreported_ns: u64,
    /// What processes used that were released.
    released_ns: u64,
    /// What their samples weighed, and all those that were reported as lost.
    weighed_ns: u64,
    /// What all used by what events counted, where the clocks of processes that were started do not count it.
    counted_ns: u64,
    last_ns: u64,
}

impl CpuTime {
    /// Of the process `main`, or what stands for all. `measures_latency`: events record context switches at intervals.
    pub(in crate::sources::linux::perf) fn new(
        main: pid_t,
        period_ns: u64,
        measures_latency: bool,
    ) -> CpuTime {
        CpuTime {
            main,
            period_ns,
            schedule: TickSchedule::default(),
            latency: if measures_latency { WakeupLatency::default() } else { WakeupLatency::off() },
            losses: Losses::new(period_ns),
            processes: BTreeMap::from([(main, ProcessTime { is_known: true, ..ProcessTime::default() })]),
            baseline: ClockBaseline::default(),
            unreported_ns: 0,
            released_ns: 0,
            weighed_ns: 0,
            counted_ns: 0,
            last_ns: 0,
        }
    }

    /// Begins to count for the processes so far: what they used before is not recorded.
    pub(in crate::sources::linux::perf) fn begin(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.begin(*pid, clocks);
        }
    }

    /// Of a whole machine: these processes may be sampled later, and count from now on.
    pub(in crate::sources::linux::perf) fn begin_machine(&mut self, pids: &[pid_t], clocks: &dyn Clocks) {
        self.baseline = ClockBaseline::of(pids, |pid| clocks.process_cpu_ns(pid));
    }

    /// Sampling ended: what is used from now on is not recorded.
    pub(in crate::sources::linux::perf) fn stop(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.stop_at(clocks.process_cpu_ns(*pid));
        }
        self.baseline.stop(|pid| clocks.process_cpu_ns(pid));
    }

    /// Reads the clocks a last time.
    pub(in crate::sources::linux::perf) fn end(&mut self, clocks: &dyn Clocks) {
        for (pid, process) in &mut self.processes {
            process.clock.end(*pid, clocks);
        }
    }

    /// Takes in a record of any kind, those of one CPU in their order. The buffer of a stack that is not needed is given
    /// back.
    pub(in crate::sources::linux::perf) fn push_record(
        &mut self,
        id: SampleId,
        record: &PerfRecord<'_>,
    ) -> Option<Box<Capture>> {
        self.losses.push_record(id, record);
        self.latency.push_record(id, record)
    }

    /// Takes in the stack of a thread that is about to leave its CPU. A buffer that is not needed is given back.
    pub(in crate::sources::linux::perf) fn push_stack(
        &mut self,
        id: SampleId,
        capture: Box<Capture>,
    ) -> Option<Box<Capture>> {
        self.latency.copied(id, capture)
    }

    /// Takes in how many samples did not fit into the rings of CPUs since this was called before; `None` where nobody
    /// counts them, and records say it of all records together.
    pub(in crate::sources::linux::perf) fn add_lost(
        &mut self,
        samples: Option<Vec<(u32, u64)>>,
        now_ns: u64,
    ) {
        let Some(samples) = samples else { return };
        self.losses.ignore_lost_records();
        for (cpu, samples) in samples {
            let period_ns = self.schedule.period_ns(cpu, now_ns).unwrap_or(self.period_ns);
            self.losses.drop_samples(samples, period_ns);
        }
    }

    /// The events of these CPUs tick at these distances, from this time on.
    pub(in crate::sources::linux::perf) fn set_periods(&mut self, since_ns: u64, periods_ns: &[(u32, u64)]) {
        self.schedule.changed(since_ns, self.period_ns, periods_ns);
    }

    /// Whether it is time to change the distances of ticks.
    pub(in crate::sources::linux::perf) fn may_set_periods(&self, now_ns: u64) -> bool {
        self.schedule.may_change(now_ns)
    }

    /// Adds what events counted that are closed.
    pub(in crate::sources::linux::perf) fn add_counted(&mut self, counted_ns: u64) {
        self.counted_ns += counted_ns;
    }

    /// A process has ended, and is released some batches later.
    pub(in crate::sources::linux::perf) fn end_process(&mut self, pid: pid_t) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.has_ended = true;
        }
    }

    /// A thread exited, and no sample of it comes any more: what it used.
    pub(in crate::sources::linux::perf) fn end_thread(&mut self, pid: pid_t, tid: pid_t) -> u64 {
        let process = self.processes.get_mut(&pid);
        process.and_then(|process| process.threads.remove(&tid)).unwrap_or(0)
    }

    /// Takes in that a process is sampled from now on, or that its number is no longer its own.
    pub(in crate::sources::linux::perf) fn push_change(&mut self, pid: pid_t, change: &ProcessEvent) {
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
            _ => {}
        }
    }

    /// Weighs the events of a batch.
    pub(in crate::sources::linux::perf) fn weigh(
        &mut self,
        mut events: Vec<(SampleId, ProcessEvent)>,
        options: BatchOptions,
        clocks: &dyn Clocks,
        spare: &mut Pool<Box<Capture>>,
    ) -> WeighedBatch {
        let samples = self.count(&events);
        let dropped = self.losses.end_batch(samples, options.last);
        let mut shares = self.shares(dropped, samples, options.by_clock, clocks);
        let late = self.share_late(&mut events, &mut shares);
        let is_event = |event: &ProcessEvent| !event.is_change_of_table();
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
        let lost = self.count_lost(&shares);
        WeighedBatch { events: weighed, last_ns: self.last_ns, lost, late }
    }

    /// Counts the samples of each process in a batch, and takes in which processes come and go; how many samples there
    /// are.
    fn count(&mut self, events: &[(SampleId, ProcessEvent)]) -> u64 {
        let mut samples = 0;
        for (id, event) in events {
            if !event.is_sample() {
                self.push_change(id.pid, event);
                continue;
            }
            samples += 1;
            self.schedule.see(id.cpu, id.time_ns);
            if let Some(process) = self.processes.get_mut(&id.pid) {
                process.samples += 1;
                process.is_known = true;
            }
        }
        samples
    }

    /// What the samples of each process share: `samples` of all, and `dropped` ones of anybody.
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
            // What stands for a machine has no clock: those of its processes count what was used.
            let is_only = dropped.samples > 0 && samples == 0 && *pid == self.main && *pid > 0;
            if process.samples == 0 && !is_only {
                continue;
            }
            let of_it = if is_only { dropped.samples } else { division.next(process.samples) };
            // Read where it is not used, too: then it is known up to here.
            let used_ns = process.clock.share_ns(*pid, dropped.samples > 0, clocks).filter(|_| by_clock);
            let used_ns = used_ns.map(|used_ns| process.charge.withhold(used_ns));
            // What was dropped may be other processes': no more than were to be taken.
            let lacking = used_ns.map(|used_ns| (used_ns / self.period_ns).saturating_sub(process.samples));
            let of_it = of_it.min(lacking.unwrap_or(of_it));
            process.samples = 0;
            let dropped_ns = dropped.part_ns(of_it);
            shares.insert(*pid, CpuTimeShare { used_ns, dropped_ns, ..CpuTimeShare::default() });
        }
        shares
    }

    /// Sums up what samples stand for, gives those whose ticks came late what those on time leave of the
    /// time of their process, and takes those out for which that is nothing; how many were late.
    fn share_late(
        &mut self,
        events: &mut Vec<(SampleId, ProcessEvent)>,
        shares: &mut HashMap<pid_t, CpuTimeShare>,
    ) -> u64 {
        let schedule = &self.schedule;
        // Of each process: how many were late, and what those on time and the late ones stand for.
        let mut ticks: HashMap<pid_t, (u64, u64, u64)> = HashMap::new();
        for (id, _) in events.iter().filter(|(_, event)| event.is_sample()) {
            let (late, on_time_ns, late_ns) = ticks.entry(id.pid).or_default();
            let period_ns = schedule.period_ns(id.cpu, id.time_ns).unwrap_or(self.period_ns);
            if schedule.is_late(id.cpu, id.time_ns) {
                *late += 1;
                *late_ns += period_ns;
            } else {
                *on_time_ns += period_ns;
            }
        }
        for (pid, share) in shares.iter_mut() {
            let (_, on_time_ns, late_ns) = ticks.get(pid).copied().unwrap_or_default();
            share.due_ns = on_time_ns + late_ns + share.dropped_ns;
        }
        let mut all_late = 0;
        for (pid, (late, on_time_ns, late_ns)) in &ticks {
            let (Some(share), Some(process)) = (shares.get_mut(pid), self.processes.get_mut(pid)) else {
                continue;
            };
            // Of those that were dropped nobody knows whether they were late.
            let Some(used_ns) = share.used_ns.filter(|_| share.dropped_ns == 0) else { continue };
            let given_ns = process.clock.late_left.of_batch(used_ns, *on_time_ns, *late_ns);
            if *late > 0 {
                share.give_late(*late, *late_ns, given_ns);
                all_late += *late;
            }
        }
        if all_late > 0 {
            events.retain(|(id, event)| {
                let is_nothing =
                    shares.get(&id.pid).is_some_and(|share| share.late > 0 && share.late_ns == 0);
                !(event.is_sample() && is_nothing && schedule.is_late(id.cpu, id.time_ns))
            });
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
                WeighedEvent::Other(ProcessEvent::ThreadExit)
            }
            ProcessEvent::Exec(name) => {
                let Some(process) = self.processes.get_mut(&id.pid) else { return };
                process.charge.end();
                self.weigh_charge(id.pid, id.time_ns, false, spare, into);
                let process = self.processes.get_mut(&id.pid);
                let threads = process.map(|process| std::mem::take(&mut process.threads));
                WeighedEvent::Exec(name, threads.unwrap_or_default())
            }
            other if other.is_change_of_table() => return,
            other => WeighedEvent::Other(other),
        };
        into.push((id, weighed));
    }

    /// What the thread of a sample used by then, with what the sample weighs.
    fn weigh_sample(&mut self, id: SampleId, shares: &mut HashMap<pid_t, CpuTimeShare>) -> u64 {
        let period_ns = self.schedule.period_ns(id.cpu, id.time_ns).unwrap_or(self.period_ns);
        let is_late = self.schedule.is_late(id.cpu, id.time_ns);
        let weight_ns = shares.get_mut(&id.pid).map_or(period_ns, |share| match share.late {
            late if late > 0 && is_late => share.next_late_ns(),
            _ => share.next_ns(period_ns),
        });
        self.add_weight(id, weight_ns)
    }

    /// What a thread used by then, with this weight of a sample.
    fn add_weight(&mut self, id: SampleId, weight_ns: u64) -> u64 {
        let Some(process) = self.processes.get_mut(&id.pid) else { return weight_ns };
        process.clock.add_weight(weight_ns);
        let used_ns = process.threads.entry(id.tid).or_default();
        *used_ns += weight_ns;
        *used_ns
    }

    /// Adds samples that stand for time before threads of a process ran; with the `last` batch for all of it.
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
            // The copy comes back as one of the pool.
            drop(spare.take());
            due.push((SampleId { pid, tid, time_ns: at_ns, cpu: 0 }, weight_ns, Box::new(capture.clone())));
        }
        process.charge.finish();
        for (id, weight_ns, capture) in due {
            let used_ns = self.add_weight(id, weight_ns);
            into.push((id, WeighedEvent::Sample(capture, used_ns)));
        }
    }

    /// Counts what the samples of a batch were not given; how many samples that is.
    fn count_lost(&mut self, shares: &HashMap<pid_t, CpuTimeShare>) -> u64 {
        for (pid, share) in shares {
            let rest_ns = share.rest_ns();
            self.unreported_ns += rest_ns;
            if let Some(process) = self.processes.get_mut(pid) {
                process.clock.add_dropped(rest_ns);
            }
        }
        let lost = self.unreported_ns / self.period_ns;
        self.unreported_ns %= self.period_ns;
        self.weighed_ns += lost * self.period_ns;
        lost
    }

    /// At the end of a recording: the samples that what was used and not weighed stands for, of processes that were
    /// sampled, and of those of a machine that were not.
    pub(in crate::sources::linux::perf) fn count_rest(&mut self) -> (u64, u64) {
        let unsampled = self.baseline.unsampled_ns() / self.period_ns;
        self.released_ns += unsampled * self.period_ns;
        self.weighed_ns += unsampled * self.period_ns;
        let weighed_ns: u64 = self.processes.values().map(|process| process.clock.weighed_ns()).sum();
        let samples = self.used_ns().saturating_sub(self.weighed_ns + weighed_ns) / self.period_ns;
        (samples, unsampled)
    }

    /// CPU time of all processes while they were sampled, nanoseconds.
    pub(in crate::sources::linux::perf) fn used_ns(&self) -> u64 {
        let by_clocks = self.processes.values().map(|process| process.clock.used_ns()).sum::<u64>();
        (self.released_ns + by_clocks).max(self.counted_ns)
    }
}

/// Wakeup latency: intervals in which context switches are recorded.
impl CpuTime {
    /// Whether an interval is to begin or to end.
    pub(in crate::sources::linux::perf) fn interval_action(&self, now_ns: u64) -> IntervalAction {
        self.latency.action(now_ns)
    }

    /// When the interval ends that is open, if one is (monotonic clock).
    pub(in crate::sources::linux::perf) fn interval_ends_ns(&self) -> Option<u64> {
        self.latency.ends_ns()
    }

    /// Begins an interval, whose events record switches by now, or ends one, whose events still do.
    pub(in crate::sources::linux::perf) fn apply_interval_action(
        &mut self,
        action: IntervalAction,
        clocks: &dyn Clocks,
    ) {
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

    /// Nothing records context switches: no latency is measured from now on.
    pub(in crate::sources::linux::perf) fn turn_latency_off(&mut self) {
        self.latency.turn_off();
    }

    /// The events of an interval are closed before its end.
    pub(in crate::sources::linux::perf) fn abandon_interval(&mut self) {
        self.latency.abandon();
    }

    /// Takes in what the last interval measured, if all of it was read. `finish` completes a stack.
    pub(in crate::sources::linux::perf) fn apply_latency(
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

/// Of one process, what the simulated kernel compares.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(in crate::sources::linux::perf) struct Balance {
    /// What its clock was when samples were weighed last.
    pub(in crate::sources::linux::perf) clock_ns: Option<u64>,
    /// What its samples weigh.
    pub(in crate::sources::linux::perf) weighed_ns: u64,
    /// What is lost of it.
    pub(in crate::sources::linux::perf) lost_ns: u64,
}

#[cfg(test)]
impl CpuTime {
    /// Of each process its clock, and what accounts for it.
    pub(in crate::sources::linux::perf) fn balances(&self) -> BTreeMap<pid_t, Balance> {
        let balance = |process: &ProcessTime| {
            let (clock_ns, lost_ns) = process.clock.balance();
            Balance { clock_ns, weighed_ns: process.clock.weighed_ns(), lost_ns }
        };
        self.processes.iter().map(|(pid, process)| (*pid, balance(process))).collect()
    }
}
