//! The recorder: turns captures of any driver into weighted stacks.
//!
//! `ThreadAccount` is what it keeps of a thread, `SampledHeap` of allocations until they are freed.
//!
//! Input: start and exit of threads, and for each capture the thread's usage so far. Output: a [`Recording`]. It
//! weighs ([`ThreadClock`]), walks ([`StackWalker`]), inserts ([`WeightedStacks`]), defers stacks until images are
//! read ([`DeferredSamples`]), and counts losses by cause. It requests only images, names and memory from the
//! process; when and how threads are sampled is the driver's business.

use hashbrown::HashMap;

use super::Options;
use super::captures::{DeferredSample, DeferredSamples, DueSamples, Rewalk, Sample};
use super::image_refresh::ImageRefresh;
use super::processes::{ProcessIndex, Processes, StackGroups, UNSAMPLED};
use super::stack_size::StackExtent;
use super::stack_walker::StackWalker;
use super::thread_clock::ThreadClock;
use super::waits::WaitSampling;
use super::weights::WeightedStacks;
use crate::addr::{Avma, LookupAvma};
use crate::clock::Clock;
use crate::heap::{HeapModel, SamplingRate};
use crate::images::{Images, LibraryCounts};
use crate::recording::timeline::{EventKind, ThreadIndex};
use crate::recording::{HeapRecording, Recording, Root, Stats};
use crate::sources::pushed::{AllocationLosses, SampledAllocation, SampledFree, StackUse};
use crate::sources::{Activity, Capture, Observed, Process, ThreadId, ThreadStatus};
use crate::trie::NodeId;
use crate::walk::{Frames, StackEnd};

/// Maximum stack size of allocation captures: the source decides.
const ALLOCATION_STACK_MAX_BYTES: usize = 128 << 10;

/// Reason for losing samples of unknown threads.
pub(super) const UNKNOWN_THREAD: &str = "its thread is not known";
/// Reason for samples whose code may be of a library that is not there any more.
const OTHER_LIBRARIES: &str = "libraries were unloaded while it was taken";

/// Result of taking a sample.
#[derive(Debug)]
pub(super) struct SampleOutcome {
    /// Its node in the trie and how its walk ended, if inserted.
    pub(super) stack: Option<(NodeId, StackEnd)>,
    /// How much of the copied stack its walk needed.
    pub(super) needed: StackUse,
    /// The sample, returned; `None` if it is deferred.
    pub(super) sample: Option<Sample>,
}

/// The stacks, weights, images and losses of a recording so far.
pub struct Recorder<'a> {
    clock: &'a dyn Clock,
    options: &'a Options,
    /// Samples weigh all time since the previous one, waiting or not: for a driver that polls waiting threads. A
    /// pushing source reports each wait instead.
    by_wall: bool,
    threads: HashMap<ThreadId, ThreadAccount>,
    processes: Processes,
    groups: StackGroups,
    walker: StackWalker<'a>,
    deferred: DeferredSamples,
    stacks: WeightedStacks<'a>,
    heap: SampledHeap,
    /// Counts of events and losses.
    pub stats: Stats,
}

impl<'a> Recorder<'a> {
    /// For this process, with index [`FIRST`](super::FIRST), without threads or images.
    pub fn new(clock: &'a dyn Clock, options: &'a Options, process: &Process) -> Recorder<'a> {
        let mut groups = StackGroups::new(options.threads);
        let program = groups.add_program(process.pid, &process.name);
        Recorder {
            clock,
            options,
            by_wall: options.idle,
            threads: HashMap::new(),
            processes: Processes::new(process.pid, program),
            groups,
            walker: StackWalker::new(clock, options),
            deferred: DeferredSamples::default(),
            stacks: WeightedStacks::new(clock, options),
            heap: SampledHeap::default(),
            // Pid 0 stands for all of a selection, each of which is added.
            stats: Stats { processes_seen: u64::from(process.pid != 0), ..Stats::default() },
        }
    }

    /// Expects waits as events with their own times, and allocations sampled once per `every_bytes`, if the source
    /// reports any; of these, blocks of `age_min_ns` and older are in use at the end.
    pub(super) fn expect_events(&mut self, every_bytes: Option<u64>, age_min_ns: u64) {
        self.by_wall = false;
        self.heap = SampledHeap::new(every_bytes, age_min_ns);
    }

    /// The stack walker.
    pub(super) fn walker(&mut self) -> &mut StackWalker<'a> {
        &mut self.walker
    }

    /// The recorded processes.
    #[cfg(test)]
    pub(super) fn processes(&self) -> &Processes {
        &self.processes
    }

    // ---- threads

    /// Adds a thread: either running before the recording or seen from its first instruction.
    pub fn add_thread(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        id: ThreadId,
        stack_top: Option<Avma>,
        status: ThreadStatus,
        preexisting: bool,
    ) {
        self.stats.threads_seen += 1;
        let group = self.processes.group(of, process, id, &mut self.groups);
        let now_ns = self.clock.now_ns();
        let pid = process.process().pid;
        let timeline_thread = self.stacks.timeline().add_thread(id.0, pid, now_ns, preexisting);
        let clock = ThreadClock::new(status, now_ns, preexisting);
        self.threads.insert(id, ThreadAccount::new(of, group, timeline_thread, id.0, stack_top, clock));
    }

    /// A thread's account.
    pub(super) fn account(&self, id: ThreadId) -> Option<&ThreadAccount> {
        self.threads.get(&id)
    }

    /// A thread's account.
    pub(super) fn account_mut(&mut self, id: ThreadId) -> Option<&mut ThreadAccount> {
        self.threads.get_mut(&id)
    }

    /// Number of current threads.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Current threads, with their names if they have groups.
    pub(super) fn named_threads(&self) -> impl Iterator<Item = (ThreadId, &str)> {
        let name = |account: &ThreadAccount| self.groups.thread_name(account.group).unwrap_or_default();
        self.threads.iter().map(move |(id, account)| (*id, name(account)))
    }

    /// Closes a thread's account: its usage since its last sample is lost for this reason. `cpu_ns`: its total
    /// usage, if known. The driver must walk its deferred samples before.
    pub fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>, reason: &'static str) {
        let Some(since_ns) = self.threads.get(&id).map(|account| account.clock.sampled_at_ns()) else {
            return;
        };
        let unsampled_ns = self.leave_thread(id, cpu_ns);
        self.stacks.lose_since(reason, since_ns, unsampled_ns);
    }

    /// Closes a thread's account like [`Recorder::remove_thread`], but returns its usage since its last sample,
    /// nanoseconds, instead of counting it as lost.
    pub(super) fn leave_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) -> u64 {
        let Some(mut account) = self.threads.remove(&id) else { return 0 };
        let now_ns = self.clock.now_ns();
        self.stacks.timeline().end_thread(account.timeline_thread, now_ns);
        let unsampled_ns = account.clock.unsampled(cpu_ns, now_ns, self.by_wall);
        self.stats.target_cpu_ns += account.clock.used_cpu_ns();
        unsampled_ns
    }

    /// Skips the time up to now, in which a thread was not recorded: its usage in it is lost for this reason.
    /// `cpu_ns`: its total usage.
    pub(super) fn skip(&mut self, id: ThreadId, cpu_ns: u64, reason: &'static str) {
        let now_ns = self.clock.now_ns();
        if let Some(account) = self.threads.get_mut(&id) {
            let since_ns = account.clock.sampled_at_ns();
            let lost_ns = account.clock.skip(cpu_ns, now_ns, self.by_wall);
            self.stacks.lose_since(reason, since_ns, lost_ns);
        }
    }

    /// Sets when a thread started, on the sampler's clock; `None` if its start was not seen.
    pub(super) fn set_start(&mut self, thread: ThreadId, started_ns: Option<u64>) {
        if let Some(account) = self.threads.get(&thread) {
            self.stacks.timeline().set_start(account.timeline_thread, started_ns);
        }
    }

    /// Reads the name of a thread that had none when first seen: threads name themselves after they start, and may
    /// end before the recording does.
    fn read_missing_name(&mut self, process: &mut dyn Observed, id: ThreadId) {
        let Some(account) = self.threads.get_mut(&id) else { return };
        if !account.take_name_try() {
            return;
        }
        let (group, timeline_thread) = (account.group, account.timeline_thread);
        let lacks_name = self.groups.thread_mut(group, id).is_some_and(|thread| thread.name.is_empty());
        if (lacks_name || self.stacks.timeline().lacks_name(timeline_thread))
            && let Some(name) = process.thread_name(id)
        {
            self.set_name(id, name);
        }
    }

    /// Renames a thread. The last name is shown: most threads have only one.
    pub(super) fn set_name(&mut self, id: ThreadId, name: String) {
        let Some(account) = self.threads.get(&id) else { return };
        self.stacks.timeline().set_name(account.timeline_thread, &name);
        if let Some(thread) = self.groups.thread_mut(account.group, id) {
            thread.name = name;
        }
    }

    /// Reads a thread's name again at its end, or at the end of the recording.
    pub(super) fn rename(&mut self, process: &mut dyn Observed, id: ThreadId) {
        if let Some(name) = process.thread_name(id) {
            self.set_name(id, name);
        }
    }

    // ---- processes

    /// Adds another process with this program name; `None` if there is no room.
    pub fn add_process(&mut self, pid: u32, name: &str) -> Option<ProcessIndex> {
        self.processes.add(pid, name, &mut self.groups)
    }

    /// Handles an exec: addresses change their meaning. `renamed`: the process's number and new name, if its
    /// stacks are kept under a new one.
    pub fn begin_program(&mut self, of: ProcessIndex, renamed: Option<(u32, &str)>) {
        self.processes.begin_program(of, renamed, &mut self.groups);
    }

    /// Assigns a thread of an [`UNSAMPLED`] process to this one.
    pub(super) fn place_thread(&mut self, of: ProcessIndex, process: &mut dyn Observed, id: ThreadId) {
        if let Some(account) = self.threads.get_mut(&id).filter(|account| account.process == UNSAMPLED) {
            let group = self.processes.group(of, process, id, &mut self.groups);
            (account.process, account.group) = (of, group);
        }
    }

    /// Drops what only a running process needs. Its deferred samples must be walked before.
    pub fn end_process(&mut self, of: ProcessIndex) {
        self.processes.end(of);
    }

    // ---- samples

    /// Counts in the trie so far.
    pub(super) fn samples(&self) -> u64 {
        self.stacks.counts()
    }

    /// The weight of a sample just taken of a thread, nanoseconds; `None` if the thread's account is closed.
    /// `status`: its usage at that moment.
    pub fn weigh(&mut self, id: ThreadId, status: Option<ThreadStatus>) -> Option<u64> {
        let now_ns = self.clock.now_ns();
        let clock = &mut self.threads.get_mut(&id)?.clock;
        Some(if self.by_wall {
            clock.weigh_wall(status.unwrap_or_else(unknown_status), now_ns)
        } else {
            clock.weigh_cpu(status, now_ns)
        })
    }

    /// The off-CPU part of a running thread's wall-clock weight, by its CPU clock, nanoseconds.
    pub(super) fn off_cpu_ns(&mut self, id: ThreadId, weight_ns: u64) -> u64 {
        self.threads.get_mut(&id).map_or(0, |account| account.clock.off_cpu_ns(weight_ns))
    }

    /// The weight of a wait of this length, nanoseconds: 0 for most short ones, represented by others. `None` for
    /// an unknown thread.
    pub(super) fn weigh_wait(&mut self, id: ThreadId, wait_ns: u64) -> Option<u64> {
        let period_ns = self.stacks.period_ns();
        self.threads.get_mut(&id).map(|account| account.waits.weight_ns(wait_ns, period_ns))
    }

    /// Walks a sample and counts its stack. `stack_max_bytes`: maximum size of the thread's next capture; `frames`
    /// is overwritten with the result of the walk.
    pub(super) fn add_sample(
        &mut self,
        process: &mut dyn Observed,
        sample: Sample,
        weight_ns: u64,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> SampleOutcome {
        let id = sample.thread;
        let of = self.threads.get(&id).map(|account| account.process);
        if !self.has_images_of(&sample)
            && let Some(of) = of
        {
            self.read_images(of, process);
        }
        let walked = self.walk(process, id, &sample.capture, stack_max_bytes, frames);
        // The walk may have read them again.
        let Some((ended, needed)) = walked.filter(|_| self.has_images_of(&sample)) else {
            self.lose(if walked.is_some() { OTHER_LIBRARIES } else { UNKNOWN_THREAD }, weight_ns);
            return SampleOutcome { stack: None, needed: StackUse::default(), sample: Some(sample) };
        };
        let waiting = (self.options.idle || self.options.off_cpu) && sample.waiting;
        if weight_ns == 0 && !self.by_wall && !waiting {
            return SampleOutcome { stack: None, needed, sample: Some(sample) };
        }
        self.read_missing_name(process, id);
        let Some(sample) = self.defer(sample, ended, weight_ns) else {
            return SampleOutcome { stack: None, needed, sample: None };
        };
        let node = self.insert(&sample, ended, frames, weight_ns, waiting);
        SampleOutcome { stack: node.map(|node| (node, ended)), needed, sample: Some(sample) }
    }

    /// Takes a sample of a prefetching source. Returns why its walk ended, if it was inserted, and the thread's
    /// new ranges to prefetch, if they changed; `frames` is overwritten with the result of the walk.
    pub fn take_prefetched(
        &mut self,
        process: &mut dyn Observed,
        sample: Sample,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> (Option<StackEnd>, Option<&[u64]>) {
        let id = sample.thread;
        self.walker.set_may_prefetch(true);
        let taken = self.add_sample(process, sample, 1, stack_max_bytes, frames);
        (taken.stack.map(|(_, ended)| ended), self.new_ranges(id))
    }

    /// The ranges to prefetch for a thread, if they changed.
    pub(super) fn new_ranges(&mut self, id: ThreadId) -> Option<&[u64]> {
        self.threads.get_mut(&id)?.stack.prefetch().take_new()
    }

    /// Counts the known stack of a thread that still waits.
    pub(super) fn repeat(&mut self, id: ThreadId, node: NodeId, ended: StackEnd, weight_ns: u64) {
        self.stacks.note_reused(weight_ns);
        self.count(id, (node, ended), self.clock.now_ns(), weight_ns);
    }

    /// Counts a thread's previously inserted stack, for the time up to `at_ns`.
    pub(super) fn count(&mut self, id: ThreadId, stack: (NodeId, StackEnd), at_ns: u64, weight_ns: u64) {
        let timeline_thread = self.threads.get(&id).and_then(|account| account.timeline_thread);
        self.stacks.count(timeline_thread, stack, at_ns, weight_ns);
    }

    /// Inserts the frames of a sample into the trie, with the kernel frames they led to.
    fn insert(
        &mut self,
        sample: &Sample,
        ended: StackEnd,
        frames: &mut Frames,
        weight_ns: u64,
        waiting: bool,
    ) -> Option<NodeId> {
        let (complete, fiber) = (ended.is_complete(), ended == StackEnd::Fiber);
        let account = self.threads.get(&sample.thread)?;
        let root = Root { group: account.group, complete, fiber, waiting };
        let space = self.processes.images_of(account.process)?.space();
        self.stacks.insert((root, space), account.timeline_thread, sample, ended, frames, weight_ns)
    }

    /// Walks a capture into `frames` ([`StackWalker::walk`]); `None` for an unknown thread.
    pub(super) fn walk(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> Option<(StackEnd, StackUse)> {
        let account = self.threads.get_mut(&id)?;
        let walked =
            self.walker.walk(&mut self.processes, account, process, capture, stack_max_bytes, frames);
        self.note_image_loads();
        walked
    }

    /// Searches for the words that a walk of a capture lacked ([`StackWalker::search_above`]).
    pub(super) fn search_above(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        needed: StackUse,
    ) {
        if let Some(account) = self.threads.get_mut(&id) {
            self.walker.search_above(&mut self.processes, account, process, capture, needed, true);
        }
    }

    // ---- deferred samples

    /// Defers a sample if its walk may have ended so for lack of recently mapped images. Returns any other, and
    /// that of a thread still waiting, since its stack is counted again.
    fn defer(&mut self, sample: Sample, ended: StackEnd, weight_ns: u64) -> Option<Sample> {
        let Some(process) = self.threads.get(&sample.thread).map(|account| account.process) else {
            return Some(sample);
        };
        let waits_on = sample.waiting && (self.by_wall || weight_ns == 0);
        if !DeferredSamples::may_be_new_code(&sample, ended, self.processes.images_read(process))
            || waits_on
            || !self.deferred.has_room_for(&sample.capture)
        {
            return Some(sample);
        }
        let space = self.space(process);
        self.deferred.push(DeferredSample { sample, weight_ns, process, space });
        None
    }

    /// Whether a process has deferred samples.
    pub(super) fn has_deferred(&self, of: ProcessIndex) -> bool {
        self.deferred.has_any_of(of)
    }

    /// Pids of the processes with deferred samples.
    pub(super) fn with_deferred(&self) -> Vec<u32> {
        let mut pids: Vec<u32> =
            self.deferred.processes().filter_map(|process| self.processes.pid(process)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Walks the due samples of a process again and inserts them.
    pub(super) fn walk_deferred(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        due: DueSamples,
        rewalk: &mut Rewalk<'_>,
    ) {
        let (read_ns, _) = self.processes.images_read(of);
        for DeferredSample { sample, weight_ns, space, .. } in self.deferred.take_due(of, due, read_ns) {
            if !self.has_images_of(&sample) {
                self.lose(OTHER_LIBRARIES, weight_ns);
                rewalk.spare.push(sample.capture);
                continue;
            }
            let (walker, processes) = (&mut self.walker, &mut self.processes);
            let walked = self.threads.get_mut(&sample.thread).and_then(|account| {
                let (capture, most) = (&sample.capture, rewalk.stack_max_bytes);
                walker.walk_with_known_images(processes, account, process, capture, most, rewalk.frames)
            });
            match walked {
                Some((ended, _)) => {
                    // The code may have been replaced since.
                    let ended = if self.space(of) == space { ended } else { StackEnd::BrokenFrameChain };
                    let waiting = sample.waiting;
                    self.insert(&sample, ended, rewalk.frames, weight_ns, waiting);
                }
                None => self.lose(UNKNOWN_THREAD, weight_ns),
            }
            rewalk.spare.push(sample.capture);
        }
    }

    // ---- allocations

    /// Walks the stack of an allocation and records it at its node. Returns the capture.
    pub(super) fn add_allocation(
        &mut self,
        process: &mut dyn Observed,
        pid: u32,
        sample: Sample,
        allocation: SampledAllocation,
        frames: &mut Frames,
    ) -> Box<Capture> {
        self.stats.samples_pushed += 1;
        let (id, at_ns) = (sample.thread, sample.at_ns);
        let walked = self.walk(process, id, &sample.capture, ALLOCATION_STACK_MAX_BYTES, frames);
        self.read_missing_name(process, id);
        let node = walked.and_then(|(ended, _)| {
            // The allocator's return address: the call is before it.
            if let Some(leaf) = frames.addresses.first_mut() {
                *leaf = LookupAvma(leaf.0.saturating_sub(1));
            }
            self.insert(&sample, ended, frames, self.stacks.period_ns(), false)
        });
        self.heap.allocate(pid, allocation, at_ns, node);
        sample.capture
    }

    /// The recorded allocations.
    pub(super) fn heap(&mut self) -> &mut SampledHeap {
        &mut self.heap
    }

    // ---- losses and times

    /// Counts the time up to now, nanoseconds, as lost for this reason.
    pub fn lose(&mut self, reason: &'static str, lost_ns: u64) {
        self.stacks.lose(reason, lost_ns);
    }

    /// Counts time between `since_ns` and now, nanoseconds, as lost for this reason.
    pub(super) fn lose_since(&mut self, reason: &'static str, since_ns: u64, lost_ns: u64) {
        self.stacks.lose_since(reason, since_ns, lost_ns);
    }

    /// Counts samples, each weighing one period, as lost for this reason.
    pub(super) fn lose_samples(&mut self, reason: &'static str, samples: u64) {
        self.stacks.lose_samples(reason, samples);
    }

    /// Records a process event at the current time.
    pub(super) fn note_event(&mut self, kind: EventKind, pid: u32, text: &str) {
        self.stacks.add_event(kind, pid, self.clock.now_ns(), text);
    }

    /// Starts the recording's time at `at_ns` of the sampler's clock.
    pub(super) fn begin_times(&mut self, at_ns: u64) {
        self.stats.begun_ns = at_ns;
        self.stacks.timeline().begin(at_ns);
    }

    /// Stops keeping times.
    pub(super) fn close_times(&mut self) {
        self.stacks.timeline().close();
    }

    // ---- the end

    /// CPU time of all current threads, nanoseconds.
    pub(super) fn alive_cpu_ns(&self) -> u64 {
        self.threads.values().map(|account| account.clock.used_cpu_ns()).sum()
    }

    /// The images, consuming the recorder.
    pub(super) fn into_images(self) -> Images {
        self.processes.into_images()
    }

    /// The profile. The known usage of current threads since their last samples is counted as lost.
    pub fn finish(mut self, process: &dyn Observed) -> Recording {
        self.stats.processes_seen = self.stats.processes_seen.max(1);
        self.close_times();
        let left: Vec<ThreadId> = self.threads.keys().copied().collect();
        for id in left {
            self.remove_thread(id, None, "not sampled again before the end");
        }
        let (trie, timeline) = self.stacks.finish(|root| self.groups.sort_key(root), &mut self.stats);
        let (programs, groups) = self.groups.into_parts();
        Recording {
            process: process.process().clone(),
            hz: self.options.hz,
            files: self.processes.files(),
            users: self.processes.take_users(),
            trie,
            images: self.processes.into_images(),
            programs,
            stack_groups: groups,
            timeline,
            heap: self.heap.finish(),
            stats: self.stats,
        }
    }
}

// ---- When a recorder reads the images of processes, and whether those that it has are those of a sample.

impl Recorder<'_> {
    /// The libraries that a process has loaded and unloaded now, where that is known.
    pub(crate) fn loader_counts(
        &self,
        of: ProcessIndex,
        process: &mut dyn Observed,
    ) -> Option<LibraryCounts> {
        self.processes.refresh(of)?.loader_counts(process)
    }

    /// Whether the images of a sample's process are known as they were when it was taken.
    fn has_images_of(&self, sample: &Sample) -> bool {
        let of = self.threads.get(&sample.thread).map(|account| account.process);
        of.and_then(|of| self.processes.refresh(of)).is_none_or(|refresh| refresh.is_of(sample))
    }

    /// Reads the images of a process; returns whether they changed.
    pub fn read_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) -> bool {
        let changed = self.processes.read_images(of, process, self.clock);
        self.note_image_loads();
        changed
    }

    /// Reads the images if they changed or may have. Reads are rate-limited, so not every one of many changes
    /// causes one.
    pub fn refresh_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        let (now_ns, wanted) = (self.clock.now_ns(), self.has_deferred(of));
        if self.processes.refresh(of).is_some_and(|refresh| refresh.is_due(now_ns, wanted)) {
            self.read_images(of, process);
        }
    }

    /// Reads images known to have changed, at any cost: deferred samples cannot wait longer.
    pub(crate) fn read_wanted_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.has_deferred(of) {
            self.read_changed_images(of, process);
        }
    }

    /// Reads images known to have changed, at any cost: the stack about to be walked will be reused for long.
    pub(crate) fn read_changed_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.processes.refresh(of).is_some_and(ImageRefresh::has_changed) {
            self.read_images(of, process);
        }
    }

    /// Handles a reported change of images. Earlier samples are walked first.
    pub fn images_changed(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        self.processes.note_change(of);
        self.refresh_images(of, process);
    }

    /// Marks the images of a process as unread: the next walk reads them.
    pub(crate) fn forget_images_read(&mut self, of: ProcessIndex) {
        self.processes.forget_images_read(of);
    }

    /// Number of a process's current address space.
    fn space(&self, of: ProcessIndex) -> u32 {
        self.processes.images_of(of).map_or(0, |images| images.space())
    }

    /// Records files loaded by processes as events.
    fn note_image_loads(&mut self) {
        for load in self.processes.take_loads() {
            self.stacks.add_event(EventKind::ImageLoad, load.pid, load.at_ns, &load.path);
        }
    }
}

// ---- One thread of the recorder: its group, its clock, the extent of its stack.

/// Attempts to read the name of a nameless thread.
const NAME_TRIES: u8 = 8;

/// One thread's account.
#[derive(Debug)]
pub(super) struct ThreadAccount {
    pub(super) process: ProcessIndex,
    /// Index into the profile's groups.
    pub(super) group: u32,
    /// Its index in the timeline, if that has room for it.
    pub(super) timeline_thread: Option<ThreadIndex>,
    /// Remaining attempts to read its name.
    name_tries_left: u8,
    pub(super) clock: ThreadClock,
    pub(super) stack: StackExtent,
    /// Selects the short waits to walk.
    pub(super) waits: WaitSampling,
}

impl ThreadAccount {
    /// `seed`, different for each thread, selects its short waits.
    pub(super) fn new(
        process: ProcessIndex,
        group: u32,
        timeline_thread: Option<ThreadIndex>,
        seed: u64,
        stack_top: Option<Avma>,
        clock: ThreadClock,
    ) -> ThreadAccount {
        ThreadAccount {
            process,
            group,
            timeline_thread,
            name_tries_left: NAME_TRIES,
            clock,
            stack: StackExtent::new(stack_top),
            waits: WaitSampling::new(seed),
        }
    }

    /// Uses up one attempt to read the name; returns whether there was one left.
    pub(super) fn take_name_try(&mut self) -> bool {
        let may = self.name_tries_left > 0;
        self.name_tries_left = self.name_tries_left.saturating_sub(1);
        may
    }
}

/// The status of a thread that was not polled yet.
pub(super) fn unknown_status() -> ThreadStatus {
    ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Runnable }
}

// ---- Sampled allocations, kept by stack node until they are freed.
//
// Each sampled allocation is one count in the trie, whatever its weight.

/// Sampled allocations of a recording; `None` if the source reports none.
#[derive(Default)]
pub(super) struct SampledHeap(Option<HeapRecording>);

impl SampledHeap {
    /// `every_bytes`: allocations are sampled once per this many bytes, if at all. Blocks count as in use at the end if
    /// they are at least `age_min_ns` old.
    pub(super) fn new(every_bytes: Option<u64>, age_min_ns: u64) -> SampledHeap {
        SampledHeap(every_bytes.map(|every_bytes| HeapRecording {
            model: HeapModel::new(SamplingRate::new(every_bytes)).with_age_min_ns(age_min_ns),
            losses: AllocationLosses::default(),
        }))
    }

    /// Keeps an allocation of a process, with the node of its stack.
    pub(super) fn allocate(
        &mut self,
        pid: u32,
        allocation: SampledAllocation,
        at_ns: u64,
        node: Option<NodeId>,
    ) {
        let Some(heap) = &mut self.0 else { return };
        let SampledAllocation { block, bytes, untracked } = allocation;
        if untracked {
            heap.model.allocate_untracked(bytes, node);
        } else {
            heap.model.allocate(pid, block, bytes, at_ns, node);
        }
    }

    /// Handles a free of sampled memory.
    pub(super) fn free(&mut self, pid: u32, at_ns: u64, free: SampledFree) {
        if let Some(heap) = &mut self.0 {
            heap.model.free(pid, free.block, at_ns, free.may_be_inherited);
        }
    }

    /// Handles a free of a part of sampled memory.
    pub(super) fn shrink(&mut self, pid: u32, at_ns: u64, block: u64, bytes: u64) {
        if let Some(heap) = &mut self.0 {
            heap.model.shrink(pid, block, bytes, at_ns);
        }
    }

    /// Revokes the last free of a block.
    pub(super) fn restore(&mut self, pid: u32, block: u64) {
        if let Some(heap) = &mut self.0 {
            heap.model.restore(pid, block);
        }
    }

    /// Handles the exit or exec of a process.
    pub(super) fn end_process(&mut self, pid: u32, at_ns: u64) {
        if let Some(heap) = &mut self.0 {
            heap.model.end_process(pid, at_ns);
        }
    }

    /// The allocations that are live at the end.
    pub(super) fn finish(self) -> Option<HeapRecording> {
        self.0
    }
}
