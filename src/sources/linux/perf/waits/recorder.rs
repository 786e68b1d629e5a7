//! The waits stage: waits of threads by the context switches of all CPUs.
//!
//! Input: records of switches and the stacks that were copied at them; output: waits with their times and their stacks.
//! A thread whose stack is not known is polled through /proc.

use std::collections::VecDeque;

use libc::pid_t;

use super::super::buffers::Pool;
use super::super::clocks::Clocks;
use super::super::reorder::exited_threads::EXITED_TID;
use super::super::ring::record::{PerfRecord, SampleId};
use super::context_switches::ContextSwitches;
use super::sleeping_thread::{self, SleepingThreads};
use super::wait::{Stack, Switch, Wait, Waits};
use crate::sources::Capture;

/// Threads that are polled between two batches: some milliseconds, and some megabytes of stacks.
const POLLS_PER_BATCH: usize = 128;
/// Most threads that are to be polled.
const POLLS_MAX: usize = 65_536;

/// The state of the stage.
pub(in crate::sources::linux::perf) struct WaitRecorder {
    switches: ContextSwitches,
    waits: Waits,
    /// Threads to be polled.
    to_poll: VecDeque<(pid_t, pid_t)>,
    /// Of this process nothing is taken until it runs its program.
    held: Option<pid_t>,
}

impl WaitRecorder {
    /// `alone`: nothing but waits is recorded. `held` is a process that is to run a command.
    pub(in crate::sources::linux::perf) fn new(alone: bool, held: Option<pid_t>) -> WaitRecorder {
        WaitRecorder {
            switches: ContextSwitches::default(),
            // Time in which a thread is ready is time on the wall, but says nothing of what the
            // program waits for.
            waits: Waits::new(!alone),
            to_poll: VecDeque::new(),
            held,
        }
    }

    /// Takes switches until this time from the rings that are read next, and from then on of others.
    pub(in crate::sources::linux::perf) fn accept_until(&mut self, until_ns: u64) {
        self.switches.accept_until(until_ns);
    }

    /// Takes switches from this time on, as [`WaitRecorder::accept_until`] says.
    pub(in crate::sources::linux::perf) fn accept_from(&mut self, from_ns: u64) {
        self.switches.accept_from(from_ns);
    }

    /// Takes in a record of any kind, those of one CPU in their order. `selected`: its process is recorded.
    pub(in crate::sources::linux::perf) fn push_record(
        &mut self,
        id: SampleId,
        record: &PerfRecord<'_>,
        selected: bool,
    ) {
        match record {
            PerfRecord::Lost(_) => self.switches.dropped(id),
            // That nothing runs is no thread, and one that exited waits for nothing.
            _ if !selected || id.pid <= 0 || id.tid == EXITED_TID => {}
            PerfRecord::SwitchIn { .. } => self.switches.note(id, Switch::In),
            PerfRecord::SwitchOut { preempted } => self.switches.left(id, *preempted),
            PerfRecord::Exit => self.switches.note(id, Switch::Exited),
            PerfRecord::Fork { .. } => self.switches.note(id, Switch::Started),
            PerfRecord::Comm { exec: true, .. } => self.switches.note(id, Switch::Exec),
            _ => {}
        }
        self.switches.note_record(id);
    }

    /// Takes in the stack at which a thread is about to leave its CPU. A buffer that is not needed is given back.
    pub(in crate::sources::linux::perf) fn push_stack(
        &mut self,
        id: SampleId,
        stack: Stack,
    ) -> Option<Box<Capture>> {
        match self.switches.copied(id, stack) {
            Some(Stack::Copied(capture)) => Some(capture),
            _ => None,
        }
    }

    /// A thread was there when the recording began, at this time.
    pub(in crate::sources::linux::perf) fn list(&mut self, pid: pid_t, tid: pid_t, time_ns: u64) {
        self.switches.note(SampleId { pid, tid, time_ns, cpu: 0 }, Switch::Listed);
        self.request_poll(pid, tid);
    }

    fn request_poll(&mut self, pid: pid_t, tid: pid_t) {
        if self.to_poll.len() < POLLS_MAX {
            self.to_poll.push_back((pid, tid));
        }
    }

    /// Polls threads whose stacks are not known, some at a time.
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
            self.switches.note(id, Switch::Polled(stack));
        }
    }

    /// The waits by what happened before the watermark (monotonic clock). `select` says whether a process is recorded, of
    /// which there is a stack or not.
    pub(in crate::sources::linux::perf) fn flush(
        &mut self,
        watermark_ns: u64,
        mut select: impl FnMut(pid_t, bool) -> bool,
        spare: &mut Pool<Box<Capture>>,
    ) -> Vec<Wait> {
        for (id, switch) in self.switches.release(watermark_ns) {
            if self.held == Some(id.pid) {
                if !matches!(switch, Switch::Exec) {
                    give_back(switch, spare);
                    continue;
                }
                self.held = None;
            }
            let has_stack = matches!(switch, Switch::Out { stack: Stack::Copied(_), .. });
            let of_thread = !matches!(switch, Switch::Started | Switch::Exited | Switch::Dropped { .. });
            let is_selected = select(id.pid, has_stack);
            if of_thread && !is_selected {
                give_back(switch, spare);
                continue;
            }
            self.waits.push_switch(id, switch);
        }
        let mut lacking = Vec::new();
        self.waits.go_on(&mut lacking);
        for (pid, tid) in lacking {
            self.request_poll(pid, tid);
        }
        self.reported(spare)
    }

    /// The waits that continue at the end of the recording, at this time.
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

fn give_back(switch: Switch, spare: &mut Pool<Box<Capture>>) {
    if let Switch::Out { stack: Stack::Copied(capture), .. } | Switch::Polled(Some(Stack::Copied(capture))) =
        switch
    {
        spare.give_back(capture);
    }
}
