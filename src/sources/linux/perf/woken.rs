//! CPU time that the clock of a process counts before its threads run, and where they waited until then.
//!
//! The clock of a thread that is woken begins when its CPU is told of it (kernel/sched/core.c,
//! `wakeup_preempt`: the clock of the CPU stands still from then on until it switches). A CPU that
//! has nothing to do takes some microseconds more to get there, in a virtual machine ten and more, and no tick
//! can find the thread meanwhile. Where programs wait often that is a third of their CPU time, and
//! shared over the samples it would make everything else larger than it is.
//!
//! It is measured: now and then, for some milliseconds, each CPU tells of its switches, and the time for which
//! threads of a process had a CPU is taken from what its clock says. At some of these switches stacks are copied:
//! there the time goes.
//!
//! Input: switches and clocks; output: which part of its CPU time a process had before it ran, and
//! samples that stand for it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use libc::pid_t;

use super::events::WINDOW_BYTES_MAX;
use super::record::Id;
use super::sys;
use super::told::Told;
use crate::sources::Capture;
use crate::sources::pushed::{Record, What};

/// From the beginning of one window to that of the next, nanoseconds.
const DISTANCE_NS: u64 = 400_000_000;
/// A window is at least so long; it ends when the rings are read.
const WINDOW_NS: u64 = 45_000_000;
/// Most processes whose clocks are asked.
const CLOCKS_MAX: usize = 512;
/// Stacks that are kept of a process.
const STACKS_MAX: usize = 64;

/// The clock of a process, nanoseconds, and when it was asked (monotonic clock).
#[derive(Clone, Copy, Debug)]
struct Asked {
    at_ns: u64,
    cpu_ns: u64,
}

type Clocks = HashMap<pid_t, Asked>;

#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    Open {
        since_ns: u64,
        clocks: Clocks,
    },
    /// What it wrote is still to be read.
    Over {
        began: Clocks,
        ended: Clocks,
    },
}

/// What is to be done with the events that tell of switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Open,
    Close,
    Nothing,
}

/// What a record of the window tells.
#[derive(Debug)]
pub(super) enum Seen {
    /// The clock found it on the CPU.
    Sampled,
    /// It has the CPU.
    In,
    /// It leaves it.
    Out { preempted: bool },
    /// It is about to leave it, with this stack.
    Copied(Box<Capture>),
    /// Records were dropped.
    Dropped,
}

/// What is known of the switches of a CPU in the window.
#[derive(Debug, Default)]
struct OnCpu {
    /// A switch was told.
    switched: bool,
    /// Who has it, and since when; before the first switch whoever was sampled there.
    has: Option<(pid_t, u64)>,
    /// The stack that was copied of the thread that leaves it next.
    copied: Option<(pid_t, Box<Capture>)>,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Woken {
    state: State,
    last_ns: Option<u64>,
    cpus: HashMap<u32, OnCpu>,
    /// Who had a CPU from when to when.
    had: Vec<(pid_t, u64, u64)>,
    /// Where threads began to wait: process, thread, stack.
    #[allow(clippy::vec_box)]
    waits: Vec<(pid_t, pid_t, Box<Capture>)>,
    /// Records that were read in the window, of switches, and whether some were dropped.
    records: u64,
    dropped: bool,
}

impl Woken {
    /// Whether switches are being told.
    fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed)
    }

    /// What it is time for.
    pub(super) fn turn(&self, now_ns: u64) -> Turn {
        match self.state {
            State::Closed if self.last_ns.is_none_or(|last_ns| now_ns >= last_ns + DISTANCE_NS) => Turn::Open,
            State::Open { since_ns, .. } if now_ns >= since_ns + WINDOW_NS => Turn::Close,
            _ => Turn::Nothing,
        }
    }

    /// A sample of the clock was read: what it shows has the CPU.
    fn sampled(&mut self, id: Id) {
        // One from before the window may have left since.
        if self.is_open() && self.last_ns.is_some_and(|began_ns| id.time_ns >= began_ns) {
            let on = self.cpus.entry(id.cpu).or_default();
            if !on.switched {
                on.has = Some((id.pid, 0));
            }
        }
    }

    fn switched_in(&mut self, id: Id) {
        if self.is_open() {
            self.records += 1;
            let on = self.cpus.entry(id.cpu).or_default();
            (on.switched, on.has) = (true, Some((id.pid, id.time_ns)));
        }
    }

    /// A thread leaves its CPU; the sample of that stands right before. What is left of a stack is given back.
    fn switched_out(&mut self, id: Id, preempted: bool) -> Option<Box<Capture>> {
        if !self.is_open() {
            return None;
        }
        self.records += 1;
        let on = self.cpus.entry(id.cpu).or_default();
        let first = !std::mem::replace(&mut on.switched, true);
        let since_ns = match on.has.take() {
            _ if first => Some(0),
            Some((pid, since_ns)) if pid == id.pid => Some(since_ns),
            _ => None,
        };
        self.had.extend(since_ns.map(|since_ns| (id.pid, since_ns, id.time_ns)));
        let (tid, capture) = on.copied.take()?;
        if tid != id.tid || preempted {
            return Some(capture);
        }
        self.waits.push((id.pid, tid, capture));
        None
    }

    /// A thread is about to leave its CPU, with this stack. What is left of another is given back.
    fn copied(&mut self, id: Id, capture: Box<Capture>) -> Option<Box<Capture>> {
        if !self.is_open() {
            return Some(capture);
        }
        let on = self.cpus.entry(id.cpu).or_default();
        on.copied.replace((id.tid, capture)).map(|(_, capture)| capture)
    }

    fn begin(&mut self, now_ns: u64, clocks: Clocks) {
        self.last_ns = Some(now_ns);
        self.cpus.clear();
        self.had.clear();
        (self.records, self.dropped) = (0, false);
        self.state = State::Open { since_ns: now_ns, clocks };
    }

    fn end(&mut self, ended: Clocks) {
        if let State::Open { clocks: began, .. } = std::mem::take(&mut self.state) {
            self.state = State::Over { began, ended };
        }
    }

    /// The window counts for nothing: its events are gone, or the recording is.
    pub(super) fn abandon(&mut self) {
        self.state = State::Closed;
    }

    /// Of each process: what its clock counted in the window that is over, and how much of that
    /// before its threads ran, nanoseconds. All that the window wrote was read.
    fn measured(&mut self) -> Vec<(pid_t, u64, u64)> {
        if !matches!(self.state, State::Over { .. }) {
            return Vec::new();
        }
        let State::Over { began, ended } = std::mem::take(&mut self.state) else { return Vec::new() };
        for on in self.cpus.values() {
            // One that told of no switch was had by one process throughout.
            self.had.extend(on.has.map(|(pid, since_ns)| (pid, since_ns, u64::MAX)));
        }
        if self.dropped {
            return Vec::new();
        }
        let mut ran_ns: HashMap<pid_t, u64> = HashMap::new();
        for (pid, from_ns, to_ns) in self.had.drain(..) {
            if let (Some(began), Some(ended)) = (began.get(&pid), ended.get(&pid)) {
                let ran = to_ns.min(ended.at_ns).saturating_sub(from_ns.max(began.at_ns));
                *ran_ns.entry(pid).or_default() += ran;
            }
        }
        let measured = began.iter().filter_map(|(pid, began)| {
            let used_ns = ended.get(pid)?.cpu_ns.saturating_sub(began.cpu_ns);
            let ran_ns = ran_ns.get(pid).copied().unwrap_or(0);
            (ran_ns > 0).then(|| (*pid, used_ns, used_ns.saturating_sub(ran_ns)))
        });
        measured.collect()
    }
}

/// What was measured of a process, and what its samples are still to stand for.
#[derive(Debug, Default)]
pub(super) struct OfProcess {
    used_ns: u64,
    before_ns: u64,
    owed_ns: u64,
    stacks: VecDeque<(pid_t, Box<Capture>)>,
    next: usize,
}

impl OfProcess {
    /// A window counts as much as all before it: what a program does changes.
    fn measure(&mut self, used_ns: u64, before_ns: u64) {
        self.used_ns = self.used_ns / 2 + used_ns;
        self.before_ns = self.before_ns / 2 + before_ns;
    }

    /// Takes from what was used in a batch the part from before threads ran; what is left.
    pub(super) fn without(&mut self, used_ns: u64) -> u64 {
        if self.stacks.is_empty() || self.used_ns == 0 {
            return used_ns;
        }
        let part_ns = u128::from(used_ns) * u128::from(self.before_ns) / u128::from(self.used_ns);
        let part_ns = u64::try_from(part_ns).unwrap_or(used_ns).min(used_ns);
        self.owed_ns += part_ns;
        used_ns - part_ns
    }

    /// A thread ends: where it waited it waits no more.
    pub(super) fn forget_thread(&mut self, tid: pid_t) {
        self.stacks.retain(|(of, _)| *of != tid);
    }

    /// It runs another program.
    pub(super) fn forget(&mut self) {
        self.stacks.clear();
    }

    /// The next sample and its weight, of those that stand for a period each; with the last one for
    /// what is left.
    fn next(&mut self, period_ns: u64, last: bool) -> Option<(pid_t, &Capture, u64)> {
        let weight_ns = if self.owed_ns >= period_ns { period_ns } else { self.owed_ns };
        if self.stacks.is_empty() || weight_ns == 0 || weight_ns < period_ns && !last {
            return None;
        }
        self.owed_ns -= weight_ns;
        // In turn: each was copied at as many switches as any other.
        self.next = (self.next + 1) % self.stacks.len();
        self.stacks.get(self.next).map(|(tid, capture)| (*tid, &**capture, weight_ns))
    }
}

impl Told {
    /// Takes in what a record says of switches in the window. `unwanted` is one of a process that is not recorded.
    pub(super) fn note_woken(&mut self, id: Id, switch: Seen) {
        let Some(woken) = &mut self.woken else { return };
        let unused = match switch {
            Seen::Sampled => {
                woken.sampled(id);
                None
            }
            Seen::In => {
                woken.switched_in(id);
                None
            }
            Seen::Out { preempted } => woken.switched_out(id, preempted),
            Seen::Copied(capture) => woken.copied(id, capture),
            Seen::Dropped => {
                woken.dropped = true;
                None
            }
        };
        if let Some(capture) = unused {
            self.give_back(capture);
        }
    }

    /// How many of the records that were read since the last batch tell of switches.
    pub(super) fn switch_records(&mut self) -> u64 {
        self.woken.as_mut().map_or(0, |woken| std::mem::take(&mut woken.records))
    }

    /// Opens a window, whose events tell of switches by now, or ends one, whose events still do.
    pub(super) fn turn_woken(&mut self, turn: Turn) {
        let mut clocks = Clocks::new();
        for pid in self
            .members
            .iter()
            .filter(|(_, one)| one.told && one.ends_in.is_none())
            .map(|(pid, _)| *pid)
            .take(CLOCKS_MAX)
        {
            let cpu_ns = sys::process_cpu_ns(pid);
            clocks.extend(cpu_ns.map(|cpu_ns| (pid, Asked { at_ns: sys::monotonic_ns(), cpu_ns })));
        }
        let Some(woken) = &mut self.woken else { return };
        match turn {
            Turn::Open => woken.begin(sys::monotonic_ns(), clocks),
            Turn::Close => woken.end(clocks),
            Turn::Nothing => {}
        }
    }

    /// Takes in what the last window measured, if all of it was read.
    pub(super) fn settle_woken(&mut self) {
        let Some(mut woken) = self.woken.take() else { return };
        for (pid, used_ns, before_ns) in woken.measured() {
            if let Some(member) = self.members.get_mut(&pid) {
                member.woken.measure(used_ns, before_ns);
            }
        }
        for (pid, tid, mut capture) in woken.waits.drain(..) {
            let Some(member) = self.members.get_mut(&pid) else {
                self.give_back(capture);
                continue;
            };
            member.bring_in_stack(tid, &capture, WINDOW_BYTES_MAX);
            if !self.kernel_frames {
                capture.kernel.clear();
            }
            member.woken.stacks.push_back((tid, capture));
            if member.woken.stacks.len() > STACKS_MAX
                && let Some((_, capture)) = member.woken.stacks.pop_front()
            {
                self.give_back(capture);
            }
        }
        self.woken = Some(woken);
    }

    /// Tells of samples that stand for time before threads ran; at the end of all of it.
    pub(super) fn tell_woken(&mut self, last_ns: u64, last: bool, into: &mut Vec<Record>) {
        let period_ns = self.period_ns;
        let mut due = Vec::new();
        for (pid, member) in &mut self.members {
            while let Some((tid, capture, weight_ns)) = member.woken.next(period_ns, last) {
                let id = Id { pid: *pid, tid, time_ns: last_ns, cpu: 0 };
                due.push((id, weight_ns, Box::new(capture.clone())));
            }
        }
        for (id, weight_ns, mut capture) in due {
            capture.look = Some(self.weighed(id, weight_ns, into));
            into.push(self.record(id, What::Sampled(capture)));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rng::Rng;

    const PERIOD_NS: u64 = 1_000_000;

    fn id(pid: pid_t, tid: pid_t, cpu: u32, time_ns: u64) -> Id {
        Id { pid, tid, time_ns, cpu }
    }

    fn clocks(at_ns: u64, cpu_ns: u64) -> Clocks {
        Clocks::from([(1, Asked { at_ns, cpu_ns })])
    }

    fn stack() -> Box<Capture> {
        Box::new(Capture::with_capacity(0))
    }

    /// Process 1 runs on CPU 0 in turns; its clock begins `early_ns` before each. The share found.
    fn measured(early_ns: u64, seed: u64) -> (u64, u64) {
        let mut rng = Rng::new(seed);
        let mut woken = Woken::default();
        woken.begin(1_000, clocks(1_000, 500));
        let (mut now_ns, mut used_ns) = (1_000, 500);
        for turn in 0..200 {
            now_ns += rng.within(20_000, 90_000);
            woken.switched_out(id(0, 0, 0, now_ns), true);
            woken.switched_in(id(1, 11, 0, now_ns));
            // Another process has the other CPU all the time.
            woken.sampled(id(2, 22, 1, now_ns));
            let runs_ns = rng.within(10_000, 60_000);
            now_ns += runs_ns;
            used_ns += runs_ns + early_ns;
            if turn % 7 == 0 {
                assert!(woken.copied(id(1, 11, 0, now_ns), stack()).is_none());
            }
            assert!(woken.switched_out(id(1, 11, 0, now_ns), false).is_none());
            woken.switched_in(id(0, 0, 0, now_ns));
        }
        assert_eq!(woken.waits.len(), 29);
        woken.end(clocks(now_ns, used_ns));
        let measured = woken.measured();
        assert_eq!(measured.len(), 1, "seed {seed}: {measured:?}");
        assert!(!woken.is_open() && measured[0].1 == used_ns - 500);
        (measured[0].1, measured[0].2)
    }

    #[test]
    fn time_from_before_a_thread_runs_is_what_its_clock_has_more_than_its_turns() {
        for seed in 0..20 {
            assert_eq!(measured(0, seed).1, 0, "seed {seed}");
            assert_eq!(measured(12_000, seed).1, 200 * 12_000, "seed {seed}");
        }
    }

    #[test]
    fn turns_are_cut_where_the_clocks_were_asked() {
        let mut woken = Woken::default();
        woken.begin(100, clocks(100, 0));
        // On CPU 0 since before, on CPU 1 until after, on CPU 2 throughout and on CPU 3 never.
        woken.switched_out(id(1, 10, 0, 150), true);
        woken.switched_in(id(1, 11, 1, 180));
        woken.sampled(id(1, 12, 2, 160));
        woken.sampled(id(1, 12, 3, 90));
        woken.end(clocks(200, 175));
        assert_eq!(woken.measured(), [(1, 175, 175 - 50 - 20 - 100)]);
    }

    #[test]
    fn windows_with_records_missing_count_for_nothing() {
        let mut woken = Woken::default();
        woken.begin(100, clocks(100, 0));
        woken.switched_in(id(1, 11, 0, 120));
        woken.dropped = true;
        woken.end(clocks(200, 100));
        assert!(woken.measured().is_empty());
        woken.begin(300, clocks(300, 0));
        woken.abandon();
        assert!(woken.measured().is_empty() && !woken.is_open());
    }

    #[test]
    fn a_stack_is_where_a_thread_waits_only_if_it_left_by_itself() {
        let mut woken = Woken::default();
        woken.begin(0, clocks(0, 0));
        woken.copied(id(1, 11, 0, 10), stack());
        assert!(woken.switched_out(id(1, 11, 0, 11), true).is_some(), "it was preempted");
        woken.copied(id(1, 11, 0, 20), stack());
        assert!(woken.switched_out(id(1, 12, 0, 21), false).is_some(), "it is another's");
        woken.copied(id(1, 11, 0, 30), stack());
        assert!(woken.switched_out(id(1, 11, 0, 31), false).is_none());
        assert_eq!(woken.waits.len(), 1);
    }

    #[test]
    fn a_window_opens_now_and_then_and_ends_when_it_was_long_enough() {
        let mut woken = Woken::default();
        assert_eq!(woken.turn(5), Turn::Open);
        woken.begin(5, Clocks::new());
        assert_eq!(woken.turn(5 + WINDOW_NS - 1), Turn::Nothing);
        assert_eq!(woken.turn(5 + WINDOW_NS), Turn::Close);
        woken.end(Clocks::new());
        assert_eq!(woken.turn(5 + DISTANCE_NS), Turn::Nothing, "what it wrote is still to be read");
        woken.measured();
        assert_eq!(woken.turn(5 + DISTANCE_NS - 1), Turn::Nothing);
        assert_eq!(woken.turn(5 + DISTANCE_NS), Turn::Open);
    }

    #[test]
    fn samples_for_it_and_what_is_left_add_up_to_what_was_used() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut of = OfProcess::default();
            assert_eq!(of.without(70), 70, "nothing is known");
            of.stacks.extend((0..3).map(|tid| (tid, stack())));
            of.measure(1_000_000, rng.within(0, 1_000_000));
            let (mut used_ns, mut left_ns, mut told_ns, mut seen) = (0, 0, 0, [0; 3]);
            for batch in 0..100 {
                let used = rng.within(0, 50_000_000);
                used_ns += used;
                left_ns += of.without(used);
                while let Some((tid, _, weight_ns)) = of.next(PERIOD_NS, batch == 99) {
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
            assert_eq!(of.without(70), 70, "nobody waits any more");
        }
    }
}
