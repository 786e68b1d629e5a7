//! The walker: registers + copied stack bytes in, code addresses and why it ended out.
//!
//! Pure: no OS calls, no clock, no allocation except growth of the caller's buffer.
//! `fp.rs` follows the frame records; `x86_64.rs` and `aarch64.rs` mirror each other
//! and know where the leaf frame's caller is before, during and after its prologue;
//! `root.rs` recognises the outermost frame of a thread. Unwinding by CFI plugs in
//! beside `fp.rs`: the same [`Input`], the same [`Walked`].

pub mod aarch64;
pub mod fp;
pub mod root;
pub mod x86_64;

use std::ops::Range;

use crate::addr::Avma;
use crate::frame_rule::FrameRule;
use crate::registers::Registers;

/// Bytes copied from a thread's stack, from its stack pointer upward.
#[derive(Clone, Copy, Debug)]
pub struct StackBytes<'a> {
    /// Address of the first byte (the stack pointer).
    pub base: Avma,
    /// The copied window.
    pub bytes: &'a [u8],
}

impl StackBytes<'_> {
    /// The little-endian word at `at`, or `None` outside the window.
    #[must_use]
    #[inline]
    pub fn word(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.0.checked_sub(self.base.0)?).ok()?;
        let bytes = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The first address after the window.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.base + self.bytes.len() as u64
    }
}

/// The code of the target, as far as its images are known: the leaf's caller is
/// found by looking at the instructions around the program counter.
pub trait Code {
    /// Whether an address is known to lie in executable memory: what does not is not taken
    /// for a return address.
    fn is_code(&self, at: Avma) -> bool;

    /// The bytes from `at` to the end of the mapped code, or `None` outside known images.
    fn code(&self, at: Avma) -> Option<&[u8]>;

    /// How the caller is found at the instruction `pc`, from unwind information; `None`
    /// where there is none.
    fn frame_rule(&self, _pc: Avma) -> Option<FrameRule> {
        None
    }

    /// The bounds of the function at `pc`; `None` where they are not known.
    fn function(&self, _pc: Avma) -> Option<Range<Avma>> {
        None
    }
}

/// What a walk reads.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The copied stack.
    pub stack: StackBytes<'a>,
    /// Stack pointer at the thread's first instruction: every frame lies below. `None` if not known.
    pub stack_top: Option<Avma>,
    /// First address above the memory of the stack the thread is on, where that is known:
    /// a record at or above it is no record, so the chain ended rather than left the window.
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
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// At the thread's outermost frame: the stack is complete.
    Root,
    /// The next frame lies above the copied window.
    WindowRanOut,
    /// A frame record that cannot be one (misaligned, not above the last, null return
    /// address), or a chain that ends far from the thread's outermost frame.
    BadFrame,
    /// `--max-depth` frames were found.
    DepthLimit,
}

impl Ended {
    /// Words for the summary: `14 window ran out`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Ended::Root => "complete",
            Ended::WindowRanOut => "window ran out",
            Ended::BadFrame => "bad frame",
            Ended::DepthLimit => "depth limit",
        }
    }
}

/// What a walk found beside the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Why it ended.
    pub ended: Ended,
    /// First address above the last frame record that was read: how much of the stack
    /// the walk needed.
    pub reached: Avma,
}

/// Walks by frame pointers. Clears `out`, then pushes the look-up address (Avma; a
/// return address minus one) of each frame, leaf first.
pub fn walk(registers: &Registers, input: &Input<'_>, out: &mut Vec<u64>) -> Walked {
    out.clear();
    match registers {
        Registers::X86_64(registers) => x86_64::walk(registers, input, out),
        Registers::Aarch64(registers) => aarch64::walk(registers, input, out),
    }
}
