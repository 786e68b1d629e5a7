//! What threads wait for, by the kernel's records of switches: each wait has its time where it waits,
//! as the program's own clock says, and nobody is stopped for it.
//!
//! The program's clock moves along with what a busy machine adds to a wait, so the tolerance holds there; where
//! a thread loses its CPU between its clock and the wait, the program says so. Where a host takes the CPU away
//! from a virtual machine in between, nothing says so: what was seen in one of eight runs of all tests may be that,
//! and is measured again.

use std::path::Path;
use std::time::Duration;

use crate::by_kernel::{Somebody, attach_by_kernel, launch_by_kernel, sampled, sampled_alone};
use crate::support::{
    Fixture, Recorded, compile, fixture, has_events, kill, not_here, record, record_by, tracer_of, wait_for,
    wait_for_ticks,
};

/// Waits of each kind, and how long each takes, milliseconds.
pub(crate) const ROUNDS: [&str; 2] = ["15", "20"];
const KINDS: [&str; 6] = ["nanosleep", "mutex", "futex", "read", "epoll", "fault"];
/// What counts scatter is far below one in a hundred at this rate, of which no tick interrupts anybody.
pub(crate) const HZ: &str = "9973";
/// Nanoseconds of a count.
const PERIOD_NS: f64 = 1e9 / 9973.0;

/// What the program says of its waits of a kind.
pub(crate) struct Truth {
    kind: &'static str,
    ns: f64,
    /// Of these, of waits around which the thread lost its CPU: they may have been shorter.
    unsure_ns: f64,
}

/// The lines of `sleeps`, by kind.
pub(crate) fn truth(said: impl Iterator<Item = impl AsRef<str>>) -> Vec<Truth> {
    let lines: Vec<String> = said.map(|line| line.as_ref().to_owned()).collect();
    let of_kind = |kind: &'static str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(&format!("wait {kind} ")));
        let line = line.unwrap_or_else(|| panic!("nothing of {kind}: {lines:?}"));
        let numbers: Vec<f64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        Truth { kind, ns: numbers[0], unsure_ns: numbers[1] }
    };
    KINDS.map(of_kind).into()
}

/// Measurements of waits, of which one must be right.
const MEASURED_MAX: usize = 3;

/// Records until what [`check_waits`] says of it is right; the last failure is one of the test.
#[track_caller]
pub(crate) fn measured(record: impl FnMut() -> Option<(Recorded, Vec<Truth>)>) -> Option<Recorded> {
    measured_with(record, |_| Ok(()))
}

/// The same, with one more check of it.
#[track_caller]
fn measured_with(
    mut record: impl FnMut() -> Option<(Recorded, Vec<Truth>)>,
    check: impl Fn(&Recorded) -> Result<(), String>,
) -> Option<Recorded> {
    for attempt in 1.. {
        let (recorded, truth) = record()?;
        match check_waits(&recorded, &truth).and_then(|()| check(&recorded)) {
            Ok(()) => return Some(recorded),
            Err(why) if attempt == MEASURED_MAX => recorded.check(false, why),
            Err(why) => println!("measured again: {why}"),
        }
    }
    None
}

/// Each kind within one in a hundred of what the program says; else which is not.
#[track_caller]
fn check_waits(recorded: &Recorded, truth: &[Truth]) -> Result<(), String> {
    recorded.check_success();
    recorded.check(recorded.stats["backend"] == "perf_event", "not by the kernel");
    recorded.check(recorded.figure("stops") == 0.0, "it was stopped");
    for Truth { kind, ns, unsure_ns } in truth {
        if *ns == 0.0 {
            assert_eq!(*kind, "fault");
            not_here("a page fault that waits: userfaultfd is refused");
            continue;
        }
        let function = format!("wait_in_{kind}");
        let counted_ns = recorded.count(|stack| stack.has(&function)) as f64 * PERIOD_NS;
        let [counted_ms, ms, unsure_ms] = [counted_ns, *ns, *unsure_ns].map(|ns| ns / 1e6);
        println!("{kind}: {counted_ms:.2} ms, {ms:.2} by the program, {unsure_ms:.2} of them not sure");
        let is_right = counted_ns < 1.01 * ns && counted_ns > 0.99 * (ns - unsure_ns);
        if !is_right {
            return Err(format!("{kind}: {counted_ms} ms instead of {ms}, {unsure_ms} not sure"));
        }
    }
    Ok(())
}

/// The thread that sleeps from before the recording on has all of it, whichever frames of it are known.
fn check_sleeper(recorded: &Recorded) -> Result<(), String> {
    let counted_s = recorded.count(|stack| stack.has("asleep_throughout")) as f64 * PERIOD_NS / 1e9;
    let duration_s = recorded.figure("duration_s");
    println!("asleep: {counted_s:.3} s of {duration_s:.3} s");
    // The events are open for some milliseconds before the recording's own clock begins.
    let off_s = (counted_s - duration_s).abs();
    let is_right = off_s < 0.01 * duration_s + 0.05;
    if is_right { Ok(()) } else { Err(format!("asleep {counted_s} s of {duration_s} s")) }
}

#[track_caller]
fn check_attached(program: &Path, options: &[&str], busy: usize) -> Option<Recorded> {
    let _one = sampled_alone()?;
    measured_with(|| Some(attached(program, options, busy)), check_sleeper)
}

fn attached(program: &Path, options: &[&str], busy: usize) -> (Recorded, Vec<Truth>) {
    let mut target = Fixture::run(std::process::Command::new(program).args(ROUNDS));
    target.line("ready");
    let _busy: Vec<_> = (0..busy).map(|_| crate::wakes::Busy::start()).collect();
    let running = attach_by_kernel(target.pid(), &[&["--hz", HZ], options].concat());
    target.go();
    assert_eq!(tracer_of(target.pid()), 0, "it is traced");
    let said = target.done();
    (running.interrupt(), truth(said.iter()))
}

#[test]
fn each_wait_has_its_time_where_it_waits() {
    for busy in [0, 2] {
        check_attached(&fixture("sleeps"), &["--off-cpu"], busy);
    }
}

/// With CPU time beside: the same, and all of it is the time of all threads.
#[test]
fn waits_and_cpu_time_add_up_to_the_time_on_the_wall() {
    for busy in [0, 2] {
        let Some(recorded) = check_attached(&fixture("sleeps"), &["--idle", "--no-kernel"], busy) else {
            return;
        };
        let accounted_s = (recorded.total() + recorded.lost()) as f64 * PERIOD_NS / 1e9;
        let wall_s = recorded.figure("threads_seen") * recorded.figure("duration_s");
        println!("{accounted_s:.3} s of {wall_s:.3} s");
        recorded.check(
            (accounted_s - wall_s).abs() < 0.01 * wall_s + 0.15,
            format!("{accounted_s} s instead of {wall_s} s"),
        );
    }
}

/// Neither the stack of a program without frame pointers nor that of one with them takes more than what
/// /proc shows of a thread that sleeps.
#[test]
fn a_sleeper_of_before_has_its_whole_stack_without_being_stopped() {
    let bare = compile("sleeps", "sleeps_bare", &["-fomit-frame-pointer"]);
    let with_frame_pointers = cfg!(target_arch = "x86_64").then(|| fixture("sleeps"));
    for program in [Some(bare), with_frame_pointers].into_iter().flatten() {
        let Some(recorded) = check_attached(&program, &["--off-cpu"], 0) else { return };
        let asleep = |whole: bool| {
            recorded.count(|stack| stack.has("asleep_throughout") && stack.has("[incomplete]") != whole)
                as f64
        };
        recorded.check(asleep(true) > 0.99 * (asleep(true) + asleep(false)), "it is incomplete");
        let named =
            recorded.count(|stack| stack.has("asleep_throughout") && stack.has("start_thread")) as f64;
        recorded.check(named > 0.99 * asleep(true), "it does not begin where threads do");
    }
}

/// A command, with all that it starts: each of its processes waits under its own name.
#[test]
fn waits_of_a_command_and_what_it_starts_are_told() {
    let Some(_one) = sampled() else { return };
    let script = format!("(sleep 0.3; echo go) | {} {}", fixture("sleeps").display(), ROUNDS.join(" "));
    let launched = || {
        let recorded = launch_by_kernel(&["--hz", HZ, "--off-cpu"], Path::new("/bin/sh"), &["-c", &script]);
        let truth = truth(recorded.stdout.lines());
        Some((recorded, truth))
    };
    // It may go on late on a busy machine.
    let check_sleep = |recorded: &Recorded| {
        let of_sleep = recorded.count(|stack| stack.frames[0] == "sleep") as f64 * PERIOD_NS / 1e9;
        let is_right = (of_sleep - 0.3).abs() < 0.05;
        if is_right { Ok(()) } else { Err(format!("sleep waited {of_sleep} s")) }
    };
    let Some(recorded) = measured_with(launched, check_sleep) else { return };
    recorded.check(recorded.figure("processes_seen") >= 3.0, "its processes are not there");
}

/// Threads that wake each other tens of thousands of times a second, and a reader that gets no CPU:
/// what the kernel drops is told, and none of it is taken for something else.
#[test]
fn waits_that_the_kernel_drops_are_counted() {
    let Some(_one) = sampled() else { return };
    let mut target = Fixture::start("wakes", ["0", "3"]);
    target.line("ready");
    let running = attach_by_kernel(target.pid(), &["--hz", "997", "--idle"]);
    target.go();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(100));
        kill("STOP", running.pid());
        std::thread::sleep(Duration::from_millis(700));
        kill("CONT", running.pid());
    }
    target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let wall_s = recorded.figure("threads_seen") * recorded.figure("duration_s");
    let (kept_s, lost_s) = (recorded.total() as f64 / 997.0, recorded.lost() as f64 / 997.0);
    println!("{kept_s:.3} s kept and {lost_s:.3} s lost of {wall_s:.3} s, {} waits", recorded.stats["waits"]);
    recorded.check(lost_s > 0.0, "nothing was dropped");
    recorded.check(recorded.figure("threads_seen") == 3.0, "other threads than there are");
    recorded.check(kept_s < 1.01 * wall_s + 0.1, "more than there was");
    // What is lost of a wait is the most that it can have been.
    recorded.check(kept_s + lost_s > 0.97 * wall_s - 0.1, "time that nothing tells of");
    // The thread that joins the others waited all the time, whatever was dropped.
    recorded.check(kept_s > 0.9 * recorded.figure("duration_s"), "hardly anything is left");
}

/// Who may not see the kernel does not see where threads leave their CPUs: one line, and for `--idle`
/// the source that stops threads.
#[test]
fn somebody_without_rights_is_told_what_waits_need() {
    let Some(_one) = sampled() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let sleep = ["--", "sleep", "2"];
    let by = |options: &[&str]| {
        record_by(somebody.run(&somebody.stackprof()), [&["--source", "auto"], options, &sleep].concat())
            .wait()
    };
    let refused = by(&["--off-cpu"]);
    if refused.status.success() {
        not_here("everybody may see the kernel here");
    } else {
        refused.check(refused.status.code() == Some(1), "not an error");
        let said = refused.stderr.trim_end();
        let right =
            said.starts_with("stackprof: --off-cpu is recorded by perf_event only: perf_event refused");
        refused.check(right && said.contains("sudo") && !said.contains('\n'), "other words");
        let idle = by(&["--idle"]);
        idle.check_success();
        idle.check(idle.stats["backend"] == "ptrace", "not by stopping threads");
        let counted_s = idle.total() as f64 / 997.0;
        // It may begin late on a busy machine.
        idle.check(counted_s > 1.6, format!("{counted_s} s of 2"));
    }
}

/// The whole machine: threads of the kernel, and CPUs with nothing to do, do not wait.
///
/// Other programs may switch more often than a reader that shares its CPU with them can follow, just when
/// it reads their files: what the kernel dropped then may be a wait of this program. Tried again.
#[test]
fn waits_of_the_whole_machine_are_those_of_programs() {
    const TRIES: usize = 4;
    for attempt in 1..=TRIES {
        let Some(_one) = sampled_alone() else { return };
        let mut target = Fixture::start("sleeps", ROUNDS);
        target.line("ready");
        let running = record(["--source", "perf", "-a", "--off-cpu", "--hz", HZ]);
        wait_for("the events", || has_events(running.pid()));
        wait_for_ticks("the machine", running.pid());
        target.go();
        let said = target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        let lost = recorded.stats["samples_lost"].as_object().into_iter().flatten();
        let dropped: Vec<_> = lost.filter(|(why, _)| why.starts_with("the kernel dropped")).collect();
        if !dropped.is_empty() && attempt < TRIES {
            println!("tried again: {dropped:?}");
            continue;
        }
        let waits = if dropped.is_empty() {
            check_waits(&recorded, &truth(said.iter()))
        } else {
            println!("records were dropped in each of {TRIES} runs: waits are not compared");
            Ok(())
        };
        match waits.and_then(|()| check_sleeper(&recorded)) {
            Err(why) if attempt < TRIES => {
                println!("tried again: {why}");
                continue;
            }
            Err(why) => recorded.check(false, why),
            Ok(()) => {}
        }
        let is_kernel = |name: &str| name.starts_with('[') || name.starts_with("swapper");
        let of_kernel = recorded.count(|stack| is_kernel(&stack.frames[0]));
        recorded.check(of_kernel == 0, format!("{of_kernel} of the kernel's own threads"));
        return;
    }
}
