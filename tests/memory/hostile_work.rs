//! Files made to cost far more than their size: many parts that all refer to one long one.
//!
//! Each is put together byte by byte (`crates/unwind/src/binary/elf/build.rs`). What is asserted is memory and
//! time, generously: without its limit each of them takes minutes or gigabytes.

#[path = "../../crates/unwind/src/binary/elf/build.rs"]
mod build;

use build::{DYNSYM, FIRST, PROGBITS, RELA, STRTAB, Section, TEXT, X86_64, file, section};
use stackprof::binary::ImageBytes;
use stackprof::binary::cfi::Cfi;
use stackprof::symbol::{ImageNames, Options, name_addresses};

use crate::memory;
use crate::seeds::cpu_time::CpuTime;

/// Most CPU time for one file, for a debug build.
const SECONDS_MAX: u64 = 20;

/// Names addresses, in bounded time and memory. The caller holds `memory::alone`, from before it makes the file.
fn name(bytes: &[u8], addresses: &[u64], lines: bool) -> ImageNames {
    let options = Options { lines, threads: 2, ..Options::default() };
    let started = CpuTime::of_all_threads();
    let mut answer = ImageNames::default();
    let used = memory::peak_of(|| {
        let _ = Cfi::find(bytes);
        answer = name_addresses("/nowhere/a.so", ImageBytes::new(bytes.to_vec()), addresses, &options);
    });
    let took = started.used();
    assert!(took.as_secs() < SECONDS_MAX, "took {took:?}");
    assert!(used < bytes.len() * 32 + (8 << 20), "took {used} bytes for {}", bytes.len());
    answer
}

fn first_name(answer: &ImageNames) -> String {
    answer.names[0].as_ref().unwrap()[0].name.as_deref().unwrap().to_owned()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn sections_that_share_a_long_name() {
    let _alone = memory::alone();
    // Not UTF-8, so that it would be copied and not borrowed.
    let mut names = vec![b'a'; 1_000_000];
    names.push(0xff);
    let mut sections = build::symbols(&[build::function(1, TEXT, 16)], b"\0f\0".to_vec()).to_vec();
    sections.resize(20_002, section("many", PROGBITS, Vec::new(), 0));
    // The section with the names of sections is the last; its own name becomes the long one.
    let mut bytes = file(X86_64, &sections);
    let at_headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let count = (bytes.len() - at_headers) / 64;
    let last = at_headers + (count - 1) * 64;
    let field = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let (offset, size) = (field(&bytes, last + 24), field(&bytes, last + 32));
    let old = bytes[offset..offset + size].to_vec();
    let (at, long) = (bytes.len() as u64, size as u32);
    bytes.extend([old, names, vec![0]].concat());
    let size = bytes.len() as u64 - at;
    bytes[last + 24..last + 40].copy_from_slice(&words(&[at, size]));
    for header in (0..20_000).map(|index| at_headers + (FIRST as usize + 2 + index) * 64) {
        bytes[header..header + 4].copy_from_slice(&long.to_le_bytes());
    }
    assert_eq!(first_name(&name(&bytes, &[TEXT], true)), "f");
}

#[test]
fn relocations_that_share_a_long_name() {
    let _alone = memory::alone();
    let names = [&[0][..], &[b'a'; 65_000], &[0]].concat();
    let symbols = [vec![0; 24], build::function(1, 0, 0)].concat();
    let relocations = (0..20_000).flat_map(|slot| words(&[0x9000 + 8 * slot, 1 << 32 | 6, 0])).collect();
    let stub = Section {
        flags: build::CODE,
        svma: 0x3000,
        // jmp *slot(%rip); xchg %ax,%ax
        ..section(".plt.got", PROGBITS, b"\xff\x25\xfa\x5f\0\0\x66\x90".to_vec(), 0)
    };
    let sections = [
        stub,
        section(".rela.dyn", RELA, relocations, FIRST + 2),
        section(".dynsym", DYNSYM, symbols, FIRST + 3),
        section(".dynstr", STRTAB, names, 0),
    ];
    let started = CpuTime::start();
    let found = first_name(&name(&file(X86_64, &sections), &[0x3000], false));
    assert_eq!(found, format!("{}@plt", "a".repeat(65_000)));
    assert!(started.used().as_secs() < 5);
}

/// A unit's header, of DWARF 4, before `rest` bytes.
fn unit(rest: usize, abbreviations: u32) -> Vec<u8> {
    let length = (2 + 4 + 1 + rest) as u32;
    [&length.to_le_bytes()[..], &[4, 0], &abbreviations.to_le_bytes(), &[8]].concat()
}

#[test]
fn units_that_share_their_entries() {
    let _alone = memory::alone();
    const UNITS: usize = 500;
    // 1: a unit with a block, in which the headers of the others are; 2: DW_TAG_base_type.
    let abbreviations = vec![1, 0x11, 1, 0x25, 0x04, 0, 0, 2, 0x24, 0, 0, 0, 0];
    let tail = vec![2; 8 << 20];
    let mut info = Vec::new();
    for index in 0..UNITS {
        info.extend(unit(16 * (UNITS - index) - 11 + tail.len(), 0));
        info.push(1);
        info.extend((16 * (UNITS - index - 1) as u32).to_le_bytes());
    }
    info.extend(tail);
    let mut ranges = Vec::new();
    for index in 0..UNITS {
        let content = [
            &[2, 0][..],
            &(16 * index as u32).to_le_bytes(),
            &[8, 0, 0, 0, 0, 0],
            &words(&[TEXT + 2 * index as u64, 1, 0, 0]),
        ];
        let content = content.concat();
        ranges.extend([&(content.len() as u32).to_le_bytes()[..], &content].concat());
    }
    let bytes = file(
        X86_64,
        &[
            section(".debug_info", PROGBITS, info, 0),
            section(".debug_abbrev", PROGBITS, abbreviations, 0),
            section(".debug_aranges", PROGBITS, ranges, 0),
        ],
    );
    let addresses: Vec<u64> = (0..UNITS as u64).map(|index| TEXT + 2 * index).collect();
    name(&bytes, &addresses, false);
}

#[test]
fn entries_with_many_attributes_that_take_no_bytes() {
    let _alone = memory::alone();
    // 1: a unit at the code; 2: DW_TAG_base_type with DW_AT_declaration, DW_FORM_flag_present.
    let mut abbreviations = vec![1, 0x11, 1, 0x11, 0x01, 0x12, 0x06, 0, 0, 2, 0x24, 0];
    abbreviations.extend([0x3c, 0x19].repeat(200_000));
    abbreviations.extend([0, 0, 0]);
    let content = [&[1][..], &words(&[TEXT]), &[16, 0, 0, 0], &vec![2; 1 << 20]].concat();
    let info = [unit(content.len(), 0), content].concat();
    let bytes = file(
        X86_64,
        &[section(".debug_info", PROGBITS, info, 0), section(".debug_abbrev", PROGBITS, abbreviations, 0)],
    );
    name(&bytes, &[TEXT], false);
}

/// Units with an address each, which all have the line program at 0.
fn with_lines(units: u64, lines: &[u8]) -> Vec<u8> {
    // DW_AT_low_pc, DW_AT_high_pc (data4), DW_AT_stmt_list
    let abbreviations = vec![1, 0x11, 0, 0x11, 0x01, 0x12, 0x06, 0x10, 0x17, 0, 0, 0];
    let mut info = Vec::new();
    for index in 0..units {
        info.extend(unit(17, 0));
        info.extend([&[1][..], &words(&[TEXT + 2 * index]), &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    }
    let lines = [&(lines.len() as u32).to_le_bytes()[..], lines].concat();
    file(
        X86_64,
        &[
            section(".debug_info", PROGBITS, info, 0),
            section(".debug_abbrev", PROGBITS, abbreviations, 0),
            section(".debug_line", PROGBITS, lines, 0),
        ],
    )
}

/// A line program of DWARF 4 with the given directories and instructions.
fn line_program(directories: &[u8], instructions: &[u8]) -> Vec<u8> {
    let lengths = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    let header = [&[1, 1, 1, 0xfb, 14, 13][..], &lengths, directories, &[0], b"a.c\0\0\0\0", &[0]].concat();
    [&[4, 0][..], &(header.len() as u32).to_le_bytes(), &header, instructions].concat()
}

#[test]
fn units_that_share_a_line_program_without_rows() {
    let _alone = memory::alone();
    // DW_LNS_negate_stmt
    let bytes = with_lines(1000, &line_program(&[], &vec![6; 8 << 20]));
    let addresses: Vec<u64> = (0..1000).map(|index| TEXT + 2 * index).collect();
    name(&bytes, &addresses, true);
}

#[test]
fn units_that_share_a_table_of_directories() {
    let _alone = memory::alone();
    let bytes = with_lines(1000, &line_program(&b"include\0".repeat(1 << 19), &[]));
    let addresses: Vec<u64> = (0..1000).map(|index| TEXT + 2 * index).collect();
    name(&bytes, &addresses, true);
}
