//! The two beginnings of a trace: seizing a running process, and starting one.

use std::fs;
use std::path::Path;

use libc::pid_t;

use super::launch::{Launch, Spawner};
use super::perf::{all_processes, parent_of};
use super::process_entry::ProcessEntry;
use super::trace::LinuxTarget;
use super::{images, launch, refusal, seccomp, sys, threads};
use crate::addr::Avma;
use crate::arch::Arch;
use crate::clock::{Clock, RealClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::{Capture, Event, ExitStatus, Process, Target};

#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;

/// Bits of a code pointer that are address. 47 on x86_64; on aarch64 pointers may be
/// signed (PAC) above the 48 bits of the usual user address space.
#[cfg(target_arch = "x86_64")]
const CODE_MASK: u64 = u64::MAX;
#[cfg(target_arch = "aarch64")]
const CODE_MASK: u64 = (1 << 48) - 1;

/// Passes over the thread list until one finds nothing new: a process that starts threads
/// all the time has its new ones followed by the kernel (TRACECLONE) after the first pass.
const MAX_PASSES: u32 = 16;

/// Time that a launched command has for `exec`, nanoseconds.
const EXEC_NS: u64 = 60_000_000_000;
/// How often it is asked whether that has failed, where no stop tells it, nanoseconds.
const EXEC_ASKED_NS: u64 = 10_000_000;

/// Seizes every thread of running processes; none is stopped. With `children` those of what they
/// have started, too.
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

/// Seizes the threads of a process, and learns after that what it is.
fn seize(target: &mut LinuxTarget, pid: pid_t, children: bool) -> Result<()> {
    if !target.knows_process(pid) {
        target.add_process(ProcessEntry::new(pid, describe(pid)));
    }
    seccomp::check(pid)?;
    for _ in 0..MAX_PASSES {
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
                // Ended since the listing, or followed by the kernel in the meantime.
                Err(error) if tid != pid && error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) if tid != pid && target.knows(pid) => {}
                // It has left before the others.
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

/// Seizes what traced processes have started, as far as that is allowed. What those start that are
/// seized already the kernel attaches.
pub(super) fn seize_started(target: &mut LinuxTarget) {
    let mut refused: Vec<(pid_t, Error)> = Vec::new();
    for _ in 0..MAX_PASSES {
        let mut found_new = false;
        let processes = all_processes().into_iter();
        let mut left: Vec<_> = processes.filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
        // Whoever it was started by may stand behind it in the list.
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
                // Attached by the kernel in the meantime, it reports itself.
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
    // One that has ended meanwhile is none that is missing.
    refused.retain(|(pid, _)| {
        fs::metadata(format!("/proc/{pid}/maps")).is_ok_and(|_| threads::living(*pid).is_some())
    });
    if let Some((_, why)) = refused.first() {
        target.not_all_because(refused.len(), &why.to_string());
    }
}

/// Starts a command and returns with its program loaded and let run. With `children` what it starts
/// is traced, too.
pub(super) fn launch(
    command: &Launch,
    children: bool,
    clock: RealClock,
    spawner: &Spawner,
) -> Result<LinuxTarget> {
    let failed = |error: &std::io::Error| cannot_run(command, error);
    let held = launch::hold(spawner, command).map_err(|error| failed(&error))?;
    let pid = held.pid;
    // If refused, `held` is dropped, and the new process ends without running the command.
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
            Ok(Event::Exec { .. }) => break,
            Ok(Event::Exited(ExitStatus::Signal(signal))) => {
                return Err(Error::new(
                    ErrorKind::Attach,
                    format!("cannot run {}: killed by signal {signal}", program(command)),
                ));
            }
            Ok(Event::Exited(_)) | Err(_) => {
                let error = started.map(launch::ExecOutcome::join).and_then(|how| how.err());
                return Err(failed(&error.unwrap_or_else(|| std::io::ErrorKind::NotFound.into())));
            }
            Ok(Event::Timeout) if clock.now_ns() >= deadline_ns => {
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

/// The number of a process, as the system has them.
///
/// # Errors
/// For a number that no process has.
pub(super) fn process_id(pid: u32) -> Result<pid_t> {
    pid_t::try_from(pid).map_err(|_| {
        Error::new(
            ErrorKind::Attach,
            format!("cannot attach to pid {pid}: no process has such a number; `ps -e` lists those that run"),
        )
    })
}

/// The program of a command, quoted, and the user who is to run it, for messages.
fn program(command: &Launch) -> String {
    let program = command.words.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let user = command.account.as_ref().map(|account| format!(" as {}", account.name().display()));
    format!("`{program}`{}", user.unwrap_or_default())
}

/// The words for a command that could not be started.
pub(super) fn cannot_run(command: &Launch, error: &std::io::Error) -> Error {
    let path = command.words.first().map(Path::new).filter(|path| path.components().count() > 1);
    let is = |check: fn(&Path) -> bool| path.is_some_and(check);
    let next = match error.raw_os_error() {
        Some(libc::ENOENT) if is(Path::exists) => {
            "; the file is there, but not its interpreter: see its first line, or its dynamic linker (file(1))"
        }
        Some(libc::EACCES) if is(Path::is_dir) => "; it is a directory: name a program in it",
        Some(libc::ENOENT) => "; check the name or give a path",
        Some(libc::EPERM) if command.account.is_some() => "; root here may lack CAP_SETUID or CAP_SETGID",
        Some(libc::EACCES) if command.account.is_some() => {
            "; that user must be able to run it and to enter its folder"
        }
        Some(libc::EACCES) => "; chmod +x makes it executable",
        Some(libc::EMFILE | libc::ENFILE) => "; raise `ulimit -n`",
        _ => "",
    };
    let program = program(command);
    Error::new(ErrorKind::Attach, format!("cannot run {program}: {}{next}", io_text(error)))
}

/// What stands for several processes.
fn of_several(count: usize) -> Process {
    let own = describe(std::process::id().cast_signed());
    Process { pid: 0, name: format!("{count} processes"), command: String::new(), ..own }
}

/// The processor of a program that began with this stack pointer.
pub(super) fn arch(start_stack: Option<Avma>) -> Arch {
    match start_stack.is_some_and(images::is_of_32_bits) {
        true if ARCH == Arch::X86_64 => Arch::X86,
        true => Arch::Arm,
        false => ARCH,
    }
}

/// What is known of a process that is traced.
pub(super) fn describe(pid: pid_t) -> Process {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let living = threads::living(pid).unwrap_or(pid);
    let command = fs::read(format!("/proc/{living}/cmdline")).unwrap_or_default();
    let words = command.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    Process {
        pid: pid.unsigned_abs(),
        name: String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
        command: words.collect::<Vec<_>>().join(" ").trim_end().to_owned(),
        arch: arch(threads::start_stack(pid)),
        backend: "ptrace",
        backend_why: String::new(),
        cpus: sys::cpus_of(pid),
        code_mask: CODE_MASK,
        fp_always: false,
        cfi: true,
        stops_waits_unseen: false,
        stops_hold_all: false,
    }
}
