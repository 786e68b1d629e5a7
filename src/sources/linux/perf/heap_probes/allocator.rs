//! The allocators of a process and the file offsets of their functions.
//!
//! Each file that defines an allocator is probed: the program, libraries, the C library. A definition of `malloc` in
//! the program takes precedence over libraries, and another library over the C library, but a plugin may keep to its
//! own (RTLD_DEEPBIND), and an allocator under names of its own (`je_malloc`) serves beside the others. A call that one
//! of them hands on to another counts once.

use std::collections::BTreeSet;

use super::functions::{FUNCTIONS, NEEDED, OPERATORS, PREFIXED, PREFIXES, ProbedFunction};
use super::returns;
use crate::binary::elf::{Elf, entries};
use crate::binary::{ImageBytes, Mapping, MappingKind};
use crate::sources::allocator::AllocatorRole;
use crate::sources::pushed::UnseenAllocator;

/// File names of C libraries.
const C_LIBRARIES: [&str; 3] = ["libc.so", "libc-", "ld-musl"];

/// Whether a file is a C library, by its name.
pub(in crate::sources::linux) fn is_c_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    C_LIBRARIES.iter().any(|library| name.starts_with(library))
}

/// A function of an allocator, to be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AllocatorFunction {
    pub(super) function: ProbedFunction,
    /// File offset of its first instruction.
    pub(super) file_offset: u64,
    pub(super) returns: Returns,
}

/// Where the return of a function is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// Nowhere: it returns no block.
    Nowhere,
    /// By the kernel's trampoline.
    Trampoline,
    /// At the instructions at these file offsets.
    Instructions(BTreeSet<u64>),
}

/// An allocator of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocator {
    /// Mapping of its code.
    pub(super) mapping: Mapping,
    pub(super) functions: Vec<AllocatorFunction>,
    /// Names of functions that cannot be followed.
    pub(super) unseen: Vec<&'static str>,
}

impl Allocator {
    /// Finds them among the mappings of a process; the one that `malloc` of most libraries is comes first.
    pub(super) fn find(
        mappings: &[Mapping],
        program: &str,
        mut bytes: impl FnMut(&Mapping) -> Option<ImageBytes>,
    ) -> Vec<Allocator> {
        let mut files: Vec<&Mapping> =
            mappings.iter().filter(|mapping| mapping.kind == MappingKind::File).collect();
        let mut seen = BTreeSet::new();
        files.retain(|mapping| seen.insert((mapping.identity, mapping.path.clone())));
        let rank = |mapping: &&Mapping| match mapping.path == program {
            true => 0,
            false if is_c_library(&mapping.path) => 2,
            false => 1,
        };
        files.sort_by_key(rank);
        files
            .into_iter()
            .filter_map(|mapping| {
                let (functions, unseen) = functions(bytes(mapping)?.bytes())?;
                Some(Allocator { mapping: mapping.clone(), functions, unseen })
            })
            .collect()
    }

    /// What is not seen of it.
    pub(super) fn unseen(&self) -> Option<UnseenAllocator> {
        let name = self.mapping.path.rsplit('/').next().unwrap_or_default();
        (!self.unseen.is_empty()).then(|| UnseenAllocator {
            functions: format!("{} of {name}", self.unseen.join(", ")),
            next: "where it returns cannot be told from its code; start the program by stackprof heap -- COMMAND"
                .to_owned(),
        })
    }
}

/// The functions of an allocator in a file, and names of those that cannot be followed; `None` if it has none.
fn functions(file: &[u8]) -> Option<(Vec<AllocatorFunction>, Vec<&'static str>)> {
    let elf = Elf::parse(file).ok()?;
    let needed: Vec<String> =
        PREFIXES.iter().flat_map(|prefix| NEEDED.map(|name| format!("{prefix}{name}"))).collect();
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    let has = entries::find(file, &needed);
    let prefixes: Vec<&str> = PREFIXES
        .iter()
        .zip(has.chunks_exact(NEEDED.len()))
        .filter(|(_, found)| found.iter().all(Option::is_some))
        .map(|(prefix, _)| *prefix)
        .collect();
    let mut wanted: Vec<(String, &'static str, ProbedFunction)> = Vec::new();
    for prefix in &prefixes {
        let prefixed = PREFIXED.iter().filter(|_| !prefix.is_empty());
        let named = FUNCTIONS.iter().chain(prefixed);
        wanted.extend(named.map(|(name, function)| (format!("{prefix}{name}"), *name, *function)));
    }
    if prefixes.is_empty() {
        return None;
    }
    wanted.extend(OPERATORS.iter().map(|(name, function)| ((*name).to_owned(), *name, *function)));
    let names: Vec<&str> = wanted.iter().map(|(name, ..)| name.as_str()).collect();
    let found = entries::find(file, &names);
    let mut functions: Vec<AllocatorFunction> = Vec::new();
    let (mut throwing, mut unseen) = (Vec::new(), Vec::new());
    for ((_, name, function), entry) in wanted.iter().zip(found) {
        let Some(entry) = entry else { continue };
        let Some(file_offset) = elf.file_offset_of(entry.svma) else { continue };
        // Aliases of one function count once: those in C do not throw.
        if functions.iter().any(|known| known.file_offset == file_offset) {
            continue;
        }
        let returns = match function.role {
            AllocatorRole::Free { .. } => Returns::Nowhere,
            _ if function.throws => {
                throwing.push((entry.svma, functions.len(), *name));
                Returns::Instructions(BTreeSet::new())
            }
            _ => Returns::Trampoline,
        };
        functions.push(AllocatorFunction { function: *function, file_offset, returns });
    }
    // Jumps to a function with a trampoline are seen there.
    let trampolines: BTreeSet<u64> = functions
        .iter()
        .filter(|function| function.returns == Returns::Trampoline)
        .map(|function| function.file_offset)
        .collect();
    let offset_of = |svma: u64| elf.file_offset_of(crate::addr::Svma(svma));
    let code = |at: u64, len: usize| {
        let from = usize::try_from(offset_of(at)?).ok()?;
        let rest = file.get(from..)?;
        rest.get(..len.min(rest.len())).filter(|bytes| !bytes.is_empty())
    };
    let mut unfollowed = BTreeSet::new();
    for (entry, index, name) in throwing {
        let is_probed = |at: u64| offset_of(at).is_some_and(|offset| trampolines.contains(&offset));
        let found = returns::find(entry.0, code, is_probed);
        let offsets =
            found.and_then(|found| found.into_iter().map(offset_of).collect::<Option<BTreeSet<u64>>>());
        match offsets {
            Some(offsets) => functions[index].returns = Returns::Instructions(offsets),
            None => {
                unfollowed.insert(index);
                // Both have several forms.
                let name = if name.starts_with("_Zna") { "operator new[]" } else { "operator new" };
                if !unseen.contains(&name) {
                    unseen.push(name);
                }
            }
        }
    }
    let mut index = 0..;
    functions.retain(|_| index.next().is_none_or(|index| !unfollowed.contains(&index)));
    Some((functions, unseen))
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
    fn each_allocator_of_a_process_is_found_and_the_first_is_that_of_most_calls() {
        // Any C library of this system has the functions.
        let library = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = library.lines().filter_map(|line| line.split_whitespace().nth(5));
        let library = library
            // Other tests map files of their own.
            .filter(|path| path.starts_with('/') && is_c_library(path))
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
        let inodes = |with: &[u64]| -> Vec<u64> {
            find(with).iter().map(|allocator| allocator.mapping.identity.1).collect()
        };
        assert_eq!(inodes(&[2, 3]), [3, 2]);
        assert_eq!(inodes(&[2]), [2]);
        assert_eq!(inodes(&[1, 2, 3]), [1, 3, 2], "its own comes first");
        assert!(inodes(&[]).is_empty());
        let found = find(&[2]);
        let functions = &found[0].functions;
        assert!(functions.len() >= 6, "{functions:?}");
        assert!(functions.iter().any(|known| known.function.result.is_some()), "posix_memalign");
        assert_eq!(found[0].unseen(), None);
    }
}
