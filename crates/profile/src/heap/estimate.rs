//! Poisson sampling by bytes (`SamplingRate`: probability and `Weight` of an allocation), and sums of weights with
//! their sampling error (`Sum`, `Estimate`).
//!
//! The variance is that of Horvitz and Thompson for independent choices: Σ w²(1 − p). The interval is that of Fay
//! and Feuer (1997) for weighted Poisson counts, by quantiles of the gamma distribution: it holds for a handful of
//! samples, and for none, where a normal one would have zero width.

/// The 98.5 % quantile of the normal distribution, above that of 97.5 % (1.96): the variance is also an estimate, and
/// with this quantile, intervals of sums of many weights just about reach 95 % (`intervals_hold_for_few_samples`).
const Z: f64 = 2.17;

/// The smallest allocation that a program plausibly makes, a pointer: allocations at least this large may exist without
/// any sample.
const PLAUSIBLE_BYTES_MIN: u64 = 8;

/// Bytes or allocations, estimated from samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The sum of weights.
    pub value: f64,
    /// Its variance.
    pub variance: f64,
    /// Largest weight that one more sample could have.
    one_more: f64,
    /// The sampled allocations themselves: the true value is not lower.
    sampled: f64,
    /// Weight of lost samples, which is not in `value`, and its variance.
    lost: f64,
    lost_variance: f64,
    /// Weight that lost frees may have ended, which is in `value`.
    lost_frees: f64,
}

impl Estimate {
    pub(super) fn new(value: f64, variance: f64, one_more: f64, sampled: f64) -> Estimate {
        // After subtractions, sums may end slightly below 0.
        Estimate { value, variance: variance.max(0.0), one_more, sampled, ..Estimate::default() }
    }

    /// Widens the interval by lost samples of this weight and variance: any part of it may belong to the value.
    pub(super) fn lose_samples(&mut self, weight: f64, variance: f64) {
        self.lost += weight;
        self.lost_variance += variance;
    }

    /// Widens the interval by lost frees, which may have ended blocks of this weight.
    pub(super) fn lose_frees(&mut self, weight: f64) {
        self.lost_frees += weight;
    }

    /// Adds an independently sampled estimate.
    pub fn add(&mut self, other: Estimate) {
        self.value += other.value;
        self.variance += other.variance;
        self.one_more = self.one_more.max(other.one_more);
        self.sampled += other.sampled;
        self.lose_samples(other.lost, other.lost_variance);
        self.lose_frees(other.lost_frees);
    }

    /// Standard error.
    #[must_use]
    pub fn standard_error(&self) -> f64 {
        self.variance.sqrt()
    }

    /// The 95 % confidence interval. The lower end is not below what was sampled, less what lost frees may have ended.
    /// The upper end has room for lost samples, and for one more weight: the largest that a sample can have (Fay and
    /// Feuer, 1997, equation 4).
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        let Estimate { value, variance, one_more, sampled, lost, lost_variance, lost_frees } = *self;
        let low = if variance > 0.0 && value > 0.0 { gamma_quantile(value, variance, -Z) } else { value };
        let low = low.max(sampled.min(value)) - lost_frees;
        let (value, variance) = (value + one_more + lost, variance + one_more * one_more + lost_variance);
        let high = if variance > 0.0 { gamma_quantile(value, variance, Z) } else { value };
        (low.max(0.0), high)
    }
}

/// A quantile of the gamma distribution with this mean and variance, by the cube of a normal one (Wilson and
/// Hilferty, 1931).
fn gamma_quantile(mean: f64, variance: f64, z: f64) -> f64 {
    let degrees = 2.0 * mean * mean / variance;
    let part = 2.0 / (9.0 * degrees);
    mean * (1.0 - part + z * part.sqrt()).max(0.0).powi(3)
}

/// Sum of the weights of one node's samples. Subtracting a weight restores the sum before it was
/// added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    object_fractions: u64,
    /// Sampled allocations, and their sizes without weights.
    sampled: u64,
    sampled_bytes: u64,
    bytes_variance: f64,
    objects_variance: f64,
}

impl Sum {
    pub(super) fn add(&mut self, weight: Weight) {
        self.bytes = self.bytes.saturating_add(weight.bytes);
        self.object_fractions = self.object_fractions.saturating_add(weight.object_fractions);
        self.sampled += 1;
        self.sampled_bytes = self.sampled_bytes.saturating_add(weight.sampled_bytes);
        self.bytes_variance += weight.bytes_variance;
        self.objects_variance += weight.objects_variance;
    }

    pub(super) fn subtract(&mut self, weight: Weight) {
        self.bytes = self.bytes.saturating_sub(weight.bytes);
        self.object_fractions = self.object_fractions.saturating_sub(weight.object_fractions);
        self.sampled = self.sampled.saturating_sub(1);
        self.sampled_bytes = self.sampled_bytes.saturating_sub(weight.sampled_bytes);
        self.bytes_variance -= weight.bytes_variance;
        self.objects_variance -= weight.objects_variance;
        if self.object_fractions == 0 {
            // Without samples, the variance is only rounding error.
            *self = Sum::default();
        }
    }

    pub(super) fn add_sum(&mut self, other: &Sum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.object_fractions = self.object_fractions.saturating_add(other.object_fractions);
        self.sampled = self.sampled.saturating_add(other.sampled);
        self.sampled_bytes = self.sampled_bytes.saturating_add(other.sampled_bytes);
        self.bytes_variance += other.bytes_variance;
        self.objects_variance += other.objects_variance;
    }

    /// Allocations, rounded.
    pub(super) fn objects(&self) -> u64 {
        (self.object_fractions as f64 / OBJECT_FRACTIONS).round() as u64
    }

    /// Bytes and allocations as estimates. `bytes_min`: the smallest sampled allocation of the kind.
    pub(super) fn estimates(&self, rate: SamplingRate, bytes_min: Option<u64>) -> (Estimate, Estimate) {
        // A sample of a small allocation represents at most the bytes between samples. Any number of small ones may have
        // none: what was sampled says nothing about them.
        let least = bytes_min.map_or(PLAUSIBLE_BYTES_MIN, |bytes| bytes.min(PLAUSIBLE_BYTES_MIN));
        let (bytes, objects) = match rate.takes_all() {
            true => (0.0, 0.0),
            false => (rate.every_bytes() as f64, rate.weight(least).objects_variance.sqrt()),
        };
        let allocations = self.object_fractions as f64 / OBJECT_FRACTIONS;
        (
            Estimate::new(self.bytes as f64, self.bytes_variance, bytes, self.sampled_bytes as f64),
            Estimate::new(allocations, self.objects_variance, objects, self.sampled as f64),
        )
    }
}

// ---- Poisson sampling by bytes: the probability of sampling an allocation, and the weight of the sample.
//
// Each byte is chosen with the same small probability: of an allocation with `size` bytes, at least one is chosen
// with probability 1 − e^(−size/mean). A sample has the inverse as its weight (Horvitz and Thompson, 1952), so
// sums of weights are unbiased.

/// Fixed-point unit of object weights.
pub(super) const OBJECT_FRACTIONS: f64 = 65_536.0;

/// The mean number of bytes between samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRate {
    every_bytes: u64,
}

/// Weight of one sampled allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weight {
    /// Bytes, rounded.
    pub(super) bytes: u64,
    /// Size of the allocation: this much is certain.
    pub(super) sampled_bytes: u64,
    /// Allocations, in units of 1/[`OBJECT_FRACTIONS`].
    pub(super) object_fractions: u64,
    /// Contribution to the variance of sums of bytes, and of allocations.
    pub(super) bytes_variance: f64,
    pub(super) objects_variance: f64,
}

impl SamplingRate {
    /// One sample per so many bytes on average; 1 samples every allocation.
    #[must_use]
    pub fn new(every_bytes: u64) -> SamplingRate {
        SamplingRate { every_bytes: every_bytes.max(1) }
    }

    /// Bytes per sample on average.
    #[must_use]
    pub fn every_bytes(self) -> u64 {
        self.every_bytes
    }

    /// Whether every allocation is sampled, so that there is no sampling error.
    #[must_use]
    pub fn takes_all(self) -> bool {
        self.every_bytes == 1
    }

    /// Probability of sampling an allocation of this size; above 0.
    #[must_use]
    pub fn probability(self, bytes: u64) -> f64 {
        if self.takes_all() {
            return 1.0;
        }
        // An allocation of no bytes is never sampled; a record that claims to be one gets the
        // weight of one byte.
        -(-(bytes.max(1) as f64) / self.every_bytes as f64).exp_m1()
    }

    /// Weight in bytes of `count` sampled allocations with `bytes` bytes in all.
    #[must_use]
    pub fn estimated_bytes(self, count: u64, bytes: u64) -> u64 {
        let Some(each) = bytes.checked_div(count) else { return 0 };
        (bytes as f64 / self.probability(each)) as u64
    }

    /// Weight of a sampled allocation of this size.
    pub(super) fn weight(self, bytes: u64) -> Weight {
        self.weight_of_rest(bytes, bytes)
    }

    /// Weight of what is left of an allocation that was sampled with this size.
    pub(super) fn weight_of_rest(self, sampled_bytes: u64, bytes: u64) -> Weight {
        if self.takes_all() {
            let object_fractions = OBJECT_FRACTIONS as u64;
            return Weight {
                bytes,
                sampled_bytes: bytes,
                object_fractions,
                bytes_variance: 0.0,
                objects_variance: 0.0,
            };
        }
        let probability = self.probability(sampled_bytes);
        let (each, missed) = (1.0 / probability, 1.0 - probability);
        let weighed_bytes = bytes as f64 * each;
        Weight {
            bytes: weighed_bytes.round() as u64,
            sampled_bytes: bytes,
            object_fractions: (each * OBJECT_FRACTIONS).round() as u64,
            bytes_variance: weighed_bytes * weighed_bytes * missed,
            objects_variance: each * each * missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_counts_is_that_of_poisson() {
        // Exact intervals (Garwood, 1936) of 0, 1, 3, 10 and 100 events: ours contain them, and are nearly as
        // narrow.
        for (count, low, high) in [
            (0.0, 0.0, 3.69),
            (1.0, 0.025, 5.57),
            (3.0, 0.62, 8.77),
            (10.0, 4.80, 18.39),
            (100.0, 81.36, 121.63),
        ] {
            let (low_found, high_found) = Estimate::new(count, count, 1.0, 0.0).interval();
            assert!(low_found <= low && low - low_found < 0.05 * count.max(1.0), "{count}: {low_found}");
            assert!((high..1.15 * high).contains(&high_found), "{count}: {high_found}");
        }
    }

    #[test]
    fn exact_values_have_no_interval() {
        assert_eq!(Estimate::new(4096.0, 0.0, 0.0, 4096.0).interval(), (4096.0, 4096.0));
        assert_eq!(Estimate::new(0.0, -1e-9, 0.0, 0.0).interval(), (0.0, 0.0));
    }

    #[test]
    fn the_lower_end_is_not_below_what_was_sampled() {
        let rate = SamplingRate::new(512 << 10);
        let mut sum = Sum::default();
        sum.add(rate.weight(4096));
        let (bytes, blocks) = sum.estimates(rate, Some(4096));
        assert_eq!((bytes.interval().0, blocks.interval().0), (4096.0, 1.0));
        let mut twice = blocks;
        twice.add(blocks);
        assert!(twice.interval().0 >= 2.0, "{twice:?}");
    }

    #[test]
    fn subtracting_all_that_was_added_leaves_zero() {
        let rate = SamplingRate::new(4096);
        let mut sum = Sum::default();
        for bytes in 1..1000 {
            sum.add(rate.weight(bytes));
        }
        for bytes in 1..1000 {
            sum.subtract(rate.weight(bytes));
        }
        assert_eq!(sum, Sum::default());
    }
}

#[cfg(test)]
mod rate_tests {
    use super::*;

    #[test]
    fn the_weight_is_the_inverse_of_the_probability() {
        let rate = SamplingRate::new(512 << 10);
        // Small: one in 32,768 of 16 bytes, with a weight of 512 KiB.
        let small = rate.weight(16);
        assert!((rate.probability(16) - 16.0 / 524_288.0).abs() < 1e-9);
        assert!((small.bytes as i64 - 524_296).abs() <= 1, "{small:?}");
        // As large as the mean: 1 − 1/e.
        let mean = rate.weight(512 << 10);
        assert!((rate.probability(512 << 10) - 0.632_120_558).abs() < 1e-9);
        assert!((mean.object_fractions as f64 / OBJECT_FRACTIONS - 1.581_976_7).abs() < 1e-4);
        // Large: its own size, and certain.
        let large = rate.weight(64 << 20);
        assert_eq!((large.bytes, large.object_fractions), (64 << 20, 65_536));
        assert!(large.bytes_variance < 1.0);
    }

    #[test]
    fn a_mean_of_one_byte_is_exact() {
        for bytes in [0, 1, 24, u64::MAX] {
            let all = SamplingRate::new(1).weight(bytes);
            assert_eq!((all.bytes, all.object_fractions, all.bytes_variance), (bytes, 65_536, 0.0));
        }
        assert_eq!(SamplingRate::new(0).every_bytes(), 1);
    }

    #[test]
    fn a_record_of_no_bytes_has_a_finite_weight() {
        let odd = SamplingRate::new(1 << 20).weight(0);
        assert_eq!(odd.bytes, 0);
        assert!(odd.objects_variance.is_finite());
    }
}
