//! V8, as far as a walker has to know it: which processes run it.
//!
//! V8 walks its own stacks, at any call, by frame pointers: the collector has to find each value
//! of each frame (V8's src/execution/frames.cc, `StackFrameIterator`). So of a call in code that
//! V8 made it is certain that rbp points to the frame record of the function that made it, or, in
//! what was made for that function to return through, to one with V8's marks.

/// How the names of executables, libraries and frameworks begin that contain V8.
pub const IMAGES: [&str; 9] =
    ["node", "libnode.", "libv8", "chrome", "chromium", "electron", "Electron", "libcef.", "deno"];

/// Whether an image of this name contains V8.
#[must_use]
pub fn is_in(image: &str) -> bool {
    IMAGES.iter().any(|beginning| image.starts_with(beginning))
}
