//! From measured runs to a verdict.
//!
//! `too_few` is the rule for too few runs; `grown` finds functions without a name that got slower, in two builds.
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
//! Too few runs for a test: only growth in every run, beyond a fixed noise floor, fails.

use super::gain::{Gain, Noise, in_cpu};
use super::interval::{change, interval};
use super::measurements::{FunctionSamples, Measurements};
use super::permutations::{self, Family, Permutations, Values, mean, test_one};
use super::verdict::{
    Change, FunctionChange, FunctionState, MovedWhy, Nameless, Options, Report, Strength, Verdict,
};
use crate::module_offset::ModuleOffset;

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
    let weak = too_few(runs, options.alpha);
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
        report.total_grown = total_grown(measured, options);
        for function in &mut functions {
            if function_grown(measured, function.samples, &function.gain, options) {
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
    let up = permutations::test(&values, permutations);
    let negated: Vec<Values> = values.iter().map(Values::negated).collect();
    let down = permutations::test(&negated, permutations);
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

// ---- Verdicts with too few runs for a test: only growth in every run, beyond a fixed noise floor.
//
// The error rate of such a verdict is unknown, and the report says so. The floors are the differences between runs
// of one program on a busy machine, see `benches/gate.rs`.

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

// ---- Finds the functions without a name that got slower, if base and new are different builds.
//
// Not a test or proof: whether the module got slower is decided before.
//
// Functions have different start addresses in two builds, but mostly the same order, since compilers and linkers
// keep that of the source, and unchanged ones take as long as before. So the two lists are aligned, in their order,
// with the least sum of differences (Needleman and Wunsch 1970, with the difference in time as the cost).

/// Most functions to name.
const SHOWN: usize = 3;
/// Most functions of a build to align: those with most time.
const ALIGNED_MAX: usize = 512;

/// A function of one build: start address, name, self CPU time.
type FunctionCost<'a> = (u64, &'a str, f64);

/// The functions of the new build with the largest apparent gains. `own` has names with the mean self CPU
/// time in the base runs and in the new ones.
#[must_use]
pub fn grown<'a>(own: impl Iterator<Item = (&'a str, (f64, f64))>) -> Vec<Nameless> {
    let (mut base, mut new): (Vec<FunctionCost<'_>>, Vec<FunctionCost<'_>>) = (Vec::new(), Vec::new());
    for (name, (in_base, in_new)) in own {
        let Some(ModuleOffset::Function { start, .. }) = ModuleOffset::parse(name) else { continue };
        for (functions, time) in [(&mut base, in_base), (&mut new, in_new)] {
            if time > 0.0 {
                functions.push((start, name, time));
            }
        }
    }
    for functions in [&mut base, &mut new] {
        functions.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        functions.truncate(ALIGNED_MAX);
        functions.sort_unstable_by_key(|(start, ..)| *start);
    }
    let before = aligned(&base, &new);
    let found = new.iter().zip(before).map(|((_, name, new), base)| Nameless {
        name: (*name).to_owned(),
        base,
        new: *new,
    });
    let mut found: Vec<Nameless> = found.filter(|function| function.new > function.base).collect();
    found.sort_by(|a, b| (b.new - b.base).total_cmp(&(a.new - a.base)).then(a.name.cmp(&b.name)));
    found.truncate(SHOWN);
    found
}

/// For each function of the new build the time of its counterpart in the base build, or 0.
fn aligned(base: &[FunctionCost<'_>], new: &[FunctionCost<'_>]) -> Vec<f64> {
    let width = base.len() + 1;
    // At (n, b): the least sum of differences of the first n functions of new and b of base.
    let mut least = vec![0.0f64; (new.len() + 1) * width];
    let at = |new: usize, base: usize| new * width + base;
    for n in 0..=new.len() {
        for b in 0..=base.len() {
            let only_new = || least[at(n - 1, b)] + new[n - 1].2;
            let only_base = || least[at(n, b - 1)] + base[b - 1].2;
            let both = || least[at(n - 1, b - 1)] + (new[n - 1].2 - base[b - 1].2).abs();
            least[at(n, b)] = match (n, b) {
                (0, 0) => 0.0,
                (_, 0) => only_new(),
                (0, _) => only_base(),
                _ => both().min(only_new()).min(only_base()),
            };
        }
    }
    let mut before = vec![0.0; new.len()];
    let (mut n, mut b) = (new.len(), base.len());
    while n > 0 && b > 0 {
        let here = least[at(n, b)];
        if here == least[at(n - 1, b - 1)] + (new[n - 1].2 - base[b - 1].2).abs() {
            before[n - 1] = base[b - 1].2;
            (n, b) = (n - 1, b - 1);
        } else if here == least[at(n - 1, b)] + new[n - 1].2 {
            n -= 1;
        } else {
            b -= 1;
        }
    }
    before
}

#[cfg(test)]
mod few_runs_tests {
    use super::super::measurements::Unit;
    use super::*;

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

#[cfg(test)]
mod nameless_functions_tests {
    use super::*;

    fn names(own: &[(&str, (f64, f64))]) -> Vec<(String, f64, f64)> {
        let found = grown(own.iter().copied());
        found.into_iter().map(|function| (function.name, function.base, function.new)).collect()
    }

    #[test]
    fn the_changed_function_is_named_among_moved_and_larger_ones() {
        let own = [
            ("[a.so:fn+0x1000]", (5.0, 5.1)),
            ("[a.so:fn+0x1100]", (1.0, 0.0)),
            ("[a.so:fn+0x1200]", (9.0, 0.0)),
            // It grew, so later functions moved; 0x1300 is a different function in each build.
            ("[a.so:fn+0x1110]", (0.0, 3.0)),
            ("[a.so:fn+0x1300]", (2.0, 9.0)),
            ("[a.so:fn+0x1400]", (0.0, 1.9)),
        ];
        let found = names(&own);
        assert_eq!(found[0], ("[a.so:fn+0x1110]".to_owned(), 1.0, 3.0), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn added_and_removed_functions() {
        let own = [("[a:fn+0x10]", (4.0, 0.0)), ("[a:fn+0x20]", (0.0, 4.0)), ("[a:fn+0x30]", (0.0, 1.0))];
        assert_eq!(names(&own), [("[a:fn+0x30]".to_owned(), 0.0, 1.0)]);
        assert_eq!(names(&[("[a:fn+0x10]", (4.0, 0.0))]), []);
        assert_eq!(names(&[]), []);
        assert_eq!(names(&[("main", (1.0, 9.0))]), [], "it has a name");
    }

    #[test]
    fn very_many_functions_are_bounded() {
        let own: Vec<(String, (f64, f64))> =
            (0..20_000).map(|n| (format!("[a:fn+{n:#x}]"), (1.0, f64::from(n)))).collect();
        assert!(!grown(own.iter().map(|(name, own)| (name.as_str(), *own))).is_empty());
    }
}
