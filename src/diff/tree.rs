//! The common tree of two profiles in pre-order, for a differential flame graph.
//!
//! Input: [`Stacks`] and their [`Comparison`]. Output: nodes with inclusive counts of both sides, callers
//! before callees, siblings by the bytes of their names. Includes nodes of one side only.

use super::compare::{Comparison, Measure};
use super::stacks::Stacks;
use crate::trie::NodeId;

/// A node of both profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// Depth below the process, which has depth 0.
    pub depth: u32,
    /// Name.
    pub name: &'a str,
    /// Inclusive counts of base. If counts are compared, not shares, both sides are scaled by
    /// [`Comparison::scales`].
    pub base: u64,
    /// Inclusive counts of new, scaled likewise.
    pub new: u64,
}

/// The tree of the two profiles.
#[must_use]
pub fn nodes<'a>(stacks: &'a Stacks, comparison: &Comparison) -> Vec<Node<'a>> {
    let count = stacks.node_count();
    let mut inclusive = vec![(0u64, 0u64); count];
    for (side, run) in stacks.runs().iter().take(2).enumerate() {
        for (node, own) in run.own() {
            let Some(at) = inclusive.get_mut(node.0 as usize) else { continue };
            let sum = if side == 0 { &mut at.0 } else { &mut at.1 };
            *sum = sum.saturating_add(own);
        }
    }
    for id in (1..count).rev() {
        let Some(parent) = stacks.parent(NodeId(id as u32)) else { continue };
        let here = inclusive.get(id).copied().unwrap_or_default();
        if let Some(above) = inclusive.get_mut(parent.0 as usize) {
            *above = (above.0.saturating_add(here.0), above.1.saturating_add(here.1));
        }
    }
    let scales = match comparison.measure {
        // The picture uses shares of the sides' own totals.
        Measure::Share => (1.0, 1.0),
        Measure::Seconds | Measure::Samples => comparison.scales(),
    };
    let scaled = |count: u64, scale: f64| (count as f64 * scale).round() as u64;
    let mut out = Vec::new();
    let mut pending: Vec<(u32, u32)> = Vec::new();
    let children = stacks.children();
    let push_children = |of: u32, depth: u32, pending: &mut Vec<(u32, u32)>| {
        let start = pending.len();
        pending.extend(children.below(of).iter().map(|child| (*child, depth)));
        if let Some(children) = pending.get_mut(start..) {
            children.sort_by(|a, b| stacks.name(NodeId(b.0)).cmp(stacks.name(NodeId(a.0))));
        }
    };
    push_children(0, 0, &mut pending);
    while let Some((id, depth)) = pending.pop() {
        let (base, new) = inclusive.get(id as usize).copied().unwrap_or_default();
        if base == 0 && new == 0 {
            continue;
        }
        let (base, new) = (scaled(base, scales.0), scaled(new, scales.1));
        out.push(Node { depth, name: stacks.name(NodeId(id)), base, new });
        push_children(id, depth.saturating_add(1), &mut pending);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::compare::MeasureChoice;
    use super::super::stacks::Matching;
    use super::super::stacks::tests::saved;
    use super::*;
    use crate::profile::About;

    #[test]
    fn both_sides_are_in_one_tree() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("main;b;x", 4), ("main;gone", 6)]);
        let new = saved(About::default(), "work", &[("main;b", 10), ("main;a", 10)]);
        stacks.add("base", &base, None).expect("fits");
        stacks.add("new", &new, None).expect("fits");
        let rows = |choice| -> Vec<(u32, &str, u64, u64)> {
            let comparison = Comparison::of(&stacks, choice).expect("both have samples");
            nodes(&stacks, &comparison)
                .iter()
                .map(|node| (node.depth, node.name, node.base, node.new))
                .collect()
        };
        assert_eq!(
            rows(MeasureChoice::Absolute),
            [
                (0, "work", 10, 20),
                (1, "main", 10, 20),
                (2, "a", 0, 10),
                (2, "b", 4, 10),
                (3, "x", 4, 0),
                (2, "gone", 6, 0)
            ]
        );
        assert_eq!(rows(MeasureChoice::Share)[1], (1, "main", 10, 20), "the picture takes the shares");
    }
}
