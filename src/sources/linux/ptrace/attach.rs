//! Attaches to a process, or starts one, for tracing. Input: pids or a command. Output: traced threads, or why not.

use super::recording_end::RecordingEnd;
use super::target::LinuxTarget;
use super::tracees::Tracees;
use super::{seize, sys};
use crate::clock::{Clock, RealClock};
use crate::error::{Error, ErrorKind, Result};
use crate::sources::linux::describe::{cannot_run, describe, of_several, process_id, program};
use crate::sources::linux::launch::{self, Launch, Spawner};
use crate::sources::linux::refusal;
use crate::sources::signals::{self, Phase};
use crate::sources::{Capture, ExitStatus, Target, TargetEvent};

/// Time limit for a launched command to reach `exec`, nanoseconds.
const EXEC_NS: u64 = 60_000_000_000;
/// Interval of polls for a failed `exec`, if no stop shows it, nanoseconds.
const EXEC_ASKED_NS: u64 = 10_000_000;

/// Seizes every thread of running processes without a stop; with `children` also those of their descendants.
pub(in crate::sources::linux) fn attach(
    pids: &[u32],
    children: bool,
    clock: RealClock,
) -> Result<LinuxTarget> {
    let pids = pids.iter().map(|pid| process_id(*pid)).collect::<Result<Vec<_>>>()?;
    for pid in &pids {
        refusal::check(*pid)?;
    }
    let mut tracees = match pids[..] {
        [pid] => Tracees::new(pid, describe(pid), children),
        _ => Tracees::new(0, of_several(pids.len()), children),
    };
    for pid in &pids {
        seize::seize(&mut tracees, *pid)?;
    }
    if children {
        seize::seize_started(&mut tracees);
    }
    Ok(LinuxTarget::new(tracees, RecordingEnd::of_processes(pids), clock))
}

/// Starts a command and returns with its program loaded and running. With `children` its descendants are
/// traced, too.
pub(in crate::sources::linux) fn launch(
    command: &Launch,
    children: bool,
    clock: RealClock,
    spawner: &Spawner,
) -> Result<LinuxTarget> {
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
