//! The expected noise of a function's gain, before a test compares the sides.
//!
//! Input: [`Measurements`] and the gains of all functions. Output: the expected variance of one value of a
//! function, and the values of a test with it.

use super::gain::Gain;
use super::measurements::Measurements;
use super::statistic::{Values, mean, variance};

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
