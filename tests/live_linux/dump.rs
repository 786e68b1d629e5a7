//! `dump`: it shows the actual state of a live program, which continues.

use std::process::{Command, Stdio};

use crate::signals::Job;
use crate::support::{
    Fixture, assert_untouched, kill, live, proc_status, stackprof, states, tids, tracer_of, wait_for,
};

/// Exit code, standard output and standard error of a dump.
fn run(arguments: &[&str], pid: u32) -> (Option<i32>, String, String) {
    let output = stackprof().arg("dump").args(arguments).args(["--pid", &pid.to_string()]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn dump(what: &str, pid: u32) -> String {
    let (code, stdout, stderr) = run(&[what], pid);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "dump {what}");
    assert_untouched(pid, format!("dump {what}"));
    stdout
}

/// Waits until all threads of `threads` have set their names.
fn wait_for_workers(pid: u32, count: usize) {
    let named = |tid: &u32| proc_status(*tid, "Name").is_some_and(|name| name.starts_with("worker"));
    wait_for("the workers", || tids(pid).iter().filter(|tid| named(tid)).count() == count);
}

/// The function names of a stack, leaf first, below the line of its thread.
fn names(stack: &str) -> Vec<&str> {
    stack.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3)).collect()
}

fn threads_of(stacks: &str) -> Vec<&str> {
    stacks.split("\n\n").filter(|text| text.starts_with("thread")).collect()
}

#[test]
fn a_dump_shows_a_live_program_that_continues() {
    if !live() {
        return;
    }
    let mut target = Fixture::start("threads", ["3", "12", "told"]);
    target.line("ready");
    target.go();
    let pid = target.pid();
    wait_for_workers(pid, 3);

    let threads = dump("threads", pid);
    for name in ["threads", "worker0", "worker1", "worker2"] {
        assert!(threads.lines().any(|line| line.ends_with(&format!("  {name}"))), "no {name} in\n{threads}");
    }
    assert_eq!(threads.lines().count(), 5, "{threads}");

    let images = dump("images", pid);
    for file in ["live/threads", "libc.so", "[vdso]"] {
        assert!(images.contains(file), "no {file} in\n{images}");
    }

    let symbols = dump("symbols", pid);
    for function in ["main", "recurse", "work", "work_leaf"] {
        assert!(
            symbols.lines().any(|line| line.split_whitespace().any(|word| word == function)),
            "no {function} in the symbols"
        );
    }

    let stacks = dump("stacks", pid);
    assert_eq!(threads_of(&stacks).len(), 4, "{stacks}");
    for text in threads_of(&stacks) {
        let names = names(text);
        let first = text.lines().next().unwrap_or_default();
        if first.contains("(worker") {
            let recursions = names.iter().filter(|name| **name == "recurse").count();
            let (work, start) = (names.contains(&"work"), names.contains(&"start"));
            assert!(recursions == 12 && work && start, "{text}");
        } else {
            assert!(names.contains(&"main"), "{text}");
        }
    }
    target.tell("enough");
    assert_eq!(target.done().len(), 4);
    assert!(target.finish().0.success());
    check_depth();
}

fn check_depth() {
    const DEPTH: usize = 20_000;
    let mut target = Fixture::start("threads", ["1", &DEPTH.to_string(), "told"]);
    target.line("ready");
    let pid = target.pid();
    let of_worker = |arguments: &[&str]| {
        let (code, stacks, stderr) = run(arguments, pid);
        assert_eq!((code, stderr.as_str()), (Some(0), ""));
        // It sets that name last.
        stacks.split("\n\n").find(|text| text.contains("(worker0)")).unwrap_or_default().to_owned()
    };
    // It waits at the deepest call for its input.
    let limited = "(worker0) waiting, incomplete: depth limit (1024 frames; --max-depth shows more)";
    wait_for("the recursion's end", || {
        of_worker(&["stacks"]).lines().next().unwrap_or_default().ends_with(limited)
    });
    let whole = of_worker(&["stacks", "--max-depth", "200000"]);
    let (first, names) = (whole.lines().next().unwrap_or_default(), names(&whole));
    assert!(first.ends_with("(worker0) waiting"), "{first}");
    assert_eq!(names.iter().filter(|name| **name == "recurse").count(), DEPTH);
    assert!(names.contains(&"start"), "{:?}", names.last());
}

#[test]
fn stopped_programs_are_shown_and_left_stopped() {
    if !live() {
        return;
    }
    let mut job = Job::start("threads", &["3", "12", "told"]);
    job.parent.go();
    wait_for_workers(job.pid(), 3);
    job.stop();
    // Twice: remains of the first must not prevent the second.
    for _ in 0..2 {
        let (code, stacks, stderr) = run(&["stacks"], job.pid());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stacks}");
        wait_for("the profiler to let go", || tracer_of(job.pid()) == 0);
        wait_for("the stop to be its own again", || states(job.pid()).chars().all(|state| state == 'T'));
        job.assert_stands("dumped");
        assert_eq!(threads_of(&stacks).len(), 4, "{stacks}");
        for text in threads_of(&stacks) {
            let first = text.lines().next().unwrap_or_default();
            assert!(first.ends_with(") stopped"), "{text}");
            let first_function = if first.contains("(worker") { "start" } else { "main" };
            assert!(names(text).contains(&first_function), "{text}");
        }
    }
    // Its parent is notified only of the end of the stop.
    kill("CONT", job.pid());
    assert_eq!(job.parent.next_line(), "continued");
    job.parent.tell("enough");
    job.parent.line("done");
    assert_eq!(job.end(), "exited 0");

    // A thread that cannot be stopped: it waits for its child in vfork.
    let mut target = Fixture::start::<&str>("vfork", []);
    target.line("ready");
    let pid = target.pid();
    wait_for("its vfork", || states(pid) == "D");
    let (code, stacks, stderr) = run(&["stacks"], pid);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stacks}");
    // Its return address is in a register, which is not visible.
    assert!(stacks.starts_with(&format!("thread {pid} (vfork) waiting")), "{stacks}");
    assert!(stacks.contains("vfork  ("), "its function, and its library: {stacks}");
    assert_untouched(pid, "dumped in vain");
    assert!(target.finish().0.success());
}

/// A dump of a starting program waits for it: during an exec a process has no mappings, and those read before
/// may be another program's.
#[test]
fn a_dump_waits_for_a_starting_program() {
    if !live() {
        return;
    }
    let mut target = Fixture::start("again", ["0"]);
    target.line("ready");
    target.go();
    // It is in an exec most of the time: half of all attempts hit one.
    for what in ["images", "symbols", "stacks"].iter().cycle().take(18) {
        let (code, stdout, stderr) = run(&[what], target.pid());
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "dump {what}: {stdout}");
    }
    kill("KILL", target.pid());

    // As `./program & stackprof dump images --pid $!`.
    for _ in 0..8 {
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", "read go; exec sleep 60"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let input = child.stdin.take();
        let begins = std::thread::spawn(move || drop(input));
        let (code, images, stderr) = run(&["images"], pid);
        begins.join().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{images}");
        assert!(images.lines().count() > 1, "{images}");
    }
}
