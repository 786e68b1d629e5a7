//! The reorder stage: events of all CPUs, in time order.
//!
//! Input: records; those of one CPU come in order. Output: the events of a batch, sorted once. All events of a
//! batch are released, even those newer than the watermark, so that /proc is read while new processes still exist.
//! The pipeline keeps the resulting process events in a [`Queue`] until the watermark has passed them, like
//! context switches: the next batch may hold older records.

use hashbrown::HashSet;
use libc::pid_t;

use super::super::buffers::Usage;
use super::super::ring::record::{PerfRecord, SampleId};
use super::event::{Event, Selection};
use super::exited_threads::ExitedThreads;
use super::queue::Queue;

/// The reorder stage's view of processes.
pub(in crate::sources::linux::perf) trait ProcessView {
    /// Whether the process is recorded, as far as known.
    fn selection(&self, pid: pid_t) -> Selection;

    /// Whether an excluded process may be selected at its next exec.
    fn may_select_at_exec(&self) -> bool;
}

/// Events not yet released.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct EventQueue {
    exited: ExitedThreads,
    /// Processes started in the batch: their numbers no longer belong to excluded ones.
    forked: HashSet<pid_t>,
    queue: Queue<Event>,
    usage: Usage,
    /// Time of the last start, end, naming or code mapping of a selected process.
    changed_ns: u64,
}

impl EventQueue {
    /// The id of a record with its thread: the kernel writes records of an exiting thread without its number.
    pub(in crate::sources::linux::perf) fn thread_of(
        &mut self,
        id: SampleId,
        record: &PerfRecord<'_>,
    ) -> SampleId {
        self.exited.named(id, matches!(record, PerfRecord::Exit))
    }

    /// Whether the process of a record is recorded.
    pub(in crate::sources::linux::perf) fn selection(
        &self,
        pid: pid_t,
        processes: &impl ProcessView,
    ) -> Selection {
        match processes.selection(pid) {
            Selection::Excluded if self.forked.contains(&pid) => Selection::Selected,
            selection => selection,
        }
    }

    /// Reads a record that is not a sample.
    pub(in crate::sources::linux::perf) fn push_record(
        &mut self,
        id: SampleId,
        record: &PerfRecord<'_>,
        selection: Selection,
        processes: &impl ProcessView,
    ) {
        let Some(event) = Event::of(id, record, selection, processes.may_select_at_exec()) else { return };
        if matches!(event, Event::Fork { .. }) {
            self.forked.insert(id.pid);
        }
        if selection == Selection::Selected && !matches!(event, Event::ThreadStart { .. }) {
            self.changed_ns = id.time_ns;
        }
        self.queue.push(id, event);
    }

    /// Adds an event without a record: a sample, or a finding in /proc.
    pub(in crate::sources::linux::perf) fn push(&mut self, id: SampleId, event: Event) {
        self.queue.push(id, event);
    }

    /// Releases the events of the batch, in time order.
    pub(in crate::sources::linux::perf) fn release(&mut self) -> Vec<(SampleId, Event)> {
        self.forked.clear();
        self.queue.release_all()
    }

    /// Takes back the buffer of a batch that held this many events.
    pub(in crate::sources::linux::perf) fn reuse(&mut self, mut buffer: Vec<(SampleId, Event)>, held: usize) {
        buffer.clear();
        self.usage.shrink(&mut buffer, held);
        self.queue.reuse(buffer);
    }

    /// Processes started by `listed` and their descendants, by the records of the batch.
    pub(in crate::sources::linux::perf) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
        let mut started: Vec<pid_t> = Vec::new();
        // Records are not yet in time order.
        loop {
            let before = started.len();
            for (id, event) in self.queue.iter() {
                let Event::Fork { parent, .. } = event else { continue };
                let known = |pid: &pid_t| listed.contains(pid) || started.contains(pid);
                if known(parent) && !known(&id.pid) {
                    started.push(id.pid);
                }
            }
            if started.len() == before {
                return started;
            }
        }
    }

    /// Drops an exited thread.
    pub(in crate::sources::linux::perf) fn forget_thread(&mut self, pid: pid_t, tid: pid_t) {
        self.exited.forget(pid, tid);
    }

    /// Time of the last start, end, naming or code mapping of a selected process (monotonic clock).
    pub(in crate::sources::linux::perf) fn changed_ns(&self) -> u64 {
        self.changed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct All;

    impl ProcessView for All {
        fn selection(&self, pid: pid_t) -> Selection {
            if pid == 9 { Selection::Excluded } else { Selection::Selected }
        }

        fn may_select_at_exec(&self) -> bool {
            false
        }
    }

    fn push_record(events: &mut EventQueue, pid: pid_t, time_ns: u64, record: &PerfRecord<'_>) {
        let selection = events.selection(pid, &All);
        events.push_record(SampleId { pid, tid: pid, time_ns, cpu: 0 }, record, selection, &All);
    }

    fn fork(parent: pid_t) -> PerfRecord<'static> {
        PerfRecord::Fork { parent, creator: parent }
    }

    /// Many processes started by selected ones, in any order, and some by others.
    #[test]
    fn started_processes_are_known_before_their_records_are_in_order() {
        let mut events = EventQueue::default();
        for (child, parent) in [(8, 7), (7, 6), (6, 5), (20, 19)] {
            push_record(&mut events, child, 0, &fork(parent));
        }
        let mut started = events.started_by(&[5]);
        started.sort_unstable();
        assert_eq!(started, [6, 7, 8]);
        assert!(events.started_by(&[5, 6, 7, 8]).is_empty());
    }

    #[test]
    fn events_of_excluded_processes_are_dropped_until_their_pid_is_reused() {
        let comm = PerfRecord::Comm { name: b"nine", exec: false };
        let mut events = EventQueue::default();
        push_record(&mut events, 9, 5, &comm);
        assert_eq!((events.release().len(), events.changed_ns()), (0, 0));
        push_record(&mut events, 9, 20, &fork(5));
        push_record(&mut events, 9, 30, &comm);
        let released: Vec<u64> = events.release().into_iter().map(|(id, _)| id.time_ns).collect();
        assert_eq!((released, events.changed_ns()), (vec![20, 30], 30));
    }
}
