//! An output that cannot be written is refused before anything is recorded or read: the program and the
//! profiles of these command lines do not exist, and the message is about the output.

use std::os::unix::net::UnixListener;

use crate::skip::skip;
use crate::support::Place;

/// Error for files of /proc that cannot be written.
#[cfg(target_os = "linux")]
const OF_KERNEL: &str = "/proc is the kernel's and keeps no files; name a file elsewhere";

/// Outputs, and their errors.
const OUTPUTS: &[(&str, &str)] = &[
    ("socket", "it is a socket; name a file or a pipe"),
    ("/dev/stdin", "it is not open for writing; name a file"),
    ("/dev/fd/987", "it is not open for writing; name a file"),
    ("missing/a", "the directory `missing` does not exist"),
    ("directory", "it is a directory; name a file in it"),
    #[cfg(target_os = "linux")]
    ("/proc/a", OF_KERNEL),
    #[cfg(target_os = "linux")]
    ("/proc/self/a", OF_KERNEL),
    #[cfg(target_os = "linux")]
    ("/proc/self/comm", OF_KERNEL),
    #[cfg(target_os = "linux")]
    ("/proc/self/root", "it is a directory; name a file in it"),
    #[cfg(target_os = "linux")]
    ("/proc/self/task/0/a", "does not exist"),
    #[cfg(target_os = "linux")]
    ("/dev/full", "no space left on device; free some there, or name a file elsewhere"),
];

/// Directories of baselines, and their errors.
const BASELINES: &[(&str, &str)] = &[
    ("file/kept", "`file` is not a directory"),
    #[cfg(target_os = "linux")]
    ("/proc/kept", "no file can be made in its directory: no such file or directory"),
];

#[test]
fn an_output_is_refused_before_anything_is_recorded_or_read() {
    let place = Place::new();
    std::fs::create_dir(place.path("directory")).unwrap();
    let _listener = UnixListener::bind(place.path("socket")).unwrap();
    let before = place.files();
    for (output, why) in OUTPUTS {
        for line in [
            format!("--format folded -o {output} -- ./no-such-program"),
            format!("--format folded -o a.folded -o {output} -- ./no-such-program"),
            format!("-o a.svg --stats {output} -- ./no-such-program"),
            format!("render no-such.folded --format folded -o {output}"),
            format!("gate --base no-such.folded --new other.folded --junit {output}"),
            format!("gate --base no-such.folded --new other.folded --markdown {output}"),
        ] {
            let run = place.shell(&format!("exec \"$STACKPROF\" {line} < /dev/null"));
            run.fails_with(1, &[&format!("cannot write `{output}`: "), why]);
            assert_eq!(place.files(), before, "{line}");
        }
    }
}

#[test]
fn standard_output_is_refused_before_anything_is_recorded_or_read() {
    let place = Place::new();
    for line in [
        "-o - -- ./no-such-program",
        "-o a.svg --stats - -- ./no-such-program",
        "render no-such.folded -o -",
        "diff no-such.folded other.folded -o -",
    ] {
        let refused = |stdout: &str, why: &str| {
            let run = place.shell(&format!("exec \"$STACKPROF\" {line} {stdout}"));
            run.fails_with(1, &["cannot write standard output: ", why]);
        };
        refused("1< /dev/null", "it is not open for writing; name a file");
        if cfg!(target_os = "linux") {
            refused("> /dev/full", "no space left on device");
        }
    }
    assert!(place.files().is_empty());
}

#[test]
fn a_full_file_system_is_refused_before_anything_is_recorded() {
    let place = Place::new();
    // No bytes at all.
    let run =
        place.shell("ulimit -f 0; \"$STACKPROF\" -o a.svg -- ./no-such-program 2>&1 | cat; test ! -e a.svg");
    let run = run.succeeds();
    let needle =
        "cannot write `a.svg`: file too large; raise the limit (ulimit -f), or name a file elsewhere";
    assert!(run.stdout.contains(needle), "{run}");
}

#[test]
fn one_output_that_fails_keeps_no_other_from_being_written() {
    let place = Place::new();
    let command = "\"$STACKPROF\" --target sim:1 -o a.svg -o b.folded --stats c.json";
    // The flame graph is larger, the others are not.
    let run = place.shell(&format!("ulimit -f 16; trap '' XFSZ; {command}"));
    assert_eq!(run.code, Some(1), "{run}");
    assert!(run.stderr.contains("cannot write `a.svg`: file too large"), "{run}");
    assert!(run.stderr.contains("  wrote     b.folded\n"), "{run}");
    assert_eq!(place.files().keys().map(String::as_str).collect::<Vec<_>>(), ["b.folded", "c.json"]);
    place.shell(&format!("{command} 2>/dev/null")).succeeds();
    let script = "ulimit -f 16; trap '' XFSZ; \"$STACKPROF\" render b.folded -o d.svg -o e.folded";
    let run = place.shell(script);
    assert_eq!(run.code, Some(1), "{run}");
    assert!(run.stderr.contains("cannot write `d.svg`") && run.stderr.contains("wrote e.folded"), "{run}");
    assert_eq!(place.read("e.folded"), place.read("b.folded"));
    let table =
        "ulimit -f 16; trap '' XFSZ; \"$STACKPROF\" render b.folded -o f.svg -o g.folded --top > /dev/full";
    let run = place.shell(table);
    assert_eq!(run.code, Some(1), "{run}");
    for needle in ["cannot write `f.svg`", "cannot write standard output: ", "wrote g.folded"] {
        assert!(run.stderr.contains(needle), "{run}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    if !std::path::Path::new("/dev/full").exists() {
        return skip("there is no /dev/full");
    }
    let place = Place::new();
    place.write("a.folded", "w;main;f 100\n");
    let needle = "cannot write standard output: no space left on device";
    for command in
        ["--version", "help", "render a.folded --top", "diff a.folded a.folded", "dump stacks --target sim:1"]
    {
        place.shell(&format!("\"$STACKPROF\" {command} > /dev/full")).fails_with(1, &[needle]);
        let closed = place.shell(&format!("\"$STACKPROF\" {command} >&-"));
        closed.fails_with(1, &["cannot write standard output: it is closed"]);
        // Whoever closes the pipe has read enough.
        place.shell(&format!("\"$STACKPROF\" {command} | true")).succeeds();
    }
    let closed = place.shell("\"$STACKPROF\" --target sim:1 -o - >&-");
    closed.fails_with(1, &["cannot write standard output: it is closed; name a file"]);
}

#[test]
fn a_baseline_is_refused_before_anything_is_read() {
    let place = Place::new();
    place.write("file", "");
    for (directory, why) in BASELINES {
        let run = place.run(&format!("gate --new no-such.folded --update-baseline {directory}"));
        run.fails_with(1, &[&format!("cannot write `{directory}`: "), why]);
    }
    for directory in ["kept", "new/kept", "."] {
        let run = place.run(&format!("gate --new no-such.folded --update-baseline {directory}/k"));
        run.fails_with(1, &["no-such.folded"]);
    }
    assert_eq!(place.files().len(), 1, "nothing is left");
}

#[test]
fn a_step_summary_is_written_only_if_requested() {
    let place = Place::new();
    let run =
        place.shell("GITHUB_STEP_SUMMARY=s.md \"$STACKPROF\" gate --github --base a.folded --new b.folded");
    run.fails_with(1, &["a.folded"]);
    assert!(place.files().is_empty());
    let runs = |side: &str| {
        for run in 1..=4 {
            place.write(&format!("{side}/{run}.folded"), "w;main;f 1000\nw;main;g 100\n");
        }
    };
    std::fs::create_dir(place.path("base")).unwrap();
    std::fs::create_dir(place.path("new")).unwrap();
    runs("base");
    runs("new");
    let script = "GITHUB_STEP_SUMMARY=s.md \"$STACKPROF\" gate --github --base base --new new";
    place.shell(script).succeeds();
    place.shell(script).succeeds();
    assert_eq!(place.read("s.md").matches("### ✅ PASS").count(), 2, "{}", place.read("s.md"));
}
