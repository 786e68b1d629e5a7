//! Self and total counts of each function in each of the compared profiles.
//!
//! Input: [`Stacks`]. Output: one row per function, by name. A recursive function counts once per stack in
//! its total, so that no total exceeds the run's.

use super::stacks::Stacks;
use crate::profile::TextId;
use crate::trie::NodeId;

/// A function's counts in every run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCounts {
    /// The name it was matched by.
    pub name: TextId,
    /// By run: counts of stacks that end in it.
    pub own: Vec<u64>,
    /// By run: counts of stacks that contain it.
    pub total: Vec<u64>,
}

/// Counts of the functions of all runs, sorted by the bytes of their names.
#[must_use]
pub fn functions(stacks: &Stacks) -> Vec<FunctionCounts> {
    let runs = stacks.runs().len();
    // By text: the function's index in `functions`, plus one; 0 if it is missing.
    let mut rows = vec![0u32; stacks.text_count()];
    let mut functions: Vec<FunctionCounts> = Vec::new();
    // By function: the last stack that contained it, so that recursion counts once.
    let mut seen: Vec<u64> = Vec::new();
    let mut stack = 0u64;
    for (run_index, run) in stacks.runs().iter().enumerate() {
        for (leaf, count) in run.own() {
            stack += 1;
            let mut at: Option<NodeId> = Some(leaf);
            while let Some(node) = at {
                at = stacks.parent(node);
                let Some(name) = stacks.function(node) else { continue };
                let Some(slot) = rows.get_mut(name.0 as usize) else { continue };
                if *slot == 0 {
                    functions.push(FunctionCounts { name, own: vec![0; runs], total: vec![0; runs] });
                    seen.push(0);
                    *slot = functions.len() as u32;
                }
                let row = *slot as usize - 1;
                let (Some(function), Some(last)) = (functions.get_mut(row), seen.get_mut(row)) else {
                    continue;
                };
                if node == leaf {
                    add(&mut function.own, run_index, count);
                }
                if *last != stack {
                    *last = stack;
                    add(&mut function.total, run_index, count);
                }
            }
        }
    }
    functions.sort_by(|a, b| stacks.text(a.name).cmp(stacks.text(b.name)));
    functions
}

fn add(counts: &mut [u64], run: usize, count: u64) {
    if let Some(sum) = counts.get_mut(run) {
        *sum = sum.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::stacks::tests::saved;
    use super::super::stacks::{Matching, Stacks};
    use super::*;
    use crate::profile::About;

    #[test]
    fn recursion_counts_once_and_sides_keep_their_columns() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("main;f;g;f", 5), ("main;f", 2)]);
        let new = saved(About::default(), "work", &[("main;g", 3), ("f;f;f", 1)]);
        stacks.add("base", &base, None).expect("fits");
        stacks.add("new", &new, None).expect("fits");
        let functions = functions(&stacks);
        let rows: Vec<_> = functions
            .iter()
            .map(|row| (stacks.text(row.name), row.own.as_slice(), row.total.as_slice()))
            .collect();
        assert_eq!(
            rows,
            [("f", &[7, 1][..], &[7, 1][..]), ("g", &[0, 3], &[5, 3]), ("main", &[0, 0], &[7, 3]),]
        );
    }

    #[test]
    fn own_counts_add_up_to_the_run() {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(About::default(), "work", &[("a;b", 5), ("a", 2), ("a;b;c", u64::MAX - 7)]);
        stacks.add("base", &base, None).expect("fits");
        let functions = functions(&stacks);
        let own = functions.iter().fold(0u64, |sum, function| sum.saturating_add(function.own[0]));
        assert_eq!(own, stacks.runs()[0].total);
        assert_eq!(own, u64::MAX, "counts do not wrap");
    }
}
