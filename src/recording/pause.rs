//! Durations of stops.

/// Stop durations in log-spaced buckets: constant memory, quantiles within 7 %.
#[derive(Clone)]
pub struct PauseHistogram {
    counts: Box<[u64; PauseHistogram::BUCKETS]>,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

impl PauseHistogram {
    /// 16 buckets for each power of two from 1 ns on; the first 16 values have one each.
    const SUB_BITS: u32 = 4;
    const BUCKETS: usize = (64 - Self::SUB_BITS as usize + 1) << Self::SUB_BITS;

    fn bucket(ns: u64) -> usize {
        let sub = Self::SUB_BITS;
        if ns < 1 << sub {
            return ns as usize;
        }
        let exponent = 63 - ns.leading_zeros();
        let mantissa = (ns >> (exponent - sub)) as usize & ((1 << sub) - 1);
        (((exponent - sub + 1) as usize) << sub) + mantissa
    }

    /// The largest value in a bucket.
    fn upper_ns(bucket: usize) -> u64 {
        let sub = Self::SUB_BITS;
        if bucket < 1 << sub {
            return bucket as u64;
        }
        let exponent = (bucket >> sub) as u32 - 1;
        let mantissa = (bucket & ((1 << sub) - 1)) as u64 + (1 << sub);
        // The last bucket ends at 2^64, which wraps to the largest value.
        ((u128::from(mantissa) + 1) << exponent).saturating_sub(1).min(u128::from(u64::MAX)) as u64
    }

    /// Adds one stop.
    pub fn add(&mut self, ns: u64) {
        self.counts[Self::bucket(ns)] += 1;
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The duration that a fraction `share` (0 to 1) of the stops did not exceed, nanoseconds; 0 without
    /// stops.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Self::upper_ns(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The longest stop, nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Sum of all stops, nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Number of stops.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl Default for PauseHistogram {
    fn default() -> PauseHistogram {
        PauseHistogram { counts: Box::new([0; PauseHistogram::BUCKETS]), count: 0, total_ns: 0, max_ns: 0 }
    }
}

impl std::fmt::Debug for PauseHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "PauseHistogram({} stops, p50 {} ns, max {} ns)",
            self.count,
            self.quantile_ns(0.5),
            self.max_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_accurate_to_a_bucket() {
        let mut pauses = PauseHistogram::default();
        for ns in 1..=10_000u64 {
            pauses.add(ns);
        }
        for (share, truth) in [(0.5, 5_000.0), (0.9, 9_000.0), (0.99, 9_900.0)] {
            let got = pauses.quantile_ns(share) as f64;
            assert!((truth..=truth * 1.07).contains(&got), "p{share}: {got} for {truth}");
        }
        assert_eq!(pauses.max_ns(), 10_000);
        assert_eq!(pauses.total_ns(), 50_005_000);
    }

    #[test]
    fn every_duration_has_a_bucket_with_a_larger_upper_end() {
        for shift in 0..64 {
            for delta in [0u64, 1, 2] {
                let ns = (1u64 << shift).wrapping_sub(1).wrapping_add(delta);
                let bucket = PauseHistogram::bucket(ns);
                assert!(bucket < PauseHistogram::BUCKETS, "{ns}");
                assert!(ns <= PauseHistogram::upper_ns(bucket), "{ns}");
            }
        }
        assert_eq!(PauseHistogram::default().quantile_ns(0.5), 0);
    }
}
