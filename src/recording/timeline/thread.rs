//! The samples of one thread over time, as bytes: about five for a sample.
//!
//! Each sample is a difference to the one before it: a word of the time passed, with a bit that says
//! whether the stack is another one, then the step to its node if it is, then by how much its weight
//! differs from the time passed. Words are LEB128 (DWARF 5, 7.6), signed ones in zigzag
//! (Protocol Buffers). Times are in units of [`UNIT_NS`].

use crate::leb128::{put_unsigned, take_unsigned};
use crate::trie::NodeId;

/// Times and weights are kept in units of so many nanoseconds.
pub(super) const UNIT_NS: u64 = 1 << UNIT_BITS;
const UNIT_BITS: u32 = 10;

/// A sample, or several that were joined: `weight_ns` of the time that ends at `at_ns` had this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedSample {
    /// When it was taken, or the last of them was: nanoseconds since the recording began.
    pub at_ns: u64,
    /// Node of its stack.
    pub node: NodeId,
    /// What it stands for, nanoseconds.
    pub weight_ns: u64,
}

/// Samples of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadSamples {
    bytes: Vec<u8>,
    last: Position,
    /// What weights were rounded down by, nanoseconds: the next one has it.
    carried_ns: u64,
}

/// What the next sample is a difference to.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    at: u64,
    node: u32,
}

impl ThreadSamples {
    /// Appends a sample. Deferred samples come after later ones.
    pub(super) fn push(&mut self, sample: TimedSample) {
        let weight_ns = sample.weight_ns.saturating_add(self.carried_ns);
        self.carried_ns = weight_ns % UNIT_NS;
        let at = sample.at_ns >> UNIT_BITS;
        let passed = at.wrapping_sub(self.last.at) as i64;
        let node = sample.node.0;
        if self.bytes.capacity() - self.bytes.len() < WORD_BYTES * 3 {
            // An eighth more: doubling would leave half of the memory of all threads unused.
            self.bytes.reserve_exact(self.bytes.len() / 8 + WORD_BYTES * 3);
        }
        let changed = node != self.last.node;
        put_unsigned(zigzag(passed) << 1 | u64::from(changed), &mut self.bytes);
        if changed {
            put_unsigned(zigzag(i64::from(node) - i64::from(self.last.node)), &mut self.bytes);
        }
        put_unsigned(zigzag(((weight_ns >> UNIT_BITS) as i64).wrapping_sub(passed)), &mut self.bytes);
        self.last = Position { at, node };
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The samples in the order in which they came. Times and weights are whole units.
    pub(super) fn iter(&self) -> impl Iterator<Item = TimedSample> + '_ {
        let (mut left, mut last) = (self.bytes.as_slice(), Position::default());
        std::iter::from_fn(move || {
            let first = take_unsigned(&mut left)?;
            let passed = unzigzag(first >> 1);
            if first & 1 == 1 {
                let step = unzigzag(take_unsigned(&mut left)?);
                last.node = (i64::from(last.node) + step) as u32;
            }
            last.at = last.at.wrapping_add(passed as u64);
            let weight = unzigzag(take_unsigned(&mut left)?).wrapping_add(passed) as u64;
            Some(TimedSample {
                at_ns: last.at << UNIT_BITS,
                node: NodeId(last.node),
                weight_ns: weight << UNIT_BITS,
            })
        })
    }

    /// The samples by time.
    pub(super) fn by_time(&self) -> Vec<TimedSample> {
        let mut samples: Vec<TimedSample> = self.iter().collect();
        if !samples.is_sorted_by_key(|sample| sample.at_ns) {
            samples.sort_by_key(|sample| sample.at_ns);
        }
        samples
    }

    /// Keeps less: what `detail` says, with neighbours of one stack joined between which there is no pause of more
    /// than `gap_ns`.
    pub(super) fn reduce(&mut self, gap_ns: u64, detail: Detail) {
        let mut samples = self.by_time();
        if detail.is_times_only() {
            samples.iter_mut().for_each(|sample| sample.node = NOT_KEPT);
        }
        if let Some(step_ns) = detail.step_ns() {
            samples = in_steps(samples, step_ns);
        }
        let mut reduced = ThreadSamples::default();
        let mut open: Option<TimedSample> = None;
        for sample in samples {
            match &mut open {
                Some(before)
                    if before.node == sample.node
                        && sample.at_ns.saturating_sub(sample.weight_ns)
                            <= before.at_ns.saturating_add(gap_ns) =>
                {
                    before.at_ns = sample.at_ns;
                    before.weight_ns = before.weight_ns.saturating_add(sample.weight_ns);
                }
                _ => {
                    if let Some(before) = open.replace(sample) {
                        reduced.push(before);
                    }
                }
            }
        }
        if let Some(last) = open {
            reduced.push(last);
        }
        reduced.carried_ns += self.carried_ns;
        reduced.bytes.shrink_to_fit();
        *self = reduced;
    }
}

/// The node of samples whose stacks were not kept: the top of the trie, which no stack ends at.
pub const NOT_KEPT: NodeId = NodeId(0);

/// What is kept of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Each.
    #[default]
    Samples,
    /// Those of one stack that follow one another as one.
    Runs,
    /// Those of one stack in one step of so many nanoseconds as one.
    Steps(u64),
    /// Those in one step of so many nanoseconds as one, without their stacks.
    TimesOnly(u64),
}

impl Detail {
    /// Steps that times are kept in, nanoseconds.
    #[must_use]
    pub fn step_ns(self) -> Option<u64> {
        match self {
            Detail::Samples | Detail::Runs => None,
            Detail::Steps(step_ns) | Detail::TimesOnly(step_ns) => Some(step_ns),
        }
    }

    /// Whether stacks are left out.
    #[must_use]
    pub fn is_times_only(self) -> bool {
        matches!(self, Detail::TimesOnly(_))
    }
}

/// Samples of one stack in one step of time as one, at the time of the last of them.
fn in_steps(mut samples: Vec<TimedSample>, step_ns: u64) -> Vec<TimedSample> {
    samples.sort_by_key(|sample| (sample.at_ns / step_ns, sample.node, sample.at_ns));
    samples.dedup_by(|later, kept| {
        let same = (later.at_ns / step_ns, later.node) == (kept.at_ns / step_ns, kept.node);
        if same {
            kept.at_ns = later.at_ns;
            kept.weight_ns = kept.weight_ns.saturating_add(later.weight_ns);
        }
        same
    });
    samples.sort_by_key(|sample| sample.at_ns);
    samples
}

/// Most bytes of a word.
const WORD_BYTES: usize = 10;

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(word: u64) -> i64 {
    (word >> 1) as i64 ^ -((word & 1) as i64)
}
