//! A program under PTRACE_SINGLESTEP: starts it, steps its threads one instruction at a time, reads registers
//! and memory. Linux x86_64 only, which shows i386 programs in the same registers. Does not interpret the
//! steps.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libc::{c_int, c_long, c_void, pid_t};
use stackprof::arch::{Arch, X86_64};

/// Kind of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// An instruction was executed.
    Step,
    /// A signal is about to be delivered.
    Signal(c_int),
    /// The thread created another one.
    Clone,
    /// The thread has exited.
    Gone,
}

/// Binds this thread, and its children, to one CPU, number `number` of the allowed ones: tracer and program
/// run in turn, and waking an idle CPU takes longer than the instruction.
pub(crate) fn stay_on_cpu(number: usize) {
    // SAFETY: both sets are locals of the given size, with all zeroes as an empty set, and CPU numbers are
    // below the number of bits in a set. A refusal only makes everything slower.
    unsafe {
        let bytes = size_of::<libc::cpu_set_t>();
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, bytes, &raw mut allowed);
        let cpus: Vec<usize> = (0..8 * bytes).filter(|cpu| libc::CPU_ISSET(*cpu, &allowed)).collect();
        if let Some(cpu) = cpus.get(number % cpus.len().max(1)) {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(*cpu, &mut set);
            libc::sched_setaffinity(0, bytes, &raw const set);
        }
    }
}

/// Starts a program, stopped before its first instruction. Its output is discarded.
#[expect(clippy::zombie_processes, reason = "`wait` takes its end by waitpid")]
pub(crate) fn start(program: &Path, arguments: &[String], environment: &[(&str, &str)]) -> pid_t {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: only system calls that are allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            Ok(())
        });
    }
    let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {program:?}: {error}"));
    let pid = child.id() as pid_t;
    let mut status = 0;
    // SAFETY: waits for our child and sets an option of it; the pointer is to a local.
    unsafe {
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        assert_eq!(libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options), 0);
    }
    pid
}

/// Lets a thread execute one instruction, with a signal to deliver or 0.
pub(crate) fn step(tid: pid_t, signal: c_int) {
    // SAFETY: an integer call; a thread that has exited gives an error, and its exit is waited for.
    unsafe {
        libc::ptrace(libc::PTRACE_SINGLESTEP, tid, 0, signal);
    }
}

/// Runs a program that was just started to its entry point, past the dynamic linker.
pub(crate) fn run_to_entry(pid: pid_t, arch: Arch) {
    const AT_ENTRY: u64 = 9;
    const BREAKPOINT: c_long = 0xcc;
    let vector = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let words: Vec<u64> = vector.chunks_exact(arch.pointer_bytes() as usize).map(word).collect();
    let entry = words.as_chunks::<2>().0.iter().find(|[key, _]| *key == AT_ENTRY);
    let [_, entry] = entry.unwrap_or_else(|| panic!("/proc/{pid}/auxv names no entry point"));
    let mut status = 0;
    // SAFETY: the program is our child and stopped; the pointers are to locals, and the word at the entry
    // point, which the kernel checks, is restored before it is executed.
    unsafe {
        let word = libc::ptrace(libc::PTRACE_PEEKTEXT, pid, *entry, 0);
        let changed = word & !0xff | BREAKPOINT;
        assert_eq!(libc::ptrace(libc::PTRACE_POKETEXT, pid, *entry, changed), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_CONT, pid, 0, 0), 0);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP, "{status:#x}");
        assert_eq!(libc::ptrace(libc::PTRACE_POKETEXT, pid, *entry, word), 0);
        let mut raw: libc::user_regs_struct = std::mem::zeroed();
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut raw), 0);
        raw.rip = *entry;
        assert_eq!(libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const raw), 0);
    }
}

/// The next stop of any thread of the program that this thread started; `None` if none is left.
pub(crate) fn wait() -> Option<(pid_t, Stop)> {
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    if tid <= 0 {
        return None;
    }
    if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
        return Some((tid, Stop::Gone));
    }
    let signal = libc::WSTOPSIG(status);
    Some((
        tid,
        match (signal, status >> 16) {
            (libc::SIGTRAP, libc::PTRACE_EVENT_CLONE) => Stop::Clone,
            (libc::SIGTRAP, _) => Stop::Step,
            // A new thread starts with this stop.
            (libc::SIGSTOP, _) => Stop::Step,
            _ => Stop::Signal(signal),
        },
    ))
}

/// The registers of a stopped thread.
pub(crate) fn registers(tid: pid_t) -> Option<X86_64> {
    // SAFETY: the kernel fills the struct, whose all-zero state is valid.
    let raw = unsafe {
        let mut raw: libc::user_regs_struct = std::mem::zeroed();
        if libc::ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut raw) != 0 {
            return None;
        }
        raw
    };
    Some(X86_64 {
        gpr: [
            raw.rax, raw.rdx, raw.rcx, raw.rbx, raw.rsi, raw.rdi, raw.rbp, raw.rsp, raw.r8, raw.r9, raw.r10,
            raw.r11, raw.r12, raw.r13, raw.r14, raw.r15,
        ],
        rip: raw.rip,
        fs_base: raw.fs_base,
    })
}

/// Reads memory into `into`; returns the number of bytes read.
pub(crate) fn read(pid: pid_t, from: u64, into: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast::<c_void>(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: into.len() };
    // SAFETY: `local` is a live buffer of that length; the remote address is only read.
    let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(count).unwrap_or(0)
}

/// The signals that a stopped thread blocks, one bit each.
pub(crate) fn blocked_signals(tid: pid_t) -> Option<u64> {
    const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
    let mut blocked = 0u64;
    // SAFETY: the kernel writes the given number of bytes to a local.
    let result = unsafe { libc::ptrace(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut blocked) };
    (result == 0).then_some(blocked)
}

/// Whether this process may trace its children.
pub(crate) fn permitted() -> bool {
    // SAFETY: a child that requests tracing and exits; only makes async-signal-safe calls.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let refused = libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0;
            libc::_exit(c_int::from(refused));
        }
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

/// Kills a program.
pub(crate) fn kill(pid: pid_t) {
    // SAFETY: an integer call on our own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
    }
}

/// Whether a program is on the search path.
pub(crate) fn has(program: &str) -> bool {
    let Ok(name) = CString::new(program) else { return false };
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(name.to_string_lossy().as_ref()).exists())
    })
}
