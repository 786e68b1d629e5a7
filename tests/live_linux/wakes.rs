//! Threads that wake each other: CPU time stays with the code that used it. Compared with what
//! the program's own clocks say, alone and beside programs that take every CPU.

use std::collections::HashMap;
use std::process::{Child, Command, Stdio};

use crate::support::{Fixture, Recorded, attach, live, numbers};

/// A process that uses a CPU until it is dropped.
pub(crate) struct Busy(Child);

impl Busy {
    pub(crate) fn start() -> Busy {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Busy(command.spawn().expect("sh starts"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thread that is stopped where it was woken, instead of where it works, gives `read` and
/// `write` 20 to 60 % here.
#[track_caller]
fn check_shares(rounds: &str, busy: usize) {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("wakes", [rounds, "4"]);
    target.line("ready");
    let _busy: Vec<Busy> = (0..busy).map(|_| Busy::start()).collect();
    let running = attach(target.pid(), &["--hz", "997", "--max-stop", "100"]);
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let truth = said.iter().find(|line| line.starts_with("work ")).map(|line| numbers(line));
    let truth = truth.expect("the program tells its shares");
    println!("{rounds} rounds, {busy} busy");
    // A thread that runs is found on its way into the kernel at the latest, so many microseconds of a turn
    // later as the request to stop takes to another CPU: 3 to 10, which are a third of 30.
    check_shares_of(&recorded, &truth, 0.12);
}

/// Compares shares with what the program says of itself; `off` is what they may be off beside four
/// standard deviations of what counts scatter.
#[track_caller]
pub(crate) fn check_shares_of(recorded: &Recorded, truth: &HashMap<String, u64>, off: f64) {
    // `write`, `__write`, `__libc_write`, but not `start_thread`.
    let is = |frame: &str, name: &str| {
        frame.strip_prefix("__libc_").unwrap_or(frame).trim_start_matches('_') == name
    };
    let of = |name: &str| recorded.count(|stack| stack.frames.iter().any(|frame| is(frame, name)));
    let counts = [("work", of("work")), ("write", of("write")), ("read", of("read"))];
    let all: u64 = counts.iter().map(|(_, counts)| counts).sum();
    recorded.check(all > 100, format!("{all} counts in all three"));
    // Without the time until a CPU takes a thread up, which its clock counts, the others have more.
    let [work, write, read, quick] = ["work", "write", "read", "quick"].map(|name| truth[name] as f64 / 1e4);
    let others = 1.0 / (1.0 - (read - quick));
    let bounds = [(work, work * others), (write, write * others), (quick, read)];
    for ((name, counts), (least, most)) in counts.into_iter().zip(bounds) {
        let share = counts as f64 / all as f64;
        println!("  {name} {:.1} %, truth {:.1} to {:.1} %", share * 100.0, least * 100.0, most * 100.0);
        let off = |expected: f64| off + 4.0 * (expected * (1.0 - expected).max(0.0) / all as f64).sqrt();
        let fits = share >= least - off(least) && share <= most + off(most);
        recorded.check(fits, format!("{name}: {share} instead of {least} to {most}"));
    }
}

#[test]
fn shares_of_threads_that_wake_each_other_are_their_own() {
    check_shares("80000", 0);
}

#[test]
fn shares_of_threads_that_wake_each_other_are_their_own_beside_busy_programs() {
    check_shares("80000", 2);
}
