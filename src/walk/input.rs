//! The input of a walk: the copied stack and its bounds, memory around it, and the target's code.

use super::code::Code;
use super::words::StackBytes;
use crate::addr::Avma;

/// The input of a walk.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The copied stack.
    pub stack: StackBytes<'a>,
    /// Stack pointer at the thread's first instruction: every frame is below it. `None` if unknown.
    pub stack_top: Option<Avma>,
    /// First address above the memory of the thread's current stack, if known: an address at or above it is no
    /// record, so there the chain ended rather than left the copied bytes.
    pub stack_limit: Option<Avma>,
    /// Whether the platform's ABI requires the frame pointer to be a valid frame record or 0 at all times, as
    /// Apple's does for arm64 ("Writing ARM64 code for Apple platforms"): then 0 always means that there is no
    /// caller.
    pub fp_always: bool,
    /// Limit on frames.
    pub max_depth: usize,
    /// Address bits of a code pointer, or of a saved frame pointer (see `Process::address_mask`).
    pub address_mask: u64,
    /// The target's code.
    pub code: &'a dyn Code,
    /// Known memory of the stack above the copied bytes.
    pub outer: Option<&'a dyn OuterStack>,
    /// The signals that the thread blocks, one bit each; `None` if unknown.
    pub blocked_signals: Option<u64>,
}

/// Partially known memory of a stack above its copied bytes, and of other stacks that a walk leads to.
pub trait OuterStack {
    /// The little-endian word of this size at an address, zero-extended; `None` if unknown.
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64>;
}

impl<'a> Input<'a> {
    /// A stack without known bounds, code of an ABI without guarantees for frame pointers, pointers with address
    /// bits only, and no limit on frames: the caller sets what else is known.
    pub fn new(stack: StackBytes<'a>, code: &'a dyn Code) -> Input<'a> {
        Input {
            stack,
            stack_top: None,
            stack_limit: None,
            fp_always: false,
            max_depth: usize::MAX,
            address_mask: u64::MAX,
            code,
            outer: None,
            blocked_signals: None,
        }
    }
}

/// The second stack of a processor with two: that of a Cortex-M's process stack pointer while a handler runs on
/// the main stack.
#[derive(Clone, Copy, Debug)]
pub struct OtherStack<'a> {
    /// The copied bytes, from its stack pointer upward.
    pub stack: StackBytes<'a>,
    /// First address above its memory, if known.
    pub limit: Option<Avma>,
}
