//! Stacks whose callers are not where a walk looks for them: a signal handler on a stack of its
//! own, a leaf of JIT code that keeps no frame record. They are called complete only where all is there that
//! they rest on, and else the reason is the right one.

use std::process::Command;

use crate::support::{Fixture, Recorded, Stack, attach, compile, launch, live, not_here, try_compile};

/// The counts of stacks that are incomplete for a reason.
fn incomplete(recorded: &Recorded, reason: &str) -> u64 {
    recorded.stats["stacks_incomplete"][reason].as_u64().unwrap_or(0)
}

/// Whether a stack leads from a function on to all of what raised the signal, and to the thread's beginning.
fn is_whole(stack: &Stack, function: &str) -> bool {
    let raised_by = stack.frames.iter().filter(|name| *name == "deep").count();
    let begins = ["_start", "clone3", "clone", "__clone", "__clone3", "thread_start"];
    let begins = stack.frames.iter().any(|name| begins.contains(&name.as_str()));
    stack.has(function) && raised_by == 6 && begins && !stack.has("[incomplete]")
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
        // The kernel's samples have the words of the other stack where a program may be loaded that reads them.
        let elsewhere = incomplete(&recorded, "continues on another stack");
        let whole = recorded.count(|stack| is_whole(stack, "handle"));
        let told = elsewhere + whole;
        recorded
            .check(told * 100 >= handlers * 95, format!("{memory}: {elsewhere} and {whole} of {handlers}"));
        let torn = incomplete(&recorded, "broken frame chain");
        recorded.check(torn == 0, format!("{memory}: {torn} broken frame chains"));
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
fn a_handler_on_a_stack_of_its_own_leads_to_what_raised_its_signal() {
    let Some(_one) = live() else { return };
    let program = compile("handlers", "handlers_followed", &FLAGS);
    for memory in ["static", "heap", "thread"] {
        let recorded = launch(&["--hz", "997", "--source", "ptrace"], &program, &[memory]);
        recorded.check_success();
        let handlers = recorded.count(|stack| stack.has("handle"));
        recorded.check(handlers > 100, format!("{memory}: the handler has {handlers} counts"));
        let whole = recorded.count(|stack| is_whole(stack, "handle"));
        recorded.check(whole * 100 >= handlers * 90, format!("{memory}: {whole} of {handlers} are whole"));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_function_that_was_called_on_another_stack_leads_to_its_callers() {
    let Some(_one) = live() else { return };
    let program = compile("handlers", "handlers_called", &FLAGS);
    let recorded = launch(&["--hz", "997", "--source", "ptrace"], &program, &["called"]);
    recorded.check_success();
    let called = recorded.count(|stack| stack.has("run_called"));
    recorded.check(called > 100, format!("{called} counts"));
    let of = ["main", "call_deep", "call_deep", "call_deep", "call_deep", "call_on_stack", "run_called"];
    let is_whole = |stack: &Stack| {
        let from = stack.frames.iter().position(|name| name == "main");
        let is_right = from.is_some_and(|from| stack.frames[from..].starts_with(&of.map(str::to_owned)));
        is_right && !stack.has("[incomplete]")
    };
    let whole = recorded.count(is_whole);
    recorded.check(whole * 100 >= called * 90, format!("{whole} of {called} are whole"));
}

#[test]
fn a_coroutine_that_a_signal_made_does_not_lead_to_what_raised_it() {
    let Some(_one) = live() else { return };
    let program = compile("handlers", "handlers_coroutine", &FLAGS);
    for source in ["auto", "ptrace"] {
        for kind in ["coroutine", "masked"] {
            let recorded = launch(&["--hz", "997", "--source", source], &program, &[kind]);
            recorded.check_success();
            let of_coroutine = recorded.count(|stack| stack.has("run_coroutine"));
            recorded.check(of_coroutine > 100, format!("{source}, {kind}: {of_coroutine} counts"));
            let wrong = recorded.count(|stack| stack.has("run_coroutine") && !stack.has("[incomplete]"));
            recorded.check(wrong == 0, format!("{source}, {kind}: {wrong} lead on to frames that are gone"));
            let elsewhere = incomplete(&recorded, "continues on another stack");
            let told = elsewhere * 100 >= of_coroutine * 95;
            recorded.check(told, format!("{source}, {kind}: {elsewhere} of {of_coroutine}"));
        }
    }
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
