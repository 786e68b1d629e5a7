//! Images over time, with the test executable as the mapped file.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, LazyLock};

use super::*;
use crate::addr::{Avma, Svma};
use crate::binary::elf::Elf;
use crate::binary::{FormatError, ImageBytes, Mapping, MappingKind, OpenError, ProgramPath};
use crate::walk::Code;

const BASE: u64 = 0x5555_0000_0000;

/// The test executable, read once: it is large.
fn this_test() -> ImageBytes {
    static BYTES: LazyLock<ImageBytes> =
        LazyLock::new(|| ImageBytes::new(std::fs::read(std::env::current_exe().unwrap()).unwrap()));
    BYTES.clone()
}

/// The executable segment of the test executable, mapped in whole pages as the kernel does.
fn mapping(path: &str, inode: u64, base: u64) -> Mapping {
    let elf = Elf::parse(this_test().bytes()).unwrap();
    let code = elf.segments.iter().find(|segment| segment.executable).unwrap();
    let slack = code.file.start % 4096;
    let start = base + code.svma.0 - slack;
    let length = (code.file.end - code.file.start + slack).next_multiple_of(4096);
    Mapping::of_file(Avma(start)..Avma(start + length), code.file.start - slack, path, (8, inode))
}

fn anonymous(start: u64, end: u64) -> Mapping {
    Mapping::anonymous(Avma(start)..Avma(end))
}

fn open(_: &Mapping) -> Result<ImageBytes, OpenError> {
    Ok(this_test())
}

fn refuse(_: &Mapping) -> Result<ImageBytes, OpenError> {
    Err(OpenError::Deleted)
}

#[test]
fn an_address_is_located_by_its_segment() {
    let mut images = Images::default();
    let mapping = mapping("/usr/bin/work", 1, BASE);
    assert!(images.update(0, std::slice::from_ref(&mapping), &mut open));
    assert!(!images.update(0, std::slice::from_ref(&mapping), &mut open), "nothing changed");
    let entry = images.images()[0].entry_svma().unwrap();
    assert_eq!(images.entry_of(0, "/usr/bin/work"), Some(Avma(BASE + entry.0)));
    assert_eq!(images.entry_of(0, "/usr/bin/other"), None);
    let location = images.locate(0, Avma(BASE + entry.0)).unwrap();
    assert_eq!((location.index, location.svma, location.relative), (0, entry, entry.0));
    assert_eq!(location.image.name, "work");
    assert!(location.image.problem().is_none());
    assert!(images.of(0).contains(mapping.avma.start) && !images.of(0).contains(mapping.avma.end));
    assert!(images.locate(0, mapping.avma.end).is_none());
    assert!(images.locate(1, mapping.avma.start).is_none(), "no such space");
}

#[test]
fn code_bytes_are_those_of_the_file() {
    let mut images = Images::default();
    let mapping = mapping("work", 1, BASE);
    images.update(0, std::slice::from_ref(&mapping), &mut open);
    let pc = images.entry_of(0, "work").unwrap();
    let (file, elf) = (this_test(), Elf::parse(this_test().bytes()).unwrap());
    let offset = elf.file_offset_of(elf.entry).unwrap() as usize;
    let code = images.of(0).code(pc).unwrap();
    assert_eq!(code[..64], file.bytes()[offset..][..64]);
    assert!(code.len() as u64 <= mapping.avma.end - pc);
    assert!(images.of(0).code(mapping.avma.end).is_none());
    images.update(0, &[anonymous(0x1000, 0x2000)], &mut open);
    assert!(images.of(0).code(Avma(0x1000)).is_none());
}

#[test]
fn each_file_is_opened_once() {
    let mut images = Images::default();
    let mut opened = Vec::new();
    let mut open = |mapping: &Mapping| {
        opened.push(mapping.path.clone());
        Ok(this_test())
    };
    let (a, b) = (mapping("/lib/a.so", 1, BASE), mapping("/lib/b.so", 2, BASE * 2 / 3));
    // Two mappings of one file, another file, and one with the same inode at another path.
    let again = mapping("/lib/a.so", 1, BASE + 0x4000_0000);
    let renamed = mapping("/lib/renamed.so", 1, BASE + 0x8000_0000);
    images.update(0, &[b.clone(), a.clone()], &mut open);
    images.update(0, &[b.clone(), a.clone(), again.clone(), renamed], &mut open);
    assert_eq!(opened, ["/lib/b.so", "/lib/a.so", "/lib/renamed.so"]);
    assert_eq!(images.of(0).space(), 0, "only additions");
    let first = images.locate(0, a.avma.start).unwrap();
    let second = images.locate(0, again.avma.start).unwrap();
    assert_eq!((first.index, first.svma), (second.index, second.svma));
}

#[test]
fn old_spaces_keep_their_addresses() {
    let mut images = Images::default();
    let (old, new) = (mapping("/lib/old.so", 1, BASE), mapping("/lib/new.so", 2, BASE));
    let at = old.avma.start;
    let name = |images: &Images, space| images.locate(space, at).map(|found| found.image.name.clone());
    images.update(0, &[old], &mut open);
    images.update(0, &[], &mut open);
    assert_eq!((images.of(0).space(), images.of(0).contains(at)), (1, false));
    images.update(0, &[new], &mut open);
    assert_eq!(
        (images.of(0).space(), images.of(0).contains(at)),
        (1, true),
        "an addition to the empty space"
    );
    images.begin_space(0);
    assert_eq!((images.of(0).space(), images.of(0).contains(at)), (2, false));
    assert_eq!(name(&images, 0).as_deref(), Some("old.so"));
    assert_eq!(name(&images, 1).as_deref(), Some("new.so"));
    assert_eq!(name(&images, 2), None);
}

#[test]
fn a_file_that_cannot_be_opened_keeps_its_reason() {
    let mut images = Images::default();
    let gone = mapping("/tmp/gone.so", 1, BASE);
    images.update(0, std::slice::from_ref(&gone), &mut refuse);
    let location = images.locate(0, Avma(gone.avma.start.0 + 0x10)).unwrap();
    assert!(matches!(location.image.problem(), Some(ImageError::Open(OpenError::Deleted))));
    assert_eq!(location.svma, Svma(gone.file_offset + 0x10), "the file offset stands in");
    assert!(images.of(0).code(gone.avma.start).is_none());

    let mut images = Images::default();
    images.update(0, &[gone], &mut |_| Ok(ImageBytes::new(b"GIF89a".as_slice())));
    assert!(matches!(images.images()[0].problem(), Some(ImageError::Format(FormatError::Unknown))));
}

#[test]
fn a_vdso_is_read_from_its_own_memory() {
    let mut images = Images::default();
    let vdso = Mapping {
        avma: Avma(0x7fff_0000)..Avma(0x7fff_2000),
        file_offset: 0x1234,
        path: "[vdso]".to_string(),
        kind: MappingKind::Vdso,
        identity: (0, 0),
    };
    images.update(0, &[vdso], &mut open);
    assert_eq!(images.images()[0].name, "[vdso]");
    assert_eq!(images.of(0).code(Avma(0x7fff_0000)).unwrap()[..4], *b"\x7fELF");
    assert_eq!(images.locate(0, Avma(0x7fff_0100)).unwrap().relative, 0x100);
}

#[test]
fn the_number_of_spaces_is_bounded() {
    let mut images = Images::default();
    for inode in 0..SPACES_MAX as u64 + 5 {
        images.update(0, &[mapping("/lib/a.so", inode % 2, BASE)], &mut refuse);
    }
    assert_eq!(images.of(0).space() as usize, SPACES_MAX - 1);
    assert!(images.spaces_full());
    let address = mapping("", 0, BASE).avma.start;
    assert!(images.locate(images.of(0).space(), address).is_none(), "of two images");
    let earlier = images.locate(SPACES_MAX as u32 - 2, address).unwrap();
    assert_eq!(earlier.image.identity, (8, (SPACES_MAX as u64 - 2) % 2));
    // What is loaded elsewhere is known.
    let elsewhere = mapping("/lib/b.so", 7, BASE + (1 << 24));
    images.update(0, std::slice::from_ref(&elsewhere), &mut refuse);
    let found = images.locate(images.of(0).space(), elsewhere.avma.start).unwrap();
    assert_eq!(found.image.identity, (8, 7));
}

#[test]
fn the_number_of_images_is_bounded() {
    let mut images = Images::default();
    let mut one = anonymous(0x1000, 0x2000);
    one.kind = MappingKind::File;
    let many = (0..IMAGES_MAX as u64 + 3).map(|index| Mapping {
        avma: Avma(0x1000 * index)..Avma(0x1000 * (index + 1)),
        identity: (8, index),
        ..one.clone()
    });
    images.update(0, &many.collect::<Vec<_>>(), &mut refuse);
    assert_eq!(images.images().len(), IMAGES_MAX);
    assert_eq!(images.images_refused(), 3);
    assert!(images.of(0).contains(Avma(0x1000 * (IMAGES_MAX as u64 + 2))));
}

#[test]
fn the_number_of_regions_is_bounded() {
    let mut images = Images::default();
    let many = |from: u64, count: u64| -> Vec<Mapping> {
        (from..from + count).map(|index| anonymous(0x2000 * index, 0x2000 * index + 0x1000)).collect()
    };
    let three_quarters = REGIONS_MAX as u64 / 4 * 3;
    images.update(0, &many(0, three_quarters), &mut open);
    images.begin_space(0);
    assert_eq!(
        (images.of(0).space(), images.is_of_earlier_program(0), images.spaces_full()),
        (1, true, false)
    );
    images.update(0, &many(0, three_quarters), &mut open);
    assert_eq!(images.regions_refused(), three_quarters - REGIONS_MAX as u64 / 4);
    assert!(images.of(0).contains(Avma(0)) && !images.of(0).contains(Avma(0x2000 * (three_quarters - 1))));
    images.begin_space(0);
    assert_eq!((images.of(0).space(), images.spaces_full()), (1, true));
    assert!(!images.of(0).contains(Avma(0)), "changed in place");
}

#[test]
fn invalid_mappings_are_ignored() {
    let mut images = Images::default();
    let overlapping = [anonymous(0x3000, 0x1000), anonymous(0x1000, 0x4000), anonymous(0x2000, 0x5000)];
    images.update(0, &overlapping, &mut open);
    assert_eq!(images.regions_refused(), 2);
    assert!(images.of(0).contains(Avma(0x3fff)) && !images.of(0).contains(Avma(0x4000)));
}

#[test]
fn processes_share_files_and_keep_their_addresses_apart() {
    let mut images = Images::default();
    let mut opened = 0;
    let mut open = |_: &Mapping| {
        opened += 1;
        Err(OpenError::Source("not needed"))
    };
    let (a, b) = (mapping("/lib/a.so", 1, BASE), mapping("/lib/a.so", 1, BASE + 0x10_0000));
    let at = a.avma.start;
    images.update(0, std::slice::from_ref(&a), &mut open);
    let child = images.begin_process().unwrap();
    assert!(!images.of(child).contains(at), "nothing is known of it yet");
    images.update(child, std::slice::from_ref(&b), &mut open);
    assert_eq!((images.of(child).contains(at), images.of(child).contains(b.avma.start)), (false, true));
    let space = images.of(child).space();
    assert_eq!((images.of(0).contains(at), images.of(0).space(), images.process_of(space)), (true, 0, child));
    images.begin_space(child);
    assert!(images.is_of_earlier_program(space) && !images.is_of_earlier_program(images.of(child).space()));
    assert!(!images.is_of_earlier_program(0), "the other one runs on");
    assert_eq!(images.locate(space, b.avma.start).unwrap().index, 0);
    assert_eq!(opened, 1);
}

/// Walks share what they learn between places that compare equal here.
#[test]
fn the_same_part_of_the_same_file_is_one_place_in_all_processes() {
    let place_in = |images: &mut Images, mapping: &Mapping| {
        let process = images.begin_process().unwrap();
        images.update(process, std::slice::from_ref(mapping), &mut open);
        let place = images.of(process).file_place(mapping.avma.start + 8)?;
        assert_eq!(place.mapped, mapping.avma);
        assert_eq!(images.of(process).file_place(mapping.avma.end), None);
        Some((place.image, place.file_offset, place.mapped.end - place.mapped.start))
    };
    let mut images = Images::default();
    let here = mapping("/lib/a.so", 1, BASE);
    let place = place_in(&mut images, &here);
    assert!(place.is_some());
    assert_eq!(
        place_in(&mut images, &mapping("/lib/a.so", 1, BASE + 0x10_0000)),
        place,
        "at another address"
    );
    let replaced = place_in(&mut images, &mapping("/lib/a.so", 2, BASE));
    assert!(replaced.is_some() && replaced != place, "another file of the name");
    let half = Mapping { avma: here.avma.start..Avma(here.avma.end.0 - 0x1000), ..here.clone() };
    assert_ne!(place_in(&mut images, &half), place, "code ends elsewhere");
    assert_ne!(
        place_in(&mut images, &Mapping { file_offset: here.file_offset + 0x1000, ..here.clone() }),
        place
    );
    // Memory that only this process has.
    assert_eq!(place_in(&mut images, &Mapping { kind: MappingKind::GdbJit, ..here.clone() }), None);
    assert_eq!(place_in(&mut images, &anonymous(BASE, BASE + 0x1000)), None);
    let process = images.begin_process().unwrap();
    let bytes = ImageBytes::new(vec![0xc3; 0x1000]);
    images.update(process, &[mapping("/memfd:jit", 3, BASE)], &mut |_| Ok(bytes.clone()));
    assert_eq!(images.of(process).file_place(here.avma.start), None);
}

#[test]
fn code_missing_from_arm_tables_is_not_one_function() {
    use crate::binary::exidx::tests::{TEXT, file};
    // pop {r4, lr}; cannot unwind; pop {r4, r5, lr}
    let entries = [(TEXT, 0x80a8_b0b0), (TEXT + 0x10, 1), (TEXT + 0x80, 0x80a9_b0b0)];
    let bytes = ImageBytes::new(file(&entries, &[]));
    let text = u64::from(TEXT);
    let mut mapping = mapping("/lib/libwork.so", 1, BASE);
    mapping.avma = Avma(text)..Avma(text + 0x1000);
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(bytes.clone()));
    let image = &images.images()[0];
    let described = |at: u64| image.described_function(Svma(text + at)).map(|range| range.start.0 - text);
    assert_eq!([0, 0xf, 0x10, 0x7f, 0x80].map(described), [Some(0), Some(0), None, None, Some(0x80)]);
    let last = |at: u64| image.last_described_function(Svma(text + at)).map(|range| range.start.0 - text);
    assert_eq!([0xf, 0x7f].map(last), [Some(0), Some(0x10)], "where another one begins it still tells");
}

/// A file that is rewritten while a process has it mapped becomes another image.
#[test]
fn a_file_that_is_rewritten_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("work");
    std::fs::write(&path, this_test().bytes()).unwrap();
    let mut opened = 0;
    let mut open = |_: &Mapping| {
        opened += 1;
        crate::binary::files::map_regular(&path)
    };
    let mut images = Images::default();
    let mapping = mapping("/usr/bin/work", 1, BASE);
    assert!(images.update(0, std::slice::from_ref(&mapping), &mut open));
    assert!(!images.update(0, std::slice::from_ref(&mapping), &mut open));
    let pc = Avma(BASE + images.images()[0].entry_svma().unwrap().0);
    assert!(images.of(0).code(pc).is_some() && images.of(0).row(pc).is_some());
    let place = images.of(0).file_place(pc);

    // Two writes within one tick of the kernel leave the same modification time.
    std::thread::sleep(std::time::Duration::from_millis(25));
    // The truncated file has no rows and no code; reading it does not crash.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(images.of(0).code(pc).is_none_or(|code| code.iter().all(|byte| *byte == 0)));
    let _ = (images.of(0).row(pc), images.of(0).function(pc), images.of(0).described_function(pc));
    assert!(images.images()[0].overwritten().is_some());

    std::fs::write(&path, this_test().bytes()).unwrap();
    assert!(images.update(0, std::slice::from_ref(&mapping), &mut open), "another file");
    assert_eq!((images.of(0).space(), images.images().len()), (1, 2));
    assert_eq!(images.locate(0, pc).unwrap().index, 0);
    assert_eq!(images.locate(1, pc).unwrap().index, 1);
    assert!(images.of(0).row(pc).is_some(), "of the new content");
    assert_ne!(images.of(0).file_place(pc).unwrap().image, place.unwrap().image);
    assert!(!images.update(0, std::slice::from_ref(&mapping), &mut open));
    assert_eq!(opened, 2);
}

#[test]
fn shared_memory_is_jit_code_although_it_can_be_read() {
    let made_in = |path: &str, bytes: Vec<u8>| {
        let mut mapping = mapping(path, 1, BASE);
        (mapping.file_offset, mapping.avma) = (0, Avma(BASE)..Avma(BASE + 0x1000));
        let bytes = ImageBytes::new(bytes);
        let (mut images, mut jit) = (Images::default(), JitCode::default());
        images.update(0, std::slice::from_ref(&mapping), &mut |_| Ok(bytes.clone()));
        jit.update(0, std::slice::from_ref(&mapping), &images);
        jit.contains(Avma(BASE))
    };
    let code = || vec![0xc3; 0x1000];
    assert!(made_in("/memfd:doublemapper (deleted)", code()) && made_in("/dev/zero (deleted)", code()));
    // Programs are also run from memory files, and any file may lack headers.
    assert!(!made_in("/memfd:program (deleted)", this_test().bytes().to_vec()));
    assert!(!made_in("/srv/boot.bin", code()));
}

#[test]
fn jit_descriptors_are_at_the_address_of_their_segment() {
    // Layout of lld: the code's mapping begins with a page that it shares with the preceding segment.
    use crate::binary::elf::build;
    // STB_GLOBAL, STT_OBJECT, section 1
    let (name, size) = (1_u32.to_le_bytes(), 24_u64.to_le_bytes());
    let symbol = [&name[..], &[0x11, 0, 1, 0], &0x3000_u64.to_le_bytes(), &size].concat();
    let names = b"\0__jit_debug_descriptor\0".to_vec();
    let mut file = build::file(build::X86_64, &build::symbols(&[symbol], names));
    let segment = |flags: u32, offset: u64, svma: u64, bytes: u64| {
        let numbers = [offset, svma, svma, bytes, bytes, 0x1000].map(u64::to_le_bytes).concat();
        [[1, flags].map(u32::to_le_bytes).concat(), numbers].concat()
    };
    let segments = [segment(4, 0, 0, 0x200), segment(5, 0x200, 0x1200, 0xe00)].concat();
    file[64..64 + segments.len()].copy_from_slice(&segments);
    file[56] = 2;
    let bytes = ImageBytes::new(file);
    let mut mapping = mapping("/usr/bin/work", 1, BASE);
    (mapping.file_offset, mapping.avma) = (0, Avma(BASE + 0x1000)..Avma(BASE + 0x2000));
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(bytes.clone()));
    assert_eq!(images.of(0).jit_descriptors(), [Avma(BASE + 0x3000)]);
}

#[test]
fn a_program_started_by_two_names_is_two_images_of_one_file() {
    let path = |started_as: &str| {
        Some(Arc::new(ProgramPath { file: "/usr/bin/work".to_owned(), started_as: started_as.to_owned() }))
    };
    let (program, library) = (mapping("/usr/bin/work", 1, BASE), mapping("/lib/a.so", 2, 2 * BASE));
    let both = [program, library];
    let mut opened = 0;
    let mut images = Images::default();
    let mut open = |_: &Mapping| {
        opened += 1;
        Ok(this_test())
    };
    images.set_program_path(0, path("/opt/first"));
    images.update(0, &both, &mut open);
    assert!(!images.update(0, &both, &mut open), "nothing changed");
    let second = images.begin_process().unwrap();
    images.set_program_path(second, path("/opt/second"));
    images.update(second, &both, &mut open);
    let third = images.begin_process().unwrap();
    images.update(third, &both, &mut open);
    images.begin_space(0);
    images.update(0, &both, &mut open);
    let shown: Vec<_> =
        images.images().iter().map(|image| (image.shown_name(), image.shown_path(), &*image.name)).collect();
    let expected = [
        ("first", "/opt/first", "work"),
        ("a.so", "/lib/a.so", "a.so"),
        ("second", "/opt/second", "work"),
        ("work", "/usr/bin/work", "work"),
    ];
    assert_eq!(shown, expected, "the next program of a process has another name");
    assert_eq!(opened, 2, "each file once");
}

#[test]
fn rows_in_epilogues_of_images_reach_the_walker() {
    use crate::binary::pe::build::{File, Function, TEXT};
    use crate::walk::Code;

    // push %rbp; push %rbx; sub $0x28,%rsp; nop; add $0x28,%rsp; pop %rbx; pop %rbp; ret
    const CODE: [u8; 14] =
        [0x55, 0x53, 0x48, 0x83, 0xec, 0x28, 0x90, 0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0xc3];
    let info = vec![1, 6, 3, 0, 6, 0x42, 2, 0x30, 1, 0x50, 0, 0];
    let functions = vec![Function { begin: TEXT, end: TEXT + CODE.len() as u32, info }];
    let file = File { code: CODE.to_vec(), functions, ..File::default() }.build();
    // The mapping of the code.
    let mut mapping = mapping("C:/work.exe", 1, BASE);
    (mapping.file_offset, mapping.avma) = (0x400, Avma(BASE)..Avma(BASE + 0x1000));
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(file.clone())));
    let jit = JitCode::default();
    let code = TargetCode { images: images.of(0), jit: &jit, memory: None };
    let at = |into: u64| {
        (code.row_in_epilogue(Avma(BASE + into)), images.of(0).row_in_epilogue(Avma(BASE + into)))
    };
    let (passed_on, row) = at(12);
    assert!(row.is_some() && passed_on == row);
    assert_eq!(at(6), (None, None), "in the body");
}
