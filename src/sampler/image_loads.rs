//! Files that a process maps after its mappings were first read: the images loaded while it is recorded.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::binary::{Mapping, MappingKind};

/// Maximum number of files tracked per process.
const FILES_MAX: usize = 4096;

/// Files mapped by the current program of a process.
#[derive(Debug, Default)]
pub(super) struct ImageLoads {
    /// Hashes of the paths; `None` before the first read.
    known: Option<HashSet<u64>>,
    /// Paths seen for the first time.
    pub(super) new: Vec<String>,
}

impl ImageLoads {
    /// Updates from a list of mappings. The first list is the baseline.
    pub(super) fn update(&mut self, mappings: &[Mapping]) {
        let is_first = self.known.is_none();
        let known = self.known.get_or_insert_default();
        for mapping in mappings.iter().filter(|mapping| mapping.kind == MappingKind::File) {
            let mut hasher = DefaultHasher::new();
            mapping.path.hash(&mut hasher);
            if known.len() < FILES_MAX && known.insert(hasher.finish()) && !is_first {
                self.new.push(mapping.path.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;

    fn mapping(number: u64, path: &str, kind: MappingKind) -> Mapping {
        let start = number << 20;
        Mapping {
            avma: Avma(start)..Avma(start + 4096),
            file_offset: 0,
            path: path.into(),
            kind,
            identity: (1, number),
        }
    }

    #[test]
    fn only_new_files_are_loads_and_each_counts_once() {
        let mut loads = ImageLoads::default();
        let file = |number, path| mapping(number, path, MappingKind::File);
        loads.update(&[file(1, "/bin/prog")]);
        assert_eq!(loads.new, [""; 0]);
        let more = [
            file(1, "/bin/prog"),
            file(2, "/lib/a.so"),
            file(3, "/lib/a.so"),
            mapping(4, "", MappingKind::Anonymous),
        ];
        loads.update(&more);
        loads.update(&more);
        assert_eq!(loads.new, ["/lib/a.so"]);
    }
}
