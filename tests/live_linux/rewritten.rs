//! Files that are rewritten in place, with the same inode, while they are recorded: no name of the new
//! content for code of the old one, and no SIGBUS where nothing is left of it.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::by_kernel_tree::{tree, under};
use crate::support::{Fixture, Recorded, attach, compile, launch, live, not_here, stackprof};

/// What is said of such a file.
const TOLD: &str = "have no names: replaced on disk since it was loaded";

/// The sources of samples that there are here.
fn sources() -> Vec<&'static str> {
    let tried = stackprof().args(["-q", "--source", "perf", "-o", "-", "--", "true"]).output().unwrap();
    if tried.status.code() == Some(1) {
        not_here("perf_event is refused");
        return vec!["ptrace"];
    }
    vec!["ptrace", "perf"]
}

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
    let recorded = launch(&["--hz", "997", "--source", source], "/bin/sh".as_ref(), &arguments);
    recorded.check_success();
    (recorded, app)
}

/// Checks that half a second of a program whose file is another's afterwards has no names of either.
fn check_rewritten(script: &str) {
    let Some(_one) = live() else { return };
    for source in sources() {
        let (recorded, app) = recorded(source, script);
        let all = under(&recorded, "app", "");
        recorded.check(all > 300, format!("{all} counts"));
        for name in ["burn_in_early", "burn_in_later", "burn", "main"] {
            recorded.check(under(&recorded, "app", name) == 0, format!("{name} by {source}"));
        }
        let shown = recorded.count(|stack| stack.frames.iter().any(|frame| frame.starts_with("[app+0x")));
        recorded.check(shown * 10 > all * 9, format!("{shown} of {all} by their file"));
        let told = format!("functions of {} {TOLD}", app.display());
        recorded.check(recorded.stderr.contains(&told), "not told");
    }
}

#[test]
fn a_program_overwritten_by_a_shorter_one_is_not_named_after_it() {
    check_rewritten("\"$0\" burn 500000; head -c 5000 \"$1\" > \"$0\"");
}

#[test]
fn a_program_overwritten_by_one_of_its_length_is_not_named_after_it() {
    check_rewritten("\"$0\" burn 500000; cat \"$1\" > \"$0\"");
}

#[test]
fn a_program_overwritten_with_the_time_of_the_old_one_is_not_named_after_it() {
    check_rewritten(
        "\"$0\" burn 500000; touch -r \"$0\" \"$0.time\"; cat \"$1\" > \"$0\"; touch -r \"$0.time\" \"$0\"",
    );
}

#[test]
fn a_program_that_is_removed_keeps_its_names() {
    let Some(_one) = live() else { return };
    for source in sources() {
        let (recorded, _) = recorded(source, "\"$0\" burn 500000; mv \"$1\" \"$0\"");
        let named = under(&recorded, "app", "burn_in_early");
        recorded.check(named > 300, format!("{named} counts by {source}"));
    }
}

/// Both run, each in its time: the file of the second is read anew.
#[test]
fn the_program_that_overwrote_another_has_its_own_names() {
    let Some(_one) = live() else { return };
    for source in sources() {
        let (recorded, _) =
            recorded(source, "\"$0\" burn 500000; cat \"$1\" > \"$0\"; \"$0\" burn 500000; :");
        let all = under(&recorded, "app", "");
        let named = under(&recorded, "app", "burn_in_later");
        recorded.check(under(&recorded, "app", "burn_in_early") == 0, "named by what is overwritten");
        recorded.check((350..=650).contains(&named), format!("{named} of {all} by {source}"));
        recorded.check(recorded.stderr.contains(TOLD), "not told");
    }
}

/// By the kernel's samples a process is heard of when it may have ended.
#[test]
fn short_programs_that_are_overwritten_at_once_have_no_names_of_others() {
    let Some(_one) = live() else { return };
    for source in sources() {
        let turn = "cat \"$0.first\" > \"$0\"; \"$0\" burn 8000; cat \"$1\" > \"$0\"; sleep 0.1";
        let script = format!("cp \"$0\" \"$0.first\"; for i in 1 2 3 4 5 6 7 8 9 10; do {turn}; done");
        let (recorded, _) = recorded(source, &script);
        let all = under(&recorded, "app", "");
        recorded.check(all > 20, format!("{all} counts"));
        let wrong = under(&recorded, "app", "burn_in_later");
        recorded.check(wrong == 0, format!("{wrong} of {all} by {source}"));
    }
}

/// A program truncates a library that it has mapped, which nobody can keep it from.
#[test]
fn a_mapped_library_that_is_truncated_ends_no_recording() {
    let Some(_one) = live() else { return };
    let plugin = compile("plugin", "libplugin_cut.so", &["-shared", "-fPIC", "-DNAME=cut"]);
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let library = dir.path().join("libcut.so");
        fs::copy(&plugin, &library).unwrap();
        let mut target = Fixture::start("loader", [""; 0]);
        target.line("ready");
        let running = attach(target.pid(), &["--hz", "997", "--source", source]);
        target.tell(&format!("load {}", library.display()));
        target.line("loaded at");
        target.tell("run 500");
        target.line("ran");
        fs::File::options().write(true).open(&library).unwrap().set_len(0).unwrap();
        let recorded = running.interrupt();
        recorded.check_success();
        recorded.check(recorded.total() > 300, "hardly anything was recorded");
        recorded.check(recorded.count(|stack| stack.has("plugin_cut")) == 0, "named by what is gone");
        recorded.check(recorded.stderr.contains(&format!("libcut.so {TOLD}")), "not told");
    }
}
