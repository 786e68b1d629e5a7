//! Programs that consist of one or few functions: there is no rest to compare with.

use stackprof::gate::measurements::FunctionSamples;
use stackprof::gate::measurements::Unit;
use stackprof::gate::verdict::{FunctionState, MovedWhy};
use stackprof::gate::{Measurements, Options, Report, Verdict, judge};
use stackprof::rng::Rng;

/// Name, samples before, samples after.
type Function = (&'static str, f64, f64);

/// Runs that differ by at most `noise` of a common factor, and functions by a thousandth.
fn report(rng: &mut Rng, runs: usize, noise: f64, functions: &[Function]) -> Report {
    let mut near = |noise: f64| 1.0 + noise * (rng.within(0, 2_000_000) as f64 / 1e6 - 1.0);
    let factors: Vec<f64> = (0..2 * runs).map(|_| near(noise)).collect();
    let functions: Vec<FunctionSamples> = functions
        .iter()
        .map(|&(name, before, after)| {
            let count = |(run, factor): (usize, &f64)| {
                (factor * near(0.001) * if run < runs { before } else { after }).round()
            };
            let own: Vec<f64> = factors.iter().enumerate().map(count).collect();
            FunctionSamples { name: name.into(), total: own.clone(), own }
        })
        .collect();
    let total = |run: usize| functions.iter().filter_map(|function| function.own.get(run)).sum();
    let totals: Vec<f64> = (0..2 * runs).map(total).collect();
    let per_sample = vec![1.0; totals.len()];
    judge(
        &Measurements { base_runs: runs, totals, per_sample, unit: Unit::Samples, functions },
        &Options::default(),
    )
}

fn state(report: &Report, name: &str) -> FunctionState {
    report.functions.iter().find(|row| row.name == name).unwrap().state
}

#[test]
fn a_function_that_is_the_whole_program_is_named() {
    let mut rng = Rng::new(1);
    for (functions, gained) in [
        (&[("hot", 1000.0, 2000.0)][..], 1.0),
        (&[("hot", 9950.0, 99_600.0), ("other", 50.0, 50.0)], 8.965),
        (&[("hot", 9700.0, 19_400.0), ("other", 300.0, 300.0)], 0.97),
        (&[("hot", 9200.0, 18_400.0), ("other", 800.0, 800.0)], 0.92),
    ] {
        // Of two shares one falls as the other rises: by share, four runs have too few permutations.
        let by_share = functions.get(1).is_some_and(|other| other.1 > 500.0);
        for runs in if by_share { 5..8 } else { 4..8 } {
            let report = report(&mut rng, runs, 0.02, functions);
            assert_eq!(report.verdict, Verdict::Regression);
            assert!(report.total_grown, "{:?}", report.total);
            let first = &report.functions[0];
            assert_eq!((first.name.as_str(), first.state), ("hot", FunctionState::Slower), "{first:?}");
            assert!((first.gained / gained - 1.0).abs() < 0.05, "{} {gained}", first.gained);
        }
    }
    // Without a test, too.
    for functions in [&[("hot", 1000.0, 2000.0)][..], &[("hot", 9700.0, 19_400.0), ("other", 300.0, 300.0)]] {
        let report = report(&mut rng, 1, 0.02, functions);
        assert!(report.total_grown && state(&report, "hot") == FunctionState::Slower, "{report:?}");
    }
    let faster = report(&mut rng, 7, 0.02, &[("hot", 2000.0, 1000.0)]);
    assert_eq!((faster.verdict, state(&faster, "hot")), (Verdict::Pass, FunctionState::Faster));
}

#[test]
fn moved_cost_must_explain_the_growth() {
    let mut rng = Rng::new(2);
    let changed = |lost: f64| {
        [
            ("a", 4000.0, 4330.0),
            ("b", 500.0, 500.0 - lost),
            ("c", 500.0, 500.0 - lost),
            ("d", 500.0, 500.0 - lost),
        ]
    };
    for rest in [None, Some(("steady", 30.0, 30.0)), Some(("steady", 600.0, 600.0))] {
        // A third of `a`'s gain, then all of it.
        for (lost, noise, expected) in
            [(40.0, 0.002, FunctionState::Slower), (110.0, 0.002, FunctionState::Moved)]
        {
            let functions: Vec<Function> = changed(lost).into_iter().chain(rest).collect();
            let report = report(&mut rng, 7, noise, &functions);
            let row = report.functions.iter().find(|row| row.name == "a").unwrap();
            assert_eq!(row.state, expected, "{lost} {rest:?}: {:?} {:?}", report.moved_why, report.functions);
            assert_eq!(report.verdict == Verdict::Regression, expected == FunctionState::Slower);
            let why = (expected == FunctionState::Moved).then_some(MovedWhy::Balanced);
            assert_eq!(report.moved_why, why);
        }
    }
}

#[test]
fn unchanged_programs_with_few_functions_fail_no_more_often() {
    let mut rng = Rng::new(3);
    let programs = [
        &[("hot", 1000.0, 1000.0)][..],
        &[("hot", 970.0, 970.0), ("other", 30.0, 30.0)],
        &[("hot", 940.0, 940.0), ("other", 60.0, 60.0)],
    ];
    for functions in programs {
        let (mut failed, mut blamed) = (0, 0);
        for _ in 0..400 {
            let report = report(&mut rng, 5, 0.15, functions);
            failed += u32::from(report.verdict == Verdict::Regression);
            blamed += u32::from(report.functions.iter().any(|row| row.state == FunctionState::Slower));
        }
        // Expected: 20 of 400 (standard deviation 4.4), 10 by a function (3.1).
        assert!(failed <= 30 && blamed <= 18, "{failed} {blamed} {functions:?}");
    }
}
