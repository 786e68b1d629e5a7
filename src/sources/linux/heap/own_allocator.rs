//! Allocators inside of a program or a library, whose calls reach no preloaded library.
//!
//! Input: the bytes of an ELF file, hostile. Output: the name that its `malloc` has there. The dynamic loader resolves
//! `malloc` to the definition of the program before that of any library, preloaded or not; under another name
//! (`je_malloc`) nothing is resolved at all.

use std::path::Path;

use super::load_method::LoadMethod;
use crate::binary::elf::entries;
use crate::binary::files::map_regular;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::linux::perf::is_c_library;
use crate::sources::pushed::UnseenAllocator;

/// Names of `malloc`, and the allocator that has it.
const NAMES: [(&str, &str); 7] = [
    ("malloc", "an allocator of its own"),
    ("je_malloc", "an allocator of its own, jemalloc"),
    ("_rjem_malloc", "an allocator of its own, jemalloc"),
    ("_rjem_mallocx", "an allocator of its own, jemalloc"),
    ("mi_malloc", "an allocator of its own, mimalloc"),
    ("tc_malloc", "an allocator of its own, tcmalloc"),
    ("rallocx", "an allocator of its own, jemalloc"),
];

/// An allocator in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAllocator {
    /// What it is, without an article of the file: `an allocator of its own, jemalloc`.
    pub(super) what: &'static str,
    /// The name that its malloc has.
    pub(super) malloc: &'static str,
    /// Another name that it has beside `malloc`.
    other: Option<&'static str>,
}

impl OwnAllocator {
    /// The allocator in a program.
    pub(super) fn of_program(file: &[u8]) -> Option<OwnAllocator> {
        let found = entries::find(file, &NAMES.map(|(name, _)| name));
        let mut known = NAMES.iter().zip(found);
        let ((malloc, what), _) = known.find(|(_, entry)| entry.is_some())?;
        // What has more than the name `malloc` is known better by it.
        let better = known.find(|(_, entry)| entry.is_some()).map(|(named, _)| *named);
        let what = better.map_or(*what, |(_, what)| what);
        Some(OwnAllocator { what, malloc, other: better.map(|(name, _)| name) })
    }

    /// That of a program's file.
    pub(super) fn of_path(path: &Path) -> Option<OwnAllocator> {
        OwnAllocator::of_program(map_regular(path).ok()?.bytes())
    }
}

/// The allocators of a process that calls do not leave: those of its program, and of libraries under names of their own.
pub(super) fn unseen_allocators(
    mappings: &[Mapping],
    mut bytes: impl FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
) -> Vec<UnseenAllocator> {
    let mut files: Vec<&Mapping> =
        mappings.iter().filter(|mapping| mapping.kind == MappingKind::File).collect();
    files.dedup_by_key(|mapping| mapping.identity);
    let mut unseen: Vec<UnseenAllocator> = Vec::new();
    for mapping in &files {
        if is_c_library(&mapping.path) {
            continue;
        }
        let Ok(file) = bytes(mapping) else { continue };
        let Some(own) = OwnAllocator::of_program(file.bytes()) else { continue };
        let mut malloc = own.malloc;
        // Calls of a library's malloc reach the shim first, those by its other names do not.
        if malloc == "malloc" && LoadMethod::of_head(file.bytes()) != LoadMethod::Dynamic {
            let Some(other) = own.other.filter(|other| other.ends_with("_malloc")) else { continue };
            let names = [other, &other.replace("malloc", "free")];
            if !files.iter().any(|user| bytes(user).is_ok_and(|user| entries::imports(user.bytes(), &names)))
            {
                continue;
            }
            malloc = other;
        }
        let name = mapping.path.rsplit('/').next().unwrap_or_default();
        let what = format!("{name} has {} ({malloc})", own.what);
        if unseen.iter().all(|known| known.functions != what) {
            unseen.push(UnseenAllocator { functions: what, next: NEXT.to_owned() });
        }
    }
    unseen
}

/// What helps.
pub(super) const NEXT: &str =
    "its calls do not reach the heap shim; probes see them while it runs: sudo stackprof heap --pid N";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libc_has_its_malloc_and_this_program_none() {
        // Of the C library, whatever its name, and of this program, which calls it.
        let own = std::fs::read("/proc/self/exe").unwrap_or_default();
        assert_eq!(OwnAllocator::of_program(&own), None);
        assert_eq!(OwnAllocator::of_program(b"\x7fELF"), None);
    }
}
