//! The samples of one thread over time, as bytes: about five for a sample.
//!
//! Each sample is a difference to the previous one: a word of the elapsed time, with two bits that flag a
//! different stack and CPU, then the step to its node if flagged, then its CPU if flagged, then the
//! difference between its weight and the elapsed time. Words are LEB128 (DWARF 5, 7.6), signed ones in zigzag
//! (Protocol Buffers). Times are in units of [`UNIT_NS`].

use crate::leb128::{put_unsigned, take_unsigned};
use crate::trie::NodeId;

/// Unit of times and weights, nanoseconds.
pub(super) const UNIT_NS: u64 = 1 << UNIT_BITS;
pub(super) const UNIT_BITS: u32 = 10;

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
pub(super) struct ThreadSamples {
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
    pub(super) fn push(&mut self, sample: TimedSample) {
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
    pub(super) fn last_ns(&self) -> u64 {
        self.last.at << UNIT_BITS
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The samples in order of appending. Times and weights are whole units.
    pub(super) fn iter(&self) -> impl Iterator<Item = TimedSample> + '_ {
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
    pub(super) fn by_time(&self) -> Vec<TimedSample> {
        let mut samples: Vec<TimedSample> = self.iter().collect();
        if !samples.is_sorted_by_key(|sample| sample.at_ns) {
            samples.sort_by_key(|sample| sample.at_ns);
        }
        samples
    }

    /// Reduces the samples to `detail`, merging adjacent ones of one stack without a pause of more than
    /// `gap_ns`. Decodes part of the samples at a time: all would take ten times the memory of their bytes.
    pub(super) fn reduce(&mut self, gap_ns: u64, detail: Detail) {
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
