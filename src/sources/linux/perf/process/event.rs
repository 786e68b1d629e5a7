//! What the process stage hands on: events of selected processes, in the order of their times.

use crate::sources::Capture;

/// What became of a selected process, or of one of its threads.
#[derive(Debug)]
pub(in super::super) enum ProcessEvent {
    /// The process is sampled from now on.
    Added {
        /// It was started just now, and did not run before.
        started: bool,
    },
    /// The number is no longer that of the process that had it.
    PidReleased,
    /// The process, which ended some batches ago, is in the table no longer.
    Removed,
    /// The first event of a process that the sampler is to know of, under this name.
    ProcessNamed(String),
    /// A sample.
    Sample {
        /// Registers and stack.
        capture: Box<Capture>,
        /// The number of the program that the process runs: another one after each exec.
        program: u64,
    },
    /// A sample whose stack cannot be used, for this reason.
    Missed(&'static str),
    /// The thread exited.
    ThreadExit,
    /// The thread has this name from now on.
    ThreadNamed(String),
    /// The process runs another program, of this name.
    Exec(String),
    /// The images of the process may have changed.
    ImagesStale,
}

impl ProcessEvent {
    /// A sample, whether its stack can be used or not.
    pub(in super::super) fn is_sample(&self) -> bool {
        matches!(self, ProcessEvent::Sample { .. } | ProcessEvent::Missed(_))
    }

    /// A process was added or removed, or its number was freed; not an event of a thread.
    pub(in super::super) fn is_table_change(&self) -> bool {
        matches!(self, ProcessEvent::Added { .. } | ProcessEvent::PidReleased | ProcessEvent::Removed)
    }
}
