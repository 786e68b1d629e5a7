//! Types of a verdict: the request to a gate and its answer.
//!
//! Plain types, made by [`judge`](super::judge::judge) and written out by the reports.

use super::interval::Interval;
use super::unit::Unit;

/// What counts as slower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The largest growth that passes, 0.05 for 5 %: of the program's CPU time, and of a
    /// function's own.
    pub max_increase: f64,
    /// A function that grew by less than this part of the program's CPU time is no regression,
    /// and functions that are too small for it are not tested: see [`Options::tested_from`].
    pub min_share: f64,
    /// How often a gate of unchanged code may fail: half for the total, half for functions.
    pub alpha: f64,
    /// Cost that moved from one function to another fails, too.
    pub strict: bool,
    /// For drawing orders of the runs, where there are too many to try all.
    pub seed: u64,
}

impl Options {
    /// The mean share in all runs (base, new) from which a function is tested. Every function that has `min_share` on
    /// one side has it. It must not be required of each side: then the runs called new would decide which functions
    /// are tested, and the largest of many near the limit would exceed the level more often than the permuted runs
    /// show.
    #[must_use]
    pub fn tested_from(&self, (base, new): (usize, usize)) -> f64 {
        // Rounding must not leave out what is exactly at the limit.
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
    /// Nothing got slower, as far as these runs show.
    Pass,
    /// Something did.
    Regression,
}

/// The strength of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// A permutation test over this many orders of the runs.
    Tested {
        /// Orders tried.
        orders: usize,
        /// Whether they are all that there are.
        exact: bool,
    },
    /// Too few runs for a test: only what exceeds the noise floor in every run is reported.
    Weak,
}

/// CPU time on both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Mean of the base runs, in the unit of the report.
    pub base: f64,
    /// Mean of the new runs.
    pub new: f64,
    /// new / base − 1; infinite for what is new.
    pub relative: f64,
    /// 95 % confidence interval of `relative`; `None` with fewer than three
    /// runs on a side.
    pub interval: Option<Interval>,
    /// Chance of a growth this large (or, of a function that shrank, a loss) if nothing
    /// changed; `None` where nothing was tested.
    pub p: Option<f64>,
}

/// What became of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It got slower.
    Slower,
    /// It grew by what other functions lost.
    Moved,
    /// It got faster.
    Faster,
    /// No change beyond noise.
    Steady,
}

impl State {
    /// The word for it in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            State::Slower => "slower",
            State::Moved => "moved",
            State::Faster => "faster",
            State::Steady => "steady",
        }
    }

    /// The word for it in reports for people, of what is measured in this unit.
    #[must_use]
    pub fn word_of(self, unit: Unit) -> &'static str {
        match (self, unit) {
            (State::Slower, Unit::Bytes) => "more",
            (State::Faster, Unit::Bytes) => "less",
            _ => self.word(),
        }
    }
}

/// A function that was tested.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionChange {
    /// Name.
    pub name: String,
    /// What became of it.
    pub state: State,
    /// Its own CPU time (self).
    pub cpu: Change,
    /// Mean part of its own in the run's CPU time, base.
    pub share_base: f64,
    /// Mean part of its own in the run's CPU time, new.
    pub share_new: f64,
    /// What it gained (or lost), as a part of the program's CPU time before. Compared with the rest of the program in
    /// the same run, so that a slow moment of the machine does not show; a function that is nearly the whole program
    /// has only its CPU time.
    pub gained: f64,
    /// Chance of such a gain if nothing changed; `None` in a weak verdict.
    pub p: Option<f64>,
    /// False discovery rate among the functions with this p-value or less.
    pub q: Option<f64>,
    /// The smallest growth of it that fails four gates of five with runs like these
    /// ([`detectable`](super::detectable)); `None` where no growth does, or one side has nothing of it.
    pub min_detectable: Option<f64>,
    /// Where in the call tree most of the growth is.
    pub place: Option<CallPath>,
}

/// Where in the call tree cost appeared.
#[derive(Clone, Debug, PartialEq)]
pub struct CallPath {
    /// Names from the process down.
    pub path: Vec<String>,
    /// CPU time there, mean of the base runs.
    pub base: f64,
    /// CPU time there, mean of the new runs.
    pub new: f64,
    /// Its part of the whole growth, 0 to 1.
    pub part: f64,
    /// Where the path ends in a module of which both sides have another build: its functions of
    /// the new build that seem to have gained most, at most three (see `nameless`).
    pub functions: Vec<Nameless>,
}

/// A function without a name, of the new build.
#[derive(Clone, Debug, PartialEq)]
pub struct Nameless {
    /// Where it begins: `[libruby.so:fn+0x9dd20]`.
    pub name: String,
    /// Own CPU time on this path of the function of the base build that it seems to be, mean
    /// of the base runs; 0 if there is none.
    pub base: f64,
    /// Its own CPU time there, mean of the new runs.
    pub new: f64,
}

/// Why a growth is taken for moved cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedWhy {
    /// The functions that changed gained nothing together, as far as the runs show.
    Balanced,
    /// The functions that it calls lost at least half as much, as when they are inlined.
    FromCallees,
    /// The rest of the program as a whole lost at least half as much.
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

/// A gate's whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The answer.
    pub verdict: Verdict,
    /// What it rests on.
    pub strength: Strength,
    /// Runs of base and new.
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
    /// ([`detectable`](super::detectable)); `None` where no growth does.
    pub total_min_detectable: Option<f64>,
    /// Functions that were tested: those that changed first, by what they gained or lost.
    pub functions: Vec<FunctionChange>,
    /// Functions too small to be tested, see [`Options::tested_from`].
    pub functions_too_small: usize,
    /// Why growths were taken for moved cost, if any was.
    pub moved_why: Option<MovedWhy>,
    /// Where the total grew most, if it did and no function explains it.
    pub total_place: Option<CallPath>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_more_or_less_and_not_slower() {
        assert_eq!(
            (State::Slower.word_of(Unit::Bytes), State::Faster.word_of(Unit::Bytes)),
            ("more", "less")
        );
        assert_eq!(
            (State::Slower.word_of(Unit::Seconds), State::Moved.word_of(Unit::Bytes)),
            ("slower", "moved")
        );
    }
}
