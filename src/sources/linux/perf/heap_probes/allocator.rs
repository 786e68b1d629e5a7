//! The allocators of a process and the file offsets of their functions.
//!
//! `Allocator` is one, `ProbedFunction` a function of it and what it does, `find` gives the returns of a function.
//!
//! Each file that defines an allocator is probed: the program, libraries, the C library. A definition of `malloc` in
//! the program takes precedence over libraries, and another library over the C library, but a plugin may keep to its
//! own (RTLD_DEEPBIND), and an allocator under names of its own (`je_malloc`) serves beside the others. A call that one
//! of them hands on to another counts once.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

use crate::binary::elf::{Elf, functions};
use crate::binary::{ImageBytes, Mapping, MappingKind};
use crate::sources::AllocatorRole;
use crate::sources::pushed::UnseenAllocator;

/// File names of C libraries.
const C_LIBRARIES: [&str; 3] = ["libc.so", "libc-", "ld-musl"];

/// Whether a file is a C library, by its name.
pub(crate) fn is_c_library(path: &str) -> bool {
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
    let has = functions::find_entries(file, &needed);
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
    let found = functions::find_entries(file, &names);
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
        let found = find(entry.0, code, is_probed);
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

// ---- Functions of allocators, by their names in symbol tables: what each one allocates or frees, and by which arguments.
//
// Sources: malloc(3), posix_memalign(3), jemalloc(3), `mimalloc.h`, ISO C 7.24.3, and the Itanium C++ ABI 5.1.5 for
// operator new and operator delete (with `m` for size_t: LP64).

/// A function to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbedFunction {
    pub(super) role: AllocatorRole,
    /// Of a reallocation: the argument that the size is multiplied with.
    pub(super) items: Option<usize>,
    /// The argument with the address of the result; `None`: it returns the block.
    pub(super) result: Option<usize>,
    /// It can throw: no exception passes a return address that the kernel has replaced.
    pub(super) throws: bool,
}

const fn function(role: AllocatorRole) -> ProbedFunction {
    ProbedFunction { role, items: None, result: None, throws: false }
}

const fn allocate(bytes: usize) -> ProbedFunction {
    function(AllocatorRole::Allocate { bytes })
}

const fn items(count: usize, bytes: usize) -> ProbedFunction {
    function(AllocatorRole::AllocateItems { count, bytes })
}

const fn reallocate(block: usize, bytes: usize) -> ProbedFunction {
    function(AllocatorRole::Reallocate { block, bytes })
}

const FREE: ProbedFunction = function(AllocatorRole::Free { block: 0 });
const NEW: ProbedFunction = ProbedFunction { throws: true, ..allocate(0) };

/// Functions without which blocks would appear or disappear unseen.
pub(super) const NEEDED: [&str; 2] = ["malloc", "free"];

/// Functions with their names in C, which allocators inside a program have with a prefix.
pub(super) const FUNCTIONS: [(&str, ProbedFunction); 17] = [
    ("malloc", allocate(0)),
    ("calloc", items(0, 1)),
    ("realloc", reallocate(0, 1)),
    ("reallocarray", ProbedFunction { items: Some(1), ..reallocate(0, 2) }),
    ("memalign", allocate(1)),
    ("aligned_alloc", allocate(1)),
    ("posix_memalign", ProbedFunction { result: Some(0), ..allocate(2) }),
    ("valloc", allocate(0)),
    ("pvalloc", allocate(0)),
    ("free", FREE),
    ("cfree", FREE),
    ("free_sized", FREE),
    ("free_aligned_sized", FREE),
    ("mallocx", allocate(0)),
    ("rallocx", reallocate(0, 1)),
    ("dallocx", FREE),
    ("sdallocx", FREE),
];

/// Prefixes of these names.
pub(super) const PREFIXES: [&str; 6] = ["", "je_", "_rjem_", "mi_", "tc_", "rp"];

/// Functions that some allocators have only with their prefix.
pub(super) const PREFIXED: [(&str, ProbedFunction); 8] = [
    ("zalloc", allocate(0)),
    ("malloc_small", allocate(0)),
    ("malloc_aligned", allocate(0)),
    ("zalloc_aligned", allocate(0)),
    ("realloc_aligned", reallocate(0, 1)),
    ("free_size", FREE),
    ("free_aligned", FREE),
    ("free_size_aligned", FREE),
];

/// operator new and operator delete, which the allocators of C++ programs define beside `malloc`.
pub(super) const OPERATORS: [(&str, ProbedFunction); 20] = [
    ("_Znwm", NEW),
    ("_Znam", NEW),
    ("_ZnwmSt11align_val_t", NEW),
    ("_ZnamSt11align_val_t", NEW),
    ("_ZnwmRKSt9nothrow_t", allocate(0)),
    ("_ZnamRKSt9nothrow_t", allocate(0)),
    ("_ZnwmSt11align_val_tRKSt9nothrow_t", allocate(0)),
    ("_ZnamSt11align_val_tRKSt9nothrow_t", allocate(0)),
    ("_ZdlPv", FREE),
    ("_ZdaPv", FREE),
    ("_ZdlPvm", FREE),
    ("_ZdaPvm", FREE),
    ("_ZdlPvSt11align_val_t", FREE),
    ("_ZdaPvSt11align_val_t", FREE),
    ("_ZdlPvmSt11align_val_t", FREE),
    ("_ZdaPvmSt11align_val_t", FREE),
    ("_ZdlPvRKSt9nothrow_t", FREE),
    ("_ZdaPvRKSt9nothrow_t", FREE),
    ("_ZdlPvSt11align_val_tRKSt9nothrow_t", FREE),
    ("_ZdaPvSt11align_val_tRKSt9nothrow_t", FREE),
];

// ---- The instructions by which a function returns, for functions whose return address must stay: a C++ exception
// does not pass the trampoline of a return probe, and ends the program.

/// Most instructions on all paths.
const INSTRUCTIONS_MAX: usize = 4096;
/// Most returns: each has a probe.
const RETURNS_MAX: usize = 48;
/// Bytes of the longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;

/// Finds the returns of the function at an address. `code`: the bytes of the file at an address, up to as many.
/// `is_probed`: whether the return of the function there is seen by other means.
pub(super) fn find<'a>(
    entry: u64,
    code: impl Fn(u64, usize) -> Option<&'a [u8]>,
    is_probed: impl Fn(u64) -> bool,
) -> Option<BTreeSet<u64>> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let (mut waiting, mut seen, mut returns) = (vec![entry], BTreeSet::new(), BTreeSet::new());
    while let Some(mut at) = waiting.pop() {
        while seen.insert(at) {
            if seen.len() > INSTRUCTIONS_MAX || returns.len() > RETURNS_MAX {
                return None;
            }
            let bytes = code(at, INSTRUCTION_BYTES_MAX)?;
            let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
            let target = instruction.near_branch64();
            match instruction.mnemonic() {
                Mnemonic::Ret => {
                    returns.insert(at);
                    break;
                }
                // What follows a call that does not return may be anything.
                Mnemonic::INVALID | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Int3 => break,
                Mnemonic::Jmp if !is_direct => return None,
                Mnemonic::Jmp => {
                    if target != entry && is_probed(target) {
                        break;
                    }
                    at = target;
                    continue;
                }
                Mnemonic::Call => {}
                // Conditional branches.
                _ if is_direct => waiting.push(target),
                _ => {}
            }
            at = instruction.next_ip();
        }
    }
    Some(returns)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::addr::Avma;

    fn mapping(path: &str, inode: u64) -> Mapping {
        Mapping::of_file(Avma(0x1000 * inode)..Avma(0x1000 * inode + 0x1000), 0, path, (1, inode))
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

#[cfg(all(test, target_arch = "x86_64"))]
mod returns_tests {
    use super::*;

    fn returns(code: &[u8]) -> Option<Vec<u64>> {
        let read = |at: u64, len: usize| {
            let rest = code.get(at.checked_sub(0x1000)? as usize..)?;
            rest.get(..len.min(rest.len())).filter(|bytes| !bytes.is_empty())
        };
        let found = find(0x1000, read, |at| at == 0x1020)?;
        Some(found.into_iter().collect())
    }

    #[test]
    fn all_returns_on_its_paths_are_found() {
        // test rdi, rdi; je 0x1009; mov rax, rdi; ret; 0x1009: jmp 0x1010; ...; 0x1010: ret.
        let mut code = vec![0x48, 0x85, 0xff, 0x74, 0x04, 0x48, 0x89, 0xf8, 0xc3, 0xeb, 0x05];
        code.extend([0xcc; 5]);
        code.push(0xc3);
        assert_eq!(returns(&code), Some(vec![0x1008, 0x1010]));
        // A call to what does not return may be its last instruction.
        let call = [0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
        assert_eq!(returns(&call), Some(vec![]));
        // A jump to a function that is probed.
        assert_eq!(returns(&[0xeb, 0x1e]), Some(vec![]));
        // A jump through a register, or beyond the code.
        assert_eq!(returns(&[0xff, 0xe0]), None);
        assert_eq!(returns(&[0xeb, 0x70]), None);
        assert_eq!(returns(&[]), None);
        // It goes round.
        assert_eq!(returns(&[0xeb, 0xfe]), Some(vec![]));
    }

    #[test]
    fn hostile_code_ends_the_search() {
        let mut random = crate::rng::Rng::new(5);
        for _ in 0..2000 {
            let code: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            assert!(returns(&code).is_none_or(|found| found.len() <= RETURNS_MAX + 1));
        }
        // A slide of no-ops longer than the limit.
        assert_eq!(returns(&[0x90; 5000]), None);
    }
}
