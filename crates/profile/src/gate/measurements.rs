//! Input of the gate: each run's CPU time, in total and by function.
//!
//! `Unit` is the unit of CPU time of runs, `Incomparable` the reasons why runs must not be compared.
//!
//! Input: [`Stacks`] of the base runs followed by the new ones. Output: [`Measurements`], or why these runs
//! must not be compared. Nothing is tested here.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use crate::diff::compare::{LOST_MAX, LossTotals, equally_long, functions};
use crate::diff::stacks::{Run, Stacks};
use crate::{RING_FULL, SAMPLES};

/// A run with less than this fraction of its side's median is truncated.
pub const TRUNCATED_BELOW: f64 = 0.25;

/// Checks that runs can be a side of a gate: each has enough samples, all are of one kind, none was
/// truncated, and their CPU time is known.
///
/// # Errors
/// Which run cannot be compared, and why.
pub fn check_side(runs: &[Run], different_names: bool) -> Result<(), Incomparable> {
    runs.iter().try_for_each(check_run)?;
    check_alike(runs, different_names)?;
    check_copies(runs)?;
    check_whole(runs)?;
    Unit::of(runs).map(drop)
}

/// A function's samples, by run.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionSamples {
    /// Name.
    pub name: String,
    /// Samples of stacks that end in it (self).
    pub own: Vec<f64>,
    /// Samples of stacks that contain it (total).
    pub total: Vec<f64>,
}

/// Samples of several runs of each side, and the period of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Number of base runs; they come first.
    pub base_runs: usize,
    /// Samples of each run.
    pub totals: Vec<f64>,
    /// By run: the value of one sample in `unit`.
    pub per_sample: Vec<f64>,
    /// The unit of `per_sample`.
    pub unit: Unit,
    /// Samples of the functions.
    pub functions: Vec<FunctionSamples>,
}

impl Measurements {
    /// Measures the runs of `stacks`, with `base_runs` base runs first.
    ///
    /// # Errors
    /// Which runs cannot be compared, and why.
    pub fn of(
        stacks: &Stacks,
        base_runs: usize,
        different_names: bool,
    ) -> Result<Measurements, Incomparable> {
        let runs = stacks.runs();
        let (base, new) = runs.split_at(base_runs.min(runs.len()));
        if base.is_empty() || new.is_empty() {
            return Err(Incomparable::NoRuns);
        }
        for run in runs {
            check_run(run)?;
        }
        check_alike(runs, different_names)?;
        check_copies(runs)?;
        check_whole(base)?;
        check_whole(new)?;
        let (unit, per_sample) = Unit::of(runs)?;
        let rows = functions(stacks);
        // Counts of heap profiles are bytes, converted to the average number of samples.
        let per_count = |run: &Run| run.about.sampled_every.map_or(1.0, |every| 1.0 / every.max(1) as f64);
        let per_count: Vec<f64> = runs.iter().map(per_count).collect();
        let counts = |counts: &[u64]| {
            counts.iter().zip(&per_count).map(|(count, per_count)| *count as f64 * per_count).collect()
        };
        let functions =
            rows.iter().filter(|row| row.own.iter().any(|count| *count > 0)).map(|row| FunctionSamples {
                name: stacks.text(row.name).to_owned(),
                own: counts(&row.own),
                total: counts(&row.total),
            });
        Ok(Measurements {
            base_runs: base.len(),
            totals: counts(&runs.iter().map(|run| run.total).collect::<Vec<u64>>()),
            per_sample,
            unit,
            functions: functions.collect(),
        })
    }

    /// Splits values of all runs into those of base and new.
    #[must_use]
    pub fn sides<'a>(&self, values: &'a [f64]) -> (&'a [f64], &'a [f64]) {
        values.split_at(self.base_runs.min(values.len()))
    }

    /// Samples of all runs in [`Measurements::unit`].
    #[must_use]
    pub fn in_unit(&self, samples: &[f64]) -> Vec<f64> {
        samples.iter().zip(&self.per_sample).map(|(samples, each)| samples * each).collect()
    }

    /// Samples of all runs as fractions of their run.
    #[must_use]
    pub fn shares(&self, samples: &[f64]) -> Vec<f64> {
        samples.iter().zip(&self.totals).map(|(samples, total)| samples / total.max(1.0)).collect()
    }
}

fn check_run(run: &Run) -> Result<(), Incomparable> {
    let source = || run.source.clone();
    if let (Some(every), Some(kind)) = (run.about.sampled_every, &run.about.value_type) {
        if run.about.unit != "bytes" {
            return Err(Incomparable::NoSpace { run: source(), kind: kind.clone() });
        }
        let samples = run.total / every.max(1);
        if samples < SAMPLES_MIN {
            return Err(Incomparable::FewBytes { run: source(), bytes: run.total, every });
        }
        return check_lost(run);
    }
    if run.about.unit != SAMPLES {
        return Err(Incomparable::OtherUnit { run: source(), unit: run.about.unit.clone() });
    }
    if run.about.is_time_range {
        return Err(Incomparable::Cut(source()));
    }
    match run.total {
        0 if run.waiting_left_out > 0 => Err(Incomparable::OnlyWaiting(source())),
        0 => Err(Incomparable::Empty(source())),
        samples @ 1..SAMPLES_MIN => Err(Incomparable::TooFew { run: source(), samples }),
        _ => check_lost(run),
    }
}

fn check_lost(run: &Run) -> Result<(), Incomparable> {
    let lost = LossTotals::of(run);
    if lost.part <= LOST_MAX {
        return Ok(());
    }
    Err(Incomparable::Lost {
        run: run.source.clone(),
        part: lost.part,
        why: lost.main_reason().to_owned(),
        is_heap: run.about.is_heap(),
    })
}

fn check_alike(runs: &[Run], different_names: bool) -> Result<(), Incomparable> {
    let Some((first, others)) = runs.split_first() else { return Ok(()) };
    for other in others {
        let (a, b) = (|| first.source.clone(), || other.source.clone());
        let kind = |Run { about, .. }: &Run| {
            let is_inuse = about.value_type.as_ref().is_some_and(|kind| kind.starts_with("inuse"));
            (about.value_type.clone(), about.sampled_every, about.is_peak && is_inuse)
        };
        if kind(first) != kind(other) {
            return Err(Incomparable::HeapKinds { one: a(), other: b() });
        }
        match (first.about.hz, other.about.hz) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                return Err(Incomparable::Rates { one: (a(), ours), other: (b(), theirs) });
            }
            (Some(_), None) | (None, Some(_)) => {
                let (with, without) = if first.about.hz.is_some() { (a(), b()) } else { (b(), a()) };
                return Err(Incomparable::RateUnknown { without, with });
            }
            _ => {}
        }
        if first.processes != other.processes && !different_names {
            let (one, other) = ((a(), first.processes.clone()), (b(), other.processes.clone()));
            return Err(Incomparable::Programs { one, other });
        }
    }
    if let Some((one, other)) = differ(runs, |run| run.about.launched) {
        return Err(Incomparable::Extents { one, other });
    }
    match differ(runs, |run| run.about.exit.clone()) {
        Some((one, other)) => Err(Incomparable::Exits { one, other }),
        None => Ok(()),
    }
}

/// The first run that has this fact, and the first with another one.
fn differ<T: PartialEq>(
    runs: &[Run],
    fact: impl Fn(&Run) -> Option<T>,
) -> Option<((String, T), (String, T))> {
    let mut known = runs.iter().filter_map(|run| Some((run.source.clone(), fact(run)?)));
    let one = known.next()?;
    let other = known.find(|other| other.1 != one.1)?;
    Some((one, other))
}

/// Refuses copies of one recording: they would pass for runs without noise.
fn check_copies(runs: &[Run]) -> Result<(), Incomparable> {
    let mut seen = BTreeMap::new();
    for run in runs {
        let about = &run.about;
        let Some(start) = about.time_unix_ns.zip(about.pid) else { continue };
        if let Some(one) = seen.insert(start, &run.source) {
            return Err(Incomparable::OneRecording { one: one.clone(), other: run.source.clone() });
        }
    }
    Ok(())
}

/// Refuses a truncated recording: it would pass as a fast run.
fn check_whole(side: &[Run]) -> Result<(), Incomparable> {
    let mut totals: Vec<u64> = side.iter().map(|run| run.total).collect();
    totals.sort_unstable();
    // The upper median: of two runs the shorter one is compared with the longer.
    let Some(median) = totals.get(totals.len() / 2).copied() else { return Ok(()) };
    match side.iter().find(|run| (run.total as f64) < TRUNCATED_BELOW * median as f64) {
        Some(run) => Err(Incomparable::CutShort { run: run.source.clone(), samples: run.total, median }),
        None => Ok(()),
    }
}

// ---- The unit of the CPU time of runs, so that a longer recording is not a slower program.
//
// CPU time of a whole run measures its work; that of a part of a process's life measures only how long it was
// recorded. Files of other programs do not say which they are, and are assumed to be whole runs, as tests write
// them (`go test -cpuprofile`): divided by their duration, a program that got slower throughout would pass. The
// report says so where that matters.

/// Unit of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of CPU time of the whole run.
    Seconds,
    /// Seconds of CPU time of runs that may be parts: their files do not say, and their lengths differ.
    SecondsOfUnknownExtent,
    /// Seconds of CPU time per second of recording: attached recordings end on request, and their sum measures how
    /// long that took.
    SecondsPerSecond,
    /// Samples, if the files have no sampling rate (folded text).
    Samples,
    /// Bytes, of heap profiles.
    Bytes,
}

impl Unit {
    /// The unit symbol after a number.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds | Unit::SecondsOfUnknownExtent => "s",
            Unit::SecondsPerSecond => "s/s",
            Unit::Samples => "samples",
            Unit::Bytes => "bytes",
        }
    }

    /// Verb for a function with increased cost, for people.
    #[must_use]
    pub fn grew(self) -> &'static str {
        match self {
            Unit::Bytes => "grew",
            _ => "got slower",
        }
    }

    /// The measured quantity, for people.
    #[must_use]
    pub fn quantity(self) -> &'static str {
        match self {
            Unit::Bytes => "memory",
            _ => "CPU time",
        }
    }

    /// The unit of `runs`, and the value of one sample of each in it.
    ///
    /// # Errors
    /// The run without a known extent.
    pub fn of(runs: &[Run]) -> Result<(Unit, Vec<f64>), Incomparable> {
        if let Some(every) = runs.iter().map(|run| run.about.sampled_every).collect::<Option<Vec<u64>>>() {
            // Blocks smaller than the sampling interval vary like as many samples; larger ones vary less.
            return Ok((Unit::Bytes, every.into_iter().map(|every| every as f64).collect()));
        }
        let period = |run: &Run| run.about.period_ns().map(|ns| ns / 1e9);
        let Some(periods) = runs.iter().map(period).collect::<Option<Vec<f64>>>() else {
            return Ok((Unit::Samples, vec![1.0; runs.len()]));
        };
        if runs.iter().all(|run| run.about.launched != Some(false)) {
            return Ok((
                if may_be_of_parts(runs) { Unit::SecondsOfUnknownExtent } else { Unit::Seconds },
                periods,
            ));
        }
        let durations = runs
            .iter()
            .map(|run| duration_s(run).ok_or_else(|| Incomparable::DurationUnknown(run.source.clone())));
        let durations = durations.collect::<Result<Vec<f64>, _>>()?;
        let rates = periods.iter().zip(durations).map(|(period, duration)| period / duration);
        Ok((Unit::SecondsPerSecond, rates.collect()))
    }
}

fn may_be_of_parts(runs: &[Run]) -> bool {
    if runs.iter().all(|run| run.about.launched.is_some()) {
        return false;
    }
    let Some(durations) = runs.iter().map(duration_s).collect::<Option<Vec<f64>>>() else { return true };
    let (shortest, longest) =
        durations.iter().fold((f64::INFINITY, 0.0f64), |(low, high), s| (low.min(*s), high.max(*s)));
    !equally_long(shortest, longest)
}

fn duration_s(run: &Run) -> Option<f64> {
    run.about.duration_ns.filter(|ns| *ns > 0).map(|ns| ns as f64 / 1e9)
}

// ---- Why runs must not be compared: one line for people that names the run and the next step.

/// Least number of samples of a run. A smaller run has sampled only the program's start; it is refused rather
/// than passed.
pub const SAMPLES_MIN: u64 = 20;

/// Runs that cannot be compared, and why. They are named by their files.
#[derive(Clone, Debug, PartialEq)]
pub enum Incomparable {
    /// One side has no runs.
    NoRuns,
    /// A run counts no CPU time.
    OtherUnit {
        /// The run.
        run: String,
        /// Its unit.
        unit: String,
    },
    /// A heap profile shows numbers of allocations, with an unknown sampling error.
    NoSpace {
        /// The run.
        run: String,
        /// Its value type.
        kind: String,
    },
    /// A heap profile has too few bytes for its sampling rate.
    FewBytes {
        /// The run.
        run: String,
        /// Its bytes.
        bytes: u64,
        /// Bytes per sample on average.
        every: u64,
    },
    /// Two runs differ in kind: one is not a heap profile, shows another value type or has another sampling
    /// rate.
    HeapKinds {
        /// A run.
        one: String,
        /// Another one.
        other: String,
    },
    /// A run has only stacks of waiting threads.
    OnlyWaiting(String),
    /// A run has no samples.
    Empty(String),
    /// A run has fewer than [`SAMPLES_MIN`].
    TooFew {
        /// The run.
        run: String,
        /// Its samples.
        samples: u64,
    },
    /// A run lost more than [`LOST_MAX`].
    Lost {
        /// The run.
        run: String,
        /// Fraction of its samples (of a heap profile: bytes) that it lost, 0 to 1.
        part: f64,
        /// The main cause.
        why: String,
        /// It is a heap profile.
        is_heap: bool,
    },
    /// Two runs have different sampling rates.
    Rates {
        /// A run and its rate, Hz.
        one: (String, u32),
        /// Another one.
        other: (String, u32),
    },
    /// One run has a sampling rate, the other has none.
    RateUnknown {
        /// The run without a rate.
        without: String,
        /// The run with a rate.
        with: String,
    },
    /// Two runs are of different programs.
    Programs {
        /// A run and its process names.
        one: (String, Vec<String>),
        /// Another one.
        other: (String, Vec<String>),
    },
    /// One run is of a whole command, the other of a part of a process's life.
    Extents {
        /// A run, and whether it is of a whole command.
        one: (String, bool),
        /// Another one.
        other: (String, bool),
    },
    /// The commands of two runs ended differently.
    Exits {
        /// A run, and how its command ended.
        one: (String, String),
        /// Another one.
        other: (String, String),
    },
    /// Two files hold one recording.
    OneRecording {
        /// A file.
        one: String,
        /// Another one.
        other: String,
    },
    /// A run may be a part of a process's life, of unknown duration.
    DurationUnknown(String),
    /// A run was cut out of a recording.
    Cut(String),
    /// A run has less than [`TRUNCATED_BELOW`] of the median.
    CutShort {
        /// The run.
        run: String,
        /// Its samples.
        samples: u64,
        /// The median of its side.
        median: u64,
    },
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incomparable::NoRuns => {
                f.write_str("there are no runs to compare; give files for --base and for --new")
            }
            Incomparable::OtherUnit { run, unit } => {
                write!(f, "{run} counts {unit}; expected {SAMPLES} of CPU time")
            }
            Incomparable::NoSpace { run, kind } => {
                write!(f, "{run} shows {kind}; bytes can be judged: --type inuse_space or --type alloc_space")
            }
            Incomparable::FewBytes { run, bytes, every } => write!(
                f,
                "{run} has {bytes} bytes, and one sample in {every}: chance decides; record with a smaller --every"
            ),
            Incomparable::HeapKinds { one, other } => write!(
                f,
                "{one} and {other} are of different kinds; record both with stackprof heap and the same --every and --peak, or both without, and give one --type"
            ),
            Incomparable::OnlyWaiting(run) => {
                write!(f, "{run} holds only waiting threads; record without --idle")
            }
            Incomparable::Empty(run) => write!(f, "{run} is empty; record it again"),
            Incomparable::TooFew { run, samples } => write!(
                f,
                "{run} has only {samples} samples, fewer than {SAMPLES_MIN}; record a longer run or with a higher --hz"
            ),
            Incomparable::Lost { run, part, why, is_heap: false } => write!(
                f,
                "{run} lost {:.0}% of its samples ({why}), so its CPU time is not known; record it again",
                100.0 * part
            ),
            Incomparable::Lost { run, part, why, is_heap: true } => write!(
                f,
                "{run} lost about {:.0}% of its bytes ({why}), so its memory is not known; record it {}",
                100.0 * part,
                if why == RING_FULL { "with a larger --every" } else { "again" }
            ),
            Incomparable::Rates { one: (a, ours), other: (b, theirs) } => {
                write!(f, "{a} was recorded at {ours} Hz and {b} at {theirs} Hz; use one --hz for all")
            }
            Incomparable::RateUnknown { without, with } => write!(
                f,
                "{without} has no sampling rate but {with} has; record all runs in one format (.pb.gz keeps it)"
            ),
            Incomparable::Programs { one: (a, of_a), other: (b, of_b) } => write!(
                f,
                "{a} is of {} and {b} of {}; if they are the same program, add --allow-different-names",
                of_a.join(", "),
                of_b.join(", ")
            ),
            Incomparable::Extents { one: (a, a_whole), other: (b, b_whole) } => {
                let of = |whole: &bool| if *whole { "a whole command" } else { "a part of a process's life" };
                write!(
                    f,
                    "{a} is a recording of {} and {b} of {}; record all in one way",
                    of(a_whole),
                    of(b_whole)
                )
            }
            Incomparable::Exits { one: (a, ours), other: (b, theirs) } => write!(
                f,
                "the command of {a} ended with {ours}, that of {b} with {theirs}: they did not do the same work; record runs that end alike"
            ),
            Incomparable::OneRecording { one, other } => {
                write!(f, "{one} and {other} are the same recording; record each run by itself")
            }
            Incomparable::DurationUnknown(run) => write!(
                f,
                "{run} has no duration, so its CPU time cannot be compared; record all runs as .pb.gz"
            ),
            Incomparable::Cut(run) => write!(
                f,
                "{run} is a part of the time of a recording (--from, --to); give the whole recording"
            ),
            Incomparable::CutShort { run, samples, median } => write!(
                f,
                "{run} has {samples} samples where its side's median is {median}; it may be cut short; record it again"
            ),
        }
    }
}

impl Error for Incomparable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::About;
    use crate::diff::stacks::Matching;
    use crate::diff::stacks::tests::saved;

    fn at(hz: Option<u32>) -> About {
        About { hz, ..About::default() }
    }

    fn measured(runs: &[(About, &str, u64)], base_runs: usize) -> Result<Measurements, Incomparable> {
        let mut stacks = Stacks::new(Matching::default());
        for (index, (about, process, count)) in runs.iter().enumerate() {
            let run = saved(about.clone(), process, &[("main;f", *count)]);
            stacks.add(&format!("{index}.pb.gz"), &run, None).expect("fits");
        }
        Measurements::of(&stacks, base_runs, false)
    }

    #[test]
    fn samples_become_seconds_if_the_rate_is_known() {
        let whole = About { launched: Some(true), ..at(Some(100)) };
        let two = measured(&[(whole.clone(), "w", 200), (whole, "w", 400)], 1).expect("alike");
        assert_eq!((two.unit, two.in_unit(&two.totals)), (Unit::Seconds, vec![2.0, 4.0]));
        assert_eq!(
            two.functions,
            [FunctionSamples { name: "f".into(), own: vec![200.0, 400.0], total: vec![200.0, 400.0] }]
        );
        assert_eq!(two.shares(&[100.0, 100.0]), [0.5, 0.25]);
        let folded = measured(&[(at(None), "w", 200), (at(None), "w", 400)], 1).expect("alike");
        assert_eq!((folded.unit, folded.per_sample), (Unit::Samples, vec![1.0, 1.0]));
        let attached = |seconds: u64| About {
            launched: Some(false),
            duration_ns: Some(seconds * 1_000_000_000),
            ..at(Some(100))
        };
        let busy = measured(&[(attached(10), "w", 200), (attached(20), "w", 400)], 1).expect("alike");
        assert_eq!((busy.unit, busy.in_unit(&busy.totals)), (Unit::SecondsPerSecond, vec![0.2, 0.2]));
    }

    fn unknown_extent(millis: Option<u64>) -> About {
        About { duration_ns: millis.map(|millis| millis * 1_000_000), ..at(Some(100)) }
    }

    #[test]
    fn runs_of_unknown_extent_are_compared_by_duration() {
        let of = |runs: &[(About, u64)]| {
            let runs: Vec<_> = runs.iter().map(|(about, count)| (about.clone(), "w", *count)).collect();
            measured(&runs, 1).map(|measured| (measured.unit, measured.in_unit(&measured.totals)))
        };
        let longer = of(&[(unknown_extent(Some(10_000)), 200), (unknown_extent(Some(20_000)), 400)]);
        assert_eq!(longer.expect("taken for whole"), (Unit::SecondsOfUnknownExtent, vec![2.0, 4.0]));
        let alike = of(&[(unknown_extent(Some(10_000)), 200), (unknown_extent(Some(10_190)), 600)]);
        assert_eq!(alike.expect("equally long"), (Unit::Seconds, vec![2.0, 6.0]));
        let whole = About { launched: Some(true), ..unknown_extent(Some(10_000)) };
        for (other, unit) in [
            (unknown_extent(None), Unit::SecondsOfUnknownExtent),
            (unknown_extent(Some(0)), Unit::SecondsOfUnknownExtent),
            (unknown_extent(Some(30_000)), Unit::SecondsOfUnknownExtent),
            (unknown_extent(Some(10_100)), Unit::Seconds),
        ] {
            assert_eq!(of(&[(whole.clone(), 200), (other, 600)]).expect("taken for whole").0, unit);
        }
        // If one run is known to be a part, the others are, too.
        let attached = About { launched: Some(false), ..unknown_extent(Some(10_000)) };
        let mixed = of(&[(unknown_extent(Some(20_000)), 400), (attached.clone(), 200)]);
        assert_eq!(mixed.expect("durations are known"), (Unit::SecondsPerSecond, vec![0.2, 0.2]));
        let why = of(&[(attached, 200), (unknown_extent(None), 200)]).expect_err("it is refused").to_string();
        let expected =
            "1.pb.gz has no duration, so its CPU time cannot be compared; record all runs as .pb.gz";
        assert_eq!(why, expected);
    }

    #[test]
    fn a_part_and_a_whole_are_refused_in_any_order() {
        let of = |launched| About { launched, ..unknown_extent(Some(10_000)) };
        let runs = [of(None), of(Some(true)), of(Some(false))].map(|about| (about, "w", 200));
        let why = measured(&runs, 1).expect_err("refused").to_string();
        assert!(why.starts_with("1.pb.gz is a recording of a whole command and 2.pb.gz of a part"), "{why}");
    }

    #[test]
    fn incomparable_runs_are_refused_by_name() {
        let launched = |launched| About { launched: Some(launched), ..at(Some(100)) };
        let ended = |exit: &str| About { exit: Some(exit.to_owned()), ..launched(true) };
        let started = About { time_unix_ns: Some(7), pid: Some(42), ..at(Some(100)) };
        let bytes = About { unit: "bytes".into(), ..About::default() };
        let lossy = About { lost: [("stack unreadable".to_owned(), 20)].into(), ..About::default() };
        let lossy_heap = About {
            unit: "bytes".into(),
            value_type: Some("inuse_space".into()),
            sampled_every: Some(1),
            lost: [("ring full".to_owned(), 20)].into(),
            ..About::default()
        };
        for (runs, part) in [
            (
                vec![(at(None), "w", 100), (lossy, "w", 100)],
                "1.pb.gz lost 17% of its samples (stack unreadable)",
            ),
            (
                vec![(lossy_heap.clone(), "w", 100), (lossy_heap, "w", 100)],
                "0.pb.gz lost about 17% of its bytes (ring full), so its memory is not known",
            ),
            (vec![(at(None), "w", 100), (at(None), "w", 0)], "1.pb.gz is empty"),
            (vec![(at(None), "w", 100), (at(None), "w", 19)], "1.pb.gz has only 19 samples"),
            (vec![(at(Some(99)), "w", 100), (at(Some(997)), "w", 100)], "at 99 Hz and 1.pb.gz at 997 Hz"),
            (vec![(at(Some(99)), "w", 100), (at(None), "w", 100)], "1.pb.gz has no sampling rate"),
            (vec![(at(None), "w", 100), (at(None), "v", 100)], "--allow-different-names"),
            (vec![(bytes, "w", 100), (at(None), "w", 100)], "counts bytes"),
            (vec![(launched(true), "w", 100), (launched(false), "w", 100)], "of a part of a process's life"),
            (
                vec![(ended("status 0"), "w", 100), (ended("signal 6 (SIGABRT)"), "w", 50)],
                "0.pb.gz ended with status 0, that of 1.pb.gz with signal 6 (SIGABRT)",
            ),
            (
                vec![(started.clone(), "w", 100), (started, "w", 100)],
                "0.pb.gz and 1.pb.gz are the same recording",
            ),
            (
                vec![(at(None), "w", 500), (at(None), "w", 500), (at(None), "w", 100), (at(None), "w", 480)],
                "2.pb.gz has 100 samples where its side's median is 480",
            ),
        ] {
            let base_runs = runs.len() / 2;
            let why = measured(&runs, base_runs).expect_err("refused").to_string();
            assert!(why.contains(part), "{why}");
        }
        assert!(measured(&[(at(None), "w", 100)], 1).is_err());
        assert!(measured(&[(at(None), "w", 100)], 0).is_err());
    }

    fn of_heap(every: u64, kind: &str) -> About {
        let unit = if kind.ends_with("space") { "bytes" } else { kind };
        About { unit: unit.into(), value_type: Some(kind.into()), sampled_every: Some(every), ..at(None) }
    }

    #[test]
    fn heap_profiles_are_measured_in_bytes_and_average_samples() {
        let of = || of_heap(1024, "inuse_space");
        let two = measured(&[(of(), "w", 102_400), (of(), "w", 204_800)], 1).expect("alike");
        assert_eq!((two.unit, two.in_unit(&two.totals)), (Unit::Bytes, vec![102_400.0, 204_800.0]));
        assert_eq!(two.totals, [100.0, 200.0]);
        let exact = || of_heap(1, "inuse_space");
        let two = measured(&[(exact(), "w", 4096), (exact(), "w", 4096)], 1).expect("alike");
        assert_eq!(two.totals, [4096.0, 4096.0]);
    }

    #[test]
    fn heap_profiles_with_too_few_samples_are_refused() {
        let of = |every, kind| of_heap(every, kind);
        for (runs, part) in [
            (
                [of(1024, "inuse_space"), of(1024, "inuse_objects")],
                "1.pb.gz shows inuse_objects; bytes can be judged: --type inuse_space or --type alloc_space",
            ),
            (
                [of(1024, "inuse_space"), of(65_536, "inuse_space")],
                "1.pb.gz has 100000 bytes, and one sample in 65536",
            ),
            (
                [of(1024, "inuse_space"), of(2048, "inuse_space")],
                "0.pb.gz and 1.pb.gz are of different kinds",
            ),
            (
                [of(1024, "inuse_space"), About { is_peak: true, ..of(1024, "inuse_space") }],
                "0.pb.gz and 1.pb.gz are of different kinds",
            ),
            (
                [of(1024, "inuse_space"), of(1024, "alloc_space")],
                "0.pb.gz and 1.pb.gz are of different kinds",
            ),
            ([of(1024, "inuse_space"), at(Some(100))], "0.pb.gz and 1.pb.gz are of different kinds"),
        ] {
            let runs = runs.map(|about| (about, "w", 100_000));
            let why = measured(&runs, 1).expect_err("refused").to_string();
            assert!(why.contains(part), "{why}");
        }
    }
}
