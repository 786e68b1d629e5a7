//! Seizes threads of running processes, and again after the profiler was suspended: then a new thread seizes the
//! threads that still exist. Input: processes. Output: traced threads, events about those that exited or called
//! `exec` meanwhile, or why not.

use std::fs;

use hashbrown::HashSet;
use libc::pid_t;

use super::events::EventQueue;
use super::thread::thread_id;
use super::traced_process::TracedProcess;
use super::tracees::Tracees;
use super::{seccomp, sys};
use crate::error::{Error, Result};
use crate::sources::linux::describe::describe;
use crate::sources::linux::perf::{all_processes, parent_of};
use crate::sources::linux::{refusal, threads};
use crate::sources::{Fault, TargetEvent};

/// Most passes over the thread list. It ends at a pass that finds nothing new; after the first pass the
/// kernel attaches new threads (TRACECLONE).
const PASSES_MAX: u32 = 16;

/// Seizes the threads of a process, then reads its description.
pub(super) fn seize(tracees: &mut Tracees, pid: pid_t) -> Result<()> {
    if tracees.process(pid).is_none() {
        tracees.add_process(TracedProcess::new(pid, describe(pid)));
    }
    seccomp::check(pid)?;
    for _ in 0..PASSES_MAX {
        let mut found_new = false;
        for tid in threads::list(pid).map_err(|error| refusal::explain(pid, &error))? {
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
                Err(_) if tid == pid && threads::living_thread(pid).is_some_and(|living| living != pid) => {}
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
        fs::metadata(format!("/proc/{pid}/maps")).is_ok_and(|_| threads::living_thread(*pid).is_some())
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
    seccomp::check(pid).map_err(|error| lost(&error))?;
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
        for tid in threads::list(pid).unwrap_or_default() {
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
                Err(_) if tid != pid || !is_main || threads::living_thread(pid) != Some(pid) => {
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
