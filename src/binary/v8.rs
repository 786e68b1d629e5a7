//! Facts about V8 that a walker needs: which processes run it.
//!
//! V8 walks its own stacks at any call by frame pointers: the garbage collector must find each value of each frame
//! (V8's src/execution/frames.cc, `StackFrameIterator`). So in a call from V8's JIT code, rbp certainly points to
//! the frame record of the calling function, or, in code that functions return through, to one with V8's markers.

/// Prefixes of names of executables, libraries and frameworks that contain V8.
pub const IMAGES: [&str; 9] =
    ["node", "libnode.", "libv8", "chrome", "chromium", "electron", "Electron", "libcef.", "deno"];

/// Whether an image of this name contains V8.
#[must_use]
pub fn is_in(image: &str) -> bool {
    IMAGES.iter().any(|beginning| image.starts_with(beginning))
}
