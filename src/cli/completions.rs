//! `stackprof completions`: the script for a shell. Input: the tree of the command line.
//! Output: text for standard output. Reads and writes nothing.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{ValueEnum, ValueHint};
use clap_complete::Shell;

use super::args::completions::{command_line, shells};
use super::format::Format;
use crate::flamegraph::Colors;

/// The name under which the script completes.
const PROGRAM: &str = "stackprof";

/// The script that completes commands, options and the words that options take.
#[must_use]
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_words(command_line()), PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The tree with the words that options and commands take. When a command line is parsed they
/// are checked by `args.rs`, whose messages say more than clap's.
fn with_words(command: clap::Command) -> clap::Command {
    let mut command = one_with_words(command);
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command.mut_subcommand(&name, |sub| match name.as_str() {
            "dump" => takes(sub, "what", ["threads", "images", "symbols", "stacks"]),
            "completions" => takes(sub, "shell", shells().iter().filter_map(ValueEnum::to_possible_value)),
            "render" | "diff" => one_with_words(sub).mut_arg("profiles", |arg| arg.hide(false)),
            _ => one_with_words(sub),
        });
    }
    command
}

fn one_with_words(mut command: clap::Command) -> clap::Command {
    let has = |command: &clap::Command, id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
    for (id, words) in [
        ("format", Format::ALL.map(Format::name).to_vec()),
        ("unwind", vec!["auto", "cfi", "fp"]),
        ("colors", Colors::NAMES.to_vec()),
    ] {
        if has(&command, id) {
            command = command.mut_arg(id, |arg| arg.value_parser(PossibleValuesParser::new(words)));
        }
    }
    if has(&command, "stray") {
        // What stands after `--`: a program, then what it takes.
        command = command.mut_arg("stray", |arg| arg.value_hint(ValueHint::CommandWithArguments));
    }
    command
}

fn takes<W>(command: clap::Command, id: &str, words: W) -> clap::Command
where
    W: IntoIterator,
    W::Item: Into<PossibleValue>,
{
    let command = one_with_words(command);
    command.mut_arg(id, |arg| arg.hide(false).value_parser(PossibleValuesParser::new(words)))
}
