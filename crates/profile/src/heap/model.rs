//! The live set of sampled allocations, and the values of each trie node: allocated, in use, in use at the peak,
//! freed within a millisecond (churn). Live blocks are those of running processes; in use are these and the blocks that
//! ended processes left.
//!
//! The peak is kept without copies: a node that changes for the first time since the last peak first saves its value at
//! that peak; the value of a node that has not changed since is the live one.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use hashbrown::HashMap;

use super::ValueKind;
use super::estimate::{Estimate, OBJECT_FRACTIONS, SamplingRate, Sum, Weight};
use super::history::{History, LiveHistory};
use crate::trie::NodeId;

/// Blocks freed within this time count as churn, nanoseconds.
pub const CHURN_NS: u64 = 1_000_000;

/// Number of recent frees that can be undone: a failing `realloc` undoes its free within
/// microseconds.
const FREES_KEPT: usize = 256;

/// The moment of the in-use values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The end: of each process, or of the recording.
    #[default]
    End,
    /// When most bytes were in use, summed over all processes.
    Peak,
}

/// A sampled allocation that has not been freed.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    /// `None`: its stack is lost.
    node: Option<NodeId>,
    bytes: u64,
    /// Of these, bytes that were not freed.
    rest_bytes: u64,
    at_ns: u64,
}

/// A free that can be undone.
#[derive(Clone, Copy, Debug)]
struct RecentFree {
    process: u32,
    /// Address of the block (Avma).
    address: u64,
    freed: LiveBlock,
    is_churn: bool,
}

/// Counts of events, and of inconsistent ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sampled allocations.
    pub allocations: u64,
    /// Frees of sampled allocations.
    pub frees: u64,
    /// Frees without a sampled allocation in the process.
    pub frees_unknown: u64,
    /// Frees in a forked process of copies of its parent's blocks.
    pub frees_inherited: u64,
    /// Sampled allocations at the address of a live one: its free is missing.
    pub frees_missing: u64,
    /// Sampled allocations without reported frees: they count as allocated, never as in use.
    pub untracked: u64,
    /// Sampled allocations with lost stacks: they are in no node.
    pub stacks_lost: u64,
}

/// Sums of one node.
#[derive(Clone, Debug, Default)]
struct NodeSums {
    allocated: Sum,
    /// Of running processes.
    live: Sum,
    /// Of exited processes.
    ended: Sum,
    /// `live` at the peak number `peak_number`.
    live_at_peak: Sum,
    peak_number: u64,
    churn: Sum,
    /// The smallest allocation seen, and the largest.
    bytes_min: Option<u64>,
    bytes_max: u64,
}

impl NodeSums {
    /// Saves what was live at the last peak, before that changes.
    fn save_at_peak(&mut self, peak_number: u64) {
        if self.peak_number < peak_number {
            self.live_at_peak = self.live;
            self.peak_number = peak_number;
        }
    }

    fn inuse(&self, moment: Moment, peak_number: u64) -> Sum {
        match moment {
            Moment::Peak if self.peak_number < peak_number => self.live,
            Moment::Peak => self.live_at_peak,
            Moment::End => {
                let mut sum = self.ended;
                sum.add_sum(&self.live);
                sum
            }
        }
    }
}

/// The heap of one or several processes, estimated from samples.
#[derive(Debug)]
pub struct HeapModel {
    rate: SamplingRate,
    /// By process, by address.
    live: HashMap<u32, HashMap<u64, LiveBlock>>,
    nodes: Vec<NodeSums>,
    /// The most recent frees.
    freed: VecDeque<RecentFree>,
    live_bytes: u64,
    peak_bytes: u64,
    /// Number of peaks: each time that more was live than before.
    peak_number: u64,
    peak_at_ns: u64,
    history: History,
    /// Changes by ends of processes (when, node, its bytes left), written to the history with the next change: not
    /// after the last one, as at the end of a recording these blocks are in use.
    ended_unrecorded: Vec<(u64, NodeId, u64)>,
    counters: Counters,
    /// Blocks younger than this at the end of their process do not count as in use, nanoseconds.
    age_min_ns: u64,
}

impl HeapModel {
    /// Counts as in use only blocks that are at least this old at the end of their process or of the recording.
    #[must_use]
    pub fn with_age_min_ns(self, age_min_ns: u64) -> HeapModel {
        HeapModel { age_min_ns, ..self }
    }

    /// A model of allocations sampled at this rate.
    #[must_use]
    pub fn new(rate: SamplingRate) -> HeapModel {
        HeapModel {
            rate,
            live: HashMap::new(),
            nodes: Vec::new(),
            freed: VecDeque::new(),
            live_bytes: 0,
            peak_bytes: 0,
            peak_number: 0,
            peak_at_ns: 0,
            history: History::default(),
            ended_unrecorded: Vec::new(),
            age_min_ns: 0,
            counters: Counters::default(),
        }
    }

    /// Estimated bytes in use by running processes.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Adds a sampled allocation of a process. `node`: its stack.
    pub fn allocate(&mut self, process: u32, address: u64, bytes: u64, at_ns: u64, node: Option<NodeId>) {
        if let Some(before) = self.take_block(process, address) {
            self.counters.frees_missing += 1;
            self.remove_from_live(before, None);
            self.record_history(before.node, at_ns);
        }
        self.add_allocated(bytes, node);
        self.insert_live(process, address, LiveBlock { node, bytes, rest_bytes: bytes, at_ns });
        self.record_history(node, at_ns);
    }

    /// Adds a sampled allocation without a reported free.
    pub fn allocate_untracked(&mut self, bytes: u64, node: Option<NodeId>) {
        self.counters.untracked += 1;
        self.add_allocated(bytes, node);
    }

    /// Frees a sampled allocation of a process. `may_be_inherited`: the process was forked, and has copies of its
    /// parent's blocks.
    pub fn free(&mut self, process: u32, address: u64, at_ns: u64, may_be_inherited: bool) {
        let Some(live) = self.take_block(process, address) else {
            let counters = &mut self.counters;
            *(if may_be_inherited { &mut counters.frees_inherited } else { &mut counters.frees_unknown }) +=
                1;
            return;
        };
        self.end_life(process, address, live, at_ns);
    }

    /// Frees a part of a sampled allocation of a process, or all of it if that is not more than `by_bytes`; nothing if it
    /// was freed before: threads that unmap the last parts of a mapping at once report its end each.
    pub fn shrink(&mut self, process: u32, address: u64, by_bytes: u64, at_ns: u64) {
        let Some(live) = self.take_block(process, address) else { return };
        let rest_bytes = live.rest_bytes.saturating_sub(by_bytes);
        if rest_bytes == 0 {
            return self.end_life(process, address, live, at_ns);
        }
        self.remove_from_live(live, None);
        self.insert_live(process, address, LiveBlock { rest_bytes, ..live });
        self.record_history(live.node, at_ns);
    }

    /// Undoes the last free of this address.
    pub fn restore(&mut self, process: u32, address: u64) {
        let is_it = |free: &RecentFree| (free.process, free.address) == (process, address);
        let Some(index) = self.freed.iter().rposition(is_it) else { return };
        let Some(RecentFree { freed: live, is_churn, .. }) = self.freed.remove(index) else { return };
        if let Some(before) = self.take_block(process, address) {
            // The block cannot belong to anyone else.
            self.counters.frees_missing += 1;
            self.remove_from_live(before, None);
            self.record_history(before.node, before.at_ns);
        }
        self.counters.frees -= 1;
        if let Some(node) = live.node.filter(|_| is_churn) {
            let weight = self.weight(&live);
            self.sums(node).churn.subtract(weight);
        }
        self.insert_live(process, address, live);
        self.record_history(live.node, live.at_ns);
    }

    /// Ends a process that exited or executed another program: its blocks stay in use at its end, and are not live.
    pub fn end_process(&mut self, process: u32, at_ns: u64) {
        let mut nodes = Vec::new();
        for live in self.live.remove(&process).unwrap_or_default().into_values() {
            let weight = self.weight(&live);
            let is_old = live.at_ns.saturating_add(self.age_min_ns) <= at_ns;
            if let Some(node) = live.node {
                let sums = self.sums(node);
                sums.live.subtract(weight);
                if is_old {
                    sums.ended.add(weight);
                }
                self.live_bytes = self.live_bytes.saturating_sub(weight.bytes);
                nodes.push(node);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        self.ended_unrecorded
            .extend(nodes.into_iter().map(|node| (at_ns, node, self.nodes[node.0 as usize].live.bytes)));
    }

    /// At the end of the recording: removes what is too young from what is in use.
    pub fn forget_young(&mut self, end_ns: u64) {
        let age_min_ns = self.age_min_ns;
        let young: Vec<LiveBlock> = self
            .live
            .values_mut()
            .flat_map(|live| live.extract_if(|_, live| live.at_ns.saturating_add(age_min_ns) > end_ns))
            .map(|(_, live)| live)
            .collect();
        for live in young {
            self.remove_from_live(live, None);
        }
    }

    /// The current values.
    #[must_use]
    pub fn values(&self, moment: Moment) -> HeapValues {
        let mut all = NodeSums::default();
        let mut nodes = Vec::new();
        for (index, sums) in self.nodes.iter().enumerate() {
            if sums.bytes_min.is_none() {
                continue;
            }
            let inuse = sums.inuse(moment, self.peak_number);
            all.allocated.add_sum(&sums.allocated);
            all.churn.add_sum(&sums.churn);
            all.live.add_sum(&inuse);
            all.bytes_min = all.bytes_min.into_iter().chain(sums.bytes_min).min();
            all.bytes_max = all.bytes_max.max(sums.bytes_max);
            nodes.push(NodeValues {
                node: NodeId(index as u32),
                values: values(sums, &inuse),
                inuse: inuse.estimates(self.rate, sums.bytes_min),
            });
        }
        HeapValues {
            rate: self.rate,
            moment,
            nodes,
            totals: values(&all, &all.live),
            allocated: all.allocated.estimates(self.rate, all.bytes_min),
            inuse: all.live.estimates(self.rate, all.bytes_min),
            peak_bytes: self.peak_bytes,
            peak_at_ns: self.peak_at_ns,
            history: self.live_history(),
            counters: self.counters,
            sizes: all.bytes_min.unwrap_or(1)..=all.bytes_max,
        }
    }

    /// Bytes in use over time.
    fn live_history(&self) -> LiveHistory {
        self.history.finish(self.peak_at_ns, |node| {
            let sums = self.nodes.get(node.0 as usize);
            sums.map_or(0, |sums| sums.inuse(Moment::Peak, self.peak_number).bytes)
        })
    }

    fn add_allocated(&mut self, bytes: u64, node: Option<NodeId>) {
        self.counters.allocations += 1;
        let Some(node) = node else {
            self.counters.stacks_lost += 1;
            return;
        };
        let weight = self.rate.weight(bytes);
        let sums = self.sums(node);
        sums.allocated.add(weight);
        sums.bytes_min = Some(sums.bytes_min.map_or(bytes, |min| min.min(bytes)));
        sums.bytes_max = sums.bytes_max.max(bytes);
    }

    /// Adds a block to the live set.
    fn insert_live(&mut self, process: u32, address: u64, live: LiveBlock) {
        self.live.entry(process).or_default().insert(address, live);
        let LiveBlock { node: Some(node), at_ns, .. } = live else { return };
        let weight = self.weight(&live);
        self.sums(node).live.add(weight);
        self.live_bytes = self.live_bytes.saturating_add(weight.bytes);
        if self.live_bytes > self.peak_bytes {
            self.peak_bytes = self.live_bytes;
            self.peak_number += 1;
            self.peak_at_ns = at_ns;
        }
    }

    /// Handles the free of a block that was taken out of the table.
    fn end_life(&mut self, process: u32, address: u64, live: LiveBlock, at_ns: u64) {
        self.counters.frees += 1;
        let is_churn = self.remove_from_live(live, Some(at_ns));
        self.record_history(live.node, at_ns);
        if self.freed.len() == FREES_KEPT {
            self.freed.pop_front();
        }
        self.freed.push_back(RecentFree { process, address, freed: live, is_churn });
    }

    /// Records a node's bytes in use in the history.
    fn record_history(&mut self, node: Option<NodeId>, at_ns: u64) {
        for (at_ns, node, bytes) in self.ended_unrecorded.drain(..) {
            self.history.record(node, at_ns, bytes);
        }
        if let Some(node) = node {
            let bytes = self.nodes.get(node.0 as usize).map_or(0, |sums| sums.live.bytes);
            self.history.record(node, at_ns, bytes);
        }
    }

    /// Weight of what is in use of a block.
    fn weight(&self, live: &LiveBlock) -> Weight {
        self.rate.weight_of_rest(live.bytes, live.rest_bytes)
    }

    fn take_block(&mut self, process: u32, address: u64) -> Option<LiveBlock> {
        self.live.get_mut(&process)?.remove(&address)
    }

    /// Removes an allocation from the live set; `freed_ns`: when it was freed, if known. Returns whether it was churn.
    fn remove_from_live(&mut self, live: LiveBlock, freed_ns: Option<u64>) -> bool {
        let LiveBlock { node: Some(node), at_ns, .. } = live else { return false };
        let weight = self.weight(&live);
        let is_churn = freed_ns.is_some_and(|freed_ns| freed_ns.saturating_sub(at_ns) < CHURN_NS);
        let sums = self.sums(node);
        sums.live.subtract(weight);
        if is_churn {
            sums.churn.add(weight);
        }
        self.live_bytes = self.live_bytes.saturating_sub(weight.bytes);
        is_churn
    }

    /// The sums of a node, about to change.
    fn sums(&mut self, node: NodeId) -> &mut NodeSums {
        let index = node.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, NodeSums::default());
        }
        let sums = &mut self.nodes[index];
        sums.save_at_peak(self.peak_number);
        sums
    }
}

/// In the order of [`ValueKind::ALL`].
fn values(sums: &NodeSums, inuse: &Sum) -> [u64; ValueKind::ALL.len()] {
    ValueKind::ALL.map(|kind| match kind {
        ValueKind::AllocObjects => sums.allocated.objects(),
        ValueKind::AllocSpace => sums.allocated.bytes,
        ValueKind::InuseObjects => inuse.objects(),
        ValueKind::InuseSpace => inuse.bytes,
        ValueKind::ChurnObjects => sums.churn.objects(),
        ValueKind::ChurnSpace => sums.churn.bytes,
    })
}

/// Values of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeValues {
    /// The node of the trie.
    pub node: NodeId,
    /// Its values, in the order of [`ValueKind::ALL`].
    pub values: [u64; ValueKind::ALL.len()],
    /// Bytes and allocations in use.
    pub inuse: (Estimate, Estimate),
}

/// Heap statistics of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct HeapValues {
    /// How allocations were sampled.
    pub rate: SamplingRate,
    /// The moment of the in-use values.
    pub moment: Moment,
    /// By node, ascending; only nodes with samples.
    pub nodes: Vec<NodeValues>,
    /// Sums over all nodes, in the order of [`ValueKind::ALL`].
    pub totals: [u64; ValueKind::ALL.len()],
    /// Total allocated: bytes and allocations.
    pub allocated: (Estimate, Estimate),
    /// Total in use: bytes and allocations.
    pub inuse: (Estimate, Estimate),
    /// Peak of the bytes in use.
    pub peak_bytes: u64,
    /// Time of the peak.
    pub peak_at_ns: u64,
    /// Bytes in use over time.
    pub history: LiveHistory,
    /// Counts of events, and of inconsistent ones.
    pub counters: Counters,
    /// Sizes of the sampled allocations.
    pub sizes: RangeInclusive<u64>,
}

impl HeapValues {
    /// Widens the intervals of the totals by what was lost: sampled allocations, count and bytes of each class of sizes
    /// (which differ by a factor of two at most), and frees of blocks of any size.
    pub fn add_losses(&mut self, allocations: &[(u64, u64)], frees: u64) {
        for (count, bytes) in allocations.iter().filter(|(count, _)| *count > 0) {
            let (count, weight) = (*count as f64, self.rate.weight(bytes / count));
            // Blocks of sizes within a factor of two weigh at most 9/8 of as many of their mean size (Kantorovich's inequality).
            let objects = 9.0 / 8.0 * count * weight.object_fractions as f64 / OBJECT_FRACTIONS;
            for (bytes, blocks) in [&mut self.inuse, &mut self.allocated] {
                bytes.lose_samples(count * weight.bytes as f64, count * weight.bytes_variance);
                blocks.lose_samples(objects, count * weight.objects_variance);
            }
        }
        let (frees, smallest, largest) =
            (frees as f64, self.rate.weight(*self.sizes.start()), self.rate.weight(*self.sizes.end()));
        self.inuse.0.lose_frees(frees * largest.bytes as f64);
        self.inuse.1.lose_frees(frees * smallest.object_fractions as f64 / OBJECT_FRACTIONS);
    }

    /// The total of a kind.
    #[must_use]
    pub fn total(&self, kind: ValueKind) -> u64 {
        self.totals[kind as usize]
    }
}

#[cfg(test)]
mod tests;
