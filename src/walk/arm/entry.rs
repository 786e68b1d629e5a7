//! The possible entry of a function without a symbol: searches backward from an address for instructions that save
//! the link register. Input: an address, with its T32 bit, and code; output: the nearest entry from which paths
//! reach the address, and the row by them.
//!
//! Matching bytes may be data, or belong to another function: so paths from there must reach the address, and the
//! result is certain only if the caller calls exactly that entry.

use super::T32;
use crate::addr::Avma;
use crate::arch::Arm;
use crate::binary::frame_rule::RowArm;
use crate::walk::{Code, flow};

/// Limit on bytes searched before an address.
const SEARCHED_MAX: u64 = 4096;
/// Limit on entries tried.
const TRIES_MAX: u32 = 4;

/// The row at `at` and the assumed entry of its function: the nearest instructions before it that save the link
/// register and from which paths reach it. `returned`: a call has just returned.
pub(super) fn row(at: Avma, returned: bool, code: &dyn Code) -> Option<(RowArm, Avma)> {
    let mut tries_left = TRIES_MAX;
    let (start, before) = code_before(Avma(at.0 & !T32), code)?;
    let is_t32 = at.0 & T32 != 0;
    let step = if is_t32 { 2 } else { 4 };
    // The instruction at the address itself comes first.
    let mut index = before.len() / step * step;
    while let Some(previous) = index.checked_sub(step) {
        index = previous;
        let saves = if is_t32 { saves_link_t32(before, index) } else { saves_link_a32(before, index) };
        if !saves {
            continue;
        }
        tries_left = tries_left.checked_sub(1)?;
        while let Some(earlier) = index.checked_sub(step) {
            let extends =
                if is_t32 { goes_before_t32(before, earlier) } else { goes_before_a32(before, earlier) };
            if !extends {
                break;
            }
            index = earlier;
        }
        let entry = Avma((start + index as u64).0 | at.0 & T32);
        if let Some(row) = flow::since_entry_on_all_paths::<Arm>(entry, at, returned, code) {
            return Some((row, entry));
        }
    }
    None
}

/// The longest known code before an address, including the word there.
fn code_before(at: Avma, code: &dyn Code) -> Option<(Avma, &[u8])> {
    let mut back = SEARCHED_MAX;
    loop {
        if let Some(from) = at.0.checked_sub(back).map(Avma)
            && let Some(bytes) = code.code(from)
        {
            let length = usize::try_from(back).ok()?.checked_add(4)?;
            return Some((from, &bytes[..length.min(bytes.len())]));
        }
        back = back.checked_sub(64)?;
    }
}

fn half(bytes: &[u8], index: usize) -> Option<u16> {
    bytes.get(index..)?.first_chunk().map(|half| u16::from_le_bytes(*half))
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.get(index..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn saves_link_t32(bytes: &[u8], index: usize) -> bool {
    match (half(bytes, index), half(bytes, index + 2)) {
        // push {..., lr}
        (Some(first), _) if first & 0xff00 == 0xb500 => true,
        (Some(0xe92d), Some(list)) => list & 0x4000 != 0,
        // str lr, [sp, #-4]!
        (Some(0xf84d), Some(0xed04)) => true,
        // strd rN, lr, [sp, #-M]!
        (Some(0xe96d), Some(second)) => second >> 8 & 0xf == 14,
        _ => false,
    }
}

fn saves_link_a32(bytes: &[u8], index: usize) -> bool {
    word(bytes, index).is_some_and(|word| word & 0xffff_4000 == 0xe92d_4000 || word == 0xe52d_e004)
}

/// Whether an instruction may precede the save: variadic functions push their arguments first, or reserve space.
fn goes_before_t32(bytes: &[u8], index: usize) -> bool {
    half(bytes, index).is_some_and(|half| half & 0xfff0 == 0xb400 || half & 0xff80 == 0xb080)
}

fn goes_before_a32(bytes: &[u8], index: usize) -> bool {
    // push {r0-r3}; mov ip, sp; sub sp, sp, #N
    word(bytes, index).is_some_and(|word| {
        word & 0xffff_fff0 == 0xe92d_0000 || word == 0xe1a0_c00d || word & 0xffff_f000 == 0xe24d_d000
    })
}
