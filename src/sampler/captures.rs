//! What was captured in a tick and not yet walked, and the buffers of what was.

use super::sample::Sample;
use crate::sources::{Capture, ThreadId};

/// Captures, from the stop to the walk.
#[derive(Debug, Default)]
pub(super) struct Captures {
    samples: Vec<Sample>,
    /// Of threads that wait, without a stop.
    sleeping: Vec<(ThreadId, Box<Capture>)>,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    spare: Vec<Box<Capture>>,
}

impl Captures {
    /// A buffer for a capture.
    pub(super) fn buffer(&mut self) -> Box<Capture> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        self.spare.push(capture);
    }

    /// Where buffers are given back to.
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    pub(super) fn spare(&mut self) -> &mut Vec<Box<Capture>> {
        &mut self.spare
    }

    /// Keeps a sample until no thread is stopped.
    pub(super) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// The samples that are kept.
    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Takes all samples.
    pub(super) fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Takes the list back that [`Captures::take_samples`] gave out, which is empty: its memory is used again.
    pub(super) fn reuse(&mut self, samples: Vec<Sample>) {
        self.samples = samples;
    }

    /// Keeps a capture of a thread that waits.
    pub(super) fn push_sleeping(&mut self, id: ThreadId, capture: Box<Capture>) {
        self.sleeping.push((id, capture));
    }

    /// Takes those of threads that wait.
    pub(super) fn take_sleeping(&mut self) -> Vec<(ThreadId, Box<Capture>)> {
        std::mem::take(&mut self.sleeping)
    }

    /// Takes the list back that [`Captures::take_sleeping`] gave out, which is empty.
    pub(super) fn reuse_sleeping(&mut self, sleeping: Vec<(ThreadId, Box<Capture>)>) {
        self.sleeping = sleeping;
    }
}
