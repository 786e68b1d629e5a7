//! Where the system gives perf_event only in part, or takes something away in the middle: the profile
//! is right, or one line says why there is none and what to do. Nothing in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::by_kernel::{HZ, Somebody, attach_by_kernel, sampled, sampled_alone};
use crate::by_kernel_waits;
use crate::support::{
    Fixture, Random, Recorded, Running, assert_untouched, fixture, kill, not_here, record, record_by,
    wait_for, wait_for_more_cpu_time,
};

/// What a line that says no advises, one of them.
const NEXT_STEPS: [&str; 7] =
    ["sudo", "sysctl ", "ulimit -", "ps -e", "stackprof -- COMMAND", "--cap-add", "a higher --hz"];

/// A file of the system that holds another value until this is dropped.
pub(crate) struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// `None`, after a line that says why, where it cannot be written.
    pub(crate) fn of(path: &str) -> Option<Setting> {
        let before = fs::read_to_string(path).and_then(|before| fs::write(path, &before).map(|()| before));
        match before {
            Ok(before) => Some(Setting { path: path.into(), before: before.trim().to_owned() }),
            Err(error) => {
                not_here(&format!("{path} cannot be written: {error}"));
                None
            }
        }
    }

    pub(crate) fn set(&self, value: &str) -> std::io::Result<()> {
        fs::write(&self.path, value)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // Nothing to be done where that fails; a panic here would hide what the test says.
        let _ = self.set(&self.before);
    }
}

/// Checks that time is accounted for, and where it was used; tells what took the samples.
#[track_caller]
fn check_profile(recorded: &Recorded) -> String {
    recorded.check_success();
    let text = |key: &str| recorded.stats[key].as_str().unwrap_or_default().to_owned();
    let (backend, why) = (text("backend"), text("backend_why"));
    let (accounted, used) = ((recorded.total() + recorded.lost()) as f64, recorded.figure("target_cpu_s"));
    // The kernel's samples weigh what the process's clock says; in user mode only, and by ptrace,
    // each stands for what chance made it stand for. What is less than a period at an end is nowhere.
    let off = if backend == "perf_event" && why.starts_with("user and kernel") { 0.01 } else { 0.1 };
    recorded.check(
        (accounted - used * HZ).abs() <= off * used * HZ + 3.0,
        format!("{accounted} counts of {used} s"),
    );
    format!("{backend} ({why}), {accounted:.0} counts in {used:.3} s")
}

/// Checks that nothing but one line that leads on was left; the line.
#[track_caller]
fn check_line(recorded: &Recorded) -> String {
    recorded.check(recorded.files.is_empty(), format!("files were left: {:?}", recorded.files));
    let said = recorded.stderr.trim_end_matches('\n');
    recorded.check(said.starts_with("stackprof: ") && !said.contains('\n'), "not one line");
    recorded.check(!said.contains("internal error") && !said.contains("panicked"), "it failed within");
    recorded.check(NEXT_STEPS.iter().any(|step| said.contains(step)), "no next step");
    said.to_owned()
}

/// A right profile or a clear line, whichever it is.
#[track_caller]
fn outcome(recorded: &Recorded) -> String {
    match recorded.status.code() {
        Some(0) => check_profile(recorded),
        // 4: it was over before a sample.
        Some(code @ (1 | 4)) => format!("{code}: {}", check_line(recorded)),
        _ => {
            recorded.check(false, "neither a profile nor a refusal");
            String::new()
        }
    }
}

/// Records 0.15 s of CPU time of `shares` by a command that ends in the profiler's path.
fn shares_by(command: Command, source: &str, shares: &Path) -> Recorded {
    record_by(command, ["--source", source, "--hz", "997", "--", shares.to_str().unwrap(), "0.15"]).wait()
}

/// Both ways of asking; `auto` always has a profile, and in it the program's own functions.
#[track_caller]
fn check_both_sources(case: &str, command: impl Fn() -> Command, shares: &Path) {
    for source in ["perf", "auto"] {
        let recorded = shares_by(command(), source, shares);
        println!("{case}, {source}: {}", outcome(&recorded));
        recorded.check(source == "perf" || recorded.status.success(), "one refusal cost the recording");
        if recorded.status.success() {
            let named = recorded.count(|stack| stack.has("recurse")) as f64 / recorded.total() as f64;
            recorded.check(named > 0.7, format!("{named} of the time has its names"));
        }
    }
}

/// stackprof, run by a command such as `setpriv ARGUMENTS`.
fn stackprof_by(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_stackprof"));
    command
}

/// Where everybody may see the kernel, but not all that runs on a CPU: by events of the threads.
#[test]
fn somebody_at_level_1_has_the_waits_of_their_own_threads() {
    let Some(_one) = sampled_alone() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let Some(paranoid) = Setting::of("/proc/sys/kernel/perf_event_paranoid") else { return };
    let program = somebody.fixture("sleeps");
    let script = format!("echo go | {} {}", program.display(), by_kernel_waits::ROUNDS.join(" "));
    let words = ["--source", "perf", "--off-cpu", "--hz", by_kernel_waits::HZ, "--", "sh", "-c", &script];
    paranoid.set("1").unwrap();
    let launched = || {
        let recorded = record_by(somebody.run(&somebody.stackprof()), words).wait();
        let truth = by_kernel_waits::truth(recorded.stdout.lines());
        Some((recorded, truth))
    };
    let Some(recorded) = by_kernel_waits::measured(launched) else { return };
    let why = recorded.stats["backend_why"].as_str().unwrap_or_default();
    recorded.check(why.contains("for each thread"), "more than it may");
}

#[test]
fn every_level_of_paranoia_has_a_profile_or_a_line() {
    let Some(_one) = sampled_alone() else { return };
    let Some(paranoid) = Setting::of("/proc/sys/kernel/perf_event_paranoid") else { return };
    let Some(somebody) = Somebody::new() else { return };
    let shares = somebody.fixture("shares");
    for level in ["0", "1", "2", "3", "4"] {
        if let Err(error) = paranoid.set(level) {
            not_here(&format!("kernel.perf_event_paranoid cannot be {level}: {error}"));
            continue;
        }
        let case = format!("level {level}, somebody");
        check_both_sources(&case, || somebody.run(&somebody.stackprof()), &shares);
        if level == "0" || level == "3" {
            continue;
        }
        let recorded = shares_by(crate::support::stackprof(), "perf", &shares);
        println!("level {level}, root: {}", check_profile(&recorded));
        let why = recorded.stats["backend_why"].as_str().unwrap_or_default();
        recorded.check(why.starts_with("user and kernel"), "root has less than everything");
    }
}

#[test]
fn root_without_its_capabilities_has_a_profile_or_a_line() {
    let Some(_one) = sampled_alone() else { return };
    if Somebody::new().is_none() {
        return;
    }
    for without in ["-perfmon,-sys_admin", "-bpf,-sys_admin", "-all"] {
        let option = format!("--bounding-set={without}");
        let words = ["setpriv", &option, "--inh-caps=-all"];
        check_both_sources(&format!("root {without}"), || stackprof_by(&words), &fixture("shares"));
    }
}

/// `sh -c 'ulimit …'` before the profiler: both limits, so that it cannot raise them.
fn limited<'a>(limit: &str, script: &'a mut String) -> [&'a str; 3] {
    *script = format!("ulimit {limit}; exec \"$0\" \"$@\"");
    ["sh", "-c", script]
}

#[test]
fn few_open_files_are_enough_or_told() {
    let Some(_one) = sampled() else { return };
    let mut script = String::new();
    let words = limited("-n 28", &mut script);
    check_both_sources("28 files", || stackprof_by(&words), &fixture("shares"));
    for files in ["64", "10", "6"] {
        let words = limited(&format!("-n {files}"), &mut script);
        println!("{files} files: {}", outcome(&shares_by(stackprof_by(&words), "auto", &fixture("shares"))));
    }
    // An event of each thread and CPU is more than that.
    let Some(somebody) = Somebody::new() else { return };
    let mut target = Fixture::run(somebody.run(&somebody.fixture("many")).args(["101", "1", "0.3"]));
    target.line("ready");
    let words = limited("-n 64", &mut script);
    let mut command = somebody.run(Path::new(words[0]));
    command.args(&words[1..]).arg(somebody.stackprof());
    let running = record_by(command, ["--source", "auto", "--hz", "997", "--pid", &target.pid().to_string()]);
    running.wait_attached(target.pid());
    target.go();
    target.done();
    let recorded = running.interrupt();
    println!("101 threads, 64 files: {}", outcome(&recorded));
    assert_untouched(target.pid(), "after the recording");
}

#[test]
fn little_memory_to_lock_is_enough_or_told() {
    let Some(_one) = sampled_alone() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let mut script = String::new();
    let limit = limited("-l 64", &mut script);
    let words = [&limit[..], &["setpriv", "--bounding-set=-ipc_lock"]].concat();
    check_both_sources("root, 64 KiB", || stackprof_by(&words), &fixture("shares"));
    let shares = somebody.fixture("shares");
    let command = || {
        let mut command = somebody.run(Path::new(limit[0]));
        command.args(&limit[1..]).arg(somebody.stackprof());
        command
    };
    // The second one at a time finds nothing left.
    let mut target = Fixture::run(somebody.run(&somebody.fixture("shares")).arg("30"));
    target.line("ready");
    let pid = target.pid().to_string();
    let first = record_by(command(), ["--source", "auto", "--hz", "997", "--pid", &pid]);
    first.wait_attached(target.pid());
    check_both_sources("somebody beside another recording, 64 KiB", command, &shares);
    println!("the other one: {}", outcome(&first.interrupt()));
    assert_untouched(target.pid(), "after the recording");
}

/// Ends the recording where its target just ended, or may have.
#[track_caller]
fn ended(running: Running, when: &str) -> Recorded {
    let recorded = running.wait();
    println!("{when}: {}", outcome(&recorded));
    recorded
}

#[test]
fn a_target_that_ends_in_any_phase_leaves_a_profile_or_a_line() {
    let Some(_one) = sampled() else { return };
    let mut random = Random::from_environment();
    let gone = Fixture::start("shares", ["0.01"]);
    let pid = gone.pid();
    gone.finish();
    let recorded = ended(record(["--source", "perf", "--pid", &pid.to_string()]), "before");
    recorded.check(recorded.status.code() == Some(1), "a process that is gone was recorded");
    for _ in 0..5 {
        let mut target = Fixture::start("threads", ["2", "10", "told"]);
        target.line("ready");
        target.go();
        let running = record(["--source", "perf", "--hz", "997", "--pid", &target.pid().to_string()]);
        sleep(Duration::from_micros(random.below(40_000)));
        drop(target);
        ended(running, "on its way to the first sample");
    }
    for reaped in [true, false] {
        let mut target = Fixture::start("shares", ["30"]);
        target.line("ready");
        let running = attach_by_kernel(target.pid(), &["--hz", "997"]);
        wait_for_more_cpu_time(target.pid(), Duration::from_millis(300));
        if reaped {
            drop(target);
            check_profile(&ended(running, "in the middle, and waited for"));
        } else {
            kill("KILL", target.pid());
            check_profile(&ended(running, "in the middle, and not waited for"));
        }
    }
    for _ in 0..3 {
        let mut target = Fixture::start("shares", ["30"]);
        target.line("ready");
        let running = attach_by_kernel(target.pid(), &["--hz", "997"]);
        wait_for_more_cpu_time(target.pid(), Duration::from_millis(60));
        kill("INT", running.pid());
        sleep(Duration::from_micros(random.below(60_000)));
        drop(target);
        let recorded = ended(running, "while it is written");
        check_profile(&recorded);
        recorded.check(recorded.svg.trim_end().ends_with("</svg>"), "the SVG is not whole");
    }
}

/// The first thread's events are those that the rings are of: they are hung up when it leaves.
#[test]
fn a_first_thread_that_leaves_before_the_others_is_not_waited_for_in_a_loop() {
    let Some(_one) = sampled() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let mut target = Fixture::run(somebody.run(&somebody.fixture("ends")).args(["leader", "1000", "go"]));
    target.line("ready");
    let command = somebody.run(&somebody.stackprof());
    let pid = target.pid();
    let running = record_by(command, ["--source", "auto", "--hz", "997", "--pid", &pid.to_string()]);
    running.wait_attached(pid);
    target.go();
    let recorded = running.wait();
    println!("{}", check_profile(&recorded));
    let (own, used) = (recorded.figure("profiler_cpu_s"), recorded.figure("target_cpu_s"));
    recorded.check(used > 0.3, "it was hardly recorded");
    recorded.check(own < 0.3 * used, format!("the profiler used {own} s beside {used} s"));
}

/// Events of a CPU that was away stay silent when it is back.
#[test]
fn a_cpu_that_goes_and_comes_back_is_sampled_again() {
    let Some(_one) = sampled_alone() else { return };
    if Command::new("taskset").arg("--version").output().is_err() {
        return not_here("there is no taskset");
    }
    let online = "/sys/devices/system/cpu/cpu1/online";
    let Some(cpu) = Setting::of(online) else { return };
    if cpu.before != "1" {
        return not_here("CPU 1 is not online");
    }
    let mut target = Fixture::run(Command::new("taskset").args(["-c", "1"]).arg(fixture("shares")).arg("30"));
    target.line("ready");
    let running = attach_by_kernel(target.pid(), &["--hz", "997"]);
    let after = |ms: u64| wait_for_more_cpu_time(target.pid(), Duration::from_millis(ms));
    after(200);
    if let Err(error) = cpu.set("0") {
        return not_here(&format!("CPU 1 cannot be taken offline: {error}"));
    }
    after(100);
    cpu.set("1").unwrap();
    wait_for("CPU 1", || fs::read_to_string(online).is_ok_and(|value| value.trim() == "1"));
    // It went to another CPU, and would stay there.
    let pid = target.pid().to_string();
    let moved = Command::new("taskset").args(["-p", "2", &pid]).output().unwrap();
    assert!(moved.status.success(), "{moved:?}");
    // Long enough for a machine that is busy with other things.
    after(2_700);
    let recorded = running.interrupt();
    println!("{}", check_profile(&recorded));
    let (counts, used) = (recorded.total() as f64 / HZ, recorded.figure("target_cpu_s"));
    recorded.check(counts > 0.95 * used, format!("{counts} s of {used} s have samples"));
    // None of half a second until the silence is noticed, and what it takes to open events anew.
    let samples = recorded.figure("samples_pushed") / HZ;
    recorded.check(samples > 0.4 * used, format!("samples of {samples} s of {used} s"));
    assert_untouched(target.pid(), "after the recording");
}
