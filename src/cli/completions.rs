//! `stackprof completions`: the completion script for a shell. Input: the commands as clap knows them. Output: text
//! for standard output. No I/O.
//!
//! clap_complete generates the script; `completions/` adds, for bash, zsh and fish: processes, and the words of a
//! launched command.

use std::fmt::Write;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, Command, ValueEnum, ValueHint};
use clap_complete::Shell;

use super::args::completions::{commands, shells, without_command};
use super::outputs::Format;
use crate::escape::escape_line;
use crate::flamegraph::Colors;
use crate::sources::process_name::{self, RunningProcess};

/// The command that the script completes.
const PROGRAM: &str = "stackprof";

/// The script that completes commands, options and option values.
#[must_use]
pub fn script(shell: Shell) -> String {
    let mut whole =
        commands().into_iter().fold(offered(PROGRAM, &without_command()), |whole, (name, command)| {
            whole.subcommand(offered(name, &command))
        });
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut whole, PROGRAM, &mut script);
    with_additions(shell, &String::from_utf8_lossy(&script))
}

/// Adds to the generated script what clap_complete does not support.
fn with_additions(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.to_owned() + include_str!("completions/additions.bash"),
        Shell::Zsh => {
            // A launched command completes as if it were typed alone.
            const BEGIN: &str = "_stackprof() {\n";
            const LAUNCHED: &str = "    local launched=${words[(ie)--]}
    if (( launched < CURRENT )); then
        shift $launched words
        (( CURRENT -= launched ))
        _normal
        return
    fi
";
            const END: &str = "if [ \"$funcstack[1]\" = \"_stackprof\" ]; then\n";
            script
                .replacen(BEGIN, &format!("{BEGIN}{LAUNCHED}"), 1)
                // `*::` would stop completing options after the first file.
                .replace("'*::", "'*:")
                .replace(":PID|NAME:'", ":PID|NAME:_stackprof_processes'")
                .replacen(END, &format!("{}{END}", include_str!("completions/additions.zsh")), 1)
        }
        Shell::Fish => {
            // After `--`, none of our own commands is offered.
            const COMMAND: &str = "    set -l cmd (commandline -opc)\n";
            // argparse refuses an option without a value, even while the value is being typed.
            const OPTIONS: &str = "    argparse -s (__fish_stackprof_global_optspecs) -- $cmd 2>/dev/null\n";
            const LESS: &str =
                "    or argparse -s (__fish_stackprof_global_optspecs) -- $cmd[1..-2] 2>/dev/null\n";
            let script = script.replacen(OPTIONS, &format!("{OPTIONS}{LESS}"), 1);
            let script =
                script.replacen(COMMAND, &format!("{COMMAND}    contains -- -- $cmd; and return 1\n"), 1);
            let lines = script.lines().map(|line| match line.contains(" -l pid ") {
                true => format!("{line} -f -a \"(__fish_stackprof_processes)\"\n"),
                false => format!("{line}\n"),
            });
            lines.collect::<String>() + include_str!("completions/additions.fish")
        }
        _ => script.to_owned(),
    }
}

/// The processes for `--pid`, one a line: a word without blanks, a blank, and its description.
#[must_use]
pub fn processes(processes: &[RunningProcess]) -> String {
    let mut text = String::new();
    for (word, description) in process_name::words(processes) {
        let _ = writeln!(text, "{word} {}", escape_line(&description));
    }
    text
}

/// A command with the completions to offer. It is rebuilt because bash scripts also offer hidden arguments, zsh
/// scripts treat hidden words as the first ones, and clap cannot remove any.
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

/// An option or argument with its possible values. When a command line is parsed, `args.rs` checks
/// them, with better messages than clap's.
fn with_words(command: &str, arg: Arg) -> Arg {
    match (command, arg.get_id().as_str()) {
        (_, "format") => words(arg, Format::ALL.map(Format::name)),
        (_, "source") => words(arg, ["auto", "perf", "ptrace"]),
        (_, "unwind") => words(arg, ["auto", "cfi", "fp", "exidx", "code", "scan"]),
        (_, "colors") => words(arg, Colors::NAMES),
        (_, "what") => words(arg, ["threads", "images", "symbols", "stacks"]).hide(false),
        (_, "shell") => words(arg, shells().iter().filter_map(ValueEnum::to_possible_value)).hide(false),
        ("render" | "diff", "profiles") => arg.hide(false),
        (_, "user" | "run_as") => arg.value_hint(ValueHint::Username),
        // Numbers and texts, not files.
        _ if arg.get_action().takes_values() && arg.get_value_hint() == ValueHint::Unknown => {
            arg.value_hint(ValueHint::Other)
        }
        _ => arg,
    }
}

fn words<W: Into<PossibleValue>>(arg: Arg, words: impl IntoIterator<Item = W>) -> Arg {
    arg.value_parser(PossibleValuesParser::new(words))
}
