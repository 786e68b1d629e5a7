//! Functions of allocators, by their names in symbol tables: what each one allocates or frees, and by which arguments.
//!
//! Sources: malloc(3), posix_memalign(3), jemalloc(3), `mimalloc.h`, ISO C 7.24.3, and the Itanium C++ ABI 5.1.5 for
//! operator new and operator delete (with `m` for size_t: LP64).

use crate::sources::allocator::AllocatorRole;

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
