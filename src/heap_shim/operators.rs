//! Functions beside those of C: operator new and delete, and jemalloc's own. Most programs have them from the C++ library, which
//! calls malloc and free: then the entry points only jump on. Allocators (jemalloc, tcmalloc, mimalloc) bring their own,
//! which call neither: then allocations are counted here.
//!
//! Many programs load the C++ library after they have started, or not at all: the functions are looked up when the
//! shim is loaded, and those that were missing when they are called.
#![allow(unsafe_code)]

use super::entry;
use super::real::{self, RTLD_NEXT, symbol};
use super::shared_memory::Function;
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Names of operator new, in the order of their numbers from `Function::New` on.
const NEW_NAMES: [&CStr; 8] = [
    c"_Znwm",
    c"_Znam",
    c"_ZnwmSt11align_val_t",
    c"_ZnamSt11align_val_t",
    c"_ZnwmRKSt9nothrow_t",
    c"_ZnamRKSt9nothrow_t",
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
];

/// Where the entry points of operator new continue; null until it is known.
pub static NEW: [AtomicPtr<()>; NEW_NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NEW_NAMES.len()];

/// Names of functions that free the block in their first argument, by index.
const FREE_NAMES: [&CStr; 14] = [
    c"_ZdlPv",
    c"_ZdaPv",
    c"_ZdlPvm",
    c"_ZdaPvm",
    c"_ZdlPvSt11align_val_t",
    c"_ZdaPvSt11align_val_t",
    c"_ZdlPvmSt11align_val_t",
    c"_ZdaPvmSt11align_val_t",
    c"_ZdlPvRKSt9nothrow_t",
    c"_ZdaPvRKSt9nothrow_t",
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
    c"dallocx",
    c"sdallocx",
];

/// Where their entry points continue; null until it is known.
pub static FREES: [AtomicPtr<()>; FREE_NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; FREE_NAMES.len()];

/// C++ libraries, which a program without one may load for its plugins only.
const LIBRARIES: [&CStr; 3] = [c"libstdc++.so.6", c"libc++.so.1", c"libc++abi.so.1"];

/// Looks up the functions in libraries that were loaded at the start.
pub fn look_up_loaded() {
    let find = |name: &CStr| symbol(RTLD_NEXT, name);
    for (at, name) in FREES.iter().zip(FREE_NAMES) {
        at.store(find(name), Ordering::Release);
    }
    let found = NEW_NAMES.map(find);
    let is_own = |new: &*mut ()| real::is_in_allocator(*new as usize);
    for (index, ((at, new), counted)) in NEW.iter().zip(found).zip(entry::COUNTED_NEW).enumerate() {
        real::set(Function::New as usize + index, new);
        at.store(if is_own(&new) { counted as *mut () } else { new }, Ordering::Release);
    }
}

/// Looks up the functions that are null, for one that is called; those of no library are replaced by malloc and free.
pub extern "C" fn look_up() {
    real::load();
    let find = |name: &CStr, otherwise: *mut ()| {
        let found = symbol(RTLD_NEXT, name);
        let loaded = LIBRARIES.map(real::loaded_library);
        let mut all = [found].into_iter().chain(loaded.into_iter().filter(|library| !library.is_null()).map(|library| symbol(library, name)));
        all.find(|found| !found.is_null()).unwrap_or(otherwise)
    };
    for (at, name) in FREES.iter().zip(FREE_NAMES) {
        if at.load(Ordering::Acquire).is_null() {
            at.store(find(name, entry::free as *mut ()), Ordering::Release);
        }
    }
    for (index, (at, name)) in NEW.iter().zip(NEW_NAMES).enumerate() {
        let is_aligned = index % 4 >= 2;
        let otherwise = if is_aligned { entry::new_aligned as *mut () } else { entry::malloc as *mut () };
        if at.load(Ordering::Acquire).is_null() {
            at.store(find(name, otherwise), Ordering::Release);
        }
    }
}
