//! Parses the command line into requests: arguments in, [`Command`] or one usage error out. The options of a command,
//! as clap parses them, are its request; rules refuse combinations. No I/O except for `--pid NAME`, which the caller
//! looks up.

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

use super::outputs::Format;
use crate::error::{Error, Result};

pub use dump::{Addresses, DUMP_DEPTH_MAX, Dump, DumpOptions, Listing};
pub use heap::Heap;
pub use record::{
    DEPTH_DEFAULT, DEPTH_MAX, FindProcess, GraphOptions, HZ_DEFAULT, HZ_MAX, LaunchOptions, OutputOptions,
    ProcessArguments, RecordOptions, RecordingOptions, SamplingOptions, Source, Stub,
};
pub use values::{Destination, Output, Pattern, Verbosity, Written};
use values::{Stop, usage};

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
    match command(words, launch, find) {
        Ok(command) => Ok(command),
        Err(Stop::Print(text)) => Ok(Command::Print(text)),
        Err(Stop::Refuse(error)) => Err(error),
    }
}

/// Parses the command's own words, and those that it launches.
fn command(
    mut words: Vec<OsString>,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> std::result::Result<Command, Stop> {
    let first = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if first == "help" {
        let topic = words.get(1).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        return match &*topic {
            "" | "help" => command(vec!["--help".into()], launch, find),
            known if COMMANDS.contains(&known) => command(vec![known.into(), "--help".into()], launch, find),
            later if RESERVED.contains(&later) => Err(not_yet(later).into()),
            other => {
                let all = COMMANDS.join(", ");
                Err(usage(format!("there is no command `{other}`; one of {all}, help")).into())
            }
        };
    }
    if RESERVED.contains(&&*first) {
        return Err(not_yet(&first).into());
    }
    if COMMANDS.contains(&&*first) {
        words.remove(0);
    }
    match &*first {
        "heap" => heap::parse(&words, launch, find).map(Command::Record),
        "demo" => record::parse_demo(&words, launch).map(Command::Record),
        "dump" => dump::parse(&words, launch, find),
        "render" => render::parse(&words, launch).map(Command::Render),
        "open" => open::parse(&words, launch).map(Command::Open),
        "diff" => compare::parse_diff(&words, launch).map(Command::Diff),
        "gate" => compare::parse_gate(&words, launch).map(Command::Gate),
        "completions" => completions::parse(&words, launch),
        _ => record::parse(&words, launch, find, stray_words).map(Command::Record),
    }
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
