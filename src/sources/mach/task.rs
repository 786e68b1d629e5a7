//! The task of one program: the rights to it and to its threads, its memory and its code. An exec begins
//! another task, and nothing of this one is valid there.

use std::cell::OnceCell;

use super::dyld::{Dyld, EXECUTE};
use super::hold::Hold;
use super::images::{self, CopiedBytes};
use super::jit::Jit;
use super::kernel::{Kern, TaskPort};
use super::memory::Memory;
use super::owned_task::OwnedTask;
use super::queues::{self, LabelOffset};
use super::threads::{Changes, ThreadReport, Threads};
use crate::addr::Avma;
use crate::binary::macho::{MachO, export};
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::{Capture, Fault, Process, StopOutcome, ThreadId, ThreadStatus};

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
            queues::label(&self.memory, thread, offset)
        });
        label.or_else(|| self.threads.is_first(id).then(|| "main thread".to_owned()))
    }

    /// The offset of labels in dispatch queues, searched once there is a libdispatch.
    fn label_offset(&self, copied: &mut CopiedBytes) -> Option<LabelOffset> {
        if let Some(known) = self.label_offset.get() {
            return *known;
        }
        let image = self.dyld.images().iter().find(|image| image.path.ends_with(queues::LIBRARY))?;
        let bytes = images::bytes(&self.memory, image, self.dyld.shared_cache(), copied).ok();
        let offsets = bytes.and_then(|bytes| exported(&bytes, queues::OFFSETS_SYMBOL));
        let offset =
            offsets.and_then(|offset| queues::label_offset(&self.memory, image.load.wrapping_add(offset)));
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
            Some(Mapping {
                avma: Avma(image.load)..Avma(end),
                file_offset: image.text_offset(),
                path: image.path.clone(),
                kind: MappingKind::File,
                identity: image.identity(),
            })
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
        self.threads.told_around_stop(self.right.kernel(), id)
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
        return export::find(linkedit.exports_trie.bytes(), name);
    }
    let range = MachO::parse(image.bytes()).ok()?.linkedit.exports_trie;
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    export::find(image.bytes().get(start..end)?, name)
}
