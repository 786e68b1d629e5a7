//! A thread of aarch64 that has run no instruction yet: its program counter is where its creator's system call
//! returns 0, and its link register holds the creator's value. Input: registers, code; output: where the thread
//! continues.

use crate::addr::Avma;
use crate::arch::Aarch64;
use crate::walk::Code;

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
