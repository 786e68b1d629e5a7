//! Thread state and CPU time that a source reads without a stop.

/// Activity of a thread, observed without touching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// On a CPU.
    Running,
    /// On a CPU or ready for one.
    Runnable,
    /// Ready for a CPU, but on none.
    Ready,
    /// Blocked: in a system call, a page fault or a lock.
    Waiting,
    /// Stopped by job control or another tool; must be left alone.
    Stopped,
    /// Only a stop shows it: the [`ThreadStatus`] of the capture has the activity.
    Unknown,
}

impl Activity {
    /// Whether the thread is on a CPU or ready for one.
    #[must_use]
    pub fn wants_cpu(self) -> bool {
        matches!(self, Activity::Running | Activity::Runnable | Activity::Ready)
    }
}

/// Result of polling a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// CPU time used so far in nanoseconds. Exact for a thread that is off the CPU; for a running one it may
    /// lag (Linux: up to a scheduler tick).
    pub cpu_ns: u64,
    /// How often the thread was put on a CPU so far; 0 if not reported.
    pub switches: u64,
    /// Its activity.
    pub activity: Activity,
}
