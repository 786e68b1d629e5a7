//! The walker's view of a processor: its registers by DWARF number, the effects of its instructions, and the code
//! that starts and ends threads. The trait is implemented by the type of its registers (`arch::X86_64`);
//! `arch::Arch` is its name, and the folder of that name has the rest.
//!
//! `body_row` is the row at an address whose unwind information describes bodies of functions only (Mach-O).

use super::flow::paths::{Effect, FlowState};
use super::frames::Method;
use super::input::Word;
use super::{Code, flow};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Column, Columns, Row};

/// A row of unwind information of a processor.
pub(super) type RowOf<P> = Row<<P as Processor>::Columns>;

/// The row of unwind information at a look-up address; `None` if there is none for this processor.
///
/// OCaml 5 marks functions that switch stacks as signal frames, since gdb allows only these to lead to a lower stack
/// pointer; but a row with the return address right below the CFA was called, and interrupts nothing.
pub(super) fn row<P: Processor>(code: &dyn Code, lookup: Avma) -> Option<RowOf<P>> {
    let mut row = P::Columns::row(code.row(lookup)?)?;
    if row.signal && P::LINK.is_none() {
        let columns = row.columns.as_ref();
        let is_called = columns.get(P::RETURN_COLUMN) == Some(&Column::At(-P::pushed_by_call()));
        let states_sp = columns.get(usize::from(P::STACK_POINTER)).is_some_and(|sp| *sp != Column::Same);
        row.signal = !is_called || states_sp;
    }
    Some(row)
}

/// Values of the registers that a processor's rows may refer to.
pub(super) type Values<P> = <<P as Processor>::Columns as Columns>::Values;

/// Offsets in the kernel's signal frame, in bytes from the stack pointer at the trampoline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalFrame {
    /// `uc_stack.ss_sp` and `uc_stack.ss_size`: the alternate stack.
    pub stack: u64,
    pub stack_bytes: u64,
    /// `uc_sigmask`: the signals that were blocked.
    pub blocked: u64,
}

/// A processor. Implemented by the type of the registers of a stopped thread.
pub(crate) trait Processor: Copy + std::fmt::Debug + Default + PartialEq {
    /// The registers that rows may refer to, by DWARF number; the last is the program counter.
    type Columns: Columns;
    /// The type of its addresses.
    type Word: Word;
    /// Size of a pointer in bytes: a return address, half a frame record.
    const POINTER_BYTES: u64 = 1 << Self::Word::SHIFT;
    /// Bytes below the stack pointer that rows may read; see
    /// [`Arch::red_zone_bytes_max`](crate::arch::Arch::red_zone_bytes_max).
    const RED_ZONE_BYTES: u64;
    /// The stack pointer, by DWARF number.
    const STACK_POINTER: u8;
    /// The frame pointer, by DWARF number.
    const FRAME_POINTER: u8;
    /// Offset of the frame record from the frame pointer in bytes: the caller's frame pointer, and the return
    /// address one word above it. The caller's stack pointer is right above the record.
    const FRAME_RECORD_AT: i64;
    /// The link register; `None` if calls push the return address on the stack.
    const LINK: Option<u8>;
    /// The column of the return address. Lower columns are registers.
    const RETURN_COLUMN: usize;
    /// The layout of Linux's signal frame at the signal trampoline.
    const SIGNAL_FRAME: Option<SignalFrame> = None;
    /// The instruction that enters the kernel, if signals are followed to other stacks.
    const SYSTEM_CALL: &'static [u8] = &[];
    /// Callee-saved registers, without the stack pointer.
    const SAVED: &'static [u8];
    /// Groups of base registers for rows from a function's entry: all paths must agree by one group, and the first
    /// register in it that leads to the frame is used. Groups after the first need the bounds of the function, or
    /// that every path is followed.
    const BASES: &'static [&'static [u8]] = &[&[Self::FRAME_POINTER, Self::STACK_POINTER]];
    /// Whether a jump to another function proves that the link register holds the caller. False if compilers jump
    /// from the body of a function to a split-off part of it.
    const JUMPS_KEEP_LINK: bool = true;
    /// Whether rows from a function's entry require following every path: including those that return to the
    /// address (an alloca in a loop moves the stack pointer each time), but not those after noreturn calls. For
    /// processors with code that mostly lacks unwind tables.
    const EVERY_PATH: bool = false;

    /// The address of code, and the state of a path that starts there. If the lowest bit of code addresses is the
    /// instruction set, it is cleared.
    fn begin(at: Avma) -> (Avma, FlowState) {
        (at, FlowState::new())
    }

    /// The values of all columns of a stopped thread. `mask`: the address bits of a code pointer.
    fn values(&self, mask: u64) -> Values<Self>;

    /// The address bits of a code pointer, or of a saved frame pointer; for `mask` see
    /// [`Input::address_mask`](super::Input::address_mask).
    fn address_bits(pointer: u64, _mask: u64) -> u64 {
        pointer
    }

    /// Executes the instruction at the start of `bytes`, at the address `at`; returns its effect and length.
    /// `None` for an invalid instruction.
    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)>;

    /// Whether a call precedes an address in executable memory.
    fn returns(address: Avma, code: &dyn Code) -> bool;

    /// Whether code is the signal trampoline, to which handlers return.
    fn is_sigreturn(code: &[u8]) -> bool;

    /// Whether code is start code after the call of `main`, or of a thread's function.
    fn is_start_code(code: &[u8]) -> bool;

    /// Whether code makes the `exit` system call that follows a thread's first function, mostly with its result.
    fn ends_thread(code: &[u8]) -> bool;

    /// The address of the frame record of a frame pointer.
    #[inline]
    fn frame_record(frame_pointer: u64) -> u64 {
        frame_pointer.wrapping_add_signed(Self::FRAME_RECORD_AT)
    }

    /// Bytes that a call pushes: the return address, unless there is a link register.
    fn pushed_by_call() -> i64 {
        if Self::LINK.is_some() { 0 } else { Self::POINTER_BYTES.cast_signed() }
    }
}

/// Whether a signal handler's return address is the first instruction of a trampoline, as on Linux: macOS's
/// trampoline has called the handler.
pub(super) fn begins_trampoline<P: Processor>(at: Avma, code: &dyn Code) -> bool {
    P::is_sigreturn(code.code(at).unwrap_or_default()) || !P::returns(at, code)
}

// ---- The row at an address with unwind information for function bodies only, or without any: Mach-O images. Input:
// an address, its unwind information, and code; output: a row and its source. If instructions and unwind
// information differ, the address is in a prologue or an epilogue, and the instructions are right.

/// A call this close to the start of a function may be part of its prologue: an outlined piece, or the check of a
/// large frame.
const PROLOGUE_BYTES: u64 = 64;

/// The row at `address`. `said` is the row of its unwind information, if that describes a body.
pub(super) fn body_row<P: Processor>(
    address: CodeAddress,
    said: Option<(RowOf<P>, Method)>,
    code: &dyn Code,
) -> Option<(RowOf<P>, Method)> {
    let (at, returned) = (address.at(), address.is_return());
    let entry = code.function(address.lookup().at()).map(|function| function.start);
    // Apple's list of functions is complete; symbols of other formats may belong to a part that is never called,
    // so all paths must agree.
    let is_listed = code.begins_threads(address.lookup().at()).is_some();
    let since_entry = || match is_listed {
        true => flow::since_entry::<P>(entry?, at, returned, code),
        false => flow::since_entry_on_all_paths::<P>(entry?, at, returned, code),
    };
    let before_return = || flow::before_return::<P>(at, returned, code);
    // A load of the link register proves that a path leads to a return. On x86_64 such paths miss arguments that
    // callees pop.
    let by_either = || match P::LINK {
        Some(_) => before_return().or_else(since_entry),
        None => since_entry().or_else(before_return),
    };
    let by_code = match (&said, entry) {
        (Some(_), Some(entry)) if returned && at - entry <= PROLOGUE_BYTES => since_entry(),
        (Some(_), _) if returned => None,
        _ => by_either(),
    };
    match (by_code, said) {
        (Some(body_row), Some((said, method))) if body_row == said => Some((body_row, method)),
        (Some(body_row), _) => Some((body_row, Method::Code)),
        (None, said) => said,
    }
}

/// The method name of a row for a body.
pub(super) fn method(compact: bool) -> Method {
    if compact { Method::Compact } else { Method::Cfi }
}

/// Whether the function at an address marks itself as the outermost, in an image where threads begin.
/// `thread_start` of newer libpthreads pushes a null return address, then creates its frame record (it is entered
/// with the stack pointer at the pthread structure, so the word above is not null); `__dyld_start` of older dyld
/// pushes a null frame pointer. The kernel's initial register values add no proof: for pthreads it clears the
/// frame pointer (osfmk/i386/pcb_native.c, thread_set_wq_state64).
pub(super) fn marks_first<P: Processor>(address: CodeAddress, code: &dyn Code) -> bool {
    let (at, returned) = (address.at(), address.is_return());
    let entry = code.function(address.lookup().at()).map(|function| function.start);
    entry.is_some_and(|entry| flow::ends_chain::<P>(entry, at, returned, code))
}

/// Whether the function at an address has no caller: threads begin in its image, and the walk led to a null return
/// address and a null frame pointer (libpthread src/pthread_asm.s, dyld dyldStartup.s). A single null may be any
/// word of a stack. `None` outside Mach-O images, where other rules apply.
pub(super) fn is_first(
    address: CodeAddress,
    caller: Avma,
    frame_pointer: u64,
    code: &dyn Code,
) -> Option<bool> {
    let begins = code.begins_threads(address.lookup().at())?;
    Some(begins && caller == Avma(0) && frame_pointer == 0)
}
