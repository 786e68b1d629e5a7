//! Several processes in one recording: those that a command starts, that are given by number, that a
//! user or a control group has, all of the machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::by_kernel::{HZ, Somebody, attach_by_kernel, launch_by_kernel, sampled, sampled_alone};
use crate::support::{
    Fixture, Recorded, compile, fixture, not_here, numbers, record, record_by, stackprof, wait_for,
};

/// A program that burns in a function of its own name.
pub(crate) fn tree(name: &str) -> PathBuf {
    compile("tree", &format!("tree_{name}"), &[&format!("-DNAME={name}")])
}

/// Counts of stacks under a root, and of those with a function.
pub(crate) fn under(recorded: &Recorded, root: &str, function: &str) -> u64 {
    recorded.count(|stack| stack.frames[0] == root && (function.is_empty() || stack.has(function)))
}

pub(crate) fn roots(recorded: &Recorded) -> String {
    let mut roots: Vec<&str> = recorded.stacks.iter().map(|stack| stack.frames[0].as_str()).collect();
    roots.sort_unstable();
    roots.dedup();
    roots.join(", ")
}

/// CPU time that the fixture says its children used, and it did, in seconds.
pub(crate) fn used_s(recorded: &Recorded) -> (f64, f64) {
    (said_s(recorded, "children_ns"), said_s(recorded, "own_ns"))
}

/// CPU time that the fixture's children say they were in `burn_for`, in seconds.
pub(crate) fn burned_s(recorded: &Recorded) -> f64 {
    said_s(recorded, "burned_ns")
}

fn said_s(recorded: &Recorded, what: &str) -> f64 {
    let said = recorded.stdout.lines().find(|line| line.starts_with("children_ns")).map(numbers);
    said.expect("it tells what its children used")[what] as f64 / 1e9
}

#[test]
fn what_a_command_starts_is_recorded_under_the_names_of_its_programs() {
    let Some(_one) = sampled() else { return };
    let (one, two) = (tree("one"), tree("two"));
    let arguments = ["6", "2", "150000", one.to_str().unwrap(), two.to_str().unwrap()];
    let recorded = launch_by_kernel(&["--no-kernel"], &fixture("tree"), &arguments);
    let (children_s, own_s) = used_s(&recorded);
    let counts = (recorded.total() + recorded.lost()) as f64 / HZ;
    let lost = recorded.lost() as f64 / HZ;
    // Each process may use some time before its first sample that no clock is asked about.
    recorded.check((counts / (children_s + own_s) - 1.0).abs() < 0.08, format!("{counts} s of {children_s}"));
    for (root, function) in [("tree_one", "burn_in_one"), ("tree_two", "burn_in_two")] {
        // With the clock that it asks in between: a machine that is held up may be slow at that.
        let seconds = under(&recorded, root, "burn_for") as f64 / HZ;
        println!("{seconds:.3} s in burn_for of {root}, {lost:.3} s lost in all");
        recorded.check(
            seconds < 1.15 * 0.45 && seconds + lost > 0.85 * 0.45 && lost < 0.25 * 0.9,
            format!("{seconds} s of 0.45 in {root}, {lost} s lost"),
        );
        let (all, right) = (recorded.count(|stack| stack.has(function)), under(&recorded, root, function));
        recorded.check(all == right, format!("{function} under {}", roots(&recorded)));
    }
    recorded.check(recorded.figure("processes_seen") >= 6.0, "too few processes");
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete > 0.95, format!("{complete} of the stacks are complete"));
    let apart = launch_by_kernel(&["--no-kernel", "--per-process"], &fixture("tree"), &arguments);
    let ones = roots(&apart).matches("tree_one (").count();
    apart.check(ones == 3, format!("{ones} processes of three in {}", roots(&apart)));
    // It only waits for the others: some milliseconds of its own, which 997 Hz may miss.
    let alone = launch_by_kernel(&["--no-children", "--hz", "9970"], &fixture("tree"), &arguments);
    alone.check(roots(&alone) == "tree", roots(&alone));
}

#[test]
fn a_thousand_processes_of_two_to_five_milliseconds_are_all_accounted_for() {
    let Some(_one) = sampled_alone() else { return };
    let (one, two) = (tree("one"), tree("two"));
    let arguments = ["1000", "2", "3000", one.to_str().unwrap(), two.to_str().unwrap()];
    let recorded = launch_by_kernel(&[], &fixture("tree"), &arguments);
    let (children_s, own_s) = used_s(&recorded);
    let used_s = children_s + own_s;
    let (counts, lost) = (recorded.total() as f64 / HZ, recorded.lost() as f64 / HZ);
    println!("{counts:.3} s and {lost:.3} s lost of {used_s:.3}");
    // What is sampled is some thousand moments: four standard deviations, and what the kernel does for
    // a process that is no longer or not yet one.
    recorded.check((counts + lost) / used_s > 0.93, format!("{counts} s, {lost} s lost, of {used_s}"));
    recorded.check((counts + lost) / used_s < 1.07, format!("{counts} s, {lost} s lost, of {used_s}"));
    let burning = ["one", "two"].map(|name| {
        let function = format!("burn_in_{name}");
        let named = under(&recorded, &format!("tree_{name}"), &function);
        let (all, right) = (recorded.count(|stack| stack.has(&function)), named);
        recorded.check(all == right, format!("{function} under another name: {}", roots(&recorded)));
        under(&recorded, &format!("tree_{name}"), "burn_for") as f64 / HZ
    });
    let (named, burned) = (burning.iter().sum::<f64>(), burned_s(&recorded));
    recorded.check((named / burned - 1.0).abs() < 0.12, format!("{named} s of {burned} named"));
    recorded.check(roots(&recorded) == "tree, tree_one, tree_two", roots(&recorded));
}

#[test]
fn children_of_an_attached_process_are_recorded_where_asked_for() {
    let Some(_one) = sampled() else { return };
    for (options, expected) in [(&[][..], 1.0), (&["--children"][..], 2.0)] {
        let mut target = Fixture::start("tree", ["fork", "0.5"]);
        let line = target.line("ready");
        println!("{line}");
        let running = attach_by_kernel(target.pid(), &[&["--no-kernel"], options].concat());
        target.go();
        target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        // With the calls for its clock.
        let seconds = recorded.count(|stack| stack.has("burn_for")) as f64 / HZ;
        let lost = recorded.lost() as f64 / HZ;
        println!("{options:?}: {seconds:.3} s, {lost:.3} s lost");
        recorded.check(
            ((seconds + lost) / (0.5 * expected) - 1.0).abs() < 0.1 && lost < 0.25 * expected,
            format!("{seconds} s and {lost} s lost of {expected} processes that burn 0.5 s"),
        );
        recorded.check(roots(&recorded) == "tree", roots(&recorded));
        recorded.check(recorded.figure("processes_seen") == expected, "another number of processes");
    }
}

/// A process of this name that uses a CPU until it is dropped.
pub(crate) fn burning(name: &str) -> Killed {
    let mut command = Command::new(tree(name));
    command.args(["burn", "60000000"]);
    let mut child = Killed(command.spawn().unwrap());
    wait_for("it burns", || child.0.try_wait().unwrap().is_none());
    child
}

#[test]
fn processes_are_recorded_by_number_by_user_by_group_and_all() {
    let Some(_one) = sampled_alone() else { return };
    let (one, two) = (burning("one"), burning("two"));
    let pids = [&one, &two].map(|child| child.0.id().to_string());
    let group = fs::read_to_string(format!("/proc/{}/cgroup", pids[0])).unwrap_or_default();
    let group = group.lines().rev().find_map(|line| line.splitn(3, ':').nth(2)).unwrap_or("/").to_owned();
    let ways: [(&[&str], bool); 4] = [
        (&["--pid", &pids[0], "--pid", &pids[1]], true),
        (&["-a"], false),
        (&["--user", "root"], false),
        (&["--cgroup", &group], false),
    ];
    for (way, alone) in ways {
        let recorded = record(way.iter().chain(&["--source", "perf", "-d", "1"])).wait();
        recorded.check_success();
        for (root, function) in [("tree_one", "burn_in_one"), ("tree_two", "burn_in_two")] {
            let (all, right) =
                (recorded.count(|stack| stack.has(function)), under(&recorded, root, function));
            recorded.check(right > 20 && all == right, format!("{way:?}: {right} of {all} of {function}"));
        }
        // Two processes have something to do all the time.
        let idle = recorded.stats["machine_idle_share"].as_f64();
        recorded.check(idle.is_some() == (way[0] == "-a"), format!("{way:?}: {idle:?} idle"));
        recorded.check(idle.is_none_or(|idle| (0.0..1.0).contains(&idle)), format!("{idle:?} idle"));
        if alone {
            recorded.check(roots(&recorded) == "tree_one, tree_two", roots(&recorded));
            let used = recorded.figure("target_cpu_s");
            let counts = (recorded.total() + recorded.lost()) as f64 / HZ;
            recorded.check((counts / used - 1.0).abs() < 0.03, format!("{way:?}: {counts} s of {used} s"));
        }
    }
}

/// A child that is ended when this is dropped.
pub(crate) struct Killed(pub(crate) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_cannot_be_recorded_together_is_told() {
    let Some(_one) = sampled() else { return };
    for (arguments, said) in [
        (&["--user", "nobody-of-this-name"][..], "--user `nobody-of-this-name`: there is no such user"),
        (&["--cgroup", "/no/such/group"], "--cgroup `/no/such/group`: no such control group"),
        (&["--container", "ffffffffffff"], "--container `ffffffffffff`: no process runs in such a container"),
        (&["-a", "--source", "ptrace"], "--source ptrace records a command, or processes by --pid"),
    ] {
        let output = stackprof().args(arguments).args(["-o", "-"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(said) && text.lines().count() == 1, "{arguments:?}: {text}");
        assert!(!output.status.success());
    }
}

/// Processes that end before anybody asks whose they are: they have the user of the one that started them.
#[test]
fn short_processes_of_a_user_are_recorded_though_they_are_gone() {
    let Some(_one) = sampled_alone() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let one = somebody.copy(&tree("one"));
    let running = record(["--source", "perf", "--hz", "997", "--user", "nobody"]);
    wait_for("the events", || crate::support::has_events(running.pid()));
    crate::support::wait_for_ticks("the recording", running.pid());
    let mut command = somebody.run(&somebody.fixture("tree"));
    let output = command.args(["300", "1", "3000", one.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let recorded = running.interrupt();
    recorded.check_success();
    let (counts, lost) =
        (under(&recorded, "tree_one", "burn_in_one") as f64 / HZ, recorded.lost() as f64 / HZ);
    println!("{counts:.3} s and {lost:.3} s lost of 0.9, {}", roots(&recorded));
    recorded.check((counts + lost) / 0.9 > 0.85, format!("{counts} s, {lost} s lost, of 0.9"));
    recorded.check(lost < 0.2, format!("{lost} s of 0.9 are lost"));
    recorded.check(recorded.figure("processes_seen") > 250.0, "too few processes");
}

/// In a container, a program that puts what it starts into a namespace of its own, as sandboxes do.
#[test]
fn processes_of_a_namespace_below_ours_are_recorded() {
    let Some(_one) = sampled() else { return };
    let below = ["unshare", "-p", "-f", "--mount-proc"];
    let can = Command::new(below[0]).args(&below[1..]).arg("true").output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        return not_here(&format!("unshare makes no namespace of processes: {can:?}"));
    }
    let one = tree("one");
    let mut command = Command::new(below[0]);
    command.args(&below[1..]).arg(env!("CARGO_BIN_EXE_stackprof"));
    let mut words = vec!["--source", "perf", "--hz", "997", "--"];
    words.extend(below);
    let program = fixture("tree");
    words.extend([program.to_str().unwrap(), "4", "1", "250000", one.to_str().unwrap()]);
    let recorded = record_by(command, words).wait();
    recorded.check_success();
    let seconds = under(&recorded, "tree_one", "burn_in_one") as f64 / HZ;
    // Samples of the namespace below come once it is known, which is a batch later.
    recorded.check((seconds - 1.0).abs() < 0.15, format!("{seconds} s of 1 s, {}", roots(&recorded)));
}
