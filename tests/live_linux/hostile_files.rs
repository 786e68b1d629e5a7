//! What a target puts in the place of its files: pipes, links, devices, and file systems that do not answer.
//! The recording ends, nobody stands, and what cannot be read has no name and a reason.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Recorded, Stack, assert_untouched, attach, compile, live, live_alone, not_here, stackprof,
    wait_for_more_cpu_time,
};

/// The sources of samples that there are here.
fn sources() -> Vec<&'static str> {
    let tried = stackprof().args(["-q", "--source", "perf", "-o", "-", "--", "true"]).output().unwrap();
    if tried.status.code() == Some(1) {
        not_here("perf_event is refused");
        return vec!["ptrace"];
    }
    vec!["ptrace", "perf"]
}

fn plugin() -> PathBuf {
    compile("plugin", "libplugin_named.so", &["-shared", "-fPIC", "-DNAME=named", "-Wl,--build-id=sha1"])
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A program that has loaded a library and run code of it.
fn loaded(library: &Path) -> Fixture {
    let mut target = Fixture::start("loader", [""; 0]);
    target.line("ready");
    target.tell(&format!("load {}", library.display()));
    target.line("loaded at");
    target.tell("run 1");
    target.line("ran");
    target
}

/// Records it while it works.
fn recorded(target: &mut Fixture, source: &str) -> Recorded {
    recorded_for(target, source, Duration::from_millis(200))
}

/// Records so much of its CPU time.
fn recorded_for(target: &mut Fixture, source: &str, least: Duration) -> Recorded {
    target.tell("run 60000");
    let running = attach(target.pid(), &["--source", source, "--hz", "997", "-v"]);
    wait_for_more_cpu_time(target.pid(), least);
    let recorded = running.interrupt();
    recorded.check_success();
    assert_untouched(target.pid(), "after the recording");
    recorded
}

#[test]
fn a_pipe_under_the_name_that_a_library_seems_to_have_is_not_waited_for() {
    let Some(_one) = live() else { return };
    for source in sources() {
        let dir = TempDir::new().unwrap();
        // /proc/PID/maps shows both names in the same way.
        let library = dir.path().join("lib\\012.so");
        fs::copy(plugin(), &library).unwrap();
        make_fifo(&dir.path().join("lib\n.so"));
        let recorded = recorded(&mut loaded(&library), source);
        recorded.check(recorded.count(|stack| stack.has("plugin_named")) > 0, "no names of the library");
    }
}

#[test]
fn a_library_whose_name_holds_a_newline_has_names() {
    let Some(_one) = live() else { return };
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let (library, link) = (dir.path().join("lib\n.so"), dir.path().join("link.so"));
        fs::copy(plugin(), &library).unwrap();
        std::os::unix::fs::symlink(&library, &link).unwrap();
        make_fifo(&dir.path().join("lib\\012.so"));
        let recorded = recorded(&mut loaded(&link), source);
        recorded.check(recorded.count(|stack| stack.has("plugin_named")) > 0, "no names of the library");
    }
}

/// Mounts a file over another, until it is dropped.
struct Over<'a>(&'a Path);

impl Over<'_> {
    fn mount<'a>(what: &Path, over: &'a Path) -> Option<Over<'a>> {
        let mounted = Command::new("mount").arg("--bind").args([what, over]).output().unwrap();
        mounted.status.success().then_some(Over(over))
    }
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn what_is_mounted_over_a_library_is_neither_opened_nor_waited_for() {
    let Some(_one) = live() else { return };
    if !is_root() {
        return not_here("mounting needs root");
    }
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let (library, fifo) = (dir.path().join("lib.so"), dir.path().join("fifo"));
        make_fifo(&fifo);
        for what in [&fifo, Path::new("/dev/ptmx"), Path::new("/proc/kmsg"), Path::new("/proc/1/mem")] {
            fs::copy(plugin(), &library).unwrap();
            let mut target = loaded(&library);
            let Some(over) = Over::mount(what, &library) else { return not_here("mounting is refused") };
            let recorded = recorded(&mut target, source);
            drop(over);
            // The kernel's own link leads to the file where that may be followed.
            let named = recorded.count(|stack| stack.has("plugin_named"));
            let reasoned = ["not a regular file", "procfs"].iter().any(|why| recorded.stderr.contains(why));
            recorded.check(named > 0 || reasoned, format!("neither names nor a reason: {}", what.display()));
            fs::remove_file(&library).unwrap();
        }
    }
}

/// A file system with a library, of a server that answers as long as it is not told otherwise.
fn served(dir: &Path) -> Option<Fixture> {
    if !is_root() || fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        not_here("file systems in user space need root and /dev/fuse");
        return None;
    }
    let mut server = Fixture::start("fuse_server", [dir, &plugin()]);
    server.line("ready");
    Some(server)
}

/// Records a program whose library is on a file system that answers no more, in one of two ways.
#[track_caller]
fn check_silent(how: &str) {
    let Some(_one) = live_alone() else { return };
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let Some(mut server) = served(dir.path()) else { return };
        let mut target = loaded(&dir.path().join("lib.so"));
        server.tell(how);
        server.line("done");
        // More than the profiler waits for all files of a process: it takes no samples meanwhile.
        let recorded = recorded_for(&mut target, source, Duration::from_secs(4));
        recorded.check(recorded.count(|stack| stack.has("plugin_named")) == 0, "names from nowhere");
        let shown = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("[lib.so+0x"));
        recorded.check(recorded.count(shown) > 0, "the library is not shown");
        recorded.check(recorded.stderr.contains("its file system does not answer"), "no reason");
        recorded.check(recorded.count(|stack| stack.has("main")) > 0, "nothing else has a name");
        server.finish();
    }
}

#[test]
fn a_file_system_that_takes_no_requests_holds_nobody_up() {
    check_silent("silent");
}

/// A thread that waits for such a server cannot be ended.
#[test]
fn a_file_system_that_takes_requests_and_does_not_answer_holds_nobody_up() {
    check_silent("keep");
}

#[test]
fn a_library_on_a_file_system_in_user_space_has_names() {
    let Some(_one) = live_alone() else { return };
    for source in sources() {
        let dir = TempDir::new().unwrap();
        let Some(server) = served(dir.path()) else { return };
        let recorded = recorded(&mut loaded(&dir.path().join("lib.so")), source);
        recorded.check(recorded.count(|stack| stack.has("plugin_named")) > 0, "no names of the library");
        server.finish();
    }
}
