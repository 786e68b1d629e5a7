//! Programs under a seccomp filter that forbids `restart_syscall`, by which the kernel continues a wait that
//! a stop interrupts: each wait ends as without a profiler, and nothing is killed.

use crate::support::{
    Fixture, assert_untouched, attach, kill, live, numbers, proc_status, record, stackprof, wait_for,
};

/// Ways in which `filtered` waits.
const WAITS: [&str; 11] = [
    "nanosleep",
    "rest",
    "same",
    "clock",
    "absolute",
    "poll",
    "futex",
    "select",
    "epoll",
    "semaphore",
    "condition",
];
const OFTEN: [&str; 4] = ["--source", "ptrace", "--hz", "5000"];
const IDLE: [&str; 5] = ["--source", "ptrace", "--hz", "997", "--idle"];

/// Runs `filtered` to its end with the profiler attached; returns its counters.
#[track_caller]
fn run(arguments: &[&str], options: &[&str]) -> std::collections::HashMap<String, u64> {
    let mut target = Fixture::start("filtered", arguments);
    target.line("ready");
    let filtered = arguments[3] != "none";
    assert_eq!(proc_status(target.pid(), "Seccomp").as_deref(), Some(if filtered { "2" } else { "0" }));
    let running = attach(target.pid(), options);
    target.go();
    let said = target.done().join(" ");
    let recorded = running.interrupt();
    assert_untouched(target.pid(), arguments.join(" "));
    let (status, _) = target.finish();
    assert!(status.success(), "{arguments:?} {options:?}: {status}");
    // If it waits all the time, there may be no sample.
    assert!(matches!(recorded.status.code(), Some(0 | 4)), "{:?}: {}", recorded.status, recorded.stderr);
    let said = numbers(&said);
    assert_eq!(
        (said["early"], said["failed"], said["trapped"]),
        (0, 0, 0),
        "{arguments:?} {options:?}: {said:?}"
    );
    said
}

#[test]
fn waits_under_a_filter_end_as_without_a_profiler() {
    if !live() {
        return;
    }
    for how in WAITS {
        // They begin during the stop. Those in whole milliseconds cannot be shorter.
        let us = if matches!(how, "poll" | "epoll") { "1000" } else { "50" };
        run(&[how, "100", us, "kill"], &OFTEN);
        // A wait restarted in full at each ignored signal would never end.
        run(&[how, "2", "20000", "kill", "12", "2000"], &OFTEN);
        // Recorded without a stop.
        run(&[how, "1", "20000", "kill", "12", "2000"], &IDLE);
    }
    // A signal that is ignored by default, and one that otherwise ends a stop by job control.
    for signal in ["28", "18"] {
        run(&["nanosleep", "2", "20000", "kill", signal, "2000"], &OFTEN);
    }
    // epoll_wait fails with EINTR when woken, with any filter.
    run(&["epoll", "10", "10000", "none", "18", "2000"], &OFTEN);
    for action in ["errno", "trap", "none"] {
        run(&["nanosleep", "500", "50", action], &OFTEN);
        run(&["poll", "3", "20000", action, "12", "2000"], &OFTEN);
    }
    for how in ["nanosleep", "clock", "poll", "futex", "epoll"] {
        // The sender of the signals may get no CPU for a while.
        wait_for(format!("a handler to end a wait, {how}"), || {
            run(&[how, "10", "10000", "kill", "10", "3000"], &OFTEN)["interrupted"] > 0
        });
    }
    // Without a filter multithreaded programs are traced.
    for second in ["before", "after"] {
        run(&["nanosleep", "20", "5000", "none", "12", "2000", second], &OFTEN);
    }
}

/// Whether the message explains that the program has a filter and several threads.
fn says_why(stderr: &str, pid: u32) -> bool {
    let why =
        format!("cannot trace pid {pid}: it has a seccomp filter and several threads, and a stop could");
    stderr.contains(&why) && stderr.contains(&format!("sudo stackprof --source perf --pid {pid}"))
}

#[test]
fn multithreaded_programs_under_a_filter_are_refused() {
    if !live() {
        return;
    }
    // The kernel may wake one thread for a signal that another one takes: then nothing stops.
    let mut target = Fixture::start("filtered", ["nanosleep", "20", "5000", "kill", "12", "50", "before"]);
    target.line("ready");
    let pid = target.pid();
    target.go();
    let recorded = record([&["--pid", &pid.to_string()], &OFTEN[..]].concat()).wait();
    recorded.check(recorded.status.code() == Some(1) && says_why(&recorded.stderr, pid), "not refused");
    let said = numbers(&target.done().join(" "));
    assert_eq!((said["failed"], said["trapped"]), (0, 0), "{said:?}");
    assert!(target.finish().0.success());

    for how in WAITS {
        let mut target = Fixture::start("filtered", [how, "100000", "200000", "kill"]);
        target.line("ready");
        target.go();
        let pid = target.pid();
        wait_for("the wait", || {
            std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|text| !text.starts_with("0 "))
        });
        // Until one has its complete stack: it works for a moment between waits.
        wait_for(format!("a whole stack in {how}"), || {
            let output = stackprof().args(["dump", "stacks", "--pid", &pid.to_string()]).output().unwrap();
            let (said, stacks) =
                (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
            assert_eq!((output.status.code(), &*said), (Some(0), ""), "{how}: {stacks}");
            stacks.contains("(filtered) waiting\n") && stacks.contains("  main\n")
        });
        assert_untouched(pid, how);
        kill("KILL", pid);
        let (status, _) = target.finish();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{how}: {status}");
    }
}
