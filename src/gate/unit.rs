//! The unit of the CPU time of runs, so that a longer recording is not a slower program.
//!
//! Input: runs of one kind. Output: [`Unit`], and the value of a sample of each run in it; or the run that
//! lacks the information. CPU time of a whole run measures its work; that of a part of a process's life
//! measures only how long it was recorded. Files of other programs do not say which they are, and are assumed
//! to be whole runs, as tests write them (`go test -cpuprofile`): divided by their duration, a program that
//! got slower throughout would pass. The report says so where that matters.

use super::incomparable::Incomparable;
use crate::diff::compare::equally_long;
use crate::diff::stacks::Run;

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
