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

/// An entry of the table: dyld replaces `old` with `new` in all other images.
#[repr(C)]
struct Interposition {
    new: *const (),
    old: *const (),
}

// SAFETY: constant addresses of functions.
unsafe impl Sync for Interposition {}

/// Declares functions of libSystem by their names and their places in `REAL`: those that every version has, and those that
/// are imported weakly. Each has an entry in the table for dyld, and an entry point of the same name.
macro_rules! functions {
    ($($name:ident = $place:expr),+; $($weak:ident = $weak_place:expr),+) => {
        /// The functions, with types that fit a call with three words.
        mod libsystem {
            // SAFETY: functions of libSystem; a call with more words than they take is sound.
            #[link(name = "System")]
            unsafe extern "C" {
                $(pub fn $name(a: usize, b: usize, c: usize) -> usize;)+
                $(pub fn $weak(a: usize, b: usize, c: usize) -> usize;)+
            }
            core::arch::global_asm!($(concat!(".weak_reference _", stringify!($weak))),+);
        }

        /// Their places in `REAL`.
        #[allow(non_upper_case_globals)]
        pub mod index {
            use super::Function;
            $(pub const $name: usize = $place;)+
            $(pub const $weak: usize = $weak_place;)+
        }

        /// The functions by the number of their `Function` or by `index`; null if macOS lacks them.
        pub static REAL: [AtomicPtr<()>; COUNT] = {
            let mut functions = [const { AtomicPtr::new(null_mut()) }; COUNT];
            $(functions[index::$name] = AtomicPtr::new(libsystem::$name as *mut ());)+
            $(functions[index::$weak] = AtomicPtr::new(libsystem::$weak as *mut ());)+
            functions
        };

        // SAFETY: dyld reads pairs of addresses there.
        #[used]
        #[unsafe(link_section = "__DATA,__interpose")]
        static TABLE: [Interposition; [$(index::$name,)+ $(index::$weak),+].len()] = [
            $(Interposition { new: entry::$name as *const (), old: libsystem::$name as *const () },)+
            $(Interposition { new: entry::$weak as *const (), old: libsystem::$weak as *const () },)+
        ];
    };
}

functions!(
    free = 0,
    malloc = Function::Malloc as usize,
    calloc = Function::Calloc as usize,
    realloc = Function::Realloc as usize,
    posix_memalign = Function::PosixMemalign as usize,
    aligned_alloc = Function::AlignedAlloc as usize,
    valloc = Function::Valloc as usize,
    malloc_zone_malloc = Function::ZoneMalloc as usize,
    malloc_zone_calloc = Function::ZoneCalloc as usize,
    malloc_zone_realloc = Function::ZoneRealloc as usize,
    malloc_zone_memalign = Function::ZoneMemalign as usize,
    malloc_zone_valloc = Function::ZoneValloc as usize,
    malloc_zone_free = 15;
    malloc_type_malloc = 16,
    malloc_type_calloc = 17,
    malloc_type_realloc = 18,
    malloc_type_posix_memalign = 19,
    malloc_type_aligned_alloc = 20,
    malloc_type_valloc = 21,
    malloc_type_free = 22,
    malloc_type_zone_malloc = 23,
    malloc_type_zone_calloc = 24,
    malloc_type_zone_realloc = 25,
    malloc_type_zone_memalign = 26,
    malloc_type_zone_valloc = 27,
    malloc_type_zone_free = 28,
    malloc_zone_malloc_with_options = 29,
    malloc_type_zone_malloc_with_options = 30,
    malloc_zone_batch_malloc = 31,
    malloc_zone_batch_free = 32,
    malloc_zone_free_definite_size = 33
);

/// Number of places in `REAL`.
const COUNT: usize = index::malloc_zone_free_definite_size + 1;

// SAFETY: the type of the functions above.
type Allocate = unsafe extern "C" fn(usize, usize, usize) -> usize;

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
    if let Some(real) = get(index::free) {
        // SAFETY: the program's argument.
        unsafe { real(address, 0, 0) };
    }
}

/// Returns a block to its zone.
pub fn free_in_zone(zone: usize, address: usize) {
    if let Some(real) = get(index::malloc_zone_free) {
        // SAFETY: the program's arguments.
        unsafe { real(zone, address, 0) };
    }
}

fn get(index: usize) -> Option<Allocate> {
    let function = REAL.get(index)?.load(Ordering::Relaxed);
    // SAFETY: one of the functions above.
    (!function.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Allocate>(function) })
}
