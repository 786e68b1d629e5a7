//! Waits: from the moment at which a thread leaves its CPU to the moment at which it has one again.
//!
//! Input: what records tell of switches, of all CPUs in the order of their times, with what was lost;
//! output: waits with their times to the nanosecond, and the stack at which each began.
//!
//! A wait ends when the thread runs again: the time between being woken and having a CPU is part of
//! it. A thread that lost its CPU to another one is ready, which is time on the wall, too, but no wait.

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::super::ring::record::Id;
use crate::sources::Capture;

/// Why the time of a wait has no stack.
pub(in super::super) const STACK_DROPPED: &str = "the kernel dropped where a wait began";
/// Why it is not known how long a thread waited.
pub(in super::super) const END_DROPPED: &str = "the kernel dropped where a wait ended";
/// Why the time of a wait that began before the recording has no stack.
pub(in super::super) const BEGAN_BEFORE: &str = "waited since before the recording";
/// Why nothing is told of a thread that is gone.
const ENDED_UNSEEN: &str = "the kernel dropped that a thread ended";

/// Threads that have ended are remembered until so many more have, since the last switch of a thread
/// is told after its end.
const GONE_MAX: usize = 32_768;

/// The stack at which a thread left its CPU.
#[derive(Debug)]
pub(in super::super) enum Stack {
    /// What the kernel copied, or what was read while the thread waited on.
    Taken(Box<Capture>),
    /// The engine has it.
    Told,
    /// There is none, for this reason.
    Missing(&'static str),
    /// Nobody asks: a thread of the kernel, or time that is not recorded.
    Unwanted,
}

/// What became of a thread.
#[derive(Debug)]
pub(in super::super) enum Switch {
    /// It left its CPU: it waits, or it was `preempted` and is ready for one.
    Out { stack: Stack, preempted: bool },
    /// It has a CPU.
    In,
    /// It was there when the recording began.
    Listed,
    /// What /proc showed of it at this time, while it stayed off its CPU; `None`: it is ready, or on one.
    Looked(Option<Stack>),
    /// It was started: its number is no longer another one's.
    Began,
    /// It has ended.
    Ended,
    /// It runs another program, and has the number of the first thread from now on.
    Exec,
    /// Records of its CPU were dropped since this time.
    Dropped { since_ns: u64 },
}

/// What there is to tell of a wait.
#[derive(Debug)]
pub(in super::super) struct Wait {
    /// Whose.
    pub(in super::super) pid: pid_t,
    pub(in super::super) tid: pid_t,
    /// From when to when (monotonic clock), nanoseconds.
    pub(in super::super) since_ns: u64,
    pub(in super::super) until_ns: u64,
    pub(in super::super) what: Told,
}

/// What a [`Wait`] tells.
#[derive(Debug)]
pub(in super::super) enum Told {
    /// The thread goes on waiting here; `until_ns` is not known yet.
    Goes(Box<Capture>),
    /// It is over, with its stack unless that was told as [`Told::Goes`].
    Over(Option<Box<Capture>>),
    /// It is over, and its time is lost for this reason.
    Lost(&'static str),
}

#[derive(Debug)]
struct Away {
    pid: pid_t,
    since_ns: u64,
    /// It waits; else it is ready for a CPU.
    waits: bool,
    /// A record said that it left its CPU, or a look that it waited.
    certain: bool,
    stack: Stack,
    /// When `stack` was read, where that was later than `since_ns`.
    looked_ns: u64,
}

#[derive(Debug)]
enum State {
    On { since_ns: u64, cpu: u32 },
    Away(Away),
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(in super::super) struct Waits {
    threads: HashMap<pid_t, State>,
    /// The time in which threads are ready is wanted, too.
    ready_too: bool,
    /// By CPU: since when its last dropped records were.
    dropped_since_ns: HashMap<u32, u64>,
    /// Threads that have ended, the last ones and those before.
    gone: [HashSet<pid_t>; 2],
    /// Threads that left their CPUs since [`Waits::go_on`].
    left: Vec<(pid_t, pid_t)>,
    told: Vec<Wait>,
    /// Buffers that nobody asks for.
    #[allow(clippy::vec_box)]
    unused: Vec<Box<Capture>>,
}

impl Waits {
    /// `ready_too`: the time of threads that are ready for a CPU is wanted as well.
    pub(in super::super) fn new(ready_too: bool) -> Waits {
        Waits { ready_too, ..Waits::default() }
    }

    /// What there is to tell, in no order.
    pub(in super::super) fn told(&mut self) -> impl Iterator<Item = Wait> {
        self.told.drain(..)
    }

    /// Buffers that are free again.
    pub(in super::super) fn unused(&mut self) -> impl Iterator<Item = Box<Capture>> {
        self.unused.drain(..)
    }

    /// Takes in what became of a thread. Times of one thread rise.
    pub(in super::super) fn take(&mut self, id: Id, switch: Switch) {
        match switch {
            Switch::Out { stack, preempted } => self.left_cpu(id, stack, preempted),
            Switch::In => self.got_cpu(id),
            Switch::Listed => {
                let away = Away {
                    pid: id.pid,
                    since_ns: id.time_ns,
                    waits: true,
                    certain: false,
                    stack: Stack::Missing(BEGAN_BEFORE),
                    looked_ns: 0,
                };
                self.threads.entry(id.tid).or_insert(State::Away(away));
            }
            Switch::Looked(seen) => self.looked(id, seen),
            Switch::Began => {
                for gone in &mut self.gone {
                    gone.remove(&id.tid);
                }
                self.threads.remove(&id.tid);
            }
            Switch::Ended => {
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
                    // It runs: that it got its CPU was dropped, or told of its other number.
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
        if let Stack::Taken(capture) = stack {
            self.unused.push(capture);
        }
    }

    fn left_cpu(&mut self, id: Id, stack: Stack, preempted: bool) {
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
        if matches!(stack, Stack::Taken(_) | Stack::Missing(_)) {
            self.left.push((id.pid, id.tid));
        }
        let away =
            Away { pid: id.pid, since_ns: id.time_ns, waits: !preempted, certain: true, stack, looked_ns: 0 };
        // It left twice: in between it had a CPU, and one that nothing is certain of had one all along.
        if let Some(State::Away(before)) = self.threads.insert(id.tid, State::Away(away)) {
            let lost = before.certain && !matches!(before.stack, Stack::Unwanted);
            if lost {
                self.lose(id.tid, &before, id.time_ns, END_DROPPED);
            }
            self.discard(before.stack);
        }
    }

    fn got_cpu(&mut self, id: Id) {
        if self.is_gone(id.tid) {
            return;
        }
        match self.threads.insert(id.tid, State::On { since_ns: id.time_ns, cpu: id.cpu }) {
            Some(State::Away(away)) => self.over(id.tid, away, id.time_ns),
            // It left a CPU whose records were dropped: after that began, and after it got it.
            Some(State::On { since_ns, cpu }) => {
                let dropped_ns = self.dropped_since_ns.get(&cpu).copied().unwrap_or(0);
                let since_ns = since_ns.max(dropped_ns).min(id.time_ns);
                let what = Told::Lost(STACK_DROPPED);
                self.told.push(Wait { pid: id.pid, tid: id.tid, since_ns, until_ns: id.time_ns, what });
            }
            // Seen first: a new thread, or a new number of an old one.
            None => {}
        }
    }

    fn looked(&mut self, id: Id, seen: Option<Stack>) {
        let state = self.threads.get_mut(&id.tid);
        let lacking = state.and_then(|state| match state {
            State::Away(away) if matches!(away.stack, Stack::Missing(_)) => Some(away),
            _ => None,
        });
        let (Some(away), Some(stack)) = (lacking, seen) else { return };
        (away.waits, away.certain, away.looked_ns) = (true, true, id.time_ns);
        let before = std::mem::replace(&mut away.stack, stack);
        self.discard(before);
        self.left.push((id.pid, id.tid));
    }

    /// A thread is away no longer.
    fn over(&mut self, tid: pid_t, away: Away, until_ns: u64) {
        if !away.waits && !self.ready_too {
            return self.discard(away.stack);
        }
        // What was read of it then is of another wait.
        let looked_late = away.looked_ns > until_ns;
        let Away { pid, since_ns, .. } = away;
        let what = match away.stack {
            Stack::Unwanted => return,
            Stack::Missing(why) => Told::Lost(why),
            stack if looked_late => {
                self.discard(stack);
                Told::Lost(STACK_DROPPED)
            }
            Stack::Taken(capture) => Told::Over(Some(capture)),
            Stack::Told => Told::Over(None),
        };
        self.told.push(Wait { pid, tid, since_ns, until_ns, what });
    }

    fn lose(&mut self, tid: pid_t, away: &Away, until_ns: u64, why: &'static str) {
        let (pid, since_ns) = (away.pid, away.since_ns);
        self.told.push(Wait { pid, tid, since_ns, until_ns, what: Told::Lost(why) });
    }

    /// Tells of those that wait on, at the end of a batch: what was copied of their stacks need not be
    /// kept. Threads whose stacks are missing are added to `lacking`.
    pub(in super::super) fn go_on(&mut self, lacking: &mut impl Extend<(pid_t, pid_t)>) {
        for (pid, tid) in self.left.drain(..) {
            let Some(State::Away(away)) = self.threads.get_mut(&tid) else { continue };
            match std::mem::replace(&mut away.stack, Stack::Told) {
                Stack::Taken(capture) => {
                    let since_ns = away.since_ns;
                    let what = Told::Goes(capture);
                    self.told.push(Wait { pid, tid, since_ns, until_ns: since_ns, what });
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

    /// The recording ends: what goes on is counted up to here, of threads that are there.
    pub(in super::super) fn end(&mut self, until_ns: u64, is_there: impl Fn(pid_t, pid_t) -> bool) {
        for (tid, state) in std::mem::take(&mut self.threads) {
            let State::Away(away) = state else { continue };
            // One that was never seen to switch, nor looked at while it waited, may have run.
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

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> Id {
        Id { pid: PID, tid, time_ns, cpu }
    }

    fn stack() -> Stack {
        Stack::Taken(Box::new(Capture::with_capacity(0)))
    }

    fn waits() -> Switch {
        Switch::Out { stack: stack(), preempted: false }
    }

    fn preempted() -> Switch {
        Switch::Out { stack: stack(), preempted: true }
    }

    /// Thread, length and what is told: `over`, `told` for one whose stack was told before, `goes`,
    /// or why it is lost.
    fn told(waits: &mut Waits) -> Vec<(pid_t, u64, &'static str)> {
        let words = |what| match what {
            Told::Goes(_) => "goes",
            Told::Over(Some(_)) => "over",
            Told::Over(None) => "told",
            Told::Lost(why) => why,
        };
        waits.told().map(|wait| (wait.tid, wait.until_ns - wait.since_ns, words(wait.what))).collect()
    }

    /// What is told of these events, up to the end of the recording at 1000, with every thread there.
    fn run(ready_too: bool, events: Vec<(pid_t, u64, u32, Switch)>) -> Vec<(pid_t, u64, &'static str)> {
        let mut all = Waits::new(ready_too);
        for (tid, time_ns, cpu, switch) in events {
            all.take(id(tid, time_ns, cpu), switch);
        }
        all.end(1_000, |_, _| true);
        told(&mut all)
    }

    #[test]
    fn a_wait_is_from_leaving_a_cpu_to_having_one_whichever_that_is() {
        let events = vec![(1, 100, 0, waits()), (2, 110, 0, Switch::In), (1, 350, 1, Switch::In)];
        assert_eq!(run(false, events), [(1, 250, "over")]);
    }

    #[test]
    fn who_was_preempted_is_ready_and_does_not_wait() {
        let events = || vec![(1, 100, 0, preempted()), (1, 350, 1, Switch::In)];
        assert_eq!(run(false, events()), []);
        assert_eq!(run(true, events()), [(1, 250, "over")]);
    }

    #[test]
    fn what_goes_on_is_told_once_and_counted_to_the_end() {
        let mut all = Waits::new(false);
        all.take(id(1, 100, 0), waits());
        all.take(id(2, 200, 0), waits());
        all.take(id(2, 250, 0), Switch::In);
        let mut lacking = Vec::new();
        all.go_on(&mut lacking);
        assert_eq!(told(&mut all), [(2, 50, "over"), (1, 0, "goes")]);
        all.go_on(&mut lacking);
        assert_eq!((told(&mut all), lacking), (vec![], vec![]));
        all.take(id(2, 300, 0), waits());
        all.end(1_000, |_, _| true);
        let mut last = told(&mut all);
        last.sort_unstable();
        assert_eq!(last, [(1, 900, "told"), (2, 700, "over")]);
    }

    #[test]
    fn a_stack_that_was_dropped_is_looked_for_and_counted_as_lost_if_it_is_not_found() {
        let out = || Switch::Out { stack: Stack::Missing(STACK_DROPPED), preempted: false };
        assert_eq!(run(false, vec![(1, 100, 0, out()), (1, 350, 0, Switch::In)]), [(1, 250, STACK_DROPPED)]);
        let mut all = Waits::new(false);
        all.take(id(1, 100, 0), out());
        let mut lacking = Vec::new();
        all.go_on(&mut lacking);
        assert_eq!(lacking, [(PID, 1)]);
        all.take(id(1, 200, 0), Switch::Looked(Some(stack())));
        all.go_on(&mut lacking);
        all.take(id(1, 350, 0), Switch::In);
        assert_eq!(told(&mut all), [(1, 0, "goes"), (1, 250, "told")]);
    }

    #[test]
    fn a_look_at_a_later_wait_says_nothing_of_the_one_before() {
        let out = Switch::Out { stack: Stack::Missing(STACK_DROPPED), preempted: false };
        let mut all = Waits::new(false);
        all.take(id(1, 100, 0), out);
        // Read at 400, taken in before what the thread did at 300.
        all.take(id(1, 400, 0), Switch::Looked(Some(stack())));
        all.take(id(1, 300, 0), Switch::In);
        assert_eq!(told(&mut all), [(1, 200, STACK_DROPPED)]);
    }

    #[test]
    fn a_dropped_end_and_a_dropped_beginning_are_lost_time() {
        let twice = vec![(1, 100, 0, waits()), (1, 300, 0, waits()), (1, 400, 0, Switch::In)];
        assert_eq!(run(false, twice), [(1, 200, END_DROPPED), (1, 100, "over")]);
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
            (1, 200, 0, Switch::Ended),
            (1, 210, 0, waits()),
            (1, 220, 0, Switch::In),
            (1, 230, 0, waits()),
            (1, 400, 0, Switch::Began),
            (1, 410, 0, Switch::In),
            (1, 420, 0, waits()),
        ];
        assert_eq!(run(false, events), [(1, 580, "over")]);
    }

    #[test]
    fn who_ends_while_away_waited_until_then() {
        assert_eq!(run(false, vec![(1, 100, 0, waits()), (1, 300, 1, Switch::Ended)]), [(1, 200, "over")]);
    }

    #[test]
    fn after_an_exec_by_another_thread_the_number_of_the_first_is_in_use() {
        let events = vec![
            (PID, 100, 0, Switch::Ended),
            (PID, 110, 0, waits()),
            (PID, 200, 1, Switch::Exec),
            (PID, 300, 1, waits()),
            (PID, 450, 1, Switch::In),
        ];
        assert_eq!(run(false, events), [(PID, 150, "over")]);
    }

    #[test]
    fn threads_of_before_wait_from_the_beginning_if_they_are_seen_to() {
        let events = vec![
            // Looked at while it waits; never looked at, and running; preempted as the recording began.
            (1, 10, 0, Switch::Listed),
            (2, 10, 0, Switch::Listed),
            (3, 10, 0, Switch::Listed),
            (4, 10, 0, Switch::Listed),
            (1, 20, 0, Switch::Looked(Some(stack()))),
            (2, 30, 0, Switch::Looked(None)),
            (2, 500, 0, waits()),
            (2, 600, 0, Switch::In),
            (3, 60, 0, Switch::In),
            // Its first switch was told before the look at it came.
            (3, 70, 0, waits()),
            (3, 65, 0, Switch::Looked(Some(stack()))),
        ];
        let mut seen = run(false, events);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 990, "over"), (2, 100, "over"), (3, 50, BEGAN_BEFORE), (3, 930, "over")]);
    }

    #[test]
    fn what_went_unseen_is_not_counted_as_waiting() {
        let mut all = Waits::new(false);
        all.take(id(1, 100, 0), waits());
        all.end(1_000, |_, _| false);
        assert_eq!(told(&mut all), [(1, 900, ENDED_UNSEEN)]);
    }

    #[test]
    fn threads_of_the_kernel_do_not_wait() {
        let out = || Switch::Out { stack: Stack::Unwanted, preempted: false };
        let events = vec![(1, 100, 0, out()), (1, 300, 0, Switch::In), (1, 400, 0, out())];
        assert_eq!(run(true, events), []);
    }
}
