//! How the samples of a process in a batch share what its CPU clock says was used.

/// What the samples of a process in a batch weigh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// CPU time that they and those that were dropped share; `None`: a period each.
    pub(super) used_ns: Option<u64>,
    /// How many these are.
    pub(super) samples: u64,
    pub(super) dropped: u64,
    /// How many have been told.
    pub(super) weighed: u64,
}

impl Share {
    /// Up to the sample of this number, whole nanoseconds that add up to all of it.
    fn up_to_ns(&self, used_ns: u64, number: u64) -> u64 {
        let all = (self.samples + self.dropped).max(1);
        (u128::from(used_ns) * u128::from(number) / u128::from(all)) as u64
    }

    /// The weight of the next sample, which was taken at this distance from the one before.
    pub(super) fn next_ns(&mut self, period_ns: u64) -> u64 {
        self.weighed += 1;
        let share = |used_ns| self.up_to_ns(used_ns, self.weighed) - self.up_to_ns(used_ns, self.weighed - 1);
        self.used_ns.map_or(period_ns, share)
    }

    /// What the samples that were told were not given.
    pub(super) fn rest_ns(&self, period_ns: u64) -> u64 {
        self.used_ns
            .map_or(self.dropped * period_ns, |used_ns| used_ns - self.up_to_ns(used_ns, self.weighed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_what_was_dropped_add_up_to_what_was_used() {
        for (used_ns, samples, dropped) in [(1_000_003, 7, 0), (50_000_000, 48, 5), (9, 20, 3), (0, 4, 1)] {
            let mut share = Share { used_ns: Some(used_ns), samples, dropped, weighed: 0 };
            let told: u64 = (0..samples).map(|_| share.next_ns(1_003_009)).sum();
            assert_eq!(told + share.rest_ns(1_003_009), used_ns, "{samples} samples, {dropped} dropped");
            assert!(dropped > 0 || share.rest_ns(1_003_009) == 0);
        }
    }

    #[test]
    fn without_a_clock_each_stands_for_its_own_distance() {
        let mut share = Share { used_ns: None, samples: 2, dropped: 3, weighed: 0 };
        assert_eq!((share.next_ns(800), share.next_ns(1_200), share.rest_ns(1_000)), (800, 1_200, 3_000));
    }
}
