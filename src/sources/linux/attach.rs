//! Attaches to a process, or starts one, for tracing. Input: pids or a command. Output: traced threads, or why not.

use std::fs;

use libc::pid_t;

use super::describe::{cannot_run, describe, of_several, process_id, program};
use super::launch::{Launch, Spawner};
use super::perf::{all_processes, parent_of};
use super::target::LinuxTarget;
use super::traced_process::TracedProcess;
use super::{launch, refusal, seccomp, sys, threads};
use crate::clock::{Clock, RealClock};
use crate::error::{Error, ErrorKind, Result};
use crate::sources::{Capture, ExitStatus, Target, TargetEvent};

/// Most passes over the thread list. It ends at a pass that finds nothing new; after the first pass the
/// kernel attaches new threads (TRACECLONE).
const PASSES_MAX: u32 = 16;

/// Time limit for a launched command to reach `exec`, nanoseconds.
const EXEC_NS: u64 = 60_000_000_000;
/// Interval of polls for a failed `exec`, if no stop shows it, nanoseconds.
const EXEC_ASKED_NS: u64 = 10_000_000;

/// Seizes every thread of running processes without a stop; with `children` also those of their descendants.
pub(super) fn attach(pids: &[u32], children: bool, clock: RealClock) -> Result<LinuxTarget> {
    let pids = pids.iter().map(|pid| process_id(*pid)).collect::<Result<Vec<_>>>()?;
    for pid in &pids {
        refusal::check(*pid)?;
    }
    let mut target = match pids[..] {
        [pid] => LinuxTarget::new(pid, describe(pid), children, clock),
        _ => LinuxTarget::new(0, of_several(pids.len()), children, clock),
    };
    for pid in pids {
        seize(&mut target, pid, children)?;
        target.end_with(pid);
    }
    if children {
        seize_started(&mut target);
    }
    Ok(target)
}

/// Seizes the threads of a process, then reads its description.
fn seize(target: &mut LinuxTarget, pid: pid_t, children: bool) -> Result<()> {
    if !target.knows_process(pid) {
        target.add_process(TracedProcess::new(pid, describe(pid)));
    }
    seccomp::check(pid)?;
    for _ in 0..PASSES_MAX {
        let mut found_new = false;
        for tid in threads::list(pid).map_err(|error| refusal::explain(pid, &error))? {
            if target.knows(tid) {
                continue;
            }
            match sys::seize(tid, children) {
                Ok(()) => {
                    target.adopt_found(pid, tid).map_err(|error| refusal::explain(pid, &error))?;
                    found_new = true;
                }
                // Exited since the listing, or attached by the kernel meanwhile.
                Err(error) if tid != pid && error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) if tid != pid && target.knows(pid) => {}
                // The first thread exited before the others.
                Err(_) if tid == pid && threads::living(pid).is_some_and(|living| living != pid) => {}
                Err(error) => return Err(refusal::explain(pid, &error)),
            }
        }
        if !found_new {
            break;
        }
    }
    target.learn_again(pid);
    Ok(())
}

/// Seizes descendants of traced processes, as far as permitted. The kernel attaches those started after the
/// seizing.
pub(super) fn seize_started(target: &mut LinuxTarget) {
    let mut refused: Vec<(pid_t, Error)> = Vec::new();
    for _ in 0..PASSES_MAX {
        let mut found_new = false;
        let processes = all_processes().into_iter();
        let mut left: Vec<_> = processes.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
        // A parent may come after its child in the list.
        loop {
            let refused_now: Vec<pid_t> = refused.iter().map(|(pid, _)| *pid).collect();
            let is_known = |pid: &pid_t| target.knows_process(*pid) || refused_now.contains(pid);
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
                if let Err(why) = refusal::check(pid).and_then(|()| seize(target, pid, true)) {
                    target.forget_process(pid);
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
        fs::metadata(format!("/proc/{pid}/maps")).is_ok_and(|_| threads::living(*pid).is_some())
    });
    if let Some((_, why)) = refused.first() {
        target.not_all_because(refused.len(), &why.to_string());
    }
}

/// Starts a command and returns with its program loaded and running. With `children` its descendants are
/// traced, too.
pub(super) fn launch(
    command: &Launch,
    children: bool,
    clock: RealClock,
    spawner: &Spawner,
) -> Result<LinuxTarget> {
    let failed = |error: &std::io::Error| cannot_run(command, error);
    let held = launch::hold(spawner, command).map_err(|error| failed(&error))?;
    let pid = held.pid;
    // If refused, `held` is dropped, and the new process exits without running the command.
    sys::seize(pid, children).map_err(|error| refusal::explain(pid, &error))?;
    let mut target = LinuxTarget::new(pid, describe(pid), children, clock.clone());
    target.adopt_found(pid, pid).map_err(|error| failed(&error))?;
    target.end_with(pid);
    target.set_launched();
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
