//! Start and exit code of threads and signal handlers on aarch64, recognized by the instructions that compilers
//! generate from C library sources; and where a thread that has run no instruction yet continues (`entry`). Input:
//! bytes, registers; output: yes or no, an address.

use crate::addr::{Avma, CodeAddress};
use crate::arch::Aarch64;
use crate::walk::{Code, aarch64};

/// Whether code follows the call of `main` or of a thread's function: the result is passed to `exit`, or stored
/// for `pthread_join`. Sources: see x86_64.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    let Some(word) = code.first_chunk::<4>() else { return false };
    let instruction = u32::from_le_bytes(*word);
    // bl exit (the result is in w0 already); str x0, [pd, #result]
    instruction >> 26 == 0b10_0101 || instruction & 0xffc0_001f == 0xf900_0000
}

/// Whether code makes the `exit` system call that follows a thread's first function.
///
/// Sources: glibc sysdeps/unix/sysv/linux/aarch64/clone.S and clone3.S, musl
/// src/thread/aarch64/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 2] = [
        // after blr: mov x8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4],
        // mov w8,#93; svc #0
        &[0xa8, 0x0b, 0x80, 0x52, 0x01, 0x00, 0x00, 0xd4],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code is a signal trampoline: `mov x8, #139; svc #0` (arch/arm64/kernel/vdso/sigreturn.S; identical in
/// musl and glibc).
pub(super) fn is_sigreturn(code: &[u8]) -> bool {
    code.starts_with(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4])
}

/// Limit on instructions of start code.
const START_INSTRUCTIONS_MAX: usize = 64;

/// Whether an address is on the single path that a process executes from `entry`: up to its first call, or after
/// it if the call returns the program's entry, which is saved. The dynamic linker has no unwind information there.
///
/// Sources: glibc sysdeps/aarch64/dl-machine.h (`RTLD_START`, up to 2.36).
pub(super) fn is_start(entry: Avma, address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    let (mut here, mut goes_on) = (entry, false);
    let word = |at: Avma| Some(u32::from_le_bytes(*code.code(at)?.first_chunk::<4>()?));
    for _ in 0..START_INSTRUCTIONS_MAX {
        if here >= at {
            // A call just before the entry returns into no start code: it is a noreturn call.
            return here == at && (here != entry || !address.is_return());
        }
        let Some(instruction) = word(here) else { return false };
        here = here + 4;
        if aarch64::is_call(instruction) {
            if address == CodeAddress::Return(here) && !goes_on {
                return true;
            }
            // mov xN, x0
            goes_on |= word(here).is_some_and(|next| next & 0xffff_ffe0 == 0xaa00_03e0);
            if !goes_on {
                return false;
            }
        } else if leaves(instruction) {
            return false;
        }
    }
    false
}

/// Whether an instruction never continues with the next one: `b`; `br`, `ret` and variants; `brk`, `udf`.
fn leaves(instruction: u32) -> bool {
    instruction >> 26 == 0b00_0101
        || instruction >> 25 == 0b110_1011
        || instruction & 0xffe0_001f == 0xd420_0000
        || instruction >> 16 == 0
}

/// Whether an address is the second instruction of `start` in libdyld.dylib, the return address of `main` before
/// macOS 12: dyld put it in the link register without a call.
/// Source: dyld 852, src/dyldStartup.s and src/start_glue.s.
pub(super) fn is_in_start_of_libdyld(at: Avma, code: &dyn Code) -> bool {
    const NOP: u32 = 0xd503_201f;
    const BRK_3: u32 = 0xd420_0060;
    let Some(start) = at.0.checked_sub(4).filter(|start| start % 4 == 0).map(Avma) else {
        return false;
    };
    code.begins_threads(start) == Some(true)
        && word_at(start, code) == Some(NOP)
        // bl exit
        && word_at(at, code).is_some_and(|second| second >> 26 == 0b10_0101)
        && word_at(start + 2 * 4, code) == Some(BRK_3)
}

fn word_at(at: Avma, code: &dyn Code) -> Option<u32> {
    code.code(at)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

// ---- A thread of aarch64 that has run no instruction yet: its program counter is where its creator's system call
// returns 0, and its link register holds the creator's value. Input: registers, code; output: where the thread
// continues.

/// Limit on instructions that test the result: a comparison and two branches.
const INSTRUCTIONS_MAX: usize = 4;

/// The address where a thread continues if its program counter follows a system call that returned 0 and the code
/// tests that. Sources: glibc sysdeps/unix/sysv/linux/aarch64/clone.S and clone3.S, musl
/// src/thread/aarch64/clone.s.
pub(super) fn entry(registers: &Aarch64, code: &dyn Code) -> Option<Avma> {
    const CALL: u32 = 0xd400_0001;
    // cmp x0, #0; cmp w0, #0
    const COMPARE: [u32; 2] = [0xf100_001f, 0x7100_001f];
    if registers.x[0] != 0 {
        return None;
    }
    let pc = Avma(registers.pc);
    let bytes = code.code(Avma(pc.0.checked_sub(4)?))?;
    let mut words =
        bytes.chunks_exact(4).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte)));
    if words.next() != Some(CALL) {
        return None;
    }
    let mut is_compared = false;
    for (number, word) in words.take(INSTRUCTIONS_MAX).enumerate() {
        // 19 bits from bit 5 on, in words: Arm ARM, C6.2, b.cond, cbz and cbnz.
        let distance = i64::from((word << 8).cast_signed() >> 13) * 4;
        let target = Avma((pc + 4 * number as u64).0.wrapping_add_signed(distance));
        match word >> 24 {
            _ if COMPARE.contains(&word) => is_compared = true,
            // b.eq; b.ne, b.mi and b.lt are not taken on 0
            0x54 if is_compared && word & 0x1f == 0 => return Some(target),
            0x54 if is_compared && matches!(word & 0x1f, 1 | 4 | 11) => {}
            // cbz and cbnz of x0 or w0
            0xb4 | 0x34 if word & 0x1f == 0 => return Some(target),
            0xb5 | 0x35 if word & 0x1f == 0 => is_compared = true,
            _ => return is_compared.then_some(pc + 4 * number as u64),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// `_start` of ld.so in glibc 2.36, from its entry at +4.
    const RTLD: [u32; 12] = [
        0xd420_0020, // +00 brk #1
        0xd503_245f, // +04 bti c
        0x9100_03e0, // +08 mov x0, sp
        0x9400_0100, // +0c bl _dl_start
        0xaa00_03f5, // +10 mov x21, x0
        0xf940_03e1, // +14 ldr x1, [sp]
        0x9100_23e2, // +18 add x2, sp, #8
        0x9400_0200, // +1c bl _dl_init
        0x9000_0000, // +20 adrp x0, _dl_fini
        0x9100_0000, // +24 add x0, x0, :lo12:_dl_fini
        0xd61f_02a0, // +28 br x21
        0x9400_0200, // +2c bl: of another function
    ];

    fn check(words: &[u32], address: CodeAddress) -> bool {
        let text = Text::of_words(TEXT, words);
        is_start(Avma(TEXT + 4), address, &text)
    }

    fn pc(at: u64) -> CodeAddress {
        CodeAddress::Pc(Avma(TEXT + at))
    }

    fn returned(at: u64) -> CodeAddress {
        CodeAddress::Return(Avma(TEXT + at))
    }

    #[test]
    fn a_process_starts_on_the_single_path_from_its_entry() {
        for at in (4..0x2c).step_by(4) {
            assert!(check(&RTLD, pc(at)), "+{at:#x}");
        }
        assert!(check(&RTLD, returned(0x10)) && check(&RTLD, returned(0x20)));
        // Before the code, and after it.
        for other in [pc(0), returned(4), pc(0x2c), returned(0x30), returned(0x12)] {
            assert!(!check(&RTLD, other), "{other:?}");
        }
    }

    #[test]
    fn after_a_noreturn_call_another_function_begins() {
        let mut words = RTLD;
        words[4] = 0xaa01_03f5; // mov x21, x1
        assert!(check(&words, returned(0x10)) && !check(&words, returned(0x20)) && !check(&words, pc(0x14)));
    }
}

#[cfg(test)]
mod new_thread_tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// Where it continues, in bytes from the program counter, which follows the first word.
    fn from(words: &[u32], result: u64) -> Option<u64> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = Aarch64 { pc: TEXT + 4, ..Aarch64::default() };
        registers.x[0] = result;
        entry(&registers, &Text::new(TEXT, bytes)).map(|at| at.0 - TEXT - 4)
    }

    #[test]
    fn a_new_thread_continues_where_the_result_is_0() {
        // glibc 2.36, __clone: svc #0; cmp x0, #0; b.eq 1f; b.lt error; ret; b ...; nop; 1: mov x29, #0
        const CLONE: [u32; 4] = [0xd400_0001, 0xf100_001f, 0x5400_00a0, 0x5400_004b];
        assert_eq!(from(&CLONE, 0), Some(0x18));
        assert_eq!(from(&CLONE, 4711), None, "its creator");
        assert_eq!(from(&[&[0xd503_201f], &CLONE[1..]].concat(), 0), None, "no system call");
        // musl 1.2: svc #0; cbz x0, 1f; ret; 1: ldp x1, x0, [sp], #16
        assert_eq!(from(&[0xd400_0001, 0xb400_0040, 0xd65f_03c0, 0xa8c1_0420], 0), Some(8));
        // Inverted: cbnz x0, error; mov x29, #0
        assert_eq!(from(&[0xd400_0001, 0xb500_0060, 0xd280_001d], 0), Some(4));
        // Code that does not test the result, or ends.
        assert_eq!(from(&[0xd400_0001, 0xd65f_03c0], 0), None);
        assert_eq!(from(&[0xd400_0001, 0xf100_001f], 0), None);
        // Another register; backwards.
        assert_eq!(from(&[0xd400_0001, 0xb400_0041, 0xd65f_03c0], 0), None);
        assert_eq!(from(&[0xd503_201f, 0xd503_201f], 0), None);
    }
}
