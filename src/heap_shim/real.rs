//! The allocator's functions: those of the next library that has them, libc or another allocator that the
//! program links. They are looked up at the first call; allocations during the lookup come from a small
//! bootstrap memory.
//!
//! Beside those of C: operator new and delete, and jemalloc's own. Most programs have them from the C++ library, which
//! calls malloc and free: then the entry points only jump on. Allocators (jemalloc, tcmalloc, mimalloc) bring their own,
//! which call neither: then allocations are counted. Many programs load the C++ library after they have started, or
//! not at all: those that were missing are looked up when they are called.
#![allow(unsafe_code)]

use super::block_set::filter_index;
use super::entry;
use super::process::FILTER;
use super::request::Request;
use super::shared_memory::Function;
use super::system::weak_symbol;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Number of functions: `free`, then those of `Function`, with their numbers as indexes.
const COUNT: usize = Function::Rallocx as usize + 1;

/// Index of `free`.
pub const FREE: usize = 0;

/// The functions, null until they are looked up; the entry points jump to them. Only `free` can be called
/// before any thread has allocated.
pub static REAL: [AtomicPtr<()>; COUNT] = {
    let mut functions = [const { AtomicPtr::new(null_mut()) }; COUNT];
    functions[FREE] = AtomicPtr::new(first_free as *mut ());
    functions
};

static LOOK_UP: AtomicU32 = AtomicU32::new(NOT_BEGUN);
const NOT_BEGUN: u32 = 0;
const BUSY: u32 = 1;
const DONE: u32 = 2;

// SAFETY: the types of the C standard, as far as they matter for a call with three words.
type Allocate = unsafe extern "C" fn(usize, usize, usize) -> usize;
// SAFETY: the type in dlsym(3).
type Dlsym = unsafe extern "C" fn(*const (), *const u8) -> *mut ();

fn look_up() -> bool {
    if LOOK_UP.load(Ordering::Acquire) == DONE {
        return true;
    }
    if LOOK_UP.compare_exchange(NOT_BEGUN, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return LOOK_UP.load(Ordering::Acquire) == DONE;
    }
    let find = |name: &core::ffi::CStr, of_glibc: *const ()| {
        let found = symbol(RTLD_NEXT, name);
        if found.is_null() { of_glibc.cast_mut() } else { found }
    };
    let none = core::ptr::null();
    // First: of a name that is not there, dlsym allocates its message, and allocators map memory.
    for index in 0..libc_function::NAMES.len() {
        libc_function_at(index);
    }
    let names: [(&core::ffi::CStr, *const (), *const ()); 12] = [
        (c"free", weak_symbol!("__libc_free"), none),
        (c"malloc", weak_symbol!("__libc_malloc"), none),
        (c"calloc", weak_symbol!("__libc_calloc"), none),
        (c"realloc", weak_symbol!("__libc_realloc"), none),
        (c"reallocarray", none, missing::<4> as *const ()),
        (c"posix_memalign", none, missing::<5> as *const ()),
        (c"aligned_alloc", weak_symbol!("__libc_memalign"), missing::<6> as *const ()),
        (c"memalign", weak_symbol!("__libc_memalign"), none),
        (c"valloc", weak_symbol!("__libc_valloc"), missing::<8> as *const ()),
        (c"pvalloc", weak_symbol!("__libc_pvalloc"), missing::<9> as *const ()),
        (c"mallocx", none, missing::<25> as *const ()),
        (c"rallocx", none, missing::<26> as *const ()),
    ];
    let numbers =
        (FREE..=Function::Pvalloc as usize).chain([Function::Mallocx as usize, Function::Rallocx as usize]);
    for (number, (name, of_glibc, replacement)) in numbers.zip(names) {
        let mut found = find(name, of_glibc);
        // That of glibc calls realloc by its name, which would count twice.
        if found.is_null() || number == Function::Reallocarray as usize {
            found = replacement.cast_mut();
        }
        set(number, found);
    }
    let library = library_of(REAL[Function::Malloc as usize].load(Ordering::Relaxed));
    for (at, address) in ALLOCATOR.iter().zip(library.unwrap_or_default()) {
        at.store(address, Ordering::Relaxed);
    }
    look_up_loaded_operators();
    LOOK_UP.store(DONE, Ordering::Release);
    true
}

/// One of `LIBC_FUNCTIONS`; null if libc has none. An allocator of the program maps memory while it holds its locks, maybe
/// before the shim is loaded: only that function is looked up then, which allocates nothing, because libc has it.
fn libc_function_at(index: usize) -> *mut () {
    let (Some(at), Some(name)) = (LIBC_FUNCTIONS.get(index), libc_function::NAMES.get(index)) else {
        return null_mut();
    };
    let mut function = at.load(Ordering::Acquire);
    if function.is_null() {
        function = symbol(RTLD_NEXT, name);
        at.store(function, Ordering::Release);
    }
    function
}

/// The libraries after this one.
pub const RTLD_NEXT: *const () = usize::MAX as *const ();

/// Stores a function under a number of `Function`.
pub fn set(number: usize, function: *mut ()) {
    if let Some(at) = REAL.get(number) {
        at.store(function, Ordering::Release);
    }
}

/// Looks up a symbol in libraries (dlsym(3)); null if there is none.
pub fn symbol(libraries: *const (), name: &core::ffi::CStr) -> *mut () {
    let dlsym = weak_symbol!("dlsym");
    if dlsym.is_null() {
        return null_mut();
    }
    // SAFETY: the function of that name has this type in every libc.
    let dlsym: Dlsym = unsafe { core::mem::transmute(dlsym) };
    // SAFETY: a C string.
    unsafe { dlsym(libraries, name.as_ptr().cast()) }
}

/// A library that is loaded already; null if it is not.
pub fn loaded_library(name: &core::ffi::CStr) -> *const () {
    const RTLD_LAZY_NOLOAD: usize = 1 | 4;
    let dlopen =
        LIBC_FUNCTIONS.get(libc_function::dlopen).map_or(null_mut(), |at| at.load(Ordering::Acquire));
    if dlopen.is_null() {
        return core::ptr::null();
    }
    // SAFETY: `dlopen` of libc, with a C string.
    let found = unsafe {
        core::mem::transmute::<*mut (), Allocate>(dlopen)(name.as_ptr() as usize, RTLD_LAZY_NOLOAD, 0)
    };
    found as *const ()
}

/// Stands for a function that is not there: the program checked whether it exists, and found the shim's.
extern "C" fn missing<const NUMBER: u32>(a: usize, b: usize, c: usize) -> usize {
    replace(super::request::function(NUMBER), a, b, c)
}

/// Looks up the functions: when the shim is loaded.
pub extern "C" fn load() {
    look_up();
}

/// Looks up one of `LIBC_FUNCTIONS` for a caller that the shim is not loaded for yet.
pub extern "C" fn look_up_libc_function<const INDEX: usize>() {
    libc_function_at(INDEX);
}

/// Functions by their names: a module with the index of each one, and the names.
macro_rules! functions {
    ($(#[$comment:meta])* $module:ident: $($name:ident),+) => {
        $(#[$comment])*
        #[allow(dead_code, non_camel_case_types, non_upper_case_globals)]
        pub mod $module {
            enum Index { $($name),+ }
            $(pub const $name: usize = Index::$name as usize;)+
            pub const NAMES: [&core::ffi::CStr; [$($name),+].len()] =
                [$(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }),+];
        }
    };
}

functions!(
    /// Other functions of libc, which the shim observes.
    libc_function: prctl, syscall, sigaction, signal, bsd_signal, sysv_signal, __sysv_signal, ssignal, sigset, mmap,
        mmap64, munmap, mremap, dlopen, dlmopen, dlclose
);

/// Those functions; null until they are looked up, and where libc has none.
pub static LIBC_FUNCTIONS: [AtomicPtr<()>; libc_function::NAMES.len()] =
    [const { AtomicPtr::new(null_mut()) }; libc_function::NAMES.len()];

/// Calls one of `LIBC_FUNCTIONS` with the program's arguments; -1 if libc has no such function.
pub fn call(index: usize, arguments: [usize; 6]) -> usize {
    // SAFETY: the type of a call with six words.
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    let mut function = libc_function_at(index);
    if function.is_null() && index == libc_function::mmap64 {
        // musl has none.
        function = libc_function_at(libc_function::mmap);
    }
    if function.is_null() {
        return usize::MAX;
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: looked up by the name of a function that takes at most six words and returns one.
    unsafe { core::mem::transmute::<*mut (), Call>(function)(a, b, c, d, e, f) }
}

/// Code of the library with the allocator: begin and end; empty if unknown.
static ALLOCATOR: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether code belongs to the library with the allocator. Makes no call: the thread may hold a lock of the allocator,
/// and dladdr waits for that of the dynamic linker, which allocates under it.
pub fn is_in_allocator(address: usize) -> bool {
    let [begin, end] = ALLOCATOR.each_ref().map(|at| at.load(Ordering::Relaxed));
    (begin..end).contains(&address)
}

/// The addresses of the library with this function, by its program headers (`Elf64_Ehdr`, `Elf64_Phdr` in elf.h).
fn library_of(function: *const ()) -> Option<[usize; 2]> {
    const LOAD: u32 = 1;
    const PHDR_SIZE: usize = 56;
    // SAFETY: the type in dladdr(3).
    type Dladdr = unsafe extern "C" fn(*const (), *mut [usize; 4]) -> i32;
    let dladdr = weak_symbol!("dladdr");
    if dladdr.is_null() {
        return None;
    }
    // SAFETY: the function of that name has this type in every libc.
    let dladdr: Dladdr = unsafe { core::mem::transmute(dladdr) };
    let mut found = [0; 4];
    // SAFETY: a `Dl_info` has four words; the second one is where the library is loaded.
    let is_found = unsafe { dladdr(function, &raw mut found) } != 0;
    let header: *const u8 = core::ptr::with_exposed_provenance(found[1]);
    // SAFETY: a library is loaded with its header at its start.
    if !is_found || header.is_null() || unsafe { header.cast::<[u8; 4]>().read() } != *b"\x7fELF" {
        return None;
    }
    // SAFETY: fields of the header, and program headers, which the dynamic linker reads there, too.
    let word = |at: usize| unsafe { header.add(at).cast::<u64>().read_unaligned() as usize };
    // SAFETY: as above.
    let half = |at: usize| unsafe { header.add(at).cast::<u32>().read_unaligned() };
    let (table, count) = (word(32), half(56) as u16 as usize);
    let (mut begin, mut end) = (usize::MAX, 0);
    for at in (0..count).map(|index| table + index * PHDR_SIZE) {
        if half(at) == LOAD {
            let (address, size) = (word(at + 16), word(at + 40));
            (begin, end) = (begin.min(address & !0xfff), end.max(address.wrapping_add(size)));
        }
    }
    let size = end.checked_sub(begin)?;
    Some([found[1], found[1].saturating_add(size)])
}

/// Calls an allocator function with the program's arguments.
pub fn allocate(function: Function, a: usize, b: usize, c: usize) -> usize {
    if !look_up() {
        return from_bootstrap(function, a, b, c);
    }
    if matches!(function, Function::Realloc | Function::Reallocarray | Function::Rallocx)
        && let Some(size) = bootstrap_size(a)
    {
        let is_array = function == Function::Reallocarray;
        return leave_bootstrap(a, size, if is_array { b.saturating_mul(c) } else { b });
    }
    let (number, [a, b, c]) = match function {
        // Exceptions cannot pass this library: null makes the entry point call the one that throws.
        Function::New | Function::NewArray => {
            (function as usize + NOTHROW, [a, NO_THROW.as_ptr() as usize, 0])
        }
        Function::NewAligned | Function::NewArrayAligned => {
            (function as usize + NOTHROW, [a, b, NO_THROW.as_ptr() as usize])
        }
        _ => (function as usize, [a, b, c]),
    };
    // Without an operator that does not throw there is no C++ library, and none throws.
    match get(number).or_else(|| get(function as usize)) {
        // SAFETY: the allocator's function, with the program's arguments; it ignores extra ones.
        Some(real) => unsafe { real(a, b, c) },
        None => replace(function, a, b, c),
    }
}

/// Distance from an operator new to the one that does not throw.
const NOTHROW: usize = Function::NewNothrow as usize - Function::New as usize;
/// `std::nothrow`, of an empty type.
static NO_THROW: [u8; 1] = [0];

fn get(index: usize) -> Option<Allocate> {
    let function = REAL.get(index)?.load(Ordering::Acquire);
    // SAFETY: looked up by the name of a function that takes at most three words and returns one.
    (!function.is_null()).then(|| unsafe { core::mem::transmute::<*mut (), Allocate>(function) })
}

/// `ENOMEM` of Linux and macOS.
const ENOMEM: usize = 12;

/// Emulates a function that this libc lacks.
fn replace(function: Function, a: usize, b: usize, c: usize) -> usize {
    const PAGE: usize = 4096;
    match function {
        // The largest size is refused.
        Function::Reallocarray => allocate(Function::Realloc, a, b.saturating_mul(c), 0),
        Function::AlignedAlloc => allocate(Function::Memalign, a, b, 0),
        Function::Valloc => allocate(Function::Memalign, PAGE, a, 0),
        Function::Pvalloc => allocate(Function::Memalign, PAGE, a.next_multiple_of(PAGE), 0),
        Function::PosixMemalign => {
            let block = allocate(Function::Memalign, b, c, 0);
            if block == 0 {
                return ENOMEM;
            }
            // SAFETY: the program passed it for this.
            unsafe { *(a as *mut usize) = block };
            0
        }
        Function::Mallocx => {
            // MALLOCX_LG_ALIGN, MALLOCX_ZERO (jemalloc(3)).
            let (alignment, is_zero) = (1 << (b & 0x3f), b & 0x40 != 0);
            match (alignment > 16, is_zero) {
                (false, false) => allocate(Function::Malloc, a, 0, 0),
                (false, true) => allocate(Function::Calloc, a, 1, 0),
                (true, _) => {
                    let block = allocate(Function::Memalign, alignment, a, 0);
                    if is_zero && block != 0 {
                        // SAFETY: as many bytes as were allocated.
                        unsafe { core::ptr::write_bytes(block as *mut u8, 0, a) };
                    }
                    block
                }
            }
        }
        Function::Rallocx => allocate(Function::Realloc, a, b, 0),
        // Of every libc, of macOS, or only called if they are there.
        _ => 0,
    }
}

/// Returns a block to the allocator.
pub fn free(address: usize) {
    if bootstrap_size(address).is_some() || !look_up() {
        return;
    }
    if let Some(real) = get(FREE) {
        // SAFETY: the program's argument.
        unsafe { real(address, 0, 0) };
    }
}

extern "C" fn first_free(address: usize) {
    if look_up() && get(FREE).is_some_and(|real| real as *const () != first_free as *const ()) {
        free(address);
    }
}

// ---- Blocks allocated during the lookup.

const BOOTSTRAP_SIZE: usize = 16384;

#[repr(align(16))]
struct Bootstrap(UnsafeCell<[u8; BOOTSTRAP_SIZE]>);

// SAFETY: each thread reserves separate bytes by adding to BOOTSTRAP_USED.
unsafe impl Sync for Bootstrap {}

static BOOTSTRAP: Bootstrap = Bootstrap(UnsafeCell::new([0; BOOTSTRAP_SIZE]));
static BOOTSTRAP_USED: AtomicUsize = AtomicUsize::new(0);
/// Bytes before each block for its size.
const HEADER: usize = 16;

fn from_bootstrap(function: Function, a: usize, b: usize, c: usize) -> usize {
    if function == Function::PosixMemalign {
        return ENOMEM;
    }
    let Request { old_block, size } = Request::new(function, a, b, c);
    let size = size as usize;
    if size > BOOTSTRAP_SIZE {
        return 0;
    }
    let length = size.next_multiple_of(HEADER) + HEADER;
    let at = BOOTSTRAP_USED.fetch_add(length, Ordering::Relaxed);
    if at.saturating_add(length) > BOOTSTRAP_SIZE {
        return 0;
    }
    let base = BOOTSTRAP.0.get().cast::<u8>();
    // SAFETY: these bytes belong to this call, and are aligned.
    let block = unsafe {
        base.add(at).cast::<usize>().write(size);
        base.add(at + HEADER)
    };
    // Routes frees of it to this library.
    FILTER[filter_index(block as u64)].store(u8::MAX, Ordering::Relaxed);
    if let Some(old_size) = bootstrap_size(old_block as usize) {
        // SAFETY: both blocks have that many bytes.
        unsafe { core::ptr::copy_nonoverlapping(old_block as *const u8, block, old_size.min(size)) };
    }
    block as usize
}

fn bootstrap_size(address: usize) -> Option<usize> {
    let begin = BOOTSTRAP.0.get() as usize;
    // SAFETY: blocks in this memory are preceded by their size.
    (address > begin && address < begin + BOOTSTRAP_SIZE)
        .then(|| unsafe { *((address - HEADER) as *const usize) })
}

fn leave_bootstrap(old: usize, old_size: usize, size: usize) -> usize {
    let block = allocate(Function::Malloc, size, 0, 0);
    if block != 0 {
        // SAFETY: both blocks have that many bytes.
        unsafe { core::ptr::copy_nonoverlapping(old as *const u8, block as *mut u8, old_size.min(size)) };
    }
    block
}

functions!(
    /// Each operator new, in the order of their numbers from `Function::New` on.
    operator_new: _Znwm, _Znam, _ZnwmSt11align_val_t, _ZnamSt11align_val_t, _ZnwmRKSt9nothrow_t, _ZnamRKSt9nothrow_t,
        _ZnwmSt11align_val_tRKSt9nothrow_t, _ZnamSt11align_val_tRKSt9nothrow_t
);

/// Where the entry points of operator new continue; null until it is known.
pub static NEW: [AtomicPtr<()>; operator_new::NAMES.len()] =
    [const { AtomicPtr::new(null_mut()) }; operator_new::NAMES.len()];

functions!(
    /// Functions that free the block in their first argument.
    operator_free: _ZdlPv, _ZdaPv, _ZdlPvm, _ZdaPvm, _ZdlPvSt11align_val_t, _ZdaPvSt11align_val_t,
        _ZdlPvmSt11align_val_t, _ZdaPvmSt11align_val_t, _ZdlPvRKSt9nothrow_t, _ZdaPvRKSt9nothrow_t,
        _ZdlPvSt11align_val_tRKSt9nothrow_t, _ZdaPvSt11align_val_tRKSt9nothrow_t, dallocx, sdallocx
);

/// Where their entry points continue; null until it is known.
pub static FREES: [AtomicPtr<()>; operator_free::NAMES.len()] =
    [const { AtomicPtr::new(null_mut()) }; operator_free::NAMES.len()];

/// C++ libraries, which a program without one may load for its plugins only.
const LIBRARIES: [&core::ffi::CStr; 3] = [c"libstdc++.so.6", c"libc++.so.1", c"libc++abi.so.1"];

/// Looks up the functions in libraries that were loaded at the start.
fn look_up_loaded_operators() {
    let find = |name: &core::ffi::CStr| symbol(RTLD_NEXT, name);
    for (at, name) in FREES.iter().zip(operator_free::NAMES) {
        at.store(find(name), Ordering::Release);
    }
    let found = operator_new::NAMES.map(find);
    // jemalloc's operators for alignments call its aligned_alloc by its name.
    let is_jemalloc = is_in_allocator(find(c"mallctl") as usize);
    let is_own =
        |index: usize, new: &*mut ()| is_in_allocator(*new as usize) && !(is_jemalloc && index % 4 >= 2);
    for (index, ((at, new), counted)) in NEW.iter().zip(found).zip(entry::COUNTED_NEW).enumerate() {
        set(Function::New as usize + index, new);
        at.store(if is_own(index, &new) { counted as *mut () } else { new }, Ordering::Release);
    }
}

/// Looks up the functions that are null, for one that is called; those of no library are replaced by malloc and free.
pub extern "C" fn look_up_operators() {
    load();
    let find = |name: &core::ffi::CStr, otherwise: *mut ()| {
        let found = symbol(RTLD_NEXT, name);
        let loaded = LIBRARIES.map(loaded_library);
        let mut all = [found].into_iter().chain(
            loaded.into_iter().filter(|library| !library.is_null()).map(|library| symbol(library, name)),
        );
        all.find(|found| !found.is_null()).unwrap_or(otherwise)
    };
    for (at, name) in FREES.iter().zip(operator_free::NAMES) {
        if at.load(Ordering::Acquire).is_null() {
            at.store(find(name, entry::free as *mut ()), Ordering::Release);
        }
    }
    for (index, (at, name)) in NEW.iter().zip(operator_new::NAMES).enumerate() {
        let is_aligned = index % 4 >= 2;
        let otherwise = if is_aligned { entry::new_aligned as *mut () } else { entry::malloc as *mut () };
        if at.load(Ordering::Acquire).is_null() {
            at.store(find(name, otherwise), Ordering::Release);
        }
    }
}
