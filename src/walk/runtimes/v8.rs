//! Frames of V8 on x86_64, which marks them. Input: a frame and the copied stack; output: whether the frame has such a
//! mark.

use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::walk::Input;
use crate::walk::frame::Frame;

/// Whether rbp points to the frame record of a function of V8 that has called: V8 finds its own
/// frames so, at every call, and marks them. Below the saved frame pointer is the context, a tagged
/// pointer, and below that the function, another one; or, in other frames than those of
/// JavaScript, the kind of the frame as a small integer, whose tag is 0.
/// Source: V8 src/execution/frame-constants.h, frames.h (`StackFrame::TypeToMarker`).
pub(in crate::walk) fn has_frame_mark(from: &Frame<X86_64>, input: &Input<'_>) -> bool {
    const KIND_MAX: u64 = 128;
    let CodeAddress::Return(_) = from.address else { return false };
    if !input.code.traits(from.address.lookup().at()).keeps_frame_records {
        return false;
    }
    let record = from.registers[X86_64::RBP] & input.code_mask;
    let below = |bytes: u64| input.read::<u64>(Avma(record.checked_sub(bytes)?));
    let is_tagged = |word: u64| word & 3 == 1;
    match (below(8), below(16)) {
        (Some(context), Some(function)) if is_tagged(context) => is_tagged(function),
        (Some(kind), _) => kind > 0 && kind <= KIND_MAX && kind & 1 == 0,
        _ => false,
    }
}
