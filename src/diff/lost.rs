//! What a recording lost: time of the program that no sample stands for.
//!
//! Input: a [`Run`]. Output: the part of its time, and why. Counts and what was lost add up to the
//! time that the program used (`sampler/weights.rs`), so sums of samples, which is all that CPU
//! seconds of a profile are, fall short by that part; and functions that it was spent in are
//! missing. No count can make that good, for nobody knows whose the time was.

use std::collections::BTreeMap;

use super::stacks::Run;

/// A recording that lost more than this part does not tell its CPU time. Nor do two compare by it
/// that lost parts which differ by more.
pub const LOST_MAX: f64 = 0.10;

/// Parts that differ by more are told: functions of that size look new or gone.
pub const LOST_NOTED: f64 = 0.02;

/// What a recording lost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossTotals {
    /// Counts, by reason; empty where none was lost, and where the file tells nothing of it.
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
