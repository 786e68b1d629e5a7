//! Waits: from the moment at which a thread leaves its CPU to the moment at which it has one again.
//!
//! Input: what records say of switches, of all CPUs in the order of their times, with what was lost;
//! output: waits with their times to the nanosecond, and the stack at which each began.
//!
//! A wait ends when the thread runs again: the time between being woken and having a CPU is part of
//! it. A thread that lost its CPU to another one is ready, which is time on the wall, too, but no wait.

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::super::ring::record::SampleId;
use crate::sources::Capture;

/// Why the time of a wait has no stack.
pub(in crate::sources::linux::perf) const STACK_DROPPED: &str = "the kernel dropped where a wait began";
/// Why it is not known how long a thread waited.
pub(in crate::sources::linux::perf) const END_DROPPED: &str = "the kernel dropped where a wait ended";
/// Why the time of a wait that began before the recording has no stack.
pub(in crate::sources::linux::perf) const BEGAN_BEFORE: &str = "waited since before the recording";
/// Why the wait of a thread that is gone is lost.
const ENDED_UNSEEN: &str = "the kernel dropped that a thread ended";

/// Threads that have ended are remembered until so many more have, since the last switch of a thread
/// is recorded after its end.
const GONE_MAX: usize = 32_768;

/// The stack at which a thread left its CPU.
#[derive(Debug)]
pub(in crate::sources::linux::perf) enum Stack {
    /// What the kernel copied, or what was read while the thread waited on.
    Copied(Box<Capture>),
    /// The sampler has it.
    Reported,
    /// There is none, for this reason.
    Missing(&'static str),
    /// Nobody asks: a thread of the kernel, or time that is not recorded.
    Unwanted,
}

/// What became of a thread.
#[derive(Debug)]
pub(in crate::sources::linux::perf) enum Switch {
    /// It left its CPU: it waits, or it was `preempted` and is ready for one.
    Out { stack: Stack, preempted: bool },
    /// It has a CPU.
    In,
    /// It was there when the recording began.
    Listed,
    /// What /proc showed of it at this time, while it stayed off its CPU; `None`: it is ready, or on one.
    Polled(Option<Stack>),
    /// It was started: its number is no longer another one's.
    Started,
    /// It exited.
    Exited,
    /// It runs another program, and has the number of the first thread from now on.
    Exec,
    /// Records of its CPU were dropped since this time.
    Dropped { since_ns: u64 },
}

/// A wait of a thread.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Wait {
    /// Whose.
    pub(in crate::sources::linux::perf) pid: pid_t,
    pub(in crate::sources::linux::perf) tid: pid_t,
    /// From when to when (monotonic clock), nanoseconds.
    pub(in crate::sources::linux::perf) since_ns: u64,
    pub(in crate::sources::linux::perf) until_ns: u64,
    pub(in crate::sources::linux::perf) outcome: WaitOutcome,
}

/// What became of a [`Wait`].
#[derive(Debug)]
pub(in crate::sources::linux::perf) enum WaitOutcome {
    /// The thread continues to wait here; `until_ns` is not known yet.
    Continues(Box<Capture>),
    /// The wait ended, with its stack unless that was reported as [`WaitOutcome::Continues`].
    Ended(Option<Box<Capture>>),
    /// The wait ended, and its time is lost for this reason.
    Lost(&'static str),
}

#[derive(Debug)]
struct OffCpuTime {
    pid: pid_t,
    since_ns: u64,
    /// It waits; else it is ready for a CPU.
    waits: bool,
    /// A record said that it left its CPU, or a poll that it waited.
    certain: bool,
    stack: Stack,
    /// When `stack` was read, where that was later than `since_ns`.
    polled_ns: u64,
}

#[derive(Debug)]
enum State {
    On { since_ns: u64, cpu: u32 },
    Away(OffCpuTime),
}

/// Threads, on a CPU or off it.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct Waits {
    threads: HashMap<pid_t, State>,
    /// The time in which threads are ready is recorded, too.
    ready_too: bool,
    /// By CPU: since when its last dropped records were.
    dropped_since_ns: HashMap<u32, u64>,
    /// Threads that have ended, the last ones and those before.
    gone: [HashSet<pid_t>; 2],
    /// Threads that left their CPUs since [`Waits::go_on`].
    left: Vec<(pid_t, pid_t)>,
    reported: Vec<Wait>,
    /// Buffers that nobody asks for.
    #[allow(clippy::vec_box)]
    unused: Vec<Box<Capture>>,
}

impl Waits {
    /// `ready_too`: the time of threads that are ready for a CPU is recorded as well.
    pub(in crate::sources::linux::perf) fn new(ready_too: bool) -> Waits {
        Waits { ready_too, ..Waits::default() }
    }

    /// The waits so far, in no order.
    pub(super) fn reported(&mut self) -> impl Iterator<Item = Wait> {
        self.reported.drain(..)
    }

    /// Buffers that are free again.
    pub(in crate::sources::linux::perf) fn unused(&mut self) -> impl Iterator<Item = Box<Capture>> {
        self.unused.drain(..)
    }

    /// Takes in what became of a thread. Times of one thread rise.
    pub(in crate::sources::linux::perf) fn push_switch(&mut self, id: SampleId, switch: Switch) {
        match switch {
            Switch::Out { stack, preempted } => self.left_cpu(id, stack, preempted),
            Switch::In => self.got_cpu(id),
            Switch::Listed => {
                let away = OffCpuTime {
                    pid: id.pid,
                    since_ns: id.time_ns,
                    waits: true,
                    certain: false,
                    stack: Stack::Missing(BEGAN_BEFORE),
                    polled_ns: 0,
                };
                self.threads.entry(id.tid).or_insert(State::Away(away));
            }
            Switch::Polled(seen) => self.polled(id, seen),
            Switch::Started => {
                for gone in &mut self.gone {
                    gone.remove(&id.tid);
                }
                self.threads.remove(&id.tid);
            }
            Switch::Exited => {
                if let Some(State::Away(away)) = self.threads.remove(&id.tid) {
                    self.over(id.tid, away, id.time_ns);
                }
                if self.gone[0].len() >= GONE_MAX {
                    self.gone[1] = std::mem::take(&mut self.gone[0]);
                }
                self.gone[0].insert(id.tid);
            }
            Switch::Exec => {
                for gone in &mut self.gone {
                    gone.remove(&id.tid);
                }
                let on = State::On { since_ns: id.time_ns, cpu: id.cpu };
                if let Some(State::Away(away)) = self.threads.insert(id.tid, on) {
                    // It runs: that it got its CPU was dropped, or recorded with its other number.
                    self.discard(away.stack);
                }
            }
            Switch::Dropped { since_ns } => {
                self.dropped_since_ns.insert(id.cpu, since_ns);
            }
        }
    }

    fn is_gone(&self, tid: pid_t) -> bool {
        self.gone.iter().any(|gone| gone.contains(&tid))
    }

    fn discard(&mut self, stack: Stack) {
        if let Stack::Copied(capture) = stack {
            self.unused.push(capture);
        }
    }

    fn left_cpu(&mut self, id: SampleId, stack: Stack, preempted: bool) {
        if self.is_gone(id.tid) {
            return self.discard(stack);
        }
        let wanted = !preempted || self.ready_too;
        let stack = if wanted {
            stack
        } else {
            self.discard(stack);
            Stack::Unwanted
        };
        if matches!(stack, Stack::Copied(_) | Stack::Missing(_)) {
            self.left.push((id.pid, id.tid));
        }
        let away = OffCpuTime {
            pid: id.pid,
            since_ns: id.time_ns,
            waits: !preempted,
            certain: true,
            stack,
            polled_ns: 0,
        };
        // It left twice: in between it had a CPU, and one that nothing is certain of had one all along.
        if let Some(State::Away(before)) = self.threads.insert(id.tid, State::Away(away)) {
            let lost = before.certain && !matches!(before.stack, Stack::Unwanted);
            if lost {
                self.lose(id.tid, &before, id.time_ns, END_DROPPED);
            }
            self.discard(before.stack);
        }
    }

    fn got_cpu(&mut self, id: SampleId) {
        if self.is_gone(id.tid) {
            return;
        }
        match self.threads.insert(id.tid, State::On { since_ns: id.time_ns, cpu: id.cpu }) {
            Some(State::Away(away)) => self.over(id.tid, away, id.time_ns),
            // It left a CPU whose records were dropped: after that began, and after it got it.
            Some(State::On { since_ns, cpu }) => {
                let dropped_ns = self.dropped_since_ns.get(&cpu).copied().unwrap_or(0);
                let since_ns = since_ns.max(dropped_ns).min(id.time_ns);
                let outcome = WaitOutcome::Lost(STACK_DROPPED);
                self.reported.push(Wait {
                    pid: id.pid,
                    tid: id.tid,
                    since_ns,
                    until_ns: id.time_ns,
                    outcome,
                });
            }
            // Seen first: a new thread, or a new number of an old one.
            None => {}
        }
    }

    fn polled(&mut self, id: SampleId, seen: Option<Stack>) {
        let state = self.threads.get_mut(&id.tid);
        let lacking = state.and_then(|state| match state {
            State::Away(away) if matches!(away.stack, Stack::Missing(_)) => Some(away),
            _ => None,
        });
        let (Some(away), Some(stack)) = (lacking, seen) else { return };
        (away.waits, away.certain, away.polled_ns) = (true, true, id.time_ns);
        let before = std::mem::replace(&mut away.stack, stack);
        self.discard(before);
        self.left.push((id.pid, id.tid));
    }

    /// A thread is away no longer.
    fn over(&mut self, tid: pid_t, away: OffCpuTime, until_ns: u64) {
        if !away.waits && !self.ready_too {
            return self.discard(away.stack);
        }
        // What was read of it then is of another wait.
        let polled_late = away.polled_ns > until_ns;
        let OffCpuTime { pid, since_ns, .. } = away;
        let outcome = match away.stack {
            Stack::Unwanted => return,
            Stack::Missing(why) => WaitOutcome::Lost(why),
            stack if polled_late => {
                self.discard(stack);
                WaitOutcome::Lost(STACK_DROPPED)
            }
            Stack::Copied(capture) => WaitOutcome::Ended(Some(capture)),
            Stack::Reported => WaitOutcome::Ended(None),
        };
        self.reported.push(Wait { pid, tid, since_ns, until_ns, outcome });
    }

    fn lose(&mut self, tid: pid_t, away: &OffCpuTime, until_ns: u64, why: &'static str) {
        let (pid, since_ns) = (away.pid, away.since_ns);
        self.reported.push(Wait { pid, tid, since_ns, until_ns, outcome: WaitOutcome::Lost(why) });
    }

    /// Reports those that wait on, at the end of a batch: what was copied of their stacks need not be
    /// kept. Threads whose stacks are missing are added to `lacking`.
    pub(in crate::sources::linux::perf) fn go_on(&mut self, lacking: &mut impl Extend<(pid_t, pid_t)>) {
        for (pid, tid) in self.left.drain(..) {
            let Some(State::Away(away)) = self.threads.get_mut(&tid) else { continue };
            match std::mem::replace(&mut away.stack, Stack::Reported) {
                Stack::Copied(capture) => {
                    let since_ns = away.since_ns;
                    let outcome = WaitOutcome::Continues(capture);
                    self.reported.push(Wait { pid, tid, since_ns, until_ns: since_ns, outcome });
                }
                stack => {
                    if away.waits && matches!(stack, Stack::Missing(STACK_DROPPED)) {
                        lacking.extend([(pid, tid)]);
                    }
                    away.stack = stack;
                }
            }
        }
    }

    /// The recording ends: waits that continue are counted up to here, of threads that are there.
    pub(in crate::sources::linux::perf) fn end(
        &mut self,
        until_ns: u64,
        is_there: impl Fn(pid_t, pid_t) -> bool,
    ) {
        for (tid, state) in std::mem::take(&mut self.threads) {
            let State::Away(away) = state else { continue };
            // One that was never seen to switch, nor polled while it waited, may have run.
            if !away.certain || matches!(away.stack, Stack::Unwanted) {
                self.discard(away.stack);
            } else if is_there(away.pid, tid) {
                let until_ns = until_ns.max(away.since_ns);
                self.over(tid, away, until_ns);
            } else {
                self.lose(tid, &away, until_ns.max(away.since_ns), ENDED_UNSEEN);
                self.discard(away.stack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PID: pid_t = 7;

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> SampleId {
        SampleId { pid: PID, tid, time_ns, cpu }
    }

    fn stack() -> Stack {
        Stack::Copied(Box::new(Capture::with_capacity(0)))
    }

    fn waits() -> Switch {
        Switch::Out { stack: stack(), preempted: false }
    }

    fn preempted() -> Switch {
        Switch::Out { stack: stack(), preempted: true }
    }

    /// Thread, length and outcome: `ended`, `reported` for one whose stack was reported before, `continues`,
    /// or why it is lost.
    fn reported(waits: &mut Waits) -> Vec<(pid_t, u64, &'static str)> {
        let words = |outcome| match outcome {
            WaitOutcome::Continues(_) => "continues",
            WaitOutcome::Ended(Some(_)) => "ended",
            WaitOutcome::Ended(None) => "reported",
            WaitOutcome::Lost(why) => why,
        };
        waits.reported().map(|wait| (wait.tid, wait.until_ns - wait.since_ns, words(wait.outcome))).collect()
    }

    /// What is reported of these events, up to the end of the recording at 1000, with every thread there.
    fn run(ready_too: bool, events: Vec<(pid_t, u64, u32, Switch)>) -> Vec<(pid_t, u64, &'static str)> {
        let mut all = Waits::new(ready_too);
        for (tid, time_ns, cpu, switch) in events {
            all.push_switch(id(tid, time_ns, cpu), switch);
        }
        all.end(1_000, |_, _| true);
        reported(&mut all)
    }

    #[test]
    fn a_wait_is_from_leaving_a_cpu_to_having_one_whichever_that_is() {
        let events = vec![(1, 100, 0, waits()), (2, 110, 0, Switch::In), (1, 350, 1, Switch::In)];
        assert_eq!(run(false, events), [(1, 250, "ended")]);
    }

    #[test]
    fn who_was_preempted_is_ready_and_does_not_wait() {
        let events = || vec![(1, 100, 0, preempted()), (1, 350, 1, Switch::In)];
        assert_eq!(run(false, events()), []);
        assert_eq!(run(true, events()), [(1, 250, "ended")]);
    }

    #[test]
    fn what_goes_on_is_reported_once_and_counted_to_the_end() {
        let mut all = Waits::new(false);
        all.push_switch(id(1, 100, 0), waits());
        all.push_switch(id(2, 200, 0), waits());
        all.push_switch(id(2, 250, 0), Switch::In);
        let mut lacking = Vec::new();
        all.go_on(&mut lacking);
        assert_eq!(reported(&mut all), [(2, 50, "ended"), (1, 0, "continues")]);
        all.go_on(&mut lacking);
        assert_eq!((reported(&mut all), lacking), (vec![], vec![]));
        all.push_switch(id(2, 300, 0), waits());
        all.end(1_000, |_, _| true);
        let mut last = reported(&mut all);
        last.sort_unstable();
        assert_eq!(last, [(1, 900, "reported"), (2, 700, "ended")]);
    }

    #[test]
    fn a_stack_that_was_dropped_is_polled_for_and_counted_as_lost_if_it_is_not_found() {
        let out = || Switch::Out { stack: Stack::Missing(STACK_DROPPED), preempted: false };
        assert_eq!(run(false, vec![(1, 100, 0, out()), (1, 350, 0, Switch::In)]), [(1, 250, STACK_DROPPED)]);
        let mut all = Waits::new(false);
        all.push_switch(id(1, 100, 0), out());
        let mut lacking = Vec::new();
        all.go_on(&mut lacking);
        assert_eq!(lacking, [(PID, 1)]);
        all.push_switch(id(1, 200, 0), Switch::Polled(Some(stack())));
        all.go_on(&mut lacking);
        all.push_switch(id(1, 350, 0), Switch::In);
        assert_eq!(reported(&mut all), [(1, 0, "continues"), (1, 250, "reported")]);
    }

    #[test]
    fn a_poll_of_a_later_wait_says_nothing_of_the_one_before() {
        let out = Switch::Out { stack: Stack::Missing(STACK_DROPPED), preempted: false };
        let mut all = Waits::new(false);
        all.push_switch(id(1, 100, 0), out);
        // Read at 400, taken in before what the thread did at 300.
        all.push_switch(id(1, 400, 0), Switch::Polled(Some(stack())));
        all.push_switch(id(1, 300, 0), Switch::In);
        assert_eq!(reported(&mut all), [(1, 200, STACK_DROPPED)]);
    }

    #[test]
    fn a_dropped_end_and_a_dropped_beginning_are_lost_time() {
        let twice = vec![(1, 100, 0, waits()), (1, 300, 0, waits()), (1, 400, 0, Switch::In)];
        assert_eq!(run(false, twice), [(1, 200, END_DROPPED), (1, 100, "ended")]);
        // On CPU 0 since 100, whose records were dropped from 250 on: it left between 250 and 600.
        let never_left = vec![
            (1, 100, 0, Switch::In),
            (9, 500, 0, Switch::Dropped { since_ns: 250 }),
            (1, 600, 1, Switch::In),
        ];
        assert_eq!(run(false, never_left), [(1, 350, STACK_DROPPED)]);
    }

    #[test]
    fn the_last_switch_of_a_thread_that_has_ended_is_no_wait_until_its_number_is_another_ones() {
        let events = vec![
            (1, 100, 0, Switch::In),
            (1, 200, 0, Switch::Exited),
            (1, 210, 0, waits()),
            (1, 220, 0, Switch::In),
            (1, 230, 0, waits()),
            (1, 400, 0, Switch::Started),
            (1, 410, 0, Switch::In),
            (1, 420, 0, waits()),
        ];
        assert_eq!(run(false, events), [(1, 580, "ended")]);
    }

    #[test]
    fn who_ends_while_away_waited_until_then() {
        assert_eq!(run(false, vec![(1, 100, 0, waits()), (1, 300, 1, Switch::Exited)]), [(1, 200, "ended")]);
    }

    #[test]
    fn after_an_exec_by_another_thread_the_number_of_the_first_is_in_use() {
        let events = vec![
            (PID, 100, 0, Switch::Exited),
            (PID, 110, 0, waits()),
            (PID, 200, 1, Switch::Exec),
            (PID, 300, 1, waits()),
            (PID, 450, 1, Switch::In),
        ];
        assert_eq!(run(false, events), [(PID, 150, "ended")]);
    }

    #[test]
    fn threads_of_before_wait_from_the_beginning_if_they_are_seen_to() {
        let events = vec![
            // Polled while it waits; never polled, and running; preempted as the recording began.
            (1, 10, 0, Switch::Listed),
            (2, 10, 0, Switch::Listed),
            (3, 10, 0, Switch::Listed),
            (4, 10, 0, Switch::Listed),
            (1, 20, 0, Switch::Polled(Some(stack()))),
            (2, 30, 0, Switch::Polled(None)),
            (2, 500, 0, waits()),
            (2, 600, 0, Switch::In),
            (3, 60, 0, Switch::In),
            // Its first switch was recorded before it was polled.
            (3, 70, 0, waits()),
            (3, 65, 0, Switch::Polled(Some(stack()))),
        ];
        let mut seen = run(false, events);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 990, "ended"), (2, 100, "ended"), (3, 50, BEGAN_BEFORE), (3, 930, "ended")]);
    }

    #[test]
    fn what_went_unseen_is_not_counted_as_waiting() {
        let mut all = Waits::new(false);
        all.push_switch(id(1, 100, 0), waits());
        all.end(1_000, |_, _| false);
        assert_eq!(reported(&mut all), [(1, 900, ENDED_UNSEEN)]);
    }

    #[test]
    fn threads_of_the_kernel_do_not_wait() {
        let out = || Switch::Out { stack: Stack::Unwanted, preempted: false };
        let events = vec![(1, 100, 0, out()), (1, 300, 0, Switch::In), (1, 400, 0, out())];
        assert_eq!(run(true, events), []);
    }
}
