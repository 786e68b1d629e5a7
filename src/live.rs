//! Shared state of a running recording: its counters, and requests to stop or suspend it.
//!
//! A leaf: the sampler counts and responds, the progress line reads, the signal thread makes requests. Nothing
//! depends on these counters; the profile has its own in `recording::Stats`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether a suspension was requested, and whether it has taken effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Suspension {
    /// Recording.
    #[default]
    None,
    /// Suspension was requested.
    Wanted,
    /// The target is detached; the sampler waits for [`Live::resume`].
    Parked,
}

/// State shared between a recording and its observers. All zero until the first tick.
#[derive(Debug, Default)]
pub struct Live {
    /// Ticks so far.
    pub ticks: AtomicU64,
    /// Samples so far.
    pub samples: AtomicU64,
    /// Threads currently alive.
    pub threads: AtomicU64,
    /// Total stop time of all threads, nanoseconds.
    pub pause_ns: AtomicU64,
    /// CPU time of the target during the recording, nanoseconds; 0 if unknown.
    pub target_cpu_ns: AtomicU64,
    /// Set to stop the recording: the sampler reads it once per tick.
    stop: AtomicBool,
    /// The sampler has seen the request, or has ended by itself.
    acknowledged: AtomicBool,
    /// Whether `suspension` is not `None`; cheap to read at each tick.
    suspends: AtomicBool,
    suspension: Mutex<Suspension>,
    resumed: Condvar,
}

impl Live {
    /// Requests that the recording stop.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was requested; acknowledges the request. For the sampler.
    #[must_use]
    pub fn poll_stop(&self) -> bool {
        let stop = self.stop.load(Ordering::Relaxed);
        if stop {
            self.acknowledge_stop();
        }
        stop
    }

    /// Records that the sampler has ended, or has seen the request to stop.
    pub fn acknowledge_stop(&self) {
        self.acknowledged.store(true, Ordering::Relaxed);
    }

    /// Whether the sampler has seen the request to stop, or has ended by itself.
    #[must_use]
    pub fn is_stop_acknowledged(&self) -> bool {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Requests that the recording detach from its target for a while.
    pub fn request_suspension(&self) {
        let mut suspension = self.suspension();
        if *suspension == Suspension::None {
            *suspension = Suspension::Wanted;
            self.suspends.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a suspension was requested.
    #[must_use]
    pub fn is_suspension_requested(&self) -> bool {
        self.suspends.load(Ordering::Relaxed)
    }

    /// Marks the target as detached, and waits until [`Live::resume`]. Returns immediately if the request was
    /// withdrawn.
    pub fn park(&self) {
        let mut suspension = self.suspension();
        if *suspension == Suspension::None {
            return;
        }
        while *suspension != Suspension::None {
            // Another request may arrive before this thread has woken from the previous one.
            *suspension = Suspension::Parked;
            suspension = self.resumed.wait(suspension).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the recording waits in [`Live::park`].
    #[must_use]
    pub fn is_parked(&self) -> bool {
        *self.suspension() == Suspension::Parked
    }

    /// Resumes the recording.
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
    fn the_sampler_acknowledges_a_request_to_stop() {
        let live = Live::default();
        assert!(!live.poll_stop() && !live.is_stop_acknowledged());
        live.request_stop();
        assert!(!live.is_stop_acknowledged());
        assert!(live.poll_stop() && live.is_stop_acknowledged());
    }

    #[test]
    fn a_withdrawn_suspension_does_not_park() {
        let live = Live::default();
        live.park();
        live.request_suspension();
        assert!(live.is_suspension_requested());
        live.resume();
        live.park();
        assert!(!live.is_suspension_requested() && !live.is_parked());
    }

    #[test]
    fn a_parked_recording_stays_parked_for_the_next_request() {
        let live = Live::default();
        live.request_suspension();
        std::thread::scope(|scope| {
            let parked = scope.spawn(|| live.park());
            while !live.is_parked() {
                std::thread::yield_now();
            }
            // Like `resume`, followed by a request before the parked thread has the lock.
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
    fn a_parked_recording_resumes() {
        let live = Live::default();
        live.request_suspension();
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
