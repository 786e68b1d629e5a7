//! What the CPU time of runs is measured in, so that a longer recording is no slower program.
//!
//! Input: runs that are alike. Output: [`Unit`], and what a sample of each run is in it; or which
//! run does not tell enough. CPU time of a whole run stands for its work; that of a part of a
//! process's life only for how long somebody looked. Files of other programs do not tell which
//! they are: then how long they recorded decides.

use super::incomparable::Incomparable;
use crate::diff::compare::equally_long;
use crate::diff::stacks::Run;

/// What CPU time is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of CPU time of the whole run.
    Seconds,
    /// Seconds of CPU time for each second of recording: attached recordings end when they are
    /// told to, and their whole tells how long that took.
    SecondsPerSecond,
    /// Samples, where the files do not tell the rate (folded text).
    Samples,
}

impl Unit {
    /// The unit behind a number.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::SecondsPerSecond => "s/s",
            Unit::Samples => "samples",
        }
    }

    /// The unit of `runs`, and what one sample of each is in it.
    ///
    /// # Errors
    /// Which run does not tell its extent.
    pub fn of(runs: &[Run]) -> Result<(Unit, Vec<f64>), Incomparable> {
        let period = |run: &Run| run.about.period_ns().map(|ns| ns / 1e9);
        let Some(periods) = runs.iter().map(period).collect::<Option<Vec<f64>>>() else {
            return Ok((Unit::Samples, vec![1.0; runs.len()]));
        };
        let some = |extent: Option<bool>| runs.iter().find(|run| run.about.launched == extent);
        let (whole, part, untold) = (some(Some(true)), some(Some(false)), some(None));
        if part.is_none() && untold.is_none() {
            return Ok((Unit::Seconds, periods));
        }
        let duration = |run: &Run| match run.about.duration_ns {
            Some(ns @ 1..) => Ok(ns as f64 / 1e9),
            _ => Err(Incomparable::DurationUntold(run.source.clone())),
        };
        let durations = runs.iter().map(duration).collect::<Result<Vec<f64>, _>>()?;
        let (shortest, longest) =
            durations.iter().fold((f64::INFINITY, 0.0f64), |(low, high), s| (low.min(*s), high.max(*s)));
        match (whole, untold) {
            _ if part.is_none() && equally_long(shortest, longest) => return Ok((Unit::Seconds, periods)),
            // A slower program takes longer: per second it would look as before.
            (Some(whole), Some(untold)) => {
                let (told, untold) = (whole.source.clone(), untold.source.clone());
                return Err(Incomparable::ExtentUntold { told, untold });
            }
            _ => {}
        }
        let rates = periods.iter().zip(durations).map(|(period, duration)| period / duration);
        Ok((Unit::SecondsPerSecond, rates.collect()))
    }
}
