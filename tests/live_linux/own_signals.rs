//! Signals to the profiler itself: INT, TERM and HUP end it whatever it waits for, and Ctrl-Z suspends it
//! without a target that stands or waits for it.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Running, assert_untouched, attach, fixture, kill, live, proc_status, record, record_by,
    stackprof, states, tids, tracer_of, wait_for, wait_for_more_cpu_time, wait_for_ticks, write_script,
};

const ENDING: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("HUP", 1)];

/// stackprof in a process group of its own, as a shell starts a job: one that is not orphaned, so that
/// SIGTSTP stops it (setpgid(2), signal(7)).
fn job() -> Command {
    let mut command = stackprof();
    command.process_group(0);
    command
}

/// A child that is killed when dropped.
struct Guard(Child);

impl Guard {
    fn start(command: &mut Command) -> Guard {
        Guard(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(&mut self) -> ExitStatus {
        wait_for("the profiler's end", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A simulated recording, which ends by itself, whose last output waits for a reader that never comes;
/// returns when all others are written.
fn waits_for_a_reader(mut command: Command, dir: &Path, last: &str) -> Guard {
    let (svg, fifo) = (dir.join("out.svg"), dir.join("fifo.folded"));
    make_fifo(&fifo);
    command.args(["record", "--target", "sim:1", "-q", last]).arg(&fifo).arg("-o").arg(&svg);
    let guard = Guard::start(&mut command);
    wait_for("the other output", || svg.exists());
    guard
}

#[test]
fn one_signal_ends_the_wait_for_a_reader_and_leaves_what_was_written() {
    for last in ["-o", "--stats"] {
        for (name, number) in ENDING {
            let dir = TempDir::new().unwrap();
            let mut profiler = waits_for_a_reader(stackprof(), dir.path(), last);
            kill(name, profiler.pid());
            let status = profiler.end();
            assert_eq!(status.signal(), Some(number), "{last} SIG{name}: {status}");
            let svg = fs::read_to_string(dir.path().join("out.svg")).unwrap();
            assert!(svg.trim_end().ends_with("</svg>"), "{last} SIG{name}: not whole");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{last} SIG{name}: something is left");
        }
    }
}

/// The bit of a signal in a set of /proc/PID/status.
fn is_in(pid: u32, set: &str, number: i32) -> bool {
    let set = proc_status(pid, set).unwrap();
    u64::from_str_radix(&set, 16).unwrap() >> (number - 1) & 1 == 1
}

#[test]
fn what_was_ignored_at_the_start_stays_ignored() {
    for (name, number) in ENDING.into_iter().chain([("TSTP", 20)]) {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' \"$1\"; shift; exec \"$@\"", "sh", name]);
        command.arg(env!("CARGO_BIN_EXE_stackprof"));
        let profiler = waits_for_a_reader(command, dir.path(), "-o");
        for (other, number_of_other) in ENDING.into_iter().chain([("TSTP", 20)]) {
            let ignored = is_in(profiler.pid(), "SigIgn", number_of_other);
            // A script has its background jobs ignore SIGINT, and ends their recordings by it.
            let stays = number == number_of_other && name != "INT";
            assert_eq!(ignored, stays, "SIG{other} where SIG{name} was ignored");
        }
    }
}

/// The signal that ends the recording is enough: nobody need send another one to end the wait.
#[test]
fn a_signal_that_came_before_the_handlers_ends_it_all_the_same() {
    for (signal, number) in ENDING {
        // Pending when the program begins, which then waits for its input.
        let raise = format!("kill -{signal} $$; exec \"$0\" render - -o -");
        let mut command = Command::new("env");
        command.args([&format!("--block-signal={signal}"), "sh", "-c", &raise]);
        command.arg(stackprof().get_program());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Guard(command.spawn().unwrap());
        assert_eq!(child.end().signal(), Some(number), "{signal}");
    }
}

#[test]
fn a_signal_that_ended_the_recording_ends_the_wait_for_a_reader() {
    let Some(_one) = live() else { return };
    for (name, number) in ENDING {
        for source in ["perf", "ptrace"] {
            let dir = TempDir::new().unwrap();
            let fifo = dir.path().join("fifo.folded");
            make_fifo(&fifo);
            let mut target = Fixture::start("shares", ["600"]);
            target.line("ready");
            let running = attach(target.pid(), &["--source", source, "-o", fifo.to_str().unwrap()]);
            wait_for_more_cpu_time(target.pid(), Duration::from_millis(300));
            kill(name, running.pid());
            let recorded = running.wait();
            let status = recorded.status;
            assert_eq!(status.signal(), Some(number), "{source} SIG{name}: {status}");
            assert!(recorded.svg.trim_end().ends_with("</svg>"), "{source} SIG{name}: not whole");
        }
    }
}

#[test]
fn a_stub_that_says_nothing_is_given_up_on_one_signal() {
    for (name, number) in ENDING {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut command = stackprof();
        command.args(["--gdb", &format!("localhost:{port}"), "-q", "-o", "/dev/null", "--format", "folded"]);
        let mut profiler = Guard::start(&mut command);
        let connection = listener.accept().unwrap();
        kill(name, profiler.pid());
        let status = profiler.end();
        assert_eq!(status.signal(), Some(number), "SIG{name}: {status}");
        drop(connection);
    }
}

#[test]
fn a_command_gets_the_first_sigterm_and_the_second_ends_the_recording() {
    let Some(_one) = live() else { return };
    for name in ["TERM", "HUP"] {
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
        wait_for_more_cpu_time(pid().unwrap(), Duration::from_millis(300));
        kill(name, running.pid());
        wait_for("the command to have its signal", || got.exists());
        kill(name, running.pid());
        // The command's pipes are not ours to wait for.
        wait_for("the profiler's end", || {
            proc_status(running.pid(), "State").is_none_or(|state| state.starts_with('Z'))
        });
        let command = pid().unwrap();
        assert_untouched(command, format!("after two SIG{name}"));
        kill("KILL", command);
        let recorded = running.wait();
        let status = recorded.status;
        // Written, unless that takes longer than one would wait.
        let number = if name == "TERM" { 15 } else { 1 };
        recorded.check(status.success() || status.signal() == Some(number), format!("two SIG{name}"));
    }
}

/// Waits until a process is suspended.
fn wait_suspended(pid: u32) {
    wait_for(format!("pid {pid} to be suspended"), || {
        proc_status(pid, "State").is_none_or(|state| state.starts_with(['T', 'Z']))
    });
    assert!(proc_status(pid, "State").unwrap().starts_with('T'), "it ended");
}

/// Ctrl-Z for the profiler alone, and nothing of the target is held.
fn suspend(running: &Running, target: u32) {
    kill("TSTP", running.pid());
    wait_suspended(running.pid());
    wait_for("the target to be let go", || tids(target).into_iter().all(|tid| tracer_of(tid) == 0));
    assert_untouched(target, "the profiler is suspended");
}

/// `fg`, and the target is recorded again.
fn resume(running: &Running, target: u32) {
    kill("CONT", running.pid());
    wait_for("the target to be traced again", || {
        tracer_of(target) != 0 || proc_status(running.pid(), "State").is_none_or(|s| s.starts_with('Z'))
    });
    wait_for_ticks("the target", running.pid());
}

fn attach_job(pid: u32, options: &[&str]) -> Running {
    let text = pid.to_string();
    let running = record_by(job(), ["--pid", &text, "--source", "ptrace"].iter().chain(options).copied());
    running.wait_attached(pid);
    running
}

const SUSPENDED: &str = "used while stackprof was suspended";

#[test]
fn a_target_works_on_while_the_profiler_is_suspended_and_is_recorded_after() {
    let Some(_one) = live() else { return };
    for options in [&[][..], &["--idle", "--hz", "5000"]] {
        let mut target = Fixture::start("threads", ["3", "5", "told"]);
        target.line("ready");
        let pid = target.pid();
        let running = attach_job(pid, options);
        suspend(&running, pid);
        // It starts threads, which would wait for a tracer that is suspended.
        target.go();
        wait_for_more_cpu_time(pid, std::time::Duration::from_millis(200));
        resume(&running, pid);
        wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
        suspend(&running, pid);
        wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
        resume(&running, pid);
        wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
        let recorded = running.interrupt();
        recorded.check_success();
        assert_untouched(pid, "after the recording");
        recorded.check(recorded.count(|stack| stack.has("work_leaf")) > 100, "few samples");
        let lost = recorded.stats["samples_lost"][SUSPENDED].as_u64().unwrap_or(0);
        if options.is_empty() {
            recorded.check(lost > 20, "what was used meanwhile is not told");
            // Everything that was used is a sample, or lost for a reason: figures are rounded.
            let used = recorded.figure("target_cpu_s") * recorded.figure("hz_requested");
            let told = (recorded.total() + recorded.lost()) as f64;
            recorded.check((used - told).abs() <= 2.0, format!("{used} used, {told} told"));
        }
        recorded.check(recorded.stderr.contains("\n  suspend   "), "the summary does not tell");
        target.tell("enough");
        assert_eq!(target.done().len(), 4, "the target goes on to its end");
        assert!(target.finish().0.success());
    }
}

#[test]
fn a_job_is_suspended_with_its_command_and_goes_on_with_it() {
    let Some(_one) = live() else { return };
    let (_, mut expected) = Fixture::start("checksum", ["1000"]).finish();
    expected.retain(|line| line != "ready");
    let mut command = job();
    command.args(["-q", "--source", "ptrace", "-o", "/dev/null", "--format", "folded", "--"]);
    let mut profiler = Fixture::run(command.arg(fixture("checksum")).args(["1000", "wait"]));
    profiler.line("ready");
    let children = || {
        let lists = tids(profiler.pid()).into_iter();
        let lists = lists.filter_map(|tid| {
            fs::read_to_string(format!("/proc/{0}/task/{tid}/children", profiler.pid())).ok()
        });
        lists
            .flat_map(|list| {
                list.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    wait_for("the command", || children().len() == 1);
    let pid = children()[0];
    wait_for_ticks("the command", profiler.pid());
    let group = |signal: &str, leader: u32| {
        let status = Command::new("kill").args([&format!("-{signal}"), "--", &format!("-{leader}")]).status();
        assert!(status.unwrap().success());
    };
    // As the terminal does.
    group("TSTP", profiler.pid());
    wait_suspended(profiler.pid());
    wait_for("the command to be let go", || tracer_of(pid) == 0);
    wait_for("the command to be stopped", || states(pid).chars().all(|state| state == 'T'));
    group("CONT", profiler.pid());
    profiler.go();
    let (status, mut said) = profiler.finish();
    said.retain(|line| line != "ready");
    assert!(status.success(), "{status} {said:?}");
    assert_eq!(said, expected);
}

#[test]
fn an_end_and_an_exec_while_suspended_are_seen_after() {
    let Some(_one) = live() else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo ready; read go; exec \"$0\" 600"]).arg(fixture("shares"));
    let mut target = Fixture::run(&mut shell);
    target.line("ready");
    let pid = target.pid();
    let running = attach_job(pid, &[]);
    suspend(&running, pid);
    target.go();
    target.line("ready");
    resume(&running, pid);
    wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
    suspend(&running, pid);
    kill("KILL", pid);
    wait_for("its end", || states(pid).chars().all(|state| state == 'Z'));
    kill("CONT", running.pid());
    // It ends by itself.
    let recorded = running.wait();
    recorded.check_success();
    recorded.check(recorded.count(|stack| stack.has("leaf_50")) > 20, "the new program is not recorded");
    recorded.check(recorded.stacks.iter().all(|stack| stack.frames[0] != "sh" || stack.count < 100), "shell");
}

#[test]
fn a_sigcont_right_after_the_sigtstp_leaves_nothing_suspended() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("threads", ["3", "5", "told"]);
    target.line("ready");
    target.go();
    let pid = target.pid();
    let running = attach_job(pid, &[]);
    for _ in 0..20 {
        let profiler = running.pid().to_string();
        let both = "kill -TSTP \"$1\"; kill -CONT \"$1\"";
        assert!(Command::new("sh").args(["-c", both, "sh", &profiler]).status().unwrap().success());
    }
    // What is recorded at last has samples.
    wait_for_ticks("the target", running.pid());
    wait_for_more_cpu_time(pid, Duration::from_millis(300));
    let recorded = running.interrupt();
    recorded.check_success();
    assert_untouched(pid, "after the recording");
    target.tell("enough");
    assert!(target.finish().0.success());
}

#[test]
fn the_kernels_samples_go_on_after_a_suspension() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("shares", ["600"]);
    target.line("ready");
    let pid = target.pid();
    let text = pid.to_string();
    // Falls back to ptrace where the kernel refuses: then that is tried again.
    let running = record_by(job(), ["--pid", &text, "--source", "auto"]);
    running.wait_attached(pid);
    wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
    kill("TSTP", running.pid());
    wait_suspended(running.pid());
    wait_for_more_cpu_time(pid, std::time::Duration::from_millis(500));
    kill("CONT", running.pid());
    wait_for_ticks("the target", running.pid());
    wait_for_more_cpu_time(pid, std::time::Duration::from_millis(300));
    let recorded = running.interrupt();
    recorded.check_success();
    recorded.check(recorded.count(|stack| stack.has("leaf_50")) > 100, "few samples");
    let used = recorded.figure("target_cpu_s") * recorded.figure("hz_requested");
    let told = (recorded.total() + recorded.lost()) as f64;
    recorded.check((used - told).abs() <= 2.0, format!("{used} used, {told} told"));
    recorded.check(recorded.stderr.contains("\n  suspend   "), "the summary does not tell");
}
