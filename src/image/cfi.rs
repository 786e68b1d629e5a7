//! DWARF unwind information of ELF files for x86_64 and aarch64: what a function's caller is
//! found by at one instruction. Input: file bytes (or a vDSO's memory) and a stated address;
//! output: a [`Row`]. The entries of Mach-O files are read here, too (see `macho::unwind`).
//!
//! `.eh_frame` through the binary search table of `.eh_frame_hdr` where that has one, else
//! through an index made here, and `.debug_frame` for functions that are only there.
//! Formats: LSB Core, "Exception Frames"; DWARF 5, 6.4; AADWARF64, 4.

use std::ops::Range;
use std::sync::OnceLock;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EndianSlice, LittleEndian,
    RegisterRule, UnwindContext, UnwindExpression, UnwindOffset, UnwindSection, Vendor,
};
use object::elf::{FileHeader64, PT_GNU_EH_FRAME};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection};

use super::b_key::{self, Rewritten};
use crate::addr::Svma;
use crate::frame_rule::{AARCH64_COLUMNS, COLUMNS, Cfa as RowCfa, Column, RETURN_ADDRESS, Row};

type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Longest DWARF expression that is kept, in bytes. Compilers and C libraries write up to 20.
const EXPRESSION_BYTES_MAX: usize = 256;

/// Where the unwind information of a file is.
#[derive(Clone, Debug)]
pub struct Cfi {
    /// `.eh_frame`, then `.debug_frame`.
    tables: Vec<Table>,
    bases: BaseAddresses,
    /// Registers that a row of the file's processor has.
    columns: usize,
}

#[derive(Clone, Debug)]
struct Table {
    frames: Range<usize>,
    is_debug: bool,
    search: Search,
}

/// How the entry of an address is found.
#[derive(Clone, Debug)]
enum Search {
    /// By the table of `.eh_frame_hdr`, which is here in the file.
    Header(Range<usize>),
    /// By first address, one after the last, and where the entry is; sorted.
    Index(Vec<(u64, u64, usize)>),
}

impl Cfi {
    /// Finds the sections; `None` if the file has none, or is no ELF file for x86_64 or
    /// aarch64.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<Cfi> {
        let file = object::File::parse(bytes).ok()?;
        let columns = match file.architecture() {
            object::Architecture::X86_64 => COLUMNS,
            object::Architecture::Aarch64 => AARCH64_COLUMNS,
            _ => return None,
        };
        if file.format() != object::BinaryFormat::Elf || !file.is_64() || !file.is_little_endian() {
            return None;
        }
        let section = |name: &str| -> Option<(u64, Range<usize>)> {
            let section = file.section_by_name(name)?;
            // A compressed section has other bytes than the ones that are read here.
            let range = section.compressed_file_range().ok()?;
            if range.format != object::CompressionFormat::None {
                return None;
            }
            Some((section.address(), checked(bytes, range.offset, range.uncompressed_size)?))
        };
        let header = section(".eh_frame_hdr").or_else(|| header_segment(bytes));
        let frames = section(".eh_frame").or_else(|| frames_after_header(bytes, &header.clone()?));
        let mut bases = BaseAddresses::default();
        if let Some((svma, _)) = section(".text") {
            bases = bases.set_text(svma);
        }
        let mut tables = Vec::new();
        if let Some((svma, frames)) = frames {
            bases = bases.set_eh_frame(svma);
            let header = header.filter(|(svma, header)| {
                bases = bases.clone().set_eh_frame_hdr(*svma);
                has_table(bytes.get(header.clone()).unwrap_or_default(), &bases)
            });
            let search = match header {
                Some((_, header)) => Search::Header(header),
                None => Search::Index(index(eh_frame(&bytes[frames.clone()]), &bases)),
            };
            tables.push(Table { frames, is_debug: false, search });
        }
        if let Some((_, frames)) = section(".debug_frame") {
            let section = debug_frame(&bytes[frames.clone()]);
            tables.push(Table { search: Search::Index(index(section, &bases)), frames, is_debug: true });
        }
        (!tables.is_empty()).then_some(Cfi { tables, bases, columns })
    }

    /// The row at an instruction; `bytes` are those that [`Cfi::find`] was given. `None`
    /// where there is no information, and for the rows of another processor.
    #[must_use]
    pub fn row<const N: usize>(&self, bytes: &[u8], pc: Svma) -> Option<Row<N>> {
        if N != self.columns {
            return None;
        }
        self.tables.iter().find_map(|table| {
            let frames = bytes.get(table.frames.clone())?;
            if table.is_debug {
                self.row_in(table, debug_frame(frames), None, pc.0)
            } else {
                self.row_in(table, eh_frame(frames), Some(bytes), pc.0)
            }
        })
    }

    fn row_in<'a, S, const N: usize>(
        &self,
        table: &Table,
        section: S,
        bytes: Option<&'a [u8]>,
        pc: u64,
    ) -> Option<Row<N>>
    where
        S: UnwindSection<Reader<'a>>,
        S::Offset: UnwindOffset<usize>,
    {
        let offset = match &table.search {
            Search::Header(header) => {
                let header = EhFrameHdr::new(bytes?.get(header.clone())?, LittleEndian);
                let header = header.parse(&self.bases, 8).ok()?;
                let pointer = header.table()?.lookup(pc, &self.bases).ok()?;
                // Not gimli's `pointer_to_offset`, which overflows on a damaged table.
                let offset = pointer.direct().ok()?.checked_sub(header.eh_frame_ptr().direct().ok()?)?;
                usize::try_from(offset).ok()?
            }
            Search::Index(index) => entry_at(index, pc)?,
        };
        row_of(section, &self.bases, offset, pc, &[])
    }
}

fn eh_frame(bytes: &[u8]) -> EhFrame<Reader<'_>> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    // The others have no such instruction, so it need not be told which processor it is.
    section.set_vendor(Vendor::AArch64);
    section
}

fn debug_frame(bytes: &[u8]) -> DebugFrame<Reader<'_>> {
    let mut section = DebugFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(Vendor::AArch64);
    section
}

/// An `.eh_frame` section that is searched by offset or by an index of its own.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    bases: BaseAddresses,
    index: OnceLock<Vec<(u64, u64, usize)>>,
    rewritten: OnceLock<Option<Rewritten>>,
}

impl Entries {
    /// Of a section that the file states at `svma`; `text` is what text-relative pointers
    /// count from.
    pub(super) fn new(svma: Svma, text: Svma) -> Entries {
        let bases = BaseAddresses::default().set_eh_frame(svma.0).set_text(text.0);
        Entries { bases, index: OnceLock::new(), rewritten: OnceLock::new() }
    }

    /// The row at `pc` of the entry that begins at `offset` in the section `bytes`.
    pub(super) fn row<const N: usize>(&self, bytes: &[u8], offset: usize, pc: Svma) -> Option<Row<N>> {
        let (bytes, not_signal) = self.readable(bytes);
        row_of(eh_frame(bytes), &self.bases, offset, pc.0, not_signal)
    }

    /// The row at `pc`, whose entry is searched for.
    pub(super) fn search<const N: usize>(&self, bytes: &[u8], pc: Svma) -> Option<Row<N>> {
        let (readable, _) = self.readable(bytes);
        let index = self.index.get_or_init(|| index(eh_frame(readable), &self.bases));
        self.row(bytes, entry_at(index, pc.0)?, pc)
    }

    /// The section as gimli reads it, and the CIEs whose mark of signal trampolines is not theirs.
    fn readable<'a>(&'a self, bytes: &'a [u8]) -> (&'a [u8], &'a [usize]) {
        match self.rewritten.get_or_init(|| b_key::rewrite(bytes)) {
            Some(rewritten) => (&rewritten.bytes, &rewritten.not_signal),
            None => (bytes, &[]),
        }
    }
}

/// The offset of the entry that covers an address.
fn entry_at(index: &[(u64, u64, usize)], pc: u64) -> Option<usize> {
    let at = index.partition_point(|(start, ..)| *start <= pc).checked_sub(1)?;
    index.get(at).filter(|(_, end, _)| pc < *end).map(|(.., offset)| *offset)
}

/// The row of the entry at an offset.
fn row_of<'a, S, const N: usize>(
    section: S,
    bases: &BaseAddresses,
    offset: usize,
    pc: u64,
    not_signal: &[usize],
) -> Option<Row<N>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let fde = section.fde_from_offset(bases, S::Offset::from(offset), S::cie_from_offset).ok()?;
    if !fde.contains(pc) {
        return None;
    }
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(&section, bases, &mut context, pc).ok()?;
    let expression = |expression: UnwindExpression<usize>| -> Option<Box<[u8]>> {
        let bytes = expression.get(&section).ok()?.0.slice();
        (bytes.len() <= EXPRESSION_BYTES_MAX).then(|| bytes.into())
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            RowCfa::Register(u8::try_from(register.0).ok().filter(|n| usize::from(*n) < N)?, *offset)
        }
        CfaRule::Expression(code) => RowCfa::Expression(expression(*code)?),
    };
    let mut found = Row::<N>::new(cfa);
    for (register, rule) in row.registers() {
        // Others are not kept: vector registers, whether the return address is signed (it is
        // stripped all the same).
        let Some(column) = found.columns.get_mut(usize::from(register.0)) else { continue };
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
    // On x86_64 a return address that stays in its column would be the pc itself.
    if N == COLUMNS && found.columns[RETURN_ADDRESS] == Column::Same {
        return None;
    }
    found.signal = fde.cie().is_signal_trampoline() && not_signal.binary_search(&fde.cie().offset()).is_err();
    Some(found)
}

fn checked(bytes: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end).filter(|bytes| !bytes.is_empty())?;
    Some(start..end)
}

/// `.eh_frame_hdr` of a file without section headers.
fn header_segment(bytes: &[u8]) -> Option<(u64, Range<usize>)> {
    let header = FileHeader64::<object::LittleEndian>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    let segment = segments.iter().find(|segment| segment.p_type(endian) == PT_GNU_EH_FRAME)?;
    let (offset, size) = segment.file_range(endian);
    Some((segment.p_vaddr(endian), checked(bytes, offset, size)?))
}

/// `.eh_frame` of such a file: from where the header says to the end of the segment; it
/// ends itself with a zero length.
fn frames_after_header(bytes: &[u8], header: &(u64, Range<usize>)) -> Option<(u64, Range<usize>)> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.0);
    let parsed = EhFrameHdr::new(bytes.get(header.1.clone())?, LittleEndian).parse(&bases, 8).ok()?;
    let svma = parsed.eh_frame_ptr().direct().ok()?;
    let file = FileHeader64::<object::LittleEndian>::parse(bytes).ok()?;
    let endian = file.endian().ok()?;
    file.program_headers(endian, bytes).ok()?.iter().find_map(|segment| {
        let into = svma.checked_sub(segment.p_vaddr(endian))?;
        let (offset, size) = segment.file_range(endian);
        (segment.p_type(endian) == object::elf::PT_LOAD && into < size)
            .then(|| checked(bytes, offset.checked_add(into)?, size - into))
            .flatten()
            .map(|range| (svma, range))
    })
}

/// Whether `.eh_frame_hdr` has a binary search table: linkers may leave it out, and one of
/// more entries than fit into the section would make gimli's search overflow.
fn has_table(header: &[u8], bases: &BaseAddresses) -> bool {
    const ENTRY_BYTES_MIN: usize = 4;
    EhFrameHdr::new(header, LittleEndian).parse(bases, 8).is_ok_and(|parsed| {
        let entries = parsed.table().map(|table| table.iter(bases).size_hint().0);
        entries.is_some_and(|entries| entries <= header.len() / ENTRY_BYTES_MIN)
    })
}

/// The entries of a section by address; up to the first damaged one.
fn index<'a, S>(section: S, bases: &BaseAddresses) -> Vec<(u64, u64, usize)>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let mut entries = section.entries(bases);
    let mut index = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(fde) = partial.parse(S::cie_from_offset) else { continue };
        let end = fde.initial_address().saturating_add(fde.len());
        if fde.initial_address() < end {
            index.push((fde.initial_address(), end, fde.offset()));
        }
    }
    index.sort_unstable();
    index
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))] // the test executable must be ELF
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::frame_rule::{CfaBase, FrameRule};
    use object::{ObjectSymbol, SymbolKind};

    fn rule(cfi: &Cfi, bytes: &[u8], pc: u64) -> Option<FrameRule> {
        cfi.row(bytes, Svma(pc))?.ordinary()
    }

    #[test]
    fn at_its_first_instruction_a_function_has_only_its_return_address() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let cfi = Cfi::find(&bytes).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let functions =
            file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let entry = FrameRule {
            base: CfaBase::StackPointer,
            cfa_offset: 8,
            frame_pointer_at: None,
            return_at: Some(-8),
        };
        let (mut all, mut right) = (0, 0);
        for function in functions.step_by(7) {
            all += 1;
            right += usize::from(rule(&cfi, &bytes, function.address()) == Some(entry));
        }
        // Hand-written start code is the exception.
        assert!(all > 500 && right * 1000 >= all * 995, "{right} of {all}");
    }

    #[test]
    fn what_is_no_file_or_no_code_has_no_rule() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let cfi = Cfi::find(&bytes).unwrap();
        assert_eq!(cfi.row::<COLUMNS>(&bytes, Svma(0)), None);
        assert_eq!(cfi.row::<AARCH64_COLUMNS>(&bytes, Svma(0x1000)), None);
        assert_eq!(cfi.row::<COLUMNS>(&bytes, Svma(u64::MAX)), None);
        assert_eq!(cfi.row::<COLUMNS>(&bytes[..100], Svma(0x1000)), None);
        assert!(Cfi::find(b"\x7fELF").is_none());
    }

    #[test]
    fn without_the_search_table_or_section_headers_the_rows_are_the_same() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let header = file.section_by_name(".eh_frame_hdr").unwrap().file_range().unwrap();
        let mut without_table = bytes.clone();
        without_table[header.0 as usize + 2] = 0xff; // fde_count_enc: DW_EH_PE_omit
        let mut without_sections = bytes.clone();
        without_sections[40..48].fill(0); // e_shoff
        without_sections[60..64].fill(0); // e_shnum, e_shstrndx
        let whole = Cfi::find(&bytes).unwrap();
        for other in [without_table, without_sections] {
            let cfi = Cfi::find(&other).unwrap();
            let functions =
                file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 4);
            let mut compared = 0;
            for function in functions.step_by(29) {
                let pc = Svma(function.address() + function.size() / 2);
                assert_eq!(cfi.row::<COLUMNS>(&other, pc), whole.row(&bytes, pc), "{pc}");
                compared += 1;
            }
            assert!(compared > 50, "{compared}");
        }
    }

    #[test]
    fn damaged_tables_give_rows_or_none_and_end() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let range = |name: &str| file.section_by_name(name).unwrap().file_range().unwrap();
        let (header, frames) = (range(".eh_frame_hdr"), range(".eh_frame"));
        let text = file.section_by_name(".text").unwrap();
        let cfi = Cfi::find(&bytes).unwrap();
        let mut state = 88_172_645_463_325_252u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut mutated = bytes.clone();
        for round in 0..300 {
            // Damage adds up; every tenth round begins with a whole file again.
            if round % 10 == 0 {
                mutated.copy_from_slice(&bytes);
            }
            for _ in 0..200 {
                let (offset, size) = if random(4) == 0 { header } else { frames };
                let reach = if random(2) == 0 { size } else { size.min(4096) };
                let at = (offset + random(reach)) as usize;
                let byte = random(256) as u8;
                mutated[at] = [0, 0xff, 0x7f, 0x80, byte][random(5) as usize];
            }
            for _ in 0..200 {
                let pc = Svma(text.address() + random(text.size()));
                let _ = cfi.row::<COLUMNS>(&mutated, pc);
            }
            if round % 50 == 0
                && let Some(cfi) = Cfi::find(&mutated)
            {
                let _ = cfi.row::<COLUMNS>(&mutated, Svma(text.address()));
            }
        }
    }
}
