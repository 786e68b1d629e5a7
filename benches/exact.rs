//! The long form of the exactness harness (tests/support/exact): every program, every way
//! of walking, and the worst addresses.
//!
//! `cargo bench --bench exact [-- FILTER...]`: a filter is a part of a program's name.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../tests/support/exact/mod.rs"]
mod exact;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("SKIP the exactness harness steps programs of Linux on x86_64");
}

/// Over all programs with unwind information, by `cfi` and `auto`: least share of exact boundaries.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const EXACT_MIN: f64 = 0.999;
/// In each program, by every way: most of boundaries that are wrong and claim to be complete.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const WRONG_MAX: f64 = 0.0001;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let short = std::env::args().any(|arg| arg == "--test" || arg == "--quick");
    if !exact::permitted() {
        println!("SKIP ptrace is not permitted here");
        return;
    }
    let (programs, left_out) = exact::programs::build(short, &filters);
    left_out.iter().for_each(|why| println!("LEFT OUT {why}"));
    let outcomes = exact::run_all(&programs);
    println!("\n{}", exact::report::table(&outcomes));
    println!("{}", exact::report::classes(&outcomes));
    for way in 0..exact::WAYS.len() {
        println!("{}", exact::report::worst(&outcomes, way));
    }
    let untrue: u64 = outcomes.iter().map(|(_, outcome)| outcome.untrue).sum();
    assert_eq!(untrue, 0, "frames of the shadow stack that are not in code");
    let share = |part: u64, score: &exact::Score| part as f64 / score.all().max(1) as f64;
    for ((name, outcome), program) in outcomes.iter().zip(&programs) {
        for (way, score) in outcome.scores.iter().enumerate() {
            let wrong = share(score.wrong, score);
            let wrong_max = if program.is_described() { WRONG_MAX } else { 0.0 };
            assert!(wrong <= wrong_max, "{name} by {}: {wrong} complete but wrong", exact::WAYS[way].0);
        }
    }
    if filters.is_empty() {
        let of_described = outcomes.into_iter().zip(&programs).filter(|(_, program)| program.is_described());
        let described: Vec<_> = of_described.map(|(outcome, _)| outcome).collect();
        for (way, score) in exact::report::sum(&described).iter().enumerate().skip(1) {
            let exact = share(score.exact, score);
            assert!(exact >= EXACT_MIN, "{}: {exact} exact", exact::WAYS[way].0);
        }
    }
}
