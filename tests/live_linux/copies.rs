//! Stacks that an ordinary copy does not contain, by both sources: untouched pages, frames larger than any
//! record, words below the stack pointer, callers far above; fibers, realigned frames, leaves without a
//! frame, threads of musl. A complete stack always has all of its frames; `scripts/measure` measures how many
//! are complete.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{
    Recorded, Stack, built_once, compile, installed, launch, live, not_here, record_until, sampled, sources,
};

/// A case: its program, a condition for each complete stack, and one for the expected stack.
struct Case<'a> {
    name: &'a str,
    program: PathBuf,
    arguments: &'a [&'a str],
    is_right: fn(&Stack) -> bool,
    shows: fn(&Stack) -> bool,
}

/// Records a case until the expected stack appears; every complete one is correct.
#[track_caller]
fn check(case: &Case<'_>, options: &[&str]) -> Recorded {
    let Case { name, program, arguments, is_right, shows } = case;
    let recorded = || {
        let recorded = launch(&[&["--hz", "997"], options].concat(), program, arguments);
        recorded.check_none(format!("{name}: complete, but wrong"), |stack| {
            stack.is_complete() && !is_right(stack)
        });
        recorded
    };
    record_until(name, recorded, |recorded| recorded.shows(|stack| stack.is_complete() && shows(stack)))
}

/// Frames above the large one of `deep_frame`.
const OUTER: usize = 21;

/// A frame larger than any copy: a complete stack has all frames above, and nothing of another thread.
fn is_right_when_deep(stack: &Stack) -> bool {
    let at = |name: &str| stack.frames.iter().position(|frame| frame == name);
    if stack.has("deep_frame") {
        let places = ["start_deep", "outer", "deep_frame"].map(at);
        return stack.times("outer") == OUTER
            && places.is_sorted()
            && !stack.has("ordinary")
            && !stack.has("start_ordinary");
    }
    !stack.has("ordinary") || stack.has("start_ordinary") && !stack.has("outer")
}

#[test]
fn stacks_beyond_the_copy_are_complete() {
    const FLAGS: [&str; 5] = ["-O1", "-g", "-pthread", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let deep = Case {
        name: "a frame larger than any copy",
        program: compile("deep_frame", "deep", &FLAGS),
        arguments: &["0.15"],
        is_right: is_right_when_deep,
        shows: |stack| stack.has("deep_frame"),
    };
    if live() {
        for stop in ["2", "100"] {
            check(&deep, &["--source", "ptrace", "--max-stop", stop]);
        }
    }
    if !sampled() {
        return;
    }
    let of_frame = |stack: &Stack| !stack.has("busy_leaf") || stack.has("with_large_frame");
    let recorded = check(
        &Case {
            name: "pages that were never touched",
            program: compile("large_frame", "large_frame", &["-fno-stack-clash-protection"]),
            arguments: &["0.3"],
            is_right: of_frame,
            shows: |stack| stack.has("with_large_frame"),
        },
        &["--source", "perf"],
    );
    if recorded.stats["backend_why"] != "user and kernel, on each CPU" {
        return not_here("no program is taken by the kernel without rights over the machine");
    }
    check(&deep, &["--source", "perf"]);
    let flags = ["-fno-stack-clash-protection", "-DFRAME_BYTES=150000"];
    check(
        &Case {
            name: "a frame larger than a record",
            program: compile("large_frame", "larger_frame", &flags),
            arguments: &["0.3"],
            is_right: of_frame,
            shows: |stack| stack.has("with_large_frame"),
        },
        &["--source", "perf"],
    );
    if cfg!(target_arch = "x86_64") {
        check(
            &Case {
                name: "a row that reads below a stack pointer that moves",
                program: frames(),
                arguments: &["moving"],
                is_right: |stack| stack.leaf() != "below" || stack.has_path(&["main", "moving", "below"]),
                shows: |stack| stack.leaf() == "below",
            },
            &["--source", "perf"],
        );
    }
}

fn frames() -> PathBuf {
    compile("frames", "frames", &["-O1", "-g", "-pthread"])
}

fn in_fiber(stack: &Stack) -> bool {
    stack.frames.get(1).is_some_and(|frame| frame == "[fiber]")
}

/// gcc's code for a leaf function, with or without frame pointers. On aarch64 the caller of the leaf is only
/// in the link register.
fn is_deep_leaf(stack: &Stack) -> bool {
    !stack.leaf().starts_with("leaf_") || stack.times("recurse") == 20
}

#[test]
fn callers_of_unusual_frames_are_found() {
    if !live() {
        return;
    }
    let all = |_: &Stack| true;
    let mut cases = vec![
        Case {
            name: "a realigned frame larger than the first copy",
            program: frames(),
            arguments: &["large"],
            is_right: |stack| !stack.has("work") || stack.has("large") && stack.has("main"),
            shows: |stack| stack.has("work"),
        },
        Case {
            name: "leaves without a frame",
            program: compile("shares", "shares_bare", &["-DBARE_LEAVES", "-momit-leaf-frame-pointer"]),
            arguments: &["0.15", "20"],
            is_right: is_deep_leaf,
            shows: |stack| stack.leaf() == "leaf_50",
        },
    ];
    if cfg!(target_arch = "x86_64") {
        cases.extend([
            Case {
                name: "a fiber",
                program: frames(),
                arguments: &["fiber"],
                is_right: |stack| {
                    !stack.has("work") || in_fiber(stack) && stack.has("first") && stack.has("nest")
                },
                shows: |stack| stack.has("work"),
            },
            Case {
                name: "a context of makecontext",
                program: frames(),
                arguments: &["context"],
                is_right: |stack| {
                    !stack.has("work") || in_fiber(stack) && stack.has("body") && stack.times("deep") == 5
                },
                shows: |stack| stack.has("work"),
            },
            Case {
                name: "a row that reads below the stack pointer",
                program: frames(),
                arguments: &["below"],
                is_right: |stack| stack.leaf() != "below" || stack.has("main"),
                shows: |stack| stack.leaf() == "below",
            },
        ]);
    }
    if let Some(program) = musl() {
        cases.push(Case {
            name: "threads of musl",
            program,
            arguments: &[],
            is_right: all,
            shows: |stack| stack.has("of_thread") && stack.has("__clone"),
        });
    }
    for case in &cases {
        check(case, &["--source", "ptrace"]);
    }
    if cfg!(target_arch = "aarch64") {
        check_signed();
    }
}

fn musl() -> Option<PathBuf> {
    let compiler = installed(&["musl-gcc"])?;
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sorting.c");
    let built = built_once("sorting_musl", |into| {
        let mut build = Command::new(&compiler);
        let output =
            build.args(["-O2", "-static", "-o"]).arg(into).arg(&source).arg("-pthread").output().unwrap();
        assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    });
    Some(built.unwrap())
}

/// From a function's prologue on, the link register and the word on the stack have a signature above the
/// address bits; in a leaf without a frame only the register, all the time.
fn check_signed() {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    if !processor.split_whitespace().any(|feature| feature == "paca") {
        return not_here("this processor signs no return addresses");
    }
    let signed = "-mbranch-protection=pac-ret+leaf";
    let framed = compile("shares", "shares_signed", &[signed]);
    let bare =
        compile("shares", "shares_signed_bare", &[signed, "-DBARE_LEAVES", "-momit-leaf-frame-pointer"]);
    for source in sources() {
        for (program, unwind) in [(&framed, "auto"), (&framed, "fp"), (&bare, "auto")] {
            let case = Case {
                name: "signed return addresses",
                program: program.clone(),
                arguments: &["0.15", "20"],
                is_right: is_deep_leaf,
                shows: |stack| stack.leaf() == "leaf_50",
            };
            check(&case, &["--source", source, "--no-kernel", "--unwind", unwind]);
        }
    }
}
