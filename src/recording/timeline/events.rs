//! Events of processes over time, as many as a bound of memory holds.
//!
//! Starts and ends of threads are with the threads themselves.

/// What happened to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// It began to run another program.
    Exec,
    /// It mapped an image, which was seen at that time.
    ImageLoad,
    /// It ended.
    ProcessEnd,
}

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, nanoseconds since the recording began.
    pub at_ns: u64,
    /// What.
    pub kind: EventKind,
    /// The system's number of the process.
    pub pid: u32,
    /// The name of the program or of the image; empty for other events.
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
    /// Keeps an event if that takes no more than `memory_max_bytes`. Late ones are put in their place.
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

    /// All that are kept, by time.
    pub(super) fn all(&self) -> &[Event] {
        &self.all
    }

    /// Their times.
    pub(super) fn times(&mut self) -> impl Iterator<Item = &mut u64> {
        self.all.iter_mut().map(|event| &mut event.at_ns)
    }

    /// How many found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Room is made for so many at a time.
const GROWTH: usize = 64;
