//! Files of images, mapped into memory: read only where something is looked up.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

/// Maps a whole file read-only.
pub(crate) fn map(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the map is private and read-only and only ever read as plain bytes through
    // bounds-checked parsers. A file truncated by others while mapped would raise SIGBUS;
    // images of running programs are replaced by rename, and ETXTBSY (Linux) and code
    // signing (macOS) guard executables.
    unsafe { memmap2::Mmap::map(file) }
}
