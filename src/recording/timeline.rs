//! Times, stacks and weights of the samples of each thread.
//!
//! `Timeline` has them; `ThreadSamples` are the samples of a thread as bytes, `Events` and `Losses` lists with a
//! limit.
//!
//! Input: starts and exits of threads, their samples with nodes of the recording's trie, losses, and events
//! of processes. Output: all of that by thread and time. Memory is bounded: at the limit, adjacent samples
//! with one stack are merged, then times get coarser and coarser steps, then stacks are dropped ([`Detail`]),
//! until half of the limit is free. The total weight of a thread is always that of its samples.

#[cfg(test)]
mod tests;

use crate::leb128::{put_unsigned, take_unsigned};
use crate::trie::NodeId;

/// Default memory limit for threads, samples, losses and events.
pub const DEFAULT_MEMORY_BYTES: usize = 64 << 20;

/// Memory of a thread without its samples, bytes: many short threads have one sample each.
const THREAD_BYTES: usize = size_of::<ThreadTimeline>() + 16;

/// Index of a thread in a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadIndex(u32);

/// A thread over time. The roots of its stacks show which programs its process ran.
#[derive(Clone, Debug)]
pub struct ThreadTimeline {
    /// The system's thread number.
    pub id: u64,
    /// Its process id.
    pub pid: u32,
    /// It was running before the recording began.
    pub preexisting: bool,
    /// Its name; empty if it had none.
    pub name: Box<str>,
    /// When it was first seen, nanoseconds since the recording began.
    pub begun_ns: u64,
    /// When it exited; `None` if it was still running.
    pub ended_ns: Option<u64>,
    samples: ThreadSamples,
}

impl ThreadTimeline {
    /// Its samples by time.
    #[must_use]
    pub fn samples(&self) -> Vec<TimedSample> {
        self.samples.by_time()
    }
}

/// The samples of a recording over time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// When the recording began, nanoseconds of the sampler's clock.
    origin_ns: u64,
    period_ns: u64,
    memory_max_bytes: usize,
    memory_bytes: usize,
    threads: Vec<ThreadTimeline>,
    lost: Losses,
    events: Events,
    detail: Detail,
    /// Weight of the samples of dropped threads, nanoseconds.
    dropped_ns: u64,
    /// The recording has ended: later thread exits are ignored.
    is_closed: bool,
}

impl Timeline {
    /// A timeline that records nothing.
    #[must_use]
    pub fn off() -> Timeline {
        Timeline::new(0, 1, 0)
    }

    /// Whether it records nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.memory_max_bytes == 0
    }

    /// A timeline that began at `origin_ns` of the sampler's clock, for `hz` samples a second of a running
    /// thread, within `memory_max_bytes`.
    #[must_use]
    pub fn new(origin_ns: u64, hz: u32, memory_max_bytes: usize) -> Timeline {
        Timeline {
            origin_ns,
            period_ns: 1_000_000_000 / u64::from(hz.max(1)),
            memory_max_bytes,
            memory_bytes: 0,
            threads: Vec::new(),
            lost: Losses::default(),
            events: Events::default(),
            detail: Detail::Samples,
            dropped_ns: 0,
            is_closed: false,
        }
    }

    /// Sets the start of the recording to `origin_ns` of the sampler's clock: earlier times move to it.
    pub fn begin(&mut self, origin_ns: u64) {
        let before_ns = std::mem::replace(&mut self.origin_ns, origin_ns);
        let times = self.threads.iter_mut().map(|thread| &mut thread.begun_ns);
        for at_ns in times.chain(self.events.times()) {
            // Time 0 means before the beginning.
            if *at_ns > 0 {
                *at_ns = (*at_ns + before_ns).saturating_sub(origin_ns);
            }
        }
    }

    /// Adds a thread of a process that was first seen at `at_ns` of the sampler's clock, already running or
    /// from its start; `None` if the limit leaves no room for more threads.
    pub fn add_thread(&mut self, id: u64, pid: u32, at_ns: u64, preexisting: bool) -> Option<ThreadIndex> {
        // Half of the limit is for their samples.
        if self.is_off() || (self.threads.len() + 1) * THREAD_BYTES > self.memory_max_bytes / 2 {
            return None;
        }
        let index = ThreadIndex(self.threads.len() as u32);
        self.threads.push(ThreadTimeline {
            id,
            pid,
            preexisting,
            name: Box::default(),
            begun_ns: at_ns.saturating_sub(self.origin_ns),
            ended_ns: None,
            samples: ThreadSamples::default(),
        });
        self.memory_bytes += THREAD_BYTES;
        Some(index)
    }

    /// Sets the start time of a thread, on the sampler's clock; `None` if its start was not seen.
    pub fn set_start(&mut self, thread: Option<ThreadIndex>, started_ns: Option<u64>) {
        if let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) {
            thread.preexisting = started_ns.is_none();
            if let Some(started_ns) = started_ns {
                thread.begun_ns = thread.begun_ns.min(started_ns.saturating_sub(self.origin_ns));
            }
        }
    }

    /// Ends the recording: remaining threads were still running.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Sets the current name of a thread.
    pub fn set_name(&mut self, thread: Option<ThreadIndex>, name: &str) {
        if let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) {
            self.memory_bytes += name.len();
            self.memory_bytes -= thread.name.len();
            thread.name = name.into();
        }
    }

    /// Whether a thread is recorded and has no name yet.
    #[must_use]
    pub fn lacks_name(&self, thread: Option<ThreadIndex>) -> bool {
        let thread = thread.and_then(|thread| self.threads.get(thread.0 as usize));
        thread.is_some_and(|thread| thread.name.is_empty())
    }

    /// Records the exit of a thread at `at_ns` of the sampler's clock.
    pub fn end_thread(&mut self, thread: Option<ThreadIndex>, at_ns: u64) {
        if self.is_closed {
            return;
        }
        if let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) {
            // It may be sampled once more while it exits.
            let at_ns = at_ns.saturating_sub(self.origin_ns);
            thread.ended_ns = Some(at_ns.max(thread.begun_ns).max(thread.samples.last_ns()));
        }
    }

    /// Adds a sample of a thread, with a time of the sampler's clock.
    pub fn add_sample(&mut self, thread: Option<ThreadIndex>, sample: TimedSample) {
        let TimedSample { at_ns, weight_ns, .. } = sample;
        if weight_ns == 0 || self.is_off() {
            return;
        }
        let at_ns = at_ns.saturating_sub(self.origin_ns);
        let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread.0 as usize)) else {
            self.dropped_ns = self.dropped_ns.saturating_add(weight_ns);
            return;
        };
        let before = thread.samples.memory_bytes();
        thread.samples.push(TimedSample { at_ns, ..sample });
        self.memory_bytes += thread.samples.memory_bytes() - before;
        self.keep_bound();
    }

    /// Adds lost time with its cause, within an interval of the sampler's clock.
    pub fn add_loss(&mut self, reason: &'static str, since_ns: u64, at_ns: u64, lost_ns: u64) {
        if lost_ns == 0 || self.is_off() {
            return;
        }
        let at_ns = at_ns.saturating_sub(self.origin_ns);
        let since_ns = since_ns.saturating_sub(self.origin_ns).min(at_ns);
        let before = self.lost.memory_bytes();
        self.lost.push(Loss { reason, since_ns, at_ns, lost_ns });
        self.memory_bytes += self.lost.memory_bytes() - before;
        self.keep_bound();
    }

    /// Adds an event of a process at `at_ns` of the sampler's clock.
    pub fn add_event(&mut self, kind: EventKind, pid: u32, at_ns: u64, text: &str) {
        if self.is_off() {
            return;
        }
        let at_ns = at_ns.saturating_sub(self.origin_ns);
        let before = self.events.memory_bytes();
        self.events.push(Event { at_ns, kind, pid, text: text.into() }, self.memory_max_bytes / EVENTS_SHARE);
        self.memory_bytes += self.events.memory_bytes() - before;
        self.keep_bound();
    }

    /// The threads, in the order in which they were first seen.
    #[must_use]
    pub fn threads(&self) -> &[ThreadTimeline] {
        &self.threads
    }

    /// Losses, by time.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        self.lost.by_time()
    }

    /// Events of processes, by time.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        self.events.all()
    }

    /// Number of events that did not fit.
    #[must_use]
    pub fn events_dropped(&self) -> u64 {
        self.events.dropped()
    }

    /// Level of detail of the samples.
    #[must_use]
    pub fn detail(&self) -> Detail {
        self.detail
    }

    /// Weight of samples of threads that did not fit, nanoseconds.
    #[must_use]
    pub fn dropped_ns(&self) -> u64 {
        self.dropped_ns
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Memory limit, bytes.
    #[must_use]
    pub fn memory_max_bytes(&self) -> usize {
        self.memory_max_bytes
    }

    /// Reduces detail beyond the limit, until half of it is free.
    fn keep_bound(&mut self) {
        if self.memory_bytes <= self.memory_max_bytes {
            return;
        }
        if self.detail != Detail::Samples {
            self.reduce();
        }
        let enough = self.fixed_bytes().midpoint(self.memory_max_bytes);
        while self.memory_bytes > enough {
            self.detail = match self.detail {
                Detail::Samples => Detail::Runs,
                Detail::Runs => Detail::Steps(2 * self.period_ns),
                Detail::Steps(step_ns) if step_ns < STEP_MAX_NS => Detail::Steps(2 * step_ns),
                Detail::Steps(step_ns) => Detail::TimesOnly(step_ns),
                Detail::TimesOnly(step_ns) if step_ns < 1 << 62 => Detail::TimesOnly(2 * step_ns),
                Detail::TimesOnly(_) => return,
            };
            self.reduce();
        }
    }

    fn reduce(&mut self) {
        // Two samples of a running thread are about a period apart.
        let gap_ns = self.period_ns / 2 + UNIT_NS;
        let detail = self.detail;
        self.lost.reduce(detail.step_ns().unwrap_or(0).max(2 * self.period_ns));
        let mut bytes = self.lost.memory_bytes();
        for thread in &mut self.threads {
            thread.samples.reduce(gap_ns, detail);
            bytes += thread.samples.memory_bytes();
        }
        self.memory_bytes = self.fixed_bytes() + bytes;
    }

    /// Memory that does not depend on the detail: threads without their samples, and events.
    fn fixed_bytes(&self) -> usize {
        let threads = self.threads.iter().map(|thread| THREAD_BYTES + thread.name.len());
        threads.sum::<usize>() + self.events.memory_bytes()
    }
}

/// Events take at most this fraction of the limit.
const EVENTS_SHARE: usize = 8;

/// Coarser steps than this are less useful than times without stacks.
const STEP_MAX_NS: u64 = 1_000_000_000;

// ---- Events of processes over time, within a memory limit.
//
// Starts and exits of threads are recorded with the threads themselves.

/// Kind of an event of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// It executed a new program.
    Exec,
    /// It mapped an image, noticed at that time.
    ImageLoad,
    /// It exited.
    ProcessEnd,
}

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time, nanoseconds since the recording began.
    pub at_ns: u64,
    /// Kind of event.
    pub kind: EventKind,
    /// Process id.
    pub pid: u32,
    /// The name of the program or image; empty for other events.
    pub text: Box<str>,
}

/// The events of a recording.
#[derive(Clone, Debug, Default)]
struct Events {
    all: Vec<Event>,
    text_bytes: usize,
    dropped: u64,
}

impl Events {
    /// Adds an event if it fits into `memory_max_bytes`. Late ones are inserted in order.
    fn push(&mut self, event: Event, memory_max_bytes: usize) {
        let grown = if self.all.len() == self.all.capacity() { GROWTH * size_of::<Event>() } else { 0 };
        if self.memory_bytes() + grown + event.text.len() > memory_max_bytes {
            self.dropped += 1;
            return;
        }
        if grown > 0 {
            self.all.reserve_exact(GROWTH);
        }
        self.text_bytes += event.text.len();
        let place = self.all.partition_point(|known| known.at_ns <= event.at_ns);
        self.all.insert(place, event);
    }

    /// Bytes of memory.
    fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Event>() + self.text_bytes
    }

    /// All events, by time.
    fn all(&self) -> &[Event] {
        &self.all
    }

    /// Their times.
    fn times(&mut self) -> impl Iterator<Item = &mut u64> {
        self.all.iter_mut().map(|event| &mut event.at_ns)
    }

    /// Number of events that did not fit.
    fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Number of events by which the buffer grows.
const GROWTH: usize = 64;

// ---- Losses over time: cause, amount, and the interval that contains each.

/// Lost time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Cause.
    pub reason: &'static str,
    /// It occurred after this time, nanoseconds since the recording began.
    pub since_ns: u64,
    /// It was noticed at this time.
    pub at_ns: u64,
    /// Amount, nanoseconds.
    pub lost_ns: u64,
}

/// The losses of a recording.
#[derive(Clone, Debug, Default)]
struct Losses(Vec<Loss>);

impl Losses {
    fn push(&mut self, loss: Loss) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len() / 8 + GROWTH_MIN);
        }
        self.0.push(loss);
    }

    /// Bytes of memory.
    fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Loss>()
    }

    /// All losses, by time.
    fn by_time(&self) -> Vec<Loss> {
        let mut losses = self.0.clone();
        losses.sort_by_key(|loss| (loss.at_ns, loss.since_ns, loss.reason));
        losses
    }

    /// Merges losses of one cause that were noticed within one step of `step_ns`.
    fn reduce(&mut self, step_ns: u64) {
        let step = |loss: &Loss| loss.at_ns / step_ns.max(1);
        self.0.sort_by_key(|loss| (loss.reason, step(loss), loss.at_ns));
        self.0.dedup_by(|later, kept| {
            let same = (later.reason, step(later)) == (kept.reason, step(kept));
            if same {
                kept.at_ns = later.at_ns;
                kept.since_ns = kept.since_ns.min(later.since_ns);
                kept.lost_ns = kept.lost_ns.saturating_add(later.lost_ns);
            }
            same
        });
        self.0.shrink_to_fit();
    }
}

/// Least growth of the buffer, in addition to an eighth.
const GROWTH_MIN: usize = 16;

// ---- The samples of one thread over time, as bytes: about five for a sample.
//
// Each sample is a difference to the previous one: a word of the elapsed time, with two bits that flag a
// different stack and CPU, then the step to its node if flagged, then its CPU if flagged, then the
// difference between its weight and the elapsed time. Words are LEB128 (DWARF 5, 7.6), signed ones in zigzag
// (Protocol Buffers). Times are in units of [`UNIT_NS`].

/// Unit of times and weights, nanoseconds.
const UNIT_NS: u64 = 1 << UNIT_BITS;
const UNIT_BITS: u32 = 10;

/// A sample, or several merged ones: `weight_ns` of the time that ends at `at_ns` had this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// Time of the (last) sample: nanoseconds since the recording began.
    pub at_ns: u64,
    /// Node of its stack.
    pub node: NodeId,
    /// Weight, nanoseconds.
    pub weight_ns: u64,
    /// The CPU; `None` if unknown, or if merged samples have several.
    pub cpu: Option<u32>,
}

impl TimedSample {
    /// Merges a later sample of the same stack.
    fn join(&mut self, later: &TimedSample) {
        self.at_ns = later.at_ns;
        self.weight_ns = self.weight_ns.saturating_add(later.weight_ns);
        self.cpu = self.cpu.filter(|cpu| later.cpu == Some(*cpu));
    }
}

/// Samples of one thread.
#[derive(Clone, Debug, Default)]
struct ThreadSamples {
    bytes: Vec<u8>,
    last: Position,
    /// Rounding remainder of weights, nanoseconds: carried over to the next one.
    carried_ns: u64,
}

/// State that the next sample is a difference to.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    at: u64,
    node: u32,
    cpu: Option<u32>,
}

impl ThreadSamples {
    /// Appends a sample. Deferred samples are appended after later ones.
    fn push(&mut self, sample: TimedSample) {
        let weight_ns = sample.weight_ns.saturating_add(self.carried_ns);
        self.carried_ns = weight_ns % UNIT_NS;
        let at = sample.at_ns >> UNIT_BITS;
        let passed = at.wrapping_sub(self.last.at) as i64;
        let node = sample.node.0;
        if self.bytes.capacity() - self.bytes.len() < WORD_BYTES * 4 {
            // An eighth more: doubling would waste half of the memory of all threads.
            self.bytes.reserve_exact(self.bytes.len() / 8 + WORD_BYTES * 4);
        }
        let (other_stack, other_cpu) = (node != self.last.node, sample.cpu != self.last.cpu);
        let flags = (u64::from(other_stack) * OTHER_STACK) | (u64::from(other_cpu) * OTHER_CPU);
        put_unsigned(zigzag(passed) << FLAG_BITS | flags, &mut self.bytes);
        if other_stack {
            put_unsigned(zigzag(i64::from(node) - i64::from(self.last.node)), &mut self.bytes);
        }
        if other_cpu {
            put_unsigned(sample.cpu.map_or(0, |cpu| u64::from(cpu) + 1), &mut self.bytes);
        }
        put_unsigned(zigzag(((weight_ns >> UNIT_BITS) as i64).wrapping_sub(passed)), &mut self.bytes);
        self.last = Position { at, node, cpu: sample.cpu };
    }

    /// Time of the last appended sample; 0 without samples.
    fn last_ns(&self) -> u64 {
        self.last.at << UNIT_BITS
    }

    /// Bytes of memory.
    fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The samples in order of appending. Times and weights are whole units.
    fn iter(&self) -> impl Iterator<Item = TimedSample> + '_ {
        let (mut left, mut last) = (self.bytes.as_slice(), Position::default());
        std::iter::from_fn(move || {
            let first = take_unsigned(&mut left)?;
            let passed = unzigzag(first >> FLAG_BITS);
            if first & OTHER_STACK > 0 {
                let step = unzigzag(take_unsigned(&mut left)?);
                last.node = (i64::from(last.node) + step) as u32;
            }
            if first & OTHER_CPU > 0 {
                last.cpu = take_unsigned(&mut left)?.checked_sub(1).map(|cpu| cpu as u32);
            }
            last.at = last.at.wrapping_add(passed as u64);
            let weight = unzigzag(take_unsigned(&mut left)?).wrapping_add(passed) as u64;
            Some(TimedSample {
                at_ns: last.at << UNIT_BITS,
                node: NodeId(last.node),
                weight_ns: weight << UNIT_BITS,
                cpu: last.cpu,
            })
        })
    }

    /// The samples by time.
    fn by_time(&self) -> Vec<TimedSample> {
        let mut samples: Vec<TimedSample> = self.iter().collect();
        if !samples.is_sorted_by_key(|sample| sample.at_ns) {
            samples.sort_by_key(|sample| sample.at_ns);
        }
        samples
    }

    /// Reduces the samples to `detail`, merging adjacent ones of one stack without a pause of more than
    /// `gap_ns`. Decodes part of the samples at a time: all would take ten times the memory of their bytes.
    fn reduce(&mut self, gap_ns: u64, detail: Detail) {
        let mut joined = MergedSamples { samples: ThreadSamples::default(), open: None, gap_ns };
        let mut all = self.iter();
        let mut part: Vec<TimedSample> = Vec::new();
        loop {
            let held = part.len();
            part.extend(all.by_ref().take(DECODED_MAX));
            let is_last = part.len() - held < DECODED_MAX;
            if detail.is_times_only() {
                part.iter_mut().for_each(|sample| sample.node = NOT_KEPT);
            }
            let mut whole = part.len();
            match detail.step_ns() {
                Some(step_ns) => {
                    part = in_steps(part, step_ns);
                    // More samples of the last step may follow.
                    let step = part.last().map_or(0, |sample| sample.at_ns / step_ns);
                    whole =
                        if is_last { part.len() } else { part.partition_point(|s| s.at_ns / step_ns < step) };
                }
                None if !part.is_sorted_by_key(|sample| sample.at_ns) => {
                    part.sort_by_key(|sample| sample.at_ns);
                }
                None => {}
            }
            part.drain(..whole).for_each(|sample| joined.push(sample));
            if is_last {
                break;
            }
        }
        drop(all);
        let mut reduced = joined.finish();
        reduced.carried_ns += self.carried_ns;
        reduced.bytes.shrink_to_fit();
        *self = reduced;
    }
}

/// Most samples decoded at once.
const DECODED_MAX: usize = 1 << 14;

/// Samples with adjacent ones of one stack merged.
struct MergedSamples {
    samples: ThreadSamples,
    open: Option<TimedSample>,
    gap_ns: u64,
}

impl MergedSamples {
    fn push(&mut self, sample: TimedSample) {
        match &mut self.open {
            Some(before)
                // A sample of the previous part may be later.
                if before.node == sample.node
                    && before.at_ns <= sample.at_ns
                    && sample.at_ns.saturating_sub(sample.weight_ns)
                        <= before.at_ns.saturating_add(self.gap_ns) =>
            {
                before.join(&sample);
            }
            _ => {
                if let Some(before) = self.open.replace(sample) {
                    self.samples.push(before);
                }
            }
        }
    }

    fn finish(mut self) -> ThreadSamples {
        if let Some(last) = self.open {
            self.samples.push(last);
        }
        self.samples
    }
}

/// The node of samples without recorded stacks: the root of the trie, where no stack ends.
pub const NOT_KEPT: NodeId = NodeId(0);

/// Level of detail of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Each sample.
    #[default]
    Samples,
    /// Consecutive samples of one stack are merged.
    Runs,
    /// Samples of one stack within a step of this many nanoseconds are merged.
    Steps(u64),
    /// Samples within a step of this many nanoseconds are merged, without stacks.
    TimesOnly(u64),
}

impl Detail {
    /// Resolution of times, nanoseconds.
    #[must_use]
    pub fn step_ns(self) -> Option<u64> {
        match self {
            Detail::Samples | Detail::Runs => None,
            Detail::Steps(step_ns) | Detail::TimesOnly(step_ns) => Some(step_ns),
        }
    }

    /// Whether stacks are dropped.
    #[must_use]
    pub fn is_times_only(self) -> bool {
        matches!(self, Detail::TimesOnly(_))
    }
}

/// Merges samples of one stack within each step, at the time of the last of them.
fn in_steps(mut samples: Vec<TimedSample>, step_ns: u64) -> Vec<TimedSample> {
    samples.sort_by_key(|sample| (sample.at_ns / step_ns, sample.node, sample.at_ns));
    samples.dedup_by(|later, kept| {
        let same = (later.at_ns / step_ns, later.node) == (kept.at_ns / step_ns, kept.node);
        if same {
            kept.join(later);
        }
        same
    });
    samples.sort_by_key(|sample| sample.at_ns);
    samples
}

/// Flag bits below the elapsed time: the stack differs, the CPU differs.
const FLAG_BITS: u32 = 2;
const OTHER_STACK: u64 = 1;
const OTHER_CPU: u64 = 2;

/// Most bytes of a word.
const WORD_BYTES: usize = 10;

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(word: u64) -> i64 {
    (word >> 1) as i64 ^ -((word & 1) as i64)
}
