//! Refusals: one line that names the process and the next step, exit code 1, no files; the process is
//! unchanged.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{
    Fixture, Killed, Running, Somebody, assert_untouched, kill, live, not_here, proc_status, record,
    record_by, record_until, sources, states, tids, tracer_of, wait_for,
};

/// The line of a refusal, after checking the properties common to all of them.
#[track_caller]
fn refused(running: Running, pid: u32, name: Option<&str>) -> String {
    let recorded = running.wait();
    recorded.check(recorded.status.code() == Some(1), "the exit code is not 1");
    recorded.check(recorded.stdout.is_empty(), "standard output was written to");
    recorded.check(recorded.files.is_empty(), format!("files were left: {:?}", recorded.files));
    let said = recorded.stderr.trim_end_matches('\n');
    recorded.check(!said.contains('\n'), "more than one line");
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    let begin = format!("stackprof: cannot attach to pid {pid}{name}: ");
    recorded.check(said.starts_with(&begin), format!("does not begin with `{begin}`"));
    said[begin.len()..].to_owned()
}

fn try_to_record(pid: u32) -> Running {
    record(["--pid", &pid.to_string()])
}

#[track_caller]
fn check_runs_on(target: &Fixture) {
    let pid = target.pid();
    assert!(proc_status(pid, "State").is_some_and(|state| !state.starts_with('Z')), "pid {pid} has ended");
    assert_untouched(pid, "after the refusal");
}

#[test]
fn unattachable_processes_are_refused_in_one_line() {
    if !live() {
        return;
    }
    // Another program traces it.
    let mut target = Fixture::start("shares", ["600"]);
    target.line("ready");
    let mut tracer = Fixture::start("tracer", [target.pid().to_string()]);
    tracer.line("tracing");
    let said = refused(try_to_record(target.pid()), target.pid(), Some("shares"));
    assert_eq!(said, format!("pid {} (tracer) already traces it; end that one first", tracer.pid()));
    assert_eq!(tracer_of(target.pid()), tracer.pid(), "the other tracer lost it");
    assert!(!states(target.pid()).contains(['t', 'T', 'Z']), "{}", states(target.pid()));
    // The advice in the line works.
    assert!(tracer.finish().0.success());
    let pid = target.pid().to_string();
    record_until("the target", || record(["--pid", &pid, "-d", "0.2"]).wait(), |_| true);
    check_runs_on(&target);

    let zombie = Killed(Command::new("true").spawn().unwrap());
    let pid = zombie.0.id();
    let is_zombie = || proc_status(pid, "State").is_some_and(|state| state.starts_with('Z'));
    wait_for("a zombie", is_zombie);
    let said = refused(try_to_record(pid), pid, Some("true"));
    assert!(said.contains("(a zombie)") && said.contains("stackprof -- COMMAND"), "{said}");
    assert!(is_zombie());

    // In a container the pid may be that of any process.
    let is_kthreadd = proc_status(2, "Name").is_some_and(|name| name == "kthreadd");
    if is_kthreadd && proc_status(2, "VmSize").is_none() {
        let said = refused(try_to_record(2), 2, Some("kthreadd"));
        assert!(said.contains("kernel thread") && said.contains("try `perf`"), "{said}");
    } else {
        not_here("pid 2 is no kernel thread here");
    }

    // Pids are below pid_max.
    let pid = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    let said = refused(try_to_record(pid), pid, None);
    assert_eq!(said, "no such process; `ps -e` lists those that run");

    // A thread instead of its process.
    let mut target = Fixture::start("threads", ["2", "5", "told"]);
    target.line("ready");
    let pid = target.pid();
    let named = |tid: &u32| proc_status(*tid, "Name").is_some_and(|name| name.starts_with("worker"));
    wait_for("the threads' names", || tids(pid).iter().filter(|tid| named(tid)).count() == 2);
    let tid = tids(pid).into_iter().find(|tid| *tid != pid).unwrap();
    let name = proc_status(tid, "Name");
    let said = refused(try_to_record(tid), tid, name.as_deref());
    assert_eq!(said, format!("it is a thread of process {pid}; use --pid {pid}"));
    check_runs_on(&target);
    check_somebody();
}

/// A process of root, and a program that gains rights, for an unprivileged user.
fn check_somebody() {
    let Some(somebody) = Somebody::new() else { return };
    let mut target = Fixture::start("shares", ["600"]);
    target.line("ready");
    let pid = target.pid();
    let words = ["--pid", &pid.to_string()];
    let said = refused(record_by(somebody.run(&somebody.stackprof()), words), pid, Some("shares"));
    assert!(said.contains(&format!("run: sudo stackprof --pid {pid}")), "{said}");
    let mode = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(mode.trim(), "2" | "3") {
        assert!(said.contains("it belongs to user 0 and you are user 65534"), "{said}");
    }
    check_runs_on(&target);

    let command = somebody.copy("/bin/true".as_ref());
    for (mode, gains) in [(0o4755, true), (0o2755, true), (0o755, false)] {
        fs::set_permissions(&command, fs::Permissions::from_mode(mode)).unwrap();
        let mut setpriv = somebody.run(&somebody.stackprof());
        setpriv.args(["-q", "--hz", "1", "--source", "ptrace", "-o"]).arg(somebody.dir().join("x.folded"));
        let output = setpriv.arg("--").arg(&command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{mode:o}: {said}");
        assert_eq!(said.contains("gains rights when it starts"), gains, "{mode:o}: {said}");
        assert_eq!(said.contains("a higher --hz"), !gains, "{mode:o}: {said}");
    }
}

/// With fewer open files than a recording needs: the limit is named, for any user, and not the profiler
/// itself as a tracer. A stopped process is not refused, but nothing can be sampled: the line says who has
/// stopped it.
#[test]
fn too_few_open_files_and_stopped_programs_are_named_as_the_cause() {
    if !live() {
        return;
    }
    let target = Fixture::start("shares", ["600"]);
    let pid = target.pid().to_string();
    let ways: [&[&str]; 4] = [
        &["--source", "ptrace", "--pid", &pid],
        &["--source", "perf", "--pid", &pid],
        &["dump", "stacks", "--pid", &pid],
        &["--source", "ptrace", "--", "true"],
    ];
    for limit in [4, 6, 8, 10, 12] {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        for way in ways {
            let mut command = Command::new("sh");
            let output =
                command.args(["-c", &script, env!("CARGO_BIN_EXE_stackprof")]).args(way).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            // The output directory is opened before a target is attached to.
            let named = [
                ": the limit of open files is too low; raise it: ulimit -n 1024",
                ": too many open files; raise the limit: ulimit -n 1024",
            ];
            let named = named.iter().any(|named| said.contains(named));
            assert!(output.status.code() == Some(1) && named, "{limit} files, {way:?}: {said}");
        }
    }
    check_runs_on(&target);

    kill("STOP", target.pid());
    wait_for("the stop", || states(target.pid()).chars().all(|state| state == 'T'));
    for (source, idle) in
        sources().iter().map(|source| (*source, &[][..])).chain([("ptrace", &["--idle"][..])])
    {
        let recorded = record([&["--source", source, "-d", "0.1", "--pid", &pid], idle].concat()).wait();
        let why = format!("it is stopped by job control; let it run: kill -CONT {pid}\n");
        let lines: Vec<&str> = recorded.stderr.split_inclusive('\n').collect();
        let before = format!("stackprof: pid {pid} does not run now: {why}");
        recorded.check(recorded.is_empty(), "the exit code is not 4");
        recorded.check(lines.first() == Some(&&*before), "it is not said before");
        recorded.check(lines.last().is_some_and(|line| line.ends_with(&why)), "it is not said after");
    }
    kill("CONT", target.pid());
}
