//! A task that is sampled: its threads, the stops, and what happens to it.
//!
//! Nothing tells of threads that come and go, of exec or of exit: they are found by
//! listing the threads before each tick. A stop holds the whole task (see `hold.rs`) for
//! as long as the registers and stacks of a few threads take to copy; everything that
//! can be known before is asked before, and everything else after.

use std::collections::VecDeque;
use std::sync::Arc;

use super::attach::{self, Acquired};
use super::clock::MachClock;
use super::dyld::Dyld;
use super::files::MacFiles;
use super::hold::Hold;
use super::images::{self, Copied};
use super::jit::Jit;
use super::kernel::{KernReturn, MachKernel, StateFlavor, TaskPort};
use super::memory::Memory;
use super::queues::{self, LabelOffset};
use super::threads::{Threads, is_gone};
use super::{refusal, state};
use crate::addr::Avma;
use crate::clock::Clock;
use crate::image::macho::{MachO, export};
use crate::target::{
    Capture, Event, ExitStatus, Fault, Files, ImageBytes, Look, Mapping, MappingKind, Outcome, Process,
    Target, ThreadId,
};

/// The threads are listed this often at most, however short the ticks, nanoseconds …
const POLL_NS: u64 = 500_000;
/// … and at least this often, however long: a process that ends is noticed.
const MAX_WAIT_NS: u64 = 10_000_000;
/// How long a process without task is taken to be on its way through exec or exit.
const BETWEEN_TASKS_NS: u64 = 1_000_000_000;
/// Threads that are copied while the task is held once. To hold it costs all threads that
/// run, whoever is copied, so that many small holds cost more than a long one; the table
/// is in ARCHITECTURE.md.
const STOPS_AT_ONCE: usize = 16;

/// A process that is sampled through its task port.
pub struct MachTarget<'k> {
    kernel: &'k dyn MachKernel,
    clock: MachClock<'k>,
    process: Process,
    pid: i32,
    /// When the process was started; 0 if that is not told.
    start_us: u64,
    task: TaskPort,
    memory: Memory<'k>,
    threads: Threads,
    dyld: Dyld,
    jit: Jit,
    copied: Copied,
    /// `None`: not looked for yet.
    label_offset: Option<Option<LabelOffset>>,
    pending: Vec<(ThreadId, usize)>,
    /// What [`Target::next`] will say: events before stops.
    events: VecDeque<Event>,
    stops: VecDeque<Stop>,
    spare: Vec<Capture>,
    polled_ns: u64,
    /// Since when the process has no task that we could have.
    taskless_ns: Option<u64>,
    launched: bool,
    ended: bool,
}

/// What came of a thread that was asked to stop.
struct Stop {
    thread: ThreadId,
    outcome: Outcome,
    capture: Capture,
}

impl<'k> MachTarget<'k> {
    pub(super) fn new(
        kernel: &'k dyn MachKernel,
        acquired: Acquired,
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
            copied: Copied::default(),
            label_offset: None,
            pending: Vec::new(),
            events: VecDeque::new(),
            stops: VecDeque::new(),
            spare: Vec::new(),
            polled_ns: 0,
            taskless_ns: None,
            launched,
            ended: false,
        }
    }

    /// Lists threads and images for the first time.
    ///
    /// # Errors
    /// What the kernel said to listing the threads.
    pub(super) fn begin(&mut self) -> Result<(), KernReturn> {
        let now_ns = self.clock.now_ns();
        self.threads.list(self.kernel, self.task, now_ns)?;
        // What cannot be read now is read later.
        let _ = self.dyld.refresh(&self.memory, self.pid, now_ns);
        Ok(())
    }

    /// The clock that [`Target::next`] waits by.
    #[must_use]
    pub fn clock(&self) -> MachClock<'k> {
        self.clock
    }

    /// The processor that the program was compiled for, where its header could be read.
    pub(super) fn program_cpu_type(&self) -> Option<u32> {
        const EXECUTE: u32 = 2;
        let images = self.dyld.images().iter();
        images.map(|image| &image.macho).find(|macho| macho.file_type == EXECUTE).map(|macho| macho.cpu_type)
    }

    /// Finds out what happened since the last time.
    fn poll(&mut self) {
        self.polled_ns = self.clock.now_ns();
        if self.taskless_ns.is_some() {
            return self.task_lost();
        }
        match self.list_threads(self.polled_ns) {
            Ok(()) => {}
            // 5: the task is inactive (osfmk/kern/task.c, task_threads_internal).
            Err(failed) if is_gone(failed) || failed == KernReturn::Failure => return self.task_lost(),
            // Not this time; the known threads stand.
            Err(_) => {}
        }
        if self.dyld.has_changed(&self.memory) {
            self.events.push_back(Event::ImagesChanged);
        }
    }

    /// Lists the threads, and tells which came and went.
    fn list_threads(&mut self, now_ns: u64) -> Result<(), KernReturn> {
        let changes = self.threads.list(self.kernel, self.task, now_ns)?;
        for thread in changes.started {
            self.events.push_back(Event::ThreadStarted { thread, stack_top: None });
        }
        for thread in changes.ended {
            self.pending.retain(|(pending, _)| *pending != thread);
            self.events.push_back(Event::ThreadExited { thread, cpu_ns: None });
        }
        Ok(())
    }

    /// The task port is dead: the process has ended, or begun another program.
    fn task_lost(&mut self) {
        let now_ns = self.clock.now_ns();
        let since_ns = *self.taskless_ns.get_or_insert(now_ns);
        match attach::acquire_once(self.kernel, self.pid) {
            Ok(acquired) if acquired.task == self.task => {
                // Still the same one, on its way out, or it was a mistake.
                let _ = self.kernel.port_deallocate(acquired.task.0);
                if self.list_threads(now_ns).is_ok() {
                    self.taskless_ns = None;
                    return;
                }
            }
            Ok(acquired) => {
                let another =
                    self.start_us != 0 && acquired.start_us != 0 && acquired.start_us != self.start_us;
                if another {
                    // Another process that got the same number.
                    let _ = self.kernel.port_deallocate(acquired.task.0);
                    return self.exited();
                }
                if self.exec(&acquired) {
                    return;
                }
            }
            Err(_) => {}
        }
        // A child's status is told a moment after its task has gone.
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
        self.answer_pending("process ended before it was stopped");
        self.events.push_back(Event::Exited(status));
    }

    /// How our child ended, if it has.
    fn wait_status(&self) -> Option<ExitStatus> {
        match self.kernel.wait_ended(self.pid) {
            Ok(Some(status)) => Some(exit_status(status)),
            Ok(None) => None,
            // Somebody else has taken the status.
            Err(_) => Some(ExitStatus::Unknown),
        }
    }

    /// The process runs another program, in another task; false if that has not begun.
    fn exec(&mut self, acquired: &Acquired) -> bool {
        if refusal::is_translated(self.kernel, self.pid) {
            // Its stacks would be wrong: the recording ends with what it has.
            let _ = self.kernel.port_deallocate(acquired.task.0);
            self.ended = true;
            self.events.push_back(Event::Terminate);
            return true;
        }
        let now_ns = self.clock.now_ns();
        let mut threads = Threads::default();
        let listed = threads.list(self.kernel, acquired.task, now_ns);
        let mut started = listed.map(|changes| changes.started).unwrap_or_default().into_iter();
        let Some(thread) = started.next() else {
            // It has not begun: the next poll asks again.
            threads.clear(self.kernel);
            let _ = self.kernel.port_deallocate(acquired.task.0);
            return false;
        };
        self.answer_pending("the program was replaced before it was stopped");
        if self.launched && !self.dyld.is_settled() {
            // What was started is the command only now.
            attach::rename(self.kernel, self.pid, &mut self.process);
        }
        self.release();
        self.task = acquired.task;
        self.memory = Memory::new(self.kernel, acquired.task);
        self.threads = threads;
        self.dyld = Dyld::default();
        self.jit = Jit::default();
        self.label_offset = None;
        self.taskless_ns = None;
        self.events.push_back(Event::Exec { thread, stack_top: None });
        for thread in started {
            self.events.push_back(Event::ThreadStarted { thread, stack_top: None });
        }
        true
    }

    /// Gives all rights to the task and its threads back.
    fn release(&mut self) {
        self.threads.clear(self.kernel);
        let _ = self.kernel.port_deallocate(self.task.0);
    }

    /// Says of all stops that are asked for that they came to nothing.
    fn answer_pending(&mut self, why: &'static str) {
        for (thread, _) in std::mem::take(&mut self.pending) {
            let capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
            self.stops.push_back(Stop { thread, outcome: Outcome::Unreadable(why), capture });
        }
    }

    /// Holds the task and copies the threads that were asked to stop.
    fn capture_pending(&mut self) {
        if self.taskless_ns.is_some() {
            return self.answer_pending("the program ended or was replaced before it was stopped");
        }
        let count = self.pending.len().min(STOPS_AT_ONCE);
        let asked: Vec<(ThreadId, usize)> = self.pending.drain(..count).collect();
        let mut stops: Vec<Stop> = Vec::with_capacity(count);
        for (thread, window_bytes) in asked {
            let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
            capture.stack.resize(window_bytes, 0);
            if let Some(thread) = self.threads.get_mut(thread) {
                thread.stack.ask(&self.memory, thread.handle);
            }
            stops.push(Stop { thread, outcome: Outcome::Captured, capture });
        }
        let begun_ns = self.clock.now_ns();
        match Hold::begin(self.kernel, self.task) {
            Ok(hold) => {
                for stop in &mut stops {
                    stop.outcome = self.copy(stop.thread, &mut stop.capture);
                }
                drop(hold);
            }
            Err(_) => stops
                .iter_mut()
                .for_each(|stop| stop.outcome = Outcome::Unreadable("task could not be suspended")),
        }
        let pause_ns = self.clock.now_ns().saturating_sub(begun_ns);
        let (mut new_code, mut stood_ns) = (false, pause_ns);
        for Stop { thread, outcome, mut capture } in stops {
            capture.pause_ns = pause_ns;
            capture.stood_ns = std::mem::take(&mut stood_ns);
            capture.look = None;
            capture.stack_limit = None;
            if outcome == Outcome::Captured {
                let (sp, pc) = (capture.registers.sp().0, capture.registers.pc().0 & self.process.code_mask);
                if let Some(thread) = self.threads.get_mut(thread) {
                    thread.stack.learn(&self.memory, sp);
                    capture.stack_limit = thread.stack.limit(sp).map(Avma);
                }
                new_code |= self.jit.learn(&self.memory, &self.dyld, pc);
            }
            self.stops.push_back(Stop { thread, outcome, capture });
        }
        if new_code {
            self.events.push_back(Event::ImagesChanged);
        }
    }

    /// Copies a thread's registers and stack while the task is held.
    fn copy(&mut self, id: ThreadId, capture: &mut Capture) -> Outcome {
        let Some(thread) = self.threads.get_mut(id).filter(|thread| !thread.has_gone) else {
            return Outcome::Unreadable("thread ended before it was stopped");
        };
        let StateFlavor { flavor, count: wanted } = state::flavor(self.process.arch);
        let (mut words, mut count) = ([0; StateFlavor::MAX_COUNT], wanted);
        match self.kernel.thread_get_state(thread.port, flavor, &mut words, &mut count) {
            Ok(()) if count >= wanted => {}
            Err(failed) if is_gone(failed) => {
                thread.has_gone = true;
                return Outcome::Unreadable("thread ended before it was stopped");
            }
            _ => return Outcome::Unreadable("registers could not be read"),
        }
        capture.registers = state::registers(self.process.arch, &words);
        let sp = capture.registers.sp().0;
        let window_bytes = capture.stack.len();
        let from = thread.stack.red_zone(sp);
        let mut copy = |from: u64| {
            capture.stack_base = Avma(from);
            capture.stack.resize(window_bytes.saturating_add((sp - from) as usize), 0);
            thread.stack.copy(&self.memory, from, &mut capture.stack)
        };
        match copy(from).or_else(|failed| if from < sp { copy(sp) } else { Err(failed) }) {
            Ok(()) => Outcome::Captured,
            Err(_) => Outcome::Unreadable("stack could not be read"),
        }
    }

    /// Where labels of dispatch queues are, looked for once there is a libdispatch.
    fn label_offset(&mut self) -> Option<LabelOffset> {
        if let Some(known) = self.label_offset {
            return known;
        }
        let image = self.dyld.images().iter().find(|image| image.path.ends_with(queues::LIBRARY))?;
        let bytes = images::bytes(&self.memory, image, self.dyld.shared_cache(), &mut self.copied).ok();
        let offsets = bytes.and_then(|bytes| exported(&bytes, queues::OFFSETS_SYMBOL));
        let offset =
            offsets.and_then(|offset| queues::label_offset(&self.memory, image.load.wrapping_add(offset)));
        self.label_offset = Some(offset);
        offset
    }
}

/// Bytes from an image's header to a symbol that it exports.
fn exported(image: &ImageBytes, name: &[u8]) -> Option<u64> {
    if let Some(linkedit) = image.linkedit() {
        return export::find(linkedit.exports_trie.bytes(), name);
    }
    let range = MachO::parse(image.bytes()).ok()?.linkedit.exports_trie;
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    export::find(image.bytes().get(start..end)?, name)
}

/// A wait status (bsd/sys/wait.h).
fn exit_status(status: i32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code(status >> 8 & 0xff),
        signal => ExitStatus::Signal(signal),
    }
}

impl Target for MachTarget<'_> {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(MacFiles::new(self.process.pid))
    }

    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.threads.ids().into_iter().map(|id| (id, None)));
    }

    fn look(&mut self, thread: ThreadId) -> Result<Look, Fault> {
        self.threads.look(self.kernel, thread, self.clock.now_ns())
    }

    fn stops_at_once(&self) -> usize {
        STOPS_AT_ONCE
    }

    fn interrupt(&mut self, thread: ThreadId, window_bytes: usize, _keep_waiting: bool) -> Result<(), Fault> {
        if self.threads.get_mut(thread).is_none() {
            return Err(Fault::ThreadGone);
        }
        if !self.pending.iter().any(|(pending, _)| *pending == thread) {
            self.pending.push((thread, window_bytes));
        }
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<Event, Fault> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            match self.stops.pop_front() {
                Some(stop) => {
                    self.spare.push(std::mem::replace(capture, stop.capture));
                    return Ok(Event::Stopped { thread: stop.thread, outcome: stop.outcome });
                }
                None if self.ended => return Err(Fault::Gone),
                None if !self.pending.is_empty() => self.capture_pending(),
                None => {
                    let now_ns = self.clock.now_ns();
                    let polled_just_now = now_ns < self.polled_ns.saturating_add(POLL_NS);
                    if until_ns == 0 || until_ns <= now_ns && polled_just_now {
                        return Ok(Event::Timeout);
                    }
                    if now_ns < until_ns {
                        self.clock.wait_until_ns(until_ns.min(now_ns.saturating_add(MAX_WAIT_NS)));
                    }
                    self.poll();
                }
            }
        }
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

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, String> {
        let image = self.dyld.image_at(mapping.avma.start.0).ok_or("unloaded in the meantime")?;
        images::bytes(&self.memory, image, self.dyld.shared_cache(), &mut self.copied)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.memory.some(from.0, into).map_err(|_| Fault::Transient("memory could not be read"))
    }
}

impl Drop for MachTarget<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
