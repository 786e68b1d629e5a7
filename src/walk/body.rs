//! The row at an address where unwind information describes the bodies of functions only, or
//! nothing: Mach-O images. Input: an address, what its unwind information says, and code;
//! output: a row and its source. Where instructions and unwind information differ, the
//! address is in a prologue or an epilogue, and the instructions are right.

use super::flow;
use super::processor::{Processor, RowOf};
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::frames::Method;

/// A call this near to the start of a function may be part of its prologue: pieces that the machine outliner split
/// off, and the check of a large frame.
const PROLOGUE_BYTES: u64 = 64;

/// The row at `address`. `said` is the row of unwind information there, if it describes a body.
pub(super) fn row<P: Processor>(
    address: CodeAddress,
    said: Option<(RowOf<P>, Method)>,
    code: &dyn Code,
) -> Option<(RowOf<P>, Method)> {
    let (at, returned) = (address.at(), address.is_return());
    let entry = code.function(address.lookup().at()).map(|function| function.start);
    // Apple's list of functions has every one; symbols of others may be of a part that no call
    // leads to, so that all paths must agree.
    let is_listed = code.begins_threads(address.lookup().at()).is_some();
    let since_entry = || match is_listed {
        true => flow::since_entry::<P>(entry?, at, returned, code),
        false => flow::since_entry_on_all_paths::<P>(entry?, at, returned, code),
    };
    let before_return = || flow::before_return::<P>(at, returned, code);
    // A link register proves the path to a return: it is loaded on it. On x86_64 what callees
    // take off the stack would be missed there.
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
        (Some(row), Some((said, method))) if row == said => Some((row, method)),
        (Some(row), _) => Some((row, Method::Code)),
        (None, said) => said,
    }
}

/// The method of a row for a body.
pub(super) fn method(compact: bool) -> Method {
    if compact { Method::Compact } else { Method::Cfi }
}

/// Whether the function at an address says itself that nothing called it, in an image in which
/// threads begin. `thread_start` of newer libpthreads pushes a null return address, and then
/// makes its frame record (it is entered with the stack pointer at the pthread structure, so
/// that the word above is not null), `__dyld_start` of older dyld a null frame pointer. What
/// the kernel left in registers then proves nothing more: for pthreads it clears the frame
/// pointer (osfmk/i386/pcb_native.c, thread_set_wq_state64).
pub(super) fn marks_first<P: Processor>(address: CodeAddress, code: &dyn Code) -> bool {
    let (at, returned) = (address.at(), address.is_return());
    let entry = code.function(address.lookup().at()).map(|function| function.start);
    entry.is_some_and(|entry| flow::ends_chain::<P>(entry, at, returned, code))
}

/// Whether nothing called the function at an address: threads begin in its image, and the
/// walk led to no return address and no frame (libpthread src/pthread_asm.s, dyld
/// dyldStartup.s). One of the two alone is what any word of a stack may be. `None` outside
/// Mach-O images, where other rules hold.
pub(super) fn is_first(
    address: CodeAddress,
    caller: Avma,
    frame_pointer: u64,
    code: &dyn Code,
) -> Option<bool> {
    let begins = code.begins_threads(address.lookup().at())?;
    Some(begins && caller == Avma(0) && frame_pointer == 0)
}
