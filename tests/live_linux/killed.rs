//! However the profiler ends, the target continues undisturbed. `scripts/torture.sh` tries random moments.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use tempfile::TempDir;

use crate::families::{assert_all_untouched, members};
use crate::support::{
    Fixture, assert_untouched, attach, fixture, kill, live, make_fifo, numbers, record, rounds, sources,
    stackprof, tracer_of, wait_for, wait_for_more_cpu_time, wait_for_ticks,
};

/// A tenth of a second of three threads.
const ROUNDS: &str = "1500";

/// Output of an unprofiled run.
fn undisturbed() -> String {
    let said = Fixture::start("checksum", [ROUNDS]).finish().1.join("\n");
    assert!(said.contains("errors 0"), "{said}");
    said
}

#[test]
fn sigkill_of_the_profiler_does_not_affect_the_target() {
    if !live() {
        return;
    }
    let expected = undisturbed();
    for round in 0..rounds(2) {
        for (idle, moment) in [false, true].iter().flat_map(|idle| (0..3).map(move |moment| (idle, moment))) {
            let mut target = Fixture::start("checksum", [ROUNDS, "wait"]);
            target.line("ready");
            let pid = target.pid().to_string();
            // At 5000 Hz it is in a stop most of the time; or it also stops waiting threads.
            let options = ["--pid", &pid, "--source", "ptrace", "--hz", "5000", "--idle"];
            let running = record(&options[..if *idle { 7 } else { 6 }]);
            match moment {
                // As it begins to trace.
                0 => wait_for("the profiler to attach", || tracer_of(target.pid()) != 0),
                1 => wait_for_ticks("the target", running.pid()),
                _ => {}
            }
            target.go();
            if moment > 0 {
                wait_for_more_cpu_time(target.pid(), Duration::from_millis(10 * round));
            }
            running.kill();
            assert_untouched(target.pid(), format!("round {round}, moment {moment}"));
            let (status, said) = target.finish();
            assert!(status.success(), "round {round}, moment {moment}: {status} {said:?}");
            let said: Vec<&str> = said.iter().map(String::as_str).filter(|line| *line != "ready").collect();
            assert_eq!(said, [expected.lines().next_back().unwrap()], "round {round}, moment {moment}");
        }
        // A family: an interrupted wait at that moment is not repaired any more, one at most.
        let mut target = Fixture::start("family", ["shells", "32"]);
        target.line("ready");
        let running = attach(target.pid(), &["--source", "ptrace", "--children", "--hz", "5000", "--idle"]);
        target.go();
        wait_for("its children", || members(target.pid()).len() > 1);
        running.kill();
        assert_all_untouched(&members(target.pid()), &format!("round {round}"));
        let said = target.done().join(" ");
        let right = numbers(&said);
        let interrupted = right["interrupted"] <= 1 || cfg!(target_arch = "aarch64");
        assert!(right["shells"] == 32 && right["right"] == 32 && interrupted, "round {round}: {said}");
        assert!(target.finish().0.success());
        // Launched: the command writes to the same pipe, which ends with it.
        for (program, arguments, expected) in [
            ("checksum", [ROUNDS, "wait"], expected.lines().next_back().unwrap()),
            ("family", ["zombies", "60"], "zombies 60 right 60 left 0"),
        ] {
            let mut profiler = stackprof();
            profiler
                .args(["-q", "--source", "ptrace", "-o", "-", "--"])
                .arg(fixture(program))
                .args(arguments);
            let mut profiler = Fixture::run(&mut profiler);
            profiler.line("ready");
            profiler.go();
            kill("KILL", profiler.pid());
            let said = profiler.finish().1.join("\n");
            assert!(said.contains(expected), "round {round}, {program}: {said}");
        }
    }
}

#[test]
fn terminating_signals_write_outputs_and_release_the_target() {
    if !live() {
        return;
    }
    for source in sources() {
        const ENDING: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("HUP", 1)];
        // The handling of a signal is common to all sources; each releases a target in its own way.
        for (name, number) in &ENDING[..if *source == "ptrace" { 3 } else { 1 }] {
            let mut target = Fixture::start("threads", ["1", "5", "told"]);
            target.line("ready");
            let pid = target.pid();
            let work = || wait_for_more_cpu_time(pid, Duration::from_millis(50));
            target.go();
            let running = attach(pid, &["--source", source]);
            work();
            kill(name, running.pid());
            let recorded = running.wait();
            assert_untouched(pid, name);
            recorded.check(matches!(recorded.status.code(), Some(0 | 4)), format!("after SIG{name}"));
            let is_whole =
                recorded.shows(|stack| stack.has("work_leaf")) && recorded.svg.trim_end().ends_with("</svg>");
            recorded.check(is_whole || recorded.is_empty(), "no samples, or the SVG is not whole");

            // The signal that ended the recording also ends the wait for a reader of a pipe.
            let dir = TempDir::new().unwrap();
            let fifo = dir.path().join("fifo.folded");
            make_fifo(&fifo);
            let running = attach(pid, &["--source", source, "-o", fifo.to_str().unwrap()]);
            work();
            kill(name, running.pid());
            let recorded = running.wait();
            let status = recorded.status;
            assert_eq!(status.signal(), Some(*number), "{source} SIG{name}: {status}");
            recorded.check(recorded.svg.trim_end().ends_with("</svg>"), "the SVG is not whole");

            // The first one may have been sufficient before the second.
            let running = attach(pid, &["--source", source, "--idle"]);
            kill(name, running.pid());
            kill(name, running.pid());
            let recorded = running.wait();
            let ended = recorded.status.success() || recorded.status.signal() == Some(*number);
            recorded.check(ended, format!("neither done nor given up after two SIG{name}"));
            assert_untouched(pid, name);
            target.tell("enough");
            assert_eq!(target.done().len(), 2, "the target goes on to its end");
            assert!(target.finish().0.success());
        }
    }
}
