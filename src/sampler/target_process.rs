//! A process of a driven target: what its driver keeps of it.

use super::recorded_process::{FIRST, ProcessIndex};
use crate::sources::{Observed, Target};

/// Why samples of processes are lost that the recorder has no room for.
pub(super) const TOO_MANY: &str = "too many processes";

/// A process of the target.
#[derive(Debug)]
pub(super) struct TargetProcess {
    /// Its index in the recorder, once it was sampled.
    pub(super) of: ProcessIndex,
    /// The name that its stacks are kept under.
    pub(super) name: String,
    /// What it used beside its threads.
    pub(super) cpu: CpuBalance,
}

impl TargetProcess {
    /// The one that the recorder is made for.
    pub(super) fn first(name: &str) -> TargetProcess {
        TargetProcess { of: FIRST, name: name.to_owned(), cpu: CpuBalance::default() }
    }
}

/// What can be asked of a process of the target.
pub(super) fn observed(target: &mut dyn Target, pid: u32) -> Option<&mut dyn Observed> {
    if pid == target.process().pid {
        return Some(target);
    }
    target.other(pid)
}

/// What a process used by its clock, and what of that is accounted for.
#[derive(Debug, Default)]
pub(super) struct CpuBalance {
    /// Its clock when its recording began; `None` where the source has no such clock.
    pub(super) first_ns: Option<u64>,
    /// What threads used that have ended, and what was lost here.
    pub(super) accounted_ns: u64,
}

impl CpuBalance {
    /// Of a process whose clock was at this when its recording began.
    pub(super) fn new(first_ns: Option<u64>) -> CpuBalance {
        CpuBalance { first_ns, accounted_ns: 0 }
    }

    /// A thread of it has ended that used so much.
    pub(super) fn thread_ended(&mut self, used_ns: u64) {
        self.accounted_ns += used_ns;
    }

    /// What was used beside its threads up to this moment of its clock, and was not reported before; `alive_ns`: what those
    /// threads used that have not ended.
    pub(super) fn take_rest_ns(&mut self, clock_ns: Option<u64>, alive_ns: u64) -> u64 {
        let used_ns =
            clock_ns.zip(self.first_ns).map_or(0, |(now_ns, first_ns)| now_ns.saturating_sub(first_ns));
        let rest_ns = used_ns.saturating_sub(self.accounted_ns + alive_ns);
        self.accounted_ns += rest_ns;
        rest_ns
    }
}
