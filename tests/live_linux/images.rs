//! Images of a live program: libraries that are loaded and lose their files keep their names, or show
//! `[library+0x…]`; code never gets a name from a different file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{
    Fixture, assert_untouched, attach, compile, fixture, is_root, live, not_here, record_until, sources,
};

/// A library with the function `plugin_NAME`. Without build ids two of them have equal heads.
fn plugin(name: &str, build_id: bool) -> PathBuf {
    let id = if build_id { "-Wl,--build-id=sha1" } else { "-Wl,--build-id=none" };
    let file = format!("libplugin_{name}{}.so", if build_id { "" } else { "_without_id" });
    compile("plugin", &file, &["-shared", "-fPIC", &format!("-DNAME={name}"), id])
}

fn load(target: &mut Fixture, library: &Path) {
    target.tell(&format!("load {}", library.display()));
    target.line("loaded at");
}

fn run(target: &mut Fixture, milliseconds: u32) {
    target.tell(&format!("run {milliseconds}"));
    target.line("ran");
}

#[test]
fn a_library_loaded_while_recording_has_names() {
    for source in sources() {
        let recorded = || {
            let mut target = Fixture::start("loader", [""; 0]);
            target.line("ready");
            let running = attach(target.pid(), &["--hz", "997", "--source", source]);
            load(&mut target, &plugin("alpha", true));
            run(&mut target, 150);
            let recorded = running.interrupt();
            assert_untouched(target.pid(), "after the recording");
            recorded.check_none("it is not where it was called", |stack| {
                stack.has("plugin_alpha")
                    && stack.is_complete()
                    && !stack.has_path(&["plugin_entry", "plugin_alpha"])
            });
            assert!(target.finish().0.success());
            recorded
        };
        record_until("the library's function", recorded, |recorded| {
            recorded.shows(|stack| stack.has_path(&["main", "plugin_entry", "plugin_alpha"]))
        });
    }
}

/// A change of a library's file; `None`, after a message, if it is not possible.
type Change = fn(&Path, &Fixture, bool) -> Option<()>;

fn delete(library: &Path, _: &Fixture, _: bool) -> Option<()> {
    fs::remove_file(library).ok()
}

fn replace(library: &Path, _: &Fixture, build_id: bool) -> Option<()> {
    let fresh = library.with_extension("new");
    fs::copy(plugin("after", build_id), &fresh).unwrap();
    fs::rename(&fresh, library).ok()
}

/// Mounts another file over the library's, in the target's mount namespace.
fn hide(library: &Path, target: &Fixture, build_id: bool) -> Option<()> {
    let mut mount = Command::new("nsenter");
    mount.args(["--mount", "--target", &target.pid().to_string(), "mount", "--bind"]);
    let output = mount.arg(plugin("after", build_id)).arg(library).output();
    let mounted = output.as_ref().is_ok_and(|output| output.status.success());
    if !mounted {
        not_here(&format!("a file cannot be mounted over another one: {output:?}"));
    }
    mounted.then_some(())
}

#[test]
fn code_of_changed_files_gets_no_foreign_names() {
    if !live() {
        return;
    }
    let cases: [(&str, Change, bool); 5] = [
        ("deleted", delete, true),
        ("replaced", replace, true),
        ("replaced, without a build id", replace, false),
        ("hidden", hide, true),
        ("hidden, without a build id", hide, false),
    ];
    for (what, change, build_id) in cases {
        let dir = TempDir::new().unwrap();
        let library = dir.path().join("libchanging.so");
        fs::copy(plugin("before", build_id), &library).unwrap();
        let mut own_mounts = Command::new("unshare");
        own_mounts.args(["--mount", "--propagation", "private"]).arg(fixture("loader"));
        let mut target =
            if is_root() { Fixture::run(&mut own_mounts) } else { Fixture::start("loader", [""; 0]) };
        if target.next_line() != "ready" {
            return not_here("mounts cannot be unshared");
        }
        load(&mut target, &library);
        if change(&library, &target, build_id).is_none() {
            continue;
        }
        for source in sources() {
            let recorded = || {
                let running = attach(target.pid(), &["--hz", "997", "--source", source]);
                run(&mut target, 100);
                let recorded = running.interrupt();
                assert_untouched(target.pid(), "after the recording");
                recorded.check_none(format!("{what}: the other file's"), |stack| stack.has("plugin_after"));
                recorded
            };
            // Only root can read a deleted file; for others its path is checked.
            record_until(format!("{what}, {source}"), recorded, |recorded| {
                let placed = |frame: &String| frame.starts_with("[libchanging.so+0x");
                recorded.shows(|stack| stack.has("plugin_before"))
                    || !is_root() && recorded.shows(|stack| stack.frames.iter().any(placed))
            });
        }
    }
    check_namespace();
}

/// A program that exists only in its own mount namespace; in this test's, another program has its path.
fn check_namespace() {
    let dir = TempDir::new().unwrap();
    fs::copy(fixture("loader"), dir.path().join("inside")).unwrap();
    // `sh`, so that errors of mount or unshare appear in place of `ready`.
    let script = "exec 2>&1; exec unshare --mount --propagation private sh -c \
                  'mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/inside\" && exec \"$1/inside\" 600 20' - \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "-"]).arg(dir.path()).arg(fixture("shares"));
    let mut target = Fixture::run(&mut command);
    let said = target.next_line();
    if said != "ready" {
        return not_here(&format!("no program can be run in a mount namespace of its own: {said}"));
    }
    for source in sources() {
        let recorded = || attach(target.pid(), &["--hz", "997", "-d", "0.2", "--source", source]).wait();
        record_until("the functions of the program inside", recorded, |recorded| {
            recorded.shows(|stack| stack.has("main") && stack.has("recurse") && stack.leaf() == "leaf_50")
        });
    }
}
