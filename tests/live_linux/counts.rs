//! Samples and losses add up to the CPU time of a process by its clock, by both sources. Simulated kernels
//! cover every state of the pipeline; here the clocks, rings and records are a real kernel's.

use std::collections::BTreeSet;

use std::time::Duration;

use crate::support::{
    Fixture, Recorded, attach, cpu_time, fixture, kill, launch, numbers, proc_status, record_until, sampled,
    sources, tracer_of, wait_for, wait_for_more_cpu_time,
};

/// CPU seconds of a fixture's process, as it reports them.
fn process_s(said: &[String]) -> f64 {
    let line = said.iter().find(|line| line.starts_with("process ")).expect("it says what it used");
    numbers(line)["cpu_ns"] as f64 / 1e9
}

/// Checks that the profiler's CPU time of the process includes the work that the process reports.
#[track_caller]
fn check_clock(recorded: &Recorded, work_s: f64, all: Option<Duration>) {
    recorded.check_sum();
    let used_s = recorded.figure("target_cpu_s");
    let most_s = all.map_or(f64::MAX, |all| all.as_secs_f64());
    // Values are rounded to milliseconds.
    recorded.check(
        used_s >= work_s - 0.002 && used_s <= most_s + 0.002,
        format!("{used_s} s, worked for {work_s} s, used {most_s} s"),
    );
}

#[test]
fn samples_and_losses_add_up_to_the_cpu_time_of_the_process() {
    const DEPTH: usize = 200;
    for source in sources() {
        let attached = || {
            let mut target = Fixture::start("threads", ["8", &DEPTH.to_string(), "told"]);
            target.line("ready");
            let running = attach(target.pid(), &["--threads", "--source", source]);
            target.go();
            assert_eq!(*source == "ptrace", tracer_of(target.pid()) != 0, "traced, by {source}");
            wait_for_more_cpu_time(target.pid(), Duration::from_millis(400));
            target.tell("enough");
            let said = target.done();
            let recorded = running.interrupt();
            if recorded.is_empty() {
                return recorded;
            }
            check_clock(&recorded, process_s(&said), cpu_time(target.pid()));
            // The first thread only waits: stops see it, samples may not.
            let seen = recorded.figure("threads_seen");
            recorded.check(seen == 9.0 || *source == "perf" && seen == 8.0, format!("{seen} threads"));
            recorded.check((recorded.figure("stops") == 0.0) == (*source == "perf"), "stopped or not");
            recorded.check_none("not the whole recursion", |stack| {
                stack.leaf() == "work_leaf" && stack.is_complete() && stack.times("recurse") != DEPTH
            });
            recorded
        };
        record_until("each thread at work", attached, |recorded| {
            (0..8).all(|index| {
                let thread = format!("worker{index} (");
                recorded.shows(|stack| stack.frames[1].starts_with(&thread) && stack.leaf() == "work_leaf")
            })
        });
    }
}

/// The reader gets no CPU while the target works: rings overflow. The target has exited, and was reaped,
/// before its last samples are read.
#[test]
fn samples_dropped_by_the_kernel_are_counted() {
    if !sampled() {
        return;
    }
    let mut target = Fixture::start("threads", ["2", "10", "told"]);
    target.line("ready");
    let running = attach(target.pid(), &["--source", "perf", "--hz", "9970"]);
    kill("STOP", running.pid());
    wait_for("the profiler to stop", || {
        proc_status(running.pid(), "State").is_some_and(|state| state.starts_with('T'))
    });
    target.go();
    // Far more samples than fit into the rings.
    wait_for_more_cpu_time(target.pid(), Duration::from_millis(800));
    target.tell("enough");
    let work_s = process_s(&target.done());
    target.finish();
    kill("CONT", running.pid());
    let recorded = running.wait();
    recorded.check_success();
    recorded.check_sum();
    recorded.check(recorded.lost() > recorded.total(), "hardly anything was dropped");
    // Its clock is no longer readable: dropped samples weigh the sampling interval.
    let used_s = recorded.figure("target_cpu_s");
    recorded.check((0.7..1.3).contains(&(used_s / work_s)), format!("{used_s} s of {work_s} s"));
}

const BY_OTHERS: &str = "used by threads that could not be sampled";

/// CPU time of threads invisible to a tracer, and names that threads get late from others.
#[test]
fn untraceable_threads_and_late_names_are_recorded() {
    let names: BTreeSet<String> = ["named", "reader", "parser", "writer"].map(str::to_owned).into();
    for source in sources() {
        let work_s = std::cell::Cell::new(0.0);
        let untraced = || {
            let mut target = Fixture::start("untraced", ["3", "80"]);
            target.line("ready");
            let running = attach(target.pid(), &["--source", source]);
            target.go();
            work_s.set(process_s(&target.done()));
            running.interrupt()
        };
        let (recorded, work_s) = (record_until("the first thread", untraced, |_| true), work_s.get());
        check_clock(&recorded, work_s, None);
        let by_others = recorded.stats["samples_lost"][BY_OTHERS].as_f64().unwrap_or(0.0) / 997.0;
        // Three of four parts of 80 ms.
        let is_right = if *source == "ptrace" { by_others >= 0.23 } else { by_others == 0.0 };
        recorded.check(is_right, format!("{by_others} s by others of {work_s} s"));

        let named = || {
            let recorded = launch(&["--source", source, "--threads"], &fixture("named"), &["50"]);
            recorded.check_none("a name of before", |stack| {
                stack
                    .frames
                    .get(1)
                    .is_some_and(|name| !names.contains(name.split(" (").next().unwrap_or_default()))
            });
            recorded
        };
        record_until("the names of all threads", named, |recorded| {
            let threads = recorded.stacks.iter().filter_map(|stack| stack.frames.get(1)?.split(" (").next());
            threads.map(str::to_owned).collect::<BTreeSet<_>>() == names
        });
    }
    if sources().contains(&"ptrace") {
        // The last counters of an exited process, next to others of the same moment.
        let line = format!("{} 3 50 now; true", fixture("untraced").display());
        let recorded = launch(&["--source", "ptrace"], "/bin/sh".as_ref(), &["-c", &line]);
        recorded.check_success();
        let said: Vec<String> = recorded.stdout.lines().map(str::to_owned).collect();
        check_clock(&recorded, process_s(&said), None);
    }
}
