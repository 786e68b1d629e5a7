//! Locates a cost increase in the call tree.
//!
//! Input: [`Stacks`] of the runs and a function that grew. Output: the path that gained most. Not a test:
//! whether it grew is decided before this.

use std::collections::BTreeMap;

use super::measurements::Measurements;
use super::nameless_functions;
use super::verdict::CallPath;
use crate::diff::stacks::Stacks;
use crate::profile::TextId;
use crate::trie::NodeId;

/// Mean CPU time at each node with stacks in any run.
#[derive(Clone, Debug)]
pub struct CallPaths<'a> {
    stacks: &'a Stacks,
    /// By node: mean of base and new for the stacks that end there.
    own: BTreeMap<NodeId, (f64, f64)>,
    /// By node that is a module of several builds: mean of base and new by the function's name.
    nameless: BTreeMap<NodeId, BTreeMap<TextId, (f64, f64)>>,
}

impl<'a> CallPaths<'a> {
    /// The call paths of these runs, in the unit of `measured`.
    #[must_use]
    pub fn of(stacks: &'a Stacks, measured: &Measurements) -> CallPaths<'a> {
        let mut own: BTreeMap<NodeId, (f64, f64)> = BTreeMap::new();
        let mut nameless: BTreeMap<NodeId, BTreeMap<TextId, (f64, f64)>> = BTreeMap::new();
        let base_runs = measured.base_runs.max(1) as f64;
        let new_runs = measured.totals.len().saturating_sub(measured.base_runs).max(1) as f64;
        for (index, (run, each)) in stacks.runs().iter().zip(&measured.per_sample).enumerate() {
            let add = |(base, new): &mut (f64, f64), count: u64| {
                if index < measured.base_runs {
                    *base += count as f64 * each / base_runs;
                } else {
                    *new += count as f64 * each / new_runs;
                }
            };
            for (node, count) in run.own() {
                add(own.entry(node).or_default(), count);
            }
            for (node, function, count) in run.nameless() {
                // Functions of one build have separate paths.
                if stacks.function(node) != Some(function) {
                    add(nameless.entry(node).or_default().entry(function).or_default(), count);
                }
            }
        }
        CallPaths { stacks, own, nameless }
    }

    /// The path to the function called `name` with the largest growth of self time; `None` if none grew.
    #[must_use]
    pub fn of_function(&self, name: &str) -> Option<CallPath> {
        let mut most: Option<(NodeId, f64, f64)> = None;
        let mut growth = 0.0;
        for (&node, &(base, new)) in &self.own {
            if self.stacks.function(node).is_none() || self.stacks.name(node) != name {
                continue;
            }
            growth += (new - base).max(0.0);
            if most.is_none_or(|(_, most_base, most_new)| new - base > most_new - most_base) {
                most = Some((node, base, new));
            }
        }
        let (node, base, new) = most.filter(|(_, base, new)| new > base)?;
        Some(self.call_path(node, base, new, growth))
    }

    /// The deepest path that contains at least half of the whole growth.
    #[must_use]
    pub fn of_total(&self) -> Option<CallPath> {
        let mut inclusive = vec![(0.0, 0.0); self.stacks.node_count()];
        // Callers have lower numbers than callees.
        for id in (0..inclusive.len()).rev() {
            let node = NodeId(id as u32);
            let (base, new) = self.own.get(&node).copied().unwrap_or_default();
            let Some(here) = inclusive.get_mut(id) else { continue };
            *here = (here.0 + base, here.1 + new);
            let here = *here;
            if let Some(above) =
                self.stacks.parent(node).and_then(|parent| inclusive.get_mut(parent.0 as usize))
            {
                *above = (above.0 + here.0, above.1 + here.1);
            }
        }
        let growth = inclusive.first().map(|(base, new)| new - base).filter(|growth| *growth > 0.0)?;
        let mut depths = vec![0u32; inclusive.len()];
        for id in 0..depths.len() {
            let above =
                self.stacks.parent(NodeId(id as u32)).and_then(|parent| depths.get(parent.0 as usize));
            let below = above.map_or(0, |above| above + 1);
            if let Some(depth) = depths.get_mut(id) {
                *depth = below;
            }
        }
        let enough = inclusive.iter().zip(&depths).enumerate();
        let enough = enough.filter(|(_, ((base, new), _))| new - base >= growth / 2.0);
        let deepest = enough.map(|(id, (at, depth))| (NodeId(id as u32), *at, *depth)).max_by(|a, b| {
            let gained = |(base, new): (f64, f64)| new - base;
            a.2.cmp(&b.2).then(gained(a.1).total_cmp(&gained(b.1)))
        });
        deepest.map(|(node, (base, new), _)| self.call_path(node, base, new, growth))
    }

    fn call_path(&self, node: NodeId, base: f64, new: f64, growth: f64) -> CallPath {
        let path = self.stacks.path(node).into_iter().map(str::to_owned).collect();
        let part = if growth > 0.0 { ((new - base) / growth).min(1.0) } else { 0.0 };
        let functions = self.nameless.get(&node).map_or_else(Vec::new, |functions| {
            nameless_functions::grown(functions.iter().map(|(name, own)| (self.stacks.text(*name), *own)))
        });
        CallPath { path, base, new, part, functions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::stacks::Matching;
    use crate::diff::stacks::tests::saved;
    use crate::profile::About;

    #[test]
    fn returns_the_path_that_gained_most() {
        let mut stacks = Stacks::new(Matching::default());
        let base = [("main;a;f", 50), ("main;b;f", 50), ("main;c", 100)];
        let new = [("main;a;f", 60), ("main;b;f", 90), ("main;c", 100)];
        stacks.add("base", &saved(About::default(), "work", &base), None).expect("fits");
        stacks.add("new", &saved(About::default(), "work", &new), None).expect("fits");
        let measured = Measurements::of(&stacks, 1, false).expect("alike");
        let paths = CallPaths::of(&stacks, &measured);
        let found = paths.of_function("f").expect("it grew");
        assert_eq!(found.path, ["work", "main", "b", "f"]);
        assert_eq!((found.base, found.new, found.part), (50.0, 90.0, 0.8));
        assert_eq!(paths.of_function("c"), None);
        assert_eq!(paths.of_function("main"), None, "no stack ends there");
        let total = paths.of_total().expect("it grew");
        assert_eq!((total.path.last().map(String::as_str), total.part), (Some("f"), 0.8));
    }

    #[test]
    fn a_very_deep_stack_takes_linear_time() {
        const DEEP: usize = 60_000;
        let stack = vec!["f"; DEEP].join(";");
        let mut stacks = Stacks::new(Matching::default());
        for (name, count) in [("base", 100), ("new", 200)] {
            stacks
                .add(name, &saved(About::default(), "work", &[(stack.as_str(), count)]), None)
                .expect("fits");
        }
        let measured = Measurements::of(&stacks, 1, false).expect("alike");
        let paths = CallPaths::of(&stacks, &measured);
        let begun = crate::cpu_time::CpuTime::start();
        let found = paths.of_total().expect("it grew");
        let took = begun.used();
        assert_eq!((found.path.len(), found.part), (DEEP + 1, 1.0));
        // A step for each node is milliseconds, one for each pair of nodes a minute.
        assert!(took.as_secs() < 1, "{took:?}");
    }
}
