//! A command that is still running when its recording ends: it continues and is reported, or `--kill-after`
//! ends it.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::{Recorded, fixture, kill, proc_status, record, sources, wait_for};

/// Records `terminates` until it has worked for a while; returns the recording and its pid.
fn interrupted(options: &[&str], dir: &Path) -> (Recorded, u32) {
    let (program, file) = (fixture("terminates"), dir.join("worked"));
    let words = options.iter().copied().chain(["--", program.to_str().unwrap(), file.to_str().unwrap()]);
    let running = record(words);
    wait_for("its work", || file.exists());
    let recorded = running.interrupt();
    recorded.check_success();
    (recorded, fs::read_to_string(file).unwrap().parse().unwrap())
}

fn exists(pid: u32) -> bool {
    proc_status(pid, "State").is_some()
}

#[test]
fn a_running_command_is_reported_or_ended() {
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let (recorded, pid) = interrupted(&["--source", source], dir.path());
        let runs = exists(pid);
        kill("KILL", pid);
        recorded.check(runs, "it has ended");
        let told = format!("  command   still runs (pid {pid}); --kill-after ends it with the recording\n");
        let second_line = recorded.stderr.split_inclusive('\n').nth(1);
        recorded.check(second_line == Some(told.as_str()), "it is not reported first");
        recorded.check(recorded.stats["still_runs"] == true, "`still_runs` is not true");
        recorded.check(recorded.stats["exit_status"].is_null(), "an exit status");

        let dir = TempDir::new().unwrap();
        let (recorded, pid) = interrupted(&["--kill-after", "--source", source], dir.path());
        recorded.check(!exists(pid), "it still runs, or is a zombie");
        recorded.check(dir.path().join("worked.cleaned").exists(), "it could not clean up");
        recorded.check(recorded.stats["exit_status"] == 7, "not its status");
        recorded.check(recorded.stats["still_runs"] == false, "`still_runs` is not false");
        let told = "  exit      the command ended with status 7, by --kill-after\n";
        recorded.check(recorded.stderr.contains(told), "its end is not reported");
        recorded.check_none("its end is in the profile", |stack| stack.has("clean_up"));

        // With or without samples.
        let file = dir.path().join("number");
        let script = "echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; exec sleep 1000";
        let options = ["-d", "0.1", "--kill-after", "--source", source, "--", "/bin/sh", "-c", script];
        let recorded = record(options.iter().copied().chain([file.to_str().unwrap()])).wait();
        // On a busy machine it may not have printed its pid yet.
        let number = fs::read_to_string(&file).unwrap_or_default();
        let still_runs = number.trim().parse().is_ok_and(exists);
        recorded.check(!still_runs, "it still runs, or is a zombie");
        recorded.check(!recorded.stderr.contains("still runs"), "it is said to run");
    }
}
