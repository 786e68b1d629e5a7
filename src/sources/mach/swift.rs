//! The demangler of the Swift runtime, which every macOS since 10.14.4 has.
//!
//! Input: a mangled name, from any file: hostile. Output: the readable name. No other complete demangler
//! exists, and the runtime's knows the newest forms in code on this system. It is loaded at the first Swift
//! name, not before.
#![cfg(target_vendor = "apple")]
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `swift_demangle` of stdlib/public/runtime/Demangle.cpp: name, its length, a buffer and a pointer to its
/// length (null: allocated with malloc), flags (0).
// SAFETY: the declaration of that file.
type SwiftDemangle = unsafe extern "C" fn(*const c_char, usize, *mut c_char, *mut usize, u32) -> *mut c_char;

/// The readable form of a Swift name; `None` for other names, or without a Swift runtime.
pub(crate) fn demangle(name: &str) -> Option<String> {
    static RUNTIME: OnceLock<Option<SwiftDemangle>> = OnceLock::new();
    let demangle = (*RUNTIME.get_or_init(find))?;
    // SAFETY: the name is readable for its length, and the nulls request a new buffer.
    let made = unsafe { demangle(name.as_ptr().cast(), name.len(), null_mut(), null_mut(), 0) };
    if made.is_null() {
        return None;
    }
    // SAFETY: the result is a C string allocated by malloc, which we own.
    let text = unsafe { CStr::from_ptr(made) }.to_string_lossy().into_owned();
    // SAFETY: as above; it is not used after this.
    unsafe { libc::free(made.cast::<c_void>()) };
    Some(text)
}

fn find() -> Option<SwiftDemangle> {
    let path = c"/usr/lib/swift/libswiftCore.dylib";
    // SAFETY: a path that ends with NUL; the library is the system's, and is never closed.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a handle of dlopen, and a name that ends with NUL.
    let symbol = unsafe { libc::dlsym(library, c"swift_demangle".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the function of that name has had this type since Swift 4, as debuggers rely on.
    Some(unsafe { std::mem::transmute::<*mut c_void, SwiftDemangle>(symbol) })
}
