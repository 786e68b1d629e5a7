//! The target's own signals: each arrives as it was sent, none is lost, none is added,
//! and whoever waits for the target is told the same as without a profiler.

use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Running, assert_untouched, attach, fixture, kill, live, numbers, states, tracer_of, wait_for,
    wait_for_more_cpu_time,
};

/// Attached at these: the default, and one that stops everything all the time.
const OPTIONS: [&[&str]; 2] = [&["--hz", "997"], &["--hz", "5000", "--idle"]];

/// Runs `signals`, profiled if there are `options`, while `meanwhile` does something to it:
/// its status, and the line that it ends with.
fn run(arguments: &[&str], options: Option<&[&str]>, meanwhile: impl FnOnce(u32)) -> (ExitStatus, String) {
    let mut target = Fixture::start("signals", arguments);
    target.line("ready");
    let running = options.map(|options| attach(target.pid(), options));
    target.go();
    meanwhile(target.pid());
    let said = target.done().join(" ");
    let recorded = running.map(Running::interrupt);
    assert_untouched(target.pid(), arguments.join(" "));
    println!("{arguments:?} {options:?}: {said}");
    if let Some(recorded) = &recorded {
        recorded.check_success();
        // Some of these programs mostly wait: that it was looked at is what matters.
        recorded.check(recorded.figure("ticks") > 20.0, "it was hardly looked at");
    }
    (target.finish().0, said)
}

#[test]
fn a_timer_ticks_on() {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let (status, said) = run(&["alarm", "1"], options, |_| {});
        assert!(status.success(), "{status}");
        // While it has a CPU each millisecond brings one; those that come while it has to
        // wait for a CPU are merged by the kernel, with and without a profiler.
        let said = numbers(&said);
        let (alarms, cpu_ms) = (said["alarms"], said["cpu_ns"] / 1_000_000);
        assert!(alarms * 10 >= cpu_ms * 9, "{options:?}: {alarms} alarms in {cpu_ms} ms of CPU time");
        assert!(alarms <= 1010, "{options:?}: {alarms} alarms in 1 s");
    }
}

/// Queued signals sent by another program, to be taken as `how` says.
#[track_caller]
fn check_queued(how: &str) {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let mut sender = String::new();
        let (status, said) = run(&[how, "5000"], options, |pid| {
            let send = Fixture::start("send", [pid.to_string(), "5000".to_owned()]);
            let (status, said) = send.finish();
            assert!(status.success(), "{status}");
            sender = said.join("").replace("sender ", "");
        });
        // The values count up, so what is in order is neither lost, repeated nor overtaken.
        assert_eq!(said, format!("received 5000 in order 5000 wrong code 0 from {sender}"), "{options:?}");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn queued_signals_keep_their_order_value_and_sender() {
    check_queued("queued");
}

#[test]
fn queued_signals_are_there_for_those_who_wait_for_them() {
    check_queued("waited");
}

/// A program that says the same whatever happens beside it.
#[track_caller]
fn check_same(arguments: &[&str], expected: &str) {
    let Some(_one) = live() else { return };
    for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
        let (status, said) = run(arguments, options, |_| {});
        assert_eq!(said, expected, "{options:?}");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn faults_are_handled_by_the_program() {
    check_same(&["faults", "20000"], "faults 20000 at the right address 20000");
}

#[test]
fn ends_of_children_are_told() {
    check_same(&["children", "400"], "children 400 right 400 signals 400");
}

/// Signals that the program ignores wake a traced thread all the same: at a rate at which
/// our own stops hit the same calls, both have to be repaired.
#[test]
#[cfg_attr(target_arch = "aarch64", ignore = "what an ignored signal interrupts cannot be repaired there")]
fn ignored_signals_do_not_interrupt_a_wait_that_is_also_sampled() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("epoll", ["10000", "signal"]);
    target.line("ready");
    let running = attach(target.pid(), OPTIONS[1]);
    target.go();
    let said = target.done().join(" ");
    println!("{said}");
    let recorded = running.interrupt();
    recorded.check_success();
    let said = numbers(&said);
    recorded.check(said["interrupted"] == 0 && said["failed"] == 0, format!("the server saw {said:?}"));
}

/// As `jobs` prints it.
const SIGSTOP: &str = "19";

/// Killed when dropped: it may stand still, and would for ever.
struct Child(u32);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-KILL").arg(self.0.to_string()).output();
    }
}

/// A fixture under `jobs`, its parent, which says what it is told of it.
pub(crate) struct Job {
    pub(crate) parent: Fixture,
    child: Child,
    // Programs that end by a signal may leave a core file where they run.
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

    /// SIGSTOP from outside, until it has had its effect.
    pub(crate) fn stop(&mut self) {
        kill("STOP", self.pid());
        assert_eq!(self.parent.line("stopped"), SIGSTOP);
        wait_for("all threads to stop", || self.stands());
    }

    /// All threads stand; `t` is how a traced thread shows it.
    fn stands(&self) -> bool {
        let states = states(self.pid());
        !states.is_empty() && states.chars().all(|state| matches!(state, 'T' | 't'))
    }

    /// Stays stopped for a while and gets nothing done.
    #[track_caller]
    pub(crate) fn assert_stands(&self, when: &str) {
        let before = self.user_ticks();
        for _ in 0..20 {
            sleep(Duration::from_millis(10));
            assert!(self.stands(), "{when}: states {}", states(self.pid()));
        }
        assert_eq!(self.user_ticks(), before, "{when}: it used CPU time");
    }

    /// CPU time in its own code, in ticks of the system's clock.
    fn user_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(11).unwrap().parse().unwrap()
    }

    /// SIGCONT, until it has had its effect.
    pub(crate) fn go_on(&mut self) {
        kill("CONT", self.pid());
        self.parent.line("continued");
        wait_for("the threads to go on", || !states(self.pid()).contains(['T', 't']));
    }

    /// Its end, as its parent was told.
    pub(crate) fn end(self) -> String {
        let (status, said) = self.parent.finish();
        assert!(status.success(), "{status}: {said:?}");
        said.last().cloned().unwrap_or_default()
    }
}

#[test]
fn a_stop_from_outside_stops_and_its_parent_is_told() {
    let Some(_one) = live() else { return };
    for options in OPTIONS {
        let mut job = Job::start("threads", &["3", "5", "told"]);
        let running = attach(job.pid(), options);
        job.parent.go();
        for _ in 0..5 {
            sleep(Duration::from_millis(100));
            job.stop();
            job.assert_stands("stopped while traced");
            job.go_on();
        }
        // Beside busy programs it may have had hardly a CPU in between.
        wait_for_more_cpu_time(job.pid(), Duration::from_millis(500));
        job.parent.tell("enough");
        job.parent.line("done");
        let recorded = running.interrupt();
        recorded.check_success();
        recorded.check(recorded.count(|stack| stack.has("work_leaf")) > 100, "few samples");
        if options.contains(&"--idle") {
            // A stopped thread has no stack that says where its time went.
            let stopped = recorded.stats["samples_lost"]["stopped by job control"].as_u64();
            recorded.check(stopped > Some(0), "the time stopped is not told");
        }
        assert_eq!(job.end(), "exited 0", "{options:?}");
    }
}

#[test]
fn a_stopped_program_stays_stopped_when_the_profiler_comes_and_goes() {
    let Some(_one) = live() else { return };
    for options in OPTIONS {
        // Stopped before, let go while stopped; then by an end without warning.
        for killed in [false, true] {
            let mut job = Job::start("threads", &["3", "5", "told"]);
            job.parent.go();
            sleep(Duration::from_millis(100));
            job.stop();
            let running = attach(job.pid(), options);
            job.assert_stands("attached to");
            if killed {
                running.kill();
            } else {
                // Nothing was sampled unless it was its time that is lost.
                let recorded = running.interrupt();
                recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
            }
            wait_for("the profiler to let go", || tracer_of(job.pid()) == 0);
            wait_for("the stop to be its own again", || states(job.pid()).chars().all(|state| state == 'T'));
            job.assert_stands("let go of");
            job.go_on();
            job.parent.tell("enough");
            job.parent.line("done");
            assert_eq!(job.end(), "exited 0", "{options:?}, killed: {killed}");
        }
    }
}

#[test]
fn a_parent_is_told_the_same_end() {
    let Some(_one) = live() else { return };
    for (how, expected) in
        [("exit7", "exited 7"), ("abort", "signaled 6"), ("segv", "signaled 11"), ("term", "signaled 15")]
    {
        for options in [None, Some(OPTIONS[0]), Some(OPTIONS[1])] {
            let mut job = Job::start("ends", &[how, "400", "go"]);
            let running = options.map(|options| attach(job.pid(), options));
            job.parent.go();
            assert_eq!(job.end(), expected, "{how} {options:?}");
            if let Some(running) = running {
                let recorded = running.wait();
                recorded.check_success();
                recorded.check(recorded.total() > 20, "hardly anything was sampled");
            }
        }
    }
}
