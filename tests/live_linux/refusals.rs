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
