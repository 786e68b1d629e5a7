//! Code without an image: JIT code, islands of the shared cache. Input: the program counter of a running
//! thread. Output: its region. Only that region is queried; listing all regions of a task takes thousands of
//! calls and blocks its own.

use std::ops::Range;

use super::dyld::Dyld;
use super::memory::Memory;
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};

/// Most recorded ranges; a program with more has one heap for each function.
const RANGES_MAX: usize = 4096;
/// VM_PROT_EXECUTE.
const EXECUTE: i32 = 4;

/// Known ranges of executable memory, sorted by address, disjoint.
#[derive(Debug, Default)]
pub(super) struct Jit(Vec<Range<u64>>);

impl Jit {
    /// Queries the region at `pc` unless it is known; returns whether it is new code.
    pub(super) fn learn(&mut self, memory: &Memory<'_>, dyld: &Dyld, pc: u64) -> bool {
        if dyld.image_at(pc).is_some() || self.0.len() >= RANGES_MAX {
            return false;
        }
        let after = self.0.partition_point(|known| known.start <= pc);
        if after.checked_sub(1).is_some_and(|index| self.0[index].contains(&pc)) {
            return false;
        }
        let Ok(region) = memory.region(pc) else {
            return false;
        };
        let region_end = region.address.saturating_add(region.size);
        if region.protection & EXECUTE == 0 || !(region.address..region_end).contains(&pc) {
            return false;
        }
        // In the shared cache one region holds many images: only the part between two of them counts.
        let images = dyld.images();
        let above = images.partition_point(|image| image.load <= pc);
        let below = above.checked_sub(1).map_or(0, |index| images[index].load + images[index].text_bytes());
        let above = images.get(above).map_or(u64::MAX, |image| image.load);
        let before = after.checked_sub(1).map_or(0, |index| self.0[index].end);
        let next = self.0.get(after).map_or(u64::MAX, |next| next.start);
        let range = region.address.max(below).max(before)..region_end.min(above).min(next);
        self.0.insert(after, range);
        true
    }

    /// Adds the ranges outside of all current images to the sorted mappings.
    pub(super) fn add_to(&self, dyld: &Dyld, out: &mut Vec<Mapping>) {
        let free = |range: &&Range<u64>| {
            let above = dyld.images().partition_point(|image| image.load < range.end);
            let below = above.checked_sub(1).map(|index| &dyld.images()[index]);
            below.is_none_or(|image| image.load + image.text_bytes() <= range.start)
        };
        out.extend(self.0.iter().filter(free).map(|range| Mapping {
            avma: Avma(range.start)..Avma(range.end),
            file_offset: 0,
            path: String::new(),
            kind: MappingKind::Anonymous,
            identity: (0, 0),
        }));
        out.sort_by_key(|mapping| mapping.avma.start);
    }
}
