//! How much slower, and how certain: confidence intervals of the ratio of new to base, quantiles of the normal and
//! of Student's distribution.
//!
//! Input: one value per run on each side. Output: an interval of the relative change, 0.05 for +5 %. Samples
//! of one run are not independent, so only the variance between runs counts.
//!
//! It is Welch's t interval of the logarithm of mean(new) / mean(base): the sides may have different
//! variances, the distribution of a ratio is skewed but that of its logarithm is not, and Student's quantile
//! at Welch's degrees of freedom has the stated coverage from three runs on. A percentile bootstrap does not:
//! a handful of runs has few distinct resamples, and its 95 % were 64 % for two runs a side, 89 % for three.

use super::permutations::{mean, variance};

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
    let reach = student((1.0 + CONFIDENCE) / 2.0, degrees) * sum.sqrt();
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

// ---- Quantiles of the normal and of Student's distribution.
//
// Input: a probability. Output: the quantile, to about 1e-3 of the value, which is finer than an interval of
// a handful of runs. Not for the far tails.

/// Quantile of the standard normal distribution at `p` (0 < p < 1). Acklam's rational approximation, relative
/// error 1.2e-9.
#[must_use]
pub fn normal(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    const TAIL: f64 = 0.02425;
    if p > 1.0 - TAIL {
        return -normal(1.0 - p);
    }
    if p < TAIL {
        let q = (-2.0 * p.max(f64::MIN_POSITIVE).ln()).sqrt();
        return polynomial(&C, q) / polynomial(&D, q);
    }
    let q = p - 0.5;
    let r = q * q;
    q * polynomial(&A, r) / polynomial(&B, r)
}

/// Quantile of Student's distribution at `p`. Exact for one and two degrees of freedom; from three on Cornish
/// and Fisher's series (Abramowitz and Stegun 26.7.5); in between, as for Welch's degrees, by interpolating
/// the logarithm over the reciprocal, to 3 %. Infinite below one degree of freedom.
#[must_use]
pub fn student(p: f64, degrees: f64) -> f64 {
    match degrees {
        3.0.. => series(p, degrees),
        2.0..3.0 => between(two(p), series(p, 3.0), (1.0 / 2.0 - 1.0 / degrees) * 6.0),
        1.0..2.0 => between(one(p), two(p), (1.0 - 1.0 / degrees) * 2.0),
        _ => f64::INFINITY * normal(p).signum(),
    }
}

fn one(p: f64) -> f64 {
    (std::f64::consts::PI * (p - 0.5)).tan()
}

fn two(p: f64) -> f64 {
    (2.0 * p - 1.0) * (2.0 / (4.0 * p * (1.0 - p))).sqrt()
}

fn between(from: f64, to: f64, part: f64) -> f64 {
    from.abs().powf(1.0 - part) * to.abs().powf(part) * from.signum()
}

fn series(p: f64, n: f64) -> f64 {
    let z = normal(p);
    let square = z * z;
    let g1 = (square + 1.0) * z / 4.0;
    let g2 = ((5.0 * square + 16.0) * square + 3.0) * z / 96.0;
    let g3 = (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) * z / 384.0;
    let g4 =
        ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0) * z / 92_160.0;
    z + g1 / n + g2 / n.powi(2) + g3 / n.powi(3) + g4 / n.powi(4)
}

/// Cumulative standard normal distribution at `z`; error below 1e-7 (Abramowitz and Stegun 26.2.17).
#[must_use]
pub fn normal_below(z: f64) -> f64 {
    if z > 0.0 {
        return 1.0 - normal_below(-z);
    }
    const B: [f64; 6] = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530, 0.0];
    let t = 1.0 / (1.0 + 0.231_641_9 * -z);
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    density * polynomial(&B, t)
}

fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
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

#[cfg(test)]
mod quantile_tests {
    use super::*;

    #[test]
    fn quantiles_match_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.005, -2.575_829), (0.999, 3.090_232)] {
            assert!((normal(p) - z).abs() < 1e-5, "{p}: {}", normal(p));
            assert!((normal_below(z) - p).abs() < 1e-6, "{z}: {}", normal_below(z));
        }
        for (degrees, t) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (6, 2.447), (12, 2.179), (30, 2.042)]
        {
            let got = student(0.975, f64::from(degrees));
            assert!((got - t).abs() < 0.004 * t, "{degrees}: {got} {t}");
            assert!((student(0.025, f64::from(degrees)) + got).abs() < 1e-6);
        }
        for (degrees, t) in [(1.5, 6.017), (2.2, 3.949), (2.5, 3.575), (3.5, 2.940), (3.709, 2.865)] {
            let got = student(0.975, degrees);
            assert!((got - t).abs() < 0.03 * t, "{degrees}: {got} {t}");
        }
        assert_eq!((student(0.9, 0.0), student(0.1, 0.0)), (f64::INFINITY, -f64::INFINITY));
    }
}
