//! Registers and stack bytes of a thread at one moment, as sources hand them on.

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
    /// What was prefetched of the stack above them, of the same moment.
    pub prefetched: PrefetchedWords,
    /// Time from asking for the stop to the thread being let go, in nanoseconds. For a
    /// thread that had to wait for a CPU before it could stop, from the moment that its
    /// stop was noticed. What the kernel then takes to put it back on a CPU is not in it.
    pub pause_ns: u64,
    /// Of that, the time from when the thread was seen to stand, nanoseconds. Where one stop
    /// holds all threads, it is in the capture of one of them, and 0 in the others.
    pub stood_ns: u64,
    /// Frames in the kernel that its code was in, where the source tells, the innermost first.
    pub kernel: Vec<LookupAvma>,
    /// There are no frames but those: the thread has no user memory yet, or no more.
    pub only_kernel: bool,
    /// The thread's figures while it stood, where the source reads them: exact up to the stop.
    pub status: Option<ThreadStatus>,
    /// End of the stack that the stack pointer is in, where the system tells: nothing of
    /// it lies at this address or above.
    pub stack_limit: Option<Avma>,
    /// The stack that the code goes on on which a handler interrupted, where processors have two.
    pub other_stack: Option<Box<OtherStack>>,
    /// Of sources that change how much of a stack they copy: the number of the size that this one was copied by.
    pub size_number: u32,
    /// The CPU that it was taken on, where the source knows it.
    pub cpu: Option<u32>,
}

/// A second stack of a thread, copied in the same stop: that of the process stack pointer of a Cortex-M,
/// while a handler runs on the main one.
#[derive(Clone, Debug)]
pub struct OtherStack {
    /// Its stack pointer: the address of the first byte.
    pub base: Avma,
    /// Bytes copied from there upward.
    pub bytes: Vec<u8>,
    /// As [`Capture::stack_limit`].
    pub limit: Option<Avma>,
}

impl Default for Capture {
    fn default() -> Capture {
        Capture::with_capacity(0)
    }
}

impl Capture {
    /// An empty capture whose stack buffer holds `stack_bytes` without growing.
    #[must_use]
    pub fn with_capacity(stack_bytes: usize) -> Capture {
        Capture {
            registers: Registers::default(),
            stack_base: Avma(0),
            stack: Vec::with_capacity(stack_bytes),
            prefetched: PrefetchedWords::default(),
            pause_ns: 0,
            stood_ns: 0,
            kernel: Vec::new(),
            only_kernel: false,
            status: None,
            stack_limit: None,
            other_stack: None,
            size_number: 0,
            cpu: None,
        }
    }

    /// Empties it, for the next sample; buffers keep their allocations. Registers and address stay until they are replaced.
    pub fn reset(&mut self) {
        self.stack.clear();
        self.prefetched.clear();
        self.kernel.clear();
        self.only_kernel = false;
        (self.pause_ns, self.stood_ns, self.size_number) = (0, 0, 0);
        (self.status, self.stack_limit, self.other_stack, self.cpu) = (None, None, None, None);
    }

    /// Bytes that it holds, used or not.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.stack.capacity()
            + self.prefetched.held_bytes()
            + self.other_stack.as_ref().map_or(0, |other| other.bytes.capacity())
    }
}
