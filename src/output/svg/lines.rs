//! Folded lines as a tree: stacks in, [`Node`]s in pre-order out, root first or leaf first.
//!
//! Names are trimmed and blank ones named before stacks are compared, so that a frame is one
//! box. Memory is that of the lines; large inputs come as nodes from a trie instead.

use super::Node;

/// What a blank name is shown as.
const UNKNOWN: &str = "[unknown]";

/// The nodes of `lines` (`stack`, samples); siblings in the order of their names.
pub(super) fn nodes(lines: &[(String, u64)], reverse: bool) -> Vec<Node<'_>> {
    let mut stacks: Vec<(Vec<&str>, u64)> = lines
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(stack, count)| {
            let mut names: Vec<&str> = stack.split(';').map(name).collect();
            if reverse {
                names.reverse();
            }
            (names, *count)
        })
        .collect();
    stacks.sort();
    let mut nodes: Vec<Node<'_>> = Vec::new();
    // The nodes of the stack at hand.
    let mut open: Vec<usize> = Vec::new();
    for (names, count) in &stacks {
        let same = |(&index, &name): (&usize, &&str)| nodes.get(index).is_some_and(|node| node.name == name);
        let shared = open.iter().zip(names).take_while(|pair| same(*pair)).count();
        open.truncate(shared);
        for &name in names.iter().skip(shared) {
            let depth = open.len().try_into().unwrap_or(u32::MAX);
            open.push(nodes.len());
            nodes.push(Node { depth, name, base: 0, new: 0 });
        }
        for &index in &open {
            if let Some(node) = nodes.get_mut(index) {
                node.new = node.new.saturating_add(*count);
            }
        }
    }
    nodes
}

fn name(name: &str) -> &str {
    let name = name.trim();
    if name.is_empty() { UNKNOWN } else { name }
}
