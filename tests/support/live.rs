//! Helpers of the live tests: fixtures compiled from C, started, controlled and watched through /proc;
//! stackprof run on them; its outputs read back.
//!
//! Every process has a guard: a failing test leaves none behind. A failed check prints the command, its
//! output, its stacks and its statistics.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tempfile::TempDir;

#[path = "fixture_cache.rs"]
mod fixture_cache;
#[path = "programs.rs"]
mod programs;
#[cfg(target_arch = "x86_64")] // its user's architecture
#[path = "random.rs"]
mod random;
#[path = "recorded.rs"]
mod recorded;
#[path = "rights.rs"]
mod rights;
#[path = "rounds.rs"]
mod rounds;
#[path = "skip.rs"]
mod skip;

pub(crate) use fixture_cache::built_once;
pub(crate) use programs::{copy_program, kill, write_script};
#[cfg(target_arch = "x86_64")]
pub(crate) use random::Random;
pub(crate) use recorded::{Recorded, Stack};
pub(crate) use rights::{Somebody, is_root, live, sampled, sources};
pub(crate) use rounds::rounds;
pub(crate) use skip::{installed, not_here, skip, skip_without};

/// Longer than anything here takes, even on a busy machine. A passing test never waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Sleeps of the sampling thread that show that it records: it sleeps before each tick, and hardly ever
/// before the first.
const SLEEPS_OF_A_RECORDING: u64 = 5;

/// Flags of every fixture: frame pointers, in leaf functions too (some compilers omit them), and no tail
/// calls.
const FLAGS: [&str; 7] = [
    "-O1",
    "-fno-omit-frame-pointer",
    "-mno-omit-leaf-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
    "-Wall",
    "-Wextra",
];

/// Compiles `tests/fixtures/NAME.c` with the usual flags.
pub(crate) fn fixture(name: &str) -> PathBuf {
    compile(name, name, &[])
}

/// Compiles `tests/fixtures/SOURCE.c` to the program or library `name`, once per run.
pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let all: Vec<&str> = FLAGS.iter().chain(flags).copied().collect();
    try_compile(source, name, &all).unwrap_or_else(|error| panic!("{error}"))
}

/// [`compile`] with only the given flags; returns the compiler's error.
pub(crate) fn try_compile(source: &str, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    try_compile_by(&compiler, source, name, flags)
}

/// [`try_compile`] with another compiler.
pub(crate) fn try_compile_by(
    compiler: &OsStr,
    source: &str,
    name: &str,
    flags: &[&str],
) -> Result<PathBuf, String> {
    built_once(name, |fresh| run_compiler(compiler, source, fresh, flags))
}

fn run_compiler(compiler: &OsStr, source: &str, into: &Path, flags: &[&str]) -> Result<(), String> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut cc = Command::new(compiler);
    cc.arg("-o").arg(into).arg(fixtures.join(format!("{source}.c"))).args(flags);
    if !flags.contains(&"-nostdlib") {
        cc.arg("-ldl");
    }
    let output =
        cc.output().map_err(|error| format!("cannot run {cc:?}: {error}; a C compiler is needed"))?;
    if !output.status.success() {
        return Err(format!("{cc:?} failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(())
}

/// Waits until `condition` holds; panics with `what` if it never does.
pub(crate) fn wait_for(what: impl Display, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A named pipe.
pub(crate) fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A line of /proc/PID/status; `None` if the process is gone.
pub(crate) fn proc_status(pid: u32, key: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned()))
}

/// The tracer of a process; 0 for none.
pub(crate) fn tracer_of(pid: u32) -> u32 {
    proc_status(pid, "TracerPid").and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The state letters of all threads of a process.
pub(crate) fn states(pid: u32) -> String {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
}

/// The thread ids of a process.
pub(crate) fn tids(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The sampling thread of the profiler, by its name.
fn sampler_of(profiler: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{profiler}/task")).ok()?.flatten();
    let named = |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "sampler\n");
    let sampler = threads.map(|entry| entry.path()).find(|path| named(path))?;
    sampler.file_name()?.to_str()?.parse().ok()
}

/// Sleeps of the sampling thread of a profiler so far; `None` if there is no such thread.
fn sleeps_of_sampler(profiler: u32) -> Option<u64> {
    let path = format!("/proc/{profiler}/task/{}/status", sampler_of(profiler)?);
    let status = fs::read_to_string(path).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// Waits until a recording profiler has polled its target several more times, or has exited.
pub(crate) fn wait_for_ticks(what: impl Display, profiler: u32) {
    // A failed one is a zombie here, and reports why later.
    let ended = || proc_status(profiler, "State").is_none_or(|state| state.starts_with('Z'));
    let before = sleeps_of_sampler(profiler).unwrap_or(0);
    // On a busy machine threads sleep before the program is ready to be interrupted, too (proc_pid_status(5)).
    let caught = || u64::from_str_radix(&proc_status(profiler, "SigCgt")?, 16).ok();
    let is_ready = || caught().is_some_and(|signals| signals & 1 << (libc::SIGINT - 1) != 0);
    wait_for(format!("{what} to be recorded"), || {
        let sleeps = sleeps_of_sampler(profiler);
        ended() || is_ready() && sleeps.is_some_and(|now| now >= before + SLEEPS_OF_A_RECORDING)
    });
}

/// CPU time of the threads of a process, without exited ones; `None` if it is gone.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let schedstats = tasks.filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    let cpu_ns = |text: String| text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos);
    Some(schedstats.filter_map(cpu_ns).sum())
}

/// Waits until a process has used this much CPU time since its start.
pub(crate) fn wait_for_cpu_time(pid: u32, least: Duration) {
    wait_for(format!("pid {pid} to use {least:?} of CPU time"), || {
        cpu_time(pid).is_none_or(|used| used >= least)
    });
}

/// Waits until a process has used this much more CPU time.
pub(crate) fn wait_for_more_cpu_time(pid: u32, more: Duration) {
    // A missing process is not waited for.
    let used = cpu_time(pid).unwrap_or_default();
    wait_for_cpu_time(pid, used + more);
}

/// Checks that the process is not traced, and none of its threads is stopped.
pub(crate) fn assert_untouched(pid: u32, when: impl Display) {
    let begun = Instant::now();
    // The kernel releases it when the tracer exits, which may take a moment.
    while tracer_of(pid) != 0 || states(pid).contains(['t', 'T']) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{when}: tracer {} and thread states {} of pid {pid}",
            tracer_of(pid),
            states(pid)
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// A running fixture, killed when dropped.
pub(crate) struct Fixture {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Fixture {
    /// Starts a fixture by name.
    pub(crate) fn start<A: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Fixture {
        let mut command = Command::new(fixture(name));
        command.args(arguments);
        Fixture::run(&mut command)
    }

    /// Starts a command with the output of a fixture.
    pub(crate) fn run(command: &mut Command) -> Fixture {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Fixture { child, stdin, lines, said: Vec::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its next line of output; empty at the end.
    pub(crate) fn next_line(&mut self) -> String {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_default();
        self.said.push(line.clone());
        line
    }

    /// The rest of the next line that begins with `word`; skips lines before it.
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("waited for a line `{word}`; said so far: {:?}", self.said)
            };
            self.said.push(line.clone());
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Writes a line to it.
    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is still open");
        writeln!(stdin, "{line}").unwrap_or_else(|error| panic!("{error}; said so far: {:?}", self.said));
    }

    /// Starts its measured work.
    pub(crate) fn go(&mut self) {
        self.tell("go");
    }

    /// Waits until the work is done; returns the lines printed since the last wait.
    pub(crate) fn done(&mut self) -> Vec<String> {
        let before = self.said.len();
        self.line("done");
        self.said[before..self.said.len() - 1].to_vec()
    }

    /// Closes its input and waits for its exit; returns its status and the rest of its output.
    pub(crate) fn finish(mut self) -> (ExitStatus, Vec<String>) {
        drop(self.stdin.take());
        let mut said = std::mem::take(&mut self.said);
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            said.push(line);
        }
        wait_for("the fixture's end", || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap(), said)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child that is killed on drop.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The numbers of a line such as `events 10 failed 0`, by the preceding word.
pub(crate) fn numbers(line: &str) -> HashMap<String, u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.windows(2).filter_map(|pair| Some((pair[0].to_owned(), pair[1].parse().ok()?)));
    pairs.collect()
}

/// A running stackprof, killed on drop.
pub(crate) struct Running {
    child: Child,
    command: String,
    dir: TempDir,
}

/// `stackprof ARGS` with folded, SVG and statistics outputs.
pub(crate) fn record<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Running {
    record_by(stackprof(), arguments)
}

/// Whether a process has open perf events.
pub(crate) fn has_events(pid: u32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let leads_to = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
    open.flatten().filter_map(leads_to).any(|path| path.as_os_str() == "anon_inode:[perf_event]")
}

/// [`record`] through another command that ends in the profiler's path.
pub(crate) fn record_by<A: AsRef<OsStr>>(
    mut command: Command,
    arguments: impl IntoIterator<Item = A>,
) -> Running {
    let dir = TempDir::new().unwrap();
    // The command may run as any user and writes here.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (option, file) in [("-o", "out.folded"), ("-o", "out.svg"), ("--stats", "out.json")] {
        command.arg(option).arg(dir.path().join(file));
    }
    // With ptrace unless given otherwise. A stub has its own source.
    if !command.get_args().any(|argument| argument == "--gdb") {
        command.args(["--source", "ptrace"]);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    Running { child, command: format!("{command:?}"), dir }
}

/// Records process `pid` with more options, and returns once it is attached.
pub(crate) fn attach(pid: u32, options: &[&str]) -> Running {
    let pid_text = pid.to_string();
    let running = record(["--pid", &pid_text].iter().chain(options));
    running.wait_attached(pid);
    running
}

/// Records until a recording has the expected content: on a busy machine the profiler may get no CPU while a
/// short target works.
#[track_caller]
pub(crate) fn record_until(
    what: impl Display,
    mut record: impl FnMut() -> Recorded,
    shows: impl Fn(&Recorded) -> bool,
) -> Recorded {
    let begun = Instant::now();
    loop {
        let recorded = record();
        if !recorded.is_empty() {
            recorded.check_success();
            if shows(&recorded) {
                return recorded;
            }
        }
        recorded.check(begun.elapsed() < PATIENCE, format!("no recording shows {what}"));
    }
}

/// Records a command until its end.
pub(crate) fn launch<A: AsRef<OsStr>>(options: &[&str], program: &Path, arguments: &[A]) -> Recorded {
    let options = options.iter().map(|option| OsStr::new(*option)).chain(["--".as_ref(), program.as_ref()]);
    record(options.chain(arguments.iter().map(AsRef::as_ref))).wait()
}

/// The program under test with default signal dispositions: the shell or nohup(1) that started the tests may
/// have had some ignored.
#[allow(unsafe_code, reason = "a disposition of signals has no safe call")]
pub(crate) fn stackprof() -> Command {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is set; the tests themselves set none.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Command::new(env!("CARGO_BIN_EXE_stackprof"))
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Directory of the outputs.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until it traces `pid` and records.
    pub(crate) fn wait_attached(&self, pid: u32) {
        let profiler = self.pid();
        // A failed one is a zombie here, and reports why later.
        let ended = || proc_status(profiler, "State").is_none_or(|state| state.starts_with('Z'));
        let samples = || tracer_of(pid) != 0 || has_events(profiler);
        wait_for(format!("{} to attach", self.command), || samples() || ended());
        wait_for_ticks(&self.command, profiler);
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGINT, as Ctrl-C does; returns its outputs.
    pub(crate) fn interrupt(self) -> Recorded {
        kill("INT", self.pid());
        self.wait()
    }

    /// Waits for the exit; returns its outputs.
    pub(crate) fn wait(mut self) -> Recorded {
        let mut said = String::new();
        // Read concurrently: a command may write more than a pipe holds.
        let mut out = self.child.stdout.take().unwrap();
        let stdout = thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).map(|_| text)
        });
        let begun = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "{} does not end", self.command);
            thread::sleep(Duration::from_millis(2));
        }
        let status = self.child.wait().unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let stdout = stdout.join().unwrap().unwrap();
        let read = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        let folded = read("out.folded");
        let parse = |line: &str| {
            let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not folded: {line}"));
            Stack { frames: stack.split(';').map(str::to_owned).collect(), count: count.parse().unwrap() }
        };
        Recorded {
            command: self.command.clone(),
            status,
            stderr: said,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stacks: folded.lines().map(parse).collect(),
            folded,
            svg: read("out.svg"),
            files: names_in(self.dir()),
            stats: serde_json::from_str(&read("out.json")).unwrap_or_default(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
