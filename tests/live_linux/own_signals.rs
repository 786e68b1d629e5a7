//! Ctrl-Z and SIGTERM for the profiler: while suspended it keeps no target stopped or waiting, and a command
//! gets the signal that asks it to end. Signals without a target are tested in `tests/cli`.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Running, assert_untouched, fixture, kill, live, proc_status, record, record_by, sampled,
    stackprof, states, tids, tracer_of, wait_for, wait_for_more_cpu_time, wait_for_ticks, write_script,
};

/// stackprof in a separate process group, as a shell starts a job: not orphaned, so that SIGTSTP stops it
/// (setpgid(2), signal(7)).
fn job() -> Command {
    let mut command = stackprof();
    command.process_group(0);
    command
}

/// Waits until a process is suspended.
fn wait_suspended(pid: u32) {
    wait_for(format!("pid {pid} to be suspended"), || {
        proc_status(pid, "State").is_none_or(|state| state.starts_with(['T', 'Z']))
    });
    assert!(proc_status(pid, "State").unwrap().starts_with('T'), "it ended");
}

/// Ctrl-Z for the profiler alone; checks that it holds nothing of the target.
fn suspend(running: &Running, target: u32) {
    kill("TSTP", running.pid());
    wait_suspended(running.pid());
    wait_for("the target to be let go", || tids(target).into_iter().all(|tid| tracer_of(tid) == 0));
    assert_untouched(target, "the profiler is suspended");
}

/// `fg`; checks that the target is recorded again.
fn resume(running: &Running, target: u32, source: &str) {
    kill("CONT", running.pid());
    if source == "ptrace" {
        wait_for("the target to be traced again", || {
            tracer_of(target) != 0 || proc_status(running.pid(), "State").is_none_or(|s| s.starts_with('Z'))
        });
    }
    wait_for_ticks("the target", running.pid());
}

fn attach_job(pid: u32, source: &str, options: &[&str]) -> Running {
    let text = pid.to_string();
    let running = record_by(job(), ["--pid", &text, "--source", source].iter().chain(options).copied());
    running.wait_attached(pid);
    running
}

const SUSPENDED: &str = "used while stackprof was suspended";

#[test]
fn a_target_runs_while_the_profiler_is_suspended() {
    if !live() {
        return;
    }
    let by_kernel: &[&[&str]] = if sampled() { &[&["perf"]] } else { &[] };
    for options in [&["ptrace"][..], &["ptrace", "--idle", "--hz", "5000"]].iter().chain(by_kernel) {
        let mut target = Fixture::start("threads", ["3", "5", "told"]);
        target.line("ready");
        let pid = target.pid();
        let work = || wait_for_more_cpu_time(pid, Duration::from_millis(100));
        let running = attach_job(pid, options[0], &options[1..]);
        suspend(&running, pid);
        // It starts threads, which would wait for a suspended tracer.
        target.go();
        work();
        resume(&running, pid, options[0]);
        work();
        // The profiler has counted the work then, however late it gets a CPU.
        wait_for_ticks("the work", running.pid());
        suspend(&running, pid);
        work();
        // A SIGCONT right after the SIGTSTP leaves nothing suspended.
        for _ in 0..5 {
            let profiler = running.pid().to_string();
            let both = "kill -CONT \"$1\"; kill -TSTP \"$1\"; kill -CONT \"$1\"";
            assert!(Command::new("sh").args(["-c", both, "sh", &profiler]).status().unwrap().success());
        }
        resume(&running, pid, options[0]);
        work();
        wait_for_ticks("the work", running.pid());
        let recorded = running.interrupt();
        recorded.check_success();
        assert_untouched(pid, "after the recording");
        recorded.check(recorded.shows(|stack| stack.has("work_leaf")), "no samples");
        if options.len() == 1 {
            // All CPU time is in a sample, or lost for a reason.
            recorded.check_sum();
        }
        if *options == ["ptrace"] {
            let lost = recorded.stats["samples_lost"][SUSPENDED].as_u64().unwrap_or(0);
            recorded.check(lost > 20, "what was used meanwhile is not reported");
        }
        recorded.check(recorded.stderr.contains("\n  suspend   "), "the summary does not say so");
        target.tell("enough");
        assert_eq!(target.done().len(), 4, "the target goes on to its end");
        assert!(target.finish().0.success());
    }
    check_exec_and_end();
}

/// An exec and an exit during the suspension are seen afterwards.
fn check_exec_and_end() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read go; exec \"$0\" 600"]).arg(fixture("shares"));
    let mut target = Fixture::run(&mut shell);
    target.line("ready");
    let pid = target.pid();
    let running = attach_job(pid, "ptrace", &[]);
    suspend(&running, pid);
    target.go();
    target.line("ready");
    resume(&running, pid, "ptrace");
    wait_for_more_cpu_time(pid, Duration::from_millis(200));
    wait_for_ticks("the new program", running.pid());
    suspend(&running, pid);
    kill("KILL", pid);
    wait_for("its end", || states(pid).chars().all(|state| state == 'Z'));
    kill("CONT", running.pid());
    // It ends by itself.
    let recorded = running.wait();
    recorded.check_success();
    recorded.check(recorded.shows(|stack| stack.has("leaf_50")), "the new program is not recorded");
    recorded
        .check_none("under the shell's name", |stack| stack.has("recurse") && stack.frames[0] != "shares");
}

#[test]
fn a_command_gets_job_control_and_the_first_terminating_signal() {
    if !live() {
        return;
    }
    for (name, number) in [("TERM", 15), ("HUP", 1)] {
        let dir = TempDir::new().unwrap();
        let script = dir.path().join("stubborn");
        let (ready, got) = (dir.path().join("ready"), dir.path().join("got"));
        write_script(
            &script,
            "#!/bin/sh\ntrap 'echo >\"$2\"' TERM HUP\necho $$ >\"$1\"\nwhile :; do :; done\n",
            0o755,
        );
        let running = record(["--".as_ref(), script.as_os_str(), ready.as_os_str(), got.as_os_str()]);
        let pid = || fs::read_to_string(&ready).ok()?.trim().parse::<u32>().ok();
        wait_for("the command", || pid().is_some());
        wait_for_ticks("the command", running.pid());
        wait_for_more_cpu_time(pid().unwrap(), Duration::from_millis(100));
        kill(name, running.pid());
        wait_for("the command to have its signal", || got.exists());
        kill(name, running.pid());
        // Do not wait for the command's pipes.
        wait_for("the profiler's end", || {
            proc_status(running.pid(), "State").is_none_or(|state| state.starts_with('Z'))
        });
        let command = pid().unwrap();
        assert_untouched(command, format!("after two SIG{name}"));
        kill("KILL", command);
        let recorded = running.wait();
        let status = recorded.status;
        // Written, unless that takes longer than a user would wait.
        recorded.check(status.success() || status.signal() == Some(number), format!("two SIG{name}"));
    }
    if sampled() {
        let dir = TempDir::new().unwrap();
        let trapped = dir.path().join("trapped");
        let script = "trap 'exit 5' TERM; : >\"$0\"; while :; do :; done";
        let running = record(["--source", "perf", "--", "/bin/sh", "-c", script, trapped.to_str().unwrap()]);
        wait_for("the trap", || trapped.exists());
        wait_for_ticks("the command", running.pid());
        kill("TERM", running.pid());
        let recorded = running.wait();
        recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
        if !recorded.is_empty() {
            recorded.check(recorded.stats["exit_status"] == 5, "the command did not get the signal");
        }
    }
    check_job();
}

/// A job is suspended with its command, as by the terminal, and continues with it.
fn check_job() {
    const ROUNDS: &str = "500";
    let (_, mut expected) = Fixture::start("checksum", [ROUNDS]).finish();
    expected.retain(|line| line != "ready");
    let mut command = job();
    command.args(["-q", "--source", "ptrace", "-o", "/dev/null", "--format", "folded", "--"]);
    let mut profiler = Fixture::run(command.arg(fixture("checksum")).args([ROUNDS, "wait"]));
    profiler.line("ready");
    let children = || -> Vec<u32> {
        let path = |tid: u32| format!("/proc/{}/task/{tid}/children", profiler.pid());
        let lists = tids(profiler.pid()).into_iter().filter_map(|tid| fs::read_to_string(path(tid)).ok());
        let lists: Vec<String> = lists.collect();
        lists.iter().flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok())).collect()
    };
    wait_for("the command", || children().len() == 1);
    let pid = children()[0];
    wait_for_ticks("the command", profiler.pid());
    let group = |signal: &str, leader: u32| kill(signal, format!("-{leader}"));
    group("TSTP", profiler.pid());
    wait_suspended(profiler.pid());
    wait_for("the command to be let go", || tracer_of(pid) == 0);
    wait_for("the command to be stopped", || states(pid).chars().all(|state| state == 'T'));
    group("CONT", profiler.pid());
    profiler.go();
    let (status, mut said) = profiler.finish();
    said.retain(|line| line != "ready");
    assert!(matches!(status.code(), Some(0 | 4)), "{status} {said:?}");
    assert_eq!(said, expected);
}
