//! Types of a verdict: the request to a gate and its answer.
//!
//! Plain types, created by [`judge`](super::judge::judge) and written out by the reports.

use super::interval::Interval;
use super::unit::Unit;

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
