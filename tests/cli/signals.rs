//! Signals to the profiler without a target: INT, TERM and HUP end it whatever it waits for.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::programs::kill;

const ENDING: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("HUP", 1)];

/// Waits without a limit: a passing test does not need one.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..120_000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("waited for {what}");
}

/// A child that is killed on drop.
struct Guard(Child);

impl Guard {
    fn start(command: &mut Command) -> Guard {
        Guard(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn send(&self, signal: &str) {
        kill(signal, self.0.id());
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

/// The profiler with default dispositions: the shell or nohup(1) that started the tests may have had some
/// ignored.
fn stackprof() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_stackprof")]);
    command
}

/// A simulated recording that ends by itself, with its last output waiting for a reader that never comes;
/// returns when all others are written.
fn waits_for_a_reader(mut command: Command, dir: &Path, last: &str) -> Guard {
    let (svg, fifo) = (dir.join("out.svg"), dir.join("fifo.folded"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    command.args(["record", "--target", "sim:1", "-q", last]).arg(&fifo).arg("-o").arg(&svg);
    let guard = Guard::start(&mut command);
    wait_for("the other output", || svg.exists());
    guard
}

#[test]
fn one_signal_ends_the_wait_for_a_reader_and_keeps_outputs() {
    for last in ["-o", "--stats"] {
        for (name, number) in ENDING {
            let dir = TempDir::new().unwrap();
            let mut profiler = waits_for_a_reader(stackprof(), dir.path(), last);
            profiler.send(name);
            let status = profiler.end();
            assert_eq!(status.signal(), Some(number), "{last} SIG{name}: {status}");
            let svg = fs::read_to_string(dir.path().join("out.svg")).unwrap();
            assert!(svg.trim_end().ends_with("</svg>"), "{last} SIG{name}: not whole");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "{last} SIG{name}: something is left");
        }
    }
}

/// Whether a process ignores a signal, by /proc/PID/status.
fn ignores(pid: u32, number: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap() >> (number - 1) & 1 == 1
}

#[test]
fn signals_ignored_at_startup_stay_ignored() {
    for (name, number) in ENDING.into_iter().chain([("TSTP", 20)]) {
        let dir = TempDir::new().unwrap();
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM,HUP", &format!("--ignore-signal={name}")]);
        command.arg(env!("CARGO_BIN_EXE_stackprof"));
        let profiler = waits_for_a_reader(command, dir.path(), "-o");
        for (other, number_of_other) in ENDING.into_iter().chain([("TSTP", 20)]) {
            // A script makes its background jobs ignore SIGINT, and ends their recordings by it.
            let stays = number == number_of_other && name != "INT";
            let ignored = ignores(profiler.0.id(), number_of_other);
            assert_eq!(ignored, stays, "SIG{other} where SIG{name} was ignored");
        }
    }
}

/// The signal that ends the recording is enough: no other one is needed to end the wait.
#[test]
fn a_signal_before_the_handlers_ends_the_profiler() {
    for (signal, number) in ENDING {
        // Pending when the program starts, which then waits for its input.
        let raise = format!("kill -{signal} $$; exec \"$0\" render - -o -");
        let mut command = Command::new("env");
        command.args([
            "--default-signal=INT,TERM,HUP",
            &format!("--block-signal={signal}"),
            "sh",
            "-c",
            &raise,
        ]);
        command.arg(env!("CARGO_BIN_EXE_stackprof"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Guard(command.spawn().unwrap());
        assert_eq!(child.end().signal(), Some(number), "{signal}");
    }
}

#[test]
fn one_signal_ends_the_wait_for_a_silent_stub() {
    for (name, number) in ENDING {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mut command = stackprof();
        command.args(["--gdb", &format!("localhost:{port}"), "-q", "-o", "/dev/null", "--format", "folded"]);
        let mut profiler = Guard::start(&mut command);
        let connection = listener.accept().unwrap();
        profiler.send(name);
        let status = profiler.end();
        assert_eq!(status.signal(), Some(number), "SIG{name}: {status}");
        drop(connection);
    }
}
