//! The command line as validated values: arguments in, [`Command`] or one usage error
//! out. Two steps, as ripgrep does it: `flags.rs` only splits, this file checks. No I/O but for
//! `--pid NAME`, which the caller looks up.

pub mod compare;
pub mod completions;
pub mod diff;
mod dump;
pub mod gate;
pub mod open;
mod output;
mod record;
pub mod render;
mod time_range;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Parser;
use clap_complete::Shell;

use super::clap_text::usage_error;
use super::flags::{CommonFlags, DemoFlags, NamingFlags, RecordFlags, ScopeFlags, SeveralFlags, SourceFlags};
use super::format::Format;
use super::system;
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::Colors;
use crate::sources::gdb::StubAddress;
use crate::symbol::Style;
use crate::walk::UnwindMethod;

pub use dump::{Addresses, DUMP_DEPTH_MAX, Dump, Listing};
pub use output::{Destination, Output};
pub use record::{DEPTH_DEFAULT, DEPTH_MAX, DURATION_MAX_S, HZ_DEFAULT, HZ_MAX, LaunchOptions, Recording};

/// Commands of the contract that this version does not have; their names stay free.
const LATER: [&str; 3] = ["annotate", "heap", "top"];

/// Commands that this version has.
const COMMANDS: [&str; 8] = ["record", "demo", "dump", "render", "open", "diff", "gate", "completions"];

/// `--min-width` unless given, percent.
const MIN_WIDTH_DEFAULT_PERCENT: f64 = 0.01;

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
    /// Show a saved profile in a viewer.
    Open(open::Open),
    /// Compare two profiles.
    Diff(diff::Diff),
    /// Judge recordings of two sides.
    Gate(gate::Gate),
    /// Print the completions of a shell.
    Completions(Shell),
    /// Print the processes that completions offer.
    Processes,
    /// Print this text (help, version) on standard output.
    Print(String),
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running process.
    Pid(u32),
    /// Several that run, or a part of the machine, or all of it.
    Several(ProcessArguments),
    /// A command to start: program and arguments, never empty.
    Launch(Vec<OsString>),
    /// What is behind a stub of the gdb remote protocol.
    Gdb(Stub),
    /// The built-in workload.
    Demo,
    /// A simulated process.
    Sim {
        /// Replays the same run.
        seed: u64,
    },
}

/// A stub, and the program that it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Where the stub is.
    pub place: StubAddress,
    /// The program's file, where the stub does not name it.
    pub exec: Option<PathBuf>,
}

/// Which processes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessArguments {
    /// By process id.
    pub pids: Vec<u32>,
    /// All of them.
    pub all: bool,
    /// Those of a control group.
    pub cgroup: Option<OsString>,
    /// Those of a container, by the beginning of its id.
    pub container: Option<OsString>,
    /// Those of a user, by name or number.
    pub user: Option<OsString>,
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

fn not_yet(command: &str) -> Error {
    usage(format!("command `{command}` is not in this version; one of {}", COMMANDS.join(", ")))
}

fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

/// Understands the arguments (without the program's own name); `find` finds processes by name.
///
/// # Errors
/// [`ErrorKind::Usage`] with one line that names the option and the next step, or what `find` says.
pub fn parse(args: impl IntoIterator<Item = OsString>, find: FindProcess<'_>) -> Result<Command> {
    let mut words: Vec<OsString> = args.into_iter().collect();
    // What stands after `--` belongs to the launched command, whatever it looks like.
    let launch = words.iter().position(|word| word == "--").map(|at| {
        let command = words.split_off(at + 1);
        words.pop();
        command
    });
    let first = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    match first {
        "help" => return help(&words[1..], find),
        "record" => {
            words.remove(0);
        }
        "demo" => return demo(&words[1..], launch),
        "dump" => return dump::parse(&words[1..], launch, find),
        "render" => return render::parse(&words[1..], launch.as_deref()),
        "open" => return open::parse(&words[1..], launch.as_deref()),
        "diff" => return diff::parse(&words[1..], launch.as_deref()),
        "gate" => return gate::parse(&words[1..], launch.as_deref()),
        "completions" => return completions::parse(&words[1..], launch.as_deref()),
        later if LATER.contains(&later) => return Err(not_yet(later)),
        _ => {}
    }
    let flags: RecordFlags = match split("stackprof", &words)? {
        Split::Flags(flags) => flags,
        Split::Print(text) => return Ok(Command::Print(text)),
    };
    if !flags.stray.is_empty() {
        return Err(stray_words(&flags.stray));
    }
    let source = several(&flags.source, flags.several, launch, find)?;
    let launch = record::launch_options(&source, flags.launch)?;
    Ok(Command::Record(record::recording(source, launch, &flags.scope, flags.recording)?))
}

fn help(topic: &[OsString], find: FindProcess<'_>) -> Result<Command> {
    let topic = topic.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    match topic.as_str() {
        "" | "record" | "help" => parse(["--help".into()], find),
        "demo" | "dump" | "render" | "open" | "diff" | "gate" | "completions" => {
            parse([topic.into(), "--help".into()], find)
        }
        later if LATER.contains(&later) => Err(not_yet(later)),
        other => Err(usage(format!("there is no command `{other}`; one of {}, help", COMMANDS.join(", ")))),
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
    let launch = LaunchOptions::default();
    let recording = record::recording(Source::Demo, launch, &ScopeFlags::default(), flags.recording)?;
    Ok(Command::Record(recording))
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
    if COMMANDS.contains(&first.as_ref()) || LATER.contains(&first.as_ref()) {
        return usage(format!("the command comes first: stackprof {first} [options]"));
    }
    if first.parse::<u32>().is_ok() {
        return usage(format!("to attach to process {first}: stackprof --pid {first}"));
    }
    if matches!(Format::from_path(Path::new(&words[0])), Ok(Some(format)) if !matches!(format, Format::Svg | Format::Html))
    {
        return usage(format!("to read a saved profile: stackprof render {first} -o FILE"));
    }
    let command: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    usage(format!("to run a command, put it after --: stackprof -- {}", command.join(" ")))
}

/// What is to be recorded, where that may be more than one process.
fn several(
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

/// Finds the one process that has a name: the only thing here that looks at the system, so the caller brings it.
pub type FindProcess<'a> = &'a dyn Fn(&str) -> Result<u32>;

/// A process by its id or, where that is no number, by its name.
fn process_id(text: &OsStr, find: FindProcess<'_>) -> Result<u32> {
    match text.to_str() {
        Some(name) if !name.is_empty() && !is_number(name) => find(name),
        _ => number("--pid", text, "a process id, 1 or more, or a name (ps -e shows them)", |pid| pid >= 1),
    }
}

/// Whether a text is meant as a number, right or wrong.
fn is_number(text: &str) -> bool {
    text.starts_with(['-', '+']) || text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ' '))
}

fn source(flags: &SourceFlags, launch: Option<Vec<OsString>>, find: FindProcess<'_>) -> Result<Source> {
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
        return seed.map(|seed| Source::Sim { seed }).ok_or_else(|| bad("--target", target, "sim:SEED"));
    }
    Err(usage(format!("say what to profile: {EXAMPLES} (try 'stackprof --help')")))
}

fn stub(place: &OsStr, flags: &SourceFlags, launch: Option<Vec<OsString>>) -> Result<Source> {
    if !flags.pid.is_empty() || flags.target.is_some() {
        return Err(usage("--gdb and --pid both say which process; give one of them"));
    }
    if let Some(command) = launch {
        let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let why = "--gdb records what its stub runs; a command that is a stub goes into it";
        return Err(usage(format!("{why}: --gdb '|{}'", command.join(" "))));
    }
    let expected = "HOST:PORT, or '|COMMAND' for a stub on its standard input and output";
    let parsed = place.to_str().and_then(StubAddress::parse).ok_or_else(|| bad("--gdb", place, expected))?;
    Ok(Source::Gdb(Stub { place: parsed, exec: flags.exec.clone() }))
}

/// How stacks of a source are followed.
fn unwind(text: Option<&OsStr>, of: &Source) -> Result<UnwindMethod> {
    let Some(text) = text else { return Ok(UnwindMethod::Auto) };
    let named = UnwindMethod::ALL.iter().find(|(_, name)| text.to_str() == Some(*name));
    let how = named
        .map(|(how, _)| *how)
        .ok_or_else(|| bad("--unwind", text, "auto, fp or cfi; for 32-bit Arm also exidx, code or scan"))?;
    // Elsewhere its processors are only reached through stubs.
    if how.is_of_arm() && !system::RUNS_ARM && !matches!(of, Source::Gdb(_)) {
        let text = text.display();
        return Err(usage(format!("--unwind {text} is for 32-bit Arm behind --gdb; leave it out here")));
    }
    Ok(how)
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
        // Rust takes `+5`; nobody who types that means 5 and nothing else.
        .filter(|text| !text.starts_with('+'))
        .and_then(|text| text.parse().ok())
        .filter(|number| allowed(*number))
        .ok_or_else(|| bad(option, text, expected))
}

/// A percentage, `5` or `5%`, as 5.
fn percent(option: &str, text: &OsStr, expected: &str, allowed: impl Fn(f64) -> bool) -> Result<f64> {
    let number =
        text.to_str().and_then(|text| text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok());
    number
        .filter(|percent| percent.is_finite() && allowed(*percent))
        .ok_or_else(|| bad(option, text, expected))
}

/// Frames of a flame graph narrower than this percentage are left out.
fn min_width_percent(flag: Option<&OsStr>) -> Result<f64> {
    flag.map_or(Ok(MIN_WIDTH_DEFAULT_PERCENT), |width| {
        percent("--min-width", width, "a percentage from 0 to below 100", |width| {
            (0.0..100.0).contains(&width)
        })
    })
}

fn bad(option: &str, value: &OsStr, expected: &str) -> Error {
    usage(format!("{option} `{}`: expected {expected}", value.display()))
}

#[cfg(test)]
mod tests;
