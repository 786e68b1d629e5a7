//! Many threads under the kernel's samples: what it costs does not grow with how many sleep, and
//! threads that live for a millisecond have their time and their names.
//!
//! CPU time is judged, never how long something takes: beside other programs it takes longer.

use crate::by_kernel::{HZ, Somebody, attach_by_kernel, sampled_alone};
use crate::support::{Fixture, Recorded, cpu_time, emulated, not_here, numbers};

/// The program and its sleepers.
const THREADS: &str = "2001";
/// What a profiler may use of a CPU while it records: as it is released, and as tests are built.
const PROFILER_CPU_MAX: f64 = if cfg!(debug_assertions) { 0.1 } else { 0.05 };
const PROFILER_BYTES_MAX: f64 = 60e6;

/// CPU seconds that a fixture says it used.
fn process_seconds(said: &[String]) -> f64 {
    let process = said.iter().find(|line| line.starts_with("process ")).map(|line| numbers(line));
    process.expect("it tells its CPU time")["cpu_ns"] as f64 / 1e9
}

/// Counts and losses as seconds of CPU time.
fn accounted_seconds(recorded: &Recorded) -> f64 {
    (recorded.total() + recorded.lost()) as f64 / HZ
}

#[track_caller]
fn check_memory(recorded: &Recorded) {
    let bytes = recorded.figure("profiler_peak_rss_bytes");
    recorded.check(bytes <= PROFILER_BYTES_MAX, format!("{bytes} bytes"));
}

#[test]
fn two_thousand_sleepers_cost_nothing_beside_one_and_two_busy_threads() {
    for (busy, cpu_s) in [("1", "2"), ("2", "1.5")] {
        let Some(_one) = sampled_alone() else { return };
        let mut target = Fixture::start("many", [THREADS, busy, cpu_s]);
        target.line("ready");
        let running = attach_by_kernel(target.pid(), &["--hz", "997"]);
        let profiler_s = || cpu_time(running.pid()).expect("it records").as_secs_f64();
        // To start, to name and to write cost the same for a recording of any length.
        let before_s = profiler_s();
        target.go();
        let said = target.done();
        let recording_s = profiler_s() - before_s;
        let recorded = running.interrupt();
        recorded.check_success();
        let (seconds, used) = (process_seconds(&said), recorded.figure("target_cpu_s"));
        let accounted = accounted_seconds(&recorded);
        let duration_s = recorded.figure("duration_s");
        println!(
            "{THREADS} threads, {busy} busy: {accounted:.3} s of {used:.3} s accounted for, the profiler used \
             {recording_s:.3} s of {duration_s:.2} s while it recorded, {:.3} s in all, {:.1} MB",
            recorded.figure("profiler_cpu_s"),
            recorded.figure("profiler_peak_rss_bytes") / 1e6
        );
        recorded.check((accounted / used - 1.0).abs() < 0.01, format!("{accounted} s of {used} s"));
        recorded.check(accounted >= 0.99 * seconds, format!("{accounted} s instead of {seconds} s"));
        let in_work = recorded.count(|stack| stack.has("busy")) as f64 / recorded.total() as f64;
        recorded.check(in_work > 0.9, format!("{in_work} of the time in the work"));
        if emulated() {
            not_here("what the profiler costs is not judged on an emulated processor");
        } else {
            recorded.check(
                recording_s <= PROFILER_CPU_MAX * duration_s,
                format!("the profiler used {recording_s} s of {duration_s} s"),
            );
        }
        check_memory(&recorded);
    }
}

/// Without rights an event of each thread and CPU is opened, or none if that is too many.
#[test]
fn two_thousand_sleepers_of_somebody_without_rights_are_recorded_too() {
    let Some(_one) = sampled_alone() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let mut target = Fixture::run(somebody.run(&somebody.fixture("many")).args([THREADS, "1", "2"]));
    target.line("ready");
    let command = somebody.run(&somebody.stackprof());
    let pid = target.pid().to_string();
    let running = crate::support::record_by(command, ["--source", "auto", "--hz", "997", "--pid", &pid]);
    running.wait_attached(target.pid());
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let (accounted, seconds) = (accounted_seconds(&recorded), process_seconds(&said));
    println!(
        "{} ({}): {accounted:.3} s of {seconds:.3} s, the profiler used {:.3} s of {:.2} s",
        recorded.stats["backend"],
        recorded.stats["backend_why"],
        recorded.figure("profiler_cpu_s"),
        recorded.figure("duration_s"),
    );
    // Where the host takes the machine away for a while, no timer tells of that.
    recorded.check((accounted / seconds - 1.0).abs() < 0.1, format!("{accounted} s of {seconds} s"));
    check_memory(&recorded);
}

#[test]
fn five_hundred_threads_that_come_and_go_each_second_have_their_time_and_names() {
    let Some(_one) = sampled_alone() else { return };
    let mut target = Fixture::start("churn", ["1500", "500"]);
    target.line("ready");
    let running = attach_by_kernel(target.pid(), &["--hz", "997", "--threads"]);
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let (accounted, seconds) = (accounted_seconds(&recorded), process_seconds(&said));
    let of_main = format!("churn ({})", target.pid());
    let is_brief = |frames: &[String]| frames.get(1).is_some_and(|thread| *thread != of_main);
    let brief = recorded.count(|stack| is_brief(&stack.frames));
    let named = recorded.count(|stack| {
        is_brief(&stack.frames) && stack.frames.get(1).is_some_and(|thread| thread.starts_with("brief ("))
    });
    let at_work = recorded.count(|stack| is_brief(&stack.frames) && stack.has("short_life"));
    println!(
        "{accounted:.3} s of {seconds:.3} s accounted for; of {brief} counts of brief threads {named} have their \
         name, {at_work} are in their function; the profiler used {:.3} s of {:.2} s",
        recorded.figure("profiler_cpu_s"),
        recorded.figure("duration_s"),
    );
    let used = recorded.figure("target_cpu_s");
    recorded.check(used >= 0.98 * seconds, format!("{used} s of {seconds} s were seen"));
    recorded.check((accounted - used).abs() < 0.01 * used, format!("{accounted} s of {used} s"));
    recorded.check(brief > 100, format!("{brief} counts of brief threads"));
    // Those that have not run an instruction yet stand where they were made.
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    println!("{complete:.4} of the stacks are complete");
    recorded.check(complete > 0.98, format!("{complete} of the stacks are complete"));
    // One that is sampled before it names itself, and never again, has the name that it began with.
    recorded.check(named as f64 >= 0.95 * brief as f64, format!("{named} of {brief} have their name"));
    recorded.check(at_work as f64 >= 0.5 * brief as f64, format!("{at_work} of {brief} at work"));
}
