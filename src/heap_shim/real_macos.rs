//! The allocator's functions on macOS: calls by name from this library are not interposed. Also has the table for
//! dyld.
//!
//! Beside those of C, macOS has functions of zones, and since version 14 typed ones, which compilers call in their place
//! (libmalloc, include/malloc/_malloc_type.h). The typed ones are imported weakly: dyld skips a pair of the table whose
//! function does not exist (dyld-1378, `RuntimeState::appendInterposingTuples`). A sampled allocation is made by
//! the function without a type.
//!
//! Calls inside of libmalloc are interposed, too (it is linked with -interposable_list). Nothing is counted twice because the
//! typed functions are in the table: if only those of C were interposed, libmalloc would call these from the typed ones
//! (`malloc_interposition_compat`).
//!
//! macOS 26 has functions with options and of batches. A zone of an older version has neither: then libmalloc calls
//! `malloc_zone_malloc` for an allocation with options, which counts twice towards the next sample. What a program calls through
//! the pointers of a zone (`free_definite_size`) is not seen.
#![allow(unsafe_code)]

use super::entry;
use super::shared_memory::Function;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Declares functions of libSystem with types that fit a call with three words.
macro_rules! functions {
    ($($name:ident),+) => {
        // SAFETY: functions of libSystem; a call with more words than they take is sound.
        #[link(name = "System")]
        unsafe extern "C" {
            $(fn $name(a: usize, b: usize, c: usize) -> usize;)+
        }
    };
}

functions!(malloc, calloc, realloc, posix_memalign, aligned_alloc, valloc);
functions!(malloc_zone_malloc, malloc_zone_calloc, malloc_zone_realloc, malloc_zone_memalign);
functions!(malloc_zone_valloc, malloc_zone_free);
functions!(malloc_type_malloc, malloc_type_calloc, malloc_type_realloc, malloc_type_posix_memalign);
functions!(malloc_type_aligned_alloc, malloc_type_valloc, malloc_type_free);
functions!(malloc_type_zone_malloc, malloc_type_zone_calloc, malloc_type_zone_realloc);
functions!(malloc_type_zone_memalign, malloc_type_zone_valloc, malloc_type_zone_free);
functions!(malloc_zone_malloc_with_options, malloc_type_zone_malloc_with_options, malloc_zone_batch_malloc);
functions!(malloc_zone_batch_free, malloc_zone_free_definite_size);

// SAFETY: the type in stdlib.h, as far as it matters for a call with three words.
#[link(name = "System")]
unsafe extern "C" {
    #[link_name = "free"]
    fn free_block(a: usize, b: usize, c: usize) -> usize;
}

core::arch::global_asm!(
    ".weak_reference _malloc_type_malloc",
    ".weak_reference _malloc_type_calloc",
    ".weak_reference _malloc_type_realloc",
    ".weak_reference _malloc_type_posix_memalign",
    ".weak_reference _malloc_type_aligned_alloc",
    ".weak_reference _malloc_type_valloc",
    ".weak_reference _malloc_type_free",
    ".weak_reference _malloc_type_zone_malloc",
    ".weak_reference _malloc_type_zone_calloc",
    ".weak_reference _malloc_type_zone_realloc",
    ".weak_reference _malloc_type_zone_memalign",
    ".weak_reference _malloc_type_zone_valloc",
    ".weak_reference _malloc_type_zone_free",
    ".weak_reference _malloc_zone_malloc_with_options",
    ".weak_reference _malloc_type_zone_malloc_with_options",
    ".weak_reference _malloc_zone_batch_malloc",
    ".weak_reference _malloc_zone_batch_free",
    ".weak_reference _malloc_zone_free_definite_size",
);

// SAFETY: the type of the functions above.
type Allocate = unsafe extern "C" fn(usize, usize, usize) -> usize;

/// Indexes of functions without a number of `Function`.
pub mod index {
    pub const FREE: usize = 0;
    pub const ZONE_FREE: usize = 15;
    pub const TYPE_MALLOC: usize = 16;
    pub const TYPE_CALLOC: usize = 17;
    pub const TYPE_REALLOC: usize = 18;
    pub const TYPE_POSIX_MEMALIGN: usize = 19;
    pub const TYPE_ALIGNED_ALLOC: usize = 20;
    pub const TYPE_VALLOC: usize = 21;
    pub const TYPE_FREE: usize = 22;
    pub const TYPE_ZONE_MALLOC: usize = 23;
    pub const TYPE_ZONE_CALLOC: usize = 24;
    pub const TYPE_ZONE_REALLOC: usize = 25;
    pub const TYPE_ZONE_MEMALIGN: usize = 26;
    pub const TYPE_ZONE_VALLOC: usize = 27;
    pub const TYPE_ZONE_FREE: usize = 28;
    pub const ZONE_WITH_OPTIONS: usize = 29;
    pub const TYPE_ZONE_WITH_OPTIONS: usize = 30;
    pub const ZONE_BATCH_MALLOC: usize = 31;
    pub const ZONE_BATCH_FREE: usize = 32;
    pub const ZONE_FREE_DEFINITE_SIZE: usize = 33;
    pub const COUNT: usize = 34;
}

/// The functions by the number of their `Function` or by `index`; null if macOS lacks them.
pub static REAL: [AtomicPtr<()>; index::COUNT] = {
    let mut functions = [const { AtomicPtr::new(null_mut()) }; index::COUNT];
    functions[index::FREE] = AtomicPtr::new(free_block as *mut ());
    functions[Function::Malloc as usize] = AtomicPtr::new(malloc as *mut ());
    functions[Function::Calloc as usize] = AtomicPtr::new(calloc as *mut ());
    functions[Function::Realloc as usize] = AtomicPtr::new(realloc as *mut ());
    functions[Function::PosixMemalign as usize] = AtomicPtr::new(posix_memalign as *mut ());
    functions[Function::AlignedAlloc as usize] = AtomicPtr::new(aligned_alloc as *mut ());
    functions[Function::Valloc as usize] = AtomicPtr::new(valloc as *mut ());
    functions[Function::ZoneMalloc as usize] = AtomicPtr::new(malloc_zone_malloc as *mut ());
    functions[Function::ZoneCalloc as usize] = AtomicPtr::new(malloc_zone_calloc as *mut ());
    functions[Function::ZoneRealloc as usize] = AtomicPtr::new(malloc_zone_realloc as *mut ());
    functions[Function::ZoneMemalign as usize] = AtomicPtr::new(malloc_zone_memalign as *mut ());
    functions[Function::ZoneValloc as usize] = AtomicPtr::new(malloc_zone_valloc as *mut ());
    functions[index::ZONE_FREE] = AtomicPtr::new(malloc_zone_free as *mut ());
    functions[index::TYPE_MALLOC] = AtomicPtr::new(malloc_type_malloc as *mut ());
    functions[index::TYPE_CALLOC] = AtomicPtr::new(malloc_type_calloc as *mut ());
    functions[index::TYPE_REALLOC] = AtomicPtr::new(malloc_type_realloc as *mut ());
    functions[index::TYPE_POSIX_MEMALIGN] = AtomicPtr::new(malloc_type_posix_memalign as *mut ());
    functions[index::TYPE_ALIGNED_ALLOC] = AtomicPtr::new(malloc_type_aligned_alloc as *mut ());
    functions[index::TYPE_VALLOC] = AtomicPtr::new(malloc_type_valloc as *mut ());
    functions[index::TYPE_FREE] = AtomicPtr::new(malloc_type_free as *mut ());
    functions[index::TYPE_ZONE_MALLOC] = AtomicPtr::new(malloc_type_zone_malloc as *mut ());
    functions[index::TYPE_ZONE_CALLOC] = AtomicPtr::new(malloc_type_zone_calloc as *mut ());
    functions[index::TYPE_ZONE_REALLOC] = AtomicPtr::new(malloc_type_zone_realloc as *mut ());
    functions[index::TYPE_ZONE_MEMALIGN] = AtomicPtr::new(malloc_type_zone_memalign as *mut ());
    functions[index::TYPE_ZONE_VALLOC] = AtomicPtr::new(malloc_type_zone_valloc as *mut ());
    functions[index::TYPE_ZONE_FREE] = AtomicPtr::new(malloc_type_zone_free as *mut ());
    functions[index::ZONE_WITH_OPTIONS] = AtomicPtr::new(malloc_zone_malloc_with_options as *mut ());
    functions[index::TYPE_ZONE_WITH_OPTIONS] = AtomicPtr::new(malloc_type_zone_malloc_with_options as *mut ());
    functions[index::ZONE_BATCH_MALLOC] = AtomicPtr::new(malloc_zone_batch_malloc as *mut ());
    functions[index::ZONE_BATCH_FREE] = AtomicPtr::new(malloc_zone_batch_free as *mut ());
    functions[index::ZONE_FREE_DEFINITE_SIZE] = AtomicPtr::new(malloc_zone_free_definite_size as *mut ());
    functions
};

/// An entry of the table: dyld replaces `old` with `new` in all other images.
#[repr(C)]
struct Interposition {
    new: *const (),
    old: *const (),
}

// SAFETY: constant addresses of functions.
unsafe impl Sync for Interposition {}

/// The table: functions that have an entry point of their own name.
macro_rules! table {
    ($count:literal: $($name:ident),+) => {
        // SAFETY: dyld reads pairs of addresses there.
        #[used]
        #[unsafe(link_section = "__DATA,__interpose")]
        static TABLE: [Interposition; $count] = [
            Interposition { new: entry::free as *const (), old: free_block as *const () },
            $(Interposition { new: entry::$name as *const (), old: $name as *const () },)+
        ];
    };
}

table!(31:
    malloc, calloc, realloc, posix_memalign, aligned_alloc, valloc,
    malloc_zone_malloc, malloc_zone_calloc, malloc_zone_realloc, malloc_zone_memalign, malloc_zone_valloc,
    malloc_zone_free,
    malloc_type_malloc, malloc_type_calloc, malloc_type_realloc, malloc_type_posix_memalign,
    malloc_type_aligned_alloc, malloc_type_valloc, malloc_type_free,
    malloc_type_zone_malloc, malloc_type_zone_calloc, malloc_type_zone_realloc, malloc_type_zone_memalign,
    malloc_type_zone_valloc, malloc_type_zone_free,
    malloc_zone_malloc_with_options, malloc_type_zone_malloc_with_options, malloc_zone_batch_malloc,
    malloc_zone_batch_free, malloc_zone_free_definite_size
);

/// Calls an allocator function with the program's arguments.
pub fn allocate(function: Function, a: usize, b: usize, c: usize) -> usize {
    match get(function as usize) {
        // SAFETY: the allocator's function, with the program's arguments; it ignores extra ones.
        Some(real) => unsafe { real(a, b, c) },
        None => 0,
    }
}

/// Calls a function by its index, with up to six of the program's arguments.
pub fn call(index: usize, [a, b, c, d, e, f]: [usize; 6]) -> usize {
    // SAFETY: the type of a call with six words.
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    let function = REAL.get(index).map_or(null_mut(), |at| at.load(Ordering::Relaxed));
    if function.is_null() {
        return 0;
    }
    // SAFETY: a function of libSystem, with the program's arguments; it ignores extra ones.
    unsafe { core::mem::transmute::<*mut (), Call>(function)(a, b, c, d, e, f) }
}

/// Returns a block to the allocator.
pub fn free(address: usize) {
    if let Some(real) = get(index::FREE) {
        // SAFETY: the program's argument.
        unsafe { real(address, 0, 0) };
    }
}

/// Returns a block to its zone.
pub fn free_in_zone(zone: usize, address: usize) {
    if let Some(real) = get(index::ZONE_FREE) {
        // SAFETY: the program's arguments.
        unsafe { real(zone, address, 0) };
    }
}

fn get(index: usize) -> Option<Allocate> {
    let function = REAL.get(index)?.load(Ordering::Relaxed);
    // SAFETY: one of the functions above.
    (!function.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Allocate>(function) })
}
