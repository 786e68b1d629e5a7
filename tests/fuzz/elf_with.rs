//! A sound x86_64 ELF file around the sections that a target makes up.

use stackprof::addr::Avma;
use stackprof::images::Images;
use stackprof::binary::{ImageBytes, Mapping, MappingKind};

/// Where its code is, in the file and in memory.
pub const TEXT_SVMA: u64 = 0x1000;
/// How much code there is at most.
pub const TEXT_BYTES: u64 = 0x1000;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;

/// A file with the sections at their place in memory, `.text` at [`TEXT_SVMA`], the others
/// after it.
pub fn elf_with(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; (TEXT_SVMA + TEXT_BYTES) as usize];
    let mut headers: Vec<[u64; 4]> = vec![[0; 4]];
    let mut names = vec![0u8];
    for (name, bytes) in sections {
        let bytes = &bytes[..bytes.len().min(TEXT_BYTES as usize)];
        let at = if *name == ".text" { TEXT_SVMA as usize } else { file.len() };
        file.resize(file.len().max(at + bytes.len()), 0);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file.resize(file.len().next_multiple_of(8), 0);
        headers.push([names.len() as u64, 1, at as u64, bytes.len() as u64]);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    // SHT_STRTAB
    headers.push([names.len() as u64, 3, file.len() as u64, names.len() as u64]);
    names.push(0);
    file.extend_from_slice(&names);
    file.resize(file.len().next_multiple_of(8), 0);
    let (size, table) = (file.len() as u64, file.len() as u64);
    for [name, kind, at, length] in &headers {
        let svma = if *kind == 1 { *at } else { 0 };
        // SHF_ALLOC
        let flags = u64::from(*kind == 1) * 2;
        file.extend_from_slice(&(name | kind << 32).to_le_bytes());
        for word in [flags, svma, *at, *length, 0, 1, 0] {
            file.extend_from_slice(&word.to_le_bytes());
        }
    }
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    for word in [TEXT_SVMA, HEADER_BYTES as u64, table] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    let counts = [0, 0, 64, SEGMENT_BYTES as u16, 1, 64, headers.len() as u16, headers.len() as u16 - 1];
    head.extend(counts.into_iter().flat_map(u16::to_le_bytes));
    // PT_LOAD, readable and executable: the whole file at its own addresses.
    head.extend_from_slice(&(1u64 | 5 << 32).to_le_bytes());
    for word in [0, 0, 0, size, size, 0x1000] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    file[..head.len()].copy_from_slice(&head);
    file
}

/// The images of a process that has the code of this file mapped at its own addresses.
pub fn images_of(file: Vec<u8>) -> Images {
    let mapping = Mapping {
        avma: Avma(TEXT_SVMA)..Avma(TEXT_SVMA + TEXT_BYTES),
        file_offset: TEXT_SVMA,
        path: "/a".to_owned(),
        kind: MappingKind::File,
        identity: (1, 1),
    };
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(file.clone())));
    images
}
