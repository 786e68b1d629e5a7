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

use hashbrown::HashMap;
use libc::pid_t;

use super::super::buffers::Usage;
use super::super::events::WINDOW_BYTES_MAX;
use super::super::ring::record::Id;
use super::super::ring::sys;
use super::super::told::Told;
use crate::sources::Capture;
use crate::sources::pushed::{Record, What};

/// From the beginning of one window to that of the next, nanoseconds.
const DISTANCE_NS: u64 = 400_000_000;
/// A window is so long that about so many switches are told in it, as many as there were in the one before. Each
/// takes the program a microsecond or two more, and a server's latencies tell of windows that are a tenth of the time.
const SWITCHES_WANTED: u64 = 256;
/// The first one is as short as any, and none is longer than the longest.
const WINDOW_MIN_NS: u64 = 4_000_000;
const WINDOW_MAX_NS: u64 = 45_000_000;
/// Most processes whose clocks are asked.
const CLOCKS_MAX: usize = 512;
/// Most threads whose clocks are brought up to date for it, of one of them and of all: each takes a microsecond.
const THREADS_OF_ONE_MAX: usize = 64;
const THREADS_MAX: usize = 1024;

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
pub(in super::super) enum Turn {
    Open,
    Close,
    Nothing,
}

/// What a record of the window tells.
#[derive(Debug)]
pub(in super::super) enum Seen {
    /// The clock found it on the CPU.
    Sampled,
    /// It has the CPU; `direct`: from a thread that left it for this one.
    In { direct: bool },
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
    /// Since when the thread that had it last was leaving.
    leaving_ns: Option<u64>,
    /// The stack that was copied of the thread that leaves it next.
    copied: Option<(pid_t, Box<Capture>)>,
}

/// See the top of this file.
#[derive(Debug)]
pub(in super::super) struct WakeupLatency {
    state: State,
    last_ns: Option<u64>,
    /// How many switches were told in the last window, or so far in this one.
    switches: u64,
    /// How long a window is to be.
    window_ns: u64,
    cpus: HashMap<u32, OnCpu>,
    /// Who had a CPU from when to when.
    had: Vec<(pid_t, u64, u64)>,
    had_usage: Usage,
    /// Where threads began to wait: process, thread, stack.
    #[allow(clippy::vec_box)]
    waits: Vec<(pid_t, pid_t, Box<Capture>)>,
    /// Whether records of the window were dropped.
    dropped: bool,
}

impl Default for WakeupLatency {
    fn default() -> WakeupLatency {
        WakeupLatency {
            state: State::Closed,
            last_ns: None,
            switches: 0,
            window_ns: WINDOW_MIN_NS,
            cpus: HashMap::new(),
            had: Vec::new(),
            had_usage: Usage::default(),
            waits: Vec::new(),
            dropped: false,
        }
    }
}

impl WakeupLatency {
    /// When the window ends that is open, if one is (monotonic clock).
    pub(in super::super) fn ends_ns(&self) -> Option<u64> {
        match self.state {
            State::Open { since_ns, .. } => Some(since_ns + self.window_ns),
            State::Closed | State::Over { .. } => None,
        }
    }

    /// Whether switches are being told.
    fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed)
    }

    /// What it is time for.
    pub(in super::super) fn turn(&self, now_ns: u64) -> Turn {
        match self.state {
            State::Closed if self.last_ns.is_none_or(|last_ns| now_ns >= last_ns + DISTANCE_NS) => Turn::Open,
            _ if self.ends_ns().is_some_and(|ends_ns| now_ns >= ends_ns) => Turn::Close,
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

    /// `direct`: from another thread. The time of the switch counts for the new one (kernel/sched/core.c,
    /// `__schedule`), and so do ticks in it: they come as soon as it runs.
    fn switched_in(&mut self, id: Id, direct: bool) {
        if self.is_open() {
            self.switches += 1;
            let on = self.cpus.entry(id.cpu).or_default();
            let since_ns = on.leaving_ns.take().filter(|_| direct).unwrap_or(id.time_ns);
            (on.switched, on.has) = (true, Some((id.pid, since_ns)));
        }
    }

    /// A thread leaves its CPU; the sample of that stands right before. What is left of a stack is given back.
    fn switched_out(&mut self, id: Id, preempted: bool) -> Option<Box<Capture>> {
        if !self.is_open() {
            return None;
        }
        self.switches += 1;
        let on = self.cpus.entry(id.cpu).or_default();
        let first = !std::mem::replace(&mut on.switched, true);
        let since_ns = match on.has.take() {
            _ if first => Some(0),
            Some((pid, since_ns)) if pid == id.pid => Some(since_ns),
            _ => None,
        };
        let until_ns = *on.leaving_ns.get_or_insert(id.time_ns);
        self.had.extend(since_ns.map(|since_ns| (id.pid, since_ns, until_ns)));
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
        on.leaving_ns = Some(id.time_ns);
        on.copied.replace((id.tid, capture)).map(|(_, capture)| capture)
    }

    fn begin(&mut self, now_ns: u64, clocks: Clocks) {
        self.last_ns = Some(now_ns);
        self.cpus.clear();
        self.had.clear();
        (self.switches, self.dropped) = (0, false);
        self.state = State::Open { since_ns: now_ns, clocks };
    }

    fn end(&mut self, now_ns: u64, ended: Clocks) {
        if let State::Open { since_ns, clocks: began } = std::mem::take(&mut self.state) {
            self.state = State::Over { began, ended };
            let passed_ns = now_ns.saturating_sub(since_ns);
            let wanted_ns =
                u128::from(passed_ns) * u128::from(SWITCHES_WANTED) / u128::from(self.switches.max(1));
            let wanted_ns = u64::try_from(wanted_ns).unwrap_or(u64::MAX);
            self.window_ns = wanted_ns.clamp(WINDOW_MIN_NS, WINDOW_MAX_NS);
        }
    }

    /// The window counts for nothing: its events are gone, or the recording is.
    pub(in super::super) fn abandon(&mut self) {
        self.state = State::Closed;
    }

    /// Of each process: what its clock counted in the window that is over, and how much of that
    /// before its threads ran, nanoseconds; that may be less than nothing by what times are inexact. All that the
    /// window wrote was read.
    fn measured(&mut self) -> Vec<(pid_t, u64, i64)> {
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
        let used = self.had.len();
        for (pid, from_ns, to_ns) in self.had.drain(..) {
            if let (Some(began), Some(ended)) = (began.get(&pid), ended.get(&pid)) {
                let ran = to_ns.min(ended.at_ns).saturating_sub(from_ns.max(began.at_ns));
                *ran_ns.entry(pid).or_default() += ran;
            }
        }
        self.had_usage.shrink(&mut self.had, used);
        let measured = began.iter().filter_map(|(pid, began)| {
            let used_ns = ended.get(pid)?.cpu_ns.saturating_sub(began.cpu_ns);
            let ran_ns = ran_ns.get(pid).copied().unwrap_or(0);
            (ran_ns > 0).then(|| (*pid, used_ns, used_ns.cast_signed() - ran_ns.cast_signed()))
        });
        measured.collect()
    }
}

impl Told {
    /// Takes in what a record says of switches in the window. `unwanted` is one of a process that is not recorded.
    pub(in super::super) fn note_woken(&mut self, id: Id, switch: Seen) {
        let Some(woken) = &mut self.woken else { return };
        let unused = match switch {
            Seen::Sampled => {
                woken.sampled(id);
                None
            }
            Seen::In { direct } => {
                woken.switched_in(id, direct);
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

    /// Opens a window, whose events tell of switches by now, or ends one, whose events still do.
    pub(in super::super) fn turn_woken(&mut self, turn: Turn) {
        let (mut clocks, mut threads_left) = (Clocks::new(), THREADS_MAX);
        for (pid, member) in
            self.members.iter().filter(|(_, one)| one.told && one.ends_in.is_none()).take(CLOCKS_MAX)
        {
            let threads = member.threads.len().min(THREADS_OF_ONE_MAX).min(threads_left);
            threads_left -= threads;
            sys::bring_clocks_up(member.threads.keys().copied().take(threads));
            let cpu_ns = sys::process_cpu_ns(*pid);
            clocks.extend(cpu_ns.map(|cpu_ns| (*pid, Asked { at_ns: sys::monotonic_ns(), cpu_ns })));
        }
        let Some(woken) = &mut self.woken else { return };
        match turn {
            Turn::Open => woken.begin(sys::monotonic_ns(), clocks),
            Turn::Close => woken.end(sys::monotonic_ns(), clocks),
            Turn::Nothing => {}
        }
    }

    /// Takes in what the last window measured, if all of it was read.
    pub(in super::super) fn settle_woken(&mut self) {
        let Some(mut woken) = self.woken.take() else { return };
        for (pid, used_ns, before_ns) in woken.measured() {
            if let Some(member) = self.members.get_mut(&pid) {
                member.owed.measure(used_ns, before_ns);
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
            let spare = &mut self.spare;
            member.owed.waited(tid, capture, |capture| spare.give_back(capture));
        }
        self.woken = Some(woken);
    }

    /// Tells of samples that stand for time before threads ran; at the end of all of it.
    pub(in super::super) fn tell_woken(&mut self, last_ns: u64, last: bool, into: &mut Vec<Record>) {
        let pids: Vec<pid_t> = self.members.keys().copied().collect();
        for pid in pids {
            self.tell_owed(pid, last_ns, last, into);
        }
    }

    /// The same of one process.
    pub(in super::super) fn tell_owed(&mut self, pid: pid_t, at_ns: u64, last: bool, into: &mut Vec<Record>) {
        let period_ns = self.period_ns;
        let Some(member) = self.members.get_mut(&pid) else { return };
        if last {
            member.owed.settle();
        }
        let mut due = Vec::new();
        while let Some((tid, capture, weight_ns)) = member.owed.next(period_ns, last) {
            // The copy comes back as one of them.
            drop(self.spare.take());
            due.push((Id { pid, tid, time_ns: at_ns, cpu: 0 }, weight_ns, Box::new(capture.clone())));
        }
        member.owed.told();
        for (id, weight_ns, mut capture) in due {
            capture.look = Some(self.weighed(id, weight_ns, into));
            into.push(self.record(id, What::Sampled(capture)));
        }
    }
}

#[cfg(test)]
mod tests;
