//! What the CPU time of runs is measured in, so that a longer recording is no slower program.
//!
//! Input: runs that are alike. Output: [`Unit`], and what a sample of each run is in it; or which
//! run does not tell enough. CPU time of a whole run stands for its work; that of a part of a
//! process's life only for how long somebody looked. Files of other programs do not tell which they
//! are, and are taken for whole ones, as tests make them (`go test -cpuprofile`): divided by how long it took, a
//! program that got slower throughout would look as before, and pass. The report says so where that matters.

use super::incomparable::Incomparable;
use crate::diff::compare::equally_long;
use crate::diff::stacks::Run;

/// What CPU time is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of CPU time of the whole run.
    Seconds,
    /// Seconds of CPU time of runs that may be parts of a run: their files do not say, and their lengths differ.
    SecondsOfUntold,
    /// Seconds of CPU time for each second of recording: attached recordings end when they are
    /// told to, and their whole tells how long that took.
    SecondsPerSecond,
    /// Samples, where the files do not tell the rate (folded text).
    Samples,
    /// Bytes, of heap profiles.
    Bytes,
}

impl Unit {
    /// The unit behind a number.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds | Unit::SecondsOfUntold => "s",
            Unit::SecondsPerSecond => "s/s",
            Unit::Samples => "samples",
            Unit::Bytes => "bytes",
        }
    }

    /// What a function did that costs more, for people.
    #[must_use]
    pub fn grew(self) -> &'static str {
        match self {
            Unit::Bytes => "grew",
            _ => "got slower",
        }
    }

    /// What is measured, for people.
    #[must_use]
    pub fn quantity(self) -> &'static str {
        match self {
            Unit::Bytes => "memory",
            _ => "CPU time",
        }
    }

    /// The unit of `runs`, and what one sample of each is in it.
    ///
    /// # Errors
    /// Which run does not tell its extent.
    pub fn of(runs: &[Run]) -> Result<(Unit, Vec<f64>), Incomparable> {
        if let Some(every) = runs.iter().map(|run| run.about.sampled_every).collect::<Option<Vec<u64>>>() {
            // What was sampled varies as so many samples do; what is larger than that varies less.
            return Ok((Unit::Bytes, every.into_iter().map(|every| every as f64).collect()));
        }
        let period = |run: &Run| run.about.period_ns().map(|ns| ns / 1e9);
        let Some(periods) = runs.iter().map(period).collect::<Option<Vec<f64>>>() else {
            return Ok((Unit::Samples, vec![1.0; runs.len()]));
        };
        if runs.iter().all(|run| run.about.launched != Some(false)) {
            return Ok((if may_be_of_parts(runs) { Unit::SecondsOfUntold } else { Unit::Seconds }, periods));
        }
        let durations = runs
            .iter()
            .map(|run| duration_s(run).ok_or_else(|| Incomparable::DurationUntold(run.source.clone())));
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
