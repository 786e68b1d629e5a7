//! Threads with two sets of events: a thread that starts while events are being opened inherits those of its
//! creator, and gets its own, too.
//!
//! Input: the thread that each event was opened for, and records. Output: which records count, and the threads
//! with events to close. Each sample has the number of the event that was opened for its thread or for an
//! ancestor. Of two sets, the one opened last is closed: threads that inherited the other one were listed then.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::ring::record::{PerfRecord, SampleId};

/// Events of threads, and the threads that each of them samples.
#[derive(Debug, Default)]
pub(super) struct DuplicateEvents {
    /// By event number: the thread that it was opened for.
    opened_for: HashMap<u64, pid_t>,
    /// By thread: an event that samples it, and the thread it was opened for.
    by: HashMap<pid_t, (u64, pid_t)>,
    /// Threads with duplicate events.
    too_many: Vec<pid_t>,
}

impl DuplicateEvents {
    /// Records an event opened for a thread.
    pub(super) fn opened(&mut self, event: u64, tid: pid_t) {
        self.opened_for.insert(event, tid);
    }

    /// Whether a record counts: the second of two equal ones does not.
    pub(super) fn is_accepted(&mut self, id: SampleId, event: u64, record: &PerfRecord<'_>) -> bool {
        match record {
            PerfRecord::Sample(_) | PerfRecord::SwitchIn { .. } | PerfRecord::SwitchOut { .. } => {}
            // The number may be reused.
            PerfRecord::Exit => {
                self.by.remove(&id.tid);
                return true;
            }
            // Duplicates of these are harmless.
            _ => return true,
        }
        let Some(opened_for) = self.opened_for.get(&event).copied().filter(|_| id.tid > 0) else {
            return true;
        };
        let by = self.by.entry(id.tid).or_insert((event, opened_for));
        if by.1 == opened_for {
            return true;
        }
        // Numbers ascend (kernel/events/core.c, `perf_event_id`).
        let first = (event, opened_for).min(*by);
        self.too_many.push((event, opened_for).max(*by).1);
        *by = first;
        false
    }

    /// Threads with duplicate events to be closed, each once.
    pub(super) fn too_many(&mut self) -> Vec<pid_t> {
        let mut too_many = std::mem::take(&mut self.too_many);
        too_many.sort_unstable();
        too_many.dedup();
        for tid in &too_many {
            self.opened_for.retain(|_, of| of != tid);
            self.by.retain(|_, (_, of)| of != tid);
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ring::record::Sample;
    use super::*;

    fn sample(duplicates: &mut DuplicateEvents, tid: pid_t, event: u64) -> bool {
        duplicates.is_accepted(
            SampleId { tid, pid: 7, ..SampleId::default() },
            event,
            &PerfRecord::Sample(Sample::EMPTY),
        )
    }

    /// Thread 7 has events 1 and 2, on two CPUs; 8 inherited these, and 3 and 4 were opened for it.
    fn two_sets() -> DuplicateEvents {
        let mut duplicates = DuplicateEvents::default();
        for (event, tid) in [(1, 7), (2, 7), (3, 8), (4, 8)] {
            duplicates.opened(event, tid);
        }
        duplicates
    }

    #[test]
    fn of_two_sets_the_later_one_is_closed() {
        for first in [1, 3] {
            let mut duplicates = two_sets();
            assert!(sample(&mut duplicates, 7, 1) && sample(&mut duplicates, 7, 2), "on each CPU");
            assert!(sample(&mut duplicates, 8, first));
            assert!(!sample(&mut duplicates, 8, 4 - first), "the same once more");
            assert!(sample(&mut duplicates, 8, 2), "the inherited ones stay");
            assert_eq!(duplicates.too_many(), [8]);
            assert!(duplicates.too_many().is_empty());
            assert!(sample(&mut duplicates, 8, 1));
        }
    }

    #[test]
    fn its_children_are_sampled_by_the_remaining_set() {
        let mut duplicates = two_sets();
        assert!(sample(&mut duplicates, 9, 3), "by those of 8");
        assert!(!sample(&mut duplicates, 9, 1), "and by those of 7");
        assert_eq!(duplicates.too_many(), [8], "though 8 was not seen with both");
        assert!(sample(&mut duplicates, 9, 1) && sample(&mut duplicates, 8, 2));
    }

    #[test]
    fn a_reused_thread_number_starts_afresh() {
        let mut duplicates = two_sets();
        assert!(sample(&mut duplicates, 9, 1) && !sample(&mut duplicates, 9, 3));
        assert!(duplicates.is_accepted(SampleId { tid: 9, ..SampleId::default() }, 1, &PerfRecord::Exit));
        assert!(sample(&mut duplicates, 9, 3));
        assert!(sample(&mut duplicates, 9, 77), "of an event that was not opened for a thread");
        assert!(duplicates.is_accepted(
            SampleId { tid: -1, ..SampleId::default() },
            1,
            &PerfRecord::Sample(Sample::EMPTY)
        ));
    }
}
