//! From measured runs to a verdict.
//!
//! Input: [`Measurements`] and [`Options`]. Output: a [`Report`] without call paths and detectable growths. The
//! definitions, as in docs/gate.md:
//!
//! - The *total* got slower if its mean CPU time grew by more than `max_increase` and the
//!   permutation test over runs gives p ≤ `alpha` / 2.
//! - A *function* got slower if its own (self) CPU time grew by more than `max_increase` of
//!   itself, that with p ≤ `alpha`; and it gained at least `min_share` of the program's CPU time
//!   compared with the rest of the program ([`Gain`]), that with q ≤ `alpha`; and the largest gain of all
//!   functions is one that unchanged code shows at most in `alpha` / 2 of gates. The
//!   comparison with the rest is the sensitive one, for a slow moment of the machine slows all
//!   functions; the comparison in seconds keeps a function from being blamed because another
//!   one got faster.
//! - Growth of functions is *moved* cost if the functions that changed gained nothing together,
//!   or what the functions call fell, or the rest of the program did, by at least half as much.
//!
//! With too few runs for a test see [`few_runs`].

use super::family::{self, Family, test_one};
use super::few_runs;
use super::gain::{Gain, in_cpu};
use super::interval::{change, interval};
use super::measurements::{FunctionSamples, Measurements};
use super::noise::Noise;
use super::permutations::Permutations;
use super::statistic::{Values, mean};
use super::verdict::{Change, FunctionChange, FunctionState, MovedWhy, Options, Report, Strength, Verdict};

/// Largest p-value at which callees, or the rest of the program, count as fallen. Strict, because otherwise a
/// real regression passes as moved cost.
const FELL_P: f64 = 0.01;

/// Judges the runs.
#[must_use]
pub fn judge(measured: &Measurements, options: &Options) -> Report {
    let runs = (measured.base_runs, measured.totals.len().saturating_sub(measured.base_runs));
    let mut functions: Vec<Candidate<'_>> =
        measured.functions.iter().map(|samples| Candidate::of(measured, samples)).collect();
    let all = functions.len();
    let tested_from = options.tested_from(runs);
    functions.retain(|function| mean(&function.gain.shares) >= tested_from);
    let too_small = all - functions.len();
    let weak = few_runs::too_few(runs, options.alpha);
    let total_cpu = measured.in_unit(&measured.totals);
    let mut report = Report {
        verdict: Verdict::Pass,
        strength: Strength::Weak,
        runs,
        unit: measured.unit,
        options: *options,
        total: cpu_change(measured, &total_cpu),
        total_grown: false,
        total_min_detectable: None,
        functions: Vec::new(),
        functions_too_small: too_small,
        moved_why: None,
        total_place: None,
    };
    if weak {
        report.total_grown = few_runs::total_grown(measured, options);
        for function in &mut functions {
            if few_runs::function_grown(measured, function.samples, &function.gain, options) {
                function.state = FunctionState::Slower;
            }
        }
    } else {
        let permutations = Permutations::of(runs.0, runs.1, options.seed);
        report.strength = Strength::Tested { permutations: permutations.len(), exact: permutations.exact() };
        let p = test_one(&Values::new(&total_cpu, None), &permutations);
        report.total.p = Some(p);
        report.total_grown = report.total.relative > options.max_increase && p <= options.alpha / 2.0;
        test_functions(measured, &mut functions, &permutations, options);
        report.moved_why = moved(measured, &functions, &permutations, options);
    }
    if report.moved_why.is_some() {
        for function in functions.iter_mut().filter(|function| function.state == FunctionState::Slower) {
            function.state = FunctionState::Moved;
        }
    }
    functions.sort_by(|a, b| {
        a.state
            .cmp(&b.state)
            .then(b.gain.gained.abs().total_cmp(&a.gain.gained.abs()))
            .then(a.samples.name.cmp(&b.samples.name))
    });
    let fails = |state| state == FunctionState::Slower || (options.strict && state == FunctionState::Moved);
    if report.total_grown || functions.iter().any(|function| fails(function.state)) {
        report.verdict = Verdict::Regression;
    }
    report.functions = functions.into_iter().map(|function| function.into_change(measured)).collect();
    report
}

/// A function under test.
struct Candidate<'a> {
    samples: &'a FunctionSamples,
    gain: Gain,
    state: FunctionState,
    p: Option<f64>,
    q: Option<f64>,
}

impl<'a> Candidate<'a> {
    fn of(measured: &Measurements, samples: &'a FunctionSamples) -> Candidate<'a> {
        let gain = Gain::of(measured, &samples.own);
        Candidate { samples, gain, state: FunctionState::Steady, p: None, q: None }
    }

    fn into_change(self, measured: &Measurements) -> FunctionChange {
        FunctionChange {
            name: self.samples.name.clone(),
            state: self.state,
            cpu: cpu_change(measured, &measured.in_unit(&self.samples.own)),
            share_base: self.gain.share_base,
            share_new: self.gain.share_new,
            gained: self.gain.gained,
            p: self.p,
            q: self.q,
            min_detectable: None,
            place: None,
        }
    }
}

fn cpu_change(measured: &Measurements, values: &[f64]) -> Change {
    let (base, new) = measured.sides(values);
    let (mean_base, mean_new) = (mean(base), mean(new));
    Change {
        base: mean_base,
        new: mean_new,
        relative: change(mean_base, mean_new),
        interval: interval(base, new),
        p: None,
    }
}

/// Tests all functions in both directions and sets their states.
fn test_functions(
    measured: &Measurements,
    functions: &mut [Candidate<'_>],
    permutations: &Permutations,
    options: &Options,
) {
    let gains: Vec<&Gain> = functions.iter().map(|function| &function.gain).collect();
    let noise = Noise::of(measured, &gains);
    let values: Vec<Values> = gains.iter().map(|gain| noise.values(gain)).collect();
    let up = family::test(&values, permutations);
    let negated: Vec<Values> = values.iter().map(Values::negated).collect();
    let down = family::test(&negated, permutations);
    let stands_out = |family: &Family| family.p_any <= options.alpha / 2.0;
    let (any_up, any_down) = (stands_out(&up), stands_out(&down));
    for ((function, up), down) in functions.iter_mut().zip(&up.tests).zip(&down.tests) {
        let grew = function.gain.gained >= 0.0;
        let test = if grew { up } else { down };
        (function.p, function.q) = (Some(test.p), Some(test.q));
        let any = if grew { any_up } else { any_down };
        if !any || test.q > options.alpha || function.gain.gained.abs() < options.min_share {
            continue;
        }
        let cpu = measured.in_unit(&function.samples.own);
        let (base, new) = measured.sides(&cpu);
        let relative = change(mean(base), mean(new));
        let cpu = Values::new(&cpu, None);
        if grew && relative > options.max_increase && test_one(&cpu, permutations) <= options.alpha {
            function.state = FunctionState::Slower;
        } else if !grew
            && relative < -options.max_increase
            && test_one(&cpu.negated(), permutations) <= options.alpha
        {
            function.state = FunctionState::Faster;
        }
    }
}

/// Whether the growth of functions is cost that was elsewhere before.
fn moved(
    measured: &Measurements,
    functions: &[Candidate<'_>],
    permutations: &Permutations,
    options: &Options,
) -> Option<MovedWhy> {
    let in_state = |state| functions.iter().filter(move |function| function.state == state);
    let grown = in_state(FunctionState::Slower).map(|function| function.samples.own.as_slice());
    let grown: Vec<f64> = sum(measured, grown);
    in_state(FunctionState::Slower).next()?;
    let gained_by_grown = Gain::of(measured, &grown).gained;
    if in_state(FunctionState::Faster).next().is_some() {
        let shrunk = in_state(FunctionState::Faster).map(|function| function.samples.own.as_slice());
        let shrunk = sum(measured, shrunk);
        let changed = Gain::of(measured, &sum(measured, [shrunk.as_slice(), &grown].into_iter()));
        let p = test_one(&Values::new(changed.values(), None), permutations);
        // If the sum of what grew and what shrunk may be chance, cost has moved; but only if what shrunk
        // accounts for more than half of what grew.
        let explained = -in_cpu(measured, &shrunk) > in_cpu(measured, &grown) / 2.0;
        if changed.gained < options.min_share || (p > options.alpha && explained) {
            return Some(MovedWhy::Balanced);
        }
    }
    if in_state(FunctionState::Slower).all(|function| callees_fell(measured, function, permutations)) {
        return Some(MovedWhy::FromCallees);
    }
    let rest: Vec<f64> = measured.totals.iter().zip(&grown).map(|(total, grown)| total - grown).collect();
    let rest = measured.in_unit(&rest);
    let (rest_base, rest_new) = measured.sides(&rest);
    let all = measured.in_unit(&measured.totals);
    let fallen = (mean(rest_base) - mean(rest_new)) / mean(measured.sides(&all).0).max(f64::MIN_POSITIVE);
    let fell = fallen > gained_by_grown / 2.0
        && test_one(&Values::new(&rest, None).negated(), permutations) <= FELL_P;
    fell.then_some(MovedWhy::RestFell)
}

/// Whether a function's callees lost at least half of its own gain. Compared with the rest outside of both,
/// so that its own growth does not look like a loss of the others; without a rest (`main`) there is no
/// reference.
fn callees_fell(measured: &Measurements, function: &Candidate<'_>, permutations: &Permutations) -> bool {
    let FunctionSamples { own, total, .. } = function.samples;
    let outside: Vec<f64> = measured.totals.iter().zip(total).map(|(all, total)| all - total).collect();
    if outside.iter().any(|outside| *outside <= 0.0) {
        return false;
    }
    let callees = total.iter().zip(own).map(|(total, own)| total - own);
    let ratios: Vec<f64> = callees.zip(&outside).map(|(callees, outside)| callees / outside).collect();
    let (base, new) = measured.sides(&ratios);
    let outside_share = measured.shares(&outside);
    let fallen = (mean(base) - mean(new)) * mean(measured.sides(&outside_share).0);
    fallen > function.gain.gained / 2.0
        && test_one(&Values::new(&ratios, None).negated(), permutations) <= FELL_P
}

fn sum<'a>(measured: &Measurements, parts: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut sum = vec![0.0; measured.totals.len()];
    for part in parts {
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sum
}
