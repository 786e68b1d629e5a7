//! The faults of a simulated process: kinds, times and rates.
//!
//! Input: occasions (an interrupt, a capture, a listing of mappings). Output: changes of the profiler's results.
//! Each injected fault is counted by name in the ledger, so that a test can distinguish "handled" from "never
//! tried".

use std::rc::Rc;

use crate::sources::ThreadId;

use super::ledger::SimLedger;
use crate::rng::Rng;

/// The kind of a fault. The occasion is in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The thread dies after it was listed and polled (interrupt).
    DieBeforeInterrupt,
    /// The thread dies while it is stopped, before it is collected (capture).
    DieBeforeCollect,
    /// The stack's memory ends after this many bytes (capture).
    ShortStack {
        /// Bytes that can be read.
        bytes: usize,
    },
    /// Registers or stack cannot be read at all (capture).
    Unreadable,
    /// The thread is stopped for this long instead of [`super::SimConfig::pause_ns`] (capture).
    LongStop {
        /// Duration of the stop.
        pause_ns: u64,
    },
    /// The profiler panics while the thread is stopped (capture).
    Panic,
    /// The profiler itself gets no CPU for this long; no thread is stopped for it (return of an event).
    ClockJump {
        /// Distance of the clock jump.
        by_ns: u64,
    },
    /// The process ends (interrupt).
    Exit,
    /// The process replaces its program, if it has a [`super::SimExec`] (interrupt).
    Exec,
    /// The thread's name cannot be read (thread name).
    NoName,
    /// The list of mappings is refused (mappings).
    MappingsDenied,
    /// The list of mappings is changing (mappings).
    MappingsTransient,
    /// The image's file no longer exists (image bytes).
    ImageDeleted,
    /// The memory is unmapped during the read (read memory).
    MemoryUnmapped,
}

impl FaultKind {
    /// Its name in [`SimLedger::faults`].
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::DieBeforeInterrupt => "die before interrupt",
            FaultKind::DieBeforeCollect => "die before collect",
            FaultKind::ShortStack { .. } => "short stack",
            FaultKind::Unreadable => "unreadable",
            FaultKind::LongStop { .. } => "long stop",
            FaultKind::Panic => "panic",
            FaultKind::ClockJump { .. } => "clock jump",
            FaultKind::Exit => "exit",
            FaultKind::Exec => "exec",
            FaultKind::NoName => "no name",
            FaultKind::MappingsDenied => "mappings denied",
            FaultKind::MappingsTransient => "mappings transient",
            FaultKind::ImageDeleted => "image deleted",
            FaultKind::MemoryUnmapped => "memory unmapped",
        }
    }
}

/// A fault and its occasions.
#[derive(Clone, Copy, Debug)]
pub struct SimFault {
    /// Its kind.
    pub kind: FaultKind,
    /// Earliest time.
    pub from_ns: u64,
    /// Only for this thread, if the occasion has one.
    pub thread: Option<ThreadId>,
    /// Number of occasions skipped first.
    pub skip: u64,
    /// Limit on injections.
    pub count: u64,
    /// Probability at each remaining occasion, in millionths.
    pub per_million: u32,
}

impl SimFault {
    /// A fault at the first occasion only.
    #[must_use]
    pub fn once(kind: FaultKind) -> SimFault {
        SimFault { kind, from_ns: 0, thread: None, skip: 0, count: 1, per_million: 1_000_000 }
    }

    /// A fault at every occasion.
    #[must_use]
    pub fn always(kind: FaultKind) -> SimFault {
        SimFault { count: u64::MAX, ..SimFault::once(kind) }
    }

    /// A random fault at `per_million` of a million occasions.
    #[must_use]
    pub fn rate(kind: FaultKind, per_million: u32) -> SimFault {
        SimFault { per_million, ..SimFault::always(kind) }
    }

    /// The fault, from `from_ns` on.
    #[must_use]
    pub fn from_time(self, from_ns: u64) -> SimFault {
        SimFault { from_ns, ..self }
    }

    /// The fault, after `skip` occasions.
    #[must_use]
    pub fn after(self, skip: u64) -> SimFault {
        SimFault { skip, ..self }
    }

    /// The fault, for one thread only.
    #[must_use]
    pub fn of_thread(self, thread: ThreadId) -> SimFault {
        SimFault { thread: Some(thread), ..self }
    }
}

/// The faults of a running simulation.
#[derive(Debug)]
pub(super) struct Faults {
    plan: Vec<SimFault>,
    rng: Rng,
    ledger: Rc<SimLedger>,
}

impl Faults {
    pub(super) fn new(plan: Vec<SimFault>, seed: u64, ledger: Rc<SimLedger>) -> Faults {
        Faults { plan, rng: Rng::new(seed ^ 0x6661_756c_7473), ledger }
    }

    /// At an occasion for the faults that `pick` selects: the value of the first one injected.
    pub(super) fn take<T>(
        &mut self,
        thread: Option<ThreadId>,
        now_ns: u64,
        pick: impl Fn(FaultKind) -> Option<T>,
    ) -> Option<T> {
        for fault in &mut self.plan {
            let Some(value) = pick(fault.kind) else { continue };
            let elsewhere = fault.thread.is_some() && thread.is_some() && fault.thread != thread;
            if elsewhere || now_ns < fault.from_ns || fault.count == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if fault.per_million < 1_000_000 && !self.rng.chance(fault.per_million.into(), 1_000_000) {
                continue;
            }
            fault.count = fault.count.saturating_sub(u64::from(fault.count != u64::MAX));
            self.ledger.fault_happened(fault.kind.name());
            return Some(value);
        }
        None
    }

    /// [`Faults::take`] for a fault without a value.
    pub(super) fn happens(&mut self, kind: FaultKind, thread: Option<ThreadId>, now_ns: u64) -> bool {
        self.take(thread, now_ns, |planned| (planned == kind).then_some(())).is_some()
    }
}
