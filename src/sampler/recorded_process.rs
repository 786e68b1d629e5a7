//! One recorded process: its images, its unwinder, and where its stacks are kept.

use std::sync::Arc;

use super::image_refresh::ImageRefresh;
use crate::binary::Files;
use crate::images::{Images, JitCode};
use crate::sources::Observed;
use crate::walk::{FileFacts, Unwinder};

/// Index of a process in a recorder, in order of addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIndex(pub(super) u32);

/// The process that a recorder is created with.
pub const FIRST: ProcessIndex = ProcessIndex(0);

/// Placeholder for a process without samples: nothing is kept for it.
pub(super) const UNSAMPLED: ProcessIndex = ProcessIndex(u32::MAX);

/// A recorded process: its images, its unwinder, and where its stacks are kept.
pub(super) struct RecordedProcess {
    /// Its address space in the images.
    pub(super) image_space_id: u32,
    /// Its pid.
    pub(super) pid: u32,
    /// Index of its current program.
    pub(super) program: u32,
    /// Shared group of all threads of that program, if any were sampled.
    pub(super) shared_group: Option<u32>,
    /// Code outside all images.
    pub(super) jit: JitCode,
    pub(super) refresh: ImageRefresh,
    pub(super) unwinder: Unwinder,
    /// Its files, once it has code outside all images.
    pub(super) files: Option<Arc<dyn Files>>,
    /// Whether its unwinder was used since the unwind caches were last dropped.
    pub(super) has_unwind_cache: bool,
}

impl RecordedProcess {
    pub(super) fn new(image_space_id: u32, pid: u32, program: u32, facts: &FileFacts) -> RecordedProcess {
        RecordedProcess {
            image_space_id,
            pid,
            program,
            shared_group: None,
            jit: JitCode::default(),
            refresh: ImageRefresh::default(),
            unwinder: Unwinder::new(facts),
            files: None,
            has_unwind_cache: false,
        }
    }

    /// Reads the images; returns whether they changed.
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
