//! System calls of the tracer, each a few lines, and the thread that executes them (`Tracer`). Input and output:
//! plain values.
//!
//! `libc`, not `nix` or `rustix`: neither has PTRACE_LISTEN, `waitid` with __WNOTHREAD, or a regset read into a
//! reused buffer, which is most of this file. A failed call returns its errno as an `io::Error`; no decisions are
//! made here.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use libc::{c_int, c_void, pid_t};

use crate::error::{self, Error, ErrorKind, io_text};
use crate::sources::linux::privileges;
use crate::sources::linux::sys::{self, WaitStatus, wait};
use crate::sources::{CallThread, Fault, Role, signals};

/// The signal that the tracer thread waits for; blocked in every thread of the profiler.
const SIGNAL: c_int = libc::SIGCHLD;

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

/// Like [`wait`], for threads that the calling thread traces. Never blocks.
fn wait_traced(which: libc::idtype_t, tid: pid_t, flags: c_int) -> io::Result<Option<WaitStatus>> {
    wait(which, tid, flags | libc::__WALL | libc::__WNOTHREAD)
}

/// A stopped thread of this tracer. Never blocks; sees only threads traced by the calling thread
/// (__WNOTHREAD), no other child of this process.
///
/// WNOWAIT leaves the stop unchanged until the thread is continued: a wait that consumes it clears the
/// pending signal (kernel/exit.c, wait_task_stopped), which would be lost if this process were killed before
/// PTRACE_CONT delivered it.
pub(super) fn peek_stopped() -> io::Result<Option<WaitStatus>> {
    wait_traced(libc::P_ALL, 0, libc::WSTOPPED | libc::WNOWAIT)
}

/// Consumes a stop that [`peek_stopped`] returned, without a pending signal. After an exec by a thread
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

fn signal_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, initialised by sigemptyset before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live; the signal number is a constant that exists.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGNAL);
    }
    set
}

/// Blocks the tracer's signal for the calling thread and the threads it starts.
pub(crate) fn block_signal() {
    let set = signal_set();
    // SAFETY: the set is live and initialised; the old one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Sleeps until the (blocked) signal arrives or the time has passed. Returns whether it arrived.
pub(super) fn sleep_for_signal(at_most: Duration) -> bool {
    let set = signal_set();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: both pointers are to live, initialised objects; no siginfo is requested.
    unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const timeout) > 0 }
}

// ---- The tracer thread, which executes calls for others: a caller waits until its call is done.
//
// Only the thread that seized may make ptrace calls, and when it exits the kernel releases all that it
// traces without a stop. So the state of a recording stays with the caller, and the thread can exit and be
// replaced in the middle of it.

/// A call with a waiting caller.
struct Job(*mut (dyn FnMut() + 'static));

// SAFETY: `Tracer::run`, the only function that creates jobs, waits until the thread is done with it. So one
// thread at a time uses the data of the call, whatever its type, and each sees the other's writes (the
// channels). Only the ptrace calls are bound to a thread, and they are made in this one.
unsafe impl Send for Job {}

type Done = std::result::Result<(), Box<dyn Any + Send>>;

/// The running thread.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
    /// A suspension of this process would leave traced threads waiting.
    _hold: signals::Hold,
}

/// The thread that traces.
pub(crate) struct Tracer(Mutex<Option<Worker>>);

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tracer")
    }
}

impl Worker {
    fn start() -> std::io::Result<Worker> {
        let (jobs, next) = channel::<Job>();
        let (tell, done) = channel();
        let hold = signals::Hold::new();
        let work = move || {
            signals::note_sampler();
            for Job(job) in next {
                // SAFETY: the caller waits in `Tracer::run` and keeps the pointee alive until then.
                let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)() }));
                if tell.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(work)?;
        Ok(Worker { jobs, done, thread, _hold: hold })
    }
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system cannot start it.
    pub(crate) fn start() -> error::Result<Tracer> {
        let worker = Worker::start().map_err(|error| {
            Error::new(ErrorKind::System, format!("cannot start a thread: {}", io_text(&error)))
        })?;
        Ok(Tracer(Mutex::new(Some(worker))))
    }

    /// Executes `call` in the thread and `meanwhile` in this one; returns the result of `call`.
    pub(crate) fn call_while<R>(&self, call: impl FnOnce() -> R, meanwhile: impl FnOnce()) -> R {
        let (mut call, mut result) = (Some(call), None);
        self.run(&mut || result = call.take().map(|call| call()), meanwhile);
        result.unwrap_or_else(|| unreachable!("`run` makes the call, or unwinds"))
    }

    /// Runs `body` in the thread and `meanwhile` in this one, and waits for both.
    fn run(&self, body: &mut dyn FnMut(), meanwhile: impl FnOnce()) {
        let worker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(worker) = &*worker else { unreachable!("calls are made while there is a thread") };
        // SAFETY: only the lifetime changes; the pointer is not used after `recv` below, which returns when
        // the thread is done with the call, or has exited; `meanwhile` cannot unwind past it.
        let job = unsafe { std::mem::transmute::<*mut dyn FnMut(), *mut (dyn FnMut() + 'static)>(body) };
        if worker.jobs.send(Job(job)).is_err() {
            unreachable!("the thread ends when its jobs do");
        }
        let here = catch_unwind(AssertUnwindSafe(meanwhile));
        match worker.done.recv() {
            Ok(there) => here.and(there).unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => unreachable!("the thread ends when its jobs do"),
        }
    }
}

impl CallThread for Tracer {
    fn call(&self, body: &mut dyn FnMut()) {
        self.run(body, || {});
    }

    fn shut_down(&self) {
        let worker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Worker { jobs, thread, _hold, .. }) = worker {
            drop(jobs);
            let _ = thread.join();
        }
    }

    fn restart(&self) -> std::result::Result<(), Fault> {
        let worker = Worker::start().map_err(|error| {
            Fault::Lost(format!("no thread could be started to trace again: {}", io_text(&error)))
        })?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
        self.call(&mut || {
            sys::prefer_this_thread();
            let _ = privileges::restrict(Role::SamplingByPtrace);
        });
        Ok(())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::sources::linux::sys::kill;

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
                match peek_stopped()? {
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
            return crate::skip::skip("ptrace is not permitted here");
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
