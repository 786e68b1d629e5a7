//! Systems that allow perf_event only in part: the profile is right, or one line explains why there is none
//! and what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Fixture, Recorded, Somebody, assert_untouched, fixture, not_here, record_by, record_until, sampled,
    stackprof,
};
use crate::trees::{burned_elsewhere, tree};

/// Next steps in refusals.
const NEXT_STEPS: [&str; 7] =
    ["sudo", "sysctl ", "ulimit -", "ps -e", "stackprof -- COMMAND", "--cap-add", "a higher --hz"];

/// A file in /proc/sys with another value until dropped.
struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// `None`, after a message, if it cannot be written.
    fn of(path: &str) -> Option<Setting> {
        let before = fs::read_to_string(path).and_then(|before| fs::write(path, &before).map(|()| before));
        match before {
            Ok(before) => Some(Setting { path: path.into(), before: before.trim().to_owned() }),
            Err(error) => {
                not_here(&format!("{path} cannot be written: {error}"));
                None
            }
        }
    }

    fn set(&self, value: &str) -> std::io::Result<()> {
        fs::write(&self.path, value)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // A failure cannot be handled; a panic here would hide the test's message.
        let _ = self.set(&self.before);
    }
}

fn text(recorded: &Recorded, key: &str) -> String {
    recorded.stats[key].as_str().unwrap_or_default().to_owned()
}

/// Checks that CPU time is accounted for; returns the backend.
#[track_caller]
pub(crate) fn check_profile(recorded: &Recorded) -> String {
    recorded.check_success();
    let (backend, why) = (text(recorded, "backend"), text(recorded, "backend_why"));
    // With samples of user code only, the weight of each is random.
    if backend != "perf_event" || why.starts_with("user and kernel") {
        recorded.check_sum();
    }
    format!("{backend} ({why}), {} counts", recorded.total())
}

/// Checks that only one line with a next step was printed; returns the line.
#[track_caller]
fn check_line(recorded: &Recorded) -> String {
    recorded.check(recorded.files.is_empty(), format!("files were left: {:?}", recorded.files));
    let said = recorded.stderr.trim_end_matches('\n');
    recorded.check(said.starts_with("stackprof: ") && !said.contains('\n'), "not one line");
    recorded.check(!said.contains("internal error") && !said.contains("panicked"), "it failed within");
    recorded.check(NEXT_STEPS.iter().any(|step| said.contains(step)), "no next step");
    said.to_owned()
}

/// Accepts a correct profile or a clear error.
#[track_caller]
pub(crate) fn outcome(recorded: &Recorded) -> String {
    match recorded.status.code() {
        Some(0) => check_profile(recorded),
        // 4: it ended before a sample.
        Some(code @ (1 | 4)) => format!("{code}: {}", check_line(recorded)),
        _ => {
            recorded.check(false, "neither a profile nor a refusal");
            String::new()
        }
    }
}

/// Records 0.1 s of CPU time of `shares` by a command that ends in the profiler's path.
fn shares_by(command: Command, source: &str, shares: &Path) -> Recorded {
    record_by(command, ["--source", source, "--hz", "997", "--", shares.to_str().unwrap(), "0.1"]).wait()
}

/// Both ways to request a source; `auto` always gives a profile, with the program's own functions.
#[track_caller]
fn check_both_sources(case: &str, command: impl Fn() -> Command, shares: &Path) {
    let asked = shares_by(command(), "perf", shares);
    println!("{case}, perf: {}", outcome(&asked));
    let by_itself = || {
        let recorded = shares_by(command(), "auto", shares);
        println!("{case}, auto: {}", outcome(&recorded));
        recorded
    };
    record_until("its functions", by_itself, |recorded| recorded.shows(|stack| stack.has("recurse")));
}

/// stackprof, run by a command such as `setpriv ARGUMENTS`.
fn stackprof_by(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_stackprof"));
    command
}

#[test]
fn each_level_of_paranoia_gives_a_profile_or_an_error() {
    if !sampled() {
        return;
    }
    let Some(somebody) = Somebody::new() else { return };
    let Some(paranoid) = Setting::of("/proc/sys/kernel/perf_event_paranoid") else { return };
    let shares = somebody.fixture("shares");
    for level in ["0", "1", "2", "3", "4"] {
        if let Err(error) = paranoid.set(level) {
            not_here(&format!("kernel.perf_event_paranoid cannot be {level}: {error}"));
            continue;
        }
        check_both_sources(&format!("level {level}"), || somebody.run(&somebody.stackprof()), &shares);
        match level {
            "1" => {
                check_tree(&somebody, "user and kernel, for each thread");
                check_waits(&somebody);
            }
            "2" => {
                check_tree(&somebody, "user code only, for each thread");
                check_waits_refused(&somebody);
            }
            "4" => {
                let recorded = record_until("root", || shares_by(stackprof(), "perf", &shares), |_| true);
                check_profile(&recorded);
                let why = text(&recorded, "backend_why");
                recorded.check(why.starts_with("user and kernel"), "root has less than everything");
            }
            _ => {}
        }
    }
}

/// Events of threads are inherited by a command's children, and by those of an attached process.
fn check_tree(somebody: &Somebody, expected: &str) {
    let one = somebody.copy(&tree("one"));
    let program = somebody.fixture("tree");
    let launched = || {
        let mut words = vec!["--source", "perf", "--hz", "997", "--", program.to_str().unwrap()];
        words.extend(["6", "2", "30000", one.to_str().unwrap()]);
        let recorded = record_by(somebody.run(&somebody.stackprof()), words).wait();
        burned_elsewhere(&recorded);
        recorded
    };
    let recorded = record_until("what it starts", launched, |recorded| {
        recorded.shows(|stack| stack.frames[0] == "tree_one" && stack.has("burn_in_one"))
    });
    recorded.check(text(&recorded, "backend_why") == expected, "by other events");
    let attached = || {
        let mut target = Fixture::run(somebody.run(&program).args(["fork", "0.1"]));
        let child = target.line("child");
        target.line("ready");
        let pid = target.pid().to_string();
        let words = ["--source", "perf", "--hz", "997", "--children", "--per-process", "--pid", &pid];
        let running = record_by(somebody.run(&somebody.stackprof()), words);
        running.wait_attached(target.pid());
        target.go();
        target.done();
        let recorded = running.interrupt();
        recorded.check(
            recorded.is_empty() || recorded.figure("processes_seen") == 2.0,
            "another number of processes",
        );
        (recorded, format!("tree ({child})"))
    };
    let child = std::cell::RefCell::new(String::new());
    record_until(
        "the child",
        || {
            let (recorded, name) = attached();
            child.replace(name);
            recorded
        },
        |recorded| recorded.shows(|stack| stack.frames[0] == *child.borrow()),
    );
}

/// If users may see the kernel, but not all that runs on a CPU: by per-thread events.
fn check_waits(somebody: &Somebody) {
    let script = format!("echo go | {} 2 5", somebody.fixture("sleeps").display());
    let words = ["--source", "perf", "--off-cpu", "--hz", "997", "--", "sh", "-c", &script];
    let recorded = record_until(
        "a wait",
        || record_by(somebody.run(&somebody.stackprof()), words).wait(),
        |recorded| recorded.shows(|stack| stack.has("wait_in_nanosleep")),
    );
    recorded.check(text(&recorded, "backend_why").contains("for each thread"), "more than it may");
}

/// A user who may not see the kernel does not see where threads leave their CPUs: one line, and for `--idle`
/// the source that stops threads.
fn check_waits_refused(somebody: &Somebody) {
    let by = |options: &[&str]| {
        let words = [&["--source", "auto"], options, &["--", "sleep", "0.2"]].concat();
        record_by(somebody.run(&somebody.stackprof()), words).wait()
    };
    let refused = by(&["--off-cpu"]);
    refused.check(refused.status.code() == Some(1), "not an error");
    let said = check_line(&refused);
    let right = said.starts_with("stackprof: --off-cpu is recorded by perf_event only: perf_event refused");
    refused.check(right && said.contains("sudo"), "other words");
    let idle = record_until("sleep", || by(&["--idle"]), |recorded| recorded.total() > 0);
    idle.check(text(&idle, "backend") == "ptrace", "not by stopping threads");
}

#[test]
fn limited_resources_give_a_profile_or_an_error() {
    if !sampled() {
        return;
    }
    let Some(somebody) = Somebody::new() else { return };
    for without in ["-perfmon,-sys_admin", "-bpf,-sys_admin", "-all"] {
        let option = format!("--bounding-set={without}");
        let words = ["setpriv", &option, "--inh-caps=-all"];
        check_both_sources(&format!("root {without}"), || stackprof_by(&words), &fixture("shares"));
    }
    // Both limits, so that the profiler cannot raise them.
    let limited = |limit: &str| format!("ulimit {limit}; exec \"$0\" \"$@\"");
    let few_files = limited("-n 28");
    check_both_sources("28 files", || stackprof_by(&["sh", "-c", &few_files]), &fixture("shares"));
    for files in ["64", "6"] {
        let script = limited(&format!("-n {files}"));
        let recorded = shares_by(stackprof_by(&["sh", "-c", &script]), "auto", &fixture("shares"));
        println!("{files} files: {}", outcome(&recorded));
    }
    // One event for each thread and CPU exceeds that.
    let mut target = Fixture::run(somebody.run(&somebody.fixture("many")).args(["101", "1", "0.2"]));
    target.line("ready");
    let mut command = somebody.run(Path::new("sh"));
    command.args(["-c", &limited("-n 64")]).arg(somebody.stackprof());
    let running = record_by(command, ["--source", "auto", "--hz", "997", "--pid", &target.pid().to_string()]);
    running.wait_attached(target.pid());
    target.go();
    target.done();
    println!("101 threads, 64 files: {}", outcome(&running.interrupt()));
    assert_untouched(target.pid(), "after the recording");

    let little_memory = limited("-l 64");
    let words = ["sh", "-c", &little_memory, "setpriv", "--bounding-set=-ipc_lock"];
    check_both_sources("root, 64 KiB", || stackprof_by(&words), &fixture("shares"));
    // A second concurrent recording finds nothing left.
    let shares = somebody.fixture("shares");
    let command = || {
        let mut command = somebody.run(Path::new("sh"));
        command.args(["-c", &little_memory]).arg(somebody.stackprof());
        command
    };
    let mut target = Fixture::run(somebody.run(&shares).arg("600"));
    target.line("ready");
    let pid = target.pid().to_string();
    let first = record_by(command(), ["--source", "auto", "--hz", "997", "--pid", &pid]);
    first.wait_attached(target.pid());
    check_both_sources("beside another recording, 64 KiB", command, &shares);
    println!("the other one: {}", outcome(&first.interrupt()));
    assert_untouched(target.pid(), "after the recording");
}

/// What containers give root by default.
const DEFAULT_CAPABILITIES: &str = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,\
                                    +net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap";

/// stackprof under a seccomp filter that answers these calls with EPERM, with the capabilities of a container and `more`.
fn in_container(calls: &str, more: &str) -> Command {
    let deny = fixture("deny");
    let bounding = format!("--bounding-set={DEFAULT_CAPABILITIES}{more}");
    let filtered = [deny.to_str().unwrap(), "1", calls, "setpriv", &bounding, "--inh-caps=-all"];
    stackprof_by(if calls.is_empty() { &filtered[3..] } else { &filtered })
}

/// One of each kind of answer in the table of docs/linux.md.
#[test]
fn containers_give_a_profile_or_the_true_cause() {
    if !sampled() || !crate::support::is_root() {
        return;
    }
    let shares = fixture("shares");
    let command = ["--source", "auto", "--hz", "997", "--", shares.to_str().unwrap(), "0.1"];
    for (calls, more, backend, why) in [
        (
            "perf",
            "",
            "ptrace",
            "seccomp filter (of a container or service) forbids perf_event_open; start the container with --cap-add PERFMON",
        ),
        ("", ",+perfmon", "perf_event", "user and kernel"),
        ("perf", ",+sys_ptrace", "ptrace", "--cap-add PERFMON"),
    ] {
        let recorded = record_until(
            format!("its functions, {calls} {more}"),
            || record_by(in_container(calls, more), command).wait(),
            |recorded| recorded.shows(|stack| stack.has("recurse")),
        );
        check_profile(&recorded);
        let said = (text(&recorded, "backend"), text(&recorded, "backend_why"));
        recorded.check(said.0 == backend && said.1.contains(why), format!("other than {backend}, {why}"));
    }
    let mut target = Fixture::start("shares", ["600"]);
    target.line("ready");
    let pid = target.pid().to_string();
    let attach = ["--source", "auto", "-d", "0.2", "--pid", &pid];
    for (calls, words, causes) in [
        ("perf", &attach[..], &["it holds capabilities that stackprof lacks", "--cap-add SYS_PTRACE"][..]),
        (
            "perf,ptrace,readv",
            &command[..],
            &["forbids ptrace", "forbids perf_event_open", "--cap-add PERFMON"],
        ),
        ("perf,readv", &command[..], &["forbids process_vm_readv", "--cap-add SYS_PTRACE", "runs on as pid"]),
    ] {
        let refused = record_by(in_container(calls, ""), words).wait();
        refused.check(refused.status.code() == Some(1), "not an error");
        let said = check_line(&refused);
        refused.check(causes.iter().all(|cause| said.contains(cause)), format!("without {causes:?}"));
        refused.check(words.contains(&"--pid") || !said.contains("--pid"), "a pid of a command");
    }
    assert_untouched(target.pid(), "after the refusals");
}
