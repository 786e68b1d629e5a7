//! The permutation test: every division of the runs into base and new (`Permutations`), how far apart the sides are
//! for one of them (`Values`), and many functions at once (`Family`: p, q, and whether any stands out).
//!
//! Input: the number of runs per side, and the values of each function. All permutations are used if they are few,
//! else a seeded draw; the first is the observed one. If the code is the same, each permutation is as likely as the
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

// ---- The studentised difference of two sides, for the observed permutation of the runs and any other.
//
// Input: one value for each run. Output: (mean of new − mean of base) / its standard error. The error comes
// half from the variance of the values within the sides, half from prior knowledge (counting noise, and the
// variance between runs of this program). With few runs, a variance that is small by chance would otherwise
// inflate the statistic. Genomics has the same problem, few samples of many genes, and this answer: Smyth
// 2004 (limma), Tusher et al. 2001 (SAM).

/// The values of one quantity (a function's share, the total) in all runs.
#[derive(Clone, Debug)]
pub struct Values {
    /// Differences from the overall mean, base first.
    centred: Vec<f64>,
    sum_of_squares: f64,
    /// Variance of one value known independently of its side.
    known_variance: Option<f64>,
}

impl Values {
    /// Values of all runs, base first. `known_variance` is the expected variance of a single value; without
    /// it only the sample variance counts.
    #[must_use]
    pub fn new(values: &[f64], known_variance: Option<f64>) -> Values {
        let mean = mean(values);
        let centred: Vec<f64> = values.iter().map(|value| value - mean).collect();
        let sum_of_squares = centred.iter().map(|value| value * value).sum();
        Values { centred, sum_of_squares, known_variance }
    }

    /// The values with inverted sign, to test for a decrease.
    #[must_use]
    pub fn negated(&self) -> Values {
        Values { centred: self.centred.iter().map(|value| -value).collect(), ..self.clone() }
    }

    /// The statistic with `new` as the new runs. 0 if nothing differs.
    #[must_use]
    pub fn statistic(&self, new: &[u32]) -> f64 {
        let runs = self.centred.len() as f64;
        let news = new.len() as f64;
        let bases = runs - news;
        let sum: f64 = new.iter().filter_map(|run| self.centred.get(*run as usize)).sum();
        // The centred values add up to 0, so that the base runs' sum is -sum.
        let (mean_new, mean_base) = (sum / news, -sum / bases);
        let degrees = runs - 2.0;
        let between = news * mean_new * mean_new + bases * mean_base * mean_base;
        let within = if degrees > 0.0 { (self.sum_of_squares - between).max(0.0) / degrees } else { 0.0 };
        let variance = match self.known_variance {
            Some(known) => (within + known) / 2.0,
            None => within,
        };
        let difference = mean_new - mean_base;
        let error = (variance * (1.0 / news + 1.0 / bases)).sqrt();
        // Rounding leaves about 1e-16 of the cancelled values.
        if difference.abs() <= 1e-12 * self.sum_of_squares.sqrt() {
            0.0
        } else {
            difference / error.max(f64::MIN_POSITIVE)
        }
    }
}

/// The mean; 0 without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The sample variance; 0 for fewer than two values.
#[must_use]
pub fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (values.len() as f64 - 1.0)
}

// ---- Tests many functions at once: p-values from permuted runs, corrected for choosing the best of many.
//
// Input: the values of each function and the permutations of the runs. Output: for each function its statistic, p
// and q, and for all together the chance that any stands out so far.
//
// - `p`: how often permuted runs reach the statistic, over all functions and permutations. One function alone has
//   no more p-values than permutations (1/3432 for 7 against 7), too coarse once 40 are compared; being
//   studentised, functions can share their permutations.
// - `q`: Benjamini and Hochberg's false discovery rate: of the functions with this q or less, that fraction
//   is expected by chance.
// - `p_any`: how often the largest statistic of all is as large (Westfall and Young's max-T). It is exact
//   for any noise and any dependence between functions, which sharing permutations is not, so it decides whether
//   any function is significant at all.

/// One function's test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestResult {
    /// The studentised difference, new minus base.
    pub statistic: f64,
    /// Probability of a statistic this large if nothing changed.
    pub p: f64,
    /// False discovery rate among the functions with this p or less.
    pub q: f64,
}

/// The tests of a family of functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// One for each function, in the order of the input.
    pub tests: Vec<TestResult>,
    /// Probability that the largest statistic of the family is this large if nothing changed.
    pub p_any: f64,
}

/// Tests whether functions became larger.
#[must_use]
pub fn test(functions: &[Values], permutations: &Permutations) -> Family {
    let observed: Vec<f64> = match permutations.iter().next() {
        Some(permutation) => functions.iter().map(|values| values.statistic(permutation)).collect(),
        None => return Family { tests: Vec::new(), p_any: 1.0 },
    };
    let mut ascending: Vec<f64> = observed.clone();
    ascending.sort_unstable_by(f64::total_cmp);
    let largest = ascending.last().copied().unwrap_or(0.0);
    // reached[i]: how many permuted statistics reach exactly i of the observed ones.
    let mut reached = vec![0u64; ascending.len() + 1];
    let mut largest_reached = 0u64;
    for permutation in permutations.iter() {
        let mut any = false;
        for values in functions {
            let statistic = values.statistic(permutation);
            let below = ascending.partition_point(|observed| reaches(statistic, *observed));
            if let Some(count) = reached.get_mut(below) {
                *count += 1;
            }
            any |= reaches(statistic, largest);
        }
        largest_reached += u64::from(any);
    }
    let trials = (permutations.len() * functions.len()).max(1) as f64;
    let mut sum = 0;
    let mut p_by_rank = vec![0.0; ascending.len()];
    for (rank, p) in p_by_rank.iter_mut().enumerate().rev() {
        sum += reached.get(rank + 1).copied().unwrap_or(0);
        *p = sum as f64 / trials;
    }
    let p: Vec<f64> = observed
        .iter()
        .map(|statistic| {
            let rank = ascending.partition_point(|other| other < statistic);
            p_by_rank.get(rank).copied().unwrap_or(1.0)
        })
        .collect();
    let q = false_discovery_rates(&p);
    let tests = observed.iter().zip(&p).zip(q).map(|((&statistic, &p), q)| TestResult { statistic, p, q });
    let p_any = if functions.is_empty() { 1.0 } else { largest_reached as f64 / permutations.len() as f64 };
    Family { tests: tests.collect(), p_any }
}

/// p of a single hypothesis over its own permutations.
#[must_use]
pub fn test_one(values: &Values, permutations: &Permutations) -> f64 {
    test(std::slice::from_ref(values), permutations).p_any
}

/// Statistics of equal sums differ by rounding only. Sides without any spread have an infinite statistic,
/// which reaches itself and from which nothing can be subtracted.
fn reaches(statistic: f64, observed: f64) -> bool {
    statistic >= observed || statistic >= observed - 1e-9 * observed.abs()
}

/// Benjamini and Hochberg 1995: the smallest false discovery rate at which each is significant.
#[must_use]
pub fn false_discovery_rates(p: &[f64]) -> Vec<f64> {
    let mut descending: Vec<usize> = (0..p.len()).collect();
    descending.sort_by(|&a, &b| p.get(b).unwrap_or(&1.0).total_cmp(p.get(a).unwrap_or(&1.0)));
    let mut q = vec![1.0; p.len()];
    let mut lowest: f64 = 1.0;
    for (above, &index) in descending.iter().enumerate() {
        let rank = p.len() - above;
        let Some((p, q)) = p.get(index).zip(q.get_mut(index)) else { continue };
        lowest = lowest.min((p * descending.len() as f64 / rank as f64).max(*p));
        *q = lowest;
    }
    q
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

#[cfg(test)]
mod statistic_tests {
    use super::*;

    #[test]
    fn without_prior_knowledge_it_is_students_t() {
        // Student's two samples: pooled variance, four degrees of freedom.
        let values = Values::new(&[1.0, 2.0, 4.0, 5.0, 6.0, 7.0], None);
        let pooled: f64 = (14.0 / 3.0 + 2.0) / 4.0;
        let expected = (6.0 - 7.0 / 3.0) / (pooled * 2.0 / 3.0).sqrt();
        assert!((values.statistic(&[3, 4, 5]) - expected).abs() < 1e-12);
        assert!((values.statistic(&[0, 1, 2]) + expected).abs() < 1e-12);
        assert!((values.negated().statistic(&[3, 4, 5]) + expected).abs() < 1e-12);
    }

    #[test]
    fn known_noise_limits_the_effect_of_equal_values() {
        let values = [1.0, 1.0, 1.0, 1.1, 1.1, 1.1];
        let sure = Values::new(&values, None).statistic(&[3, 4, 5]);
        let wary = Values::new(&values, Some(0.01)).statistic(&[3, 4, 5]);
        assert!(sure > 1e6 && wary < 2.0, "{sure} {wary}");
    }

    #[test]
    fn equal_runs_have_no_difference() {
        let values = Values::new(&[0.3; 6], None);
        assert_eq!(values.statistic(&[3, 4, 5]), 0.0);
        assert_eq!(Values::new(&[0.0; 2], Some(0.0)).statistic(&[1]), 0.0);
        assert!(Values::new(&[1.0, 2.0], None).statistic(&[1]) > 1e6, "one against one has no spread");
    }

    #[test]
    fn computes_means_and_variances() {
        assert_eq!((mean(&[]), mean(&[1.0, 3.0])), (0.0, 2.0));
        assert_eq!((variance(&[1.0]), variance(&[1.0, 3.0])), (0.0, 2.0));
    }
}

#[cfg(test)]
mod family_tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn rates_match_the_published_procedure() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005, 0.5), method = "BH")
        let q = false_discovery_rates(&[0.01, 0.04, 0.03, 0.005, 0.5]);
        for (q, expected) in q.iter().zip([0.025, 0.05, 0.05, 0.025, 0.5]) {
            assert!((q - expected).abs() < 1e-12, "{q} {expected}");
        }
        assert_eq!(false_discovery_rates(&[]), Vec::<f64>::new());
    }

    #[test]
    fn tests_a_single_hypothesis_over_all_orders() {
        let permutations = Permutations::of(3, 3, 0);
        let clear = Values::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], None);
        assert_eq!(test_one(&clear, &permutations), 1.0 / 20.0);
        assert_eq!(test_one(&clear.negated(), &permutations), 1.0);
        assert_eq!(test_one(&Values::new(&[2.0; 6], None), &permutations), 1.0);
    }

    #[test]
    fn equal_runs_on_each_side_have_the_smallest_possible_p() {
        let permutations = Permutations::of(4, 4, 0);
        let values = Values::new(&[2000.0, 2000.0, 2000.0, 2000.0, 4000.0, 4000.0, 4000.0, 4000.0], None);
        assert_eq!(test_one(&values, &permutations), 1.0 / 70.0);
        let family = test(&[values, Values::new(&[1.0; 8], None)], &permutations);
        assert_eq!((family.p_any, family.tests[0].p), (1.0 / 70.0, 1.0 / 140.0));
    }

    /// Noise of different shapes, under which p must be valid.
    fn noise(rng: &mut Rng, functions: usize) -> Vec<Values> {
        let uniform = |rng: &mut Rng| rng.within(0, 1 << 20) as f64 / f64::from(1 << 20);
        (0..functions)
            .map(|function| {
                let values: Vec<f64> = (0..10)
                    .map(|_| match function % 3 {
                        0 => uniform(rng) + uniform(rng),
                        1 => -uniform(rng).max(1e-6).ln(),
                        _ => f64::from(u8::from(rng.chance(1, 5))) + 0.01 * uniform(rng),
                    })
                    .collect();
                Values::new(&values, Some(0.05))
            })
            .collect()
    }

    #[test]
    fn the_false_positive_rate_is_as_stated() {
        let permutations = Permutations::of(5, 5, 0);
        let mut rng = Rng::new(11);
        let (mut any, mut small, mut tests) = (0, 0, 0);
        for _ in 0..400 {
            let family = test(&noise(&mut rng, 12), &permutations);
            any += u32::from(family.p_any <= 0.05);
            small += family.tests.iter().filter(|test| test.p <= 0.05).count();
            tests += family.tests.len();
            assert!(family.tests.iter().all(|test| test.q >= test.p && test.q <= 1.0));
        }
        // Expected: 20 of 400 gates (standard deviation 4.4), 240 of 4800 tests (15).
        assert!(any <= 33, "{any}");
        assert!((180..=300).contains(&small), "{small} of {tests}");
    }

    #[test]
    fn one_changed_function_is_found_among_many() {
        let permutations = Permutations::of(5, 5, 0);
        let mut rng = Rng::new(3);
        let mut values = noise(&mut rng, 60);
        values[17] = Values::new(&[1.0, 1.1, 0.9, 1.05, 0.95, 3.0, 3.1, 2.9, 3.05, 2.95], Some(0.01));
        let family = test(&values, &permutations);
        assert!(family.p_any < 0.01 && family.tests[17].q < 0.01, "{:?}", family.tests[17]);
        // Alone it could not be below 1/252.
        assert!(family.tests[17].p < 1.0 / 252.0);
    }
}
