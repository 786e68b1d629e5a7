//! The process stage: the known processes, and what events report about them.
//!
//! `ProcessTable` is the stage, `ProcessEvent` its output, `RescanSchedule` when /proc is read again.
//!
//! Input: events in time order, and /proc; output: the events of selected processes. A process is selected or
//! excluded when first seen. After lost records, /proc is read again. An ended process is kept for
//! some batches: its records may arrive late.

use std::collections::{BTreeMap, VecDeque};

use libc::pid_t;

use super::entry::ProcessEntry;
use super::filter::{ProcessFilter, Procfs};
use crate::addr::Avma;
use crate::binary::Mapping;
use crate::sources::Capture;
use crate::sources::linux::clocks::Clocks;
use crate::sources::linux::perf::reorder::{Event, ProcessView, Selection};
use crate::sources::linux::perf::ring::SampleId;

/// Maximum number of ancestors looked up to select a process.
const ANCESTORS_MAX: u32 = 64;
/// Number of batches for which an ended process is kept: its records may arrive late.
const BATCHES_AFTER_END: u8 = 3;

/// A change of a process's memory.
#[derive(Debug)]
enum MemoryChange {
    /// It becomes a copy of the memory of this process.
    Fork(pid_t),
    Exec,
    Mmap(Mapping),
}

/// The end of a thread or of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Exit of a thread known to the sampler, at this time (monotonic clock).
    Thread(u64),
    /// End of a process, with the exit time of its last thread, if recorded (monotonic clock).
    Process(Option<u64>),
}

/// Parts of a thread that are new to the sampler.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Its process, with this name.
    pub(crate) process: Option<String>,
    /// The thread.
    pub(crate) thread: Option<NewThread>,
}

/// A thread that is new to the sampler.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NewThread {
    /// Its initial stack pointer, if known.
    pub(crate) stack_top: Option<Avma>,
    /// Its start time, if recorded (monotonic clock).
    pub(crate) started_ns: Option<u64>,
}

/// The sampled processes.
pub(crate) struct ProcessTable {
    /// The main process, or the placeholder for all.
    main: pid_t,
    filter: ProcessFilter,
    entries: BTreeMap<pid_t, ProcessEntry>,
    /// Events not yet taken.
    events: Vec<(SampleId, ProcessEvent)>,
    /// Processes added since [`ProcessTable::take_added`].
    added: Vec<pid_t>,
    /// Changes to apply as the sampler's time advances: time, process, change.
    changes: VecDeque<(u64, pid_t, MemoryChange)>,
    /// Exited threads with names to be dropped after this batch. Process, thread.
    names_to_forget: Vec<(pid_t, pid_t)>,
    /// Processes with thread exits in this batch, and in the previous one.
    exiting: Vec<pid_t>,
    exiting_before: Vec<pid_t>,
    /// Processes that have ended but are not yet removed.
    ended: Vec<pid_t>,
    rescan: RescanSchedule,
    /// Whether waits are recorded: a thread then ends after its last one.
    records_waits: bool,
    /// Number of programs so far.
    programs: u64,
}

impl ProcessTable {
    /// A table with the main process, or the placeholder for all.
    pub(crate) fn new(filter: ProcessFilter, main: ProcessEntry, records_waits: bool) -> ProcessTable {
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

    /// Makes the main process known to the sampler; `awaits_exec`: its command is not running yet.
    pub(crate) fn begin(&mut self, awaits_exec: bool) {
        if let Some(main) = self.entries.get_mut(&self.main) {
            (main.is_announced, main.awaits_exec) = (true, awaits_exec);
        }
    }

    /// The main process, or the placeholder for all.
    pub(crate) fn main(&self) -> pid_t {
        self.main
    }

    /// The selection of processes.
    pub(crate) fn filter(&self) -> &ProcessFilter {
        &self.filter
    }

    /// Changes for the kernel since the last call: processes excluded, or no longer.
    pub(crate) fn take_filter_changes(&mut self) -> Vec<(pid_t, bool)> {
        self.filter.take_changes()
    }

    /// A process of the table.
    pub(crate) fn get(&self, pid: pid_t) -> Option<&ProcessEntry> {
        self.entries.get(&pid)
    }

    /// A process of the table, mutable.
    pub(crate) fn get_mut(&mut self, pid: pid_t) -> Option<&mut ProcessEntry> {
        self.entries.get_mut(&pid)
    }

    /// Sampled processes that have not ended.
    pub(crate) fn running(&self) -> Vec<pid_t> {
        self.entries.iter().filter(|(_, entry)| !entry.has_ended()).map(|(pid, _)| *pid).collect()
    }

    /// Processes added since the last call.
    pub(crate) fn take_added(&mut self) -> Vec<pid_t> {
        std::mem::take(&mut self.added)
    }

    /// Takes the events so far.
    pub(crate) fn take_events(&mut self) -> Vec<(SampleId, ProcessEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Decides on the running processes, before any is sampled.
    pub(crate) fn select_all(&mut self, procfs: &dyn Procfs) {
        if self.filter.is_all() || self.filter.is_one() {
            return;
        }
        for pid in procfs.processes() {
            self.select(pid, procfs);
        }
    }

    /// Reads what names need of the processes that run already, once their records are kept.
    pub(crate) fn read_running(&mut self, procfs: &dyn Procfs) {
        self.entries
            .values_mut()
            .filter(|entry| entry.pid() > 0)
            .for_each(|entry| entry.read_running(procfs));
    }

    /// Whether a process is selected; decides for a new one.
    pub(crate) fn select(&mut self, pid: pid_t, procfs: &dyn Procfs) -> bool {
        self.select_with_ancestors(pid, None, 0, procfs)
    }

    /// Selects a process. `parent`: known if it was just started; `depth`: number of ancestors looked up so far.
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

    /// Begins a batch: drops the names of threads that exited before it.
    pub(crate) fn begin_batch(&mut self) {
        for (pid, tid) in self.names_to_forget.drain(..) {
            if let Some(entry) = self.entries.get_mut(&pid) {
                entry.forget_thread_name(tid);
            }
        }
    }

    /// Handles an event. Returns the sample buffer of an unselected process.
    pub(crate) fn push_event(
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
        // It will wait eventually, perhaps before its next exec.
        if self.records_waits && !std::mem::replace(&mut entry.is_announced, true) {
            self.events.push((id, ProcessEvent::ProcessNamed(entry.name().to_owned())));
        }
    }

    /// Handles a new name of a thread, or of a new program.
    fn comm(&mut self, id: SampleId, name: String, exec: bool) -> Option<ProcessEvent> {
        let entry = self.entries.get_mut(&id.pid)?;
        entry.name_thread(id.tid, name.clone());
        // After an exec a thread has the number of the first one, which has ended.
        self.names_to_forget.retain(|thread| *thread != (id.pid, id.tid));
        if !exec {
            // Later records of the thread use this name.
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

    /// Ends the events of a batch: sorts changes of memory by time, since those left from the previous batch may
    /// be newer than the beginning of this one.
    pub(crate) fn end_events(&mut self) {
        self.changes.make_contiguous().sort_by_key(|(at_ns, ..)| *at_ns);
    }

    /// Advances the memory of processes to this time.
    pub(crate) fn set_time(&mut self, time_ns: u64) {
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

    /// What is new to the sampler about a thread and its process; both are known from now on.
    pub(crate) fn announce(&mut self, id: SampleId, procfs: &dyn Procfs) -> Announcement {
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

    /// Records the exit of a thread, to be reported with a later batch, since it still runs for a while.
    pub(crate) fn exit_thread(&mut self, id: SampleId) {
        if let Some(entry) = self.entries.get_mut(&id.pid) {
            entry.exits.first_thread |= id.tid == id.pid;
            entry.exits.last_ns = entry.exits.last_ns.max(Some(id.time_ns));
            entry.exits.now.push(id);
            self.exiting.push(id.pid);
        }
    }

    /// Exit time of a process's last thread, if its first one has exited (monotonic clock).
    pub(crate) fn exited_ns(&self, pid: pid_t) -> Option<u64> {
        self.entries.get(&pid).filter(|entry| entry.exits.first_thread)?.exits.last_ns
    }

    /// Handles an exec: returns the threads known to the sampler, which have ended.
    pub(crate) fn exec(&mut self, id: SampleId) -> Vec<pid_t> {
        let Some(entry) = self.entries.get_mut(&id.pid) else { return Vec::new() };
        entry.program_since_ns = id.time_ns;
        // One of these numbers belongs to the surviving thread.
        entry.exits = super::entry::Exits { batches_left: entry.exits.batches_left, ..Default::default() };
        std::mem::take(&mut entry.threads).into_iter().collect()
    }

    /// Ends a batch with its last event at `last_ns`. Returns the threads that exited in the previous batch and
    /// the processes that ended with them, each with its time; with the last batch, all that exited. A thread that
    /// exited at or after `watermark_ns` has waits that are reported with a later batch, and ends after them.
    /// Threads without further records go to `over`.
    pub(crate) fn end_batch(
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
            // Its first thread has exited, and the others are exiting or still running. Once they have exited,
            // their last records may be in rings already read: the next batch, if any, contains these.
            let are_all_read = entry.exits.is_dead || is_last;
            entry.exits.is_dead = !procfs.is_alive(pid);
            if !entry.exits.is_dead || !are_all_read {
                self.exiting_before.push(pid);
                continue;
            }
            if entry.is_announced {
                // After the events of its threads at the same time.
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

    /// Drops the decision about a pid: it may be reused, or reconsidered.
    fn forget_pid(&mut self, pid: pid_t) {
        let id = SampleId { pid, tid: pid, ..SampleId::default() };
        self.events.push((id, ProcessEvent::PidReleased));
        self.filter.pid_released(pid);
        if self.entries.get(&pid).is_some_and(ProcessEntry::has_ended) {
            self.entries.remove(&pid);
            self.events.push((id, ProcessEvent::Removed));
        }
    }

    /// Records were lost: process state may be stale until the next rescan of /proc.
    pub(crate) fn note_lost(&mut self) {
        self.rescan.request();
    }

    /// Reads /proc after losing records that may have reported an exec, a mapping of code or an end; generates the
    /// missing events with the time `at_ns`. Not in every batch: records are lost when there is too much to do.
    pub(crate) fn rescan(
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

    /// Whether a process runs a 32-bit program; `None` if it is gone.
    pub(crate) fn is_of_32_bits(&mut self, pid: pid_t, procfs: &dyn Procfs) -> Option<bool> {
        self.entries.get_mut(&pid)?.is_of_32_bits(procfs)
    }

    /// Time of the last exec reported to the sampler (monotonic clock); 0 if none.
    pub(crate) fn program_since_ns(&self, pid: pid_t) -> u64 {
        self.entries.get(&pid).map_or(0, |entry| entry.program_since_ns)
    }

    /// Number of a process's current program.
    pub(crate) fn program(&self, pid: pid_t) -> Option<u64> {
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

// ---- Output of the process stage: events of selected processes, in time order.

/// An event of a selected process or of one of its threads.
#[derive(Debug)]
pub(crate) enum ProcessEvent {
    /// The process is sampled from now on.
    Added {
        /// It was just started, and did not run before.
        started: bool,
    },
    /// The pid is released.
    PidReleased,
    /// The process, which ended some batches ago, was removed from the table.
    Removed,
    /// The first event of a process to be reported, with this name.
    ProcessNamed(String),
    /// A sample.
    Sample {
        /// Registers and stack.
        capture: Box<Capture>,
        /// Number of the process's program: a new one after each exec.
        program: u64,
    },
    /// A sample with an unusable stack, for this reason.
    Missed(&'static str),
    /// The thread exited.
    ThreadExit,
    /// The thread was renamed.
    ThreadNamed(String),
    /// The process executed a program of this name.
    Exec(String),
    /// The images of the process may have changed.
    ImagesStale,
}

impl ProcessEvent {
    /// Whether this is a sample, with a usable stack or not.
    pub(crate) fn is_sample(&self) -> bool {
        matches!(self, ProcessEvent::Sample { .. } | ProcessEvent::Missed(_))
    }

    /// Whether a process was added or removed, or its pid released: not an event of a thread.
    pub(crate) fn is_table_change(&self) -> bool {
        matches!(self, ProcessEvent::Added { .. } | ProcessEvent::PidReleased | ProcessEvent::Removed)
    }
}

// ---- When to read /proc again after losing records of processes.
//
// Input: lost records, and the cost of a rescan; output: whether a rescan is due.

/// Minimum interval between rescans, nanoseconds.
const DISTANCE_NS: u64 = 500_000_000;
/// Maximum share of time for rescans: 1/20.
const COST_SHARE: u64 = 20;

/// Schedule of rescans.
#[derive(Debug, Default)]
pub(super) struct RescanSchedule {
    is_requested: bool,
    next_ns: u64,
}

impl RescanSchedule {
    /// Requests a rescan after lost records.
    pub(super) fn request(&mut self) {
        self.is_requested = true;
    }

    /// Whether to begin a rescan at this time (monotonic clock).
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        now_ns >= self.next_ns && std::mem::take(&mut self.is_requested)
    }

    /// Records the begin and end of a rescan.
    pub(super) fn end(&mut self, begun_ns: u64, now_ns: u64) {
        self.next_ns = begun_ns + DISTANCE_NS.max(COST_SHARE * now_ns.saturating_sub(begun_ns));
    }
}

#[cfg(test)]
mod rescan_tests {
    use super::*;

    #[test]
    fn expensive_rescans_are_rare() {
        let mut schedule = RescanSchedule::default();
        assert!(!schedule.is_due(1_000), "nothing was lost");
        schedule.request();
        assert!(schedule.is_due(1_000) && !schedule.is_due(1_000));
        schedule.end(1_000, 2_000);
        schedule.request();
        assert!(!schedule.is_due(DISTANCE_NS) && schedule.is_due(DISTANCE_NS + 1_000));
        schedule.end(0, DISTANCE_NS);
        schedule.request();
        assert!(!schedule.is_due(COST_SHARE * DISTANCE_NS - 1) && schedule.is_due(COST_SHARE * DISTANCE_NS));
    }
}
