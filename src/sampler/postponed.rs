//! Samples that wait for the images to be read again: a stack that leads to code in none is
//! torn only because a library was loaded since they were, and what reading them costs is
//! limited. When a program starts that is the rule: it loads its libraries in the first
//! milliseconds, and the first reading costs most.

use super::recorder::{Recorder, Sample};
use crate::sources::{Capture, Observed, ThreadId};
use crate::walk::{Ended, Frames};

/// Most samples that wait; a tick of all threads, or a hundred ticks of one.
const POSTPONED_MAX: usize = 128;
/// Most bytes of their stacks together.
const POSTPONED_BYTES_MAX: usize = 4 << 20;
/// After this many readings in a row that showed nothing new, torn stacks are taken as torn.
const FRUITLESS_MAX: u32 = 3;

/// A sample whose walk is to be made again.
#[derive(Debug)]
pub(super) struct Postponed {
    sample: Sample,
    counts: u64,
    /// The address space it was captured in.
    space: u32,
}

/// What walking postponed samples needs, and where their buffers go.
pub(super) struct Rewalk<'a> {
    pub(super) window_max_bytes: usize,
    pub(super) frames: &'a mut Frames,
    pub(super) spare: &'a mut Vec<Capture>,
}

impl Recorder<'_> {
    /// Keeps the sample of a running thread whose walk ended so because the images were not
    /// read since, perhaps; gives back any other.
    pub(super) fn postpone(&mut self, sample: Sample, ended: Ended, counts: u64) -> Option<Sample> {
        let (read_ns, fruitless) = self.images_read();
        let may_be_new_code = matches!(ended, Ended::BadFrame | Ended::Undescribed | Ended::Scanned)
            && read_ns < sample.at_ns
            && fruitless < FRUITLESS_MAX;
        if !may_be_new_code
            || sample.waiting
            || !self.has_room_for(&sample.capture)
            || !self.accounts.contains_key(&sample.thread)
        {
            return Some(sample);
        }
        self.postponed.push(Postponed { sample, counts, space: self.space() });
        None
    }

    fn has_room_for(&self, capture: &Capture) -> bool {
        let bytes: usize = self.postponed.iter().map(|one| one.sample.capture.stack.capacity()).sum();
        self.postponed.len() < POSTPONED_MAX && bytes + capture.stack.capacity() <= POSTPONED_BYTES_MAX
    }

    /// Walks those again that were captured before the images were read.
    pub(super) fn take_up_postponed(&mut self, process: &mut dyn Observed, rewalk: &mut Rewalk<'_>) {
        let (read_ns, _) = self.images_read();
        self.walk_postponed(process, rewalk, |one| one.sample.at_ns <= read_ns);
    }

    /// Walks all, or those of one thread, with what is known: no reading of the images can
    /// tell more about them.
    pub(super) fn settle_postponed(
        &mut self,
        process: &mut dyn Observed,
        thread: Option<ThreadId>,
        rewalk: &mut Rewalk<'_>,
    ) {
        self.walk_postponed(process, rewalk, |one| thread.is_none_or(|thread| thread == one.sample.thread));
    }

    fn walk_postponed(
        &mut self,
        process: &mut dyn Observed,
        rewalk: &mut Rewalk<'_>,
        is_due: impl Fn(&Postponed) -> bool,
    ) {
        if !self.postponed.iter().any(&is_due) {
            return;
        }
        let (due, later) = std::mem::take(&mut self.postponed).into_iter().partition(is_due);
        self.postponed = later;
        for Postponed { sample, counts, space } in due {
            let Sample { thread, capture, .. } = sample;
            let ended = self.walk_with_known_images(
                process,
                thread,
                &capture,
                rewalk.window_max_bytes,
                rewalk.frames,
            );
            // What it led to may have been replaced since.
            let ended = if self.space() == space { ended } else { Ended::BadFrame };
            self.insert(thread, ended, rewalk.frames, counts, false);
            rewalk.spare.push(capture);
        }
    }
}
