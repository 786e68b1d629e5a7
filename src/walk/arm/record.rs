//! The frame record of a function: the target of its frame pointer and the layout there, which differ between
//! compilers (APCS: fp, ip, lr, pc below an old stack pointer in ip; gcc: r11 at the saved link register, or r7 at
//! the bottom of the frame; LLVM: r11 or r7 at the saved frame pointer). So both are derived from the function's
//! first instructions. Input: an entry with its T32 bit; output: a row relative to the frame pointer, valid in the
//! function's body.

use super::{LR, PC, SP};
use crate::addr::Avma;
use crate::arch::Arm;
use crate::binary::frame_rule::{Column, RowArm};
use crate::walk::flow::state::Effect;
use crate::walk::processor::Processor;
use crate::walk::{Code, flow};

/// Limit on instructions of a prologue.
const STEPS_MAX: u32 = 24;
/// Frame pointers, in A32 and in T32.
const FRAME_POINTERS: [u8; 2] = [11, 7];

/// The row in the body of the function at `entry`, relative to the frame pointer that its prologue sets. `None` if
/// its first instructions create no record.
pub(super) fn row(entry: Avma, code: &dyn Code) -> Option<RowArm> {
    let (mut at, mut state) = Arm::begin(entry);
    for _ in 0..STEPS_MAX {
        let (effect, length) = Arm::step(at, code.code(at)?, &mut state)?;
        // An early return may precede the frame setup.
        if !matches!(effect, Effect::Plain | Effect::MayJump(_) | Effect::MayReturn) {
            return None;
        }
        at = at + length;
        for frame_pointer in FRAME_POINTERS {
            let Some(mut row) = flow::row_in_function::<Arm>(&state, &[frame_pointer]) else { continue };
            let is_saved = |register: u8| matches!(row.columns[usize::from(register)], Column::At(_));
            if is_saved(LR) && is_saved(frame_pointer) {
                // Other registers may be saved later.
                for (number, column) in row.columns.iter_mut().enumerate() {
                    let number = number as u8;
                    if !FRAME_POINTERS.contains(&number) && ![SP, LR, PC].contains(&number) {
                        *column = Column::Undefined;
                    }
                }
                return Some(row);
            }
        }
    }
    None
}
