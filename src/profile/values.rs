//! Several values of each stack, as in heap profiles: in use, allocated in all, number of allocations.
//!
//! The counts of a [`SavedProfile`](super::SavedProfile) are one of them; [`SavedProfile::select_type`](super::SavedProfile::select_type) selects another
//! one.

use std::collections::BTreeMap;

use super::inuse_history::InuseHistory;
use crate::heap::Estimate;
use crate::trie::NodeId;

/// A value type, as in pprof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// The quantity: `inuse_space`.
    pub kind: String,
    /// The unit: `bytes`, `count`.
    pub unit: String,
}

impl ValueType {
    /// The display unit of the counts: bytes, or the name of the type.
    pub(in crate::profile) fn counted_unit(&self) -> &str {
        if self.unit == "count" { &self.kind } else { &self.unit }
    }
}

/// Values of all stacks.
#[derive(Clone, Debug, Default)]
pub struct StackValues {
    types: Vec<ValueType>,
    /// By node, in the order of the types.
    rows: BTreeMap<u32, Vec<u64>>,
    /// For a heap recording: bytes and allocations in use by node, with their sampling error.
    inuse: BTreeMap<u32, (Estimate, Estimate)>,
    /// For a heap recording with counts in bytes in use: these over time.
    pub(super) history: Option<InuseHistory>,
}

impl StackValues {
    /// Values of these types, without stacks.
    pub(super) fn new(types: Vec<ValueType>) -> StackValues {
        StackValues { types, ..StackValues::default() }
    }

    /// The types.
    #[must_use]
    pub fn types(&self) -> &[ValueType] {
        &self.types
    }

    /// The index of a type.
    #[must_use]
    pub fn index(&self, kind: &str) -> Option<usize> {
        self.types.iter().position(|known| known.kind == kind)
    }

    /// The values of each stack that has any, by node.
    pub fn rows(&self) -> impl Iterator<Item = (NodeId, &[u64])> {
        self.rows.iter().map(|(node, values)| (NodeId(*node), values.as_slice()))
    }

    /// The values of a stack.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&[u64]> {
        self.rows.get(&node.0).map(Vec::as_slice)
    }

    /// Bytes and allocations in use of each stack, with their sampling error; empty for profiles read from files.
    pub fn inuse(&self) -> impl Iterator<Item = (NodeId, (Estimate, Estimate))> {
        self.inuse.iter().map(|(node, estimates)| (NodeId(*node), *estimates))
    }

    /// Bytes in use over time; only for a heap recording with counts in bytes in use.
    #[must_use]
    pub fn history(&self) -> Option<&InuseHistory> {
        self.history.as_ref()
    }

    /// Adds the in-use values of a stack.
    pub(super) fn add_inuse(&mut self, node: NodeId, (bytes, blocks): (Estimate, Estimate)) {
        let sum = self.inuse.entry(node.0).or_default();
        sum.0.add(bytes);
        sum.1.add(blocks);
    }

    /// Adds values of a stack.
    pub(super) fn add(&mut self, node: NodeId, values: &[u64]) {
        let row = self.rows.entry(node.0).or_insert_with(|| vec![0; self.types.len()]);
        row.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
    }
}
