//! Files that a package installs besides the program: completions and man pages. They are generated from the
//! command line's definition, and the files in packaging/ are compared with the current output.
//!
//! `STACKPROF_BLESS=1 cargo test --test cli packaged` rewrites them, except in CI.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use stackprof::cli::args::completions::{commands, shells, without_command};

use crate::programs::copy_program;
use crate::skip::skip;
use crate::support::{Place, is_linux, run};

#[test]
fn every_shell_gets_a_script_with_commands_options_and_words() {
    let place = Place::new();
    for shell in shells() {
        let script = place.run(&format!("completions {shell}")).succeeds();
        assert_eq!(script.stderr, "", "{script}");
        for word in ["render", "duration", "min-share", "blue-orange", "speedscope"] {
            assert!(script.stdout.contains(word), "{shell}: {word} is missing");
        }
        // Only for tests.
        for hidden in ["sim:", "demo-workload", "mangled", "--addresses"] {
            assert!(!script.stdout.contains(hidden), "{shell}: {hidden}");
        }
    }
    assert!(place.files().is_empty());
}

#[test]
fn an_unknown_shell_is_refused_with_the_known_ones() {
    let place = Place::new();
    place.run("completions tcsh").fails_with(2, &["`tcsh`", "{bash|elvish|fish|powershell|zsh}"]);
    place.run("completions").fails_with(2, &["say for which shell", "zsh"]);
    place.run("--hz 9 completions").fails_with(2, &["the command comes first: stackprof completions"]);
}

/// The tested shells, and a command that prints each one's completions for a line; the script is `$SCRIPT`,
/// the line `$LINE`.
const SHELLS: [(&str, &str); 3] = [
    (
        "bash",
        // Bash's convention: the words typed so far, with the one to be completed last.
        r#"source "$SCRIPT"
        eval "COMP_WORDS=($LINE)"
        case "$LINE" in *' ') COMP_WORDS+=('') ;; esac
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _stackprof_complete stackprof "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#,
    ),
    ("zsh", r#"zsh -f "$FIXTURES/complete.zsh" "$SCRIPT" "$LINE""#),
    ("fish", r#"fish --no-config -c 'source $SCRIPT; complete -C $LINE' | cut -f 1"#),
];

/// Whether a shell with completion is installed.
fn has(shell: &str) -> bool {
    let try_it = match shell {
        "bash" => "complete -W x x",
        "zsh" => "zmodload zsh/zpty",
        _ => "complete -c x -a x",
    };
    let found = Command::new(shell).args(["-c", try_it]).status().is_ok_and(|status| status.success());
    if !found {
        skip(&format!("there is no {shell} that completes; try apt-get install {shell}"));
    }
    found
}

/// The completions of a line, in the shell's order; the program is found as `stackprof`.
fn offered(place: &Place, shell: &str, line: &str) -> Vec<String> {
    let (_, how) = SHELLS.iter().find(|(name, _)| *name == shell).unwrap();
    let script = place.path("script");
    fs::write(&script, place.run(&format!("completions {shell}")).succeeds().stdout).unwrap();
    let mut command = Command::new(if shell == "bash" { "bash" } else { "sh" });
    let directory = place.program().parent().unwrap().to_str().unwrap().to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-c", how]).current_dir(place.path("."));
    command.env("PATH", format!("{directory}:{path}")).env("SCRIPT", &script).env("LINE", line);
    command.env("FIXTURES", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"));
    let run = run(command).succeeds();
    run.stdout.lines().filter(|word| !word.is_empty()).map(|word| word.trim_end().to_owned()).collect()
}

#[test]
fn shells_offer_commands_before_options() {
    let place = Place::new();
    let commands =
        ["record", "heap", "demo", "dump", "render", "open", "diff", "gate", "completions", "help"];
    for (shell, _) in SHELLS.into_iter().filter(|(shell, _)| has(shell)) {
        let mut first = offered(&place, shell, "stackprof ");
        let mut expected = commands.map(str::to_owned);
        if shell != "bash" {
            // These sort their completions.
            first.sort_unstable();
            expected.sort_unstable();
        }
        assert_eq!(first, expected, "{shell}");
        for (line, words) in [
            ("stackprof dif", &["diff"][..]),
            ("stackprof dump ", &["threads", "images", "symbols", "stacks"]),
            ("stackprof dump st", &["stacks"]),
            ("stackprof completions ", &["bash", "elvish", "fish", "powershell", "zsh"]),
            ("stackprof --unwind ", &["auto", "cfi", "fp", "exidx", "code", "scan"]),
            ("stackprof --source ", &["auto", "perf", "ptrace"]),
            ("stackprof record --colors ", &["hot", "blue-orange"]),
            ("stackprof gate --new a --min-s", &["--min-share"]),
        ] {
            let mut offered = offered(&place, shell, line);
            let mut words: Vec<&str> = words.to_vec();
            offered.sort_unstable();
            words.sort_unstable();
            // zsh appends the sign for a value.
            let offered: Vec<&str> = offered.iter().map(|word| word.trim_end_matches('=')).collect();
            assert_eq!(offered, words, "{shell}: {line}");
        }
        let options = offered(&place, shell, "stackprof --");
        assert!(options.iter().any(|word| word.starts_with("--pid")), "{shell}: {options:?}");
        assert!(!options.iter().any(|word| commands.contains(&word.as_str())), "{shell}: {options:?}");
    }
}

/// A waiting process with a name chosen by its test.
struct Named(Child);

impl Named {
    fn start(place: &Place, name: &str) -> Named {
        let program = place.path(name);
        let shell = fs::canonicalize("/bin/sh").unwrap();
        copy_program(&shell, &program);
        Named(Command::new(program).args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn shells_offer_processes_by_name_and_number() {
    if !is_linux() {
        return;
    }
    // A process's name has at most 15 characters.
    let name = format!("sp{}", std::process::id());
    let (place, programs) = (Place::new(), Place::new());
    let named = Named::start(&programs, &name);
    let pid = named.0.id().to_string();
    // A shell would run this if it used names unquoted.
    let hostile =
        ["$(touch mark)", "`touch mark`", "x;touch mark", "-p"].map(|name| Named::start(&programs, name));
    for (shell, _) in SHELLS.into_iter().filter(|(shell, _)| has(shell)) {
        for line in ["stackprof --pid sp", "stackprof -p sp", "stackprof dump stacks --pid sp"] {
            let offered = offered(&place, shell, line);
            assert!(offered.contains(&name), "{shell}: {line}: {offered:?}");
            assert!(offered.iter().all(|word| word.starts_with("sp")), "{shell}: {line}: {offered:?}");
        }
        let all = offered(&place, shell, "stackprof --pid ");
        assert!(all.contains(&pid), "{shell}: {all:?}");
        assert!(all.contains(&hostile[0].0.id().to_string()), "{shell}: {all:?}");
        let is_plain = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric() || "_.+-@".contains(c));
        assert!(all.iter().all(|word| is_plain(word) && !word.starts_with('-')), "{shell}: {all:?}");
        assert!(!place.path("mark").exists(), "{shell} ran a name");
    }
}

#[test]
fn shells_complete_a_launched_command_like_their_own() {
    let place = Place::new();
    for (shell, _) in SHELLS.into_iter().filter(|(shell, _)| has(shell)) {
        let offered = offered(&place, shell, "stackprof -d 5 -- touc");
        assert!(offered.iter().any(|word| word == "touch"), "{shell}: {offered:?}");
        assert!(!offered.iter().any(|word| word == "demo"), "{shell}: {offered:?}");
    }
}

#[test]
fn packaged_completions_are_up_to_date() {
    let place = Place::new();
    for (shell, file) in [("bash", "stackprof.bash"), ("fish", "stackprof.fish"), ("zsh", "_stackprof")] {
        let script = place.run(&format!("completions {shell}")).succeeds();
        is_packaged(&format!("completions/{file}"), &script.stdout);
    }
}

#[test]
fn packaged_man_pages_are_up_to_date() {
    is_packaged("man/stackprof.1", &man_page("stackprof", without_command()));
    // `record` is what the first page describes.
    for (name, command) in commands().into_iter().filter(|(name, _)| *name != "record") {
        let name = format!("stackprof-{name}");
        is_packaged(&format!("man/{name}.1"), &man_page(&name, command));
    }
}

/// The help of one command as a man page: its options by clap_mangen, and the preceding paragraphs of the
/// help, each as a section with its layout.
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

/// Lines that `man` shows verbatim, without their common indentation; lines after a title on the same line
/// have none.
fn laid_out(text: &str) -> String {
    let is_behind_title = !text.starts_with('\n');
    let text = text.trim_end().trim_start_matches('\n');
    let indent = |line: &str| line.len() - line.trim_start().len();
    let least = text.lines().map(indent).min().unwrap_or_default();
    let lines = text.lines().map(|line| {
        let line = if is_behind_title { line.trim_start() } else { &line[least..] };
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A point or an apostrophe at the beginning of a line is a roff command.
        format!("\\&{line}\n")
    });
    format!(".nf\n{}.fi\n", lines.collect::<String>())
}

/// Compares with a file below packaging/, or writes it on request.
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
