//! Refusals: one line that names the process and the next step, exit code 1, no files;
//! the process stays as it was.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command};

use crate::support::{
    Fixture, Running, assert_untouched, copy_program, live, not_here, proc_status, record, record_by, states,
    tids, tracer_of, wait_for,
};

/// The line of a refusal, after a check of everything that all of them share.
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
    println!("{said}");
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

/// A child of this test that is waited for whatever happens.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_another_one_traces() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("shares", ["20"]);
    target.line("ready");
    let mut tracer = Fixture::start("tracer", [target.pid().to_string()]);
    tracer.line("tracing");
    let said = refused(try_to_record(target.pid()), target.pid(), Some("shares"));
    assert_eq!(said, format!("pid {} (tracer) already traces it; end that one first", tracer.pid()));
    assert_eq!(tracer_of(target.pid()), tracer.pid(), "the other tracer lost it");
    assert!(!states(target.pid()).contains(['t', 'T', 'Z']), "{}", states(target.pid()));
    // What the line advises works.
    assert!(tracer.finish().0.success());
    let recorded = record(["--pid", &target.pid().to_string(), "--duration", "1"]).wait();
    recorded.check_success();
    check_runs_on(&target);
}

#[test]
fn a_zombie() {
    let Some(_one) = live() else { return };
    let zombie = Reaped(Command::new("true").spawn().unwrap());
    let pid = zombie.0.id();
    let is_zombie = || proc_status(pid, "State").is_some_and(|state| state.starts_with('Z'));
    wait_for("a zombie", is_zombie);
    let said = refused(try_to_record(pid), pid, Some("true"));
    assert!(said.contains("(a zombie)") && said.contains("stackprof -- COMMAND"), "{said}");
    assert!(is_zombie());
}

#[test]
fn a_kernel_thread() {
    let Some(_one) = live() else { return };
    // In a container the number may be anybody's.
    let is_kthreadd = proc_status(2, "Name").is_some_and(|name| name == "kthreadd");
    if !is_kthreadd || proc_status(2, "VmSize").is_some() {
        return not_here("pid 2 is no kernel thread here");
    }
    let said = refused(try_to_record(2), 2, Some("kthreadd"));
    assert!(said.contains("kernel thread") && said.contains("try `perf`"), "{said}");
}

#[test]
fn no_such_process() {
    let Some(_one) = live() else { return };
    // Numbers are below pid_max.
    let pid = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    let said = refused(try_to_record(pid), pid, None);
    assert_eq!(said, "no such process; `ps -e` lists those that run");
    let said = refused(try_to_record(u32::MAX), u32::MAX, None);
    assert!(said.ends_with("; `ps -e` lists those that run"), "{said}");
}

#[test]
fn a_thread_instead_of_its_process() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("threads", ["2", "5", "20"]);
    target.line("ready");
    target.go();
    let pid = target.pid();
    wait_for("the threads to run", || tids(pid).len() == 3);
    let tid = tids(pid).into_iter().find(|tid| *tid != pid).unwrap();
    let named = |name: String| name.starts_with("worker");
    wait_for("the thread's name", || proc_status(tid, "Name").is_some_and(named));
    let name = proc_status(tid, "Name");
    let said = refused(try_to_record(tid), tid, name.as_deref());
    assert_eq!(said, format!("it is a thread of process {pid}; use --pid {pid}"));
    check_runs_on(&target);
}

#[test]
fn a_process_of_root_for_somebody_else() {
    let Some(_one) = live() else { return };
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return not_here("only root can run a command as another user");
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        return not_here("there is no setpriv");
    }
    // The build directory may be closed to others.
    let dir = tempfile::TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("stackprof");
    copy_program(env!("CARGO_BIN_EXE_stackprof").as_ref(), &program);

    let mut target = Fixture::start("shares", ["20"]);
    target.line("ready");
    let pid = target.pid();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
    let said = refused(record_by(command, ["--pid", &pid.to_string()]), pid, Some("shares"));
    assert!(said.contains(&format!("run: sudo stackprof --pid {pid}")), "{said}");
    let mode = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(mode.trim(), "2" | "3") {
        assert!(said.contains("it belongs to user 0 and you are user 65534"), "{said}");
    }
    check_runs_on(&target);
}

/// Fewer open files than a recording needs: the limit is named, whoever attaches, and not the profiler itself
/// as a tracer.
#[test]
fn too_few_open_files() {
    let Some(_one) = live() else { return };
    let target = Fixture::start("shares", ["60"]);
    let pid = target.pid().to_string();
    let ways: [&[&str]; 4] = [
        &["--source", "ptrace", "--pid", &pid],
        &["--source", "perf", "--pid", &pid],
        &["dump", "stacks", "--pid", &pid],
        &["--source", "ptrace", "--", "true"],
    ];
    for limit in 4..=12 {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        for way in ways {
            let mut command = Command::new("sh");
            let output =
                command.args(["-c", &script, env!("CARGO_BIN_EXE_stackprof")]).args(way).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            // Before a target is attached to, the directory of the output is opened.
            let named = [
                ": the limit of open files is too low; raise it: ulimit -n 1024",
                ": too many open files; raise the limit: ulimit -n 1024",
            ];
            let named = named.iter().any(|named| said.contains(named));
            assert!(output.status.code() == Some(1) && named, "{limit} files, {way:?}: {said}");
        }
    }
    check_runs_on(&target);
}

/// What is stopped is no refusal, but nothing can be sampled: the line says who has stopped it.
#[test]
fn a_stopped_program_is_said_to_be_stopped() {
    let Some(_one) = live() else { return };
    let target = Fixture::start("shares", ["60"]);
    let pid = target.pid();
    crate::support::kill("STOP", pid);
    wait_for("the stop", || states(pid).chars().all(|state| state == 'T'));
    for options in [&["--source", "ptrace"][..], &["--source", "perf"], &["--source", "ptrace", "--idle"]] {
        let pid_text = pid.to_string();
        let recorded = record([options, &["--duration", "0.2", "--pid", &pid_text]].concat()).wait();
        if recorded.stderr.contains("cannot sample by --source perf") {
            println!("SKIP {options:?}: {}", recorded.stderr);
            continue;
        }
        let why = format!("it is stopped by job control; let it run: kill -CONT {pid}\n");
        let lines: Vec<&str> = recorded.stderr.split_inclusive('\n').collect();
        let before = format!("stackprof: pid {pid} does not run now: {why}");
        recorded.check(recorded.status.code() == Some(4), "the exit code is not 4");
        recorded.check(lines.first() == Some(&&*before), "it is not told before");
        recorded.check(lines.last().is_some_and(|line| line.ends_with(&why)), "it is not told after");
    }
    crate::support::kill("CONT", pid);
}

#[test]
fn a_program_that_gains_rights_for_somebody_else() {
    let Some(_one) = live() else { return };
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return not_here("only root can make a program setuid, and run it as another user");
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        return not_here("there is no setpriv");
    }
    let dir = tempfile::TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (program, command) = (dir.path().join("stackprof"), dir.path().join("command"));
    copy_program(env!("CARGO_BIN_EXE_stackprof").as_ref(), &program);
    copy_program("/bin/true".as_ref(), &command);
    for (mode, gains) in [(0o4755, true), (0o2755, true), (0o755, false)] {
        fs::set_permissions(&command, fs::Permissions::from_mode(mode)).unwrap();
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        setpriv.args(["-q", "--hz", "1", "--source", "ptrace", "-o"]).arg(dir.path().join("x.folded"));
        let output = setpriv.arg("--").arg(&command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{mode:o}: {said}");
        assert_eq!(said.contains("gains rights when it starts"), gains, "{mode:o}: {said}");
        assert_eq!(said.contains("a higher --hz"), !gains, "{mode:o}: {said}");
    }
}
