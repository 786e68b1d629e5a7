//! The comparison as folded stacks with two counts, `stack BASE NEW`, as difffolded.pl writes and
//! inferno-flamegraph reads them.
//!
//! If shares are compared, or the rates differ, the counts of the side with fewer are scaled to those of the
//! other, since the format has only counts. The scaled counts add up to the scaled total.

use std::io::{self, Write};

use crate::diff::compare::Comparison;
use crate::diff::stacks::Stacks;
use crate::profile::views::by_name::by_folded_line;
use crate::trie::{Children, NodeId};

/// Writes the stacks of the two profiles of `comparison`, sorted by the bytes of their lines.
///
/// # Errors
/// Errors of the writer.
pub fn write(stacks: &Stacks, comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    let tree = Tree::of(stacks, comparison);
    // Nodes still to be written below the current path, last first, and the length of the path's text.
    let mut open = vec![(tree.below(0), 0)];
    let mut path = String::new();
    while let Some((pending, length)) = open.last_mut() {
        path.truncate(*length);
        let Some(part) = pending.pop() else {
            open.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(';');
        }
        path.push_str(tree.name(part));
        if part.line {
            let (base, new) = tree.counts(part.node);
            writeln!(out, "{path} {base} {new}")?;
        } else {
            open.push((tree.below(part.node), path.len()));
        }
    }
    Ok(())
}

/// The line of a stack that ends at a node, or all lines below it.
#[derive(Clone, Copy)]
struct Part {
    node: u32,
    line: bool,
}

/// The common tree with the counts of both sides; only the current stack exists as text.
struct Tree<'a> {
    stacks: &'a Stacks,
    counts: Vec<(u64, u64)>,
    children: Children,
}

impl<'a> Tree<'a> {
    fn of(stacks: &'a Stacks, comparison: &Comparison) -> Tree<'a> {
        let mut counts = vec![(0, 0); stacks.node_count()];
        let scales = comparison.scales();
        if let [base, new] = stacks.runs() {
            let mut scaled = CountScaler::by(scales.0);
            for (node, count) in base.own() {
                if let Some((base, _)) = counts.get_mut(node.0 as usize) {
                    *base = scaled.next(count);
                }
            }
            let mut scaled = CountScaler::by(scales.1);
            for (node, count) in new.own() {
                if let Some((_, new)) = counts.get_mut(node.0 as usize) {
                    *new = scaled.next(count);
                }
            }
        }
        Tree { stacks, counts, children: stacks.children() }
    }

    fn counts(&self, node: u32) -> (u64, u64) {
        self.counts.get(node as usize).copied().unwrap_or_default()
    }

    fn name(&self, part: Part) -> &str {
        self.stacks.name(NodeId(part.node))
    }

    /// The parts below a node, last first.
    fn below(&self, node: u32) -> Vec<Part> {
        let mut parts = Vec::new();
        for &child in self.children.below(node) {
            parts.push(Part { node: child, line: false });
            if self.counts(child) != (0, 0) {
                parts.push(Part { node: child, line: true });
            }
        }
        parts.sort_by(|a, b| {
            let beginnings = || (self.beginning(*a), self.beginning(*b));
            by_folded_line(self.name(*a), self.name(*b), beginnings).reverse()
        });
        parts
    }

    fn beginning(&self, part: Part) -> String {
        let name = self.name(part);
        let (base, new) = self.counts(part.node);
        if part.line { format!("{name} {base} {new}") } else { format!("{name};") }
    }
}

/// Scales counts one after the other, carrying rounding errors over to the next.
struct CountScaler {
    scale: f64,
    /// The sums so far, before and after scaling.
    sum: u64,
    written: u64,
}

impl CountScaler {
    fn by(scale: f64) -> CountScaler {
        CountScaler { scale, sum: 0, written: 0 }
    }

    fn next(&mut self, count: u64) -> u64 {
        if self.scale == 1.0 {
            return count;
        }
        self.sum = self.sum.saturating_add(count);
        let written = (self.sum as f64 * self.scale).round() as u64;
        let scaled = written.saturating_sub(self.written);
        self.written = written;
        scaled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::compare::MeasureChoice;
    use crate::diff::stacks::Matching;
    use crate::profile::formats::folded_read;

    #[test]
    fn lines_of_both_sides_are_sorted_by_bytes() {
        let names = ["a", "a 1", "a!", "a::b", "a<T>", "é"];
        let side = |skip: usize| {
            let mut text = String::new();
            for (index, outer) in names.iter().enumerate().filter(|(index, _)| index % 3 != skip) {
                text += &format!("p;{outer} {}\np;{outer};{outer};x {}\n", index + 1, 10 + skip);
            }
            folded_read::read(text.as_bytes(), "a").expect("reads")
        };
        let mut stacks = Stacks::new(Matching::default());
        stacks.add("base", &side(0), None).expect("fits");
        stacks.add("new", &side(1), None).expect("fits");
        let comparison = Comparison::of(&stacks, MeasureChoice::Absolute).expect("comparable");
        let mut out = Vec::new();
        write(&stacks, &comparison, &mut out).expect("a Vec takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        let lines: Vec<&str> = text.lines().collect();
        let mut sorted = lines.clone();
        sorted.sort_unstable();
        assert_eq!(lines, sorted);
        assert_eq!(lines.len(), 12, "{text}");
        for line in ["p;a 0 1", "p;a 1 2 0", "p;a::b 0 4", "p;a!;a!;x 10 11", "p;a::b;a::b;x 0 11"] {
            assert!(lines.contains(&line), "{line} in\n{text}");
        }
    }

    #[test]
    fn scaling_keeps_every_stack_and_the_totals() {
        let side = |stacks: usize| {
            let text: String = (0..stacks).map(|n| format!("p;f{n:04} 1\n")).collect();
            folded_read::read(text.as_bytes(), "a").expect("reads")
        };
        for (base_stacks, new_stacks) in [(1000, 400), (400, 1000), (1000, 600), (7, 3)] {
            let mut stacks = Stacks::new(Matching::default());
            stacks.add("base", &side(base_stacks), None).expect("fits");
            stacks.add("new", &side(new_stacks), None).expect("fits");
            let comparison = Comparison::of(&stacks, MeasureChoice::Share).expect("comparable");
            let mut out = Vec::new();
            write(&stacks, &comparison, &mut out).expect("a Vec takes everything");
            let text = String::from_utf8(out).expect("UTF-8");
            let mut sums = [0, 0];
            for line in text.lines() {
                let mut counts =
                    line.rsplitn(3, ' ').take(2).map(|count| count.parse::<usize>().expect("a count"));
                let (new, base) = (counts.next().expect("new"), counts.next().expect("base"));
                assert!(base + new > 0, "{line}");
                sums = [sums[0] + base, sums[1] + new];
            }
            let more = base_stacks.max(new_stacks);
            assert_eq!((text.lines().count(), sums), (more, [more, more]));
        }
    }
}
