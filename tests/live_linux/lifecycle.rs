//! Beginnings and ends: of commands, programs within a process, children and threads.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{
    Fixture, Recorded, attach, compile, fixture, launch, live, numbers, record, stackprof, wait_for,
    wait_for_ticks,
};

const HZ: f64 = 997.0;

#[test]
fn children_are_left_alone_and_run() {
    let Some(_one) = live() else { return };
    for options in [&["--hz", "997"][..], &["--hz", "5000", "--idle"]] {
        let mut target = Fixture::start("children", ["30"]);
        target.line("ready");
        let running = attach(target.pid(), options);
        target.go();
        let said = target.done();
        let recorded = running.interrupt();
        assert!(target.finish().0.success());
        // A child counts only if nobody traced it. By vfork, posix_spawn and system() a
        // parent waits for the child's exec in ways of their own.
        assert_eq!(said, ["forked 30 vforked 30 spawned 30 shell 30"], "{options:?}");
        recorded.check_success();
        recorded
            .check(recorded.count(|stack| stack.has("parent_work")) > 50, "the parent was hardly sampled");
        recorded.check(!recorded.stacks.iter().any(|stack| stack.has("child_work")), "a child was sampled");
        recorded.check(recorded.figure("threads_seen") == 1.0, "a child was taken for a thread");
    }
}

#[test]
fn a_command_starts_programs_that_run() {
    let Some(_one) = live() else { return };
    let script = "for i in 1 2 3 4 5 6 7 8; do echo $(echo $i | cat); done; grep TracerPid /proc/self/status";
    let recorded = launch(&["--idle", "--no-children"], "/bin/sh".as_ref(), &["-c", script]);
    recorded.check_success();
    recorded.check(recorded.stdout == "1\n2\n3\n4\n5\n6\n7\n8\nTracerPid:\t0\n", "it did something else");
    recorded.check(recorded.stats["exit_status"] == 0, "not the command's exit status");
}

/// `exec` built to burn in a function of its own.
pub(crate) fn exec_fixture(name: &str) -> PathBuf {
    compile("exec", &format!("exec_{name}"), &[&format!("-DNAME={name}")])
}

/// Recordings of programs that follow each other, of which one must be right.
const FOLLOWED_MAX: usize = 2;

/// Records programs that become each other, until each was seen for as long as it ran, in its function that is
/// named here; the last failure is one of the test.
///
/// A look that comes late, on a machine with other work, gives what was used since the one before to the program
/// that it finds. Where all together, with what is told to be lost, are all that was used, it is recorded again.
#[track_caller]
pub(crate) fn record_programs(functions: &[&str], mut record: impl FnMut() -> Recorded) -> Recorded {
    // Each uses 0.7 s of CPU time, a part of it for reading the clock.
    let used = 0.7 * functions.len() as f64;
    let seconds = |recorded: &Recorded, function: &str| {
        recorded.count(|stack| stack.has(function) && stack.has("main")) as f64 / HZ
    };
    let mut attempt = 1;
    loop {
        let recorded = record();
        recorded.check_success();
        let each: Vec<f64> = functions.iter().map(|function| seconds(&recorded, function)).collect();
        let accounted = (recorded.total() + recorded.lost()) as f64 / HZ;
        println!("{each:.3?} s in {functions:?}, {accounted:.3} s in all");
        recorded.check((accounted / used - 1.0).abs() < 0.1, format!("{accounted} s of {used}"));
        if each.iter().all(|seconds| (0.35..1.05).contains(seconds)) {
            return recorded;
        }
        recorded.check(attempt < FOLLOWED_MAX, format!("{each:?} s in {functions:?}"));
        attempt += 1;
    }
}

/// Both programs were seen for as long as each ran, each by its own names only.
#[track_caller]
pub(crate) fn check_both_programs(record: impl FnMut() -> Recorded) -> Recorded {
    let recorded = record_programs(&["burn_in_one", "burn_in_two"], record);
    let mixed = recorded.count(|stack| stack.has("burn_in_one") && stack.has("burn_in_two"));
    recorded.check(mixed == 0, "a stack of both programs");
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.9, format!("{complete} of the stacks are complete"));
    recorded
}

#[test]
fn a_program_that_replaces_itself_is_named_by_both() {
    let Some(_one) = live() else { return };
    let (one, two) = (exec_fixture("one"), exec_fixture("two"));
    let recorded = check_both_programs(|| launch(&[], &one, &[two.as_os_str()]));
    recorded.check(recorded.stdout == "finished\n", "the second program did not finish");
    recorded.check(recorded.stats["exit_status"] == 0, "not the second program's exit status");
}

#[test]
fn a_program_that_is_replaced_by_another_thread_is_named_by_both() {
    let Some(_one) = live() else { return };
    let (one, two) = (exec_fixture("one"), exec_fixture("two"));
    let recorded =
        check_both_programs(|| launch(&["--threads"], &one, &[two.as_os_str(), "thread".as_ref()]));
    recorded.check(recorded.stdout == "finished\n", "the second program did not finish");
    recorded.check(recorded.stats["exit_status"] == 0, "not the second program's exit status");
}

#[test]
fn a_program_attached_to_is_followed_through_exec() {
    let Some(_one) = live() else { return };
    check_both_programs(|| {
        let mut target = Fixture::run(Command::new(exec_fixture("one")).arg("wait").arg(exec_fixture("two")));
        target.line("ready");
        let running = attach(target.pid(), &[]);
        target.go();
        let recorded = running.wait();
        target.line("finished");
        assert!(target.finish().0.success());
        recorded
    });
}

#[test]
fn threads_that_come_and_go_are_all_seen_and_none_is_kept() {
    let Some(_one) = live() else { return };
    const THREADS: u64 = 4000;
    let mut target = Fixture::start("churn", [THREADS.to_string()]);
    target.line("ready");
    let first = format!("({})", target.pid());
    let running = attach(target.pid(), &["--threads"]);
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    assert!(target.finish().0.success());
    recorded.check_success();
    assert_eq!(said[0], format!("finished {THREADS}"));
    recorded.check(recorded.figure("threads_seen") == (THREADS + 1) as f64, "not all threads were seen");
    let cpu_s = |line: &str| numbers(line)["cpu_ns"] as f64 / 1e9;
    let (main, process) = (cpu_s(&said[1]), cpu_s(&said[2]));
    let [between, short] = ["between", "short_life"].map(|name| recorded.count(|stack| stack.has(name)));
    let (sampled, lost) = (recorded.total(), recorded.lost());
    println!(
        "CPU time {process:.3} s, main thread {main:.3} s; sampled {sampled}, lost {lost}; \
         in main {between}, in threads {short}; {}",
        recorded.stats["samples_lost"]
    );
    // Most of the threads live shorter than a tick; the first lives on and must be caught.
    recorded.check(between > 10, "the first thread was hardly sampled");
    // It makes the others: a stop that was asked for in the midst of clone() comes all the same.
    let of_first = recorded.count(|stack| stack.frames[1].ends_with(&first)) as f64 / HZ;
    // What a thread used between looks that did not find it running is told, and not given to it.
    let unseen = recorded.stats["samples_lost"]["used between looks and not caught running"].as_f64();
    let with_unseen = of_first + unseen.unwrap_or(0.0) / HZ;
    recorded.check(
        of_first > 0.5 * main && of_first < 1.1 * main && with_unseen > 0.9 * main,
        format!("{of_first} s in the first thread of {main} s, {with_unseen} s with what was not seen"),
    );
    // Each thread that was missed is accounted for.
    let accounted = (sampled + lost) as f64 / HZ;
    recorded.check((accounted / process - 1.0).abs() < 0.1, format!("{accounted} s of {process} s"));
    let told = recorded.figure("target_cpu_s");
    recorded.check((told / process - 1.0).abs() < 0.1, format!("told {told} s, used {process} s"));
}

#[test]
fn the_others_go_on_when_the_main_thread_has_left() {
    let Some(_one) = live() else { return };
    for options in [&["--hz", "997"][..], &["--hz", "997", "--idle", "--threads"]] {
        let recorded = launch(options, &fixture("ends"), &["leader", "1000"]);
        recorded.check_success();
        println!("{options:?}: {} counts after the main thread left", recorded.total());
        let named = recorded.count(|stack| stack.has("busy_until_the_end"));
        recorded.check(named > 200, "the other thread was hardly sampled, or has no names");
        recorded.check(recorded.stats["exit_status"] == 5, "not the exit status of the other thread");
    }
}

/// /proc shows a process whose first thread has left as a zombie, while its others run.
#[test]
fn a_process_whose_main_thread_left_before_is_attached_to() {
    let Some(_one) = live() else { return };
    for source in ["ptrace", "auto"] {
        // Attaching may take a second of it.
        let mut target = Fixture::start("ends", ["leader", "4000"]);
        target.line("ready");
        let stat = format!("/proc/{}/stat", target.pid());
        wait_for("the main thread leaves", || fs::read_to_string(&stat).unwrap().contains(") Z "));
        let running = attach(target.pid(), &["--source", source, "--hz", "997"]);
        let recorded = running.wait();
        recorded.check_success();
        let named = recorded.count(|stack| stack.has("busy_until_the_end"));
        recorded.check(named > 200, "the other thread was hardly sampled, or has no names");
        recorded.check(
            recorded.stats["command"].as_str().is_some_and(|command| command.contains("leader")),
            "its command is not told",
        );
    }
}

#[test]
fn how_a_launched_command_ended_is_in_the_statistics() {
    let Some(_one) = live() else { return };
    // Core files go where nobody minds.
    let dir = TempDir::new().unwrap();
    let cases =
        [("exit7", "7"), ("abort", "\"signal 6\""), ("segv", "\"signal 11\""), ("term", "\"signal 15\"")];
    for (how, expected) in cases {
        let script = "cd \"$1\" && exec \"$2\" \"$3\" 400";
        let words = ["-c".as_ref(), script.as_ref(), "sh".as_ref(), dir.path().as_os_str()];
        let ends = fixture("ends");
        let words = [&words[..], &[ends.as_os_str(), how.as_ref()]].concat();
        let recorded = launch(&[], "/bin/sh".as_ref(), &words);
        recorded.check_success();
        let told = recorded.stats["exit_status"].to_string();
        recorded.check(told == expected, format!("{told} instead of {expected}"));
        recorded.check(recorded.count(|stack| stack.has("busy_until_the_end")) > 50, "hardly sampled");
    }
    let recorded = launch(
        &[],
        "/bin/sh".as_ref(),
        &["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; kill -9 $$"],
    );
    recorded.check_success();
    recorded.check(recorded.stats["exit_status"] == "signal 9", "not the end by SIGKILL");
}

/// As `time` shows it: what the command used is among the times of the profiler's children.
#[test]
fn the_time_of_a_launched_command_counts_for_whoever_started_the_profiler() {
    let Some(_one) = live() else { return };
    let dir = TempDir::new().unwrap();
    let stats = dir.path().join("out.json");
    let script = "\"$@\" >/dev/null 2>&1; times";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(stackprof().get_program()).arg("--stats").arg(&stats);
    shell.arg("-o").arg(dir.path().join("out.folded")).arg("--").arg(fixture("shares")).arg("1");
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // The second line is of the children: `0m1.020000s 0m0.050000s`.
    let seconds = |text: &str| {
        let (minutes, seconds) = text.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let children: f64 = said.lines().nth(1).unwrap_or_default().split_whitespace().filter_map(seconds).sum();
    let stats: serde_json::Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
    let (target, own) = (stats["target_cpu_s"].as_f64().unwrap(), stats["profiler_cpu_s"].as_f64().unwrap());
    println!("children {children} s, of which the command {target} s, the profiler {own} s");
    // The clocks tick at 100 Hz at worst.
    assert!(children >= target + own - 0.03, "{said}: {target} s and {own} s are not in it");
}

/// Runs a command of which nothing is written, and returns what was said.
#[track_caller]
fn check_nothing_written(options: &[&str], command: &str, code: i32) -> String {
    let dir = TempDir::new().unwrap();
    let output = dir.path().join("out.folded");
    let mut arguments: Vec<&OsStr> = vec!["-o".as_ref(), output.as_os_str()];
    arguments.extend(options.iter().map(OsStr::new));
    arguments.extend(["--", command].map(OsStr::new));
    let recorded = record(arguments).wait();
    recorded.check(recorded.status.code() == Some(code), format!("exit code is not {code}"));
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    recorded.check(files.is_empty(), format!("left {files:?}"));
    recorded.check(recorded.stats.is_null() && recorded.svg.is_empty(), "left one of several outputs");
    recorded.check(recorded.stdout.is_empty(), "said something on standard output");
    recorded.check(recorded.stderr.lines().count() == 1, "not one line");
    recorded.check(recorded.stderr.starts_with("stackprof: "), "a line without the program's name");
    recorded.stderr
}

#[test]
fn a_missing_command_is_one_line() {
    let Some(_one) = live() else { return };
    let said = check_nothing_written(&[], "/does/not/exist", 1);
    assert!(said.contains("/does/not/exist"), "{said}");
    // Found by name, and not a program.
    check_nothing_written(&[], "no-such-command-anywhere", 1);
    check_nothing_written(&[], "/etc/passwd", 1);
}

#[test]
fn a_missing_command_is_told_at_once_by_stops_too() {
    let Some(_one) = live() else { return };
    // What waits for the command's end races with what traces it: once in two or three times the
    // stop before the end was taken by the wrong one.
    for _ in 0..20 {
        let began = Instant::now();
        let said = check_nothing_written(&["--source", "ptrace"], "/does/not/exist", 1);
        let took = began.elapsed();
        assert!(said.contains("no such file") && took < Duration::from_secs(30), "{took:?}: {said}");
    }
}

#[test]
fn a_command_that_ends_before_the_first_sample_leaves_nothing() {
    let Some(_one) = live() else { return };
    let said = check_nothing_written(&["--hz", "1"], "true", 4);
    assert!(said.contains("before the first sample"), "{said}");
}

#[test]
fn standard_input_and_output_are_the_commands() {
    let Some(_one) = live() else { return };
    let dir = TempDir::new().unwrap();
    let output = dir.path().join("cat.folded");
    let mut command = stackprof();
    // It mostly waits; also recording that shows that no read is disturbed.
    command.args(["-q", "--idle", "-o"]).arg(&output).args(["--", "cat"]);
    let mut cat = Fixture::run(&mut command);
    for number in 0..500 {
        let line = format!("line {number} \u{1f980} \u{7}");
        cat.tell(&line);
        assert_eq!(cat.next_line(), line);
    }
    wait_for_ticks("cat", cat.pid());
    // The end of input reaches it, too.
    let (status, said) = cat.finish();
    assert!(status.success(), "{status}");
    assert_eq!(said.len(), 500, "more than was told: {said:?}");
    assert!(fs::read_to_string(output).unwrap().starts_with("cat;"));
}

/// What a program inherits it keeps: each of these changes what programs do.
#[test]
fn a_launched_command_inherits_what_it_would_without_a_profiler() {
    let Some(_one) = live() else { return };
    let script = "ulimit -Sn; nice; cat /proc/self/timerslack_ns; ls /proc/self/fd; \
                  grep SigBlk /proc/self/status; grep -o 'SigIgn:.*' /proc/self/status | tail -c 9";
    // With a soft limit below the hard one: both are to be handed on. Ctrl-C is ignored, as
    // shells do for what scripts start in the background.
    let inherited = |command: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -Sn 300; trap '' INT; exec \"$0\" \"$@\""]).arg(command.get_program());
        let output = shell.args(command.get_args()).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let expected = inherited(Command::new("sh").args(["-c", script]));
    assert!(expected.starts_with("300\n"), "{expected}");
    let dir = TempDir::new().unwrap();
    let mut profiled = stackprof();
    profiled.args(["-q", "-o"]).arg(dir.path().join("out.folded")).args(["--", "sh", "-c", script]);
    let limit_nice_slack_descriptors_masks = inherited(&profiled);
    assert_eq!(limit_nice_slack_descriptors_masks, expected);
}

#[test]
fn a_process_that_ends_while_attached_ends_the_recording() {
    let Some(_one) = live() else { return };
    // Attaching may take a second of it.
    let mut target = Fixture::start("shares", ["4"]);
    target.line("ready");
    let running = attach(target.pid(), &[]);
    let (status, said) = target.finish();
    let recorded = running.wait();
    assert!(status.success() && said == ["ready", "done 1"], "{status} {said:?}");
    recorded.check_success();
    recorded.check(recorded.stats["exit_status"].is_null(), "an exit status although attached");
    recorded.check(recorded.total() > 200, "few samples");
}
