//! The comparison as folded stacks with two counts, `stack BASE NEW`, as difffolded.pl writes
//! and inferno-flamegraph reads them.
//!
//! Where shares are compared, or the rates differ, base counts are scaled to the new profile,
//! for the form has nothing but counts.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::diff::compare::Comparison;
use crate::diff::stacks::Stacks;
use crate::trie::NodeId;

/// Writes the stacks of the two profiles of `comparison`, in the order of their bytes.
///
/// # Errors
/// What the writer reports.
pub fn write(stacks: &Stacks, comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    let mut counts: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    let factor = comparison.base_factor();
    if let [base, new] = stacks.runs() {
        for (node, count) in base.own() {
            counts.entry(node).or_default().0 = (count as f64 * factor).round() as u64;
        }
        for (node, count) in new.own() {
            counts.entry(node).or_default().1 = count;
        }
    }
    let mut lines: Vec<String> = counts
        .into_iter()
        .map(|(node, (base, new))| format!("{} {base} {new}", stacks.path(node).join(";")))
        .collect();
    lines.sort_unstable();
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}
