//! The reason why a walk ended, and the stack size that it needed.

use crate::addr::Avma;

/// The reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackEnd {
    /// The thread's outermost frame: the stack is complete.
    Root,
    /// The outermost frame of a stack that the program created, and that threads switch to and back from (a fiber,
    /// a coroutine): that stack is complete.
    Fiber,
    /// The thread's outermost frame, but after a stack scan: the frames around the scanned one may be missing or
    /// wrong.
    StackScan,
    /// The walk went through code that exchanges the thread's registers for those of another frame or stack
    /// (longjmp, installation of a landing pad), so frames may belong to either. It may have reached the outermost
    /// frame.
    StackSwitch,
    /// The thread's outermost frame, but by the frame record of a function that may not keep one: callers may be
    /// missing.
    UnverifiedFrameRecord,
    /// A frame on another stack, which was not copied: a signal or an exception interrupted it and has a separate
    /// stack (`sigaltstack`, the main stack of a Cortex-M), or it switched stacks for a call (a goroutine that
    /// reads the clock, `__morestack`).
    OtherStack,
    /// The next frame is above the copied bytes.
    DeeperThanCopied,
    /// An invalid frame record (misaligned, not above the last, null return address), or a chain that ends far
    /// from the thread's outermost frame.
    BrokenFrameChain,
    /// Code without unwind information, without a frame record that leads further, and with instructions that lead
    /// to no caller either: JIT code, or compilers with their own conventions.
    NoUnwindInfo,
    /// JIT code without cached facts, after the budget for following it was spent.
    TooMuchJitCode,
    /// The limit of `--max-depth` frames.
    DepthLimit,
}

impl StackEnd {
    /// Whether no frame is missing.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, StackEnd::Root | StackEnd::Fiber)
    }

    /// Text for the summary: `14 deeper than copied`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            StackEnd::Root | StackEnd::Fiber => "complete",
            StackEnd::StackScan => "found by stack scan",
            StackEnd::UnverifiedFrameRecord => "unverified frame record",
            StackEnd::OtherStack => "continues on another stack",
            StackEnd::StackSwitch => "stack switch in progress",
            StackEnd::DeeperThanCopied => "deeper than copied",
            StackEnd::BrokenFrameChain => "broken frame chain",
            StackEnd::NoUnwindInfo => "no unwind information",
            StackEnd::TooMuchJitCode => "too much JIT code",
            StackEnd::DepthLimit => "depth limit",
        }
    }
}

/// The result of a walk besides the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkResult {
    /// Why it ended.
    pub ended: StackEnd,
    /// First address above the last frame record that was read: the stack size that the walk needed.
    pub reached: Avma,
}
