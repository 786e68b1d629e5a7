//! What a source is not told of by itself: CPU time of threads that nobody can trace, and names that threads get from
//! others, late.

use std::collections::BTreeSet;

use crate::by_kernel::{HZ, attach_by_kernel, launch_by_kernel, sampled};
use crate::support::{Fixture, Recorded, Running, attach, fixture, launch, live, numbers};

const BY_OTHERS: &str = "used by threads that could not be sampled";

/// Lets threads that no tracer sees work while `begin` records; the recording, and what the process used.
fn untraced(begin: impl Fn(u32) -> Running) -> (Recorded, f64) {
    let mut target = Fixture::start("untraced", ["3", "300"]);
    target.line("ready");
    let running = begin(target.pid());
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let process = said.iter().find(|line| line.starts_with("process")).unwrap();
    (recorded, numbers(process)["cpu_ns"] as f64 / 1e9)
}

#[track_caller]
fn check_sum(recorded: &Recorded, used_s: f64) {
    let (took, lost) = (recorded.total() as f64, recorded.lost() as f64);
    recorded.check(
        ((took + lost) / (used_s * HZ) - 1.0).abs() <= 0.02,
        format!("{took} counts and {lost} lost of {used_s} s"),
    );
}

#[test]
fn what_threads_use_that_cannot_be_traced_is_told_to_be_lost() {
    let Some(_one) = live() else { return };
    let (recorded, used_s) = untraced(|pid| attach(pid, &["--source", "ptrace"]));
    check_sum(&recorded, used_s);
    let by_others = recorded.stats["samples_lost"][BY_OTHERS].as_f64().unwrap_or(0.0);
    // Three of four parts.
    recorded.check(by_others >= 0.7 * used_s * HZ, format!("{by_others} counts by others of {used_s} s"));
}

/// Its last figures are those of a process that has ended, beside others of the same moment.
#[test]
fn what_such_threads_of_a_child_process_used_is_told_after_its_end() {
    let Some(_one) = live() else { return };
    let line = format!("{} 3 200 now; true", fixture("untraced").display());
    let recorded = launch(&["--source", "ptrace"], "/bin/sh".as_ref(), &["-c", &line]);
    recorded.check_success();
    let said = recorded.stdout.lines().find(|line| line.starts_with("process"));
    let used_s = numbers(said.expect("it tells what it used"))["cpu_ns"] as f64 / 1e9;
    let (took, lost) = (recorded.total() as f64, recorded.lost() as f64);
    // The shell, and what begins and ends programs, use some milliseconds.
    recorded.check(
        (0.98..1.10).contains(&((took + lost) / (used_s * HZ))),
        format!("{took} counts and {lost} lost of {used_s} s"),
    );
}

#[test]
fn the_kernel_samples_threads_that_cannot_be_traced() {
    let Some(_one) = sampled() else { return };
    let (recorded, used_s) = untraced(|pid| attach_by_kernel(pid, &[]));
    check_sum(&recorded, used_s);
}

/// The names of threads that stacks stand under, without their numbers.
fn names(recorded: &Recorded) -> BTreeSet<String> {
    let threads = recorded.stacks.iter().filter_map(|stack| stack.frames.get(1));
    threads.map(|thread| thread.split(" (").next().unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn check_names(recorded: &Recorded) {
    recorded.check_success();
    let expected: BTreeSet<String> = ["named", "reader", "parser", "writer"].map(str::to_owned).into();
    let found = names(recorded);
    recorded.check(found == expected, format!("threads are called {found:?}"));
}

#[test]
fn threads_have_the_names_that_another_one_gave_them_late() {
    let Some(_one) = live() else { return };
    check_names(&launch(&["--source", "ptrace", "--threads"], &fixture("named"), &["200"]));
    drop(_one);
    let Some(_one) = sampled() else { return };
    check_names(&launch_by_kernel(&["--threads"], &fixture("named"), &["200"]));
}
