//! Drops capabilities and ids that a thread of the profiler does not need in a phase of a recording.
//!
//! Input: a [`Role`], and the processes of the recording. Effect: fewer capabilities and ids of the calling thread. They
//! are per thread: the sampler keeps what its source needs, the main thread what names and outputs need; the threads for
//! signals and the progress line keep none. A launched command is forked before any thread drops anything. Without
//! CAP_SYS_PTRACE, as in most containers, a sampler keeps what the targets hold, or it could not read them.
//!
//! Under sudo the main thread becomes the calling user, permanently, if that user may write the outputs: root
//! may write root's files without any capability.

mod calls;

use std::fmt;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::pid_t;

use super::refusal::capabilities_of;

use crate::sources::Role;
use crate::sources::output::Caller;
use crate::sources::target_file::end_idle_workers;

/// A set of capabilities (capabilities(7)).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Capabilities(u64);

impl Capabilities {
    const fn of(numbers: &[u32]) -> Capabilities {
        let (mut bits, mut at) = (0, 0);
        while at < numbers.len() {
            bits |= 1 << numbers[at];
            at += 1;
        }
        Capabilities(bits)
    }

    const fn with(self, others: Capabilities) -> Capabilities {
        Capabilities(self.0 | others.0)
    }

    fn within(self, others: Capabilities) -> Capabilities {
        Capabilities(self.0 & others.0)
    }

    fn contains(self, others: Capabilities) -> bool {
        self.0 & others.0 == others.0
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const NONE: Capabilities = Capabilities(0);
/// To read files of every user: CAP_DAC_READ_SEARCH.
const READ: Capabilities = Capabilities::of(&[2]);
/// To write where root may write, and to keep owner and mode of replaced files: CAP_CHOWN, CAP_DAC_OVERRIDE,
/// CAP_FOWNER.
const WRITE: Capabilities = Capabilities::of(&[0, 1, 3]);
/// To take the ids of another user: CAP_SETGID, CAP_SETUID.
const IDS: Capabilities = Capabilities::of(&[6, 7]);
/// To forward signals to processes of every user, and to check that they exist: CAP_KILL.
const SIGNAL: Capabilities = Capabilities::of(&[5]);
/// To read memory, registers, maps and links of processes of every user: CAP_SYS_PTRACE.
const PROCESSES: Capabilities = Capabilities::of(&[19]);
/// To open mapped files that have been deleted: CAP_CHECKPOINT_RESTORE.
const MAPPED_FILES: Capabilities = Capabilities::of(&[40]);
/// To open events and load programs for CPUs, threads or larger stacks added during the recording, with rings
/// above the limit of locked memory: CAP_PERFMON, CAP_BPF, CAP_IPC_LOCK.
const EVENTS: Capabilities = Capabilities::of(&[38, 39, 14]);
/// To run before others when rings fill up: CAP_SYS_NICE.
const PRIORITY: Capabilities = Capabilities::of(&[23]);
/// The capability that includes CAP_PERFMON, CAP_BPF and CAP_CHECKPOINT_RESTORE in kernels and containers
/// without these: CAP_SYS_ADMIN.
const SYS_ADMIN: Capabilities = Capabilities::of(&[21]);
const PARTS_OF_SYS_ADMIN: Capabilities = Capabilities::of(&[38, 39, 40]);

/// The capabilities of a thread in a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rights {
    /// Needed in this role.
    effective: Capabilities,
    /// Needed in this role and in later roles of the thread.
    permitted: Capabilities,
}

/// A thread to restrict.
#[derive(Clone, Copy, Debug)]
struct Thread {
    /// Its permitted capabilities.
    held: Capabilities,
    /// The main thread, which resolves names and writes the outputs.
    is_first: bool,
    /// It takes the ids of the user who called sudo for that, temporarily or permanently.
    takes_ids: bool,
    /// It is root's: to read source, threads that it starts before it names functions take the ids of recorded users.
    is_root: bool,
    /// Capabilities of the targets: without CAP_SYS_PTRACE the kernel shows a process only to those who hold all that
    /// it holds (security/commoncap.c, `cap_ptrace_access_check`).
    of_targets: Capabilities,
}

/// The rights of a thread in a role.
fn rights(role: Role, thread: Thread) -> Rights {
    let Thread { held, is_first, takes_ids, is_root, of_targets } = thread;
    let with_admin = |needed: Capabilities| {
        let lacks = !held.contains(needed.within(PARTS_OF_SYS_ADMIN));
        if lacks { needed.with(SYS_ADMIN) } else { needed }
    };
    let to_read = if held.contains(PROCESSES) { PROCESSES } else { of_targets };
    let of_processes = READ.with(to_read).with(MAPPED_FILES).with(SIGNAL);
    let ids = if takes_ids { IDS } else { NONE };
    let write = WRITE.with(ids);
    let read_write = READ.with(write).with(if is_root { IDS } else { NONE });
    let (effective, later) = match role {
        // After the recording it may have to end the command, which may belong to another user.
        Role::Waiting => (SIGNAL, read_write),
        Role::SamplingByKernel => (with_admin(of_processes.with(EVENTS).with(PRIORITY)), read_write),
        Role::SamplingByPtrace => (with_admin(of_processes), read_write),
        // A new sampler inherits its capabilities from this thread.
        Role::Tracing => (SIGNAL, with_admin(of_processes).with(read_write)),
        Role::SamplingByStub => (READ.with(SIGNAL), read_write),
        Role::Symbolizing => (READ, write),
        Role::Writing => (write, NONE),
        Role::Watching => (NONE, NONE),
    };
    let later = if is_first { later } else { NONE };
    Rights { effective: effective.within(held), permitted: effective.with(later).within(held) }
}

/// The processes of a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    /// Empty: any process.
    pub(super) pids: Vec<pid_t>,
    /// This process has started them.
    pub(super) are_launched: bool,
    /// Capabilities that they may use.
    capabilities: Capabilities,
}

static TARGETS: Mutex<Option<Targets>> = Mutex::new(None);

/// Sets the processes that threads in sampling roles must still be able to read; without a list: all processes.
pub(super) fn set_targets(pids: &[pid_t], are_launched: bool) {
    let known = pids.iter().filter_map(|pid| capabilities_of(*pid));
    let capabilities = match pids {
        [] => Capabilities(u64::MAX),
        _ => known.fold(NONE, |all, own| all.with(Capabilities(own))),
    };
    let targets = Targets { pids: pids.to_vec(), are_launched, capabilities };
    *TARGETS.lock().unwrap_or_else(PoisonError::into_inner) = Some(targets);
}

/// The processes of the recording, as set.
pub(super) fn targets() -> Targets {
    TARGETS.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

static CALLER: OnceLock<Option<Caller>> = OnceLock::new();

/// Determines who called sudo or started a setuid program; must be called before the first thread starts.
pub fn set_caller() {
    let _ = CALLER.set(Caller::of_this_process().filter(|caller| caller.uid() != 0));
}

/// Gives the calling thread the ids of this user; its permitted capabilities stay.
fn set_ids(caller: &Caller) -> io::Result<()> {
    let held = calls::permitted()?;
    calls::set(held, held)?;
    calls::set_ids(caller.uid(), caller.gid(), caller.groups())
}

fn caller() -> Option<&'static Caller> {
    CALLER.get()?.as_ref()
}

/// Gives the calling thread the rights of a user to files, permanently, and no capability. It stays the process's
/// user otherwise, so that the other user cannot send it signals.
///
/// # Errors
/// The system's error: only root takes the rights of another user.
pub(in crate::sources) fn read_as(user: &Caller) -> io::Result<()> {
    let held = calls::permitted()?;
    calls::set(held, held)?;
    user.take()?;
    apply(Rights { effective: NONE, permitted: NONE })
}

/// Drops what the calling thread does not need in this role and in later ones.
///
/// # Errors
/// The system's error.
pub fn restrict(role: Role) -> io::Result<()> {
    let held = calls::permitted()?;
    if held == NONE {
        return Ok(());
    }
    let caller = caller().filter(|_| calls::is_root());
    let mut ids = Ok(());
    if role == Role::Watching
        && let Some(caller) = caller
    {
        ids = set_ids(caller);
    }
    let thread = Thread {
        held,
        is_first: calls::is_first_thread(),
        takes_ids: caller.is_some(),
        is_root: calls::is_root(),
        of_targets: targets().capabilities,
    };
    apply(rights(role, thread))?;
    ids
}

fn apply(rights: Rights) -> io::Result<()> {
    calls::set(rights.effective, rights.permitted)?;
    calls::forbid_new_privileges()?;
    // Threads started earlier have the capabilities that this thread had then.
    end_idle_workers();
    Ok(())
}

/// Drops what [`Role::Symbolizing`] and later roles do not need. Under sudo the calling thread becomes the user
/// who called it, permanently, if that user writes all of the outputs.
///
/// # Errors
/// The system's error.
pub fn restrict_to_symbolizing(writes_as_caller: bool) -> io::Result<()> {
    if writes_as_caller && let Some(caller) = caller().filter(|_| calls::is_root()) {
        set_ids(caller)?;
        let held = calls::permitted()?;
        return apply(Rights { effective: READ.within(held), permitted: READ.within(held) });
    }
    restrict(Role::Symbolizing)
}

#[cfg(test)]
mod tests;
