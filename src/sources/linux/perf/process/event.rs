//! Output of the process stage: events of selected processes, in time order.

use crate::sources::Capture;

/// An event of a selected process or of one of its threads.
#[derive(Debug)]
pub(in super::super) enum ProcessEvent {
    /// The process is sampled from now on.
    Added {
        /// It was just started, and did not run before.
        started: bool,
    },
    /// The pid is released.
    PidReleased,
    /// The process, which ended some batches ago, was removed from the table.
    Removed,
    /// The first event of a process to be reported, with this name.
    ProcessNamed(String),
    /// A sample.
    Sample {
        /// Registers and stack.
        capture: Box<Capture>,
        /// Number of the process's program: a new one after each exec.
        program: u64,
    },
    /// A sample with an unusable stack, for this reason.
    Missed(&'static str),
    /// The thread exited.
    ThreadExit,
    /// The thread was renamed.
    ThreadNamed(String),
    /// The process executed a program of this name.
    Exec(String),
    /// The images of the process may have changed.
    ImagesStale,
}

impl ProcessEvent {
    /// Whether this is a sample, with a usable stack or not.
    pub(in super::super) fn is_sample(&self) -> bool {
        matches!(self, ProcessEvent::Sample { .. } | ProcessEvent::Missed(_))
    }

    /// Whether a process was added or removed, or its pid released: not an event of a thread.
    pub(in super::super) fn is_table_change(&self) -> bool {
        matches!(self, ProcessEvent::Added { .. } | ProcessEvent::PidReleased | ProcessEvent::Removed)
    }
}
