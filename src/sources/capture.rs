//! Registers and stack bytes of a thread at one moment, as sources deliver them (`Capture`), with ranges outside of
//! the copied bytes that were read at that moment (`PrefetchedWords`).

use super::ThreadStatus;
use crate::addr::{Avma, LookupAvma};
use crate::arch::{Aarch64, Arm, Registers, X86, X86_64};

/// One thread's registers and stack bytes; reused from sample to sample.
#[derive(Clone, Debug)]
pub struct Capture {
    /// Registers in user mode at the moment of the stop.
    pub registers: Registers,
    /// Address of the first byte of `stack`: the stack pointer, or up to [`RED_ZONE_BYTES`](crate::arch::RED_ZONE_BYTES) below.
    pub stack_base: Avma,
    /// Bytes copied from there upward; the buffer keeps its allocation.
    pub stack: Vec<u8>,
    /// Number of bytes at the end of `stack` that its record did not hold.
    pub tail_bytes: usize,
    /// Prefetched parts of the stack above `stack`, read at the same moment.
    pub prefetched: PrefetchedWords,
    /// Parts of the stack above `stack`, read at the same moment, above pages that are not resident.
    pub upper_stack: PrefetchedWords,
    /// Nanoseconds from the stop request to the resume. For a thread that had to wait for a CPU before it
    /// could stop, counted from the moment that the stop was noticed. Excludes the time that the kernel then
    /// takes to schedule it again.
    pub pause_ns: u64,
    /// The part of `pause_ns` in which the thread was known to be stopped, nanoseconds. Where one stop holds
    /// all threads, one capture has it and the others have 0.
    pub stopped_ns: u64,
    /// Kernel frames, innermost first, if the source reports them.
    pub kernel: Vec<LookupAvma>,
    /// The stack has only kernel frames: the thread has no user memory yet, or has lost it.
    pub only_kernel: bool,
    /// The thread's counters while it was stopped, if the source reads them: exact up to the stop.
    pub status: Option<ThreadStatus>,
    /// Exclusive upper end of the stack that the stack pointer is in, if known.
    pub stack_limit: Option<Avma>,
    /// The stack of the code that a handler interrupted, on processors with two stack pointers.
    pub other_stack: Option<Box<OtherStack>>,
    /// For sources that vary the number of copied stack bytes: index of the size used for this one.
    pub stack_size_index: u32,
    /// The CPU that the sample was taken on, if known.
    pub cpu: Option<u32>,
}

/// The second stack of a thread, copied in the same stop: that of a Cortex-M's process stack pointer, while a
/// handler runs on the main one.
#[derive(Clone, Debug)]
pub struct OtherStack {
    /// Its stack pointer: the address of the first byte.
    pub base: Avma,
    /// Bytes copied from there upward.
    pub bytes: Vec<u8>,
    /// First address above the memory of the stack, if known.
    pub limit: Option<Avma>,
}

impl Default for Capture {
    fn default() -> Capture {
        Capture::with_capacity(0)
    }
}

impl Capture {
    /// Returns an empty capture with a stack buffer of `stack_bytes`, so that it need not grow.
    #[must_use]
    pub fn with_capacity(stack_bytes: usize) -> Capture {
        Capture {
            registers: Registers::default(),
            stack_base: Avma(0),
            stack: Vec::with_capacity(stack_bytes),
            tail_bytes: 0,
            prefetched: PrefetchedWords::default(),
            upper_stack: PrefetchedWords::default(),
            pause_ns: 0,
            stopped_ns: 0,
            kernel: Vec::new(),
            only_kernel: false,
            status: None,
            stack_limit: None,
            other_stack: None,
            stack_size_index: 0,
            cpu: None,
        }
    }

    /// Whether memory above `stack` was read at the same moment.
    #[must_use]
    pub fn has_outer(&self) -> bool {
        self.tail_bytes > 0 || !self.prefetched.is_empty() || !self.upper_stack.is_empty()
    }

    /// The stack bytes that each sample has.
    #[must_use]
    pub fn usual_stack(&self) -> &[u8] {
        self.stack.get(..self.usual_bytes()).unwrap_or_default()
    }

    /// Number of stack bytes that each sample has.
    #[must_use]
    pub fn usual_bytes(&self) -> usize {
        self.stack.len().saturating_sub(self.tail_bytes)
    }

    /// Empties the capture for the next sample; buffers keep their allocations. Registers and address stay
    /// until they are replaced.
    pub fn reset(&mut self) {
        self.stack.clear();
        self.prefetched.clear();
        self.upper_stack.clear();
        self.kernel.clear();
        self.only_kernel = false;
        (self.pause_ns, self.stopped_ns, self.stack_size_index, self.tail_bytes) = (0, 0, 0, 0);
        (self.status, self.stack_limit, self.other_stack, self.cpu) = (None, None, None, None);
    }

    /// The registers after the return of the function at whose entry this is.
    pub(super) fn after_return(&self) -> Registers {
        let word = |bytes: usize| {
            // The copy may begin below the stack pointer.
            let from = self.registers.sp().0.checked_sub(self.stack_base.0);
            let from = from.and_then(|from| usize::try_from(from).ok());
            let word = from.and_then(|from| self.stack.get(from..from + bytes)).unwrap_or_default();
            word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        match self.registers {
            Registers::X86_64(mut x86_64) => {
                x86_64.rip = word(8);
                x86_64.gpr[X86_64::RSP] = x86_64.gpr[X86_64::RSP].wrapping_add(8);
                Registers::X86_64(x86_64)
            }
            Registers::X86(mut x86) => {
                x86.eip = word(4);
                x86.gpr[X86::ESP] = x86.gpr[X86::ESP].wrapping_add(4);
                Registers::X86(x86)
            }
            Registers::Aarch64(mut aarch64) => {
                aarch64.pc = aarch64.x[Aarch64::LR];
                Registers::Aarch64(aarch64)
            }
            Registers::Arm(mut arm) => {
                /// T bit of a CPSR (Armv8-A ARM, G1.9); the M profile has only T32.
                const CPSR_T: u32 = 1 << 5;
                let at = arm.r[Arm::LR];
                arm.r[Arm::PC] = at & !1;
                if let (false, Some(cpsr)) = (arm.m_profile, &mut arm.cpsr) {
                    *cpsr = if at & 1 == 1 { *cpsr | CPSR_T } else { *cpsr & !CPSR_T };
                }
                Registers::Arm(arm)
            }
        }
    }

    /// Allocated bytes, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.stack.capacity()
            + self.prefetched.held_bytes()
            + self.upper_stack.held_bytes()
            + self.other_stack.as_ref().map_or(0, |other| other.bytes.capacity())
    }
}

// ---- Ranges of a thread's stacks outside of the copied bytes, read at the moment of the sample. Input:
// addresses and bytes; output: words.

/// Bytes of a prefetched range: a return address with the registers that a function saves below it.
pub const PREFETCH_RANGE_BYTES: usize = 64;
/// Most prefetched ranges of a stack.
pub const PREFETCH_RANGES_MAX: usize = 512;

/// A range: the address of its first byte, and the position of its bytes.
#[derive(Clone, Copy, Debug)]
struct ByteRange {
    start: u64,
    offset: usize,
    len: usize,
}

/// Ranges of memory, read at one moment.
#[derive(Clone, Debug, Default)]
pub struct PrefetchedWords {
    /// Sorted by address.
    ranges: Vec<ByteRange>,
    bytes: Vec<u8>,
    /// The thread's blocked signals at that moment, one bit each, if the source reports them.
    pub blocked_signals: Option<u64>,
}

impl PrefetchedWords {
    /// Removes all ranges; the buffers keep their allocation.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes.clear();
        self.blocked_signals = None;
    }

    /// Adds the bytes at an address.
    pub fn push(&mut self, start: u64, bytes: &[u8]) {
        let at = match self.ranges.last() {
            Some(last) if last.start > start => self.ranges.partition_point(|range| range.start <= start),
            _ => self.ranges.len(),
        };
        self.ranges.insert(at, ByteRange { start, offset: self.bytes.len(), len: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// The zero-extended little-endian word of this size at an address; `None` if it is in no range.
    #[must_use]
    pub fn word(&self, at: u64, word_bytes: usize) -> Option<u64> {
        // Ranges have one size: of overlapping ones, the last one that begins at or below `at` reaches
        // furthest.
        let range = self.ranges.partition_point(|range| range.start <= at).checked_sub(1)?;
        let range = self.ranges.get(range)?;
        let from = usize::try_from(at - range.start).ok()?;
        let bytes = self.bytes.get(range.offset..range.offset + range.len)?;
        let word = bytes.get(from..from.checked_add(word_bytes)?)?;
        Some(word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// Whether these bytes differ from the ranges at an address that both contain.
    #[must_use]
    pub fn contradict(&self, base: u64, bytes: &[u8]) -> bool {
        let end = base.saturating_add(bytes.len() as u64);
        self.ranges.iter().any(|range| {
            let (from, to) = (range.start.max(base), (range.start + range.len as u64).min(end));
            let of_both = |start: u64, all: &[u8]| {
                let at = |address: u64| usize::try_from(address.checked_sub(start)?).ok();
                Some(all.get(at(from)?..at(to)?)?.to_vec())
            };
            let own = self.bytes.get(range.offset..range.offset + range.len).unwrap_or_default();
            from < to && of_both(range.start, own) != of_both(base, bytes)
        })
    }

    /// Whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Total bytes of the ranges.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Allocated bytes, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.ranges.capacity() * size_of::<ByteRange>()
    }
}

#[cfg(test)]
mod prefetched_words_tests {
    use super::*;

    #[test]
    fn a_word_outside_of_all_ranges_is_none() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut ranges = PrefetchedWords::default();
        // Out of order, and two that overlap.
        for start in [128u64, 16, 40] {
            ranges.push(0x1000 + start, &bytes[start as usize..start as usize + 64]);
        }
        for word_bytes in [4, 8] {
            for at in 0..256 - word_bytes {
                let covered =
                    [128, 16, 40].iter().any(|start| (*start..=*start + 64 - word_bytes).contains(&at));
                let word = bytes[at..at + word_bytes].iter().rev();
                let expected = word.fold(0u64, |value, byte| value << 8 | u64::from(*byte));
                let found = ranges.word(0x1000 + at as u64, word_bytes);
                assert_eq!(found, covered.then_some(expected), "{word_bytes} bytes at {at}");
            }
        }
        ranges.clear();
        assert!(ranges.is_empty() && ranges.word(0x1010, 8).is_none());
    }

    #[test]
    fn only_bytes_at_shared_addresses_are_compared() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut ranges = PrefetchedWords::default();
        ranges.push(0x1040, &bytes[0x40..0x80]);
        assert!(!ranges.contradict(0x1000, &bytes[..0x50]));
        assert!(!ranges.contradict(0x1060, &bytes[0x60..]));
        assert!(!ranges.contradict(0x1000, &[9; 0x40]), "they only touch");
        assert!(!ranges.contradict(0x1080, &[9; 0x40]));
        assert!(ranges.contradict(0x1000, &[9; 0x41]));
        assert!(ranges.contradict(0x107f, &[9; 4]));
    }
}
