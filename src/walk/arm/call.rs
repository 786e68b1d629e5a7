//! Whether an address is a return address of a 32-bit Arm call: decided by the instruction before it. Input: code;
//! output: the target of the call, if known. The lowest bit of addresses marks T32.
//!
//! Encodings: DDI 0406, A8.8.25 (BL, BLX with an offset) and A8.8.26 (BLX with a register).

use super::T32;
use super::operations::{signed, target};
use crate::addr::Avma;
use crate::walk::Code;

/// The target of the call before a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// This address, with its T32 bit.
    To(Avma),
    /// The address in a register.
    Anywhere,
}

/// The call before a return address; `None` if there is none.
pub(super) fn before(address: Avma, code: &dyn Code) -> Option<Call> {
    if address.0 & T32 != 0 { in_t32(Avma(address.0 & !T32), code) } else { in_a32(address, code) }
}

fn half(at: u64, code: &dyn Code) -> Option<u16> {
    code.code(Avma(at))?.first_chunk().map(|half| u16::from_le_bytes(*half))
}

fn word(at: u64, code: &dyn Code) -> Option<u32> {
    code.code(Avma(at))?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn in_t32(at: Avma, code: &dyn Code) -> Option<Call> {
    let last = at.0.checked_sub(2)?;
    if !code.is_code(Avma(last)) {
        return None;
    }
    // The code is unknown.
    let Some(second) = half(last, code) else { return Some(Call::Anywhere) };
    // blx, blxns
    if second & 0xff80 == 0x4780 {
        return Some(Call::Anywhere);
    }
    let from = at.0.checked_sub(4)?;
    let first = half(from, code)?;
    if first & 0xf800 != 0xf000 || second & 0xc000 != 0xc000 {
        return None;
    }
    let (high, sign) = (u32::from(first), u32::from(first >> 10 & 1));
    let (i1, i2) = [13, 11].map(|bit| u32::from(u32::from(second >> bit & 1) == sign)).into();
    let offset = sign << 24 | i1 << 23 | i2 << 22 | (high & 0x3ff) << 12 | u32::from(second & 0x7ff) << 1;
    let to_t32 = second >> 12 & 1 == 1;
    let base = if to_t32 { from + 4 } else { (from & !3) + 4 };
    Some(Call::To(Avma(target(base, signed(offset, 25)).0 | if to_t32 { T32 } else { 0 })))
}

fn in_a32(at: Avma, code: &dyn Code) -> Option<Call> {
    let from = at.0.checked_sub(4).filter(|from| from.is_multiple_of(4))?;
    if !code.is_code(Avma(from)) {
        return None;
    }
    let Some(call) = word(from, code) else { return Some(Call::Anywhere) };
    let offset = signed(call & 0xff_ffff, 24) * 4;
    match (call >> 28, call >> 24 & 0xf) {
        (0xf, 0xa | 0xb) => {
            let half = i64::from(call >> 24 & 1) * 2;
            Some(Call::To(Avma(target(from + 8, offset + half).0 | T32)))
        }
        (0xf, _) => None,
        (_, 0xb) => Some(Call::To(target(from + 8, offset))),
        _ if call & 0x0fff_fff0 == 0x012f_ff30 => Some(Call::Anywhere),
        // Before Armv5T: mov lr, pc, then bx, mov pc or ldr pc.
        _ => {
            let jumps = call & 0x0fff_fff0 == 0x012f_ff10
                || call & 0x0fff_fff0 == 0x01a0_f000
                || call & 0x0c10_f000 == 0x0410_f000;
            // LLVM's calls of noreturn functions.
            let branches = call >> 24 == 0xea;
            let links = || word(from.checked_sub(4)?, code).map(|word| word & 0x0fff_ffff == 0x01a0_e00f);
            match (branches, jumps) {
                (true, _) if links() == Some(true) => Some(Call::To(target(from + 8, offset))),
                (_, true) if links() == Some(true) => Some(Call::Anywhere),
                _ => None,
            }
        }
    }
}
