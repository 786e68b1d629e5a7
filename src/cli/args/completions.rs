//! `stackprof completions`: its clap flags and parsed request, and the list of all commands for
//! completions and man pages. No I/O.
//!
//! `args.rs` parses the commands one by one, since a recording needs no command name.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use super::compare::{DiffFlags, GateFlags};
use super::heap::HeapFlags;
use super::open::OpenFlags;
use super::render::RenderFlags;
use super::values::{ParsedFlags, parse_flags, usage};
use crate::cli::flags::{CommonFlags, DemoFlags, DumpFlags, RecordFlags, TEMPLATE};
use crate::error::Result;

/// `stackprof completions ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof completions",
    version,
    about = "Print a script that completes stackprof's commands and options in a shell.",
    override_usage = "stackprof completions SHELL",
    before_help = "Shells: bash, elvish, fish, powershell, zsh.
Those of bash, fish and zsh complete the processes that --pid takes, too.

Examples:
  eval \"$(stackprof completions bash)\"       a line of ~/.bashrc
  stackprof completions fish > ~/.config/fish/completions/stackprof.fish
  stackprof completions zsh > _stackprof     into a directory of $fpath
",
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("quiet", |arg| arg.hide(true)),
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct CompletionsFlags {
    #[command(flatten)]
    common: CommonFlags,
    /// The processes that --pid takes, for the scripts themselves.
    #[arg(long, hide = true)]
    processes: bool,
    #[arg(hide = true)]
    shell: Vec<OsString>,
}

/// Output for shells.
pub(super) enum Completions {
    Script(Shell),
    Processes,
}

/// Parses the words after `completions`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with a list of the shells.
pub(super) fn parse(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Completions>> {
    const FORM: &str = "stackprof completions {bash|elvish|fish|powershell|zsh}";
    let flags: CompletionsFlags = match parse_flags("stackprof completions", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    if flags.processes {
        return Ok(ParsedFlags::Flags(Completions::Processes));
    }
    let words: Vec<&OsString> = flags.shell.iter().chain(launch.unwrap_or_default()).collect();
    match words.as_slice() {
        [] => Err(usage(format!("say for which shell: {FORM}"))),
        [name] => {
            let shell = name.to_str().and_then(|name| name.parse().ok());
            shell
                .map(|shell| ParsedFlags::Flags(Completions::Script(shell)))
                .ok_or_else(|| usage(format!("there are no completions for `{}`: {FORM}", name.display())))
        }
        [_, second, ..] => {
            Err(usage(format!("one shell at a time; unexpected argument `{}`: {FORM}", second.display())))
        }
    }
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
        ("record", RecordFlags::command().about("Record a profile (the default).")),
        ("heap", HeapFlags::command()),
        ("demo", DemoFlags::command()),
        ("dump", DumpFlags::command()),
        ("render", RenderFlags::command()),
        ("open", OpenFlags::command()),
        ("diff", DiffFlags::command()),
        ("gate", GateFlags::command()),
        ("completions", CompletionsFlags::command()),
    ]
}

/// `stackprof` itself, with the options of a recording and no command name.
#[must_use]
pub fn without_command() -> clap::Command {
    RecordFlags::command()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
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

    #[test]
    fn invalid_requests_are_refused() {
        const FORM: &str = "stackprof completions {bash|elvish|fish|powershell|zsh}";
        for (line, expected) in [
            ("completions", format!("say for which shell: {FORM}")),
            ("completions tcsh", format!("there are no completions for `tcsh`: {FORM}")),
            ("completions zsh -- fish", format!("one shell at a time; unexpected argument `fish`: {FORM}")),
        ] {
            assert_eq!(parsed(line).expect_err("refused").to_string(), expected);
        }
    }
}
