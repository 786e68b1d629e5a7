//! Whether a caller is the one that called: what instructions tell of code whose entry is not
//! known is not certain (see [`super::forward::Proof`]), and a word that a search of the stack found may be
//! stale. Input: a frame, the caller that was found, code; output: whether something else leads to the
//! same caller.
//!
//! Two things can: a frame record that rbp points to in the very place where the instructions
//! say that the frame ends; and the call in front of the return address. Its target is an
//! entry, and the ways from there to where the callee is tell where the return address must be.

use super::{Intel, SinceEntry};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::frame::Frame;
use crate::walk::{Code, Input};

/// Jumps from one to the next that lead from a call to the function.
const JUMPS_MAX: u32 = 4;
const CALL_BYTES: u64 = 5;

/// Whether `next` is confirmed as the caller of `from`.
pub(in crate::walk) fn is_caller<P: Intel<N>, const N: usize>(
    from: &Frame<P, N>,
    next: &Frame<P, N>,
    cache: &mut dyn SinceEntry<N>,
    input: &Input<'_>,
) -> bool {
    is_at_record(from, next, input) || is_called_from(from, next, cache, input)
}

/// Whether rbp points to a frame record that leads to the same caller.
fn is_at_record<P: Intel<N>, const N: usize>(
    from: &Frame<P, N>,
    next: &Frame<P, N>,
    input: &Input<'_>,
) -> bool {
    let frame_pointer = usize::from(P::FRAME_POINTER);
    let record = from.registers[frame_pointer] & input.code_mask;
    record >= from.sp().0
        && next.sp().0 == record.wrapping_add(2 * P::POINTER_BYTES)
        && input.read::<P::Word>(Avma(record)) == Some(next.registers[frame_pointer])
}

/// Whether the call that returns to `next` leads to where `from` is, with the same frame.
pub(in crate::walk) fn is_called_from<P: Intel<N>, const N: usize>(
    from: &Frame<P, N>,
    next: &Frame<P, N>,
    cache: &mut dyn SinceEntry<N>,
    input: &Input<'_>,
) -> bool {
    let Some(entry) = calls::<P, N>(next.address, input.code) else { return false };
    let row = cache.since_entry(entry, from.address, input.code);
    row.is_some_and(|row| leads_to(row, from, next, input))
}

/// Whether the call that returns to an address calls the function that `from` is in.
pub(in crate::walk) fn calls_function_of<P: Intel<N>, const N: usize>(
    address: CodeAddress,
    from: &Frame<P, N>,
    code: &dyn Code,
) -> bool {
    let function = code.function(from.address.lookup().at());
    let target = calls::<P, N>(address, code);
    let Some((function, mut target)) = function.zip(target) else { return false };
    for _ in 0..JUMPS_MAX {
        if target == function.start {
            return true;
        }
        let Some(next) = jumps_to::<P, N>(target, code) else { return false };
        target = next;
    }
    false
}

/// Where the direct call in front of a return address leads to.
pub(in crate::walk) fn called_from<P: Intel<N>, const N: usize>(
    address: CodeAddress,
    code: &dyn Code,
) -> Option<Avma> {
    let CodeAddress::Return(at) = address else { return None };
    target_of::<P, N>(code.code(Avma(at.0.checked_sub(CALL_BYTES)?))?, at)
}

/// The same, by a glance: nothing is learned of it.
pub(in crate::walk) fn calls<P: Intel<N>, const N: usize>(
    address: CodeAddress,
    code: &dyn Code,
) -> Option<Avma> {
    let CodeAddress::Return(at) = address else { return None };
    target_of::<P, N>(code.glance(Avma(at.0.checked_sub(CALL_BYTES)?)).bytes(), at)
}

fn target_of<P: Intel<N>, const N: usize>(call: &[u8], returns_to: Avma) -> Option<Avma> {
    let [0xe8, a, b, c, d, ..] = call else { return None };
    Some(P::from(returns_to, i32::from_le_bytes([*a, *b, *c, *d]).into()))
}

/// Where code goes on that does nothing but jump: `jmp`, with `endbr64` or `endbr32` before it or not.
fn jumps_to<P: Intel<N>, const N: usize>(at: Avma, code: &dyn Code) -> Option<Avma> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const ENDBR32: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfb];
    let glance = code.glance(at);
    let bytes = glance.bytes();
    let (at, bytes) = bytes
        .strip_prefix(if P::IS_LONG { ENDBR64 } else { ENDBR32 })
        .map_or((at, bytes), |rest| (at + 4, rest));
    match bytes {
        [0xe9, a, b, c, d, ..] => Some(P::from(at + 5, i32::from_le_bytes([*a, *b, *c, *d]).into())),
        [0xeb, distance, ..] => Some(P::from(at + 2, (*distance as i8).into())),
        _ => None,
    }
}

/// Whether a row leads from a frame to that caller: with its stack pointer and frame pointer.
fn leads_to<P: Intel<N>, const N: usize>(
    row: &Row<N>,
    from: &Frame<P, N>,
    next: &Frame<P, N>,
    input: &Input<'_>,
) -> bool {
    let Cfa::Register(register, offset) = row.cfa else { return false };
    let Some(base) = from.registers.get(usize::from(register)) else { return false };
    let cfa = base.wrapping_add_signed(offset);
    let column = usize::from(P::FRAME_POINTER);
    let frame_pointer = match row.columns[column] {
        Column::Same => Some(from.registers[column]),
        Column::At(at) => input.read::<P::Word>(Avma(cfa.wrapping_add_signed(at))),
        _ => None,
    };
    cfa == next.sp().0 && frame_pointer == Some(next.registers[column])
}
