//! Registers and stack bytes of a thread at one moment, as sources deliver them.

use super::prefetched_words::PrefetchedWords;
use super::thread_status::ThreadStatus;
use crate::addr::{Avma, LookupAvma};
use crate::arch::Registers;

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
    /// See [`Capture::stack_limit`].
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

    /// Allocated bytes, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.stack.capacity()
            + self.prefetched.held_bytes()
            + self.upper_stack.held_bytes()
            + self.other_stack.as_ref().map_or(0, |other| other.bytes.capacity())
    }
}
