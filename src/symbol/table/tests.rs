//! Symbol tables of programs compiled here, compared with the output of `nm`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::elf::{is_mark, resolve};
use super::*;
use crate::binary::elf::build;

/// Functions that never run: only their symbols matter, so bodies are zero bytes and the same text assembles for
/// every architecture. Comments have offsets from `zoo_sized`.
const ZOO: &str = r#"
__asm__(".text\n.balign 64\n"
    ".globl zoo_sized\n.type zoo_sized, %function\nzoo_sized: .skip 32\n.size zoo_sized, 32\n" // 0
    ".skip 16\n"                                                             // 32: in no function
    ".type zoo_unsized, %function\nzoo_unsized: .skip 24\n"                  // 48: no .size
    "zoo_bare: .skip 8\n"                                                    // 72: neither .type nor .size
    ".type zoo_outer, %function\nzoo_outer: .skip 16\n"                      // 80: 64 bytes
    "zoo_inner: .skip 8\n.size zoo_inner, 8\n.skip 16\n"                     // 96: a sized part of it
    "zoo_label: .skip 24\n.size zoo_outer, 64\n"                             // 120: a place in it
    ".skip 16\n"                                                             // 144: in no function
    ".globl zoo_alias\n.type zoo_alias, %function\n"                         // 160: one of six names
    ".weak azoo_alias\n.type azoo_alias, %function\n"
    ".type aazoo, %function\n.globl _zoo_alias\n.type _zoo_alias, %function\n"
    ".globl zoo_alias_longer\n.type zoo_alias_longer, %function\n"
    "zoo_note: zoo_alias: azoo_alias: aazoo: _zoo_alias: zoo_alias_longer: .skip 16\n"
    ".size zoo_alias, 16\n.size azoo_alias, 16\n.size aazoo, 16\n.size _zoo_alias, 16\n"
    ".size zoo_alias_longer, 16\n"
    ".globl zoo_short\n.type zoo_short, %function\n.type zoo_long, %function\n" // 176: 8 of 32 bytes
    "zoo_short: zoo_long: .skip 8\n.size zoo_short, 8\n.skip 24\n.size zoo_long, 32\n"
    ".globl _ZN5space3fooEi\n.type _ZN5space3fooEi, %function\n"              // 208
    "_ZN5space3fooEi: .skip 8\n.size _ZN5space3fooEi, 8\n"
    ".globl _RNvC6_123foo3bar\n.type _RNvC6_123foo3bar, %function\n"          // 216
    "_RNvC6_123foo3bar: .skip 8\n.size _RNvC6_123foo3bar, 8\n"
    ".globl zoo_ifunc\n.type zoo_ifunc, %gnu_indirect_function\n"             // 224
    "zoo_ifunc: .skip 8\n.size zoo_ifunc, 8\n"
    "$x: .skip 8\n"                                                          // 232: a mapping symbol
    ".globl zoo_after\n.type zoo_after, %function\nzoo_after: .skip 8\n.size zoo_after, 8\n");  // 240
__attribute__((noinline)) static int hidden(int x) { return x * 3 + 1; }
__attribute__((noinline)) int shown(int x) { return hidden(x) + hidden(x + 1); }
"#;

/// Compiles C, with a `main` unless a shared library is requested.
pub(crate) fn compile(source: &str, flags: &[&str]) -> (tempfile::TempDir, ImageBytes) {
    let dir = tempfile::tempdir().unwrap();
    let mut source = source.to_string();
    if !flags.contains(&"-shared") {
        source.push_str("int main(int argc, char **argv) { (void)argv; return shown(argc); }\n");
    }
    std::fs::write(dir.path().join("a.c"), source).unwrap();
    let mut cc = Command::new("cc");
    cc.current_dir(dir.path()).args(["-O1", "-o", "a.out", "a.c"]).args(flags);
    let output = cc.output().expect("the C compiler `cc` is needed by this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(dir.path().join("a.out")).unwrap();
    (dir, ImageBytes::new(bytes))
}

/// The zoo, compiled.
pub(crate) fn zoo(flags: &[&str]) -> (tempfile::TempDir, ImageBytes) {
    compile(ZOO, flags)
}

/// Names and sizes by address, for functions with a size according to `nm`.
fn nm(dir: &Path, flag: &str) -> BTreeMap<u64, Vec<(String, u64)>> {
    let output =
        Command::new("nm").args(["-S", "--defined-only", flag]).arg(dir.join("a.out")).output().unwrap();
    let mut functions: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [address, size, kind, name] = fields[..]
            && matches!(kind, "T" | "t" | "W" | "w" | "i")
        {
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            let name = name.split('@').next().unwrap().to_string();
            functions.entry(hex(address)).or_default().push((name, hex(size)));
        }
    }
    functions
}

fn name(table: &SymbolTable, svma: u64) -> Result<String, Why> {
    table.lookup(Svma(svma)).map(|symbol| String::from_utf8(symbol.name.to_vec()).unwrap())
}

/// For each sized function of `nm`: its first, middle and last byte have one of its names.
fn check_against_nm(table: &SymbolTable, dir: &Path, flag: &str) {
    let functions = nm(dir, flag);
    assert!(functions.len() > 5, "nm {flag}: {functions:?}");
    let bounds: Vec<u64> = functions.keys().copied().collect();
    for (&start, names) in &functions {
        let size = names.iter().map(|(_, size)| *size).max().unwrap();
        for address in [start, start + size / 2, start + size - 1] {
            // The innermost function at this address according to `nm`.
            let inner = bounds.iter().rev().filter(|&&bound| bound <= address).find_map(|bound| {
                let names: Vec<_> =
                    functions[bound].iter().filter(|(_, size)| address < bound + size).collect();
                (!names.is_empty()).then_some(names)
            });
            let found = name(table, address).unwrap();
            assert!(inner.unwrap().iter().any(|(name, _)| *name == found), "{address:#x} is not {found}");
        }
    }
}

fn zoo_base(table: &SymbolTable) -> u64 {
    table.symbols().find(|symbol| *symbol.name == *b"zoo_sized").unwrap().start.0
}

/// Checks the name from each offset in the zoo up to the next one.
fn check_zoo(table: &SymbolTable, expected: &[(u64, Option<&str>)]) {
    let base = zoo_base(table);
    for pair in expected.windows(2) {
        for offset in pair[0].0..pair[1].0 {
            let found = name(table, base + offset);
            assert_eq!(found, pair[0].1.map(str::to_string).ok_or(Why::NotCovered), "zoo+{offset}");
        }
    }
}

#[test]
fn a_program_with_all_symbols() {
    let (dir, bytes) = zoo(&[]);
    let table = SymbolTable::parse(&bytes).unwrap();
    check_against_nm(&table, dir.path(), "-g");
    check_against_nm(&table, dir.path(), "-a");
    check_zoo(
        &table,
        &[
            (0, Some("zoo_sized")),
            (32, None),
            (48, Some("zoo_unsized")),
            (72, Some("zoo_bare")),
            (80, Some("zoo_outer")),
            (96, Some("zoo_inner")),
            (104, Some("zoo_outer")),
            (144, None),
            (160, Some("zoo_alias")),
            (176, Some("zoo_short")),
            (184, Some("zoo_long")),
            (208, Some("_ZN5space3fooEi")),
            (216, Some("_RNvC6_123foo3bar")),
            (224, Some("zoo_ifunc")),
            (232, None),
            (240, Some("zoo_after")),
            (248, None),
        ],
    );
    assert!(table.symbols().any(|symbol| *symbol.name == *b"hidden"));
    assert!(table.memory_bytes() as f64 <= bytes.bytes().len() as f64 * MEMORY_FACTOR);
}

#[test]
fn a_stripped_program_has_no_symbols() {
    let (_dir, bytes) = zoo(&["-s"]);
    assert_eq!(SymbolTable::parse(&bytes).unwrap_err(), Why::NoSymbols);
}

#[test]
fn an_empty_go_table_is_no_symbol_table() {
    let mut words = [0u64; 8];
    words[2] = build::TEXT;
    let words = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let content = [vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8], words].concat();
    let section = build::section(".gopclntab", build::PROGBITS, content, 0);
    let bytes = ImageBytes::new(build::file(build::X86_64, &[section]));
    assert_eq!(SymbolTable::parse(&bytes).unwrap_err(), Why::NoSymbols);
}

#[test]
fn a_stripped_library_has_its_exports() {
    let (dir, bytes) = zoo(&["-s", "-shared", "-fPIC"]);
    let table = SymbolTable::parse(&bytes).unwrap();
    check_against_nm(&table, dir.path(), "-D");
    check_zoo(
        &table,
        &[
            (0, Some("zoo_sized")),
            (32, None),
            (160, Some("zoo_alias")),
            (176, Some("zoo_short")),
            (184, None),
            (208, Some("_ZN5space3fooEi")),
            (216, Some("_RNvC6_123foo3bar")),
            (224, Some("zoo_ifunc")),
            (232, None),
            (240, Some("zoo_after")),
            (248, None),
        ],
    );
    assert!(table.symbols().any(|symbol| *symbol.name == *b"shown"));
    assert!(!table.symbols().any(|symbol| *symbol.name == *b"hidden"));
}

#[test]
fn a_program_without_aslr_has_stated_addresses_far_from_zero() {
    let (dir, bytes) = zoo(&["-no-pie", "-static"]);
    let table = SymbolTable::parse(&bytes).unwrap();
    check_against_nm(&table, dir.path(), "-a");
    assert!(zoo_base(&table) > 0x10000);
}

#[test]
fn unsupported_files_report_the_reason() {
    let parse = |bytes: &'static [u8]| SymbolTable::parse(&ImageBytes::new(bytes)).unwrap_err();
    assert_eq!(parse(b"#!/bin/sh"), Why::BadFile("neither ELF, Mach-O nor PE".to_string()));
    assert!(matches!(parse(b"\x7fELF\x02\x01\x01"), Why::BadFile(_)));
}

/// A table of artificial symbols: start, size, name offset in `names`.
fn table(symbols: &[(u64, u64, u32)], names: &'static [u8]) -> SymbolTable {
    let entry = |&(start, size, name): &(u64, u64, u32)| Entry { start, end: start + size, name, link: 0 };
    let mut entries = symbols.iter().map(entry).collect();
    resolve(&mut entries, names);
    SymbolTable::new(entries, Arc::new(Pool(ImageBytes::new(names))))
}

#[test]
fn nested_symbols_agree_with_a_plain_search() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..2000 {
        let mut symbols: Vec<(u64, u64, u32)> = Vec::new();
        for _ in 0..random(24) {
            let start = random(64);
            if symbols.iter().all(|symbol| symbol.0 != start) {
                symbols.push((start, 1 + random(40), 1));
            }
        }
        let table = table(&symbols, b"\0f\0");
        for address in 0..120 {
            let covering =
                symbols.iter().filter(|(start, size, _)| (*start..start + size).contains(&address));
            let expected = covering.map(|symbol| symbol.0).max();
            let found = table.lookup(Svma(address)).ok().map(|symbol| symbol.start.0);
            assert_eq!(found, expected, "{address} in {symbols:?}");
        }
    }
}

#[test]
fn deep_nesting_is_bounded() {
    // A million symbols, each inside the preceding one, and an address after all but one.
    let count = 1_000_000;
    let symbols: Vec<_> = (0..count).map(|index| (index, 2 * (count - index) + 1, 1)).collect();
    let table = table(&symbols, b"\0f\0");
    assert_eq!(table.lookup(Svma(count)).unwrap().start, Svma(count - 1));
    let started = crate::cpu_time::CpuTime::start();
    for _ in 0..20_000 {
        assert_eq!(table.lookup(Svma(2 * count - 1)), Err(Why::NotCovered), "beyond the limit");
    }
    assert!(started.used().as_secs() < 20);
}

#[test]
fn a_symbol_without_a_name_is_no_answer() {
    let table = table(&[(0, 100, 1), (10, 10, 0), (30, 10, 77)], b"\0f\0");
    for address in [5, 15, 35] {
        assert_eq!(table.lookup(Svma(address)).unwrap().name, b"f".as_slice());
    }
}

#[test]
fn a_function_with_the_number_of_another_section_is_found_by_its_address() {
    // patchelf sorts the sections: 3 is the symbol table itself, 77 no section. A label has no section but its own.
    let symbol = |name: u32, section: u16, kind: u8, svma: u64| {
        let mut symbol = build::function(name, svma, 16);
        symbol[4] = kind;
        symbol[6..8].copy_from_slice(&section.to_le_bytes());
        symbol
    };
    let symbols = [
        symbol(1, 3, 2, build::TEXT),
        symbol(3, 77, 2, build::TEXT + 16),
        symbol(5, 3, 0, build::TEXT + 32),
        symbol(7, 3, 2, 2 * build::TEXT),
    ];
    let sections = build::symbols(&symbols, b"\0a\0b\0c\0d\0".to_vec());
    let file = build::file(build::X86_64, &sections);
    let table = SymbolTable::parse(&ImageBytes::new(file.clone())).unwrap();
    let named = |offset| name(&table, build::TEXT + offset).ok();
    assert_eq!([0, 16, 32].map(named), [Some("a".to_owned()), Some("b".to_owned()), None]);
    let functions = crate::binary::elf::functions::Functions::read(&file);
    let starts = |offset| functions.at(Svma(build::TEXT + offset), &file).map(|range| range.start.0);
    assert_eq!([8, 24, 40].map(starts), [Some(build::TEXT), Some(build::TEXT + 16), None]);
}

#[test]
fn markers_for_tools_are_no_names() {
    for mark in ["$x", "$d", "$x.3", "$d.realdata", ".Lloop", ".annobin_main.c"] {
        assert!(is_mark(mark.as_bytes()), "{mark}");
    }
    for name in ["$xy", "$", "x", "L1", ".text_start", "$$", ""] {
        assert!(!is_mark(name.as_bytes()), "{name}");
    }
}
