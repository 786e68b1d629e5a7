//! What a processor is to the walker, in one place: its registers by DWARF number, what its instructions do, and what
//! code looks like that begins and ends threads. The trait is implemented by the type of its registers
//! (`arch::X86_64`); `arch::Arch` is its name, and a folder of that name has the rest.

use super::Code;
use super::flow::state::{Effect, State};
use super::words::Word;
use crate::addr::Avma;
use crate::binary::frame_rule::{Columns, Row};

/// A row of unwind information of a processor.
pub(super) type RowOf<P> = Row<<P as Processor>::Columns>;

/// What the unwind information says at a look-up address; `None` where there is none for this processor.
pub(super) fn row<P: Processor>(code: &dyn Code, lookup: Avma) -> Option<RowOf<P>> {
    P::Columns::row(code.row(lookup)?)
}

/// The values of the registers that a row of a processor may name.
pub(super) type Values<P> = <<P as Processor>::Columns as Columns>::Values;

/// Where the kernel's frame of a signal has what matters here, in bytes from the stack pointer at the trampoline.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignalFrame {
    /// `uc_stack.ss_sp` and `uc_stack.ss_size`: the alternate stack as it was set.
    pub stack: u64,
    pub stack_bytes: u64,
    /// `uc_sigmask`: the signals that were blocked.
    pub blocked: u64,
}

/// A processor. Implemented by the type of the registers that a thread was stopped with.
pub(super) trait Processor: Copy + std::fmt::Debug + Default + PartialEq {
    /// The registers that its rows may name, by DWARF number; the last is the program counter.
    type Columns: Columns;
    /// What its addresses are kept in.
    type Word: Word;
    /// Bytes of an address in memory: a return address, half a frame record.
    const POINTER_BYTES: u64 = 1 << Self::Word::SHIFT;
    /// Bytes below the stack pointer that rows may read; see
    /// [`Arch::red_zone_bytes_max`](crate::arch::Arch::red_zone_bytes_max).
    const RED_ZONE_BYTES: u64;
    /// The stack pointer, by DWARF number.
    const STACK_POINTER: u8;
    /// The frame pointer, by DWARF number.
    const FRAME_POINTER: u8;
    /// Where the frame record is, in bytes from the frame pointer: the caller's frame pointer, and the return address one
    /// word above it. The caller's stack pointer is right above the record.
    const FRAME_RECORD_AT: i64;
    /// The register that a call leaves the return address in; else it is on the stack.
    const LINK: Option<u8>;
    /// The column of the return address. Those below it belong to registers.
    const RETURN_COLUMN: usize;
    /// The frame of a signal at the trampoline of Linux that handlers return to.
    const SIGNAL_FRAME: Option<SignalFrame> = None;
    /// The instruction that enters the kernel, where signals are followed to other stacks.
    const SYSTEM_CALL: &'static [u8] = &[];
    /// Registers that a function preserves, without the stack pointer.
    const SAVED: &'static [u8];
    /// The registers that a frame is counted from where code is followed from a function's entry, in
    /// groups: all paths must agree by one group, of which the first that leads to the frame is taken.
    const BASES: &'static [&'static [u8]] = &[&[Self::FRAME_POINTER, Self::STACK_POINTER]];
    /// Whether a jump to another function proves that the link register holds the caller. Not where
    /// compilers jump from the body of a function to a part of it that was split off.
    const JUMPS_KEEP_LINK: bool = true;
    /// Whether what follows from paths since a function's entry holds only if every path was followed: those that
    /// return to the address too (an alloca in a loop moves the stack pointer each time), and none behind
    /// calls of functions that never return. For processors whose code mostly has no unwind tables.
    const EVERY_PATH: bool = false;

    /// Where a code address is, and the state of a path that begins there. Where the lowest bit of code
    /// addresses is the instruction set, it is cleared.
    fn begin(at: Avma) -> (Avma, State) {
        (at, State::new())
    }

    /// The value of each column, as a thread was stopped with them. `mask`: the bits of a code
    /// pointer that are address.
    fn values(&self, mask: u64) -> Values<Self>;

    /// The bits of a code pointer, or of a saved frame pointer, that are address; `mask` as in
    /// [`Input::code_mask`](super::Input::code_mask).
    fn address_bits(pointer: u64, _mask: u64) -> u64 {
        pointer
    }

    /// Executes the instruction at the start of `bytes`, whose address is `at`; returns its effect and length. `None` for
    /// what is no instruction.
    fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)>;

    /// Whether a call is in front of an address in executable memory.
    fn returns(address: Avma, code: &dyn Code) -> bool;

    /// Whether code is the trampoline that handlers of signals return to.
    fn is_sigreturn(code: &[u8]) -> bool;

    /// Whether code is what follows the call of `main`, or of a thread's function, in start code.
    fn is_start_code(code: &[u8]) -> bool;

    /// Whether code calls the system call `exit` as it does behind a thread's first function,
    /// whose result it mostly passes.
    fn ends_thread(code: &[u8]) -> bool;

    /// Where the frame record is that a frame pointer leads to.
    #[inline]
    fn frame_record(frame_pointer: u64) -> u64 {
        frame_pointer.wrapping_add_signed(Self::FRAME_RECORD_AT)
    }

    /// The bytes that a call puts on the stack: the return address, if that is there.
    fn pushed_by_call() -> i64 {
        if Self::LINK.is_some() { 0 } else { Self::POINTER_BYTES.cast_signed() }
    }
}

/// Whether a return address of a handler of signals is the first instruction of a trampoline, as on
/// Linux: that of macOS has called the handler.
pub(super) fn begins_trampoline<P: Processor>(at: Avma, code: &dyn Code) -> bool {
    P::is_sigreturn(code.code(at).unwrap_or_default()) || !P::returns(at, code)
}
