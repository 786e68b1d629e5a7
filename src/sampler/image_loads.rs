//! Which files a process has mapped since its list of mappings was read first: those that it loaded while it was recorded.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::binary::{Mapping, MappingKind};

/// Most files of a process that are told apart.
const MAX_FILES: usize = 4096;

/// The files that one program of a process has mapped.
#[derive(Debug, Default)]
pub(super) struct ImageLoads {
    /// Hashes of the paths, once the list was read.
    known: Option<HashSet<u64>>,
    /// Paths that were not in a list before.
    pub(super) new: Vec<String>,
}

impl ImageLoads {
    /// Takes a list of mappings in. The first one holds what was there.
    pub(super) fn update(&mut self, mappings: &[Mapping]) {
        let is_first = self.known.is_none();
        let known = self.known.get_or_insert_default();
        for mapping in mappings.iter().filter(|mapping| mapping.kind == MappingKind::File) {
            let mut hasher = DefaultHasher::new();
            mapping.path.hash(&mut hasher);
            if known.len() < MAX_FILES && known.insert(hasher.finish()) && !is_first {
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
    fn what_was_there_is_no_load_and_each_file_is_one() {
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
