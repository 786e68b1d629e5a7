//! Naming frames: counts, sharing, reasons, and the test's own functions as they run.
#![allow(clippy::unwrap_used)]

use super::table::SymbolTable;
use super::table::tests::zoo;
use super::*;
use crate::image::elf::build;
use crate::target::{ImageBytes, Mapping, MappingKind};

const BASE: u64 = 0x7f00_0000_0000;

/// A mapping of a whole file's addresses at `base`: enough for files whose addresses are
/// their offsets, which is checked.
fn mapping(bytes: &ImageBytes, path: &str, inode: u64, base: u64) -> Mapping {
    let elf = crate::image::elf::Elf::parse(bytes.bytes()).unwrap();
    let code = elf.segments.iter().find(|segment| segment.executable).unwrap();
    assert_eq!(code.file.start, code.svma.0);
    Mapping {
        avma: Avma(base + code.file.start)..Avma(base + code.file.end),
        file_offset: code.file.start,
        path: path.to_string(),
        kind: MappingKind::File,
        identity: (8, inode),
    }
}

fn code(space: u32, address: u64) -> Frame {
    Frame::Code { space, address }
}

fn named(frames: &[Frame], images: &Images) -> (Names, Vec<Vec<String>>) {
    let frames = frames.iter().enumerate().map(|(index, frame)| (FrameId(index as u32), *frame));
    let names = symbolicate(frames.clone(), images, &Options::default());
    let texts = frames.map(|(id, _)| names.get(id).iter().map(|name| name.to_string()).collect());
    let texts = texts.collect();
    (names, texts)
}

fn address_of(bytes: &ImageBytes, name: &str) -> u64 {
    let table = SymbolTable::parse(bytes).unwrap();
    table.symbols().find(|symbol| symbol.name == name.as_bytes()).unwrap().start.0
}

#[test]
fn each_unique_address_is_looked_up_once() {
    let (_dir, bytes) = zoo(&["-shared", "-fPIC"]);
    let mapped = mapping(&bytes, "/lib/libzoo.so", 1, BASE);
    let moved = mapping(&bytes, "/lib/libzoo.so", 1, BASE + 0x1000_0000);
    let mut images = Images::default();
    let mut open = |_: &Mapping| Ok(bytes.clone());
    images.update(&[mapped], &mut open);
    images.update(&[moved], &mut open);
    assert_eq!(images.space(), 1);

    let zoo = BASE + address_of(&bytes, "zoo_sized");
    let frames = [
        Frame::Root(0),
        code(0, zoo + 4),
        code(1, zoo + 0x1000_0000 + 4), // the same place in the file
        code(0, zoo + 8),               // the same function
        code(0, zoo + 208),
        code(0, zoo + 216),
        code(0, zoo + 33), // between functions
        code(0, 0x10),     // in no image
        code(1, 0x10),
        code(0, 0x20),
    ];
    let (names, texts) = named(&frames, &images);
    let gap = format!("[libzoo.so+{:#x}]", address_of(&bytes, "zoo_sized") + 33);
    let expected = [
        &[][..],
        &["zoo_sized"],
        &["zoo_sized"],
        &["zoo_sized"],
        &["space::foo(int)"],
        &["123foo::bar"],
        &[&gap],
        &["[unknown]"],
        &["[unknown]"],
        &["[unknown]"],
    ];
    assert_eq!(texts, expected);
    assert!(Arc::ptr_eq(&names.get(FrameId(1))[0], &names.get(FrameId(3))[0]));
    assert!(Arc::ptr_eq(&names.get(FrameId(7))[0], &names.get(FrameId(9))[0]));
    assert!(names.get(FrameId(10)).is_empty() && names.get(FrameId(u32::MAX)).is_empty());

    assert_eq!(names.addresses_unique, 7);
    assert_eq!(names.addresses_looked_up, 7);
    assert_eq!(names.addresses_named, 4);
    let reasons: Vec<_> = names.addresses_unnamed.iter().map(|(why, count)| (why.clone(), *count)).collect();
    assert_eq!(reasons, [(Why::NoImage, 2), (Why::NotCovered, 1)]);
    assert_eq!(names.unnamed_by_image, [Unnamed { image: 0, why: Why::NotCovered, addresses: 1 }]);
}

#[test]
fn an_image_without_names_keeps_its_reason() {
    let (_dir, stripped) = zoo(&["-s"]);
    let good = mapping(&stripped, "/usr/bin/stripped", 1, BASE);
    let gone = mapping(&stripped, "/tmp/gone (x)", 2, 2 * BASE);
    let start = good.avma.start.0;
    let mut images = Images::default();
    images.update(&[good, gone.clone()], &mut |mapping| match mapping.identity.1 {
        1 => Ok(stripped.clone()),
        _ => Err("deleted from disk".to_string()),
    });
    let frames = [code(0, start), code(0, start + 1), code(0, gone.avma.start.0 + 0x40)];
    let (names, texts) = named(&frames, &images);
    assert_eq!(texts[1], [format!("[stripped+{:#x}]", start + 1 - BASE)]);
    assert_eq!(texts[2], [format!("[gone (x)+{:#x}]", gone.file_offset + 0x40)]);
    assert_eq!(
        names.unnamed_by_image,
        [
            Unnamed { image: 0, why: Why::NoSymbols, addresses: 2 },
            Unnamed { image: 1, why: Why::NoFile("deleted from disk".to_string()), addresses: 1 },
        ]
    );
    assert_eq!((names.addresses_looked_up, names.addresses_named), (3, 0));
}

#[test]
fn the_order_of_frames_does_not_matter() {
    let (_dir, bytes) = zoo(&[]);
    let mapped = mapping(&bytes, "zoo", 1, BASE);
    let start = mapped.avma.start.0;
    let mut images = Images::default();
    images.update(&[mapped], &mut |_| Ok(bytes.clone()));
    let frames: Vec<Frame> = (0..600).map(|index| code(0, start + index * 7 % 600)).collect();
    let reversed: Vec<Frame> = frames.iter().rev().copied().collect();
    let (forward, mut texts) = named(&frames, &images);
    let (backward, texts_reversed) = named(&reversed, &images);
    texts.reverse();
    assert_eq!(texts, texts_reversed);
    assert_eq!(forward.unnamed_by_image, backward.unnamed_by_image);
}

#[test]
fn the_memory_for_names_is_bounded() {
    let shared = TextsShared::new(Style::Readable, |_| None);
    let mut texts = dwarf::Texts::new(&shared);
    let name = texts.plain("main").unwrap();
    let half = "x".repeat(MAX_TEXT_BYTES / 2);
    assert!(texts.plain(&half).is_some());
    assert_eq!(dwarf::Texts::new(&shared).plain(&half), None, "all threads together");
    assert!(Arc::ptr_eq(&texts.plain("main").unwrap(), &name), "costs nothing");
}

#[inline(never)]
fn a_function_of_this_test(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

/// The whole way with the truth at hand: this process's own mappings and a function whose
/// run-time address the language gives.
#[test]
fn this_process_names_its_own_functions() {
    let mut mappings = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if !fields[1].contains('x') {
            continue;
        }
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let path = fields.get(5).copied().unwrap_or_default().to_string();
        mappings.push(Mapping {
            avma: Avma(hex(start))..Avma(hex(end)),
            file_offset: hex(fields[2]),
            kind: if path.starts_with('/') { MappingKind::File } else { MappingKind::Anonymous },
            path,
            identity: (1, fields[4].parse().unwrap()),
        });
    }
    let mut images = Images::default();
    images.update(&mappings, &mut |mapping| {
        std::fs::read(&mapping.path).map(ImageBytes::new).map_err(|error| error.to_string())
    });
    let here = a_function_of_this_test as fn(u64) -> u64 as usize as u64;
    assert_eq!(a_function_of_this_test(1), 2);
    assert!(images.contains(Avma(here)));
    let exe = std::env::current_exe().unwrap();
    let entry = images.entry_of(0, exe.to_str().unwrap()).unwrap();
    let (_, texts) = named(&[code(0, here), code(0, here + 1), code(0, entry.0)], &images);
    assert!(texts[0][0].ends_with("::a_function_of_this_test"), "{texts:?}");
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[2], ["_start"]);
}

/// A process with a JIT compiler.
struct WithMap;

impl Files for WithMap {
    fn open(&self, _path: &str) -> Result<ImageBytes, String> {
        Err("no such file or directory".to_owned())
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, String>)> {
        Some(("/tmp/perf-1.map".to_owned(), Ok(b"1000 1000 jitted\n".to_vec())))
    }
}

#[test]
fn a_jit_map_names_code_of_the_last_program_only() {
    let anonymous = |start: u64, end: u64| Mapping {
        avma: Avma(start)..Avma(end),
        file_offset: 0,
        path: String::new(),
        kind: MappingKind::Anonymous,
        identity: (0, 0),
    };
    let mut library = anonymous(0x5000, 0x6000);
    (library.path, library.kind, library.identity) = ("/lib/a.so".to_owned(), MappingKind::File, (8, 1));
    let mut images = Images::default();
    let mut open = |_: &Mapping| Err("not here".to_owned());
    images.update(&[anonymous(0x1000, 0x2000)], &mut open);
    images.begin_space();
    images.update(&[anonymous(0x1000, 0x2000), library], &mut open);
    // The library is gone: a new space, of the same program.
    images.update(&[anonymous(0x1000, 0x2000)], &mut open);
    assert_eq!((images.space(), images.program_space()), (2, 1));

    let frames = [code(0, 0x1008), code(1, 0x1008), code(2, 0x1010)];
    let frames = frames.into_iter().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbolicate(frames, &images, &Options { files: &WithMap, ..Options::default() });
    let texts = [0, 1, 2].map(|id| names.get(FrameId(id))[0].to_string());
    assert_eq!(texts, ["[unknown]", "jitted", "jitted"]);
    assert_eq!(names.addresses_unnamed.into_iter().collect::<Vec<_>>(), [(Why::NoImage, 1)]);
}

#[test]
fn an_address_has_the_same_name_whichever_others_are_asked_for() {
    // Two names for one start: the shorter function is the better one where it reaches.
    let names = b"\0shortg\0longl\0".to_vec();
    let mut long = build::function(8, build::TEXT, 0x101);
    long[4] = 0x02; // STB_LOCAL
    let symbols = build::symbols(&[build::function(1, build::TEXT, 0x10), long], names);
    let file = ImageBytes::new(build::file(build::X86_64, &symbols));
    for (addresses, expected) in [
        (&[0x1050][..], &["longl"][..]),
        (&[0x1008], &["shortg"]),
        (&[0x1008, 0x1050], &["shortg", "longl"]),
        (&[0x1050, 0x1008, 0x1060], &["longl", "shortg", "longl"]),
    ] {
        let answer = name_addresses("/alias.so", file.clone(), addresses, &Options::default());
        let names = answer.names.into_iter().map(|name| name.unwrap()[0].name.clone().unwrap());
        assert_eq!(names.map(|name| name.to_string()).collect::<Vec<_>>(), expected, "{addresses:x?}");
    }
}
