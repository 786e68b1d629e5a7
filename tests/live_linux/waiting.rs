//! System calls that wait: none fails, returns early or lasts longer because of stops.

use crate::support::{Fixture, attach, emulated, live, not_here, numbers};

/// Some seconds of work on a quiet machine.
const EVENTS: &[&str] = &["15000"];

/// Calls that fail with EINTR although all that are seen to wait are made again: on aarch64 a thread
/// may begin to wait just as it is asked to stop, a few times in so many events.
fn unseen_max() -> u64 {
    if cfg!(target_arch = "aarch64") { 75 } else { 0 }
}

/// Profiles the epoll server until it has served its events and checks that at most this many calls
/// were interrupted.
#[track_caller]
fn check_epoll(arguments: &[&str], options: &[&str], interrupted_max: u64) {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("epoll", arguments);
    target.line("ready");
    target.go();
    let running = attach(target.pid(), options);
    let said = target.line("events");
    let recorded = running.interrupt();
    println!("{options:?}: events {said}");
    let said = numbers(&format!("events {said}"));
    recorded.check(recorded.status.success(), "stackprof failed");
    recorded.check(recorded.total() > 30, "hardly anything was sampled");
    let unharmed = said["interrupted"] <= interrupted_max && said["failed"] == 0;
    recorded.check(unharmed, format!("the server saw {said:?}"));
}

#[test]
fn an_epoll_server_sees_no_eintr() {
    check_epoll(EVENTS, &["--hz", "997"], unseen_max());
}

#[test]
fn an_epoll_server_sees_no_eintr_at_5000_hz() {
    check_epoll(EVENTS, &["--hz", "5000"], unseen_max());
}

#[test]
fn an_epoll_server_sees_no_eintr_with_idle() {
    check_epoll(EVENTS, &["--hz", "2000", "--idle"], unseen_max());
}

/// A tracer makes the kernel wake a call even for a signal that the process ignores. Its call
/// is repaired unless another thread of the process has taken the signal first: rare, and a
/// known limit (README).
#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "what an ignored signal interrupts cannot be repaired there")]
fn ignored_signals_do_not_interrupt_an_epoll_server() {
    check_epoll(&[EVENTS[0], "signal"], &["--hz", "997"], 2);
}

/// Calls that stops interrupted are made again; those that a handler interrupted are not, whichever of
/// the two comes first.
#[test]
fn a_handler_ends_a_wait_however_often_it_is_stopped() {
    let Some(_one) = live() else { return };
    const SIGNALS: u64 = 300;
    let mut target = Fixture::start("eintr", [SIGNALS.to_string()]);
    target.line("ready");
    let running = attach(target.pid(), &["--hz", "2000", "--idle", "--max-stop", "100"]);
    target.go();
    let said = target.done().join(" ");
    println!("{said}");
    let recorded = running.interrupt();
    recorded.check_success();
    let said = numbers(&said);
    recorded.check(said["right"] == SIGNALS, format!("the program saw {said:?}"));
    recorded.check(said["without"] <= unseen_max(), format!("a wait ended without a signal: {said:?}"));
}

#[track_caller]
fn check_calls(options: &[&str]) {
    let Some(_one) = live() else { return };
    const CALLS: u64 = 80;
    let start = || {
        let mut target = Fixture::start("calls", [CALLS.to_string()]);
        target.line("ready");
        target
    };
    // Calls that are repeated from the beginning would be late by as much as they had waited, each,
    // every time that this is tried. A machine that stands still makes some late, in a program that
    // nobody profiles at the same time as well.
    const TRIES: usize = 3;
    if emulated() {
        not_here("whether calls end late is not judged on an emulated processor");
    }
    for attempt in 1..=TRIES {
        let (mut target, mut beside) = (start(), start());
        let running = attach(target.pid(), options);
        target.go();
        beside.go();
        let (profiled, unprofiled) = (target.done(), beside.done());
        let recorded = running.interrupt();
        recorded.check_success();
        assert_eq!(profiled.len(), 10, "{profiled:?}");
        let mut late = Vec::new();
        for (line, other) in profiled.iter().zip(&unprofiled) {
            println!("{line}   (unprofiled: {other})");
            let (now, other) = (numbers(line), numbers(other));
            // As above: of a thread that was not seen to wait the call is not made again.
            let unseen = if cfg!(target_arch = "aarch64") { CALLS / 10 } else { 0 };
            let ended = now["failed"] <= unseen && now["early"] <= unseen;
            recorded.check(ended && now["calls"] == CALLS, line);
            // A stop takes milliseconds on an emulated processor.
            if !emulated() && now["late"] > other["late"] + 2 + CALLS / 10 {
                late.push(line);
            }
        }
        if late.is_empty() {
            return;
        }
        recorded.check(attempt < TRIES, format!("late in each of {TRIES} runs: {late:?}"));
    }
}

#[test]
fn calls_that_wait_end_by_their_timeout() {
    check_calls(&["--hz", "997"]);
}

#[test]
fn calls_that_wait_end_by_their_timeout_with_idle() {
    check_calls(&["--hz", "997", "--idle"]);
}
