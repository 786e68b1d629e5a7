//! Gain of samples compared with the rest of the program (`Gain`), and its expected variance (`Noise`).
//!
//! Input: [`Measurements`], and the samples by run of one or more functions. Output: the growth of their
//! share of the program, and the values for its permutation test.
//!
//! The rest of the same run is the sensitive reference, since a slow moment of the machine slows both.
//! Samples that are nearly all of the program have no rest: their share stays constant however slow they get.
//! They are measured in CPU time.

use super::measurements::Measurements;
use super::permutations::{Values, mean, variance};

/// The smallest rest, as a fraction of the program, to compare with. A smaller one has so few samples that
/// its own noise exceeds that of the CPU time.
pub const REST_MIN: f64 = 0.05;

/// The share of some samples in the program, before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// Share in each run.
    pub shares: Vec<f64>,
    /// Mean share in the base runs.
    pub share_base: f64,
    /// Mean share in the new runs.
    pub share_new: f64,
    /// The gain (or loss), as a fraction of the program's CPU time before.
    pub gained: f64,
    /// CPU time of each run, if there is no rest to compare with.
    cpu: Option<Vec<f64>>,
}

impl Gain {
    /// The gain of `samples`, by run.
    #[must_use]
    pub fn of(measured: &Measurements, samples: &[f64]) -> Gain {
        let shares = measured.shares(samples);
        let (base, new) = measured.sides(&shares);
        let (share_base, share_new) = (mean(base), mean(new));
        // A permutation test requires that the choice of measure does not depend on which runs are new: so
        // the mean of all runs decides.
        let cpu = (1.0 - mean(&shares) < REST_MIN).then(|| measured.in_unit(samples));
        let gained = if 1.0 - share_base.max(share_new) < REST_MIN {
            in_cpu(measured, samples)
        } else {
            share_new / (1.0 - share_new) * (1.0 - share_base) - share_base
        };
        Gain { shares, share_base, share_new, gained, cpu }
    }

    /// One value for each run, increasing with these samples: shares, or CPU time without a rest.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        self.cpu.as_deref().unwrap_or(&self.shares)
    }

    /// Whether these samples are all or nearly all of the program.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.cpu.is_some()
    }
}

/// The gain of samples in CPU time, as a fraction of the program's before.
#[must_use]
pub fn in_cpu(measured: &Measurements, samples: &[f64]) -> f64 {
    let (cpu, all) = (measured.in_unit(samples), measured.in_unit(&measured.totals));
    let (base, new) = measured.sides(&cpu);
    let before = mean(measured.sides(&all).0);
    if before > 0.0 { (mean(new) - mean(base)) / before } else { 0.0 }
}

// ---- The expected noise of a function's gain, before a test compares the sides.
//
// Input: [`Measurements`] and the gains of all functions. Output: the expected variance of one value of a
// function, and the values of a test with it.

/// Noise of shares: counting noise, and the variation of this program's functions against the rest of their
/// run beyond it (the median of its square over functions, which the few that changed do not affect). A share
/// can only vary in proportion to its rest: by share · (1 − share) of the counting noise. The variance of CPU
/// time between runs is not known beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    per_count: f64,
    typical: f64,
}

impl Noise {
    /// The noise of these functions.
    #[must_use]
    pub fn of(measured: &Measurements, gains: &[&Gain]) -> Noise {
        let per_count = mean(&measured.totals.iter().map(|total| 1.0 / total.max(1.0)).collect::<Vec<_>>());
        let mut excess: Vec<f64> = gains
            .iter()
            .filter(|gain| !gain.is_whole())
            .map(|gain| {
                let share = mean(&gain.shares);
                let counting = share * (1.0 - share) * per_count;
                ((variance(&gain.shares) - counting) / square(share).max(f64::MIN_POSITIVE)).max(0.0)
            })
            .collect();
        excess.sort_unstable_by(f64::total_cmp);
        Noise { per_count, typical: excess.get(excess.len() / 2).copied().unwrap_or(0.0) }
    }

    /// The values for a test of this gain.
    #[must_use]
    pub fn values(&self, gain: &Gain) -> Values {
        let share = mean(&gain.shares);
        let known = share * (1.0 - share) * self.per_count + self.typical * square(share);
        Values::new(gain.values(), (!gain.is_whole()).then_some(known))
    }
}

fn square(share: f64) -> f64 {
    (share * (1.0 - share)).powi(2)
}

#[cfg(test)]
mod tests {
    use super::super::measurements::Unit;
    use super::*;

    fn gain(totals: [f64; 2], samples: [f64; 2]) -> Gain {
        let measured = Measurements {
            base_runs: 1,
            totals: totals.to_vec(),
            per_sample: vec![0.5; 2],
            unit: Unit::Seconds,
            functions: Vec::new(),
        };
        Gain::of(&measured, &samples)
    }

    #[test]
    fn the_rest_is_the_reference_if_there_is_one() {
        for (totals, samples, gained, whole) in [
            // The rest is 800 and 400: the machine was faster, the function is 100 more of 1000.
            ([1000.0, 550.0], [200.0, 150.0], 0.1, false),
            ([1000.0, 1000.0], [0.0, 500.0], 1.0, false),
            ([1000.0, 1000.0], [500.0, 0.0], -0.5, false),
            // No rest before, after, or on both sides.
            ([1000.0, 2000.0], [1000.0, 2000.0], 1.0, true),
            ([10_003.0, 99_660.0], [9953.0, 99_610.0], 8.963_011, true),
            ([1000.0, 3000.0], [500.0, 3000.0], 2.5, false),
            ([3000.0, 1000.0], [3000.0, 500.0], -2500.0 / 3000.0, false),
        ] {
            let gain = gain(totals, samples);
            assert!((gain.gained - gained).abs() < 1e-6, "{samples:?} of {totals:?}: {}", gain.gained);
            assert_eq!(gain.is_whole(), whole, "{samples:?} of {totals:?}");
        }
        assert_eq!(gain([1000.0, 2000.0], [1000.0, 2000.0]).values(), [500.0, 1000.0]);
        assert_eq!(gain([1000.0, 2000.0], [100.0, 200.0]).values(), [0.1, 0.1]);
    }
}
