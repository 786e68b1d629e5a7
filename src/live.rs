//! What a running recording lets others see: counters that it raises and a wish to stop.
//!
//! A leaf: the sampler writes, the progress line and the Ctrl-C handler read and wish.
//! Nothing depends on these numbers; the profile's own are in `profile::Stats`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    pub stop: AtomicBool,
}

impl Live {
    /// Asks the recording to end.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked the recording to end.
    #[must_use]
    pub fn shall_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
