//! How often the gate is right about real runs of a noisy program.
//!
//! `scripts/gate-power.sh` records `tests/fixtures/forty.c` many times, unchanged and changed,
//! and runs `cargo bench --bench gate -- --runs DIRECTORY`. Input: profiles `VARIANT-*` of the
//! variants below. Output: of 200 gates of unchanged code, and 100 of each change, each with 7
//! runs a side drawn from the recordings, how many failed and what they named. Asserts the bars
//! that the gate claims. Without `--runs` it says so and measures nothing.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use stackprof::diff::stacks::{Matching, Stacks};
use stackprof::gate::verdict::FunctionState;
use stackprof::gate::{self, Options, Report, Verdict};
use stackprof::profile::SavedProfile;
use stackprof::profile::formats::detect;
use stackprof::rng::Rng;

const RUNS: usize = 7;
const SEED: u64 = 1;

/// The function that `scripts/gate-power.sh` slows down.
const SLOWED: &str = "step_24";

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(directory) = args.iter().position(|arg| arg == "--runs").and_then(|at| args.get(at + 1)) else {
        println!("no runs to draw from: scripts/gate-power.sh records them and calls this bench");
        return;
    };
    let variant = |name: &str| recordings(Path::new(directory), name);
    let base = variant("base");
    assert!(base.len() >= 2 * RUNS, "{} base runs; at least {} are needed", base.len(), 2 * RUNS);
    describe("base", &base);
    println!();
    println!("{RUNS} runs a side, drawn with seed {SEED}; gates that fail, and that name {SLOWED} first");
    println!("{:<34} {:>6} {:>7} {:>7} {:>7} {:>9}", "", "gates", "fail", "named", "moved", "ms each");
    let mut rng = Rng::new(SEED);
    let unchanged = row("unchanged", 200, &mut rng, &base, None);
    let changed = |name: &str, text: &str, rng: &mut Rng| row(text, 100, rng, &base, Some(&variant(name)));
    let plus5 = changed("plus5", "one function +5 % of the total", &mut rng);
    let plus2 = changed("plus2", "one function +2 % of the total", &mut rng);
    let all10 = changed("all10", "every function +10 %", &mut rng);
    let moved = changed("moved", "5 % moved to another function", &mut rng);
    println!();
    println!("of the uniform +10 %, found by the total: {}", all10.total);
    println!("of +2 %, found in all: {} (no bar)", plus2.failed);
    let pairs = 200;
    let weak = (0..pairs).filter(|_| failed(&one_gate(&mut rng, &base, None, 1))).count();
    println!("1 run a side, unchanged: {weak} of {pairs} fail");
    assert!(unchanged.failed <= 10, "unchanged code fails in more than 5 % of gates");
    assert!(plus5.named >= 95, "+5 % of the total is not found and named first in 95 % of gates");
    assert!(moved.failed <= 10, "moved cost fails");
}

#[derive(Default)]
struct Rates {
    failed: usize,
    named: usize,
    total: usize,
}

fn row(
    text: &str,
    gates: usize,
    rng: &mut Rng,
    base: &[SavedProfile],
    new: Option<&[SavedProfile]>,
) -> Rates {
    let mut rates = Rates::default();
    let mut moved = 0;
    let begun = Instant::now();
    for _ in 0..gates {
        let report = one_gate(rng, base, new, RUNS);
        let first = report.functions.first().filter(|row| row.name == SLOWED);
        rates.failed += usize::from(failed(&report));
        rates.named +=
            usize::from(failed(&report) && first.is_some_and(|row| row.state == FunctionState::Slower));
        moved += usize::from(first.is_some_and(|row| row.state == FunctionState::Moved));
        rates.total += usize::from(report.total_grown);
    }
    let each_ms = begun.elapsed().as_secs_f64() * 1e3 / gates as f64;
    println!("{text:<34} {gates:>6} {:>7} {:>7} {moved:>7} {each_ms:>9.0}", rates.failed, rates.named);
    rates
}

fn failed(report: &Report) -> bool {
    report.verdict == Verdict::Regression
}

/// A gate of runs drawn without putting back; both sides from `base` if nothing is new.
fn one_gate(rng: &mut Rng, base: &[SavedProfile], new: Option<&[SavedProfile]>, runs: usize) -> Report {
    let mut draw = |from: &[SavedProfile], count: usize| {
        let mut order: Vec<usize> = (0..from.len()).collect();
        for at in 0..count {
            let other = at + rng.below(order.len() - at);
            order.swap(at, other);
        }
        order.truncate(count);
        order
    };
    let mut stacks = Stacks::new(Matching { inlines: false, ..Matching::default() });
    let picked: Vec<&SavedProfile> = match new {
        None => draw(base, 2 * runs).into_iter().map(|at| &base[at]).collect(),
        Some(new) => {
            let old = draw(base, runs).into_iter().map(|at| &base[at]);
            let old: Vec<&SavedProfile> = old.collect();
            old.into_iter().chain(draw(new, runs).into_iter().map(|at| &new[at])).collect()
        }
    };
    for (index, saved) in picked.into_iter().enumerate() {
        stacks.add(&format!("run {index}"), saved, None).unwrap();
    }
    gate::check(&stacks, runs, false, &Options::default()).unwrap()
}

fn describe(name: &str, runs: &[SavedProfile]) {
    let mut totals: Vec<u64> = runs.iter().map(SavedProfile::total).collect();
    totals.sort_unstable();
    let mean = totals.iter().sum::<u64>() as f64 / totals.len() as f64;
    let square = totals.iter().map(|total| (*total as f64 - mean).powi(2)).sum::<f64>();
    let spread = (square / (totals.len() - 1) as f64).sqrt() / mean;
    println!(
        "{} recordings of {name}: {} to {} samples, mean {mean:.0}, coefficient of variation {:.1} %",
        totals.len(),
        totals[0],
        totals[totals.len() - 1],
        100.0 * spread
    );
}

fn recordings(directory: &Path, variant: &str) -> Vec<SavedProfile> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.retain(|path| name(path).starts_with(&format!("{variant}-")));
    assert!(paths.len() >= RUNS, "{}: too few files {variant}-*", directory.display());
    paths.iter().map(|path| detect::read_file(path, detect::Strictness::Lenient).unwrap().saved).collect()
}
