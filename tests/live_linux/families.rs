//! Processes with children continue as without a profiler, whatever it does and however it ends.

use std::process::Command;
use std::time::Duration;

use crate::support::{
    Fixture, Killed, Recorded, assert_untouched, attach, fixture, kill, launch, live, proc_status,
    record_until, tracer_of, wait_for, wait_for_more_cpu_time,
};
use crate::trees::{shows_under, tree};

/// Options to attach with: the default, and one that stops everything all the time.
const OPTIONS: [&[&str]; 2] =
    [&["--source", "ptrace", "--children"], &["--source", "ptrace", "--children", "--hz", "5000", "--idle"]];

/// The output of `family`, and its recording.
fn family(arguments: &[&str], options: &[&str]) -> (String, Recorded) {
    let mut target = Fixture::start("family", arguments);
    target.line("ready");
    let running = attach(target.pid(), options);
    target.go();
    let said = target.done().join(" ");
    let recorded = running.interrupt();
    assert!(target.finish().0.success());
    (said, recorded)
}

#[test]
fn parents_and_children_notice_no_profiler() {
    if !live() {
        return;
    }
    let one = tree("one");
    let one = one.to_str().unwrap();
    // On aarch64 the kernel does not allow repairing an interrupted call.
    let shells =
        if cfg!(target_arch = "aarch64") { "shells 64 right 64" } else { "shells 64 right 64 interrupted 0" };
    type Shown = fn(&Recorded) -> bool;
    let cases: [(&[&str], &str, Shown); 4] = [
        (&["shells", "64"], shells, |_| true),
        (&["zombies", "60"], "zombies 60 right 60 left 0", |_| true),
        (&["daemon", "60000"], "daemon right 3", |recorded| {
            shows_under(recorded, "family", "burn_in_daemon")
        }),
        (&["threads", "60000", one], "threads right 1", |recorded| {
            recorded.check_none("under another name", |stack| {
                stack.has("burn_in_thread_child") && stack.frames[0] != "family"
                    || stack.has("burn_in_one") && stack.frames[0] != "tree_one"
            });
            shows_under(recorded, "family", "burn_in_thread_child")
                && shows_under(recorded, "tree_one", "burn_in_one")
        }),
    ];
    for (arguments, expected, shown) in cases {
        for options in OPTIONS {
            let recorded = || {
                let (said, recorded) = family(arguments, options);
                recorded.check(said.starts_with(expected), &said);
                recorded
            };
            let recorded = record_until(arguments[0], recorded, shown);
            if arguments[0] == "shells" {
                // A shell each, a `sleep` or `true` in half of them.
                let processes = recorded.figure("processes_seen");
                recorded.check(processes >= 1.0 + 64.0 + 32.0, format!("{processes} processes"));
            }
        }
    }
}

#[test]
fn children_are_traced_only_where_requested() {
    if !live() {
        return;
    }
    // With vfork, posix_spawn and system() a parent waits differently for the child's exec. A forked child
    // counts as correct if it is not traced.
    let with = "forked 0 vforked 8 spawned 8 shell 8";
    let without = "forked 8 vforked 8 spawned 8 shell 8";
    let ptrace = &["--source", "ptrace"][..];
    let often = &["--source", "ptrace", "--hz", "5000", "--idle"][..];
    for (options, expected) in [(OPTIONS[0], with), (OPTIONS[1], with), (ptrace, without), (often, without)] {
        let attached = || {
            let mut target = Fixture::start("children", ["8"]);
            target.line("ready");
            let running = attach(target.pid(), options);
            target.go();
            let said = target.done();
            let recorded = running.interrupt();
            assert!(target.finish().0.success());
            assert_eq!(said, [expected], "{options:?}");
            recorded
        };
        let recorded = record_until("the parent, and its children where requested", attached, |recorded| {
            let child = expected == without || shows_under(recorded, "children", "child_work");
            child && shows_under(recorded, "children", "parent_work")
        });
        if expected == without {
            recorded.check_none("a child was sampled", |stack| stack.has("child_work"));
            recorded.check(recorded.figure("threads_seen") == 1.0, "a child was taken for a thread");
        }
    }
    let script = "for i in 1 2 3 4; do echo $(echo $i | cat); done; grep TracerPid /proc/self/status";
    for (options, traced) in [(&["--idle"][..], true), (&["--idle", "--no-children"], false)] {
        let recorded = launch(&[ptrace, options].concat(), "/bin/sh".as_ref(), &["-c", script]);
        recorded.check_success();
        let (numbers, tracer) = recorded.stdout.split_once("TracerPid:\t").unwrap_or_default();
        recorded.check(numbers == "1\n2\n3\n4\n", "it did something else");
        recorded.check((tracer != "0\n") == traced, format!("{options:?}: traced by {tracer:?}"));
        recorded.check(recorded.stats["exit_status"] == 0, "not the command's exit status");
    }
    // A recording ends with its command; processes that outlive it continue.
    let recorded = record_until(
        "what was left",
        || {
            let recorded = launch(ptrace, &fixture("family"), &["leave", "100000"]);
            recorded.check(recorded.stdout == "left tracer 0\n", format!("it said {:?}", recorded.stdout));
            recorded
        },
        |recorded| shows_under(recorded, "family", "burn_in_left"),
    );
    recorded.check(recorded.stats["exit_status"] == 5, "not the command's exit status");
}

/// A fixture's process and all its current descendants.
pub(crate) fn members(pid: u32) -> Vec<u32> {
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

/// Checks that none of them is traced or stopped.
pub(crate) fn assert_all_untouched(members: &[u32], when: &str) {
    for pid in members {
        if proc_status(*pid, "State").is_some() {
            assert_untouched(*pid, when);
        }
    }
}

#[test]
fn ctrl_c_releases_all_processes() {
    if !live() {
        return;
    }
    for options in OPTIONS {
        // Ten minutes of work in two processes at a time.
        let mut command = Command::new(fixture("tree"));
        command.args(["2", "2", "600000000"]).arg(tree("one")).arg(tree("two"));
        let family = Killed(command.stdout(std::process::Stdio::null()).spawn().unwrap());
        wait_for("its children", || members(family.0.id()).len() == 3);
        let running = attach(family.0.id(), options);
        let all = members(family.0.id());
        wait_for(format!("all of {all:?} to be traced"), || all.iter().all(|pid| tracer_of(*pid) != 0));
        wait_for_more_cpu_time(all[1], Duration::from_millis(50));
        let recorded = running.interrupt();
        recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
        assert_all_untouched(&all, "after Ctrl-C");
        for pid in all.iter().skip(1) {
            kill("KILL", *pid);
        }
    }
}
