//! DWARF unwind information of ELF files for x86_64, i386, aarch64 and 32-bit Arm: the rule for a function's
//! caller at one instruction. Input: file bytes (or a vDSO's memory) and a stated address; output: a [`Row`]. Also
//! reads the entries of Mach-O files (see `macho::unwind`).
//!
//! `Cfi` answers for an address; `Entries` finds the entries of a section, one by offset or all by address;
//! `Readable` rewrites the augmentations that gimli refuses.
//!
//! Uses `.eh_frame` through the binary search table of `.eh_frame_hdr` if there is one, or else an index (see
//! `entries`), `.debug_frame` for functions that are only there, and Go's own table (see `gopclntab`).
//! Formats: LSB Core, "Exception Frames"; DWARF 5, 6.4; AADWARF64, 4.

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))] // the test executable must be ELF
mod tests;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry,
    LittleEndian, RegisterRule, UnwindContext, UnwindExpression, UnwindOffset, UnwindSection, Vendor,
};
use object::elf::{PT_GNU_EH_FRAME, PT_LOAD, SHF_COMPRESSED};

use super::elf::file::File;
use super::elf::{AARCH64, ARM, X86, X86_64};
use super::gopclntab::GoFunctions;
use crate::addr::Svma;
use crate::binary::frame_rule::{
    AARCH64_COLUMNS, ARM_COLUMNS, AnyRow, COLUMNS, Cfa as RowCfa, Column, Columns, RETURN_ADDRESS, Row,
    X86_COLUMNS, X86_RETURN_ADDRESS,
};
use crate::binary::unpack;

/// Limit on the length of DWARF expressions, in bytes. Compilers and C libraries emit up to 20.
const EXPRESSION_BYTES_MAX: usize = 256;

/// Limit on the bytes of an uncompressed `.debug_frame`, which is kept during a recording. Those of Go programs of
/// 100 MB have 5 MB.
const UNPACKED_MAX: u64 = 64 << 20;

/// The unwind information of a file.
#[derive(Clone, Debug)]
pub struct Cfi {
    /// `.eh_frame`, then `.debug_frame`.
    tables: Vec<Table>,
    bases: BaseAddresses,
    /// Go's own table, for a Go program stripped of `.debug_frame`.
    go: Option<GoFunctions>,
    /// Number of registers in a row of the file's processor.
    columns: usize,
    /// Pointer size in bytes.
    address_bytes: u8,
}

#[derive(Clone, Debug)]
struct Table {
    /// The section's range in the file.
    frames: Range<usize>,
    /// The uncompressed section, if it is compressed, as Go's `.debug_frame` is.
    unpacked: Option<Arc<[u8]>>,
    is_debug: bool,
    search: Search,
    marks: Readable,
}

/// How the entry of an address is found.
#[derive(Clone, Debug)]
enum Search {
    /// By the table of `.eh_frame_hdr` at this range of the file.
    Header(Range<usize>),
    /// By first address, end address, and offset of the entry; sorted.
    Index(Vec<(u64, u64, usize)>),
}

impl Cfi {
    /// Finds the sections; `None` if the file has none, or is no ELF file for x86_64, aarch64 or i386.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<Cfi> {
        let file = File::parse(bytes).ok()?;
        let (columns, address_bytes) = match (file.machine(), file.is_64()) {
            (X86_64, true) => (COLUMNS, 8),
            (AARCH64, true) => (AARCH64_COLUMNS, 8),
            (X86, false) => (X86_COLUMNS, 4),
            (ARM, false) => (ARM_COLUMNS, 4),
            _ => return None,
        };
        let sections = file.sections().ok();
        let any_section = |name: &str| -> Option<(u64, Range<usize>, bool)> {
            let section = sections?.by_name(name)?;
            let is_compressed = section.flags & SHF_COMPRESSED.0 != 0;
            Some((section.svma, file.part(&section.file)?, is_compressed))
        };
        // Loaded sections are never compressed.
        let section = |name| {
            any_section(name).filter(|(.., compressed)| !compressed).map(|(svma, range, _)| (svma, range))
        };
        let header = section(".eh_frame_hdr").or_else(|| header_segment(file));
        let frames =
            section(".eh_frame").or_else(|| frames_after_header(file, &header.clone()?, address_bytes));
        let mut bases = BaseAddresses::default();
        if let Some((svma, _)) = section(".text") {
            bases = bases.set_text(svma);
        }
        let mut tables = Vec::new();
        if let Some((svma, frames)) = frames {
            bases = bases.set_eh_frame(svma);
            let header = header.filter(|(svma, header)| {
                bases = bases.clone().set_eh_frame_hdr(*svma);
                has_table(bytes.get(header.clone()).unwrap_or_default(), &bases, address_bytes)
            });
            let marks = if columns == AARCH64_COLUMNS { Readable::default() } else { Readable::as_is() };
            let search = match header {
                Some((_, header)) => Search::Header(header),
                None => {
                    let (readable, _) = marks.of(&bytes[frames.clone()]);
                    let section = eh_frame(readable, address_bytes);
                    Search::Index(index(section, readable, &bases))
                }
            };
            tables.push(Table { frames, unpacked: None, is_debug: false, search, marks });
        }
        if let Some((_, frames, is_compressed)) = any_section(".debug_frame")
            && let unpacked = is_compressed.then(|| unpacked(&bytes[frames.clone()], address_bytes)).flatten()
            && (unpacked.is_some() || !is_compressed)
        {
            let content = unpacked.as_deref().unwrap_or(&bytes[frames.clone()]);
            let index = index(debug_frame(content, address_bytes), content, &bases);
            let (search, marks) = (Search::Index(index), Readable::as_is());
            tables.push(Table { frames, unpacked, is_debug: true, search, marks });
        }
        let go = GoFunctions::find(bytes);
        (!tables.is_empty() || go.is_some()).then_some(Cfi { tables, go, bases, columns, address_bytes })
    }

    /// The row at an instruction, for the file's processor; `bytes` are those passed to [`Cfi::find`]. `None`
    /// without information.
    #[must_use]
    pub fn any_row(&self, bytes: &[u8], pc: Svma) -> Option<AnyRow> {
        match self.columns {
            COLUMNS => self.row::<[Column; COLUMNS]>(bytes, pc).map(AnyRow::from),
            AARCH64_COLUMNS => self.row::<[Column; AARCH64_COLUMNS]>(bytes, pc).map(AnyRow::from),
            X86_COLUMNS => self.row::<[Column; X86_COLUMNS]>(bytes, pc).map(AnyRow::from),
            ARM_COLUMNS => self.row::<[Column; ARM_COLUMNS]>(bytes, pc).map(AnyRow::from),
            _ => None,
        }
    }

    /// The row at an instruction; `bytes` are those passed to [`Cfi::find`]. `None` without information, and for
    /// the rows of another processor.
    #[must_use]
    pub fn row<C: Columns>(&self, bytes: &[u8], pc: Svma) -> Option<Row<C>> {
        if C::COUNT != self.columns {
            return None;
        }
        let by_table = self.tables.iter().find_map(|table| {
            let (frames, offset) = self.last_entry(table, bytes, pc)?;
            if table.is_debug {
                row_of(debug_frame(frames, self.address_bytes), frames, &self.bases, offset, pc, &[])
            } else {
                let (frames, not_signal) = table.marks.of(frames);
                row_of(eh_frame(frames, self.address_bytes), frames, &self.bases, offset, pc, not_signal)
            }
        });
        by_table.or_else(|| self.go.as_ref()?.row(bytes, pc))
    }

    /// The bounds of the last function that begins at or before a stated address, by the entries, each of which
    /// describes one function or a split-off part. It may end before the address. `bytes` are those passed to
    /// [`Cfi::find`].
    #[must_use]
    pub fn last_function(&self, bytes: &[u8], at: Svma) -> Option<Range<Svma>> {
        let of_table = |table: &Table| {
            let (frames, offset) = self.last_entry(table, bytes, at)?;
            if table.is_debug {
                range(&debug_frame(frames, self.address_bytes), frames, &self.bases, offset)
            } else {
                let (frames, _) = table.marks.of(frames);
                range(&eh_frame(frames, self.address_bytes), frames, &self.bases, offset)
            }
        };
        let of_go = self.go.as_ref().and_then(|go| go.at(bytes, at));
        let of_go = of_go.map(|function| function.range.start.0..function.range.end.0);
        let ranges = self.tables.iter().filter_map(of_table).chain(of_go).filter(|range| range.start <= at.0);
        // Of two entries for the same function, the one that covers the address.
        let last = ranges.max_by_key(|range| (range.start, range.end))?;
        Some(Svma(last.start)..Svma(last.end))
    }

    /// The content of a table, and the offset of its last entry that begins at or before an address.
    fn last_entry<'a>(&self, table: &'a Table, bytes: &'a [u8], at: Svma) -> Option<(&'a [u8], usize)> {
        let frames = match &table.unpacked {
            Some(unpacked) => unpacked,
            None => bytes.get(table.frames.clone())?,
        };
        let offset = match &table.search {
            Search::Header(header) => self.offset_in(bytes.get(header.clone())?, at)?,
            Search::Index(index) => last_entry(index, at.0)?.2,
        };
        Some((frames, offset))
    }

    /// The offset of an address's entry, by the table of `.eh_frame_hdr`.
    fn offset_in(&self, header: &[u8], pc: Svma) -> Option<usize> {
        let content_bytes = header.len();
        let header = EhFrameHdr::new(header, LittleEndian).parse(&self.bases, self.address_bytes).ok()?;
        let table = header.table()?;
        // gimli's search multiplies the count unchecked.
        if table.iter(&self.bases).size_hint().0 > content_bytes {
            return None;
        }
        let pointer = table.lookup(pc.0, &self.bases).ok()?;
        // Not gimli's `pointer_to_offset`, which overflows on a malformed table.
        let offset = pointer.direct().ok()?.checked_sub(header.eh_frame_ptr().direct().ok()?)?;
        usize::try_from(offset).ok()
    }
}

/// Pointer size in Mach-O files with readable unwind information.
const MACHO_ADDRESS_BYTES: u8 = 8;

/// An `.eh_frame` section that is searched by offset or by its own index.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    bases: BaseAddresses,
    index: OnceLock<Vec<(u64, u64, usize)>>,
    marks: Readable,
}

impl Entries {
    /// Entries of a section at the stated address `svma`; `text` is the base of text-relative pointers.
    pub(super) fn new(svma: Svma, text: Svma) -> Entries {
        let bases = BaseAddresses::default().set_eh_frame(svma.0).set_text(text.0);
        Entries { bases, index: OnceLock::new(), marks: Readable::default() }
    }

    /// The row at `pc` by the entry at `offset` in the section `bytes`.
    pub(super) fn row<C: Columns>(&self, bytes: &[u8], offset: usize, pc: Svma) -> Option<Row<C>> {
        let (bytes, not_signal) = self.marks.of(bytes);
        row_of(eh_frame(bytes, MACHO_ADDRESS_BYTES), bytes, &self.bases, offset, pc, not_signal)
    }

    /// The row at `pc`, after a search for its entry.
    pub(super) fn search<C: Columns>(&self, bytes: &[u8], pc: Svma) -> Option<Row<C>> {
        self.row(bytes, entry_at(self.index(bytes), pc.0)?, pc)
    }

    /// The bounds of the function at a stated address, by the entry that covers it.
    pub(super) fn function(&self, bytes: &[u8], at: Svma) -> Option<Range<Svma>> {
        let (start, end, _) = last_entry(self.index(bytes), at.0)?;
        (at.0 < *end).then_some(Svma(*start)..Svma(*end))
    }

    fn index(&self, bytes: &[u8]) -> &[(u64, u64, usize)] {
        let (readable, _) = self.marks.of(bytes);
        self.index.get_or_init(|| index(eh_frame(readable, MACHO_ADDRESS_BYTES), readable, &self.bases))
    }
}

/// The program counter of 32-bit Arm by DWARF number.
const ARM_PC: usize = 15;

/// The row of the entry at an offset of a section with these `bytes`.
fn row_of<'a, S, C: Columns>(
    section: S,
    bytes: &[u8],
    bases: &BaseAddresses,
    offset: usize,
    pc: Svma,
    not_signal: &[usize],
) -> Option<Row<C>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let fde = fde(&section, bytes, bases, offset)?;
    if !fde.contains(pc.0) {
        return None;
    }
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(&section, bases, &mut context, pc.0).ok()?;
    let expression = |expression: UnwindExpression<usize>| -> Option<Box<[u8]>> {
        let bytes = expression.get(&section).ok()?.0.slice();
        (bytes.len() <= EXPRESSION_BYTES_MAX).then(|| bytes.into())
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            RowCfa::Register(u8::try_from(register.0).ok().filter(|n| usize::from(*n) < C::COUNT)?, *offset)
        }
        CfaRule::Expression(code) => RowCfa::Expression(expression(*code)?),
    };
    let mut found = Row::<C>::new(cfa);
    for (register, rule) in row.registers() {
        // Other registers are not stored: vector registers, and whether the return address is signed (it is
        // stripped anyway).
        let Some(column) = found.columns.as_mut().get_mut(usize::from(register.0)) else { continue };
        *column = match rule {
            RegisterRule::Undefined => Column::Undefined,
            RegisterRule::SameValue => Column::Same,
            RegisterRule::Offset(at) => Column::At(*at),
            RegisterRule::ValOffset(at) => Column::Is(*at),
            RegisterRule::Register(other) => Column::In(u8::try_from(other.0).ok()?),
            RegisterRule::Expression(code) => Column::AtExpression(expression(*code)?),
            RegisterRule::ValExpression(code) => Column::IsExpression(expression(*code)?),
            _ => return None,
        };
    }
    // On x86_64 and i386 a return address that stays in its column would be the pc itself.
    let return_column = match C::COUNT {
        COLUMNS => Some(RETURN_ADDRESS),
        X86_COLUMNS => Some(X86_RETURN_ADDRESS),
        _ => None,
    };
    if return_column.is_some_and(|column| found.columns[column] == Column::Same) {
        return None;
    }
    // LLVM's assembler omits the signal frame augmentation and the return address column from `.debug_frame`. On
    // 32-bit Arm only interrupted code has a pc separate from lr.
    let is_interrupt = C::COUNT == ARM_COLUMNS && matches!(found.columns[ARM_PC], Column::At(_));
    found.signal = is_interrupt
        || fde.cie().is_signal_trampoline() && not_signal.binary_search(&fde.cie().offset()).is_err();
    Some(found)
}

/// Uncompresses a section. `None` if that fails, or exceeds [`UNPACKED_MAX`].
fn unpacked(section: &[u8], address_bytes: u8) -> Option<Arc<[u8]>> {
    let (packing, size, body) = unpack::of_elf_section(section, address_bytes == 8)?;
    let out = (size <= UNPACKED_MAX).then(|| unpack::exact(packing, body, size))?;
    out.ok().map(Arc::from)
}

/// `.eh_frame_hdr` of a file without section headers.
fn header_segment(file: File<'_>) -> Option<(u64, Range<usize>)> {
    let segment = file.program_headers().ok()?.find(|segment| segment.kind == PT_GNU_EH_FRAME.0)?;
    Some((segment.svma, file.part(&segment.file)?))
}

/// `.eh_frame` of a file without section headers: from the address in `.eh_frame_hdr` to the end of the segment;
/// it ends with a zero length.
fn frames_after_header(
    file: File<'_>,
    header: &(u64, Range<usize>),
    address_bytes: u8,
) -> Option<(u64, Range<usize>)> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.0);
    let content = file.bytes.get(header.1.clone())?;
    let parsed = EhFrameHdr::new(content, LittleEndian).parse(&bases, address_bytes).ok()?;
    let svma = parsed.eh_frame_ptr().direct().ok()?;
    file.program_headers().ok()?.filter(|segment| segment.kind == PT_LOAD.0).find_map(|segment| {
        let start = segment.file.start.checked_add(svma.checked_sub(segment.svma)?)?;
        Some((svma, file.part(&(start..segment.file.end))?))
    })
}

/// Whether `.eh_frame_hdr` has a binary search table: linkers may omit it, and a count that exceeds the section
/// would overflow gimli's search.
fn has_table(header: &[u8], bases: &BaseAddresses, address_bytes: u8) -> bool {
    const ENTRY_BYTES_MIN: usize = 4;
    EhFrameHdr::new(header, LittleEndian).parse(bases, address_bytes).is_ok_and(|parsed| {
        let entries = parsed.table().map(|table| table.iter(bases).size_hint().0);
        entries.is_some_and(|entries| entries <= header.len() / ENTRY_BYTES_MIN)
    })
}

// ---- The entries of `.eh_frame` and `.debug_frame`: single ones by offset, and an index of all by address.
//
// Entries far longer than real ones are refused without being read: thousands can refer to one CIE, and the
// instructions of an entry are executed for each address.

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Limit on the length of a CIE, in bytes: those of libc, LLVM, rustc and node have up to 36.
const CIE_BYTES_MAX: u64 = 1024;
/// Limit on the length of an FDE, in bytes: the longest of LLVM has 2,880, of rustc 11,596.
const FDE_BYTES_MAX: u64 = 64 * 1024;

/// `.eh_frame` for a processor with this pointer size.
fn eh_frame(bytes: &[u8], address_bytes: u8) -> EhFrame<Reader<'_>> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(address_bytes);
    // Other processors lack the vendor's instruction, so the processor need not be known.
    section.set_vendor(Vendor::AArch64);
    section
}

/// `.debug_frame` for a processor with this pointer size.
fn debug_frame(bytes: &[u8], address_bytes: u8) -> DebugFrame<Reader<'_>> {
    let mut section = DebugFrame::new(bytes, LittleEndian);
    section.set_address_size(address_bytes);
    section.set_vendor(Vendor::AArch64);
    section
}

/// The entries of a section by first address, end address and offset; sorted. Malformed entries are skipped; a
/// malformed length ends the list.
fn index<'a, S>(section: S, bytes: &[u8], bases: &BaseAddresses) -> Vec<(u64, u64, usize)>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let (mut at, mut index) = (0, Vec::new());
    // Not gimli's iterator, which ends at a CIE that it does not support.
    while let Some((head, length)) = length_at(bytes, at).filter(|(_, length)| *length > 0) {
        if let Some(range) = range(&section, bytes, bases, at) {
            index.push((range.start, range.end, at));
        }
        let next = usize::try_from(length).ok().and_then(|length| at.checked_add(head)?.checked_add(length));
        let Some(next) = next else { break };
        at = next;
    }
    index.sort_unstable();
    index
}

/// The offset of the entry that covers an address.
fn entry_at(index: &[(u64, u64, usize)], pc: u64) -> Option<usize> {
    last_entry(index, pc).filter(|(_, end, _)| pc < *end).map(|(.., offset)| *offset)
}

/// The last entry that begins at or before an address.
fn last_entry(index: &[(u64, u64, usize)], at: u64) -> Option<&(u64, u64, usize)> {
    index.get(index.partition_point(|(start, ..)| *start <= at).checked_sub(1)?)
}

/// The addresses of the entry at an offset, if it has any.
fn range<'a, S>(section: &S, bytes: &[u8], bases: &BaseAddresses, offset: usize) -> Option<Range<u64>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let fde = fde(section, bytes, bases, offset)?;
    let end = fde.initial_address().saturating_add(fde.len());
    (fde.initial_address() < end).then_some(fde.initial_address()..end)
}

/// The FDE at an offset of a section with these `bytes`; `None` for a CIE, or if the FDE or its CIE is malformed
/// or too long.
fn fde<'a, S>(
    section: &S,
    bytes: &[u8],
    bases: &BaseAddresses,
    offset: usize,
) -> Option<FrameDescriptionEntry<Reader<'a>>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    length_at(bytes, offset).filter(|(_, length)| *length <= FDE_BYTES_MAX)?;
    let cie =
        |section: &S, bases: &BaseAddresses, at: S::Offset| match length_at(bytes, UnwindOffset::into(at)) {
            Some((_, length)) if length <= CIE_BYTES_MAX => section.cie_from_offset(bases, at),
            _ => Err(gimli::Error::NoUnwindInfoForAddress),
        };
    section.fde_from_offset(bases, S::Offset::from(offset), cie).ok()
}

/// The length of the entry at an offset, and the size of the length field (DWARF 5, 7.4).
fn length_at(bytes: &[u8], offset: usize) -> Option<(usize, u64)> {
    let rest = bytes.get(offset..)?;
    match u32::from_le_bytes(*rest.first_chunk()?) {
        u32::MAX => Some((12, u64::from_le_bytes(*rest.get(4..)?.first_chunk()?))),
        length => Some((4, length.into())),
    }
}

// ---- CIE augmentations of aarch64 that gimli refuses: `B` for functions that sign return addresses with the B
// key, as arm64e code does, and `G` for functions that tag their stack.
//
// Nothing here depends on them: signatures are stripped, and tags belong to data addresses. Format: AADWARF64, 4.3.
// Compilers do not emit them in `.debug_frame` (gas `output_cie`, LLVM `EmitCIE`).

/// Limit on augmentations searched, in bytes; compilers emit up to 5.
const AUGMENTATION_MAX: usize = 16;

/// A section in the form that gimli reads; searched on first use.
#[derive(Clone, Debug, Default)]
pub(super) struct Readable(OnceLock<Option<RewrittenSection>>);

impl Readable {
    /// A section of a processor without these augmentations.
    pub(super) fn as_is() -> Readable {
        Readable(OnceLock::from(None))
    }

    /// The section, and the CIEs with an added signal trampoline augmentation. `bytes` must be the same each time.
    pub(super) fn of<'a>(&'a self, bytes: &'a [u8]) -> (&'a [u8], &'a [usize]) {
        match self.0.get_or_init(|| rewrite(bytes)) {
            Some(rewritten) => (&rewritten.bytes, &rewritten.not_signal),
            None => (bytes, &[]),
        }
    }
}

/// A section with the augmentations replaced by that of signal trampolines (`S`).
#[derive(Clone, Debug)]
struct RewrittenSection {
    bytes: Vec<u8>,
    /// Offsets of the CIEs that are no signal trampolines; ascending.
    not_signal: Vec<usize>,
}

/// Rewrites a section; `None` if it has none of these augmentations.
fn rewrite(section: &[u8]) -> Option<RewrittenSection> {
    let mut rewritten: Option<RewrittenSection> = None;
    let word = |at: usize| section.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let mut at = 0usize;
    // An entry with a 64-bit length, which compilers do not emit, ends this, and gimli's use too.
    while let Some(length) = word(at).filter(|length| (4..0xffff_fff0).contains(length)) {
        let augmentation = at + 9;
        if word(at + 4) == Some(0) {
            let letters = section.get(augmentation..).unwrap_or_default().iter().take(AUGMENTATION_MAX);
            let letters: Vec<u8> = letters.take_while(|letter| **letter != 0).copied().collect();
            let marks = letters.iter().enumerate().filter(|(_, letter)| matches!(letter, b'B' | b'G'));
            for (index, _) in marks {
                let rewritten = rewritten.get_or_insert_with(|| RewrittenSection {
                    bytes: section.to_vec(),
                    not_signal: Vec::new(),
                });
                rewritten.bytes[augmentation + index] = b'S';
                if !letters.contains(&b'S') && rewritten.not_signal.last() != Some(&at) {
                    rewritten.not_signal.push(at);
                }
            }
        }
        at = at.checked_add(4)?.checked_add(usize::try_from(length).ok()?)?;
    }
    rewritten
}

#[cfg(test)]
mod entries_tests {
    use super::*;

    /// An entry of `.debug_frame`, padded with `DW_CFA_nop`.
    fn entry(id: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = [&id.to_le_bytes(), content].concat();
        bytes.resize((bytes.len() + 4).next_multiple_of(8) - 4, 0);
        [(bytes.len() as u32).to_le_bytes().as_slice(), &bytes].concat()
    }

    fn cie(augmentation: &[u8]) -> Vec<u8> {
        // Factors 1 and -8, return address in column 16; DW_CFA_def_cfa: rsp+8.
        entry(u32::MAX, &[&[1], augmentation, &[0, 1, 0x78, 16, 0x0c, 7, 8]].concat())
    }

    fn fde_of(cie: usize, address: u64, instructions: usize) -> Vec<u8> {
        let range = [address.to_le_bytes(), 0x10u64.to_le_bytes()].concat();
        entry(cie as u32, &[range, vec![0; instructions]].concat())
    }

    fn indexed(bytes: &[u8]) -> Vec<u64> {
        let index = index(debug_frame(bytes, 8), bytes, &BaseAddresses::default());
        index.into_iter().map(|(start, ..)| start).collect()
    }

    #[test]
    fn an_unsupported_entry_loses_only_itself() {
        let mut section = [cie(b""), fde_of(0, 0x1000, 0)].concat();
        let unknown = section.len();
        section.extend(cie(b"?"));
        section.extend([fde_of(unknown, 0x2000, 0), fde_of(0, 0x3000, 0)].concat());
        assert_eq!(indexed(&section), [0x1000, 0x3000]);
    }

    #[test]
    fn excessive_lengths_are_refused() {
        let long = FDE_BYTES_MAX as usize;
        let section = [cie(b""), fde_of(0, 0x1000, long), fde_of(0, 0x2000, long - 100)].concat();
        assert_eq!(indexed(&section), [0x2000]);
        let section = [cie(&[b'S'; 900]), fde_of(0, 0x1000, 0)].concat();
        assert_eq!(indexed(&section), [0x1000]);
        // Reading it for each entry would take minutes.
        let mut section = cie(&vec![b'S'; 600_000]);
        section.extend(fde_of(0, 0x1000, 0).repeat(60_000));
        let started = crate::cpu_time::CpuTime::start();
        assert_eq!(indexed(&section), [0u64; 0]);
        assert!(started.used().as_secs() < 5);
    }

    #[test]
    fn malformed_lengths_end() {
        for bytes in [&[][..], &[9], &[0xff; 4], &[0xff; 12], &[0xff; 40], &[0; 8], &[8, 0, 0, 0, 1]] {
            assert!(indexed(bytes).is_empty(), "{bytes:?}");
        }
    }
}

#[cfg(test)]
mod b_key_tests {
    use super::*;

    fn cie(augmentation: &[u8]) -> Vec<u8> {
        let content = [&[0, 0, 0, 0, 1], augmentation, &[0, 1, 0x78, 30, 1, 0x10]].concat();
        [(content.len() as u32).to_le_bytes().as_slice(), &content].concat()
    }

    #[test]
    fn the_augmentation_is_rewritten_in_each_cie_and_nowhere_else() {
        let section = [cie(b"zR"), cie(b"zRB"), cie(b"zRSB"), cie(b"zRBG"), b"BGBGBG".to_vec()].concat();
        let rewritten = rewrite(&section).expect("three marks");
        let expected = [cie(b"zR"), cie(b"zRS"), cie(b"zRSS"), cie(b"zRSS"), b"BGBGBG".to_vec()].concat();
        assert_eq!(rewritten.bytes, expected);
        let third = section.len() - 6 - cie(b"zRBG").len();
        assert_eq!(rewritten.not_signal, [cie(b"zR").len(), third]);
        assert!(rewrite(&cie(b"zPLR")).is_none());
    }

    #[test]
    fn malformed_sections_end() {
        for bytes in [&[][..], &[4], &[4, 0, 0, 0], &[0xff; 40], &[5, 0, 0, 0, 0, 0, 0, 0, 1, b'B']] {
            let _ = rewrite(bytes);
        }
        assert!(rewrite(&[0x20, 0, 0, 0, 0, 0, 0, 0, 1, b'B']).is_some());
    }
}
