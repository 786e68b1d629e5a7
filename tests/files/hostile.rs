//! Damaged and malicious files: no panic, no hang, bounded memory.
//!
//! ELF, Mach-O and PE files are mutated from seeds (`support/seeds.rs`).
#![cfg(target_os = "linux")]

#[path = "../../crates/unwind/src/binary/macho/build.rs"]
mod build;
#[path = "../../crates/unwind/src/binary/pe/build.rs"]
mod build_pe;

use std::ops::Range;
use std::process::Command;

use stackprof::addr::{Avma, LookupAvma, Svma};
use stackprof::binary::elf::same_file;
use stackprof::binary::macho::{self, SEGMENTS_MAX, function_starts};
use stackprof::binary::object::Object;
use stackprof::binary::{ImageBytes, Mapping, MappingKind};
use stackprof::images::{Images, SPACES_MAX};
use stackprof::recording::{Frame, Root};
use stackprof::symbol::demangle::{DEMANGLED_BYTES_MAX, demangle};
use stackprof::symbol::table::macho::TRIE_MEMORY_FACTOR;
use stackprof::symbol::table::{MEMORY_FACTOR, NAME_BYTES_MAX, PE_MEMORY_FACTOR, SymbolTable};
use stackprof::symbol::{Options, symbolicate};
use stackprof::trie::FrameId;

use crate::seeds::cpu_time::CpuTime;
use crate::seeds::{TIME_MAX, for_each_seed};
use stackprof::rng::Rng;

/// A small shared library from the C compiler.
fn library() -> Vec<u8> {
    const SOURCE: &str = "static int hidden(int x) { return x + 1; }\n\
        int shown(int x) { return hidden(x) * 3; }\n\
        int cpp(int x) __asm__(\"_ZN5space3fooEi\"); int cpp(int x) { return x - 1; }\n\
        int rust(int x) __asm__(\"_RNvC6_123foo3bar\"); int rust(int x) { return x - 2; }\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    let mut cc = Command::new("cc");
    cc.current_dir(dir.path()).args(["-shared", "-fPIC", "-o", "a.so", "a.c"]);
    let output = cc.output().expect("the C compiler `cc` is needed by this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(dir.path().join("a.so")).unwrap()
}

/// The C library of this process, if it is a readable ELF file.
fn libc() -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    std::fs::read(path.into_iter().find(|path| path.ends_with("/libc.so.6"))?).ok()
}

fn this_test() -> Vec<u8> {
    std::fs::read(std::env::current_exe().unwrap()).unwrap()
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()) as usize)
}

/// The parts of a file that control a parser: headers, section headers, symbol tables.
fn steering(bytes: &[u8]) -> Vec<Range<usize>> {
    if let Ok(Object::MachO(macho)) = Object::parse(bytes) {
        let at = macho.linkedit;
        let linkedit = [at.nlists, at.strings, at.function_starts, at.exports_trie];
        let parts = linkedit.map(|part| part.start as usize..part.end as usize);
        let commands = 32..32 + u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
        let all = [0..32, commands.clone(), commands].into_iter().chain(parts);
        return all.filter(|part| part.start < part.end && part.end <= bytes.len()).collect();
    }
    if bytes.starts_with(b"MZ") {
        return vec![0..0x400, 0x40..0x240, 0x400.min(bytes.len() - 1)..bytes.len()];
    }
    if bytes.starts_with(b"\xca\xfe") {
        return vec![0..8, 8..8 + 2 * 20, 0x4000..0x4400];
    }
    let sections = word(bytes, 40);
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    let mut parts = vec![0..64, 64..64 + 56 * 12, sections..sections + 64 * count];
    for header in (0..count).map(|index| sections + 64 * index) {
        let kind = bytes.get(header + 4).copied().unwrap_or(0);
        if matches!(kind, 2 | 3 | 7 | 11) {
            // SYMTAB, STRTAB, NOTE, DYNSYM
            parts.push(word(bytes, header + 24)..word(bytes, header + 24) + word(bytes, header + 32));
        }
    }
    parts.retain(|part| part.start < part.end && part.end <= bytes.len());
    parts
}

/// Applies one to eight mutations of the kinds that break parsers.
fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    let parts = steering(bytes);
    for _ in 0..1 + random.below(8) {
        let length = bytes.len();
        let part = parts[random.below(parts.len())].clone();
        let at = part.start + random.below(part.len());
        match random.below(8) {
            0 => bytes.truncate(1 + random.below(length)),
            1 => {
                let at = random.below(length);
                bytes[at] ^= 1 << random.below(8);
            }
            2 | 3 if at < length => bytes[at] = random.next() as u8,
            _ => {
                let extremes = [0, 1, 8, 0x7f, 0xff, 0xfff0, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 63];
                let near = [length as u64, length as u64 - 1, length as u64 + 1, u64::MAX, u64::MAX - 7];
                let value = if random.below(2) == 0 { random.pick(&extremes) } else { random.pick(&near) };
                let width = random.pick(&[2, 4, 8]);
                let at = at / width * width;
                if let Some(field) = bytes.get_mut(at..at + width) {
                    field.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
    }
}

/// Runs all readers on a file, with addresses inside, at its edges and beyond it.
fn exercise(bytes: Vec<u8>, head: &[u8], random: &mut Rng) {
    let length = bytes.len();
    let bytes = ImageBytes::new(bytes);
    let mut svmas: Vec<u64> = vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63, length as u64];
    svmas.extend((0..100).map(|_| random.next() % (2 * length as u64)));

    let _ = same_file(head, bytes.bytes());
    let _ = same_file(bytes.bytes(), head);
    let object = Object::parse(bytes.bytes());
    if let Ok(object) = &object {
        for &number in &svmas {
            let _ = (object.svma_of(number), object.file_offset_of(Svma(number)));
        }
        svmas.extend(
            segments(object)
                .into_iter()
                .flat_map(|(svma, file)| [svma.0, svma.0.wrapping_add(file.end.wrapping_sub(file.start))]),
        );
    }
    let mut memory_max = length as f64 * MEMORY_FACTOR;
    if let Ok(Object::MachO(macho)) = &object {
        memory_max += length as f64 * TRIE_MEMORY_FACTOR;
        for &number in &svmas {
            let _ = macho.linkedit_svma(number);
        }
        let starts = function_starts(bytes.bytes(), macho.text.start).map(|start| start.0);
        assert!(starts.is_sorted() && macho.segments.len() <= SEGMENTS_MAX);
    }
    if let Ok(Object::Pe(_)) = &object {
        memory_max = length as f64 * PE_MEMORY_FACTOR;
    }
    for wanted in [None, Some(*b"0123456789abcdef")] {
        let wanted = macho::ImageIdentity { uuid: wanted, cpu_type: build::ARM64, cpu_subtype: 2 };
        if let Ok(image) = macho::choose(&bytes, &wanted) {
            assert!(image.bytes().len() <= length);
            let _ = SymbolTable::parse(&image).map(|table| table.symbols().count());
        }
    }
    if let Ok(table) = SymbolTable::parse(&bytes) {
        assert!(table.memory_bytes() as f64 <= memory_max, "{} bytes", table.memory_bytes());
        let step = (table.len() / 300).max(1);
        for symbol in table.symbols().step_by(step) {
            svmas.extend([symbol.start.0, symbol.end.0.wrapping_sub(1), symbol.end.0]);
        }
        for &svma in &svmas {
            if let Ok(symbol) = table.lookup(Svma(svma)) {
                assert!(symbol.start.0 <= svma && svma < symbol.end.0 && !symbol.name.is_empty());
                assert!(symbol.name.len() <= NAME_BYTES_MAX);
            }
        }
    }

    let mut images = Images::default();
    for round in 0..3 {
        images.update(0, &mappings(&bytes, random), &mut |_| Ok(bytes.clone()));
        if round == 1 {
            images.begin_space(0);
        }
    }
    assert!(images.spaces_full() || (images.of(0).space() as usize) < SPACES_MAX);
    let mut frames = vec![Frame::Root(Root { group: 0, complete: true, fiber: false, waiting: false })];
    for svma in svmas {
        let avma = Avma(svma.wrapping_add(BASE));
        let _ =
            (images.of(0).contains(avma), images.of(0).code(avma).map(<[u8]>::len), images.locate(0, avma));
        let _ = images.of(0).frame_rule(avma);
        frames.push(Frame::Code { space: random.below(4) as u32, address: LookupAvma(avma.0) });
        frames.push(Frame::Code { space: images.of(0).space(), address: LookupAvma(svma) });
    }
    let _ = (images.entry_of(0, "/a"), images.entry_of(9, "/a"));
    let frames = frames.iter().enumerate().map(|(index, frame)| (FrameId(index as u32), *frame));
    let names = symbolicate(frames.clone(), &images, &Options::default());
    assert_eq!(names.addresses_unique, names.addresses_looked_up);
    let unnamed: u64 = names.addresses_unnamed.values().sum();
    assert_eq!(names.addresses_unique, names.addresses_named + unnamed);
    for (id, frame) in frames {
        // With inlining there are several.
        assert_eq!(!names.get(id).is_empty(), matches!(frame, Frame::Code { .. }));
    }
}

/// Stated addresses and bytes of the segments.
fn segments(object: &Object) -> Vec<(Svma, Range<u64>)> {
    match object {
        Object::Elf(elf) => elf.segments.iter().map(|part| (part.svma, part.file.clone())).collect(),
        Object::MachO(macho) => {
            macho.segments.iter().map(|part| (part.svma.start, part.file.clone())).collect()
        }
        Object::Pe(pe) => {
            let segment = |part: &stackprof::binary::pe::Section| {
                let (start, bytes) = (u64::from(part.file_start), u64::from(part.rva.end - part.rva.start));
                (pe.image_base.checked_add(part.rva.start.into()).unwrap_or_default(), start..start + bytes)
            };
            pe.sections.iter().map(segment).collect()
        }
    }
}

const BASE: u64 = 0x7f00_0000_0000;

/// The executable segments at [`BASE`] as far as they can be mapped, and mappings that no kernel creates.
fn mappings(bytes: &ImageBytes, random: &mut Rng) -> Vec<Mapping> {
    let mapping = |start: u64, end: u64, file_offset, kind| Mapping {
        avma: Avma(start)..Avma(end),
        file_offset,
        path: "/a".to_string(),
        kind,
        identity: (1, 1),
    };
    let mut all = Vec::new();
    for (svma, file) in Object::parse(bytes.bytes()).iter().flat_map(segments) {
        let start = svma.0.wrapping_add(BASE);
        let end = start.wrapping_add(file.end.wrapping_sub(file.start));
        all.push(mapping(start, end, file.start, MappingKind::File));
    }
    for _ in 0..random.below(4) {
        let numbers = [0, 1, 0x1000, BASE, BASE + 0x1000, u64::MAX - 1, u64::MAX, random.next()];
        let kind = match random.below(3) {
            0 => MappingKind::File,
            1 => MappingKind::Vdso,
            _ => MappingKind::Anonymous,
        };
        all.push(mapping(random.pick(&numbers), random.pick(&numbers), random.pick(&numbers), kind));
    }
    if random.below(4) > 0 {
        all.sort_by_key(|mapping| mapping.avma.start);
    }
    all
}

fn mutations(test: &'static str, rounds: u64, original: &[u8]) {
    exercise(original.to_vec(), &original[..4096], &mut Rng::new(1));
    for_each_seed(test, rounds, |random| {
        let mut bytes = original.to_vec();
        mutate(&mut bytes, random);
        exercise(bytes, &original[..4096], random);
    });
}

#[test]
fn a_damaged_library_is_harmless() {
    mutations("a_damaged_library_is_harmless", 3000, &library());
}

#[test]
fn a_damaged_c_library_is_harmless() {
    match libc() {
        Some(original) => mutations("a_damaged_c_library_is_harmless", 60, &original),
        None => crate::skip::not_here("this process has no libc.so.6: it is linked statically"),
    }
}

#[test]
fn a_damaged_executable_is_harmless() {
    mutations("a_damaged_executable_is_harmless", 12, &this_test());
}

#[test]
fn every_truncation_of_the_headers_is_harmless() {
    let library = library();
    let sections = word(&library, 40);
    for length in (1..1024).chain(sections - 8..library.len()) {
        exercise(library[..length].to_vec(), &library[..4096], &mut Rng::new(length as u64));
    }
}

/// A Mach-O program with one of each supported item.
fn program() -> build::File {
    use build::{EXT, LOCAL, STAB_FUN, at, nlist, trie};
    let mut nlists: Vec<_> = (0..60)
        .map(|index| nlist(&format!("_function{index}"), [EXT, LOCAL][index % 2], 0x1000 + 32 * index as u64))
        .collect();
    nlists.push(nlist("__ZN5space3fooEi", LOCAL, 0x1000));
    nlists.push(nlist("<redacted>", LOCAL, 0x1010));
    nlists.push(nlist("_main", STAB_FUN, 0x1020));
    nlists.push(build::Nlist { desc: 0x10, ..nlist("__mh_execute_header", EXT, 0) });
    let exports: Vec<_> =
        (0..40).map(|index| (format!("_export{index:03}"), at(0, &[0x1804 + 16 * index]))).collect();
    let mut exports: Vec<_> = exports.iter().map(|(name, at)| (name.as_str(), at.clone())).collect();
    exports.push(("_other", [at(8, &[1]).as_slice(), b"_theirs\0"].concat()));
    exports.push(("_stub", at(0x10, &[0x2000, 0x1000])));
    let function_starts = (0..96).map(|index| 0x1000 + 40 * index).collect();
    build::File { nlists, function_starts, trie: trie(&exports), entry: Some(0x1000), ..Default::default() }
}

#[test]
fn a_damaged_mach_o_program_is_harmless() {
    mutations("a_damaged_mach_o_program_is_harmless", 3000, &program().build());
}

/// A PE library with one of each supported item.
fn pe_library() -> build_pe::File {
    use build_pe::{Function, Symbol, TEXT};
    const NAMES: [&str; 4] = ["LdrInitializeThunk", "RtlUserThreadStart", "shown", "with_a_long_name"];
    // push %rbp; push %rbx; sub $0x28,%rsp; nop; add $0x28,%rsp; pop %rbx; pop %rbp; ret, padded
    const CODE: [u8; 16] =
        [0x55, 0x53, 0x48, 0x83, 0xec, 0x28, 0x90, 0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0xc3, 0xcc, 0xcc];
    let functions = (0..60_u32).map(|index| {
        let info = vec![1, 6, 3, 0, 6, 0x42, 2, 0x30, 1, 0x50, 0, 0];
        Function { begin: TEXT + 16 * index, end: TEXT + 16 * index + 14, info }
    });
    let symbols = (0..60_u32).map(|index| Symbol {
        name: NAMES[index as usize % 4],
        value: 16 * index,
        is_function: index % 3 > 0,
        is_external: index % 2 > 0,
    });
    build_pe::File {
        code: CODE.repeat(60),
        functions: functions.collect(),
        exports: NAMES.into_iter().zip((TEXT..).step_by(32)).collect(),
        symbols: symbols.collect(),
        is_mappable: true,
    }
}

#[test]
fn a_damaged_pe_library_is_harmless() {
    mutations("a_damaged_pe_library_is_harmless", 3000, &pe_library().build());
}

#[test]
fn every_truncation_of_a_pe_library_is_harmless() {
    let library = pe_library().build();
    for length in (1..1024).chain(0x3ff0..library.len()) {
        exercise(library[..length].to_vec(), &library[..4096], &mut Rng::new(length as u64));
    }
}

#[test]
fn a_damaged_fat_file_is_harmless() {
    let images =
        [0u32, 2].map(|subtype| (build::ARM64, subtype, build::File { subtype, ..program() }.build()));
    for wide in [false, true] {
        mutations("a_damaged_fat_file_is_harmless", 500, &build::fat(&images, wide));
    }
}

#[test]
fn every_truncation_of_a_mach_o_program_is_harmless() {
    let program = program().build();
    for length in (1..1024).chain(0x3ff8..program.len()) {
        exercise(program[..length].to_vec(), &program[..4096], &mut Rng::new(length as u64));
    }
}

/// Tries of a few kinds of bytes, so that nodes overlap and refer to each other.
#[test]
fn arbitrary_exports_are_harmless() {
    for_each_seed("arbitrary_exports_are_harmless", 300, |random| {
        let few = [random.next() as u8 % 16, random.next() as u8, 0, 1, 2, 3, 0x80, 0x20, b'a'];
        let length = random.pick(&[10, 100, 1000, 1 << 16]);
        let trie = (0..length).map(|_| random.pick(&few));
        let file = build::File { trie: trie.collect(), ..program() };
        exercise(file.build(), b"", random);
    });
}

/// A small dylib from Linux's linker, or the reason why not.
fn linked_dylib(arch: &str, flags: &[&str]) -> Result<Vec<u8>, String> {
    const SOURCE: &str = "__attribute__((noinline)) static int hidden(int x) { return x * 7 + 1; }\n\
        __attribute__((noinline)) int shown(int x) { return hidden(x) * 3; }\n\
        int cpp(int x) __asm__(\"__ZN5space3fooEi\"); int cpp(int x) { return hidden(x) - 1; }\n\
        int objc(int x) __asm__(\"-[Class method:]\"); int objc(int x) { return x - 2; }\n";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    let run = |command: &mut Command| {
        let output = command.current_dir(dir.path()).output();
        let output = output.map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok::<_, String>(())
    };
    let target = format!("{arch}-apple-macos11");
    run(Command::new("clang-19").args(["-target", &target, "-O1", "-c", "a.c"]))?;
    let link =
        ["-arch", arch, "-platform_version", "macos", "11.0", "11.0", "-dylib", "a.o", "-o", "a.dylib"];
    run(Command::new("ld64.lld-19").args(link).args(flags))?;
    Ok(std::fs::read(dir.path().join("a.dylib")).unwrap())
}

#[test]
fn a_damaged_dylib_is_harmless() {
    for arch in ["arm64", "x86_64"] {
        let whole = match linked_dylib(arch, &[]) {
            Ok(bytes) => bytes,
            Err(why) => {
                crate::skip::skip(&why);
                continue;
            }
        };
        let symbols = |bytes: &[u8]| -> (Vec<String>, Vec<u64>) {
            let table = SymbolTable::parse(&ImageBytes::new(bytes.to_vec())).unwrap();
            table.symbols().map(|symbol| (demangle(&symbol.name), symbol.end - symbol.start)).unzip()
        };
        let (names, sizes) = symbols(&whole);
        assert_eq!(names, ["shown", "hidden", "space::foo(int)", "-[Class method:]"]);
        let stripped = linked_dylib(arch, &["-x"]).unwrap();
        let (names, left) = symbols(&stripped);
        assert_eq!(names, ["shown", "space::foo(int)", "-[Class method:]"]);
        assert_eq!(left, [sizes[0], sizes[2], sizes[3]], "none is stretched over the stripped one");
        mutations("a_damaged_dylib_is_harmless", 500, &whole);
    }
}

/// Many symbols with one endless name, at one address: the worst case for choosing among aliases; and at many
/// addresses: the worst case for the memory of names.
#[test]
fn unterminated_names_are_bounded() {
    let started = CpuTime::start();
    let one_address = overlapping_names(20_000, 0);
    let table = SymbolTable::parse(&ImageBytes::new(one_address)).unwrap();
    assert_eq!(table.lookup(Svma(0x1000)).unwrap().name.len(), NAME_BYTES_MAX);
    exercise(overlapping_names(5_000, 16), b"", &mut Rng::new(1));
    for apart in [0, 4] {
        let file = build::File { trie: endless_prefix(apart), text_size: 0x10_0000, ..Default::default() };
        let table = SymbolTable::parse(&ImageBytes::new(file.build())).unwrap();
        assert_eq!(table.len() as u64, 1 + 1023 * apart / 4);
        assert!(table.symbols().all(|symbol| symbol.name.len() == NAME_BYTES_MAX));
        exercise(file.build(), b"", &mut Rng::new(1));
    }
    assert!(started.used() < TIME_MAX, "took {:?}", started.used());
}

/// An exports trie of 16,384 names of maximum length that differ only in their last two letters.
fn endless_prefix(apart: u64) -> Vec<u8> {
    let padded = |number: u64| {
        (0..4).map(move |index| (number >> (7 * index)) as u8 & 0x7f | if index < 3 { 0x80 } else { 0 })
    };
    let prefix = NAME_BYTES_MAX - 2;
    let mut trie = vec![0, 1];
    trie.extend(vec![b'n'; prefix]);
    let (first, node, leaf) = (prefix as u64 + 7, 2 + 128 * 6, 8);
    trie.push(0);
    trie.extend(padded(first));
    let push_node = |trie: &mut Vec<u8>, children: u64, size: u64| {
        trie.extend([0, 128]);
        for index in 0..128u64 {
            trie.extend([b'@' | index as u8 | 0x80, 0]);
            trie.extend(padded(children + index * size));
        }
    };
    push_node(&mut trie, first + node, node);
    let leaves = first + node + 128 * node;
    (0..128).for_each(|parent| push_node(&mut trie, leaves + parent * 128 * leaf, leaf));
    for index in 0..128 * 128 {
        trie.extend([6, 0]);
        trie.extend(padded(0x1000 + index % 1024 * apart));
        trie.extend([0x80, 0]);
    }
    trie
}

/// An ELF file of `count` functions, `apart` bytes from each other, with names that begin at successive bytes
/// of an unterminated string table.
fn overlapping_names(count: usize, apart: u64) -> Vec<u8> {
    let (symbols, sections) = (64usize, 64 + 24 * (count + 1));
    let strings = sections + 64 * 4;
    let mut file = vec![0u8; strings];
    file.resize(strings + 2 * NAME_BYTES_MAX + count, b'n');
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(40, &(sections as u64).to_le_bytes());
    put(58, &[64, 0, 4, 0]); // e_shentsize, e_shnum
    for index in 0..count {
        let at = symbols + 24 * (index + 1);
        put(at, &(index as u32 + 1).to_le_bytes());
        put(at + 4, &[0x12, 0, 1, 0]); // a global function in section 1
        put(at + 8, &(0x1000 + index as u64 * apart).to_le_bytes());
        put(at + 16, &16u64.to_le_bytes());
    }
    // type, flags, address, offset, size, link
    let headers = [
        (1u32, 6u64, 0x1000u64, 0usize, 1 << 32, 0u32),
        (2, 0, 0, symbols, 24 * (count + 1), 3),
        (3, 0, 0, strings, 2 * NAME_BYTES_MAX + count, 0),
    ];
    for (index, (kind, flags, address, offset, size, link)) in headers.into_iter().enumerate() {
        let at = sections + 64 * (index + 1);
        put(at + 4, &kind.to_le_bytes());
        put(at + 8, &flags.to_le_bytes());
        put(at + 16, &address.to_le_bytes());
        put(at + 24, &(offset as u64).to_le_bytes());
        put(at + 32, &(size as u64).to_le_bytes());
        put(at + 40, &link.to_le_bytes());
        put(at + 56, &24u64.to_le_bytes());
    }
    file
}

#[test]
fn every_symbol_covers_its_own_bytes() {
    let bytes = ImageBytes::new(this_test());
    let table = SymbolTable::parse(&bytes).unwrap();
    assert!(table.len() > 1000);
    for symbol in table.symbols() {
        let (start, end) = (symbol.start.0, symbol.end.0);
        assert!(start < end);
        for svma in [start, start + (end - start) / 2, end - 1] {
            let found = table.lookup(Svma(svma)).unwrap();
            assert!((found.start.0..found.end.0).contains(&svma), "{svma:#x}");
            assert!(found.start >= symbol.start, "{svma:#x}: not the innermost");
        }
    }
}

/// What scripts/fuzz.sh runs for minutes, from its seeds.
#[test]
fn every_reader_bears_damaged_input() {
    for (name, sound, run) in crate::targets::TARGETS {
        let mut seeds: Vec<Vec<u8>> = sound.iter().map(|seed| seed.to_vec()).collect();
        match name {
            "debuglink" => seeds.push(library().repeat(2)),
            "dwarf" | "elf" | "symtab" => seeds.push(library()),
            "macho" | "unwind_info" => seeds.push(program().build()),
            _ => {}
        }
        seeds.iter().for_each(|seed| run(seed));
        for_each_seed(&format!("every_reader_bears_damaged_input # {name}"), 300, |random| {
            let mut bytes: Vec<u8> = match random.below(seeds.len() + 1) {
                0 => (0..4 + random.below(300)).map(|_| random.next() as u8).collect(),
                seed => seeds[seed - 1].clone(),
            };
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes[at] = [0, 0xff, 0x7f, 0x80][random.below(4)],
                    _ => bytes[at] ^= 1 << random.below(8),
                }
            }
            run(&bytes);
        });
    }
}

/// Names assembled from fragments of both manglings, with references to themselves.
#[test]
fn arbitrary_mangled_names_are_harmless() {
    #[rustfmt::skip]
    const PIECES: [&str; 58] = [
        "_ZN", "_Z", "_R", "Nv", "C1a", "1a", "3foo", "I", "E", "J", "Dp", "T_", "T0_", "T1_", "S_", "S0_",
        "S1_", "S2_", "St", "Sa", "Ss", "i", "v", "P", "R", "K", "F", "M", "A10_", "Dv4_", "X", "L",
        "Lb1E", "sZ", "DT", "cl", "pl", "nx", "Ul", "E_", "Ut_", "C1", "D2", "cv", "B_", "B1_", "B3_",
        "B7_", "p", "T", "NtC1a1b", "INv", "s_", "h", ".cold", ".part.0", "@@V_1", "17h0123456789abcdefE",
    ];
    let seeds =
        ["_Z1fIiEv", "_ZN5space3fooEibc", "_RNvC6_123foo3bar", "_Z1fIJidEEvDpT_", "_ZN1aIJDpT_EE1bIJEEEvT_"];
    for_each_seed("arbitrary_mangled_names_are_harmless", 40_000, |random| {
        let mut name = random.pick(&seeds).to_string();
        if random.below(2) == 0 {
            name.truncate(random.below(name.len()));
        }
        for _ in 0..random.below(120) {
            name.push_str(random.pick(&PIECES));
        }
        if random.below(4) == 0 {
            let at = random.below(name.len().max(1)).min(name.len());
            name.insert(at, (random.below(95) + 32) as u8 as char);
        }
        assert!(demangle(name.as_bytes()).len() <= DEMANGLED_BYTES_MAX + 4096, "{name}");
    });
}
