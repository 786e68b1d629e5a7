//! Shares: four functions of known weight get it in every form of output, whether the
//! program was attached to or launched, and stacks are whole.

use crate::support::{Fixture, Recorded, Stack, attach, compile, fixture, launch, live, points};

const DEPTH: usize = 20;
const SHARES: [(&str, f64); 4] = [("leaf_50", 50.0), ("leaf_30", 30.0), ("leaf_15", 15.0), ("leaf_5", 5.0)];

#[track_caller]
fn check_shares(recorded: &Recorded, form: &str, share_of: impl Fn(&str) -> f64) {
    for (name, expected) in SHARES {
        let share = share_of(name);
        println!("{form}: {name} {share:.2} %");
        let off = (share - expected).abs();
        recorded.check(
            off <= points(expected, recorded.stacks_taken()),
            format!("{form}: {name} has {share:.2} %"),
        );
    }
}

/// Process name, what calls main, main, the recursion, a leaf; nothing else.
fn is_whole(stack: &Stack) -> bool {
    let mut frames = stack.frames.iter().map(String::as_str);
    let main = stack.frames.iter().position(|frame| frame == "main");
    let Some(main) = main else { return false };
    frames.next() == Some("shares")
        // Before main is only the C library's start.
        && main <= 4
        && stack.frames[1..main].iter().all(|frame| frame.contains("start") || frame.contains("libc"))
        && stack.frames[main + 1..].iter().take_while(|frame| *frame == "recurse").count() <= DEPTH
        && (stack.frames[main + 1..].iter().skip_while(|frame| *frame == "recurse").count() <= 1
            // Between turns it reads the clock.
            || stack.frames[main + 1..].iter().all(|frame| frame.contains("clock_gettime")))
}

#[track_caller]
fn check_profile(recorded: &Recorded) {
    recorded.check_success();
    let total = recorded.total() as f64;
    check_shares(recorded, "folded", |name| {
        100.0 * recorded.count(|stack| stack.leaf() == name) as f64 / total
    });
    let frames = recorded.svg_frames();
    check_shares(recorded, "svg", |name| {
        frames.iter().filter(|frame| frame.0 == name).map(|frame| frame.2).sum()
    });
    recorded.check(frames.iter().any(|frame| frame.0 == "main" && frame.2 > 99.0), "main is not in the SVG");
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.995, format!("{complete} of the stacks are complete"));
    recorded.check(recorded.figure("samples") == total, "the statistics count other samples");
    for stack in recorded.stacks.iter().filter(|stack| !stack.has("[incomplete]")) {
        // Before main, at the first moments, there may be others; and behind it, where beside other work one stack
        // may stand for many.
        let is_at_exit = stack.has("exit") && !stack.has("recurse");
        recorded.check(is_whole(stack) || is_at_exit || stack.count < 5, format!("not whole: {stack:?}"));
    }
    check_depth(recorded);
}

/// Leaves are reached through the whole recursion, not through a part of it.
#[track_caller]
fn check_depth(recorded: &Recorded) {
    let depth = |stack: &Stack| stack.frames.iter().filter(|frame| *frame == "recurse").count();
    let in_leaves = recorded.count(|stack| stack.leaf().starts_with("leaf_"));
    let deep = recorded.count(|stack| stack.leaf().starts_with("leaf_") && depth(stack) == DEPTH);
    recorded.check(deep * 1000 >= in_leaves * 995, format!("{deep} of {in_leaves} at depth {DEPTH}"));
}

#[test]
fn shares_are_right_when_attached() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("shares", ["8", "20"]);
    target.line("ready");
    let recorded = attach(target.pid(), &["--hz", "997", "--duration", "5"]).wait();
    check_profile(&recorded);
    recorded.check(recorded.stats["exit_status"].is_null(), "an exit status although attached");
}

#[test]
fn shares_are_right_when_launched() {
    let Some(_one) = live() else { return };
    let recorded = launch(&["--hz", "997"], &fixture("shares"), &["3", "20"]);
    check_profile(&recorded);
    recorded.check(recorded.stats["exit_status"] == 0, "the exit status is not 0");
}

/// What gcc makes of a leaf function by itself, frame pointers asked for or not. On aarch64 the
/// caller of such a leaf is in the link register alone.
#[test]
fn leaf_functions_without_a_frame_keep_their_caller() {
    let Some(_one) = live() else { return };
    let program = compile("shares", "shares_bare", &["-DBARE_LEAVES", "-momit-leaf-frame-pointer"]);
    let recorded = launch(&["--hz", "997"], &program, &["1", "20"]);
    recorded.check_success();
    recorded.check(recorded.total() > 100, "hardly anything was sampled");
    check_depth(&recorded);
}
