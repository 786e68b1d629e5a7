//! A process that is sampled through its task port: polls, stops and events in the order of [`Target::next`].
//!
//! `MachTarget`: the process; `Events` wait to be returned, `Polls` decides when threads are listed.
//!
//! There are no notifications of threads that start or exit, exec and exit: listing the threads before ticks
//! shows them. `stops.rs` stops and copies threads.

use std::collections::VecDeque;
use std::sync::Arc;

use super::attach::OwnedTask;
use super::images::{CopiedBytes, MacFiles};
use super::kernel::{Kern, KernReturn};
use super::stops::{StopRequest, Stops};
use super::task::{BsdProcess, Task};
use super::threads::{MachClock, TickTimer, is_gone};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::sources::{
    Activity, Capture, ExitStatus, Fault, Observed, Process, Target, TargetEvent, ThreadId, ThreadStatus,
};

/// A process that is sampled through its task port.
pub struct MachTarget<'k> {
    process: BsdProcess<'k>,
    task: Task<'k>,
    timer: TickTimer<'k>,
    polls: Polls,
    stops: Stops,
    events: Events,
    copied: CopiedBytes,
}

impl<'k> MachTarget<'k> {
    /// The target of an acquired task.
    pub(super) fn new(acquired: OwnedTask<'k>, description: Process, launched: bool) -> MachTarget<'k> {
        MachTarget {
            timer: TickTimer::new(acquired.kernel()),
            process: BsdProcess::new(&acquired, description, launched),
            task: Task::new(acquired),
            polls: Polls::default(),
            stops: Stops::default(),
            events: Events::default(),
            copied: CopiedBytes::default(),
        }
    }

    /// Lists threads and images for the first time. Returns the processor that the program was compiled for, if its
    /// header was readable.
    ///
    /// # Errors
    /// The kernel's error when listing the threads.
    pub(super) fn begin(&mut self) -> Kern<Option<u32>> {
        let now_ns = self.timer.now_ns();
        let threads = self.task.list_threads(now_ns, || false)?.started.len() as u64;
        let listed_ns = self.timer.now_ns();
        self.polls.end(now_ns, listed_ns, true);
        // One call per thread, the list, and its memory.
        self.stops.expect_calls_of(listed_ns.saturating_sub(now_ns) / (threads + 2));
        // Unreadable images are read later.
        let _ = self.task.refresh_images(now_ns);
        Ok(self.task.program_cpu_type())
    }

    /// The clock for [`Target::next`].
    #[must_use]
    pub fn clock(&self) -> MachClock<'k> {
        self.timer.clock()
    }

    /// Reports changes since the last time, or continues to. A tick is due at `tick_ns`, and is not delayed
    /// for long.
    fn poll(&mut self, tick_ns: u64) {
        let begun_ns = self.timer.now_ns();
        self.process.begin_poll();
        let pause_ns = self.polls.begin(begun_ns, tick_ns);
        let done = self.poll_until(begun_ns, pause_ns);
        self.polls.end(begun_ns, self.timer.now_ns(), done);
    }

    /// True if everything was polled before `pause_ns`.
    fn poll_until(&mut self, now_ns: u64, pause_ns: u64) -> bool {
        if !self.process.has_task() {
            self.find_task();
            return true;
        }
        match self.list_threads(now_ns, pause_ns) {
            Ok(true) => {}
            Ok(false) => return false,
            // 5: the task is inactive (osfmk/kern/task.c, task_threads_internal).
            Err(failed) if is_gone(failed) || failed == KernReturn::Failure => {
                self.find_task();
                return true;
            }
            // Temporary: the known threads are kept.
            Err(_) => {}
        }
        if self.task.have_images_changed() {
            self.events.images_changed();
        }
        true
    }

    /// Lists the threads until `pause_ns`, and reports started and exited ones; true if the list is complete.
    fn list_threads(&mut self, now_ns: u64, pause_ns: u64) -> Kern<bool> {
        let timer = &self.timer;
        let changes = self.task.list_threads(now_ns, || timer.now_ns() >= pause_ns)?;
        for thread in changes.started {
            self.events.thread_started(thread);
        }
        for thread in changes.ended {
            self.stops.forget(thread);
            self.events.thread_exited(thread);
        }
        Ok(changes.done)
    }

    /// Handles a dead task port: the process has exited, or executed a new program.
    fn find_task(&mut self) {
        let now_ns = self.timer.now_ns();
        match self.process.acquire_task(now_ns) {
            Ok(found) if found.port() == self.task.port() => {
                // Still the same task, exiting, or it was a mistake.
                drop(found);
                if self.list_threads(now_ns, u64::MAX).is_ok() {
                    self.process.found_task();
                    return;
                }
            }
            Ok(found) if !self.process.owns(&found) => {
                drop(found);
                return self.end(self.process.exit_status().unwrap_or(ExitStatus::Unknown));
            }
            Ok(found) => {
                if self.exec(found) {
                    return;
                }
            }
            Err(_) => {}
        }
        if let Some(status) = self.process.end(now_ns) {
            self.end(status);
        }
    }

    fn end(&mut self, status: ExitStatus) {
        self.stops.cancel("process ended before it was stopped");
        self.events.end(TargetEvent::Exited(status));
    }

    /// Switches to the new program of the process, in another task; false if that has not started.
    fn exec(&mut self, acquired: OwnedTask<'k>) -> bool {
        if self.process.is_translated() {
            // Its stacks would be wrong: the recording ends here.
            self.events.end(TargetEvent::Terminate);
            return true;
        }
        let mut task = Task::new(acquired);
        let listed = task.list_threads(self.timer.now_ns(), || false);
        let mut started = listed.map(|changes| changes.started).unwrap_or_default().into_iter();
        // If it has not started, the next poll tries again.
        let Some(thread) = started.next() else { return false };
        self.stops.cancel("the program was replaced before it was stopped");
        if !self.task.is_settled() {
            self.process.rename_child();
        }
        self.task = task;
        self.process.found_task();
        self.events.exec(thread, started);
        true
    }

    /// Makes requested stops.
    fn stop(&mut self) {
        if !self.process.has_task() {
            self.stops.cancel("the program ended or was replaced before it was stopped");
        } else if self.stops.make(&mut self.task, self.process.description(), self.timer.clock()) {
            self.events.images_changed();
        }
    }
}

impl Observed for MachTarget<'_> {
    fn process(&self) -> &Process {
        self.process.description()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(MacFiles::new(self.process.description().pid))
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.task.thread_name(thread, &mut self.copied)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.task.refresh_images(self.timer.now_ns())?;
        self.task.mappings(out);
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.task.image_bytes(mapping, &mut self.copied)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.task.read(from, into).map_err(|_| Fault::Transient("memory could not be read"))
    }
}

impl Target for MachTarget<'_> {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.task.thread_ids().into_iter().map(|id| (id, None)));
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        let status = self.task.poll(thread, self.timer.now_ns());
        match status {
            Err(Fault::ThreadGone) => self.polls.hurry(),
            // Threads of a process stopped by job control are reported as waiting.
            Ok(ThreadStatus { activity: Activity::Waiting, cpu_ns, switches })
                if self.process.is_job_stopped() =>
            {
                return Ok(ThreadStatus { activity: Activity::Stopped, cpu_ns, switches });
            }
            _ => {}
        }
        status
    }

    fn stops_at_once(&self) -> usize {
        self.stops.at_once()
    }

    fn overslept_ns(&self) -> Option<u64> {
        Some(self.timer.overslept_ns())
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        if !self.task.has_thread(thread) {
            return Err(Fault::ThreadGone);
        }
        self.stops.request(StopRequest { thread, stack_bytes, keep_waiting });
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        if until_ns > 0 {
            self.timer.request_qos();
        }
        // However long a poll takes, there is at most one after `until_ns`.
        let mut polled_late = false;
        loop {
            if let Some(event) = self.events.next() {
                return Ok(event);
            }
            if let Some((thread, outcome)) = self.stops.take(capture) {
                return Ok(TargetEvent::Stopped { thread, outcome });
            }
            if self.events.have_ended() {
                return Err(Fault::Gone);
            }
            if self.stops.are_requested() {
                self.stop();
                continue;
            }
            if until_ns == 0 {
                return Ok(TargetEvent::Timeout);
            }
            let now_ns = self.timer.now_ns();
            if now_ns >= until_ns && (polled_late || !self.polls.is_due(now_ns)) {
                return Ok(TargetEvent::Timeout);
            }
            let due_ns = until_ns.min(self.polls.due_between_ticks_ns());
            if now_ns < due_ns {
                self.timer.wait_until_ns(due_ns, until_ns);
                continue;
            }
            self.poll(until_ns);
            polled_late = self.timer.now_ns() >= until_ns;
        }
    }
}

// ---- Events of a process that wait to be returned. Input: what changed. Output: [`TargetEvent`]s, in order.

/// Events, up to the last one of the process.
#[derive(Default)]
pub(super) struct Events {
    queue: VecDeque<TargetEvent>,
    has_ended: bool,
}

impl Events {
    pub(super) fn thread_started(&mut self, thread: ThreadId) {
        self.push(TargetEvent::ThreadStarted { thread, stack_top: None });
    }

    pub(super) fn thread_exited(&mut self, thread: ThreadId) {
        self.push(TargetEvent::ThreadExited { thread, cpu_ns: None });
    }

    pub(super) fn images_changed(&mut self) {
        self.push(TargetEvent::ImagesChanged);
    }

    /// The process executed a program that began with these threads.
    pub(super) fn exec(&mut self, thread: ThreadId, others: impl Iterator<Item = ThreadId>) {
        self.push(TargetEvent::Exec { thread, stack_top: None });
        others.for_each(|thread| self.thread_started(thread));
    }

    /// The last event; none follows.
    pub(super) fn end(&mut self, last: TargetEvent) {
        self.push(last);
        self.has_ended = true;
    }

    /// Takes the next event.
    pub(super) fn next(&mut self) -> Option<TargetEvent> {
        self.queue.pop_front()
    }

    pub(super) fn have_ended(&self) -> bool {
        self.has_ended
    }

    fn push(&mut self, event: TargetEvent) {
        if !self.has_ended {
            self.queue.push_back(event);
        }
    }
}

// ---- Schedules thread lists. Input: the cost of earlier lists. Output: when to begin, pause or continue one.
// Must not depend on fast calls: a list of many threads takes as many calls, and a call may take any time.
// So a long list is made in pieces, never twice for one tick, and its cost is bounded.

/// Least interval of lists, however short the ticks, nanoseconds …
const EVERY_NS: u64 = 500_000;
/// … and longest interval, however long the ticks, so that an exit is noticed.
const BETWEEN_TICKS_NS: u64 = 10_000_000;
/// After a list, wait this many times as long as it took: for ticks …
const TICK_COST: u64 = 3;
/// … and between them.
const BETWEEN_COST: u64 = 20;
/// Longest delay of a tick by a list, nanoseconds. The rest of the list is made before later ticks.
const PIECE_NS: u64 = 5_000_000;

/// Past and next lists of the threads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Polls {
    /// When the last one ended, and its duration.
    ended_ns: u64,
    cost_ns: u64,
    /// Duration so far of the current one.
    so_far_ns: Option<u64>,
    /// A thread was found to have exited.
    hurry: bool,
}

impl Polls {
    /// Whether a list, or the rest of one, is due before a tick.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let times = if self.hurry { 1 } else { TICK_COST };
        self.so_far_ns.is_some() || now_ns >= self.after(EVERY_NS, times)
    }

    /// When a list is due regardless of ticks.
    pub(super) fn due_between_ticks_ns(&self) -> u64 {
        if self.so_far_ns.is_some() { 0 } else { self.after(BETWEEN_TICKS_NS, BETWEEN_COST) }
    }

    /// Requests a list soon, because of a known change.
    pub(super) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Begins or continues a list at `now_ns`; returns when it has to pause. The tick is due at `tick_ns`.
    pub(super) fn begin(&mut self, now_ns: u64, tick_ns: u64) -> u64 {
        self.so_far_ns.get_or_insert(0);
        now_ns.max(tick_ns).saturating_add(PIECE_NS)
    }

    /// Ends a list or a piece of it, which took from `begun_ns` to `now_ns`.
    pub(super) fn end(&mut self, begun_ns: u64, now_ns: u64, done: bool) {
        let so_far_ns = self.so_far_ns.unwrap_or(0).saturating_add(now_ns.saturating_sub(begun_ns));
        *self = if done {
            Polls { ended_ns: now_ns, cost_ns: so_far_ns, so_far_ns: None, hurry: false }
        } else {
            Polls { so_far_ns: Some(so_far_ns), ..*self }
        };
    }

    fn after(&self, least_ns: u64, times: u64) -> u64 {
        self.ended_ns.saturating_add(self.cost_ns.saturating_mul(times).max(least_ns))
    }
}

#[cfg(test)]
mod polls_tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_slow_list_is_not_due_again_at_once() {
        let mut polls = Polls::default();
        assert!(polls.is_due(EVERY_NS));
        polls.begin(MS, MS);
        polls.end(MS, 3 * MS, true);
        assert!(!polls.is_due(3 * MS) && !polls.is_due(9 * MS - 1) && polls.is_due(9 * MS));
        assert_eq!(polls.due_between_ticks_ns(), 43 * MS);
        polls.hurry();
        assert!(polls.is_due(5 * MS));
    }

    #[test]
    fn the_cost_of_a_list_is_that_of_all_its_pieces() {
        let mut polls = Polls::default();
        assert_eq!(polls.begin(10 * MS, 12 * MS), 17 * MS);
        polls.end(10 * MS, 17 * MS, false);
        assert!(polls.is_due(17 * MS), "the rest of it");
        assert_eq!(polls.begin(30 * MS, 20 * MS), 35 * MS);
        polls.end(30 * MS, 33 * MS, true);
        assert!(!polls.is_due(62 * MS) && polls.is_due(63 * MS));
    }
}
