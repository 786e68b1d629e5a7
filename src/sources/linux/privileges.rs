//! Drops capabilities and ids that a thread of the profiler does not need in a phase of a recording.
//!
//! `restrict` drops what a `Role` does not need, by calls for one thread only (`Rights`); `reserve_for_this_thread`
//! reserves CPU time for the reader of samples.
//!
//! Input: a [`Role`], and the processes of the recording. Effect: fewer capabilities and ids of the calling thread. They
//! are per thread: the sampler keeps what its source needs, the main thread what names and outputs need; the threads for
//! signals and the progress line keep none. A launched command is forked before any thread drops anything. Without
//! CAP_SYS_PTRACE, as in most containers, a sampler keeps what the targets hold, or it could not read them.
//!
//! Under sudo the main thread becomes the calling user, permanently, if that user may write the outputs: root
//! may write root's files without any capability.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{fmt, io};

use libc::pid_t;

use super::refusal::capabilities_of;
use super::{cgroup, sys};
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
struct ThreadRights {
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
fn rights(role: Role, thread: ThreadRights) -> Rights {
    let ThreadRights { held, is_first, takes_ids, is_root, of_targets } = thread;
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
    let held = permitted()?;
    set(held, held)?;
    set_thread_ids(caller.uid(), caller.gid(), caller.groups())
}

fn caller() -> Option<&'static Caller> {
    CALLER.get()?.as_ref()
}

/// Gives the calling thread the rights of a user to files, permanently, and no capability. It stays the process's
/// user otherwise, so that the other user cannot send it signals.
///
/// # Errors
/// The system's error: only root takes the rights of another user.
pub(crate) fn read_as(user: &Caller) -> io::Result<()> {
    let held = permitted()?;
    set(held, held)?;
    user.take()?;
    apply(Rights { effective: NONE, permitted: NONE })
}

/// Drops what the calling thread does not need in this role and in later ones.
///
/// # Errors
/// The system's error.
pub fn restrict(role: Role) -> io::Result<()> {
    let held = permitted()?;
    if held == NONE {
        return Ok(());
    }
    let caller = caller().filter(|_| is_root());
    let mut ids = Ok(());
    if role == Role::Watching
        && let Some(caller) = caller
    {
        ids = set_ids(caller);
    }
    let thread = ThreadRights {
        held,
        is_first: is_first_thread(),
        takes_ids: caller.is_some(),
        is_root: is_root(),
        of_targets: targets().capabilities,
    };
    apply(rights(role, thread))?;
    ids
}

fn apply(rights: Rights) -> io::Result<()> {
    set(rights.effective, rights.permitted)?;
    forbid_new_privileges()?;
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
    if writes_as_caller && let Some(caller) = caller().filter(|_| is_root()) {
        set_ids(caller)?;
        let held = permitted()?;
        return apply(Rights { effective: READ.within(held), permitted: READ.within(held) });
    }
    restrict(Role::Symbolizing)
}

// ---- System calls that change the rights of the calling thread only (capabilities(7), "Effect on threads";
// setresuid(2), "C library/kernel differences"): glibc's `setresuid` would change every thread, and abort if
// one of them may not.

/// `struct __user_cap_header_struct` (include/uapi/linux/capability.h).
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`: 32 capabilities of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two [`Data`], with capabilities 0 to 63.
const VERSION: u32 = 0x2008_0522;

fn done(returned: libc::c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The permitted capabilities of the calling thread.
fn permitted() -> io::Result<Capabilities> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: both are live and of the types and lengths that capget(2) expects for this version.
    done(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(Capabilities(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32))
}

/// Sets the capabilities of the calling thread; none are inheritable.
fn set(effective: Capabilities, permitted: Capabilities) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: 0,
    };
    let data = [half(0), half(32)];
    // SAFETY: both are live and of the types and lengths that capset(2) expects for this version.
    done(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })
}

/// Gives the calling thread the ids of a user, all of them and permanently. Its permitted capabilities stay.
fn set_thread_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    set_option(libc::PR_SET_KEEPCAPS, 1)?;
    // SAFETY: setresgid(2) and setresuid(2) take numbers; setgroups(2) reads `groups.len()` numbers from live
    // memory.
    unsafe {
        done(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        done(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        done(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    set_option(libc::PR_SET_KEEPCAPS, 0)
}

fn set_option(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: the options used here take a number, and three more that are 0 (prctl(2)).
    done(unsafe { libc::prctl(option, value, none, none, none) }.into())
}

/// Forbids that an `exec` of the calling thread or its descendants gains privileges.
fn forbid_new_privileges() -> io::Result<()> {
    set_option(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Whether the calling thread is root's.
fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether the calling thread is the first of its process.
fn is_first_thread() -> bool {
    // SAFETY: getpid(2) and gettid(2) take nothing and cannot fail.
    unsafe { libc::getpid() == libc::gettid() }
}

// ---- CPU time reserved for the reader of the kernel's samples (sched(7), SCHED_DEADLINE), and its limits.
// Input: the number of CPUs, the control group of this process. Output: whether time is reserved.
//
// Priorities work only within a session if sessions share the CPUs (CONFIG_SCHED_AUTOGROUP), and only within
// a control group. Reserved time goes before everything else, so it is short and bounded:
// - Programs with other real-time policies (SCHED_FIFO) are delayed by [`RUNTIME_MAX_NS`] at most.
// - On a machine with one CPU half as much is reserved: the target keeps 70 % of it whatever reading takes.
// - In a control group with a CPU limit nothing is reserved.
// - If others have reserved all such time, nothing is taken from them.
//
// The reservation ends with the thread, however that exits.

/// Longest reservation per period, and the period, nanoseconds.
const RUNTIME_MAX_NS: u64 = 3_000_000;
const PERIOD_NS: u64 = 5_000_000;
/// Largest reserved part of the machine, per mille.
const MACHINE_PER_MILLE: u64 = 300;

/// Reserved time per period on a machine with this many CPUs, nanoseconds.
fn runtime_ns(cpus: usize) -> u64 {
    (PERIOD_NS * MACHINE_PER_MILLE / 1000).saturating_mul(cpus.max(1) as u64).min(RUNTIME_MAX_NS)
}

/// Files with the CPU limits of a process's control groups, from its `/proc/PID/cgroup`: for both versions of
/// the hierarchy, up to the root.
fn quota_files(mounted: &Path, groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (controllers, path) in cgroup::memberships(groups) {
        let (hierarchy, name) = match controllers {
            "" => (mounted.to_owned(), "cpu.max"),
            of_cpu if of_cpu.split(',').any(|name| name == "cpu") => {
                (mounted.join(of_cpu), "cpu.cfs_quota_us")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| hierarchy.join(group).join(name)));
    }
    files
}

/// Whether the file contains a limit: `100000 100000`; without one, `max 100000` or `-1`.
fn is_limit(quota: &str) -> bool {
    quota.split_whitespace().next().is_some_and(|most| most.parse::<u64>().is_ok())
}

/// Whether a limit of CPU time applies to this process.
fn is_limited() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = quota_files(Path::new(cgroup::MOUNTED), &groups);
    files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).any(|quota| is_limit(&quota))
}

/// Reserves time for the calling thread, on a machine with this many CPUs. Returns whether that succeeded.
pub(super) fn reserve_for_this_thread(cpus: usize) -> bool {
    !is_limited() && sys::reserve_time_for_this_thread(runtime_ns(cpus), PERIOD_NS).is_ok()
}

#[cfg(test)]
mod reservation_tests {
    use super::*;

    #[test]
    fn others_keep_most_of_the_machine() {
        let ms = |cpus| runtime_ns(cpus) as f64 / 1e6;
        assert_eq!([0, 1, 2, 3, 64].map(ms), [1.5, 1.5, 3.0, 3.0, 3.0], "of 5 ms");
    }

    #[test]
    fn limits_of_a_group_and_its_parents_are_checked() {
        let files = |groups| quota_files(Path::new("/m"), groups);
        let listed = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            files("0::/a.slice/b.scope\n"),
            listed(&["/m/a.slice/b.scope/cpu.max", "/m/a.slice/cpu.max", "/m/cpu.max"])
        );
        assert_eq!(files("0::/\n"), listed(&["/m/cpu.max"]));
        assert_eq!(
            files("12:cpuset:/x\n4:cpu,cpuacct:/docker/1\nrubbish\n"),
            listed(&[
                "/m/cpu,cpuacct/docker/1/cpu.cfs_quota_us",
                "/m/cpu,cpuacct/docker/cpu.cfs_quota_us",
                "/m/cpu,cpuacct/cpu.cfs_quota_us"
            ])
        );
        let limits = ["50000 100000\n", "max 100000\n", "-1\n", "20000\n", ""].map(is_limit);
        assert_eq!(limits, [true, false, false, true, false]);
    }

    /// Policy of the calling thread (proc(5), stat, field 41).
    fn policy() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(38).and_then(|policy| policy.parse().ok()).unwrap_or(u32::MAX)
    }

    #[test]
    fn children_do_not_inherit_reserved_time() {
        const SCHED_DEADLINE: u32 = 6;
        let before = policy();
        let reserve = || {
            let has_time = reserve_for_this_thread(1);
            let started = std::thread::spawn(policy).join();
            let child = std::process::Command::new("cat").arg("/proc/self/stat").output();
            (has_time, policy(), started, child)
        };
        let Ok((has_time, own, started, child)) = std::thread::spawn(reserve).join() else { panic!("died") };
        let inherited = if has_time { 0 } else { before };
        assert_eq!(own, if has_time { SCHED_DEADLINE } else { before });
        assert_eq!(started.ok(), Some(inherited));
        let stat = child.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let stat = stat.unwrap_or_else(|error| panic!("fork fails: {error}"));
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        assert_eq!(fields.split_whitespace().nth(38), Some(inherited.to_string().as_str()), "{stat}");
    }
}
