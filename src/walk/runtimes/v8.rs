//! Frames of V8 on x86_64, which have a type marker. Input: a frame and the copied stack; output: whether the
//! frame has a marker.

use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::walk::Input;
use crate::walk::frame::Frame;

/// Whether rbp points to the frame record of a V8 function that has called: V8 maintains a record at every call to
/// find its own frames, with a marker. Below the saved frame pointer is the context, a tagged pointer, and below
/// that the function, another one; frames other than JavaScript's have the frame type as a small integer with tag
/// 0.
/// Source: V8 src/execution/frame-constants.h, frames.h (`StackFrame::TypeToMarker`).
pub(in crate::walk) fn has_frame_mark(from: &Frame<X86_64>, input: &Input<'_>) -> bool {
    const KIND_MAX: u64 = 128;
    let CodeAddress::Return(_) = from.address else { return false };
    if !input.code.traits(from.address.lookup().at()).keeps_frame_records {
        return false;
    }
    let record = from.registers[X86_64::RBP] & input.address_mask;
    let below = |bytes: u64| input.read::<u64>(Avma(record.checked_sub(bytes)?));
    let is_tagged = |word: u64| word & 3 == 1;
    match (below(8), below(16)) {
        (Some(context), Some(function)) if is_tagged(context) => is_tagged(function),
        (Some(kind), _) => kind > 0 && kind <= KIND_MAX && kind & 1 == 0,
        _ => false,
    }
}
