//! A time range of a profile.
//!
//! Input: a [`SavedProfile`] with times, and a time range. Output: a [`SavedProfile`] of the samples in it, with times relative to
//! the start of the range. The counts of adjacent ranges add up to the profile's, stack by stack and loss by loss.

use std::collections::BTreeMap;
use std::ops::Range;

use super::builder::SavedBuilder;
use super::full::Full;
use super::remap::Remap;
use super::saved::SavedProfile;
use super::timeline::{Timeline, share};
use crate::trie::NodeId;

/// Loss reason for counts of a range whose times were not kept.
const WITHOUT_TIME: &str = "without a time: more --timeline-memory keeps it";

/// Reason for incomplete stacks of a range: the times of the original reasons are unknown.
const IN_RANGE: &str = "in this part of the time";

impl SavedProfile {
    /// Length of the recording by its times, nanoseconds; `None` for a profile without times.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        let timeline = self.timeline.as_ref()?;
        Some(self.about.duration_ns.unwrap_or(0).max(timeline.end_ns().saturating_add(1)))
    }

    /// The samples in a time range, nanoseconds since the recording began; `None` for a profile
    /// without times.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn in_time_range(&self, range: &Range<u64>) -> Result<Option<SavedProfile>, Full> {
        let (Some(timeline), Some(all_ns)) = (&self.timeline, self.time_ns()) else { return Ok(None) };
        let range = range.start..range.end.min(all_ns);
        let selected = timeline.in_time_range(&range);
        let counts = selected.counts();
        let mut about = self.about.clone();
        about.limit_to(&range, self.lost_within(timeline, &range, all_ns));
        let mut builder = SavedBuilder::new(about);
        let tables = Remap::new(self).all(&mut builder)?;
        let count = |node: NodeId| counts.get(&node).copied().unwrap_or(0);
        let nodes = builder.add_remapped(self, &tables, count)?;
        builder.add_timeline(self, &selected, &nodes)?;
        let mut saved = builder.finish();
        let incomplete = saved.incomplete_count();
        if incomplete > 0 {
            saved.about.incomplete.insert(IN_RANGE.to_owned(), incomplete);
        }
        Ok(Some(saved))
    }

    /// The part of the profile with untimed samples; `None` if all have times.
    ///
    /// # Errors
    /// [`Full`] if it does not fit.
    pub fn without_times(&self) -> Result<Option<SavedProfile>, Full> {
        let Some(timeline) = &self.timeline else { return Ok(None) };
        let timed = timeline.counts();
        if timed.values().sum::<u64>() >= self.total() {
            return Ok(None);
        }
        let mut builder = SavedBuilder::new(self.about.clone());
        let tables = Remap::new(self).all(&mut builder)?;
        let count =
            |node: NodeId| self.trie.count(node).saturating_sub(timed.get(&node).copied().unwrap_or(0));
        builder.add_remapped(self, &tables, count)?;
        Ok(Some(builder.finish()))
    }

    /// Counts lost in a range, by reason. Untimed losses are distributed evenly over all time.
    fn lost_within(&self, timeline: &Timeline, range: &Range<u64>, all_ns: u64) -> BTreeMap<String, u64> {
        let before = |time_ns: u64| {
            let by_reason = timeline.lost_before_ns(time_ns);
            let of_reason = |reason: &str, count: u64| {
                let known = self.texts.find(reason).and_then(|reason| by_reason.get(&reason)).copied();
                let (elapsed, whole) = known.unwrap_or((time_ns, all_ns));
                share(count, elapsed, whole)
            };
            let mut lost: BTreeMap<String, u64> = self
                .about
                .lost
                .iter()
                .map(|(reason, count)| (reason.clone(), of_reason(reason, *count)))
                .collect();
            let timed: u64 = timeline.counts().values().sum();
            let untimed = share(self.total().saturating_sub(timed), time_ns, all_ns);
            *lost.entry(WITHOUT_TIME.to_owned()).or_default() += untimed;
            lost
        };
        let (until_start, mut until_end) = (before(range.start), before(range.end));
        for (reason, count) in &mut until_end {
            *count -= until_start.get(reason).copied().unwrap_or(0).min(*count);
        }
        until_end.retain(|_, count| *count > 0);
        until_end
    }

    /// Counts of incomplete stacks.
    fn incomplete_count(&self) -> u64 {
        let mut incomplete: u64 = 0;
        self.for_each_stack(|root, _, count| {
            incomplete = incomplete.saturating_add(if root.complete { 0 } else { count });
        });
        incomplete
    }
}

#[cfg(test)]
mod tests;
