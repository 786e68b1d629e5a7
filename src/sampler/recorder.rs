//! The recorder: captures become weighed stacks, whoever took them.
//!
//! Input: threads that come and go, and of each capture what the thread had used by then.
//! Output: a [`Profile`]. It weighs, walks, inserts, defers stacks until images are
//! read, and counts what is lost by cause. It asks the process for images, names and memory only;
//! when and how threads are sampled is its driver's business.

use hashbrown::HashMap;

use super::deferred::DeferredSample;
use super::image_refresh::ImageRefresh;
use super::jit_budget::JitBudget;
use super::options::Options;
use super::prefetch_list::Prefetched;
use super::recorded_process::{ProcessIndex, RecordedProcess};
use super::red_zone::{lacks_red_zone, with_red_zone};
use super::sample::Sample;
use super::thread::{ThreadAccount, unknown_status};
use super::weights::{Weights, counts_of, periods_ns};
use crate::addr::Avma;
use crate::clock::Clock;
use crate::images::{CodeMemory, ImageView, Images, TargetCode};
use crate::recording::timeline::TimedSample;
use crate::recording::{Frame, HeapRecording, Profile, Program, Root, Stats, Timeline, Track};
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, Observed, Process, ThreadId, ThreadStatus};
use crate::trie::{NodeId, Trie};
use crate::walk::{self, Frames, Method, StackBytes, StackEnd, UnwindMethod};

/// What became of a sample.
#[derive(Debug)]
pub(super) struct SampleOutcome {
    /// Its node in the trie and how its walk ended, if it is there.
    pub(super) stack: Option<(NodeId, StackEnd)>,
    /// How much of the copied stack its walk needed.
    pub(super) needed: StackUse,
    /// The sample, given back; `None` if it is deferred.
    pub(super) sample: Option<Sample>,
}

/// The stacks, weights, images and losses of a recording so far.
pub struct Recorder<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) options: &'a Options,
    /// A sample weighs all of the time since the one before, waiting or not: where its driver
    /// polls waiting threads; a pushing source reports each wait instead.
    pub(super) by_wall: bool,
    pub(super) trie: Trie<Frame>,
    /// Of a source of allocations.
    pub(super) heap: Option<HeapRecording>,
    pub(super) timeline: Timeline,
    pub(super) images: Images,
    pub(super) processes: Vec<RecordedProcess>,
    /// Those whose unwinders have cached something.
    pub(super) with_unwind_cache: Vec<ProcessIndex>,
    pub(super) programs: Vec<Program>,
    pub(super) tracks: Vec<Track>,
    pub(super) threads: HashMap<ThreadId, ThreadAccount>,
    /// What happened, and what was lost.
    pub stats: Stats,
    pub(super) weights: Weights,
    /// Captured before the images were read again, and waiting for that.
    pub(super) deferred: Vec<DeferredSample>,
    /// Captures can have ranges of stacks beside the bytes that are copied.
    pub(super) may_prefetch: bool,
    /// Frames of walks that only show where stacks lead.
    pub(super) outer_frames: Frames,
    pub(super) jit_budget: JitBudget,
    /// What walks learned of files, whichever process mapped them.
    pub(super) facts: walk::FileFacts,
}

impl<'a> Recorder<'a> {
    /// Of a process, whose index is [`FIRST`](super::FIRST), without threads or images.
    pub fn new(clock: &'a dyn Clock, options: &'a Options, process: &Process) -> Recorder<'a> {
        let mut recorder = Recorder {
            clock,
            options,
            by_wall: options.idle,
            trie: Trie::new(),
            heap: None,
            timeline: Timeline::new(clock.now_ns(), options.hz, options.timeline_bytes),
            images: Images::default(),
            processes: Vec::new(),
            with_unwind_cache: Vec::new(),
            programs: Vec::new(),
            tracks: Vec::new(),
            threads: HashMap::new(),
            stats: Stats { processes_seen: 1, ..Stats::default() },
            weights: Weights::default(),
            deferred: Vec::new(),
            may_prefetch: false,
            outer_frames: Frames::default(),
            jit_budget: JitBudget::default(),
            facts: walk::FileFacts::default(),
        };
        let program = recorder.add_program(process.pid, &process.name);
        recorder.processes.push(RecordedProcess::new(0, process.pid, program, &recorder.facts));
        recorder
    }

    // ---- threads

    /// Takes a thread in: one that was running before the recording, or one seen from its first instruction on.
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
        let track = self.track(of, process, id);
        let now_ns = self.clock.now_ns();
        let mut account = ThreadAccount::new(of, track, id.0, stack_top, status, now_ns, preexisting);
        account.timeline_thread = self.timeline.add_thread(id.0, process.process().pid, now_ns, preexisting);
        self.threads.insert(id, account);
    }

    /// Closes a thread's account: what it used since its last sample is lost for this reason.
    /// `cpu_ns` is all that it used, where that is known. Its driver walks its deferred
    /// samples before.
    pub fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>, reason: &'static str) {
        if let Some(mut account) = self.threads.remove(&id) {
            let now_ns = self.clock.now_ns();
            self.timeline.end_thread(account.timeline_thread, now_ns);
            let since_ns = account.sampled_at_ns();
            let unsampled_ns = account.unsampled(cpu_ns, now_ns, self.by_wall);
            self.stats.target_cpu_ns += account.used_cpu_ns();
            self.lose_since(reason, since_ns, unsampled_ns);
        }
    }

    /// Leaves out the time up to now, in which a thread was not recorded: what it used in that is lost for
    /// this reason. `cpu_ns` is all that it used.
    pub(super) fn skip(&mut self, id: ThreadId, cpu_ns: u64, reason: &'static str) {
        let now_ns = self.clock.now_ns();
        if let Some(account) = self.threads.get_mut(&id) {
            let since_ns = account.sampled_at_ns();
            let lost_ns = account.skip(cpu_ns, now_ns, self.by_wall);
            self.lose_since(reason, since_ns, lost_ns);
        }
    }

    /// Closes a thread's account as [`Recorder::remove_thread`] does, but what it used since its last
    /// sample is not lost: it is given back, nanoseconds.
    pub(super) fn leave_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) -> u64 {
        let Some(mut account) = self.threads.remove(&id) else { return 0 };
        let now_ns = self.clock.now_ns();
        self.timeline.end_thread(account.timeline_thread, now_ns);
        let unsampled_ns = account.unsampled(cpu_ns, now_ns, self.by_wall);
        self.stats.target_cpu_ns += account.used_cpu_ns();
        unsampled_ns
    }

    /// Asks for the name of a thread that had none when it was first seen: threads name
    /// themselves after they start, and may have ended before the recording does.
    pub(super) fn ask_name(&mut self, process: &mut dyn Observed, id: ThreadId) {
        let Some(account) = self.threads.get_mut(&id).filter(|account| account.name_tries_left > 0) else {
            return;
        };
        account.name_tries_left -= 1;
        let (track, timeline_thread) = (account.track, account.timeline_thread);
        let lacks_name = self.own_track(track, id).is_some_and(|thread| thread.name.is_empty());
        if (lacks_name || self.timeline.lacks_name(timeline_thread))
            && let Some(name) = process.thread_name(id)
        {
            self.set_name(id, name);
        }
    }

    /// A thread has this name from now on. The last one is shown: most have one.
    pub(super) fn set_name(&mut self, id: ThreadId, name: String) {
        let Some(account) = self.threads.get(&id) else { return };
        self.timeline.set_name(account.timeline_thread, &name);
        let track = account.track;
        if let Some(thread) = self.own_track(track, id) {
            thread.name = name;
        }
    }

    /// Asks for a thread's name again at its end, or at that of the recording.
    pub(super) fn rename(&mut self, process: &mut dyn Observed, id: ThreadId) {
        if let Some(name) = process.thread_name(id) {
            self.set_name(id, name);
        }
    }

    // ---- samples

    /// Counts in the trie so far.
    pub(super) fn samples(&self) -> u64 {
        counts_of(self.trie.total(), self.options.hz)
    }

    /// The weight of a sample that was just taken of a thread, nanoseconds; `None` if the thread is
    /// accounted for already. `status` is what it had used by then.
    pub fn weigh(&mut self, id: ThreadId, status: Option<ThreadStatus>) -> Option<u64> {
        let now_ns = self.clock.now_ns();
        let account = self.threads.get_mut(&id)?;
        Some(if self.by_wall {
            account.weigh_wall(status.unwrap_or_else(unknown_status), now_ns)
        } else {
            account.weigh_cpu(status, now_ns)
        })
    }

    /// Of what a sample of a running thread weighs by wall-clock time, how much the thread was on no CPU, by its own
    /// clock, nanoseconds.
    pub(super) fn off_cpu_ns(&mut self, id: ThreadId, weight_ns: u64) -> u64 {
        self.threads.get_mut(&id).map_or(0, |account| account.off_cpu_ns(weight_ns))
    }

    /// The weight of a wait of so long, nanoseconds: 0 for most short ones, since others stand for
    /// them. `None` for a thread that is not known.
    pub(super) fn weigh_wait(&mut self, id: ThreadId, wait_ns: u64) -> Option<u64> {
        let period_ns = periods_ns(1, self.options.hz);
        self.threads.get_mut(&id).map(|account| account.weigh_wait(wait_ns, period_ns))
    }

    /// Walks a sample and counts its stack. `stack_max_bytes` is as much of a stack as the
    /// next capture of the thread may copy; `frames` is replaced by what the walk found.
    pub(super) fn take(
        &mut self,
        process: &mut dyn Observed,
        sample: Sample,
        weight_ns: u64,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> SampleOutcome {
        let id = sample.thread;
        let (ended, needed) = self.walk(process, id, &sample.capture, stack_max_bytes, frames);
        let waiting = (self.options.idle || self.options.off_cpu) && sample.waiting;
        if weight_ns == 0 && !self.by_wall && !waiting {
            return SampleOutcome { stack: None, needed, sample: Some(sample) };
        }
        self.ask_name(process, id);
        let Some(sample) = self.defer(sample, ended, weight_ns) else {
            return SampleOutcome { stack: None, needed, sample: None };
        };
        let node = self.insert(&sample, ended, frames, weight_ns, waiting);
        SampleOutcome { stack: node.map(|node| (node, ended)), needed, sample: Some(sample) }
    }

    /// Counts a stack that is known again, of a thread that waits on.
    pub(super) fn repeat(&mut self, id: ThreadId, node: NodeId, ended: StackEnd, weight_ns: u64) {
        self.weights.reused_ns += weight_ns;
        self.count(id, (node, ended), self.clock.now_ns(), weight_ns);
    }

    /// Counts a stack of a thread that was put in before, for the time up to `at_ns`.
    pub(super) fn count(
        &mut self,
        id: ThreadId,
        (node, ended): (NodeId, StackEnd),
        at_ns: u64,
        weight_ns: u64,
    ) {
        self.trie.add(node, weight_ns);
        let timeline_thread = self.threads.get(&id).and_then(|account| account.timeline_thread);
        self.timeline.add_sample(timeline_thread, TimedSample { at_ns, node, weight_ns, cpu: None });
        self.weighed(ended, weight_ns);
    }

    /// Puts the frames that were found for a sample into the trie, with those in the kernel that they led to.
    pub(super) fn insert(
        &mut self,
        sample: &Sample,
        ended: StackEnd,
        frames: &mut Frames,
        weight_ns: u64,
        waiting: bool,
    ) -> Option<NodeId> {
        let (complete, fiber) = (ended.is_complete(), ended == StackEnd::Fiber);
        let account = self.threads.get(&sample.thread)?;
        let timeline_thread = account.timeline_thread;
        let root = Root { track: account.track, complete, fiber, waiting };
        let space = self.images.of(self.processes.get(account.process.0 as usize)?.image_space_id).space();
        frames.addresses.splice(0..0, sample.capture.kernel.iter().copied());
        let off_cpu_ns = sample.off_cpu_ns.min(weight_ns);
        let weight_ns = weight_ns - off_cpu_ns;
        let off_cpu = match off_cpu_ns {
            0 => Ok(NodeId(0)),
            _ => self.trie.insert((Root { waiting: true, ..root }, space), &frames.addresses, off_cpu_ns),
        };
        match off_cpu {
            Ok(_) if off_cpu_ns == 0 => {}
            Ok(node) => {
                let at_ns = sample.at_ns.saturating_sub(weight_ns);
                let taken = TimedSample { at_ns, node, weight_ns: off_cpu_ns, cpu: None };
                self.timeline.add_sample(timeline_thread, taken);
                self.weighed(ended, off_cpu_ns);
            }
            Err(full) => self.lose(full.reason(), off_cpu_ns),
        }
        match self.trie.insert((root, space), &frames.addresses, weight_ns) {
            Ok(node) => {
                // A thread that waits is on no CPU.
                let (at_ns, cpu) = (sample.at_ns, sample.capture.cpu.filter(|_| !sample.waiting));
                self.timeline.add_sample(timeline_thread, TimedSample { at_ns, node, weight_ns, cpu });
                self.weighed(ended, weight_ns);
                for method in &frames.methods {
                    self.stats.frames_by_method[*method as usize] += 1;
                }
                Some(node)
            }
            Err(full) => {
                self.lose(full.reason(), weight_ns);
                None
            }
        }
    }

    fn weighed(&mut self, ended: StackEnd, weight_ns: u64) {
        self.weights.weighed(weight_ns);
        if !ended.is_complete() && weight_ns > 0 {
            *self.weights.incomplete_ns.entry(ended.reason()).or_default() += weight_ns;
        }
    }

    // ---- walks

    /// Walks a capture into `frames`, with the images it needs. Why it ended, and how many bytes
    /// above the stack pointer it needed. Where it left what was copied, the ranges of the stack that it lacked
    /// are looked for.
    pub(super) fn walk(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> (StackEnd, StackUse) {
        let (ended, needed) = self.walk_capture(process, id, capture, stack_max_bytes, frames);
        let leaves = needed.truncated || ended == StackEnd::OtherStack;
        let needed =
            if self.may_prefetch { self.search_above(process, id, capture, needed, leaves) } else { needed };
        (ended, needed)
    }

    /// Walks a capture into `frames`, with the images it needs.
    fn walk_capture(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> (StackEnd, StackUse) {
        if capture.only_kernel {
            frames.clear();
            return (StackEnd::Root, StackUse::default());
        }
        let Some(of) = self.threads.get(&id).map(|account| account.process) else {
            return (StackEnd::BadFrame, StackUse::default());
        };
        self.note_walked(of);
        if !self.images_of(of).contains(capture.registers.pc()) {
            self.retry_images(of, process);
        }
        let needed = |(ended, bytes), needs_red_zone| {
            let truncated = ended == StackEnd::DeeperThanCopied;
            (ended, StackUse { bytes, truncated, needs_red_zone, unbounded: false })
        };
        let (ended, bytes) = self.walk_with_known_images(process, id, capture, stack_max_bytes, frames);
        if ended == StackEnd::BadFrame
            && frames.addresses.len() == 1
            && let Some(fuller) = with_red_zone(process, capture)
        {
            self.set_red_zone_read_later(of, true);
            let walked = self.walk_with_known_images(process, id, &fuller, stack_max_bytes, frames);
            self.set_red_zone_read_later(of, false);
            return needed(walked, true);
        }
        // A row that could not read there is bridged, too.
        let needs_red_zone = frames.methods.get(1) == Some(&Method::Scan) && lacks_red_zone(capture);
        // A torn chain, or a library that was loaded since?
        if matches!(ended, StackEnd::BadFrame | StackEnd::Undescribed | StackEnd::Scanned)
            && self.retry_images(of, process)
        {
            let walked = self.walk_with_known_images(process, id, capture, stack_max_bytes, frames);
            return needed(walked, needs_red_zone);
        }
        needed((ended, bytes), needs_red_zone)
    }

    pub(super) fn walk_with_known_images(
        &mut self,
        process: &mut dyn Observed,
        id: ThreadId,
        capture: &Capture,
        stack_max_bytes: usize,
        frames: &mut Frames,
    ) -> (StackEnd, usize) {
        let stack = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        let other = capture.other_stack.as_deref().map(|other| walk::OtherStack {
            stack: StackBytes { base: other.base, bytes: &other.bytes },
            limit: other.limit,
        });
        let Some(account) = self.threads.get_mut(&id) else { return (StackEnd::BadFrame, 0) };
        let Some(recorded) = self.processes.get_mut(account.process.0 as usize) else {
            return (StackEnd::BadFrame, 0);
        };
        let images = self.images.of(recorded.image_space_id);
        let RecordedProcess { jit, unwinder, .. } = recorded;
        let outer = Prefetched(&capture.prefetched);
        let described = process.process();
        let how = if described.cfi { self.options.unwind } else { UnwindMethod::FramePointer };
        let (fp_always, code_mask) = (described.fp_always, described.code_mask);
        let mut read = |at, into: &mut [u8]| process.read_memory(at, into).unwrap_or(0);
        let now_ns = self.clock.now_ns();
        jit.check(now_ns, &mut read, |is_gone| unwinder.forget(is_gone));
        jit.begin_walk(self.jit_budget.left(now_ns));
        let mut spent = 0;
        // Repeats until the walk lacks no JIT bytes and the stack top was found or given up.
        loop {
            let memory = CodeMemory::new(&mut read);
            let code = TargetCode { images, jit, memory: Some(&memory) };
            let input = walk::Input {
                stack,
                stack_top: account.stack_top,
                stack_limit: capture.stack_limit,
                fp_always,
                max_depth: self.options.max_depth,
                code_mask,
                code: &code,
                outer: (!capture.prefetched.is_empty()).then_some(&outer),
                blocked_signals: capture.prefetched.blocked_signals,
            };
            let found = walk::unwind_on_two(how, &capture.registers, &input, other, unwinder, frames);
            let mut walked = match found {
                Ok(walked) => walked,
                Err(needs) => {
                    jit.read(needs, &mut read);
                    continue;
                }
            };
            let (instructions, over_budget) = jit.end_round();
            self.jit_budget.spend(instructions - spent);
            spent = instructions;
            if over_budget {
                walked.ended = StackEnd::JitBudget;
            }
            let needed = account.fit_stack_size(capture, &walked, stack_max_bytes, self.may_prefetch);
            if !account.search_stack_top(&walked, |reached| {
                walk::find_stack_top(capture.registers.arch(), stack, reached, &images)
            }) {
                return (walked.ended, needed);
            }
            if account.stack_top.is_none() {
                account.stack_size.reach(needed.saturating_add(walk::SEARCH_BYTES as usize), stack_max_bytes);
                return (walked.ended, needed);
            }
        }
    }

    // ---- images

    /// The images that a process has now.
    fn images_of(&self, of: ProcessIndex) -> ImageView<'_> {
        self.images.of(self.processes.get(of.0 as usize).map_or(0, |recorded| recorded.image_space_id))
    }

    /// See [`walk::Unwinder::set_red_zone_read_later`].
    fn set_red_zone_read_later(&mut self, of: ProcessIndex, later: bool) {
        if let Some(recorded) = self.processes.get_mut(of.0 as usize) {
            recorded.unwinder.set_red_zone_read_later(later);
        }
    }

    /// Reads the images of a process; whether they changed.
    pub fn read_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) -> bool {
        let clock = self.clock;
        let Some(recorded) = self.processes.get_mut(of.0 as usize) else { return false };
        let at_ns = clock.now_ns();
        let changed = recorded.read_images(process, &|| clock.now_ns(), &mut self.images);
        if changed {
            self.note_image_loads(of, at_ns);
        }
        changed
    }

    /// Reads the images again unless that was done just now; whether they changed.
    fn retry_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) -> bool {
        let now_ns = self.clock.now_ns();
        let may = self.refresh(of).is_some_and(|refresh| refresh.may_retry(now_ns));
        may && self.read_images(of, process)
    }

    /// Reads the images if they have changed, or may have: in a storm of changes not each time,
    /// since what reading costs is limited.
    pub fn refresh_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        let (now_ns, wanted) = (self.clock.now_ns(), self.has_deferred(of));
        if self.refresh(of).is_some_and(|refresh| refresh.is_due(now_ns, wanted)) {
            self.read_images(of, process);
        }
    }

    /// Reads images that are known to have changed, whatever that costs: deferred samples
    /// cannot wait longer.
    pub(super) fn read_wanted_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.has_deferred(of) && self.refresh(of).is_some_and(ImageRefresh::has_changed) {
            self.read_images(of, process);
        }
    }

    /// Reads images that are known to have changed, whatever that costs: a stack is walked that is
    /// to stand for long.
    pub(super) fn read_changed_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.refresh(of).is_some_and(ImageRefresh::has_changed) {
            self.read_images(of, process);
        }
    }

    /// The process says that its images have changed. Samples of before are walked first.
    pub fn images_changed(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if let Some(recorded) = self.processes.get_mut(of.0 as usize) {
            recorded.refresh.note_change();
        }
        self.refresh_images(of, process);
    }

    fn refresh(&self, of: ProcessIndex) -> Option<&ImageRefresh> {
        self.processes.get(of.0 as usize).map(|recorded| &recorded.refresh)
    }

    /// Up to when the images are known, and how often in a row reading them showed nothing new.
    pub(super) fn images_read(&self, of: ProcessIndex) -> (u64, u32) {
        self.refresh(of).map_or((0, 0), |refresh| (refresh.covers_ns(), refresh.unchanged_reads()))
    }

    // ---- the end

    /// CPU time of all threads that were not removed, nanoseconds.
    pub(super) fn alive_cpu_ns(&self) -> u64 {
        self.threads.values().map(ThreadAccount::used_cpu_ns).sum()
    }

    /// Number of the address space that a process has now.
    pub(super) fn space(&self, of: ProcessIndex) -> u32 {
        self.images_of(of).space()
    }

    /// The images, of a recorder that is done with.
    pub(super) fn into_images(self) -> Images {
        self.images
    }

    /// The profile. What threads that were not removed are known to have used since their last
    /// samples is lost, and counted so.
    pub fn finish(mut self, process: &dyn Observed) -> Profile {
        self.timeline.close();
        let left: Vec<ThreadId> = self.threads.keys().copied().collect();
        for id in left {
            self.remove_thread(id, None, "not sampled again before the end");
        }
        let (programs, tracks) = (&self.programs, &self.tracks);
        // Not in the order in which they were seen, which is a matter of chance.
        let place = |root: Root| {
            let track = tracks.get(root.track as usize);
            let program = track.and_then(|track| programs.get(track.program as usize));
            let thread = track.and_then(|track| track.thread.as_ref()).map(|thread| thread.id);
            let Root { complete, fiber, waiting, .. } = root;
            (program.map(|program| (&*program.name, program.pid)), thread, fiber, waiting, !complete)
        };
        std::mem::take(&mut self.weights).count(self.options.hz, &mut self.trie, place, &mut self.stats);
        Profile {
            process: process.process().clone(),
            hz: self.options.hz,
            files: self.files(),
            trie: self.trie,
            images: self.images,
            programs: self.programs,
            tracks: self.tracks,
            timeline: (!self.timeline.is_off()).then_some(self.timeline),
            heap: self.heap,
            stats: self.stats,
        }
    }
}
