#![allow(clippy::unwrap_used)]

use object::elf::{ET_EXEC, ET_REL, SHT_NOBITS};

use super::*;
use crate::addr::Svma;
use crate::binary::cfi::Cfi;
use crate::binary::elf::Elf;
use crate::binary::elf::build::{self, FIRST, PROGBITS, RELA, X86_64};
use crate::binary::elf::functions::Functions;
use crate::binary::frame_rule::{COLUMNS, Cfa as RowCfa, Column, Row};
use crate::rng::Rng;

/// Load addresses of `.text` and `.eh_frame`.
const TEXT: u64 = 0x7f00_0000_4000;
const EH_FRAME: u64 = 0x7f00_0001_0000;
const RSP: u8 = 7;
/// Section numbers.
const TEXT_SECTION: usize = 1;
const EH_FRAME_SECTION: usize = FIRST as usize + 2;
const RELOCATIONS_SECTION: usize = EH_FRAME_SECTION + 1;
/// Relocation types of the psABI.
const R_64: u64 = 1;
const R_PC32: u64 = 2;
const R_GOTPCREL: u64 = 9;

/// An FDE for a 64-byte function, with a 4-byte relocation for its start at [`PC_BEGIN`].
const FRAMES: &[u8] = &[
    0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 0x10, 1, 0x1b, // relative, 4 bytes
    0x0c, 7, 8, 0x90, 1, 0, 0, // the CFA is rsp + 8, the return address below it
    0x10, 0, 0, 0, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0x0e, 0x20, 0, // rsp + 32
    0, 0, 0, 0,
];
const PC_BEGIN: u64 = 32;

/// Sets a field of a section header.
fn set(bytes: &mut [u8], section: usize, field_at: usize, value: u32) {
    let headers_at = u64::from_le_bytes(*bytes[40..].first_chunk().unwrap()) as usize;
    let at = headers_at + section * 64 + field_at;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn set_address(bytes: &mut [u8], section: usize, address: u64) {
    set(bytes, section, 16, address as u32);
    set(bytes, section, 20, (address >> 32) as u32);
}

fn rela(offset: u64, symbol: u64, kind: u64, addend: i64) -> Vec<u8> {
    [offset, symbol << 32 | kind, addend.cast_unsigned()].map(u64::to_le_bytes).concat()
}

/// An object registered by LLVM: `leaf` is the second function of `.text`.
fn object(relocations: &[Vec<u8>]) -> Vec<u8> {
    // Includes an undefined symbol.
    let mut personality = build::function(6, 0, 0);
    personality[6] = 0;
    let symbols = [build::function(1, 0x10, 0x40), personality];
    let [symbols, names] = build::symbols(&symbols, b"\0leaf\0gxx\0".to_vec());
    let mut sections = vec![symbols, names];
    sections.push(build::section(".eh_frame", PROGBITS, FRAMES.to_vec(), 0));
    sections.push(build::section(".rela.eh_frame", RELA, relocations.concat(), FIRST));
    let mut bytes = build::file(X86_64, &sections);
    bytes[E_TYPE_AT..E_TYPE_AT + 2].copy_from_slice(&ET_REL.0.to_le_bytes());
    set_address(&mut bytes, TEXT_SECTION, TEXT);
    set_address(&mut bytes, EH_FRAME_SECTION, EH_FRAME);
    set(&mut bytes, RELOCATIONS_SECTION, 44, EH_FRAME_SECTION as u32); // sh_info
    bytes
}

fn row(bytes: &[u8], at: u64) -> Option<Row> {
    Cfi::find(bytes)?.row::<[Column; COLUMNS]>(bytes, Svma(at))
}

#[test]
fn section_relative_values_become_addresses() {
    let linked = link(object(&[rela(PC_BEGIN, 1, R_PC32, 0), rela(0, 2, R_64, 0)])).unwrap();
    let end = TEXT + build::TEXT;
    assert_eq!(linked.code, [Avma(TEXT)..Avma(end)]);
    let bytes = linked.bytes.as_slice();
    let elf = Elf::parse(bytes).unwrap();
    for at in [TEXT, TEXT + 5, end - 1] {
        assert_eq!(elf.svma_of(at), Some(Svma(at)));
    }
    let leaf = Functions::read(bytes).at(Svma(TEXT + 0x20), bytes);
    assert_eq!(leaf, Some(Svma(TEXT + 0x10)..Svma(TEXT + 0x50)));
    assert_eq!(row(bytes, TEXT + 0x10).unwrap().cfa, RowCfa::Register(RSP, 32));
    assert!(row(bytes, TEXT + 0x4f).is_some());
    assert!(row(bytes, TEXT + 0xf).is_none() && row(bytes, TEXT + 0x50).is_none());
}

#[test]
fn unplaceable_unwind_information_is_dropped() {
    for relocation in [
        rela(PC_BEGIN, 1, R_GOTPCREL, 0),
        rela(PC_BEGIN, 1, R_PC32, 1 << 40),
        rela(FRAMES.len() as u64 - 3, 1, R_PC32, 0),
        rela(u64::MAX, 1, R_PC32, 0),
        rela(PC_BEGIN, 77, R_PC32, 0),
    ] {
        let linked = link(object(std::slice::from_ref(&relocation))).unwrap();
        assert!(Cfi::find(&linked.bytes).is_none(), "{relocation:x?}");
        assert!(Functions::read(&linked.bytes).at(Svma(TEXT + 0x20), &linked.bytes).is_some(), "names stay");
    }
}

#[test]
fn files_with_absolute_addresses_keep_them() {
    // Like QEMU's object for its buffer: the code section has no bytes.
    let mut bytes = object(&[]);
    bytes[E_TYPE_AT..E_TYPE_AT + 2].copy_from_slice(&ET_EXEC.0.to_le_bytes());
    set(&mut bytes, TEXT_SECTION, 4, SHT_NOBITS.0);
    let linked = link(bytes).unwrap();
    assert_eq!(linked.code, [Avma(TEXT)..Avma(TEXT + build::TEXT)]);
    for at in [0x20, TEXT + 0x20] {
        assert_eq!(
            Functions::read(&linked.bytes).at(Svma(at), &linked.bytes),
            None,
            "a buffer's name names nothing in it"
        );
    }
}

#[test]
fn headers_contain_the_load_addresses_of_code() {
    let bytes = object(&[]);
    let read = |bytes: &[u8]| {
        let mut read = |offset: u64, into: &mut [u8]| {
            let found = bytes.get(offset as usize..).and_then(|rest| rest.get(..into.len()));
            found.map(|found| into.copy_from_slice(found)).is_some()
        };
        headers_of(bytes.len() as u64, &mut read)
    };
    let mut moved = bytes.clone();
    set_address(&mut moved, TEXT_SECTION, TEXT + 0x100);
    assert_eq!(read(&bytes).map(|headers| headers.len()), Some(64 * 8));
    assert_ne!(read(&bytes), read(&moved));
    assert_eq!(read(&bytes[..bytes.len() - 1]), None);
    assert_eq!(read(b"\x7fELF"), None);
}

#[test]
fn any_bytes_are_linked_or_refused() {
    let whole = object(&[rela(PC_BEGIN, 1, R_PC32, 0)]);
    let mut rng = Rng::new(1);
    let mut random = |below: usize| rng.below(below);
    let headers_at = u64::from_le_bytes(*whole[40..].first_chunk().unwrap()) as usize;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(4) {
            // Headers matter most.
            let at = if random(2) == 0 { random(64) } else { headers_at + random(bytes.len() - headers_at) };
            bytes[at] = random(256) as u8;
        }
        bytes.truncate(if random(4) == 0 { random(whole.len()) } else { whole.len() });
        if let Some(linked) = link(bytes) {
            let _ = (Elf::parse(&linked.bytes), row(&linked.bytes, TEXT + 0x10));
        }
    }
}
