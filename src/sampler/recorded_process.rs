//! What a recorder keeps of a process: its images, its unwinder, and where its stacks are kept.

use std::sync::Arc;

use super::image_refresh::ImageRefresh;
use crate::binary::Files;
use crate::images::{Images, JitCode};
use crate::sources::Observed;
use crate::walk::{FileFacts, Unwinder};

/// A process of a recorder, by the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIndex(pub(super) u32);

/// The process that a recorder is made for.
pub const FIRST: ProcessIndex = ProcessIndex(0);

/// Stands for a process that no sample was taken of yet: nothing is kept for it.
pub(super) const UNSAMPLED: ProcessIndex = ProcessIndex(u32::MAX);

/// A process of the recording: its images, its unwinder, and where its stacks are kept.
pub(super) struct RecordedProcess {
    /// Its address space in the images.
    pub(super) image_space_id: u32,
    /// Its number for the system.
    pub(super) pid: u32,
    /// Index of the program that it runs.
    pub(super) program: u32,
    /// Where the stacks of all threads of that program are kept, if any were.
    pub(super) merged: Option<u32>,
    /// Code that belongs to no image.
    pub(super) jit: JitCode,
    pub(super) refresh: ImageRefresh,
    pub(super) unwinder: Unwinder,
    /// Its files, once it has code without an image.
    pub(super) files: Option<Arc<dyn Files>>,
    /// Its unwinder was used since unwinders were cleared.
    pub(super) has_unwind_cache: bool,
}

impl RecordedProcess {
    pub(super) fn new(image_space_id: u32, pid: u32, program: u32, facts: &FileFacts) -> RecordedProcess {
        RecordedProcess {
            image_space_id,
            pid,
            program,
            merged: None,
            jit: JitCode::default(),
            refresh: ImageRefresh::default(),
            unwinder: Unwinder::new(facts),
            files: None,
            has_unwind_cache: false,
        }
    }

    /// Reads the images; whether they changed.
    pub(super) fn read_images(
        &mut self,
        process: &mut dyn Observed,
        now_ns: &dyn Fn() -> u64,
        images: &mut Images,
    ) -> bool {
        let changed = self.refresh.read(process, now_ns, images, self.image_space_id, &mut self.jit);
        if changed {
            self.unwinder.images_changed();
            if self.files.is_none() && self.jit.is_any() {
                self.files = Some(process.files());
            }
        }
        changed
    }
}
