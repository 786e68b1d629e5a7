//! Help and version: results on standard output, exit 0, readable in 80 columns.

use std::process::Stdio;

use crate::support::{Place, Run};

#[test]
fn help_and_version_are_results() {
    let place = Place::new();
    let help = place.run("--help").succeeds();
    assert_eq!(help.stderr, "");
    for line in ["-h", "help", "record --help", "help record", "--hz 99 --help"] {
        let same = place.run(line).succeeds();
        assert_eq!((same.stdout, same.stderr), (help.stdout.clone(), String::new()), "{line}");
    }
    for line in ["--version", "-V"] {
        let version = place.run(line).succeeds();
        assert_eq!(version.stdout, concat!("stackprof ", env!("CARGO_PKG_VERSION"), "\n"));
        assert_eq!(version.stderr, "");
    }
    assert!(place.files().is_empty());
}

#[test]
fn help_fits_a_terminal_and_is_complete() {
    let place = Place::new();
    for (line, names) in [
        (
            "--help",
            &[
                "--pid",
                "--hz",
                "--duration",
                "--output",
                "--format",
                "--idle",
                "--off-cpu",
                "--threads",
                "--unwind",
                "--max-depth",
                "--title",
                "--reverse",
                "--min-width",
                "--stats",
                "--quiet",
                "--verbose",
                "stackprof demo",
                "stackprof -- ./prog arg",
                "Exit codes: 0 done, 1 error, 2 wrong usage, 3 gate: something got slower,",
                "4 nothing was sampled or no data to compare",
            ][..],
        ),
        ("demo --help", &["Usage: stackprof demo", "--hz", "--output", "Examples:", "stackprof-demo.svg"]),
        ("help demo", &["Usage: stackprof demo"]),
        (
            "dump --help",
            &[
                "Usage: stackprof dump {threads|images|symbols|stacks} --pid N",
                "Examples:",
                "stackprof dump stacks --pid 4242",
            ],
        ),
        ("completions --help", &["Usage: stackprof completions SHELL", "Shells: bash, elvish, fish,"]),
        ("help dump", &["threads ", "images ", "symbols ", "stacks "]),
        ("help open", &["Usage: stackprof open PROFILE", "--viewer", "--no-browser", "--timeout"]),
        ("diff --help", &["Usage: stackprof diff BASE NEW", "--absolute", "--no-normalize", "--no-inline"]),
        (
            "help gate",
            &[
                "Usage: stackprof gate --base FILE... --new FILE...",
                "--max-increase",
                "3 something got slower",
            ],
        ),
    ] {
        let help = place.run(line).succeeds();
        for name in names {
            assert!(help.stdout.contains(name), "{name} is missing: {help}");
        }
        for line in help.stdout.lines() {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
            assert_eq!(line, line.trim_end());
        }
        // Only for tests, or not implemented yet.
        for hidden in ["sim:", "--seed", "demo-workload"] {
            let shown = hidden == "--seed" && line.contains("gate");
            assert!(shown || !help.stdout.contains(hidden), "{hidden}: {help}");
        }
    }
}

#[test]
fn help_shows_no_option_without_effect() {
    let place = Place::new();
    for (line, options) in [
        ("demo --help", &["--pid", "--children", "--per-process", "--off-cpu", "--as", "--gdb"][..]),
        ("dump --help", &["--quiet", "--verbose", "--hz", "--output", "a recording may have several"]),
        ("completions --help", &["--quiet", "--verbose", "--processes"]),
        ("render --help", &["--verbose"]),
        ("diff --help", &["--verbose"]),
        ("gate --help", &["--verbose"]),
    ] {
        let help = place.run(line).succeeds();
        for option in options {
            assert!(!help.stdout.contains(option), "{option}: {help}");
        }
    }
}

#[test]
fn the_examples_of_the_help_are_valid() {
    let place = Place::new();
    let help = place.run("--help").succeeds();
    let lines: Vec<&str> = help.stdout.lines().collect();
    let start = lines.iter().position(|line| *line == "Examples:").unwrap();
    let examples = lines[start + 1..].iter().take_while(|line| !line.is_empty());
    let mut tried = 0;
    for example in examples {
        let typed = example.trim().split("  ").next().unwrap().trim_start_matches("sudo ");
        let typed = typed.strip_prefix("stackprof ").unwrap();
        if typed == "demo" || typed.starts_with("-a ") {
            continue; // these run in separate tests
        }
        // The process in the examples does not exist, but their options do.
        let typed = typed.replace("4242", "4194305").replace("./prog", "./missing");
        let typed = typed.replace("redis-server", "no-such-process");
        let run = place.run(&typed);
        assert_eq!(run.code, Some(1), "{run}");
        tried += 1;
    }
    assert_eq!(tried, 6);
    assert!(place.files().is_empty());
}

#[test]
fn a_closed_standard_output_is_no_error() {
    let place = Place::new();
    for line in ["--help", "--version", "-q --target sim:1 -o -", "-q --target sim:1 -o - --format svg"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = place.command();
        command.args(line.split(' ')).stdout(Stdio::from(writer));
        let run = Run::new(line.to_owned(), command.output().unwrap()).succeeds();
        assert_eq!(run.stderr, "", "{run}");
    }
    // As typed; the exit code of the left side goes to standard error.
    let run = place
        .shell("{ \"$STACKPROF\" -q --target sim:1 -o - ; echo \"code $?\" >&2; } | head -n 1")
        .succeeds();
    assert_eq!(run.stderr, "code 0\n", "{run}");
    assert_eq!(run.stdout.lines().count(), 1, "{run}");
    assert!(run.stdout.starts_with("sim;"), "{run}");
}
