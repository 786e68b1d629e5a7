//! The result of a walk (`WalkResult`): the frames found (`Frames`), with the method that found each (`Method`),
//! and why it ended (`StackEnd`). `UnwindMethod` is how to walk; `Frame` is one frame with all its registers, and
//! the step to its caller that processors share.

use std::marker::PhantomData;

use super::expression::Machine;
use super::input::{StepError, why_not};
use super::processor::{Processor, RowOf, Values};
use super::{Input, root};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::binary::frame_rule::{Cfa, Column, Columns};

/// Methods of walking stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnwindMethod {
    /// Unwind information if there is any, otherwise code and frame pointers, and a stack scan as the last resort;
    /// every step checked.
    #[default]
    Auto,
    /// Frame pointers only (except for the caller of the leaf).
    FramePointer,
    /// Unwind information and the code of functions without it; on 32-bit Arm DWARF rows only.
    Cfi,
    /// The tables of 32-bit Arm's exception handling ABI only.
    Exidx,
    /// Instructions of functions only (prologue analysis); 32-bit Arm.
    Code,
    /// A stack scan only; 32-bit Arm.
    Scan,
}

impl UnwindMethod {
    /// Every method, with its name.
    pub const ALL: [(UnwindMethod, &'static str); 6] = [
        (UnwindMethod::Auto, "auto"),
        (UnwindMethod::FramePointer, "fp"),
        (UnwindMethod::Cfi, "cfi"),
        (UnwindMethod::Exidx, "exidx"),
        (UnwindMethod::Code, "code"),
        (UnwindMethod::Scan, "scan"),
    ];

    /// Whether the method exists only on 32-bit Arm.
    #[must_use]
    pub fn is_of_arm(self) -> bool {
        matches!(self, UnwindMethod::Exidx | UnwindMethod::Code | UnwindMethod::Scan)
    }
}

/// The source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The registers of the stopped thread.
    Context,
    /// DWARF unwind information of its callee.
    Cfi,
    /// Compact unwind information (Mach-O).
    Compact,
    /// The tables of 32-bit Arm's exception handling ABI, for its callee.
    Exidx,
    /// The instructions of its callee, which has no unwind information.
    Code,
    /// The frame record of its callee.
    FramePointer,
    /// A word on the stack that looks like a return address.
    Scan,
    /// The frame pushed by an exception of an M-profile core.
    Exception,
}

impl Method {
    /// Every method, in numeric order.
    pub const ALL: [Method; 8] = [
        Method::Context,
        Method::Cfi,
        Method::Compact,
        Method::Exidx,
        Method::Code,
        Method::FramePointer,
        Method::Scan,
        Method::Exception,
    ];

    /// The name in `dump stacks` and the statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Context => "context",
            Method::Cfi => "cfi",
            Method::Compact => "compact",
            Method::Exidx => "exidx",
            Method::Code => "code",
            Method::FramePointer => "fp",
            Method::Scan => "scan",
            Method::Exception => "exception",
        }
    }
}

/// A walked stack, leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Look-up address of each frame.
    pub addresses: Vec<LookupAvma>,
    /// Method that found each frame.
    pub methods: Vec<Method>,
}

impl Frames {
    /// Removes all frames; keeps the buffers.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.methods.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, address: CodeAddress, method: Method) {
        self.addresses.push(address.lookup());
        self.methods.push(method);
    }

    /// The return address of the last frame.
    pub(super) fn last_return(&self) -> CodeAddress {
        let lookup = self.addresses.last().map_or(0, |last| last.0);
        CodeAddress::Return(Avma(lookup.wrapping_add(1)))
    }

    /// Marks the last frame, pushed by its return address, as not called. A signal handler returns to the first
    /// instruction of the trampoline (signal(7)), and the first function of a context to that of
    /// `__start_context`: the code before it belongs to another function, or to none.
    pub(super) fn last_is_not_called(&mut self, address: CodeAddress) {
        if let (CodeAddress::Return(at), Some(last)) = (address, self.addresses.last_mut()) {
            *last = CodeAddress::Pc(at).lookup();
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.addresses.truncate(len);
        self.methods.truncate(len);
    }

    /// Number of frames.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether nothing was walked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The frames, leaf first, each with the method that found it.
    pub fn iter(&self) -> impl Iterator<Item = (LookupAvma, Method)> + '_ {
        self.addresses.iter().copied().zip(self.methods.iter().copied())
    }
}

// ---- One frame with all its registers, and the processor-independent part of the step to its caller. Input: a frame,
// a row of unwind information; output: the caller's registers, not yet checked.

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<P: Processor> {
    pub address: CodeAddress,
    /// By DWARF number; the last is the program counter.
    pub registers: Values<P>,
}

impl<P: Processor> Frame<P> {
    /// The leaf of a thread stopped with these registers; for `mask` see [`Processor::values`].
    pub(super) fn new(registers: &P, mask: u64) -> Frame<P> {
        let registers = registers.values(mask);
        Frame { address: CodeAddress::Pc(Avma(registers[P::Columns::COUNT - 1])), registers }
    }

    /// A frame with an address and all registers by column.
    pub(super) fn of(address: CodeAddress, registers: Values<P>) -> Frame<P> {
        Frame { address, registers }
    }

    #[inline]
    pub(super) fn sp(&self) -> Avma {
        Avma(self.registers[usize::from(P::STACK_POINTER)])
    }

    /// The lowest address where the frame may have a word. Only a leaf that has not called has any below its stack
    /// pointer.
    fn lowest(&self) -> Avma {
        match self.address {
            CodeAddress::Pc(_) => Avma(self.sp().0.saturating_sub(P::RED_ZONE_BYTES)),
            CodeAddress::Return(_) => self.sp(),
        }
    }

    fn machine<'a>(&'a self, input: &'a Input<'a>) -> Machine<'a, P::Word> {
        let (word, lowest) = (PhantomData::<P::Word>, self.lowest());
        Machine { word, registers: self.registers.as_ref(), lowest, input }
    }

    /// The CFA of a row.
    pub(super) fn cfa(&self, row: &RowOf<P>, input: &Input<'_>) -> Result<u64, StepError> {
        match &row.cfa {
            Cfa::Register(register, offset) => {
                let base =
                    self.registers.as_ref().get(usize::from(*register)).ok_or(StepError::NotACaller)?;
                Ok(base.wrapping_add_signed(*offset))
            }
            Cfa::Expression(code) => self.machine(input).evaluate(code, None),
        }
    }

    /// The caller's registers by a row of any form with this CFA, which becomes the stack pointer. The address is
    /// still that of `self`.
    pub(super) fn by_row(&self, row: &RowOf<P>, cfa: u64, input: &Input<'_>) -> Result<Frame<P>, StepError> {
        let machine = self.machine(input);
        let mut next = *self;
        next.registers[usize::from(P::STACK_POINTER)] = cfa;
        for (register, column) in row.columns.as_ref().iter().enumerate() {
            next.registers[register] = match column {
                Column::Same | Column::Undefined => continue,
                // Below the stack pointer: an epilogue has already loaded it, which compilers' rows do not
                // describe.
                Column::At(offset)
                    if register < P::RETURN_COLUMN
                        && !row.signal
                        && cfa.wrapping_add_signed(*offset) < self.sp().0 =>
                {
                    continue;
                }
                Column::At(offset) => self.word(Avma(cfa.wrapping_add_signed(*offset)), input)?,
                Column::Is(offset) => cfa.wrapping_add_signed(*offset),
                Column::In(other) => {
                    *machine.registers.get(usize::from(*other)).ok_or(StepError::NotACaller)?
                }
                Column::AtExpression(code) => {
                    let at = machine.evaluate(code, Some(cfa))?;
                    self.word(Avma(at), input)?
                }
                Column::IsExpression(code) => machine.evaluate(code, Some(cfa))?,
            };
        }
        Ok(next)
    }

    /// The stack end if a chain of frame records ends here.
    pub(super) fn end_of_records(&self, reached: Avma, input: &Input<'_>) -> StackEnd {
        let outermost = self.address.is_return().then_some(self.address.at());
        let next = self.registers[usize::from(P::FRAME_POINTER)] & input.address_mask;
        // The copy starts below the stack pointer, where a thread's first function has nothing.
        let above = if outermost.is_none() { self.sp() } else { input.stack.base };
        let chain = root::Chain { next, above, reached, outermost };
        match chain.end::<P>(input) {
            StackEnd::Root if chain.place_decides(input) => StackEnd::Root,
            // A stack scan may lead further.
            _ => StackEnd::BrokenFrameChain,
        }
    }

    /// The word at a stack address.
    #[inline]
    pub(super) fn word(&self, at: Avma, input: &Input<'_>) -> Result<u64, StepError> {
        input.read::<P::Word>(at).ok_or_else(|| why_not(at, input))
    }
}

// ---- The reason why a walk ended, and the stack size that it needed.

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
    /// The limit of [`Input::max_depth`](super::Input::max_depth) frames.
    DepthLimit,
}

impl StackEnd {
    /// Whether no frame is missing.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, StackEnd::Root | StackEnd::Fiber)
    }

    /// The reason as text that follows a number: `14 deeper than copied`.
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
