//! What a processor is to the walker, in one place: its registers by DWARF number, what its
//! instructions do, and what code looks like that begins and ends threads. The type of its registers
//! stands for it (`arch::X86_64`), `arch::Arch` is its name, and it has a folder of that name here.
//!
//! `N` is the number of columns of its rows of unwind information.

use super::Code;
use super::flow::state::{Effect, State};
use super::stack_switch::SignalFrame;
use super::words::Word;
use crate::addr::Avma;

/// See the top of this file.
pub(super) trait Processor<const N: usize>: Copy + std::fmt::Debug {
    /// What its addresses are kept in.
    type Word: Word;
    /// Bytes of an address in memory: a return address, half a frame record.
    const POINTER_BYTES: u64 = 1 << Self::Word::SHIFT;
    /// See [`Arch::red_zone_bytes`](crate::arch::Arch::red_zone_bytes).
    const RED_ZONE_BYTES: u64;
    /// The stack pointer, by DWARF number.
    const STACK_POINTER: u8;
    /// The frame pointer, by DWARF number. Where code keeps frame records it is the address of
    /// the caller's frame pointer, and the return address lies above that.
    const FRAME_POINTER: u8;
    /// The register that a call leaves the return address in; else it is on the stack.
    const LINK: Option<u8>;
    /// The column of the return address. Those below it are of registers.
    const RETURN_COLUMN: usize;
    /// The frame of a signal at the trampoline of Linux that handlers return to.
    const SIGNAL_FRAME: Option<SignalFrame> = None;
    /// The instruction that enters the kernel, where signals are followed to other stacks.
    const SYSTEM_CALL: &'static [u8] = &[];
    /// Registers that a function gives back as it found them, without the stack pointer.
    const SAVED: &'static [u8];
    /// The registers that a frame is counted from where code is followed from a function's entry, in
    /// groups: all ways must agree by one group, of which the first that leads to the frame is taken.
    const BASES: &'static [&'static [u8]] = &[&[Self::FRAME_POINTER, Self::STACK_POINTER]];
    /// Whether a jump to another function proves that the link register holds the caller. Not where
    /// compilers jump from the body of a function to a part of it that stands apart.
    const JUMPS_KEEP_LINK: bool = true;
    /// Whether what is told of ways from a function's entry holds only if every way was followed: those that
    /// come back to the address too (an alloca in a loop moves the stack pointer each time), and none behind
    /// calls of functions that never return. For processors whose code mostly has no unwind tables.
    const EVERY_WAY: bool = false;

    /// Where a code address is, and the state of a way that begins there. Where the lowest bit of code
    /// addresses tells the instruction set it is taken off.
    fn begin(at: Avma) -> (Avma, State) {
        (at, State::new())
    }

    /// All registers by column, as a thread was stopped with them. `mask`: the bits of a code
    /// pointer that are address.
    fn columns(&self, mask: u64) -> [u64; N];

    /// Executes the instruction at the start of `bytes`, which stands at `at`; its length with
    /// it. `None` for what is no instruction.
    fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)>;

    /// Whether a call stands in front of an address in executable memory.
    fn returns(address: Avma, code: &dyn Code) -> bool;

    /// Whether code is the trampoline that handlers of signals return to.
    fn is_sigreturn(code: &[u8]) -> bool;

    /// Whether code is what follows the call of `main`, or of a thread's function, in start code.
    fn is_start_code(code: &[u8]) -> bool;

    /// Whether code calls the system call `exit` as it does behind a thread's first function,
    /// whose result it mostly passes.
    fn ends_thread(code: &[u8]) -> bool;

    /// The bytes that a call puts on the stack: the return address, if that is there.
    fn pushed_by_call() -> i64 {
        if Self::LINK.is_some() { 0 } else { Self::POINTER_BYTES.cast_signed() }
    }
}

/// Whether a return address of a handler of signals is the first instruction of a trampoline, as on
/// Linux: that of macOS has called the handler.
pub(super) fn begins_trampoline<P: Processor<N>, const N: usize>(at: Avma, code: &dyn Code) -> bool {
    P::is_sigreturn(code.code(at).unwrap_or_default()) || !P::returns(at, code)
}
