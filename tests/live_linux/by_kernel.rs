//! The kernel takes the samples (`--source perf`): nobody is stopped, time stays with the code that
//! used it, whoever comes, goes or is replaced.
//!
//! Where the system refuses perf_event each test prints SKIP with what it said.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Recorded, Running, Turn, attach, compile, copy_program, fixture, kill, launch, live, live_alone,
    not_here, numbers, record, stackprof, tracer_of, wait_for,
};

pub(crate) const HZ: f64 = 997.0;

/// As [`live`], where the kernel samples for us; says why it does not.
pub(crate) fn sampled() -> Option<Turn> {
    by_kernel(live()?)
}

/// As [`live_alone`], where the kernel samples for us; says why it does not.
pub(crate) fn sampled_alone() -> Option<Turn> {
    by_kernel(live_alone()?)
}

fn by_kernel(turn: Turn) -> Option<Turn> {
    let tried = stackprof().args(["-q", "--source", "perf", "-o", "-", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    if said.contains("cannot sample by --source perf") {
        println!("SKIP {}", said.trim());
        return None;
    }
    Some(turn)
}

pub(crate) fn attach_by_kernel(pid: u32, options: &[&str]) -> Running {
    attach(pid, &[&["--source", "perf"], options].concat())
}

pub(crate) fn launch_by_kernel(options: &[&str], program: &Path, arguments: &[&str]) -> Recorded {
    let recorded = launch(&[&["--source", "perf"], options].concat(), program, arguments);
    recorded.check_success();
    recorded
}

/// The kernel's copy of a stack ends at a page that was never touched.
#[test]
fn stacks_with_untouched_pages_are_whole() {
    let Some(_one) = sampled() else { return };
    let program = compile("large_frame", "large_frame", &["-fno-stack-clash-protection"]);
    let recorded = launch_by_kernel(&["--hz", "997"], &program, &["1"]);
    let (complete, samples) = (recorded.figure("stacks_complete"), recorded.figure("samples"));
    // Those of the first batches are cut: of 5 ms each at the beginning, more where the reader has no CPU.
    recorded.check(samples > 500.0 && complete > 0.8 * samples, format!("{complete} of {samples} are whole"));
}

/// A record of the kernel holds less than 64 KiB: a program in the kernel copies the rest.
#[test]
fn stacks_larger_than_any_record_are_whole() {
    let Some(_one) = sampled() else { return };
    let flags = ["-fno-stack-clash-protection", "-DFRAME_BYTES=150000"];
    let program = compile("large_frame", "larger_frame", &flags);
    let recorded = launch_by_kernel(&["--hz", "997"], &program, &["2"]);
    if recorded.stats["backend_why"] != "user and kernel, on each CPU" {
        return not_here("no program is taken by the kernel without rights over the machine");
    }
    let (complete, samples) = (recorded.figure("stacks_complete"), recorded.figure("samples"));
    // Until it is known that they are so large, and in the batch in which their pages are brought in, they are cut.
    recorded
        .check(samples > 1000.0 && complete > 0.8 * samples, format!("{complete} of {samples} are whole"));
    let whole = recorded.count(|stack| stack.has("with_large_frame") && !stack.has("[incomplete]")) as f64;
    recorded.check(whole > 0.8 * samples, format!("{whole} of {samples} lead through the frame"));
}

/// The kernel copies stacks from the stack pointer up: a program copies what lies below, once a row reads there.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_row_may_read_below_the_stack_pointer_of_a_sample() {
    let Some(_one) = sampled() else { return };
    let program = compile("frames", "frames", &["-O1", "-g", "-pthread"]);
    let recorded = launch_by_kernel(&["--hz", "997"], &program, &["moving"]);
    if recorded.stats["backend_why"] != "user and kernel, on each CPU" {
        return not_here("no program is taken by the kernel without rights over the machine");
    }
    let (complete, samples) = (recorded.figure("stacks_complete"), recorded.figure("samples"));
    // Those of the first batch have nothing of it.
    recorded.check(samples > 500.0 && complete > 0.8 * samples, format!("{complete} of {samples} are whole"));
    let whole = recorded.count(|stack| stack.has("main") && stack.leaf() == "below") as f64;
    recorded.check(whole > 0.8 * samples, format!("{whole} of {samples} have their caller"));
}

#[test]
fn counts_are_cpu_seconds_times_the_rate_and_nobody_is_traced() {
    for threads in ["1", "8"] {
        let Some(_one) = sampled() else { return };
        let mut target = Fixture::start("threads", [threads, "10", "2"]);
        target.line("ready");
        let running = attach_by_kernel(target.pid(), &["--hz", "997"]);
        target.go();
        assert_eq!(tracer_of(target.pid()), 0, "it is traced");
        let said = target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        let process = said.iter().find(|line| line.starts_with("process ")).map(|line| numbers(line));
        let seconds = process.expect("it tells its CPU time")["cpu_ns"] as f64 / 1e9;
        let counts = recorded.total() as f64 / HZ;
        let (used, lost) = (recorded.figure("target_cpu_s"), recorded.lost() as f64 / HZ);
        recorded.check(((counts + lost) / used - 1.0).abs() < 0.01, format!("{counts} s of {used} s"));
        // Its own figure is without its beginning and its end, which take longer on a busy machine.
        recorded.check((counts / seconds - 1.0).abs() < 0.12, format!("{counts} s instead of {seconds}"));
        recorded.check(recorded.figure("stops") == 0.0, "it was stopped");
        let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
        recorded.check(complete > 0.98, format!("{complete} of the stacks are complete"));
    }
}

/// The reader gets no CPU for a while: rings run over.
#[test]
fn what_the_kernel_drops_is_counted() {
    let Some(_one) = sampled() else { return };
    let mut target = Fixture::start("threads", ["2", "10", "3"]);
    target.line("ready");
    let running = attach_by_kernel(target.pid(), &["--hz", "9970"]);
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
    let counts = (recorded.total() + recorded.lost()) as f64 / 9970.0;
    let used = recorded.figure("target_cpu_s");
    recorded.check((counts / used - 1.0).abs() < 0.01, format!("{counts} s of {used} s"));
    recorded.check(recorded.lost() > 0, "nothing was dropped");
}

/// It ends, and is waited for, before its last samples are read: all of them, or those that fitted into the
/// rings, which hold some 70 with the first copies of stacks. Of the others only their number is known, and no record
/// of that fits where records of other programs have filled up what a sample left.
#[test]
fn the_last_samples_of_a_process_that_is_gone_have_their_time() {
    let Some(_one) = sampled() else { return };
    let cases: [(&[&str], bool); 3] = [(&["0.3"], true), (&["4"], false), (&["6", "moves"], false)];
    for (burns, fits) in cases {
        let mut target = Fixture::start("many", [&["2", "1"], burns].concat());
        target.line("ready");
        let running = attach_by_kernel(target.pid(), &["--hz", "97"]);
        kill("STOP", running.pid());
        target.go();
        if !fits {
            std::thread::sleep(Duration::from_millis(1000));
            start_short_programs_on_all_cpus();
        }
        let said = target.done();
        let process = said.iter().find(|line| line.starts_with("process ")).map(|line| numbers(line));
        let seconds = process.expect("it tells its CPU time")["cpu_ns"] as f64 / 1e9;
        target.finish();
        kill("CONT", running.pid());
        let recorded = running.wait();
        recorded.check_success();
        let (lost, counts) = (recorded.lost(), (recorded.total() + recorded.lost()) as f64 / 97.0);
        let used = recorded.figure("target_cpu_s");
        println!("{counts:.3} s, {lost} lost, of {used:.3} s as told, {seconds:.3} s");
        recorded.check((counts - used).abs() < 0.02, format!("{counts} s of {used} s"));
        recorded.check((lost == 0) == fits, format!("{lost} samples lost in {burns:?} s"));
        // Its clock cannot be asked any more: beside others chance decides how many ticks find it. Four
        // standard deviations; without its last samples all would be missing.
        let chance = 4.0 / (seconds * 97.0).sqrt();
        recorded.check((counts / seconds - 1.0).abs() < chance, format!("{counts} s instead of {seconds}"));
    }
}

fn start_short_programs_on_all_cpus() {
    let loops = "for i in $(seq 100); do /bin/true; done";
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let on_each = (0..cpus)
        .map(|cpu| Command::new("taskset").args(["-c", &cpu.to_string(), "sh", "-c", loops]).spawn());
    let on_each: Vec<_> = on_each.collect();
    for programs in on_each {
        assert!(programs.expect("taskset runs").wait().expect("it ends").success());
    }
}

/// A tick holds up the thread that feeds another on another CPU, which then waits: were the ticks of both CPUs in
/// step they would find it waiting, and it had 14 % instead of 33.
#[test]
fn a_thread_that_is_fed_from_another_cpu_is_found_as_often_as_it_runs() {
    let Some(_one) = sampled() else { return };
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return not_here("there is one CPU only");
    }
    let mut target = Fixture::start("feeds", ["5000", "2000", "3"]);
    target.line("ready");
    let running = attach_by_kernel(target.pid(), &["--hz", "997", "--no-kernel"]);
    target.go();
    let said = target.done();
    let recorded = running.interrupt();
    recorded.check_success();
    let used = said.iter().find(|line| line.starts_with("feed ")).map(|line| numbers(line));
    let used = used.expect("it tells its CPU times");
    let truth = used["serve"] as f64 / (used["feed"] + used["serve"]) as f64;
    let [feed, serve] = ["feed", "serve"].map(|name| recorded.count(|stack| stack.has(name)) as f64);
    let share = serve / (feed + serve);
    let chance = 4.0 * (truth * (1.0 - truth) / (feed + serve)).sqrt();
    println!("serve {:.1} %, truth {:.1} %", 100.0 * share, 100.0 * truth);
    recorded.check((share - truth).abs() < 0.05 + chance, format!("{share} instead of {truth}"));
}

/// Threads that wake each other: a stop finds them microseconds later than the timer does.
#[test]
fn shares_of_threads_that_wake_each_other_are_their_own_by_the_kernel() {
    for busy in [0, 2] {
        let Some(_one) = sampled() else { return };
        let mut target = Fixture::start("wakes", ["20000", "3"]);
        target.line("ready");
        let _busy: Vec<_> = (0..busy).map(|_| crate::wakes::Busy::start()).collect();
        let running = attach_by_kernel(target.pid(), &["--hz", "997", "--no-kernel"]);
        target.go();
        let said = target.done();
        let recorded = running.interrupt();
        recorded.check_success();
        let truth = said.iter().find(|line| line.starts_with("work ")).map(|line| numbers(line));
        let mut truth = truth.expect("the program tells its shares");
        // Switches are told by events of CPUs: time before a thread runs is where it waited.
        if recorded.stats["backend_why"].as_str().is_some_and(|why| why.contains("on each CPU")) {
            truth.insert("quick".to_owned(), truth["read"]);
        }
        crate::wakes::check_shares_of(&recorded, &truth, 0.05);
    }
}

#[test]
fn frames_in_the_kernel_stand_below_the_call_that_led_there() {
    let Some(_one) = sampled() else { return };
    let dd = ["if=/dev/zero", "of=/dev/null", "bs=4M", "count=2000", "status=none"];
    let recorded = launch_by_kernel(&[], Path::new("/bin/dd"), &dd);
    let in_kernel = |frame: &String| frame.ends_with("_[k]");
    let kernel = recorded.count(|stack| stack.frames.iter().any(in_kernel)) as f64 / recorded.total() as f64;
    recorded.check(kernel > 0.5, format!("{kernel} of the time in the kernel"));
    let order = |frames: &[String]| frames.iter().skip_while(|frame| !in_kernel(frame)).all(in_kernel);
    recorded.check(recorded.stacks.iter().all(|stack| order(&stack.frames)), "user code below the kernel's");
    let list = std::fs::read_to_string("/proc/kallsyms").expect("the kernel lists its symbols");
    let listed: std::collections::HashSet<&str> =
        list.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)).collect();
    let names =
        recorded.stacks.iter().flat_map(|stack| &stack.frames).filter_map(|frame| frame.strip_suffix("_[k]"));
    let named = |name: &str| listed.contains(name.split(' ').next().unwrap_or_default());
    recorded
        .check(names.filter(|name| *name != "[kernel]").all(named), "a name that the kernel does not list");
    let without = launch_by_kernel(&["--no-kernel"], Path::new("/bin/dd"), &dd);
    without.check(without.count(|stack| stack.frames.iter().any(in_kernel)) == 0, "frames of the kernel");
    without.check(without.total() > 20, "the time is not there");
}

#[test]
fn a_program_that_replaces_itself_is_named_by_both() {
    let Some(_one) = sampled() else { return };
    let (one, two) = (crate::lifecycle::exec_fixture("one"), crate::lifecycle::exec_fixture("two"));
    for thread in [&[][..], &["thread"]] {
        let arguments = [&[two.to_str().unwrap()][..], thread].concat();
        let recorded =
            crate::lifecycle::check_both_programs(|| launch_by_kernel(&["--no-kernel"], &one, &arguments));
        recorded.check(recorded.stdout == "finished\n", "the second program did not finish");
        recorded.check(recorded.stats["exit_status"] == 0, "not the second program's exit status");
    }
}

#[test]
fn a_program_of_a_few_milliseconds_has_its_names() {
    let Some(_one) = sampled() else { return };
    let (mut counts, mut unknown) = (0, 0);
    for _ in 0..10 {
        let recorded = record(["--hz", "9973", "--source", "perf", "--", "ls", "/proc"]).wait();
        // 4: it was over before a sample.
        if recorded.status.code() == Some(4) {
            continue;
        }
        recorded.check_success();
        counts += recorded.total();
        unknown += recorded.count(|stack| stack.has("[unknown]"));
    }
    assert!(counts > 0, "ten runs without a sample");
    // A sample that falls between an exec and the first instruction of the new program may have an
    // address of the old one.
    assert!(unknown * 4 <= counts, "{unknown} of {counts} without a name");
}

#[test]
fn the_end_of_a_command_is_told_and_signals_reach_it() {
    let Some(_one) = sampled() else { return };
    let recorded = launch_by_kernel(
        &[],
        Path::new("/bin/sh"),
        &["-c", "i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; exit 7"],
    );
    recorded.check(recorded.stats["exit_status"] == 7, "not its status");
    let dir = TempDir::new().unwrap();
    let trapped = dir.path().join("trapped");
    let script = "trap 'exit 5' TERM; : >\"$0\"; while :; do :; done";
    let running = record(["--source", "perf", "--", "/bin/sh", "-c", script, trapped.to_str().unwrap()]);
    wait_for("the events", || crate::support::has_events(running.pid()));
    crate::support::wait_for_ticks("the command", running.pid());
    wait_for("the trap", || trapped.exists());
    crate::support::kill("TERM", running.pid());
    let recorded = running.wait();
    recorded.check_success();
    recorded.check(recorded.stats["exit_status"] == 5, "the command did not get the signal");
}

#[test]
fn a_command_that_cannot_be_run_is_told() {
    let Some(_one) = sampled() else { return };
    let recorded = record(["--source", "perf", "--", "/does/not/exist"]).wait();
    recorded.check(recorded.status.code() == Some(1), "not an error");
    let expected =
        "stackprof: cannot run `/does/not/exist`: no such file or directory; check the name or give a path\n";
    recorded.check(recorded.stderr == expected, "other words");
}

/// A user without rights, with copies of the programs: the build directory may be closed to others. One
/// test's at a time: the kernel bounds the memory of all of a user's rings together.
pub(crate) struct Somebody {
    dir: TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Somebody {
    /// `None`, after a line that says why, where no command can be run as another user.
    pub(crate) fn new() -> Option<Somebody> {
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            not_here("only root can run a command as another user");
            return None;
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            not_here("there is no setpriv");
            return None;
        }
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Some(Somebody { dir, _one: one })
    }

    pub(crate) fn copy(&self, program: &Path) -> PathBuf {
        let copy = self.dir.path().join(program.file_name().unwrap());
        if !copy.exists() {
            copy_program(program, &copy);
        }
        copy
    }

    pub(crate) fn stackprof(&self) -> PathBuf {
        self.copy(Path::new(env!("CARGO_BIN_EXE_stackprof")))
    }

    pub(crate) fn fixture(&self, name: &str) -> PathBuf {
        self.copy(&fixture(name))
    }

    /// The beginning of a command of this user.
    pub(crate) fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command
    }
}

/// What everybody may: their own processes, in user mode, unless the system says otherwise.
#[test]
fn somebody_without_rights_samples_user_code_or_hears_why_not() {
    let Some(_one) = sampled() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let shares = somebody.fixture("shares");
    let command = somebody.run(&somebody.stackprof());
    let words = ["--source", "auto", "--hz", "997", "--", shares.to_str().unwrap(), "1", "20"];
    let recorded = crate::support::record_by(command, words).wait();
    recorded.check_success();
    let why = recorded.stats["backend_why"].as_str().unwrap_or_default().to_owned();
    match recorded.stats["backend"].as_str() {
        Some("perf_event") => recorded.check(why.contains("for each thread"), "more than it may"),
        _ => recorded.check(why.starts_with("perf_event refused"), "no reason"),
    }
    let accounted = (recorded.total() + recorded.lost()) as f64 / HZ;
    let used = recorded.figure("target_cpu_s");
    recorded.check((accounted / used - 1.0).abs() < 0.1, format!("{accounted} s of {used}"));
}

/// Work that keeps step with the rate: were the distance between samples always the same, they
/// would all show one of its phases.
#[test]
fn work_in_step_with_the_rate_is_seen_in_all_of_its_phases() {
    let Some(_one) = sampled() else { return };
    let recorded = launch_by_kernel(&["--no-kernel"], &fixture("step"), &["997", "4"]);
    let first = recorded.count(|stack| stack.has("first_30")) as f64;
    let then = recorded.count(|stack| stack.has("then_70")) as f64;
    let share = first / (first + then);
    println!("{share:.3} in the first 30 % of each period");
    recorded.check((share - 0.3).abs() < 0.06, format!("{share} instead of 0.3"));
}
