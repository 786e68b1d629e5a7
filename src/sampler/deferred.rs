//! Deferred samples, walked after the images are read again: a stack that leads to code in none is
//! torn only because a library was loaded since they were, and what reading them costs is
//! limited. When a program starts that is the rule: it loads its libraries in the first
//! milliseconds, and the first reading costs most.

use super::recorded_process::ProcessIndex;
use super::sample::Sample;
use crate::sources::{Capture, ThreadId};
use crate::walk::Frames;

/// A sample whose walk is to be made again.
#[derive(Debug)]
pub(super) struct DeferredSample {
    pub(super) sample: Sample,
    pub(super) weight_ns: u64,
    pub(super) process: ProcessIndex,
    /// The address space it was captured in.
    pub(super) space: u32,
}

/// Which deferred samples are walked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueSamples {
    /// Those that were captured before the images were last read.
    ImagesRead,
    /// Those of one thread, which has ended, with the images that are known.
    ThreadEnded(ThreadId),
    /// All, with the images that are known: no reading of them can tell more.
    All,
}

/// What walking deferred samples needs, and where their buffers go.
pub(super) struct Rewalk<'a> {
    pub(super) stack_max_bytes: usize,
    pub(super) frames: &'a mut Frames,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    pub(super) spare: &'a mut Vec<Box<Capture>>,
}
