//! The short form of the exactness harness (tests/support/exact) with thresholds: programs
//! of each kind, stepped through from their first to their last instruction. The long form
//! is `cargo bench --bench exact`.

#[path = "../support/exact/mod.rs"]
mod exact;

/// `auto` and `cfi` over all programs with unwind information: least share of exact boundaries. Over `auto`, `cfi` and
/// `fp`, and for each program: most of boundaries that are wrong and claim to be complete.
const EXACT_MIN: f64 = 0.999;
const WRONG_MAX: f64 = 0.0001;

#[test]
fn stacks_are_exact_at_every_instruction() {
    if !exact::permitted() {
        return crate::skip::skip("ptrace is not permitted here");
    }
    // Parts of programs' names, to run only those.
    let filters = std::env::var("STACKPROF_EXACT").unwrap_or_default();
    let filters: Vec<String> = filters.split_whitespace().map(str::to_owned).collect();
    let (programs, left_out) = exact::programs::build(true, &filters);
    left_out.iter().for_each(|why| crate::skip::skip(why));
    assert!(!filters.is_empty() || programs.len() >= 4, "too few programs could be built: {left_out:?}");
    let outcomes = exact::run_all(&programs);
    let table = exact::report::table(&outcomes);
    println!("{table}");
    println!("{}", exact::report::classes(&outcomes));
    let share = |part: u64, score: &exact::Score| part as f64 / score.all().max(1) as f64;
    for ((name, outcome), program) in outcomes.iter().zip(&programs) {
        assert_eq!(outcome.untrue, 0, "{name}: frames of the shadow stack that are not in code");
        for (way, score) in outcome.scores.iter().enumerate() {
            let (how, worst) = (exact::WAYS[way].0, || exact::report::worst(&outcomes, way));
            let wrong = share(score.wrong, score);
            // Where nothing but the code itself tells, no claim may be wrong.
            let wrong_max = if program.is_described() { WRONG_MAX } else { 0.0 };
            assert!(wrong <= wrong_max, "{name} by {how}: {wrong} complete but wrong\n{}", worst());
            let exact = share(score.exact, score);
            assert!(how == "fp" || exact >= program.exact_min, "{name} by {how}: {exact} exact\n{}", worst());
        }
        // The harness itself: frame pointers alone cannot be right in all of it.
        assert!(outcome.scores[0].exact < outcome.scores[0].all(), "{name}");
    }
    let of_described = outcomes.into_iter().zip(&programs).filter(|(_, program)| program.is_described());
    let described: Vec<_> = of_described.map(|(outcome, _)| outcome).collect();
    for (way, score) in exact::report::sum(&described).iter().enumerate().skip(1) {
        let (how, all) = (exact::WAYS[way].0, score.all());
        if !filters.is_empty() {
            break;
        }
        assert!(all > 500_000, "only {all} boundaries were compared");
        let exact = share(score.exact, score);
        let worst = exact::report::worst(&described, way);
        assert!(exact >= EXACT_MIN, "{how}: {exact} exact\n{table}{worst}");
    }
}
