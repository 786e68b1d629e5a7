//! Tick rates of CPUs: random around the requested one, redrawn repeatedly. Input: a CPU. Output: its next rate.
//! Rationale: `docs/decisions/kernel-samples.md`.

use hashbrown::HashMap;

use crate::rng::Rng;

/// Periods of the requested rate between two changes. Each change restarts a period, which costs half of one.
pub(in crate::sources::linux::perf) const PERIODS_BETWEEN_CHANGES: u64 = 50;

/// Maximum deviation from the requested rate, per mille.
const SPREAD_PER_MILLE: u64 = 250;

/// Draws the rates of CPUs.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct TickRates {
    random: Rng,
    /// The complement of the last draw of each CPU, unless already used.
    pending: HashMap<u32, u64>,
}

impl TickRates {
    pub(in crate::sources::linux::perf) fn new(seed: u64) -> TickRates {
        TickRates { random: Rng::new(seed), pending: HashMap::new() }
    }

    /// The next rate of a CPU, per mille of the requested one. Every second draw is the complement of the previous
    /// one, so that their mean is the requested rate.
    pub(in crate::sources::linux::perf) fn next_per_mille(&mut self, cpu: u32) -> u64 {
        self.pending.remove(&cpu).unwrap_or_else(|| {
            let above = self.random.next() % (2 * SPREAD_PER_MILLE + 1);
            self.pending.insert(cpu, 1000 + SPREAD_PER_MILLE - above);
            1000 - SPREAD_PER_MILLE + above
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_rates_average_to_the_requested_one_and_cpus_are_independent() {
        let mut rates = TickRates::new(5);
        let pairs: Vec<[u64; 4]> =
            (0..200).map(|_| [0, 1, 0, 1].map(|cpu| rates.next_per_mille(cpu))).collect();
        assert!(pairs.iter().all(|[a, b, c, d]| a + c == 2000 && b + d == 2000), "{pairs:?}");
        assert!(pairs.iter().flatten().all(|rate| (750..=1250).contains(rate)));
        assert!(pairs.iter().filter(|[a, b, ..]| a.abs_diff(*b) < 20).count() < 40, "{pairs:?}");
        let distinct: std::collections::BTreeSet<u64> = pairs.iter().map(|[a, ..]| *a).collect();
        assert!(distinct.len() > 100, "{distinct:?}");
    }
}
