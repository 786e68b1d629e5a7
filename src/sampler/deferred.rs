//! Deferred samples, walked after the images are read again: a stack that leads to code in none is
//! torn only because a library was loaded since they were, and what reading them costs is
//! limited. When a program starts that is the rule: it loads its libraries in the first
//! milliseconds, and the first reading costs most.

use super::recorded_process::ProcessIndex;
use super::sample::Sample;
use crate::sources::{Capture, ThreadId};
use crate::walk::{Frames, StackEnd};

/// Most deferred samples; a tick of all threads, or a hundred ticks of one.
const DEFERRED_MAX: usize = 128;

/// Most bytes of their stacks together.
const DEFERRED_BYTES_MAX: usize = 4 << 20;

/// After this many readings in a row that showed nothing new, torn stacks are taken as torn.
const UNCHANGED_READS_MAX: u32 = 3;

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

/// Captured before the images were read again, and waiting for that; a bounded number.
#[derive(Debug, Default)]
pub(super) struct DeferredSamples(Vec<DeferredSample>);

impl DeferredSamples {
    /// Whether a walk may have ended so because the images were not read since the sample was taken. They were read up
    /// to `read_ns`, so often in a row without anything new.
    pub(super) fn may_be_new_code(
        sample: &Sample,
        ended: StackEnd,
        (read_ns, unchanged_reads): (u64, u32),
    ) -> bool {
        matches!(ended, StackEnd::BadFrame | StackEnd::Undescribed | StackEnd::Scanned)
            && read_ns < sample.at_ns
            && unchanged_reads < UNCHANGED_READS_MAX
    }

    /// Whether there is room for one more.
    pub(super) fn has_room_for(&self, capture: &Capture) -> bool {
        let bytes: usize = self.0.iter().map(|deferred| deferred.sample.capture.held_bytes()).sum();
        self.0.len() < DEFERRED_MAX && bytes + capture.held_bytes() <= DEFERRED_BYTES_MAX
    }

    /// Keeps a sample.
    pub(super) fn push(&mut self, deferred: DeferredSample) {
        self.0.push(deferred);
    }

    /// Whether a process has any.
    pub(super) fn has_any_of(&self, of: ProcessIndex) -> bool {
        self.0.iter().any(|deferred| deferred.process == of)
    }

    /// The processes of all.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessIndex> {
        self.0.iter().map(|deferred| deferred.process)
    }

    /// Takes those of a process that are due. Its images were read up to `read_ns`.
    pub(super) fn take_due(
        &mut self,
        of: ProcessIndex,
        due: DueSamples,
        read_ns: u64,
    ) -> Vec<DeferredSample> {
        let is_due = |deferred: &DeferredSample| {
            let due = match due {
                DueSamples::ImagesRead => deferred.sample.at_ns <= read_ns,
                DueSamples::ThreadEnded(thread) => deferred.sample.thread == thread,
                DueSamples::All => true,
            };
            due && deferred.process == of
        };
        if !self.0.iter().any(&is_due) {
            return Vec::new();
        }
        let (due, later) = std::mem::take(&mut self.0).into_iter().partition(is_due);
        self.0 = later;
        due
    }
}
