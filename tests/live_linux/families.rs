//! Processes that start others go on as without a profiler, whatever it does and however it ends.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::by_kernel_tree::{Killed, roots, tree, under};
use crate::support::{
    Fixture, Random, Recorded, assert_untouched, attach, cpu_time, fixture, kill, launch, live, numbers,
    proc_status, record, rounds, stackprof, tracer_of, wait_for, wait_for_cpu_time,
};

/// Attached at these: the default, and one that stops everything all the time.
const OPTIONS: [&[&str]; 2] = [&["--children"], &["--children", "--hz", "5000", "--idle"]];

/// What `family` says, and what was recorded of it if there are options.
fn family(arguments: &[&str], options: Option<&[&str]>) -> (String, Option<Recorded>) {
    let mut target = Fixture::start("family", arguments);
    target.line("ready");
    let running = options.map(|options| attach(target.pid(), options));
    target.go();
    let said = target.done().join(" ");
    println!("{options:?}: {said}");
    let recorded = running.map(|running| running.interrupt());
    assert!(target.finish().0.success());
    if let Some(recorded) = &recorded {
        recorded.check_success();
    }
    (said, recorded)
}

#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "the kernel does not let an interrupted call be repaired there")]
fn shells_end_as_their_parent_expects_and_interrupt_nothing() {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let (said, recorded) = family(&["shells", "320"], options);
        assert_eq!(said, "shells 320 right 320 interrupted 0", "{options:?}");
        if let Some(recorded) = recorded {
            let processes = recorded.figure("processes_seen");
            // A shell each, a `sleep` or `true` in half of them.
            recorded.check(processes >= 1.0 + 320.0 + 160.0, format!("{processes} processes"));
        }
    }
}

#[test]
fn processes_that_ended_wait_for_their_own_parent() {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let (said, _) = family(&["zombies", "300"], options);
        assert_eq!(said, "zombies 300 right 300 left 0", "{options:?}");
    }
}

#[test]
fn a_daemon_is_recorded_and_left_behind() {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let (said, recorded) = family(&["daemon", "200000"], options);
        assert_eq!(said, "daemon right 3", "{options:?}");
        if let Some(recorded) = recorded {
            let burned = under(&recorded, "family", "burn_in_daemon");
            // Beside busy programs much of so short a life may be behind the last sample: that is told.
            let lost = recorded.lost();
            recorded.check(
                burned > 10 && burned + lost > 100,
                format!("{burned} counts of the daemon, {lost} lost"),
            );
        }
    }
}

#[test]
fn a_process_that_a_thread_starts_and_another_one_replaces_is_named_by_both_programs() {
    let Some(_one) = live() else { return };
    let one = tree("one");
    let arguments = ["threads", "150000", one.to_str().unwrap()];
    for options in [None, Some(OPTIONS[0]), Some(&["--children", "--threads"][..])] {
        let (said, recorded) = family(&arguments, options);
        assert_eq!(said, "threads right 1", "{options:?}");
        if let Some(recorded) = recorded {
            for (root, function) in [("family", "burn_in_thread_child"), ("tree_one", "burn_in_one")] {
                let (all, right) =
                    (recorded.count(|stack| stack.has(function)), under(&recorded, root, function));
                let lost = recorded.lost();
                recorded.check(
                    right > 10 && right + lost > 70 && all == right,
                    format!("{right} of {all} of {function}, {lost} lost"),
                );
            }
        }
    }
}

/// As by the kernel's samples: a recording ends with its command.
#[test]
fn what_outlives_a_command_runs_on_untraced() {
    let Some(_one) = live() else { return };
    let recorded = launch(&[], &fixture("family"), &["leave", "300000"]);
    recorded.check_success();
    recorded.check(recorded.stats["exit_status"] == 5, "not the command's exit status");
    let burned = under(&recorded, "family", "burn_in_left");
    recorded.check(burned > 10, format!("{burned} counts of what was left"));
    recorded.check(recorded.stdout == "left tracer 0\n", format!("it said {:?}", recorded.stdout));
}

#[test]
fn children_of_a_traced_process_are_traced_or_not() {
    let Some(_one) = live() else { return };
    let script = "for i in 1 2 3 4; do echo $(echo $i | cat); done; grep TracerPid /proc/self/status";
    for (options, traced) in [(&["--idle"][..], true), (&["--idle", "--no-children"], false)] {
        let recorded = launch(options, "/bin/sh".as_ref(), &["-c", script]);
        recorded.check_success();
        let (numbers, tracer) = recorded.stdout.split_once("TracerPid:\t").unwrap_or_default();
        recorded.check(numbers == "1\n2\n3\n4\n", "it did something else");
        recorded.check((tracer != "0\n") == traced, format!("{options:?}: traced by {tracer:?}"));
        recorded.check(recorded.stats["exit_status"] == 0, "not the command's exit status");
    }
    // By vfork, posix_spawn and system() a parent waits for the child's exec in ways of their own.
    for options in OPTIONS {
        let mut target = Fixture::start("children", ["20"]);
        target.line("ready");
        let running = attach(target.pid(), options);
        target.go();
        let said = target.done();
        let recorded = running.interrupt();
        assert!(target.finish().0.success());
        // A forked child counts as right where it is not traced.
        assert_eq!(said, ["forked 0 vforked 20 spawned 20 shell 20"], "{options:?}");
        recorded.check_success();
        for work in ["parent_work", "child_work"] {
            let counts = under(&recorded, "children", work);
            recorded.check(counts > 50, format!("{counts} counts of {work} in {}", roots(&recorded)));
        }
    }
}

/// Processes of a fixture, itself and all that it has started, as far as they are there now.
fn members(pid: u32) -> Vec<u32> {
    let mut members = vec![pid];
    let mut at = 0;
    while at < members.len() {
        let children = format!("/proc/{0}/task/{0}/children", members[at]);
        let children = std::fs::read_to_string(children).unwrap_or_default();
        members.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        at += 1;
    }
    members
}

/// None of them is traced or stands still.
fn assert_all_untouched(members: &[u32], when: &str) {
    for pid in members {
        if proc_status(*pid, "State").is_some() {
            assert_untouched(*pid, when);
        }
    }
}

#[test]
fn kill_9_of_the_profiler_does_not_show_in_a_family() {
    let Some(_one) = live() else { return };
    let mut random = Random::from_environment();
    for round in 0..rounds(20) {
        let mut target = Fixture::start("family", ["shells", "60"]);
        target.line("ready");
        let options = ["--pid", &target.pid().to_string(), "--children", "--hz", "5000", "--idle"];
        let running = record(&options[..if round % 2 == 0 { 5 } else { 6 }]);
        wait_for("the profiler to attach", || tracer_of(target.pid()) != 0);
        target.go();
        let delay = Duration::from_micros(random.below(120_000));
        sleep(delay);
        running.kill();
        assert_all_untouched(&members(target.pid()), &format!("round {round}, killed after {delay:?}"));
        let said = target.done().join(" ");
        // A wait that stands just then is not repaired any more: one at most.
        let right = numbers(&said);
        let whole = right["shells"] == 60 && right["right"] == 60;
        let interrupted = right["interrupted"] <= 1 || cfg!(target_arch = "aarch64");
        assert!(whole && interrupted, "round {round}, killed after {delay:?}: {said}");
        assert!(target.finish().0.success());
    }
}

#[test]
fn a_launched_family_survives_kill_9_of_the_profiler() {
    let Some(_one) = live() else { return };
    let mut random = Random::from_environment();
    for round in 0..rounds(10) {
        let delay = Duration::from_micros(random.below(150_000));
        let mut profiler = stackprof();
        profiler.args(["-q", "--source", "ptrace", "-o", "-", "--"]).arg(fixture("family"));
        let mut profiler = Fixture::run(profiler.args(["zombies", "200"]));
        profiler.line("ready");
        profiler.go();
        sleep(delay);
        kill("KILL", profiler.pid());
        // The command writes to the same pipe, which ends when it has ended.
        let (_, said) = profiler.finish();
        let said = said.join(" ");
        assert!(said.contains("zombies 200 right 200 left 0"), "round {round}, after {delay:?}: {said}");
    }
}

#[test]
fn ctrl_c_lets_the_whole_family_go() {
    let Some(_one) = live() else { return };
    for options in [&["--source", "ptrace"][..], &["--source", "ptrace", "--idle"]] {
        // Ten minutes of work in two processes at a time.
        let mut command = Command::new(fixture("tree"));
        command
            .args(["2", "2", "600000000"])
            .arg(tree("one"))
            .arg(tree("two"))
            .stdout(std::process::Stdio::null());
        let family = Killed(command.spawn().unwrap());
        wait_for("its children", || members(family.0.id()).len() == 3);
        let running = attach(family.0.id(), &[options, &["--children"]].concat());
        let all = members(family.0.id());
        assert!(all.iter().all(|pid| tracer_of(*pid) != 0), "not all of {all:?} are traced");
        // Attached is not yet sampled: beside other work a recording may have no CPU time to tell of.
        let used = |pid: u32| cpu_time(pid).expect("it works");
        let before = used(all[1]);
        wait_for_cpu_time(all[1], before + Duration::from_millis(100));
        let recorded = running.interrupt();
        recorded.check_success();
        assert_all_untouched(&all, "after Ctrl-C");
        for pid in all.iter().skip(1) {
            kill("KILL", *pid);
        }
    }
}
