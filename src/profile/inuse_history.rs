//! Bytes in use over time in a heap recording: by stack, and by the callers with the most.
//!
//! Part of the [values](super::values) of a heap profile; its nodes are those of the profile's trie.
//! [`SavedProfile::group_inuse`](super::SavedProfile::group_inuse) names the callers.

use std::collections::HashMap;
use std::ops::Range;

use crate::heap::{LiveChange, LiveHistory};
use crate::trie::NodeId;

/// Bytes in use at a list of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InuseHistory {
    times_ns: Vec<u64>,
    peak: u32,
    changes: Vec<LiveChange>,
    areas: Vec<String>,
    area_of: HashMap<NodeId, usize>,
}

impl InuseHistory {
    /// Converts the history of a recording. `node` maps a node of the recording to the profile. `None` if nothing was
    /// ever in use.
    pub(super) fn of(
        history: &LiveHistory,
        recorded: &Range<u64>,
        node: impl Fn(NodeId) -> Option<NodeId>,
    ) -> Option<InuseHistory> {
        let since_begin = |at_ns: &u64| at_ns.clamp(&recorded.start, &recorded.end) - recorded.start;
        let change = |change: &LiveChange| Some(LiveChange { node: node(change.node)?, ..*change });
        let changes: Vec<LiveChange> = history.changes.iter().filter_map(change).collect();
        let mut times_ns: Vec<u64> = history.times_ns.iter().map(since_begin).collect();
        // Nothing changes after the last change.
        let end_ns = recorded.end.saturating_sub(recorded.start);
        times_ns.extend(Some(end_ns).filter(|end_ns| times_ns.last().is_some_and(|last| last < end_ns)));
        (!changes.is_empty()).then(|| InuseHistory {
            times_ns,
            peak: history.peak,
            changes,
            ..InuseHistory::default()
        })
    }

    /// The times, ascending, nanoseconds since the recording began.
    #[must_use]
    pub fn times_ns(&self) -> &[u64] {
        &self.times_ns
    }

    /// Index of the time with the most bytes in use.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.peak
    }

    /// Changes of the bytes in use per stack since the previous time, by time.
    #[must_use]
    pub fn changes(&self) -> &[LiveChange] {
        &self.changes
    }

    /// Callers with the most bytes in use at some time, the largest first.
    #[must_use]
    pub fn areas(&self) -> &[String] {
        &self.areas
    }

    /// The index of a stack's area; `None`: the rest.
    #[must_use]
    pub fn area_of(&self, node: NodeId) -> Option<usize> {
        self.area_of.get(&node).copied()
    }

    /// Assigns areas to the callers with the most bytes in use at some time.
    pub(super) fn set_areas(&mut self, callers: &HashMap<NodeId, String>, count: usize) {
        let mut now: HashMap<&str, (i64, i64)> = HashMap::new();
        for same_time in self.changes.chunk_by(|a, b| a.time == b.time) {
            let names = || same_time.iter().filter_map(|change| callers.get(&change.node));
            for change in same_time {
                if let Some(name) = callers.get(&change.node) {
                    let bytes = &mut now.entry(name).or_default().0;
                    *bytes = bytes.saturating_add(change.by_bytes);
                }
            }
            for name in names() {
                if let Some((bytes, most)) = now.get_mut(name.as_str()) {
                    *most = (*most).max(*bytes);
                }
            }
        }
        let mut ranks: Vec<(&str, i64)> = now.into_iter().map(|(name, (_, most))| (name, most)).collect();
        ranks.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        ranks.truncate(count);
        let index = |name: &str| ranks.iter().position(|(area, _)| *area == name);
        self.area_of =
            callers.iter().filter_map(|(node, name)| index(name).map(|area| (*node, area))).collect();
        self.areas = ranks.into_iter().map(|(name, _)| name.to_owned()).collect();
    }
}
