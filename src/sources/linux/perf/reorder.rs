//! The reorder stage: time order of the records of all CPUs. Each ring is in order, but the rings among each other
//! are not.
//!
//! Input: records, ring after ring. Output: [`Event`]s of a batch, sorted once ([`EventQueue`]). `ExitedThreads`
//! restores the numbers of threads that exit; `Queue` sorts values of all rings by time, also for other stages.

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::buffers::Usage;
use super::ring::{Mmap, PerfRecord, SampleId};
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};
use crate::sources::Capture;

// ---- Events of threads and processes, before the records of all CPUs are in order.
//
// Input: a record, and whether its process is selected. Output: an event, if a later stage needs it.

/// Whether a process is recorded, as far as known when its record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Recorded, or not decided yet.
    Selected,
    /// Excluded by the filter.
    Excluded,
    /// Another process in a recording of only one.
    Other,
}

/// An event of a thread or process.
#[derive(Debug)]
pub(crate) enum Event {
    /// The process was started by this thread of this process.
    Fork {
        /// Its parent process.
        parent: pid_t,
        /// The thread that started it.
        creator: pid_t,
    },
    /// The thread was started by this one of its process.
    ThreadStart {
        /// The thread that started it.
        creator: pid_t,
    },
    /// A timer sample.
    Sample(Box<Capture>),
    /// A sample with an unusable stack, for this reason.
    Missed(&'static str),
    /// The thread exited.
    ThreadExit,
    /// The new name of a thread, or of a process after an exec.
    Comm {
        /// The name.
        name: String,
        /// Whether it is that of a new program.
        exec: bool,
    },
    /// Executable memory was mapped.
    Mmap(Mapping),
    /// /proc shows that the process executed a program of this name.
    ProgramFound(String),
    /// The mappings of the process may have changed without a record.
    MappingsStale,
}

impl Event {
    /// The event of a non-sample record. `selection`: of its process; `may_select_at_exec`: an excluded process
    /// may be selected at its next exec.
    pub(crate) fn of(
        id: SampleId,
        record: &PerfRecord<'_>,
        selection: Selection,
        may_select_at_exec: bool,
    ) -> Option<Event> {
        let is_excluded = selection == Selection::Excluded;
        match record {
            PerfRecord::Exit => Some(Event::ThreadExit),
            _ if selection == Selection::Other => None,
            PerfRecord::Fork { parent, creator } if *parent == id.pid => {
                (!is_excluded).then_some(Event::ThreadStart { creator: *creator })
            }
            PerfRecord::Fork { parent, creator } => Some(Event::Fork { parent: *parent, creator: *creator }),
            PerfRecord::Comm { name, exec } => (!is_excluded || *exec && may_select_at_exec)
                .then(|| Event::Comm { name: String::from_utf8_lossy(name).into_owned(), exec: *exec }),
            PerfRecord::Mmap(mmap) if !is_excluded => mapping(mmap).map(Event::Mmap),
            PerfRecord::Mmap(_)
            | PerfRecord::Sample(_)
            | PerfRecord::SwitchIn { .. }
            | PerfRecord::SwitchOut { .. }
            | PerfRecord::Lost(_)
            | PerfRecord::Throttle
            | PerfRecord::Unthrottle => None,
        }
    }

    /// Whether this is a timer sample, with a usable stack or not.
    pub(crate) fn is_sample(&self) -> bool {
        matches!(self, Event::Sample(_) | Event::Missed(_))
    }
}

/// The mapping of a record; `None` if it is empty.
pub(crate) fn mapping(mmap: &Mmap<'_>) -> Option<Mapping> {
    let end = mmap.start.checked_add(mmap.len).filter(|end| *end > mmap.start)?;
    let path = String::from_utf8_lossy(mmap.path).into_owned();
    let kind = MappingKind::of(&path, mmap.inode);
    // Like /proc/PID/maps: no name for memory without a file.
    let path = if kind == MappingKind::Anonymous && path == "//anon" { String::new() } else { path };
    let identity = (libc::makedev(mmap.device.0, mmap.device.1), mmap.inode);
    Some(Mapping { avma: Avma(mmap.start)..Avma(end), file_offset: mmap.file_offset, path, kind, identity })
}

// ---- The reorder stage: events of all CPUs, in time order.
//
// All events of a batch are released, even those newer than the watermark, so that /proc is read while new
// processes still exist. The pipeline keeps the resulting process events in a [`Queue`] until the watermark has
// passed them, like context switches: the next batch may hold older records.

/// The reorder stage's view of processes.
pub(crate) trait ProcessView {
    /// Whether the process is recorded, as far as known.
    fn selection(&self, pid: pid_t) -> Selection;

    /// Whether an excluded process may be selected at its next exec.
    fn may_select_at_exec(&self) -> bool;
}

/// Events not yet released.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
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
    pub(crate) fn thread_of(&mut self, id: SampleId, record: &PerfRecord<'_>) -> SampleId {
        self.exited.named(id, matches!(record, PerfRecord::Exit))
    }

    /// Whether the process of a record is recorded.
    pub(crate) fn selection(&self, pid: pid_t, processes: &impl ProcessView) -> Selection {
        match processes.selection(pid) {
            Selection::Excluded if self.forked.contains(&pid) => Selection::Selected,
            selection => selection,
        }
    }

    /// Reads a record that is not a sample.
    pub(crate) fn push_record(
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
    pub(crate) fn push(&mut self, id: SampleId, event: Event) {
        self.queue.push(id, event);
    }

    /// Releases the events of the batch, in time order.
    pub(crate) fn release(&mut self) -> Vec<(SampleId, Event)> {
        self.forked.clear();
        self.queue.release_all()
    }

    /// Takes back the buffer of a batch that held this many events.
    pub(crate) fn reuse(&mut self, mut buffer: Vec<(SampleId, Event)>, held: usize) {
        buffer.clear();
        self.usage.shrink(&mut buffer, held);
        self.queue.reuse(buffer);
    }

    /// Processes started by `listed` and their descendants, by the records of the batch.
    pub(crate) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
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
    pub(crate) fn forget_thread(&mut self, pid: pid_t, tid: pid_t) {
        self.exited.forget(pid, tid);
    }

    /// Time of the last start, end, naming or code mapping of a selected process (monotonic clock).
    pub(crate) fn changed_ns(&self) -> u64 {
        self.changed_ns
    }
}

// ---- Threads of records written during exit: an exiting thread gives back its number, and later records have -1
// instead.
//
// Source: Linux kernel/events/core.c, `perf_event_pid_type` ("avoid -1 if it is idle thread or runs in another
// ns"): a thread that is not alive has no number. Its process has one while another thread exists.

/// Replaces the number of an exited thread.
pub(crate) const EXITED_TID: pid_t = -1;

/// By CPU: the last thread that exited there, and its process.
#[derive(Debug, Default)]
pub(crate) struct ExitedThreads(HashMap<u32, (pid_t, pid_t)>);

impl ExitedThreads {
    /// The id with the thread's former number. `ends`: the record reports the exit.
    pub(crate) fn named(&mut self, id: SampleId, ends: bool) -> SampleId {
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
    pub(crate) fn forget(&mut self, pid: pid_t, tid: pid_t) {
        self.0.retain(|_, exited| *exited != (pid, tid));
    }
}

// ---- Orders values of all rings by time: each ring is in order, and rings are read one after another.
//
// Values with equal times keep their order.

/// Values not yet released.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    values: Vec<(SampleId, T)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { values: Vec::new() }
    }
}

impl<T> Queue<T> {
    /// Adds a value.
    pub(crate) fn push(&mut self, id: SampleId, value: T) {
        self.values.push((id, value));
    }

    /// All values, in order of arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(SampleId, T)> {
        self.values.iter()
    }

    /// Releases all values, in time order. A later batch may hold earlier ones.
    pub(crate) fn release_all(&mut self) -> Vec<(SampleId, T)> {
        self.release_before(u64::MAX)
    }

    /// Releases the values before this time, in time order (the watermark: all rings were read up to it).
    pub(crate) fn release_before(&mut self, watermark_ns: u64) -> Vec<(SampleId, T)> {
        self.values.sort_by_key(|(id, _)| id.time_ns);
        if watermark_ns == u64::MAX {
            return std::mem::take(&mut self.values);
        }
        let due = self.values.partition_point(|(id, _)| id.time_ns < watermark_ns);
        let later = self.values.split_off(due);
        std::mem::replace(&mut self.values, later)
    }

    /// Takes back the empty buffer of a batch, if the queue has none.
    pub(crate) fn reuse(&mut self, buffer: Vec<(SampleId, T)>) {
        if self.values.capacity() == 0 {
            self.values = buffer;
        }
    }
}

#[cfg(test)]
mod event_tests {
    use super::*;

    fn mmap(start: u64, len: u64, inode: u64, path: &'static [u8]) -> Option<Mapping> {
        mapping(&Mmap { start, len, file_offset: 0x1000, device: (8, 1), inode, path })
    }

    #[test]
    fn memory_with_an_inode_is_a_file() {
        let kind =
            |inode, path| mmap(0x10_000, 0x4000, inode, path).map(|mapping| (mapping.kind, mapping.path));
        assert_eq!(kind(3, b"/lib/x.so"), Some((MappingKind::File, "/lib/x.so".to_owned())));
        assert_eq!(kind(0, b"//anon"), Some((MappingKind::Anonymous, String::new())));
        assert_eq!(kind(0, b"[vdso]"), Some((MappingKind::Vdso, "[vdso]".to_owned())));
    }

    #[test]
    fn mappings_with_an_invalid_end_are_dropped() {
        assert_eq!(mmap(u64::MAX - 1, 0x1000, 5, b"/lib/x.so"), None);
        assert_eq!(mmap(0x40_000, 0, 5, b"/lib/x.so"), None);
    }
}

#[cfg(test)]
mod event_queue_tests {
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

#[cfg(test)]
mod exited_threads_tests {
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

#[cfg(test)]
mod queue_tests {
    use super::*;

    fn id(time_ns: u64) -> SampleId {
        SampleId { time_ns, ..SampleId::default() }
    }

    fn values(released: Vec<(SampleId, u32)>) -> Vec<u32> {
        released.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn values_are_released_up_to_the_watermark_in_time_order() {
        let mut queue = Queue::default();
        for (time_ns, value) in [(30, 3), (10, 1), (40, 4), (20, 2)] {
            queue.push(id(time_ns), value);
        }
        assert_eq!(values(queue.release_before(30)), [1, 2], "the watermark itself waits");
        queue.push(id(35), 5);
        assert_eq!(values(queue.release_before(36)), [3, 5]);
        assert_eq!(values(queue.release_all()), [4]);
    }

    #[test]
    fn values_with_equal_times_keep_their_order() {
        let mut queue = Queue::default();
        for value in 0..100 {
            queue.push(id(u64::from(value % 3)), value);
        }
        let released = values(queue.release_all());
        assert!(released.chunk_by(|a, b| a % 3 == b % 3).all(|same| same.is_sorted()), "{released:?}");
    }
}
