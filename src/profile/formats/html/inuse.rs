//! Columns of a page with the bytes in use over time: the times, and for each stack its bytes from a time on.
//!
//! Input: the history of a profile. Output: columns, and the part of the header that names areas. A stack is a root and
//! a node, as in the columns of counts.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::columns::{Columns, Form};
use crate::profile::inuse_history::InuseHistory;
use crate::trie::NodeId;

/// Index of the peak in the times; callers with an area of their own.
#[derive(Serialize)]
pub(super) struct InuseHeader {
    /// Index of the time when most was in use.
    peak: u32,
    /// Callers that had most, the largest first.
    areas: Vec<String>,
}

/// Bytes of a stack from a time on.
struct Row {
    /// Index into the times.
    time: u32,
    /// Root and node.
    stack: (u32, u32),
    area: usize,
    bytes: u64,
}

/// What was in use over time.
pub(super) struct InuseTable {
    times_ns: Vec<u64>,
    rows: Vec<Row>,
    pub(super) header: InuseHeader,
}

impl InuseTable {
    /// The history of a profile. `stacks` has the root and the node of each node of the profile.
    pub(super) fn of(history: &InuseHistory, stacks: &[Option<(u32, NodeId)>]) -> InuseTable {
        let areas = history.areas();
        // Stacks that differ in nothing that the page shows are one.
        let mut changes: BTreeMap<(u32, (u32, u32)), (usize, i64)> = BTreeMap::new();
        for change in history.changes() {
            let Some((root, node)) = stacks.get(change.node.0 as usize).copied().flatten() else { continue };
            let area = history.area_of(change.node).unwrap_or(areas.len());
            let (_, by) = changes.entry((change.time, (root, node.0))).or_insert((area, 0));
            *by = by.saturating_add(change.by_bytes);
        }
        let mut bytes: HashMap<(u32, u32), i64> = HashMap::new();
        let row = |((time, stack), (area, by)): (_, (_, i64))| {
            let now = bytes.entry(stack).or_default();
            *now = now.saturating_add(by);
            Row { time, stack, area, bytes: u64::try_from(*now).unwrap_or(0) }
        };
        InuseTable {
            rows: changes.into_iter().map(row).collect(),
            times_ns: history.times_ns().to_vec(),
            header: InuseHeader { peak: history.peak(), areas: areas.to_vec() },
        }
    }

    /// Adds the numbers.
    pub(super) fn add_to(&self, out: &mut Columns) {
        use Form::{Delta, Plain};
        let rows = || self.rows.iter();
        out.add("moment.time", Delta, self.times_ns.iter().copied());
        out.add("inuse.moment", Delta, rows().map(|row| row.time.into()));
        out.add("inuse.root", Plain, rows().map(|row| row.stack.0.into()));
        out.add("inuse.node", Delta, rows().map(|row| row.stack.1.into()));
        out.add("inuse.area", Plain, rows().map(|row| row.area as u64));
        out.add("inuse.bytes", Plain, rows().map(|row| row.bytes));
    }
}
