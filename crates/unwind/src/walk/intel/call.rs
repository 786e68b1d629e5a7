//! Whether an address is a return address of a call: decided by the instruction before it. Input: code bytes;
//! output: yes or no.
//!
//! `returns` is that; `is_caller` confirms a caller that is uncertain, by its frame record or by its call.
//!
//! Encodings: Intel SDM volume 2, CALL.

use super::Intel;
use super::instructions::decode;
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column};
use crate::walk::engine::CallRows;
use crate::walk::frames::Frame;
use crate::walk::processor::RowOf;
use crate::walk::{Code, Input};

/// Longest form of an indirect call, without prefixes.
const CALL_BYTES_MAX: u64 = 7;

/// Whether code before `address` ends in a call. Memory with unknown bytes passes if it is code, and so does
/// HotSpot's code.
pub(crate) fn returns<P: Intel>(address: Avma, code: &dyn Code) -> bool {
    let lookup = CodeAddress::Return(address).lookup().at();
    if !code.is_code(lookup) {
        return false;
    }
    let traits = code.traits(lookup);
    if traits.has_hotspot_headers {
        return true;
    }
    let mut buffer = [0u8; CALL_BYTES_MAX as usize];
    let mut known = 0;
    for length in (2..=CALL_BYTES_MAX).rev() {
        let before = address.0.checked_sub(length).map(|start| code.glance(Avma(start))).unwrap_or_default();
        if let Some(bytes) = before.bytes().get(..length as usize) {
            buffer[(CALL_BYTES_MAX - length) as usize..].copy_from_slice(bytes);
            known = length as usize;
            break;
        }
    }
    if known == 0 {
        return traits.is_jit || code.code(lookup).is_none();
    }
    let bytes = &buffer[CALL_BYTES_MAX as usize - known..];
    ends_in_call(bytes, |distance| code.is_code(P::from(address, distance)))
}

/// Whether bytes end in a call instruction; `is_code`: whether a distance from their end leads to code.
///
/// ```text
/// e8 rel32                 call rel32
/// ff /2, modrm 2 to 7 bytes: call *register, call *memory
/// ```
fn ends_in_call(bytes: &[u8], is_code: impl Fn(i64) -> bool) -> bool {
    if let [.., 0xe8, a, b, c, d] = bytes
        && is_code(i32::from_le_bytes([*a, *b, *c, *d]).into())
    {
        return true;
    }
    (2..=bytes.len()).any(|length| {
        let call = &bytes[bytes.len() - length..];
        call[0] == 0xff && indirect_call_length(call) == Some(length)
    })
}

/// Length of `ff /2` with its addressing form.
fn indirect_call_length(call: &[u8]) -> Option<usize> {
    let modrm = *call.get(1)?;
    if modrm >> 3 & 7 != 2 {
        return None;
    }
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && rm == 4;
    let displacement = match mode {
        0 if rm == 5 => 4,
        0 if has_sib && call.get(2)? & 7 == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(2 + usize::from(has_sib) + displacement)
}

// ---- Confirms a caller: a row from instructions is uncertain if the function's entry is unknown (see
// [`Proof`](crate::walk::engine::Proof)), and a word found by a stack scan may be stale.
//
// There are two kinds of evidence: a frame record that rbp points to exactly where the frame ends according to the
// instructions; and the call before the return address. Its target, in the instruction or from an address still in
// the caller's frame, is an entry, and the paths from there to the callee's address show where the return address
// must be.

/// Limit on jumps that lead from a call to the function, one to the next.
const JUMPS_MAX: u32 = 4;
const CALL_BYTES: u64 = 5;
/// Limits on functions that jump from one to the next, and on bytes searched in each.
const FUNCTIONS_MAX: usize = 8;
const FUNCTION_BYTES_MAX: usize = 16 << 10;

/// Whether `next` is confirmed as the caller of `from`.
pub(crate) fn is_caller<P: Intel>(
    from: &Frame<P>,
    next: &Frame<P>,
    rows: &mut CallRows<P>,
    input: &Input<'_>,
) -> bool {
    is_at_record(from, next, input) || is_called_from(from, next, rows, input)
}

/// Whether rbp points to a frame record that leads to the same caller.
fn is_at_record<P: Intel>(from: &Frame<P>, next: &Frame<P>, input: &Input<'_>) -> bool {
    let frame_pointer = usize::from(P::FRAME_POINTER);
    let record = from.registers[frame_pointer] & input.address_mask;
    record >= from.sp().0
        && next.sp().0 == record.wrapping_add(2 * P::POINTER_BYTES)
        && input.read::<P::Word>(Avma(record)) == Some(next.registers[frame_pointer])
}

/// Whether the call that returns to `next` leads to the address of `from`, with the same frame.
pub(crate) fn is_called_from<P: Intel>(
    from: &Frame<P>,
    next: &Frame<P>,
    rows: &mut CallRows<P>,
    input: &Input<'_>,
) -> bool {
    let called = calls::<P>(next.address, input.code).or_else(|| called_by_address(next, input));
    let Some(entry) = called else { return false };
    let row = rows.row(entry, from.address, input.code);
    row.is_some_and(|row| leads_to(row, from, next, input))
}

/// Whether the call before a return address calls the function of `from`.
pub(crate) fn calls_function_of<P: Intel>(address: CodeAddress, from: &Frame<P>, code: &dyn Code) -> bool {
    let function = code.function(from.address.lookup().at());
    let target = calls::<P>(address, code);
    let Some((function, mut target)) = function.zip(target) else { return false };
    for _ in 0..JUMPS_MAX {
        if target == function.start {
            return true;
        }
        let Some(next) = jumps_to::<P>(target, code) else { return false };
        target = next;
    }
    false
}

/// Whether the call before a return address is known to call another function than that of `from`, and none that
/// continues there by a jump.
pub(crate) fn calls_another_function<P: Intel>(
    address: CodeAddress,
    from: &Frame<P>,
    code: &dyn Code,
) -> bool {
    let function = code.function(from.address.lookup().at());
    let target = called_from::<P>(address, code);
    target.zip(function).is_some_and(|(target, function)| !may_become::<P>(target, function.start, code))
}

/// Whether a function may leave by a jump to the one at `to`, or is that one; `true` if unknown.
fn may_become<P: Intel>(function: Avma, to: Avma, code: &dyn Code) -> bool {
    let (mut entries, mut known, mut next) = ([function; FUNCTIONS_MAX], 1, 0);
    while next < known {
        let entry = entries[next];
        next += 1;
        let Some(function) = code.function(entry) else { return true };
        if function.start == to {
            return true;
        }
        let bytes = usize::try_from(function.end.0.saturating_sub(function.start.0)).unwrap_or(usize::MAX);
        let whole = code.code(function.start).and_then(|code| code.get(..bytes));
        let Some(whole) = whole.filter(|_| bytes <= FUNCTION_BYTES_MAX) else { return true };
        let mut at = 0;
        while at < whole.len() {
            let decoded =
                if P::IS_LONG { decode::<true>(&whole[at..]) } else { decode::<false>(&whole[at..]) };
            let Some(instruction) = decoded else { return true };
            at += instruction.length;
            let jumps = match (instruction.map, instruction.opcode) {
                (0, 0x70..=0x7f | 0xe9 | 0xeb) | (1, 0x80..=0x8f) => true,
                // Through a register or memory.
                (0, 0xff) if matches!(instruction.operands(), Some((_, 4, _))) => return true,
                _ => false,
            };
            let target = P::from(function.start + at as u64, instruction.immediate);
            if !jumps || function.contains(&target) || entries[..known].contains(&target) {
                continue;
            }
            if known == FUNCTIONS_MAX {
                return true;
            }
            entries[known] = target;
            known += 1;
        }
    }
    false
}

/// The target of the direct call before a return address.
pub(crate) fn called_from<P: Intel>(address: CodeAddress, code: &dyn Code) -> Option<Avma> {
    let CodeAddress::Return(at) = address else { return None };
    target_of::<P>(code.code(Avma(at.0.checked_sub(CALL_BYTES)?))?, at)
}

/// The target of the direct call before a return address, by a glance, which records no dependency.
pub(crate) fn calls<P: Intel>(address: CodeAddress, code: &dyn Code) -> Option<Avma> {
    let CodeAddress::Return(at) = address else { return None };
    target_of::<P>(code.glance(Avma(at.0.checked_sub(CALL_BYTES)?)).bytes(), at)
}

fn target_of<P: Intel>(call: &[u8], returns_to: Avma) -> Option<Avma> {
    let [0xe8, a, b, c, d, ..] = call else { return None };
    Some(P::from(returns_to, i32::from_le_bytes([*a, *b, *c, *d]).into()))
}

/// The target of the call before the return address of `caller`, if it is a word of its frame loaded right before
/// (like the C library's call of `main`), or a callee-saved register.
fn called_by_address<P: Intel>(caller: &Frame<P>, input: &Input<'_>) -> Option<Avma> {
    /// mov disp8(%rsp),%register; call *%register
    const BYTES: u64 = 7;
    let CodeAddress::Return(at) = caller.address else { return None };
    if !P::IS_LONG {
        return None;
    }
    let before = input.code.glance(Avma(at.0.checked_sub(BYTES)?));
    let before = before.bytes().get(..BYTES as usize)?;
    if let [0x48, 0x8b, modrm, 0x24, bytes, 0xff, call] = before
        && modrm & 0xc7 == 0x44
        && call & 0xf8 == 0xd0
        && modrm >> 3 & 7 == call & 7
    {
        let slot = caller.sp().0.wrapping_add_signed((*bytes as i8).into());
        return input.read::<P::Word>(Avma(slot)).map(Avma);
    }
    let register = match before {
        // call *%r12 to call *%r15
        [.., 0x41, 0xff, call @ 0xd4..=0xd7] => 8 + (call & 7),
        // call *%rbx
        [.., 0xff, 0xd3] => 3,
        _ => return None,
    };
    Some(Avma(*caller.registers.as_ref().get(usize::from(register))?))
}

/// The target of code that only jumps: `jmp`, optionally after `endbr64` or `endbr32`.
fn jumps_to<P: Intel>(at: Avma, code: &dyn Code) -> Option<Avma> {
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

/// Whether a row leads from a frame to this caller: with its stack pointer and frame pointer.
fn leads_to<P: Intel>(row: &RowOf<P>, from: &Frame<P>, next: &Frame<P>, input: &Input<'_>) -> bool {
    let Cfa::Register(register, offset) = row.cfa else { return false };
    let Some(base) = from.registers.as_ref().get(usize::from(register)) else { return false };
    let cfa = base.wrapping_add_signed(offset);
    let column = usize::from(P::FRAME_POINTER);
    let frame_pointer = match row.columns[column] {
        Column::Same => Some(from.registers[column]),
        Column::At(at) => input.read::<P::Word>(Avma(cfa.wrapping_add_signed(at))),
        _ => None,
    };
    cfa == next.sp().0 && frame_pointer == Some(next.registers[column])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_instructions_are_recognized_and_similar_bytes_are_not() {
        let near = |distance: i64| (-100..100).contains(&distance);
        for call in [
            &[0xe8, 5, 0, 0, 0][..],         // call +5
            &[0xff, 0xd0],                   // call *%rax
            &[0x41, 0xff, 0xd4],             // call *%r12
            &[0xff, 0x10],                   // call *(%rax)
            &[0xff, 0x50, 0x18],             // call *0x18(%rax)
            &[0xff, 0x14, 0xc3],             // call *(%rbx,%rax,8)
            &[0x41, 0xff, 0x54, 0xc4, 8],    // call *8(%r12,%rax,8)
            &[0xff, 0x15, 1, 2, 3, 0],       // call *0x30201(%rip)
            &[0xff, 0x90, 0, 1, 0, 0],       // call *0x100(%rax)
            &[0xff, 0x94, 0xc3, 0, 1, 0, 0], // call *0x100(%rbx,%rax,8)
            &[0xff, 0x14, 0xc5, 0, 1, 0, 0], // call *0x100(,%rax,8)
            &[0x90, 0x90, 0xff, 0xd0],
        ] {
            assert!(ends_in_call(call, near), "{call:x?}");
        }
        for other in [
            &[0xe8, 5, 0, 0, 1][..], // too far
            &[0xff, 0xe0],           // jmp *%rax
            &[0xff, 0x30],           // push (%rax)
            &[0xff, 0x50],           // truncated
            &[0xff, 0x14],
            &[0xff, 0xd0, 0x90],
            &[0xc3],
            &[],
        ] {
            assert!(!ends_in_call(other, near), "{other:x?}");
        }
    }
}
