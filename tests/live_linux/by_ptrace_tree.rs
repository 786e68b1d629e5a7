//! Several processes recorded by stopping their threads (`--source ptrace`): what a command starts,
//! what an attached process has started, several by number; the same tree as by the kernel's samples.

use std::time::Duration;

use crate::by_kernel::{HZ, launch_by_kernel, sampled};
use crate::by_kernel_tree::{burned_s, burning, roots, tree, under, used_s};
use crate::support::{
    Fixture, Recorded, attach, fixture, launch, live, live_alone, points, record, wait_for_more_cpu_time,
};

fn launch_by_stops(options: &[&str], arguments: &[&str]) -> Recorded {
    let recorded = launch(&[&["--source", "ptrace"], options].concat(), &fixture("tree"), arguments);
    recorded.check_success();
    recorded.check(recorded.stats["backend"] == "ptrace", "another source");
    recorded
}

/// Percent of the counts under both programs that are under the first, and of how many stacks.
fn share_of_one(recorded: &Recorded) -> (f64, u64) {
    let [one, two] =
        ["one", "two"].map(|name| under(recorded, &format!("tree_{name}"), &format!("burn_in_{name}")));
    (100.0 * one as f64 / (one + two) as f64, one + two)
}

#[test]
fn what_a_command_starts_is_the_same_tree_by_both_sources() {
    let Some(_one) = live() else { return };
    let (one, two) = (tree("one"), tree("two"));
    let arguments = ["8", "2", "150000", one.to_str().unwrap(), two.to_str().unwrap()];
    let by_stops = launch_by_stops(&[], &arguments);
    let (children_s, own_s) = used_s(&by_stops);
    let counts = (by_stops.total() + by_stops.lost()) as f64 / HZ;
    println!("{counts:.3} s of {:.3}", children_s + own_s);
    by_stops.check((counts / (children_s + own_s) - 1.0).abs() < 0.05, format!("{counts} s of {children_s}"));
    for name in ["one", "two"] {
        let (root, function) = (format!("tree_{name}"), format!("burn_in_{name}"));
        // With the clock that it asks in between: a machine that is held up may be slow at that.
        let seconds = under(&by_stops, &root, "burn_for") as f64 / HZ;
        println!("{seconds:.3} s in burn_for of {root}");
        by_stops.check((seconds / 0.6 - 1.0).abs() < 0.15, format!("{seconds} s of 0.6 in {root}"));
        let (all, right) = (by_stops.count(|stack| stack.has(&function)), under(&by_stops, &root, &function));
        by_stops.check(all == right, format!("{function} under {}", roots(&by_stops)));
    }
    by_stops.check(by_stops.figure("processes_seen") == 9.0, "another number of processes");
    let complete = by_stops.figure("stacks_complete") / by_stops.figure("samples");
    by_stops.check(complete > 0.95, format!("{complete} of the stacks are complete"));
    let why = by_stops.stats["backend_why"].as_str().unwrap_or_default();
    by_stops.check(why == "--source ptrace", format!("backend_why is `{why}`"));
    let apart = launch_by_stops(&["--per-process"], &arguments);
    let ones = roots(&apart).matches("tree_one (").count();
    apart.check(ones == 4, format!("{ones} processes of four in {}", roots(&apart)));
    // Without them there is hardly anything to sample.
    let options = ["--source", "ptrace", "--no-children", "--hz", "9970"];
    let alone = launch(&options, &fixture("tree"), &arguments);
    alone.check(matches!(roots(&alone).as_str(), "tree" | ""), roots(&alone));
    alone.check(matches!(alone.status.code(), Some(0 | 4)), "neither done nor empty");
    drop(_one);
    // By the kernel, where it samples here.
    let Some(_one) = sampled() else { return };
    let by_kernel = launch_by_kernel(&["--no-kernel"], &fixture("tree"), &arguments);
    // The command itself uses hardly more than a tick.
    let programs = |recorded: &Recorded| roots(recorded).replace("tree, ", "");
    by_kernel.check(
        programs(&by_kernel) == programs(&by_stops),
        format!("{} by the kernel, {} by stops", roots(&by_kernel), roots(&by_stops)),
    );
    let ((kernel, kernel_stacks), (stops, stacks)) = (share_of_one(&by_kernel), share_of_one(&by_stops));
    println!("{kernel:.1} % in the first program by the kernel, {stops:.1} % by stops");
    let stacks = stacks.min(by_stops.stacks_taken()).min(kernel_stacks);
    by_stops.check((kernel - stops).abs() < 2.0 * points(50.0, stacks), format!("{kernel} % and {stops} %"));
}

#[test]
fn the_time_of_a_thousand_short_processes_is_accounted_for_under_their_names() {
    let Some(_one) = live_alone() else { return };
    let (one, two) = (tree("one"), tree("two"));
    for us in ["2000", "5000"] {
        let arguments = ["1000", "2", us, one.to_str().unwrap(), two.to_str().unwrap()];
        let recorded = launch_by_stops(&[], &arguments);
        let (children_s, own_s) = used_s(&recorded);
        let used_s = children_s + own_s;
        let (counts, lost) = (recorded.total() as f64 / HZ, recorded.lost() as f64 / HZ);
        let burned_s = burned_s(&recorded);
        let named = ["one", "two"].map(|name| {
            let (root, function) = (format!("tree_{name}"), format!("burn_in_{name}"));
            let right = under(&recorded, &root, &function);
            let all = recorded.count(|stack| stack.has(&function));
            recorded.check(all == right, format!("{function} under another name: {}", roots(&recorded)));
            under(&recorded, &root, "burn_for") as f64 / HZ
        });
        let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
        println!(
            "{us} us: {counts:.3} s and {lost:.3} s lost of {used_s:.3}; {named:.3?} s named of {burned_s:.3} burned; \
             {:.3} s under `tree`; {:.1} % complete; target {:.3} s, profiler {:.3} s; {}",
            under(&recorded, "tree", "") as f64 / HZ,
            100.0 * complete,
            recorded.figure("target_cpu_s"),
            recorded.figure("profiler_cpu_s"),
            recorded.stats["samples_lost"]
        );
        recorded.check((counts + lost) / used_s > 0.95, format!("{counts} s, {lost} s lost, of {used_s}"));
        recorded.check((counts + lost) / used_s < 1.05, format!("{counts} s, {lost} s lost, of {used_s}"));
        // Beside busy programs a stop comes late, and a stack stands for much: the output tells of how many
        // that weigh the same its shares are as certain. No stop comes while a process ends: other stacks stand
        // for that, which is some points more of burning.
        let stacks = recorded.figure("samples_effective") as u64;
        let (share, named_share) = (100.0 * burned_s / used_s, 100.0 * named.iter().sum::<f64>() / used_s);
        recorded.check(
            (named_share - share).abs() < points(share, stacks) + 5.0,
            format!("{named:?} s of {burned_s} named, as certain as of {stacks} stacks"),
        );
        let of_one = 100.0 * named[0] / (named[0] + named[1]);
        recorded.check(
            (of_one - 50.0).abs() < points(50.0, stacks * named_share as u64 / 100),
            format!("{named:?} s of the same work, as certain as of {stacks} stacks"),
        );
        // The command itself runs for 0.1 ms at a time. Beside busy programs it may never be found on a CPU:
        // then its time is lost, and told.
        let found = roots(&recorded);
        let is_lost = found == "tree_one, tree_two" && lost >= 0.9 * own_s;
        recorded.check(found == "tree, tree_one, tree_two" || is_lost, found);
        recorded.check(recorded.figure("processes_seen") == 1001.0, "processes are missing");
        recorded.check(complete > 0.9, format!("{complete} of the stacks are complete"));
    }
}

#[test]
fn children_of_an_attached_process_are_recorded_by_stops_where_asked_for() {
    let Some(_one) = live() else { return };
    for (options, expected) in [(&[][..], 1.0), (&["--children"][..], 2.0)] {
        let mut target = Fixture::start("tree", ["fork", "0.5"]);
        target.line("child");
        target.line("ready");
        let running = attach(target.pid(), &[&["--source", "ptrace"], options].concat());
        target.go();
        target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        // With the calls for its clock: a stop that comes late finds more of them.
        let seconds = recorded.count(|stack| stack.has("burn_for")) as f64 / HZ;
        // What a process used after its last sample, which is a turn of it on a busy machine, is told.
        let lost = recorded.lost() as f64 / HZ;
        println!("{options:?}: {seconds:.3} s, {lost:.3} s lost");
        recorded.check(
            ((seconds + lost) / (0.5 * expected) - 1.0).abs() < 0.1 && lost < 0.25 * expected,
            format!("{seconds} s and {lost} s lost of {expected} processes that burn 0.5 s"),
        );
        recorded.check(roots(&recorded) == "tree", roots(&recorded));
        recorded.check(recorded.figure("processes_seen") == expected, "another number of processes");
        assert!(target.finish().0.success());
    }
}

#[test]
fn several_processes_by_number_are_recorded_by_stops() {
    let Some(_one) = live() else { return };
    let (one, two) = (burning("one"), burning("two"));
    let pids = [&one, &two].map(|child| child.0.id().to_string());
    let both = ["--pid", &pids[0], "--pid", &pids[1], "--source", "ptrace", "-d", "1"];
    let recorded = record(both).wait();
    recorded.check_success();
    for (root, function) in [("tree_one", "burn_in_one"), ("tree_two", "burn_in_two")] {
        let (all, right) = (recorded.count(|stack| stack.has(function)), under(&recorded, root, function));
        recorded.check(right > 20 && all == right, format!("{right} of {all} of {function}"));
    }
    recorded.check(roots(&recorded) == "tree_one, tree_two", roots(&recorded));
    let (used, counts) = (recorded.figure("target_cpu_s"), (recorded.total() + recorded.lost()) as f64 / HZ);
    recorded.check((counts / used - 1.0).abs() < 0.03, format!("{counts} s of {used} s"));
    // It goes on with the one that is left, and ends with that.
    let running = record(&both[..6]);
    running.wait_attached(one.0.id());
    drop(one);
    // Beside busy programs it may get no CPU for a while.
    wait_for_more_cpu_time(two.0.id(), Duration::from_millis(100));
    drop(two);
    running.wait().check_success();
}

#[test]
fn what_processes_wait_for_is_recorded_of_all_of_them() {
    let Some(_one) = live() else { return };
    let script = "sleep 2 & sleep 2 & wait; :";
    let recorded = launch(&["--idle", "--per-process"], "/bin/sh".as_ref(), &["-c", script]);
    recorded.check_success();
    println!("{}", roots(&recorded));
    let mut seconds: Vec<f64> = Vec::new();
    for root in roots(&recorded).split(", ") {
        seconds.push(recorded.count(|stack| stack.frames[0] == root) as f64 / HZ);
    }
    println!("{seconds:?}");
    // Each may begin late on a busy machine.
    let long = seconds.iter().filter(|seconds| **seconds > 1.6).count();
    recorded.check(long == 3, format!("{seconds:?} s: not three processes that wait"));
    recorded.check(recorded.figure("processes_seen") == 3.0, "another number of processes");
    recorded.check(recorded.stats["exit_status"] == 0, "not the shell's exit status");
}
