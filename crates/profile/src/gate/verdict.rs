//! Types of a verdict: the request to a gate and its answer.
//!
//! `Options` is the request, `Report` the answer; `CallPaths` locates an increase in the call tree.
//!
//! Plain types, created by [`judge`](super::judge::judge) and written out by the reports.

use std::collections::BTreeMap;

use super::interval::Interval;
use super::judge;
use super::measurements::{Measurements, Unit};
use crate::TextId;
use crate::diff::stacks::Stacks;
use crate::trie::NodeId;

/// Criteria of a regression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The largest growth that passes, 0.05 for 5 %: of the program's CPU time, and of a function's self
    /// time.
    pub max_increase: f64,
    /// A growth below this fraction of the program's CPU time is no regression, and functions that are too
    /// small for it are not tested: see [`Options::tested_from`].
    pub min_share: f64,
    /// False positive rate of a gate: half for the total, half for functions.
    pub alpha: f64,
    /// Cost that moved from one function to another fails, too.
    pub strict: bool,
    /// Seed for drawing permutations of the runs if there are too many.
    pub seed: u64,
}

impl Options {
    /// The mean share in all runs (base, new) from which a function is tested. Every function with
    /// `min_share` on one side has it. It must not be required of each side: then the division into base and
    /// new would affect which functions are tested, and the largest of many near the limit would exceed the
    /// level more often than the permuted runs show.
    #[must_use]
    pub fn tested_from(&self, (base, new): (usize, usize)) -> f64 {
        // Rounding must not exclude values exactly at the limit.
        const ROUNDING: f64 = 1e-12;
        self.min_share * base.min(new) as f64 / (base + new).max(1) as f64 * (1.0 - ROUNDING)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { max_increase: 0.05, min_share: 0.005, alpha: 0.05, strict: false, seed: 0 }
    }
}

/// Pass or fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No significant slowdown.
    Pass,
    /// A significant slowdown.
    Regression,
}

/// The strength of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// A permutation test over this many permutations of the runs.
    Tested {
        /// Number of permutations.
        permutations: usize,
        /// Whether they are all possible ones.
        exact: bool,
    },
    /// Too few runs for a test: only growth beyond the noise floor in every run is reported.
    Weak,
}

/// CPU time on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Mean of the base runs, in the unit of the report.
    pub base: f64,
    /// Mean of the new runs.
    pub new: f64,
    /// new / base − 1; infinite for new functions.
    pub relative: f64,
    /// 95 % confidence interval of `relative`; `None` with fewer than three
    /// runs on a side.
    pub interval: Option<Interval>,
    /// Probability of a growth this large (or, for a function that shrank, a loss) if nothing changed; `None`
    /// without a test.
    pub p: Option<f64>,
}

/// Result for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionState {
    /// It got slower.
    Slower,
    /// It grew by cost that other functions lost.
    Moved,
    /// It got faster.
    Faster,
    /// No significant change.
    Steady,
}

impl FunctionState {
    /// Its word in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            FunctionState::Slower => "slower",
            FunctionState::Moved => "moved",
            FunctionState::Faster => "faster",
            FunctionState::Steady => "steady",
        }
    }

    /// Its word in reports for people, for values in this unit.
    #[must_use]
    pub fn word_of(self, unit: Unit) -> &'static str {
        match (self, unit) {
            (FunctionState::Slower, Unit::Bytes) => "more",
            (FunctionState::Faster, Unit::Bytes) => "less",
            _ => self.word(),
        }
    }
}

/// A tested function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionChange {
    /// Name.
    pub name: String,
    /// Its result.
    pub state: FunctionState,
    /// Its self CPU time.
    pub cpu: Change,
    /// Mean fraction of self time in the run's CPU time, base.
    pub share_base: f64,
    /// Mean fraction of self time in the run's CPU time, new.
    pub share_new: f64,
    /// Its gain (or loss), as a fraction of the program's CPU time before. Compared with the rest of the
    /// program in the same run, so that a slow moment of the machine does not show; a function that is nearly
    /// the whole program has only its CPU time.
    pub gained: f64,
    /// Probability of this gain if nothing changed; `None` in a weak verdict.
    pub p: Option<f64>,
    /// False discovery rate among the functions with this p-value or less.
    pub q: Option<f64>,
    /// Its smallest growth that fails four gates of five with runs like these
    /// ([`detectable`](super::detectable)); `None` if no growth does, or it is missing on one side.
    pub min_detectable: Option<f64>,
    /// Location of most of the growth in the call tree.
    pub place: Option<CallPath>,
}

/// Location of a cost increase in the call tree.
#[derive(Clone, Debug, PartialEq)]
pub struct CallPath {
    /// Names from the process down.
    pub path: Vec<String>,
    /// CPU time there, mean of the base runs.
    pub base: f64,
    /// CPU time there, mean of the new runs.
    pub new: f64,
    /// Its fraction of the whole growth, 0 to 1.
    pub part: f64,
    /// If the path ends in a module with different builds on both sides: its functions of the new build with
    /// the largest apparent gains, at most three (see `nameless`).
    pub functions: Vec<Nameless>,
}

/// A function without a name, of the new build.
#[derive(Clone, Debug, PartialEq)]
pub struct Nameless {
    /// Its start address: `[libruby.so:fn+0x9dd20]`.
    pub name: String,
    /// Self CPU time on this path of its apparent counterpart in the base build, mean of the base runs; 0 if
    /// there is none.
    pub base: f64,
    /// Its self CPU time there, mean of the new runs.
    pub new: f64,
}

/// Why a growth is considered moved cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedWhy {
    /// The functions that changed have no significant gain together.
    Balanced,
    /// Its callees lost at least half as much, as when they are inlined.
    FromCallees,
    /// The rest of the program lost at least half as much.
    RestFell,
}

impl MovedWhy {
    /// The reason in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            MovedWhy::Balanced => "other functions lost as much, as far as these runs can tell",
            MovedWhy::FromCallees => "what they call lost at least half as much, as by inlining",
            MovedWhy::RestFell => "the rest of the program lost at least half as much",
        }
    }
}

/// The complete answer of a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The answer.
    pub verdict: Verdict,
    /// Its basis.
    pub strength: Strength,
    /// Number of base and new runs.
    pub runs: (usize, usize),
    /// The unit of all CPU times.
    pub unit: Unit,
    /// The options.
    pub options: Options,
    /// The program's CPU time.
    pub total: Change,
    /// Whether the program as a whole got slower.
    pub total_grown: bool,
    /// The smallest growth of the total that fails four gates of five with runs like these
    /// ([`detectable`](super::detectable)); `None` if no growth does.
    pub total_min_detectable: Option<f64>,
    /// Tested functions: changed ones first, by their gain or loss.
    pub functions: Vec<FunctionChange>,
    /// Functions too small to be tested, see [`Options::tested_from`].
    pub functions_too_small: usize,
    /// Why growths are considered moved cost, if any is.
    pub moved_why: Option<MovedWhy>,
    /// Location of the total's largest growth, if it grew and no function explains it.
    pub total_place: Option<CallPath>,
}

// ---- Locates a cost increase in the call tree.
//
// Not a test: whether it grew is decided before this.

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
            judge::grown(functions.iter().map(|(name, own)| (self.stacks.text(*name), *own)))
        });
        CallPath { path, base, new, part, functions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_called_more_or_less_instead_of_slower() {
        assert_eq!(
            (FunctionState::Slower.word_of(Unit::Bytes), FunctionState::Faster.word_of(Unit::Bytes)),
            ("more", "less")
        );
        assert_eq!(
            (FunctionState::Slower.word_of(Unit::Seconds), FunctionState::Moved.word_of(Unit::Bytes)),
            ("slower", "moved")
        );
    }
}

#[cfg(test)]
mod call_path_tests {
    use super::*;
    use crate::About;
    use crate::diff::stacks::Matching;
    use crate::diff::stacks::tests::saved;

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
