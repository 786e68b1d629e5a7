//! The command line as validated values: arguments in, [`Command`] or one usage error
//! out. Two steps, as ripgrep does it: `flags.rs` only splits, this file checks. No I/O,
//! nothing is opened and no process is looked at.

pub mod compare;
pub mod diff;
pub mod gate;
pub mod render;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use super::clap_text::usage_error;
use super::flags::{
    CommonFlags, DemoFlags, DumpFlags, NamingFlags, RecordFlags, RecordingFlags, SourceFlags,
};
use crate::error::{Error, ErrorKind, Result};
use crate::output::Format;
use crate::output::svg::Colors;
use crate::symbol::Style;
use crate::walk::How;

/// Ticks per second unless `--hz` says otherwise: prime, so that it does not run in
/// step with work that happens 100 or 1000 times a second.
pub const HZ_DEFAULT: u32 = 997;
/// Highest `--hz`.
pub const HZ_MAX: u32 = 10_000;
/// Frames kept per stack unless `--max-depth` says otherwise.
pub const DEPTH_DEFAULT: usize = 1024;
/// Highest `--max-depth`.
pub const DEPTH_MAX: usize = 65_536;
/// Longest `--duration` in seconds: 31 years, which nanoseconds in 64 bits still hold.
pub const DURATION_MAX_S: f64 = 1e9;
/// `--min-width` unless given, percent.
pub const MIN_WIDTH_DEFAULT_PERCENT: f64 = 0.01;

/// Commands of the contract that this version does not have; their names stay free.
const LATER: [&str; 1] = ["top"];

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Record a profile.
    Record(Recording),
    /// Show what the profiler sees.
    Dump(Dump),
    /// Name addresses of a file.
    Addresses(Addresses),
    /// Turn saved profiles into others.
    Render(render::Render),
    /// Compare two profiles.
    Diff(diff::Diff),
    /// Judge recordings of two sides.
    Gate(gate::Gate),
    /// Print this text (help, version) on standard output.
    Print(String),
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running process.
    Pid(u32),
    /// A command to start: program and arguments, never empty.
    Launch(Vec<OsString>),
    /// The built-in workload.
    Demo,
    /// A simulated process.
    Sim {
        /// Replays the same run.
        seed: u64,
    },
}

/// How much is told on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Progress and summary.
    Normal,
    /// Also why each thing was lost.
    Verbose,
}

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl Destination {
    /// As the user wrote it: the path, or `-`.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        match self {
            Destination::Stdout => Path::new("-"),
            Destination::File(path) => path,
        }
    }
}

impl From<PathBuf> for Destination {
    fn from(path: PathBuf) -> Destination {
        if path == Path::new("-") { Destination::Stdout } else { Destination::File(path) }
    }
}

/// One output of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Where it goes.
    pub to: Destination,
    /// In which form.
    pub format: Format,
}

/// How code is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// A frame for each inlined function.
    pub inlines: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// How names are written.
    pub style: Style,
}

impl From<&NamingFlags> for Naming {
    fn from(flags: &NamingFlags) -> Naming {
        let style = match (flags.mangled, flags.short_names) {
            (true, _) => Style::Mangled,
            (false, true) => Style::Short,
            (false, false) => Style::Readable,
        };
        Naming { inlines: !flags.no_inline, lines: flags.lines, style }
    }
}

/// Addresses of a file to be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The executable or library.
    pub file: PathBuf,
    /// Where the addresses are listed.
    pub list: PathBuf,
    /// How they are named.
    pub naming: Naming,
    /// How much is told.
    pub verbosity: Verbosity,
}

/// A recording as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// What is recorded.
    pub source: Source,
    /// Ticks per second, 1 to [`HZ_MAX`].
    pub hz: u32,
    /// When to stop; `None` is at the end of the target or Ctrl-C.
    pub duration: Option<Duration>,
    /// Outputs asked for; empty means the default one, see [`Recording::outputs_for`].
    pub outputs: Vec<Output>,
    /// Format of the default output.
    pub default_format: Format,
    /// Also record threads that wait.
    pub idle: bool,
    /// One subtree per thread.
    pub threads: bool,
    /// How stacks are walked.
    pub unwind: How,
    /// How code is named.
    pub naming: Naming,
    /// Frames kept per stack, 1 to [`DEPTH_MAX`].
    pub max_depth: usize,
    /// Heading of the flame graph instead of the default one.
    pub title: Option<String>,
    /// Flame graph from the leaves.
    pub reverse: bool,
    /// Frames narrower than this percentage are left out of the flame graph.
    pub min_width_percent: f64,
    /// Colours of the flame graph.
    pub colors: Colors,
    /// Flame graph on a dark page.
    pub dark: bool,
    /// Where the statistics go.
    pub stats: Option<Destination>,
    /// How much is told.
    pub verbosity: Verbosity,
    /// Seed of the tick jitter; `None` lets the recording choose.
    pub seed: Option<u64>,
}

impl Recording {
    /// The outputs, with the default one (`stackprof-NAME-PID.svg`) filled in.
    #[must_use]
    pub fn outputs_for(&self, process: &str, pid: impl std::fmt::Display) -> Vec<Output> {
        if !self.outputs.is_empty() {
            return self.outputs.clone();
        }
        if self.source == Source::Demo {
            let path = format!("stackprof-demo.{}", self.default_format.extension());
            return vec![Output { to: Destination::File(path.into()), format: self.default_format }];
        }
        // A process can call itself anything; the file stays in this directory.
        let name: String = process
            .chars()
            .map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+') { c } else { '_' })
            .take(64)
            .collect();
        let name = if name.is_empty() { "process" } else { &name };
        let path = format!("stackprof-{name}-{pid}.{}", self.default_format.extension());
        vec![Output { to: Destination::File(path.into()), format: self.default_format }]
    }
}

/// What `dump` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Every thread.
    Threads,
    /// The loaded images.
    Images,
    /// The functions of these images.
    Symbols,
    /// Every thread's stack, once.
    Stacks,
}

/// A `dump` as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// What is shown.
    pub what: What,
    /// Of which process; [`Source::Pid`] or [`Source::Sim`].
    pub source: Source,
    /// How stacks are walked.
    pub unwind: How,
    /// How code is named.
    pub naming: Naming,
    /// How much is told.
    pub verbosity: Verbosity,
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

/// Understands the arguments (without the program's own name).
///
/// # Errors
/// [`ErrorKind::Usage`] with one line that names the option and the next step.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let mut words: Vec<OsString> = args.into_iter().collect();
    // What stands after `--` belongs to the launched command, whatever it looks like.
    let launch = words.iter().position(|word| word == "--").map(|at| {
        let command = words.split_off(at + 1);
        words.pop();
        command
    });
    let first = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    match first {
        "help" => return help(&words[1..]),
        "record" => {
            words.remove(0);
        }
        "demo" => return demo(&words[1..], launch),
        "dump" => return dump(&words[1..], launch),
        "render" => return render::parse(&words[1..], launch.as_deref()),
        "diff" => return diff::parse(&words[1..], launch.as_deref()),
        "gate" => return gate::parse(&words[1..], launch.as_deref()),
        later if LATER.contains(&later) => {
            return Err(usage(format!("command `{later}` is not in this version (try 'stackprof --help')")));
        }
        _ => {}
    }
    let flags: RecordFlags = match split("stackprof", &words)? {
        Split::Flags(flags) => flags,
        Split::Print(text) => return Ok(Command::Print(text)),
    };
    if !flags.stray.is_empty() {
        return Err(stray_words(&flags.stray));
    }
    let source = source(&flags.source, launch)?;
    Ok(Command::Record(recording(source, flags.recording)?))
}

fn help(topic: &[OsString]) -> Result<Command> {
    let topic = topic.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    match topic.as_str() {
        "" | "record" | "help" => parse(["--help".into()]),
        "demo" | "dump" | "render" | "diff" | "gate" => parse([topic.into(), "--help".into()]),
        later if LATER.contains(&later) => Err(usage(format!("command `{later}` is not in this version"))),
        other => Err(usage(format!(
            "there is no command `{other}`; one of record, demo, dump, render, diff, gate, help"
        ))),
    }
}

fn demo(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Command> {
    let flags: DemoFlags = match split("stackprof demo", words)? {
        Split::Flags(flags) => flags,
        Split::Print(text) => return Ok(Command::Print(text)),
    };
    if let Some(word) = flags.stray.first().or_else(|| launch.as_ref()?.first()) {
        return Err(usage(format!("demo profiles its own workload; `{}` is too much", word.display())));
    }
    Ok(Command::Record(recording(Source::Demo, flags.recording)?))
}

fn dump(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Command> {
    let flags: DumpFlags = match split("stackprof dump", words)? {
        Split::Flags(flags) => flags,
        Split::Print(text) => return Ok(Command::Print(text)),
    };
    const FORM: &str = "stackprof dump {threads|images|symbols|stacks} --pid N";
    let what = match flags.what.first().map(|word| word.to_string_lossy()).as_deref() {
        Some("threads") => What::Threads,
        Some("images") => What::Images,
        Some("symbols") => What::Symbols,
        Some("stacks") => What::Stacks,
        Some(other) => return Err(usage(format!("dump does not know `{other}`: {FORM}"))),
        None => return Err(usage(format!("say what to dump: {FORM}"))),
    };
    if let (What::Symbols, Some(list), [_, file]) = (what, &flags.addresses, flags.what.as_slice()) {
        return Ok(Command::Addresses(Addresses {
            file: file.into(),
            list: list.clone(),
            naming: Naming::from(&flags.naming),
            verbosity: verbosity(&flags.common)?,
        }));
    }
    if let Some(word) = flags.what.get(1).or_else(|| launch.as_ref()?.first()) {
        return Err(usage(format!("dump shows a running process; `{}` is too much: {FORM}", word.display())));
    }
    if flags.source.pid.is_empty() && flags.source.target.is_none() {
        return Err(usage(format!("say which process to dump: {FORM}")));
    }
    Ok(Command::Dump(Dump {
        what,
        source: source(&flags.source, None)?,
        unwind: flags.unwind.as_deref().map_or(Ok(How::Auto), unwind)?,
        naming: Naming::from(&flags.naming),
        verbosity: verbosity(&flags.common)?,
    }))
}

enum Split<F> {
    Flags(F),
    Print(String),
}

fn split<F: Parser>(command: &str, words: &[OsString]) -> Result<Split<F>> {
    match F::try_parse_from(std::iter::once(OsStr::new(command)).chain(words.iter().map(AsRef::as_ref))) {
        Ok(flags) => Ok(Split::Flags(flags)),
        Err(error) => match error.kind() {
            clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => {
                Ok(Split::Print(error.render().to_string()))
            }
            _ => Err(usage_error(&error, command)),
        },
    }
}

/// `stackprof ./prog` and `stackprof 4242`: clear what is meant, but not by us to guess.
fn stray_words(words: &[OsString]) -> Error {
    let first = words[0].to_string_lossy();
    if matches!(first.as_ref(), "record" | "demo" | "dump" | "render" | "diff" | "gate")
        || LATER.contains(&first.as_ref())
    {
        return usage(format!("the command comes first: stackprof {first} [options]"));
    }
    if first.parse::<u32>().is_ok() {
        return usage(format!("to attach to process {first}: stackprof --pid {first}"));
    }
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    usage(format!("to run a command, put it after --: stackprof -- {}", command.join(" ")))
}

fn source(flags: &SourceFlags, launch: Option<Vec<OsString>>) -> Result<Source> {
    const EXAMPLES: &str = "stackprof --pid 4242 attaches, stackprof -- ./prog arg launches";
    let given = flags.pid.len() + usize::from(launch.is_some()) + usize::from(flags.target.is_some());
    if given > 1 {
        return Err(usage(format!("give one process, by --pid or as a command after --: {EXAMPLES}")));
    }
    if let Some(pid) = flags.pid.first() {
        let expected = "a process id, 1 or more (ps shows them)";
        return Ok(Source::Pid(number("--pid", pid, expected, |pid| pid >= 1)?));
    }
    if let Some(command) = launch {
        if command.is_empty() {
            return Err(usage("no command after --: stackprof -- ./prog arg"));
        }
        return Ok(Source::Launch(command));
    }
    if let Some(target) = &flags.target {
        let seed = target.to_str().and_then(|target| target.strip_prefix("sim:")?.parse().ok());
        return seed.map(|seed| Source::Sim { seed }).ok_or_else(|| bad("--target", target, "sim:SEED"));
    }
    Err(usage(format!("say what to profile: {EXAMPLES} (try 'stackprof --help')")))
}

fn recording(source: Source, flags: RecordingFlags) -> Result<Recording> {
    let format =
        flags.format.as_deref().map(|name| Format::from_name(&name.to_string_lossy())).transpose()?;
    let outputs = outputs(&flags.output, format)?;
    let stats = flags.stats.map(Destination::from);
    check_distinct(outputs.iter().map(|output| &output.to).chain(&stats))?;
    let hz = match &flags.hz {
        Some(hz) => number("--hz", hz, &format!("a whole number from 1 to {HZ_MAX}"), |hz| {
            (1..=HZ_MAX).contains(&hz)
        })?,
        None => HZ_DEFAULT,
    };
    let max_depth = match &flags.max_depth {
        Some(depth) => {
            let expected = format!("a whole number from 1 to {DEPTH_MAX}");
            number("--max-depth", depth, &expected, |depth| (1..=DEPTH_MAX).contains(&depth))?
        }
        None => DEPTH_DEFAULT,
    };
    let min_width_percent = match &flags.min_width {
        Some(width) => number("--min-width", width, "a percentage from 0 to below 100", |width: f64| {
            (0.0..100.0).contains(&width)
        })?,
        None => MIN_WIDTH_DEFAULT_PERCENT,
    };
    Ok(Recording {
        source,
        hz,
        duration: flags.duration.as_deref().map(duration).transpose()?,
        outputs,
        default_format: format.unwrap_or(Format::Svg),
        idle: flags.idle,
        threads: flags.threads,
        unwind: flags.unwind.as_deref().map_or(Ok(How::Auto), unwind)?,
        naming: Naming::from(&flags.naming),
        max_depth,
        title: flags.title,
        reverse: flags.reverse,
        min_width_percent,
        colors: flags.look.colors.as_deref().map_or(Ok(Colors::default()), colors)?,
        dark: flags.look.dark,
        stats,
        verbosity: verbosity(&flags.common)?,
        seed: flags
            .seed
            .as_deref()
            .map(|seed| number("--seed", seed, "a whole number", |_: u64| true))
            .transpose()?,
    })
}

fn outputs(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Output>> {
    let mut format_used = paths.is_empty();
    let mut outputs = Vec::with_capacity(paths.len());
    for path in paths {
        let told = Format::from_path(path)?;
        let to = Destination::from(path.clone());
        format_used |= told.is_none();
        let format = match (told.or(format), &to) {
            (Some(format), _) => format,
            (None, Destination::Stdout) => Format::Folded,
            (None, Destination::File(_)) => {
                return Err(usage(format!(
                    "--output `{}`: the extension tells no format; use .svg, .folded or .pb.gz, or add --format",
                    path.display()
                )));
            }
        };
        outputs.push(Output { to, format });
    }
    if let Some(format) = format
        && !format_used
    {
        return Err(usage(format!(
            "--format {} would do nothing: the extension of each output tells its format",
            format.name()
        )));
    }
    Ok(outputs)
}

/// Two outputs to one place would leave only the last.
fn check_distinct<'a>(destinations: impl Iterator<Item = &'a Destination>) -> Result<()> {
    let mut seen: Vec<&Path> = Vec::new();
    for path in destinations.map(Destination::as_path) {
        if seen.contains(&path) && !path.starts_with("/dev") {
            return Err(usage(format!(
                "`{}` is given twice; each output needs its own file",
                path.display()
            )));
        }
        seen.push(path);
    }
    Ok(())
}

fn duration(text: &OsStr) -> Result<Duration> {
    let expected = "seconds, more than 0 (10 or 0.5)";
    let seconds = number("--duration", text, expected, |s: f64| s > 0.0 && s <= DURATION_MAX_S)?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| bad("--duration", text, expected))?;
    // Less than a nanosecond.
    if duration.is_zero() { Err(bad("--duration", text, expected)) } else { Ok(duration) }
}

fn unwind(text: &OsStr) -> Result<How> {
    match text.to_string_lossy().as_ref() {
        "auto" => Ok(How::Auto),
        "fp" => Ok(How::FramePointer),
        "cfi" => Ok(How::Cfi),
        _ => Err(bad("--unwind", text, "auto, fp or cfi")),
    }
}

fn colors(text: &OsStr) -> Result<Colors> {
    text.to_str()
        .and_then(Colors::from_name)
        .ok_or_else(|| bad("--colors", text, &format!("one of {}", Colors::NAMES.join(", "))))
}

fn verbosity(flags: &CommonFlags) -> Result<Verbosity> {
    match (flags.quiet, flags.verbose) {
        (true, true) => Err(usage("--quiet and --verbose exclude each other; leave one out")),
        (true, false) => Ok(Verbosity::Quiet),
        (false, true) => Ok(Verbosity::Verbose),
        (false, false) => Ok(Verbosity::Normal),
    }
}

/// The value of an option as a number that `allowed` accepts. (No range is written with
/// NaN in it, so comparing refuses that too.)
fn number<N: std::str::FromStr + Copy>(
    option: &str,
    text: &OsStr,
    expected: &str,
    allowed: impl Fn(N) -> bool,
) -> Result<N> {
    text.to_str()
        .and_then(|text| text.parse().ok())
        .filter(|number| allowed(*number))
        .ok_or_else(|| bad(option, text, expected))
}

fn bad(option: &str, value: &OsStr, expected: &str) -> Error {
    usage(format!("{option} `{}`: expected {expected}", value.display()))
}

#[cfg(test)]
mod tests;
