//! The waits stage: waits of threads by the context switches of all CPUs.
//!
//! Input: records of switches and the stacks copied at them. Output: waits with their times and stacks. Threads
//! with unknown stacks are polled through /proc.

use std::collections::VecDeque;

use libc::pid_t;

use super::super::buffers::Pool;
use super::super::clocks::Clocks;
use super::super::reorder::exited_threads::EXITED_TID;
use super::super::ring::record::{PerfRecord, SampleId};
use super::context_switches::ContextSwitches;
use super::sleeping_thread::{self, SleepingThreads};
use super::wait::{SwitchStack, ThreadEvent, Wait, WaitTracker};
use crate::sources::Capture;

/// Threads polled per batch: some milliseconds, and some megabytes of stacks.
const POLLS_PER_BATCH: usize = 128;
/// Maximum number of threads queued for polls.
const POLLS_MAX: usize = 65_536;

/// The state of the stage.
pub(in crate::sources::linux::perf) struct WaitRecorder {
    switches: ContextSwitches,
    waits: WaitTracker,
    /// Threads queued for polls.
    to_poll: VecDeque<(pid_t, pid_t)>,
    /// A process that is not recorded until it runs its program.
    held: Option<pid_t>,
}

impl WaitRecorder {
    /// `alone`: only waits are recorded. `held`: a process that will run a command.
    pub(in crate::sources::linux::perf) fn new(alone: bool, held: Option<pid_t>) -> WaitRecorder {
        WaitRecorder {
            switches: ContextSwitches::default(),
            // Ready time is wall-clock time, but does not show what the program waits for.
            waits: WaitTracker::new(!alone),
            to_poll: VecDeque::new(),
            held,
        }
    }

    /// Accepts switches up to this time from the rings read next, and later ones from others.
    pub(in crate::sources::linux::perf) fn accept_until(&mut self, until_ns: u64) {
        self.switches.accept_until(until_ns);
    }

    /// Accepts switches from this time on, see [`WaitRecorder::accept_until`].
    pub(in crate::sources::linux::perf) fn accept_from(&mut self, from_ns: u64) {
        self.switches.accept_from(from_ns);
    }

    /// Reads a record of any kind; those of one CPU come in order. `selected`: its process is recorded.
    pub(in crate::sources::linux::perf) fn push_record(
        &mut self,
        id: SampleId,
        record: &PerfRecord<'_>,
        selected: bool,
    ) {
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
    pub(in crate::sources::linux::perf) fn push_stack(
        &mut self,
        id: SampleId,
        stack: SwitchStack,
    ) -> Option<Box<Capture>> {
        match self.switches.copied(id, stack) {
            Some(SwitchStack::Copied(capture)) => Some(capture),
            _ => None,
        }
    }

    /// Adds a thread that existed when the recording began, at this time.
    pub(in crate::sources::linux::perf) fn list(&mut self, pid: pid_t, tid: pid_t, time_ns: u64) {
        self.switches.note(SampleId { pid, tid, time_ns, cpu: 0 }, ThreadEvent::Listed);
        self.request_poll(pid, tid);
    }

    fn request_poll(&mut self, pid: pid_t, tid: pid_t) {
        if self.to_poll.len() < POLLS_MAX {
            self.to_poll.push_back((pid, tid));
        }
    }

    /// Polls some of the threads with unknown stacks.
    pub(in crate::sources::linux::perf) fn poll(
        &mut self,
        threads: &dyn SleepingThreads,
        clocks: &dyn Clocks,
        spare: &mut Pool<Box<Capture>>,
    ) {
        for _ in 0..POLLS_PER_BATCH {
            let Some((pid, tid)) = self.to_poll.pop_front() else { return };
            let (stack, unused) = sleeping_thread::poll(threads, pid, tid, spare.capture());
            if let Some(unused) = unused {
                spare.give_back(unused);
            }
            let id = SampleId { pid, tid, time_ns: clocks.monotonic_ns(), cpu: 0 };
            self.switches.note(id, ThreadEvent::Polled(stack));
        }
    }

    /// The waits by switches before the watermark (monotonic clock). `select(pid, has_stack)`: whether a process is
    /// recorded.
    pub(in crate::sources::linux::perf) fn flush(
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
    pub(in crate::sources::linux::perf) fn end(
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
