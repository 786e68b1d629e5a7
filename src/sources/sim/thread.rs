//! A simulated thread: its script, its position in it, and its times.
//!
//! Plain state; `machine.rs` advances it.

use crate::addr::Avma;
use crate::sources::ThreadId;

use super::config::SimActivity;
use super::stack::StackImage;

/// One phase of a program, ready to run.
#[derive(Debug)]
pub(super) struct Phase {
    pub(super) activity: SimActivity,
    pub(super) duration_ns: u64,
    /// The ledger slot of its times.
    pub(super) slot: usize,
    pub(super) stack: StackImage,
}

/// The program of a thread.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) phases: Vec<Phase>,
    pub(super) looping: bool,
    pub(super) stack_top: Option<Avma>,
}

/// A stop request that has not been collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
    pub(super) asked_ns: u64,
    /// The thread has been on a CPU since the request.
    pub(super) running_since_asked: bool,
    /// Time of the stop for a thread on a CPU.
    pub(super) due_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadState {
    NotStarted,
    Cpu(usize),
    /// Needs a CPU.
    Runnable,
    /// Waits or is under job control.
    Off,
    /// Stopped for the profiler.
    Stopped {
        since_ns: u64,
    },
    Dead,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    pub(super) name: Option<String>,
    pub(super) program: Program,
    pub(super) phase: usize,
    pub(super) state: ThreadState,
    /// CPU time until a running phase ends.
    pub(super) left_ns: u64,
    /// End of a waiting phase.
    pub(super) until_ns: u64,
    /// Rest of its slice.
    pub(super) slice_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) on_cpu_since_ns: u64,
    pub(super) switches: u64,
    /// When it was last scheduled, in order over all threads.
    pub(super) turn: u64,
    pub(super) pending: Option<Pending>,
    /// Ends as soon as it is no longer stopped.
    pub(super) exits: bool,
}

impl Thread {
    pub(super) fn new(id: ThreadId, name: Option<String>, program: Program) -> Thread {
        Thread {
            id,
            name,
            program,
            phase: 0,
            state: ThreadState::NotStarted,
            left_ns: 0,
            until_ns: 0,
            slice_ns: 0,
            cpu_ns: 0,
            on_cpu_since_ns: 0,
            switches: 0,
            turn: 0,
            pending: None,
            exits: false,
        }
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.program.phases[self.phase]
    }

    pub(super) fn stack_top(&self) -> Option<Avma> {
        self.program.stack_top
    }

    pub(super) fn alive(&self) -> bool {
        !matches!(self.state, ThreadState::NotStarted | ThreadState::Dead)
    }
}
