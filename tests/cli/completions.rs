//! What a package installs beside the program: completions and man pages. They are made from the
//! command line itself, and the files in packaging/ are compared with what it makes now.
//!
//! `STACKPROF_BLESS=1 cargo test --test cli packaged` writes them anew, except in CI.

use std::fs;
use std::path::Path;
use std::process::Command;

use stackprof::cli::args::completions::{commands, shells, without_command};

use crate::support::{Place, run, skip};

#[test]
fn every_shell_gets_a_script_with_commands_options_and_words() {
    let place = Place::new();
    for shell in shells() {
        let script = place.run(&format!("completions {shell}")).succeeds();
        assert_eq!(script.stderr, "", "{script}");
        for word in ["render", "duration", "min-share", "blue-orange", "speedscope"] {
            assert!(script.stdout.contains(word), "{shell}: {word} is missing");
        }
        // What tests use.
        for hidden in ["sim:", "demo-workload", "mangled", "--addresses"] {
            assert!(!script.stdout.contains(hidden), "{shell}: {hidden}");
        }
    }
    assert!(place.files().is_empty());
}

#[test]
fn a_shell_that_is_not_known_is_refused_with_those_that_are() {
    let place = Place::new();
    place.run("completions tcsh").fails_with(2, &["`tcsh`", "{bash|elvish|fish|powershell|zsh}"]);
    place.run("completions").fails_with(2, &["say for which shell", "zsh"]);
    place.run("--hz 9 completions").fails_with(2, &["the command comes first: stackprof completions"]);
}

#[test]
fn bash_completes_what_is_typed() {
    let has_bash = Command::new("bash").args(["-c", "complete -W x x"]).status();
    if !has_bash.is_ok_and(|status| status.success()) {
        return skip("there is no bash that knows `complete`");
    }
    for (typed, expected) in [
        ("dif", &["diff"][..]),
        ("--max-s", &["--max-stop"]),
        ("gate --new a --min-s", &["--min-share"]),
        ("--unwind ''", &["auto", "cfi", "fp", "exidx", "code", "scan"]),
        ("completions ''", &["bash", "elvish", "fish", "powershell", "zsh"]),
        ("dump st", &["stacks"]),
    ] {
        // As bash calls it: the words typed so far, the last of which is to be completed.
        let script = format!(
            r#"source /dev/stdin <<< "$("$STACKPROF" completions bash)"
            COMP_WORDS=(stackprof {typed}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _stackprof stackprof "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
            printf '%s\n' "${{COMPREPLY[@]}}""#
        );
        let place = Place::new();
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).env("STACKPROF", place.program());
        let run = run(bash).succeeds();
        let offered: Vec<&str> = run.stdout.lines().filter(|word| !is_common(word)).collect();
        assert_eq!(offered, expected, "{typed}: {run}");
    }
}

/// What every command takes stands in every list.
fn is_common(word: &str) -> bool {
    matches!(word, "-q" | "-v" | "-h" | "-V" | "--quiet" | "--verbose" | "--help" | "--version")
}

#[test]
fn packaged_completions_are_those_of_this_version() {
    let place = Place::new();
    for (shell, file) in [("bash", "stackprof.bash"), ("fish", "stackprof.fish"), ("zsh", "_stackprof")] {
        let script = place.run(&format!("completions {shell}")).succeeds();
        is_packaged(&format!("completions/{file}"), &script.stdout);
    }
}

#[test]
fn packaged_man_pages_are_those_of_this_version() {
    is_packaged("man/stackprof.1", &man_page("stackprof", without_command()));
    // `record` is what the first page describes.
    for (name, command) in commands().into_iter().filter(|(name, _)| *name != "record") {
        let name = format!("stackprof-{name}");
        is_packaged(&format!("man/{name}.1"), &man_page(&name, command));
    }
}

/// The help of one command as a page: its options by clap_mangen, and the paragraphs that stand
/// before them in the help, each as a section of its own, laid out as they are.
fn man_page(name: &str, command: clap::Command) -> String {
    let before_help = command.get_before_help().map(ToString::to_string).unwrap_or_default();
    let usage = command.get_overridden_usage().map(ToString::to_string).unwrap_or_default();
    let man = clap_mangen::Man::new(command.display_name(name)).title(name).date("").manual("User Commands");
    let mut page = Vec::new();
    man.render_title(&mut page).unwrap();
    man.render_name_section(&mut page).unwrap();
    let mut page = String::from_utf8(page).unwrap();
    page += &section("Synopsis", &usage);
    let mut rest = Vec::new();
    man.render_description_section(&mut rest).unwrap();
    page += &String::from_utf8(rest).unwrap();
    let (described, titled): (Vec<_>, Vec<_>) = before_help
        .split("\n\n")
        .filter(|paragraph| !paragraph.trim().is_empty())
        .map(|paragraph| {
            let head =
                paragraph.split_once(':').filter(|(title, _)| title.len() <= 12 && !title.contains('\n'));
            head.map_or(("", paragraph), |(title, text)| (title, text))
        })
        .partition(|(title, _)| title.is_empty());
    for (_, text) in described {
        page += &format!(".PP\n{}", laid_out(text));
    }
    let mut options = Vec::new();
    man.render_options_section(&mut options).unwrap();
    page += &String::from_utf8(options).unwrap();
    for (title, text) in titled {
        page += &section(title, text);
    }
    page
}

fn section(title: &str, text: &str) -> String {
    format!(".SH {}\n{}", title.to_uppercase(), laid_out(text))
}

/// Lines that `man` shows as they are, without the indentation that all have; lines below one that
/// stands behind its title have none at all.
fn laid_out(text: &str) -> String {
    let is_behind_title = !text.starts_with('\n');
    let text = text.trim_end().trim_start_matches('\n');
    let indent = |line: &str| line.len() - line.trim_start().len();
    let least = text.lines().map(indent).min().unwrap_or_default();
    let lines = text.lines().map(|line| {
        let line = if is_behind_title { line.trim_start() } else { &line[least..] };
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A point or an apostrophe at the beginning of a line is a command.
        format!("\\&{line}\n")
    });
    format!(".nf\n{}.fi\n", lines.collect::<String>())
}

/// Compares with a file below packaging/, or writes it where that is asked for.
fn is_packaged(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(name);
    if std::env::var_os("STACKPROF_BLESS").is_some() {
        assert!(std::env::var_os("CI").is_none(), "STACKPROF_BLESS is not for CI");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, now).unwrap();
        return;
    }
    let packaged = fs::read_to_string(&path).unwrap_or_else(|error| panic!("packaging/{name}: {error}"));
    assert!(
        packaged == now,
        "packaging/{name} is not of this version; STACKPROF_BLESS=1 cargo test --test cli packaged, \
         then read `git diff`"
    );
}
