//! Counts: they add up to the CPU time that the target itself measured, for one thread
//! and for many, at any depth.

use crate::support::{Fixture, Recorded, Stack, attach, live, live_alone, measuring, numbers};

/// The default rate: counts are CPU time in periods of 1/997 s.
const HZ: f64 = 997.0;

/// Counts that may be lost: what threads use after the last look at them, which on a machine with other work comes
/// many periods before their end; and a tick whose thread had no CPU when it was to be stopped.
fn lost_max(recorded: &Recorded) -> f64 {
    0.15 * recorded.total() as f64 + recorded.figure("stops_not_on_cpu")
}

/// Attaches to `threads`, lets it work from beginning to end under the profiler, and
/// returns the profile with each thread's own CPU seconds and those of the process.
fn profile_threads(arguments: &[&str]) -> (Recorded, Vec<(u32, f64)>, f64) {
    let mut target = Fixture::start("threads", arguments);
    target.line("ready");
    let running = attach(target.pid(), &["--threads"]);
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let seconds = |line: &str| numbers(line)["cpu_ns"] as f64 / 1e9;
    let threads = said.iter().filter(|line| line.starts_with("thread"));
    let threads = threads.map(|line| (numbers(line)["thread"] as u32, seconds(line))).collect();
    let process = said.iter().find(|line| line.starts_with("process")).map(|line| seconds(line)).unwrap();
    (recorded, threads, process)
}

fn is_of(stack: &Stack, tid: u32) -> bool {
    stack.frames.get(1).is_some_and(|frame| frame.ends_with(&format!("({tid})")))
}

#[test]
fn sixty_four_deep_threads_are_each_counted() {
    let Some(_one) = live_alone() else { return };
    // In turns of 10 ms: 5 s are about eight turns of each.
    let (recorded, threads, process) = profile_threads(&["64", "200", "5", "10000"]);
    assert_eq!(threads.len(), 64);
    // What no sample took is told.
    let (took, lost) = (recorded.total() as f64, recorded.lost() as f64);
    recorded.check(
        ((took + lost) / (process * HZ) - 1.0).abs() <= 0.02 && lost <= lost_max(&recorded),
        format!("{took} counts and {lost} lost, {process} s of CPU time"),
    );
    let mut short = 0.0;
    for (tid, seconds) in threads {
        let counts = recorded.count(|stack| is_of(stack, tid)) as f64;
        // Up to a tick at each end of a turn may be carried to the next turn, and the last one's is
        // lost: with few ticks in it, because others use the CPUs, all of that turn or of several. What
        // all of them lack is held against what is told to be lost, below.
        let off = counts - seconds * HZ;
        let periods_per_tick = (HZ / recorded.figure("hz_achieved").max(1.0)).max(1.0);
        let last_turn = if measuring() { 2.0 } else { 20.0 * periods_per_tick };
        let too_few = if measuring() { last_turn + 0.03 * seconds * HZ } else { lost };
        recorded.check(
            off <= last_turn + 0.03 * seconds * HZ && -off <= too_few,
            format!("{counts} counts of {tid}, {seconds} s of CPU time"),
        );
        short += (-off - 2.0 - 0.03 * seconds * HZ).max(0.0);
    }
    // Whichever threads they are of, no more is missing than is told.
    recorded.check(short <= lost, format!("{short} counts are missing, {lost} are told"));
    let worked = |stack: &Stack| stack.leaf() == "work_leaf" && !stack.has("[incomplete]");
    let depth = |stack: &Stack| stack.frames.iter().filter(|frame| *frame == "recurse").count();
    let (deep, all) = (recorded.count(|stack| worked(stack) && depth(stack) == 200), recorded.count(worked));
    recorded.check(deep == all && all > 1000, format!("{deep} of {all} stacks are 200 deep"));
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.995, format!("{complete} of the stacks are complete"));
    recorded.check(recorded.figure("threads_seen") == 65.0, "not 65 threads");
}

#[track_caller]
fn check_counts_add_up(threads: &str) {
    let Some(_one) = live() else { return };
    let (recorded, _, seconds) = profile_threads(&[threads, "10", "3"]);
    let (counts, lost, expected) = (recorded.total() as f64, recorded.lost() as f64, seconds * HZ);
    let rate = recorded.figure("hz_achieved") / HZ;
    println!(
        "{threads} threads: {counts} counts of {expected:.0}, {:+.2} %; {:.1} % of the rate",
        100.0 * (counts / expected - 1.0),
        100.0 * rate
    );
    recorded.check(
        ((counts + lost) / expected - 1.0).abs() <= 0.03 && lost <= lost_max(&recorded),
        format!("{counts} counts and {lost} lost, expected {expected}"),
    );
    // What the profiler says of the target's CPU time is what the target says.
    let told = recorded.figure("target_cpu_s");
    recorded.check((told / seconds - 1.0).abs() <= 0.03, format!("told {told} s, used {seconds} s"));
    if measuring() {
        recorded.check((counts / expected - 1.0).abs() <= 0.03, format!("{counts} counts of {expected}"));
        let least = if threads == "8" { 0.90 } else { 0.98 };
        recorded.check(rate >= least, format!("{rate} of the rate asked for"));
    }
}

#[test]
fn counts_of_one_busy_thread_add_up() {
    check_counts_add_up("1");
}

#[test]
fn counts_of_two_busy_threads_add_up() {
    check_counts_add_up("2");
}

#[test]
fn counts_of_eight_busy_threads_add_up() {
    check_counts_add_up("8");
}
