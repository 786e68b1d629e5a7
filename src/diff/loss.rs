//! Lost time of a recording: time of the program without a sample.
//!
//! Input: a [`Run`]. Output: the lost fraction, and the cause. Counts and losses add up to the CPU time of
//! the program (`sampler/weights.rs`), so CPU seconds, which are sums of samples, are too small by that
//! fraction, and the functions that used it are missing. Counts cannot be corrected, since these functions
//! are unknown.

use std::collections::BTreeMap;

use super::stacks::Run;

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
