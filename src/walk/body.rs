//! The row at an address with unwind information for function bodies only, or without any: Mach-O images. Input:
//! an address, its unwind information, and code; output: a row and its source. If instructions and unwind
//! information differ, the address is in a prologue or an epilogue, and the instructions are right.

use super::flow;
use super::processor::{Processor, RowOf};
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::frames::Method;

/// A call this close to the start of a function may be part of its prologue: an outlined piece, or the check of a
/// large frame.
const PROLOGUE_BYTES: u64 = 64;

/// The row at `address`. `said` is the row of its unwind information, if that describes a body.
pub(super) fn row<P: Processor>(
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
        (Some(row), Some((said, method))) if row == said => Some((row, method)),
        (Some(row), _) => Some((row, Method::Code)),
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
