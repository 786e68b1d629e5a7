//! Tests many functions at once: p-values from permuted runs, corrected for choosing the best of many.
//!
//! Input: the values of each function and the permutations of the runs. Output: for each function its statistic, p
//! and q, and for all together the chance that any stands out so far.
//!
//! - `p`: how often permuted runs reach the statistic, over all functions and permutations. One function alone has
//!   no more p-values than permutations (1/3432 for 7 against 7), too coarse once 40 are compared; being
//!   studentised, functions can share their permutations.
//! - `q`: Benjamini and Hochberg's false discovery rate: of the functions with this q or less, that fraction
//!   is expected by chance.
//! - `p_any`: how often the largest statistic of all is as large (Westfall and Young's max-T). It is exact
//!   for any noise and any dependence between functions, which sharing permutations is not, so it decides whether
//!   any function is significant at all.

use super::permutations::Permutations;
use super::statistic::Values;

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
