//! What a walk reads: the copied stack with what is known about its bounds, memory around it, and the target's code.

use super::code::Code;
use super::words::StackBytes;
use crate::addr::Avma;

/// What a walk reads.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The copied stack.
    pub stack: StackBytes<'a>,
    /// Stack pointer at the thread's first instruction: every frame lies below. `None` if not known.
    pub stack_top: Option<Avma>,
    /// First address above the memory of the stack the thread is on, where that is known:
    /// a record at or above it is no record, so the chain ended rather than left the copied bytes.
    pub stack_limit: Option<Avma>,
    /// Whether the platform's ABI keeps the frame pointer a valid frame record or 0 at all
    /// times. Apple does for arm64 ("Writing ARM64 code for Apple platforms"): 0 then means
    /// that there is no caller, wherever it is found.
    pub fp_always: bool,
    /// Frames to find at most.
    pub max_depth: usize,
    /// Bits of a code pointer, or of a saved frame pointer, that are address (see
    /// `Process::code_mask`).
    pub code_mask: u64,
    /// The target's code.
    pub code: &'a dyn Code,
    /// Memory of the stack above the copied bytes, as far as it was read.
    pub outer: Option<&'a dyn OuterStack>,
    /// The signals that the thread blocks, one bit each; `None` where that is not known.
    pub blocked_signals: Option<u64>,
}

/// Memory of a stack above its copied bytes, and of other stacks that a walk leads to, known in pieces.
pub trait OuterStack {
    /// The little-endian word of this size at an address, zero-extended; `None` where it is not known.
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64>;
}

impl<'a> Input<'a> {
    /// A stack of which no bounds are known, code whose ABI promises nothing of frame pointers, pointers whose
    /// bits are all address, and as many frames as there are: what else is known is set on it.
    pub fn new(stack: StackBytes<'a>, code: &'a dyn Code) -> Input<'a> {
        Input {
            stack,
            stack_top: None,
            stack_limit: None,
            fp_always: false,
            max_depth: usize::MAX,
            code_mask: u64::MAX,
            code,
            outer: None,
            blocked_signals: None,
        }
    }
}

/// The second stack of a processor that has two at a time: what the process stack pointer of a Cortex-M
/// points to while a handler runs on the main stack.
#[derive(Clone, Copy, Debug)]
pub struct OtherStack<'a> {
    /// The copied bytes, from its stack pointer upward.
    pub stack: StackBytes<'a>,
    /// First address above its memory, where that is known.
    pub limit: Option<Avma>,
}
