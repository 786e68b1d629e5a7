//! The allocator of a process and the file offsets of its functions.
//!
//! A definition of `malloc` in the program takes precedence over libraries, and another library over the C
//! library: the resolution order of the dynamic loader, for preloaded libraries and for those linked with the
//! program.

use crate::binary::elf::{Elf, entries};
use crate::binary::{ImageBytes, Mapping, MappingKind};
use crate::sources::allocator::AllocatorRole;

/// Allocator functions, by their C names.
const FUNCTIONS: [(&str, AllocatorRole); 6] = [
    ("malloc", AllocatorRole::Allocate { bytes: 0 }),
    ("calloc", AllocatorRole::AllocateItems { count: 0, bytes: 1 }),
    ("realloc", AllocatorRole::Reallocate { block: 0, bytes: 1 }),
    ("memalign", AllocatorRole::Allocate { bytes: 1 }),
    ("aligned_alloc", AllocatorRole::Allocate { bytes: 1 }),
    ("free", AllocatorRole::Free { block: 0 }),
];

/// Functions without which blocks would appear or disappear unseen.
const NEEDED: [usize; 2] = [0, 5];

/// File names of C libraries.
const C_LIBRARIES: [&str; 3] = ["libc.so", "libc-", "ld-musl"];

/// A function of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocatorFunction {
    pub(super) role: AllocatorRole,
    /// File offset of its first instruction.
    pub(super) file_offset: u64,
    pub(super) bytes: u64,
}

/// The allocator of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocator {
    /// Mapping of its code.
    pub(super) mapping: Mapping,
    pub(super) functions: Vec<AllocatorFunction>,
}

impl Allocator {
    /// Finds it among the mappings of a process, in their order.
    pub(super) fn find(
        mappings: &[Mapping],
        program: &str,
        mut bytes: impl FnMut(&Mapping) -> Option<ImageBytes>,
    ) -> Option<Allocator> {
        let mut files: Vec<&Mapping> =
            mappings.iter().filter(|mapping| mapping.kind == MappingKind::File).collect();
        files.dedup_by_key(|mapping| mapping.identity);
        let rank = |mapping: &&Mapping| {
            let name = mapping.path.rsplit('/').next().unwrap_or_default();
            match mapping.path == program {
                true => 0,
                false if C_LIBRARIES.iter().any(|library| name.starts_with(library)) => 2,
                false => 1,
            }
        };
        files.sort_by_key(rank);
        files.into_iter().find_map(|mapping| {
            let functions = functions(bytes(mapping)?.bytes())?;
            Some(Allocator { mapping: mapping.clone(), functions })
        })
    }

    /// Whether an address of the process is in one of its functions.
    pub(super) fn contains(&self, avma: u64) -> bool {
        let Some(distance) = avma.checked_sub(self.mapping.avma.start.0) else { return false };
        let offset = self.mapping.file_offset.wrapping_add(distance);
        let has = |function: &AllocatorFunction| {
            offset.checked_sub(function.file_offset).is_some_and(|inside| inside < function.bytes)
        };
        avma < self.mapping.avma.end.0 && self.functions.iter().any(has)
    }
}

fn functions(file: &[u8]) -> Option<Vec<AllocatorFunction>> {
    let elf = Elf::parse(file).ok()?;
    let found = entries::find(file, &FUNCTIONS.map(|(name, _)| name));
    if NEEDED.iter().any(|index| found[*index].is_none()) {
        return None;
    }
    let mut functions: Vec<AllocatorFunction> = Vec::new();
    for ((_, role), entry) in FUNCTIONS.iter().zip(found) {
        let Some(entry) = entry else { continue };
        let file_offset = elf.file_offset_of(entry.svma)?;
        // Aliases of one function count once.
        if functions.iter().all(|known| known.file_offset != file_offset) {
            functions.push(AllocatorFunction { role: *role, file_offset, bytes: entry.bytes });
        }
    }
    Some(functions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::addr::Avma;

    fn mapping(path: &str, inode: u64) -> Mapping {
        Mapping {
            avma: Avma(0x1000 * inode)..Avma(0x1000 * inode + 0x1000),
            file_offset: 0,
            path: path.to_owned(),
            kind: MappingKind::File,
            identity: (1, inode),
        }
    }

    #[test]
    fn a_library_before_the_c_library_is_the_allocator() {
        // Any C library of this system has the functions, whatever its name.
        let library = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = library.lines().filter_map(|line| line.split_whitespace().nth(5));
        let library = library
            .filter(|path| path.starts_with('/'))
            .find(|path| std::fs::read(path).is_ok_and(|bytes| functions(&bytes).is_some()));
        let Some(library) = library else { panic!("no C library is mapped") };
        let library = std::fs::read(library).unwrap();
        let mappings =
            [mapping("/bin/program", 1), mapping("/lib/libc.so.6", 2), mapping("/lib/libjemalloc.so.2", 3)];
        let find = |with: &[u64]| {
            Allocator::find(&mappings, "/bin/program", |mapping| {
                let bytes =
                    if with.contains(&mapping.identity.1) { library.clone() } else { b"none".to_vec() };
                Some(ImageBytes::new(bytes))
            })
        };
        let inode = |with: &[u64]| find(with).map(|allocator| allocator.mapping.identity.1);
        assert_eq!(inode(&[2, 3]), Some(3));
        assert_eq!(inode(&[2]), Some(2));
        assert_eq!(inode(&[1, 2, 3]), Some(1), "its own comes first");
        assert_eq!(inode(&[]), None);
        let allocator = find(&[2]).unwrap();
        assert!(allocator.functions.len() >= 4, "{:?}", allocator.functions);
    }

    #[test]
    fn code_of_the_functions_is_distinguished_from_other_code() {
        let function =
            AllocatorFunction { role: AllocatorRole::Free { block: 0 }, file_offset: 0x40, bytes: 0x20 };
        let allocator = Allocator { mapping: mapping("/lib/libc.so.6", 2), functions: vec![function] };
        let inside = [0x203f, 0x2040, 0x205f, 0x2060, 0x40].map(|avma| allocator.contains(avma));
        assert_eq!(inside, [false, true, true, false, false]);
    }
}
