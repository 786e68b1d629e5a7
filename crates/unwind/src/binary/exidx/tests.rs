use super::*;
use crate::binary::frame_rule::{Cfa, Column, RowArm};

pub(crate) const TEXT: u32 = 0x1_0000;
const TABLE: u32 = 0x2_0000;
const EXTAB: u32 = 0x3_0000;
const FILE_TABLE: usize = 0x200;
const FILE_EXTAB: usize = 0x400;

/// A word with the place-relative offset from `place` to `to`.
fn relative(place: u32, to: u32) -> u32 {
    to.wrapping_sub(place) & 0x7fff_ffff
}

/// A file with these entries, each with its function and second word, and an `.ARM.extab`.
pub(crate) fn file(entries: &[(u32, u32)], extab: &[u32]) -> Vec<u8> {
    let mut file = vec![0; 0x600];
    file[..20].copy_from_slice(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x28\0");
    let mut put = |at: usize, word: u32| file[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(20, 1);
    put(28, 52);
    // e_ehsize, e_phentsize, e_phnum
    put(40, 52 | 32 << 16);
    put(44, 3);
    let size = (entries.len() * ENTRY_BYTES) as u32;
    let headers = [
        [PT_ARM_EXIDX, FILE_TABLE as u32, TABLE, TABLE, size, size, 4, 4],
        [1, FILE_TABLE as u32, TABLE, TABLE, 0x200, 0x200, 4, 4],
        [1, FILE_EXTAB as u32, EXTAB, EXTAB, 0x200, 0x200, 4, 4],
    ];
    for (index, word) in headers.as_flattened().iter().enumerate() {
        put(52 + 4 * index, *word);
    }
    for (index, (function, said)) in entries.iter().enumerate() {
        put(FILE_TABLE + 8 * index, relative(TABLE + 8 * index as u32, *function));
        put(FILE_TABLE + 8 * index + 4, *said);
    }
    for (index, word) in extab.iter().enumerate() {
        put(FILE_EXTAB + 4 * index, *word);
    }
    file
}

fn entry(file: &[u8], at: u32) -> Option<Entry> {
    Exidx::find(file)?.entry(file, Svma(at.into()))
}

fn row(code: &[u8]) -> Option<RowArm> {
    super::row(code)
}

fn saved(row: &RowArm) -> Vec<(usize, i64)> {
    let at = |(number, column): (usize, &Column)| match column {
        Column::At(at) => Some((number, *at)),
        _ => None,
    };
    row.columns.iter().enumerate().filter_map(at).collect()
}

#[test]
fn an_entry_extends_to_the_next_one() {
    // pop {r4, lr}; cannot unwind; in the other table
    let elsewhere = relative(TABLE + 20, EXTAB + 4);
    let entries = [(TEXT, 0x80a8_b0b0), (TEXT + 0x10, CANTUNWIND), (TEXT + 0x21, elsewhere)];
    // Personality routine 1 with one more word: vsp = r7; vsp += 8; pop {r4-r7, lr}; finish.
    let file = file(&entries, &[0, 0x8101_9701, 0xabb0_b0b0]);
    assert_eq!(entry(&file, TEXT - 1), None);
    let first = entry(&file, TEXT + 0xf).expect("an entry");
    assert_eq!(first.function, Svma(TEXT.into())..Svma((TEXT + 0x10).into()));
    let ExidxEntry::Row(row) = first.said else { panic!("{first:?}") };
    assert_eq!((&row.cfa, saved(&row)), (&Cfa::Register(13, 8), vec![(4, -8), (14, -4)]));
    assert_eq!(entry(&file, TEXT + 0x10).map(|entry| entry.said), Some(ExidxEntry::CannotUnwind));
    let third = entry(&file, TEXT + 0x20).expect("an entry");
    assert_eq!(third.function.start, Svma((TEXT + 0x20).into()), "without the bit of T32");
    let ExidxEntry::Row(row) = third.said else { panic!("{third:?}") };
    assert_eq!(row.cfa, Cfa::Register(7, 28));
    assert_eq!(saved(&row), [(4, -20), (5, -16), (6, -12), (7, -8), (14, -4)]);
}

#[test]
fn instructions_have_the_effect_of_the_abi() {
    let check = |code: &[u8], cfa: i64, columns: &[(usize, i64)]| {
        let row = row(code).unwrap_or_else(|| panic!("{code:x?} is refused"));
        assert_eq!((&row.cfa, saved(&row).as_slice()), (&Cfa::Register(13, cfa), columns), "{code:x?}");
    };
    check(&[0xb0], 0, &[]);
    check(&[0x3f, 0x40, 0xb0, 0x3f], 256 - 4, &[]);
    check(&[0x84, 0x09], 12, &[(4, -12), (7, -8), (14, -4)]);
    check(&[0xa0, 0xb0], 4, &[(4, -4)]);
    check(&[0xb1, 0x0f], 16, &[(0, -16), (1, -12), (2, -8), (3, -4)]);
    check(&[0xb2, 0x81, 0x01], 0x204 + (0x81 << 2), &[]);
    check(&[0xb3, 0x81], 20, &[]);
    check(&[0xb4, 0xb5], 4, &[]);
    check(&[0xb9], 20, &[]);
    check(&[0xc1, 0xc6, 0x10, 0xc7, 0x05], 16 + 8 + 8, &[]);
    check(&[0xc8, 0x02, 0xc9, 0x83], 24 + 32, &[]);
    check(&[0xd1, 0xa8], 16 + 8, &[(4, -8), (14, -4)]);
    // The saved program counter is the return address.
    check(&[0x88, 0x01], 8, &[(4, -8), (14, -4)]);
}

#[test]
fn a_saved_stack_pointer_is_read() {
    // APCS: vsp = fp; vsp -= 12; pop {fp, ip, lr}; vsp = ip
    let row = row(&[0x9b, 0x42, 0x85, 0x80, 0x9c, 0xb0]).expect("a row");
    assert_eq!(row.cfa, Cfa::Expression([0x7b, 0x78, 0x06, 0x11, 0x00, 0x22].into()));
    assert_eq!(row.columns[14], Column::AtExpression([0x7b, 0x7c].into()));
    assert_eq!(row.columns[11], Column::AtExpression([0x7b, 0x74].into()));
}

#[test]
fn reserved_or_truncated_instructions_are_refused() {
    for code in [
        &[0x80, 0x00][..],
        &[0x9d],
        &[0x9f],
        &[0xb1, 0x00],
        &[0xb1, 0x10],
        &[0xb6],
        &[0xb7],
        &[0xc7, 0],
        &[0xca],
        &[0xd8],
        &[0xff],
        &[0x84],
        &[0xb2],
        &[0xb2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0xb3],
        &[0xa0, 0x90, 0x94, 0xa0],
    ] {
        assert_eq!(row(code), None, "{code:x?}");
    }
}

#[test]
fn malformed_files_have_no_rows_and_do_not_panic() {
    let good = file(&[(TEXT, 0x80a8_b0b0), (TEXT + 0x10, relative(TABLE + 12, EXTAB))], &[0x82ff_0000]);
    // More words than available: they are read up to the end of the segment.
    assert!(entry(&good, TEXT + 0x10).is_some_and(|entry| entry.said == ExidxEntry::Refused));
    for at in 0..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = good.clone();
            damaged[at] = value;
            for address in [0, TEXT, TEXT + 0x10, u32::MAX] {
                let _ = entry(&damaged, address);
            }
        }
        let _ = entry(&good[..at], TEXT);
    }
}
