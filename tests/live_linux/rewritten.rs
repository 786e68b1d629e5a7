//! Files rewritten in place, with the same inode, during the recording: old code gets no name from the new
//! content, and truncation causes no SIGBUS.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{Fixture, Recorded, attach, compile, launch, record_until, sources};
use crate::trees::{shows_under, tree};

/// The message about a rewritten file.
const TOLD: &str = "have no names: replaced on disk since it was loaded";

/// A program that burns in `burn_in_early`, and another of the same length that burns in
/// `burn_in_later`.
fn programs(dir: &Path) -> (PathBuf, PathBuf) {
    let place = |program: PathBuf, name: &str| {
        let copy = dir.join(name);
        fs::copy(program, &copy).unwrap();
        let file = fs::File::options().write(true).open(&copy).unwrap();
        file.set_len(1 << 20).unwrap();
        copy
    };
    (place(tree("early"), "app"), place(tree("later"), "other"))
}

/// Records a shell that is given the paths of both programs.
fn recorded(source: &str, script: &str) -> (Recorded, PathBuf) {
    let dir = TempDir::new().unwrap();
    let (app, other) = programs(dir.path());
    let arguments = ["-c".as_ref(), script.as_ref(), app.as_os_str(), other.as_os_str()];
    (launch(&["--hz", "997", "--source", source], "/bin/sh".as_ref(), &arguments), app)
}

#[test]
fn overwritten_programs_get_no_foreign_names() {
    const SHORTER: &str = "\"$0\" burn 80000; head -c 5000 \"$1\" > \"$0\"";
    const OF_ITS_LENGTH: &str = "\"$0\" burn 80000; cat \"$1\" > \"$0\"";
    const OF_ITS_TIME: &str =
        "\"$0\" burn 80000; touch -r \"$0\" \"$0.time\"; cat \"$1\" > \"$0\"; touch -r \"$0.time\" \"$0\"";
    for source in sources() {
        for script in [SHORTER, OF_ITS_LENGTH, OF_ITS_TIME] {
            let record = || {
                let (recorded, app) = recorded(source, script);
                let names = ["burn_in_early", "burn_in_later", "burn", "main"];
                recorded.check_none(format!("named, {source}, {script}"), |stack| {
                    stack.frames[0] == "app" && names.iter().any(|name| stack.has(name))
                });
                let told = format!("functions of {} {TOLD}", app.display());
                let seen = recorded.shows(|stack| stack.frames[0] == "app");
                recorded.check(!seen || recorded.stderr.contains(&told), "not reported");
                recorded
            };
            record_until("the place of its code", record, |recorded| {
                let placed = |frame: &String| frame.starts_with("[app+0x");
                recorded.shows(|stack| stack.frames.iter().any(placed))
            });
        }
        // A removed file keeps its names.
        let removed = || recorded(source, "\"$0\" burn 80000; mv \"$1\" \"$0\"").0;
        record_until("the removed program", removed, |recorded| {
            shows_under(recorded, "app", "burn_in_early")
        });
        // Both run in sequence: the file of the second is read again.
        let both = || {
            let script = "\"$0\" burn 80000; cat \"$1\" > \"$0\"; \"$0\" burn 80000; :";
            let (recorded, _) = recorded(source, script);
            recorded.check_none("named by what is overwritten", |stack| stack.has("burn_in_early"));
            recorded
        };
        let recorded_both = record_until("the second program", both, |recorded| {
            shows_under(recorded, "app", "burn_in_later")
        });
        recorded_both.check(recorded_both.stderr.contains(TOLD), "not reported");
        // With kernel samples a process may have exited when it is first seen.
        let short = || {
            let turn = "cat \"$0.first\" > \"$0\"; \"$0\" burn 8000; cat \"$1\" > \"$0\"; sleep 0.02";
            let script = format!("cp \"$0\" \"$0.first\"; for i in 1 2 3 4; do {turn}; done");
            let (recorded, _) = recorded(source, &script);
            recorded.check_none("another program's name", |stack| stack.has("burn_in_later"));
            recorded
        };
        record_until("a short program", short, |recorded| recorded.shows(|stack| stack.frames[0] == "app"));
        check_truncated(source);
    }
}

/// A program truncates a library that it has mapped, which cannot be prevented.
fn check_truncated(source: &str) {
    let plugin = compile("plugin", "libplugin_cut.so", &["-shared", "-fPIC", "-DNAME=cut"]);
    let cut = || {
        let dir = TempDir::new().unwrap();
        let library = dir.path().join("libcut.so");
        fs::copy(&plugin, &library).unwrap();
        let mut target = Fixture::start("loader", [""; 0]);
        target.line("ready");
        let running = attach(target.pid(), &["--hz", "997", "--source", source]);
        target.tell(&format!("load {}", library.display()));
        target.line("loaded at");
        target.tell("run 100");
        target.line("ran");
        fs::File::options().write(true).open(&library).unwrap().set_len(0).unwrap();
        let recorded = running.interrupt();
        recorded.check_none("named by what is gone", |stack| stack.has("plugin_cut"));
        recorded
    };
    record_until("the place of a truncated library", cut, |recorded| {
        recorded.stderr.contains(&format!("libcut.so {TOLD}"))
    });
}
