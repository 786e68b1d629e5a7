//! What the source of a command's allocations asks of a system about one process: each system implements it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::binary::Mapping;
use crate::sources::pushed::UnseenAllocator;
use crate::sources::{ExitStatus, Observed};

/// Size limit of an image list, bytes: a process can write anything there.
const LIST_BYTES_MAX: u64 = 32 << 20;

/// The files of a ring.
#[derive(Debug)]
pub(in crate::sources) struct RingFiles {
    /// The name of the ring.
    #[cfg_attr(
        not(target_os = "linux"),
        allow(dead_code, reason = "only Linux tells which files a process maps")
    )]
    pub(in crate::sources) name: String,
    /// The image lists that the shim wrote, from the creation of the ring on and from the exit.
    pub(in crate::sources) images: [PathBuf; 2],
}

/// A process with a ring, or one that will have one.
pub(in crate::sources) trait HeapProcess: Observed {
    /// A process started by this one or by a similar one.
    fn new_for(&self, pid: u32) -> Self;

    /// Sets the ring of the process, created by a thread with this name: it runs its own program.
    fn set_ring(&mut self, thread_name: &str, ring: RingFiles);

    /// The list of images that the shim made before an unload, or when it made the ring; false if there is none. What
    /// [`Observed::mappings`] returns is what is mapped now, or was at the exit.
    fn listed(&mut self, before_unload: Option<u32>, out: &mut Vec<Mapping>) -> bool;

    /// A list is not needed any more.
    fn forget_list(&mut self, _before_unload: u32) {}

    /// Whether it has exited.
    fn has_exited(&self) -> bool;

    /// Whether it runs another program than that of its ring. That is noticed after a delay, or at once if `is_last`.
    fn has_left_program(&mut self, now_ns: u64, is_last: bool) -> bool;

    /// Looks for processes started by this one, directly or not, that did not load the shim.
    fn scan_without_shim(&mut self, _shim: &Path) {}

    /// How many were found, by reason: one that ends between two scans is not.
    fn without_shim(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Why this process itself runs a program without the shim, if that was found.
    fn why_without_shim(&self) -> Option<&'static str> {
        None
    }

    /// Allocators of this process that calls do not leave for the shim, read at its end.
    fn unseen_allocators(&mut self) -> Vec<UnseenAllocator> {
        Vec::new()
    }

    /// Memory of no file that was resident at most when processes without the shim were looked for, bytes.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// Number of other processes that use this directory or pass its path on, or may do so.
    fn survivors(&self, directory: &Path) -> usize;

    /// Exit status of a process that this one started; `None` while it runs.
    fn child_end(&mut self) -> Option<ExitStatus>;

    /// Name of the program that a started process ran last; of one that has ended, before another call reaps it.
    fn last_name(&self) -> Option<String>;

    /// Forwards a signal that this process got to a process that it started. The command decides how it reacts; the
    /// recording ends when it ends.
    fn forward_signal(&self) {}

    /// Why a started process did not load the shim, and the next step, if the system knows.
    fn why_not_loaded(&self) -> Option<String> {
        None
    }

    /// The clock of the times in rings.
    fn ring_clock_ns(&self) -> u64;
}

/// Reads an image list that the shim wrote. Must not block: the process can put anything in its place.
pub(in crate::sources) fn read_image_list(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = Vec::new();
    file.take(LIST_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}
