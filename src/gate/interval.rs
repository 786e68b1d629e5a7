//! Confidence intervals of the ratio of new to base.
//!
//! Input: one value per run on each side. Output: an interval of the relative change, 0.05 for +5 %. Samples
//! of one run are not independent, so only the variance between runs counts.
//!
//! It is Welch's t interval of the logarithm of mean(new) / mean(base): the sides may have different
//! variances, the distribution of a ratio is skewed but that of its logarithm is not, and Student's quantile
//! at Welch's degrees of freedom has the stated coverage from three runs on. A percentile bootstrap does not:
//! a handful of runs has few distinct resamples, and its 95 % were 64 % for two runs a side, 89 % for three.

use super::quantile;
use super::statistic::{mean, variance};

/// Two-sided level of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Fewest runs per side: two hardly show how runs differ.
pub const RUNS_MIN: usize = 3;

/// An interval of the relative change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end; infinite if base is zero.
    pub high: f64,
}

/// The interval of mean(new) / mean(base) − 1. `None` if a side has fewer than [`RUNS_MIN`] runs.
#[must_use]
pub fn interval(base: &[f64], new: &[f64]) -> Option<Interval> {
    if base.len().min(new.len()) < RUNS_MIN {
        return None;
    }
    let (mean_base, mean_new) = (mean(base), mean(new));
    let change = change(mean_base, mean_new);
    // The variance of the logarithm of a mean.
    let squares = |values: &[f64], mean: f64| variance(values) / (values.len() as f64 * mean * mean);
    let (of_base, of_new) = (squares(base, mean_base), squares(new, mean_new));
    let sum = of_base + of_new;
    // A mean of 0 has no logarithm, and equal runs have no variance: no interval.
    if !(mean_base > 0.0 && mean_new > 0.0 && sum > 0.0) {
        return Some(Interval { low: change, high: change });
    }
    let part = |squares: f64, runs: usize| (squares / sum).powi(2) / (runs as f64 - 1.0);
    let degrees = 1.0 / (part(of_base, base.len()) + part(of_new, new.len()));
    let reach = quantile::student((1.0 + CONFIDENCE) / 2.0, degrees) * sum.sqrt();
    let ratio = 1.0 + change;
    Some(Interval { low: ratio * (-reach).exp() - 1.0, high: ratio * reach.exp() - 1.0 })
}

/// The relative change; infinite for growth from zero, 0 if both are zero.
#[must_use]
pub fn change(base: f64, new: f64) -> f64 {
    match (base > 0.0, new > 0.0) {
        (true, _) => new / base - 1.0,
        (false, true) => f64::INFINITY,
        (false, false) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Approximately normal: the sum of twelve uniform numbers (Irwin and Hall).
    fn bell(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.within(0, 1 << 30) as f64 / f64::from(1 << 30)).sum::<f64>() - 6.0
    }

    #[test]
    fn coverage_is_as_stated() {
        let mut rng = Rng::new(5);
        for (runs_base, runs_new) in [(3, 3), (3, 7), (4, 4), (5, 5), (7, 7), (20, 20)] {
            for noise in [0.04, 0.2] {
                let mut inside = 0;
                for _ in 0..1000 {
                    let mut side = |runs: usize, factor: f64| -> Vec<f64> {
                        (0..runs).map(|_| factor * (noise * bell(&mut rng)).exp()).collect()
                    };
                    let (base, new) = (side(runs_base, 2.0), side(runs_new, 2.2));
                    let interval = interval(&base, &new).expect("enough runs");
                    inside += u32::from(interval.low <= 0.1 && 0.1 <= interval.high);
                }
                let name = format!("{runs_base} and {runs_new} runs, noise {noise}: {inside} of 1000");
                assert!((920..=985).contains(&inside), "{name}");
            }
        }
    }

    #[test]
    fn too_little_data_has_no_interval() {
        assert_eq!(interval(&[1.0, 1.1], &[2.0, 3.0, 2.5, 2.5]), None);
        assert_eq!(interval(&[2.0, 3.0, 2.5, 2.5], &[1.0, 1.1]), None);
        let ends = |base: [f64; 3], new: [f64; 3]| {
            let interval = interval(&base, &new).expect("enough runs");
            (interval.low, interval.high)
        };
        assert_eq!(ends([0.0; 3], [1.0, 2.0, 3.0]), (f64::INFINITY, f64::INFINITY));
        assert_eq!(ends([1.0, 2.0, 3.0], [0.0; 3]), (-1.0, -1.0));
        assert_eq!(ends([0.0; 3], [0.0; 3]), (0.0, 0.0));
        assert_eq!(ends([1.0; 3], [1.5; 3]), (0.5, 0.5));
        assert_eq!(change(0.0, 0.0), 0.0);
        // Only one of three runs is not zero: wide, but finite.
        let (low, high) = ends([1.0, 1.0, 1.0], [0.0, 0.0, 3.0]);
        assert!(low > -1.0 && low < -0.9 && high > 10.0 && high.is_finite(), "{low} {high}");
    }

    #[test]
    fn matches_welchs_formula() {
        // Ratio 1.5; variances of the logarithms 0.01 / 3 and 0.04 / (3 * 2.25).
        let (base, new) = ([0.9, 1.0, 1.1], [1.3, 1.5, 1.7]);
        let got = interval(&base, &new).expect("enough runs");
        let (of_base, of_new): (f64, f64) = (0.01 / 3.0, 0.04 / 6.75);
        let degrees = (of_base + of_new).powi(2) / (of_base.powi(2) / 2.0 + of_new.powi(2) / 2.0);
        assert!((degrees - 3.709).abs() < 0.01, "{degrees}");
        // Student's 97.5 % quantile at 3.71 degrees of freedom is 2.865.
        let reach = 2.865 * (of_base + of_new).sqrt();
        assert!((got.low - (1.5 * (-reach).exp() - 1.0)).abs() < 0.002, "{got:?}");
        assert!((got.high - (1.5 * reach.exp() - 1.0)).abs() < 0.002, "{got:?}");
    }
}
