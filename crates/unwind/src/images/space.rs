//! One address space of a process: the part of an image that each executable range maps.
//!
//! Input: successive region lists. Output: look-ups by address, and whether a later list fits the same space, that
//! is, whether no address changes its meaning. Not for: opening or reading files.

use std::ops::Range;

/// "No image": executable memory without a file, or beyond a limit.
pub(super) const NO_IMAGE: u32 = u32::MAX;

/// Limit on separate ranges of unmapped anonymous code that a space remembers; one more begins a new space.
const VANISHED_MAX: usize = 4096;

/// An executable range, in the target's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Image offset of the first address; for a region without an image, the number of its label.
    pub file_offset: u64,
    /// Index of the image, or [`NO_IMAGE`].
    pub image: u32,
    /// JIT code that its compiler registered, possibly after it was mapped.
    pub is_registered: bool,
}

impl Region {
    /// What defines the meaning of the region's addresses: the image, and the distance between address and file
    /// offset.
    fn meaning(&self) -> (u32, u64) {
        if self.image == NO_IMAGE {
            (NO_IMAGE, 0)
        } else {
            (self.image, self.file_offset.wrapping_sub(self.start))
        }
    }
}

/// The regions of one space, sorted and disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    pub regions: Vec<Region>,
    /// Anonymous code unmapped since the space began; sorted and disjoint. JIT engines unmap code all the time. It
    /// has no name, so it begins a new space only if a file is mapped there later: otherwise old addresses would
    /// get that file's names.
    vanished: Vec<Range<u64>>,
    /// Number of its process.
    pub process: u32,
}

impl Space {
    /// An empty space of this process.
    pub(super) fn of(process: u32) -> Space {
        Space { process, ..Space::default() }
    }

    /// The region that contains an address.
    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<&Region> {
        let after = self.regions.partition_point(|region| region.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        (address < region.end).then_some(region)
    }

    /// Whether code without a file at an address has been unmapped.
    pub(super) fn had_vanished(&self, address: u64) -> bool {
        let first = self.vanished.partition_point(|range| range.end <= address);
        self.vanished.get(first).is_some_and(|range| range.contains(&address))
    }

    /// The vanished ranges after `new` replaced the current regions, or `None` if `new` cannot be part of this
    /// space: an image disappeared (even in part), or a file now lies where other code was.
    pub(super) fn follow(&self, new: &[Region]) -> Option<Vec<Range<u64>>> {
        let mut vanished = self.vanished.clone();
        let mut next = 0;
        for old in &self.regions {
            let mut at = old.start;
            while next < new.len() && new[next].end <= at {
                next += 1;
            }
            // A new region may span several old ones: peek without consuming.
            let mut look = next;
            while at < old.end {
                let here = new.get(look).filter(|region| region.start < old.end);
                match here {
                    Some(region) if region.start <= at => {
                        let is_told_of = old.image == NO_IMAGE && region.is_registered;
                        if region.meaning() != old.meaning() && !is_told_of {
                            return None;
                        }
                        at = region.end;
                        look += 1;
                    }
                    _ if old.image != NO_IMAGE => return None,
                    _ => {
                        let end = here.map_or(old.end, |region| region.start);
                        vanished.push(at..end);
                        at = end;
                    }
                }
            }
        }
        let vanished = merged(vanished);
        if vanished.len() > VANISHED_MAX {
            return None;
        }
        let mut files = new.iter().filter(|region| region.image != NO_IMAGE);
        files.all(|region| !overlaps(&vanished, region)).then_some(vanished)
    }

    /// Removes from `new`, which cannot be part of this space, what would change the meaning of an address; returns the ranges
    /// without a meaning from now on: what has vanished or changed.
    pub(super) fn keep_meaning(&self, new: &mut Vec<Region>) -> Vec<Range<u64>> {
        let range = |region: &Region| region.start..region.end;
        let same_start = |old: &Region| new.binary_search_by_key(&old.start, |region| region.start);
        let is_kept = |old: &&Region| same_start(old).is_ok_and(|index| new[index] == **old);
        let mut gone: Vec<Range<u64>> = self.regions.iter().filter(|old| !is_kept(old)).map(range).collect();
        gone.extend(self.vanished.iter().cloned());
        let mut gone = merged(gone);
        if gone.len() > VANISHED_MAX {
            gone.clear();
            gone.push(0..u64::MAX);
        }
        new.retain(|region| !overlaps(&gone, region));
        gone
    }

    /// Replaces the regions, with the ranges that [`Space::follow`] returned.
    pub(super) fn replace(&mut self, regions: Vec<Region>, vanished: Vec<Range<u64>>) {
        self.regions = regions;
        self.vanished = vanished;
    }
}

/// Sorts ranges and joins those that touch or overlap.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
    ranges
}

fn overlaps(ranges: &[Range<u64>], region: &Region) -> bool {
    let first = ranges.partition_point(|range| range.end <= region.start);
    ranges.get(first).is_some_and(|range| range.start < region.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: u64, end: u64, file_offset: u64, image: u32) -> Region {
        Region { start, end, file_offset, image, is_registered: false }
    }

    fn jit(start: u64, end: u64) -> Region {
        Region { start, end, file_offset: 0, image: NO_IMAGE, is_registered: false }
    }

    fn registered(start: u64, end: u64, image: u32) -> Region {
        Region { is_registered: true, ..file(start, end, start, image) }
    }

    fn space(regions: &[Region]) -> Space {
        Space { regions: regions.to_vec(), ..Space::default() }
    }

    #[test]
    fn additions_growth_splits_and_joins_keep_the_space() {
        let old = space(&[file(0x1000, 0x3000, 0, 0)]);
        assert!(old.follow(&[file(0x1000, 0x3000, 0, 0), file(0x8000, 0x9000, 0, 1)]).is_some());
        assert!(old.follow(&[file(0x1000, 0x4000, 0, 0)]).is_some());
        let split = [file(0x1000, 0x2000, 0, 0), file(0x2000, 0x3000, 0x1000, 0)];
        assert!(old.follow(&split).is_some());
        assert!(space(&split).follow(&old.regions).is_some());
    }

    #[test]
    fn a_lost_or_changed_image_ends_the_space() {
        let old = space(&[file(0x1000, 0x3000, 0, 0), file(0x5000, 0x6000, 0, 1)]);
        let kept = file(0x5000, 0x6000, 0, 1);
        assert!(old.follow(&[kept]).is_none(), "unmapped");
        assert!(old.follow(&[file(0x1000, 0x2000, 0, 0), kept]).is_none(), "unmapped in part");
        assert!(old.follow(&[file(0x2000, 0x3000, 0x1000, 0), kept]).is_none(), "unmapped at its start");
        assert!(old.follow(&[file(0x1000, 0x3000, 0, 2), kept]).is_none(), "another file");
        assert!(old.follow(&[file(0x1000, 0x3000, 0x1000, 0), kept]).is_none(), "another offset");
        assert!(old.follow(&[jit(0x1000, 0x3000), kept]).is_none(), "now anonymous");
        assert!(old.follow(&[]).is_none());
    }

    #[test]
    fn jit_code_comes_and_goes_until_a_file_takes_its_place() {
        let mut now = space(&[jit(0x1000, 0x3000), jit(0x5000, 0x6000)]);
        let after = [jit(0x2000, 0x2800)];
        let vanished = now.follow(&after);
        assert_eq!(vanished, Some(vec![0x1000..0x2000, 0x2800..0x3000, 0x5000..0x6000]));
        now.replace(after.to_vec(), vanished.unwrap_or_default());
        assert!(now.follow(&[jit(0x1000, 0x6000)]).is_some());
        assert!(now.follow(&[file(0x3000, 0x5000, 0, 0)]).is_some());
        assert!(now.follow(&[file(0x2f00, 0x5000, 0, 0)]).is_none());
        assert!(now.follow(&[file(0x2000, 0x2800, 0, 0)]).is_none());
    }

    #[test]
    fn code_registered_later_keeps_the_space_until_it_is_unregistered() {
        let before = space(&[jit(0x1000, 0x3000)]);
        let told = [jit(0x1000, 0x1800), registered(0x1800, 0x2000, 0), jit(0x2000, 0x3000)];
        assert_eq!(before.follow(&told), Some(Vec::new()));
        let more = [jit(0x1000, 0x1800), registered(0x1800, 0x2000, 0), registered(0x2000, 0x3000, 1)];
        assert_eq!(space(&told).follow(&more), Some(Vec::new()));
        assert!(space(&told).follow(&before.regions).is_none(), "the name would be gone");
        let another = [jit(0x1000, 0x1800), registered(0x1800, 0x2000, 2), jit(0x2000, 0x3000)];
        assert!(space(&told).follow(&another).is_none());
    }

    #[test]
    fn addresses_are_found_in_their_region_only() {
        let space = space(&[file(0x1000, 0x2000, 0, 0), file(0x3000, 0x4000, 0, 1)]);
        let image = |address| space.find(address).map(|region| region.image);
        assert_eq!(image(0xfff), None);
        assert_eq!(image(0x1000), Some(0));
        assert_eq!(image(0x1fff), Some(0));
        assert_eq!(image(0x2000), None);
        assert_eq!(image(0x3fff), Some(1));
        assert_eq!(image(u64::MAX), None);
    }
}
