//! A unit and the attributes of its first entry, without its line table.
//!
//! Input: a unit's header, hostile. Output: the data for reading its entries. gimli's own `Unit::new` also reads
//! the header of the line program, with the names of all its files, which costs more than everything else and is
//! rarely needed.

use std::sync::Arc;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebugAbbrevOffset, DebugAddrBase, DebugLineOffset,
    DebugLocListsBase, DebugRngListsBase, DebugStrOffsetsBase, UnitHeader, UnitType, constants as c,
};

use super::budget::{Budget, Dwarf, Result, Slice};

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
    ) -> Result<()> {
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
    ) -> Result<Arc<Abbreviations>> {
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
) -> Result<OpenUnit<'a>> {
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
