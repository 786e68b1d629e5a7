//! Captures on their way to a walk: those of a tick and a pool of their buffers (`Captures`), the state of a thread
//! at one moment (`Sample`), and samples that are walked after images are read again (`DeferredSamples`).

use super::processes::ProcessIndex;
use crate::images::LibraryCounts;
use crate::sources::{Capture, ThreadId};
use crate::walk::{Frames, StackEnd};

/// Captures between stop and walk.
#[derive(Debug, Default)]
pub(super) struct Captures {
    samples: Vec<Sample>,
    /// Waiting threads, captured without a stop.
    sleeping: Vec<(ThreadId, Box<Capture>)>,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    spare: Vec<Box<Capture>>,
}

impl Captures {
    /// Returns a buffer for a capture.
    pub(super) fn buffer(&mut self) -> Box<Capture> {
        self.spare.pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        self.spare.push(capture);
    }

    /// The pool of unused buffers.
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    pub(super) fn spare(&mut self) -> &mut Vec<Box<Capture>> {
        &mut self.spare
    }

    /// Keeps a sample until no thread is stopped.
    pub(super) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// The kept samples.
    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Takes all samples.
    pub(super) fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Returns the emptied list from [`Captures::take_samples`], for reuse of its memory.
    pub(super) fn reuse(&mut self, samples: Vec<Sample>) {
        self.samples = samples;
    }

    /// Keeps a capture of a waiting thread.
    pub(super) fn push_sleeping(&mut self, id: ThreadId, capture: Box<Capture>) {
        self.sleeping.push((id, capture));
    }

    /// Takes the captures of waiting threads.
    pub(super) fn take_sleeping(&mut self) -> Vec<(ThreadId, Box<Capture>)> {
        std::mem::take(&mut self.sleeping)
    }

    /// Returns the emptied list from [`Captures::take_sleeping`].
    pub(super) fn reuse_sleeping(&mut self, sleeping: Vec<(ThreadId, Box<Capture>)>) {
        self.sleeping = sleeping;
    }
}

// ---- One sample.

/// The state of a thread at one moment.
#[derive(Debug)]
pub struct Sample {
    /// The thread.
    pub thread: ThreadId,
    /// Its registers and stack bytes, boxed because samples are moved often.
    pub capture: Box<Capture>,
    /// Libraries that the process had loaded and unloaded before the capture and after it, where that is known.
    pub libraries: Option<[LibraryCounts; 2]>,
    /// Time of arrival, nanoseconds of the sampler's clock.
    pub at_ns: u64,
    /// Whether the thread was waiting when its stop was requested.
    pub waiting: bool,
    /// Off-CPU part of its weight, if wall-clock time is recorded: ready, or waiting between two polls;
    /// nanoseconds.
    pub off_cpu_ns: u64,
}

// ---- Deferred samples, walked after the images are read again. A stack that leads to code in no image looks torn if
// a library was loaded since the last read, and reads are rate-limited. This is typical of program start:
// libraries are loaded in the first milliseconds, and the first read is the most expensive.

/// Maximum number of deferred samples: a tick of all threads, or a hundred ticks of one.
const DEFERRED_MAX: usize = 128;

/// Maximum total size of their stacks.
const DEFERRED_BYTES_MAX: usize = 4 << 20;

/// After this many consecutive reads without changes, torn stacks are accepted as torn.
const UNCHANGED_READS_MAX: u32 = 3;

/// A sample to be walked again.
#[derive(Debug)]
pub(super) struct DeferredSample {
    pub(super) sample: Sample,
    pub(super) weight_ns: u64,
    pub(super) process: ProcessIndex,
    /// Address space at the time of capture.
    pub(super) space: u32,
}

/// Which deferred samples to walk now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueSamples {
    /// Samples captured before the last read of the images.
    ImagesRead,
    /// Samples of an exited thread, with the images already known.
    ThreadEnded(ThreadId),
    /// All samples, with the images already known: no further read is possible.
    All,
}

/// Limits and buffers for walking deferred samples.
pub(super) struct Rewalk<'a> {
    pub(super) stack_max_bytes: usize,
    pub(super) frames: &'a mut Frames,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    pub(super) spare: &'a mut Vec<Box<Capture>>,
}

/// Samples captured after the last read of the images, waiting for the next one; bounded.
#[derive(Debug, Default)]
pub(super) struct DeferredSamples(Vec<DeferredSample>);

impl DeferredSamples {
    /// Whether the walk may have ended this way because code was mapped after the last read of the images.
    /// `read_ns`: time of that read; `unchanged_reads`: consecutive reads without changes.
    pub(super) fn may_be_new_code(
        sample: &Sample,
        ended: StackEnd,
        (read_ns, unchanged_reads): (u64, u32),
    ) -> bool {
        matches!(ended, StackEnd::BrokenFrameChain | StackEnd::NoUnwindInfo | StackEnd::StackScan)
            && read_ns < sample.at_ns
            && unchanged_reads < UNCHANGED_READS_MAX
    }

    /// Whether one more sample fits.
    pub(super) fn has_room_for(&self, capture: &Capture) -> bool {
        let bytes: usize = self.0.iter().map(|deferred| deferred.sample.capture.held_bytes()).sum();
        self.0.len() < DEFERRED_MAX && bytes + capture.held_bytes() <= DEFERRED_BYTES_MAX
    }

    /// Keeps a sample.
    pub(super) fn push(&mut self, deferred: DeferredSample) {
        self.0.push(deferred);
    }

    /// Whether a process has deferred samples.
    pub(super) fn has_any_of(&self, of: ProcessIndex) -> bool {
        self.0.iter().any(|deferred| deferred.process == of)
    }

    /// Processes of all deferred samples.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessIndex> {
        self.0.iter().map(|deferred| deferred.process)
    }

    /// Takes the due samples of a process; its images were read at `read_ns`.
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
