//! Shared state of a running recording: its counters, and requests to end or to suspend it.
//!
//! A leaf: the sampler counts and answers, the progress line reads, the signal thread makes requests.
//! Nothing depends on these numbers; the profile's own are in `recording::Stats`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether a recording is to be suspended, and whether it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Suspension {
    /// It records.
    #[default]
    None,
    /// A suspension was requested.
    Wanted,
    /// The target is detached; the sampler waits for [`Live::resume`].
    Parked,
}

/// Shared between a recording and those who watch it. All zero until the first tick.
#[derive(Debug, Default)]
pub struct Live {
    /// Ticks so far.
    pub ticks: AtomicU64,
    /// Samples so far.
    pub samples: AtomicU64,
    /// Threads now alive.
    pub threads: AtomicU64,
    /// All stops together, nanoseconds.
    pub pause_ns: AtomicU64,
    /// CPU time the target used while recorded, nanoseconds; 0 where not known.
    pub target_cpu_ns: AtomicU64,
    /// Set when the recording shall end: the sampler looks at it once per tick.
    stop: AtomicBool,
    /// The sampler has seen that, or has ended by itself.
    answered: AtomicBool,
    /// Whether `suspension` is not `None`; cheap to read at each tick.
    suspends: AtomicBool,
    suspension: Mutex<Suspension>,
    resumed: Condvar,
}

impl Live {
    /// Asks the recording to end.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether the recording is to end; called by the sampler, and counts as its answer.
    #[must_use]
    pub fn shall_stop(&self) -> bool {
        let stop = self.stop.load(Ordering::Relaxed);
        if stop {
            self.answer();
        }
        stop
    }

    /// The sampler has ended, or has seen that it shall.
    pub fn answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Whether the sampler has seen that it shall end, or has ended by itself.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Asks the recording to let its target go for a while.
    pub fn ask_to_suspend(&self) {
        let mut suspension = self.suspension();
        if *suspension == Suspension::None {
            *suspension = Suspension::Wanted;
            self.suspends.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a suspension was requested.
    #[must_use]
    pub fn shall_suspend(&self) -> bool {
        self.suspends.load(Ordering::Relaxed)
    }

    /// Marks the target as detached, and waits until [`Live::resume`]. Returns at once if the request was
    /// taken back.
    pub fn park(&self) {
        let mut suspension = self.suspension();
        if *suspension == Suspension::None {
            return;
        }
        while *suspension != Suspension::None {
            // Another request may come before this thread has woken from the one before.
            *suspension = Suspension::Parked;
            suspension = self.resumed.wait(suspension).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the recording waits in [`Live::park`].
    #[must_use]
    pub fn is_parked(&self) -> bool {
        *self.suspension() == Suspension::Parked
    }

    /// Lets the recording go on.
    pub fn resume(&self) {
        *self.suspension() = Suspension::None;
        self.suspends.store(false, Ordering::Relaxed);
        self.resumed.notify_all();
    }

    fn suspension(&self) -> MutexGuard<'_, Suspension> {
        self.suspension.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_to_stop_is_answered_by_who_looks_at_it() {
        let live = Live::default();
        assert!(!live.shall_stop() && !live.has_answered());
        live.ask_to_stop();
        assert!(!live.has_answered());
        assert!(live.shall_stop() && live.has_answered());
    }

    #[test]
    fn a_wish_to_suspend_that_was_taken_back_parks_nobody() {
        let live = Live::default();
        live.park();
        live.ask_to_suspend();
        assert!(live.shall_suspend());
        live.resume();
        live.park();
        assert!(!live.shall_suspend() && !live.is_parked());
    }

    #[test]
    fn who_is_parked_is_parked_for_the_next_request_too() {
        let live = Live::default();
        live.ask_to_suspend();
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| live.park());
            while !live.is_parked() {
                std::thread::yield_now();
            }
            // As `resume`, followed by a request before the parked thread has the lock.
            *live.suspension() = Suspension::Wanted;
            live.resumed.notify_all();
            while !live.is_parked() {
                std::thread::yield_now();
            }
            live.resume();
            assert!(parked.join().is_ok());
        });
    }

    #[test]
    fn who_is_parked_goes_on_when_that_is_over() {
        let live = Live::default();
        live.ask_to_suspend();
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| live.park());
            while !live.is_parked() {
                std::thread::yield_now();
            }
            live.resume();
            assert!(parked.join().is_ok());
        });
    }
}
