//! Parses the command line into validated values: arguments in, [`Command`] or one usage error out.
//! Two steps, as in ripgrep: `flags.rs` only splits, this file checks. No I/O except for `--pid
//! NAME`, which the caller looks up.

pub mod compare;
pub mod completions;
mod dump;
pub mod heap;
pub mod open;
mod record;
pub mod render;
mod values;

use std::ffi::OsString;
use std::path::Path;

use clap_complete::Shell;

use super::flags::{DemoFlags, RecordFlags, ScopeFlags};
use super::outputs::Format;
use crate::error::{Error, Result};

use completions::Completions;
use dump::DumpCommand;
pub use dump::{Addresses, DUMP_DEPTH_MAX, Dump, Listing};
pub use heap::Heap;
use record::several;
pub use record::{
    DEPTH_DEFAULT, DEPTH_MAX, DURATION_MAX_S, FindProcess, HZ_DEFAULT, HZ_MAX, LaunchOptions, OutputOptions,
    ProcessArguments, RecordOptions, SamplingOptions, Source, Stub,
};
pub use values::{Destination, GraphOptions, Output, SymbolOptions, Verbosity};
use values::{ParsedFlags, parse_flags, usage};

/// Reserved names of commands that are not implemented.
const RESERVED: [&str; 2] = ["annotate", "top"];

/// Implemented commands.
const COMMANDS: [&str; 9] =
    ["record", "heap", "demo", "dump", "render", "open", "diff", "gate", "completions"];

/// A parsed command line.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a program has one of them")]
pub enum Command {
    /// Record a profile.
    Record(RecordOptions),
    /// Show what the profiler sees.
    Dump(Dump),
    /// Name addresses of a file.
    Addresses(Addresses),
    /// Convert saved profiles to other formats.
    Render(render::Render),
    /// Show a saved profile in a viewer.
    Open(open::Open),
    /// Compare two profiles.
    Diff(compare::Diff),
    /// Compare recordings of a baseline and a new version.
    Gate(compare::Gate),
    /// Print the completion script of a shell.
    Completions(Shell),
    /// Print the processes that completions offer.
    Processes,
    /// Print this text (help, version) on standard output.
    Print(String),
}

fn not_yet(command: &str) -> Error {
    usage(format!("command `{command}` is not in this version; one of {}", COMMANDS.join(", ")))
}

/// Parses the arguments (without `argv[0]`); `find` looks up processes by name.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line that names the option and the next step, or the
/// error of `find`.
pub fn parse(args: impl IntoIterator<Item = OsString>, find: FindProcess<'_>) -> Result<Command> {
    let mut words: Vec<OsString> = args.into_iter().collect();
    // Everything after `--` belongs to the launched command, even if it looks like an option.
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
        "heap" => return Ok(heap::parse(&words[1..], launch, find)?.into_command(Command::Record)),
        "demo" => return demo(&words[1..], launch),
        "dump" => {
            let dump = dump::parse(&words[1..], launch, find)?;
            return Ok(dump.into_command(|dump| match dump {
                DumpCommand::Process(dump) => Command::Dump(dump),
                DumpCommand::Addresses(addresses) => Command::Addresses(addresses),
            }));
        }
        "render" => return Ok(render::parse(&words[1..], launch.as_deref())?.into_command(Command::Render)),
        "open" => return Ok(open::parse(&words[1..], launch.as_deref())?.into_command(Command::Open)),
        "diff" => return Ok(compare::parse_diff(&words[1..], launch.as_deref())?.into_command(Command::Diff)),
        "gate" => return Ok(compare::parse_gate(&words[1..], launch.as_deref())?.into_command(Command::Gate)),
        "completions" => {
            let completions = completions::parse(&words[1..], launch.as_deref())?;
            return Ok(completions.into_command(|completions| match completions {
                Completions::Script(shell) => Command::Completions(shell),
                Completions::Processes => Command::Processes,
            }));
        }
        later if RESERVED.contains(&later) => return Err(not_yet(later)),
        _ => {}
    }
    let flags: RecordFlags = match parse_flags("stackprof", &words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(Command::Print(text)),
    };
    if !flags.stray.is_empty() {
        return Err(stray_words(&flags.stray));
    }
    let source = several(&flags.source, flags.several, launch, find)?;
    let launch = record::launch_options(&source, flags.launch)?;
    Ok(Command::Record(record::recording(source, launch, &flags.scope, flags.recording)?))
}

impl<F> ParsedFlags<F> {
    fn into_command(self, of: impl FnOnce(F) -> Command) -> Command {
        match self {
            ParsedFlags::Flags(flags) => of(flags),
            ParsedFlags::Print(text) => Command::Print(text),
        }
    }
}

fn help(topic: &[OsString], find: FindProcess<'_>) -> Result<Command> {
    let topic = topic.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    match topic.as_str() {
        "" | "record" | "help" => parse(["--help".into()], find),
        "heap" | "demo" | "dump" | "render" | "open" | "diff" | "gate" | "completions" => {
            parse([topic.into(), "--help".into()], find)
        }
        later if RESERVED.contains(&later) => Err(not_yet(later)),
        other => Err(usage(format!("there is no command `{other}`; one of {}, help", COMMANDS.join(", ")))),
    }
}

fn demo(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Command> {
    let flags: DemoFlags = match parse_flags("stackprof demo", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(Command::Print(text)),
    };
    if let Some(word) = flags.stray.first().or_else(|| launch.as_ref()?.first()) {
        return Err(usage(format!(
            "demo profiles its own workload; unexpected argument `{}`",
            word.display()
        )));
    }
    let launch = LaunchOptions::default();
    let recording = record::recording(Source::Demo, launch, &ScopeFlags::default(), flags.recording)?;
    Ok(Command::Record(recording))
}

/// `stackprof ./prog` and `stackprof 4242`: the meaning is clear, but we do not guess.
fn stray_words(words: &[OsString]) -> Error {
    let first = words[0].to_string_lossy();
    if COMMANDS.contains(&first.as_ref()) || RESERVED.contains(&first.as_ref()) {
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

#[cfg(test)]
mod tests;
