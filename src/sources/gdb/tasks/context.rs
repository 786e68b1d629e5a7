//! The registers of a suspended task, from its stack, where FreeRTOS's ports for Arm save them. Input: words
//! from `pxTopOfStack` on, hostile. Output: the registers at its resumption. Pure.
//!
//! The words identify the port: each has EXC_RETURN at a different offset or none, and the exception frame
//! must be valid. Sources: FreeRTOS-Kernel V11, portable/GCC/{ARM_CM0, ARM_CM3, ARM_CM4F, ARM_CM7, ARM_CM33,
//! ARM_CM33_NTZ, ARM_CA9}/port*.{c,S}; exception frames: Armv7-M ARM, B1.5.6.

use crate::arch::Arm;

/// Most words needed: ARM_CA9's for a task with floating point.
pub(super) const WORDS_MAX: usize = 84;
const _: () = assert!(WORDS_MAX >= 2 + 65 + 16);
/// EXC_RETURN of a task in thread mode on the process stack: Mode and SPSEL (Armv8-M ARM, D1.2.95), with ones
/// above them.
const EXC_RETURN_ONES: u32 = 0xffff_ff80;
const EXC_RETURN_TASK: u32 = 0xc;
/// Clear in EXC_RETURN if floating-point registers were saved.
const BASIC_FRAME: u32 = 1 << 4;
const BASIC_FRAME_WORDS: usize = 8;
const EXTENDED_FRAME_WORDS: usize = 26;
/// s16 to s31, saved by ports if the frame has the others.
const FLOATS_SAVED: usize = 16;
/// xPSR: T32, the exception number (0 in a task), and the bit for a word of alignment padding.
const XPSR_T: u32 = 1 << 24;
const XPSR_EXCEPTION: u32 = 0x1ff;
const XPSR_PADDED: u32 = 1 << 9;
/// Mode bits of CPSR: System, in which ARM_CA9 runs its tasks.
const CPSR_MODE: u32 = 0x1f;
const CPSR_SYSTEM: u32 = 0x1f;

/// Layout of a port: word offset of r4, and of EXC_RETURN if it is saved.
#[derive(Clone, Copy)]
struct Port {
    r4: usize,
    exc_return: Option<usize>,
}

/// In the order in which they are tried: the most specific first.
const PORTS: [Port; 4] = [
    // ARM_CM4F, ARM_CM7: r4 to r11, EXC_RETURN.
    Port { r4: 0, exc_return: Some(8) },
    // ARM_CM33_NTZ: PSPLIM, EXC_RETURN, r4 to r11.
    Port { r4: 2, exc_return: Some(1) },
    // ARM_CM33: the secure context, PSPLIM, EXC_RETURN, r4 to r11.
    Port { r4: 3, exc_return: Some(2) },
    // ARM_CM0, ARM_CM3: r4 to r11.
    Port { r4: 0, exc_return: None },
];

/// The registers of a task with these `words` at `top`. `is_code`: whether a value may be a program counter.
pub(super) fn registers(
    top: u64,
    words: &[u32],
    m_profile: bool,
    is_code: &dyn Fn(u64) -> bool,
) -> Option<Arm> {
    if m_profile {
        return PORTS.iter().find_map(|port| by_port(*port, top, words, is_code));
    }
    of_a_profile(top, words, is_code)
}

fn by_port(port: Port, top: u64, words: &[u32], is_code: &dyn Fn(u64) -> bool) -> Option<Arm> {
    let word = |index: usize| words.get(index).copied();
    let mut frame = port.r4 + 8;
    let mut extended = false;
    if let Some(at) = port.exc_return {
        let exc_return = word(at)?;
        if exc_return & EXC_RETURN_ONES != EXC_RETURN_ONES || exc_return & EXC_RETURN_TASK != EXC_RETURN_TASK
        {
            return None;
        }
        frame = frame.max(at + 1);
        if exc_return & BASIC_FRAME == 0 {
            (extended, frame) = (true, frame + FLOATS_SAVED);
        }
    }
    let (lr, pc, xpsr) = (word(frame + 5)?, word(frame + 6)?, word(frame + 7)?);
    if xpsr & XPSR_T == 0 || xpsr & XPSR_EXCEPTION != 0 || pc & 1 != 0 || !is_code(pc.into()) {
        return None;
    }
    let frame_words = if extended { EXTENDED_FRAME_WORDS } else { BASIC_FRAME_WORDS };
    let padding = usize::from(xpsr & XPSR_PADDED != 0);
    let sp = top.checked_add(4 * (frame + frame_words + padding) as u64)?;
    let mut r = [0u64; 16];
    for (number, into) in r.iter_mut().enumerate() {
        *into = match number {
            0..=3 => word(frame + number)?.into(),
            4..=11 => word(port.r4 + number - 4)?.into(),
            12 => word(frame + 4)?.into(),
            Arm::SP => sp,
            Arm::LR => lr.into(),
            _ => pc.into(),
        };
    }
    Some(Arm { r, cpsr: Some(xpsr), m_profile: true })
}

/// ARM_CA9: floating-point flag and registers (FPSCR, d0 to d31), critical nesting depth, r0 to r12, lr, pc,
/// CPSR.
fn of_a_profile(top: u64, words: &[u32], is_code: &dyn Fn(u64) -> bool) -> Option<Arm> {
    let has_floats = *words.first()? != 0;
    let nesting = if has_floats { 1 + 1 + 64 } else { 1 };
    let saved = words.get(nesting + 1..nesting + 17)?;
    let (pc, cpsr) = (saved[14], saved[15]);
    if cpsr & CPSR_MODE != CPSR_SYSTEM || !is_code((pc & !1).into()) {
        return None;
    }
    let sp = top.checked_add(4 * (nesting + 17) as u64)?;
    let mut r = [0u64; 16];
    for (into, word) in r.iter_mut().zip(saved) {
        *into = (*word).into();
    }
    (r[Arm::SP], r[Arm::LR], r[Arm::PC]) = (sp, saved[13].into(), pc.into());
    Some(Arm { r, cpsr: Some(cpsr), m_profile: false })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// r0 to r3, r12, lr, pc, xPSR.
    const FRAME: [u32; 8] = [100, 101, 102, 103, 112, 0x201, 0x300, XPSR_T];
    const TOP: u64 = 0x2000_0100;

    fn is_code(at: u64) -> bool {
        (0x200..0x1000).contains(&at)
    }

    fn found(words: &[u32]) -> Option<Arm> {
        registers(TOP, words, true, &is_code)
    }

    fn words(parts: &[&[u32]]) -> Vec<u32> {
        parts.concat()
    }

    const R4: [u32; 8] = [4, 5, 6, 7, 8, 9, 10, 11];

    fn check(arm: Arm, words: u64) {
        let expected = [100, 101, 102, 103, 4, 5, 6, 7, 8, 9, 10, 11, 112, TOP + 4 * words, 0x201, 0x300];
        assert_eq!(arm.r, expected);
        assert!(arm.m_profile);
    }

    #[test]
    fn each_port_is_recognised_by_its_words() {
        check(found(&words(&[&R4, &FRAME])).unwrap(), 16);
        check(found(&words(&[&R4, &[0xffff_fffd], &FRAME])).unwrap(), 17);
        let floats = [7u32; 16];
        check(found(&words(&[&R4, &[0xffff_ffed], &floats, &FRAME, &[0; 18]])).unwrap(), 51);
        check(found(&words(&[&[0x2000_0000, 0xffff_ffbc], &R4, &FRAME])).unwrap(), 18);
        check(found(&words(&[&[0, 0x2000_0000, 0xffff_fffd], &R4, &FRAME])).unwrap(), 19);
    }

    #[test]
    fn alignment_padding_is_above_the_frame() {
        let mut frame = FRAME;
        frame[7] |= XPSR_PADDED;
        let mut arm = found(&words(&[&R4, &frame])).unwrap();
        assert_eq!(arm.r[Arm::SP], TOP + 4 * 17);
        arm.r[Arm::SP] -= 4;
        check(arm, 16);
    }

    #[test]
    fn an_invalid_frame_is_none() {
        for (at, word) in [(6, 0x10u32), (6, 0x301), (7, 0), (7, XPSR_T | 15)] {
            let mut frame = FRAME;
            frame[at] = word;
            assert_eq!(found(&words(&[&R4, &frame])), None, "{at} {word:#x}");
        }
        assert_eq!(found(&words(&[&R4, &FRAME])[..15]), None);
        assert_eq!(found(&[]), None);
        assert_eq!(registers(u64::MAX, &words(&[&R4, &FRAME]), true, &is_code), None);
    }

    #[test]
    fn a_profile_tasks_have_all_registers_in_order() {
        let core: Vec<u32> = (0..13).chain([0x205, 0x400, 0x6000_001f]).collect();
        let arm = |words: &[u32]| registers(TOP, words, false, &is_code);
        let plain = arm(&words(&[&[0, 0], &core])).unwrap();
        assert_eq!((plain.r[0], plain.r[12], plain.r[Arm::LR], plain.r[Arm::PC]), (0, 12, 0x205, 0x400));
        assert_eq!(plain.r[Arm::SP], TOP + 4 * 18);
        let floats = arm(&words(&[&[1], &[9; 65], &[0], &core])).unwrap();
        assert_eq!((floats.r[Arm::SP], floats.cpsr), (TOP + 4 * 83, Some(0x6000_001f)));
        let user: Vec<u32> = core[..15].iter().copied().chain([0x10]).collect();
        assert_eq!(arm(&words(&[&[0, 0], &user])), None);
    }
}
