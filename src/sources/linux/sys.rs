//! System calls that the backends share, each a few lines. Input and output: plain values. A failed call returns
//! its errno as an `io::Error`; no decisions are made here.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_void, pid_t};

use crate::binary::map;
use crate::sources::ExitStatus;

/// Status of a child or a traced thread (waitid(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitStatus {
    /// Stopped; the signal and ptrace event of `si_status` (see ptrace(2)).
    Stopped { tid: pid_t, signal: c_int, event: c_int },
    /// Exited by `exit`.
    Exited { tid: pid_t, code: i32 },
    /// Killed by a signal.
    Killed { tid: pid_t, signal: c_int },
}

impl WaitStatus {
    /// The thread's id.
    pub(super) fn tid(self) -> pid_t {
        match self {
            WaitStatus::Stopped { tid, .. }
            | WaitStatus::Exited { tid, .. }
            | WaitStatus::Killed { tid, .. } => tid,
        }
    }

    /// The exit status, if it has exited.
    pub(super) fn exit_status(self) -> Option<ExitStatus> {
        match self {
            WaitStatus::Exited { code, .. } => Some(ExitStatus::Code(code)),
            WaitStatus::Killed { signal, .. } => Some(ExitStatus::Signal(signal)),
            WaitStatus::Stopped { .. } => None,
        }
    }
}

/// A descriptor of a process (pidfd_open(2), Linux 5.3).
pub(super) fn open_process(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes only two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match c_int::try_from(fd) {
        // SAFETY: the call above returned this new descriptor; no other value owns it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a process has ended and its parent knows: its id may be given to another one.
pub(super) fn is_reaped(process: &OwnedFd) -> bool {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal(2) reads nothing through a null pointer; signal 0 only checks.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), 0, no_info, 0) };
    sent != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// process_vm_readv of one range into the spare capacity of `into`, which then has the bytes read, possibly
/// fewer than `len`.
pub(super) fn read_memory_into(pid: pid_t, from: u64, len: usize, into: &mut Vec<u8>) -> io::Result<usize> {
    into.clear();
    into.reserve(len);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: len };
    // SAFETY: `local` is the spare capacity of a live vector, at least `len` bytes after
    // `reserve`; the remote range belongs to another process and is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel initialised the first `read` bytes, and read ≤ len ≤ capacity.
    unsafe { into.set_len(read.min(len)) };
    Ok(read)
}

/// process_vm_readv of one range into a slice; returns the bytes read.
pub(super) fn read_memory(pid: pid_t, from: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: into.len() };
    // SAFETY: `local` is exactly the live slice; the remote range is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// The error of a call that failed, else 0.
fn errno_of(returned: libc::c_long) -> i32 {
    if returned == -1 { io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

/// The error of perf_event_open(2) with flags that do not exist: EINVAL from the kernel.
pub(super) fn errno_of_event_with_bad_flags() -> i32 {
    // SAFETY: the kernel refuses the flags before it reads the attributes, and a null pointer otherwise.
    let returned = unsafe {
        let no_attributes = std::ptr::null::<c_void>();
        libc::syscall(libc::SYS_perf_event_open, no_attributes, 0, -1, -1, libc::c_ulong::MAX)
    };
    errno_of(returned)
}

/// The error of ptrace(2) for a process that cannot exist: ESRCH from the kernel.
pub(super) fn errno_of_trace_of_nobody() -> i32 {
    // SAFETY: no process has this number (PID_MAX_LIMIT is 2^22), so nothing is read or written.
    errno_of(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, pid_t::MAX, 0, 0) })
}

/// The error of process_vm_readv(2) with flags that do not exist: EINVAL from the kernel.
pub(super) fn errno_of_read_with_bad_flags() -> i32 {
    let nothing = std::ptr::null::<libc::iovec>();
    // SAFETY: the kernel refuses the flags first; both lists are empty.
    errno_of(unsafe { libc::process_vm_readv(0, nothing, 0, nothing, 0, libc::c_ulong::MAX) } as libc::c_long)
}

/// waitid(2), which never blocks.
pub(super) fn wait(which: libc::idtype_t, tid: pid_t, flags: c_int) -> io::Result<Option<WaitStatus>> {
    // SAFETY: siginfo_t is plain data for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = flags | libc::WNOHANG;
    // SAFETY: `info` is live and of the type that waitid(2) fills.
    if unsafe { libc::waitid(which, tid as libc::id_t, &raw mut info, flags) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid returned 0, so the SIGCHLD members are filled, or the whole is the
    // zeroes of above when nothing waits (waitid(2)).
    let (tid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if tid == 0 {
        return Ok(None);
    }
    Ok(Some(match info.si_code {
        libc::CLD_EXITED => WaitStatus::Exited { tid, code: status },
        libc::CLD_KILLED | libc::CLD_DUMPED => WaitStatus::Killed { tid, signal: status },
        _ => WaitStatus::Stopped { tid, signal: status & 0xff, event: status >> 8 },
    }))
}

/// The exit status of a child of this process, whichever thread started it. The child stays a zombie, so that
/// its CPU time can be read.
pub(super) fn child_end(pid: pid_t) -> Option<ExitStatus> {
    wait(libc::P_PID, pid, libc::WEXITED | libc::WNOWAIT).ok()??.exit_status()
}

/// Sends a signal to a process.
pub(super) fn kill(pid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: kill(2) takes two numbers and touches no memory of ours.
    if unsafe { libc::kill(pid, signal) } == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes timers of this thread fire on time instead of up to 50 µs late, and raises its priority on wakeup.
/// Both are refinements: refusal changes nothing.
pub(super) fn prefer_this_thread() {
    // SAFETY: PR_SET_TIMERSLACK takes a number; setpriority(2) takes numbers, and 0 means
    // the calling thread on Linux.
    unsafe {
        libc::prctl(
            libc::PR_SET_TIMERSLACK,
            1 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        );
        libc::setpriority(libc::PRIO_PROCESS, 0, -20);
    }
}

/// Resident bytes of files mapped by this process, including its own program (proc_pid_statm(5)).
pub(super) fn resident_file_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(2)?.parse().ok()?;
    // SAFETY: sysconf(3) takes a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * u64::try_from(page_bytes).ok()?)
}

/// Reserves this much of each period for the calling thread (sched(7), SCHED_DEADLINE), nanoseconds. Threads
/// that it starts do not inherit it.
///
/// # Errors
/// Errors of sched_setattr(2): EPERM without CAP_SYS_NICE or with an affinity mask, EBUSY if no such time is
/// left.
pub(super) fn reserve_time_for_this_thread(runtime_ns: u64, period_ns: u64) -> io::Result<()> {
    /// `struct sched_attr` (include/uapi/linux/sched/types.h, SCHED_ATTR_SIZE_VER0).
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    const SCHED_DEADLINE: u32 = 6;
    // Without it, fork(2) and clone(2) fail in this thread.
    const SCHED_FLAG_RESET_ON_FORK: u64 = 1;
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: SCHED_DEADLINE,
        flags: SCHED_FLAG_RESET_ON_FORK,
        nice: 0,
        priority: 0,
        runtime_ns,
        deadline_ns: period_ns,
        period_ns,
    };
    // SAFETY: sched_setattr(2) reads a live structure, which contains its size; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the soft limit of open files to the hard one: two are kept per thread of the target and one per
/// image. Returns the old limit, if reported.
pub(super) fn raise_file_limit() -> Option<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is live and of the type the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) } == -1 {
        return None;
    }
    set_file_limit(&libc::rlimit { rlim_cur: before.rlim_max, ..before });
    map::keep_open_below(before.rlim_max / 2);
    Some(before)
}

/// Resets an ignored SIGCHLD, as a parent may have left it: the kernel would reap children before this
/// process can.
pub(super) fn heed_child_signal() {
    // SAFETY: no handler is set.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Sets the limit of open files. Does not allocate.
pub(super) fn set_file_limit(limit: &libc::rlimit) {
    // SAFETY: `limit` is live and of the type the call reads.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
}

/// The CPU that the calling thread runs on.
pub(super) fn current_cpu() -> Option<u32> {
    // SAFETY: sched_getcpu(3) takes nothing.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Number of CPUs that a thread may run on, at least 1.
pub(super) fn cpus_of(pid: pid_t) -> usize {
    // SAFETY: cpu_set_t is plain data for which all zeroes is a value; the size passed is its own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(pid, size_of::<libc::cpu_set_t>(), &raw mut set) == 0 {
            return usize::try_from(libc::CPU_COUNT(&set)).unwrap_or(1).max(1);
        }
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The id of the user with this name (getpwnam_r(3)).
pub(super) fn user_id(name: &OsStr) -> Option<u32> {
    const TEXT_BYTES: usize = 16 << 10;
    let name = CString::new(name.as_bytes()).ok()?;
    let mut text = vec![0; TEXT_BYTES];
    // SAFETY: passwd is plain data for which zeros are valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: a C string, and live buffers of the given sizes; the entry's pointers lead into `text`, and
    // only its number is read afterwards.
    let failed = unsafe {
        libc::getpwnam_r(name.as_ptr(), &raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found)
    };
    (failed == 0 && !found.is_null()).then_some(entry.pw_uid)
}

/// User and system CPU time of this process in nanoseconds, and its peak resident bytes.
pub(super) fn own_usage() -> (u64, u64) {
    // SAFETY: rusage is plain data; `usage` is live and of the type getrusage(2) fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    (ns(usage.ru_utime) + ns(usage.ru_stime), usage.ru_maxrss as u64 * 1024)
}

/// Whether an executable has file capabilities (capabilities(7), "File capabilities").
pub(super) fn has_file_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings end with NUL; only the size of the value is requested.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// The effective user id of this process.
pub(super) fn effective_uid() -> u32 {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns free memory to the system that glibc keeps below blocks in use.
pub(super) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointers, moves no block in use, and locks what it reads.
    unsafe {
        libc::malloc_trim(0);
    }
}
