//! Whose the last records of a thread are: as it exits it gives back its number, and what the kernel
//! records of it then has the number -1 in its place. Input: who records are of, those of one CPU in their
//! order; output: these, with the number that the thread had.
//!
//! Source: Linux kernel/events/core.c, `perf_event_pid_type` ("avoid -1 if it is idle thread or runs in another
//! ns"): a thread that is not alive has no number. Its process has one as long as another thread is there.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::ring::record::SampleId;

/// In the place of the number of a thread that has exited.
pub(in crate::sources::linux::perf) const EXITED_TID: pid_t = -1;

/// By CPU: the thread that exited there last, and its process.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct ExitedThreads(HashMap<u32, (pid_t, pid_t)>);

impl ExitedThreads {
    /// With the number that the thread had. `ends`: the record says that the thread exited.
    pub(in crate::sources::linux::perf) fn named(&mut self, id: SampleId, ends: bool) -> SampleId {
        if ends && id.tid > 0 {
            self.0.insert(id.cpu, (id.pid, id.tid));
        }
        match self.0.get(&id.cpu) {
            Some((pid, tid)) if id.tid == EXITED_TID && *pid == id.pid => SampleId { tid: *tid, ..id },
            _ => id,
        }
    }

    /// A thread has ended for the sampler: it has no records any more. What a thread without a
    /// number does later is of another one, which has moved to the CPU where this one ended.
    pub(in crate::sources::linux::perf) fn forget(&mut self, pid: pid_t, tid: pid_t) {
        self.0.retain(|_, exited| *exited != (pid, tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: pid_t, tid: pid_t, cpu: u32) -> SampleId {
        SampleId { pid, tid, cpu, time_ns: 0 }
    }

    #[test]
    fn what_a_thread_without_a_number_does_is_of_the_one_that_ended_there() {
        let mut exited = ExitedThreads::default();
        assert_eq!(exited.named(id(7, EXITED_TID, 0), false).tid, EXITED_TID, "nobody has ended");
        exited.named(id(7, 70, 0), true);
        exited.named(id(7, 71, 1), true);
        assert_eq!(exited.named(id(7, EXITED_TID, 0), false).tid, 70);
        assert_eq!(exited.named(id(7, EXITED_TID, 1), false).tid, 71);
        assert_eq!(exited.named(id(8, EXITED_TID, 1), false).tid, EXITED_TID, "of another process");
        assert_eq!(exited.named(id(7, 72, 0), false).tid, 72, "others keep theirs");
        exited.named(id(7, 73, 0), true);
        assert_eq!(exited.named(id(7, EXITED_TID, 0), false).tid, 73, "the last one");
        exited.forget(7, 73);
        assert_eq!(exited.named(id(7, EXITED_TID, 0), false).tid, EXITED_TID, "it is gone for good");
    }
}
