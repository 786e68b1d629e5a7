//! Begins a trace: attaches to processes (`attach`) or starts a command (`launch`), and seizes their threads, also
//! again after the profiler was suspended: then a new thread seizes the threads that still exist. Input: processes
//! or a command. Output: traced threads, events about those that exited or called `exec` meanwhile, or why not.
//! `check` refuses processes whose seccomp filters do not allow tracing.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::{fs, io};

use hashbrown::HashSet;
use libc::pid_t;

use super::sys;
use super::target::{EventQueue, LinuxTarget, RecordingEnd};
use super::tracees::{TracedProcess, Tracees, thread_id};
use crate::clock::{Clock, RealClock};
use crate::error::{self, Error, ErrorKind};
use crate::sources::linux::launch::{self, Launch, Spawner};
use crate::sources::linux::perf::{all_processes, parent_of};
use crate::sources::linux::proc;
use crate::sources::linux::refusal::{self, cannot_run, describe, of_several, process_id, program};
use crate::sources::signals::{self, Phase};
use crate::sources::{Capture, ExitStatus, Fault, Target, TargetEvent};

/// Most passes over the thread list. It ends at a pass that finds nothing new; after the first pass the
/// kernel attaches new threads (TRACECLONE).
const PASSES_MAX: u32 = 16;

/// Seizes the threads of a process, then reads its description.
pub(super) fn seize(tracees: &mut Tracees, pid: pid_t) -> error::Result<()> {
    if tracees.process(pid).is_none() {
        tracees.add_process(TracedProcess::new(pid, describe(pid)));
    }
    check(pid)?;
    for _ in 0..PASSES_MAX {
        let mut found_new = false;
        for tid in proc::list(pid).map_err(|error| refusal::explain(pid, &error))? {
            if tracees.thread(tid).is_some() {
                continue;
            }
            match sys::seize(tid, tracees.traces_children()) {
                Ok(()) => {
                    tracees.adopt_found(pid, tid).map_err(|error| refusal::explain(pid, &error))?;
                    found_new = true;
                }
                // Exited since the listing, or attached by the kernel meanwhile.
                Err(error) if tid != pid && error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) if tid != pid && tracees.thread(pid).is_some() => {}
                // The first thread exited before the others.
                Err(_) if tid == pid && proc::living_thread(pid).is_some_and(|living| living != pid) => {}
                Err(error) => return Err(refusal::explain(pid, &error)),
            }
        }
        if !found_new {
            break;
        }
    }
    if let Some(process) = tracees.process_mut(pid) {
        process.reread_description();
    }
    Ok(())
}

/// Seizes descendants of traced processes, as far as permitted. The kernel attaches those started after the
/// seizing.
pub(super) fn seize_started(tracees: &mut Tracees) {
    let mut refused: Vec<(pid_t, Error)> = Vec::new();
    for _ in 0..PASSES_MAX {
        let mut found_new = false;
        let processes = all_processes().into_iter();
        let mut left: Vec<_> = processes.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
        // A parent may come after its child in the list.
        loop {
            let refused_now: Vec<pid_t> = refused.iter().map(|(pid, _)| *pid).collect();
            let is_known = |pid: &pid_t| tracees.process(*pid).is_some() || refused_now.contains(pid);
            let is_new = |(pid, parent): &(pid_t, pid_t)| is_known(parent) && !is_known(pid);
            let (new, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_new);
            left = others;
            if new.is_empty() {
                break;
            }
            for (pid, _) in new {
                // The kernel has attached it meanwhile: it reports itself.
                if refusal::is_traced_by_us(pid) {
                    continue;
                }
                found_new = true;
                if let Err(why) = refusal::check(pid).and_then(|()| seize(tracees, pid)) {
                    tracees.forget_process(pid);
                    refused.push((pid, why));
                }
            }
        }
        if !found_new {
            break;
        }
    }
    // A thread that has exited meanwhile is not missing.
    refused.retain(|(pid, _)| {
        fs::metadata(format!("/proc/{pid}/maps")).is_ok_and(|_| proc::living_thread(*pid).is_some())
    });
    if let Some((_, why)) = refused.first() {
        tracees.not_all_because(refused.len(), &why.to_string());
    }
}

/// Seizes the threads of a process again, in a thread that traces nothing of it yet.
///
/// # Errors
/// [`Fault::Lost`]: it may no longer be traced.
pub(super) fn seize_again(
    tracees: &mut Tracees,
    pid: pid_t,
    events: &mut EventQueue,
) -> std::result::Result<(), Fault> {
    check(pid).map_err(|error| lost(&error))?;
    let tids = tracees.process(pid).map(|process| process.tids().clone()).unwrap_or_default();
    for tid in tids {
        if tracees.thread(tid).is_none_or(|thread| thread.cpu_ns().is_none()) {
            forget_thread(tracees, tid, events);
        }
    }
    let is_main = tracees.main().pid() == pid;
    let mut seized = HashSet::new();
    for _ in 0..PASSES_MAX {
        let before = seized.len();
        for tid in proc::list(pid).unwrap_or_default() {
            if seized.contains(&tid) {
                continue;
            }
            match sys::seize(tid, tracees.traces_children()) {
                Ok(()) => {
                    seized.insert(tid);
                    if tracees.thread(tid).is_none() {
                        let adopted = tracees.adopt_found(pid, tid);
                        adopted.map_err(|error| lost(&refusal::explain(pid, &error)))?;
                    }
                }
                // The kernel has attached it meanwhile: it reports itself.
                Err(_) if refusal::is_traced_by_us(tid) => {}
                Err(_) if tid != pid || !is_main || proc::living_thread(pid) != Some(pid) => {
                    forget_thread(tracees, tid, events);
                }
                Err(error) => return Err(lost(&refusal::explain(pid, &error))),
            }
        }
        if seized.len() == before {
            break;
        }
    }
    if tracees.process(pid).is_some_and(|process| !process.runs_known_program()) {
        exec_unreported(tracees, pid, events);
    }
    Ok(())
}

/// Drops a thread that has exited, or may no longer be traced.
fn forget_thread(tracees: &mut Tracees, tid: pid_t, events: &mut EventQueue) {
    if let Some(thread) = tracees.forget_thread(tid) {
        events.push(TargetEvent::ThreadExited { thread: thread_id(tid), cpu_ns: thread.cpu_ns() });
    }
}

/// Reports an `exec` without an event of the kernel.
fn exec_unreported(tracees: &mut Tracees, pid: pid_t, events: &mut EventQueue) {
    let Some((before, stack_top)) = tracees.exec(pid) else { return };
    events.push(TargetEvent::Exec { thread: thread_id(pid), stack_top });
    // Threads that the new program has started since.
    for tid in before.into_iter().filter(|tid| *tid != pid) {
        let _ = tracees.adopt_found(pid, tid);
    }
}

fn lost(why: &Error) -> Fault {
    Fault::Lost(format!("after the suspension: {why}"))
}

// ---- Attaches to a process, or starts one, for tracing. Input: pids or a command. Output: traced threads, or why not.

/// Time limit for a launched command to reach `exec`, nanoseconds.
const EXEC_NS: u64 = 60_000_000_000;
/// Interval of polls for a failed `exec`, if no stop shows it, nanoseconds.
const EXEC_ASKED_NS: u64 = 10_000_000;

/// Seizes every thread of running processes without a stop; with `children` also those of their descendants.
pub(crate) fn attach(pids: &[u32], children: bool, clock: RealClock) -> error::Result<LinuxTarget> {
    let pids = pids.iter().map(|pid| process_id(*pid)).collect::<error::Result<Vec<_>>>()?;
    for pid in &pids {
        refusal::check(*pid)?;
    }
    let mut tracees = match pids[..] {
        [pid] => Tracees::new(pid, describe(pid), children),
        _ => Tracees::new(0, of_several(pids.len()), children),
    };
    for pid in &pids {
        seize(&mut tracees, *pid)?;
    }
    if children {
        seize_started(&mut tracees);
    }
    Ok(LinuxTarget::new(tracees, RecordingEnd::of_processes(pids), clock))
}

/// Starts a command and returns with its program loaded and running. With `children` its descendants are
/// traced, too.
pub(crate) fn launch(
    command: &Launch,
    children: bool,
    clock: RealClock,
    spawner: &Spawner,
) -> error::Result<LinuxTarget> {
    let failed = |error: &std::io::Error| cannot_run(command, error);
    let held = launch::hold(spawner, command).map_err(|error| failed(&error))?;
    let pid = held.pid;
    // If refused, `held` is dropped, and the new process exits without running the command.
    sys::seize(pid, children).map_err(|error| refusal::explain_launched(command, pid, &error))?;
    let mut tracees = Tracees::new(pid, describe(pid), children);
    tracees.adopt_found(pid, pid).map_err(|error| failed(&error))?;
    let mut target = LinuxTarget::new(tracees, RecordingEnd::of_command(pid), clock.clone());
    signals::enter(Phase::Launch);
    let mut started = Some(held.go().map_err(|error| failed(&error))?);
    let deadline_ns = clock.now_ns() + EXEC_NS;
    let mut capture = Capture::with_capacity(0);
    loop {
        let until_ns = deadline_ns.min(clock.now_ns() + EXEC_ASKED_NS);
        match target.next(until_ns, &mut capture) {
            Ok(TargetEvent::Exec { .. }) => break,
            Ok(TargetEvent::Exited(ExitStatus::Signal(signal))) => {
                return Err(Error::new(
                    ErrorKind::Attach,
                    format!("cannot run {}: killed by signal {signal}", program(command)),
                ));
            }
            Ok(TargetEvent::Exited(_)) | Err(_) => {
                let error = started.map(launch::ExecOutcome::join).and_then(|how| how.err());
                return Err(failed(&error.unwrap_or_else(|| std::io::ErrorKind::NotFound.into())));
            }
            Ok(TargetEvent::Timeout) if clock.now_ns() >= deadline_ns => {
                return Err(failed(&std::io::ErrorKind::TimedOut.into()));
            }
            Ok(_) => {}
        }
        if let Some(known) = started.take_if(|started| started.is_known()) {
            known.join().map_err(|error| failed(&error))?;
        }
    }
    started.map_or(Ok(()), launch::ExecOutcome::join).map_err(|error| failed(&error))?;
    target.set_spawned(describe(pid));
    Ok(target)
}

// ---- Processes with seccomp filters that forbid `restart_syscall`: they may not be traced.
//
// The kernel wakes one thread of a traced process for a signal that the process ignores, and another thread may
// take that signal. The first one then never stops, so its call cannot be repaired, and the kernel continues its
// wait by `restart_syscall`, for which the filter gets the process killed. With a single thread each such signal is
// followed by a stop (`timed_wait.rs`).

/// Interval of checks for new filters, nanoseconds.
const ASKED_NS: u64 = 100_000_000;
/// Threads per check, which delays a tick.
const ASKED_MAX: usize = 4;
/// Time limit for a seccomp supervisor to decide on the call in the test child, seconds.
const ANSWER_S: u32 = 2;

/// Whether filters allow `restart_syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartRule {
    Allowed,
    Forbidden,
    /// The filters differ from those of this process, and are not readable.
    Unknown,
}

/// The rule of a thread's filters. An exited thread has none.
pub(super) fn restart_rule(tid: pid_t) -> RestartRule {
    static OWN: OnceLock<RestartRule> = OnceLock::new();
    match fs::read(format!("/proc/{tid}/status")) {
        Ok(status) => {
            let own = || fs::read("/proc/thread-self/status").unwrap_or_default();
            rule_of(&String::from_utf8_lossy(&status), own, || *OWN.get_or_init(try_restart))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => RestartRule::Allowed,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => RestartRule::Allowed,
        Err(_) => RestartRule::Unknown,
    }
}

/// Compares the status of a thread with that of this process, for which `tried` returns the rule. Filters are
/// inherited and never removed, so a thread in the same container with no more filters than this process has
/// the same ones. Before Linux 5.9 their number is not shown, and the thread is assumed to have the
/// container's.
fn rule_of(status: &str, own: impl FnOnce() -> Vec<u8>, tried: impl FnOnce() -> RestartRule) -> RestartRule {
    if proc::status_value(status, "Seccomp").is_none_or(|mode| mode == "0") {
        return RestartRule::Allowed;
    }
    let own = own();
    let own = String::from_utf8_lossy(&own);
    let filters = |status| proc::status_value(status, "Seccomp_filters")?.parse::<u32>().ok();
    let is_filtered = proc::status_value(&own, "Seccomp").is_some_and(|mode| mode == "2");
    match (filters(status), filters(&own)) {
        _ if !is_filtered => RestartRule::Unknown,
        (Some(of_it), Some(of_us)) if of_it > of_us => RestartRule::Unknown,
        _ => tried(),
    }
}

/// Makes a child call `restart_syscall`: without an interrupted wait it fails with EINTR.
fn try_restart() -> RestartRule {
    // SAFETY: between `fork` and `_exit` the child only makes system calls (signal-safety(7)).
    let child = unsafe { libc::fork() };
    match child {
        -1 => RestartRule::Unknown,
        // SAFETY: all take numbers; no core is dumped if the filter kills the child.
        0 => unsafe {
            let none: libc::c_ulong = 0;
            libc::prctl(libc::PR_SET_DUMPABLE, none, none, none, none);
            libc::alarm(ANSWER_S);
            let passed = libc::syscall(libc::SYS_restart_syscall) == 0
                || io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
            libc::_exit(i32::from(!passed))
        },
        child => {
            let mut status = 0;
            // SAFETY: `status` is live, and only this thread waits for the child.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
                if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                    return RestartRule::Unknown;
                }
            }
            if status == 0 { RestartRule::Allowed } else { RestartRule::Forbidden }
        }
    }
}

/// Message why a process cannot be traced with ptrace.
fn why(pid: pid_t) -> String {
    format!(
        "cannot trace pid {pid}: it has a seccomp filter and several threads, and a stop could get it killed; \
         sudo stackprof --source perf --pid {pid}"
    )
}

/// Refuses a multithreaded process that the kernel might kill while it is traced.
///
/// # Errors
/// One line for a person.
pub(super) fn check(pid: pid_t) -> Result<(), Error> {
    let tids = proc::list(pid).unwrap_or_default();
    let is_harmed = |tid: &pid_t| restart_rule(*tid) != RestartRule::Allowed;
    if tids.len() > 1 && tids.iter().any(is_harmed) {
        return Err(Error::new(ErrorKind::Attach, why(pid)));
    }
    Ok(())
}

/// Whether seccomp filters the system calls of a thread; true if unreadable.
///
/// The kernel continues some waits that a stop interrupts by `restart_syscall`, for which a filter may kill:
/// a thread in such a wait must not be stopped.
pub(super) fn is_filtered(tid: pid_t) -> bool {
    let Ok(status) = fs::read(format!("/proc/{tid}/status")) else { return true };
    proc::status_value(&String::from_utf8_lossy(&status), "Seccomp").is_some_and(|mode| mode != "0")
}

/// The checks of traced threads for filters, and what they found.
#[derive(Debug, Default)]
pub(super) struct FilterChecks {
    due_ns: u64,
    /// The thread checked last.
    last: pid_t,
    /// Why tracing has to end, until reported.
    must_end: Option<String>,
}

impl FilterChecks {
    /// Whether a thread that the kernel attached must not run while it is traced, so that tracing has to end.
    /// It has to stay stopped until then, so that no other thread takes the signals of the first.
    pub(super) fn forbid(&mut self, new: pid_t) -> bool {
        if restart_rule(new) == RestartRule::Allowed {
            return false;
        }
        let Some((pid, _)) = proc::tgid_and_ppid(new).filter(|(pid, _)| *pid != new) else { return false };
        // It is not reported again.
        let _ = sys::take_stop(new);
        self.must_end = Some(why(pid));
        true
    }

    /// Checks at intervals whether threads have new filters. Must not be called while one may be stopped.
    pub(super) fn check(&mut self, now_ns: u64, tracees: &Tracees) {
        if now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns + ASKED_NS;
        let mut tids = tracees.tids_of_multithreaded();
        tids.sort_unstable();
        let next = tids.partition_point(|tid| *tid <= self.last);
        tids.rotate_left(next);
        for tid in tids.into_iter().take(ASKED_MAX) {
            self.last = tid;
            if restart_rule(tid) != RestartRule::Allowed {
                self.must_end = Some(why(tracees.process_of(tid)));
            }
        }
    }

    /// # Errors
    /// [`Fault::Lost`], once: the tracing has to end.
    pub(super) fn result(&mut self) -> Result<(), Fault> {
        self.must_end.take().map_or(Ok(()), |why| Err(Fault::Lost(why)))
    }
}

#[cfg(test)]
mod seccomp_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn filters_are_tested_if_equal_to_ours_and_otherwise_unknown() {
        use RestartRule::{Allowed, Forbidden, Unknown};
        let rule = |status: &str, own: &str, tried| rule_of(status, || own.as_bytes().to_vec(), || tried);
        let (none, one, two) =
            ("Seccomp:\t0\n", "Seccomp:\t2\nSeccomp_filters:\t1\n", "Seccomp:\t2\nSeccomp_filters:\t2\n");
        assert_eq!(rule(none, none, Forbidden), Allowed);
        assert_eq!(rule("Name:\tx\n", none, Forbidden), Allowed, "a kernel without seccomp");
        assert_eq!((rule(one, none, Allowed), rule(two, one, Allowed)), (Unknown, Unknown));
        assert_eq!((rule(one, one, Allowed), rule(one, two, Allowed)), (Allowed, Allowed));
        assert_eq!(rule(one, one, Forbidden), Forbidden);
        let uncounted = "Seccomp:\t2\n";
        assert_eq!((rule(uncounted, uncounted, Allowed), rule(uncounted, none, Allowed)), (Allowed, Unknown));
    }

    /// Installs a filter in the calling thread only.
    fn install(action: u32) {
        let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut filter = [
            statement(0x20, 0, 0, 0), // BPF_LD | BPF_W | BPF_ABS: the number of the call
            statement(0x15, 0, 1, libc::SYS_restart_syscall as u32), // BPF_JMP | BPF_JEQ | BPF_K
            statement(0x06, 0, 0, action), // BPF_RET | BPF_K
            statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        let none: libc::c_ulong = 0;
        // SAFETY: the program and its four instructions are live during the call.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, none, none, none) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::c_ulong::from(libc::SECCOMP_MODE_FILTER),
                    &raw const program,
                ) != 0
        };
        assert!(!failed, "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_child_inherits_the_filter_of_its_parent() {
        let tried = |action| std::thread::spawn(move || (install(action), try_restart()).1).join().unwrap();
        assert_eq!(tried(libc::SECCOMP_RET_ALLOW), try_restart());
        for action in [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_TRAP, libc::SECCOMP_RET_ERRNO | 1] {
            assert_eq!(tried(action), RestartRule::Forbidden, "{action:#x}");
        }
    }

    #[test]
    fn an_unreadable_filter_counts_as_a_filter() {
        let own = fs::read_to_string("/proc/self/status").unwrap();
        let filtered = proc::status_value(&own, "Seccomp").is_some_and(|mode| mode != "0");
        assert_eq!(is_filtered(std::process::id().cast_signed()), filtered);
        assert!(is_filtered(pid_t::MAX));
    }
}
