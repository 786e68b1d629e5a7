//! Threads of records written during exit: an exiting thread gives back its number, and later records have -1
//! instead. Input: ids of records, those of one CPU in order; output: the same ids with the thread's former
//! number.
//!
//! Source: Linux kernel/events/core.c, `perf_event_pid_type` ("avoid -1 if it is idle thread or runs in another
//! ns"): a thread that is not alive has no number. Its process has one while another thread exists.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::ring::record::SampleId;

/// Replaces the number of an exited thread.
pub(in crate::sources::linux::perf) const EXITED_TID: pid_t = -1;

/// By CPU: the last thread that exited there, and its process.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct ExitedThreads(HashMap<u32, (pid_t, pid_t)>);

impl ExitedThreads {
    /// The id with the thread's former number. `ends`: the record reports the exit.
    pub(in crate::sources::linux::perf) fn named(&mut self, id: SampleId, ends: bool) -> SampleId {
        if ends && id.tid > 0 {
            self.0.insert(id.cpu, (id.pid, id.tid));
        }
        match self.0.get(&id.cpu) {
            Some((pid, tid)) if id.tid == EXITED_TID && *pid == id.pid => SampleId { tid: *tid, ..id },
            _ => id,
        }
    }

    /// Drops a thread without further records. Later records without a number belong to another thread, which
    /// moved to the CPU where this one ended.
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
    fn records_without_a_number_belong_to_the_last_exit_on_their_cpu() {
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
