//! However the profiler ends, the target goes on as if nothing had been.

use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::Duration;

use crate::support::{
    Fixture, Random, assert_untouched, attach, fixture, kill, live, record, rounds, stackprof, states,
    tracer_of, wait_for, wait_for_cpu_time,
};

/// About 0.2 s of three threads.
const ROUNDS: &str = "3000";
const KILLS: u64 = 50;

/// What an unprofiled run prints.
fn undisturbed() -> String {
    Fixture::start("checksum", [ROUNDS]).finish().1.join("\n")
}

#[test]
fn kill_9_at_any_moment_does_not_show_in_the_target() {
    let Some(_one) = live() else { return };
    let expected = undisturbed();
    assert!(expected.contains("errors 0"), "{expected}");
    let mut random = Random::from_environment();
    let mut while_tracing = 0;
    let kills = rounds(KILLS);
    // However few of them come while it traces on a machine with other work, they are made until enough did.
    for round in 0..4 * kills {
        if round >= kills && while_tracing * 4 >= kills {
            break;
        }
        let delay = Duration::from_micros(random.below(120_000));
        // Half of them once it traces, however long it takes to get there; the others at any
        // moment from its start on.
        let once_traced = round % 4 < 2;
        let arguments = [ROUNDS, "wait"];
        let mut target = Fixture::start("checksum", &arguments[..if once_traced { 2 } else { 1 }]);
        target.line("ready");
        let pid = target.pid().to_string();
        // At 5000 Hz it is in the middle of a stop more often than not; odd rounds also
        // stop threads that wait.
        let options = ["--pid", &pid, "--hz", "5000", "--idle"];
        let running = record(&options[..if round % 2 == 0 { 4 } else { 5 }]);
        if once_traced {
            wait_for("the profiler to attach", || tracer_of(target.pid()) != 0);
            target.go();
        }
        sleep(if once_traced { delay / 8 } else { delay });
        while_tracing += u64::from(tracer_of(target.pid()) != 0);
        running.kill();
        assert_untouched(target.pid(), format!("round {round}, killed after {delay:?}"));
        let (status, said) = target.finish();
        assert!(status.success(), "round {round}, killed after {delay:?}: {status} {said:?}");
        assert_eq!(said.join("\n"), expected, "round {round}, killed after {delay:?}");
    }
    println!("{while_tracing} of {kills} and more killed while it traced");
    assert!(while_tracing * 4 >= kills, "only {while_tracing} of {} were killed while tracing", 4 * kills);
}

#[test]
fn a_launched_command_survives_kill_9_of_the_profiler() {
    let Some(_one) = live() else { return };
    let expected = undisturbed();
    let mut random = Random::from_environment();
    for round in 0..rounds(10) {
        let delay = Duration::from_micros(random.below(100_000));
        let mut profiler = stackprof();
        profiler.args(["-q", "-o", "-", "--"]).arg(fixture("checksum")).arg(ROUNDS);
        let mut profiler = Fixture::run(&mut profiler);
        profiler.line("ready");
        sleep(delay);
        kill("KILL", profiler.pid());
        // The command writes to the same pipe, which ends when it has ended.
        let (_, said) = profiler.finish();
        assert_eq!(said.join("\n"), expected, "round {round}, killed after {delay:?}");
    }
}

#[test]
fn ctrl_c_writes_the_outputs_and_lets_go() {
    let Some(_one) = live() else { return };
    for signal in ["INT", "TERM", "HUP"] {
        let mut target = Fixture::start("threads", ["3", "5", "told"]);
        target.line("ready");
        let running = attach(target.pid(), &[]);
        target.go();
        wait_for_cpu_time(target.pid(), Duration::from_millis(400));
        kill(signal, running.pid());
        let recorded = running.wait();
        assert_untouched(target.pid(), signal);
        recorded.check(recorded.status.code() == Some(0), format!("after SIG{signal}"));
        recorded.check(recorded.count(|stack| stack.has("work_leaf")) > 100, "few samples");
        recorded.check(recorded.svg.trim_end().ends_with("</svg>"), "the SVG is not whole");
        target.tell("enough");
        assert_eq!(target.done().len(), 4, "the target goes on to its end");
        assert!(target.finish().0.success());
    }
}

#[test]
fn a_second_ctrl_c_gives_up_and_lets_go() {
    let Some(_one) = live() else { return };
    let expected = undisturbed();
    for round in 0..rounds(5) {
        let mut target = Fixture::start("checksum", [ROUNDS]);
        target.line("ready");
        let running = attach(target.pid(), &["--idle"]);
        kill("INT", running.pid());
        kill("INT", running.pid());
        // The first one may have been all that was needed by the time of the second.
        let recorded = running.wait();
        recorded.check(
            recorded.status.success() || recorded.status.signal() == Some(2),
            "neither done nor given up after two Ctrl-C",
        );
        let (status, said) = target.finish();
        assert!(status.success());
        assert_eq!(said.join("\n"), expected, "round {round}");
    }
}

#[test]
fn a_stopped_recording_of_a_launched_command_waits_for_nothing() {
    let Some(_one) = live() else { return };
    // Its own output elsewhere: it would keep the pipes open that the profiler's end is seen by.
    let script = "exec \"$0\" 600 >/dev/null 2>&1";
    let running =
        record(["--".as_ref(), "sh".as_ref(), "-c".as_ref(), script.as_ref(), fixture("shares").as_os_str()]);
    wait_for("the command to run", || children_of(running.pid()).len() == 1);
    let command = children_of(running.pid())[0];
    running.wait_attached(command);
    wait_for_cpu_time(command, Duration::from_millis(300));
    let recorded = running.interrupt();
    recorded.check_success();
    // It has ten minutes of work: nobody waited for its end.
    assert!(states(command).contains(['R', 'S']), "states {}", states(command));
    assert_untouched(command, "after Ctrl-C for the profiler alone");
    kill("KILL", command);
}

fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}
