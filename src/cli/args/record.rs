//! The options of `stackprof`, `record` and `demo`, parsed into a [`RecordOptions`], or one usage error. `Source`
//! is where samples come from; `ProcessArguments` select the processes.

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::heap::Heap;
use super::open::{ViewerOptions, viewer_options};
use super::values::{
    Destination, GraphOptions, Output, SymbolOptions, Verbosity, check_distinct, invalid_value, number,
    outputs, percent, usage, verbosity,
};
use crate::cli::flags::{LaunchFlags, RecordingFlags, ScopeFlags, SeveralFlags, SourceFlags, ViewerFlags};
use crate::cli::outputs::Format;
use crate::cli::system;
use crate::error::{Error, ErrorKind, Result};
use crate::recording::timeline::DEFAULT_MEMORY_BYTES;
use crate::sources::SamplingMethod;
use crate::sources::gdb::StubAddress;
use crate::walk::UnwindMethod;

/// Default of `--hz`: a prime, so that ticks do not align with work that happens 100 or 1000 times
/// a second.
pub const HZ_DEFAULT: u32 = 997;
/// Highest `--hz`.
pub const HZ_MAX: u32 = 10_000;
/// Default of `--max-depth`.
pub const DEPTH_DEFAULT: usize = 1024;
/// Highest `--max-depth`.
pub const DEPTH_MAX: usize = 65_536;
/// Longest `--duration` in seconds: 31 years, which fit into 64 bits of nanoseconds.
pub const DURATION_MAX_S: f64 = 1e9;
/// Default of `--max-stop`, percent.
pub(super) const MAX_STOP_DEFAULT_PERCENT: f64 = 2.0;
/// Default of `--max-stop` behind a stub, percent: each stop takes several round trips.
const MAX_STOP_STUB_PERCENT: f64 = 5.0;

/// How a command is launched and ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The user to run it as; `None` is the user of stackprof.
    pub run_as: Option<OsString>,
    /// It is ended when the recording ends.
    pub kill_after: bool,
}

/// A parsed recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordOptions {
    /// The source to record.
    pub source: Source,
    /// How it is launched and ended.
    pub launch: LaunchOptions,
    /// Heap options; its allocations are recorded instead of CPU time.
    pub heap: Option<Heap>,
    /// What is sampled, and how.
    pub sampling: SamplingOptions,
    /// What is written.
    pub output: OutputOptions,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// What is sampled, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Ticks per second, 1 to [`HZ_MAX`].
    pub hz: u32,
    /// When to stop; `None` is at the end of the target or at Ctrl-C.
    pub duration: Option<Duration>,
    /// Also record waiting threads.
    pub idle: bool,
    /// Record only waiting threads.
    pub off_cpu: bool,
    /// Source of the samples.
    pub method: SamplingMethod,
    /// Keep kernel frames, if the source has them.
    pub kernel: bool,
    /// Also record child processes.
    pub children: bool,
    /// Child processes were requested, so a source that does not see them is refused.
    pub children_needed: bool,
    /// One subtree per thread.
    pub threads: bool,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Frames kept per stack, 1 to [`DEPTH_MAX`].
    pub max_depth: usize,
    /// Memory for the times of samples, bytes; 0 keeps no times.
    pub timeline_bytes: usize,
    /// Share of its time that the target may be stopped, percent; 100 is no limit.
    pub max_stop_percent: f64,
    /// Seed of the tick jitter; `None` is a random one.
    pub seed: Option<u64>,
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputOptions {
    /// Requested outputs; empty means one named after the process.
    pub outputs: Vec<Output>,
    /// Format of the default output.
    pub default_format: Format,
    /// Processes with the same name are shown separately.
    pub per_process: bool,
    /// Symbol options.
    pub symbol_options: SymbolOptions,
    /// One pprof sample per time.
    pub pprof_timestamps: bool,
    /// Stack-reversed flame graph.
    pub reverse: bool,
    /// How flame graphs look.
    pub graph: GraphOptions,
    /// Directories of source files for pages; `None` is no source, empty the working directory.
    pub source_directories: Option<Vec<PathBuf>>,
    /// Also show it in a viewer.
    pub open: Option<ViewerOptions>,
    /// Destination of the statistics.
    pub stats: Option<Destination>,
}

/// Checks the launch options: they need a command.
pub(super) fn launch_options(source: &Source, flags: LaunchFlags) -> Result<LaunchOptions> {
    let LaunchFlags { run_as, kill_after } = flags;
    let given = [
        (run_as.is_some(), "--as is for a command that stackprof runs: sudo stackprof --as USER -- ./prog"),
        (
            kill_after,
            "--kill-after ends a command that stackprof runs: stackprof --kill-after -d 10 -- ./prog",
        ),
    ];
    match given.iter().find(|(given, _)| *given && !matches!(source, Source::Launch(_))) {
        Some((_, why)) => Err(Error::new(ErrorKind::Usage, *why)),
        None => Ok(LaunchOptions { run_as, kill_after }),
    }
}

/// Parses the options of a recording.
pub(super) fn recording(
    source: Source,
    launch: LaunchOptions,
    scope: &ScopeFlags,
    flags: RecordingFlags,
) -> Result<RecordOptions> {
    let format =
        flags.format.as_deref().map(|name| Format::from_name(&name.to_string_lossy())).transpose()?;
    let outputs = outputs(&flags.output, format)?;
    let stats = flags.stats.clone().map(Destination::from);
    check_distinct(outputs.iter().map(|output| &output.to).chain(&stats))?;
    let hz = match &flags.hz {
        Some(hz) => number("--hz", hz, &format!("a whole number from 1 to {HZ_MAX}"), |hz| {
            (1..=HZ_MAX).contains(&hz)
        })?,
        None => HZ_DEFAULT,
    };
    let max_stop_percent = match &flags.max_stop {
        Some(share) => percent("--max-stop", share, "a percentage above 0, up to 100", |share| {
            share > 0.0 && share <= 100.0
        })?,
        None if matches!(source, Source::Gdb(_)) => MAX_STOP_STUB_PERCENT,
        None => MAX_STOP_DEFAULT_PERCENT,
    };
    let graph = GraphOptions::new(flags.title.clone(), flags.min_width.as_deref(), &flags.look)?;
    let (children, children_needed) = children(&source, scope.children, scope.no_children);
    let method = method(flags.source.as_deref())?;
    check_combinations(&source, method, scope, &flags)?;
    let seed = |seed| number("--seed", seed, "a whole number", |_: u64| true);
    let sampling = SamplingOptions {
        hz,
        duration: flags.duration.as_deref().map(duration).transpose()?,
        idle: flags.idle,
        off_cpu: scope.off_cpu,
        method,
        kernel: flags.kernel || !flags.no_kernel,
        children,
        children_needed,
        threads: flags.threads,
        unwind: unwind(flags.unwind.as_deref(), &source)?,
        max_depth: depth(flags.max_depth.as_deref(), DEPTH_MAX)?,
        timeline_bytes: match flags.no_timeline {
            true => 0,
            false => flags.timeline_memory.as_deref().map_or(Ok(DEFAULT_MEMORY_BYTES), timeline_memory)?,
        },
        max_stop_percent,
        seed: flags.seed.as_deref().map(seed).transpose()?,
    };
    let verbosity = verbosity(&flags.common)?;
    let output = OutputOptions {
        outputs,
        default_format: format.unwrap_or(Format::Svg),
        per_process: scope.per_process,
        symbol_options: SymbolOptions::from(&flags.symbol_options),
        pprof_timestamps: flags.pprof_timestamps,
        reverse: flags.reverse,
        graph,
        source_directories: (!flags.no_source).then_some(flags.source_dir),
        open: opened(flags.open, &flags.viewer)?,
        stats,
    };
    Ok(RecordOptions { source, launch, heap: None, sampling, output, verbosity })
}

/// Refuses options that conflict with each other or with the source.
fn check_combinations(
    source: &Source,
    method: SamplingMethod,
    scope: &ScopeFlags,
    flags: &RecordingFlags,
) -> Result<()> {
    if matches!(source, Source::Gdb(_)) {
        let given = [
            ("--source", flags.source.is_some()),
            ("--children", scope.children),
            ("--off-cpu", scope.off_cpu),
        ];
        if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
            let why = format!("{option} is for processes of this system; leave it out with --gdb");
            return Err(Error::new(ErrorKind::Usage, why));
        }
    }
    check_off_cpu(source, method, flags.idle, scope.off_cpu)?;
    if method == SamplingMethod::Ptrace
        && matches!(source, Source::Several(several) if several.pids.is_empty())
    {
        // Only the kernel can record a selection of the machine's processes.
        let why = "--source ptrace records a command, or processes by --pid; leave it out for others";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    if flags.no_timeline && flags.pprof_timestamps {
        let why = "--pprof-timestamps writes the times that --no-timeline leaves out; give one of them";
        return Err(Error::new(ErrorKind::Usage, why));
    }
    Ok(())
}

/// How the finished profile is shown.
fn opened(open: bool, flags: &ViewerFlags) -> Result<Option<ViewerOptions>> {
    let given = [
        ("--viewer", flags.viewer.is_some()),
        ("--no-browser", flags.no_browser),
        ("--timeout", flags.timeout.is_some()),
    ];
    match given.iter().find(|(_, given)| *given && !open) {
        Some((option, _)) => {
            let why = format!("{option} is for a profile that is opened; add --open");
            Err(Error::new(ErrorKind::Usage, why))
        }
        None => open.then(|| viewer_options(flags)).transpose(),
    }
}

/// Whether child processes are recorded, and whether they must be.
fn children(source: &Source, wanted: bool, unwanted: bool) -> (bool, bool) {
    match source {
        Source::Launch(_) => (wanted || !unwanted, wanted),
        Source::Pid(_) | Source::Several(_) => (wanted, wanted),
        Source::Gdb(_) | Source::Demo | Source::Sim { .. } => (false, false),
    }
}

/// Source of the samples.
fn method(text: Option<&OsStr>) -> Result<SamplingMethod> {
    Ok(match text.map(|text| (text, text.to_str())) {
        None | Some((_, Some("auto"))) => SamplingMethod::Auto,
        Some((_, Some("perf"))) => SamplingMethod::Perf,
        Some((_, Some("ptrace"))) => SamplingMethod::Ptrace,
        Some((other, _)) => return Err(invalid_value("--source", other, "auto, perf or ptrace")),
    })
}

/// Refuses `--off-cpu` if the source cannot record waits alone.
fn check_off_cpu(source: &Source, method: SamplingMethod, idle: bool, off_cpu: bool) -> Result<()> {
    let why = if !off_cpu {
        return Ok(());
    } else if idle {
        "--off-cpu records waits alone, --idle beside CPU time; give one of them"
    } else if method == SamplingMethod::Ptrace {
        "--off-cpu needs the kernel's samples: leave out --source ptrace, which has --idle"
    } else if matches!(source, Source::Sim { .. }) {
        "--off-cpu: a simulated process has no waits"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Usage, why))
}

/// Frames kept per stack, at most `most`.
pub(super) fn depth(text: Option<&OsStr>, most: usize) -> Result<usize> {
    let expected = format!("a whole number from 1 to {most}");
    text.map_or(Ok(DEPTH_DEFAULT), |text| {
        number("--max-depth", text, &expected, |depth| (1..=most).contains(&depth))
    })
}

/// Bytes of `--timeline-memory`.
fn timeline_memory(text: &OsStr) -> Result<usize> {
    let expected = "a whole number from 64K to 64G, such as 64M or, for 1.5M, 1536K";
    let bytes = size("--timeline-memory", text, expected, 64 << 10..=64 << 30)?;
    usize::try_from(bytes).map_err(|_| invalid_value("--timeline-memory", text, expected))
}

/// Bytes: a whole number with an optional suffix K, M or G (powers of 1024).
pub(super) fn size(option: &str, text: &OsStr, expected: &str, allowed: RangeInclusive<u64>) -> Result<u64> {
    let refused = || invalid_value(option, text, expected);
    let written = text.to_str().ok_or_else(refused)?;
    let digits = written.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit_bits = match &written[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KB" | "KiB" => 10,
        "M" | "m" | "MB" | "MiB" => 20,
        "G" | "g" | "GB" | "GiB" => 30,
        _ => return Err(refused()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << unit_bits));
    bytes.filter(|bytes| allowed.contains(bytes)).ok_or_else(refused)
}

fn duration(text: &OsStr) -> Result<Duration> {
    seconds("--duration", text)
}

/// A time in seconds.
pub(super) fn seconds(option: &str, text: &OsStr) -> Result<Duration> {
    let expected = "seconds, more than 0 (10 or 0.5)";
    let seconds = number(option, text, expected, |s: f64| s > 0.0 && s <= DURATION_MAX_S)?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| invalid_value(option, text, expected))?;
    // Less than a nanosecond.
    if duration.is_zero() { Err(invalid_value(option, text, expected)) } else { Ok(duration) }
}

// ---- The source of samples, parsed from options.

/// Source of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running process.
    Pid(u32),
    /// Several running processes, a selection of the machine's, or all of them.
    Several(ProcessArguments),
    /// A command to launch: program and arguments, never empty.
    Launch(Vec<OsString>),
    /// A target behind a stub of the gdb remote protocol.
    Gdb(Stub),
    /// The built-in workload.
    Demo,
    /// A simulated process.
    Sim {
        /// Seed that replays a run.
        seed: u64,
    },
}

/// A stub, and the program that runs behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Address of the stub.
    pub place: StubAddress,
    /// The program's file, if the stub does not name it.
    pub exec: Option<PathBuf>,
}

/// Finds the only process with a name. Passed in by the caller, because this module does no I/O.
pub type FindProcess<'a> = &'a dyn Fn(&str) -> Result<u32>;

/// The source, if it may be more than one process.
pub(super) fn several(
    flags: &SourceFlags,
    many: SeveralFlags,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    let SeveralFlags { all, cgroup, container, user } = many;
    let chosen = [
        ("-a", all),
        ("--cgroup", cgroup.is_some()),
        ("--container", container.is_some()),
        ("--user", user.is_some()),
    ];
    let mut chosen = chosen.into_iter().filter_map(|(name, given)| given.then_some(name));
    let Some(option) = chosen.next() else {
        if flags.pid.len() < 2 {
            return source(flags, launch, find);
        }
        if launch.is_some() || flags.target.is_some() || flags.gdb.is_some() {
            return Err(usage("give processes by --pid, or one as a command after --"));
        }
        let mut pids = flags.pid.iter().map(|pid| process_id(pid, find)).collect::<Result<Vec<u32>>>()?;
        pids.sort_unstable();
        pids.dedup();
        return Ok(match pids[..] {
            [pid] => Source::Pid(pid),
            _ => Source::Several(ProcessArguments { pids, ..ProcessArguments::default() }),
        });
    };
    if let Some(other) = chosen.next() {
        return Err(usage(format!("{option} and {other} both say which processes; give one of them")));
    }
    if flags.gdb.is_some() {
        return Err(usage(format!("{option} and --gdb both say what is recorded; give one of them")));
    }
    if !flags.pid.is_empty() || flags.target.is_some() {
        return Err(usage(format!("{option} and --pid both say which processes; give one of them")));
    }
    if let Some(command) = launch {
        let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        return Err(usage(format!(
            "{option} records what runs; without it, stackprof -- {} records the command and what it starts",
            command.join(" ")
        )));
    }
    Ok(Source::Several(ProcessArguments { pids: Vec::new(), all, cgroup, container, user }))
}

/// A process by its id or, if the text is not a number, by its name.
pub(super) fn process_id(text: &OsStr, find: FindProcess<'_>) -> Result<u32> {
    match text.to_str() {
        Some(name) if !name.is_empty() && !is_number(name) => find(name),
        _ => number("--pid", text, "a process id, 1 or more, or a name (ps -e shows them)", |pid| pid >= 1),
    }
}

/// Whether a text is meant as a number, valid or not.
pub(super) fn is_number(text: &str) -> bool {
    text.starts_with(['-', '+']) || text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ' '))
}

pub(super) fn source(
    flags: &SourceFlags,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    const EXAMPLES: &str = "stackprof --pid 4242 attaches, stackprof -- ./prog arg launches";
    if let Some(place) = &flags.gdb {
        return stub(place, flags, launch);
    }
    if flags.exec.is_some() {
        return Err(usage("--exec names the program behind a stub; give the stub with --gdb HOST:PORT"));
    }
    let given = flags.pid.len() + usize::from(launch.is_some()) + usize::from(flags.target.is_some());
    if given > 1 {
        return Err(usage(format!("give one process, by --pid or as a command after --: {EXAMPLES}")));
    }
    if let Some(pid) = flags.pid.first() {
        return Ok(Source::Pid(process_id(pid, find)?));
    }
    if let Some(command) = launch {
        if command.is_empty() {
            return Err(usage("no command after --: stackprof -- ./prog arg"));
        }
        return Ok(Source::Launch(command));
    }
    if let Some(target) = &flags.target {
        let seed = target.to_str().and_then(|target| target.strip_prefix("sim:")?.parse().ok());
        return seed
            .map(|seed| Source::Sim { seed })
            .ok_or_else(|| invalid_value("--target", target, "sim:SEED"));
    }
    Err(usage(format!("say what to profile: {EXAMPLES} (try 'stackprof --help')")))
}

pub(super) fn stub(place: &OsStr, flags: &SourceFlags, launch: Option<Vec<OsString>>) -> Result<Source> {
    if !flags.pid.is_empty() || flags.target.is_some() {
        return Err(usage("--gdb and --pid both say which process; give one of them"));
    }
    if let Some(command) = launch {
        let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let why = "--gdb records what its stub runs; a command that is a stub goes into it";
        return Err(usage(format!("{why}: --gdb '|{}'", command.join(" "))));
    }
    let expected = "HOST:PORT, or '|COMMAND' for a stub on its standard input and output";
    let parsed =
        place.to_str().and_then(StubAddress::parse).ok_or_else(|| invalid_value("--gdb", place, expected))?;
    Ok(Source::Gdb(Stub { place: parsed, exec: flags.exec.clone() }))
}

/// Unwind method for a source.
pub(super) fn unwind(text: Option<&OsStr>, of: &Source) -> Result<UnwindMethod> {
    let Some(text) = text else { return Ok(UnwindMethod::Auto) };
    let named = UnwindMethod::ALL.iter().find(|(_, name)| text.to_str() == Some(*name));
    let how = named.map(|(how, _)| *how).ok_or_else(|| {
        invalid_value("--unwind", text, "auto, fp or cfi; for 32-bit Arm also exidx, code or scan")
    })?;
    // Elsewhere, Arm processors are reached only through stubs.
    if how.is_of_arm() && !system::RUNS_ARM && !matches!(of, Source::Gdb(_)) {
        let text = text.display();
        return Err(usage(format!("--unwind {text} is for 32-bit Arm behind --gdb; leave it out here")));
    }
    Ok(how)
}

// ---- Selection of processes by options.

/// The processes to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessArguments {
    /// By process id.
    pub pids: Vec<u32>,
    /// All processes.
    pub all: bool,
    /// Those of a control group.
    pub cgroup: Option<OsString>,
    /// Those of a container, by the beginning of its id.
    pub container: Option<OsString>,
    /// Those of a user, by name or number.
    pub user: Option<OsString>,
}
