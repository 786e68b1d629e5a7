//! `scripts/perf-regression.sh` with a fake stackprof that records its arguments: the order of recordings,
//! the arguments of the gate, and the exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs::write_script;

/// Records its arguments in `calls`. As `gate` it writes a report and exits with `$GATE`; else it writes the
/// recording of a command that exited with `$STATUS`.
const FAKE: &str = r#"#!/bin/sh
echo "$*" >>"$CALLS"
if [ "$1" = gate ]; then
    while [ $# -gt 0 ]; do
        case $1 in --markdown) echo 'the report' >"$2" ;; --update-baseline) mkdir -p "$2" ;; esac
        shift
    done
    exit "$GATE"
fi
while [ "$1" != -- ]; do
    case $1 in
        -o) echo profile >"$2" ;;
        --stats) printf '{\n  "exit_status": %s,\n  "outputs": []\n}\n' "$STATUS" >"$2" ;;
    esac
    shift
done
echo 'output of the command'
"#;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        write_script(&directory.path().join("stackprof"), FAKE, 0o755);
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, words: &[&str], gate: &str, status: &str) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/perf-regression.sh");
        let mut command = Command::new("bash");
        command.arg(script).args(["--stackprof", self.path("stackprof").to_str().unwrap()]);
        command.args(["--store", self.path("store").to_str().unwrap()]).args(words);
        command.env("CALLS", self.path("calls")).env("GATE", gate).env("STATUS", status);
        command.output().unwrap()
    }

    /// The calls of stackprof: the recorded commands, or `gate` and its arguments.
    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let place = format!("{}/", self.directory.path().display());
        calls
            .lines()
            .map(|line| line.split_once(" -- ").map_or(line, |(_, command)| command).replace(&place, ""))
            .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn two_commands_are_recorded_in_turn_and_gated() {
    let place = Place::new();
    let words = ["--runs", "4", "--base-command", "./old 'a b'", "--", "./new", "x y"];
    let output = place.run(&words, "0", "0");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (old, new) = ("./old a b", "./new x y");
    let gate = "gate -q --base store/base --new store/new --max-increase 5% --markdown store/report.md";
    assert_eq!(place.calls(), [old, new, new, old, old, new, new, old, gate]);
    let printed = text(&output.stdout);
    assert!(
        printed.starts_with("# Performance of `new`\n\n4 runs at 997 Hz, recorded in turn with"),
        "{printed}"
    );
    assert!(printed.ends_with("the report\n") && !printed.contains("output of"), "{printed}");
    assert_eq!(fs::read_dir(place.path("store/base")).unwrap().count(), 4);
}

#[test]
fn a_baseline_is_recorded_once_and_compared_with_later_runs() {
    let place = Place::new();
    let baseline = place.path("kept");
    let words = |more: &[&'static str]| -> Vec<String> {
        let mut words =
            vec!["--runs".to_owned(), "2".into(), "--baseline".into(), baseline.display().to_string()];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words.extend(["--".to_owned(), "./new".into()]);
        words
    };
    let run = |more: &[&'static str], gate: &str| {
        let words = words(more);
        place.run(&words.iter().map(String::as_str).collect::<Vec<_>>(), gate, "0")
    };
    let missing = run(&[], "0");
    assert_eq!(missing.status.code(), Some(4));
    assert!(text(&missing.stderr).contains("make it with --update"), "{}", text(&missing.stderr));
    assert!(place.calls().is_empty(), "nothing is recorded in vain");

    assert_eq!(run(&["--update"], "0").status.code(), Some(0));
    assert_eq!(place.calls(), ["./new", "./new", "gate -q --new store/new --update-baseline kept"]);

    // The exit code of the gate is passed on; only a regression can be reduced to a report.
    for (gate, more, code) in [
        ("0", &[][..], 0),
        ("3", &[], 3),
        ("3", &["--report-only"], 0),
        ("4", &["--report-only"], 4),
        ("1", &["--report-only"], 1),
    ] {
        let output = run(more, gate);
        assert_eq!(output.status.code(), Some(code), "gate {gate}, {more:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout).contains("the report"), gate == "0" || gate == "3");
    }
}

#[test]
fn a_lost_baseline_is_not_recorded_again() {
    let place = Place::new();
    fs::create_dir_all(place.path("store/base")).unwrap();
    fs::write(place.path("store/base/base-001.pb.gz"), "precious").unwrap();
    let baseline = place.path("store/base").display().to_string();
    let output = place.run(&["--baseline", &baseline, "--", "./new"], "0", "0");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("name another store"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(place.path("store/base/base-001.pb.gz")).unwrap(), "precious");
}

#[test]
fn failed_runs_are_not_measured() {
    for status in ["3", "\"signal 9\"", "null"] {
        let place = Place::new();
        let output = place.run(&["--base-command", "./old", "--", "./new"], "0", status);
        assert_eq!(output.status.code(), Some(1), "{status}");
        let error = text(&output.stderr);
        assert!(error.contains(&format!("`./old` ended with exit status {status}")), "{error}");
        assert_eq!(place.calls(), ["./old"], "{status}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_runs() {
    for words in [
        &["--", "./new"][..],
        &["--baseline", "x"],
        &["--baseline", "x", "--"],
        &["--runs", "0", "--baseline", "x", "--", "./new"],
        &["--runs", "many", "--baseline", "x", "--", "./new"],
        &["--baseline", "x", "--base-command", "y", "--", "./new"],
        &["--update", "--base-command", "y", "--", "./new"],
        &["--colour", "x", "--", "./new"],
    ] {
        let place = Place::new();
        let output = place.run(words, "0", "0");
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("perf-regression: "), "{words:?}");
        assert!(place.calls().is_empty(), "{words:?}");
    }
}
