//! Tables of each version, built byte by byte; and malformed ones. tests/live_linux/runtimes.rs tests those of
//! real compilers.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::binary::elf::build::{self, AARCH64, PROGBITS, Section, X86_64};

const TEXT: u64 = build::TEXT;
const FUNCTIONS: [(&str, u64); 3] = [("main.main", 0x40), ("main.work", 0x90), ("runtime.goexit", 0x100)];
const END: u64 = 0x140;
/// From an entry: 0 for 4 instructions, 24 for 32, 0 again for 8; in units of the shortest instruction.
const STEPS: &[u8] = &[2, 4, 48, 32, 47, 8, 0];

/// A table of a version; `text`: its base of function addresses.
fn table(magic: u32, pointer_bytes: usize, quantum: u8, text: u64) -> Vec<u8> {
    let version = VERSIONS.iter().find(|version| version.magic == magic).unwrap();
    let word = |value: u64| value.to_le_bytes()[..pointer_bytes].to_vec();
    let field_bytes = if version.text.is_some() { 4 } else { pointer_bytes };
    let field = |value: u64| value.to_le_bytes()[..field_bytes].to_vec();
    let (mut names, mut name_at) = (Vec::new(), Vec::new());
    for (name, _) in FUNCTIONS {
        name_at.push(names.len());
        names.extend([name.as_bytes(), &[0]].concat());
    }
    let base = if version.text.is_some() { 0 } else { TEXT };
    let header_bytes = 8 + version.words * pointer_bytes;
    // After the header: names, steps, the list of functions, the data of each. Old versions have the list first.
    let list_bytes = (2 * FUNCTIONS.len() + 1) * field_bytes;
    let (list_at, names_at) = match version.parts {
        Some(_) => (header_bytes + names.len() + STEPS.len(), header_bytes),
        None => (header_bytes, header_bytes + list_bytes),
    };
    let steps_at = names_at + names.len();
    let from = if version.parts.is_some() { (names_at, steps_at, list_at) } else { (0, 0, 0) };
    let functions_at = if version.parts.is_some() { list_at + list_bytes } else { steps_at + STEPS.len() };
    let (mut list, mut functions) = (Vec::new(), Vec::new());
    for ((_, into), name) in FUNCTIONS.iter().zip(name_at) {
        list.extend([field(base + into), field((functions_at + functions.len() - from.2) as u64)].concat());
        let numbers = [names_at + name - from.0, 0, 0, steps_at - from.1, 0, 0];
        functions.extend([field(base + into), numbers.map(|n| (n as u32).to_le_bytes()).concat()].concat());
        functions.resize(functions.len() + 16, 0);
        if let Some(at) = version.flags_at.filter(|_| *into == FUNCTIONS[2].1) {
            let entry_bytes = functions.len() - 16 - 24;
            functions[entry_bytes + at] = TOP_FRAME;
        }
    }
    list.extend(field(base + END));
    let mut words = vec![0; version.words];
    words[0] = FUNCTIONS.len() as u64;
    if let Some(at) = version.text {
        words[at] = text;
    }
    if let Some(parts) = version.parts {
        for (at, part) in parts.into_iter().zip([names_at, steps_at, list_at]) {
            words[at] = part as u64;
        }
    }
    let parts = match version.parts {
        Some(_) => [names, STEPS.to_vec(), list, functions],
        None => [list, names, STEPS.to_vec(), functions],
    };
    let head = [&magic.to_le_bytes()[..], &[0, 0, quantum, pointer_bytes as u8]].concat();
    [head, words.into_iter().flat_map(word).collect(), parts.concat()].concat()
}

fn file(machine: u16, name: &str, content: Vec<u8>, others: &[Section]) -> Vec<u8> {
    let mut table = build::section(name, PROGBITS, content, 0);
    table.svma = 0x8000;
    build::file(machine, &[&[table], others].concat())
}

fn name_of<'a>(bytes: &'a [u8], go: &GoFunctions, function: &GoFunction) -> &'a str {
    let name = &bytes[go.names()][function.name as usize..];
    std::str::from_utf8(&name[..name.iter().position(|byte| *byte == 0).unwrap()]).unwrap()
}

fn cfa(row: Option<Row>) -> Option<i64> {
    row.map(|row| match row {
        Row { cfa: Cfa::Register(7, offset), .. } if row.columns[RETURN_ADDRESS] == Column::At(-8) => offset,
        other => panic!("{other:?}"),
    })
}

#[test]
fn functions_and_rows_are_found_in_tables_of_all_versions() {
    for version in &VERSIONS {
        let bytes = file(X86_64, ".gopclntab", table(version.magic, 8, 1, TEXT), &[]);
        let go = GoFunctions::find(&bytes).unwrap();
        let all: Vec<_> = go.iter(&bytes).collect();
        let found =
            all.iter().map(|function| (name_of(&bytes, &go, function), function.range.start.0 - TEXT));
        assert_eq!(found.collect::<Vec<_>>(), FUNCTIONS, "{:#x}", version.magic);
        assert_eq!(all[2].range.end, Svma(TEXT + END));
        for (into, expected) in
            [(0x3f, None), (0x40, Some(0)), (0x8f, Some(0)), (0x13f, Some(2)), (0x140, None)]
        {
            let at = go.at(&bytes, Svma(TEXT + into));
            assert_eq!(at, expected.map(|index: usize| all[index].clone()), "{into:#x}");
        }
        // The steps of the second function, and the end after them.
        for (into, expected) in
            [(0, Some(8)), (3, Some(8)), (4, Some(32)), (35, Some(32)), (36, Some(8)), (44, None)]
        {
            assert_eq!(cfa(go.row(&bytes, Svma(TEXT + 0x90 + into))), expected, "{into}");
        }
        assert_eq!(go.row::<[Column; AARCH64_COLUMNS]>(&bytes, Svma(TEXT + 0x90)), None);
    }
}

#[test]
fn with_a_link_register_frames_have_the_return_address_at_their_end() {
    let bytes = file(AARCH64, ".gopclntab", table(VERSIONS[0].magic, 8, 4, TEXT), &[]);
    let go = GoFunctions::find(&bytes).unwrap();
    let row = |into: u64| go.row::<[Column; AARCH64_COLUMNS]>(&bytes, Svma(TEXT + 0x40 + into)).unwrap();
    assert_eq!((row(0).cfa, &row(0).columns[30]), (Cfa::Register(31, 0), &Column::Same));
    // Instructions of four bytes.
    assert_eq!((row(16).cfa, &row(16).columns[30]), (Cfa::Register(31, 24), &Column::At(-24)));
    // In `runtime.goexit`.
    assert_eq!(row(0xc0 + 16).columns[30], Column::Undefined);
}

#[test]
fn position_independent_files_get_their_base_from_other_sources() {
    let table = || table(VERSIONS[0].magic, 8, 1, 0);
    let names = b"\0runtime.goexit\0main.work\0".to_vec();
    let symbols = |list: &[Vec<u8>]| {
        let symbols = [vec![0; 24], list.concat()].concat();
        [
            build::section(".dynsym", build::DYNSYM, symbols, build::FIRST + 2),
            build::section(".dynstr", build::STRTAB, names.clone(), 0),
        ]
    };
    let goexit = build::function(1, TEXT + 0x100, 16);
    let bytes = file(X86_64, ".gopclntab", table(), &symbols(std::slice::from_ref(&goexit)));
    let go = GoFunctions::find(&bytes).unwrap();
    assert_eq!(go.at(&bytes, Svma(TEXT + 0x95)).unwrap().range.start, Svma(TEXT + 0x90));
    // Two that disagree, and none.
    let other = build::function(16, TEXT + 0x98, 16);
    assert!(GoFunctions::find(&file(X86_64, ".gopclntab", table(), &symbols(&[goexit, other]))).is_none());
    assert!(GoFunctions::find(&file(X86_64, ".gopclntab", table(), &[])).is_none());
}

#[test]
fn other_linkers_put_the_table_among_other_data() {
    let content = || [vec![0xf1; 64], table(VERSIONS[1].magic, 8, 1, TEXT)].concat();
    let mark = build::section(".note.go.buildid", PROGBITS, vec![0; 4], 0);
    let bytes = file(X86_64, ".data.rel.ro", content(), &[mark]);
    let go = GoFunctions::find(&bytes).unwrap();
    assert_eq!(go.iter(&bytes).count(), 3);
    assert!(GoFunctions::find(&file(X86_64, ".data.rel.ro", content(), &[])).is_none(), "not of Go");
}

#[test]
fn only_the_entry_point_is_first() {
    assert!(is_first(b"_rt0_amd64_linux") && is_first(b"_rt0_arm64_darwin"));
    assert!(
        ["_rt0_amd64", "_rt0_amd64_linux_lib", "rt0_go", ""].iter().all(|name| !is_first(name.as_bytes()))
    );
}

#[test]
fn malformed_tables_are_read_up_to_the_error() {
    let mut state = 0x60_7ab_u64;
    // xorshift64; from 0 to below.
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for round in 0..4000 {
        let version = &VERSIONS[random(VERSIONS.len())];
        let mut content = table(version.magic, 8, 1, TEXT);
        for _ in 0..1 + random(6) {
            let at = 4 + random(content.len() - 4);
            content[at] = if random(3) == 0 { 0xff } else { random(256) as u8 };
        }
        content.truncate(1 + random(content.len()));
        let bytes = file(X86_64, ".gopclntab", content, &[]);
        let Some(go) = GoFunctions::find(&bytes) else { continue };
        for function in go.iter(&bytes).take(64) {
            assert!(function.range.start < function.range.end, "round {round}");
        }
        for into in (0..0x180).step_by(7) {
            let at = Svma(TEXT + into);
            assert!(go.at(&bytes, at).is_none_or(|function| function.range.contains(&at)), "round {round}");
            let _ = go.row::<[Column; COLUMNS]>(&bytes, at);
        }
    }
}
