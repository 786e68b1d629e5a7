//! The waits stage: waits, from the context switch that takes a thread off its CPU to the one that gives it a CPU
//! again.
//!
//! `ContextSwitches` orders the switches of all CPUs with the stacks copied at them, `WaitRecorder` is the stage,
//! `SleepingThreads` reads stacks that the kernel could not copy through /proc; `wait.rs` makes the waits.

pub(super) mod wait;

use std::collections::VecDeque;
use std::path::Path;

use hashbrown::HashMap;
use libc::pid_t;

use super::buffers::Pool;
use super::reorder::{EXITED_TID, Queue};
use super::ring::{PerfRecord, SampleId};
use crate::sources::linux::clocks::Clocks;
use crate::sources::linux::proc;
use crate::sources::{Capture, SleepingThread};
use wait::{STACK_DROPPED, SwitchStack, ThreadEvent, Wait, WaitTracker};

// ---- Context switches of all CPUs, with the stacks copied at them.
//
// A thread leaves one CPU and gets another, so switches wait for the next batch until all rings were read past
// them.

/// Switches not yet in order.
#[derive(Debug)]
struct ContextSwitches {
    queue: Queue<ThreadEvent>,
    /// By CPU: the copied stack of the next thread to leave it.
    copied: HashMap<u32, (pid_t, SwitchStack)>,
    /// The time span of accepted switches: two sets of events may record the same ones.
    from_ns: u64,
    until_ns: u64,
    /// By CPU: the time of the last record.
    last_ns: HashMap<u32, u64>,
}

impl Default for ContextSwitches {
    fn default() -> ContextSwitches {
        ContextSwitches {
            queue: Queue::default(),
            copied: HashMap::new(),
            from_ns: 0,
            until_ns: u64::MAX,
            last_ns: HashMap::new(),
        }
    }
}

impl ContextSwitches {
    /// Accepts switches up to this time from the rings read next, and later ones from others.
    fn accept_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// Accepts switches from this time on, see [`ContextSwitches::accept_until`].
    fn accept_from(&mut self, from_ns: u64) {
        (self.from_ns, self.until_ns) = (from_ns, u64::MAX);
    }

    fn is_accepted(&self, time_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&time_ns)
    }

    /// Notes that a record was read.
    fn note_record(&mut self, id: SampleId) {
        self.last_ns.insert(id.cpu, id.time_ns);
    }

    /// Records of a CPU were lost.
    fn dropped(&mut self, id: SampleId) {
        // The lost records may include the one of its thread leaving; the next thread must not get its stack.
        self.copied.remove(&id.cpu);
        let since_ns = self.last_ns.get(&id.cpu).copied().unwrap_or(0);
        self.queue.push(id, ThreadEvent::Dropped { since_ns });
    }

    /// Records the stack of a thread about to leave its CPU. Returns a stack left over from another thread.
    fn copied(&mut self, id: SampleId, stack: SwitchStack) -> Option<SwitchStack> {
        if !self.is_accepted(id.time_ns) {
            return Some(stack);
        }
        self.copied.insert(id.cpu, (id.tid, stack)).map(|(_, stack)| stack)
    }

    /// Records that a thread leaves its CPU; its switch sample comes right before.
    fn left(&mut self, id: SampleId, preempted: bool) {
        if !self.is_accepted(id.time_ns) {
            return;
        }
        let stack = match self.copied.remove(&id.cpu) {
            Some((tid, stack)) if tid == id.tid => stack,
            _ => SwitchStack::Missing(STACK_DROPPED),
        };
        self.queue.push(id, ThreadEvent::Out { stack, preempted });
    }

    /// Records another event of a thread.
    fn note(&mut self, id: SampleId, switch: ThreadEvent) {
        if !matches!(switch, ThreadEvent::In) || self.is_accepted(id.time_ns) {
            self.queue.push(id, switch);
        }
    }

    /// The events before this time, in time order.
    fn release(&mut self, watermark_ns: u64) -> Vec<(SampleId, ThreadEvent)> {
        self.queue.release_before(watermark_ns)
    }
}

// ---- The waits stage: waits of threads by the context switches of all CPUs.
//
// Threads with unknown stacks are polled through /proc.

/// Threads polled per batch: some milliseconds, and some megabytes of stacks.
const POLLS_PER_BATCH: usize = 128;
/// Maximum number of threads queued for polls.
const POLLS_MAX: usize = 65_536;

/// The state of the stage.
pub(crate) struct WaitRecorder {
    switches: ContextSwitches,
    waits: WaitTracker,
    /// Threads queued for polls.
    to_poll: VecDeque<(pid_t, pid_t)>,
    /// A process that is not recorded until it runs its program.
    held: Option<pid_t>,
}

impl WaitRecorder {
    /// `alone`: only waits are recorded. `held`: a process that will run a command.
    pub(crate) fn new(alone: bool, held: Option<pid_t>) -> WaitRecorder {
        WaitRecorder {
            switches: ContextSwitches::default(),
            // Ready time is wall-clock time, but does not show what the program waits for.
            waits: WaitTracker::new(!alone),
            to_poll: VecDeque::new(),
            held,
        }
    }

    /// Accepts switches up to this time from the rings read next, and later ones from others.
    pub(crate) fn accept_until(&mut self, until_ns: u64) {
        self.switches.accept_until(until_ns);
    }

    /// Accepts switches from this time on, see [`WaitRecorder::accept_until`].
    pub(crate) fn accept_from(&mut self, from_ns: u64) {
        self.switches.accept_from(from_ns);
    }

    /// Reads a record of any kind; those of one CPU come in order. `selected`: its process is recorded.
    pub(crate) fn push_record(&mut self, id: SampleId, record: &PerfRecord<'_>, selected: bool) {
        match record {
            PerfRecord::Lost(_) => self.switches.dropped(id),
            // The idle task is not a thread, and an exited thread does not wait.
            _ if !selected || id.pid <= 0 || id.tid == EXITED_TID => {}
            PerfRecord::SwitchIn { .. } => self.switches.note(id, ThreadEvent::In),
            PerfRecord::SwitchOut { preempted } => self.switches.left(id, *preempted),
            PerfRecord::Exit => self.switches.note(id, ThreadEvent::Exited),
            PerfRecord::Fork { .. } => self.switches.note(id, ThreadEvent::Started),
            PerfRecord::Comm { exec: true, .. } => self.switches.note(id, ThreadEvent::Exec),
            _ => {}
        }
        self.switches.note_record(id);
    }

    /// Keeps the stack of a thread that is about to leave its CPU. Returns a buffer that is not needed.
    pub(crate) fn push_stack(&mut self, id: SampleId, stack: SwitchStack) -> Option<Box<Capture>> {
        match self.switches.copied(id, stack) {
            Some(SwitchStack::Copied(capture)) => Some(capture),
            _ => None,
        }
    }

    /// Adds a thread that existed when the recording began, at this time.
    pub(crate) fn list(&mut self, pid: pid_t, tid: pid_t, time_ns: u64) {
        self.switches.note(SampleId { pid, tid, time_ns, cpu: 0 }, ThreadEvent::Listed);
        self.request_poll(pid, tid);
    }

    fn request_poll(&mut self, pid: pid_t, tid: pid_t) {
        if self.to_poll.len() < POLLS_MAX {
            self.to_poll.push_back((pid, tid));
        }
    }

    /// Polls some of the threads with unknown stacks.
    pub(crate) fn poll(
        &mut self,
        threads: &dyn SleepingThreads,
        clocks: &dyn Clocks,
        spare: &mut Pool<Box<Capture>>,
    ) {
        for _ in 0..POLLS_PER_BATCH {
            let Some((pid, tid)) = self.to_poll.pop_front() else { return };
            let (stack, unused) = poll(threads, pid, tid, spare.capture());
            if let Some(unused) = unused {
                spare.give_back(unused);
            }
            let id = SampleId { pid, tid, time_ns: clocks.monotonic_ns(), cpu: 0 };
            self.switches.note(id, ThreadEvent::Polled(stack));
        }
    }

    /// The waits by switches before the watermark (monotonic clock). `select(pid, has_stack)`: whether a process is
    /// recorded.
    pub(crate) fn flush(
        &mut self,
        watermark_ns: u64,
        mut select: impl FnMut(pid_t, bool) -> bool,
        spare: &mut Pool<Box<Capture>>,
    ) -> Vec<Wait> {
        for (id, switch) in self.switches.release(watermark_ns) {
            if self.held == Some(id.pid) {
                if !matches!(switch, ThreadEvent::Exec) {
                    give_back(switch, spare);
                    continue;
                }
                self.held = None;
            }
            let has_stack = matches!(switch, ThreadEvent::Out { stack: SwitchStack::Copied(_), .. });
            let of_thread =
                !matches!(switch, ThreadEvent::Started | ThreadEvent::Exited | ThreadEvent::Dropped { .. });
            let is_selected = select(id.pid, has_stack);
            if of_thread && !is_selected {
                give_back(switch, spare);
                continue;
            }
            self.waits.push_switch(id, switch);
        }
        let mut lacking = Vec::new();
        self.waits.report_continuing(&mut lacking);
        for (pid, tid) in lacking {
            self.request_poll(pid, tid);
        }
        self.reported(spare)
    }

    /// The open waits at the end of the recording, at this time.
    pub(crate) fn end(
        &mut self,
        until_ns: u64,
        threads: &dyn SleepingThreads,
        spare: &mut Pool<Box<Capture>>,
    ) -> Vec<Wait> {
        self.waits.end(until_ns, |pid, tid| threads.exists(pid, tid));
        self.reported(spare)
    }

    fn reported(&mut self, spare: &mut Pool<Box<Capture>>) -> Vec<Wait> {
        let waits = self.waits.reported().collect();
        self.waits.unused().for_each(|capture| spare.give_back(capture));
        waits
    }
}

fn give_back(switch: ThreadEvent, spare: &mut Pool<Box<Capture>>) {
    if let ThreadEvent::Out { stack: SwitchStack::Copied(capture), .. }
    | ThreadEvent::Polled(Some(SwitchStack::Copied(capture))) = switch
    {
        spare.give_back(capture);
    }
}

// ---- The stack of a waiting thread, read through /proc: it began to wait before the recording, or the kernel had no
// room for its stack. Input: a thread. Output: its stack, or none if it ran meanwhile.

/// Stack bytes to read: the kernel's maximum for a copy.
const STACK_BYTES: usize = 60 << 10;
/// Reason for a missing stack of a waiting thread.
const NOT_SHOWN: &str = "waited since before the recording, where /proc does not show it";

/// The waits stage's view of threads.
pub(crate) trait SleepingThreads {
    /// Reads registers and stack of a waiting thread.
    fn capture(&self, pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread;

    /// Whether a thread exists.
    fn exists(&self, pid: pid_t, tid: pid_t) -> bool;
}

/// The threads of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemThreads;

impl SleepingThreads for SystemThreads {
    fn capture(&self, pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread {
        proc::capture(pid, tid, stack_bytes, capture)
    }

    fn exists(&self, pid: pid_t, tid: pid_t) -> bool {
        Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
    }
}

/// Polls a thread, with a buffer to fill. `None` if it does not wait, or no longer.
fn poll(
    threads: &dyn SleepingThreads,
    pid: pid_t,
    tid: pid_t,
    mut capture: Box<Capture>,
) -> (Option<SwitchStack>, Option<Box<Capture>>) {
    match threads.capture(pid, tid, STACK_BYTES, &mut capture) {
        SleepingThread::Captured => (Some(SwitchStack::Copied(capture)), None),
        SleepingThread::Awake => (None, Some(capture)),
        SleepingThread::Hidden => (Some(SwitchStack::Missing(NOT_SHOWN)), Some(capture)),
    }
}

#[cfg(test)]
mod context_switches_tests {
    use super::*;

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> SampleId {
        SampleId { pid: 1, tid, time_ns, cpu }
    }

    fn released(switches: &mut ContextSwitches, until_ns: u64) -> Vec<(pid_t, u64, &'static str)> {
        let words = |switch| match switch {
            ThreadEvent::Out { stack: SwitchStack::NotRecorded, .. } => "out",
            ThreadEvent::Out { stack: SwitchStack::Missing(why), .. } => why,
            ThreadEvent::In => "in",
            other => panic!("{other:?}"),
        };
        switches
            .release(until_ns)
            .into_iter()
            .map(|(id, switch)| (id.tid, id.time_ns, words(switch)))
            .collect()
    }

    #[test]
    fn events_after_the_watermark_wait_for_the_next_batch() {
        let mut switches = ContextSwitches::default();
        // Ring 0 is read before thread 5 leaves CPU 0, ring 1 after it has CPU 1.
        switches.note(id(5, 900, 1), ThreadEvent::In);
        assert_eq!(released(&mut switches, 800), []);
        assert!(switches.copied(id(5, 850, 0), SwitchStack::NotRecorded).is_none());
        switches.left(id(5, 851, 0), false);
        assert_eq!(released(&mut switches, 1_000), [(5, 851, "out"), (5, 900, "in")]);
    }

    #[test]
    fn a_stack_belongs_to_the_thread_that_leaves_next() {
        let mut switches = ContextSwitches::default();
        assert!(switches.copied(id(5, 10, 0), SwitchStack::NotRecorded).is_none());
        switches.left(id(6, 20, 0), false);
        switches.left(id(5, 30, 0), false);
        assert_eq!(released(&mut switches, 100), [(6, 20, STACK_DROPPED), (5, 30, STACK_DROPPED)]);
    }

    #[test]
    fn after_losses_a_stack_is_not_attributed_to_a_later_wait() {
        let mut switches = ContextSwitches::default();
        assert!(switches.copied(id(5, 10, 0), SwitchStack::NotRecorded).is_none());
        switches.dropped(id(5, 20, 0));
        switches.left(id(5, 30, 0), false);
        let left = switches.release(100).pop();
        let missing =
            |switch| matches!(switch, ThreadEvent::Out { stack: SwitchStack::Missing(STACK_DROPPED), .. });
        assert!(left.is_some_and(|(_, switch)| missing(switch)));
    }

    #[test]
    fn switches_recorded_by_two_sets_of_events_count_once() {
        let mut switches = ContextSwitches::default();
        switches.accept_until(100);
        for time_ns in [90, 110] {
            switches.note(id(5, time_ns, 0), ThreadEvent::In);
        }
        switches.accept_from(100);
        for time_ns in [91, 111] {
            switches.note(id(5, time_ns, 0), ThreadEvent::In);
        }
        assert_eq!(released(&mut switches, 1_000), [(5, 90, "in"), (5, 111, "in")]);
    }
}
