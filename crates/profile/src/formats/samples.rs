//! Samples of files: their times by thread, and what pprof and OTLP have in common.
//!
//! `ThreadTimes` has the times, `Samples` converts values and labels, `SampleIdentity` is whose a sample is.

use std::borrow::Cow;
use std::io;

use super::protobuf::limit;
use super::tally::{Malformed, Tally};
use crate::builder::{ROOTS_MAX, SavedBuilder};
use crate::saved::{Label, SavedProfile, StackRoot};
use crate::table::Numbered;
use crate::texts::TextId;
use crate::timeline::{ThreadTimeline, TimedSample, Timeline};
use crate::trie::NodeId;

/// Most samples with times in a file: 9 hours of a thread at 997 Hz, 1 GiB.
pub(super) const TIMED_SAMPLES_MAX: usize = 1 << 25;

/// Process with its id, and name and number of a thread.
pub(super) type ThreadKey = (TextId, Option<u32>, TextId, u64);

/// The threads so far.
#[derive(Debug, Default)]
pub(super) struct ThreadTimes {
    threads: Numbered<ThreadKey, ThreadTimeline>,
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
        let index = self.threads.number_with(key, || {
            let samples = Vec::new();
            ThreadTimeline { process, pid, name, id, begun_ns: 0, ended_ns: None, samples }
        }) as usize;
        limit(index, ROOTS_MAX, "threads")?;
        if let Some(thread) = self.threads.items_mut().get_mut(index) {
            thread.samples.extend(samples);
        }
        Ok(())
    }

    /// Moves them into a profile.
    pub(super) fn finish(self, builder: &mut SavedBuilder) {
        for mut thread in self.threads.into_items() {
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

/// What a file whose times are those of `timeline` has as counts without times, if anything.
pub(super) fn without_timeline<'s>(
    saved: &'s SavedProfile,
    timeline: Option<&Timeline>,
) -> io::Result<Option<Cow<'s, SavedProfile>>> {
    match timeline {
        Some(_) => Ok(saved.without_times().map_err(io::Error::other)?.map(Cow::Owned)),
        None => Ok(Some(Cow::Borrowed(saved))),
    }
}

// ---- Samples of formats with a dictionary: pprof and OTLP.

/// Whose a sample is: its root, and facts about its thread.
pub(super) struct SampleIdentity {
    pub(super) root: StackRoot,
    pub(super) pid: Option<u32>,
    pub(super) thread: TextId,
    pub(super) tid: Option<u64>,
    pub(super) cpu: Option<u32>,
}

impl SampleIdentity {
    /// A sample of a process, of which nothing else is known.
    pub(super) fn of(process: TextId, pid: Option<u32>) -> SampleIdentity {
        SampleIdentity { root: StackRoot::of(process), pid, thread: TextId::EMPTY, tid: None, cpu: None }
    }
}

/// The samples of a file.
pub(super) struct Samples {
    begin_ns: u64,
    period_ns: f64,
    divisor: u64,
    has_merged_threads: bool,
    times: ThreadTimes,
    /// Samples whose labels are left out.
    without_labels: u64,
}

impl Samples {
    /// No samples so far. `begin_ns` is the origin of the file's clock, nanoseconds since 1970, `divisor` the value
    /// of one count, which weighs `period_ns`. With `has_merged_threads`, samples are by thread, but roots by process.
    pub(super) fn new(begin_ns: u64, period_ns: f64, divisor: u64, has_merged_threads: bool) -> Samples {
        let times = ThreadTimes::default();
        Samples { begin_ns, period_ns, divisor, has_merged_threads, times, without_labels: 0 }
    }

    /// The counts of a value; `of` names the sample.
    pub(super) fn counts(&self, value: i64, of: impl Fn() -> String) -> Result<u64, Malformed> {
        // Without its negative half a difference would be meaningless.
        let value = u64::try_from(value)
            .map_err(|_| format!("{} counts {value}; a difference of profiles is no profile", of()))?;
        // Rounded: the times of a profile are whole periods, up to the precision of a clock.
        Ok(value / self.divisor + u64::from(value % self.divisor > self.divisor / 2))
    }

    /// Gives the root of a sample its labels and its thread.
    pub(super) fn complete_root(
        &mut self,
        identity: &mut SampleIdentity,
        labels: &mut Vec<Label>,
        builder: &mut SavedBuilder,
    ) {
        match builder.labels(labels) {
            Some(labels) => identity.root.labels = labels,
            None => self.without_labels += 1,
        }
        let tid = identity.tid.filter(|_| !self.has_merged_threads);
        identity.root.thread = tid.map(|tid| (identity.thread, tid));
    }

    /// Adds the times of a sample: the time of each observation, its weight unless that is of its counts, its node
    /// and its counts.
    pub(super) fn add_times(
        &mut self,
        identity: &SampleIdentity,
        observations: impl ExactSizeIterator<Item = (u64, Option<u64>, Option<NodeId>, u64)>,
    ) -> Result<(), Malformed> {
        let (begin_ns, period_ns, cpu) = (self.begin_ns, self.period_ns, identity.cpu);
        let samples = observations.map(|(time_ns, own_weight_ns, node, count)| TimedSample {
            at_ns: time_ns.saturating_sub(begin_ns),
            weight_ns: own_weight_ns.unwrap_or_else(|| weight_ns(count, period_ns)),
            node,
            count,
            cpu,
        });
        let key = (identity.root.process, identity.pid, identity.thread, identity.tid.unwrap_or(0));
        self.times.add(key, samples)
    }

    /// Moves the times into a profile, and reports what is left out.
    pub(super) fn finish(self, builder: &mut SavedBuilder, tally: &mut Tally) {
        tally.remark_labels(self.without_labels);
        self.times.finish(builder);
    }
}

/// Whether a time is whole periods, up to the rounding error of a sum. Dividing others would lose the remainder.
pub(super) fn is_multiple(value: u64, period: u64) -> bool {
    let over = value % period;
    over.min(period - over) <= period / 100 + value / 1_000_000
}
