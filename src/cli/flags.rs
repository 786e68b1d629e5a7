//! The flags as clap sees them: names, help texts and groups. Values stay text here; `args.rs` checks them, so that
//! every message is ours. `usage_error` turns clap's errors into ours. No I/O.
//!
//! Numbers accept any word that begins with `-`: clap's own test for negative numbers does not know `-5e-1`, and
//! would treat it as an option.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind as Clap};
use clap::{ArgAction, Args, Parser};

use super::args::SymbolOptions;
use crate::binary::Files;
use crate::error::{Error, ErrorKind};
use crate::sources::swift_demangle;
use crate::symbol;

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

pub(super) const TEMPLATE: &str = "{about}\n\nUsage: {usage}\n\n{before-help}{all-args}{after-help}\n";

/// `stackprof [record] ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof",
    version,
    about = ABOUT,
    override_usage = USAGE,
    before_help = EXAMPLES,
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true
)]
pub(super) struct RecordFlags {
    #[command(flatten)]
    pub(super) source: SourceFlags,
    #[command(flatten)]
    pub(super) several: SeveralFlags,
    #[command(flatten)]
    pub(super) launch: LaunchFlags,
    #[command(flatten)]
    pub(super) recording: RecordingFlags,
    #[command(flatten)]
    pub(super) scope: ScopeFlags,
    /// Words before `--` that are not options: always a mistake, kept for the message.
    #[arg(hide = true, trailing_var_arg = true)]
    pub(super) stray: Vec<OsString>,
}

/// `stackprof demo ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof demo",
    version,
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
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("output", |arg| arg.help(
        "Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt \
         .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: \
         stackprof-demo.svg]"
    )),
    mut_arg("duration", |arg| arg.help("Stop after this many seconds (0.5 works) [default: 3]"))
)]
pub(super) struct DemoFlags {
    #[command(flatten)]
    pub(super) recording: RecordingFlags,
    #[arg(hide = true, trailing_var_arg = true)]
    pub(super) stray: Vec<OsString>,
}

/// `stackprof dump ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof dump",
    version,
    about = "Show the threads, images, symbols or stacks of a process, without recording.",
    override_usage = "stackprof dump {threads|images|symbols|stacks} --pid N
       stackprof dump {threads|images|symbols|stacks} --gdb HOST:PORT",
    before_help = "What:
  threads  every thread: number, name, state, CPU time
  images   the loaded executable and libraries, and where they are
  symbols  the functions of these images
  stacks   the call stack of every thread, once, with how each frame was found

Examples:
  stackprof dump stacks --pid 4242       what does it do right now?
  stackprof dump threads --pid nginx     which threads use CPU time?
  stackprof dump images --pid 4242       which files does it run?
",
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("pid", |arg| arg.help("Process to show, by id or name")),
    mut_arg("quiet", |arg| arg.hide(true)),
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct DumpFlags {
    #[command(flatten)]
    pub(super) source: SourceFlags,
    /// How stacks are walked: auto, cfi (unwind information) or fp (frame
    /// pointers); 32-bit Arm also exidx, code or scan [default: auto]
    #[arg(long, value_name = "HOW", help_heading = STACKS)]
    pub(super) unwind: Option<OsString>,
    /// Frames shown of a stack, 1 to 1048576 [default: 1024]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = STACKS)]
    pub(super) max_depth: Option<OsString>,
    /// With `dump symbols FILE`: names the addresses that a file lists, one in hex on each
    /// line (`-` is standard input). For comparisons with other tools.
    #[arg(long, hide = true, value_name = "LIST")]
    pub(super) addresses: Option<PathBuf>,
    #[command(flatten)]
    pub(super) symbol_options: SymbolFlags,
    #[command(flatten)]
    pub(super) common: CommonFlags,
    #[arg(hide = true)]
    pub(super) what: Vec<OsString>,
}

/// Which process.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process")]
pub(super) struct SourceFlags {
    /// Process to attach to, by id or name; a recording may have several
    #[arg(short, long, value_name = "PID|NAME", action = ArgAction::Append, allow_hyphen_values = true)]
    pub(super) pid: Vec<OsString>,
    /// Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver,
    /// lldb-server): HOST:PORT, or '|COMMAND' for a stub on its standard input and
    /// output
    #[arg(long, value_name = "STUB")]
    pub(super) gdb: Option<OsString>,
    /// With --gdb: the program's file, if the stub does not name it
    #[arg(long, value_name = "FILE")]
    pub(super) exec: Option<PathBuf>,
    /// `sim:SEED`, a simulated process: for tests of the profiler itself.
    #[arg(long, hide = true, value_name = "sim:SEED")]
    pub(super) target: Option<OsString>,
}

/// Which processes, where there may be many; Linux, by perf_event.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process")]
pub(super) struct SeveralFlags {
    /// The whole machine: all processes, and the kernel's threads
    #[arg(short, long)]
    pub(super) all: bool,
    /// The processes of a control group: /system.slice/nginx.service
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup: Option<OsString>,
    /// The processes of a container, by the beginning of its id
    #[arg(long, value_name = "ID")]
    pub(super) container: Option<OsString>,
    /// The processes of a user
    #[arg(long, value_name = "NAME")]
    pub(super) user: Option<OsString>,
}

/// How a command is launched, and ended.
#[derive(Debug, Args)]
#[command(next_help_heading = "Process")]
pub(super) struct LaunchFlags {
    /// Linux, as root: run the command as this user, with a login's groups and
    /// environment
    #[arg(long = "as", value_name = "USER")]
    pub(super) run_as: Option<OsString>,
    /// End a command that still runs when the recording ends: SIGTERM, after 5 s
    /// SIGKILL [default: it runs on]
    #[arg(long)]
    pub(super) kill_after: bool,
}

/// What the built-in program has none of: child processes, and threads that wait.
#[derive(Debug, Default, Args)]
pub(super) struct ScopeFlags {
    /// Linux: record waiting time alone, under the stack that waits
    #[arg(long, help_heading = RECORDING)]
    pub(super) off_cpu: bool,
    /// Also record the processes that the target starts [default for a command]
    #[arg(long, help_heading = RECORDING)]
    pub(super) children: bool,
    /// Record only the process itself [default with --pid]
    #[arg(long, overrides_with = "children", help_heading = RECORDING)]
    pub(super) no_children: bool,
    /// One root frame per process, `name (pid)`, instead of one per name
    #[arg(long, help_heading = RECORDING)]
    pub(super) per_process: bool,
}

/// How to record and what to write.
#[derive(Debug, Args)]
pub(super) struct RecordingFlags {
    /// Ticks per second, 1 to 10000 [default: 997]
    #[arg(short = 'F', long, value_name = "N", allow_hyphen_values = true, help_heading = RECORDING)]
    pub(super) hz: Option<OsString>,
    /// Stop after this many seconds (0.5 works) [default: at the end of the
    /// program or Ctrl-C]
    #[arg(short, long, value_name = "SECS", allow_hyphen_values = true, help_heading = RECORDING)]
    pub(super) duration: Option<OsString>,
    /// Also record waiting threads: a profile of wall-clock time
    #[arg(long, help_heading = RECORDING)]
    pub(super) idle: bool,
    /// One subtree per thread instead of one for all
    #[arg(long, help_heading = RECORDING)]
    pub(super) threads: bool,
    /// How stacks are walked: auto, cfi (unwind information) or fp (frame
    /// pointers); 32-bit Arm also exidx, code or scan [default: auto]
    #[arg(long, value_name = "HOW", help_heading = RECORDING)]
    pub(super) unwind: Option<OsString>,
    /// Frames kept per stack, 1 to 65536 [default: 1024]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = RECORDING)]
    pub(super) max_depth: Option<OsString>,
    /// Memory for the times of samples, such as 64M or 500K; when it is full, times become
    /// coarser [default: 64M]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = RECORDING)]
    pub(super) timeline_memory: Option<OsString>,
    /// Keep no times of samples
    #[arg(long, conflicts_with = "timeline_memory", help_heading = RECORDING)]
    pub(super) no_timeline: bool,
    /// Linux: source of the samples: perf (the kernel, which stops nothing), ptrace
    /// (stops threads) or auto, the first that is permitted [default: auto]
    #[arg(long, value_name = "SOURCE", help_heading = RECORDING)]
    pub(super) source: Option<OsString>,
    /// Include frames of the kernel, marked _[k], if the source has them [default]
    #[arg(long, help_heading = RECORDING)]
    pub(super) kernel: bool,
    /// No frames of the kernel: its time counts for the function that called it
    #[arg(long, overrides_with = "kernel", help_heading = RECORDING)]
    pub(super) no_kernel: bool,
    /// Stop the target for at most this share of its time: at the limit, less of large
    /// stacks is copied, then ticks are skipped [default: 2; 5 behind a stub]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = RECORDING)]
    pub(super) max_stop: Option<OsString>,
    /// Seed of the tick jitter, for runs that replay.
    #[arg(long, hide = true, value_name = "N", allow_hyphen_values = true)]
    pub(super) seed: Option<OsString>,

    /// Write the profile here; may be given more than once. The extension
    /// selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json
    /// .firefox.json .otlp .otlp.gz), - is folded stacks on standard output
    /// [default: stackprof-NAME-PID.svg]
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = OUTPUT)]
    pub(super) output: Vec<PathBuf>,
    /// Format of outputs whose extension is none of these: svg, html, folded,
    /// pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)
    #[arg(long, value_name = "FORMAT", help_heading = OUTPUT)]
    pub(super) format: Option<OsString>,
    /// Open the profile in a viewer afterwards, as `stackprof open` does
    #[arg(long, help_heading = OUTPUT)]
    pub(super) open: bool,
    #[command(flatten)]
    pub(super) viewer: ViewerFlags,
    /// Write the numbers of the closing summary as JSON
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(super) stats: Option<PathBuf>,
    /// No source in .html outputs [default: files below the working directory that
    /// debug information names]
    #[arg(long, help_heading = OUTPUT)]
    pub(super) no_source: bool,
    /// Source in .html outputs from below this directory instead; may be given more
    /// than once
    #[arg(long, value_name = "DIR", action = ArgAction::Append, conflicts_with = "no_source", help_heading = OUTPUT)]
    pub(super) source_dir: Vec<PathBuf>,
    /// Heading of the flame graph [default: NAME (pid N)]
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    pub(super) title: Option<String>,
    /// In pprof files, write each sample by itself, with its time as a label
    /// (end_timestamp_ns); files are larger
    #[arg(long, help_heading = OUTPUT)]
    pub(super) pprof_timestamps: bool,
    /// Stack-reversed flame graph: leaf functions at the root, then their callers
    #[arg(long, help_heading = OUTPUT)]
    pub(super) reverse: bool,
    #[command(flatten)]
    pub(super) symbol_options: SymbolFlags,
    /// Leave out frames narrower than this part of the graph [default: 0.01]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = OUTPUT)]
    pub(super) min_width: Option<OsString>,
    #[command(flatten)]
    pub(super) look: LookFlags,

    #[command(flatten)]
    pub(super) common: CommonFlags,
}

/// Which viewer.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Viewer")]
pub(super) struct ViewerFlags {
    /// firefox, speedscope, html (a page in a file), or the address of a Firefox
    /// Profiler that you host [default: firefox; html without a network]
    #[arg(long, value_name = "NAME|URL")]
    pub(super) viewer: Option<OsString>,
    /// Start no browser: print the address
    #[arg(long)]
    pub(super) no_browser: bool,
    /// Exit after this many seconds without a request, counted from the first
    /// request; 0 is never [default: 60]
    #[arg(long, value_name = "SECS", allow_hyphen_values = true)]
    pub(super) timeout: Option<OsString>,
}

/// How a flame graph looks.
#[derive(Debug, Args)]
pub(super) struct LookFlags {
    /// Colours of the flame graph: hot, or blue-orange for colour-blind readers
    /// [default: hot]
    #[arg(long, value_name = "SET", help_heading = OUTPUT)]
    pub(super) colors: Option<OsString>,
    /// Flame graph on a dark page
    #[arg(long, help_heading = OUTPUT)]
    pub(super) dark: bool,
    /// Flame graph with its root at the top, as an icicle [default]
    #[arg(long, help_heading = OUTPUT)]
    pub(super) inverted: bool,
    /// Flame graph with its root at the bottom
    #[arg(long, overrides_with = "inverted", help_heading = OUTPUT)]
    pub(super) no_inverted: bool,
}

impl LookFlags {
    /// The later of the two options counts.
    pub(super) fn root_at_the_top(&self) -> bool {
        self.inverted || !self.no_inverted
    }
}

/// How code is named.
#[derive(Debug, Args)]
pub(super) struct SymbolFlags {
    /// No frames for inlined functions
    #[arg(long, help_heading = NAMES)]
    pub(super) no_inline: bool,
    /// Frames with their source line: function (file:line)
    #[arg(long, help_heading = NAMES)]
    pub(super) lines: bool,
    /// Leave out the arguments of templates: std::vector<..>::push_back(..)
    #[arg(long, help_heading = NAMES)]
    pub(super) short_names: bool,
    /// Names as files have them: for comparisons with other tools.
    #[arg(long, hide = true)]
    pub(super) mangled: bool,
}

const STACKS: &str = "Stacks";
const NAMES: &str = "Names";
const RECORDING: &str = "Recording";
const OUTPUT: &str = "Output";

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Other")]
pub(super) struct CommonFlags {
    /// Print errors only: no progress line, summary or report
    #[arg(short, long, help_heading = "Other")]
    pub(super) quiet: bool,
    /// Also print why names are missing, file by file
    #[arg(short, long, help_heading = "Other")]
    pub(super) verbose: bool,
    /// Print this text
    #[arg(short, long, action = ArgAction::Help, help_heading = "Other")]
    pub(super) help: Option<bool>,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Other")]
    pub(super) version: Option<bool>,
}

// ---- Symbol options shared by the commands.

/// Options of symbolication; debug files are opened through `files`.
pub(super) fn options(symbol_options: SymbolOptions, files: &dyn Files) -> symbol::Options<'_> {
    let SymbolOptions { inlines, lines, style } = symbol_options;
    let swift = swift_demangle;
    symbol::Options { inlines, lines, style, swift, files, ..symbol::Options::default() }
}

// ---- Turns clap's errors into one line: lower case, the option named, with the next step. Input: a `clap::Error`.
// Output: a usage [`Error`]. Help and version are not errors; `args.rs` handles them.

/// One line for a clap error; `command` is the command that the suggested `--help` belongs to.
pub(super) fn usage_error(error: &clap::Error, command: &str) -> Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    // clap names an option with its value: `--hz <N>`.
    let option = context(ContextKind::InvalidArg)
        .map(|text| text.split([' ', '=']).next().unwrap_or_default().to_string())
        .unwrap_or_default();
    let text = match error.kind() {
        Clap::UnknownArgument => match context(ContextKind::SuggestedArg) {
            // clap suggests `--idle` for `--pid`; typos in the first letter are rare.
            Some(near) if near.chars().nth(2) == option.chars().nth(2) => {
                format!("there is no option `{option}`; did you mean `{near}`?")
            }
            _ => format!("there is no option `{option}`"),
        },
        Clap::InvalidValue | Clap::TooFewValues | Clap::WrongNumberOfValues | Clap::NoEquals => {
            format!("option `{option}` needs a value")
        }
        Clap::TooManyValues => match context(ContextKind::InvalidValue) {
            Some(value) => format!("option `{option}` takes no value, but `{value}` was given"),
            None => format!("option `{option}` takes no value"),
        },
        Clap::InvalidUtf8 => "an argument is not UTF-8".to_string(),
        // Not reached with our flags; falls back to the first line of clap's text.
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_string()
        }
    };
    Error::new(ErrorKind::Usage, format!("{text} (try '{command} --help')"))
}
