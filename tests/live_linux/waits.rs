//! Waits of threads, by the kernel's records of context switches: each is recorded under the function that
//! waits, without a stop. Their lengths are compared on a simulated kernel and by `scripts/measure`.

use std::path::PathBuf;

use crate::support::{
    Fixture, Recorded, attach, compile, fixture, has_events, launch, not_here, record, record_until, sampled,
    tracer_of, wait_for, wait_for_ticks,
};

const KINDS: [&str; 6] = ["nanosleep", "mutex", "futex", "read", "epoll", "fault"];

/// Whether each kind of wait that the program reports is recorded.
fn shows_waits(recorded: &Recorded, said: &[String]) -> bool {
    recorded.check(recorded.stats["backend"] == "perf_event", "not by the kernel");
    recorded.check(recorded.figure("stops") == 0.0, "it was stopped");
    let was_there = |kind: &str| {
        let had = said.iter().any(|line| {
            line.strip_prefix("wait ")
                .and_then(|rest| rest.strip_prefix(kind))
                .is_some_and(|rest| rest != " 0 0")
        });
        if !had {
            assert_eq!(kind, "fault");
            not_here("a page fault that waits: userfaultfd is refused");
        }
        had
    };
    let function = |kind: &str| format!("wait_in_{kind}");
    KINDS.iter().filter(|kind| was_there(kind)).all(|kind| recorded.shows(|stack| stack.has(&function(kind))))
}

/// The thread that sleeps since before the recording has its complete stack, without a stop.
fn shows_sleeper(recorded: &Recorded) -> bool {
    recorded.shows(|stack| stack.has("asleep_throughout") && stack.has("start_thread") && stack.is_complete())
}

fn attached(program: &PathBuf, options: &[&str]) -> (Recorded, Vec<String>) {
    let mut target = Fixture::run(std::process::Command::new(program).args(["4", "10"]));
    target.line("ready");
    let running = attach(target.pid(), &[&["--source", "perf", "--hz", "997"], options].concat());
    target.go();
    assert_eq!(tracer_of(target.pid()), 0, "it is traced");
    let said = target.done();
    (running.interrupt(), said)
}

#[test]
fn each_wait_is_recorded_under_its_function() {
    if !sampled() {
        return;
    }
    // The stack of a program, with or without frame pointers, needs no more than /proc shows of a sleeping
    // thread.
    let bare = compile("sleeps", "sleeps_bare", &["-fomit-frame-pointer"]);
    let mut cases = vec![(bare, &["--off-cpu"][..])];
    if cfg!(target_arch = "x86_64") {
        cases.push((fixture("sleeps"), &["--idle", "--no-kernel"]));
    }
    for (program, options) in cases {
        let said = std::cell::RefCell::new(Vec::new());
        let record = || {
            let (recorded, lines) = attached(&program, options);
            said.replace(lines);
            recorded
        };
        record_until("all waits", record, |recorded| {
            shows_waits(recorded, &said.borrow()) && shows_sleeper(recorded)
        });
    }

    // A command with its children: each process waits under its own name.
    let script = format!("(sleep 0.1; echo go) | {} 2 5", fixture("sleeps").display());
    let options = ["--source", "perf", "--hz", "997", "--off-cpu"];
    let launched = || launch(&options, "/bin/sh".as_ref(), &["-c", &script]);
    let recorded = record_until("the waits of its processes", launched, |recorded| {
        recorded.shows(|stack| stack.frames[0] == "sleep")
            && recorded.shows(|stack| stack.frames[0] == "sleeps" && stack.has("wait_in_read"))
    });
    recorded.check(recorded.figure("processes_seen") >= 3.0, "its processes are not there");

    // The whole machine: kernel threads and idle CPUs do not count as waits.
    let of_machine = || {
        let mut target = Fixture::start("sleeps", ["4", "10"]);
        target.line("ready");
        let running = record(["--source", "perf", "-a", "--off-cpu", "--hz", "997"]);
        wait_for("the events", || has_events(running.pid()));
        wait_for_ticks("the machine", running.pid());
        target.go();
        target.done();
        let recorded = running.interrupt();
        recorded.check_none("of the kernel's own threads", |stack| {
            stack.frames[0].starts_with('[') || stack.frames[0].starts_with("swapper")
        });
        recorded
    };
    record_until("the waits of a program", of_machine, |recorded| {
        shows_sleeper(recorded) && recorded.shows(|stack| stack.has("wait_in_nanosleep"))
    });
}
