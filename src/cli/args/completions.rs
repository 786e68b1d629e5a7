//! `stackprof completions`: its clap flags and parsed request, and the list of all commands for
//! completions and man pages. No I/O.
//!
//! `args.rs` parses the commands one by one, since a recording needs no command name.

use std::ffi::OsString;

use clap::Parser;
use clap_complete::Shell;

use super::Command;
use super::compare::{Diff, Gate};
use super::dump::DumpFlags;
use super::heap::HeapFlags;
use super::open::Open;
use super::record::{CommonOptions, DemoFlags, RecordFlags};
use super::render::Render;
use super::values::{Stop, command, parse_flags, usage};

/// `stackprof completions ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof completions",
    about = "Print a script that completes stackprof's commands and options in a shell.",
    override_usage = "stackprof completions SHELL",
    before_help = "Shells: bash, elvish, fish, powershell, zsh.
Those of bash, fish and zsh complete the processes that --pid takes, too.

Examples:
  eval \"$(stackprof completions bash)\"       a line of ~/.bashrc
  stackprof completions fish > ~/.config/fish/completions/stackprof.fish
  stackprof completions zsh > _stackprof     into a directory of $fpath
",
    mut_arg("quiet", |arg| arg.hide(true)),
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct CompletionsFlags {
    #[command(flatten)]
    common: CommonOptions,
    /// The processes that --pid takes, for the scripts themselves.
    #[arg(long, hide = true)]
    processes: bool,
    #[arg(hide = true)]
    shell: Vec<OsString>,
}

/// Parses the words after `completions`.
pub(super) fn parse(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Command, Stop> {
    const FORM: &str = "stackprof completions {bash|elvish|fish|powershell|zsh}";
    let flags: CompletionsFlags = parse_flags(words, |_| None)?;
    if flags.processes {
        return Ok(Command::Processes);
    }
    let words: Vec<&OsString> = flags.shell.iter().chain(launch.iter().flatten()).collect();
    Err(Stop::Refuse(usage(match words[..] {
        [] => format!("say for which shell: {FORM}"),
        [name] => match name.to_str().and_then(|name| name.parse().ok()) {
            Some(shell) => return Ok(Command::Completions(shell)),
            None => format!("there are no completions for `{}`: {FORM}", name.display()),
        },
        [_, second, ..] => {
            format!("one shell at a time; unexpected argument `{}`: {FORM}", second.display())
        }
    })))
}

/// Shells that `completions` supports, in alphabetical order.
#[must_use]
pub fn shells() -> [Shell; 5] {
    [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh]
}

/// Every command by name, in the order of `stackprof --help`.
#[must_use]
pub fn commands() -> [(&'static str, clap::Command); 9] {
    [
        ("record", command::<RecordFlags>().about("Record a profile (the default).")),
        ("heap", command::<HeapFlags>()),
        ("demo", command::<DemoFlags>()),
        ("dump", command::<DumpFlags>()),
        ("render", command::<Render>()),
        ("open", command::<Open>()),
        ("diff", command::<Diff>()),
        ("gate", command::<Gate>()),
        ("completions", command::<CompletionsFlags>()),
    ]
}

/// `stackprof` itself, with the options of a recording and no command name.
#[must_use]
pub fn without_command() -> clap::Command {
    command::<RecordFlags>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::tests::parsed;

    #[test]
    fn every_shell_is_known_by_its_name() {
        for shell in shells() {
            let line = format!("completions {shell}");
            assert_eq!(parsed(&line).expect("a shell"), Command::Completions(shell));
        }
        assert_eq!(parsed("completions -- zsh").expect("a shell"), Command::Completions(Shell::Zsh));
    }

    /// Text that clap wraps again would have a single word on every other line.
    #[test]
    fn lines_before_the_options_of_a_help_fit_a_terminal() {
        for (name, command) in commands() {
            let text = command.get_before_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }
}
