//! A unit and the attributes of its first entry, without its line table.
//!
//! `OpenUnit`: the unit; `Index` assigns addresses to units (`Job`); `Budget` bounds the work that a file may cause,
//! `DwarfError` is the error of this room.
//!
//! Input: a unit's header, hostile. Output: the data for reading its entries. gimli's own `Unit::new` also reads
//! the header of the line program, with the names of all its files, which costs more than everything else and is
//! rarely needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugAddrBase, DebugInfoOffset,
    DebugLineOffset, DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, EndianSlice, LittleEndian,
    Section as _, UnitHeader, UnitType, constants as c,
};

/// Abbreviations are searched in this many bytes first; real tables have a few thousand.
const ABBREVIATION_BYTES: usize = 8 * 1024;

pub(super) type Unit<'a> = gimli::Unit<Slice<'a>>;
type Value<'a> = AttributeValue<Slice<'a>>;

/// A unit with the attributes of its first entry.
#[derive(Debug)]
pub(super) struct OpenUnit<'a> {
    pub unit: Unit<'a>,
    pub tag: gimli::DwTag,
    pub pc: PcAttributes<'a>,
    pub name: Option<Value<'a>>,
    pub comp_dir: Option<Value<'a>>,
    pub line: Option<DebugLineOffset<usize>>,
    pub dwo_name: Option<Value<'a>>,
}

/// The code range of an entry: `DW_AT_low_pc`, `DW_AT_high_pc` and `DW_AT_ranges` (DWARF 5, 2.17).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PcAttributes<'a> {
    pub low: Option<Value<'a>>,
    pub high: Option<Value<'a>>,
    pub ranges: Option<Value<'a>>,
}

impl<'a> PcAttributes<'a> {
    /// Calls `each` with every nonempty range.
    pub(super) fn each(
        &self,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        budget: &Budget<'_>,
        mut each: impl FnMut(u64, u64),
    ) -> DwarfResult<()> {
        if let Some(ranges) = self.ranges {
            let Some(mut list) = dwarf.attr_ranges(unit, ranges)? else { return Ok(()) };
            while let Some(range) = list.next()? {
                budget.spend(1)?;
                if range.begin < range.end {
                    each(range.begin, range.end);
                }
            }
            return Ok(());
        }
        let Some(low) = self.low.map(|low| dwarf.attr_address(unit, low)).transpose()?.flatten() else {
            return Ok(());
        };
        let high = match self.high {
            None => return Ok(()),
            // An offset from the start, except by old compilers.
            Some(high) => match high.udata_value() {
                Some(size) => low.checked_add(size),
                None => dwarf.attr_address(unit, high)?,
            },
        };
        if let Some(high) = high.filter(|high| low < *high) {
            each(low, high);
        }
        Ok(())
    }
}

/// The abbreviations that were read last: neighboring units often share them.
#[derive(Debug, Default)]
pub(super) struct Abbrevs {
    last: Option<(usize, usize, Arc<Abbreviations>)>,
}

impl Abbrevs {
    fn get(
        &mut self,
        dwarf: &Dwarf<'_>,
        at: DebugAbbrevOffset,
        budget: &Budget<'_>,
    ) -> DwarfResult<Arc<Abbreviations>> {
        use gimli::Section as _;
        let section = dwarf.debug_abbrev.reader().slice();
        let key = (section.as_ptr().addr(), at.0);
        if let Some((section, offset, known)) = &self.last
            && (*section, *offset) == key
        {
            return Ok(Arc::clone(known));
        }
        let rest = section.get(at.0..).ok_or(gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(0)))?;
        // A table does not state its length. Trying a little first bounds files with units that all begin in the
        // middle of one endless table.
        let mut tried = ABBREVIATION_BYTES;
        let found = loop {
            let piece = &rest[..tried.min(rest.len())];
            budget.spend(piece.len() as u64 / 16)?;
            let table = DebugAbbrev::new(piece, gimli::LittleEndian);
            match table.abbreviations(DebugAbbrevOffset(0)) {
                Err(gimli::Error::UnexpectedEof(_)) if piece.len() < rest.len() => tried *= 16,
                other => break other?,
            }
        };
        let found = Arc::new(found);
        self.last = Some((key.0, key.1, Arc::clone(&found)));
        Ok(found)
    }
}

/// Reads a unit's first entry.
pub(super) fn open<'a>(
    dwarf: &Dwarf<'a>,
    header: UnitHeader<Slice<'a>>,
    abbrevs: &mut Abbrevs,
    budget: &Budget<'_>,
) -> DwarfResult<OpenUnit<'a>> {
    let abbreviations = abbrevs.get(dwarf, header.debug_abbrev_offset(), budget)?;
    let encoding = header.encoding();
    let mut unit = Unit {
        abbreviations: Arc::clone(&abbreviations),
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: DebugStrOffsetsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        addr_base: DebugAddrBase(0),
        loclists_base: DebugLocListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        rnglists_base: DebugRngListsBase::default_for_encoding_and_file(encoding, dwarf.file_type),
        line_program: None,
        dwo_id: match header.type_() {
            UnitType::Skeleton(id) | UnitType::SplitCompilation(id) => Some(id),
            _ => None,
        },
        header,
    };
    let mut entries = header.entries_raw(&abbreviations, None)?;
    let root = entries.read_abbreviation()?.ok_or(gimli::Error::MissingUnitDie)?;
    // Many small units can have one long list of attributes without data.
    budget.spend(root.attributes().len() as u64)?;
    let (mut pc, mut line) = (PcAttributes::default(), None);
    let (mut name, mut comp_dir, mut dwo_name) = (None, None, None);
    for spec in root.attributes() {
        let attribute = entries.read_attribute(*spec)?;
        let value = attribute.value();
        match (attribute.name(), value) {
            (c::DW_AT_low_pc, _) => pc.low = Some(value),
            (c::DW_AT_high_pc, _) => pc.high = Some(value),
            (c::DW_AT_ranges, _) => pc.ranges = Some(value),
            (c::DW_AT_name, _) => name = Some(value),
            (c::DW_AT_comp_dir, _) => comp_dir = Some(value),
            (c::DW_AT_dwo_name | c::DW_AT_GNU_dwo_name, _) => dwo_name = Some(value),
            (c::DW_AT_stmt_list, AttributeValue::DebugLineRef(at)) => line = Some(at),
            (c::DW_AT_str_offsets_base, AttributeValue::DebugStrOffsetsBase(base)) => {
                unit.str_offsets_base = base;
            }
            (c::DW_AT_addr_base | c::DW_AT_GNU_addr_base, AttributeValue::DebugAddrBase(base)) => {
                unit.addr_base = base;
            }
            (c::DW_AT_rnglists_base | c::DW_AT_GNU_ranges_base, AttributeValue::DebugRngListsBase(base)) => {
                unit.rnglists_base = base;
            }
            (c::DW_AT_GNU_dwo_id, AttributeValue::DwoId(id)) => unit.dwo_id = unit.dwo_id.or(Some(id)),
            _ => {}
        }
    }
    // Base of range lists.
    if let Some(low) = pc.low {
        unit.low_pc = dwarf.attr_address(&unit, low)?.unwrap_or(0);
    }
    Ok(OpenUnit { tag: root.tag(), unit, pc, name, comp_dir, line, dwo_name })
}

// ---- Types for reading DWARF: sections in gimli's form, the budget of work that a file may cause, and the error
// type.

/// Bytes of a section.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// The sections of a file in gimli's form.
pub(crate) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Limit on functions at one address; the deepest in real programs are some fifty.
pub const INLINED_MAX: usize = 256;

/// Bytes of text per step: it is searched and copied by words.
pub(super) const TEXT_BYTES_PER_STEP: u64 = 16;

/// The reason why a part of a file was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DwarfError {
    /// Malformed data.
    Malformed(gimli::Error),
    /// The [`Budget`] is spent.
    BudgetUsedUp,
}

impl From<gimli::Error> for DwarfError {
    fn from(error: gimli::Error) -> DwarfError {
        DwarfError::Malformed(error)
    }
}

/// Data read, or the reason why not.
pub(super) type DwarfResult<T> = std::result::Result<T, DwarfError>;

/// The remaining work that a file may cause.
#[derive(Clone, Copy)]
pub(super) struct Budget<'a>(pub(super) &'a AtomicU64);

impl Budget<'_> {
    /// Spends steps; [`DwarfError::BudgetUsedUp`] if none are left.
    pub(super) fn spend(&self, steps: u64) -> DwarfResult<()> {
        let left = self.0.load(Ordering::Relaxed);
        // Threads may spend the same steps: the limit need not be exact.
        self.0.store(left.saturating_sub(steps), Ordering::Relaxed);
        if left > steps { Ok(()) } else { Err(DwarfError::BudgetUsedUp) }
    }
}

// ---- Assigns the requested addresses to units.

/// The relevant units of a file.
#[derive(Debug, Default)]
pub struct Index {
    /// Offsets of all units, ascending: entries refer to those of other units.
    pub(super) units: Vec<usize>,
    /// The units with addresses.
    pub(super) jobs: Vec<Job>,
}

/// A unit with the addresses in its code.
#[derive(Debug)]
pub struct Job {
    /// Offset of the unit.
    pub(super) unit: usize,
    /// Amount of data to read, in bytes.
    pub weight: u64,
    /// Indices of the addresses, ascending.
    pub(super) wanted: Vec<u32>,
}

/// Addresses `first..end` may be in a unit.
struct Claim {
    unit: usize,
    first: usize,
    end: usize,
}

impl Index {
    /// Limited to `claims_max` address ranges: in malicious files units may share their ranges.
    pub(super) fn build(
        dwarf: &Dwarf<'_>,
        wanted: &[u64],
        code_start: u64,
        claims_max: usize,
        budget: &Budget<'_>,
    ) -> Index {
        let mut claims = Vec::new();
        let mut claim = |unit: usize, begin: u64, end: u64| {
            let first = wanted.partition_point(|address| *address < begin);
            let end = first + wanted[first..].partition_point(|address| *address < end);
            // Code dropped by the linker keeps its entries, at addresses from 0.
            if first < end && begin >= code_start && claims.len() < claims_max {
                claims.push(Claim { unit, first, end });
            }
        };
        let in_aranges = aranges(dwarf, &mut claim);
        let mut units = Vec::new();
        let mut abbrevs = Abbrevs::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Some(DebugInfoOffset(offset)) = header.debug_info_offset() else { continue };
            units.push(offset);
            let has_code = matches!(header.type_(), UnitType::Compilation | UnitType::Skeleton(_));
            if !has_code || in_aranges.binary_search(&offset).is_ok() {
                continue;
            }
            // A malformed unit loses itself, not the units after it.
            let Ok(opened) = open(dwarf, header, &mut abbrevs, budget) else { continue };
            if matches!(opened.tag, c::DW_TAG_compile_unit | c::DW_TAG_skeleton_unit) {
                let pc = opened.pc;
                let _ = pc.each(dwarf, &opened.unit, budget, |begin, end| claim(offset, begin, end));
            }
        }
        // `.debug_aranges` may refer to offsets that are no unit, many of them with the same entries.
        claims.retain(|claim| units.binary_search(&claim.unit).is_ok());
        let jobs = assign(claims, wanted.len(), &units, dwarf.debug_info.reader().len());
        Index { units, jobs }
    }
}

/// Claims the addresses of the units in `.debug_aranges`; returns those units, sorted.
fn aranges(dwarf: &Dwarf<'_>, claim: &mut impl FnMut(usize, u64, u64)) -> Vec<usize> {
    let mut units = Vec::new();
    let mut headers = dwarf.debug_aranges.headers();
    while let Ok(Some(header)) = headers.next() {
        let DebugInfoOffset(unit) = header.debug_info_offset();
        let mut entries = header.entries();
        let mut any = false;
        while let Ok(Some(entry)) = entries.next() {
            let range = entry.range();
            any |= range.begin < range.end;
            claim(unit, range.begin, range.end);
        }
        // Some compilers write a header without entries.
        if any {
            units.push(unit);
        }
    }
    units.sort_unstable();
    units.dedup();
    units
}

/// Assigns each address to the first unit that claims it, like llvm-symbolizer.
fn assign(mut claims: Vec<Claim>, wanted: usize, units: &[usize], info_bytes: usize) -> Vec<Job> {
    claims.sort_unstable_by_key(|claim| (claim.unit, claim.first));
    // For each address the next free one: claims may overlap arbitrarily.
    let mut next: Vec<u32> = (0..=wanted as u32).collect();
    let mut free_from = |mut at: u32, taken: bool| {
        if taken {
            next[at as usize] = at + 1;
        }
        while next[at as usize] != at {
            let after = next[next[at as usize] as usize];
            next[at as usize] = after;
            at = after;
        }
        at
    };
    let mut jobs: Vec<Job> = Vec::new();
    for group in claims.chunk_by(|a, b| a.unit == b.unit) {
        let mut mine = Vec::new();
        for claim in group {
            let mut at = free_from(claim.first as u32, false);
            while (at as usize) < claim.end {
                mine.push(at);
                at = free_from(at, true);
            }
        }
        if !mine.is_empty() {
            mine.sort_unstable();
            let (unit, after) = (group[0].unit, units.partition_point(|unit| *unit <= group[0].unit));
            let end = units.get(after).copied().unwrap_or(info_bytes);
            jobs.push(Job { unit, weight: end.saturating_sub(unit) as u64, wanted: mine });
        }
    }
    jobs
}
