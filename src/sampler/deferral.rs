//! Which samples are deferred, and when they are walked again.

use super::deferred::{DeferredSample, DueSamples, Rewalk};
use super::recorded_process::ProcessIndex;
use super::recorder::Recorder;
use super::sample::Sample;
use crate::sources::{Capture, Observed};
use crate::walk::StackEnd;

/// Most deferred samples; a tick of all threads, or a hundred ticks of one.
const DEFERRED_MAX: usize = 128;

/// Most bytes of their stacks together.
const DEFERRED_BYTES_MAX: usize = 4 << 20;

/// After this many readings in a row that showed nothing new, torn stacks are taken as torn.
const UNCHANGED_READS_MAX: u32 = 3;

impl Recorder<'_> {
    /// Keeps a sample whose walk ended so because the images were not read since, perhaps; gives back
    /// any other, and that of a thread that waits on, whose stack is to be counted again.
    pub(super) fn defer(&mut self, sample: Sample, ended: StackEnd, weight_ns: u64) -> Option<Sample> {
        let Some(of) = self.threads.get(&sample.thread).map(|account| account.process) else {
            return Some(sample);
        };
        let (read_ns, unchanged_reads) = self.images_read(of);
        let may_be_new_code = matches!(ended, StackEnd::BadFrame | StackEnd::Undescribed | StackEnd::Scanned)
            && read_ns < sample.at_ns
            && unchanged_reads < UNCHANGED_READS_MAX;
        let waits_on = sample.waiting && (self.by_wall || weight_ns == 0);
        if !may_be_new_code || waits_on || !self.has_room_for(&sample.capture) {
            return Some(sample);
        }
        let space = self.space(of);
        self.deferred.push(DeferredSample { sample, weight_ns, process: of, space });
        None
    }

    /// Whether a process has deferred samples.
    pub(super) fn has_deferred(&self, of: ProcessIndex) -> bool {
        self.deferred.iter().any(|deferred| deferred.process == of)
    }

    /// The processes, by the system's numbers, that have deferred samples.
    pub(super) fn with_deferred(&self) -> Vec<u32> {
        let indexes = self.deferred.iter().map(|deferred| deferred.process.0 as usize);
        let pids = indexes.filter_map(|index| Some(self.processes.get(index)?.pid));
        let mut pids: Vec<u32> = pids.collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn has_room_for(&self, capture: &Capture) -> bool {
        let bytes: usize = self.deferred.iter().map(|deferred| deferred.sample.capture.held_bytes()).sum();
        self.deferred.len() < DEFERRED_MAX && bytes + capture.held_bytes() <= DEFERRED_BYTES_MAX
    }

    /// Walks again those of a process that are due, and inserts them.
    pub(super) fn walk_deferred(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        due: DueSamples,
        rewalk: &mut Rewalk<'_>,
    ) {
        let (read_ns, _) = self.images_read(of);
        let is_due = |deferred: &DeferredSample| {
            let due = match due {
                DueSamples::ImagesRead => deferred.sample.at_ns <= read_ns,
                DueSamples::ThreadEnded(thread) => deferred.sample.thread == thread,
                DueSamples::All => true,
            };
            due && deferred.process == of
        };
        if !self.deferred.iter().any(&is_due) {
            return;
        }
        let (due, later) = std::mem::take(&mut self.deferred).into_iter().partition(is_due);
        self.deferred = later;
        for DeferredSample { sample, weight_ns, space, .. } in due {
            let (ended, _) = self.walk_with_known_images(
                process,
                sample.thread,
                &sample.capture,
                rewalk.stack_max_bytes,
                rewalk.frames,
            );
            // What it led to may have been replaced since.
            let ended = if self.space(of) == space { ended } else { StackEnd::BadFrame };
            let waiting = sample.waiting;
            self.insert(&sample, ended, rewalk.frames, weight_ns, waiting);
            rewalk.spare.push(sample.capture);
        }
    }
}
