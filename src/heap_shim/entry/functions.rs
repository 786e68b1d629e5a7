//! Entry points: the functions that programs call instead of the allocator's. Each call subtracts its size from the
//! thread's counter, and jumps to the allocator if the rest is larger. Argument registers, the return address and the
//! stack are unchanged, so that the allocator sees the program as its caller.
//!
//! Here are the functions and the steps of each kind; `x86_64.rs` and `aarch64.rs` have the instructions of a
//! step. With ELF a function replaces those of its name. With Mach-O dyld interposes those in a table (`real_macos.rs`).
#![allow(unsafe_code)]

use super::block_set::{FILTER_BITS, FILTER_SHIFT};
use super::process::FILTER;
use super::real::REAL;
use super::sample;
use super::shared_memory::Function;
use core::arch::naked_asm;

/// One of two literals: for macOS, or for Linux.
#[cfg(target_vendor = "apple")]
macro_rules! if_apple {
    ($apple:expr, $other:expr) => {
        $apple
    };
}
#[cfg(not(target_vendor = "apple"))]
macro_rules! if_apple {
    ($apple:expr, $other:expr) => {
        $other
    };
}

/// Defines a function by its instructions and their operands.
macro_rules! function {
    ($(#[$attribute:meta])* $name:ident, [$($code:tt)+] $($operands:tt)*) => {
        /// # Safety
        /// Called or jumped to as the function of this name or, by an entry point, with the caller's arguments and return
        /// address.
        #[unsafe(naked)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $name() {
            naked_asm!(".cfi_startproc", $($code)+, ".cfi_endproc", $($operands)*)
        }
    };
}

/// Defines a function that programs call.
macro_rules! entry {
    ($name:ident, $($rest:tt)+) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        function!(#[cfg_attr(not(target_vendor = "apple"), unsafe(no_mangle))] $name, $($rest)+);
    };
}

// Its lines are those of assembly.
#[rustfmt::skip]
#[macro_use]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

pub use functions::*;
pub use processor::PROCESSOR;
use processor::{allocate_slowly, call_slowly, register};

/// Number of registers that an entry point stores.
pub const REGISTER_COUNT: usize = register::PC + 1;

/// Index of the stack pointer among them.
pub const SP: usize = register::SP;

/// Subtracts the size of an allocation, an argument or the product of two, from the thread's counter; goes to a label if
/// a sample is due.
macro_rules! count_size {
    (($size:tt), $due:expr) => { count!(argument!($size), $due) };
    (($count:tt, $size:tt), $due:expr) => {
        concat!(product!($count, $size), "\n", count!(product_register!(), $due))
    };
}

/// Defines a function that allocates: the number of its slow path, its size.
macro_rules! allocation {
    ($name:ident, $function:ident, $size:tt) => { allocation!($name, $function, $size, allocate_slowly); };
    ($name:ident, $function:ident, $size:tt, $slow:path) => {
        entry!($name, [count_size!($size, "2f"), jump!("real"), slowly!("function")]
            counter = sym COUNTER, real = sym REAL, index = const index!($name, $function),
            function = const Function::$function as usize, slow = sym $slow);
    };
}

/// Defines a function that frees or resizes the block in an argument, and goes on in the allocator or, if the block may be
/// sampled, in a slow path.
macro_rules! free {
    ($name:ident, $index:expr, $block:tt, $slow:path) => {
        entry!($name, [filter!($block, slow_free_label!()), jump!("real"), at_slow_free_label!()]
            filter = sym FILTER, shift = const FILTER_SHIFT, bits = const FILTER_BITS, real = sym REAL,
            index = const $index, slow = sym $slow);
    };
}

#[cfg(not(target_vendor = "apple"))]
mod functions {
    pub use super::processor::new_aligned;
    use super::processor::new_slowly;
    use super::*;
    use crate::process::{self, MAPPINGS};
    use crate::real::{self, FREES, LIBC_FUNCTIONS, NEW, libc_function, operator_free, operator_new};
    use crate::{mmap_calls, system};
    pub use mmap_calls::handle;

    /// Index of the return address among the registers.
    pub const PC: usize = register::PC;

    // `system::ThreadWords` of each thread. Initial-exec: a library loaded at startup has room in the static TLS
    // block, and no call is needed to find it.
    core::arch::global_asm!(
        ".pushsection .tbss, \"awT\", @nobits
         .p2align 4
         .globl stackprof_heap_thread
         .hidden stackprof_heap_thread
         .type stackprof_heap_thread, @object
         .size stackprof_heap_thread, 48
         stackprof_heap_thread: .zero 48
         .popsection"
    );

    // An address sanitizer in the program would check what the library's own copies read of a stack.
    core::arch::global_asm!(
        ".globl memcpy, memset
         .hidden memcpy, memset
         .type memcpy, @function
         .type memset, @function",
        copies!()
    );

    // SAFETY: defined above; the entry points use no more than its name.
    unsafe extern "C" {
        #[link_name = "stackprof_heap_thread"]
        static COUNTER: u64;
    }

    macro_rules! index {
        ($name:ident, $function:ident) => {
            Function::$function as usize
        };
    }

    /// Defines a function that resizes the block in its first argument.
    macro_rules! reallocation {
        ($name:ident, $function:ident, $size:tt) => {
            entry!($name, [
                count_size!($size, "2f"), filter!(0, "2f"), jump!("real"), slowly!("function")
            ]
                counter = sym COUNTER, filter = sym FILTER, shift = const FILTER_SHIFT, bits = const FILTER_BITS,
                real = sym REAL, index = const Function::$function as usize,
                function = const Function::$function as usize, slow = sym allocate_slowly);
        };
    }

    allocation!(malloc, Malloc, (0));
    allocation!(calloc, Calloc, (0, 1));
    reallocation!(realloc, Realloc, (1));
    reallocation!(reallocarray, Reallocarray, (1, 2));
    allocation!(posix_memalign, PosixMemalign, (2));
    allocation!(aligned_alloc, AlignedAlloc, (1));
    allocation!(memalign, Memalign, (1));
    allocation!(valloc, Valloc, (0));
    allocation!(pvalloc, Pvalloc, (0));
    allocation!(mallocx, Mallocx, (0));
    reallocation!(rallocx, Rallocx, (1));
    free!(free, real::FREE, 0, sample::free);
    free!(cfree, real::FREE, 0, sample::free);
    free!(free_sized, real::FREE, 0, sample::free);
    free!(free_aligned_sized, real::FREE, 0, sample::free);

    /// Defines each operator new, which goes on where `real` says, and where it goes on if the operator of the allocator is
    /// counted.
    macro_rules! operators_new {
        ($($name:ident: $function:ident, $counted:ident, $slow:path;)+) => {
            $(
                entry!($name, ["2:", jump_or!("new", "3f"), "3:", call_then!("look_up", "2b")]
                    new = sym NEW, look_up = sym look_up_operators,
                    index = const operator_new::$name);
                allocation!($counted, $function, (0), $slow);
            )+

            /// Where an operator new of the allocator goes on, in the order of their numbers.
            // SAFETY: entry points; only their addresses are taken.
            pub const COUNTED_NEW: [unsafe extern "C" fn(); operator_new::NAMES.len()] = [$($counted),+];
        };
    }

    operators_new!(
        _Znwm: New, stackprof_heap_new, new_slowly;
        _Znam: NewArray, stackprof_heap_new_array, new_slowly;
        _ZnwmSt11align_val_t: NewAligned, stackprof_heap_new_aligned, new_slowly;
        _ZnamSt11align_val_t: NewArrayAligned, stackprof_heap_new_array_aligned, new_slowly;
        _ZnwmRKSt9nothrow_t: NewNothrow, stackprof_heap_new_nothrow, allocate_slowly;
        _ZnamRKSt9nothrow_t: NewArrayNothrow, stackprof_heap_new_array_nothrow, allocate_slowly;
        _ZnwmSt11align_val_tRKSt9nothrow_t: NewAlignedNothrow, stackprof_heap_new_aligned_nothrow, allocate_slowly;
        _ZnamSt11align_val_tRKSt9nothrow_t: NewArrayAlignedNothrow, stackprof_heap_new_array_aligned_nothrow,
            allocate_slowly;
    );

    /// Defines a function that frees the block in its first argument, and goes on where `real` says.
    macro_rules! operator_free {
        ($name:ident) => {
            entry!($name, [
                filter!(0, "4f"),
                "2:", jump_or!("frees", "3f"),
                "3:", call_then!("look_up", "2b"),
                "4:", call_then!("forget", "2b")
            ]
                filter = sym FILTER, shift = const FILTER_SHIFT, bits = const FILTER_BITS, frees = sym FREES,
                index = const operator_free::$name, look_up = sym look_up_operators, forget = sym forget);
        };
    }

    operator_free!(_ZdlPv);
    operator_free!(_ZdaPv);
    operator_free!(_ZdlPvm);
    operator_free!(_ZdaPvm);
    operator_free!(_ZdlPvSt11align_val_t);
    operator_free!(_ZdaPvSt11align_val_t);
    operator_free!(_ZdlPvmSt11align_val_t);
    operator_free!(_ZdaPvmSt11align_val_t);
    operator_free!(_ZdlPvRKSt9nothrow_t);
    operator_free!(_ZdaPvRKSt9nothrow_t);
    operator_free!(_ZdlPvSt11align_val_tRKSt9nothrow_t);
    operator_free!(_ZdaPvSt11align_val_tRKSt9nothrow_t);
    operator_free!(dallocx);
    operator_free!(sdallocx);

    /// Defines a function that calls another one if its arguments are of interest, and goes on in that of libc. The constructor
    /// of another library may call it before the shim is loaded.
    macro_rules! observed {
        ($name:ident, $observer:path) => {
            const _: () = {
                keeping_arguments!(look_up, real::look_up_libc_function::<{ libc_function::$name }>);
                entry!($name, [
                    condition!($name),
                    "1:", call!("observer", "2f"),
                    "2:", jump_or!("others", "3f"),
                    "3:", call!("look_up", "4f"),
                    "4:", jump_or!("others", "5f"),
                    "5:", fail!()
                ]
                    observer = sym $observer, others = sym LIBC_FUNCTIONS, index = const libc_function::$name,
                    look_up = sym look_up);
            };
        };
    }

    observed!(prctl, enter_seccomp);
    observed!(syscall, observe_syscall);
    observed!(sigaction, set_action);
    observed!(signal, set_handler);
    observed!(bsd_signal, set_handler);
    observed!(sysv_signal, set_handler);
    observed!(__sysv_signal, set_handler);
    observed!(ssignal, set_handler);
    observed!(sigset, set_handler);
    observed!(dlopen, count_unseen_library);
    observed!(dlmopen, count_unseen_library);

    keeping_arguments!(enter_seccomp, process::enter_seccomp);
    keeping_arguments!(set_action, system::set_action);
    keeping_arguments!(set_handler, system::set_handler);
    keeping_arguments!(observe_syscall, system::observe_syscall);
    keeping_arguments!(count_unseen_library, process::count_unseen_library);
    keeping_arguments!(look_up_operators, real::look_up_operators);
    keeping_arguments!(forget, sample::forget_block);

    /// Defines a function that maps or unmaps memory: that of libc, unless mappings are recorded. The constructor of another
    /// library may call it before the shim is loaded.
    macro_rules! mapping {
        ($name:ident) => {
            entry!($name, [if_set!("mappings", "2f"), jump_or!("others", "2f"), slowly!("index")]
                mappings = sym MAPPINGS, others = sym LIBC_FUNCTIONS, index = const libc_function::$name,
                slow = sym call_slowly);
        };
    }

    mapping!(mmap);
    mapping!(mmap64);
    mapping!(munmap);
    mapping!(mremap);
}

#[cfg(target_vendor = "apple")]
mod functions {
    use super::*;
    use crate::real::index;
    use crate::system::LEFT_OFFSET as COUNTER;
    pub use sample::allocate_wide as handle;
    pub use sample::free_batch as malloc_zone_batch_free;

    macro_rules! index {
        ($name:ident, $function:ident) => {
            index::$name
        };
    }

    /// Defines a function that resizes a block: the argument with the block, that with the size.
    macro_rules! reallocation {
        ($name:ident, $counted:ident, $block:tt, $size:tt, $slow:path) => {
            entry!($name, [count_size!(($size), slow_label!()), go!("counted"), at_slow_label!()]
                counter = sym COUNTER, counted = sym $counted, slow = sym $slow);
            free!($counted, index::$name, $block, $slow);
        };
    }

    // `realloc` and `malloc_zone_realloc` of a block that may be sampled.
    function!(reallocate_slowly, [slowly!("function")]
        function = const Function::Realloc as usize, slow = sym allocate_slowly);
    function!(reallocate_in_zone_slowly, [slowly!("function")]
        function = const Function::ZoneRealloc as usize, slow = sym allocate_slowly);

    /// Defines a function with more than three arguments, the third one of which is its size.
    macro_rules! wide {
        ($name:ident) => {
            entry!($name, [count_size!((2), "2f"), jump!("real"), slowly!("index")]
                counter = sym COUNTER, real = sym REAL, index = const index::$name, slow = sym call_slowly);
        };
    }

    allocation!(malloc, Malloc, (0));
    allocation!(calloc, Calloc, (0, 1));
    allocation!(posix_memalign, PosixMemalign, (2));
    allocation!(aligned_alloc, AlignedAlloc, (1));
    allocation!(valloc, Valloc, (0));
    reallocation!(realloc, realloc_counted, 0, 1, reallocate_slowly);
    free!(free, index::free, 0, sample::free);

    allocation!(malloc_zone_malloc, ZoneMalloc, (1));
    allocation!(malloc_zone_calloc, ZoneCalloc, (1, 2));
    allocation!(malloc_zone_memalign, ZoneMemalign, (2));
    allocation!(malloc_zone_valloc, ZoneValloc, (1));
    reallocation!(malloc_zone_realloc, malloc_zone_realloc_counted, 1, 2, reallocate_in_zone_slowly);
    free!(malloc_zone_free, index::malloc_zone_free, 1, sample::free_in_zone);

    allocation!(malloc_type_malloc, Malloc, (0));
    allocation!(malloc_type_calloc, Calloc, (0, 1));
    allocation!(malloc_type_posix_memalign, PosixMemalign, (2));
    allocation!(malloc_type_aligned_alloc, AlignedAlloc, (1));
    allocation!(malloc_type_valloc, Valloc, (0));
    reallocation!(malloc_type_realloc, malloc_type_realloc_counted, 0, 1, reallocate_slowly);
    free!(malloc_type_free, index::malloc_type_free, 0, sample::free);

    allocation!(malloc_type_zone_malloc, ZoneMalloc, (1));
    allocation!(malloc_type_zone_calloc, ZoneCalloc, (1, 2));
    allocation!(malloc_type_zone_memalign, ZoneMemalign, (2));
    allocation!(malloc_type_zone_valloc, ZoneValloc, (1));
    reallocation!(
        malloc_type_zone_realloc,
        malloc_type_zone_realloc_counted,
        1,
        2,
        reallocate_in_zone_slowly
    );
    free!(malloc_type_zone_free, index::malloc_type_zone_free, 1, sample::free_in_zone);

    wide!(malloc_zone_malloc_with_options);
    wide!(malloc_type_zone_malloc_with_options);
    // Each call takes the slow path.
    entry!(malloc_zone_batch_malloc, [slowly!("index")]
        index = const index::malloc_zone_batch_malloc, slow = sym call_slowly);
    free!(malloc_zone_free_definite_size, index::malloc_zone_free_definite_size, 1, sample::free_in_zone);
}
