//! Times, stacks and weights of the samples of each thread.
//!
//! Input: starts and exits of threads, their samples with nodes of the recording's trie, losses, and events
//! of processes. Output: all of that by thread and time. Memory is bounded: at the limit, adjacent samples
//! with one stack are merged, then times get coarser and coarser steps, then stacks are dropped ([`Detail`]),
//! until half of the limit is free. The total weight of a thread is always that of its samples.

mod events;
mod losses;
#[cfg(test)]
mod tests;
mod thread;

use events::Events;
pub use events::{Event, EventKind};
pub use losses::Loss;
use losses::Losses;
pub use thread::{Detail, NOT_KEPT, TimedSample};
use thread::{ThreadSamples, UNIT_NS};

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
