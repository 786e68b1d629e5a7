//! The target's own signals: each arrives as it was sent, none is lost or added, and its parent is notified
//! as without a profiler.

use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, assert_untouched, attach, fixture, kill, live, numbers, states, tracer_of, wait_for,
    wait_for_more_cpu_time,
};

/// Options to attach with: the default, and one that stops everything all the time.
const OPTIONS: [&[&str]; 2] =
    [&["--source", "ptrace", "--hz", "997"], &["--source", "ptrace", "--hz", "5000", "--idle"]];

/// Runs `signals` under the profiler, while `meanwhile` acts on it: its status, and its last line.
fn run(arguments: &[&str], options: &[&str], meanwhile: impl FnOnce(u32)) -> (ExitStatus, String) {
    let mut target = Fixture::start("signals", arguments);
    target.line("ready");
    let running = attach(target.pid(), options);
    target.go();
    meanwhile(target.pid());
    let said = target.done().join(" ");
    let recorded = running.interrupt();
    assert_untouched(target.pid(), arguments.join(" "));
    // Some of these programs mostly wait.
    recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
    (target.finish().0, said)
}

#[test]
fn signals_arrive_as_they_were_sent() {
    if !live() {
        return;
    }
    for options in OPTIONS {
        let (status, said) = run(&["alarm", "0.2"], options, |_| {});
        assert!(status.success(), "{status}");
        // While it has a CPU, each millisecond brings a signal; the kernel merges those that arrive while it
        // waits for a CPU, with and without a profiler.
        let said = numbers(&said);
        let (alarms, cpu_ms) = (said["alarms"], said["cpu_ns"] / 1_000_000);
        assert!(alarms * 10 >= cpu_ms * 9, "{options:?}: {alarms} alarms in {cpu_ms} ms of CPU time");

        // The values increase, so values in order are neither lost, repeated nor reordered.
        for how in ["queued", "waited"] {
            let mut sender = String::new();
            let (status, said) = run(&[how, "1000"], options, |pid| {
                let send = Fixture::start("send", [pid.to_string(), "1000".to_owned()]);
                let (status, said) = send.finish();
                assert!(status.success(), "{status}");
                sender = said.join("").replace("sender ", "");
            });
            let expected = format!("received 1000 in order 1000 wrong code 0 from {sender}");
            assert_eq!((status.success(), said), (true, expected), "{how}, {options:?}");
        }
        for (arguments, expected) in [
            (["faults", "1500"], "faults 1500 at the right address 1500"),
            (["children", "100"], "children 100 right 100 signals 100"),
        ] {
            let (status, said) = run(&arguments, options, |_| {});
            assert_eq!((status.success(), said.as_str()), (true, expected), "{options:?}");
        }
    }
    for (how, expected) in
        [("exit7", "exited 7"), ("abort", "signaled 6"), ("segv", "signaled 11"), ("term", "signaled 15")]
    {
        let mut job = Job::start("ends", &[how, "50", "go"]);
        let running = attach(job.pid(), OPTIONS[1]);
        job.parent.go();
        assert_eq!(job.end(), expected, "{how}");
        let recorded = running.wait();
        recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
    }
}

/// As `jobs` prints it.
const SIGSTOP: &str = "19";

/// Killed on drop: it may be stopped for ever.
struct Child(u32);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = Command::new("sh").args(["-c", "kill -KILL $0", &self.0.to_string()]).output();
    }
}

/// A fixture under `jobs`, its parent, which prints its notifications.
pub(crate) struct Job {
    pub(crate) parent: Fixture,
    child: Child,
    // Programs killed by a signal may leave a core file in their directory.
    _dir: TempDir,
}

impl Job {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Job {
        let dir = TempDir::new().unwrap();
        let mut jobs = Command::new(fixture("jobs"));
        jobs.arg(fixture(name)).args(arguments).current_dir(dir.path());
        let mut parent = Fixture::run(&mut jobs);
        // Two programs write these lines, in any order.
        let first_two = [parent.next_line(), parent.next_line()];
        assert!(first_two.iter().any(|line| line == "ready"), "{first_two:?}");
        let child = first_two.iter().find_map(|line| line.strip_prefix("child ")?.parse().ok());
        let child = Child(child.unwrap_or_else(|| panic!("no child: {first_two:?}")));
        Job { parent, child, _dir: dir }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.0
    }

    /// Sends SIGSTOP and waits until it has taken effect.
    pub(crate) fn stop(&mut self) {
        kill("STOP", self.pid());
        assert_eq!(self.parent.line("stopped"), SIGSTOP);
        wait_for("all threads to stop", || self.stands());
    }

    /// Whether all threads are stopped; `t` is the state of a traced one.
    fn stands(&self) -> bool {
        let states = states(self.pid());
        !states.is_empty() && states.chars().all(|state| matches!(state, 'T' | 't'))
    }

    /// Checks that it stays stopped for a while without progress.
    #[track_caller]
    pub(crate) fn assert_stands(&self, when: &str) {
        let before = self.user_ticks();
        for _ in 0..8 {
            sleep(Duration::from_millis(5));
            assert!(self.stands(), "{when}: states {}", states(self.pid()));
        }
        assert_eq!(self.user_ticks(), before, "{when}: it used CPU time");
    }

    /// CPU time in its own code, in ticks of the system's clock.
    fn user_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(11).unwrap().parse().unwrap()
    }

    /// Sends SIGCONT and waits until it has taken effect.
    pub(crate) fn go_on(&mut self) {
        kill("CONT", self.pid());
        self.parent.line("continued");
        wait_for("the threads to go on", || !states(self.pid()).contains(['T', 't']));
    }

    /// Its exit, as reported to its parent.
    pub(crate) fn end(self) -> String {
        let (status, said) = self.parent.finish();
        assert!(status.success(), "{status}: {said:?}");
        said.last().cloned().unwrap_or_default()
    }
}

#[test]
fn a_stop_signal_stops_and_notifies_the_parent() {
    if !live() {
        return;
    }
    for options in OPTIONS {
        let mut job = Job::start("threads", &["3", "5", "told"]);
        let running = attach(job.pid(), options);
        job.parent.go();
        for _ in 0..3 {
            wait_for_more_cpu_time(job.pid(), Duration::from_millis(30));
            job.stop();
            job.assert_stands("stopped while traced");
            job.go_on();
        }
        let recorded = running.interrupt();
        recorded.check_success();
        recorded.check(recorded.shows(|stack| stack.has("work_leaf")), "no samples");
        if options.contains(&"--idle") {
            // A stopped thread has no stack for its time.
            let stopped = recorded.stats["samples_lost"]["stopped by job control"].as_u64();
            recorded.check(stopped > Some(0), "the time stopped is not reported");
        }
        // Stopped before, released while stopped; then by an end without warning.
        for killed in [false, true] {
            wait_for_more_cpu_time(job.pid(), Duration::from_millis(10));
            job.stop();
            let running = attach(job.pid(), options);
            job.assert_stands("attached to");
            if killed {
                running.kill();
            } else {
                // Nothing was sampled, or its time is lost.
                let recorded = running.interrupt();
                recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
            }
            wait_for("the profiler to let go", || tracer_of(job.pid()) == 0);
            wait_for("the stop to be its own again", || states(job.pid()).chars().all(|state| state == 'T'));
            job.assert_stands("let go of");
            job.go_on();
        }
        job.parent.tell("enough");
        job.parent.line("done");
        assert_eq!(job.end(), "exited 0", "{options:?}");
    }
}
