//! Whether a caller is the one that called: what instructions tell of code whose entry is not
//! known is not certain (see [`super::forward::Proof`]), and a word that a search of the stack found may be
//! stale. Input: a frame, the caller that was found, code; output: whether something else leads to the
//! same caller.
//!
//! Two things can: a frame record that rbp points to in the very place where the instructions
//! say that the frame ends; and the call in front of the return address. Its target is an
//! entry, and the ways from there to where the callee is tell where the return address must be.

use super::cache::Cache;
use super::frame::Frame;
use super::{RBP, RSP};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::{Code, Input};

/// Jumps from one to the next that lead from a call to the function.
const JUMPS_MAX: u32 = 4;
const CALL_BYTES: u64 = 5;

/// Whether `next` is confirmed as the caller of `from`.
pub(super) fn is_caller(from: &Frame, next: &Frame, cache: &mut Cache, input: &Input<'_>) -> bool {
    is_at_record(from, next, input) || is_called_from(from, next, cache, input)
}

/// Whether rbp points to a frame record that leads to the same caller.
fn is_at_record(from: &Frame, next: &Frame, input: &Input<'_>) -> bool {
    let record = from.registers[RBP] & input.code_mask;
    record >= from.sp().0
        && next.registers[RSP] == record.wrapping_add(16)
        && input.stack.word(Avma(record)) == Some(next.registers[RBP])
}

/// Whether rbp points to the frame record of a function of V8 that has called: V8 finds its own
/// frames so, at every call, and marks them. Below the saved frame pointer is the context, a tagged
/// pointer, and below that the function, another one; or, in other frames than those of
/// JavaScript, the kind of the frame as a small integer, whose tag is 0.
/// Source: V8 src/execution/frame-constants.h, frames.h (`StackFrame::TypeToMarker`).
pub(super) fn is_record_of_v8(from: &Frame, input: &Input<'_>) -> bool {
    const KIND_MAX: u64 = 128;
    let CodeAddress::Return(_) = from.address else { return false };
    if !input.code.keeps_records(from.address.lookup().at()) {
        return false;
    }
    let record = from.registers[RBP] & input.code_mask;
    let below = |bytes: u64| input.stack.word(Avma(record.checked_sub(bytes)?));
    let is_tagged = |word: u64| word & 3 == 1;
    match (below(8), below(16)) {
        (Some(context), Some(function)) if is_tagged(context) => is_tagged(function),
        (Some(kind), _) => kind > 0 && kind <= KIND_MAX && kind & 1 == 0,
        _ => false,
    }
}

/// Whether the call that returns to `next` leads to where `from` is, with the same frame.
pub(super) fn is_called_from(from: &Frame, next: &Frame, cache: &mut Cache, input: &Input<'_>) -> bool {
    let Some(entry) = called_from(next.address, input.code) else { return false };
    let row = cache.since_entry(entry, from.address, input.code);
    row.is_some_and(|row| leads_to(row, from, next, input))
}

/// Whether the call that returns to an address calls the function that `from` is in.
pub(super) fn calls_function_of(address: CodeAddress, from: &Frame, code: &dyn Code) -> bool {
    let function = code.function(from.address.lookup().at());
    let target = called_from(address, code);
    let Some((function, mut target)) = function.zip(target) else { return false };
    for _ in 0..JUMPS_MAX {
        if target == function.start {
            return true;
        }
        let Some(next) = jumps_to(target, code) else { return false };
        target = next;
    }
    false
}

/// Where the direct call in front of a return address leads to.
fn called_from(address: CodeAddress, code: &dyn Code) -> Option<Avma> {
    let CodeAddress::Return(at) = address else { return None };
    let bytes = code.code(Avma(at.0.checked_sub(CALL_BYTES)?))?;
    let [0xe8, a, b, c, d, ..] = bytes else { return None };
    Some(Avma(at.0.wrapping_add_signed(i32::from_le_bytes([*a, *b, *c, *d]).into())))
}

/// Where code goes on that does nothing but jump: `jmp`, with `endbr64` before it or not.
fn jumps_to(at: Avma, code: &dyn Code) -> Option<Avma> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    let bytes = code.code(at)?;
    let (at, bytes) = bytes.strip_prefix(ENDBR64).map_or((at, bytes), |rest| (at + 4, rest));
    match bytes {
        [0xe9, a, b, c, d, ..] => {
            Some(Avma((at + 5).0.wrapping_add_signed(i32::from_le_bytes([*a, *b, *c, *d]).into())))
        }
        [0xeb, distance, ..] => Some(Avma((at + 2).0.wrapping_add_signed((*distance as i8).into()))),
        _ => None,
    }
}

/// Whether a row leads from a frame to that caller: with its stack pointer and frame pointer.
fn leads_to(row: &Row, from: &Frame, next: &Frame, input: &Input<'_>) -> bool {
    let Cfa::Register(register, offset) = row.cfa else { return false };
    let Some(base) = from.registers.get(usize::from(register)) else { return false };
    let cfa = base.wrapping_add_signed(offset);
    let frame_pointer = match row.columns[RBP] {
        Column::Same => Some(from.registers[RBP]),
        Column::At(at) => input.stack.word(Avma(cfa.wrapping_add_signed(at))),
        _ => None,
    };
    cfa == next.registers[RSP] && frame_pointer == Some(next.registers[RBP])
}
