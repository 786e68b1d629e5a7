//! The red zone of a capture: bytes below the stack pointer that code may keep words in (System V ABI, AMD64
//! supplement, 3.2.2).

use crate::addr::Avma;
use crate::arch::Registers;
use crate::sources::{Capture, Observed};

/// A copy of a capture with the bytes currently below the stack pointer, if it lacks them: rows of unwind
/// information may refer to words there.
pub(super) fn with_red_zone(process: &mut dyn Observed, capture: &Capture) -> Option<Capture> {
    let below = capture.registers.arch().red_zone_bytes_max();
    let base = capture.registers.sp().0.checked_sub(below).filter(|_| lacks_red_zone(capture))?;
    let mut stack = vec![0; below as usize];
    let read = process.read_memory(Avma(base), &mut stack).ok()?;
    if read < stack.len() {
        return None;
    }
    stack.extend_from_slice(&capture.stack);
    Some(Capture { stack, stack_base: Avma(base), ..capture.clone() })
}

/// Whether the capture lacks bytes below the stack pointer, where rows may read.
pub(super) fn lacks_red_zone(capture: &Capture) -> bool {
    matches!(capture.registers, Registers::X86_64(_)) && capture.stack_base == capture.registers.sp()
}
