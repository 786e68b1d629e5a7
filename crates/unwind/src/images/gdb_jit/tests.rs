#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use crate::addr::Svma;
use crate::binary::elf::build::{self, X86_64};
use crate::walk::Code;

/// Where the library with the list is mapped, and the list's address in it.
const LIBRARY: u64 = 0x7f00_1000_0000;
const LIST: u64 = LIBRARY + build::TEXT + 0x80;
const ENTRIES: u64 = 0x5555_0000_0000;
const FILES: u64 = 0x5555_0010_0000;
const CODE: u64 = 0x7f00_2000_0000;

/// A process's memory, by the start address of each piece.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, Vec<u8>>);

impl Memory {
    fn read(&self, at: Avma, into: &mut [u8]) -> usize {
        let Some((start, piece)) = self.0.range(..=at.0).next_back() else { return 0 };
        let rest = piece.get((at.0 - start) as usize..).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }

    fn set(&mut self, at: u64, words: &[u64]) {
        self.0.insert(at, words.iter().flat_map(|word| word.to_le_bytes()).collect());
    }

    /// Writes a list of files with these addresses and sizes; the descriptor names the entry that changed last.
    fn list(&mut self, files: &[(u64, u64)]) {
        let entry = |index: usize| ENTRIES + 0x100 * index as u64;
        for (index, (at, size)) in files.iter().enumerate() {
            let next = if index + 1 < files.len() { entry(index + 1) } else { 0 };
            self.set(entry(index), &[next, 0, *at, *size]);
        }
        let first = if files.is_empty() { 0 } else { entry(0) };
        self.set(LIST, &[1 | 1 << 32, entry(files.len()), first]);
    }

    fn file(&mut self, at: u64, code: u64) -> (u64, u64) {
        let bytes = file(code);
        let size = bytes.len() as u64;
        self.0.insert(at, bytes);
        (at, size)
    }
}

/// A file with one function, loaded at address `code`.
fn file(code: u64) -> Vec<u8> {
    let mut bytes =
        build::file(X86_64, &build::symbols(&[build::function(1, code, 0x40)], b"\0f\0".to_vec()));
    let headers_at = word(&bytes, 40) as usize;
    let [text_address, text_size] = [16, 32].map(|field| headers_at + 64 + field);
    bytes[text_address..text_address + 8].copy_from_slice(&code.to_le_bytes());
    bytes[text_size..text_size + 8].copy_from_slice(&0x200u64.to_le_bytes());
    bytes
}

fn mapping(start: u64, bytes: u64, path: &str) -> Mapping {
    let kind = if path.is_empty() { MappingKind::Anonymous } else { MappingKind::File };
    let identity = (0, start * u64::from(!path.is_empty()));
    Mapping { avma: Avma(start)..Avma(start + bytes), file_offset: 0, path: path.to_owned(), kind, identity }
}

fn mappings() -> [Mapping; 2] {
    [mapping(LIBRARY, 2 * build::TEXT, "/lib/libLLVM.so"), mapping(CODE, 0x3000, "")]
}

/// The images of a process that has mapped the library.
fn images() -> Images {
    let mut list = build::function(1, LIST - LIBRARY, DESCRIPTOR_BYTES as u64);
    list[4] = 0x11; // STB_GLOBAL, STT_OBJECT
    let [symbols, names] = build::symbols(&[list], b"\0__jit_debug_descriptor\0".to_vec());
    let library = build::file(X86_64, &[symbols, names]);
    let mut images = Images::default();
    images.update(0, &mappings(), &mut |_| Ok(ImageBytes::new(library.clone())));
    assert_eq!(images.of(0).jit_descriptors(), [Avma(LIST)]);
    images
}

fn update(registered: &mut GdbJit, images: &Images, memory: &Memory) -> bool {
    registered.update(0, images, &mut |at, into| memory.read(at, into))
}

/// The ranges of registered code, in address order.
fn placed(registered: &GdbJit) -> Vec<(u64, u64)> {
    let placed = registered.place_in(&mappings()).unwrap_or_default();
    let code = placed.iter().filter(|mapping| mapping.kind == MappingKind::GdbJit);
    code.map(|mapping| (mapping.avma.start.0, mapping.avma.end.0)).collect()
}

#[test]
fn registered_code_replaces_memory_without_a_file() {
    let (mut images, mut memory, mut registered) = (images(), Memory::default(), GdbJit::default());
    assert!(!update(&mut registered, &images, &memory), "there is no list");
    let one = memory.file(FILES, CODE + 0x1000);
    let other = memory.file(FILES + 0x10_0000, CODE + 0x1200);
    memory.list(&[other, one]);
    assert!(update(&mut registered, &images, &memory));
    assert!(!update(&mut registered, &images, &memory), "nothing has changed since");
    assert_eq!(placed(&registered), [(CODE + 0x1000, CODE + 0x1200), (CODE + 0x1200, CODE + 0x1400)]);

    let all = registered.place_in(&mappings()).unwrap();
    let bounds: Vec<u64> = all.iter().skip(1).map(|mapping| mapping.avma.start.0 - CODE).collect();
    assert_eq!(bounds, [0, 0x1000, 0x1200, 0x1400]);
    let space = images.of(0).space();
    images.update(0, &all, &mut |mapping| registered.open(mapping).unwrap());
    assert_eq!(images.of(0).space(), space, "code sampled before has names, too");
    let found = images.locate(space, Avma(CODE + 0x1210)).unwrap();
    assert_eq!((found.image.name.as_str(), found.svma), ("[jit]", Svma(CODE + 0x1210)));
    assert!(images.of(0).code(Avma(CODE + 0x1210)).is_none(), "the file has not the code as it runs");
    let function = images.of(0).function(Avma(CODE + 0x1210));
    assert_eq!(function, Some(Avma(CODE + 0x1200)..Avma(CODE + 0x1240)));

    memory.list(&[one]);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(placed(&registered), [(CODE + 0x1000, CODE + 0x1200)]);
    memory.list(&[]);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(registered.place_in(&mappings()), None);
}

#[test]
fn a_new_file_at_the_address_of_another_is_read() {
    let (images, mut memory, mut registered) = (images(), Memory::default(), GdbJit::default());
    let one = memory.file(FILES, CODE + 0x1000);
    memory.list(&[one]);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(memory.file(FILES, CODE + 0x1800), one, "as long as the other");
    memory.set(LIST, &[1, 0, ENTRIES]);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(placed(&registered), [(CODE + 0x1800, CODE + 0x1a00)]);
}

#[test]
fn code_outside_anonymous_memory_and_overlaps_are_ignored() {
    let (images, mut memory, mut registered) = (images(), Memory::default(), GdbJit::default());
    let starts = [CODE - 0x100, CODE + 0x1000, CODE + 0x1100, CODE + 0x2f00, LIBRARY + 0x100];
    let files: Vec<_> =
        (0..).zip(starts).map(|(index, code)| memory.file(FILES + 0x1_0000 * index, code)).collect();
    memory.list(&files);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(placed(&registered), [(CODE + 0x1000, CODE + 0x1200)]);
}

#[test]
fn lists_read_while_they_change_are_read_again() {
    let (images, mut memory, mut registered) = (images(), Memory::default(), GdbJit::default());
    let one = memory.file(FILES, CODE + 0x1000);
    memory.list(&[one, (FILES + 0x10_0000, 0x1000)]);
    assert!(update(&mut registered, &images, &memory), "the first is there");
    assert_eq!(memory.file(FILES + 0x10_0000, CODE + 0x1800).1, one.1);
    memory.set(ENTRIES + 0x100, &[0, 0, FILES + 0x10_0000, one.1]);
    assert!(update(&mut registered, &images, &memory), "though the list itself is as it was");
    assert_eq!(placed(&registered).len(), 2);

    // The list changes again, then its library is unmapped.
    let missing = (FILES + 0x20_0000, 0x1000);
    memory.list(&[one, missing, missing]);
    assert!(update(&mut registered, &images, &memory), "the second is gone");
    memory.0.remove(&LIST);
    assert!(update(&mut registered, &images, &memory));
    assert_eq!(registered.place_in(&mappings()), None);
}

#[test]
fn endless_and_malformed_lists_cost_no_more_than_others() {
    let (images, mut memory, mut registered) = (images(), Memory::default(), GdbJit::default());
    let one = memory.file(FILES, CODE + 0x1000);
    memory.list(&[one]);
    memory.set(ENTRIES, &[ENTRIES, 0, one.0, one.1]);
    let reads = std::cell::Cell::new(0);
    registered.update(0, &images, &mut |at, into| {
        reads.set(reads.get() + 1);
        memory.read(at, into)
    });
    assert!(reads.get() <= 2 * ENTRIES_MAX, "{} reads", reads.get());
    assert_eq!(placed(&registered).len(), 1);
    for (start, size) in [(0, 0), (u64::MAX, 16), (FILES, u64::MAX), (FILES, FILE_BYTES_MAX + 1), (8, 8)] {
        memory.list(&[(start, size)]);
        let mut registered = GdbJit::default();
        update(&mut registered, &images, &memory);
        assert_eq!(registered.place_in(&mappings()), None, "{start:#x}, {size:#x}");
    }
    // A list of invalid files, each of which must be read.
    let mut broken = file(CODE + 0x1000);
    let text_flags = word(&broken, 40) as usize + 64 + 8;
    broken[text_flags..text_flags + 8].fill(0);
    broken.resize(FILE_BYTES_MAX as usize, 0);
    memory.0.insert(FILES, broken);
    let everywhere: Vec<_> = (0..200).map(|file| (FILES + file * FILE_BYTES_MAX, FILE_BYTES_MAX)).collect();
    memory.list(&everywhere);
    let mut registered = GdbJit::default();
    let bytes_read = std::cell::Cell::new(0);
    registered.update(0, &images, &mut |at, into| {
        bytes_read.set(bytes_read.get() + into.len());
        let of_file = (FILES..LIBRARY).contains(&at.0);
        memory.read(if of_file { Avma(FILES + (at.0 - FILES) % FILE_BYTES_MAX) } else { at }, into)
    });
    assert!(bytes_read.get() < 200 << 20, "{} bytes read", bytes_read.get());
    // Another version of the list.
    memory.list(&[one]);
    memory.set(LIST, &[2, 0, ENTRIES]);
    let mut registered = GdbJit::default();
    assert!(!update(&mut registered, &images, &memory));
    assert_eq!(registered.place_in(&mappings()), None);
}
