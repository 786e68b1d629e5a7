//! Lost time of a recording: time of the program without a sample.
//!
//! Input: a [`Run`]. Output: the lost part, and why. Counts and losses add up to the CPU time of the program
//! (`sampler/weights.rs`), so CPU seconds, which are sums of samples, are too small by that part, and the functions
//! that used it are missing. Counts cannot be corrected, since these functions are unknown.

use std::collections::BTreeMap;

use super::stacks::Run;

/// A recording that lost more than this part has no reliable CPU time. Nor have two that lost parts which differ by
/// more.
pub const LOST_MAX: f64 = 0.10;

/// Report parts that differ by more: functions of that size appear as new or gone.
pub const LOST_NOTED: f64 = 0.02;

/// What a recording lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossTotals {
    /// Counts, by reason; empty if none was lost, or the file does not have them.
    pub counts: BTreeMap<String, u64>,
    /// The part of the time that is in no stack, 0 to 1.
    pub part: f64,
}

impl LossTotals {
    /// What a run lost, beside the counts of it that are compared.
    #[must_use]
    pub fn of(run: &Run) -> LossTotals {
        let counts = run.about.lost.clone();
        let lost: u64 = counts.values().fold(0, |sum, count| sum.saturating_add(*count));
        let all = lost as f64 + run.total as f64;
        LossTotals { counts, part: if lost == 0 { 0.0 } else { lost as f64 / all } }
    }

    /// Why most of it was lost; empty if nothing was.
    #[must_use]
    pub fn main_reason(&self) -> &str {
        self.counts.iter().max_by_key(|(_, count)| **count).map_or("", |(why, _)| why)
    }

    /// By how much the parts of two differ, 0 to 1.
    #[must_use]
    pub fn apart(&self, other: &LossTotals) -> f64 {
        (self.part - other.part).abs()
    }
}
