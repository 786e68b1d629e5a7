//! The allocator's functions on macOS: calls by name from this library are not interposed. Also has the table for
//! dyld.
#![allow(unsafe_code)]

use super::entry;
use super::shared_memory::Function;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

// SAFETY: functions of libSystem, with types that fit a call with three words.
#[link(name = "System")]
unsafe extern "C" {
    fn malloc(a: usize, b: usize, c: usize) -> usize;
    fn calloc(a: usize, b: usize, c: usize) -> usize;
    fn realloc(a: usize, b: usize, c: usize) -> usize;
    fn posix_memalign(a: usize, b: usize, c: usize) -> usize;
    fn aligned_alloc(a: usize, b: usize, c: usize) -> usize;
    fn valloc(a: usize, b: usize, c: usize) -> usize;
    #[link_name = "free"]
    fn free_block(a: usize, b: usize, c: usize) -> usize;
}

// SAFETY: the type of the functions above.
type Allocate = unsafe extern "C" fn(usize, usize, usize) -> usize;

const COUNT: usize = Function::Pvalloc as usize + 1;

/// `free`, then the functions by the number of their `Function`; null if macOS lacks them.
pub static REAL: [AtomicPtr<()>; COUNT] = {
    let mut functions = [const { AtomicPtr::new(null_mut()) }; COUNT];
    functions[0] = AtomicPtr::new(free_block as *mut ());
    functions[Function::Malloc as usize] = AtomicPtr::new(malloc as *mut ());
    functions[Function::Calloc as usize] = AtomicPtr::new(calloc as *mut ());
    functions[Function::Realloc as usize] = AtomicPtr::new(realloc as *mut ());
    functions[Function::PosixMemalign as usize] = AtomicPtr::new(posix_memalign as *mut ());
    functions[Function::AlignedAlloc as usize] = AtomicPtr::new(aligned_alloc as *mut ());
    functions[Function::Valloc as usize] = AtomicPtr::new(valloc as *mut ());
    functions
};

/// An entry of the table: dyld replaces `old` with `new` in all other images.
#[repr(C)]
struct Interposed {
    new: *const (),
    old: *const (),
}

// SAFETY: constant addresses of functions.
unsafe impl Sync for Interposed {}

// SAFETY: dyld reads pairs of addresses there.
#[used]
#[unsafe(link_section = "__DATA,__interpose")]
static TABLE: [Interposed; 7] = [
    Interposed { new: entry::malloc as *const (), old: malloc as *const () },
    Interposed { new: entry::calloc as *const (), old: calloc as *const () },
    Interposed { new: entry::realloc as *const (), old: realloc as *const () },
    Interposed { new: entry::posix_memalign as *const (), old: posix_memalign as *const () },
    Interposed { new: entry::aligned_alloc as *const (), old: aligned_alloc as *const () },
    Interposed { new: entry::valloc as *const (), old: valloc as *const () },
    Interposed { new: entry::free as *const (), old: free_block as *const () },
];

/// Calls an allocator function with the program's arguments.
pub fn allocate(function: Function, a: usize, b: usize, c: usize) -> usize {
    match get(function as usize) {
        // SAFETY: the allocator's function, with the program's arguments; it ignores extra ones.
        Some(real) => unsafe { real(a, b, c) },
        None => 0,
    }
}

/// Returns a block to the allocator.
pub fn free(address: usize) {
    if let Some(real) = get(0) {
        // SAFETY: the program's argument.
        unsafe { real(address, 0, 0) };
    }
}

fn get(index: usize) -> Option<Allocate> {
    let function = REAL[index].load(Ordering::Relaxed);
    // SAFETY: one of the functions above.
    (!function.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Allocate>(function) })
}
