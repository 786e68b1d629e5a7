//! Mach-O: the bytes of a file (or the head of a loaded image) → segments, UUID, entry point, and the location of
//! symbols.
//!
//! `MachO` is the summary; `choose` finds the image of one processor in a fat file; `find` looks one name up in an
//! exports trie; `Functions` are the ranges of `LC_FUNCTION_STARTS`.
//!
//! Input: little-endian Mach-O, 64-bit or i386; every byte is hostile. Only the header and the load commands are
//! read, so the first `32 + sizeofcmds` bytes of an image in a target's memory are enough. Output: a small owned
//! summary. [`choose`] finds one image in a fat file. Not for: symbols (see `symbol::table`), unwind tables (see
//! [`unwind`]), fixups.
//!
//! Format: `<mach-o/loader.h>` and `<mach/machine.h>` of xnu.

#[cfg(any(test, feature = "testing"))]
pub mod build;
#[cfg(test)]
mod tests;
pub mod unwind;

use std::ops::Range;

use object::LittleEndian;
use object::macho::{
    DyldInfoCommand, EncryptionInfoCommand64, EntryPointCommand, FatArch32, FatArch64, LC_DYLD_EXPORTS_TRIE,
    LC_DYLD_INFO, LC_DYLD_INFO_ONLY, LC_ENCRYPTION_INFO_64, LC_FUNCTION_STARTS, LC_MAIN, LC_SEGMENT,
    LC_SEGMENT_64, LC_SYMTAB, LC_UNIXTHREAD, LC_UUID, LinkeditDataCommand, MH_DYLINKER, MachHeader32,
    MachHeader64, S_ATTR_PURE_INSTRUCTIONS, S_ATTR_SOME_INSTRUCTIONS, SegmentCommand32, SegmentCommand64,
    SymtabCommand, UuidCommand,
};
use object::read::macho::{
    FatArch, LoadCommandData, MachHeader, MachOFatFile, Section, Segment as SegmentCommand,
};

use super::object::part;
use super::{FormatError, ImageBytes};
use crate::addr::Svma;
use crate::leb128::take_unsigned;

/// Limit on segments of a file; linkers create four to six.
pub const SEGMENTS_MAX: usize = 256;

/// Limit on sections: a symbol has one byte for its section number.
pub const SECTIONS_MAX: usize = 255;

/// `CPU_TYPE_X86_64`.
pub const CPU_X86_64: u32 = 0x0100_0007;

/// `CPU_TYPE_I386`: 32-bit programs, which macOS ran up to 10.14.
pub const CPU_I386: u32 = 7;

/// `CPU_TYPE_ARM64`; arm64e is its subtype 2.
pub const CPU_ARM64: u32 = 0x0100_000c;

/// Mask of the subtype number; the higher bits are capabilities (`CPU_SUBTYPE_MASK`).
const SUBTYPE_BITS: u32 = 0x00ff_ffff;

/// `MH_MAGIC_64` in a little-endian file.
pub(crate) const MAGIC: [u8; 4] = [0xcf, 0xfa, 0xed, 0xfe];

/// `MH_MAGIC`, of 32-bit files.
const MAGIC_32: [u8; 4] = [0xce, 0xfa, 0xed, 0xfe];

/// Size of an `nlist_64` entry.
const NLIST_BYTES: u64 = 16;
/// Size of an `nlist` entry of 32 bits.
pub const NLIST_32_BYTES: u64 = 12;

/// A segment: a part of the file and its link-time addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name, usually `__TEXT`, `__DATA_CONST`, `__DATA`, `__LINKEDIT`.
    pub name: String,
    /// Stated addresses (`vmaddr`, `vmsize`).
    pub svma: Range<Svma>,
    /// Bytes of the file (`fileoff`, `filesize`), relative to the Mach-O header. For an image of the shared cache:
    /// bytes of one of the cache's files.
    pub file: Range<u64>,
    /// Initial protection: 1 read, 2 write, 4 execute.
    pub protection: u32,
}

/// The location of the symbol tables in the file, in bytes from the Mach-O header; as stated, not checked against
/// the file's size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Linkedit {
    /// `nlist_64` entries of 16 bytes (`symoff`, `nsyms`); of 32 bits, `nlist` entries of 12.
    pub nlists: Range<u64>,
    /// The string pool (`stroff`, `strsize`). Images of a shared cache share one pool: hundreds of megabytes that
    /// must never be copied whole.
    pub strings: Range<u64>,
    /// `LC_FUNCTION_STARTS`; see [`function_starts`].
    pub function_starts: Range<u64>,
    /// The exports trie: `LC_DYLD_EXPORTS_TRIE`, or that of `LC_DYLD_INFO(_ONLY)`.
    pub exports_trie: Range<u64>,
}

/// The parts of a Mach-O file that are needed to locate addresses in it and to find its symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachO {
    /// `cputype`: [`CPU_X86_64`], [`CPU_ARM64`] or [`CPU_I386`], or another.
    pub cpu_type: u32,
    /// Whether it is a 64-bit file.
    pub is_64: bool,
    /// `cpusubtype` without its capability bits: 2 is arm64e, 8 x86_64h.
    pub cpu_subtype: u32,
    /// `filetype`: 2 executable, 6 dylib, 7 dyld, 8 bundle, 10 dSYM.
    pub file_type: u32,
    /// `flags`; 0x8000_0000 is an image in the shared cache.
    pub flags: u32,
    /// Whether the code in the file is encrypted (`LC_ENCRYPTION_INFO_64`); in memory it is not.
    pub encrypted: bool,
    /// `LC_UUID`, the same in a file, in its dSYM and in memory.
    pub uuid: Option<[u8; 16]>,
    /// Entry point of a program (`LC_MAIN`, or `LC_UNIXTHREAD` before OS X 10.8); `None` in libraries.
    pub entry: Option<Svma>,
    /// The addresses of `__TEXT`, the only ones that belong to the image alone. In the shared cache the other
    /// segments are far away, among those of other images.
    pub text: Range<Svma>,
    /// Segments in the order of the file, at most [`SEGMENTS_MAX`].
    pub segments: Vec<Segment>,
    /// Sections in the order of the file, at most [`SECTIONS_MAX`]: the addresses of those with instructions. The
    /// section number of a symbol is its index here plus 1.
    pub code: Vec<Option<Range<Svma>>>,
    /// `__TEXT,__unwind_info`: compact unwind information.
    pub unwind_info: Option<Range<Svma>>,
    /// `__TEXT,__eh_frame`: DWARF unwind information.
    pub eh_frame: Option<Range<Svma>>,
    /// Location of the symbol tables.
    pub linkedit: Linkedit,
}

impl MachO {
    /// Reads the header and the load commands.
    ///
    /// # Errors
    /// No Mach-O file, or invalid commands.
    pub fn parse(bytes: &[u8]) -> Result<MachO, FormatError> {
        match bytes {
            [] => Err(FormatError::Empty),
            _ if bytes.starts_with(&MAGIC) => MachO::read::<MachHeader64<LittleEndian>>(bytes),
            _ if bytes.starts_with(&MAGIC_32) => MachO::read::<MachHeader32<LittleEndian>>(bytes),
            _ if is_fat(bytes) => Err(FormatError::Fat),
            [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] => Err(FormatError::MachOVariant),
            _ => Err(FormatError::NotMachO),
        }
    }

    fn read<H: MachHeader<Endian = LittleEndian>>(bytes: &[u8]) -> Result<MachO, FormatError> {
        let mut found = LoadCommands::default();
        let header = summary::<H>(bytes, &mut found)?;
        let text = found.segments.iter().find(|segment| segment.name == "__TEXT");
        let text = text.ok_or(FormatError::NoText)?.svma.clone();
        Ok(MachO {
            cpu_type: header.cputype(LittleEndian).0,
            is_64: header.is_type_64(),
            cpu_subtype: header.cpusubtype(LittleEndian).0 & SUBTYPE_BITS,
            file_type: header.filetype(LittleEndian).0,
            flags: header.flags(LittleEndian).0,
            encrypted: found.encrypted,
            uuid: found.uuid,
            entry: found.entry_offset.and_then(|offset| text.start.checked_add(offset)).or(found.entry),
            text,
            segments: found.segments,
            code: found.code,
            unwind_info: found.unwind_info,
            eh_frame: found.eh_frame,
            linkedit: found.linkedit,
        })
    }

    /// Whether threads start in an image with this file name: in dyld's `start`, which calls a program's `main`
    /// (before macOS 12 `start` of libdyld.dylib did), and in `thread_start` and `start_wqthread` of
    /// libsystem_pthread.dylib.
    #[must_use]
    pub fn begins_threads(&self, name: &str) -> bool {
        self.file_type == MH_DYLINKER.0 || matches!(name, "libsystem_pthread.dylib" | "libdyld.dylib")
    }

    /// The stated address of a byte of the file: in `__TEXT`, up to its size in memory, or else in another
    /// segment. `None` outside all of them.
    ///
    /// For files, and for the `__TEXT` of any image: in the shared cache, offsets in
    /// other segments belong to other files of the cache.
    #[must_use]
    pub fn svma_of(&self, file_offset: u64) -> Option<Svma> {
        let text = self.segments.iter().filter(|segment| segment.svma == self.text);
        let in_text = text.filter_map(|segment| {
            let into = file_offset.checked_sub(segment.file.start)?;
            (into < segment.svma.end - segment.svma.start).then_some(segment.svma.start + into)
        });
        in_text.into_iter().next().or_else(|| {
            let segment = self.segments.iter().find(|segment| segment.file.contains(&file_offset))?;
            segment.svma.start.checked_add(file_offset - segment.file.start)
        })
    }

    /// The file offset of a stated address; `None` outside the segments, and in zero-filled memory.
    #[must_use]
    pub fn file_offset_of(&self, svma: Svma) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = svma.0.checked_sub(segment.svma.start.0)?;
            let offset = segment.file.start.checked_add(into)?;
            segment.file.contains(&offset).then_some(offset)
        })
    }

    /// The stated address of a byte of [`Linkedit`], for reading it from memory; equal in files and in the shared
    /// cache. `None` without `__LINKEDIT`.
    #[must_use]
    pub fn linkedit_svma(&self, file_offset: u64) -> Option<Svma> {
        let segment = self.segments.iter().find(|segment| segment.name == "__LINKEDIT")?;
        segment.svma.start.checked_add(file_offset.checked_sub(segment.file.start)?)
    }
}

/// The starts of functions from `LC_FUNCTION_STARTS`: ULEB128 distances from the start of `__TEXT`, terminated by
/// 0. Ascending; ends at the first malformed number.
pub fn function_starts(mut bytes: &[u8], text: Svma) -> impl Iterator<Item = Svma> {
    let mut at = text;
    std::iter::from_fn(move || {
        let delta = crate::leb128::take_unsigned(&mut bytes).filter(|delta| *delta != 0);
        let next = delta.and_then(|delta| at.checked_add(delta));
        match next {
            Some(next) => at = next,
            None => bytes = &[],
        }
        next
    })
}

/// The load commands' data, as far as they were read.
#[derive(Default)]
struct LoadCommands {
    uuid: Option<[u8; 16]>,
    entry_offset: Option<u64>,
    /// The first thread's entry point according to `LC_UNIXTHREAD`.
    entry: Option<Svma>,
    encrypted: bool,
    segments: Vec<Segment>,
    code: Vec<Option<Range<Svma>>>,
    unwind_info: Option<Range<Svma>>,
    eh_frame: Option<Range<Svma>>,
    linkedit: Linkedit,
}

fn summary<'a, H: MachHeader<Endian = LittleEndian>>(
    bytes: &'a [u8],
    found: &mut LoadCommands,
) -> object::read::Result<&'a H> {
    let header = H::parse(bytes, 0)?;
    let mut commands = header.load_commands(LittleEndian, bytes, 0)?;
    while let Some(command) = commands.next()? {
        take(command, header.is_type_64(), found)?;
    }
    Ok(header)
}

/// Adds a segment and its sections.
fn take_segment<S: SegmentCommand<Endian = LittleEndian>>(
    command: LoadCommandData<'_, LittleEndian>,
    found: &mut LoadCommands,
) -> object::read::Result<()> {
    let endian = LittleEndian;
    let Some((segment, sections)) = S::from_command(command)? else { return Ok(()) };
    for section in segment.sections(endian, sections)? {
        if found.code.len() < SECTIONS_MAX {
            let flags = section.flags(endian).0;
            let holds_code = flags & (S_ATTR_PURE_INSTRUCTIONS.0 | S_ATTR_SOME_INSTRUCTIONS.0) != 0;
            let start = Svma(section.addr(endian).into());
            let end = start.checked_add(section.size(endian).into());
            let unwind = match section.name() {
                b"__unwind_info" => Some(&mut found.unwind_info),
                b"__eh_frame" => Some(&mut found.eh_frame),
                _ => None,
            };
            if let Some((unwind, end)) = unwind.zip(end).filter(|_| segment.name() == b"__TEXT") {
                *unwind = Some(start..end);
            }
            found.code.push(end.filter(|_| holds_code).map(|end| start..end));
        }
    }
    if found.segments.len() < SEGMENTS_MAX {
        let start = Svma(segment.vmaddr(endian).into());
        let (offset, size) = segment.file_range(endian);
        found.segments.push(Segment {
            name: String::from_utf8_lossy(segment.name()).into_owned(),
            svma: start..Svma(start.0.saturating_add(segment.vmsize(endian).into())),
            file: offset..offset.saturating_add(size),
            protection: segment.initprot(endian).0,
        });
    }
    Ok(())
}

/// The program counter in an `LC_UNIXTHREAD` command: its number and size are followed by flavors, each with a
/// word count and its words. Source: osfmk/mach/i386/thread_status.h and _structs.h.
fn unix_thread_entry(command: &[u8], is_64: bool) -> Option<Svma> {
    let word = |index: usize| Some(u32::from_le_bytes(*command.get(4 * index..)?.first_chunk()?));
    // x86_THREAD_STATE32, with eip as the eleventh word; x86_THREAD_STATE64, with rip from the 33rd word on.
    let (flavor, at) = if is_64 { (4, 32) } else { (1, 10) };
    let mut index = 2;
    while let (Some(found), Some(count)) = (word(index), word(index + 1)) {
        if found == flavor && count > at {
            let low = word(index + 2 + at as usize)?;
            let high = if is_64 { word(index + 3 + at as usize)? } else { 0 };
            return Some(Svma(u64::from(low) | u64::from(high) << 32));
        }
        index = index.checked_add(2)?.checked_add(usize::try_from(count).ok()?)?;
    }
    None
}

fn take(
    command: LoadCommandData<'_, LittleEndian>,
    is_64: bool,
    found: &mut LoadCommands,
) -> object::read::Result<()> {
    let endian = LittleEndian;
    let from_to = |start: u32, length: u64| u64::from(start)..u64::from(start) + length;
    match command.cmd() {
        LC_SEGMENT_64 => take_segment::<SegmentCommand64<LittleEndian>>(command, found)?,
        LC_SEGMENT => take_segment::<SegmentCommand32<LittleEndian>>(command, found)?,
        LC_UNIXTHREAD => found.entry = unix_thread_entry(command.raw_data(), is_64),
        LC_UUID => found.uuid = Some(command.data::<UuidCommand<LittleEndian>>()?.uuid),
        LC_ENCRYPTION_INFO_64 => {
            let info = command.data::<EncryptionInfoCommand64<LittleEndian>>()?;
            found.encrypted = info.cryptid.get(endian) != 0;
        }
        LC_MAIN => {
            let main = command.data::<EntryPointCommand<LittleEndian>>()?;
            found.entry_offset = Some(main.entryoff.get(endian));
        }
        LC_SYMTAB => {
            let symtab = command.data::<SymtabCommand<LittleEndian>>()?;
            let entry_bytes = if is_64 { NLIST_BYTES } else { NLIST_32_BYTES };
            let length = u64::from(symtab.nsyms.get(endian)) * entry_bytes;
            found.linkedit.nlists = from_to(symtab.symoff.get(endian), length);
            found.linkedit.strings = from_to(symtab.stroff.get(endian), symtab.strsize.get(endian).into());
        }
        LC_FUNCTION_STARTS | LC_DYLD_EXPORTS_TRIE => {
            let data = command.data::<LinkeditDataCommand<LittleEndian>>()?;
            let range = from_to(data.dataoff.get(endian), data.datasize.get(endian).into());
            if command.cmd() == LC_FUNCTION_STARTS {
                found.linkedit.function_starts = range;
            } else {
                found.linkedit.exports_trie = range;
            }
        }
        LC_DYLD_INFO | LC_DYLD_INFO_ONLY => {
            let info = command.data::<DyldInfoCommand<LittleEndian>>()?;
            let range = from_to(info.export_off.get(endian), info.export_size.get(endian).into());
            // The new command has priority: dyld looks for it first.
            if found.linkedit.exports_trie.is_empty() {
                found.linkedit.exports_trie = range;
            }
        }
        _ => {}
    }
    Ok(())
}

// ---- Fat (universal) files: one file with a Mach-O image for each of several processors.
//
// Thin files pass through the same check, so the caller need not distinguish them.
//
// Format: `<mach-o/fat.h>` of xnu; big-endian for any processor.

/// Limit on images in one file. Java class files begin with the same magic number, followed by a version of at
/// least 45 in place of this count.
pub const IMAGES_MAX: u32 = 32;

/// The identity of the wanted image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageIdentity {
    /// UUID of the loaded image, sufficient by itself. A file may contain arm64 and arm64e code with completely
    /// different addresses, and the caller cannot guess which one runs.
    pub uuid: Option<[u8; 16]>,
    /// `cputype`, if there is no UUID.
    pub cpu_type: u32,
    /// `cpusubtype`, if there is no UUID and several images have the type.
    pub cpu_subtype: u32,
}

/// Selects the wanted image of a fat or thin file.
///
/// # Errors
/// [`FormatError::OtherUuid`], [`FormatError::NoProcessor`], or an invalid file.
pub fn choose(bytes: &ImageBytes, wanted: &ImageIdentity) -> Result<ImageBytes, FormatError> {
    let data = bytes.bytes();
    let slices = slices(data)?;
    let head = |slice: &Slice| MachO::parse(data.get(clipped(&slice.range, data.len()))?).ok();
    if let Some(uuid) = wanted.uuid {
        let found = slices.iter().find(|slice| head(slice).is_some_and(|macho| macho.uuid == Some(uuid)));
        let found = found.ok_or(FormatError::OtherUuid)?;
        return Ok(part(bytes, &found.range));
    }
    let fits = |slice: &&Slice| slice.cpu_type == wanted.cpu_type;
    let exactly = slices.iter().filter(fits).find(|slice| slice.cpu_subtype == wanted.cpu_subtype);
    let found = exactly.or_else(|| slices.iter().find(fits)).ok_or(FormatError::NoProcessor)?;
    Ok(part(bytes, &found.range))
}

/// One image of a fat file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// `cputype`.
    pub cpu_type: u32,
    /// `cpusubtype` without its capability bits.
    pub cpu_subtype: u32,
    /// Its stated bytes in the file; all offsets inside are relative to its start.
    pub range: Range<u64>,
}

/// The images of a fat file in file order; a thin file is one image.
///
/// # Errors
/// The file is neither, or invalid.
pub fn slices(bytes: &[u8]) -> Result<Vec<Slice>, FormatError> {
    if !is_fat(bytes) {
        let macho = MachO::parse(bytes)?;
        let range = 0..bytes.len() as u64;
        return Ok(vec![Slice { cpu_type: macho.cpu_type, cpu_subtype: macho.cpu_subtype, range }]);
    }
    match bytes[3] {
        0xbe => read::<FatArch32>(bytes),
        _ => read::<FatArch64>(bytes),
    }
}

/// Whether a file has the magic number of fat files.
pub fn is_fat(bytes: &[u8]) -> bool {
    match bytes {
        [0xca, 0xfe, 0xba, 0xbe | 0xbf, count @ ..] => {
            count.first_chunk().is_some_and(|count| u32::from_be_bytes(*count) <= IMAGES_MAX)
        }
        _ => false,
    }
}

fn read<Arch: FatArch>(bytes: &[u8]) -> Result<Vec<Slice>, FormatError> {
    let file = MachOFatFile::<Arch>::parse(bytes)?;
    let slice = |arch: &Arch| {
        let (offset, size) = arch.file_range();
        let cpu_subtype = arch.cpusubtype().0 & SUBTYPE_BITS;
        Slice { cpu_type: arch.cputype().0, cpu_subtype, range: offset..offset.saturating_add(size) }
    };
    Ok(file.arches().iter().map(slice).collect())
}

fn clipped(range: &Range<u64>, length: usize) -> Range<usize> {
    let clip = |offset: u64| usize::try_from(offset).unwrap_or(length).min(length);
    let end = clip(range.end);
    clip(range.start).min(end)..end
}

// ---- Finds one name in an exports trie.
//
// For all names at once see `symbol::table`.
//
// Format: `<mach-o/loader.h>`, `EXPORT_SYMBOL_FLAGS_*`.

/// Limit on edges from the root to a name: each consumes a letter of it, except in malformed tries.
const EDGES_MAX: usize = 1024;
/// Flags of re-exports and resolvers, which have no address in this image.
const NOT_HERE: u64 = 0x08 | 0x10;

/// Offset of `name` from the start of `__TEXT`; `None` if this image does not export it, or the trie is malformed
/// on the path.
#[must_use]
pub fn find(trie: &[u8], name: &[u8]) -> Option<u64> {
    let (mut at, mut rest) = (0, name);
    for _ in 0..EDGES_MAX {
        let mut node = trie.get(at..)?;
        let terminal_bytes = usize::try_from(take_unsigned(&mut node)?).ok()?;
        let (mut terminal, children) = node.split_at_checked(terminal_bytes)?;
        if rest.is_empty() {
            let flags = take_unsigned(&mut terminal)?;
            return if flags & NOT_HERE == 0 { take_unsigned(&mut terminal) } else { None };
        }
        let (count, mut children) = children.split_first()?;
        let mut next = None;
        for _ in 0..*count {
            let end = children.iter().position(|byte| *byte == 0)?;
            let (letters, after) = (&children[..end], &children[end + 1..]);
            children = after;
            let offset = take_unsigned(&mut children)?;
            if let Some(left) = rest.strip_prefix(letters) {
                next = Some((usize::try_from(offset).ok()?, left));
                break;
            }
        }
        (at, rest) = next?;
    }
    None
}

// ---- The functions of a Mach-O file as ranges.
//
// The list (`LC_FUNCTION_STARTS`) also exists in stripped files.

/// The starts of a file's functions, and its sections with instructions.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    /// Offsets from the start of `__TEXT`, ascending: half the memory of addresses.
    starts: Vec<u32>,
    text: Svma,
    /// A function extends at most to the end of its section: the stubs after `__text` are in no list.
    code: Vec<Range<Svma>>,
}

impl Functions {
    /// Reads the list; empty if the file has none. At most one entry per byte.
    #[must_use]
    pub fn read(macho: &MachO, bytes: &ImageBytes) -> Functions {
        let range = &macho.linkedit.function_starts;
        let in_file =
            || bytes.bytes().get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
        // An image read from memory has it separately.
        let list = bytes.linkedit().map(|linkedit| linkedit.function_starts.bytes()).or_else(in_file);
        let starts = function_starts(list.unwrap_or_default(), macho.text.start);
        Functions {
            starts: starts.map_while(|start| u32::try_from(start - macho.text.start).ok()).collect(),
            text: macho.text.start,
            code: macho.code.iter().flatten().cloned().collect(),
        }
    }

    /// The function at an address: from its start to that of the next one, or to the end of its section. `None`
    /// outside code sections and before the first function of one.
    #[must_use]
    pub fn at(&self, svma: Svma) -> Option<Range<Svma>> {
        let section = self.code.iter().find(|section| section.contains(&svma))?;
        let offset = u32::try_from(svma.0.checked_sub(self.text.0)?).ok()?;
        let after = self.starts.partition_point(|start| *start <= offset);
        let start = self.text + u64::from(*self.starts.get(after.checked_sub(1)?)?);
        let next = self.starts.get(after).map(|next| self.text + u64::from(*next));
        let end = next.map_or(section.end, |next| next.min(section.end));
        section.contains(&start).then_some(start..end)
    }
}

#[cfg(test)]
mod export_tests {
    use super::*;

    /// `_a` at 0x10, `_ab` at 0x20, and `_x`, re-exported from another library.
    const TRIE: &[u8] = &[
        0, 1, b'_', 0, 5, // 0: the root, "_" leads to 5
        0, 2, b'a', 0, 13, b'x', 0, 24, // 5: "a", "x"
        2, 0, 0x10, 1, b'b', 0, 20, // 13: _a; "b"
        2, 0, 0x20, 0, // 20: _ab
        2, 0x08, 1, 0, // 24: _x, of another library
    ];

    #[test]
    fn names_lead_to_addresses() {
        assert_eq!(find(TRIE, b"_a"), Some(0x10));
        assert_eq!(find(TRIE, b"_ab"), Some(0x20));
        for missing in [&b"_x"[..], b"_", b"_abc", b"_y", b"", b"a"] {
            assert_eq!(find(TRIE, missing), None, "{missing:?}");
        }
    }

    #[test]
    fn malformed_tries_end_the_search() {
        for length in 0..TRIE.len() {
            assert!(find(&TRIE[..length], b"_ab").is_none_or(|found| found == 0x20), "cut at {length}");
        }
        for at in 0..TRIE.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = TRIE.to_vec();
                damaged[at] = byte;
                let _ = find(&damaged, b"_ab");
            }
        }
        // A node with an edge to itself that consumes no letter.
        assert_eq!(find(&[0, 1, 0, 0], b"_a"), None);
    }
}

#[cfg(test)]
mod functions_tests {
    #![allow(clippy::unwrap_used)]
    use super::build::{File, TEXT};
    use super::*;

    fn functions(file: &File) -> Functions {
        let bytes = file.build();
        Functions::read(&MachO::parse(&bytes).unwrap(), &ImageBytes::new(bytes))
    }

    fn check(functions: &Functions, at: u64, expected: Option<Range<u64>>) {
        let expected = expected.map(|range| Svma(TEXT + range.start)..Svma(TEXT + range.end));
        assert_eq!(functions.at(Svma(TEXT + at)), expected, "at +{at:#x}");
    }

    #[test]
    fn a_function_extends_to_the_next_or_to_the_end_of_its_section() {
        // `__text` is 0x1000..0x2000, `__stubs` 0x2000..0x2100, then constants.
        let file = File { function_starts: vec![0x1010, 0x1040, 0x1f00], ..File::default() };
        let functions = functions(&file);
        check(&functions, 0x1000, None);
        check(&functions, 0x1010, Some(0x1010..0x1040));
        check(&functions, 0x103f, Some(0x1010..0x1040));
        check(&functions, 0x1040, Some(0x1040..0x1f00));
        check(&functions, 0x1fff, Some(0x1f00..0x2000));
        // The stubs belong to no function, in particular not to the last one of `__text`.
        check(&functions, 0x2000, None);
        check(&functions, 0x2200, None);
        assert_eq!(functions.at(Svma(0)), None);
        assert_eq!(functions.at(Svma(u64::MAX)), None);
    }

    #[test]
    fn without_a_list_there_are_no_functions() {
        check(&functions(&File::default()), 0x1010, None);
    }

    #[test]
    fn malformed_bytes_give_ranges_that_contain_the_address_or_none() {
        let file = File { function_starts: (0..64).map(|n| 0x1000 + n * 0x40).collect(), ..File::default() };
        let bytes = file.build();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let mut damaged = bytes.clone();
            for _ in 0..4 {
                // xorshift64: <https://www.jstatsoft.org/article/view/v008i14>.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // The commands, or the tables at the end of the file.
                let at = if state & 1 == 0 { state >> 8 & 0x3ff } else { 0x4000 + (state >> 8 & 0xff) };
                if let Some(byte) = damaged.get_mut(at as usize) {
                    *byte = (state >> 40) as u8;
                }
            }
            let Ok(macho) = MachO::parse(&damaged) else { continue };
            let functions = Functions::read(&macho, &ImageBytes::new(damaged.clone()));
            for at in [0, TEXT, TEXT + 0x1000, TEXT + 0x1234, TEXT + 0x2010, u64::MAX].map(Svma) {
                let range = functions.at(at);
                assert!(range.is_none_or(|range| range.contains(&at)), "round {round}, {at:?}");
            }
        }
    }
}
