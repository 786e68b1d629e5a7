//! The task of one program: the rights to it and to its threads, its memory and its code. An exec begins
//! another task, and nothing of this one is valid there.
//!
//! `Task`: the task; `BsdProcess`: its process, with a new task after each exec.

use std::cell::OnceCell;

use super::attach::OwnedTask;
use super::dyld::{Dyld, EXECUTE};
use super::images::{self, CopiedBytes, Jit};
use super::kernel::{Kern, MachKernel, TaskPort};
use super::memory::Memory;
use super::refusal::{self, Facts};
use super::stops::Hold;
use super::threads::{self, Changes, LabelOffset, ThreadReport, Threads};
use crate::addr::Avma;
use crate::binary::macho::{self, MachO};
use crate::binary::{ImageBytes, Mapping, OpenError};
use crate::sources::{Capture, ExitStatus, Fault, Process, StopOutcome, ThreadId, ThreadStatus};

/// A task. Dropping it releases all rights.
pub(super) struct Task<'k> {
    right: OwnedTask<'k>,
    memory: Memory<'k>,
    threads: Threads,
    dyld: Dyld,
    jit: Jit,
    /// Empty until searched.
    label_offset: OnceCell<Option<LabelOffset>>,
}

impl<'k> Task<'k> {
    /// A task, of which nothing is known yet.
    pub(super) fn new(right: OwnedTask<'k>) -> Task<'k> {
        Task {
            memory: Memory::new(right.kernel(), right.port()),
            right,
            threads: Threads::default(),
            dyld: Dyld::default(),
            jit: Jit::default(),
            label_offset: OnceCell::new(),
        }
    }

    pub(super) fn port(&self) -> TaskPort {
        self.right.port()
    }

    /// Lists the threads, or continues to, until `pause` returns true.
    pub(super) fn list_threads(&mut self, now_ns: u64, pause: impl FnMut() -> bool) -> Kern<Changes> {
        self.threads.list(self.right.kernel(), self.right.port(), now_ns, pause)
    }

    /// All known threads, by number.
    pub(super) fn thread_ids(&self) -> Vec<ThreadId> {
        self.threads.ids()
    }

    pub(super) fn has_thread(&mut self, id: ThreadId) -> bool {
        self.threads.get_mut(id).is_some()
    }

    /// Activity of a thread, and its CPU time. The task must not be held.
    pub(super) fn poll(&mut self, id: ThreadId, now_ns: u64) -> Result<ThreadStatus, Fault> {
        self.threads.poll(self.right.kernel(), id, now_ns)
    }

    /// The name of a thread, the label of its dispatch queue, or that it is the first.
    pub(super) fn thread_name(&mut self, id: ThreadId, copied: &mut CopiedBytes) -> Option<String> {
        if let Some(name) = self.threads.name(self.right.kernel(), id) {
            return Some(name);
        }
        let label = self.label_offset(copied).and_then(|offset| {
            let thread = self.threads.get_mut(id)?;
            threads::label(&self.memory, thread, offset)
        });
        label.or_else(|| self.threads.is_first(id).then(|| "main thread".to_owned()))
    }

    /// The offset of labels in dispatch queues, searched once there is a libdispatch.
    fn label_offset(&self, copied: &mut CopiedBytes) -> Option<LabelOffset> {
        if let Some(known) = self.label_offset.get() {
            return *known;
        }
        let image = self.dyld.images().iter().find(|image| image.path.ends_with(threads::LIBRARY))?;
        let bytes = images::bytes(&self.memory, image, self.dyld.shared_cache(), copied).ok();
        let offsets = bytes.and_then(|bytes| exported(&bytes, threads::OFFSETS_SYMBOL));
        let offset =
            offsets.and_then(|offset| threads::label_offset(&self.memory, image.load.wrapping_add(offset)));
        *self.label_offset.get_or_init(|| offset)
    }

    /// Reads the list of images again if it has changed.
    ///
    /// # Errors
    /// It could not be read now: the known ones are kept.
    pub(super) fn refresh_images(&mut self, now_ns: u64) -> Result<(), Fault> {
        self.dyld.refresh(&self.memory, self.right.pid(), now_ns)
    }

    /// Whether the list of images has changed since it was read.
    pub(super) fn have_images_changed(&mut self) -> bool {
        self.dyld.has_changed(&self.memory)
    }

    /// Whether libSystem is loaded.
    pub(super) fn is_settled(&self) -> bool {
        self.dyld.is_settled()
    }

    /// The processor that the program was compiled for, if its header was readable.
    pub(super) fn program_cpu_type(&self) -> Option<u32> {
        let images = self.dyld.images().iter();
        images.map(|image| &image.macho).find(|macho| macho.file_type == EXECUTE).map(|macho| macho.cpu_type)
    }

    /// The known images and JIT code, by address.
    pub(super) fn mappings(&self, out: &mut Vec<Mapping>) {
        out.clear();
        out.extend(self.dyld.images().iter().filter_map(|image| {
            let end = image.load.checked_add(image.text_bytes())?;
            Some(Mapping::of_file(
                Avma(image.load)..Avma(end),
                image.text_offset(),
                image.path.clone(),
                image.identity(),
            ))
        }));
        self.jit.add_to(&self.dyld, out);
    }

    /// The bytes of the image of a mapping.
    pub(super) fn image_bytes(
        &self,
        mapping: &Mapping,
        copied: &mut CopiedBytes,
    ) -> Result<ImageBytes, OpenError> {
        let image = self.dyld.image_at(mapping.avma.start.0).ok_or(OpenError::Unloaded)?;
        images::bytes(&self.memory, image, self.dyld.shared_cache(), copied)
    }

    /// Reads memory up to the first unreadable byte; returns the length.
    pub(super) fn read(&self, from: Avma, into: &mut [u8]) -> Kern<usize> {
        self.memory.some(from.0, into)
    }

    /// Suspends it.
    pub(super) fn hold(&self) -> Kern<Hold<'k>> {
        Hold::begin(self.right.kernel(), self.right.port())
    }

    /// Reads before a hold what a copy of this thread needs.
    pub(super) fn prepare(&mut self, id: ThreadId) {
        if let Some(thread) = self.threads.get_mut(id) {
            thread.prepare(&self.memory);
        }
    }

    /// The report on a thread right before or in a hold; `None` if it is unreliable.
    pub(super) fn report_around_stop(&mut self, id: ThreadId) -> Option<ThreadReport> {
        self.threads.report_around_stop(self.right.kernel(), id)
    }

    /// Copies a thread's registers and stack while the task is held.
    pub(super) fn copy(
        &mut self,
        _held: &Hold<'_>,
        id: ThreadId,
        process: &Process,
        capture: &mut Capture,
    ) -> StopOutcome {
        match self.threads.get_mut(id) {
            Some(thread) => thread.copy(&self.memory, process, capture),
            None => StopOutcome::Unreadable("thread ended before it was stopped"),
        }
    }

    /// Finds after a hold the end of the stack of a captured thread, and the code that it ran; returns whether
    /// that is new.
    pub(super) fn learn(&mut self, id: ThreadId, process: &Process, capture: &mut Capture) -> bool {
        let (sp, pc) = (capture.registers.sp().0, capture.registers.pc().0 & process.address_mask);
        if let Some(thread) = self.threads.get_mut(id) {
            capture.stack_limit = thread.learn_stack(&self.memory, sp);
        }
        self.jit.learn(&self.memory, &self.dyld, pc)
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.threads.clear(self.right.kernel());
    }
}

/// Offset from an image's header to one of its exported symbols.
fn exported(image: &ImageBytes, name: &[u8]) -> Option<u64> {
    if let Some(linkedit) = image.linkedit() {
        return macho::find(linkedit.exports_trie.bytes(), name);
    }
    let range = MachO::parse(image.bytes()).ok()?.linkedit.exports_trie;
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    macho::find(image.bytes().get(start..end)?, name)
}

// ---- A process, whose task is sampled: a new one after each exec, and none once it has exited.
//
// Input: what BSD calls report about a process. Output: its next task, how it ended, its names.

/// How long a process without a task is assumed to be in exec or exit.
const BETWEEN_TASKS_NS: u64 = 1_000_000_000;

/// A process, through its execs and up to its end.
pub(super) struct BsdProcess<'k> {
    kernel: &'k dyn MachKernel,
    pid: i32,
    /// Start time; 0 if unknown.
    start_us: u64,
    /// It is our child.
    launched: bool,
    description: Process,
    /// Since when it has no task available to us.
    taskless_ns: Option<u64>,
    /// Whether it is stopped by job control; `None`: not checked since the last poll.
    job_stopped: Option<bool>,
}

impl<'k> BsdProcess<'k> {
    /// The process of a task.
    pub(super) fn new(task: &OwnedTask<'k>, description: Process, launched: bool) -> BsdProcess<'k> {
        BsdProcess {
            kernel: task.kernel(),
            pid: task.pid(),
            start_us: task.start_us(),
            launched,
            description,
            taskless_ns: None,
            job_stopped: None,
        }
    }

    pub(super) fn description(&self) -> &Process {
        &self.description
    }

    /// Whether its task was available to us when it was last used.
    pub(super) fn has_task(&self) -> bool {
        self.taskless_ns.is_none()
    }

    /// Acquires its task again after a call failed as for a dead one, until [`BsdProcess::found_task`].
    pub(super) fn acquire_task(&mut self, now_ns: u64) -> Kern<OwnedTask<'k>> {
        self.taskless_ns.get_or_insert(now_ns);
        OwnedTask::acquire(self.kernel, self.pid)
    }

    /// Its task works, or it has another one.
    pub(super) fn found_task(&mut self) {
        self.taskless_ns = None;
    }

    /// Whether a task that was acquired by its number is its own: the number may have been reused.
    pub(super) fn owns(&self, task: &OwnedTask<'_>) -> bool {
        self.start_us == 0 || task.start_us() == 0 || task.start_us() == self.start_us
    }

    /// How it ended, if it has no task and none is expected.
    pub(super) fn end(&self, now_ns: u64) -> Option<ExitStatus> {
        // A child's status arrives a moment after its task is gone.
        let status = self.exit_status();
        let overdue = self.taskless_ns.is_some_and(|since| now_ns.saturating_sub(since) >= BETWEEN_TASKS_NS);
        let has_ended = overdue || !self.launched && refusal::has_ended(self.kernel, self.pid);
        status.or_else(|| has_ended.then_some(ExitStatus::Unknown))
    }

    /// The exit status of our child, if it has exited.
    pub(super) fn exit_status(&self) -> Option<ExitStatus> {
        if !self.launched {
            return None;
        }
        match self.kernel.wait_ended(self.pid) {
            Ok(status) => status.map(exit_status),
            // The status was consumed elsewhere.
            Err(_) => Some(ExitStatus::Unknown),
        }
    }

    /// Whether its program is translated by Rosetta, if reported.
    pub(super) fn is_translated(&self) -> bool {
        refusal::is_translated(self.kernel, self.pid)
    }

    /// Whether it is stopped by job control: asked once per poll.
    pub(super) fn is_job_stopped(&mut self) -> bool {
        let (kernel, pid) = (self.kernel, self.pid);
        *self.job_stopped.get_or_insert_with(|| refusal::is_job_stopped(kernel, pid))
    }

    /// Begins a poll.
    pub(super) fn begin_poll(&mut self) {
        self.job_stopped = None;
    }

    /// Updates the name and the command of our child: it is the command only after an exec.
    pub(super) fn rename_child(&mut self) {
        if self.launched {
            self.description.name = Facts::of(self.kernel, self.pid, false).name();
            self.description.command = command_of(self.kernel, self.pid);
        }
    }
}

/// Decodes a wait status (bsd/sys/wait.h).
pub(super) fn exit_status(status: i32) -> ExitStatus {
    match status & 0x7f {
        0 => ExitStatus::Code(status >> 8 & 0xff),
        signal => ExitStatus::Signal(signal),
    }
}

pub(super) fn command_of(kernel: &dyn MachKernel, pid: i32) -> String {
    kernel.proc_args(pid).map(|bytes| command_line(&bytes)).unwrap_or_default()
}

/// The joined arguments of KERN_PROCARGS2: argc, the path of the program, NULs, argv.
fn command_line(bytes: &[u8]) -> String {
    let Some((argc, rest)) = bytes.split_first_chunk::<4>() else { return String::new() };
    let argc = usize::try_from(i32::from_le_bytes(*argc)).unwrap_or(0);
    let path_end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let rest = &rest[path_end..];
    let first = rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
    let words = rest[first..].split(|byte| *byte == 0).take(argc).map(String::from_utf8_lossy);
    words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod bsd_process_tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_path() {
        let mut bytes = 3i32.to_le_bytes().to_vec();
        bytes.extend(b"/usr/local/bin/work\0\0\0\0work\0-n\0two words\0HOME=/\0");
        assert_eq!(command_line(&bytes), "work -n two words");
    }

    #[test]
    fn a_damaged_command_line_is_cut() {
        let mut bytes = (-1i32).to_le_bytes().to_vec();
        assert_eq!(command_line(&bytes), "");
        bytes.extend(b"/path");
        assert_eq!((command_line(&bytes), command_line(&bytes[..3])), (String::new(), String::new()));
        bytes[..4].copy_from_slice(&i32::MAX.to_le_bytes());
        bytes.extend(b"\0\0a\0b");
        assert_eq!(command_line(&bytes), "a b");
    }
}
