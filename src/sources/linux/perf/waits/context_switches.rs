//! Switches of threads as records tell of them, ring after ring, put in order; and the waits between
//! them told to the engine.
//!
//! Input: records of switches, samples taken at them, and what was dropped; output: [`Record`]s of waits.
//! A thread leaves one CPU and gets another: what is not certain to be whole over all rings yet is
//! kept for the next batch.

use std::collections::VecDeque;
use std::path::Path;

use hashbrown::HashMap;
use libc::pid_t;

use super::super::events::WINDOW_BYTES_MAX;
use super::super::ring::record::Id;
use super::super::ring::sys;
use super::super::told::Told;
use super::sleeping_thread;
use super::wait::{self, STACK_DROPPED, Stack, Switch, Wait, Waits};
use crate::sources::pushed::{Record, What};

/// Threads that are looked at between two batches: some milliseconds, and some megabytes of stacks.
const LOOKS_PER_BATCH: usize = 128;
/// Most threads that are to be looked at.
const LOOKS_MAX: usize = 65_536;

/// See the top of this file.
pub(in super::super) struct ContextSwitches {
    waits: Waits,
    /// By CPU: the stack that was copied of the thread that leaves it next.
    copied: HashMap<u32, (pid_t, Stack)>,
    /// What is not in order yet.
    batch: Vec<(Id, Switch)>,
    /// Switches are taken from this time on, and until this one: two sets of events may tell of the same.
    from_ns: u64,
    until_ns: u64,
    /// By CPU: the time of the last record.
    last_ns: HashMap<u32, u64>,
    /// Threads to be looked at.
    to_look: VecDeque<(pid_t, pid_t)>,
    /// Of this process nothing is taken until it runs its program.
    held: Option<pid_t>,
}

impl ContextSwitches {
    /// `alone`: nothing but waits is recorded. `held` is a process that is to run a command.
    pub(in super::super) fn new(alone: bool, held: Option<pid_t>) -> ContextSwitches {
        ContextSwitches {
            // Time in which a thread is ready is time on the wall, but says nothing of what the
            // program waits for.
            waits: Waits::new(!alone),
            copied: HashMap::new(),
            batch: Vec::new(),
            from_ns: 0,
            until_ns: u64::MAX,
            last_ns: HashMap::new(),
            to_look: VecDeque::new(),
            held,
        }
    }

    /// Takes switches until this time from the rings that are read next, and from then on of others.
    pub(in super::super) fn take_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// See [`ContextSwitches::take_until`].
    pub(in super::super) fn take_from(&mut self, from_ns: u64) {
        (self.from_ns, self.until_ns) = (from_ns, u64::MAX);
    }

    fn takes(&self, time_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&time_ns)
    }

    /// Notes that a record was read.
    pub(in super::super) fn saw(&mut self, id: Id) {
        self.last_ns.insert(id.cpu, id.time_ns);
    }

    /// Records did not fit into the ring of a CPU.
    pub(in super::super) fn dropped(&mut self, id: Id) {
        // That its thread left may be among them, and is not told by the next one that leaves.
        self.copied.remove(&id.cpu);
        let since_ns = self.last_ns.get(&id.cpu).copied().unwrap_or(0);
        self.batch.push((id, Switch::Dropped { since_ns }));
    }

    /// A thread is about to leave its CPU, with this stack. What is left of another is given back.
    pub(in super::super) fn copied(&mut self, id: Id, stack: Stack) -> Option<Stack> {
        if !self.takes(id.time_ns) {
            return Some(stack);
        }
        self.copied.insert(id.cpu, (id.tid, stack)).map(|(_, stack)| stack)
    }

    /// It leaves its CPU; the sample of that stands right before.
    pub(in super::super) fn left(&mut self, id: Id, preempted: bool) {
        if !self.takes(id.time_ns) {
            return;
        }
        let stack = match self.copied.remove(&id.cpu) {
            Some((tid, stack)) if tid == id.tid => stack,
            _ => Stack::Missing(STACK_DROPPED),
        };
        self.batch.push((id, Switch::Out { stack, preempted }));
    }

    /// Something else that happened to a thread.
    pub(in super::super) fn note(&mut self, id: Id, switch: Switch) {
        if !matches!(switch, Switch::In) || self.takes(id.time_ns) {
            self.batch.push((id, switch));
        }
    }

    /// A thread that was there when the recording began, at this time.
    pub(in super::super) fn list(&mut self, pid: pid_t, tid: pid_t, time_ns: u64) {
        self.batch.push((Id { pid, tid, time_ns, cpu: 0 }, Switch::Listed));
        self.want_look(pid, tid);
    }

    fn want_look(&mut self, pid: pid_t, tid: pid_t) {
        if self.to_look.len() < LOOKS_MAX {
            self.to_look.push_back((pid, tid));
        }
    }

    /// What happened before this time, in the order of times.
    fn due(&mut self, until_ns: u64) -> Vec<(Id, Switch)> {
        // Stable: what a ring tells of one moment stays in its order.
        self.batch.sort_by_key(|(id, _)| id.time_ns);
        let due = self.batch.partition_point(|(id, _)| id.time_ns < until_ns);
        let later = self.batch.split_off(due);
        std::mem::replace(&mut self.batch, later)
    }
}

impl Told {
    /// Looks at threads whose stacks are not known, some at a time.
    pub(in super::super) fn look_at_threads(&mut self) {
        for _ in 0..LOOKS_PER_BATCH {
            let Some((pid, tid)) = self.switched.as_mut().and_then(|all| all.to_look.pop_front()) else {
                return;
            };
            let buffer = self.buffer();
            let (seen, unused) = sleeping_thread::look(pid, tid, buffer);
            if let Some(unused) = unused {
                self.give_back(unused);
            }
            let id = Id { pid, tid, time_ns: sys::monotonic_ns(), cpu: 0 };
            if let Some(switched) = &mut self.switched {
                switched.note(id, Switch::Looked(seen));
            }
        }
    }

    /// Tells of waits, with what happened before `until_ns` (monotonic clock).
    pub(in super::super) fn tell_waits(&mut self, until_ns: u64, into: &mut Vec<Record>) {
        let Some(mut switched) = self.switched.take() else { return };
        for (id, switch) in switched.due(until_ns) {
            if switched.held == Some(id.pid) {
                if !matches!(switch, Switch::Exec) {
                    self.take_buffer(switch);
                    continue;
                }
                switched.held = None;
            }
            let sampled = matches!(switch, Switch::Out { stack: Stack::Taken(_), .. });
            let of_thread = !matches!(switch, Switch::Began | Switch::Ended | Switch::Dropped { .. });
            let wanted = self.members.contains_key(&id.pid) || sampled && self.judge(id.pid, None, 0);
            if of_thread && !wanted {
                self.take_buffer(switch);
                continue;
            }
            switched.waits.take(id, switch);
        }
        let mut lacking = Vec::new();
        switched.waits.go_on(&mut lacking);
        for (pid, tid) in lacking {
            switched.want_look(pid, tid);
        }
        self.tell_each(&mut switched.waits, into);
        self.switched = Some(switched);
    }

    /// Tells of the waits that go on at the end of the recording, at this time.
    pub(in super::super) fn end_waits(&mut self, until_ns: u64, into: &mut Vec<Record>) {
        let Some(mut switched) = self.switched.take() else { return };
        let is_there = |pid, tid| Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
        switched.waits.end(until_ns, is_there);
        self.tell_each(&mut switched.waits, into);
    }

    fn tell_each(&mut self, waits: &mut Waits, into: &mut Vec<Record>) {
        for wait in waits.told() {
            let Wait { pid, tid, since_ns, until_ns, mut what } = wait;
            if let wait::Told::Goes(capture) | wait::Told::Over(Some(capture)) = &mut what
                && !self.kernel_frames
            {
                capture.kernel.clear();
            }
            if let wait::Told::Goes(capture) | wait::Told::Over(Some(capture)) = &what
                && let Some(member) = self.members.get_mut(&pid)
            {
                member.bring_in_stack(tid, capture, WINDOW_BYTES_MAX);
            }
            let id = Id { pid, tid, time_ns: since_ns, cpu: 0 };
            self.meet(id, into);
            let ns = until_ns.saturating_sub(since_ns);
            let (time_ns, what) = match what {
                wait::Told::Goes(capture) => (since_ns, What::BeganToWait(capture)),
                wait::Told::Over(stack) => (until_ns, What::Waited { ns, stack }),
                wait::Told::Lost(reason) => (until_ns, What::WaitLost { ns, reason }),
            };
            into.push(self.record(Id { time_ns, ..id }, what));
        }
        for capture in waits.unused() {
            self.give_back(capture);
        }
    }

    fn take_buffer(&mut self, switch: Switch) {
        if let Switch::Out { stack: Stack::Taken(capture), .. }
        | Switch::Looked(Some(Stack::Taken(capture))) = switch
        {
            self.give_back(capture);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> Id {
        Id { pid: 1, tid, time_ns, cpu }
    }

    fn seen(switched: &mut ContextSwitches, until_ns: u64) -> Vec<(pid_t, u64, &'static str)> {
        let words = |switch| match switch {
            Switch::Out { stack: Stack::Unwanted, .. } => "out",
            Switch::Out { stack: Stack::Missing(why), .. } => why,
            Switch::In => "in",
            other => panic!("{other:?}"),
        };
        switched.due(until_ns).into_iter().map(|(id, switch)| (id.tid, id.time_ns, words(switch))).collect()
    }

    #[test]
    fn what_another_ring_may_still_precede_waits_for_the_next_batch() {
        let mut switched = ContextSwitches::new(false, None);
        // Ring 0 is read before thread 5 leaves CPU 0, ring 1 after it has CPU 1.
        switched.note(id(5, 900, 1), Switch::In);
        assert_eq!(seen(&mut switched, 800), []);
        assert!(switched.copied(id(5, 850, 0), Stack::Unwanted).is_none());
        switched.left(id(5, 851, 0), false);
        assert_eq!(seen(&mut switched, 1_000), [(5, 851, "out"), (5, 900, "in")]);
    }

    #[test]
    fn a_stack_belongs_to_the_thread_that_leaves_next() {
        let mut switched = ContextSwitches::new(false, None);
        assert!(switched.copied(id(5, 10, 0), Stack::Unwanted).is_none());
        switched.left(id(6, 20, 0), false);
        switched.left(id(5, 30, 0), false);
        assert_eq!(seen(&mut switched, 100), [(6, 20, STACK_DROPPED), (5, 30, STACK_DROPPED)]);
    }

    #[test]
    fn a_stack_is_not_that_of_a_later_wait_if_what_followed_was_dropped() {
        let mut switched = ContextSwitches::new(false, None);
        assert!(switched.copied(id(5, 10, 0), Stack::Unwanted).is_none());
        switched.dropped(id(5, 20, 0));
        switched.left(id(5, 30, 0), false);
        let left = switched.due(100).pop();
        let missing = |switch| matches!(switch, Switch::Out { stack: Stack::Missing(STACK_DROPPED), .. });
        assert!(left.is_some_and(|(_, switch)| missing(switch)));
    }

    #[test]
    fn switches_that_two_sets_of_events_tell_of_count_once() {
        let mut switched = ContextSwitches::new(false, None);
        switched.take_until(100);
        for time_ns in [90, 110] {
            switched.note(id(5, time_ns, 0), Switch::In);
        }
        switched.take_from(100);
        for time_ns in [91, 111] {
            switched.note(id(5, time_ns, 0), Switch::In);
        }
        assert_eq!(seen(&mut switched, 1_000), [(5, 90, "in"), (5, 111, "in")]);
    }
}
