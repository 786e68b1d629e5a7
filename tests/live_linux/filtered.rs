//! Programs under a seccomp filter that forbids `restart_syscall`, by which the kernel continues a wait that
//! a stop interrupts: each wait ends as without a profiler, and nobody is killed.

use crate::support::{
    Fixture, assert_untouched, attach, kill, live, numbers, proc_status, record, stackprof, wait_for,
};

/// How `filtered` waits.
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
/// Signals that are ignored: by the program, by default, and one that otherwise ends a stop by job control.
const IGNORED: [&str; 3] = ["12", "28", "18"];
const BY_PTRACE: [&str; 4] = ["--source", "ptrace", "--hz", "5000"];

/// Runs `filtered` to its end, meanwhile attached at: what it counted.
#[track_caller]
fn run(arguments: &[&str], options: &[&str]) -> std::collections::HashMap<String, u64> {
    let mut target = Fixture::start("filtered", arguments);
    target.line("ready");
    let filtered = arguments[3] != "none";
    assert_eq!(proc_status(target.pid(), "Seccomp").as_deref(), Some(if filtered { "2" } else { "0" }));
    let running = attach(target.pid(), options);
    target.go();
    let said = target.done().join(" ");
    println!("{arguments:?} {options:?}: {said}");
    let recorded = running.interrupt();
    assert_untouched(target.pid(), arguments.join(" "));
    let (status, _) = target.finish();
    assert!(status.success(), "{arguments:?} {options:?}: {status}");
    // One that waits all the time may have no sample.
    assert!(matches!(recorded.status.code(), Some(0 | 4)), "{:?}: {}", recorded.status, recorded.stderr);
    let said = numbers(&said);
    assert_eq!((said["early"], said["failed"], said["trapped"]), (0, 0, 0), "{arguments:?} {options:?}");
    said
}

#[test]
fn waits_that_begin_as_the_thread_is_stopped_end_as_always() {
    let Some(_one) = live() else { return };
    for how in WAITS {
        // Those of whole milliseconds are no shorter.
        let us = if matches!(how, "poll" | "epoll") { "1000" } else { "50" };
        run(&[how, "500", us, "kill"], &BY_PTRACE);
    }
}

#[test]
fn filters_that_refuse_or_trap_are_not_met() {
    let Some(_one) = live() else { return };
    for action in ["errno", "trap", "none"] {
        run(&["nanosleep", "2000", "50", action], &BY_PTRACE);
        run(&["poll", "20", "20000", action, "12", "2000"], &BY_PTRACE);
    }
}

#[test]
fn ignored_signals_do_not_end_or_prolong_waits() {
    let Some(_one) = live() else { return };
    for how in WAITS {
        for signal in IGNORED {
            // A wait that began anew at each of them would never end.
            run(&[how, "5", "50000", "kill", signal, "2000"], &BY_PTRACE);
        }
    }
}

#[test]
fn waits_are_recorded_without_a_stop() {
    let Some(_one) = live() else { return };
    for how in WAITS {
        run(&[how, "5", "50000", "kill"], &["--source", "ptrace", "--hz", "997", "--idle"]);
        run(&[how, "5", "50000", "kill", "12", "2000"], &["--source", "ptrace", "--hz", "997", "--idle"]);
    }
}

#[test]
fn handlers_still_end_waits() {
    let Some(_one) = live() else { return };
    for how in ["nanosleep", "clock", "poll", "futex", "epoll"] {
        let said = run(&[how, "50", "20000", "kill", "10", "3000"], &BY_PTRACE);
        assert!(said["interrupted"] > 0, "{how}: {said:?}");
    }
}

#[test]
fn a_signal_that_goes_on_from_no_stop_interrupts_nothing() {
    let Some(_one) = live() else { return };
    // epoll_wait fails with EINTR where it is woken, whatever filter there is.
    run(&["epoll", "20", "20000", "none", "18", "2000"], &BY_PTRACE);
}

/// What is said of a program with a filter and several threads.
fn says_why(stderr: &str, pid: u32) -> bool {
    let why =
        format!("cannot trace pid {pid}: it has a seccomp filter and several threads, and a stop could");
    stderr.contains(&why) && stderr.contains(&format!("sudo stackprof --source perf --pid {pid}"))
}

/// The kernel may wake one thread for a signal that another one takes: nothing stops there.
#[test]
fn a_filtered_program_of_several_threads_is_not_traced() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("filtered", ["nanosleep", "100", "5000", "kill", "12", "50", "before"]);
    target.line("ready");
    let pid = target.pid();
    target.go();
    let recorded = record([&["--pid", &pid.to_string()], &BY_PTRACE[..]].concat()).wait();
    recorded.check(recorded.status.code() == Some(1) && says_why(&recorded.stderr, pid), "not refused");
    let said = numbers(&target.done().join(" "));
    assert_eq!((said["failed"], said["trapped"]), (0, 0), "{said:?}");
    let (status, _) = target.finish();
    assert!(status.success(), "{status}");
}

#[test]
fn an_unfiltered_program_of_several_threads_is_traced() {
    let Some(_one) = live() else { return };
    for second in ["before", "after"] {
        run(&["nanosleep", "100", "5000", "none", "12", "2000", second], &BY_PTRACE);
    }
}

/// Whole stacks of all waits, again and again.
#[test]
fn dumps_leave_waits_alone() {
    let Some(_one) = live() else { return };
    for how in WAITS {
        let mut target = Fixture::start("filtered", [how, "100000", "200000", "kill"]);
        target.line("ready");
        target.go();
        let pid = target.pid();
        wait_for("the wait", || {
            std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|text| !text.starts_with("0 "))
        });
        let mut whole = 0;
        for _ in 0..20 {
            let output = stackprof().args(["dump", "stacks", "--pid", &pid.to_string()]).output().unwrap();
            let (said, stacks) =
                (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
            assert_eq!((output.status.code(), &*said), (Some(0), ""), "{how}: {stacks}");
            whole += usize::from(stacks.contains("(filtered) waiting\n") && stacks.contains("  main\n"));
        }
        assert!(whole > 0, "{how}: no whole stack");
        assert_untouched(pid, how);
        kill("KILL", pid);
        let (status, _) = target.finish();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{how}: {status}");
    }
}
