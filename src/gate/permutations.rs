//! The permutations of a permutation test: every division of the runs into base and new.
//!
//! Input: the number of runs per side. Output: for each permutation its new runs; the first is the observed one.
//! All of them if they are few, else a seeded draw. If the code is the same, each permutation is as likely as the
//! observed one, whatever the noise of a run; the test needs no other assumption.

use crate::rng::Rng;

/// Up to this number all permutations are used: 8 against 8 runs have 12,870.
pub const EXACT_MAX: u64 = 20_000;

/// Number of drawn permutations if there are more.
pub const DRAWN: usize = 10_000;

/// The permutations of one test.
#[derive(Clone, Debug)]
pub struct Permutations {
    /// Concatenated new runs of all permutations, `new_runs` for each.
    new: Vec<u32>,
    new_runs: usize,
    exact: bool,
}

impl Permutations {
    /// The permutations of `base_runs` and `new_runs` runs, numbered base first.
    #[must_use]
    pub fn of(base_runs: usize, new_runs: usize, seed: u64) -> Permutations {
        let exact = count(base_runs, new_runs) <= EXACT_MAX;
        let new = if exact { all(base_runs, new_runs) } else { drawn(base_runs, new_runs, seed) };
        Permutations { new, new_runs, exact }
    }

    /// The new runs of each permutation. The observed permutation comes first.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        // Never 0: a side without runs is no comparison; `max` keeps a mistake from panicking.
        self.new.chunks_exact(self.new_runs.max(1))
    }

    /// Number of permutations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.new.len() / self.new_runs.max(1)
    }

    /// True without permutations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are all possible permutations.
    #[must_use]
    pub fn exact(&self) -> bool {
        self.exact
    }
}

/// The number of possible permutations (a binomial coefficient), at most `u64::MAX`.
#[must_use]
pub fn count(base_runs: usize, new_runs: usize) -> u64 {
    let all = base_runs as u128 + new_runs as u128;
    let mut count = 1u128;
    for step in 1..=base_runs.min(new_runs) as u128 {
        count = count * (all + 1 - step) / step;
        if count > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    count as u64
}

/// Every choice of the new runs, from the last numbers (the observed permutation) down.
fn all(base_runs: usize, new_runs: usize) -> Vec<u32> {
    let runs = (base_runs + new_runs) as u32;
    let mut permutation: Vec<u32> = (base_runs as u32..runs).collect();
    let mut out = permutation.clone();
    // The next combination in descending order: decrements the first number that can be, and sets those
    // before it to the numbers right below it.
    loop {
        let lowest_free = |at: usize, permutation: &[u32]| match at.checked_sub(1) {
            Some(before) => permutation.get(before).map_or(0, |run| run + 1),
            None => 0,
        };
        let Some(at) = (0..permutation.len())
            .find(|&at| permutation.get(at).is_some_and(|run| *run > lowest_free(at, &permutation)))
        else {
            return out;
        };
        let Some(down) = permutation.get(at).map(|run| run - 1) else { return out };
        for (below, run) in permutation.iter_mut().take(at + 1).enumerate() {
            *run = down - (at - below) as u32;
        }
        out.extend_from_slice(&permutation);
    }
}

fn drawn(base_runs: usize, new_runs: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let mut runs: Vec<u32> = (0..(base_runs + new_runs) as u32).collect();
    let mut out: Vec<u32> = runs.iter().copied().skip(base_runs).collect();
    for _ in 1..DRAWN {
        for at in 0..new_runs {
            let other = at + rng.below(runs.len() - at);
            runs.swap(at, other);
        }
        out.extend(runs.iter().take(new_runs));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_orders_appear_once_with_the_observed_one_first() {
        for (base, new) in [(1, 1), (3, 3), (2, 5), (5, 2), (7, 7), (4, 1)] {
            let permutations = Permutations::of(base, new, 1);
            assert!(permutations.exact());
            let distinct: BTreeSet<Vec<u32>> = permutations.iter().map(<[u32]>::to_vec).collect();
            assert_eq!(distinct.len() as u64, count(base, new), "{base} {new}");
            assert_eq!(permutations.len(), distinct.len());
            let observed: Vec<u32> = (base as u32..(base + new) as u32).collect();
            assert_eq!(permutations.iter().next(), Some(observed.as_slice()));
            assert!(distinct.iter().all(|permutation| permutation.windows(2).all(|pair| pair[0] < pair[1])));
        }
    }

    #[test]
    fn drawn_orders_have_equal_probability() {
        let permutations = Permutations::of(12, 10, 7);
        assert!(!permutations.exact() && permutations.len() == DRAWN);
        let mut seen = [0u32; 22];
        for permutation in permutations.iter() {
            assert_eq!(permutation.iter().collect::<BTreeSet<_>>().len(), 10);
            permutation.iter().for_each(|run| seen[*run as usize] += 1);
        }
        // 10,000 draws of 10 out of 22: 4545 each, standard deviation 50.
        assert!(seen.iter().all(|seen| (4_250..4_850).contains(seen)), "{seen:?}");
        assert!(
            Permutations::of(12, 10, 7).iter().eq(permutations.iter()),
            "the same seed, the same permutations"
        );
        assert!(!Permutations::of(12, 10, 8).iter().eq(permutations.iter()));
    }

    #[test]
    fn the_number_of_orders_does_not_overflow() {
        assert_eq!(count(7, 7), 3432);
        assert_eq!(count(0, 5), 1);
        assert_eq!(count(3, 3), 20);
        assert_eq!(count(500, 500), u64::MAX);
    }
}
