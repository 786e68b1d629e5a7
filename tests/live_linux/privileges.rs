//! Privileges of the profiler's threads under root while it samples, resolves names and writes, as /proc
//! shows them; a launched command keeps all of them, and no name is lost.
//!
//! A running target holds sampling, an open standard input holds naming, and a FIFO without a reader holds
//! writing. Each test waits for its condition.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, PATIENCE, Recorded, Running, Somebody, compile, kill, launch, live, make_fifo, not_here,
    record_by, record_until, sampled, sources, stackprof, tids, wait_for, wait_for_more_cpu_time,
};

/// The user who called sudo, and another one.
const CALLER: u32 = 65_534;
const OWNER: u32 = 65_533;

const fn set(numbers: &[u32]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < numbers.len() {
        bits |= 1 << numbers[at];
        at += 1;
    }
    bits
}

/// CAP_DAC_READ_SEARCH.
const READ: u64 = set(&[2]);
/// CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER.
const WRITE: u64 = set(&[0, 1, 3]);
/// CAP_SETGID and CAP_SETUID: until functions are named; under sudo also until outputs are written.
const IDS: u64 = set(&[6, 7]);
/// CAP_KILL, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE.
const PROCESSES: u64 = set(&[5, 19, 40]);
/// CAP_IPC_LOCK, CAP_SYS_NICE, CAP_PERFMON, CAP_BPF.
const EVENTS: u64 = set(&[14, 23, 38, 39]);

/// Whether the tests run as root with all capabilities used here; prints a message if not.
fn is_root() -> bool {
    let own = status(Path::new("/proc/self/status")).expect("an own status");
    let all = READ | WRITE | IDS | PROCESSES | EVENTS;
    let is_root = own.uids == [0; 4] && own.permitted & all == all;
    if !is_root {
        not_here("only root has privileges to give up");
    }
    is_root
}

/// A thread, as /proc shows it.
#[derive(Clone, Debug)]
struct Thread {
    name: String,
    is_first: bool,
    uids: Vec<u32>,
    groups: String,
    permitted: u64,
    effective: u64,
    gains_nothing: bool,
}

fn status(path: &Path) -> Option<Thread> {
    let text = fs::read_to_string(path).ok()?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
    let hex = |key| u64::from_str_radix(value(key)?.trim(), 16).ok();
    Some(Thread {
        name: value("Name")?.to_owned(),
        is_first: value("Pid") == value("Tgid"),
        uids: value("Uid")?.split_whitespace().filter_map(|uid| uid.parse().ok()).collect(),
        groups: value("Groups")?.trim().to_owned(),
        permitted: hex("CapPrm")?,
        effective: hex("CapEff")?,
        gains_nothing: value("NoNewPrivs")? == "1",
    })
}

fn threads(pid: u32) -> Vec<Thread> {
    let paths = tids(pid).into_iter().map(|tid| PathBuf::from(format!("/proc/{pid}/task/{tid}/status")));
    paths.filter_map(|path| status(&path)).collect()
}

/// Waits until this holds for every thread of a process with at least one thread.
#[track_caller]
fn wait_for_threads(pid: u32, what: &str, holds: impl Fn(&Thread) -> bool) {
    let begun = std::time::Instant::now();
    loop {
        let threads = threads(pid);
        if !threads.is_empty() && threads.iter().all(&holds) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}: {threads:#x?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The profiler as sudo starts it for [`CALLER`], or as root starts it.
fn profiler(by_sudo: bool) -> Command {
    let mut command = stackprof();
    for name in ["SUDO_UID", "SUDO_GID"] {
        command.env_remove(name);
        if by_sudo {
            command.env(name, CALLER.to_string());
        }
    }
    command
}

/// Records a running process by this command, and returns once it is attached.
fn attach_by(command: Command, pid: u32, options: &[&str]) -> Running {
    let pid_text = pid.to_string();
    let running = record_by(command, ["--pid", &pid_text].iter().chain(options));
    running.wait_attached(pid);
    // Without a sample, naming and writing are skipped.
    wait_for_more_cpu_time(pid, Duration::from_millis(100));
    running
}

fn busy() -> Fixture {
    let mut target = Fixture::start("shares", ["600"]);
    target.line("ready");
    target
}

/// A named pipe that everybody may write to.
fn fifo(path: &Path) {
    make_fifo(path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

/// Reads from a pipe with a waiting writer to its end.
fn read_pipe(path: &Path) -> String {
    let mut written = String::new();
    fs::File::open(path).unwrap().read_to_string(&mut written).unwrap();
    written
}

#[test]
fn sampling_naming_and_writing_threads_keep_needed_capabilities() {
    if !live() || !is_root() {
        return;
    }
    let target = busy();
    for (by_sudo, source) in
        [false, true].into_iter().flat_map(|by_sudo| sources().iter().map(move |s| (by_sudo, s)))
    {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("pipe.folded");
        fifo(&path);
        let options = ["--source", *source, "-o", path.to_str().unwrap()];
        let running = attach_by(profiler(by_sudo), target.pid(), &options);
        let now = READ | PROCESSES | if *source == "perf" { EVENTS } else { 0 };
        let later = READ | WRITE | IDS;
        wait_for_threads(running.pid(), "threads that sample", |thread| {
            let allowed = now | if thread.is_first { later } else { 0 };
            let watches = thread.name == "ctrl-c";
            thread.effective & !now == 0
                && thread.permitted & !allowed == 0
                && (!watches || thread.permitted == 0 && (thread.uids == [CALLER; 4]) == by_sudo)
                && thread.gains_nothing
        });
        kill("INT", running.pid());
        wait_for_threads(running.pid(), "threads that write", |thread| {
            let allowed = if by_sudo { 0 } else { WRITE };
            let is_callers =
                thread.uids == [CALLER; 4] && !thread.groups.split(' ').any(|group| group == "0");
            thread.effective == thread.permitted
                && thread.permitted & !allowed == 0
                && is_callers == by_sudo
                && thread.gains_nothing
        });
        let written = read_pipe(&path);
        assert!(written.contains("leaf_50"), "{written}");
        let owner = fs::metadata(running.dir().join("out.folded")).unwrap().uid();
        assert_eq!(owner, if by_sudo { CALLER } else { 0 });
        running.wait().check_success();
    }
    check_root_writes(&target);
    check_reading();
}

/// The sudo caller may not write below root's directory; root may.
fn check_root_writes(target: &Fixture) {
    // Nobody else may change a component of the path.
    let dir = TempDir::new_in("/root").unwrap();
    let path = dir.path().join("pipe.folded");
    fifo(&path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let running = attach_by(profiler(true), target.pid(), &["-o", path.to_str().unwrap()]);
    kill("INT", running.pid());
    wait_for_threads(running.pid(), "a thread that writes for root", |thread| {
        let allowed = if thread.is_first { WRITE | IDS } else { 0 };
        thread.permitted & !allowed == 0 && (!thread.is_first || thread.uids[..3] == [0; 3])
    });
    let written = read_pipe(&path);
    assert!(written.contains("leaf_50"), "{written}");
    running.wait().check_success();
}

/// A profile is read with the right to read.
fn check_reading() {
    for by_sudo in [false, true] {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = dir.path().join("out.folded");
        let mut command = profiler(by_sudo);
        command.args(["render", "-", "-o"]).arg(&path).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_for_threads(child.id(), "threads that read", |thread| {
            let allowed = READ | if by_sudo || !thread.is_first { 0 } else { WRITE };
            thread.effective & !READ == 0
                && thread.permitted & !allowed == 0
                && (thread.uids == [CALLER; 4]) == by_sudo
                && thread.gains_nothing
        });
        child.stdin.take().unwrap().write_all(b"main;work 10\n").unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read_to_string(&path).unwrap(), "main;work 10\n");
        assert_eq!(fs::metadata(&path).unwrap().uid(), if by_sudo { CALLER } else { 0 });
    }
}

/// Privileges of a command in the profiler's environment.
fn privileges_of(mut command: Command) -> Vec<String> {
    let output = command.stderr(Stdio::null()).output().unwrap();
    let keys = ["Uid", "Gid", "Groups", "Cap", "NoNewPrivs"];
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
    lines.map(str::to_owned).collect()
}

#[test]
fn commands_and_private_files_are_as_without_sudo() {
    if !live() || !is_root() {
        return;
    }
    // Once with fewer capabilities, and with some that any user keeps through exec.
    let some: &[&str] =
        &["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw", "--bounding-set", "-sys_time"];
    for before in [&[][..], some] {
        for by_sudo in [false, true] {
            let start = |words: &[&str]| {
                let mut command = Command::new("setpriv");
                command.args(before).args(["--groups", "0,7"]).args(words).args(["cat", "/proc/self/status"]);
                if by_sudo {
                    command.env("SUDO_UID", CALLER.to_string()).env("SUDO_GID", CALLER.to_string());
                }
                privileges_of(command)
            };
            let direct = start(&[]);
            assert!(direct.len() >= 9, "{direct:?}");
            for source in sources() {
                let program = env!("CARGO_BIN_EXE_stackprof");
                let launched =
                    start(&[program, "--source", source, "--format", "folded", "-o", "/dev/null", "--"]);
                assert_eq!(launched, direct, "{source}");
            }
        }
    }
    check_private();
    check_ordinary_user();
}

/// The functions of a program readable only by its owner are named by a debug file with the same restriction,
/// which is read after the recording.
fn check_private() {
    let built = compile("shares", "shares_private", &["-g", "-Wl,--build-id=none"]);
    let dir = TempDir::new().unwrap();
    let (program, debug) = (dir.path().join("private"), dir.path().join("private.debug"));
    let objcopy = |arguments: &[&Path]| {
        let status = Command::new("objcopy").args(arguments).status().unwrap();
        assert!(status.success(), "objcopy {arguments:?}");
    };
    objcopy(&["--only-keep-debug".as_ref(), &built, &debug]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    objcopy(&["--strip-all".as_ref(), link.as_ref(), &built, &program]);
    for (path, mode) in [(&program, 0o700), (&debug, 0o600), (&dir.path().to_owned(), 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        chown(path, Some(OWNER), Some(OWNER)).unwrap();
    }
    let owner = OWNER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &owner, "--regid", &owner, "--clear-groups"]).arg(&program).arg("600");
    let mut target = Fixture::run(&mut command);
    target.line("ready");
    for (by_sudo, source) in
        [false, true].into_iter().flat_map(|by_sudo| sources().iter().map(move |s| (by_sudo, s)))
    {
        let recorded = || attach_by(profiler(by_sudo), target.pid(), &["--source", source]).interrupt();
        record_until(format!("names, {source}, by sudo: {by_sudo}"), recorded, |recorded| {
            recorded.shows(|stack| stack.has("recurse"))
        });
    }
}

/// Without privileges to drop, everything works as before.
fn check_ordinary_user() {
    let Some(somebody) = Somebody::new() else { return };
    let shares = somebody.fixture("shares");
    let command = somebody.run(&somebody.stackprof());
    let running = record_by(command, ["--source", "ptrace", "--", shares.to_str().unwrap(), "600"]);
    wait_for("the profiler to start", || {
        threads(running.pid()).iter().any(|thread| thread.name == "sampler")
    });
    wait_for_threads(running.pid(), "threads without privileges", |thread| {
        thread.permitted == 0 && !thread.gains_nothing && thread.uids == [CALLER; 4]
    });
    // It ends with its command.
    let command =
        || crate::families::members(running.pid()).last().copied().filter(|pid| *pid != running.pid());
    wait_for("the command", || command().is_some());
    let command = command().unwrap();
    running.wait_attached(command);
    wait_for_more_cpu_time(command, Duration::from_millis(20));
    kill("KILL", command);
    let recorded = running.wait();
    recorded.check(matches!(recorded.status.code(), Some(0 | 4)), "neither done nor empty");
}

/// Kernel functions are shown below their system call, and named as the kernel lists them, for any caller of
/// sudo.
#[test]
fn kernel_frames_are_named_below_their_system_call() {
    if !sampled() || !is_root() {
        return;
    }
    let words = ["if=/dev/zero", "of=/dev/null", "bs=1M", "count=2000", "status=none"];
    let in_kernel = |frame: &String| frame.ends_with("_[k]");
    let list = fs::read_to_string("/proc/kallsyms").expect("the kernel lists its symbols");
    let listed: std::collections::HashSet<&str> =
        list.lines().filter_map(|line| line.split_ascii_whitespace().nth(2)).collect();
    let is_listed = |frame: &String| {
        let name = frame.strip_suffix("_[k]").unwrap_or(frame);
        name == "[kernel]" || listed.contains(name.split(' ').next().unwrap_or_default())
    };
    for by_sudo in [false, true] {
        let recorded = || {
            let options = ["--source", "perf", "--hz", "997", "--", "dd"];
            let recorded = record_by(profiler(by_sudo), options.iter().chain(&words)).wait();
            recorded.check_none("code of the program below the kernel's", |stack| {
                !stack.frames.iter().skip_while(|frame| !in_kernel(frame)).all(in_kernel)
            });
            recorded.check_none("a name that the kernel does not list", |stack| {
                !stack.frames.iter().filter(|frame| in_kernel(frame)).all(is_listed)
            });
            recorded
        };
        record_until("functions of the kernel", recorded, |recorded| {
            recorded.shows(|stack| in_kernel(&stack.leaf().to_owned()) && stack.leaf() != "[kernel]_[k]")
        });
    }
    let without = || -> Recorded {
        let recorded =
            launch(&["--source", "perf", "--hz", "997", "--no-kernel"], "/bin/dd".as_ref(), &words);
        recorded.check_none("frames of the kernel", |stack| stack.frames.iter().any(in_kernel));
        recorded
    };
    record_until("its time", without, |recorded| recorded.total() > 0);
}
