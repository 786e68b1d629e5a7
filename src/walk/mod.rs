//! The walker: registers + copied stack bytes in, code addresses and why it ended out.
//!
//! Pure: no OS calls, no clock, no allocation except growth of the caller's buffer.
//! `x86_64/`, `aarch64/` and `x86/` mirror each other: they walk by unwind information, and know where
//! the leaf frame's caller is before, during and after its prologue; `intel/` is what the first and the
//! last have in common. `fp/` follows the frame
//! records of either, `flow/` the instructions; `root.rs` recognises the outermost frame of a
//! thread, `bounds.rs` what lies outside the copied stack, `stack_switch.rs` follows a walk to another one. `processor.rs` says what a processor is.
//! `frames.rs` is the result.

mod aarch64;
mod arm;
mod body;
mod bounds;
mod expression;
mod flow;
mod fp;
mod frame;
mod frames;
mod glance;
mod intel;
mod processor;
mod reader;
mod root;
mod stack_switch;
mod table;
#[cfg(test)]
mod text;
mod visited;
mod words;
mod x86;
mod x86_64;

pub use bounds::MAX_STACK_BYTES;
pub use frames::{Frames, How, Method};
pub use glance::{GLANCE_BYTES, Glance};
pub use root::SEARCH_BYTES;

use std::ops::Range;

use fp::Facts;
use words::Word;

use crate::addr::{Avma, CodeAddress};
use crate::arch::{Aarch64, Arch, Arm, Registers, X86, X86_64};
use crate::binary::frame_rule::{Body, FrameRule, Row, RowAarch64, RowArm, RowX86, TableSays};

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
        self.read::<u64>(at)
    }

    /// The little-endian word of a processor's size at `at`, zero-extended, or `None` outside the
    /// window.
    #[inline]
    fn read<W: Word>(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.0.checked_sub(self.base.0)?).ok()?;
        W::first(self.bytes.get(offset..)?)
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

    /// The first bytes of the code at an address. Of JIT code they are as old as what was learned of such code may be,
    /// and nothing that is learned rests on them.
    fn glance(&self, at: Avma) -> Glance {
        self.code(at).map(Glance::of).unwrap_or_default()
    }

    /// Whether an address is in JIT code.
    fn is_made(&self, _at: Avma) -> bool {
        false
    }

    /// Whether an address is in code of a runtime that walks its frames by their records itself
    /// at every call (V8), so that each function that has called something keeps one.
    fn keeps_records(&self, _at: Avma) -> bool {
        false
    }

    /// Whether an address is in code that HotSpot made, which keeps a header in front of each piece of it, and whose
    /// interpreter pushes return addresses instead of calling.
    fn has_hotspot_headers(&self, _at: Avma) -> bool {
        false
    }

    /// Whether [`Code::code`] was asked, since this was asked last, for bytes that are to be had
    /// but were not known: what was learned without them is not kept.
    fn lacked(&self) -> bool {
        false
    }

    /// Whether bytes were asked for that are to be had, so that the walk will be made again with them, or code was not
    /// to be followed: whatever the walk still finds is for nothing.
    fn walks_again(&self) -> bool {
        false
    }

    /// Whether the code at a look-up address, of which nothing is known yet, is worth what following it costs. If not, nothing is
    /// learned of it.
    fn may_follow(&self, _lookup: Avma) -> bool {
        true
    }

    /// What was learned of a look-up address is kept. It rests on the bytes that [`Code::code`] gave
    /// since this was called last, or [`Code::lacked`] was true.
    fn learned(&self, _lookup: Avma) {}

    /// All bytes between two addresses were looked at. (Of what [`Code::code`] gives, others look at
    /// 4 KiB at most, and mostly at one instruction.)
    fn searched(&self, _from: Avma, _to: Avma) {}

    /// How the caller is found at the instruction `pc`, from unwind information; `None`
    /// where there is none.
    fn frame_rule(&self, _pc: Avma) -> Option<FrameRule> {
        None
    }

    /// What the unwind information says at a look-up address; `None` where there is none.
    fn row(&self, _lookup: Avma) -> Option<Row> {
        None
    }

    /// The row at the instruction `pc` of an epilogue, where unwind information leaves these to the
    /// instructions (PE); `None` where [`Code::row`] is right.
    fn row_in_epilogue(&self, _pc: Avma) -> Option<Row> {
        None
    }

    /// As [`Code::row`], for aarch64.
    fn row_aarch64(&self, _lookup: Avma) -> Option<RowAarch64> {
        None
    }

    /// The same for i386.
    fn row_x86(&self, _lookup: Avma) -> Option<RowX86> {
        None
    }

    /// The same for 32-bit Arm.
    fn row_arm(&self, _lookup: Avma) -> Option<RowArm> {
        None
    }

    /// Whether code of 32-bit Arm at an address is T32 and not A32; `None` where nothing tells.
    fn is_t32(&self, _pc: Avma) -> Option<bool> {
        None
    }

    /// The entry of the tables of 32-bit Arm's exception handling ABI that a look-up address is in, and
    /// where its function begins and ends, without the bit of T32; `None` where there is none.
    fn exidx(&self, _lookup: Avma) -> Option<(Range<Avma>, TableSays)> {
        None
    }

    /// Whether the image at a look-up address has unwind information for any of its
    /// functions. Then one that has none is an exception, which may not keep a frame record.
    fn describes_frames(&self, _lookup: Avma) -> bool {
        false
    }

    /// What the unwind information of a Mach-O image says of the body of the function at a
    /// look-up address; `None` where there is none.
    fn body(&self, _lookup: Avma) -> Option<Body> {
        None
    }

    /// Whether threads begin to run in the Mach-O image at a look-up address; `None`
    /// elsewhere, where they may begin anywhere.
    fn begins_threads(&self, _lookup: Avma) -> Option<bool> {
        None
    }

    /// Where the image that `pc` is in begins to run, if it says so.
    fn entry(&self, _pc: Avma) -> Option<Avma> {
        None
    }

    /// The bounds of the function at a look-up address as unwind information has them, a part that was
    /// split off by itself; `None` where there is none.
    fn described_function(&self, _lookup: Avma) -> Option<Range<Avma>> {
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
    /// Memory of the stack above the copied bytes, as far as it is to be had.
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

    /// The little-endian word of a processor's size at an address of the stack, zero-extended: among the copied
    /// bytes or above them.
    #[inline]
    fn read<W: Word>(&self, at: Avma) -> Option<u64> {
        self.stack.read::<W>(at).or_else(|| self.read_outer::<W>(at))
    }

    /// The word above the copied bytes; `None` on another stack.
    #[cold]
    fn read_outer<W: Word>(&self, at: Avma) -> Option<u64> {
        let outer = self.outer.filter(|_| bounds::is_in_stack(at, self))?;
        outer.word(at, 1 << W::SHIFT)
    }
}

/// The second stack of a processor that has two at a time: what the process stack pointer of a Cortex-M
/// points to while a handler runs on the main stack.
#[derive(Clone, Copy, Debug)]
pub struct OtherStack<'a> {
    /// The copied bytes, from its stack pointer upward.
    pub stack: StackBytes<'a>,
    /// As [`Input::stack_limit`].
    pub limit: Option<Avma>,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
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
    /// or it left its own to call something (a goroutine that asks for the time, `__morestack`).
    OtherStack,
    /// The next frame lies above the copied window.
    WindowRanOut,
    /// A frame record that cannot be one (misaligned, not above the last, null return
    /// address), or a chain that ends far from the thread's outermost frame.
    BadFrame,
    /// In code that has no unwind information, keeps no frame record that leads further, and
    /// whose instructions do not tell either: made at run time, or by compilers with
    /// conventions of their own.
    Undescribed,
    /// At JIT code of which nothing is known yet, when the profiler had followed as much of such code as it may.
    JitBudget,
    /// `--max-depth` frames were found.
    DepthLimit,
}

impl Ended {
    /// Whether all frames are there.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Ended::Root | Ended::Fiber)
    }

    /// Words for the summary: `14 deeper than copied`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Ended::Root | Ended::Fiber => "complete",
            Ended::Scanned => "found by stack scan",
            Ended::Unproved => "unverified frame record",
            Ended::OtherStack => "continues on another stack",
            Ended::Switching => "stack switch in progress",
            Ended::WindowRanOut => "deeper than copied",
            Ended::BadFrame => "broken frame chain",
            Ended::Undescribed => "no unwind information",
            Ended::JitBudget => "too much JIT code",
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

/// What walks keep from one to the next. Belongs to one state of the target's images:
/// [`Unwinder::images_changed`] when they change.
#[derive(Clone, Debug, Default)]
pub struct Unwinder {
    x86_64: x86_64::Unwinder,
    aarch64: aarch64::Unwinder,
    x86: x86::Unwinder,
    arm: arm::Unwinder,
    facts: Facts,
}

impl Unwinder {
    /// Forgets what was learned: addresses may have another meaning now.
    pub fn images_changed(&mut self) {
        self.x86_64.images_changed();
        self.aarch64.images_changed();
        self.x86.images_changed();
        self.arm.images_changed();
        self.facts.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names: code that is made at
    /// run time is replaced without a word.
    pub fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.x86_64.forget(is_gone);
        self.aarch64.forget(is_gone);
        self.x86.forget(is_gone);
        self.arm.forget(is_gone);
        self.facts.forget(is_gone);
    }

    /// Says whether the bytes below the stack pointer were read later than the others. What a row
    /// finds by them on x86_64 is a caller only if something else leads to the same one.
    pub fn doubt_below(&mut self, later: bool) {
        self.x86_64.doubt_below(later);
    }
}

/// Walks as `how` says. Clears `out`, then pushes each frame, leaf first.
pub fn unwind(
    how: How,
    registers: &Registers,
    input: &Input<'_>,
    unwinder: &mut Unwinder,
    out: &mut Frames,
) -> Walked {
    out.clear();
    if how.is_of_arm() && registers.arch() != Arch::Arm {
        out.push(CodeAddress::Pc(registers.pc()), Method::Context);
        return Walked { ended: Ended::Undescribed, reached: registers.sp() };
    }
    let Unwinder { x86_64, aarch64, x86, arm, facts } = unwinder;
    match registers {
        Registers::X86_64(registers) => x86_64.unwind(how, registers, input, facts, out),
        Registers::Aarch64(registers) => aarch64.unwind(how, registers, input, facts, out),
        Registers::X86(registers) => x86.unwind(how, registers, input, facts, out),
        Registers::Arm(registers) => arm.unwind(how, registers, input, None, out),
    }
}

/// The same, where a second stack was copied. What is needed of either counts from its own stack
/// pointer, and [`Walked::reached`] says the more of both as if it were of the first.
pub fn unwind_on_two(
    how: How,
    registers: &Registers,
    input: &Input<'_>,
    other: Option<OtherStack<'_>>,
    unwinder: &mut Unwinder,
    out: &mut Frames,
) -> Walked {
    match registers {
        Registers::Arm(registers) if other.is_some() => {
            out.clear();
            unwinder.arm.unwind(how, registers, input, other, out)
        }
        _ => unwind(how, registers, input, unwinder, out),
    }
}

/// Finds the stack pointer that a running thread was born with, at most [`SEARCH_BYTES`] above
/// `from`, by the return address into the code that ends the thread.
#[must_use]
pub fn find_birth(arch: Arch, stack: StackBytes<'_>, from: Avma, code: &dyn Code) -> Option<Avma> {
    match arch {
        Arch::X86_64 => root::find_birth::<X86_64, _>(stack, from, code),
        Arch::Aarch64 => root::find_birth::<Aarch64, _>(stack, from, code),
        Arch::X86 => root::find_birth::<X86, _>(stack, from, code),
        Arch::Arm => root::find_birth::<Arm, _>(stack, from, code),
    }
}
