//! The executable memory of a process as records tell of it: for when `/proc/PID/maps` is gone,
//! because the process is.
//!
//! Input: PERF_RECORD_MMAP2 in the order of their times; output: mappings sorted by address. What
//! was unmapped is not told, so that a later mapping replaces what it covers.

use super::record::Mmap;
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};

/// Most mappings that are kept.
const MAX_MAPPINGS: usize = 65_536;

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Sorted, disjoint.
    list: Vec<Mapping>,
}

impl Mapped {
    /// The process runs another program.
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// All of them.
    pub(super) fn list(&self) -> &[Mapping] {
        &self.list
    }

    /// Whether an address is in one of them.
    pub(super) fn contains(&self, at: Avma) -> bool {
        let next = self.list.partition_point(|mapping| mapping.avma.end <= at);
        self.list.get(next).is_some_and(|mapping| mapping.avma.start <= at)
    }

    /// Takes a new one in.
    pub(super) fn add(&mut self, mmap: &Mmap<'_>) {
        let Some(end) = mmap.start.checked_add(mmap.len).filter(|end| *end > mmap.start) else { return };
        let (start, end) = (Avma(mmap.start), Avma(end));
        let from = self.list.partition_point(|old| old.avma.end <= start);
        let to = self.list.partition_point(|old| old.avma.start < end);
        let mut kept = Vec::new();
        for old in self.list.get(from..to).unwrap_or_default() {
            if old.avma.start < start {
                kept.push(Mapping { avma: old.avma.start..start, ..old.clone() });
            }
        }
        kept.push(mapping(mmap, start, end));
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

fn mapping(mmap: &Mmap<'_>, start: Avma, end: Avma) -> Mapping {
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
    Mapping { avma: start..end, file_offset: mmap.file_offset, path, kind, identity }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmap(start: u64, len: u64, inode: u64) -> Mmap<'static> {
        Mmap { start, len, file_offset: 0x1000, device: (8, 1), inode, path: b"/lib/x.so" }
    }

    fn ranges(mapped: &Mapped) -> Vec<(u64, u64, u64, u64)> {
        let range = |one: &Mapping| (one.avma.start.0, one.avma.end.0, one.file_offset, one.identity.1);
        mapped.list().iter().map(range).collect()
    }

    #[test]
    fn a_later_mapping_replaces_what_it_covers_and_no_more() {
        let mut mapped = Mapped::default();
        mapped.add(&mmap(0x10_000, 0x4000, 1));
        mapped.add(&mmap(0x20_000, 0x1000, 2));
        mapped.add(&mmap(0x11_000, 0x1000, 3));
        let cut = [(0x10_000, 0x11_000, 0x1000, 1), (0x11_000, 0x12_000, 0x1000, 3)];
        let rest = [(0x12_000, 0x14_000, 0x3000, 1), (0x20_000, 0x21_000, 0x1000, 2)];
        assert_eq!(ranges(&mapped), [cut, rest].concat());
        mapped.add(&mmap(0, 0x30_000, 4));
        assert_eq!(ranges(&mapped), [(0, 0x30_000, 0x1000, 4)]);
        mapped.add(&mmap(u64::MAX - 1, 0x1000, 5));
        mapped.add(&mmap(0x40_000, 0, 5));
        assert_eq!(mapped.list().len(), 1, "no memory");
    }
}
