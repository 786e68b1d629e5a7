//! Stacks with callers in unusual places: a signal handler on an alternate stack, a coroutine, a leaf of JIT
//! code without a frame record. They are called complete only if everything they depend on was read, and
//! otherwise have the right reason.

use std::process::Command;

use crate::support::{
    Fixture, Stack, attach, compile, launch, live, not_here, record_until, sources, try_compile,
};

const FLAGS: [&str; 4] = ["-O1", "-g", "-fno-omit-frame-pointer", "-pthread"];
const ELSEWHERE: &str = "continues on another stack";

/// Whether a stack leads from a function to everything that raised the signal, and to the thread's start.
fn is_whole(stack: &Stack, function: &str) -> bool {
    let begins = ["_start", "clone3", "clone", "__clone", "__clone3", "thread_start"];
    let begins = stack.frames.iter().any(|name| begins.contains(&name.as_str()));
    stack.has(function) && stack.times("deep") == 6 && begins && stack.is_complete()
}

/// A handler that runs all the time, with its stack in each kind of memory; also in a static program, with a
/// named signal trampoline.
#[test]
fn handlers_on_alternate_stacks_lead_to_the_interrupted_code() {
    if !live() {
        return;
    }
    let mut programs = vec![(compile("handlers", "handlers", &FLAGS), "auto")];
    if cfg!(target_arch = "x86_64") {
        match try_compile("handlers", "handlers_static", &[&FLAGS[..], &["-static"]].concat()) {
            Ok(program) => programs.extend([(program.clone(), "auto"), (program, "fp")]),
            Err(why) => not_here(&why),
        }
    }
    for (program, unwind) in &programs {
        let is_static = program.ends_with("handlers_static");
        for (memory, source) in ["static", "heap", "thread"]
            .iter()
            .flat_map(|memory| sources().iter().map(move |source| (memory, source)))
        {
            let by = if *unwind == "fp" { "perf" } else { "ptrace" };
            if is_static && (*memory != "thread" || *source != by) {
                continue;
            }
            let recorded = || {
                // Attached to before the handler runs: during a program's startup a stack may be incomplete,
                // before the C library is known.
                let mut target = Fixture::run(Command::new(program).args([memory, "go"]));
                target.line("ready");
                let running = attach(target.pid(), &["--hz", "997", "--unwind", unwind, "--source", source]);
                target.go();
                let recorded = running.wait();
                assert!(target.finish().0.success());
                // Frame pointers alone do not lead out of a C library built without them: a sample of the
                // thread's start, before the handler runs, may be incomplete.
                let before = recorded.count(|stack| !stack.is_complete() && !stack.has("handle"));
                let broken = recorded.incomplete("broken frame chain");
                recorded.check(broken <= before, "broken frame chains of the handler");
                let advises = recorded.stderr.contains("of the incomplete stacks end in");
                recorded.check(!advises, "no rebuilding helps");
                recorded.check_none("lacks what raised the signal", |stack| {
                    stack.has("handle") && stack.is_complete() && !is_whole(stack, "handle")
                });
                recorded
            };
            // Kernel samples include words of the other stack if a BPF program may be loaded that reads them;
            // frame pointers alone do not lead there.
            let must_lead = *source == "ptrace" && *unwind == "auto" && cfg!(target_arch = "x86_64");
            let what = format!("the handler's callers, {memory}, {source}, {unwind}");
            record_until(&what, recorded, |recorded| {
                let elsewhere = !must_lead && recorded.incomplete(ELSEWHERE) > 0;
                let led = elsewhere || recorded.shows(|stack| is_whole(stack, "handle"));
                led && (!is_static
                    || recorded.shows(|stack| stack.has("handle") && stack.has("__restore_rt")))
            });
        }
    }
}

#[test]
fn stacks_that_continue_elsewhere_are_followed_or_incomplete() {
    if !live() {
        return;
    }
    let program = compile("handlers", "handlers_coroutine", &FLAGS);
    for source in sources() {
        for kind in ["coroutine", "masked"] {
            let recorded = || {
                let recorded = launch(&["--hz", "997", "--source", source], &program, &[kind]);
                recorded.check_none("leads on to frames that are gone", |stack| {
                    stack.has("run_coroutine") && stack.is_complete()
                });
                recorded
            };
            let of_coroutine = |stack: &Stack| stack.has("run_coroutine");
            record_until(kind, recorded, |recorded| {
                recorded.shows(of_coroutine) && recorded.incomplete(ELSEWHERE) > 0
            });
        }
    }
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let called = ["main", "call_deep", "call_deep", "call_deep", "call_deep", "call_on_stack", "run_called"];
    let recorded = || launch(&["--hz", "997", "--source", "ptrace"], &program, &["called"]);
    record_until("a function that was called on another stack", recorded, |recorded| {
        recorded.shows(|stack| stack.has_path(&called) && stack.is_complete())
    });

    // No file has the leaf's code; its caller's frame record is not its own.
    let unknown = |stack: &Stack| stack.leaf() == "[unknown]" && stack.has("main") && stack.is_complete();
    let program = compile("handlers", "handlers_made", &["-O0"]);
    for source in sources() {
        let recorded = || {
            let recorded = launch(&["--hz", "997", "--source", source], &program, &["made"]);
            recorded.check_none("the leaf's caller is missing", |stack| {
                unknown(stack) && !stack.has("call_made")
            });
            recorded
        };
        record_until("a leaf of JIT code", recorded, |recorded| recorded.shows(unknown));
    }

    // JIT functions that only call are proved by their instructions, and named by files.
    let program = compile("handlers", "handlers_wrapped", &["-O1", "-fomit-frame-pointer"]);
    let wrapped = ["main", "call_wrapped", "evaluate", "wrapper 0", "evaluate", "wrapper 1", "evaluate"];
    for (source, kind) in sources().iter().zip(["dumped", "wrapped"]) {
        let recorded = || {
            let recorded = launch(&["--hz", "997", "--source", source], &program, &[kind]);
            if recorded.is_empty() {
                return recorded;
            }
            let pid = recorded.figure("pid");
            std::fs::remove_file(match kind {
                "dumped" => program.with_file_name(format!("jit-{pid}.dump")),
                _ => format!("/tmp/perf-{pid}.map").into(),
            })
            .unwrap();
            recorded
        };
        record_until(kind, recorded, |recorded| {
            recorded.shows(|stack| stack.has_path(&wrapped) && stack.is_complete())
        });
    }
}
