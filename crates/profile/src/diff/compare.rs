//! Compares two profiles, function by function.
//!
//! `FunctionCounts` has self and total of each function in each profile, `LossTotals` what a recording lost,
//! `Incomparable` the reasons why two profiles cannot be compared.
//!
//! Input: [`Stacks`] of a base and a new profile, and a [`MeasureChoice`]. Output: a [`Comparison`]: rows sorted by
//! the size of the change. The measure affects the result, so it is part of it, with the reason:
//!
//! - CPU *seconds* if both are recordings of a whole command, or equally long: then a second more is a second
//!   more of work. Not if one lost much that the other did not ([`LossTotals`]): then a second more may be
//!   one that was not lost.
//! - *Shares* of the profile otherwise: of two recordings of a server, the longer one has more of everything.
//! - *Samples* if requested and the files have no sampling rate (folded text).

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use super::stacks::{Run, Stacks};
use crate::TextId;
use crate::trie::NodeId;

/// Durations that differ by less than this fraction are equal.
pub const EQUAL_DURATIONS: f64 = 0.02;

/// Changes below this number of standard errors of counting are marked as noise.
pub const COUNTING_ERRORS: f64 = 2.0;

/// Measure by which profiles are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Seconds of CPU time (with `--idle`, of threads' time).
    Seconds,
    /// Fractions of all samples of the profile.
    Share,
    /// Samples.
    Samples,
}

/// Measure requested by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeasureChoice {
    /// Choose by the profiles.
    #[default]
    Auto,
    /// Seconds or samples.
    Absolute,
    /// Shares.
    Share,
}

/// A count on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Samples of the base profile.
    pub base: u64,
    /// Samples of the new profile.
    pub new: u64,
}

/// A function on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name.
    pub name: String,
    /// Samples of stacks that end in it.
    pub own: Pair,
    /// Samples of stacks that contain it.
    pub total: Pair,
}

/// One side as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// Path of the profile.
    pub source: String,
    /// Its processes.
    pub processes: Vec<String>,
    /// All samples.
    pub samples: u64,
    /// Samples of stacks that were not walked to their thread's root.
    pub incomplete: u64,
    /// Excluded samples of waiting threads.
    pub waiting_left_out: u64,
    /// Time without samples.
    pub lost: LossTotals,
    /// Length of one sample; `None` if the file has no sampling rate.
    pub period_s: Option<f64>,
    /// Length of the recording; `None` if the file has none.
    pub duration_s: Option<f64>,
    /// Of a heap profile: bytes per sample on average.
    pub sampled_every: Option<u64>,
}

impl Side {
    fn of(run: &Run) -> Side {
        Side {
            source: run.source.clone(),
            processes: run.processes.clone(),
            samples: run.total,
            incomplete: run.incomplete,
            waiting_left_out: run.waiting_left_out,
            lost: LossTotals::of(run),
            period_s: run.about.period_ns().map(|ns| ns / 1e9),
            duration_s: run.about.duration_ns.map(|ns| ns as f64 / 1e9),
            sampled_every: run.about.sampled_every,
        }
    }

    /// Number of samples behind a count: counts of heap profiles are bytes.
    fn samples_of(&self, count: u64) -> f64 {
        count as f64 / self.sampled_every.unwrap_or(1).max(1) as f64
    }

    /// Converts a count of this side to the measure.
    #[must_use]
    pub fn value(&self, count: u64, measure: Measure) -> f64 {
        match measure {
            Measure::Samples => count as f64,
            Measure::Share => self.share(count),
            Measure::Seconds => count as f64 * self.period_s.unwrap_or(0.0),
        }
    }

    /// A count as a fraction of all samples of this side.
    #[must_use]
    pub fn share(&self, count: u64) -> f64 {
        if self.samples == 0 { 0.0 } else { count as f64 / self.samples as f64 }
    }
}

/// A comparison of two profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The measure.
    pub measure: Measure,
    /// Reason for the measure.
    pub why: &'static str,
    /// Unit of counts: samples, or that of another program's profile (`bytes`).
    pub unit: String,
    /// The base profile.
    pub base: Side,
    /// The new profile.
    pub new: Side,
    /// All functions, sorted by the change of their self value, then of their total, largest first.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Compares the two profiles of `stacks`.
    ///
    /// # Errors
    /// Why they cannot be compared.
    pub fn of(stacks: &Stacks, choice: MeasureChoice) -> Result<Comparison, Incomparable> {
        let [base, new] = stacks.runs() else {
            return Err(Incomparable::NotTwo(stacks.runs().len()));
        };
        for run in [base, new] {
            if run.total == 0 {
                let waiting = run.waiting_left_out > 0;
                return Err(Incomparable::NoSamples { source: run.source.clone(), waiting });
            }
        }
        let kinds = (&base.about.value_type, &new.about.value_type);
        let differ = matches!(kinds, (Some(base), Some(new)) if base != new);
        if base.about.unit != new.about.unit || differ {
            let kind = |run: &Run| run.about.value_type.clone().filter(|_| differ);
            let of = |run: &Run| (run.source.clone(), kind(run).unwrap_or_else(|| run.about.unit.clone()));
            return Err(Incomparable::Units { base: of(base), new: of(new) });
        }
        let unit = base.about.unit.clone();
        let (base, new) = (Side::of(base), Side::of(new));
        let launched = stacks.runs().iter().all(|run| run.about.launched == Some(true));
        let (measure, why) = measure(choice, &base, &new, launched)?;
        let pair = |counts: &[u64]| Pair {
            base: counts.first().copied().unwrap_or(0),
            new: counts.get(1).copied().unwrap_or(0),
        };
        let rows = functions(stacks);
        let rows = rows.iter().map(|row| Row {
            name: stacks.text(row.name).to_owned(),
            own: pair(&row.own),
            total: pair(&row.total),
        });
        let mut comparison = Comparison { measure, why, unit, base, new, rows: rows.collect() };
        let mut rows = std::mem::take(&mut comparison.rows);
        let size = |pair: Pair| comparison.change(pair).abs();
        rows.sort_by(|a, b| {
            size(b.own)
                .total_cmp(&size(a.own))
                .then(size(b.total).total_cmp(&size(a.total)))
                .then(a.name.cmp(&b.name))
        });
        comparison.rows = rows;
        Ok(comparison)
    }

    /// The values of both sides.
    #[must_use]
    pub fn values(&self, pair: Pair) -> (f64, f64) {
        (self.base.value(pair.base, self.measure), self.new.value(pair.new, self.measure))
    }

    /// new − base.
    #[must_use]
    pub fn change(&self, pair: Pair) -> f64 {
        let (base, new) = self.values(pair);
        new - base
    }

    /// Whether counting noise explains the change: it is below [`COUNTING_ERRORS`] standard errors of two
    /// counts. Two profiles do not show how runs differ beyond that.
    #[must_use]
    pub fn is_counting_noise(&self, pair: Pair) -> bool {
        if [&self.base, &self.new].iter().all(|side| side.sampled_every == Some(1)) {
            return false;
        }
        let (base, new) = (self.base.samples_of(pair.base), self.new.samples_of(pair.new));
        let factor = self.base_factor();
        (new - base * factor).abs() < COUNTING_ERRORS * (base * factor * factor + new).sqrt()
    }

    /// All samples of both sides.
    #[must_use]
    pub fn whole(&self) -> Pair {
        Pair { base: self.base.samples, new: self.new.samples }
    }

    /// Factors that make counts of base and new comparable in formats with counts only. Neither is below 1: a
    /// stack of one sample must not vanish.
    #[must_use]
    pub fn scales(&self) -> (f64, f64) {
        match self.base_factor() {
            factor if factor >= 1.0 => (factor, 1.0),
            factor if factor > 0.0 => (1.0, 1.0 / factor),
            _ => (1.0, 1.0),
        }
    }

    /// Factor that makes counts of base comparable with counts of new.
    #[must_use]
    pub fn base_factor(&self) -> f64 {
        match self.measure {
            Measure::Samples => 1.0,
            Measure::Share if self.base.samples == 0 => 1.0,
            Measure::Share => self.new.samples as f64 / self.base.samples as f64,
            Measure::Seconds => match (self.base.period_s, self.new.period_s) {
                (Some(base), Some(new)) if new > 0.0 => base / new,
                _ => 1.0,
            },
        }
    }
}

/// Whether two durations are equal, within [`EQUAL_DURATIONS`].
#[must_use]
pub fn equally_long(one: f64, other: f64) -> bool {
    (one - other).abs() <= EQUAL_DURATIONS * one.max(other)
}

fn measure(
    choice: MeasureChoice,
    base: &Side,
    new: &Side,
    launched: bool,
) -> Result<(Measure, &'static str), Incomparable> {
    let rates = (base.period_s, new.period_s);
    match (choice, rates) {
        (MeasureChoice::Share, _) => return Ok((Measure::Share, "as requested")),
        (MeasureChoice::Absolute, (Some(_), Some(_))) => return Ok((Measure::Seconds, "as requested")),
        (MeasureChoice::Absolute, (None, None)) => {
            return Ok((Measure::Samples, "as requested; the files have no sampling rates, taken for equal"));
        }
        (MeasureChoice::Absolute, _) => {
            let without = if base.period_s.is_none() { base } else { new };
            return Err(Incomparable::RateUnknown(without.source.clone()));
        }
        (MeasureChoice::Auto, (Some(_), Some(_))) => {}
        (MeasureChoice::Auto, (None, None)) if base.sampled_every.and(new.sampled_every).is_some() => {
            return Ok((Measure::Samples, "both are heap profiles"));
        }
        (MeasureChoice::Auto, _) => return Ok((Measure::Share, "the files have no duration")),
    }
    if base.lost.apart(&new.lost) > LOST_MAX {
        return Ok((Measure::Share, "the recordings lost different parts of their time"));
    }
    if launched {
        return Ok((Measure::Seconds, "both are recordings of a whole command"));
    }
    match (base.duration_s, new.duration_s) {
        (Some(a), Some(b)) if equally_long(a, b) => {
            Ok((Measure::Seconds, "both recordings took equally long"))
        }
        (Some(_), Some(_)) => Ok((Measure::Share, "the recordings took differently long")),
        _ => Ok((Measure::Share, "the files have no duration")),
    }
}

// ---- Self and total counts of each function in each of the compared profiles.
//
// A recursive function counts once per stack in its total, so that no total exceeds the run's.

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

// ---- Why two profiles cannot be compared: one line for people that names the profile.

/// Profiles that cannot be compared, and why. They are named by their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomparable {
    /// The number of profiles is not two, but this.
    NotTwo(usize),
    /// A profile is empty.
    NoSamples {
        /// The profile.
        source: String,
        /// It has only waiting threads, which were excluded.
        waiting: bool,
    },
    /// They count different things.
    Units {
        /// The base profile and its unit.
        base: (String, String),
        /// The new profile and its unit.
        new: (String, String),
    },
    /// CPU time was requested, and a profile has no sampling rate.
    RateUnknown(String),
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incomparable::NotTwo(count) => write!(f, "{count} profiles; diff compares two"),
            Incomparable::NoSamples { source, waiting: false } => {
                write!(f, "{source} has no samples; record for longer")
            }
            Incomparable::NoSamples { source, waiting: true } => {
                write!(f, "{source} has no samples of running threads; --idle compares waiting ones, too")
            }
            Incomparable::Units { base: (base, base_unit), new: (new, new_unit) } => {
                write!(f, "{base} counts {base_unit} and {new} counts {new_unit}")
            }
            Incomparable::RateUnknown(source) => write!(
                f,
                "{source} has no sampling rate, so CPU time cannot be compared; leave out --absolute, or record both as .pb.gz"
            ),
        }
    }
}

impl Error for Incomparable {}

// ---- Lost time of a recording: time of the program without a sample.
//
// Counts and losses add up to the CPU time of the program (`sampler/weights.rs`), so CPU seconds, which are sums of
// samples, are too small by that fraction, and the functions that used it are missing. Counts cannot be corrected,
// since these functions are unknown.

/// Largest lost fraction of a recording with reliable CPU time, and largest difference between two
/// recordings.
pub const LOST_MAX: f64 = 0.10;

/// Larger differences are reported: functions of that size appear as new or gone.
pub const LOST_NOTED: f64 = 0.02;

/// Losses of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossTotals {
    /// Counts, by cause; empty if nothing was lost, or the file does not have them.
    pub counts: BTreeMap<String, u64>,
    /// Fraction of the time without a stack, 0 to 1.
    pub part: f64,
}

impl LossTotals {
    /// Losses of a run, in relation to its compared counts.
    #[must_use]
    pub fn of(run: &Run) -> LossTotals {
        let counts = run.about.lost.clone();
        let lost: u64 = counts.values().fold(0, |sum, count| sum.saturating_add(*count));
        let all = lost as f64 + run.total as f64;
        LossTotals { counts, part: if lost == 0 { 0.0 } else { lost as f64 / all } }
    }

    /// The main cause of losses; empty if there are none.
    #[must_use]
    pub fn main_reason(&self) -> &str {
        self.counts.iter().max_by_key(|(_, count)| **count).map_or("", |(why, _)| why)
    }

    /// The difference between two lost fractions, 0 to 1.
    #[must_use]
    pub fn apart(&self, other: &LossTotals) -> f64 {
        (self.part - other.part).abs()
    }
}

#[cfg(test)]
mod tests {
    use super::super::stacks::Matching;
    use super::super::stacks::tests::saved;
    use super::*;
    use crate::About;

    fn compare(base: About, new: About, choice: MeasureChoice) -> Result<Comparison, Incomparable> {
        let mut stacks = Stacks::new(Matching::default());
        let base = saved(base, "work", &[("main;a", 60), ("main;b", 40)]);
        let new = saved(new, "work", &[("main;a", 60), ("main;b", 100), ("main;c", 40)]);
        stacks.add("base", &base, None).expect("fits");
        stacks.add("new", &new, None).expect("fits");
        Comparison::of(&stacks, choice)
    }

    fn recording(hz: u32, launched: bool, seconds: u64) -> About {
        About {
            hz: Some(hz),
            launched: Some(launched),
            duration_ns: Some(seconds * 1_000_000_000),
            ..About::default()
        }
    }

    fn names(comparison: &Comparison) -> Vec<&str> {
        comparison.rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn the_recordings_determine_the_measure() {
        let unrated = About::default;
        for (base, new, measure) in [
            (unrated(), unrated(), Measure::Share),
            (recording(100, true, 3), recording(100, true, 9), Measure::Seconds),
            (recording(100, false, 3), recording(100, false, 3), Measure::Seconds),
            (recording(100, false, 3), recording(100, false, 9), Measure::Share),
            (recording(100, true, 3), unrated(), Measure::Share),
        ] {
            assert_eq!(compare(base, new, MeasureChoice::Auto).expect("both have samples").measure, measure);
        }
        let absolute = compare(unrated(), unrated(), MeasureChoice::Absolute).expect("both have samples");
        assert_eq!(absolute.measure, Measure::Samples);
        let why = compare(unrated(), recording(9, true, 3), MeasureChoice::Absolute).expect_err("one rate");
        assert!(why.to_string().starts_with("base has no sampling rate"), "{why}");
        let bytes = About { unit: "bytes".into(), ..About::default() };
        assert!(compare(bytes, unrated(), MeasureChoice::Auto).is_err());
    }

    #[test]
    fn rows_are_sorted_by_change_in_the_chosen_measure() {
        let shares =
            compare(About::default(), About::default(), MeasureChoice::Share).expect("both have samples");
        // a: 60 % to 30 %, c: 0 to 20 %, b: 40 % to 50 %.
        assert_eq!(names(&shares), ["a", "c", "b", "main"]);
        let samples =
            compare(About::default(), About::default(), MeasureChoice::Absolute).expect("both have samples");
        assert_eq!(names(&samples), ["b", "c", "main", "a"]);
        assert_eq!((shares.base_factor(), samples.base_factor()), (2.0, 1.0));
        assert!(shares.is_counting_noise(Pair { base: 40, new: 100 }), "80 or 100, give or take 16");
        assert!(!shares.is_counting_noise(Pair { base: 0, new: 40 }));
        let rates =
            compare(recording(100, true, 1), recording(200, true, 1), MeasureChoice::Auto).expect("rates");
        assert_eq!(rates.base_factor(), 2.0);
        assert_eq!(rates.values(Pair { base: 60, new: 60 }), (0.6, 0.3));
    }

    #[test]
    fn sides_with_different_losses_are_compared_by_share() {
        // 100 samples of base are left, and 200 of new.
        let lost = |counts: u64| About {
            lost: [("in the kernel, which may not be sampled".to_owned(), counts)].into(),
            ..recording(100, true, 3)
        };
        for (base, new, measure) in [
            (67, 0, Measure::Share),
            (0, 134, Measure::Share),
            (67, 134, Measure::Seconds),
            (10, 0, Measure::Seconds),
        ] {
            let compared = compare(lost(base), lost(new), MeasureChoice::Auto).expect("both have samples");
            assert_eq!(compared.measure, measure, "{base} and {new}: {}", compared.why);
            assert_eq!(measure == Measure::Share, compared.why.contains("lost"), "{}", compared.why);
        }
        let asked = compare(lost(67), lost(0), MeasureChoice::Absolute).expect("both have samples");
        assert_eq!((asked.measure, asked.why), (Measure::Seconds, "as requested"));
    }

    #[test]
    fn an_empty_side_is_refused() {
        let mut stacks = Stacks::new(Matching::default());
        stacks.add("a", &saved(About::default(), "work", &[("main", 1)]), None).expect("fits");
        stacks.add("b", &saved(About::default(), "work", &[]), None).expect("fits");
        let why = Comparison::of(&stacks, MeasureChoice::Auto).expect_err("empty");
        assert_eq!(why.to_string(), "b has no samples; record for longer");
    }

    #[test]
    fn heap_profiles_are_compared_by_bytes_with_the_noise_of_samples() {
        let heap = |every, kind: &str| About {
            unit: "bytes".into(),
            value_type: Some(kind.into()),
            sampled_every: Some(every),
            ..About::default()
        };
        let compared = |every| {
            let of = || heap(every, "inuse_space");
            compare(of(), of(), MeasureChoice::Auto).expect("alike")
        };
        let coarse = compared(10);
        assert_eq!(
            (coarse.measure, coarse.why, &*coarse.unit),
            (Measure::Samples, "both are heap profiles", "bytes")
        );
        // Six samples and ten.
        assert!(coarse.is_counting_noise(Pair { base: 60, new: 100 }));
        assert!(!compared(1).is_counting_noise(Pair { base: 60, new: 61 }));
        let why = compare(heap(1, "inuse_space"), heap(1, "alloc_space"), MeasureChoice::Auto)
            .expect_err("refused");
        assert!(why.to_string().contains("inuse_space") && why.to_string().contains("alloc_space"), "{why}");
    }
}

#[cfg(test)]
mod functions_tests {
    use super::super::stacks::tests::saved;
    use super::super::stacks::{Matching, Stacks};
    use super::*;
    use crate::About;

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
