//! CPU time that a process is charged before its threads run, and samples that carry it.
//!
//! `WakeupLatency` measures it at intervals, `WakeupCharge` adds it to the samples of a batch.
//!
//! Input: measurements of intervals, and the CPU time of each batch. Output: the part that
//! the samples of the batch share, and stacks with weights for the rest. All time counts exactly once.

#[cfg(test)]
mod wakeup_latency_tests;

use std::collections::VecDeque;

use hashbrown::HashMap;
use libc::pid_t;

use crate::sources::Capture;
use crate::sources::linux::perf::buffers::Usage;
use crate::sources::linux::perf::ring::{PerfRecord, Sample, SampleId};

/// Maximum number of stacks kept per process.
const STACKS_MAX: usize = 64;
/// Stacks older than this many intervals show outdated behavior: they are discarded, except for this many.
const INTERVALS_KEPT: u64 = 4;
const OLD_KEPT: usize = 4;

/// Stack of a thread that waited.
#[derive(Debug)]
struct WaitStack {
    tid: pid_t,
    capture: Box<Capture>,
    /// Number of the interval in which it was copied.
    interval: u64,
}

/// Measurements of a process, and its time not yet weighed.
#[derive(Debug, Default)]
pub(crate) struct WakeupCharge {
    /// The last interval, and the one before.
    intervals: [Interval; 2],
    /// CPU time of batches since the last measurement, and the part of it withheld as charged before threads ran.
    since_used_ns: u64,
    since_withheld_ns: u64,
    /// Time overcharged to samples of earlier batches, as a later interval showed; negative if undercharged.
    overcharged_ns: i64,
    /// Time still to be weighed by the stacks.
    pending_charge_ns: u64,
    stacks: VecDeque<WaitStack>,
    next: usize,
    /// Number of intervals so far.
    interval: u64,
    /// Whether the waits of the stacks are over; the stacks then carry the rest.
    is_over: bool,
}

/// CPU time of a process in an interval, and the part of it charged before its threads ran.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    used_ns: u64,
    before_ns: i64,
}

/// The part of this time charged before threads ran, by intervals.
fn part_ns(used_ns: u64, intervals: &[Interval]) -> u64 {
    let all_ns: u64 = intervals.iter().map(|interval| interval.used_ns).sum();
    let before_ns: i64 = intervals.iter().map(|interval| interval.before_ns).sum();
    let before_ns = u64::try_from(before_ns).unwrap_or(0).min(all_ns);
    (u128::from(used_ns) * u128::from(before_ns) / u128::from(all_ns.max(1))) as u64
}

impl WakeupCharge {
    /// Adds an interval. Programs change, so CPU time since the previous interval is split by both.
    pub(crate) fn measure(&mut self, used_ns: u64, before_ns: i64) {
        self.interval += 1;
        let [last, _] = self.intervals;
        self.intervals = [Interval { used_ns, before_ns }, last];
        let used_ns = std::mem::take(&mut self.since_used_ns);
        if !self.stacks.is_empty() {
            let before_ns = part_ns(used_ns, &self.intervals);
            let withheld_ns = std::mem::take(&mut self.since_withheld_ns);
            self.pending_charge_ns += before_ns;
            self.overcharged_ns += before_ns.cast_signed() - withheld_ns.cast_signed();
        }
    }

    /// Adds the stack of a thread that waited in the last interval; replaced buffers go to `spare`.
    pub(crate) fn add_stack(
        &mut self,
        tid: pid_t,
        capture: Box<Capture>,
        mut spare: impl FnMut(Box<Capture>),
    ) {
        self.stacks.push_back(WaitStack { tid, capture, interval: self.interval });
        let old = |one: &WaitStack| one.interval + INTERVALS_KEPT < self.interval;
        while self.stacks.len() > STACKS_MAX
            || self.stacks.len() > OLD_KEPT && self.stacks.front().is_some_and(old)
        {
            let Some(one) = self.stacks.pop_front() else { break };
            spare(one.capture);
        }
    }

    /// Withholds from the CPU time of a batch the part charged before threads ran, by the last interval, and some
    /// of the overcharge of earlier batches; returns the rest.
    pub(crate) fn withhold(&mut self, used_ns: u64) -> u64 {
        self.since_used_ns += used_ns;
        if self.stacks.is_empty() {
            return used_ns;
        }
        let withheld_ns = part_ns(used_ns, &self.intervals[..1]);
        self.since_withheld_ns += withheld_ns;
        // Samples of one batch do not pay for all.
        let left_ns = (used_ns - withheld_ns).cast_signed();
        let paid_ns = self.overcharged_ns.clamp(-left_ns / 4, left_ns / 4);
        self.overcharged_ns -= paid_ns;
        (left_ns - paid_ns).cast_unsigned()
    }

    /// Finalizes without further intervals or batches: the withheld part is as the last interval showed.
    pub(crate) fn finalize(&mut self) {
        let withheld_ns = std::mem::take(&mut self.since_withheld_ns) + self.pending_charge_ns;
        let pending_charge_ns = withheld_ns.cast_signed() - std::mem::take(&mut self.overcharged_ns);
        self.pending_charge_ns = u64::try_from(pending_charge_ns).unwrap_or(0);
    }

    /// Removes the stacks of an ended thread. If no other thread waited, they carry the rest until
    /// [`WakeupCharge::finish`].
    pub(crate) fn forget_thread(&mut self, tid: pid_t) {
        if self.stacks.iter().any(|one| one.tid != tid) {
            self.stacks.retain(|one| one.tid != tid);
        } else {
            self.end();
        }
    }

    /// Ends all waits: the last thread ended, or the process executed another program.
    pub(crate) fn end(&mut self) {
        if !self.stacks.is_empty() {
            self.finalize();
            self.is_over = true;
        }
    }

    /// Notes that all charges of [`WakeupCharge::next_charge`] were counted.
    pub(crate) fn finish(&mut self) {
        if std::mem::take(&mut self.is_over) {
            self.stacks.clear();
        }
    }

    /// The next sample and its weight of one period; the last one gets the remainder.
    pub(crate) fn next_charge(&mut self, period_ns: u64, last: bool) -> Option<(pid_t, &Capture, u64)> {
        // Exclude time that samples still have to pay back: it would count twice if none came.
        let due_ns = self.pending_charge_ns.saturating_sub(u64::try_from(self.overcharged_ns).unwrap_or(0));
        let weight_ns = due_ns.min(period_ns);
        let last = last || self.is_over;
        if self.stacks.is_empty() || weight_ns == 0 || weight_ns < period_ns && !last {
            return None;
        }
        self.pending_charge_ns -= weight_ns;
        // In turn: each was copied at the same fraction of switches.
        self.next = (self.next + 1) % self.stacks.len();
        self.stacks.get(self.next).map(|one| (one.tid, &*one.capture, weight_ns))
    }
}

// ---- CPU time that the clock of a process counts before its threads run, and where they waited until then.
//
// The clock of a woken thread starts when its CPU is notified (kernel/sched/core.c, `wakeup_preempt`: the clock of
// the CPU stops from then on until it switches). An idle CPU takes some microseconds more to switch, in a virtual
// machine ten and more, and no tick can find the thread meanwhile. In programs that wait often that is a third of
// their CPU time; shared by all samples it would inflate everything else.
//
// It is measured at intervals: for some milliseconds each CPU records its context switches, and the time for which
// threads of a process had a CPU is subtracted from that counted by its clock. The stacks copied at some of these
// switches get the difference.

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
pub(crate) enum IntervalAction {
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
pub(crate) struct WakeupLatency {
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
    pub(crate) fn ends_ns(&self) -> Option<u64> {
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
    pub(crate) fn action(&self, now_ns: u64) -> IntervalAction {
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
    pub(crate) fn abandon(&mut self) {
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rng::Rng;

    const PERIOD_NS: u64 = 1_000_000;

    impl WakeupCharge {
        /// Adds a stack of each of these threads.
        fn have_waited(&mut self, tids: impl IntoIterator<Item = pid_t>) {
            for tid in tids {
                self.add_stack(tid, Box::new(Capture::with_capacity(0)), |_| {});
            }
        }
    }

    #[test]
    fn old_stacks_are_discarded_when_there_are_new_ones() {
        let mut of = WakeupCharge::default();
        of.have_waited(std::iter::repeat_n(1, 2 * STACKS_MAX));
        assert_eq!(of.stacks.len(), STACKS_MAX);
        for _ in 0..=INTERVALS_KEPT {
            of.measure(1_000_000, 250_000);
        }
        assert_eq!(of.stacks.len(), STACKS_MAX, "none has come");
        let mut spare = 0;
        of.add_stack(2, Box::new(Capture::with_capacity(0)), |_| spare += 1);
        assert_eq!((of.stacks.len(), spare), (OLD_KEPT, STACKS_MAX + 1 - OLD_KEPT));
        of.have_waited([2, 2, 2, 2]);
        assert!(of.stacks.iter().all(|one| one.tid == 2));
    }

    #[test]
    fn charges_and_the_rest_add_up_to_the_cpu_time() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut of = WakeupCharge::default();
            assert_eq!(of.withhold(70), 70, "nothing is known");
            of.have_waited(0..3);
            let (mut used_ns, mut left_ns, mut told_ns, mut seen) = (0, 0, 0, [0; 3]);
            for batch in 0..100 {
                let used = rng.within(0, 50_000_000);
                used_ns += used;
                if batch % 4 == 0 {
                    of.measure(rng.within(0, 1_000_000), rng.within(0, 1_000_000).cast_signed() - 50_000);
                }
                left_ns += of.withhold(used);
                if batch == 99 {
                    of.finalize();
                }
                while let Some((tid, _, weight_ns)) = of.next_charge(PERIOD_NS, batch == 99) {
                    assert!(weight_ns == PERIOD_NS || batch == 99);
                    told_ns += weight_ns;
                    seen[tid as usize] += weight_ns;
                }
            }
            assert_eq!(left_ns + told_ns, used_ns, "seed {seed}");
            assert!(seen.iter().max().unwrap() - seen.iter().min().unwrap() <= 2 * PERIOD_NS);
            of.forget_thread(0);
            of.forget_thread(1);
            of.forget_thread(2);
            of.finish();
            assert_eq!(of.withhold(70), 70, "nobody waits any more");
        }
    }

    #[test]
    fn the_last_waiting_thread_carries_the_rest_when_it_ends() {
        let mut of = WakeupCharge::default();
        of.have_waited([1, 2]);
        of.measure(1_000_000, 250_000);
        let left_ns = of.withhold(10_000_000);
        of.forget_thread(2);
        assert!(of.next_charge(PERIOD_NS, false).is_none(), "another interval may come");
        of.forget_thread(1);
        let mut told_ns = 0;
        while let Some((tid, _, weight_ns)) = of.next_charge(PERIOD_NS, false) {
            assert_eq!(tid, 1);
            told_ns += weight_ns;
        }
        of.finish();
        assert_eq!((left_ns, told_ns), (7_500_000, 2_500_000));
        assert!(of.stacks.is_empty() && of.withhold(70) == 70);
    }

    /// Half of the time is charged before threads run until some moment and none later, or vice versa: batches of
    /// 100 ms, an interval each 400.
    #[test]
    fn a_change_between_two_intervals_is_split_between_both() {
        let used_ns = 100_000_000;
        for changes in 1..50 {
            for first in [true, false] {
                let mut of = WakeupCharge::default();
                of.have_waited([1]);
                let (mut truth_ns, mut left_ns) = (0, 0);
                for batch in 0..60 {
                    let before_ns = if (batch < changes) == first { used_ns / 2 } else { 0 };
                    truth_ns += before_ns;
                    if batch % 4 == 1 {
                        of.measure(used_ns / 2, before_ns.cast_signed() / 2);
                    }
                    left_ns += of.withhold(used_ns);
                }
                of.finalize();
                assert_eq!(left_ns + of.pending_charge_ns, 60 * used_ns);
                // By the last interval alone the error was up to twice as much.
                let off_ns = of.pending_charge_ns.abs_diff(truth_ns);
                assert!(off_ns <= used_ns, "{changes}: {} instead of {truth_ns}", of.pending_charge_ns);
            }
        }
    }
}
