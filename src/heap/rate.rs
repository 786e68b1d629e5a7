//! Poisson sampling by bytes: the probability of sampling an allocation, and the weight of the sample.
//!
//! Each byte is chosen with the same small probability: of an allocation with `size` bytes, at least one is chosen
//! with probability 1 − e^(−size/mean). A sample has the inverse as its weight (Horvitz and Thompson, 1952), so
//! sums of weights are unbiased.

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
    pub fn weigh(self, count: u64, bytes: u64) -> u64 {
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
