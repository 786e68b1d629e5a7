//! The executable memory of a process by its records (PERF_RECORD_MMAP2), for when the process, and with it
//! `/proc/PID/maps`, is gone.
//!
//! Input: mappings in time order, or a list as read; output: mappings sorted by address. No record reports
//! unmapping, so a later mapping replaces whatever it overlaps.

use crate::binary::Mapping;

/// Maximum number of mappings. No time is lost beyond it: samples in further code keep their weight, and their
/// frames count as unnamed, or their stacks as incomplete, until /proc/PID/maps is read again. Processes have
/// fewer at a time (`vm.max_map_count`): a list this long consists mostly of mappings already removed by
/// munmap(2), which is not recorded.
const MAPPINGS_MAX: usize = 65_536;

/// The mappings of one process.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct MmapHistory {
    /// Sorted, disjoint.
    list: Vec<Mapping>,
}

impl MmapHistory {
    /// Clears the mappings at exec.
    pub(in super::super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Replaces the mappings by a list as read.
    pub(in super::super) fn replace(&mut self, list: &[Mapping]) {
        self.list.clear();
        self.list.extend_from_slice(list);
    }

    /// All of them.
    pub(in super::super) fn list(&self) -> &[Mapping] {
        &self.list
    }

    /// Adds a new mapping.
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
        if self.list.len() - (to - from) + kept.len() <= MAPPINGS_MAX {
            self.list.splice(from..to, kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;
    use crate::binary::MappingKind;

    fn mmap(start: u64, len: u64, inode: u64) -> Mapping {
        let (avma, path) = (Avma(start)..Avma(start + len), "/lib/x.so".to_owned());
        Mapping { avma, file_offset: 0x1000, path, kind: MappingKind::File, identity: (8, inode) }
    }

    fn ranges(history: &MmapHistory) -> Vec<(u64, u64, u64, u64)> {
        let range = |one: &Mapping| (one.avma.start.0, one.avma.end.0, one.file_offset, one.identity.1);
        history.list().iter().map(range).collect()
    }

    #[test]
    fn a_later_mapping_replaces_only_what_it_overlaps() {
        let mut history = MmapHistory::default();
        history.add(mmap(0x10_000, 0x4000, 1));
        history.add(mmap(0x20_000, 0x1000, 2));
        history.add(mmap(0x11_000, 0x1000, 3));
        let cut = [(0x10_000, 0x11_000, 0x1000, 1), (0x11_000, 0x12_000, 0x1000, 3)];
        let rest = [(0x12_000, 0x14_000, 0x3000, 1), (0x20_000, 0x21_000, 0x1000, 2)];
        assert_eq!(ranges(&history), [cut, rest].concat());
        history.add(mmap(0, 0x30_000, 4));
        assert_eq!(ranges(&history), [(0, 0x30_000, 0x1000, 4)]);
    }
}
