//! Events of processes over time, within a memory limit.
//!
//! Starts and exits of threads are recorded with the threads themselves.

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
pub(super) struct Events {
    all: Vec<Event>,
    text_bytes: usize,
    dropped: u64,
}

impl Events {
    /// Adds an event if it fits into `memory_max_bytes`. Late ones are inserted in order.
    pub(super) fn push(&mut self, event: Event, memory_max_bytes: usize) {
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
    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Event>() + self.text_bytes
    }

    /// All events, by time.
    pub(super) fn all(&self) -> &[Event] {
        &self.all
    }

    /// Their times.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut u64> {
        self.all.iter_mut().map(|event| &mut event.at_ns)
    }

    /// Number of events that did not fit.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Number of events by which the buffer grows.
const GROWTH: usize = 64;
