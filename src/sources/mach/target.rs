//! A process that is sampled through its task port: polls, stops and events in the order of [`Target::next`].
//!
//! There are no notifications of threads that start or exit, exec and exit: listing the threads before ticks
//! shows them (see `polls.rs`). `stops.rs` stops and copies threads.

use std::sync::Arc;

use super::bsd_process::BsdProcess;
use super::clock::{MachClock, TickTimer};
use super::events::Events;
use super::files::MacFiles;
use super::images::CopiedBytes;
use super::kernel::{Kern, KernReturn};
use super::owned_task::OwnedTask;
use super::polls::Polls;
use super::stops::{StopRequest, Stops};
use super::task::Task;
use super::threads::is_gone;
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
