//! Mach-O symbols, each rule with a file built byte by byte.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use super::*;
use crate::binary::macho::build::{
    EXT, File, LOCAL, Nlist, PRIVATE, STAB_FUN, Section, TEXT, at, nlist, trie, uleb,
};
use crate::symbol::demangle::demangle;
use crate::symbol::table::NAME_BYTES_MAX;

fn table(file: &File) -> Result<SymbolTable, Why> {
    SymbolTable::parse(&ImageBytes::new(file.build()))
}

fn of(nlists: &[Nlist], function_starts: &[u64]) -> File {
    File { nlists: nlists.to_vec(), function_starts: function_starts.to_vec(), ..File::default() }
}

/// All symbols: name, start and end relative to `__TEXT`.
fn symbols(file: &File) -> Vec<(String, u64, u64)> {
    let table = table(file).unwrap();
    let text = file.text;
    table
        .symbols()
        .map(|symbol| {
            let name = String::from_utf8(symbol.name.to_vec()).unwrap();
            (name, symbol.start.0 - text, symbol.end.0 - text)
        })
        .collect()
}

fn name(file: &File, offset: u64) -> Option<String> {
    let table = table(file).unwrap();
    let symbol = table.lookup(Svma(file.text + offset));
    if let Err(why) = &symbol {
        assert_eq!(*why, Why::NotCovered);
    }
    symbol.ok().map(|symbol| String::from_utf8(symbol.name.to_vec()).unwrap())
}

fn check(file: &File, expected: &[(&str, u64, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, start, end)| (name.to_string(), *start, *end)).collect();
    assert_eq!(symbols(file), expected);
}

#[test]
fn a_symbol_ends_at_the_next_symbol_function_or_end_of_section() {
    // Unsorted: linkers put local symbols first.
    let nlists = [nlist("_c", LOCAL, 0x1800), nlist("_a", EXT, 0x1000), nlist("_b", EXT, 0x1040)];
    check(&of(&nlists, &[]), &[("a", 0x1000, 0x1040), ("b", 0x1040, 0x1800), ("c", 0x1800, 0x2000)]);
    let file = of(&nlists, &[0x1000, 0x1040, 0x1080, 0x1800, 0x1900]);
    check(&file, &[("a", 0x1000, 0x1040), ("b", 0x1040, 0x1080), ("c", 0x1800, 0x1900)]);
    for (offset, expected) in [
        (0xfff, None),
        (0x1000, Some("a")),
        (0x103f, Some("a")),
        (0x107f, Some("b")),
        (0x1080, None), // a function without a symbol
        (0x17ff, None),
        (0x18ff, Some("c")),
        (0x1900, None),
        (0x2000, None), // `__stubs`
        (0x2100, None), // `__const`
    ] {
        assert_eq!(name(&file, offset).as_deref(), expected, "{offset:#x}");
    }
}

#[test]
fn labels_inside_a_function_are_symbols() {
    // Hand-written assembly; the linker lists `_outer` as the only function.
    let file = of(&[nlist("_outer", EXT, 0x1000), nlist("_label", LOCAL, 0x1020)], &[0x1000, 0x1100]);
    check(&file, &[("outer", 0x1000, 0x1020), ("label", 0x1020, 0x1100)]);
}

#[test]
fn debugging_absolute_undefined_and_data_symbols_are_ignored() {
    let other = |kind, section| Nlist { kind, section, ..nlist("_other", EXT, 0x1010) };
    let nlists = [
        nlist("_f", EXT, 0x1000),
        other(STAB_FUN, 1),
        other(0x2e, 1),  // BNSYM
        other(0x64, 0),  // SO
        other(0x01, 1),  // undefined
        other(0x03, 0),  // absolute
        other(0x0b, 1),  // indirect
        other(EXT, 0),   // no section
        other(EXT, 3),   // `__const` has no code
        other(EXT, 4),   // no such section
        other(EXT, 255), // nor this
        other(EXT, 2),   // outside of its section
    ];
    check(&of(&nlists, &[]), &[("f", 0x1000, 0x2000)]);
}

#[test]
fn code_in_any_section_counts_by_its_flags() {
    let mut file = of(&[nlist("_f", EXT, 0x1000), nlist("_g", EXT, 0x3100)], &[]);
    file.sections.push(Section { name: "__hot", flags: 0x400, offset: 0x3100, size: 0x40 });
    file.nlists[1].section = 4;
    check(&file, &[("f", 0x1000, 0x2000), ("g", 0x3100, 0x3140)]);
}

#[test]
fn exactly_one_underscore_is_removed() {
    let names = [
        "_main",
        "__start",
        "___chkstk_darwin",
        "-[Class method:]",
        "+[NSThread exit]",
        "plain",
        "_",
        "_$s4main3fooyyF",
    ];
    let nlists: Vec<_> =
        names.iter().enumerate().map(|(index, name)| nlist(name, EXT, 0x1000 + 16 * index as u64)).collect();
    let found: Vec<_> = symbols(&of(&nlists, &[])).into_iter().map(|symbol| symbol.0).collect();
    assert_eq!(
        found,
        [
            "main",
            "_start",
            "__chkstk_darwin",
            "-[Class method:]",
            "+[NSThread exit]",
            "plain",
            "$s4main3fooyyF"
        ]
    );
}

#[test]
fn names_are_readable_after_the_underscore_is_removed() {
    let readable =
        |mangled: &str| demangle(name(&of(&[nlist(mangled, LOCAL, 0x1000)], &[]), 0x1000).unwrap());
    assert_eq!(readable("__RNvC6_123foo3bar"), "123foo::bar");
    assert_eq!(readable("__ZN4core3ptr13drop_in_place17h0123456789abcdefE"), "core::ptr::drop_in_place");
    assert_eq!(readable("__ZN5space3fooEibc"), "space::foo(int, bool, char)");
    assert_eq!(readable("__ZN5space3fooEi.cold.1"), "space::foo(int) [clone .cold.1]");
    assert_eq!(readable("_$s4main3fooyyF"), "$s4main3fooyyF");
    assert_eq!(readable("-[Class method:]"), "-[Class method:]");
    // Blocks in C have three underscores, of which one is added; `_block_invoke` ends the name.
    assert_eq!(readable("___main_block_invoke"), "__main_block_invoke");
}

#[test]
fn a_symbol_without_a_name_ends_the_preceding_one() {
    let dynamic = Nlist { desc: 0x10, ..nlist("_anything", EXT, 0x1030) };
    let nlists = [
        nlist("_f", EXT, 0x1000),
        nlist("<redacted>", LOCAL, 0x1010),
        nlist("", LOCAL, 0x1020),
        dynamic,
        nlist("__mh_execute_header", EXT, 0x1040),
    ];
    check(&of(&nlists, &[]), &[("f", 0x1000, 0x1010)]);
    // At the header it is outside of its stated section.
    let header = Nlist { desc: 0x10, ..nlist("__mh_execute_header", EXT, 0) };
    assert_eq!(table(&of(&[header], &[0x1000])).unwrap_err(), Why::NoSymbols);
}

#[test]
fn the_best_of_several_names_is_kept() {
    let weak = Nlist { desc: 0x80, ..nlist("_weak", EXT, 0x1000) };
    let all = [
        nlist("", EXT, 0x1000),
        nlist("<redacted>", LOCAL, 0x1000),
        nlist("_a", PRIVATE, 0x1000),
        weak,
        nlist("___f", EXT, 0x1000),
        nlist("_longer", EXT, 0x1000),
        nlist("_g", EXT, 0x1000),
        nlist("_f", EXT, 0x1000),
    ];
    // Without its best name, each list has the next one.
    for (length, best) in [(8, "f"), (7, "g"), (6, "longer"), (5, "__f"), (4, "weak"), (3, "a")] {
        let mut nlists = all[..length].to_vec();
        check(&of(&nlists, &[]), &[(best, 0x1000, 0x2000)]);
        nlists.reverse();
        check(&of(&nlists, &[]), &[(best, 0x1000, 0x2000)]);
    }
    assert_eq!(symbols(&of(&all[..2], &[])), []);
}

#[test]
fn a_stripped_library_has_its_exported_names() {
    let exports = trie(&[
        ("__ZN5space3fooEi", at(0, &[0x1000])),
        ("_alpha", at(0, &[0x1040])),
        ("_alphabet", at(4, &[0x1080])),          // weak
        ("_chosen", at(0x10, &[0x2000, 0x10c0])), // stub and resolver
        ("_data", at(0, &[0x2100])),
        ("_elsewhere", [at(8, &[0x1004]).as_slice(), b"_else\0"].concat()),
        ("_fixed", at(2, &[0x1100])),
        ("_tls", at(1, &[0x1100])),
    ]);
    let starts = [0x1000, 0x1040, 0x1080, 0x10c0];
    for dyld_info in [false, true] {
        let file = File { trie: exports.clone(), dyld_info, ..of(&[], &starts) };
        check(
            &file,
            &[
                ("_ZN5space3fooEi", 0x1000, 0x1040),
                ("alpha", 0x1040, 0x1080),
                ("alphabet", 0x1080, 0x10c0),
                ("chosen", 0x2000, 0x2100),
            ],
        );
    }
}

#[test]
fn exports_fill_the_gaps_of_the_symbol_table() {
    let exports = trie(&[("_f", at(0, &[0x1000])), ("_g", at(0, &[0x1040])), ("_h", at(0, &[0x1080]))]);
    let nlists = [nlist("_f", EXT, 0x1000), nlist("<redacted>", LOCAL, 0x1040), nlist("_a", LOCAL, 0x1080)];
    let file = File { trie: exports.clone(), ..of(&nlists, &[]) };
    check(&file, &[("f", 0x1000, 0x1040), ("g", 0x1040, 0x1080), ("h", 0x1080, 0x2000)]);
    let nothing_new = File {
        trie: exports,
        ..of(&[&nlists[..1], &[nlist("_g", EXT, 0x1040), nlist("_h", EXT, 0x1080)]].concat(), &[])
    };
    let without = File { trie: Vec::new(), ..nothing_new.clone() };
    assert_eq!(table(&nothing_new).unwrap().memory_bytes(), table(&without).unwrap().memory_bytes());
    assert_eq!(table(&without).unwrap().memory_bytes(), 3 * 24);
}

/// A trie given byte by byte, in a file without other names.
fn exported(trie: &[u8]) -> Vec<String> {
    let file = File { trie: trie.to_vec(), ..of(&[nlist("", EXT, 0x1fff)], &[]) };
    symbols(&file).into_iter().map(|symbol| symbol.0).collect()
}

#[test]
fn malformed_tries_give_their_valid_part() {
    let leaf = |offset: u64| -> Vec<u8> {
        let terminal = at(0, &[offset]);
        [&[terminal.len() as u8][..], &terminal, &[0]].concat()
    };
    let root = |edges: &[&[u8]]| -> Vec<u8> { [&[0, edges.len() as u8][..], &edges.concat()].concat() };
    let sound = [root(&[b"_f\0\x09", b"x\0\x7f"]), leaf(0x1000)].concat();
    assert_eq!(exported(&sound), ["f"], "the other node is outside of the trie");
    assert_eq!(exported(&sound[..sound.len() - 1]), ["f"], "the number of edges is missing");
    assert_eq!(exported(&sound[..sound.len() - 2]), [""; 0], "the terminal is cut");
    assert_eq!(exported(&[]), [""; 0]);
    assert_eq!(exported(&[0]), [""; 0]);
    assert_eq!(exported(&[0, 1]), [""; 0]);
    assert_eq!(exported(&[0, 1, b'_']), [""; 0], "letters without an end");
    assert_eq!(exported(&[0x80; 64]), [""; 0]);
    let huge = [&[3, 0][..], &uleb(u64::MAX), &[0]].concat();
    assert_eq!(exported(&huge), [""; 0]);
    let beyond = [root(&[b"_f\0\x06"]), [&[11, 0][..], &uleb(u64::MAX - 1), &[0]].concat()].concat();
    assert_eq!(exported(&beyond), [""; 0], "the address is beyond the last");
}

#[test]
fn a_name_may_end_after_an_edge_without_letters() {
    // Written by ld64 for `_f` and `_fx`: both terminal, the first after an empty edge.
    let trie = [
        &[0, 1, b'_', b'f', 0, 6][..],
        &[0, 2, 0, 13, b'x', 0, 18],
        &[3, 0, 0x80, 0x20, 0],
        &[3, 0, 0x90, 0x20, 0],
    ]
    .concat();
    assert_eq!(exported(&trie), ["f", "fx"]);
    // An endless one: the root's edge leads to itself, without a letter.
    assert_eq!(exported(&[vec![0, 1, 0, 0], vec![0; 1 << 20]].concat()), [""; 0]);
}

#[test]
fn tries_are_read_to_a_limited_depth() {
    // `_`, `_a`, `_aa` and so on: an edge for each letter.
    let names: Vec<String> = (0..1100).map(|letters| format!("_{}", "a".repeat(letters))).collect();
    let exports =
        names.iter().enumerate().map(|(index, name)| (name.as_str(), at(0, &[0x1000 + index as u64])));
    let found = exported(&trie(&exports.collect::<Vec<_>>()));
    assert_eq!(found.last().unwrap().len(), 1023);
    assert_eq!(found.len(), 1023, "and `_` itself is without a name");
}

#[test]
fn cyclic_and_endless_tries_are_bounded() {
    // A terminal with a single edge to itself: names of any length at one address.
    let circle = [0, 1, b'_', 0, 5, 3, 0, 0x80, 0x20, 1, b'a', 0, 5];
    assert_eq!(exported(&circle), [""; 0], "no more nodes than there are bytes: `_`");
    let started = crate::cpu_time::CpuTime::start();
    let mut long = circle.to_vec();
    long.resize(1 << 20, 0);
    assert_eq!(exported(&long), ["a"], "of `_`, `_a`, `_aa` and so on, the shortest");
    // Each byte is a node that overlaps the next, with unterminated letters.
    let overlapping = vec![1; 1 << 20];
    assert_eq!(exported(&overlapping), [""; 0]);
    assert!(started.used().as_secs() < 20, "{:?}", started.used());
}

#[test]
fn the_length_of_names_is_limited() {
    let long = format!("_{}", "x".repeat(2 * NAME_BYTES_MAX));
    let file = of(&[nlist(&long, EXT, 0x1000)], &[]);
    assert_eq!(name(&file, 0x1000).unwrap().len(), NAME_BYTES_MAX);
    let in_trie = File { trie: trie(&[(&long, at(0, &[0x1000]))]), ..of(&[nlist("_f", EXT, 0x1800)], &[]) };
    assert_eq!(name(&in_trie, 0x1000), None, "such an export is left out");
    let fits = &long[..NAME_BYTES_MAX];
    let in_trie = File { trie: trie(&[(fits, at(0, &[0x1000]))]), ..in_trie };
    assert_eq!(name(&in_trie, 0x1000).unwrap().len(), NAME_BYTES_MAX - 1);
}

/// A remote pool, which returns names one by one and records them.
#[derive(Debug, Default)]
struct Remote {
    pool: Vec<u8>,
    asked: Mutex<Vec<u32>>,
}

impl Strings for Remote {
    fn name(&self, offset: u32, max_bytes: usize) -> Cow<'_, [u8]> {
        self.asked.lock().unwrap().push(offset);
        let rest = &self.pool[offset as usize..];
        let end = rest.iter().position(|&byte| byte == 0).unwrap().min(max_bytes);
        Cow::Owned(rest[..end].to_vec())
    }
}

#[test]
fn an_image_in_memory_is_named_from_its_pieces() {
    let file = File {
        trie: trie(&[("_exported", at(0, &[0x1080]))]),
        ..of(
            &[nlist("_f", EXT, 0x1000), nlist("_g", LOCAL, 0x1040), nlist("_h", LOCAL, 0x1040)],
            &[0x1000, 0x1040],
        )
    };
    let bytes = file.build();
    let macho = MachO::parse(&bytes).unwrap();
    // Like a remote reader: at the stated address of the piece, plus a slide.
    let linkedit = Svma(TEXT + 0x10_0000);
    let remote = |range: &Range<u64>| {
        let from = (macho.linkedit_svma(range.start).unwrap() - linkedit + 0x4000) as usize;
        bytes[from..from + (range.end - range.start) as usize].to_vec()
    };
    let strings = Arc::new(Remote { pool: remote(&macho.linkedit.strings), ..Remote::default() });
    let table = SymbolTable::from_macho(Parts {
        text: macho.text.start,
        code: &macho.code,
        nlists: &remote(&macho.linkedit.nlists),
        strings: Arc::clone(&strings) as Arc<dyn Strings>,
        function_starts: &remote(&macho.linkedit.function_starts),
        exports_trie: ImageBytes::new(remote(&macho.linkedit.exports_trie)),
    })
    .unwrap();
    assert_eq!(*strings.asked.lock().unwrap(), [4, 7], "only the aliases");
    for (offset, name) in [(0x1000, "f"), (0x1040, "g"), (0x1080, "exported")] {
        assert_eq!(*table.lookup(Svma(TEXT + offset)).unwrap().name, *name.as_bytes());
    }
    assert_eq!(*strings.asked.lock().unwrap(), [4, 7, 1, 4], "and those looked up");
}

#[test]
fn offsets_beyond_the_pool_name_nothing() {
    let file = of(&[nlist("_f", EXT, 0x1000), nlist("_g", EXT, 0x1010)], &[]);
    for strx in [u32::MAX, 1 << 31, (1 << 31) - 1, 0x1000] {
        let mut bytes = file.build();
        let at = MachO::parse(&bytes).unwrap().linkedit.nlists.start as usize;
        bytes[at..at + 4].copy_from_slice(&strx.to_le_bytes());
        let table = SymbolTable::parse(&ImageBytes::new(bytes)).unwrap();
        assert_eq!(table.lookup(Svma(TEXT + 0x1000)), Err(Why::NotCovered), "{strx:#x}");
        assert_eq!(*table.lookup(Svma(TEXT + 0x1010)).unwrap().name, *b"g");
    }
}

#[test]
fn files_without_functions_and_other_formats_are_reported() {
    assert_eq!(table(&File::default()).unwrap_err(), Why::NoSymbols);
    assert_eq!(table(&of(&[], &[0x1000])).unwrap_err(), Why::NoSymbols);
    let object = SymbolTable::parse(&ImageBytes::new(0xfeed_face_u32.to_be_bytes().to_vec()));
    assert_eq!(object.unwrap_err(), Why::BadFile("a Mach-O file of another byte order".to_string()));
}

#[test]
fn symbols_of_i386_end_at_the_next_function_start() {
    let table = SymbolTable::parse(&ImageBytes::new(crate::binary::macho::build::i386())).unwrap();
    let name = |at: u64| table.lookup(Svma(at)).map(|symbol| symbol.name.to_vec());
    assert_eq!((name(0x2000), name(0x2007)), (Ok(b"start".to_vec()), Ok(b"start".to_vec())));
    assert_eq!((name(0x2008), name(0x200f)), (Ok(b"main".to_vec()), Ok(b"main".to_vec())));
    assert_eq!(name(0x2010), Err(Why::NotCovered));
}
