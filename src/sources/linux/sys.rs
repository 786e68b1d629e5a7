//! System calls of the ptrace backend, each a few lines. Input and output: plain values.
//!
//! `libc`, not `nix` or `rustix`: neither has PTRACE_LISTEN, `waitid` with __WNOTHREAD, or a regset read into
//! a reused buffer, which is most of this file. A failed call returns its errno as an `io::Error`; no
//! decisions are made here.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use libc::{c_int, c_void, pid_t};

use crate::binary::map;
use crate::sources::ExitStatus;

/// `wait` status of a traced thread.
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

fn ptrace(request: libc::c_uint, tid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: every caller passes a request that takes `data` as a number or as the address of a live object
    // of the size that the request documents.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// PTRACE_SEIZE: traces a thread without a stop. New threads and `exec` are followed, and with `children` new
/// processes too; threads then also stop when they exit. Followed threads have the same options
/// (kernel/fork.c, `ptrace_init_task`). There is no EXITKILL, so the kernel lets everything run when the
/// tracer thread exits.
pub(super) fn seize(tid: pid_t, children: bool) -> io::Result<()> {
    const ALWAYS: c_int = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD;
    const CHILDREN: c_int = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACEEXIT;
    let options = if children { ALWAYS | CHILDREN } else { ALWAYS };
    ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// PTRACE_GETEVENTMSG of a thread in an event stop: for a fork or clone, the new number.
pub(super) fn event_message(tid: pid_t) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // The kernel writes one unsigned long into the live `message`.
    ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize)?;
    Ok(message)
}

/// PTRACE_INTERRUPT: the thread stops when it next enters or is in the kernel.
pub(super) fn interrupt(tid: pid_t) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// PTRACE_CONT, delivering `signal` unless it is 0.
pub(super) fn cont(tid: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// PTRACE_LISTEN: a thread stopped by job control stays so, and SIGCONT reaches it.
pub(super) fn listen(tid: pid_t) -> io::Result<()> {
    ptrace(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// PTRACE_SYSCALL: as [`cont`], up to the next entry or exit of a system call.
pub(super) fn cont_until_call(tid: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// PTRACE_DETACH of a stopped thread, delivering `signal` unless it is 0.
pub(super) fn detach(tid: pid_t, signal: c_int) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// The general registers in the kernel's layout (NT_PRSTATUS).
pub(super) type RawRegisters = libc::user_regs_struct;

/// Registers with all fields 0.
pub(super) fn no_registers() -> RawRegisters {
    // SAFETY: user_regs_struct has only integer fields; all zeroes is a value of it.
    unsafe { std::mem::zeroed() }
}

/// The general registers of a thread that runs 32-bit code, in the kernel's layout: of i386 (`struct
/// user_regs_struct32` of arch/x86/include/asm/user32.h), or of Arm (`COMPAT_ELF_NGREG` of
/// arch/arm64/kernel/ptrace.c).
#[cfg(target_arch = "x86_64")]
pub(super) type RawCompat = [u32; 17];
#[cfg(target_arch = "aarch64")]
pub(super) type RawCompat = [u32; 18];

/// Reinterprets the start of partially filled registers as [`RawCompat`].
pub(super) fn compat_of(raw: &RawRegisters) -> RawCompat {
    const { assert!(size_of::<RawCompat>() <= size_of::<RawRegisters>()) };
    // SAFETY: `raw` is live, at least as large as the words and more aligned than they are; it has
    // only integer fields, so that all its bytes are initialised.
    unsafe { *(&raw const *raw).cast::<RawCompat>() }
}

/// Stores such words in the registers.
pub(super) fn set_compat(raw: &mut RawRegisters, words: RawCompat) {
    // SAFETY: as above; any bytes are a value of integers.
    unsafe { *(&raw mut *raw).cast::<RawCompat>() = words }
}

/// PTRACE_GETREGSET NT_PRSTATUS of a stopped thread. Returns the number of bytes filled: fewer for a thread
/// that runs 32-bit code.
pub(super) fn registers(tid: pid_t, into: &mut RawRegisters) -> io::Result<usize> {
    let mut iov =
        libc::iovec { iov_base: (into as *mut RawRegisters).cast(), iov_len: size_of::<RawRegisters>() };
    // The kernel writes at most iov_len bytes into the live `into` and the length into the live `iov`.
    ptrace(libc::PTRACE_GETREGSET, tid, libc::NT_PRSTATUS as usize, &raw mut iov as usize)?;
    Ok(iov.iov_len)
}

/// PTRACE_GETSIGMASK of a stopped thread: its blocked signals, one bit each.
pub(super) fn blocked_signals(tid: pid_t) -> io::Result<u64> {
    /// include/uapi/linux/ptrace.h
    const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
    let mut blocked = 0u64;
    // The kernel writes this many bytes, those of the live `blocked`.
    ptrace(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut blocked as usize)?;
    Ok(blocked)
}

/// PTRACE_SETREGSET NT_PRSTATUS of a stopped thread: the first `len` bytes, as many as were read.
pub(super) fn set_registers(tid: pid_t, from: &mut RawRegisters, len: usize) -> io::Result<()> {
    let len = len.min(size_of::<RawRegisters>());
    // The kernel reads at most iov_len bytes of the live `from`.
    let mut iov = libc::iovec { iov_base: (from as *mut RawRegisters).cast(), iov_len: len };
    ptrace(libc::PTRACE_SETREGSET, tid, libc::NT_PRSTATUS as usize, &raw mut iov as usize)
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

/// Most ranges for [`read_ranges`] (IOV_MAX).
pub(super) const RANGES_MAX: usize = 1024;

/// process_vm_readv of up to [`RANGES_MAX`] ranges, each an address and a size, concatenated into a vector.
/// Replaces its content. Ends before the first range that is not fully readable.
pub(super) fn read_ranges(pid: pid_t, ranges: &[(u64, usize)], into: &mut Vec<u8>) -> io::Result<()> {
    let remote =
        ranges.iter().map(|(from, len)| libc::iovec { iov_base: *from as *mut c_void, iov_len: *len });
    let remote: Vec<libc::iovec> = remote.take(RANGES_MAX).collect();
    let len = remote.iter().map(|range| range.iov_len).sum();
    into.clear();
    into.resize(len, 0);
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: len };
    let count = remote.len() as libc::c_ulong;
    // SAFETY: `local` is exactly the live bytes of `into`; `remote` is a live array of `count` ranges of another
    // process, which the kernel checks.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    into.truncate(read);
    Ok(())
}

/// process_vm_readv of one range into a slice; returns the bytes read.
pub(super) fn read_memory(pid: pid_t, from: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: into.len() };
    // SAFETY: `local` is exactly the live slice; the remote range is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Like [`wait`], for threads that the calling thread traces. Never blocks.
fn wait_traced(which: libc::idtype_t, tid: pid_t, flags: c_int) -> io::Result<Option<WaitStatus>> {
    wait(which, tid, flags | libc::__WALL | libc::__WNOTHREAD)
}

/// waitid(2), which never blocks.
fn wait(which: libc::idtype_t, tid: pid_t, flags: c_int) -> io::Result<Option<WaitStatus>> {
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

/// A stopped thread of this tracer. Never blocks; sees only threads traced by the calling thread
/// (__WNOTHREAD), no other child of this process.
///
/// WNOWAIT leaves the stop unchanged until the thread is continued: a wait that consumes it clears the
/// pending signal (kernel/exit.c, wait_task_stopped), which would be lost if this process were killed before
/// PTRACE_CONT delivered it.
pub(super) fn look_for_stopped() -> io::Result<Option<WaitStatus>> {
    wait_traced(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOWAIT)
}

/// Consumes a stop that [`look_for_stopped`] returned, without a pending signal. After an exec by a thread
/// other than the first, the kernel continues no thread until its new number was waited for (kernel/ptrace.c,
/// `looks_like_a_spurious_pid`).
pub(super) fn take_stop(tid: pid_t) -> io::Result<Option<WaitStatus>> {
    wait_traced(libc::P_PID, tid, libc::WSTOPPED)
}

/// An exited thread; it stays a zombie (its /proc files still exist) until [`reap`].
pub(super) fn peek_exited() -> io::Result<Option<WaitStatus>> {
    wait_traced(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT)
}

/// Reaps a thread that [`peek_exited`] returned; its real parent is notified now.
pub(super) fn reap(tid: pid_t) -> io::Result<Option<WaitStatus>> {
    wait_traced(libc::P_PID, tid, libc::WEXITED)
}

/// The exit status of a child of this process, whichever thread started it. The child stays a zombie, so that
/// its CPU time can be read.
pub(super) fn child_end(pid: pid_t) -> Option<ExitStatus> {
    wait(libc::P_PID, pid, libc::WEXITED | libc::WNOWAIT).ok()??.exit_status()
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, initialised by sigemptyset before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live; the signal numbers are constants that exist.
    unsafe {
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
    }
    set
}

/// Blocks signals for the calling thread and the threads it starts.
pub(super) fn block_signals(signals: &[c_int]) {
    let set = signal_set(signals);
    // SAFETY: the set is live and initialised; the old one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Sleeps until one of the (blocked) signals arrives or the time has passed; returns the signal.
pub(super) fn sleep_for_signal(signals: &[c_int], at_most: Duration) -> Option<c_int> {
    let set = signal_set(signals);
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: both pointers are to live, initialised objects; no siginfo is requested.
    let signal = unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const timeout) };
    (signal > 0).then_some(signal)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout)]
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A tracer that is killed between seeing a signal stop and continuing it: to the kernel the exit of its
    /// thread equals SIGKILL of the process.
    #[test]
    fn a_pending_signal_survives_the_tracer() {
        let script = "trap 'echo got; exit' USR1; echo ready; while :; do sleep 0.05; done";
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as pid_t;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let tracer = std::thread::spawn(move || {
            seize(pid, false)?;
            kill(pid, libc::SIGUSR1)?;
            for _ in 0..60_000 {
                match look_for_stopped()? {
                    Some(WaitStatus::Stopped { signal: libc::SIGUSR1, event: 0, .. }) => return Ok(()),
                    // SIGCHLD from the script's `sleep`s.
                    Some(WaitStatus::Stopped { tid, signal, .. }) => cont(tid, signal)?,
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            Err(io::Error::from(io::ErrorKind::TimedOut))
        });
        let stopped = tracer.join().unwrap();
        if stopped.as_ref().is_err_and(|error: &io::Error| error.raw_os_error() == Some(libc::EPERM)) {
            child.kill().unwrap();
            child.wait().unwrap();
            let must = std::env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
            assert!(!must, "STACKPROF_NO_SKIP is set, but ptrace is not permitted here");
            println!("SKIP ptrace is not permitted here");
            return;
        }
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(lines.next()));
        let said = told.recv_timeout(Duration::from_secs(120));
        child.kill().unwrap();
        child.wait().unwrap();
        stopped.unwrap();
        assert_eq!(said.unwrap().unwrap().unwrap(), "got");
    }
}
