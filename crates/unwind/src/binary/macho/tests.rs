//! Mach-O headers, from files built byte by byte.
#![allow(clippy::unwrap_used)]

use super::build::{ARM64, File, TEXT, X86_64, fat as fat_file, nlist};
use super::{ImageIdentity, Slice, choose, slices, *};
use crate::binary::ImageBytes;

fn parse(file: &File) -> MachO {
    MachO::parse(&file.build()).unwrap()
}

#[test]
fn load_commands_locate_everything() {
    let file = File {
        entry: Some(0x1010),
        nlists: vec![nlist("_main", 0x0f, 0x1010)],
        function_starts: vec![0x1000, 0x1010],
        trie: vec![0, 0],
        ..File::default()
    };
    let macho = parse(&file);
    assert_eq!((macho.cpu_type, macho.cpu_subtype, macho.file_type), (CPU_ARM64, 0, 2));
    assert_eq!(macho.uuid, Some(*b"0123456789abcdef"));
    assert_eq!(macho.entry, Some(Svma(TEXT + 0x1010)));
    assert_eq!(macho.text, Svma(TEXT)..Svma(TEXT + 0x4000));
    let names: Vec<&str> = macho.segments.iter().map(|segment| segment.name.as_str()).collect();
    assert_eq!(names, ["__PAGEZERO", "__TEXT", "__LINKEDIT"]);
    assert_eq!(macho.segments[1].protection, 5);
    let text = Svma(TEXT + 0x1000)..Svma(TEXT + 0x2000);
    let stubs = Svma(TEXT + 0x2000)..Svma(TEXT + 0x2100);
    assert_eq!(macho.code, [Some(text), Some(stubs), None]);
    assert_eq!(macho.linkedit.nlists, 0x400a..0x401a);
    assert_eq!(macho.linkedit.strings, 0x401a..0x4021);
    assert_eq!(macho.linkedit.function_starts, 0x4000..0x4008);
    assert_eq!(macho.linkedit.exports_trie, 0x4008..0x400a);
    assert_eq!(macho, parse(&File { dyld_info: true, ..file.clone() }), "another command, the same trie");

    let bytes = file.build();
    let head = 32 + u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    assert_eq!(MachO::parse(&bytes[..head]).unwrap(), macho, "the head of an image in memory is enough");
    assert!(MachO::parse(&bytes[..head - 1]).is_err());
}

#[test]
fn the_new_command_for_exports_has_priority() {
    let mut bytes = File { trie: vec![0, 0], ..File::default() }.build();
    let before = MachO::parse(&bytes).unwrap().linkedit;
    // Another command after the last one, in the space before the code.
    let (count, size) = (bytes[16], u16::from_le_bytes([bytes[20], bytes[21]]));
    let end = 32 + usize::from(size);
    bytes[16] = count + 1;
    bytes[20..22].copy_from_slice(&(size + 48).to_le_bytes());
    bytes[end..end + 8].copy_from_slice(&[0x22, 0, 0, 0x80, 48, 0, 0, 0]);
    bytes[end + 40..end + 48].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
    assert_eq!(MachO::parse(&bytes).unwrap().linkedit, before);
}

#[test]
fn offsets_and_addresses_follow_the_segments() {
    let macho = parse(&File::default());
    assert_eq!(macho.svma_of(0), Some(Svma(TEXT)));
    assert_eq!(macho.svma_of(0x3fff), Some(Svma(TEXT + 0x3fff)));
    assert_eq!(macho.svma_of(0x4001), Some(Svma(TEXT + 0x10_0001)));
    assert_eq!(macho.svma_of(0x80_0000), None);
    assert_eq!(macho.file_offset_of(Svma(TEXT + 0x1010)), Some(0x1010));
    assert_eq!(macho.file_offset_of(Svma(0x1010)), None, "the zero page");
    assert_eq!(macho.linkedit_svma(0x4001), Some(Svma(TEXT + 0x10_0001)));
    assert_eq!(macho.linkedit_svma(0x3fff), None);
}

#[test]
fn a_dsym_has_addresses_without_bytes() {
    let mut macho = parse(&File::default());
    macho.segments[1].file = 0..0;
    assert_eq!(macho.svma_of(0x1010), Some(Svma(TEXT + 0x1010)));
    assert_eq!(macho.file_offset_of(Svma(TEXT + 0x1010)), None);
}

#[test]
fn offsets_of_other_files_of_the_shared_cache_do_not_mix() {
    // `__TEXT` and `__LINKEDIT` are in different files of the cache, at the same offset.
    let mut macho = parse(&File::default());
    macho.segments[1].file = 0x5000..0x9000;
    macho.segments[2].file = 0x5000..0x9000;
    assert_eq!(macho.svma_of(0x5010), Some(Svma(TEXT + 0x10)));
    assert_eq!(macho.linkedit_svma(0x5010), Some(Svma(TEXT + 0x10_0010)));
}

#[test]
fn hostile_segments_do_not_overflow() {
    let mut macho = parse(&File::default());
    for segment in &mut macho.segments {
        segment.svma = Svma(u64::MAX - 4)..Svma(u64::MAX);
        segment.file = u64::MAX - 9..u64::MAX;
    }
    macho.text = macho.segments[0].svma.clone();
    for offset in [0, u64::MAX - 9, u64::MAX - 1, u64::MAX] {
        let _ = (macho.svma_of(offset), macho.linkedit_svma(offset), macho.file_offset_of(Svma(offset)));
    }
    // A segment that would end beyond the last address.
    let mut bytes = File::default().build();
    bytes[32 + 72 + 32..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(MachO::parse(&bytes).unwrap().text, Svma(TEXT)..Svma(u64::MAX));
}

#[test]
fn other_formats_are_refused_with_the_reason() {
    let reason = |bytes: &[u8]| MachO::parse(bytes).unwrap_err().to_string();
    assert_eq!(reason(b""), "an empty file");
    assert_eq!(reason(b"#!/bin/sh\n"), "not a Mach-O file");
    assert_eq!(reason(b"\xca\xfe\xba\xbe\0\0\0\x34"), "not a Mach-O file", "a Java class");
    assert_eq!(reason(&0xfeed_facf_u32.to_be_bytes()), "a Mach-O file of another byte order");
    assert_eq!(reason(&0xfeed_face_u32.to_be_bytes()), "a Mach-O file of another byte order");
    assert!(reason(&0xfeed_face_u32.to_le_bytes()).contains("header"));
    let both = fat_file(&[(ARM64, 0, File::default().build())], false);
    assert_eq!(reason(&both), "a file for several processors: one must be chosen first");
    let mut object = File::default().build();
    object[32 + 72 + 8..][..6].fill(0);
    assert_eq!(reason(&object), "a Mach-O file without __TEXT segment");
    assert!(MachO::parse(&MAGIC).is_err());
}

#[test]
fn function_starts_are_distances() {
    let starts = |bytes: &[u8]| function_starts(bytes, Svma(0x1000)).map(|at| at.0).collect::<Vec<_>>();
    assert_eq!(starts(&[0x80, 0x20, 4, 4, 0, 9]), [0x2000, 0x2004, 0x2008], "0 ends them");
    assert_eq!(starts(&[]), [0; 0]);
    assert_eq!(starts(&[4, 0x80]), [0x1004], "cut short");
    assert_eq!(starts(&[4, 0x84, 0x80, 0x00, 4, 0]), [0x1004, 0x1008, 0x100c], "padded");
    assert_eq!(starts(&[[0xff; 9].as_slice(), &[1, 4]].concat()), [0; 0], "beyond the last address");
    assert_eq!(starts(&[[0xff; 9].as_slice(), &[2, 4]].concat()), [0; 0], "more than 64 bits");
    assert_eq!(starts(&[0x80; 40]), [0; 0]);
}

fn wanted(uuid: Option<[u8; 16]>, cpu_subtype: u32) -> ImageIdentity {
    ImageIdentity { uuid, cpu_type: ARM64, cpu_subtype }
}

#[test]
fn the_uuid_selects_between_images_of_one_file() {
    let (intel, plain, signed) = (*b"intel___________", *b"arm64___________", *b"arm64e__________");
    let image = |cpu, subtype, uuid| File { cpu, subtype, uuid: Some(uuid), ..File::default() }.build();
    let images = [
        (X86_64, 3, image(X86_64, 3, intel)),
        (ARM64, 0, image(ARM64, 0, plain)),
        (ARM64, 0x8000_0002, image(ARM64, 2, signed)),
    ];
    for wide in [false, true] {
        let file = ImageBytes::new(fat_file(&images, wide));
        let uuid = |wanted| MachO::parse(choose(&file, &wanted).unwrap().bytes()).unwrap().uuid;
        assert_eq!(uuid(wanted(Some(signed), 0)), Some(signed), "not what the subtype says");
        assert_eq!(uuid(wanted(Some(plain), 2)), Some(plain));
        assert_eq!(uuid(wanted(Some(intel), 0)), Some(intel));
        assert_eq!(uuid(wanted(None, 0)), Some(plain));
        assert_eq!(uuid(wanted(None, 2)), Some(signed));
        assert_eq!(uuid(wanted(None, 1)), Some(plain), "the first of the type");
        assert_eq!(
            choose(&file, &wanted(Some([0; 16]), 0)).unwrap_err().to_string(),
            "replaced on disk since it was loaded"
        );
        let other = ImageIdentity { uuid: None, cpu_type: 7, cpu_subtype: 3 };
        assert_eq!(choose(&file, &other).unwrap_err().to_string(), "no code for this processor");
        let whole = choose(&file, &wanted(Some(signed), 0)).unwrap();
        assert_eq!(whole.bytes(), images[2].2, "all its bytes and no others");
    }
}

#[test]
fn a_thin_file_passes_the_same_check() {
    let file = ImageBytes::new(File::default().build());
    let right = wanted(Some(*b"0123456789abcdef"), 0);
    assert_eq!(choose(&file, &right).unwrap().bytes(), file.bytes());
    assert_eq!(choose(&file, &wanted(None, 0)).unwrap().bytes(), file.bytes());
    assert!(choose(&file, &wanted(Some([1; 16]), 0)).is_err());
    let other = ImageBytes::new(b"GIF89a".as_slice());
    assert_eq!(choose(&other, &right).unwrap_err(), FormatError::NotMachO);
}

#[test]
fn malformed_fat_files_are_refused_or_truncated() {
    let file = fat_file(&[(ARM64, 0, File::default().build())], false);
    assert!(slices(&file[..20]).is_err(), "the table is cut");
    let cut = ImageBytes::new(file[..0x4100].to_vec());
    let slice =
        Slice { cpu_type: ARM64, cpu_subtype: 0, range: 0x4000..0x4000 + (file.len() as u64 - 0x4000) };
    assert_eq!(slices(cut.bytes()).unwrap(), [slice]);
    assert_eq!(choose(&cut, &wanted(None, 0)).unwrap().bytes().len(), 0x100);
    let mut far = file.clone();
    far[16..20].fill(0xff);
    assert_eq!(choose(&ImageBytes::new(far), &wanted(None, 0)).unwrap().bytes().len(), 0);
    let mut many = file;
    many[4..8].copy_from_slice(&33u32.to_be_bytes());
    assert_eq!(slices(&many).unwrap_err(), FormatError::NotMachO);
}

#[test]
fn an_i386_file_has_its_entry_point() {
    let bytes = super::build::i386();
    let macho = MachO::parse(&bytes).unwrap();
    assert_eq!((macho.cpu_type, macho.is_64, macho.entry), (CPU_I386, false, Some(Svma(0x2000))));
    assert_eq!(macho.text, Svma(0x1000)..Svma(0x3000));
    assert_eq!(macho.code, [Some(Svma(0x2000)..Svma(0x2010))]);
    let at = &macho.linkedit;
    assert_eq!((at.nlists.end - at.nlists.start, at.strings.end - at.strings.start), (24, 14));
    let starts = at.function_starts.start as usize..at.function_starts.end as usize;
    let starts: Vec<Svma> = function_starts(&bytes[starts], macho.text.start).collect();
    assert_eq!(starts, [Svma(0x2000), Svma(0x2008)]);
    for cut in 0..bytes.len() {
        let _ = MachO::parse(&bytes[..cut]);
    }
    // A flavor with a word count beyond the end.
    assert_eq!(
        unix_thread_entry(&[5, 0, 0, 0, 16, 0, 0, 0, 9, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], false),
        None
    );
}
