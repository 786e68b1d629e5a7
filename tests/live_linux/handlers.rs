//! Stacks whose callers are not where a walk looks for them: a signal handler on a stack of its
//! own, a leaf made at run time that keeps no frame record. They are never called complete, and
//! the reason is the right one.

use std::process::Command;

use crate::support::{Fixture, Recorded, attach, live, not_here, try_compile};
#[cfg(target_arch = "x86_64")]
use crate::support::{Stack, compile, launch};

/// The counts of stacks that are incomplete for a reason.
fn incomplete(recorded: &Recorded, reason: &str) -> u64 {
    recorded.stats["stacks_incomplete"][reason].as_u64().unwrap_or(0)
}

/// Records a handler that takes all the time, with its stack in each kind of memory.
#[track_caller]
fn check_handlers(name: &str, flags: &[&str], unwind: &str) -> Option<Recorded> {
    let mut last = None;
    for memory in ["static", "heap", "thread"] {
        let program = match try_compile("handlers", name, flags) {
            Ok(program) => program,
            Err(why) => {
                not_here(&why);
                return None;
            }
        };
        // Attached to before the handler runs: of a program that begins a stack may come before the C library
        // is known, is torn there, and stands for however long the machine held it up.
        let mut target = Fixture::run(Command::new(program).args([memory, "go"]));
        target.line("ready");
        let running = attach(target.pid(), &["--hz", "997", "--unwind", unwind]);
        target.go();
        let recorded = running.wait();
        assert!(target.finish().0.success());
        recorded.check_success();
        let handlers = recorded.count(|stack| stack.has("handle"));
        recorded.check(handlers > 100, format!("{memory}: the handler has {handlers} counts"));
        let elsewhere = incomplete(&recorded, "goes on on another stack");
        recorded.check(elsewhere * 100 >= handlers * 95, format!("{memory}: {elsewhere} of {handlers}"));
        let torn = incomplete(&recorded, "bad frame");
        recorded.check(torn == 0, format!("{memory}: {torn} bad frames"));
        let advises = recorded.stderr.contains("of the incomplete stacks end in");
        recorded.check(!advises, format!("{memory}: no rebuilding helps"));
        last = Some(recorded);
    }
    last
}

const FLAGS: [&str; 4] = ["-O1", "-g", "-fno-omit-frame-pointer", "-pthread"];

#[test]
fn a_handler_on_a_stack_of_its_own_is_no_bad_frame() {
    let Some(_one) = live() else { return };
    check_handlers("handlers", &FLAGS, "auto");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_trampoline_of_signals_has_its_own_name() {
    let Some(_one) = live() else { return };
    let flags = [&FLAGS[..], &["-static"]].concat();
    for unwind in ["auto", "fp"] {
        let Some(recorded) = check_handlers("handlers_static", &flags, unwind) else { return };
        let handlers = recorded.count(|stack| stack.has("handle"));
        let named = recorded.count(|stack| stack.has("handle") && stack.has("__restore_rt"));
        recorded.check(named * 100 >= handlers * 95, format!("{unwind}: {named} of {handlers} are named"));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_leaf_made_at_run_time_without_a_record_is_followed_to_its_return() {
    let Some(_one) = live() else { return };
    let program = compile("handlers", "handlers_made", &["-O0"]);
    let recorded = launch(&["--hz", "997"], &program, &["made"]);
    recorded.check_success();
    // No file has the leaf's code.
    let complete =
        |stack: &Stack| stack.leaf() == "[unknown]" && stack.has("main") && !stack.has("[incomplete]");
    let whole = recorded.count(|stack| complete(stack) && stack.has("call_made"));
    recorded.check(whole > 100, format!("only {whole} counts are complete with the leaf's caller"));
    // Its caller is missing, whose frame record was taken for its own.
    let wrong = recorded.count(|stack| complete(stack) && !stack.has("call_made"));
    recorded.check(wrong == 0, format!("{wrong} are called complete without the leaf's caller"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_that_do_nothing_but_call_are_proved_and_named() {
    let Some(_one) = live() else { return };
    let program = compile("handlers", "handlers_wrapped", &["-O1", "-fomit-frame-pointer"]);
    for (source, kind) in [("auto", "wrapped"), ("ptrace", "dumped")] {
        let recorded = launch(&["--hz", "997", "--source", source], &program, &[kind]);
        let pid = recorded.figure("pid");
        std::fs::remove_file(match kind {
            "dumped" => program.with_file_name(format!("jit-{pid}.dump")),
            _ => format!("/tmp/perf-{pid}.map").into(),
        })
        .unwrap();
        recorded.check_success();
        let burning = recorded.count(|stack| stack.has("evaluate"));
        recorded.check(burning > 100, format!("{source}: {burning} counts"));
        let of = ["main", "call_wrapped", "evaluate", "wrapper 0", "evaluate", "wrapper 1", "evaluate"];
        let whole = |stack: &Stack| {
            let from = stack.frames.iter().position(|name| name == "main");
            from.is_some_and(|from| stack.frames[from..].starts_with(&of.map(str::to_owned)))
        };
        let right = recorded.count(|stack| whole(stack) && !stack.has("[incomplete]"));
        recorded.check(right * 100 >= burning * 99, format!("{source}: {right} of {burning} are whole"));
    }
}
