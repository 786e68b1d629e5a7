//! The executable memory of a process as records tell of it: for when `/proc/PID/maps` is gone,
//! because the process is.
//!
//! Input: PERF_RECORD_MMAP2 in the order of their times, or a list as it was read; output: mappings
//! sorted by address. What was unmapped is not told, so that a later mapping replaces what it covers.

use super::super::ring::record::Mmap;
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};

/// Most mappings that are kept.
const MAX_MAPPINGS: usize = 65_536;

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct MmapHistory {
    /// Sorted, disjoint.
    list: Vec<Mapping>,
}

impl MmapHistory {
    /// The process runs another program.
    pub(in super::super) fn clear(&mut self) {
        self.list.clear();
    }

    /// They were read as they are.
    pub(in super::super) fn replace(&mut self, list: &[Mapping]) {
        self.list.clear();
        self.list.extend_from_slice(list);
    }

    /// All of them.
    pub(in super::super) fn list(&self) -> &[Mapping] {
        &self.list
    }

    /// Takes a new one in.
    pub(in super::super) fn add(&mut self, mapping: Mapping) {
        let (start, end) = (mapping.avma.start, mapping.avma.end);
        let from = self.list.partition_point(|old| old.avma.end <= start);
        let to = self.list.partition_point(|old| old.avma.start < end);
        let mut kept = Vec::new();
        for old in self.list.get(from..to).unwrap_or_default() {
            if old.avma.start < start {
                kept.push(Mapping { avma: old.avma.start..start, ..old.clone() });
            }
        }
        kept.push(mapping);
        for old in self.list.get(from..to).unwrap_or_default() {
            if old.avma.end > end {
                let cut = end - old.avma.start;
                let file_offset = old.file_offset.wrapping_add(cut);
                kept.push(Mapping { avma: end..old.avma.end, file_offset, ..old.clone() });
            }
        }
        if self.list.len() - (to - from) + kept.len() <= MAX_MAPPINGS {
            self.list.splice(from..to, kept);
        }
    }
}

/// What a record says was mapped; `None` if that is nothing.
pub(in super::super) fn mapping(mmap: &Mmap<'_>) -> Option<Mapping> {
    let end = mmap.start.checked_add(mmap.len).filter(|end| *end > mmap.start)?;
    let path = String::from_utf8_lossy(mmap.path).into_owned();
    let kind = match () {
        () if path == "[vdso]" => MappingKind::Vdso,
        // `//anon`, `[heap]`; `/memfd:…` has an inode.
        () if mmap.inode != 0 && path.starts_with('/') => MappingKind::File,
        () => MappingKind::Anonymous,
    };
    // As /proc/PID/maps has it: no name for memory without a file.
    let path = if kind == MappingKind::Anonymous && path == "//anon" { String::new() } else { path };
    let identity = (libc::makedev(mmap.device.0, mmap.device.1), mmap.inode);
    Some(Mapping { avma: Avma(mmap.start)..Avma(end), file_offset: mmap.file_offset, path, kind, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmap(start: u64, len: u64, inode: u64) -> Option<Mapping> {
        mapping(&Mmap { start, len, file_offset: 0x1000, device: (8, 1), inode, path: b"/lib/x.so" })
    }

    fn ranges(mapped: &MmapHistory) -> Vec<(u64, u64, u64, u64)> {
        let range = |one: &Mapping| (one.avma.start.0, one.avma.end.0, one.file_offset, one.identity.1);
        mapped.list().iter().map(range).collect()
    }

    #[test]
    fn a_later_mapping_replaces_what_it_covers_and_no_more() {
        let mut mapped = MmapHistory::default();
        let add = |mapped: &mut MmapHistory, mmap: Option<Mapping>| mapped.add(mmap.expect("memory"));
        add(&mut mapped, mmap(0x10_000, 0x4000, 1));
        add(&mut mapped, mmap(0x20_000, 0x1000, 2));
        add(&mut mapped, mmap(0x11_000, 0x1000, 3));
        let cut = [(0x10_000, 0x11_000, 0x1000, 1), (0x11_000, 0x12_000, 0x1000, 3)];
        let rest = [(0x12_000, 0x14_000, 0x3000, 1), (0x20_000, 0x21_000, 0x1000, 2)];
        assert_eq!(ranges(&mapped), [cut, rest].concat());
        add(&mut mapped, mmap(0, 0x30_000, 4));
        assert_eq!(ranges(&mapped), [(0, 0x30_000, 0x1000, 4)]);
        assert_eq!(mmap(u64::MAX - 1, 0x1000, 5), None);
        assert_eq!(mmap(0x40_000, 0, 5), None);
    }
}
