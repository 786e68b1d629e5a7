//! The process stage: which processes there are, and what events say of them.
//!
//! Input: events in the order of their times, and /proc; output: the events of selected processes. A process is selected
//! or excluded when it is first heard of. Where records were lost, /proc is read again (`rescan.rs`). What is known of a
//! process that has ended is kept for some batches: records of it may come late.

use std::collections::{BTreeMap, VecDeque};

use libc::pid_t;

use super::super::clocks::Clocks;
use super::super::reorder::event::{Event, Selection};
use super::super::reorder::event_queue::ProcessView;
use super::super::ring::record::SampleId;
use super::entry::ProcessEntry;
use super::event::ProcessEvent;
use super::filter::ProcessFilter;
use super::procfs::Procfs;
use super::rescan::RescanSchedule;
use crate::addr::Avma;
use crate::binary::Mapping;
use crate::sources::Capture;

/// Most ancestors that are looked up when a process is judged.
const ANCESTORS_MAX: u32 = 64;
/// What is known of a process that has ended is kept for so many batches: records of it may come late.
const BATCHES_AFTER_END: u8 = 3;

/// What changed of the memory of a process at a time.
#[derive(Debug)]
enum MemoryChange {
    /// It is a copy of that of this process.
    Fork(pid_t),
    Exec,
    Mmap(Mapping),
}

/// The end of a thread or of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum End {
    /// A thread that the sampler knows of exited, at this time (monotonic clock).
    Thread(u64),
    /// A process has ended; when its last thread exited, if that was recorded (monotonic clock).
    Process(Option<u64>),
}

/// What the sampler does not know of a thread yet.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Announcement {
    /// Its process, under this name.
    pub(in super::super) process: Option<String>,
    /// The thread.
    pub(in super::super) thread: Option<NewThread>,
}

/// A thread that the sampler does not know yet.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct NewThread {
    /// The stack pointer that it began with, where that is known.
    pub(in super::super) stack_top: Option<Avma>,
    /// When it started, if a record reported that (monotonic clock).
    pub(in super::super) started_ns: Option<u64>,
}

/// The processes that are sampled.
pub(in super::super) struct ProcessTable {
    /// The process that the recording is of, or what stands for all.
    main: pid_t,
    filter: ProcessFilter,
    entries: BTreeMap<pid_t, ProcessEntry>,
    /// Events that were not handed on yet.
    events: Vec<(SampleId, ProcessEvent)>,
    /// Processes that were added since [`ProcessTable::take_added`].
    added: Vec<pid_t>,
    /// What is to change with the time of the sampler: time, process, change.
    changes: VecDeque<(u64, pid_t, MemoryChange)>,
    /// Threads that exited: their names are forgotten after this batch. Process, thread.
    names_to_forget: Vec<(pid_t, pid_t)>,
    /// Processes that threads left in this batch, and in the batch before.
    exiting: Vec<pid_t>,
    exiting_before: Vec<pid_t>,
    /// Processes that have ended and are not removed.
    ended: Vec<pid_t>,
    rescan: RescanSchedule,
    /// Waits are recorded: a thread ends behind its last one.
    records_waits: bool,
    /// Programs so far.
    programs: u64,
}

impl ProcessTable {
    /// With the process that the recording is of, or what stands for all.
    pub(in super::super) fn new(
        filter: ProcessFilter,
        main: ProcessEntry,
        records_waits: bool,
    ) -> ProcessTable {
        let pid = main.pid();
        ProcessTable {
            main: pid,
            filter,
            entries: BTreeMap::from([(pid, main)]),
            events: Vec::new(),
            added: Vec::new(),
            changes: VecDeque::new(),
            names_to_forget: Vec::new(),
            exiting: Vec::new(),
            exiting_before: Vec::new(),
            ended: Vec::new(),
            rescan: RescanSchedule::default(),
            records_waits,
            programs: 0,
        }
    }

    /// The sampler knows of the main process from the beginning; `awaits_exec`: it is a command that does not run yet.
    pub(in super::super) fn begin(&mut self, awaits_exec: bool) {
        if let Some(main) = self.entries.get_mut(&self.main) {
            (main.is_announced, main.awaits_exec) = (true, awaits_exec);
        }
    }

    /// The process that the recording is of, or what stands for all.
    pub(in super::super) fn main(&self) -> pid_t {
        self.main
    }

    /// Which processes are selected.
    pub(in super::super) fn filter(&self) -> &ProcessFilter {
        &self.filter
    }

    /// What the kernel is to know since this was called before: processes that are excluded, or no longer.
    pub(in super::super) fn take_filter_changes(&mut self) -> Vec<(pid_t, bool)> {
        self.filter.take_changes()
    }

    /// A process of the table.
    pub(in super::super) fn get(&self, pid: pid_t) -> Option<&ProcessEntry> {
        self.entries.get(&pid)
    }

    /// A process of the table, to be read and changed.
    pub(in super::super) fn get_mut(&mut self, pid: pid_t) -> Option<&mut ProcessEntry> {
        self.entries.get_mut(&pid)
    }

    /// Processes that are sampled and have not ended.
    pub(in super::super) fn running(&self) -> Vec<pid_t> {
        self.entries.iter().filter(|(_, entry)| !entry.has_ended()).map(|(pid, _)| *pid).collect()
    }

    /// Processes that were added since this was called before.
    pub(in super::super) fn take_added(&mut self) -> Vec<pid_t> {
        std::mem::take(&mut self.added)
    }

    /// The events so far.
    pub(in super::super) fn take_events(&mut self) -> Vec<(SampleId, ProcessEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Judges the processes that run now, before any is sampled.
    pub(in super::super) fn select_all(&mut self, procfs: &dyn Procfs) {
        if self.filter.is_all() || self.filter.is_one() {
            return;
        }
        for pid in procfs.processes() {
            self.select(pid, procfs);
        }
    }

    /// Whether a process is selected; one that is new is judged.
    pub(in super::super) fn select(&mut self, pid: pid_t, procfs: &dyn Procfs) -> bool {
        self.select_with_ancestors(pid, None, 0, procfs)
    }

    /// Selects a process, whose `parent` is known where it was just started; `depth` of its ancestors were looked up.
    fn select_with_ancestors(
        &mut self,
        pid: pid_t,
        parent: Option<pid_t>,
        depth: u32,
        procfs: &dyn Procfs,
    ) -> bool {
        if pid <= 0 || self.filter.is_excluded(pid) {
            return false;
        }
        if self.entries.contains_key(&pid) {
            return true;
        }
        let parent_selected = if self.filter.follows_children() && depth < ANCESTORS_MAX {
            let parent = parent.or_else(|| procfs.parent(pid)).unwrap_or(0);
            self.select_with_ancestors(parent, None, depth + 1, procfs)
        } else {
            parent.is_some_and(|parent| self.entries.contains_key(&parent))
        };
        if !self.filter.decide(pid, parent_selected, procfs) {
            return false;
        }
        let started_by = parent.and_then(|parent| self.entries.get(&parent));
        let is_copy = started_by.is_some();
        let template = started_by.or_else(|| self.entries.get(&self.main));
        let Some(mut entry) = template.map(|from| from.new_for(pid, is_copy, procfs)) else { return false };
        self.programs += 1;
        entry.set_program(self.programs);
        self.entries.insert(pid, entry);
        self.added.push(pid);
        let id = SampleId { pid, tid: pid, ..SampleId::default() };
        self.events.push((id, ProcessEvent::Added { started: parent.is_some() }));
        true
    }

    /// Begins a batch: forgets the names of threads that exited before it.
    pub(in super::super) fn begin_batch(&mut self) {
        for (pid, tid) in self.names_to_forget.drain(..) {
            if let Some(entry) = self.entries.get_mut(&pid) {
                entry.forget_thread_name(tid);
            }
        }
    }

    /// Takes in an event. The buffer of a sample of a process that is not selected is given back.
    pub(in super::super) fn push_event(
        &mut self,
        id: SampleId,
        event: Event,
        procfs: &dyn Procfs,
    ) -> Option<Box<Capture>> {
        let pid = id.pid;
        match &event {
            Event::ThreadStart { creator } => {
                self.start_thread(id, *creator, procfs);
                return None;
            }
            Event::Fork { parent, creator } => {
                self.fork(id, *parent, *creator, procfs);
                return None;
            }
            Event::Comm { exec: true, .. } if self.filter.may_select_at_exec() => {
                self.forget_pid(pid);
                self.select(pid, procfs);
            }
            Event::ThreadExit if !self.entries.contains_key(&pid) => {
                if pid == id.tid {
                    self.forget_pid(pid);
                }
                return None;
            }
            Event::Sample(_) | Event::Missed(_) => {
                self.select(pid, procfs);
            }
            _ => {}
        }
        let Some(entry) = self.entries.get_mut(&pid) else {
            return if let Event::Sample(capture) = event { Some(capture) } else { None };
        };
        if entry.awaits_exec && !matches!(event, Event::Comm { .. }) {
            return if let Event::Sample(capture) = event { Some(capture) } else { None };
        }
        entry.seen_ns = entry.seen_ns.max(id.time_ns);
        if event.is_sample() && !std::mem::replace(&mut entry.is_announced, true) {
            self.events.push((id, ProcessEvent::ProcessNamed(entry.name().to_owned())));
        }
        let is_announced = entry.is_announced;
        let event = match event {
            Event::Sample(mut capture) => {
                entry.note_sample(&mut capture);
                ProcessEvent::Sample { capture, program: entry.program() }
            }
            Event::Missed(reason) => ProcessEvent::Missed(reason),
            Event::ThreadExit => ProcessEvent::ThreadExit,
            Event::Comm { name, exec } => self.comm(id, name, exec)?,
            Event::Mmap(mapping) => {
                entry.note_mapping(&mapping);
                self.changes.push_back((id.time_ns, pid, MemoryChange::Mmap(mapping)));
                if !is_announced {
                    return None;
                }
                ProcessEvent::ImagesStale
            }
            Event::ProgramFound(name) => ProcessEvent::Exec(name),
            Event::MappingsStale => ProcessEvent::ImagesStale,
            Event::ThreadStart { .. } | Event::Fork { .. } => return None,
        };
        self.events.push((id, event));
        None
    }

    fn start_thread(&mut self, id: SampleId, creator: pid_t, procfs: &dyn Procfs) {
        let Some(entry) = self.entries.get_mut(&id.pid) else { return };
        entry.starts.insert(id.tid, id.time_ns);
        if let Some(name) = entry.inherited_name(creator, procfs) {
            entry.name_thread(id.tid, name);
        }
    }

    fn fork(&mut self, id: SampleId, parent: pid_t, creator: pid_t, procfs: &dyn Procfs) {
        let pid = id.pid;
        self.forget_pid(pid);
        self.filter.pid_reused(pid);
        if !self.select_with_ancestors(pid, Some(parent), 0, procfs) {
            return;
        }
        let name = self.entries.get_mut(&parent).and_then(|parent| parent.inherited_name(creator, procfs));
        let Some(entry) = self.entries.get_mut(&pid) else { return };
        entry.starts.insert(pid, id.time_ns);
        if let Some(name) = name {
            entry.name_thread(pid, name);
        }
        self.changes.push_back((id.time_ns, pid, MemoryChange::Fork(parent)));
        // It will wait sooner or later, perhaps before it runs another program.
        if self.records_waits && !std::mem::replace(&mut entry.is_announced, true) {
            self.events.push((id, ProcessEvent::ProcessNamed(entry.name().to_owned())));
        }
    }

    /// Takes in a name of a thread, or of a new program.
    fn comm(&mut self, id: SampleId, name: String, exec: bool) -> Option<ProcessEvent> {
        let entry = self.entries.get_mut(&id.pid)?;
        entry.name_thread(id.tid, name.clone());
        // After an exec a thread has the number of the first one, which has ended.
        self.names_to_forget.retain(|thread| *thread != (id.pid, id.tid));
        if !exec {
            // Later records of the thread find this name.
            return entry.is_announced.then_some(ProcessEvent::ThreadNamed(name));
        }
        self.programs += 1;
        entry.exec(&name, self.programs);
        self.changes.push_back((id.time_ns, id.pid, MemoryChange::Exec));
        let is_first = std::mem::take(&mut entry.awaits_exec);
        if is_first {
            // A command starts with its program, not with the process that waited to run it.
            entry.starts.insert(id.tid, id.time_ns);
        }
        (!is_first && entry.is_announced).then_some(ProcessEvent::Exec(name))
    }

    /// Ends the events of a batch: changes of memory are put in the order of their times, since what the batch before
    /// left may be younger than the beginning of this one.
    pub(in super::super) fn end_events(&mut self) {
        self.changes.make_contiguous().sort_by_key(|(at_ns, ..)| *at_ns);
    }

    /// The memory of processes is as it was at this time from now on.
    pub(in super::super) fn set_time(&mut self, time_ns: u64) {
        while self.changes.front().is_some_and(|(at_ns, ..)| *at_ns <= time_ns) {
            let Some((at_ns, pid, change)) = self.changes.pop_front() else { return };
            let copied = match &change {
                MemoryChange::Fork(parent) => {
                    self.entries.get(parent).map(|parent| parent.images.history().clone())
                }
                _ => None,
            };
            let Some(entry) = self.entries.get_mut(&pid) else { continue };
            match change {
                MemoryChange::Fork(_) => entry.images.fork_at(copied.unwrap_or_default(), at_ns),
                MemoryChange::Exec => entry.images.exec_at(at_ns),
                MemoryChange::Mmap(mapping) => entry.images.add(mapping),
            }
        }
    }

    /// What the sampler does not know yet of a thread, and of its process: it knows of both from now on.
    pub(in super::super) fn announce(&mut self, id: SampleId, procfs: &dyn Procfs) -> Announcement {
        let Some(entry) = self.entries.get_mut(&id.pid) else {
            return Announcement { process: None, thread: None };
        };
        let is_announced = std::mem::replace(&mut entry.is_announced, true);
        let process = (!is_announced).then(|| entry.name().to_owned());
        let is_main = id.tid == id.pid;
        let thread = entry.threads.insert(id.tid).then(|| NewThread {
            stack_top: if is_main { entry.main_stack_top(procfs) } else { None },
            started_ns: entry.starts.remove(&id.tid),
        });
        Announcement { process, thread }
    }

    /// A thread exited: it ends with a batch to come, since on its way out it still runs for a while.
    pub(in super::super) fn exit_thread(&mut self, id: SampleId) {
        if let Some(entry) = self.entries.get_mut(&id.pid) {
            entry.exits.first_thread |= id.tid == id.pid;
            entry.exits.last_ns = entry.exits.last_ns.max(Some(id.time_ns));
            entry.exits.now.push(id);
            self.exiting.push(id.pid);
        }
    }

    /// When the last thread of a process exited, whose first one has (monotonic clock).
    pub(in super::super) fn exited_ns(&self, pid: pid_t) -> Option<u64> {
        self.entries.get(&pid).filter(|entry| entry.exits.first_thread)?.exits.last_ns
    }

    /// The process runs another program: the threads that the sampler knows of, which have ended with that.
    pub(in super::super) fn exec(&mut self, id: SampleId) -> Vec<pid_t> {
        let Some(entry) = self.entries.get_mut(&id.pid) else { return Vec::new() };
        entry.program_since_ns = id.time_ns;
        // One of these numbers is that of the thread that goes on.
        entry.exits = super::entry::Exits { batches_left: entry.exits.batches_left, ..Default::default() };
        std::mem::take(&mut entry.threads).into_iter().collect()
    }

    /// Ends a batch whose last event is of `last_ns`: the threads that exited in the batch before and the processes that
    /// have ended with them, each with the time of that; with the last batch, all that exited. A thread that exited at `watermark_ns` or later has waits that
    /// are reported with a batch to come, and it ends behind them. Threads whose records are over go to `over`.
    pub(in super::super) fn end_batch(
        &mut self,
        last_ns: u64,
        watermark_ns: u64,
        procfs: &dyn Procfs,
        mut over: impl FnMut(pid_t, pid_t),
    ) -> Vec<(SampleId, End)> {
        let mut ends = Vec::new();
        let exiting = sorted(std::mem::take(&mut self.exiting));
        let mut before = std::mem::replace(&mut self.exiting_before, exiting.clone());
        let is_last = watermark_ns == u64::MAX;
        if is_last {
            before.extend(&exiting);
        }
        for pid in sorted(before) {
            let Some(entry) = self.entries.get_mut(&pid) else { continue };
            if is_last {
                entry.exits.before.append(&mut entry.exits.now);
            }
            let all = std::mem::take(&mut entry.exits.before);
            let (later, now): (Vec<SampleId>, Vec<SampleId>) =
                all.into_iter().partition(|id| self.records_waits && id.time_ns >= watermark_ns);
            entry.exits.before = later;
            for id in now {
                self.names_to_forget.push((pid, id.tid));
                over(pid, id.tid);
                entry.starts.remove(&id.tid);
                if entry.threads.remove(&id.tid) {
                    ends.push((SampleId { time_ns: last_ns.max(id.time_ns), ..id }, End::Thread(id.time_ns)));
                }
            }
            if !entry.exits.before.is_empty() {
                self.exiting_before.push(pid);
                continue;
            }
            if pid == self.main || !entry.exits.first_thread {
                continue;
            }
            // Its first thread has exited, and the others are exiting, or run on. When they have exited, their last records
            // may be in rings that were read before: the next batch holds these, if one comes.
            let are_all_read = entry.exits.is_dead || is_last;
            entry.exits.is_dead = !procfs.is_alive(pid);
            if !entry.exits.is_dead || !are_all_read {
                self.exiting_before.push(pid);
                continue;
            }
            if entry.is_announced {
                // Behind what its threads report at the same time.
                let time_ns = last_ns.max(entry.exits.last_ns.unwrap_or(0));
                let end = End::Process(entry.exits.last_ns);
                ends.push((SampleId { pid, tid: pid_t::MAX, time_ns, ..SampleId::default() }, end));
            }
            entry.exits.batches_left = Some(BATCHES_AFTER_END);
            self.ended.push(pid);
        }
        for pid in exiting {
            if let Some(entry) = self.entries.get_mut(&pid) {
                entry.exits.before.append(&mut entry.exits.now);
            }
        }
        self.remove_ended();
        ends
    }

    /// Removes the processes that ended some batches ago.
    fn remove_ended(&mut self) {
        let mut removed = Vec::new();
        for pid in &self.ended {
            match self.entries.get_mut(pid).and_then(|entry| entry.exits.batches_left.as_mut()) {
                Some(0) => removed.push(*pid),
                Some(batches) => *batches -= 1,
                None => {}
            }
        }
        self.ended.retain(|pid| !removed.contains(pid));
        for pid in removed {
            self.forget_pid(pid);
        }
    }

    /// Forgets what was decided about a pid: it may be reused, or is to be judged again.
    fn forget_pid(&mut self, pid: pid_t) {
        let id = SampleId { pid, tid: pid, ..SampleId::default() };
        self.events.push((id, ProcessEvent::PidReleased));
        self.filter.pid_released(pid);
        if self.entries.get(&pid).is_some_and(ProcessEntry::has_ended) {
            self.entries.remove(&pid);
            self.events.push((id, ProcessEvent::Removed));
        }
    }

    /// Records were lost: what is known of processes may be stale until the next rescan of /proc.
    pub(in super::super) fn note_lost(&mut self) {
        self.rescan.request();
    }

    /// Reads /proc where records were lost that may have said that a process runs another program, has mapped code, or
    /// has ended: what they would have said, as events of the time `at_ns`. Not in every batch: that is when there is
    /// too much to do.
    pub(in super::super) fn rescan(
        &mut self,
        at_ns: u64,
        clocks: &dyn Clocks,
        procfs: &dyn Procfs,
        mut found: impl FnMut(SampleId, Event),
    ) {
        let begun_ns = clocks.monotonic_ns();
        if !self.rescan.is_due(begun_ns) {
            return;
        }
        for (pid, entry) in self.entries.iter_mut().filter(|(pid, entry)| !entry.has_ended() && **pid > 0) {
            if !procfs.is_alive(*pid) {
                (entry.exits.first_thread, entry.exits.is_dead, entry.exits.last_ns) = (true, true, None);
                self.exiting_before.push(*pid);
                continue;
            }
            let id = SampleId { pid: *pid, tid: *pid, time_ns: at_ns, ..SampleId::default() };
            let is_announced = entry.is_announced;
            if is_announced {
                for (tid, name) in entry.rescan_names(procfs) {
                    found(SampleId { tid, ..id }, Event::Comm { name, exec: false });
                }
            }
            self.programs += 1;
            let event = entry.rescan(self.programs, procfs).map_or(Event::MappingsStale, Event::ProgramFound);
            if is_announced {
                found(id, event);
            }
        }
        self.rescan.end(begun_ns, clocks.monotonic_ns());
    }

    /// Whether a process runs a program of 32 bits; `None` where it is gone.
    pub(in super::super) fn is_of_32_bits(&mut self, pid: pid_t, procfs: &dyn Procfs) -> Option<bool> {
        self.entries.get_mut(&pid)?.is_of_32_bits(procfs)
    }

    /// When the sampler was told of another program of a process (monotonic clock); 0: of none.
    pub(in super::super) fn program_since_ns(&self, pid: pid_t) -> u64 {
        self.entries.get(&pid).map_or(0, |entry| entry.program_since_ns)
    }

    /// The number of the program that a process runs.
    pub(in super::super) fn program(&self, pid: pid_t) -> Option<u64> {
        self.entries.get(&pid).map(ProcessEntry::program)
    }
}

impl ProcessView for ProcessTable {
    fn selection(&self, pid: pid_t) -> Selection {
        match pid {
            _ if self.filter.is_one() && pid != self.main => Selection::Other,
            _ if self.filter.is_excluded(pid) => Selection::Excluded,
            _ => Selection::Selected,
        }
    }

    fn may_select_at_exec(&self) -> bool {
        self.filter.may_select_at_exec()
    }
}

fn sorted(mut pids: Vec<pid_t>) -> Vec<pid_t> {
    pids.sort_unstable();
    pids.dedup();
    pids
}
