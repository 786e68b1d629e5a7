//! Frames whose callers are found in no ordinary way: fibers, rows that read below the stack
//! pointer, frames larger than the first window, exceptions, threads of musl. Their stacks reach
//! the first function and say so.

use std::process::Command;

#[cfg(target_arch = "aarch64")]
use crate::support::Stack;
use crate::support::{Recorded, compile, launch, live, not_here};

/// Checks the part of the stacks that are complete, and which counts have which root frame.
#[track_caller]
fn check(recorded: &Recorded, complete_min: f64, what: &str) {
    recorded.check_success();
    let part = recorded.figure("stacks_complete") / recorded.figure("samples");
    println!("{what}: {part} of the stacks are complete");
    recorded.check(part >= complete_min, format!("{what}: {part} of the stacks are complete"));
}

/// Records `tests/fixtures/frames.c` doing one thing.
#[track_caller]
fn record(kind: &str) -> Recorded {
    let program = compile("frames", "frames", &["-O1", "-g", "-pthread"]);
    launch(&["--hz", "997"], &program, &[kind])
}

/// The counts of stacks that go through `work`, and of those that begin in a fiber.
fn in_fibers(recorded: &Recorded) -> (u64, u64) {
    let works = recorded.count(|stack| stack.has("work"));
    let marked = |name: Option<&String>| name.is_some_and(|name| name == "[fiber]");
    (works, recorded.count(|stack| stack.has("work") && marked(stack.frames.get(1))))
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_stack_of_a_fiber_is_complete_and_marked() {
    let Some(_one) = live() else { return };
    let recorded = record("fiber");
    check(&recorded, 0.9, "fibers");
    let (works, marked) = in_fibers(&recorded);
    recorded.check(works > 100, format!("{works} counts"));
    recorded.check(marked * 100 >= works * 90, format!("{marked} of {works} begin in the fiber"));
    let whole = recorded.count(|stack| stack.has("[fiber]") && stack.has("first") && stack.has("nest"));
    recorded.check(whole * 100 >= works * 90, format!("{whole} of {works} know their callers"));
}

#[test]
fn the_stack_of_a_context_is_marked_as_a_fiber() {
    let Some(_one) = live() else { return };
    if cfg!(not(target_arch = "x86_64")) {
        return not_here("contexts of makecontext are known on x86_64 only");
    }
    let recorded = record("context");
    check(&recorded, 0.9, "contexts");
    let (works, marked) = in_fibers(&recorded);
    recorded.check(works > 100, format!("{works} counts"));
    recorded.check(marked * 100 >= works * 90, format!("{marked} of {works} begin in the context"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_row_may_read_below_the_stack_pointer() {
    let Some(_one) = live() else { return };
    let recorded = record("below");
    check(&recorded, 0.95, "below the stack pointer");
    let whole = recorded.count(|stack| stack.has("main") && stack.leaf() == "below");
    recorded.check(whole * 100 >= recorded.total() * 90, format!("{whole} of {}", recorded.total()));
}

#[test]
fn a_realigned_frame_larger_than_the_window_is_walked_with_a_larger_one() {
    let Some(_one) = live() else { return };
    let recorded = record("large");
    recorded.check_success();
    let whole = recorded.count(|stack| stack.has("main") && stack.has("large") && stack.has("work"));
    recorded.check(whole > 10, format!("{whole} of {} are whole", recorded.total()));
    // Where the budget of stops allows no larger window, that is said.
    let total = recorded.figure("samples");
    let ran_out = recorded.stats["stacks_incomplete"]["deeper than copied"].as_f64().unwrap_or(0.0);
    let known = recorded.figure("stacks_complete") + ran_out;
    recorded.check(known >= total * 0.95, format!("{known} of {total} are whole or ran out of the window"));
}

/// From a function's prologue on, the link register and the word on the stack bear a signature above
/// the bits of the address; of a leaf without a frame the register alone, all the time.
#[test]
#[cfg(target_arch = "aarch64")]
fn signed_return_addresses_are_walked() {
    const DEPTH: usize = 20;
    let Some(_one) = crate::by_kernel::sampled() else { return };
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if !processor.split_whitespace().any(|feature| feature == "paca") {
        return not_here("this processor signs no return addresses");
    }
    let signed = "-mbranch-protection=pac-ret+leaf";
    let framed = compile("shares", "shares_signed", &[signed]);
    let bare =
        compile("shares", "shares_signed_bare", &[signed, "-DBARE_LEAVES", "-momit-leaf-frame-pointer"]);
    for source in ["ptrace", "perf"] {
        for (program, unwind) in [(&framed, "auto"), (&framed, "fp"), (&bare, "auto")] {
            let options = ["--hz", "997", "--source", source, "--no-kernel", "--unwind", unwind];
            let recorded = launch(&options, program, &["0.6", "20"]);
            check(&recorded, 0.98, &format!("signed, {source}, {unwind}"));
            let depth = |stack: &Stack| stack.frames.iter().filter(|frame| *frame == "recurse").count();
            let in_leaves = recorded.count(|stack| stack.leaf().starts_with("leaf_"));
            let deep = recorded.count(|stack| stack.leaf().starts_with("leaf_") && depth(stack) == DEPTH);
            recorded.check(in_leaves > 100, format!("{in_leaves} counts"));
            recorded.check(deep * 100 >= in_leaves * 99, format!("{deep} of {in_leaves} at depth {DEPTH}"));
        }
    }
}

#[test]
fn threads_of_musl_begin_in_its_clone() {
    let Some(_one) = live() else { return };
    let compiler = "musl-gcc";
    if Command::new(compiler).arg("--version").output().is_err() {
        let must = std::env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
        assert!(!must, "STACKPROF_NO_SKIP is set, but there is no {compiler}");
        return not_here(&format!("there is no {compiler}"));
    }
    let into = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    std::fs::create_dir_all(&into).unwrap();
    let built = into.join("sorting_musl");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sorting.c");
    let mut build = Command::new(compiler);
    build.args(["-O2", "-static", "-o"]).arg(&built).arg(&source).arg("-pthread");
    let output = build.output().unwrap();
    assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
    let recorded = launch(&["--hz", "997"], &built, &[""; 0]);
    check(&recorded, 0.95, "threads of musl");
    let threads = recorded.count(|stack| stack.has("of_thread"));
    let begun = recorded.count(|stack| stack.has("of_thread") && stack.has("__clone"));
    recorded.check(threads > 100, format!("{threads} counts"));
    recorded.check(begun * 100 >= threads * 95, format!("{begun} of {threads} begin in __clone"));
}
