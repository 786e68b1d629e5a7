//! Why a walk ended, and how much of the stack it needed.

use crate::addr::Avma;

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StackEnd {
    /// At the thread's outermost frame: the stack is complete.
    Root,
    /// At the outermost frame of a stack that the program made for itself and that its threads
    /// go to and come back from (a fiber, a coroutine): that stack is complete.
    Fiber,
    /// At the thread's outermost frame, but by a search of the stack on the way: the frames
    /// around the found one may be missing or wrong.
    Scanned,
    /// At the thread's outermost frame, or not, but through code that exchanges the thread's
    /// registers for those of another frame or stack (a longjmp, a landing pad being
    /// installed): frames may be of the one or of the other.
    Switching,
    /// At the thread's outermost frame, but by the frame record of a function that is not
    /// known to keep one: callers may be missing.
    Unproved,
    /// At a frame that is on another stack than the one that was copied, whose words are not known: a signal or an
    /// exception interrupted it, whose handler has a stack of its own (`sigaltstack`, the main stack of a Cortex-M),
    /// or it left its own to call something (a goroutine that reads the clock, `__morestack`).
    OtherStack,
    /// The next frame lies above the copied bytes.
    DeeperThanCopied,
    /// A frame record that cannot be one (misaligned, not above the last, null return
    /// address), or a chain that ends far from the thread's outermost frame.
    BadFrame,
    /// In code that has no unwind information, keeps no frame record that leads further, and
    /// whose instructions do not lead to a caller either: JIT code, or code of compilers with
    /// conventions of their own.
    Undescribed,
    /// At JIT code that nothing is known about yet, when the budget for following such code was used up.
    JitBudget,
    /// `--max-depth` frames were found.
    DepthLimit,
}

impl StackEnd {
    /// Whether all frames are there.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, StackEnd::Root | StackEnd::Fiber)
    }

    /// Words for the summary: `14 deeper than copied`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            StackEnd::Root | StackEnd::Fiber => "complete",
            StackEnd::Scanned => "found by stack scan",
            StackEnd::Unproved => "unverified frame record",
            StackEnd::OtherStack => "continues on another stack",
            StackEnd::Switching => "stack switch in progress",
            StackEnd::DeeperThanCopied => "deeper than copied",
            StackEnd::BadFrame => "broken frame chain",
            StackEnd::Undescribed => "no unwind information",
            StackEnd::JitBudget => "too much JIT code",
            StackEnd::DepthLimit => "depth limit",
        }
    }
}

/// What a walk found beside the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Why it ended.
    pub ended: StackEnd,
    /// First address above the last frame record that was read: how much of the stack
    /// the walk needed.
    pub reached: Avma,
}
