//! A64, A32 and T32, by yaxpeax-arm.
//!
//! The decoder gives the text only: it panics at some encodings that no compiler writes, and does not know others.
//! Panics are caught here, without a message, and such encodings are shown as data.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use yaxpeax_arch::{AddressBase, Decoder, LengthedInstruction, U8Reader};
use yaxpeax_arm::{armv7, armv8};

use super::{Instruction, InstructionSet};
use crate::addr::Svma;

/// Decodes the instructions that begin in the first `length` bytes.
pub(super) fn decode(
    set: InstructionSet,
    code: &[u8],
    start: Svma,
    length: usize,
    take: &mut dyn FnMut(Instruction),
) {
    let mut at = 0;
    while at < length && at < code.len() {
        let rest = &code[at..];
        let bytes = &rest[..instruction_bytes(set, rest).min(rest.len())];
        let svma = Svma(start.0.wrapping_add(at as u64));
        let text = text(set, bytes, svma).unwrap_or_else(|| data(set, bytes));
        at += bytes.len();
        take(Instruction { svma, bytes: bytes.to_vec(), text });
    }
}

/// How long the first instruction is (Arm Architecture Reference Manual, F3.1: half-words from 0b11101 on begin
/// one of four bytes).
fn instruction_bytes(set: InstructionSet, code: &[u8]) -> usize {
    match (set, code) {
        (InstructionSet::T32, [_, high, ..]) if *high < 0b1110_1000 => 2,
        _ => 4,
    }
}

/// What is no known instruction.
fn data(set: InstructionSet, bytes: &[u8]) -> String {
    match *bytes {
        [a, b, c, d] if set == InstructionSet::T32 => {
            format!(".inst.w 0x{:04x}{:04x}", u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
        }
        [a, b, c, d] => format!(".inst 0x{:08x}", u32::from_le_bytes([a, b, c, d])),
        [a, b] => format!(".short 0x{:04x}", u16::from_le_bytes([a, b])),
        _ => {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02x}")).collect();
            format!(".byte {}", digits.join(", "))
        }
    }
}

/// The text of an instruction that is all of `bytes`; `None` where the decoder does not know it.
fn text(set: InstructionSet, bytes: &[u8], svma: Svma) -> Option<String> {
    let reader = &mut U8Reader::new(bytes);
    let text = quietly(|| match set {
        InstructionSet::A64 => Some(armv8::a64::InstDecoder::default().decode(reader).ok()?.to_string()),
        _ => {
            let decoder = armv7::InstDecoder::default().with_thumb_mode(set == InstructionSet::T32);
            let instruction = decoder.decode(reader).ok()?;
            let length = 0u32.wrapping_offset(instruction.len()) as usize;
            (length == bytes.len()).then(|| instruction.to_string())
        }
    })?;
    // So the decoder writes what it does not know.
    let is_known = !text.contains("??") && !text.contains("<illegal");
    let Some((before, offset)) = text.split_once('$').filter(|_| is_known) else {
        return Some(text).filter(|_| is_known);
    };
    let target = target(set, bytes, svma, before, offset)?;
    Some(format!("{before}0x{target:x}"))
}

/// The address that a branch leads to or that an instruction computes. The decoder writes it as an offset: of A64
/// from the instruction (`adrp`: from its page); what it writes of T32 depends on the encoding and is not used.
fn target(set: InstructionSet, bytes: &[u8], svma: Svma, before: &str, offset: &str) -> Option<u64> {
    match (set, bytes) {
        (InstructionSet::A64, _) => {
            let is_page = before.starts_with("adrp");
            let from = if is_page { svma.0 & !0xfff } else { svma.0 };
            let (sign, digits) = offset.split_at_checked(1)?;
            let distance = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
            match sign {
                "+" => Some(from.wrapping_add(distance)),
                "-" => Some(from.wrapping_sub(distance)),
                _ => None,
            }
        }
        (InstructionSet::A32, &[a, b, c, d]) => a32_target(u32::from_le_bytes([a, b, c, d]), svma.0 as u32),
        (InstructionSet::T32, &[a, b]) => t16_target(u16::from_le_bytes([a, b]).into(), svma.0 as u32),
        (InstructionSet::T32, &[a, b, c, d]) => {
            t32_target(u16::from_le_bytes([a, b]).into(), u16::from_le_bytes([c, d]).into(), svma.0 as u32)
        }
        _ => None,
    }
    .map(|target| if set == InstructionSet::A64 { target } else { target & 0xffff_ffff })
}

/// The lowest `bits` bits as a signed number.
fn signed(value: u32, bits: u32) -> u32 {
    let unused = 32 - bits;
    (((value << unused) as i32) >> unused) as u32
}

/// B, BL and BLX of A32 (F5.1.18, F5.1.25): 24 bits of words, from two instructions ahead.
fn a32_target(word: u32, at: u32) -> Option<u64> {
    let is_exchange = word >> 28 == 0b1111;
    let half = if is_exchange { (word >> 24 & 1) << 1 } else { 0 };
    let distance = signed((word & 0xff_ffff) << 2, 26) | half;
    (word >> 25 & 0b111 == 0b101).then(|| u64::from(at.wrapping_add(8).wrapping_add(distance)))
}

/// B (T1, T2), CBZ and CBNZ of T32: from four bytes ahead.
fn t16_target(half: u32, at: u32) -> Option<u64> {
    let distance = match half >> 11 {
        0b11010 | 0b11011 => signed((half & 0xff) << 1, 9),
        0b11100 => signed((half & 0x7ff) << 1, 12),
        0b10110 | 0b10111 if half & 0x500 == 0x100 => (half >> 9 & 1) << 6 | (half >> 3 & 0x1f) << 1,
        _ => return None,
    };
    Some(u64::from(at.wrapping_add(4).wrapping_add(distance)))
}

/// B (T3, T4), BL and BLX of T32: from four bytes ahead; BLX from there rounded down to a word.
fn t32_target(first: u32, second: u32, at: u32) -> Option<u64> {
    if first >> 11 != 0b11110 || second >> 15 != 1 {
        return None;
    }
    let sign = first >> 10 & 1;
    let (j1, j2) = (second >> 13 & 1, second >> 11 & 1);
    let from = at.wrapping_add(4);
    let far = || {
        let (i1, i2) = (!(j1 ^ sign) & 1, !(j2 ^ sign) & 1);
        signed(sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3ff) << 12 | (second & 0x7ff) << 1, 25)
    };
    let near = || signed(sign << 20 | j2 << 19 | j1 << 18 | (first & 0x3f) << 12 | (second & 0x7ff) << 1, 21);
    let (from, distance) = match (second >> 14 & 1, second >> 12 & 1) {
        (0, 0) => (from, near()),
        (0, _) | (1, 1) => (from, far()),
        _ => (from & !3, far() & !3),
    };
    Some(u64::from(from.wrapping_add(distance)))
}

thread_local! {
    /// This thread decodes: what panics does so without a message.
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives; `None` if it panics.
fn quietly<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !DECODES.get() {
                before(info);
            }
        }));
    });
    DECODES.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    DECODES.set(false);
    done.ok().flatten()
}
