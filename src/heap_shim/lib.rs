//! The heap shim: a library that `stackprof heap` loads into a command (LD_PRELOAD, DYLD_INSERT_LIBRARIES).
//! Input: calls of malloc and related functions. Output: records of sampled allocations in shared memory.
//!
//! `build.rs` compiles this crate separately from stackprof, which embeds it. It has no standard library, allocates
//! nothing, starts no thread and leaves no descriptor open. Its files:
//!
//! ```text
//! entry       malloc, free ...: subtract from the thread's counter, jump to the allocator      (assembly)
//! sample      the slow path: draw the interval, call the allocator, record
//! request     what a call asks for, by its arguments
//! mmap_calls  the slow path of mmap, munmap and mremap (Linux)
//! process     settings from the environment and the control file; the ring; fork
//! real        the allocator's own functions
//! system      system calls, thread-local words                                                (by system)
//! block_set   the addresses of sampled blocks       ring            space for records
//! interval    when the next sample is due           shared_memory   layout, shared with stackprof
//! files       names of the shared files
//! filter_code whether the program may restrict its system calls unseen                        (Linux)
//! images      which list of images holds the code of a sample                                 (by system)
//! mappings    anonymous mappings (Linux)
//! ```
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]
#![allow(unsafe_code)]

#[cfg_attr(not(target_vendor = "apple"), path = "system/linux.rs")]
#[cfg_attr(target_vendor = "apple", path = "system/macos.rs")]
mod system;

mod block_set;
#[path = "entry/functions.rs"]
mod entry;
mod files;
#[cfg(not(target_vendor = "apple"))]
mod filter_code;
#[cfg_attr(not(target_vendor = "apple"), path = "images_linux.rs")]
#[cfg_attr(target_vendor = "apple", path = "images_macos.rs")]
mod images;
mod interval;
#[cfg(not(target_vendor = "apple"))]
mod mappings;
#[cfg(not(target_vendor = "apple"))]
mod mmap_calls;
mod process;
#[cfg_attr(target_vendor = "apple", path = "real_macos.rs")]
mod real;
mod request;
mod ring;
mod sample;
#[allow(dead_code)] // each of the two programs uses a part
mod shared_memory;

/// Nothing here panics, and malloc cannot report a panic: the thread stops at once.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: an invalid instruction: SIGILL or SIGTRAP.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("ud2");
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("brk #1");
        }
    }
}
