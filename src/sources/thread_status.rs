//! What a source reads of a thread without a stop.

/// What a thread is doing, as seen from outside without touching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Certainly on a CPU.
    Running,
    /// On a CPU or ready for one.
    Runnable,
    /// Ready for a CPU, and certainly on none.
    Ready,
    /// Blocked: in a system call, a page fault or a lock.
    Waiting,
    /// Stopped by job control or another tool; must be left alone.
    Stopped,
    /// Only a stop tells: the [`ThreadStatus`] in the capture says what it did.
    Unknown,
}

impl Activity {
    /// Whether the thread is on a CPU or ready for one.
    #[must_use]
    pub fn wants_cpu(self) -> bool {
        matches!(self, Activity::Running | Activity::Runnable | Activity::Ready)
    }
}

/// What a poll of a thread from outside shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// CPU time used so far in nanoseconds. Exact for a thread that is off the CPU;
    /// for a running one the system may lag (Linux: up to a scheduler tick).
    pub cpu_ns: u64,
    /// How often the thread was put on a CPU so far; 0 where the system does not tell.
    pub switches: u64,
    /// What it is doing.
    pub activity: Activity,
}
