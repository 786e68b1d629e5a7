//! Files that a target replaces: pipes, links, devices, and file systems that do not answer. The recording
//! ends, nothing stays stopped, and unreadable files have no names and a reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Recorded, assert_untouched, attach, compile, is_root, make_fifo, not_here, record_until,
    sources, wait_for_more_cpu_time,
};

fn plugin() -> PathBuf {
    compile("plugin", "libplugin_named.so", &["-shared", "-fPIC", "-DNAME=named", "-Wl,--build-id=sha1"])
}

/// A program that has loaded a library and run its code.
fn loaded(library: &Path) -> Fixture {
    let mut target = Fixture::start("loader", [""; 0]);
    target.line("ready");
    target.tell(&format!("load {}", library.display()));
    target.line("loaded at");
    target.tell("run 1");
    target.line("ran");
    target
}

/// Records it while it works, until `shows` is true.
#[track_caller]
fn check(what: &str, target: &mut Fixture, source: &str, shows: impl Fn(&Recorded) -> bool) -> Recorded {
    target.tell("run 600000");
    let pid = target.pid();
    let recorded = || {
        let running = attach(pid, &["--source", source, "--hz", "997", "-v"]);
        wait_for_more_cpu_time(pid, Duration::from_millis(100));
        let recorded = running.interrupt();
        assert_untouched(pid, format!("{what}, {source}"));
        recorded
    };
    record_until(format!("{what}, {source}"), recorded, shows)
}

fn is_named(recorded: &Recorded) -> bool {
    recorded.shows(|stack| stack.has("plugin_named"))
}

/// Mounts a file over another, until dropped.
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
fn a_replaced_library_is_neither_opened_nor_waited_for() {
    for source in sources() {
        // /proc/PID/maps shows both names alike.
        for (name, pipe) in [("lib\\012.so", "lib\n.so"), ("lib\n.so", "lib\\012.so")] {
            let dir = TempDir::new().unwrap();
            let (library, link) = (dir.path().join(name), dir.path().join("link.so"));
            fs::copy(plugin(), &library).unwrap();
            std::os::unix::fs::symlink(&library, &link).unwrap();
            make_fifo(&dir.path().join(pipe));
            check("a name that looks like another", &mut loaded(&link), source, is_named);
        }
        if !is_root() {
            not_here("mounting needs root");
            continue;
        }
        let dir = TempDir::new().unwrap();
        let (library, fifo) = (dir.path().join("lib.so"), dir.path().join("fifo"));
        make_fifo(&fifo);
        for what in [&fifo, Path::new("/dev/ptmx"), Path::new("/proc/kmsg"), Path::new("/proc/1/mem")] {
            fs::copy(plugin(), &library).unwrap();
            let mut target = loaded(&library);
            let Some(over) = Over::mount(what, &library) else { return not_here("mounting is refused") };
            // The kernel's own link leads to the file if it may be followed.
            check(&format!("{} over the library", what.display()), &mut target, source, |recorded| {
                is_named(recorded)
                    || ["not a regular file", "procfs"].iter().any(|why| recorded.stderr.contains(why))
            });
            drop(over);
            fs::remove_file(&library).unwrap();
        }
    }
}

/// A file system with a library, from a server that answers until it is told not to.
fn served(dir: &Path) -> Option<Fixture> {
    if !is_root() || fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        not_here("file systems in user space need root and /dev/fuse");
        return None;
    }
    let mut server = Fixture::start("fuse_server", [dir, &plugin()]);
    server.line("ready");
    Some(server)
}

/// It accepts no requests, or accepts them and does not answer: a thread waiting for that cannot be ended.
#[test]
fn a_hanging_file_system_delays_nothing() {
    let case = |source: &str, how: &str| {
        let dir = TempDir::new().unwrap();
        let Some(mut server) = served(dir.path()) else { return };
        let mut target = loaded(&dir.path().join("lib.so"));
        if how == "answers" {
            check("a library in user space", &mut target, source, is_named);
        } else {
            server.tell(how);
            server.line("done");
            let recorded = check("its place", &mut target, source, |recorded| {
                let placed = |frame: &String| frame.starts_with("[lib.so+0x");
                recorded.shows(|stack| stack.frames.iter().any(placed))
                    && recorded.shows(|stack| stack.has("main"))
            });
            recorded.check(!is_named(&recorded), "names from nowhere");
            recorded.check(recorded.stderr.contains("its file system does not answer"), "no reason");
        }
        server.finish();
    };
    // Each waits for seconds, mostly idle.
    std::thread::scope(|scope| {
        for (source, how) in sources().iter().zip(["silent", "keep"]) {
            scope.spawn(move || case(source, how));
            scope.spawn(move || case(source, "answers"));
        }
    });
}
