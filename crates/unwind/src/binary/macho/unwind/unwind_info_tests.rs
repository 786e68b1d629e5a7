#![allow(clippy::unwrap_used)]
use super::*;
use crate::rng::Rng;

/// A section with one regular page and one compressed page; each part starts with a comment.
pub(crate) fn section() -> Vec<u8> {
    let words = [
        1,
        28,
        1,
        0,
        0,
        32,
        3,           // version, 1 common encoding at 28, no personality, 3 at 32
        0x0400_0000, // common: FRAME
        0x1000,
        68,
        0, // regular page for 0x1000..0x2000
        0x2000,
        92,
        0, // compressed page for 0x2000..0x3000
        0x3000,
        0,
        0, // the end
        2,
        0x0002_0008, // regular: entries at +8, 2 of them
        0x1000,
        0x0200_1000, // FRAMELESS, 16 bytes
        0x1800,
        0, // none
        3,
        0x0003_0010,
        0x0001_000c, // compressed: entries at +16, 3; encodings at +12, 1
        0x0300_0040, // own encoding: DWARF at 0x40
        0x0000_0000, // 0x2000: common 0
        0x0100_0100, // 0x2100: own 0
        0x0000_0200, // 0x2200: common 0
    ];
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

#[test]
fn entries_are_found_in_pages_of_both_kinds() {
    let section = section();
    let check = |at: u32, expected: Option<(u32, u32, u32)>| {
        let found = find(&section, at).map(|entry| (entry.start, entry.end, entry.encoding));
        assert_eq!(found, expected, "at {at:#x}");
    };
    check(0xfff, None);
    check(0x1000, Some((0x1000, 0x1800, 0x0200_1000)));
    check(0x17ff, Some((0x1000, 0x1800, 0x0200_1000)));
    check(0x1fff, Some((0x1800, 0x2000, 0)));
    check(0x2000, Some((0x2000, 0x2100, 0x0400_0000)));
    check(0x21ff, Some((0x2100, 0x2200, 0x0300_0040)));
    check(0x2fff, Some((0x2200, 0x3000, 0x0400_0000)));
    check(0x3000, None);
    check(u32::MAX, None);
}

#[test]
fn entries_equal_those_of_another_reader() {
    let section = section();
    let other = macho_unwind_info::UnwindInfo::parse(&section).unwrap();
    for at in (0xff0..0x3010).step_by(8) {
        let theirs = other.lookup(at).unwrap();
        let theirs = theirs.map(|f| Entry { start: f.start_address, end: f.end_address, encoding: f.opcode });
        assert_eq!(find(&section, at), theirs, "at {at:#x}");
    }
}

#[test]
fn saved_registers_of_x86_64_equal_those_of_another_reader() {
    use macho_unwind_info::opcodes::{OpcodeX86_64, RegisterNameX86_64 as Name};
    let number = |name: &Name| match name {
        Name::Rbx => 3usize,
        Name::R12 => 12,
        Name::R13 => 13,
        Name::R14 => 14,
        Name::R15 => 15,
        Name::Rbp => 6,
    };
    let mut compared = 0;
    for count in 0..=6u32 {
        for order in 0..1024 {
            let encoding = STACK_IMMEDIATE << 24 | 9 << 16 | count << 10 | order;
            let OpcodeX86_64::FramelessImmediate { saved_regs, .. } = OpcodeX86_64::parse(encoding) else {
                assert_eq!(x86_64(encoding, &[]), None, "{count} registers, {order}");
                continue;
            };
            let Some(CompactRow::Row(row)) = x86_64(encoding, &[]) else { panic!("{count}, {order}") };
            for (words, name) in (2..).zip(saved_regs.iter().rev().flatten()) {
                assert_eq!(row.columns[number(name)], Column::At(-8 * words), "{count}, {order}");
            }
            compared += 1;
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn frames_of_x86_64_have_the_documented_layout() {
    // rbx at rbp-24, r14 at rbp-16, r15 at rbp-8
    let frame = RBP_FRAME << 24 | 3 << 16 | 1 | 4 << 3 | 5 << 6;
    let Some(CompactRow::Row(row)) = x86_64(frame, &[]) else { panic!() };
    assert_eq!(row.cfa, Cfa::Register(6, 16));
    let at = [3, 14, 15, 6, 16].map(|register: usize| row.columns[register].clone());
    assert_eq!(at, [-40, -32, -24, -16, -8].map(Column::At));
    // sub $0xc28,%rsp at +0xa, its immediate at +0xd; six pushes and the return address above
    let mut function = vec![0; 0xd];
    function.extend(0xc28u32.to_le_bytes());
    let large = STACK_INDIRECT << 24 | 0xd << 16 | 7 << 13 | 6 << 10;
    let Some(CompactRow::Row(row)) = x86_64(large, &function) else { panic!() };
    assert_eq!(row.cfa, Cfa::Register(7, 0xc28 + 56));
    assert_eq!(x86_64(large, &function[..0xf]), None, "the number is cut off");
    assert_eq!(x86_64(X86_64_DWARF << 24 | 0x1234, &[]), Some(CompactRow::Dwarf(0x1234)));
    assert_eq!(x86_64(0, &[]), None);
}

#[test]
fn frames_of_arm64_have_the_documented_layout() {
    // x19 to x22 and a pair of d registers
    let Some(CompactRow::Row(row)) = arm64(ARM64_FRAME << 24 | 0b1_0000_0011) else { panic!() };
    assert_eq!(row.cfa, Cfa::Register(29, 16));
    let at = [30, 29, 19, 20, 21, 22].map(|register: usize| row.columns[register].clone());
    assert_eq!(at, [-8, -16, -24, -32, -40, -48].map(Column::At));
    let Some(CompactRow::Row(row)) = arm64(ARM64_FRAMELESS << 24 | 3 << 12) else { panic!() };
    assert_eq!((row.cfa, &row.columns[30]), (Cfa::Register(31, 48), &Column::Same));
    assert_eq!(arm64(0), None);
}

#[test]
fn malformed_sections_give_an_answer_or_none_and_end() {
    let whole = section();
    let mut rng = Rng::new(1);
    let mut random = |below: u64| rng.within(0, below - 1);
    for round in 0..50_000 {
        let mut damaged = whole.clone();
        for _ in 0..1 + random(4) {
            let at = random(damaged.len() as u64) as usize;
            damaged[at] = [0, 0xff, 0x7f, 0x80, random(256) as u8][random(5) as usize];
        }
        damaged.truncate(1 + random(damaged.len() as u64 * 2) as usize);
        for at in [0, 0xfff, 0x1000, 0x1801, 0x2000, 0x2150, 0x2fff, u32::MAX, random(0x4000) as u32] {
            if let Some(entry) = find(&damaged, at) {
                assert!(entry.start <= at && at < entry.end, "round {round}, {at:#x}: {entry:?}");
                let _ = (x86_64(entry.encoding, &damaged), arm64(entry.encoding));
            }
        }
    }
}
