//! Starts and exits, by both sources: of commands, programs within a process, and threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::narrow::narrow;
use crate::rights::{check_profile, outcome};
use crate::support::{
    Fixture, Recorded, attach, compile, fixture, kill, launch, live, numbers, record, record_until, sources,
    stackprof, wait_for, wait_for_more_cpu_time, wait_for_ticks, write_script,
};

/// `exec` built to burn in a function of its own.
fn exec_fixture(name: &str) -> PathBuf {
    compile("exec", &format!("exec_{name}"), &[&format!("-DNAME={name}")])
}

/// Records successive programs until each was seen in its function, which no other one has.
#[track_caller]
fn check_programs(what: &str, functions: &[&str], mut record: impl FnMut() -> Recorded) -> Recorded {
    let recorded = || {
        let recorded = record();
        recorded.check_none(format!("{what}: a stack of two programs"), |stack| {
            functions.iter().filter(|function| stack.has(function)).count() > 1
        });
        recorded
    };
    record_until(what, recorded, |recorded| {
        functions
            .iter()
            .all(|name| recorded.shows(|stack| stack.has(name) && stack.has("main") && stack.is_complete()))
    })
}

#[test]
fn successive_programs_have_their_own_names() {
    let (one, two) = (exec_fixture("one"), exec_fixture("two"));
    let both = ["burn_in_one", "burn_in_two"];
    for source in sources() {
        let no_kernel = if *source == "perf" { &["--no-kernel"][..] } else { &[] };
        let options = &[&["--source", *source, "--hz", "997"], no_kernel].concat()[..];
        for thread in [&[][..], &["thread".as_ref()]] {
            let arguments = [&[two.as_os_str()], thread].concat();
            let recorded = check_programs("an exec", &both, || launch(options, &one, &arguments));
            recorded.check(recorded.stdout == "finished\n", "the second program did not finish");
            recorded.check(recorded.stats["exit_status"] == 0, "not the second program's exit status");
        }
        check_programs("an exec of an attached process", &both, || {
            let mut target = Fixture::run(Command::new(&one).arg("wait").arg(&two));
            target.line("ready");
            let running = attach(target.pid(), options);
            target.go();
            // The recording ends with the process.
            let recorded = running.wait();
            target.line("finished");
            assert!(target.finish().0.success());
            recorded.check(recorded.stats["exit_status"].is_null(), "an exit status although attached");
            recorded
        });
        // A 64-bit program executes a 32-bit one, which executes a 64-bit one. Each gets only the next one.
        let Some(narrow) = narrow("exec", "exec_narrow", &["-DNAME=narrow"]) else { continue };
        let dir = TempDir::new().unwrap();
        let script = dir.path().join("next");
        write_script(
            &script,
            &format!("#!/bin/sh\nexec '{}' '{}'\n", narrow.display(), two.display()),
            0o755,
        );
        let functions = ["burn_in_one", "burn_in_narrow", "burn_in_two"];
        let recorded = check_programs("programs of both sizes", &functions, || {
            launch(options, &one, &[script.as_os_str()])
        });
        recorded.check(recorded.stdout == "finished\n", "the last program did not finish");
    }
}

#[test]
fn short_threads_and_survivors_of_the_first_one_are_recorded() {
    const THREADS: u64 = 400;
    for source in sources() {
        let churn = || {
            let mut target = Fixture::start("churn", [THREADS.to_string()]);
            target.line("ready");
            let running = attach(target.pid(), &["--threads", "--source", source]);
            target.go();
            let said = target.done();
            let recorded = running.interrupt();
            assert!(target.finish().0.success());
            assert_eq!(said[0], format!("finished {THREADS}"));
            if recorded.is_empty() {
                return recorded;
            }
            // Each missed thread is accounted for, up to a period.
            let work = numbers(&said[2])["cpu_ns"] as f64 * 997.0 / 1e9;
            let reported = (recorded.total() + recorded.lost()) as f64;
            recorded.check(reported >= work - 2.0, format!("{reported} counts of {work}"));
            if *source == "ptrace" {
                let seen = recorded.figure("threads_seen");
                recorded.check(seen == (THREADS + 1) as f64, format!("{seen} threads"));
            }
            recorded
        };
        record_until("the first thread, which makes the others", churn, |recorded| {
            recorded.shows(|stack| stack.has("between"))
        });

        let options = ["--hz", "997", "--source", source];
        let left = || launch(&options, &fixture("ends"), &["leader", "200"]);
        let recorded = record_until("the other thread", left, |recorded| {
            recorded.shows(|stack| stack.has("busy_until_the_end"))
        });
        recorded.check(recorded.stats["exit_status"] == 5, "not the exit status of the other thread");
        // /proc shows a process as a zombie once its first thread has exited, while its others run.
        let mut target = Fixture::start("ends", ["leader", "600000"]);
        target.line("ready");
        let stat = format!("/proc/{}/stat", target.pid());
        wait_for("the main thread leaves", || fs::read_to_string(&stat).unwrap().contains(") Z "));
        let recorded = || {
            let running = record(options.iter().copied().chain(["--pid", &target.pid().to_string()]));
            // Its exited first thread would not show the tracer.
            wait_for_ticks("the target", running.pid());
            wait_for_more_cpu_time(target.pid(), Duration::from_millis(50));
            running.interrupt()
        };
        let recorded = record_until("the thread that is left", recorded, |recorded| {
            recorded.shows(|stack| stack.has("busy_until_the_end"))
        });
        let command = recorded.stats["command"].as_str();
        recorded
            .check(command.is_some_and(|command| command.contains("leader")), "its command is not reported");
    }
}

#[test]
fn the_exit_of_a_command_is_reported() {
    if !live() {
        return;
    }
    // Core files go to a temporary directory.
    let dir = TempDir::new().unwrap();
    let ends = fixture("ends");
    let cases = [
        ("exit7", "7"),
        ("abort", "\"signal 6\""),
        ("segv", "\"signal 11\""),
        ("term", "\"signal 15\""),
        ("kill", "\"signal 9\""),
    ];
    for (how, expected) in cases {
        for source in sources() {
            let script = match how {
                "kill" => "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; kill -9 $$",
                _ => "cd \"$1\" && exec \"$2\" \"$3\" 60",
            };
            let words = ["-c".as_ref(), script.as_ref(), "sh".as_ref(), dir.path().as_os_str()];
            let words = [&words[..], &[ends.as_os_str(), how.as_ref()]].concat();
            let recorded = record_until(
                "a sample",
                || launch(&["--source", source, "--hz", "997"], "/bin/sh".as_ref(), &words),
                |recorded| recorded.total() > 0,
            );
            let told = recorded.stats["exit_status"].to_string();
            recorded.check(told == expected, format!("{source}: {told} instead of {expected}"));
        }
    }
    check_time_of_children(dir.path());
    for source in sources() {
        // The wait for the command's exit races with the tracer: in one of two or three cases the wrong one
        // consumed the stop before the exit.
        for _ in 0..4 {
            let output = dir.path().join("missing.folded");
            let words = ["--source", source, "-o", output.to_str().unwrap(), "--", "/does/not/exist"];
            let recorded = record(words).wait();
            recorded.check(recorded.status.code() == Some(1), "not an error");
            let expected = "stackprof: cannot run `/does/not/exist`: no such file or directory; check the name or \
                            give a path\n";
            recorded.check(recorded.stderr == expected, "other words");
            recorded.check(recorded.files.is_empty() && !output.exists(), "files were left");
        }
    }
}

/// As `time` shows it: the command's CPU time is part of the times of the profiler's children.
fn check_time_of_children(dir: &Path) {
    let stats = dir.join("out.json");
    let script = "\"$@\" >/dev/null 2>&1; times";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(stackprof().get_program()).arg("--stats").arg(&stats);
    shell.arg("-o").arg(dir.join("out.folded")).arg("--").arg(fixture("shares")).arg("0.3");
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // The second line is for children: `0m1.020000s 0m0.050000s`.
    let seconds = |text: &str| {
        let (minutes, seconds) = text.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let children: f64 = said.lines().nth(1).unwrap_or_default().split_whitespace().filter_map(seconds).sum();
    let stats: serde_json::Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
    let (target, own) = (stats["target_cpu_s"].as_f64().unwrap(), stats["profiler_cpu_s"].as_f64().unwrap());
    // The clocks tick at 100 Hz at worst.
    assert!(children >= target + own - 0.03, "{said}: {target} s and {own} s are not in it");
}

/// It exits before attaching, before the first sample, in the middle, reaped or not, and while the profile is
/// written.
#[test]
fn a_target_may_exit_in_any_phase() {
    for source in sources() {
        let options = |pid: u32| {
            let words = ["--source", *source, "--hz", "997", "--pid"].map(str::to_owned);
            words.into_iter().chain([pid.to_string()])
        };
        let gone = Fixture::start("shares", ["0.01"]);
        let pid = gone.pid();
        gone.finish();
        let recorded = record(options(pid)).wait();
        outcome(&recorded);
        recorded.check(recorded.status.code() == Some(1), "a process that is gone was recorded");
        for _ in 0..2 {
            let mut target = Fixture::start("threads", ["2", "10", "told"]);
            target.line("ready");
            target.go();
            let running = record(options(target.pid()));
            drop(target);
            println!("on the way to the first sample: {}", outcome(&running.wait()));
        }
        for how in ["waited for", "not waited for", "while it is written"] {
            let mut target = Fixture::start("shares", ["600"]);
            target.line("ready");
            let pid = target.pid();
            let running = attach(pid, &["--source", source, "--hz", "997"]);
            wait_for_more_cpu_time(pid, Duration::from_millis(100));
            match how {
                "waited for" => drop(target),
                "not waited for" => kill("KILL", pid),
                _ => {
                    kill("INT", running.pid());
                    drop(target);
                }
            }
            let recorded = running.wait();
            println!("{source}, {how}: {}", check_profile(&recorded));
            recorded.check(recorded.svg.trim_end().ends_with("</svg>"), "the SVG is not whole");
        }
    }
}

#[test]
fn initially_waiting_threads_are_recorded_from_the_beginning() {
    if !live() {
        return;
    }
    for source in sources() {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("a.firefox.json");
        let mut target = Fixture::start("many", ["4", "2", "0.2"]);
        target.line("ready");
        let running = attach(target.pid(), &["--source", source, "-o", file.to_str().unwrap()]);
        target.go();
        target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        let profile: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let threads = profile["threads"].as_array().unwrap().iter();
        let begun: Vec<_> = threads.map(|thread| thread["registerTime"].as_f64()).collect();
        let all = begun.len() >= 2 && begun.iter().all(|ms| *ms == Some(0.0));
        recorded.check(all, format!("{source}: threads begin at {begun:?} ms"));
    }
}
