//! Stacks deeper than any copy: the words above are prefetched, by both sources. No complete stack is wrong,
//! whatever the machine's load.

use std::path::PathBuf;

use crate::by_kernel::sampled;
use crate::support::{Recorded, compile, launch, live, not_here};

/// Frames above the large one, as the fixture makes them.
const OUTER: usize = 21;

fn fixture() -> PathBuf {
    let flags = ["-O1", "-g", "-pthread", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    compile("deep_frame", "deep", &flags)
}

/// Some stacks lead through the large frame, and each of them has all frames above; ordinary threads are whole.
fn check(recorded: &Recorded) {
    recorded.check_success();
    let whole = |name: &'static str| {
        recorded.stacks.iter().filter(move |stack| stack.has(name) && !stack.has("[incomplete]"))
    };
    for stack in whole("deep_frame") {
        let outer = stack.frames.iter().filter(|frame| *frame == "outer").count();
        let places =
            ["start_deep", "outer", "deep_frame"].map(|name| stack.frames.iter().position(|f| f == name));
        recorded.check(outer == OUTER && places.is_sorted(), format!("{stack:?} is wrong"));
        recorded.check(!stack.has("ordinary") && !stack.has("start_ordinary"), format!("{stack:?} is wrong"));
    }
    for stack in whole("ordinary") {
        recorded.check(stack.has("start_ordinary") && !stack.has("outer"), format!("{stack:?} is wrong"));
    }
    let count = |name| whole(name).map(|stack| stack.count).sum::<u64>();
    recorded.check(count("deep_frame") > 0, "no stack leads through the large frame");
    recorded.check(count("ordinary") > 0, "no stack of an ordinary thread is whole");
}

#[test]
fn a_frame_larger_than_any_copy_is_walked_through_by_the_kernels_samples() {
    let Some(_one) = sampled() else { return };
    let recorded = launch(&["--source", "perf", "--hz", "997"], &fixture(), &["2"]);
    if recorded.stats["backend_why"] != "user and kernel, on each CPU" {
        return not_here("no program is taken by the kernel without rights over the machine");
    }
    check(&recorded);
}

#[test]
fn a_frame_larger_than_any_copy_is_walked_through_by_stops() {
    let Some(_one) = live() else { return };
    for stop in ["2", "100"] {
        check(&launch(&["--source", "ptrace", "--hz", "499", "--max-stop", stop], &fixture(), &["2"]));
    }
}
