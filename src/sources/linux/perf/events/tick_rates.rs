//! Rates of the ticks of each CPU: random around the requested one, drawn again and again. Input: a CPU. Output: its
//! next rate. Why: `docs/decisions/kernel-samples.md`.

use hashbrown::HashMap;

use crate::rng::Rng;

/// Periods of the requested rate between two changes. Each change restarts a period, which costs half of one.
pub(in crate::sources::linux::perf) const PERIODS_BETWEEN_CHANGES: u64 = 50;

/// Largest difference of a rate from the requested one, per mille.
const SPREAD_PER_MILLE: u64 = 250;

/// Draws the rates of CPUs.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct TickRates {
    random: Rng,
    /// The opposite of the last draw of each CPU, unless it has been used.
    pending: HashMap<u32, u64>,
}

impl TickRates {
    pub(in crate::sources::linux::perf) fn new(seed: u64) -> TickRates {
        TickRates { random: Rng::new(seed), pending: HashMap::new() }
    }

    /// The next rate of a CPU, per mille of the requested one. Every second draw is the opposite of the one before:
    /// their mean is the requested rate.
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
    fn two_rates_of_a_cpu_are_together_what_was_asked_for_and_no_cpu_follows_another() {
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
