//! `stackprof completions`: the script for a shell. Input: the commands as clap knows them.
//! Output: text for standard output. Reads and writes nothing.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, Command, ValueEnum};
use clap_complete::Shell;

use super::args::completions::{commands, shells, without_command};
use super::format::Format;
use crate::flamegraph::Colors;

/// The name under which the script completes.
const PROGRAM: &str = "stackprof";

/// The script that completes commands, options and the words that options take.
#[must_use]
pub fn script(shell: Shell) -> String {
    let mut whole =
        commands().into_iter().fold(offered(PROGRAM, &without_command()), |whole, (name, command)| {
            whole.subcommand(offered(name, &command))
        });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut whole, PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A command with what is to be offered of it. It is put together anew, because scripts of bash
/// offer what is hidden, too, those of zsh take hidden words for the first ones, and clap can take
/// nothing away.
fn offered(name: &'static str, command: &Command) -> Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let args = command.get_arguments().map(|arg| with_words(name, arg.clone()));
    Command::new(name)
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(args.filter(|arg| !arg.is_hide_set()))
}

/// An option or argument with the words that it takes. When a command line is parsed they are
/// checked by `args.rs`, whose messages say more than clap's.
fn with_words(command: &str, arg: Arg) -> Arg {
    match (command, arg.get_id().as_str()) {
        (_, "format") => words(arg, Format::ALL.map(Format::name)),
        (_, "unwind") => words(arg, ["auto", "cfi", "fp", "exidx", "code", "scan"]),
        (_, "colors") => words(arg, Colors::NAMES),
        (_, "what") => words(arg, ["threads", "images", "symbols", "stacks"]).hide(false),
        (_, "shell") => words(arg, shells().iter().filter_map(ValueEnum::to_possible_value)).hide(false),
        ("render" | "diff", "profiles") => arg.hide(false),
        _ => arg,
    }
}

fn words<W: Into<PossibleValue>>(arg: Arg, words: impl IntoIterator<Item = W>) -> Arg {
    arg.value_parser(PossibleValuesParser::new(words))
}
