//! System calls that wait: none fails or returns early because of stops. `scripts/measure` measures how late
//! they return.

use crate::support::{Fixture, attach, live, numbers};

/// Calls that fail with EINTR although all observed waits are restarted: on aarch64 a thread may begin to
/// wait just at a stop request, a few times in so many events.
fn unseen_max() -> u64 {
    if cfg!(target_arch = "aarch64") { 30 } else { 0 }
}

const OFTEN: &[&str] = &["--source", "ptrace", "--hz", "5000"];
const IDLE: &[&str] = &["--source", "ptrace", "--hz", "2000", "--idle", "--max-stop", "100"];

#[test]
fn no_wait_is_interrupted_by_a_stop() {
    if !live() {
        return;
    }
    // A tracer makes the kernel wake a call even for a signal that the process ignores. Its call is repaired
    // unless another thread of the process has taken the signal first: rare, and a known limit. On aarch64 it
    // cannot be.
    let mut cases: Vec<(&[&str], &[&str], u64)> =
        vec![(&["3000"], OFTEN, unseen_max()), (&["3000"], IDLE, unseen_max())];
    if cfg!(not(target_arch = "aarch64")) {
        cases.push((&["2000", "signal"], OFTEN, 2));
    }
    for (arguments, options, interrupted_max) in cases {
        let mut target = Fixture::start("epoll", arguments);
        target.line("ready");
        let running = attach(target.pid(), options);
        target.go();
        let said = numbers(&target.done().join(" "));
        let recorded = running.interrupt();
        recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
        let unharmed = said["interrupted"] <= interrupted_max && said["failed"] == 0;
        recorded.check(unharmed, format!("{arguments:?} {options:?}: the server saw {said:?}"));
    }
    // Calls interrupted by stops are restarted; those interrupted by a handler are not, in either order.
    const SIGNALS: u64 = 100;
    let mut target = Fixture::start("eintr", [SIGNALS.to_string()]);
    target.line("ready");
    let running = attach(target.pid(), IDLE);
    target.go();
    let said = numbers(&target.done().join(" "));
    let recorded = running.interrupt();
    recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
    recorded.check(said["right"] == SIGNALS, format!("the program saw {said:?}"));
    recorded.check(said["without"] <= unseen_max(), format!("a wait ended without a signal: {said:?}"));
}

#[test]
fn waits_end_at_their_timeout() {
    if !live() {
        return;
    }
    const CALLS: u64 = 15;
    for options in [OFTEN, IDLE] {
        let mut target = Fixture::start("calls", [CALLS.to_string()]);
        target.line("ready");
        let running = attach(target.pid(), options);
        target.go();
        let said = target.done();
        let recorded = running.interrupt();
        recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
        assert_eq!(said.len(), 10, "{said:?}");
        for line in said {
            let now = numbers(&line);
            // On aarch64 the call of a thread that was not seen waiting is not restarted.
            let unseen = if cfg!(target_arch = "aarch64") { CALLS / 10 + 1 } else { 0 };
            let ended = now["failed"] <= unseen && now["early"] <= unseen;
            recorded.check(ended && now["calls"] == CALLS, &line);
        }
    }
}
