//! Rows of this test executable, of corrupted copies of it, and of entries built to be expensive.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::binary::elf::build::{self, AARCH64, PROGBITS, X86_64};
use crate::binary::frame_rule::{CfaBase, FrameRule, RowAarch64};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

fn rule(cfi: &Cfi, bytes: &[u8], pc: u64) -> Option<FrameRule> {
    cfi.row(bytes, Svma(pc))?.ordinary()
}

#[test]
fn at_its_first_instruction_a_function_has_only_its_return_address() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let cfi = Cfi::find(&bytes).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let entry =
        FrameRule { base: CfaBase::StackPointer, cfa_offset: 8, frame_pointer_at: None, return_at: Some(-8) };
    let (mut all, mut right) = (0, 0);
    for function in functions.step_by(7) {
        all += 1;
        right += usize::from(rule(&cfi, &bytes, function.address()) == Some(entry));
    }
    // Except hand-written start code.
    assert!(all > 500 && right * 1000 >= all * 995, "{right} of {all}");
}

#[test]
fn unsupported_files_and_addresses_have_no_rule() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let cfi = Cfi::find(&bytes).unwrap();
    assert_eq!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(0)), None);
    assert_eq!(cfi.row::<[Column; AARCH64_COLUMNS]>(&bytes, Svma(0x1000)), None);
    assert_eq!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(u64::MAX)), None);
    assert_eq!(cfi.row::<[Column; COLUMNS]>(&bytes[..100], Svma(0x1000)), None);
    assert!(Cfi::find(b"\x7fELF").is_none());
}

#[test]
fn without_the_search_table_or_section_headers_the_rows_are_the_same() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let header = file.section_by_name(".eh_frame_hdr").unwrap().file_range().unwrap();
    let mut without_table = bytes.clone();
    without_table[header.0 as usize + 2] = 0xff; // fde_count_enc: DW_EH_PE_omit
    let mut without_sections = bytes.clone();
    without_sections[40..48].fill(0); // e_shoff
    without_sections[60..64].fill(0); // e_shnum, e_shstrndx
    let whole = Cfi::find(&bytes).unwrap();
    for other in [without_table, without_sections] {
        let cfi = Cfi::find(&other).unwrap();
        let functions =
            file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 4);
        let mut compared = 0;
        for function in functions.step_by(29) {
            let pc = Svma(function.address() + function.size() / 2);
            assert_eq!(cfi.row::<[Column; COLUMNS]>(&other, pc), whole.row(&bytes, pc), "{pc}");
            compared += 1;
        }
        assert!(compared > 50, "{compared}");
    }
}

#[test]
fn a_header_with_more_entries_than_bytes_gives_no_row() {
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let (header, text) = {
        let file = object::File::parse(&*bytes).unwrap();
        let (at, _) = file.section_by_name(".eh_frame_hdr").unwrap().file_range().unwrap();
        (at as usize, file.section_by_name(".text").unwrap().address())
    };
    let cfi = Cfi::find(&bytes).unwrap();
    bytes[header + 2] = gimli::DW_EH_PE_udata8.0;
    bytes[header + 8..header + 16].copy_from_slice(&(u64::MAX >> 1).to_le_bytes());
    assert!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(text)).is_none());
}

#[test]
fn corrupted_tables_give_rows_or_none_and_end() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let range = |name: &str| file.section_by_name(name).unwrap().file_range().unwrap();
    let (header, frames) = (range(".eh_frame_hdr"), range(".eh_frame"));
    let text = file.section_by_name(".text").unwrap();
    let cfi = Cfi::find(&bytes).unwrap();
    let mut state = 88_172_645_463_325_252u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut mutated = bytes.clone();
    for round in 0..300 {
        // Corruption accumulates; every tenth round starts from the original file.
        if round % 10 == 0 {
            mutated.copy_from_slice(&bytes);
        }
        for _ in 0..200 {
            let (offset, size) = if random(4) == 0 { header } else { frames };
            let reach = if random(2) == 0 { size } else { size.min(4096) };
            let at = (offset + random(reach)) as usize;
            let byte = random(256) as u8;
            mutated[at] = [0, 0xff, 0x7f, 0x80, byte][random(5) as usize];
        }
        for _ in 0..200 {
            let pc = Svma(text.address() + random(text.size()));
            let _ = cfi.row::<[Column; COLUMNS]>(&mutated, pc);
        }
        if round % 50 == 0
            && let Some(cfi) = Cfi::find(&mutated)
        {
            let _ = cfi.row::<[Column; COLUMNS]>(&mutated, Svma(text.address()));
        }
    }
}

/// Addresses of the sections of [`with_marks`].
const FRAMES: u64 = 0x3000;
const HEADER: u64 = 0x4000;

/// A file with a 16-byte function at 0x1000, 0x1010 and so on for each augmentation; the CFA of each is 16 bytes
/// above the stack pointer.
fn with_marks(machine: u16, augmentations: &[&[u8]], with_header: bool) -> Vec<u8> {
    let entry = |content: &[u8]| {
        let mut content = content.to_vec();
        content.resize((content.len() + 4).next_multiple_of(8) - 4, 0);
        [(content.len() as u32).to_le_bytes().as_slice(), &content].concat()
    };
    let (mut frames, mut table) = (Vec::new(), Vec::new());
    for (augmentation, start) in augmentations.iter().zip((0x1000u64..).step_by(16)) {
        let cie = frames.len();
        // z: one byte of data, R: DW_EH_PE_absptr; DW_CFA_def_cfa: register 31 (7) + 16, DW_CFA_offset: 16
        let stack_pointer = if machine == AARCH64 { 31 } else { 7 };
        let head =
            [&[0, 0, 0, 0, 1], *augmentation, &[0, 1, 0x78, 30, 1, 0, 0x0c, stack_pointer, 16, 0x90, 1]];
        frames.extend(entry(&head.concat()));
        let fde = frames.len();
        let to_cie = ((fde + 4 - cie) as u32).to_le_bytes();
        frames.extend(entry(&[&to_cie[..], &start.to_le_bytes(), &16u64.to_le_bytes(), &[0]].concat()));
        for address in [start, FRAMES + fde as u64] {
            table.extend((address.wrapping_sub(HEADER) as u32).to_le_bytes());
        }
    }
    frames.extend([0; 4]);
    // sdata4 relative to here; udata4; sdata4 relative to the section
    let mut header = vec![1, 0x1b, 0x03, 0x3b];
    header.extend((FRAMES.wrapping_sub(HEADER + 4) as u32).to_le_bytes());
    header.extend((augmentations.len() as u32).to_le_bytes());
    header.extend(table);
    let section = |name, content, svma| build::Section { svma, ..build::section(name, PROGBITS, content, 0) };
    let mut sections = vec![section(".eh_frame", frames, FRAMES)];
    if with_header {
        sections.push(section(".eh_frame_hdr", header, HEADER));
    }
    build::file(machine, &sections)
}

#[test]
fn augmentations_of_aarch64_lose_no_entry() {
    for with_header in [false, true] {
        let bytes = with_marks(AARCH64, &[b"zR", b"zRB", b"zRG", b"zRBS", b"zR"], with_header);
        let cfi = Cfi::find(&bytes).unwrap();
        for (pc, signal) in
            [(0x1008, false), (0x1018, false), (0x1028, false), (0x1038, true), (0x1048, false)]
        {
            let row: RowAarch64 =
                cfi.row(&bytes, Svma(pc)).unwrap_or_else(|| panic!("{pc:#x} {with_header}"));
            assert_eq!((&row.cfa, row.signal), (&RowCfa::Register(31, 16), signal), "{pc:#x}");
        }
        // x86_64 has no such augmentations: unknown ones are refused.
        let bytes = with_marks(X86_64, &[b"zRB", b"zR"], with_header);
        let cfi = Cfi::find(&bytes).unwrap();
        assert_eq!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(0x1008)), None);
        assert!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(0x1018)).is_some());
    }
}

/// A file with a compressed `.debug_frame` in Go's format, for a 16-byte function at 0x1000.
fn with_packed_frames(claimed_size: Option<u64>) -> Vec<u8> {
    let entry = |content: &[&[u8]]| {
        let mut content = content.concat();
        content.resize(content.len().next_multiple_of(4), 0);
        [(content.len() as u32).to_le_bytes().as_slice(), &content].concat()
    };
    // Version 3, no augmentation, factors 1 and -8, column 16; CFA = rsp+32, rip at cfa-8.
    let cie = entry(&[&[0xff; 4], &[3, 0, 1, 0x78, 16], &[0x0c, 7, 32, 0x90, 1]]);
    let fde = entry(&[&[0; 4], &0x1000u64.to_le_bytes(), &16u64.to_le_bytes()]);
    let frames = [cie, fde].concat();
    // ch_type: zlib, ch_size, ch_addralign
    let head = [1, claimed_size.unwrap_or(frames.len() as u64), 1].map(u64::to_le_bytes).concat();
    let packed = [head, miniz_oxide::deflate::compress_to_vec_zlib(&frames, 6)].concat();
    let section = build::Section { flags: 0x800, ..build::section(".debug_frame", PROGBITS, packed, 0) };
    build::file(X86_64, &[section])
}

#[test]
fn compressed_frames_are_unpacked_up_to_a_ratio() {
    let bytes = with_packed_frames(None);
    let cfi = Cfi::find(&bytes).unwrap();
    let row: Row = cfi.row(&bytes, Svma(0x1008)).unwrap();
    assert_eq!((row.cfa, &row.columns[RETURN_ADDRESS]), (RowCfa::Register(7, 32), &Column::At(-8)));
    assert_eq!(cfi.row::<[Column; COLUMNS]>(&bytes, Svma(0x1010)), None);
    for claimed in [0, 1, 7 << 20, UNPACKED_MAX + 1, u64::MAX] {
        assert!(Cfi::find(&with_packed_frames(Some(claimed))).is_none(), "{claimed}");
    }
    for length in 0x1000..bytes.len() {
        let _ = Cfi::find(&bytes[..length]);
    }
}
