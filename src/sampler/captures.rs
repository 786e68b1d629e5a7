//! Captures of a tick that are not yet walked, and a pool of capture buffers.

use super::sample::Sample;
use crate::sources::{Capture, ThreadId};

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
