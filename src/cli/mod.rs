//! The command line: the only module that prints or knows exit codes.
//!
//! `args.rs` parses the command line into requests. `messages.rs`
//! writes to the terminal, with the progress line; `summary.rs`, `hints.rs` and `stats.rs` report on a finished
//! recording; `outputs.rs` writes profiles, `file.rs` any output file. `system.rs` chooses the source of samples.
//! `record.rs`, `heap.rs`, `dump.rs`, `render.rs`, `open.rs`, `diff.rs`, `gate.rs`, `completions.rs` and `demo.rs`
//! are the commands; `saved_files.rs` reads profiles.

pub mod args;
pub mod completions;
pub mod demo;
pub mod diff;
pub mod dump;
mod embedded_code;
pub mod file;
pub mod gate;
pub mod heap;
mod hints;
pub mod messages;
pub mod open;
pub mod outputs;
pub mod record;
pub mod render;
mod saved_files;
pub mod stats;
pub mod summary;
mod system;
pub mod text;

use std::ffi::OsString;

use crate::error::{Error, ErrorKind, Result};
use crate::gate::Verdict;
use crate::sources::{self, output, signals};

/// Runs the program with its arguments (without `argv[0]`) and returns the exit code. An error is
/// one line on standard error.
#[must_use]
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.first().is_some_and(|first| first == demo::WORKLOAD) {
        demo::work();
        return 0;
    }
    match args::parse(args, &system::process_by_name).and_then(execute) {
        Ok(code) => code,
        Err(error) => {
            messages::error(&error);
            exit_code(&error)
        }
    }
}

/// Runs on the signal thread before a signal ends the process; must not block for long on another thread.
const BEFORE_END: &[fn()] = &[
    // The target of a stub would stay stopped.
    signals::await_stopped_targets,
    output::remove_unfinished,
    sources::remove_heap_directory,
];

/// Exit code of `gate` for a regression.
const REGRESSION: u8 = 3;

fn execute(command: args::Command) -> Result<u8> {
    system::set_caller();
    let only_prints = |command: &args::Command| {
        matches!(command, args::Command::Completions(_) | args::Command::Processes | args::Command::Print(_))
    };
    if !only_prints(&command) {
        system::prepare();
        signals::own(BEFORE_END)?;
    }
    match command {
        args::Command::Record(recording) => record::run(&recording)?,
        args::Command::Dump(what) => dump::run(&what)?,
        args::Command::Addresses(request) => dump::run_symbols(&request)?,
        args::Command::Render(what) => render::run(&what)?,
        args::Command::Open(what) => open::run(&what)?,
        args::Command::Diff(request) => diff::run(&request)?,
        args::Command::Gate(request) => {
            if gate::run(&request)? == Verdict::Regression {
                return Ok(REGRESSION);
            }
        }
        args::Command::Completions(shell) => messages::result(&completions::script(shell))?,
        args::Command::Processes => messages::result(&completions::processes(&system::processes()))?,
        args::Command::Print(text) => messages::result(&text)?,
    }
    Ok(0)
}

/// The exit code for an error: 1 error, 2 wrong usage, 4 nothing was sampled. (3, a regression, is
/// a verdict of `gate`, not an error.)
#[must_use]
pub fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => 2,
        ErrorKind::NoData => 4,
        ErrorKind::Attach | ErrorKind::Input | ErrorKind::Output | ErrorKind::System => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_the_contract() {
        for (kind, code) in [
            (ErrorKind::Attach, 1),
            (ErrorKind::Input, 1),
            (ErrorKind::Output, 1),
            (ErrorKind::System, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::NoData, 4),
        ] {
            assert_eq!(exit_code(&Error::new(kind, "x")), code, "{kind:?}");
        }
    }
}
