//! Whether an address is a return address of a call: decided by the instruction before it. Input: code bytes;
//! output: yes or no.
//!
//! Encodings: Intel SDM volume 2, CALL.

use super::Intel;
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;

/// Longest form of an indirect call, without prefixes.
const CALL_BYTES_MAX: u64 = 7;

/// Whether code before `address` ends in a call. Memory with unknown bytes passes if it is code, and so does
/// HotSpot's code.
pub(in crate::walk) fn returns<P: Intel>(address: Avma, code: &dyn Code) -> bool {
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
