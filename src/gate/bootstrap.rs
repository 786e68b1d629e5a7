//! Confidence intervals by resampling runs: how much larger new is than base.
//!
//! Input: one value a run on each side. Output: an interval of the relative change, 0.05 for
//! +5 %. Runs are drawn, never samples: samples of one run are no independent looks at the
//! program. The percentiles are widened for few runs as Hesterberg 2015 does it ("What
//! Teachers Should Know About the Bootstrap", 5.3), because means of redrawn runs vary too
//! little by (n − 1) / n, and Student's distribution has longer tails than the normal.

use super::quantile;
use super::statistic::mean;
use crate::rng::Rng;

/// Times the runs are drawn anew.
pub const DRAWN: usize = 5_000;

/// Two-sided level of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// From and to, as relative changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end; infinite where base may be nothing.
    pub high: f64,
}

/// The interval of mean(new) / mean(base) − 1. `None` where a side has fewer than two runs:
/// they do not tell how runs differ.
#[must_use]
pub fn interval(base: &[f64], new: &[f64], seed: u64) -> Option<Interval> {
    let fewest = base.len().min(new.len());
    if fewest < 2 {
        return None;
    }
    let mut rng = Rng::new(seed);
    let mut changes: Vec<f64> =
        (0..DRAWN).map(|_| change(drawn_mean(base, &mut rng), drawn_mean(new, &mut rng))).collect();
    changes.sort_unstable_by(f64::total_cmp);
    let narrow = (fewest as f64 / (fewest as f64 - 1.0)).sqrt();
    let student = quantile::student((1.0 + CONFIDENCE) / 2.0, base.len() + new.len() - 2);
    let tail = quantile::normal_below(-narrow * student);
    let at = |share: f64| {
        let index = (share * (DRAWN - 1) as f64).round() as usize;
        changes.get(index).copied().unwrap_or(0.0)
    };
    Some(Interval { low: at(tail), high: at(1.0 - tail) })
}

/// The relative change; infinite where something came out of nothing, 0 where both are nothing.
#[must_use]
pub fn change(base: f64, new: f64) -> f64 {
    match (base > 0.0, new > 0.0) {
        (true, _) => new / base - 1.0,
        (false, true) => f64::INFINITY,
        (false, false) => 0.0,
    }
}

fn drawn_mean(values: &[f64], rng: &mut Rng) -> f64 {
    let sum: f64 = values.iter().filter_map(|_| values.get(rng.below(values.len()))).sum();
    if values.is_empty() { mean(values) } else { sum / values.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Normal enough: twelve uniform numbers (Irwin and Hall).
    fn bell(rng: &mut Rng) -> f64 {
        (0..12).map(|_| rng.within(0, 1 << 30) as f64 / f64::from(1 << 30)).sum::<f64>() - 6.0
    }

    #[test]
    fn the_truth_is_inside_as_often_as_it_is_said() {
        let mut rng = Rng::new(5);
        // Three runs have only ten different redraws; their intervals are a little short.
        for (runs, least) in [(3, 870), (7, 920), (20, 920)] {
            let mut inside = 0;
            for gate in 0..1000 {
                let mut side = |factor: f64| -> Vec<f64> {
                    (0..runs).map(|_| factor * (0.08 * bell(&mut rng)).exp()).collect()
                };
                let (base, new) = (side(2.0), side(2.2));
                let interval = interval(&base, &new, gate).expect("enough runs");
                inside += u32::from(interval.low <= 0.1 && 0.1 <= interval.high);
            }
            assert!((least..=985).contains(&inside), "{runs} runs: {inside} of 1000");
        }
    }

    #[test]
    fn what_runs_cannot_tell_is_not_told() {
        assert_eq!(interval(&[1.0], &[2.0, 3.0], 1), None);
        let new = interval(&[0.0, 0.0, 0.0], &[1.0, 2.0, 3.0], 1).expect("enough runs");
        assert_eq!((new.low, new.high), (f64::INFINITY, f64::INFINITY));
        let gone = interval(&[1.0, 2.0, 3.0], &[0.0, 0.0, 0.0], 1).expect("enough runs");
        assert_eq!((gone.low, gone.high), (-1.0, -1.0));
        assert_eq!(change(0.0, 0.0), 0.0);
        let twice = interval(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.5], 9);
        assert_eq!(twice, interval(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.5], 9));
    }
}
