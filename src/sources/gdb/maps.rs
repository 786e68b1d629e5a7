//! The code mappings of a process, from the stub's replies: the kernel's list (`/proc/PID/maps`), or the
//! auxiliary vector and the dynamic loader's list. Hostile bytes in, plain values out; pure.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::description::attribute;
use crate::addr::{Avma, Svma};
use crate::binary::elf::Elf;
use crate::binary::{Mapping, MappingKind};

/// Most mappings, and most libraries, to keep.
const MAPPINGS_MAX: usize = 65_536;
/// Numbers of the auxiliary vector (include/uapi/linux/auxvec.h).
const AT_NULL: u64 = 0;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_SYSINFO_EHDR: u64 = 33;

/// A line of `/proc/PID/maps`.
pub(super) struct MapsLine {
    pub(super) mapping: Mapping,
    pub(super) executable: bool,
}

/// The lines of `/proc/PID/maps` (proc_pid_maps(5)), without malformed ones.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = MapsLine> + '_ {
    text.split(|byte| *byte == b'\n').take(MAPPINGS_MAX).filter_map(line)
}

/// `55d0c1a00000-55d0c1a21000 r-xp 00001000 fe:00 1234    /usr/bin/program`
fn line(line: &[u8]) -> Option<MapsLine> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.splitn(6, ' ');
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, end) = fields.next()?.split_once('-')?;
    let executable = fields.next()?.as_bytes().get(2) == Some(&b'x');
    let file_offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start().replace("\\012", "\n");
    // One page of entry points above the user address space.
    if path == "[vsyscall]" {
        return None;
    }
    let kind = match () {
        () if path == "[vdso]" => MappingKind::Vdso,
        () if inode != 0 && path.starts_with('/') => MappingKind::File,
        () => MappingKind::Anonymous,
    };
    let avma = Avma(hex(start)?)..Avma(hex(end)?);
    let identity = (hex(major)? << 32 | hex(minor)?, inode);
    (avma.start < avma.end).then_some(())?;
    Some(MapsLine { mapping: Mapping { avma, file_offset, path, kind, identity }, executable })
}

/// Values of the auxiliary vector of a little-endian process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Auxv {
    /// Entry point of the program.
    pub(super) entry: Option<u64>,
    /// Load address of the dynamic loader.
    pub(super) loader: Option<u64>,
    /// Address of the vDSO.
    pub(super) vdso: Option<u64>,
}

impl Auxv {
    pub(super) fn parse(bytes: &[u8], pointer_bytes: usize) -> Auxv {
        let mut auxv = Auxv::default();
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        // Each entry is two words of the target's size: never zero bytes.
        let pointer_bytes = pointer_bytes.clamp(1, 8);
        for pair in bytes.chunks_exact(2 * pointer_bytes) {
            let value = Some(word(&pair[pointer_bytes..])).filter(|value| *value != 0);
            match word(&pair[..pointer_bytes]) {
                AT_NULL => break,
                AT_BASE => auxv.loader = value,
                AT_ENTRY => auxv.entry = value,
                AT_SYSINFO_EHDR => auxv.vdso = value,
                _ => {}
            }
        }
        auxv
    }
}

/// The dynamic loader's libraries: paths and load biases.
pub(super) fn libraries(xml: &[u8]) -> Vec<(String, u64)> {
    let mut reader = Reader::from_reader(xml);
    let mut found = Vec::new();
    // Parsing ends at damaged XML.
    while let Ok(event) = reader.read_event() {
        let element = match event {
            Event::Eof => break,
            Event::Start(element) | Event::Empty(element) => element,
            _ => continue,
        };
        if element.local_name().as_ref() != b"library" || found.len() == MAPPINGS_MAX {
            continue;
        }
        let path = attribute(&element, b"name").filter(|path| path.starts_with('/'));
        let added = attribute(&element, b"l_addr")
            .and_then(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        found.extend(path.zip(added));
    }
    found
}

/// Adds the code of an ELF file with this load `bias`. `identity` is the file's.
pub(super) fn of_elf(elf: &Elf, path: &str, bias: u64, identity: (u64, u64), out: &mut Vec<Mapping>) {
    for segment in elf.segments.iter().filter(|segment| segment.executable) {
        let start = Avma(segment.svma.0.wrapping_add(bias));
        let bytes = segment.file.end - segment.file.start;
        let Some(end) = start.checked_add(bytes).filter(|end| *end > start) else { continue };
        out.push(Mapping {
            avma: start..end,
            file_offset: segment.file.start,
            path: path.to_owned(),
            kind: MappingKind::File,
            identity,
        });
    }
}

/// Address of the first bytes of an ELF file, if they are loaded.
pub(super) fn head_of(elf: &Elf, bias: u64) -> Option<u64> {
    let first = elf.segments.iter().find(|segment| segment.file.start == 0)?;
    Some(first.svma.0.wrapping_add(bias))
}

/// Load bias of a program that was entered at `entry`.
pub(super) fn bias_by_entry(stated: Svma, entry: u64) -> u64 {
    entry.wrapping_sub(stated.0)
}

/// Sorts by address; of overlapping mappings the first is kept.
pub(super) fn sort(mappings: &mut Vec<Mapping>) {
    mappings.sort_by_key(|mapping| mapping.avma.start);
    let mut end = Avma(0);
    mappings.retain(|mapping| {
        let fits = mapping.avma.start >= end && mapping.avma.start < mapping.avma.end;
        if fits {
            end = mapping.avma.end;
        }
        fits
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_lines_of_proc_maps() {
        let text = b"55d0c1a00000-55d0c1a21000 r-xp 00001000 fe:00 1234                       /usr/bin/a b\n\
            7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
            7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n\
            7f0000003000-7f0000002000 r-xp 00000000 00:00 0 \nnonsense\n";
        let lines: Vec<MapsLine> = lines(text).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].mapping.path, "/usr/bin/a b");
        assert_eq!(lines[0].mapping.identity, (0xfe_0000_0000, 1234));
        assert!(lines[0].executable && !lines[1].executable);
        assert_eq!(lines[2].mapping.kind, MappingKind::Vdso);
    }

    #[test]
    fn the_auxiliary_vector_ends_at_at_null() {
        let words = [9u64, 0x1040, 7, 0x7000, 33, 0, 0, 0, 9, 5];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(Auxv::parse(&bytes, 8), Auxv { entry: Some(0x1040), loader: Some(0x7000), vdso: None });
        assert_eq!(Auxv::parse(&bytes[..13], 8), Auxv::default());
        let narrow: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
        assert_eq!(Auxv::parse(&narrow, 4), Auxv::parse(&bytes, 8));
    }

    #[test]
    fn parses_libraries_of_the_loader() {
        let xml = b"<library-list-svr4 version=\"1.0\" main-lm=\"0x7f\"><library name=\"/lib/libc.so.6\" lm=\"0x1\" \
            l_addr=\"0x7f1000\" l_ld=\"0x2\"/><library name=\"\" l_addr=\"0x1\"/></library-list-svr4>";
        assert_eq!(libraries(xml), [("/lib/libc.so.6".to_owned(), 0x7f_1000)]);
        assert_eq!(libraries(b"<library"), []);
    }
}
