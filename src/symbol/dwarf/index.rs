//! Assigns the requested addresses to units.
//!
//! Input: the headers of all units, hostile. Output: a job for each unit with addresses, by `.debug_aranges` if it
//! contains the unit, else by the unit's first entry.

use gimli::{DebugInfoOffset, Section as _, UnitType, constants as c};

use super::budget::{Budget, Dwarf};
use super::unit::{self, Abbrevs};

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
            let Ok(opened) = unit::open(dwarf, header, &mut abbrevs, budget) else { continue };
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
