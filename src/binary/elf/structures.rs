//! Offsets of members of C structures, from the debug information of a 32-bit ELF file.
//!
//! Input: the bytes of a file, hostile, and names. Output: sizes and offsets. For the few structures of an
//! operating system that are looked up by name. Not for: compressed debug sections, C++ classes, bit fields.

use gimli::{AttributeValue, Dwarf, EndianSlice, LittleEndian, UnitOffset};
use object::read::elf::ElfFile32;
use object::{Object, ObjectSection};

/// Limit on entries of debug information read: about one second.
const ENTRIES_MAX: usize = 8 << 20;
/// Limit on members of one structure.
const MEMBERS_MAX: usize = 256;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Its size.
    pub bytes: u64,
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    name: String,
    offset: u64,
    /// Number of elements, for an array.
    count: Option<u64>,
}

impl Structure {
    /// The offset of a member.
    #[must_use]
    pub fn offset(&self, name: &str) -> Option<u64> {
        self.member(name).map(|member| member.offset)
    }

    /// The number of elements of an array member.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        self.member(name)?.count
    }

    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

/// The structures with these names; `None` if the file does not describe it.
#[must_use]
pub fn find(file: &[u8], names: &[&str]) -> Vec<Option<Structure>> {
    let mut found = vec![None; names.len()];
    // Structures found before an error are kept.
    let _ = collect(file, names, &mut found);
    found
}

fn collect(file: &[u8], names: &[&str], found: &mut [Option<Structure>]) -> Option<()> {
    let elf = ElfFile32::<object::LittleEndian>::parse(file).ok()?;
    let load = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
        let section = elf.section_by_name(id.name());
        let data = section.and_then(|section| section.data().ok()).unwrap_or_default();
        Ok(EndianSlice::new(data, LittleEndian))
    };
    let dwarf = Dwarf::load(load).ok()?;
    let mut left = ENTRIES_MAX;
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().ok()? {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let mut entries = unit.entries();
        // The current structure, and its depth.
        let mut inside: Option<(usize, isize)> = None;
        while let Ok(Some(entry)) = entries.next_dfs() {
            left = left.checked_sub(1)?;
            if inside.is_some_and(|(_, depth)| entry.depth() <= depth) {
                inside = None;
            }
            let name = || {
                let value = entry.attr_value(gimli::DW_AT_name)?;
                Some(dwarf.attr_string(&unit, value).ok()?.slice())
            };
            let number = |what| entry.attr_value(what)?.udata_value();
            match (entry.tag(), inside) {
                (gimli::DW_TAG_structure_type, None) => {
                    let Some((name, bytes)) = name().zip(number(gimli::DW_AT_byte_size)) else { continue };
                    let Some(index) = names.iter().position(|wanted| wanted.as_bytes() == name) else {
                        continue;
                    };
                    if found[index].is_none() {
                        found[index] = Some(Structure { bytes, members: Vec::new() });
                        inside = Some((index, entry.depth()));
                    }
                }
                (gimli::DW_TAG_member, Some((index, depth))) if entry.depth() == depth + 1 => {
                    let Some(structure) = &mut found[index] else { continue };
                    let Some(name) = name().filter(|_| structure.members.len() < MEMBERS_MAX) else {
                        continue;
                    };
                    let count = match entry.attr_value(gimli::DW_AT_type) {
                        Some(AttributeValue::UnitRef(of)) => elements(&unit, of),
                        _ => None,
                    };
                    structure.members.push(Member {
                        name: String::from_utf8_lossy(name).into_owned(),
                        // May be omitted for the first member.
                        offset: number(gimli::DW_AT_data_member_location).unwrap_or(0),
                        count,
                    });
                }
                _ => {}
            }
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    Some(())
}

/// The number of elements of the array type at an offset; `None` for other types.
fn elements(unit: &gimli::Unit<Slice<'_>>, at: UnitOffset) -> Option<u64> {
    let mut entries = unit.entries_at_offset(at).ok()?;
    let array = entries.next_dfs().ok()??;
    if array.tag() != gimli::DW_TAG_array_type {
        return None;
    }
    let depth = array.depth();
    let range = entries.next_dfs().ok()??;
    if range.depth() != depth + 1 {
        return None;
    }
    let number = |what| range.attr_value(what)?.udata_value();
    number(gimli::DW_AT_count).or_else(|| number(gimli::DW_AT_upper_bound)?.checked_add(1))
}
