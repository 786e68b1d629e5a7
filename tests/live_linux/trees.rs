//! Several processes in one recording, by both sources: children of a command or of an attached process, and
//! processes selected by number, user, control group or namespace.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::{
    Fixture, Killed, Recorded, Somebody, attach, compile, fixture, has_events, is_root, launch, not_here,
    record, record_by, record_until, sampled, sources, wait_for, wait_for_more_cpu_time, wait_for_ticks,
};

const PROGRAMS: [(&str, &str); 2] = [("tree_one", "burn_in_one"), ("tree_two", "burn_in_two")];

/// A program that burns in a function with its own name.
pub(crate) fn tree(name: &str) -> PathBuf {
    compile("tree", &format!("tree_{name}"), &[&format!("-DNAME={name}")])
}

/// Whether there is a stack with a function under a root.
pub(crate) fn shows_under(recorded: &Recorded, root: &str, function: &str) -> bool {
    recorded.shows(|stack| stack.frames[0] == root && stack.has(function))
}

/// Fails if a program's function is under a different program's name.
#[track_caller]
pub(crate) fn burned_elsewhere(recorded: &Recorded) {
    for (root, function) in PROGRAMS {
        recorded.check_none(format!("{function} under another name"), |stack| {
            let name = stack.frames[0].split(" (").next().unwrap_or_default();
            // Programs of `exec.c` have these functions, too: with `-a` those of concurrent tests are
            // recorded.
            stack.has(function) && name != root && !name.starts_with("exec_")
        });
    }
}

pub(crate) fn roots(recorded: &Recorded) -> String {
    let mut roots: Vec<&str> = recorded.stacks.iter().map(|stack| stack.frames[0].as_str()).collect();
    roots.sort_unstable();
    roots.dedup();
    roots.join(", ")
}

fn shows_both(recorded: &Recorded) -> bool {
    PROGRAMS.iter().all(|(root, function)| shows_under(recorded, root, function))
}

#[test]
fn children_of_a_command_are_recorded_under_their_program_names() {
    let (one, two) = (tree("one"), tree("two"));
    let arguments = ["4", "2", "60000", one.to_str().unwrap(), two.to_str().unwrap()];
    for source in sources() {
        let by = |options: &[&str]| {
            let options = [&["--source", *source, "--hz", "997"], options].concat();
            let recorded = launch(&options, &fixture("tree"), &arguments);
            burned_elsewhere(&recorded);
            recorded
        };
        let recorded = record_until("both programs", || by(&[]), shows_both);
        recorded.check(recorded.figure("processes_seen") == 5.0, "not five processes");
        // There are two processes of each program.
        let of = |recorded: &Recorded, name: &str| roots(recorded).matches(&format!("{name} (")).count();
        let apart = record_until(
            "each process",
            || by(&["--per-process"]),
            |recorded| of(recorded, "tree_one") + of(recorded, "tree_two") >= 4,
        );
        apart.check(of(&apart, "tree_one") == 2 && of(&apart, "tree_two") == 2, roots(&apart));
        // Without them there is hardly anything to sample.
        let alone = by(&["--no-children"]);
        alone.check(matches!(roots(&alone).as_str(), "tree" | ""), roots(&alone));
        alone.check(matches!(alone.status.code(), Some(0 | 4)), "neither done nor empty");
    }
}

#[test]
fn children_of_an_attached_process_are_recorded_where_requested() {
    for source in sources() {
        for (options, processes) in [(&[][..], 1.0), (&["--children"][..], 2.0)] {
            let attached = || {
                let mut target = Fixture::start("tree", ["fork", "0.15"]);
                let child: u32 = target.line("child").parse().unwrap();
                target.line("ready");
                let options = [&["--source", *source, "--per-process"], options].concat();
                let running = attach(target.pid(), &options);
                target.go();
                target.done();
                let recorded = running.interrupt();
                let all = [target.pid(), child].map(|pid| format!("tree ({pid})"));
                assert!(target.finish().0.success());
                recorded.check_none("another process", |stack| !all.contains(&stack.frames[0]));
                if processes == 1.0 {
                    recorded.check_none("the child", |stack| stack.frames[0] == all[1]);
                }
                recorded
            };
            let recorded = record_until("all processes", attached, |recorded| {
                roots(recorded).matches("tree (").count() as f64 == processes
            });
            recorded.check(recorded.figure("processes_seen") == processes, "another number of processes");
            recorded.check_sum();
        }
    }
}

/// A process with this name that uses a CPU until dropped.
fn burning(name: &str) -> Killed {
    Killed(Command::new(tree(name)).args(["burn", "600000000"]).spawn().unwrap())
}

#[test]
fn processes_are_selected_by_number_user_group_and_namespace() {
    let (one, two) = (burning("one"), burning("two"));
    let pids = [&one, &two].map(|child| child.0.id().to_string());
    let group = fs::read_to_string(format!("/proc/{}/cgroup", pids[0])).unwrap_or_default();
    let group = group.lines().rev().find_map(|line| line.splitn(3, ':').nth(2)).unwrap_or("/").to_owned();
    let by_number = ["--pid", &pids[0], "--pid", &pids[1]];
    let ways: [(&[&str], bool); 4] =
        [(&by_number, true), (&["-a"], false), (&["--user", "root"], false), (&["--cgroup", &group], false)];
    for source in sources() {
        for (way, alone) in ways {
            if *source == "ptrace" && !alone || way[0] == "--user" && !is_root() {
                continue;
            }
            let recorded = record_until(
                "both processes",
                || {
                    let running = record(way.iter().chain(&["--source", *source]));
                    wait_for_ticks("the processes", running.pid());
                    for child in [&one, &two] {
                        wait_for_more_cpu_time(child.0.id(), Duration::from_millis(40));
                    }
                    let recorded = running.interrupt();
                    burned_elsewhere(&recorded);
                    recorded
                },
                shows_both,
            );
            // Two processes are always busy.
            let idle = recorded.stats["machine_idle_share"].as_f64();
            recorded.check(idle.is_some() == (way[0] == "-a"), format!("{way:?}: {idle:?} idle"));
            recorded.check(idle.is_none_or(|idle| (0.0..1.0).contains(&idle)), format!("{idle:?} idle"));
            if alone {
                recorded.check(roots(&recorded) == "tree_one, tree_two", roots(&recorded));
                recorded.check_sum();
            }
        }
    }
    // It continues with the remaining one, and ends with it.
    let [first, second] = &pids;
    let running = record(["--pid", first, "--pid", second, "--source", "ptrace"]);
    running.wait_attached(one.0.id());
    drop(one);
    wait_for_more_cpu_time(two.0.id(), Duration::from_millis(100));
    drop(two);
    let recorded = running.wait();
    recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
    if sampled() {
        check_processes_of_a_user();
        check_processes_of_a_namespace();
    }
}

/// Processes that exit before their owner is queried: they have the user of their parent.
fn check_processes_of_a_user() {
    let Some(somebody) = Somebody::new() else { return };
    let one = somebody.copy(&tree("one"));
    let of_nobody = || {
        let running = record(["--source", "perf", "--hz", "997", "--user", "nobody"]);
        wait_for("the events", || has_events(running.pid()));
        wait_for_ticks("the recording", running.pid());
        let mut command = somebody.run(&somebody.fixture("tree"));
        let output = command.args(["30", "1", "3000", one.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let recorded = running.interrupt();
        recorded.check_none("another user's", |stack| stack.frames[0] == "tree_two");
        recorded
    };
    record_until("short processes of a user", of_nobody, |recorded| {
        shows_under(recorded, "tree_one", "burn_in_one") && recorded.figure("processes_seen") > 20.0
    });
}

/// In a container, a program that puts its children into a separate namespace, as sandboxes do.
fn check_processes_of_a_namespace() {
    let below = ["unshare", "-p", "-f", "--mount-proc"];
    let can = Command::new(below[0]).args(&below[1..]).arg("true").output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        return not_here(&format!("unshare makes no namespace of processes: {can:?}"));
    }
    let (one, program) = (tree("one"), fixture("tree"));
    let of_namespace = || {
        let mut command = Command::new(below[0]);
        command.args(&below[1..]).arg(env!("CARGO_BIN_EXE_stackprof"));
        let mut words = vec!["--source", "perf", "--hz", "997", "--"];
        words.extend(below);
        words.extend([program.to_str().unwrap(), "2", "1", "100000", one.to_str().unwrap()]);
        record_by(command, words).wait()
    };
    record_until("processes of the namespace below", of_namespace, |recorded| {
        shows_under(recorded, "tree_one", "burn_in_one")
    });
}
