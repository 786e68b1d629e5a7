//! Sites that allocate, told apart by as many callers as it takes.
//!
//! Input: stacks with what they have in use, the caller of the allocator first. Output: groups of stacks with the frames
//! that their rows show. Stacks through one function are divided where its callers differ, if a second one has a part
//! worth telling; what all callers of a row have in common is its chain.

use std::collections::BTreeMap;

use crate::heap::Estimate;

/// Most frames that tell rows apart.
const FRAMES_MAX: usize = 6;
/// Frames of a row whose stacks are all the same.
const FRAMES_MIN: usize = 2;
/// Stacks are divided if the second part has this percentage of their bytes.
const PART_PERCENT: f64 = 10.0;

/// A function in the table of leaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// Its name.
    pub name: String,
    /// `file:line`; empty if not known, or not asked for.
    pub place: String,
}

/// A stack: its callers of the allocator, the innermost first, and what it has in use.
pub(super) type SiteStack = (Vec<Caller>, (Estimate, Estimate));

/// Divides stacks into sites.
pub(super) fn divide(mut stacks: Vec<SiteStack>) -> Vec<SiteStack> {
    for (callers, _) in &mut stacks {
        // A recursion of any depth is one site.
        callers.dedup();
    }
    let mut sites = Vec::new();
    let mut waiting: Vec<(usize, Vec<SiteStack>)> =
        parts_at(0, stacks).into_values().map(|stacks| (1, stacks)).collect();
    while let Some((common, stacks)) = waiting.pop() {
        match (common..FRAMES_MAX).find(|depth| is_divided(*depth, &stacks)) {
            Some(depth) => {
                waiting.extend(parts_at(depth, stacks).into_values().map(|stacks| (depth + 1, stacks)));
            }
            None => sites.push(joined(common.max(FRAMES_MIN), stacks)),
        }
    }
    sites
}

fn parts_at(depth: usize, stacks: Vec<SiteStack>) -> BTreeMap<Option<Caller>, Vec<SiteStack>> {
    let mut parts: BTreeMap<Option<Caller>, Vec<SiteStack>> = BTreeMap::new();
    for stack in stacks {
        parts.entry(stack.0.get(depth).cloned()).or_default().push(stack);
    }
    parts
}

/// Whether a second caller at this depth has a part worth telling.
fn is_divided(depth: usize, stacks: &[SiteStack]) -> bool {
    let mut bytes: BTreeMap<Option<&Caller>, f64> = BTreeMap::new();
    for (callers, (space, _)) in stacks {
        *bytes.entry(callers.get(depth)).or_default() += space.value;
    }
    let all: f64 = bytes.values().sum();
    bytes.values().filter(|bytes| **bytes * 100.0 >= all * PART_PERCENT && **bytes > 0.0).count() > 1
}

/// One row: the frames that all stacks have in common, up to `frames`.
fn joined(frames: usize, stacks: Vec<SiteStack>) -> SiteStack {
    let mut sum = (Estimate::default(), Estimate::default());
    let mut shown: Option<Vec<Caller>> = None;
    for (callers, (bytes, blocks)) in stacks {
        sum.0.add(bytes);
        sum.1.add(blocks);
        shown = Some(match shown {
            None => callers.into_iter().take(frames).collect(),
            Some(shown) => {
                let same = shown.iter().zip(&callers).take_while(|(a, b)| a == b).count();
                shown.into_iter().take(same).collect()
            }
        });
    }
    (shown.unwrap_or_default(), sum)
}
