//! Verdicts with too few runs for a test: only growth in every run, beyond a fixed noise floor.
//!
//! Input: [`Measurements`] and [`Options`]. Output: whether the total or a function got slower. The error
//! rate of such a verdict is unknown, and the report says so. The floors are the differences between runs of
//! one program on a busy machine, see `benches/gate.rs`.

use super::gain::Gain;
use super::measurements::{FunctionSamples, Measurements};
use super::permutations;
use super::statistic::mean;
use super::verdict::Options;

/// Fewest runs a side for a test.
pub const RUNS_MIN: usize = 3;

/// Tolerated relative difference in CPU time between two runs of one program, beyond the limit.
pub const NOISE_FLOOR: f64 = 0.15;

/// Variation of a function's share between runs beyond counting noise, relative to the share.
pub const FUNCTION_NOISE: f64 = 0.20;

/// Standard errors, of counting and [`FUNCTION_NOISE`] together, that a function's gain must exceed: of 200
/// functions one exceeds four by chance in one comparison of 150.
pub const ERRORS: f64 = 4.0;

/// Whether a test of `runs` (base, new) cannot reach the level `alpha` / 2: with three runs against three,
/// the observed permutation is one of only 20.
#[must_use]
pub fn too_few(runs: (usize, usize), alpha: f64) -> bool {
    runs.0.min(runs.1) < RUNS_MIN || (permutations::count(runs.0, runs.1) as f64) * alpha / 2.0 < 1.0
}

/// The fewest runs per side that allow a test at this level.
#[must_use]
pub fn enough(alpha: f64) -> usize {
    // One more run on each side makes three to four times as many permutations; the lowest possible level, 0.1 %, needs
    // seven runs on each side.
    const TRIED_MAX: usize = 30;
    (RUNS_MIN..TRIED_MAX).find(|&runs| !too_few((runs, runs), alpha)).unwrap_or(TRIED_MAX)
}

/// Whether the fastest new run is slower than the slowest base run by more than limit and floor.
#[must_use]
pub fn total_grown(measured: &Measurements, options: &Options) -> bool {
    let cpu = measured.in_unit(&measured.totals);
    every_pair(measured, |base, new| exceeds(cpu.get(base), cpu.get(new), options))
}

/// Whether the function's self CPU time in the fastest new run exceeds that in the slowest base run by more
/// than limit and floor: in the run's unit, and as a share beyond its usual noise. Only the former applies to
/// a function that is the whole program.
#[must_use]
pub fn function_grown(
    measured: &Measurements,
    function: &FunctionSamples,
    gain: &Gain,
    options: &Options,
) -> bool {
    if gain.gained < options.min_share {
        return false;
    }
    let cpu = measured.in_unit(&function.own);
    if gain.is_whole() {
        return every_pair(measured, |base, new| exceeds(cpu.get(base), cpu.get(new), options));
    }
    let shares = &gain.shares;
    let total = |run: usize| measured.totals.get(run).copied().unwrap_or(0.0).max(1.0);
    let pooled = mean(shares);
    every_pair(measured, |base, new| {
        let (Some(share_base), Some(share_new)) = (shares.get(base), shares.get(new)) else { return false };
        let counting = pooled * (1.0 - pooled) * (1.0 / total(base) + 1.0 / total(new));
        let error = (counting + 2.0 * (FUNCTION_NOISE * share_base).powi(2)).sqrt();
        exceeds(cpu.get(base), cpu.get(new), options)
            && exceeds(Some(share_base), Some(share_new), options)
            && share_new - share_base > ERRORS * error
    })
}

fn exceeds(base: Option<&f64>, new: Option<&f64>, options: &Options) -> bool {
    let (Some(base), Some(new)) = (base, new) else { return false };
    *new > base * (1.0 + options.max_increase) * (1.0 + NOISE_FLOOR)
}

fn every_pair(measured: &Measurements, holds: impl Fn(usize, usize) -> bool) -> bool {
    let news = measured.base_runs..measured.totals.len();
    news.clone().next().is_some()
        && (0..measured.base_runs).all(|base| news.clone().all(|new| holds(base, new)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::unit::Unit;

    fn measured(base: &[f64], new: &[f64], own: &[f64]) -> Measurements {
        let totals = [base, new].concat();
        let function = FunctionSamples { name: "f".into(), own: own.to_vec(), total: own.to_vec() };
        Measurements {
            base_runs: base.len(),
            per_sample: vec![1.0; totals.len()],
            totals,
            unit: Unit::Samples,
            functions: vec![function],
        }
    }

    fn only_function_grown(measured: &Measurements, options: &Options) -> bool {
        let function = &measured.functions[0];
        function_grown(measured, function, &Gain::of(measured, &function.own), options)
    }

    #[test]
    fn three_against_three_cannot_be_tested() {
        for (runs, weak) in
            [((1, 9), true), ((2, 50), true), ((3, 3), true), ((3, 5), false), ((4, 4), false)]
        {
            assert_eq!(too_few(runs, 0.05), weak, "{runs:?}");
        }
        for (alpha, runs) in [(0.5, 3), (0.1, 3), (0.05, 4), (0.01, 5), (0.001, 7)] {
            assert_eq!(enough(alpha), runs, "{alpha}");
            assert!(!too_few((runs, runs), alpha), "{alpha}");
        }
    }

    #[test]
    fn every_new_run_must_be_slower_than_every_base_run() {
        let options = Options::default();
        for (base, new, grown) in [
            (&[1000.0][..], &[1200.0][..], false),
            (&[1000.0], &[1210.0], true),
            (&[1000.0, 900.0], &[1210.0, 2000.0], true),
            (&[1000.0, 1100.0], &[1210.0, 2000.0], false),
        ] {
            let none = vec![0.0; base.len() + new.len()];
            assert_eq!(total_grown(&measured(base, new, &none), &options), grown, "{base:?} {new:?}");
        }
    }

    #[test]
    fn a_function_must_exceed_noise() {
        let options = Options::default();
        for (own, grown) in [
            ([50.0, 70.0], false),
            ([50.0, 150.0], true),
            ([50.0, 100.0], false),
            ([0.0, 40.0], true),
            ([4.0, 9.0], false),
        ] {
            let measured = measured(&[1000.0], &[1050.0], &own);
            assert_eq!(only_function_grown(&measured, &options), grown, "{own:?}");
        }
        let measured = measured(&[1000.0], &[1050.0], &[0.0, 40.0]);
        assert!(!only_function_grown(&measured, &Options { min_share: 0.05, ..options }), "below min_share");
    }

    #[test]
    fn a_function_that_is_the_whole_program_is_named() {
        let options = Options::default();
        for (base, new, grown) in [(1000.0, 2000.0, true), (1000.0, 1200.0, false), (1000.0, 500.0, false)] {
            for rest in [0.0, 10.0] {
                let measured = measured(&[base + rest], &[new + rest], &[base, new]);
                assert_eq!(only_function_grown(&measured, &options), grown, "{base} {new} {rest}");
            }
        }
    }
}
