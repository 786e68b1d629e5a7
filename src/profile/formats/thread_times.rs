//! Times of samples in files, grouped by thread.
//!
//! Input: samples with their process and thread, in any order. Output: the threads of a timeline, each sorted
//! by time.

use std::collections::HashMap;

use super::malformed::Malformed;
use super::protobuf::limit;
use crate::profile::builder::{ROOTS_MAX, SavedBuilder};
use crate::profile::texts::TextId;
use crate::profile::timeline::{ThreadTimeline, TimedSample};

/// Most samples with times in a file: 9 hours of a thread at 997 Hz, 1 GiB.
pub(super) const TIMED_SAMPLES_MAX: usize = 1 << 25;

/// Process with its id, and name and number of a thread.
pub(super) type ThreadKey = (TextId, Option<u32>, TextId, u64);

/// The threads so far.
#[derive(Debug, Default)]
pub(super) struct ThreadTimes {
    threads: Vec<ThreadTimeline>,
    known: HashMap<ThreadKey, usize>,
    samples: usize,
}

impl ThreadTimes {
    /// Adds samples of a thread.
    pub(super) fn add(
        &mut self,
        key: ThreadKey,
        samples: impl ExactSizeIterator<Item = TimedSample>,
    ) -> Result<(), Malformed> {
        if samples.len() == 0 {
            return Ok(());
        }
        self.samples += samples.len();
        limit(self.samples, TIMED_SAMPLES_MAX + 1, "samples with times")?;
        let (process, pid, name, id) = key;
        let threads = &mut self.threads;
        let index = *self.known.entry(key).or_insert_with(|| {
            let samples = Vec::new();
            threads.push(ThreadTimeline { process, pid, name, id, begun_ns: 0, ended_ns: None, samples });
            threads.len() - 1
        });
        limit(index, ROOTS_MAX, "threads")?;
        if let Some(thread) = self.threads.get_mut(index) {
            thread.samples.extend(samples);
        }
        Ok(())
    }

    /// Moves them into a profile.
    pub(super) fn finish(self, builder: &mut SavedBuilder) {
        for mut thread in self.threads {
            thread.samples.sort_by_key(|sample| sample.at_ns);
            let begun_ns = |sample: &TimedSample| sample.at_ns.saturating_sub(sample.weight_ns);
            thread.begun_ns = thread.samples.first().map_or(0, begun_ns);
            builder.times().threads.push(thread);
        }
    }
}

/// Weight of this many counts, nanoseconds.
pub(super) fn weight_ns(count: u64, period_ns: f64) -> u64 {
    (count as f64 * period_ns).round() as u64
}
