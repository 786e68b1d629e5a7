//! Error rates of the gate on simulated runs: forty functions, runs that differ by a common factor, functions
//! that differ beyond it, and counting noise. `cargo bench --bench gate` has the rates of real runs, which
//! this noise is modelled after.

use stackprof::gate::measurements::FunctionSamples;
use stackprof::gate::measurements::Unit;
use stackprof::gate::verdict::{FunctionState, MovedWhy};
use stackprof::gate::{Measurements, Options, Report, Verdict, judge};
use stackprof::rng::Rng;

const FUNCTIONS: usize = 40;
const RUNS: usize = 7;
/// Samples of a run: 1.2 s at 997 Hz.
const SAMPLES: f64 = 1200.0;
/// Relative spread of the common factor of a run.
const RUN_NOISE: f64 = 0.045;
/// Relative spread of each function in a run beyond that.
const FUNCTION_NOISE: f64 = 0.15;
const SLOWED: usize = 11;

/// Additional cost of each function in the new code, as a fraction of the program's whole cost before.
type Change = fn(usize) -> f64;

fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.within(0, 1 << 40) as f64 / (1u64 << 40) as f64).sum::<f64>() - 6.0
}

/// Knuth's product of uniform numbers, in parts that do not underflow.
fn poisson(rng: &mut Rng, mut mean: f64) -> f64 {
    let mut count = 0.0;
    while mean > 0.0 {
        let piece = mean.min(30.0);
        mean -= piece;
        let mut product = 1.0;
        loop {
            product *= (rng.within(0, (1 << 40) - 1) as f64 + 0.5) / (1u64 << 40) as f64;
            if product < (-piece).exp() {
                break;
            }
            count += 1.0;
        }
    }
    count
}

fn share(function: usize) -> f64 {
    let weight = |function: usize| 1.0 / (function * 7 % FUNCTIONS + 4) as f64;
    weight(function) / (0..FUNCTIONS).map(weight).sum::<f64>()
}

fn runs(rng: &mut Rng, runs_per_side: usize, more: Change) -> Measurements {
    let mut functions: Vec<FunctionSamples> = (0..FUNCTIONS)
        .map(|function| FunctionSamples { name: format!("f{function:02}"), own: vec![], total: vec![] })
        .collect();
    let mut totals = Vec::new();
    for run in 0..2 * runs_per_side {
        let factor = (RUN_NOISE * normal(rng)).exp();
        let mut total = 0.0;
        for (index, function) in functions.iter_mut().enumerate() {
            let cost = share(index) + if run < runs_per_side { 0.0 } else { more(index) };
            let noise = (FUNCTION_NOISE * normal(rng)).exp();
            let count = poisson(rng, SAMPLES * cost.max(0.0) * factor * noise);
            function.own.push(count);
            total += count;
        }
        totals.push(total);
    }
    for function in &mut functions {
        function.total = function.own.clone();
    }
    Measurements {
        base_runs: runs_per_side,
        per_sample: vec![1.0 / 997.0; totals.len()],
        totals,
        unit: Unit::Seconds,
        functions,
    }
}

/// Reports of `count` gates.
fn gates(count: usize, runs_per_side: usize, more: Change) -> Vec<Report> {
    let mut rng = Rng::new(20_240);
    (0..count).map(|_| judge(&runs(&mut rng, runs_per_side, more), &Options::default())).collect()
}

fn failed(reports: &[Report]) -> usize {
    reports.iter().filter(|report| report.verdict == Verdict::Regression).count()
}

/// Gates that fail and name the slowed function first.
fn named_first(reports: &[Report]) -> usize {
    let first = format!("f{SLOWED:02}");
    let named = |report: &&Report| {
        report.verdict == Verdict::Regression
            && report
                .functions
                .first()
                .is_some_and(|row| row.name == first && row.state == FunctionState::Slower)
    };
    reports.iter().filter(named).count()
}

fn slowed_by(function: usize, part: f64) -> f64 {
    if function == SLOWED { part } else { 0.0 }
}

#[test]
fn unchanged_code_fails_in_at_most_one_gate_of_twenty() {
    for runs_per_side in [4, RUNS] {
        let reports = gates(200, runs_per_side, |_| 0.0);
        assert!(failed(&reports) <= 10, "{} of 200 gates, {runs_per_side} runs a side", failed(&reports));
    }
}

/// Runs of a program with equal costs in each of many functions, counted at random.
fn flat(rng: &mut Rng, runs_per_side: usize, functions: usize, samples: f64) -> Measurements {
    let mut totals = vec![0.0; 2 * runs_per_side];
    let functions = (0..functions).map(|index| {
        let own: Vec<f64> = totals.iter().map(|_| poisson(rng, samples / functions as f64)).collect();
        totals.iter_mut().zip(&own).for_each(|(total, own)| *total += own);
        FunctionSamples { name: format!("f{index:03}"), total: own.clone(), own }
    });
    let functions = functions.collect();
    Measurements {
        base_runs: runs_per_side,
        per_sample: vec![1.0; totals.len()],
        totals,
        unit: Unit::Samples,
        functions,
    }
}

#[test]
fn many_functions_near_min_share_fail_no_more_often() {
    // On average a third of a percent; chance lifts some above half a percent on one side.
    let mut rng = Rng::new(400);
    let mut blamed = 0;
    for _ in 0..400 {
        let report = judge(&flat(&mut rng, 5, 300, 400.0), &Options::default());
        blamed += usize::from(report.functions.iter().any(|row| row.state == FunctionState::Slower));
    }
    // Expected: 2.5 % is 10 (standard deviation 3.1).
    assert!(blamed <= 18, "{blamed} of 400 gates");
}

#[test]
fn every_function_with_min_share_on_one_side_is_tested() {
    let of = |name: &str, base: [f64; 4], new: [f64; 7]| {
        let own = [&base[..], &new[..]].concat();
        FunctionSamples { name: name.into(), total: own.clone(), own }
    };
    let measured = Measurements {
        base_runs: 4,
        totals: vec![1000.0; 11],
        per_sample: vec![1.0; 11],
        unit: Unit::Samples,
        functions: vec![
            of("gone", [5.0; 4], [0.0; 7]),
            of("new", [0.0; 4], [5.0; 7]),
            of("small", [4.9; 4], [0.0; 7]),
            of("rest", [990.1; 4], [995.0; 7]),
        ],
    };
    let report = judge(&measured, &Options::default());
    let mut names: Vec<&str> = report.functions.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!((names, report.functions_too_small), (vec!["gone", "new", "rest"], 1));
}

#[test]
fn too_few_runs_cause_no_false_positives() {
    for runs_per_side in [1, 2, 3] {
        let reports = gates(200, runs_per_side, |_| 0.0);
        assert!(failed(&reports) <= 10, "{} of 200 gates, {runs_per_side} runs a side", failed(&reports));
    }
    // +60 % of the whole is detected even so.
    let reports = gates(100, 1, |function| slowed_by(function, 0.6));
    assert!(named_first(&reports) >= 95, "{}", named_first(&reports));
}

#[test]
fn a_growth_of_five_percent_in_one_function_is_found_and_listed_first() {
    let reports = gates(100, RUNS, |function| slowed_by(function, 0.05));
    assert!(named_first(&reports) >= 95, "{} of 100", named_first(&reports));
    let inside = reports.iter().filter(|report| {
        let row = &report.functions[0];
        let truth = 0.05 / share(SLOWED);
        row.cpu.interval.is_some_and(|interval| interval.low <= truth && truth <= interval.high)
    });
    assert!(inside.count() >= 88, "the interval holds what was planted");
}

#[test]
fn a_uniform_slowdown_belongs_to_the_total() {
    let reports = gates(100, RUNS, |function| share(function) * 0.15);
    let total = reports.iter().filter(|report| report.total_grown).count();
    assert!(total >= 95, "{total} of 100");
    let blamed =
        reports.iter().filter(|report| report.functions.iter().any(|row| row.state == FunctionState::Slower));
    assert!(blamed.count() <= 5);
}

#[test]
fn moved_cost_is_reported_and_fails_only_if_strict() {
    let moved: Change = |function| match function {
        SLOWED => 0.05,
        0 => -0.05,
        _ => 0.0,
    };
    let reports = gates(100, RUNS, moved);
    assert!(failed(&reports) <= 10, "{} of 100 fail", failed(&reports));
    let told = |report: &&Report| {
        let state = |name: &str| report.functions.iter().find(|row| row.name == name).map(|row| row.state);
        state("f11") == Some(FunctionState::Moved) && state("f00") == Some(FunctionState::Faster)
    };
    assert!(reports.iter().filter(told).count() >= 80, "{}", reports.iter().filter(told).count());
    let mut rng = Rng::new(7);
    let measured = runs(&mut rng, RUNS, moved);
    let strict = judge(&measured, &Options { strict: true, ..Options::default() });
    assert_eq!(strict.verdict, Verdict::Regression);
}

#[test]
fn inlined_callees_are_no_regression() {
    // Each callee loses too little to be significant by itself.
    let callees = 20..FUNCTIONS;
    let mut rng = Rng::new(4);
    let mut by_inlining = 0;
    for _ in 0..100 {
        let mut measured = runs(&mut rng, RUNS, |function| match function {
            SLOWED => 0.10,
            20.. => -0.10 / 20.0,
            _ => 0.0,
        });
        let mut total = measured.functions[SLOWED].own.clone();
        for callee in callees.clone() {
            total.iter_mut().zip(&measured.functions[callee].own).for_each(|(sum, own)| *sum += own);
        }
        measured.functions[SLOWED].total = total;
        let report = judge(&measured, &Options::default());
        let row = report.functions.iter().find(|row| row.name == "f11").unwrap();
        by_inlining +=
            usize::from(row.state == FunctionState::Moved && report.moved_why == Some(MovedWhy::FromCallees));
    }
    assert!(by_inlining >= 80, "{by_inlining} of 100");
}

#[test]
fn cost_moved_into_the_main_function_is_no_regression() {
    let mut rng = Rng::new(5);
    let mut found = 0;
    for _ in 0..50 {
        let mut measured = runs(&mut rng, RUNS, |function| slowed_by(function, 0.06));
        measured.functions[SLOWED].total = measured.totals.clone();
        found += named_first(&[judge(&measured, &Options::default())]);
    }
    assert!(found >= 47, "{found} of 50");
    // Half of the program is outside, and its callees are unchanged.
    let mut found = 0;
    for _ in 0..50 {
        let mut measured = runs(&mut rng, RUNS, |function| slowed_by(function, 0.06));
        let mut total = measured.functions[SLOWED].own.clone();
        for callee in 20..FUNCTIONS {
            total.iter_mut().zip(&measured.functions[callee].own).for_each(|(sum, own)| *sum += own);
        }
        measured.functions[SLOWED].total = total;
        found += named_first(&[judge(&measured, &Options::default())]);
    }
    assert!(found >= 47, "{found} of 50");
}

#[test]
fn a_faster_function_makes_no_other_fail() {
    let reports = gates(100, RUNS, |function| if function == 0 { -0.09 } else { 0.0 });
    assert!(failed(&reports) <= 5, "{} of 100 fail", failed(&reports));
    let faster = |report: &&Report| {
        report.functions.iter().any(|row| row.name == "f00" && row.state == FunctionState::Faster)
    };
    let found = reports.iter().filter(faster).count();
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn the_same_runs_give_the_same_report() {
    let measured = runs(&mut Rng::new(3), 12, |function| slowed_by(function, 0.03));
    let options = Options { seed: 5, ..Options::default() };
    assert_eq!(judge(&measured, &options), judge(&measured, &options));
    let other = judge(&measured, &Options { seed: 6, ..options });
    assert_eq!(other.verdict, judge(&measured, &options).verdict);
}
