//! Signals to the profiler itself, all handled by the thread of the crate `ctrlc`.
//!
//! Each handler notes its signal and wakes that thread. [`Interruption`] defines the response to SIGINT,
//! SIGTERM and SIGHUP; it works while other threads hang in the kernel, because the thread joins no thread
//! and runs no destructor. SIGTSTP, SIGTTIN and SIGTTOU suspend the process once it holds nothing of a
//! target. A signal other than SIGINT that was ignored at startup stays ignored.

#[cfg(not(unix))]
#[path = "plain.rs"]
mod sys;
#[cfg(unix)]
mod sys;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
pub use crate::interruption::Phase;
use crate::interruption::{Answer, Interruption, Signal};
use crate::live::Live;

/// Time that an output gets to be completed after a signal, and a sampler to respond to one.
pub const FINISH: Duration = Duration::from_millis(800);
/// Least time to wait for a pipe's reader: naming may have taken [`FINISH`], and an existing reader opens at
/// once.
const READER_WAIT_MIN: Duration = Duration::from_millis(100);
/// A repetition of a signal within this time is ignored: a person is slower.
const ECHO: Duration = Duration::from_millis(50);
/// Poll interval.
const STEP: Duration = Duration::from_millis(2);

static STATE: Mutex<Interruption> = Mutex::new(Interruption::new());
/// The current or last recording.
static LIVE: Mutex<Option<Arc<Live>>> = Mutex::new(None);
/// A signal to forward to the launched command, or 0.
static FORWARD: AtomicI32 = AtomicI32::new(0);
/// A signal is about to end the process.
static ENDS: AtomicBool = AtomicBool::new(false);
/// Number of [`Hold`]s.
static HOLDS: AtomicUsize = AtomicUsize::new(0);
/// Number of [`Hold`]s for stopped targets.
static STOPPED_TARGETS: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, Interruption> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn live() -> Option<Arc<Live>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Installs the signal handlers of this process; called before other threads start. The thread that ends the
/// process by a signal calls each of `before_end`, which must not wait for another thread for long.
///
/// # Errors
/// One line: no handler could be set.
pub fn own(before_end: &'static [fn()]) -> Result<()> {
    let failed = |error: ctrlc::Error| {
        let text = format!("cannot watch for Ctrl-C: {error}; check the limit of threads (ulimit -u)");
        Error::new(ErrorKind::System, text).caused_by(error)
    };
    sys::install(|| ctrlc::set_handler(move || attend(before_end))).map_err(failed)
}

/// Starts handling signals for the recording that `live` shows; a `launched` command gets SIGTERM and SIGHUP.
pub fn watch(live: &Arc<Live>, launched: bool) {
    *LIVE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(live));
    // Other systems have no source that forwards signals.
    if launched && cfg!(target_os = "linux") {
        state().forward();
    }
}

/// Sets the phase of the profiler.
pub fn enter(phase: Phase) {
    state().enter(phase);
}

/// Waits for the reader of a pipe; only for a short time if a signal has ended the recording.
pub fn await_reader<R>(open: impl FnOnce() -> R) -> R {
    let phase = state().phase();
    if phase != Phase::Output {
        return open();
    }
    enter(Phase::Reader);
    if state().limit().is_some() {
        sys::wake();
    }
    let opened = open();
    enter(phase);
    opened
}

/// Takes the signal to forward to the launched command: not before it is recorded, since it may not have executed its
/// program.
#[cfg(target_os = "linux")]
pub(super) fn take_forwarded() -> Option<i32> {
    (FORWARD.load(Ordering::Relaxed) != 0 && state().phase() == Phase::Recording)
        .then(|| FORWARD.swap(0, Ordering::Relaxed))
        .filter(|signal| *signal != 0)
}

/// Whether a signal is about to end the process: code that waits for a target's answer should give up.
pub(super) fn is_ending() -> bool {
    ENDS.load(Ordering::SeqCst)
}

/// Delays a suspension of this process while it exists: otherwise a target would stay stopped, or wait for
/// its tracer.
#[derive(Debug)]
pub struct Hold {
    of_stopped_target: bool,
}

impl Hold {
    /// Begins a hold.
    #[allow(clippy::new_without_default)] // Created for its side effect.
    #[must_use]
    pub fn new() -> Hold {
        Hold::begin(false)
    }

    /// A hold while a target is stopped that its stub does not resume when this process ends:
    /// [`await_stopped_targets`] waits for it.
    pub(super) fn of_stopped_target() -> Hold {
        Hold::begin(true)
    }

    fn begin(of_stopped_target: bool) -> Hold {
        STOPPED_TARGETS.fetch_add(usize::from(of_stopped_target), Ordering::SeqCst);
        HOLDS.fetch_add(1, Ordering::SeqCst);
        Hold { of_stopped_target }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        STOPPED_TARGETS.fetch_sub(usize::from(self.of_stopped_target), Ordering::SeqCst);
        HOLDS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits a moment until the targets that a stub holds stopped run again; for code that ends the process at
/// once.
pub fn await_stopped_targets() {
    let begun = Instant::now();
    while STOPPED_TARGETS.load(Ordering::SeqCst) > 0 && begun.elapsed() < FINISH {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Registers the calling thread as the sampler: it wakes several times a second unless it hangs in the
/// kernel.
#[cfg(target_os = "linux")]
pub(super) fn note_sampler() {
    sys::note_sampler();
}

/// The thread that takes signals needs no privileges.
fn restrict_watching() {
    #[cfg(target_os = "linux")]
    let _ = super::linux::restrict(super::Role::Watching);
}

/// Called in `ctrlc`'s thread each time a handler wakes it.
fn attend(before_end: &[fn()]) {
    sys::unblock();
    restrict_watching();
    let mut limited: Option<(Signal, Instant)> = None;
    let mut silent: Option<(Signal, Silence)> = None;
    loop {
        if let Some(signal) = answer_all(before_end) {
            silent = Some((signal, Silence::default()));
        }
        if sys::stop_wanted() {
            suspend(before_end);
        }
        let limit = state().limit();
        limited =
            limit.map(|signal| limited.filter(|(of, _)| *of == signal).unwrap_or((signal, deadline(signal))));
        if let Some((signal, until)) = limited
            && Instant::now() >= until
        {
            end(signal, before_end);
        }
        if live().is_none_or(|live| live.is_stop_acknowledged()) {
            silent = None;
        }
        if let Some((signal, silence)) = &mut silent
            && silence.lasts()
        {
            end(*signal, before_end);
        }
        if limited.is_none() && silent.is_none() {
            return;
        }
        std::thread::sleep(STEP);
    }
}

/// The last signal that ended a recording or the wait for an output, and its time.
static LAST: Mutex<Option<(Signal, Instant)>> = Mutex::new(None);

/// When this signal ends the process even if it is not done: [`FINISH`] after the signal, which may have
/// arrived long ago.
fn deadline(signal: Signal) -> Instant {
    let now = Instant::now();
    let last = *LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let came = last.filter(|(other, _)| *other == signal).map_or(now, |(_, at)| at);
    (came + FINISH).max(now + READER_WAIT_MIN)
}

/// Whether this signal is a repetition: timeout(1) signals its child and then at once the group of both. Does
/// not apply to a signal that was forwarded to a command: the next one ends the recording.
fn is_echo(signal: Signal) -> bool {
    let last = *LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.is_some_and(|(other, at)| other == signal && at.elapsed() < ECHO)
}

fn note_answered(signal: Signal) {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some((signal, Instant::now()));
}

/// Handles all pending signals; returns the one that ends the recording, if any.
fn answer_all(before_end: &[fn()]) -> Option<Signal> {
    let mut asked = None;
    while let Some(signal) = sys::take() {
        if is_echo(signal) {
            continue;
        }
        // Not in the condition, which would hold the lock in the arms.
        let answer = state().receive(signal);
        match answer {
            Answer::End(signal) => end(signal, before_end),
            Answer::EndRecording => {
                if let Some(live) = live() {
                    live.request_stop();
                }
                asked = Some(signal);
                note_answered(signal);
            }
            Answer::Forward(signal) => FORWARD.store(sys::number(signal), Ordering::Relaxed),
            Answer::Finish => note_answered(signal),
        }
    }
    asked
}

/// Time that the sampler has slept without seeing the request to end. One that is merely late is ready to
/// run, or has been on a CPU meanwhile.
#[derive(Default)]
struct Silence {
    since: Option<(Instant, u64)>,
}

impl Silence {
    fn lasts(&mut self) -> bool {
        let Some(turns) = sys::turns_of_sleeping_sampler() else {
            self.since = None;
            return false;
        };
        let (since, before) = *self.since.get_or_insert((Instant::now(), turns));
        if before != turns {
            self.since = None;
        }
        before == turns && since.elapsed() >= FINISH
    }
}

/// Ends this process by a signal, so that a shell and make see the signal as the cause.
fn end(signal: Signal, before_end: &[fn()]) -> ! {
    ENDS.store(true, Ordering::SeqCst);
    for action in before_end {
        action();
    }
    sys::end_by(signal)
}

/// Suspends this process until SIGCONT, once there is no [`Hold`].
fn suspend(before_end: &[fn()]) {
    let live = live();
    while sys::stop_wanted() {
        if let Some(live) = &live {
            live.request_suspension();
        }
        let recording = state().phase() == Phase::Recording;
        let parked = live.as_ref().is_none_or(|live| live.is_parked());
        if HOLDS.load(Ordering::SeqCst) == 0 && (!recording || parked) {
            sys::stop();
            break;
        }
        answer_all(before_end);
        std::thread::sleep(STEP);
    }
    if let Some(live) = &live {
        live.resume();
    }
}
