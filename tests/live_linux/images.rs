//! Images of a live program: libraries that come, go and lose their files keep their
//! names, or show `[library+0x…]`; no code ever gets the name of another file's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Recorded, Running, assert_untouched, attach, compile, fixture, live, not_here, wait_for_ticks,
};

const SHARED: [&str; 2] = ["-shared", "-fPIC"];

/// Longer than a recording takes to notice that a library has gone when nothing else
/// makes it look: a second, and what its thread may have to wait for a CPU.
const NOTICED: Duration = Duration::from_millis(2500);

/// A library with the function `plugin_NAME`. Without build ids nothing in the heads of
/// two of them differs.
fn plugin(name: &str, build_id: bool) -> PathBuf {
    let id = if build_id { "-Wl,--build-id=sha1" } else { "-Wl,--build-id=none" };
    let define = format!("-DNAME={name}");
    let file = format!("libplugin_{name}{}.so", if build_id { "" } else { "_without_id" });
    compile("plugin", &file, &[&SHARED[..], &[&define, id]].concat())
}

fn load(target: &mut Fixture, library: &Path) -> String {
    target.tell(&format!("load {}", library.display()));
    target.line("loaded at")
}

fn run(target: &mut Fixture, milliseconds: u32) {
    target.tell(&format!("run {milliseconds}"));
    target.line("ran");
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Percentage of the counts whose stacks have a function.
fn share(recorded: &Recorded, name: &str) -> f64 {
    let share = 100.0 * recorded.count(|stack| stack.has(name)) as f64 / recorded.total().max(1) as f64;
    println!("{name} {share:.2} % of {}", recorded.total());
    share
}

/// What is checked of every recording here: it has `milliseconds` of work at 997 Hz, nearly
/// all of it below main, and the target goes on.
#[track_caller]
fn check_recording(recorded: &Recorded, target: &Fixture, milliseconds: f64) {
    recorded.check_success();
    assert_untouched(target.pid(), "after the recording");
    let total = recorded.total() as f64;
    let lost = recorded.lost() as f64;
    let all = total + lost;
    recorded.check(all >= milliseconds * 0.9 && all <= milliseconds * 1.2, format!("{total} counts"));
    // Reading the clock leads through a function of libc without a frame pointer, behind
    // which main is lost: on a quick machine that is some percent of the turns.
    recorded.check(share(recorded, "main") >= 90.0, "main is not below nearly everything");
    // What it used after the last look, which may come late on a machine with other work.
    recorded.check(lost <= total * 0.15, "counts were lost");
}

#[test]
fn a_library_loaded_while_recording_has_names() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("loader", [""; 0]);
    target.line("ready");
    let running = attach(target.pid(), &["--hz", "997"]);
    load(&mut target, &plugin("alpha", true));
    run(&mut target, 1000);
    let recorded = running.interrupt();
    check_recording(&recorded, &target, 1000.0);
    recorded.check(share(&recorded, "plugin_alpha") >= 90.0, "the library's function is not named");
    let below = recorded.count(|stack| {
        stack.frames.windows(3).any(|frames| frames == ["main", "plugin_entry", "plugin_alpha"])
    });
    recorded.check(below as f64 >= 0.9 * recorded.total() as f64, "it is not where it was called");
    assert!(target.finish().0.success());
}

/// Records a loaded library after `change` was done to its file; checks that its code has
/// its own names, or none where only root can read what was deleted.
#[track_caller]
fn check_changed_file(build_id: bool, change: impl FnOnce(&Path, &Fixture) -> Option<()>) {
    let Some(_one) = live() else { return };
    let dir = TempDir::new().unwrap();
    let library = dir.path().join("libchanging.so");
    fs::copy(plugin("before", build_id), &library).unwrap();
    let mut own_mounts = Command::new("unshare");
    own_mounts.args(["--mount", "--propagation", "private"]).arg(fixture("loader"));
    let mut target =
        if is_root() { Fixture::run(&mut own_mounts) } else { Fixture::start("loader", [""; 0]) };
    let said = target.next_line();
    if said != "ready" {
        return not_here("mounts cannot be unshared");
    }
    load(&mut target, &library);
    if change(&library, &target).is_none() {
        return;
    }
    let running = attach(target.pid(), &["--hz", "997"]);
    run(&mut target, 1000);
    let recorded = running.interrupt();
    check_recording(&recorded, &target, 1000.0);
    recorded.check(share(&recorded, "plugin_after") == 0.0, "named after the other file");
    let right = share(&recorded, "plugin_before");
    let unnamed = recorded.count(|stack| stack.leaf().starts_with("[libchanging.so+0x")) as f64;
    if is_root() {
        recorded.check(right >= 90.0, "not named although root can read the file");
    } else {
        let unnamed = 100.0 * unnamed / recorded.total() as f64;
        recorded.check(right + unnamed >= 90.0, "neither named nor shown by its library");
    }
}

#[track_caller]
fn check_replaced(build_id: bool) {
    check_changed_file(build_id, |library, _| {
        let fresh = library.with_extension("new");
        fs::copy(plugin("after", build_id), &fresh).unwrap();
        fs::rename(&fresh, library).ok()
    });
}

/// Another file is mounted over the library's, in the target's mount namespace.
#[track_caller]
fn check_hidden(build_id: bool) {
    check_changed_file(build_id, |library, target| {
        let mut mount = Command::new("nsenter");
        mount.args(["--mount", "--target", &target.pid().to_string(), "mount", "--bind"]);
        let output = mount.arg(plugin("after", build_id)).arg(library).output();
        let mounted = output.as_ref().is_ok_and(|output| output.status.success());
        if !mounted {
            not_here(&format!("a file cannot be mounted over another one: {output:?}"));
        }
        mounted.then_some(())
    });
}

#[test]
fn a_deleted_library_has_names() {
    check_changed_file(true, |library, _| fs::remove_file(library).ok());
}

#[test]
fn a_replaced_library_is_not_taken_for_the_new_one() {
    check_replaced(true);
}

#[test]
fn a_replaced_library_without_build_id_is_not_taken_for_the_new_one() {
    check_replaced(false);
}

#[test]
fn a_library_hidden_by_a_mount_is_not_taken_for_the_other_one() {
    check_hidden(true);
}

#[test]
fn a_library_without_build_id_hidden_by_a_mount_is_not_taken_for_the_other_one() {
    check_hidden(false);
}

/// Records a program that has two libraries one after the other, for so many milliseconds each; the shares of their
/// functions, in per cent. `unloaded` is called when the first one has gone.
fn one_after_the_other(
    first_ms: u32,
    unloaded: impl FnOnce(&Running),
    second_ms: u32,
) -> (Recorded, f64, f64) {
    let mut target = Fixture::start("loader", [""; 0]);
    target.line("ready");
    let running = attach(target.pid(), &["--hz", "997"]);
    let first = load(&mut target, &plugin("first", true));
    run(&mut target, first_ms);
    target.tell("unload");
    target.line("unloaded");
    unloaded(&running);
    let second = load(&mut target, &plugin("second", true));
    run(&mut target, second_ms);
    println!("plugin_entry at {first}, then at {second}");
    let recorded = running.interrupt();
    check_recording(&recorded, &target, f64::from(first_ms + second_ms));
    let (first, second) = (share(&recorded, "plugin_first"), share(&recorded, "plugin_second"));
    (recorded, first, second)
}

#[test]
fn libraries_have_their_names_each_in_its_own_time() {
    let Some(_one) = live() else { return };
    let is_noticed = |running: &Running| {
        sleep(NOTICED);
        wait_for_ticks("the library's absence", running.pid());
    };
    let (recorded, first, second) = one_after_the_other(1000, is_noticed, 500);
    recorded.check((first - 66.7).abs() < 8.0, format!("the first library has {first} % instead of 66.7"));
    recorded.check((second - 33.3).abs() < 8.0, format!("the second library has {second} % instead of 33.3"));
}

/// The same without a pause: the address may get its new name a second late, not later.
#[test]
fn a_library_at_the_address_of_another_is_noticed_within_a_second() {
    let Some(_one) = live() else { return };
    let recorded_both = || {
        let (recorded, first, second) = one_after_the_other(1000, |_| {}, 3000);
        recorded.check(first >= 22.0, format!("the first library has {first} %"));
        recorded.check(first + second >= 90.0, "neither library's");
        (recorded, first)
    };
    let is_in_time = |first: f64| first <= 53.0;
    let (mut recorded, mut first) = recorded_both();
    if !is_in_time(first) {
        // A profiler without a CPU looks late, of which it knows nothing.
        println!("recorded again: the first library has {first} %");
        (recorded, first) = recorded_both();
    }
    recorded.check(is_in_time(first), format!("the first library has {first} %"));
}

/// A program that only exists in its own mount namespace; where this test looks, another
/// program has its path.
#[test]
fn a_program_in_another_mount_namespace_has_names() {
    let Some(_one) = live() else { return };
    let dir = TempDir::new().unwrap();
    let inside = dir.path().join("inside");
    fs::copy(fixture("loader"), &inside).unwrap();
    // `sh` so that what mount or unshare say comes where `ready` would.
    let script = "exec 2>&1; exec unshare --mount --propagation private sh -c \
                  'mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/inside\" && exec \"$1/inside\" 20 20' - \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "-"]).arg(dir.path()).arg(fixture("shares"));
    let mut target = Fixture::run(&mut command);
    let said = target.next_line();
    if said != "ready" {
        return not_here(&format!("no program can be run in a mount namespace of its own: {said}"));
    }
    let recorded = attach(target.pid(), &["--hz", "997", "--duration", "2"]).wait();
    recorded.check_success();
    assert_untouched(target.pid(), "after the recording");
    recorded.check(recorded.total() > 50, "hardly anything was sampled");
    for name in ["main", "recurse"] {
        recorded.check(share(&recorded, name) >= 90.0, format!("{name} is not named"));
    }
    // How much of each is what the tests of shares are about.
    for name in ["leaf_50", "leaf_30", "leaf_15", "leaf_5"] {
        recorded.check(recorded.count(|stack| stack.leaf() == name) > 0, format!("{name} is not named"));
    }
}
