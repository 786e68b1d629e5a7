//! The options of `stackprof`, `record` and `demo`: groups of options as clap parses them, which are the request
//! ([`RecordOptions`]), and the rules for their combinations. `Source` is where samples come from.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{TypedValueParser, ValueHint};
use clap::{ArgAction, Args, Parser};

use super::heap::Heap;
use super::open::ViewerOptions;
use super::values::{
    Destination, Output, Stop, Verbosity, check, check_distinct, destination, expected, joined, number,
    outputs, parse_flags, percentage, seconds, seed, size, usage, value, whole,
};
use crate::binary::Files;
use crate::cli::outputs::Format;
use crate::cli::system;
use crate::error::{Error, Result};
use crate::flamegraph::{Colors, Graph};
use crate::recording::timeline::DEFAULT_MEMORY_BYTES;
use crate::sources::gdb::StubAddress;
use crate::sources::{SamplingMethod, swift_demangle};
use crate::symbol::{self, Style};
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
/// Default of `--max-stop`, percent; and behind a stub, where each stop takes several round trips.
const MAX_STOP_PERCENT: [f64; 2] = [2.0, 5.0];
/// Default of `--min-width`, percent.
const MIN_WIDTH_PERCENT: f64 = 0.01;

const ABOUT: &str = "A native sampling profiler: attach to a running program, or start one,
and get a flame graph of where its CPU time goes.";

const USAGE: &str = "stackprof [record] --pid N [OPTIONS]
       stackprof [record] [OPTIONS] -- COMMAND [ARGS...]
       stackprof [record] -a [OPTIONS]
       stackprof [record] --gdb HOST:PORT [--exec FILE] [OPTIONS]
       stackprof heap [OPTIONS] -- COMMAND [ARGS...]
       stackprof demo [OPTIONS]
       stackprof dump WHAT (--pid N | --gdb HOST:PORT)
       stackprof render PROFILE... -o FILE
       stackprof open PROFILE
       stackprof diff BASE NEW [-o FILE]
       stackprof gate --base FILE... --new FILE...
       stackprof completions SHELL";

/// Short enough to be read whole, and each line works when typed.
const EXAMPLES: &str = "Examples:
  stackprof --pid 4242                  record until Ctrl-C, write a flame graph
  sudo stackprof --pid redis-server     a process of another user, by its name
  stackprof -- ./prog arg               start a program and record all of it
  stackprof -d 10 -o a.svg -o a.folded --pid 4242     10 s, two outputs
  stackprof -o a.pb.gz -- ./prog        keep it; go tool pprof reads it
  sudo stackprof -a -d 10               the whole machine for ten seconds
  stackprof render a.pb.gz -o a.svg     turn a saved profile into a flame graph
  stackprof demo                        see a profile without a program at hand

Commands:
  record       record a profile (the default, its name can be left out)
  heap         record who allocates the memory of a command, and never frees it
  demo         profile a small built-in workload
  dump         show threads, images, symbols or stacks of a process
  render       turn saved profiles into another format, merge and filter them
  open         look at a saved profile in a viewer: Firefox Profiler, speedscope
  diff         show what changed between two profiles
  gate         fail when something got slower, for CI
  completions  print a shell's completion script
  help         this text, or `stackprof help dump`

Exit codes: 0 done, 1 error, 2 wrong usage, 3 gate: something got slower,
            4 nothing was sampled or no data to compare";

/// `stackprof [record] ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof",
    about = ABOUT,
    override_usage = USAGE,
    before_help = EXAMPLES
)]
pub(super) struct RecordFlags {
    #[command(flatten)]
    source: SourceFlags,
    #[command(flatten)]
    several: ProcessArguments,
    #[command(flatten)]
    launch: LaunchOptions,
    #[command(flatten)]
    recording: RecordingOptions,
    #[command(flatten)]
    scope: ScopeOptions,
    /// Words before `--` that are not options: always a mistake, kept for the message.
    #[arg(hide = true, trailing_var_arg = true)]
    stray: Vec<OsString>,
}

/// `stackprof demo ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof demo",
    about = "Record a small built-in program, to see a profile without one of your own.",
    override_usage = "stackprof demo [OPTIONS]",
    before_help = "It runs for 3 seconds on two threads, and four of its functions use 50, 30, 15
and 5 % of the CPU time. The flame graph is stackprof-demo.svg unless -o names
another output: open it in a browser.

Examples:
  stackprof demo
  stackprof demo --threads -o demo.svg          one subtree per thread
  stackprof demo -o demo.pb.gz                  for go tool pprof
  stackprof render demo.pb.gz --top             its hottest functions
",
    mut_arg("output", |arg| arg.help(
        "Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt \
         .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: \
         stackprof-demo.svg]"
    )),
    mut_arg("duration", |arg| arg.help("Stop after this many seconds (0.5 works) [default: 3]"))
)]
pub(super) struct DemoFlags {
    #[command(flatten)]
    recording: RecordingOptions,
    #[arg(hide = true, trailing_var_arg = true)]
    stray: Vec<OsString>,
}

/// Which process.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Process")]
pub(super) struct SourceFlags {
    /// Process to attach to, by id or name; a recording may have several
    #[arg(short, long, value_name = "PID|NAME", action = ArgAction::Append, allow_hyphen_values = true)]
    #[arg(value_parser = process())]
    pub(super) pid: Vec<ProcessName>,
    /// Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver,
    /// lldb-server): HOST:PORT, or '|COMMAND' for a stub on its standard input and
    /// output
    #[arg(long, value_name = "STUB", value_parser = expected(STUB, StubAddress::parse))]
    pub(super) gdb: Option<StubAddress>,
    /// With --gdb: the program's file, if the stub does not name it
    #[arg(long, value_name = "FILE")]
    pub(super) exec: Option<PathBuf>,
    /// `sim:SEED`, a simulated process: for tests of the profiler itself.
    #[arg(long, hide = true, value_name = "sim:SEED")]
    #[arg(value_parser = expected("sim:SEED", |text| text.strip_prefix("sim:")?.parse::<u64>().ok()))]
    pub(super) target: Option<u64>,
}

const STUB: &str = "HOST:PORT, or '|COMMAND' for a stub on its standard input and output";

/// Which processes, where there may be many; Linux, by perf_event.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Process")]
pub struct ProcessArguments {
    /// Those of several `--pid`.
    #[arg(skip)]
    pub pids: Vec<u32>,
    /// The whole machine: all processes, and the kernel's threads
    #[arg(short, long)]
    pub all: bool,
    /// The processes of a control group: /system.slice/nginx.service
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<OsString>,
    /// The processes of a container, by the beginning of its id
    #[arg(long, value_name = "ID")]
    pub container: Option<OsString>,
    /// The processes of a user
    #[arg(long, value_name = "NAME")]
    pub user: Option<OsString>,
}

/// How a command is launched, and ended.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Process")]
pub struct LaunchOptions {
    /// Linux, as root: run the command as this user, with a login's groups and
    /// environment
    #[arg(long = "as", value_name = "USER")]
    pub run_as: Option<OsString>,
    /// End a command that still runs when the recording ends: SIGTERM, after 5 s
    /// SIGKILL [default: it runs on]
    #[arg(long)]
    pub kill_after: bool,
}

/// What the built-in program has none of: child processes, and threads that wait.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Recording")]
pub struct ScopeOptions {
    /// Linux: record waiting time alone, under the stack that waits
    #[arg(long)]
    pub off_cpu: bool,
    /// Also record the processes that the target starts [default for a command]
    #[arg(long)]
    pub children: bool,
    /// Record only the process itself [default with --pid]
    #[arg(long, overrides_with = "children")]
    pub no_children: bool,
    /// One root frame per process, `name (pid)`, instead of one per name
    #[arg(long)]
    pub per_process: bool,
}

/// How CPU time is sampled; a recording of allocations has none of it.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Recording")]
pub struct CpuOptions {
    /// Ticks per second, 1 to 10000 [default: 997]
    #[arg(short = 'F', long, value_name = "N", allow_hyphen_values = true, display_order = 0)]
    #[arg(value_parser = whole(1, HZ_MAX))]
    pub hz: Option<u32>,
    /// Also record waiting threads: a profile of wall-clock time
    #[arg(long, display_order = 2)]
    pub idle: bool,
    /// Memory for the times of samples, such as 64M or 500K; when it is full, times become
    /// coarser [default: 64M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    #[arg(value_parser = size(TIMELINE, 64 << 10, 64 << 30))]
    pub timeline_memory: Option<u64>,
    /// Keep no times of samples
    #[arg(long, conflicts_with = "timeline_memory")]
    pub no_timeline: bool,
    /// Linux: source of the samples: perf (the kernel, which stops nothing), ptrace
    /// (stops threads) or auto, the first that is permitted [default: auto]
    #[arg(long, value_name = "SOURCE", value_parser = expected("auto, perf or ptrace", method))]
    pub source: Option<SamplingMethod>,
    /// Include frames of the kernel, marked _[k], if the source has them [default]
    #[arg(long)]
    pub(super) kernel: bool,
    /// No frames of the kernel: its time counts for the function that called it
    #[arg(long, overrides_with = "kernel")]
    pub no_kernel: bool,
    /// Stop the target for at most this share of its time: at the limit, less of large
    /// stacks is copied, then ticks are skipped [default: 2; 5 behind a stub]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    #[arg(value_parser = percentage("above 0, up to 100", |stop| stop > 0.0 && stop <= 100.0))]
    pub max_stop: Option<f64>,
}

const TIMELINE: &str = "a whole number from 64K to 64G, such as 64M or, for 1.5M, 1536K";

/// How any recording is made.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Recording")]
pub struct SamplingOptions {
    /// Stop after this many seconds (0.5 works) [default: at the end of the
    /// program or Ctrl-C]
    #[arg(short, long, value_name = "SECS", allow_hyphen_values = true, display_order = 1)]
    #[arg(value_parser = seconds())]
    pub duration: Option<Duration>,
    /// One subtree per thread instead of one for all
    #[arg(long, display_order = 3)]
    pub threads: bool,
    /// How stacks are walked: auto, cfi (unwind information) or fp (frame
    /// pointers); 32-bit Arm also exidx, code or scan [default: auto]
    #[arg(long, value_name = "HOW", default_value = "auto", hide_default_value = true, display_order = 4)]
    #[arg(value_parser = unwind())]
    pub unwind: UnwindMethod,
    /// Frames kept per stack, 1 to 65536 [default: 1024]
    #[arg(long, value_name = "N", default_value_t = DEPTH_DEFAULT, hide_default_value = true, allow_hyphen_values = true, display_order = 5)]
    #[arg(value_parser = whole(1, DEPTH_MAX))]
    pub max_depth: usize,
    /// Seed of the tick jitter, for runs that replay.
    #[arg(long, hide = true, value_name = "N", value_parser = seed(), allow_hyphen_values = true)]
    pub seed: Option<u64>,
}

/// What any recording writes.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Write the profile here; may be given more than once. The extension
    /// selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json
    /// .firefox.json .otlp .otlp.gz), - is folded stacks on standard output
    /// [default: stackprof-NAME-PID.svg]
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append)]
    output: Vec<PathBuf>,
    /// Format of outputs whose extension is none of these: svg, html, folded,
    /// pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)
    #[arg(long, value_name = "FORMAT", value_parser = value(Format::from_name))]
    pub format: Option<Format>,
    /// The outputs with their formats; empty means one named after the process.
    #[arg(skip)]
    pub outputs: Vec<Output>,
    /// Open the profile in a viewer afterwards, as `stackprof open` does
    #[arg(long)]
    pub open: bool,
    /// The viewer for that.
    #[command(flatten)]
    pub viewer: ViewerOptions,
    /// Write the numbers of the closing summary as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath, help_heading = "Output")]
    #[arg(value_parser = destination(|to| to))]
    pub stats: Option<Destination>,
    /// No source in .html outputs [default: files below the working directory that
    /// debug information names]
    #[arg(long, help_heading = "Output")]
    no_source: bool,
    /// Source in .html outputs from below this directory instead; may be given more
    /// than once
    #[arg(long, value_name = "DIR", action = ArgAction::Append)]
    #[arg(conflicts_with = "no_source", help_heading = "Output")]
    source_dir: Vec<PathBuf>,
    /// Heading of the flame graph [default: NAME (pid N)]
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,
}

impl OutputOptions {
    /// Directories of source files for pages; `None` is no source, empty the working directory.
    #[must_use]
    pub fn source_directories(&self) -> Option<&[PathBuf]> {
        (!self.no_source).then_some(&self.source_dir[..])
    }
}

/// What any recording shows, and how.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Output")]
pub struct PictureOptions {
    /// Stack-reversed flame graph: leaf functions at the root, then their callers
    #[arg(long)]
    pub reverse: bool,
    /// How code is named.
    #[command(flatten)]
    pub symbols: SymbolOptions,
    /// How a flame graph looks.
    #[command(flatten)]
    pub graph: GraphOptions,
}

/// How to record CPU time, and what to write.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Output")]
pub struct RecordingOptions {
    // First, because help places some of them by their number between the others.
    /// How it is recorded.
    #[command(flatten)]
    pub sampling: SamplingOptions,
    /// How CPU time is sampled.
    #[command(flatten)]
    pub cpu: CpuOptions,
    /// What is written.
    #[command(flatten)]
    pub output: OutputOptions,
    /// In pprof files, write each sample by itself, with its time as a label
    /// (end_timestamp_ns); files are larger
    #[arg(long, help_heading = "Output")]
    pub pprof_timestamps: bool,
    /// What is shown.
    #[command(flatten)]
    pub picture: PictureOptions,
    /// What every command takes.
    #[command(flatten)]
    pub common: CommonOptions,
}

/// How a flame graph looks.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Output")]
pub struct GraphOptions {
    /// Leave out frames narrower than this part of the graph [default: 0.01]
    #[arg(long, value_name = "PERCENT", default_value_t = MIN_WIDTH_PERCENT, hide_default_value = true, allow_hyphen_values = true)]
    #[arg(value_parser = percentage("from 0 to below 100", |width| (0.0..100.0).contains(&width)))]
    min_width: f64,
    /// Colours of the flame graph: hot, or blue-orange for colour-blind readers
    /// [default: hot]
    #[arg(long, value_name = "SET")]
    #[arg(value_parser = expected(format!("one of {}", Colors::NAMES.join(", ")), Colors::from_name))]
    colors: Option<Colors>,
    /// Flame graph on a dark page
    #[arg(long)]
    dark: bool,
    /// Flame graph with its root at the top, as an icicle [default]
    #[arg(long)]
    inverted: bool,
    /// Flame graph with its root at the bottom
    #[arg(long, overrides_with = "inverted")]
    no_inverted: bool,
}

impl GraphOptions {
    /// A flame graph with these headings.
    pub(crate) fn graph(&self, title: String, subtitle: String, unit: String) -> Graph {
        let &GraphOptions { min_width: min_width_percent, colors, dark, no_inverted, .. } = self;
        let colors = colors.unwrap_or_default();
        Graph { title, subtitle, unit, min_width_percent, colors, dark, inverted: !no_inverted }
    }
}

/// How code is named.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Names")]
pub struct SymbolOptions {
    /// No frames for inlined functions
    #[arg(long)]
    no_inline: bool,
    /// Frames with their source line: function (file:line)
    #[arg(long)]
    pub lines: bool,
    /// Leave out the arguments of templates: std::vector<..>::push_back(..)
    #[arg(long)]
    short_names: bool,
    /// Names as files have them: for comparisons with other tools.
    #[arg(long, hide = true)]
    mangled: bool,
}

impl SymbolOptions {
    /// Options of symbolication; debug files are opened through `files`.
    pub(crate) fn with<'f>(&self, files: &'f dyn Files) -> symbol::Options<'f> {
        let (inlines, lines, style) = (!self.no_inline, self.lines, self.style());
        symbol::Options { inlines, lines, style, swift: swift_demangle, files, ..symbol::Options::default() }
    }

    /// How names are written.
    pub(crate) fn style(&self) -> Style {
        match (self.mangled, self.short_names) {
            (true, _) => Style::Mangled,
            (false, true) => Style::Short,
            (false, false) => Style::Readable,
        }
    }
}

/// What every command takes.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Other")]
pub struct CommonOptions {
    /// Print errors only: no progress line, summary or report
    #[arg(short, long)]
    quiet: bool,
    /// Also print why names are missing, file by file
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Print this text
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

impl CommonOptions {
    /// Verbosity on standard error.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }
}

/// The method called `name` of `--source`.
fn method(name: &str) -> Option<SamplingMethod> {
    match name {
        "auto" => Some(SamplingMethod::Auto),
        "perf" => Some(SamplingMethod::Perf),
        "ptrace" => Some(SamplingMethod::Ptrace),
        _ => None,
    }
}

/// A method of walking stacks.
pub(super) fn unwind() -> impl TypedValueParser<Value = UnwindMethod> {
    expected("auto, fp or cfi; for 32-bit Arm also exidx, code or scan", |text| {
        UnwindMethod::ALL.iter().find(|(_, name)| text == *name).map(|(how, _)| *how)
    })
}

// ---- The request, and the rules for combinations of options.

/// A parsed recording.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordOptions {
    /// The source to record.
    pub source: Source,
    /// How it is launched and ended.
    pub launch: LaunchOptions,
    /// Heap options; its allocations are recorded instead of CPU time.
    pub heap: Option<Heap>,
    /// Child processes and waits.
    pub scope: ScopeOptions,
    /// How it is recorded, and what is written.
    pub recording: RecordingOptions,
}

impl RecordOptions {
    /// Verbosity on standard error.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        self.recording.common.verbosity()
    }

    /// Ticks per second.
    #[must_use]
    pub fn hz(&self) -> u32 {
        self.recording.cpu.hz.unwrap_or(HZ_DEFAULT)
    }

    /// Source of the samples.
    #[must_use]
    pub fn method(&self) -> SamplingMethod {
        self.recording.cpu.source.unwrap_or_default()
    }

    /// Whether child processes are recorded.
    #[must_use]
    pub fn children(&self) -> bool {
        let is_launched = matches!(self.source, Source::Launch(_));
        self.children_needed() || (is_launched && !self.scope.no_children)
    }

    /// Whether child processes were requested, so that a source that does not see them is refused.
    #[must_use]
    pub fn children_needed(&self) -> bool {
        self.scope.children && !matches!(self.source, Source::Gdb(_) | Source::Demo | Source::Sim { .. })
    }

    /// Share of its time that the target may be stopped, percent; 100 is no limit.
    #[must_use]
    pub fn max_stop_percent(&self) -> f64 {
        let is_stub = matches!(self.source, Source::Gdb(_));
        self.recording.cpu.max_stop.unwrap_or(MAX_STOP_PERCENT[usize::from(is_stub)])
    }

    /// Memory for the times of samples, bytes; 0 keeps no times.
    #[must_use]
    pub fn timeline_bytes(&self) -> usize {
        let CpuOptions { no_timeline, timeline_memory, .. } = self.recording.cpu;
        let bytes =
            timeline_memory.map_or(DEFAULT_MEMORY_BYTES, |bytes| bytes.try_into().unwrap_or(usize::MAX));
        if no_timeline { 0 } else { bytes }
    }

    /// Checks combinations of options, and finds the formats of the outputs.
    pub(super) fn checked(mut self) -> Result<RecordOptions> {
        let RecordOptions { source, launch, scope, recording, .. } = &self;
        let RecordingOptions { cpu, sampling, output, pprof_timestamps, .. } = recording;
        let is_launched = matches!(source, Source::Launch(_));
        let is_stub = matches!(source, Source::Gdb(_));
        let is_selection = matches!(source, Source::Several(several) if several.pids.is_empty());
        let by_ptrace = cpu.source == Some(SamplingMethod::Ptrace);
        let viewer = &output.viewer;
        check(&[
            (
                launch.run_as.is_some() && !is_launched,
                "--as is for a command that stackprof runs: sudo stackprof --as USER -- ./prog",
            ),
            (
                launch.kill_after && !is_launched,
                "--kill-after ends a command that stackprof runs: stackprof --kill-after -d 10 -- ./prog",
            ),
            (
                is_stub && cpu.source.is_some(),
                "--source is for processes of this system; leave it out with --gdb",
            ),
            (
                is_stub && scope.children,
                "--children is for processes of this system; leave it out with --gdb",
            ),
            (is_stub && scope.off_cpu, "--off-cpu is for processes of this system; leave it out with --gdb"),
            (
                scope.off_cpu && cpu.idle,
                "--off-cpu records waits alone, --idle beside CPU time; give one of them",
            ),
            (
                scope.off_cpu && by_ptrace,
                "--off-cpu needs the kernel's samples: leave out --source ptrace, which has --idle",
            ),
            (
                scope.off_cpu && matches!(source, Source::Sim { .. }),
                "--off-cpu: a simulated process has no waits",
            ),
            // Only the kernel can record a selection of the machine's processes.
            (
                by_ptrace && is_selection,
                "--source ptrace records a command, or processes by --pid; leave it out for others",
            ),
            (
                cpu.no_timeline && *pprof_timestamps,
                "--pprof-timestamps writes the times that --no-timeline leaves out; give one of them",
            ),
            (viewer.viewer.is_some() && !output.open, "--viewer is for a profile that is opened; add --open"),
            (viewer.no_browser && !output.open, "--no-browser is for a profile that is opened; add --open"),
            (
                viewer.timeout.is_some() && !output.open,
                "--timeout is for a profile that is opened; add --open",
            ),
        ])?;
        check_unwind(sampling.unwind, source)?;
        let outputs = outputs(&output.output, output.format)?;
        check_distinct(outputs.iter().map(|output| &output.to).chain(&output.stats))?;
        self.recording.output.outputs = outputs;
        Ok(self)
    }
}

/// Refuses unwind methods that the source has no stacks for.
pub(super) fn check_unwind(unwind: UnwindMethod, source: &Source) -> Result<()> {
    // Elsewhere, Arm processors are reached only through stubs.
    let has_arm = system::RUNS_ARM || matches!(source, Source::Gdb(_));
    let name = UnwindMethod::ALL.iter().find(|(how, _)| *how == unwind).map_or("", |(_, name)| name);
    check(&[(
        unwind.is_of_arm() && !has_arm,
        &format!("--unwind {name} is for 32-bit Arm behind --gdb; leave it out here"),
    )])
}

/// Parses the arguments of a recording.
pub(super) fn parse(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
    stray_words: impl FnOnce(&[OsString]) -> Error,
) -> std::result::Result<RecordOptions, Stop> {
    let flags: RecordFlags = parse_flags(words, |_| None)?;
    if !flags.stray.is_empty() {
        return Err(stray_words(&flags.stray).into());
    }
    let RecordFlags { source, several, launch: how, recording, scope, .. } = flags;
    let source = several_sources(source, several, launch, find)?;
    Ok(RecordOptions { source, launch: how, heap: None, scope, recording }.checked()?)
}

/// Parses the arguments after `demo`.
pub(super) fn parse_demo(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
) -> std::result::Result<RecordOptions, Stop> {
    let DemoFlags { recording, stray } = parse_flags(words, |_| None)?;
    if let Some(word) = stray.iter().chain(launch.iter().flatten()).next() {
        let word = word.display();
        return Err(usage(format!("demo profiles its own workload; unexpected argument `{word}`")).into());
    }
    let (launch, scope) = (LaunchOptions::default(), ScopeOptions::default());
    Ok(RecordOptions { source: Source::Demo, launch, heap: None, scope, recording }.checked()?)
}

// ---- The source of samples, parsed from options.

/// Source of samples.
#[derive(Clone, Debug, PartialEq)]
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

/// A process as `--pid` names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProcessName {
    /// By its id.
    Id(u32),
    /// By its name.
    Name(String),
}

impl ProcessName {
    fn id(&self, find: FindProcess<'_>) -> Result<u32> {
        match self {
            ProcessName::Id(id) => Ok(*id),
            ProcessName::Name(name) => find(name),
        }
    }
}

/// A process by its id or, if the text is not a number, by its name.
fn process() -> impl TypedValueParser<Value = ProcessName> {
    expected("a process id, 1 or more, or a name (ps -e shows them)", |text| match is_number(text) {
        true => number(text).filter(|pid| *pid >= 1).map(ProcessName::Id),
        false => Some(ProcessName::Name(text.to_owned())),
    })
}

/// Whether a text is meant as a number, valid or not.
pub(super) fn is_number(text: &str) -> bool {
    text.starts_with(['-', '+']) || text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ' '))
}

/// The source, if it may be more than one process.
fn several_sources(
    flags: SourceFlags,
    several: ProcessArguments,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    let chosen = [
        ("-a", several.all),
        ("--cgroup", several.cgroup.is_some()),
        ("--container", several.container.is_some()),
        ("--user", several.user.is_some()),
        ("--gdb", flags.gdb.is_some()),
        ("--pid", !flags.pid.is_empty() || flags.target.is_some()),
    ];
    let chosen: Vec<&str> = chosen.into_iter().filter_map(|(name, given)| given.then_some(name)).collect();
    match chosen[..] {
        ["--gdb" | "--pid", ..] | [] if flags.pid.len() < 2 => return source(flags, launch, find),
        ["--gdb" | "--pid", ..] | [] => {}
        [option, "--gdb", ..] => {
            return Err(usage(format!("{option} and --gdb both say what is recorded; give one of them")));
        }
        [option, other, ..] => {
            return Err(usage(format!("{option} and {other} both say which processes; give one of them")));
        }
        [option] => {
            let Some(command) = launch else { return Ok(Source::Several(several)) };
            let instead = format!("without it, stackprof -- {} records", joined(&command));
            return Err(usage(format!(
                "{option} records what runs; {instead} the command and what it starts"
            )));
        }
    }
    let is_mixed = launch.is_some() || flags.target.is_some() || flags.gdb.is_some();
    check(&[(is_mixed, "give processes by --pid, or one as a command after --")])?;
    let mut pids = flags.pid.iter().map(|pid| pid.id(find)).collect::<Result<Vec<u32>>>()?;
    pids.sort_unstable();
    pids.dedup();
    Ok(match pids[..] {
        [pid] => Source::Pid(pid),
        _ => Source::Several(ProcessArguments { pids, ..several }),
    })
}

/// The source, if it is one process.
pub(super) fn source(
    flags: SourceFlags,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    const EXAMPLES: &str = "stackprof --pid 4242 attaches, stackprof -- ./prog arg launches";
    let SourceFlags { pid, gdb, exec, target } = flags;
    let given = pid.len() + usize::from(launch.is_some()) + usize::from(target.is_some());
    let is_stub = gdb.is_some();
    check(&[
        (
            is_stub && (!pid.is_empty() || target.is_some()),
            "--gdb and --pid both say which process; give one of them",
        ),
        (
            is_stub && launch.is_some(),
            &format!(
                "--gdb records what its stub runs; a command that is a stub goes into it: --gdb '|{}'",
                joined(launch.as_deref().unwrap_or_default())
            ),
        ),
        (
            !is_stub && exec.is_some(),
            "--exec names the program behind a stub; give the stub with --gdb HOST:PORT",
        ),
        (given > 1, &format!("give one process, by --pid or as a command after --: {EXAMPLES}")),
        (launch.as_ref().is_some_and(Vec::is_empty), "no command after --: stackprof -- ./prog arg"),
        (given == 0 && !is_stub, &format!("say what to profile: {EXAMPLES} (try 'stackprof --help')")),
    ])?;
    Ok(match (gdb, target, pid.first()) {
        (Some(place), ..) => Source::Gdb(Stub { place, exec }),
        (_, Some(seed), _) => Source::Sim { seed },
        (.., Some(pid)) => Source::Pid(pid.id(find)?),
        _ => Source::Launch(launch.unwrap_or_default()),
    })
}
