//! Walking on 32-bit Arm: A32, T32, and the exceptions of M-profile cores. `unwinder.rs` has the loop, the step,
//! exceptions, stack scans and the layout of frame records; `cache.rs` finds the rule at an address, calls, and
//! entries of functions without a symbol; `instructions.rs` executes instructions and decodes A32, `t32.rs` decodes
//! T32. This file implements `Processor` and recognizes start code and signal trampolines.
//!
//! Differences: the lowest bit of a code address is its instruction set, and is cleared for look-ups; there is no
//! single frame pointer or layout of frame records; code without unwind tables is common, so function entries are
//! searched for; exceptions of M-profile cores return to special values; and the stack may be scanned.

mod cache;
mod instructions;
mod t32;
#[cfg(test)]
mod tests;
mod unwinder;

use super::Code;
use super::flow::paths::{Effect, FlowState};
use super::processor::Processor;
use crate::addr::Avma;
use crate::arch::{Arch, Arm};
use crate::binary::frame_rule::{ARM_COLUMNS, Column};

pub(super) use unwinder::Unwinder;

// ---- The walker's view of 32-bit Arm: registers by DWARF number, and properties of its code.

impl Processor for Arm {
    type Columns = [Column; ARM_COLUMNS];
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::Arm.red_zone_bytes_max();
    const STACK_POINTER: u8 = SP;
    const FRAME_POINTER: u8 = 11;
    // Differs between compilers: `unwinder.rs` finds each function's layout.
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = Some(LR);
    const RETURN_COLUMN: usize = LR as usize;
    const SAVED: &'static [u8] = &[4, 5, 6, 7, 8, 9, 10, 11, LR];
    // r7 and r11 are the frame pointers of compilers, r6 is LLVM's base pointer.
    const BASES: &'static [&'static [u8]] = &[&[SP], &[7], &[11], &[6]];
    const JUMPS_KEEP_LINK: bool = false;
    const EVERY_PATH: bool = true;

    fn begin(at: Avma) -> (Avma, FlowState) {
        let mut state = FlowState::new();
        state.mode.t32 = at.0 & T32 != 0;
        (Avma(at.0 & !T32), state)
    }

    fn values(&self, _mask: u64) -> [u64; ARM_COLUMNS] {
        let mut all = self.r;
        all[Arm::PC] &= !T32;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        cache::call_before(address, code).is_some()
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        sigreturn(code).is_some()
    }

    fn is_start_code(code: &[u8]) -> bool {
        is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        ends_thread(code)
    }
}

// ---- The 32-bit Arm registers that frames are found by, by DWARF number.

const SP: u8 = Arm::SP as u8;
const LR: u8 = Arm::LR as u8;
const PC: u8 = Arm::PC as u8;
/// The bit of a code address that marks T32 code.
const T32: u64 = 1;

// ---- Start and exit code of threads and signal handlers of 32-bit Arm on Linux, recognized by its instructions in
// A32 and T32. Input: bytes; output: what they are.

/// The target of `sp` in the signal trampoline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalFrame {
    /// `struct sigframe`.
    Old,
    /// `struct rt_sigframe`, which starts with the 128 bytes of `siginfo`.
    Rt,
}

/// Whether code is a signal trampoline: the number of `sigreturn` or `rt_sigreturn` to r7, then `svc 0` (Linux
/// arch/arm/kernel/sigreturn_codes.S; glibc sysdeps/unix/sysv/linux/arm/sigrestorer.S).
fn sigreturn(code: &[u8]) -> Option<SignalFrame> {
    const FORMS: [(&[u8], SignalFrame); 6] = [
        (&[0x77, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef], SignalFrame::Old),
        (&[0xad, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef], SignalFrame::Rt),
        (&[0x77, 0x27, 0, 0xdf], SignalFrame::Old),
        (&[0xad, 0x27, 0, 0xdf], SignalFrame::Rt),
        (&[0x4f, 0xf0, 0x77, 0x07, 0, 0xdf], SignalFrame::Old),
        (&[0x4f, 0xf0, 0xad, 0x07, 0, 0xdf], SignalFrame::Rt),
    ];
    FORMS.iter().find(|(form, _)| code.starts_with(form)).map(|(_, frame)| *frame)
}

/// Whether code follows the call of `main`: the result is already in r0, and `exit` is called.
fn is_start_code(code: &[u8]) -> bool {
    let a32 = matches!(code, [_, _, _, 0xeb, ..]);
    let t32 = matches!(code, [_, first, _, second, ..] if first & 0xf8 == 0xf0 && second & 0xc0 == 0xc0);
    a32 || t32
}

/// Whether code makes the `exit` system call that follows a thread's first function: its number to r7, then `svc
/// 0`. Sources: glibc sysdeps/unix/sysv/linux/arm/clone.S, musl src/thread/arm/clone.s.
fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 3] = [
        &[0x01, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef],
        &[0x01, 0x27, 0, 0xdf],
        &[0x4f, 0xf0, 0x01, 0x07, 0, 0xdf],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

#[cfg(test)]
mod start_tests {
    use super::*;

    /// `mov r7, #NUMBER`, then `svc 0`: in A32, in 16-bit T32, and in 32-bit T32, which assemblers choose if `mov`
    /// must not set flags.
    fn calls_of(number: u8) -> [Vec<u8>; 3] {
        [
            vec![number, 0x70, 0xa0, 0xe3, 0, 0, 0, 0xef],
            vec![number, 0x27, 0, 0xdf],
            vec![0x4f, 0xf0, number, 0x07, 0, 0xdf],
        ]
    }

    #[test]
    fn ends_are_recognized_by_their_system_calls() {
        for (number, frame, ends) in [
            (1, None, true),
            (119, Some(SignalFrame::Old), false),
            (173, Some(SignalFrame::Rt), false),
            (4, None, false),
        ] {
            for code in calls_of(number) {
                assert_eq!((sigreturn(&code), ends_thread(&code)), (frame, ends), "{code:x?}");
            }
        }
    }
}
