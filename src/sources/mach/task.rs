//! A sampled task: its threads, stops and events.
//!
//! There are no notifications of threads that start or exit, exec and exit: listing the threads before ticks
//! shows them (see `polls.rs`). `stops.rs` stops and copies threads. Input: a task port. Output: events.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::clock::MachClock;
use super::dyld::Dyld;
use super::files::MacFiles;
use super::images::{self, CopiedBytes};
use super::jit::Jit;
use super::kernel::{KernReturn, MachKernel, TaskPort};
use super::memory::Memory;
use super::owned_task::{self, OwnedTask};
use super::polls::Polls;
use super::queues::{self, LabelOffset};
use super::refusal;
use super::stop_queue::{StopRequest, Stops};
use super::threads::{Threads, is_gone};
use crate::addr::Avma;
use crate::binary::macho::{MachO, export};
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError};
use crate::clock::Clock;
use crate::sources::{
    Activity, Capture, ExitStatus, Fault, Observed, Process, Target, TargetEvent, ThreadId, ThreadStatus,
};

/// How long a process without a task is assumed to be in exec or exit.
const BETWEEN_TASKS_NS: u64 = 1_000_000_000;

/// A process that is sampled through its task port.
pub struct MachTarget<'k> {
    pub(super) kernel: &'k dyn MachKernel,
    pub(super) clock: MachClock<'k>,
    pub(super) process: Process,
    pid: i32,
    /// Start time of the process; 0 if unknown.
    start_us: u64,
    pub(super) task: TaskPort,
    pub(super) memory: Memory<'k>,
    pub(super) threads: Threads,
    pub(super) dyld: Dyld,
    pub(super) jit: Jit,
    copied: CopiedBytes,
    /// Empty until searched.
    label_offset: OnceCell<Option<LabelOffset>>,
    /// Events to be returned by [`Target::next`]: before stops.
    pub(super) events: VecDeque<TargetEvent>,
    pub(super) stops: Stops,
    polls: Polls,
    /// Since when the process has no task available to us.
    pub(super) taskless_ns: Option<u64>,
    launched: bool,
    ended: bool,
    /// Total time by which waits ended after the deadline of [`Target::next`].
    overslept_ns: u64,
    qos_requested: bool,
    /// Whether the process is stopped by job control; `None`: not checked since the last poll.
    job_stopped: Option<bool>,
}

impl<'k> MachTarget<'k> {
    pub(super) fn new(
        kernel: &'k dyn MachKernel,
        acquired: OwnedTask,
        process: Process,
        launched: bool,
    ) -> MachTarget<'k> {
        MachTarget {
            kernel,
            clock: MachClock::new(kernel),
            pid: acquired.pid,
            start_us: acquired.start_us,
            process,
            task: acquired.task,
            memory: Memory::new(kernel, acquired.task),
            threads: Threads::default(),
            dyld: Dyld::default(),
            jit: Jit::default(),
            copied: CopiedBytes::default(),
            label_offset: OnceCell::new(),
            events: VecDeque::new(),
            stops: Stops::default(),
            polls: Polls::default(),
            taskless_ns: None,
            launched,
            ended: false,
            overslept_ns: 0,
            qos_requested: false,
            job_stopped: None,
        }
    }

    /// Lists threads and images for the first time.
    ///
    /// # Errors
    /// The kernel's error when listing the threads.
    pub(super) fn begin(&mut self) -> Result<(), KernReturn> {
        let now_ns = self.clock.now_ns();
        let threads = self.threads.list(self.kernel, self.task, now_ns, || false)?.started.len() as u64;
        let listed_ns = self.clock.now_ns();
        self.polls.end(now_ns, listed_ns, true);
        // One call per thread, the list, and its memory.
        self.stops.expect_calls_of(listed_ns.saturating_sub(now_ns) / (threads + 2));
        // Unreadable images are read later.
        let _ = self.dyld.refresh(&self.memory, self.pid, now_ns);
        Ok(())
    }

    /// The clock for [`Target::next`].
    #[must_use]
    pub fn clock(&self) -> MachClock<'k> {
        self.clock
    }

    /// The processor that the program was compiled for, if its header was readable.
    pub(super) fn program_cpu_type(&self) -> Option<u32> {
        const EXECUTE: u32 = 2;
        let images = self.dyld.images().iter();
        images.map(|image| &image.macho).find(|macho| macho.file_type == EXECUTE).map(|macho| macho.cpu_type)
    }

    /// Reports changes since the last time, or continues to. A tick is due at `tick_ns`, and is not delayed
    /// for long.
    fn poll(&mut self, tick_ns: u64) {
        let begun_ns = self.clock.now_ns();
        self.job_stopped = None;
        let pause_ns = self.polls.begin(begun_ns, tick_ns);
        let done = self.poll_until(begun_ns, pause_ns);
        self.polls.end(begun_ns, self.clock.now_ns(), done);
    }

    /// True if everything was polled before `pause_ns`.
    fn poll_until(&mut self, now_ns: u64, pause_ns: u64) -> bool {
        if self.taskless_ns.is_some() {
            self.task_lost();
            return true;
        }
        match self.list_threads(now_ns, pause_ns) {
            Ok(true) => {}
            Ok(false) => return false,
            // 5: the task is inactive (osfmk/kern/task.c, task_threads_internal).
            Err(failed) if is_gone(failed) || failed == KernReturn::Failure => {
                self.task_lost();
                return true;
            }
            // Temporary: the known threads are kept.
            Err(_) => {}
        }
        if self.dyld.has_changed(&self.memory) {
            self.events.push_back(TargetEvent::ImagesChanged);
        }
        true
    }

    /// Lists the threads until `pause_ns`, and reports started and exited ones; true if the list is complete.
    fn list_threads(&mut self, now_ns: u64, pause_ns: u64) -> Result<bool, KernReturn> {
        let clock = self.clock;
        let changes = self.threads.list(self.kernel, self.task, now_ns, || clock.now_ns() >= pause_ns)?;
        for thread in changes.started {
            self.events.push_back(TargetEvent::ThreadStarted { thread, stack_top: None });
        }
        for thread in changes.ended {
            self.stops.forget(thread);
            self.events.push_back(TargetEvent::ThreadExited { thread, cpu_ns: None });
        }
        Ok(changes.done)
    }

    /// Handles a dead task port: the process has exited, or executed a new program.
    fn task_lost(&mut self) {
        let now_ns = self.clock.now_ns();
        let since_ns = *self.taskless_ns.get_or_insert(now_ns);
        match owned_task::acquire_once(self.kernel, self.pid) {
            Ok(acquired) if acquired.task == self.task => {
                // Still the same task, exiting, or it was a mistake.
                let _ = self.kernel.port_deallocate(acquired.task.0);
                if self.list_threads(now_ns, u64::MAX).is_ok() {
                    self.taskless_ns = None;
                    return;
                }
            }
            Ok(acquired) => {
                let another =
                    self.start_us != 0 && acquired.start_us != 0 && acquired.start_us != self.start_us;
                if another {
                    // Another process with the same number.
                    let _ = self.kernel.port_deallocate(acquired.task.0);
                    return self.exited();
                }
                if self.exec(&acquired) {
                    return;
                }
            }
            Err(_) => {}
        }
        // A child's status arrives a moment after its task is gone.
        let status = if self.launched { self.wait_status() } else { None };
        let overdue = now_ns.saturating_sub(since_ns) >= BETWEEN_TASKS_NS;
        if status.is_some() || overdue || !self.launched && refusal::has_ended(self.kernel, self.pid) {
            self.end(status.unwrap_or(ExitStatus::Unknown));
        }
    }

    fn exited(&mut self) {
        let status = if self.launched { self.wait_status() } else { None };
        self.end(status.unwrap_or(ExitStatus::Unknown));
    }

    fn end(&mut self, status: ExitStatus) {
        self.ended = true;
        self.stops.answer_asked("process ended before it was stopped");
        self.events.push_back(TargetEvent::Exited(status));
    }

    /// The exit status of our child, if it has exited.
    fn wait_status(&self) -> Option<ExitStatus> {
        match self.kernel.wait_ended(self.pid) {
            Ok(Some(status)) => Some(exit_status(status)),
            Ok(None) => None,
            // The status was consumed elsewhere.
            Err(_) => Some(ExitStatus::Unknown),
        }
    }

    /// Switches to the new program of the process, in another task; false if that has not started.
    fn exec(&mut self, acquired: &OwnedTask) -> bool {
        if refusal::is_translated(self.kernel, self.pid) {
            // Its stacks would be wrong: the recording ends here.
            let _ = self.kernel.port_deallocate(acquired.task.0);
            self.ended = true;
            self.events.push_back(TargetEvent::Terminate);
            return true;
        }
        let now_ns = self.clock.now_ns();
        let mut threads = Threads::default();
        let listed = threads.list(self.kernel, acquired.task, now_ns, || false);
        let mut started = listed.map(|changes| changes.started).unwrap_or_default().into_iter();
        let Some(thread) = started.next() else {
            // It has not started: the next poll tries again.
            threads.clear(self.kernel);
            let _ = self.kernel.port_deallocate(acquired.task.0);
            return false;
        };
        self.stops.answer_asked("the program was replaced before it was stopped");
        if self.launched && !self.dyld.is_settled() {
            // The started process is the command only from here on.
            owned_task::rename(self.kernel, self.pid, &mut self.process);
        }
        self.release();
        self.task = acquired.task;
        self.memory = Memory::new(self.kernel, acquired.task);
        self.threads = threads;
        self.dyld = Dyld::default();
        self.jit = Jit::default();
        self.label_offset = OnceCell::new();
        self.taskless_ns = None;
        self.events.push_back(TargetEvent::Exec { thread, stack_top: None });
        for thread in started {
            self.events.push_back(TargetEvent::ThreadStarted { thread, stack_top: None });
        }
        true
    }

    fn is_job_stopped(&mut self) -> bool {
        let (kernel, pid) = (self.kernel, self.pid);
        *self.job_stopped.get_or_insert_with(|| refusal::is_job_stopped(kernel, pid))
    }

    /// Releases all rights to the task and its threads.
    fn release(&mut self) {
        self.threads.clear(self.kernel);
        let _ = self.kernel.port_deallocate(self.task.0);
    }

    /// The offset of labels in dispatch queues, searched once there is a libdispatch.
    fn label_offset(&mut self) -> Option<LabelOffset> {
        if let Some(known) = self.label_offset.get() {
            return *known;
        }
        let image = self.dyld.images().iter().find(|image| image.path.ends_with(queues::LIBRARY))?;
        let bytes = images::bytes(&self.memory, image, self.dyld.shared_cache(), &mut self.copied).ok();
        let offsets = bytes.and_then(|bytes| exported(&bytes, queues::OFFSETS_SYMBOL));
        let offset =
            offsets.and_then(|offset| queues::label_offset(&self.memory, image.load.wrapping_add(offset)));
        *self.label_offset.get_or_init(|| offset)
    }
}

/// Offset from an image's header to one of its exported symbols.
fn exported(image: &ImageBytes, name: &[u8]) -> Option<u64> {
    if let Some(linkedit) = image.linkedit() {
        return export::find(linkedit.exports_trie.bytes(), name);
    }
    let range = MachO::parse(image.bytes()).ok()?.linkedit.exports_trie;
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    export::find(image.bytes().get(start..end)?, name)
}

/// Decodes a wait status (bsd/sys/wait.h).
pub(super) fn exit_status(status: i32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code(status >> 8 & 0xff),
        signal => ExitStatus::Signal(signal),
    }
}

impl Observed for MachTarget<'_> {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(MacFiles::new(self.process.pid))
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        if let Some(name) = self.threads.name(self.kernel, thread) {
            return Some(name);
        }
        let label = self.label_offset().and_then(|offset| {
            let thread = self.threads.get_mut(thread)?;
            queues::label(&self.memory, thread, offset)
        });
        label.or_else(|| self.threads.is_first(thread).then(|| "main thread".to_owned()))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.dyld.refresh(&self.memory, self.pid, self.clock.now_ns())?;
        out.clear();
        out.extend(self.dyld.images().iter().filter_map(|image| {
            let end = image.load.checked_add(image.text_bytes())?;
            Some(Mapping {
                avma: Avma(image.load)..Avma(end),
                file_offset: image.text_offset(),
                path: image.path.clone(),
                kind: MappingKind::File,
                identity: image.identity(),
            })
        }));
        self.jit.add_to(&self.dyld, out);
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let image = self.dyld.image_at(mapping.avma.start.0).ok_or(OpenError::Unloaded)?;
        images::bytes(&self.memory, image, self.dyld.shared_cache(), &mut self.copied)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.memory.some(from.0, into).map_err(|_| Fault::Transient("memory could not be read"))
    }
}

impl Target for MachTarget<'_> {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.threads.ids().into_iter().map(|id| (id, None)));
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        let status = self.threads.poll(self.kernel, thread, self.clock.now_ns());
        match status {
            Err(Fault::ThreadGone) => self.polls.hurry(),
            // Threads of a process stopped by job control are reported as waiting.
            Ok(ThreadStatus { activity: Activity::Waiting, cpu_ns, switches }) if self.is_job_stopped() => {
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
        Some(self.overslept_ns)
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        if self.threads.get_mut(thread).is_none() {
            return Err(Fault::ThreadGone);
        }
        self.stops.ask(StopRequest { thread, stack_bytes, keep_waiting });
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        if until_ns > 0 && !std::mem::replace(&mut self.qos_requested, true) {
            // For the sampling thread. A thread of background QoS is woken up to 100 ms late. A refusal is
            // harmless: ticks then arrive late.
            let _ = self.kernel.request_interactive_qos();
        }
        // However long a poll takes, there is at most one after `until_ns`.
        let mut polled_late = false;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some((thread, outcome)) = self.stops.take(capture) {
                return Ok(TargetEvent::Stopped { thread, outcome });
            }
            if self.ended {
                return Err(Fault::Gone);
            }
            if self.stops.are_asked() {
                self.capture_asked();
                continue;
            }
            if until_ns == 0 {
                return Ok(TargetEvent::Timeout);
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= until_ns && (polled_late || !self.polls.is_due(now_ns)) {
                return Ok(TargetEvent::Timeout);
            }
            let due_ns = until_ns.min(self.polls.due_between_ticks_ns());
            if now_ns < due_ns {
                self.clock.wait_until_ns(due_ns);
                let late_ns = self.clock.now_ns().saturating_sub(until_ns);
                self.overslept_ns = self.overslept_ns.saturating_add(late_ns);
                continue;
            }
            self.poll(until_ns);
            polled_late = self.clock.now_ns() >= until_ns;
        }
    }
}

impl Drop for MachTarget<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
