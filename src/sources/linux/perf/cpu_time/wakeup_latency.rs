//! CPU time that the clock of a process counts before its threads run, and where they waited until then.
//!
//! The clock of a woken thread starts when its CPU is notified (kernel/sched/core.c, `wakeup_preempt`: the clock
//! of the CPU stops from then on until it switches). An idle CPU takes some microseconds more to switch, in a
//! virtual machine ten and more, and no tick can find the thread meanwhile. In programs that wait often that is a
//! third of their CPU time; shared by all samples it would inflate everything else.
//!
//! It is measured at intervals: for some milliseconds each CPU records its context switches, and the time for
//! which threads of a process had a CPU is subtracted from that counted by its clock. The stacks copied at some of
//! these switches get the difference.
//!
//! Input: context switches and clocks. Output: the part of CPU time that a process is charged before it runs, and
//! samples for it.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::buffers::Usage;
use super::super::ring::record::{PerfRecord, Sample, SampleId};
use crate::sources::Capture;

/// Distance of intervals, nanoseconds.
const INTERVAL_EVERY_NS: u64 = 400_000_000;
/// Target number of switches per interval, by the rate of the previous one. Each switch costs the program a
/// microsecond or two, and a server's latencies reveal intervals that are a tenth of the time.
const SWITCHES_WANTED: u64 = 256;
/// Minimum length of an interval, also the initial one, and maximum.
const INTERVAL_MIN_NS: u64 = 4_000_000;
const INTERVAL_MAX_NS: u64 = 45_000_000;

/// The CPU clock of a process, nanoseconds, and when it was read (monotonic clock).
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) at_ns: u64,
    pub(super) cpu_ns: u64,
}

/// By process.
pub(super) type ClockReadings = HashMap<pid_t, ClockReading>;

#[derive(Debug, Default)]
enum IntervalState {
    /// No measurement.
    Off,
    #[default]
    Closed,
    Open {
        since_ns: u64,
        clocks: ClockReadings,
    },
    /// Its records are not completely read.
    AwaitingRecords {
        began: ClockReadings,
        ended: ClockReadings,
    },
}

/// Action on the events that record context switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) enum IntervalAction {
    Open,
    Close,
    None,
}

/// The switches of a CPU in the interval.
#[derive(Debug, Default)]
struct OnCpu {
    /// Whether a switch was recorded.
    switched: bool,
    /// Its process, and since when; before the first switch, the process sampled there.
    current: Option<(pid_t, u64)>,
    /// When its last thread began to leave.
    leaving_ns: Option<u64>,
    /// The stack of the next thread to leave it.
    outgoing_stack: Option<(pid_t, Box<Capture>)>,
}

/// Measures the CPU time that processes are charged before their threads run.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct WakeupLatency {
    state: IntervalState,
    last_ns: Option<u64>,
    /// Switches in the last interval, or so far in this one.
    switches: u64,
    /// Length of the next interval.
    interval_ns: u64,
    cpus: HashMap<u32, OnCpu>,
    /// Process, start and end of its time on a CPU.
    on_cpu_spans: Vec<(pid_t, u64, u64)>,
    on_cpu_spans_usage: Usage,
    /// Where threads began to wait: process, thread, stack.
    #[allow(clippy::vec_box)]
    waits: Vec<(pid_t, pid_t, Box<Capture>)>,
    /// Whether records of the interval were lost.
    dropped: bool,
}

impl Default for WakeupLatency {
    fn default() -> WakeupLatency {
        WakeupLatency {
            state: IntervalState::Closed,
            last_ns: None,
            switches: 0,
            interval_ns: INTERVAL_MIN_NS,
            cpus: HashMap::new(),
            on_cpu_spans: Vec::new(),
            on_cpu_spans_usage: Usage::default(),
            waits: Vec::new(),
            dropped: false,
        }
    }
}

impl WakeupLatency {
    /// A disabled measurement.
    pub(super) fn off() -> WakeupLatency {
        WakeupLatency { state: IntervalState::Off, ..WakeupLatency::default() }
    }

    /// Disables the measurement: no event records switches.
    pub(super) fn turn_off(&mut self) {
        self.state = IntervalState::Off;
    }

    /// Reads a record of any kind; those of one CPU come in order. Returns a stack buffer that is not needed.
    pub(super) fn push_record(&mut self, id: SampleId, record: &PerfRecord<'_>) -> Option<Box<Capture>> {
        match record {
            PerfRecord::SwitchIn { direct } => self.switched_in(id, *direct),
            PerfRecord::SwitchOut { preempted } => return self.switched_out(id, *preempted),
            PerfRecord::Lost(_) => self.dropped = true,
            PerfRecord::Sample(Sample { at_switch: false, .. }) => self.sampled(id),
            _ => {}
        }
        None
    }

    /// The stacks at which threads began to wait in the last interval: process, thread, stack.
    pub(super) fn take_waits(&mut self) -> Vec<(pid_t, pid_t, Box<Capture>)> {
        std::mem::take(&mut self.waits)
    }

    /// End of the open interval, if any (monotonic clock).
    pub(in crate::sources::linux::perf) fn ends_ns(&self) -> Option<u64> {
        match self.state {
            IntervalState::Open { since_ns, .. } => Some(since_ns + self.interval_ns),
            IntervalState::Off | IntervalState::Closed | IntervalState::AwaitingRecords { .. } => None,
        }
    }

    /// Whether switches are being recorded, or recorded ones are not yet read.
    fn is_open(&self) -> bool {
        !matches!(self.state, IntervalState::Off | IntervalState::Closed)
    }

    /// Whether to begin or end an interval.
    pub(in crate::sources::linux::perf) fn action(&self, now_ns: u64) -> IntervalAction {
        match self.state {
            IntervalState::Closed
                if self.last_ns.is_none_or(|last_ns| now_ns >= last_ns + INTERVAL_EVERY_NS) =>
            {
                IntervalAction::Open
            }
            _ if self.ends_ns().is_some_and(|ends_ns| now_ns >= ends_ns) => IntervalAction::Close,
            _ => IntervalAction::None,
        }
    }

    /// Handles a timer sample: its process has the CPU.
    fn sampled(&mut self, id: SampleId) {
        // If the sample is older than the interval, its thread may have left since.
        if self.is_open() && self.last_ns.is_some_and(|began_ns| id.time_ns >= began_ns) {
            let on = self.cpus.entry(id.cpu).or_default();
            if !on.switched {
                on.current = Some((id.pid, 0));
            }
        }
    }

    /// `direct`: from another thread. The time of the switch counts for the new one (kernel/sched/core.c,
    /// `__schedule`), and so do ticks in it: they occur as soon as it runs.
    fn switched_in(&mut self, id: SampleId, direct: bool) {
        if self.is_open() {
            self.switches += 1;
            let on = self.cpus.entry(id.cpu).or_default();
            let since_ns = on.leaving_ns.take().filter(|_| direct).unwrap_or(id.time_ns);
            (on.switched, on.current) = (true, Some((id.pid, since_ns)));
        }
    }

    /// Handles a thread that leaves its CPU; its switch sample comes right before. Returns a stack buffer that is
    /// not needed.
    fn switched_out(&mut self, id: SampleId, preempted: bool) -> Option<Box<Capture>> {
        if !self.is_open() {
            return None;
        }
        self.switches += 1;
        let on = self.cpus.entry(id.cpu).or_default();
        let first = !std::mem::replace(&mut on.switched, true);
        let since_ns = match on.current.take() {
            _ if first => Some(0),
            Some((pid, since_ns)) if pid == id.pid => Some(since_ns),
            _ => None,
        };
        let until_ns = *on.leaving_ns.get_or_insert(id.time_ns);
        self.on_cpu_spans.extend(since_ns.map(|since_ns| (id.pid, since_ns, until_ns)));
        let (tid, capture) = on.outgoing_stack.take()?;
        if tid != id.tid || preempted {
            return Some(capture);
        }
        self.waits.push((id.pid, tid, capture));
        None
    }

    /// Keeps the stack of a thread that is about to leave its CPU. Returns a stack buffer that is not needed.
    pub(super) fn copied(&mut self, id: SampleId, capture: Box<Capture>) -> Option<Box<Capture>> {
        if !self.is_open() {
            return Some(capture);
        }
        let on = self.cpus.entry(id.cpu).or_default();
        on.leaving_ns = Some(id.time_ns);
        on.outgoing_stack.replace((id.tid, capture)).map(|(_, capture)| capture)
    }

    pub(super) fn begin(&mut self, now_ns: u64, clocks: ClockReadings) {
        self.last_ns = Some(now_ns);
        self.cpus.clear();
        self.on_cpu_spans.clear();
        (self.switches, self.dropped) = (0, false);
        self.state = IntervalState::Open { since_ns: now_ns, clocks };
    }

    pub(super) fn end(&mut self, now_ns: u64, ended: ClockReadings) {
        if let IntervalState::Open { since_ns, clocks: began } = std::mem::take(&mut self.state) {
            self.state = IntervalState::AwaitingRecords { began, ended };
            let passed_ns = now_ns.saturating_sub(since_ns);
            let wanted_ns =
                u128::from(passed_ns) * u128::from(SWITCHES_WANTED) / u128::from(self.switches.max(1));
            let wanted_ns = u64::try_from(wanted_ns).unwrap_or(u64::MAX);
            self.interval_ns = wanted_ns.clamp(INTERVAL_MIN_NS, INTERVAL_MAX_NS);
        }
    }

    /// Discards the interval because its events closed early.
    pub(in crate::sources::linux::perf) fn abandon(&mut self) {
        if self.is_open() {
            self.state = IntervalState::Closed;
        }
    }

    /// For each process: its CPU time in the interval, and the part charged before its threads ran, nanoseconds,
    /// possibly negative since times are inexact. Requires all records of the interval.
    pub(super) fn measured(&mut self) -> Vec<(pid_t, u64, i64)> {
        if !matches!(self.state, IntervalState::AwaitingRecords { .. }) {
            return Vec::new();
        }
        let IntervalState::AwaitingRecords { began, ended } = std::mem::take(&mut self.state) else {
            return Vec::new();
        };
        for on in self.cpus.values() {
            // A CPU without a switch ran one process throughout.
            self.on_cpu_spans.extend(on.current.map(|(pid, since_ns)| (pid, since_ns, u64::MAX)));
        }
        if self.dropped {
            return Vec::new();
        }
        let mut ran_ns: HashMap<pid_t, u64> = HashMap::new();
        let used = self.on_cpu_spans.len();
        for (pid, from_ns, to_ns) in self.on_cpu_spans.drain(..) {
            if let (Some(began), Some(ended)) = (began.get(&pid), ended.get(&pid)) {
                let ran = to_ns.min(ended.at_ns).saturating_sub(from_ns.max(began.at_ns));
                *ran_ns.entry(pid).or_default() += ran;
            }
        }
        self.on_cpu_spans_usage.shrink(&mut self.on_cpu_spans, used);
        let measured = began.iter().filter_map(|(pid, began)| {
            let used_ns = ended.get(pid)?.cpu_ns.saturating_sub(began.cpu_ns);
            let ran_ns = ran_ns.get(pid).copied().unwrap_or(0);
            (ran_ns > 0).then(|| (*pid, used_ns, used_ns.cast_signed() - ran_ns.cast_signed()))
        });
        measured.collect()
    }
}

#[cfg(test)]
mod tests;
