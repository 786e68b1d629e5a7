//! `dlclose`, which the shim replaces: the images are listed before any of them can be unloaded.
#![allow(unsafe_code)]

use super::process::{self, Status};
use super::real::{self, libc_function};
use super::system::{BlockedSignals, Thread};

/// `dlclose`: lists the images before any can be unloaded.
// SAFETY: replaces the function of this name, and calls it with the program's argument.
#[unsafe(no_mangle)]
pub extern "C" fn dlclose(library: usize) -> i32 {
    let thread = Thread::current();
    // A destructor may unload, too.
    let outer = thread.unload();
    let is_recorded = matches!(process::status(), Status::Recording(_));
    if is_recorded {
        let _blocked = BlockedSignals::new();
        process::begin_unload(thread);
    }
    let result = real::call(libc_function::dlclose, [library, 0, 0, 0, 0, 0]);
    if is_recorded {
        thread.set_unload(outer);
    }
    result as i32
}
