//! The system calls behind `signals`: handlers, masks, ending and stopping this process.
#![allow(unsafe_code)]

use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use libc::c_int;

use crate::interruption::Signal;

/// Signals that ask the process to end, in the order in which pending ones are handled.
const ENDING: [(c_int, Signal); 3] =
    [(libc::SIGINT, Signal::Interrupt), (libc::SIGTERM, Signal::Terminate), (libc::SIGHUP, Signal::Hangup)];
/// Signals by which job control stops a process, except SIGSTOP.
const STOPPING: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// Signals delivered to one thread only. Not SIGTTIN and SIGTTOU: a terminal behaves differently for a thread
/// that blocks them.
const FOR_ONE_THREAD: [c_int; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP, libc::SIGCONT];

/// How often each of [`ENDING`] arrived and was not yet taken.
static CAME: [AtomicU32; ENDING.len()] = [const { AtomicU32::new(0) }; ENDING.len()];
/// One of [`STOPPING`] arrived, and no SIGCONT since.
static STOP_WANTED: AtomicBool = AtomicBool::new(false);
/// `ctrlc`'s handler.
static WAKE: AtomicUsize = AtomicUsize::new(0);
/// The sampler's thread id; 0 if there is none.
static SAMPLER: AtomicI32 = AtomicI32::new(0);

/// The handler of all signals here: it uses only atomics and `ctrlc`'s handler (sem_post), which
/// signal-safety(7) allows.
extern "C" fn note(signal: c_int) {
    if signal == libc::SIGCONT {
        STOP_WANTED.store(false, Ordering::SeqCst);
    } else if STOPPING.contains(&signal) {
        STOP_WANTED.store(true, Ordering::SeqCst);
    } else if let Some(at) = ENDING.iter().position(|(number, _)| *number == signal) {
        CAME[at].fetch_add(1, Ordering::SeqCst);
    }
    wake_by(signal);
}

/// Wakes `ctrlc`'s thread without a signal.
pub(super) fn wake() {
    wake_by(0);
}

fn wake_by(signal: c_int) {
    let handler = WAKE.load(Ordering::SeqCst);
    if handler != 0 {
        // SAFETY: `install` stored the address of `ctrlc`'s handler, an `extern "C" fn(c_int)` that lives as
        // long as the program.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
}

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, initialised by sigemptyset before use; the numbers are signals.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

fn mask(how: c_int, signals: &[c_int]) {
    let set = set_of(signals);
    // SAFETY: the set is live and initialised; the old mask is not requested.
    unsafe { libc::pthread_sigmask(how, &raw const set, null_mut()) };
}

/// Current disposition of a signal: `SIG_DFL`, `SIG_IGN` or a handler.
fn disposition(signal: c_int) -> usize {
    // SAFETY: all bytes zero are a `sigaction`; the call only writes to it.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        libc::sigaction(signal, null(), &raw mut action);
        action.sa_sigaction
    }
}

fn dispose(signal: c_int, disposition: usize) {
    // SAFETY: all bytes zero are a `sigaction`; the handler is `SIG_DFL`, `SIG_IGN` or `note`, which takes
    // one number like all handlers without SA_SIGINFO.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = disposition;
        action.sa_flags = libc::SA_RESTART;
        // Handlers must not nest: a SIGCONT handler that interrupts that of an earlier SIGTSTP would be noted
        // first.
        action.sa_mask = set_of(&FOR_ONE_THREAD);
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

fn noting() -> usize {
    note as extern "C" fn(c_int) as usize
}

/// Sets the handlers; `set_handler` is `ctrlc`'s, which starts its thread.
pub(super) fn install<E>(set_handler: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let all: Vec<c_int> =
        ENDING.iter().map(|(signal, _)| *signal).chain(STOPPING).chain([libc::SIGCONT]).collect();
    // Shells make background jobs of a script ignore SIGINT, and scripts end a recording by `kill -INT`. The
    // others are ignored on purpose (nohup).
    let is_handled = |signal: &c_int| *signal == libc::SIGINT || disposition(*signal) != libc::SIG_IGN;
    let handled: Vec<c_int> = all.into_iter().filter(is_handled).collect();
    mask(libc::SIG_BLOCK, &FOR_ONE_THREAD);
    set_handler()?;
    WAKE.store(disposition(libc::SIGINT), Ordering::SeqCst);
    for signal in handled {
        dispose(signal, noting());
    }
    // A write beyond the file size limit then fails, and the incomplete file is removed.
    dispose(libc::SIGXFSZ, libc::SIG_IGN);
    // Other threads keep them blocked, so that no system call of theirs is interrupted. On other systems a
    // launched program would inherit the mask.
    if cfg!(not(target_os = "linux")) {
        unblock();
    }
    // `ctrlc`'s thread has inherited the mask: it unblocks them when it is woken.
    wake();
    Ok(())
}

/// Unblocks the signals in the calling thread.
pub(super) fn unblock() {
    mask(libc::SIG_UNBLOCK, &FOR_ONE_THREAD);
}

/// Takes one signal that arrived and asks the process to end.
pub(super) fn take() -> Option<Signal> {
    let one_less = |count: u32| count.checked_sub(1);
    let came = |at: &usize| CAME[*at].fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
    (0..ENDING.len()).find(came).map(|at| ENDING[at].1)
}

/// The system's number for a signal.
pub(super) fn number(signal: Signal) -> c_int {
    match signal {
        Signal::Interrupt => libc::SIGINT,
        Signal::Terminate => libc::SIGTERM,
        Signal::Hangup => libc::SIGHUP,
    }
}

/// Ends this process by a signal; by the corresponding exit code if the signal does not end it, as for the
/// init process of a container.
pub(super) fn end_by(signal: Signal) -> ! {
    let number = number(signal);
    dispose(number, libc::SIG_DFL);
    mask(libc::SIG_UNBLOCK, &[number]);
    // SAFETY: both calls take a number; _exit(2) runs no code of this program.
    unsafe {
        libc::raise(number);
        libc::_exit(128 + number)
    }
}

/// Whether the process is to be suspended.
pub(super) fn stop_wanted() -> bool {
    STOP_WANTED.load(Ordering::SeqCst)
}

/// Suspends this process until SIGCONT, unless one came since [`stop_wanted`].
pub(super) fn stop() {
    let before = disposition(libc::SIGTSTP);
    mask(libc::SIG_BLOCK, &[libc::SIGTSTP]);
    dispose(libc::SIGTSTP, libc::SIG_DFL);
    // Blocked in every thread, it stays pending. From here on a SIGCONT cancels it (signal(7)); an earlier
    // one was noted, since only this thread receives those. SAFETY: kill(2) and getpid(2) take and return
    // numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
    if !STOP_WANTED.swap(false, Ordering::SeqCst) {
        // Ignoring a signal discards a pending one.
        dispose(libc::SIGTSTP, libc::SIG_IGN);
    }
    mask(libc::SIG_UNBLOCK, &[libc::SIGTSTP]);
    dispose(libc::SIGTSTP, before);
}

/// Registers the calling thread as the sampler.
#[cfg(target_os = "linux")]
pub(super) fn note_sampler() {
    // SAFETY: gettid(2) takes nothing and returns a number.
    SAMPLER.store(unsafe { libc::gettid() }, Ordering::Relaxed);
}

/// How often the sampler was put on a CPU, if it is asleep; `None` if the system does not report that.
pub(super) fn turns_of_sleeping_sampler() -> Option<u64> {
    let tid = Some(SAMPLER.load(Ordering::Relaxed)).filter(|tid| *tid != 0)?;
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/task/{tid}/{name}")).ok();
    let state = read("stat")?.rsplit_once(") ")?.1.bytes().next()?;
    let turns = read("schedstat")?.split_whitespace().nth(2)?.parse().ok()?;
    matches!(state, b'S' | b'D').then_some(turns)
}
