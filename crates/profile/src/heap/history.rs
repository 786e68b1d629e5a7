//! Bytes in use over time, by node, in bounded memory.
//!
//! Input: bytes in use of a node after each change, in order of time. Output: [`LiveHistory`]: bytes of each node at
//! the end of each of at most 600 time steps. When steps or changes become too many, pairs of steps are merged.

use std::collections::HashMap;
use std::ops::Range;

use crate::trie::NodeId;

/// Most time steps: more would be narrower than a pixel on a screen.
const STEPS_MAX: u64 = 600;
/// Fewer steps show nothing useful.
const STEPS_MIN: u64 = 16;
/// Most stored changes, 16 bytes each, unless there are more nodes.
const CHANGES_MAX: usize = 1 << 20;
/// Initial length of a step, nanoseconds.
const STEP_NS_MIN: u64 = 1_000_000;

/// Changes of nodes by time step.
#[derive(Debug)]
pub(super) struct History {
    step_ns: u64,
    /// Time of the first change.
    begun_ns: Option<u64>,
    now_ns: u64,
    /// By node: step, and bytes at its end.
    nodes: Vec<Vec<(u32, u64)>>,
    changes: usize,
    changes_max: usize,
}

impl Default for History {
    fn default() -> History {
        History {
            step_ns: STEP_NS_MIN,
            begun_ns: None,
            now_ns: 0,
            nodes: Vec::new(),
            changes: 0,
            changes_max: CHANGES_MAX,
        }
    }
}

impl History {
    /// Records the bytes in use of a node from a time on. A time before the previous change is clamped to it.
    pub(super) fn record(&mut self, node: NodeId, at_ns: u64, bytes: u64) {
        self.now_ns = self.now_ns.max(at_ns);
        self.begun_ns.get_or_insert(at_ns);
        while self.step_of(self.now_ns) >= STEPS_MAX {
            self.join_steps();
        }
        let step = self.step_of(self.now_ns) as u32;
        let index = node.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, Vec::new());
        }
        if push(&mut self.nodes[index], step, bytes) {
            self.changes += 1;
        }
        if self.changes > self.changes_max {
            while self.changes > self.changes_max / 2 && self.step_of(self.now_ns) >= STEPS_MIN {
                self.join_steps();
            }
            // Every node keeps a change, so more nodes raise the limit.
            self.changes_max = self.changes_max.max(self.changes * 2);
        }
    }

    fn step_of(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.begun_ns.unwrap_or(at_ns)) / self.step_ns
    }

    /// Merges pairs of steps.
    fn join_steps(&mut self) {
        self.step_ns = self.step_ns.saturating_mul(2);
        self.changes = 0;
        for changes in &mut self.nodes {
            let mut joined = Vec::new();
            for (step, bytes) in &*changes {
                push(&mut joined, step / 2, *bytes);
            }
            joined.shrink_to_fit();
            self.changes += joined.len();
            *changes = joined;
        }
    }

    /// The history so far. `peak`: time of the most bytes in use, and bytes of a node at that time.
    pub(super) fn finish(&self, peak_ns: u64, peak_bytes: impl Fn(NodeId) -> u64) -> LiveHistory {
        let Some(begun_ns) = self.begun_ns else { return LiveHistory::default() };
        let peak_ns = peak_ns.clamp(begun_ns, self.now_ns);
        let peak = self.step_of(peak_ns) as u32;
        let end_of = |step: u64| {
            begun_ns.saturating_add((step + 1).saturating_mul(self.step_ns)).min(self.now_ns.max(begun_ns))
        };
        let mut times_ns: Vec<u64> = (0..=self.step_of(self.now_ns)).map(end_of).collect();
        // The peak is a time of its own.
        times_ns.insert(peak as usize, peak_ns);
        let mut changes = Vec::new();
        for (node, steps) in (0..).map(NodeId).zip(&self.nodes) {
            let mut before = 0u64;
            let mut add = |time: u32, bytes: u64| {
                if bytes != before {
                    let by_bytes = (i128::from(bytes) - i128::from(before))
                        .clamp(i64::MIN.into(), i64::MAX.into()) as i64;
                    changes.push(LiveChange { time, node, by_bytes });
                    before = bytes;
                }
            };
            let (until, after) = steps.split_at(steps.partition_point(|(step, _)| *step < peak));
            until.iter().for_each(|(step, bytes)| add(*step, *bytes));
            add(peak, peak_bytes(node));
            after.iter().for_each(|(step, bytes)| add(step + 1, *bytes));
        }
        changes.sort_by_key(|change| change.time);
        LiveHistory { times_ns, peak, changes }
    }
}

/// Records bytes at the end of a step; returns whether that added a change.
fn push(changes: &mut Vec<(u32, u64)>, step: u32, bytes: u64) -> bool {
    match changes.last_mut() {
        Some(last) if last.0 == step => {
            last.1 = bytes;
            false
        }
        _ => {
            changes.push((step, bytes));
            true
        }
    }
}

/// Bytes in use over time, by node of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveHistory {
    /// Times, ascending, nanoseconds of the recording's clock.
    pub times_ns: Vec<u64>,
    /// Index of the time with the most bytes in use.
    pub peak: u32,
    /// Changes since the previous time, by time.
    pub changes: Vec<LiveChange>,
}

/// A change of a node's bytes in use since the previous time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveChange {
    /// Index of the time.
    pub time: u32,
    /// The node.
    pub node: NodeId,
    /// Difference in bytes.
    pub by_bytes: i64,
}

/// Bytes in use at a list of times, by node of a saved profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InuseHistory {
    times_ns: Vec<u64>,
    peak: u32,
    changes: Vec<LiveChange>,
    /// Callers that the page's chart draws as areas of their own.
    areas: Vec<String>,
    area_of: HashMap<NodeId, usize>,
}

impl InuseHistory {
    /// Converts the history of a recording. `node` maps a node of the recording to the profile. `None` if nothing was
    /// ever in use.
    pub fn of(
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
    pub(crate) fn set_areas(&mut self, callers: &HashMap<NodeId, String>, count: usize) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::mix;

    /// Bytes of a node at each time.
    fn series(history: &LiveHistory, node: u32) -> Vec<i64> {
        let mut bytes = vec![0i64; history.times_ns.len()];
        for change in history.changes.iter().filter(|change| change.node.0 == node) {
            bytes[change.time as usize..].iter_mut().for_each(|bytes| *bytes += change.by_bytes);
        }
        bytes
    }

    #[test]
    fn each_step_has_the_bytes_at_its_end_and_the_peak_has_its_own_time() {
        let mut history = History::default();
        for (at_ms, node, bytes) in [(10, 0, 100), (11, 1, 50), (11, 1, 900), (11, 1, 60), (13, 0, 0)] {
            history.record(NodeId(node), at_ms * 1_000_000, bytes);
        }
        let known = history.finish(11_000_000, |node| [100, 900][node.0 as usize]);
        let ms: Vec<u64> = known.times_ns.iter().map(|ns| ns / 1_000_000).collect();
        assert_eq!((ms.as_slice(), known.peak), (&[11, 11, 12, 13, 13][..], 1));
        assert_eq!(series(&known, 0), [100, 100, 100, 100, 0]);
        assert_eq!(series(&known, 1), [0, 900, 60, 60, 60]);
    }

    #[test]
    fn steps_and_changes_are_bounded_and_end_values_stay_right() {
        let mut history = History { changes_max: 2000, ..History::default() };
        let mut last = [0u64; 50];
        let mut seed = 7;
        for number in 0..200_000u64 {
            seed = mix(seed);
            let (node, bytes) = ((seed % 50) as u32, seed >> 40);
            history.record(NodeId(node), number * 700_000, bytes);
            last[node as usize] = bytes;
            assert!(history.changes <= 2001, "seed 7, {number}");
        }
        let known = history.finish(0, |_| 0);
        assert!(known.times_ns.len() <= 601, "{}", known.times_ns.len());
        assert!(known.times_ns.is_sorted() && known.times_ns.len() > 8, "{:?}", known.times_ns);
        for (node, bytes) in last.into_iter().enumerate() {
            assert_eq!(series(&known, node as u32).last(), Some(&(bytes as i64)), "seed 7, node {node}");
        }
    }

    #[test]
    fn each_node_keeps_one_change_even_beyond_the_limit() {
        let mut history = History { changes_max: 10, ..History::default() };
        for node in 0..1000 {
            history.record(NodeId(node), u64::from(node), 1);
        }
        assert_eq!(history.finish(0, |_| 0).changes.len(), 1000);
    }

    #[test]
    fn an_empty_heap_has_no_history() {
        assert_eq!(History::default().finish(0, |_| 0), LiveHistory::default());
    }
}
