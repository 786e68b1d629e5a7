//! Memory-mapped files of images: pages are read on first use, and reading is safe whatever other programs do to
//! the file meanwhile.
//!
//! A mapped file can be rewritten in place: by `cp` onto a program that has just ended, or by a target that
//! truncates its own library. If it has become shorter, reading raises SIGBUS, which `on_bus_error` handles; if
//! not, the bytes belong to another file, which `unchanged` detects. The handler of SIGBUS is installed for the process with
//! the first mapping; faults elsewhere go to the handler that was there before.
#![allow(unsafe_code)]

#[cfg(unix)]
mod ranges;

use std::fs::File;
use std::io;
#[cfg(unix)]
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::OpenError;

/// A whole file, mapped for reading.
#[derive(Debug)]
pub struct Map {
    /// Declared before the bytes, so that the range is removed before its addresses are unmapped.
    #[cfg(unix)]
    known: ranges::KnownRange,
    bytes: memmap2::Mmap,
    #[cfg(unix)]
    held: Option<OpenFile>,
}

impl Map {
    /// Maps a file, and keeps it open for `unchanged` unless descriptors are scarce.
    pub fn new(file: File) -> io::Result<Map> {
        #[cfg(unix)]
        if !descriptors_suffice(&file) {
            return Map::briefly(&file);
        }
        #[cfg(unix)]
        let before = (Stamp::of(&file)?, path_of(&file));
        let map = Map::briefly(&file)?;
        Ok(Map {
            #[cfg(unix)]
            held: Some(OpenFile { file, stamp: before.0, path: before.1 }),
            ..map
        })
    }

    /// Maps a file without keeping it open, for many at once: `unchanged` then only detects lost pages.
    pub fn briefly(file: &File) -> io::Result<Map> {
        // SAFETY: the map is private and read-only, and only read as plain bytes through bounds-checked parsers
        // that accept any bytes. Others may change these bytes: data read meanwhile is refused (`unchanged`), and
        // a lost page is replaced (`on_bus_error`).
        let bytes = unsafe { memmap2::Mmap::map(file) }?;
        #[cfg(unix)]
        watch();
        Ok(Map {
            #[cfg(unix)]
            known: ranges::KnownRange::new(bytes.as_ptr().addr()..bytes.as_ptr().addr() + bytes.len()),
            bytes,
            #[cfg(unix)]
            held: None,
        })
    }

    /// Checks that the bytes read so far equal the file's content when it was mapped.
    ///
    /// # Errors
    /// [`OpenError::Replaced`]: the file was written to, by its times and length. Or a part of it could not be
    /// read.
    #[cfg(unix)]
    pub(crate) fn unchanged(&self) -> Result<(), OpenError> {
        // Pages are lost after the file has changed, so lost pages are known before the file is checked.
        let lost = self.known.is_lost();
        match &self.held {
            Some(held) if held.was_written_to()? => Err(OpenError::Replaced),
            Some(_) if lost => Err(io::Error::from_raw_os_error(libc::EIO).into()),
            None if lost => Err(OpenError::Replaced),
            _ => Ok(()),
        }
    }

    /// Nothing to check: on this system a mapped file cannot be written to.
    #[cfg(not(unix))]
    pub(crate) fn unchanged(&self) -> Result<(), OpenError> {
        Ok(())
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An open file, and its state before it was mapped.
#[cfg(unix)]
#[derive(Debug)]
struct OpenFile {
    file: File,
    stamp: Stamp,
    path: Option<PathBuf>,
}

#[cfg(unix)]
impl OpenFile {
    /// Whether its content changed. `cp -p` and `rsync` restore the modification time, which changes the inode's
    /// change time. But so do unlinking and renaming, by which most programs are updated while they run: their
    /// content is unchanged, which the link count or the path shows.
    fn was_written_to(&self) -> io::Result<bool> {
        let (before, now) = (&self.stamp, Stamp::of(&self.file)?);
        let same = (before.length, before.modified) == (now.length, now.modified);
        let moved = || before.links != now.links || self.path != path_of(&self.file);
        Ok(!same || (before.changed != now.changed && !moved()))
    }
}

/// Files with lower descriptors are kept open: half of the 256 that systems allow a process at least, unless
/// [`keep_open_below`] was called.
#[cfg(unix)]
static KEPT_BELOW: AtomicU64 = AtomicU64::new(128);

/// Keeps files with descriptors below this one open from now on: the others are for short-lived files.
#[cfg(unix)]
#[allow(dead_code, reason = "only where the limit is raised")]
pub fn keep_open_below(number: u64) {
    KEPT_BELOW.store(number, Relaxed);
}

#[cfg(unix)]
fn descriptors_suffice(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    u64::from(file.as_raw_fd().unsigned_abs()) < KEPT_BELOW.load(Relaxed)
}

/// Releases the resident pages of all maps: they are read again on use, mostly from the page cache. Otherwise a
/// profiler of many programs would keep everything that it once read.
pub fn release_pages() {
    #[cfg(unix)]
    ranges::visit(|range| {
        let start = std::ptr::without_provenance_mut(range.start);
        // SAFETY: the range is that of a map, and its owner waits in `KnownRange`'s drop before it unmaps it. The
        // map is private and never written to, so its pages are those of the file again, or zeros after
        // `put_zeros`.
        unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) };
    });
}

/// The current path of an open file; `None` if the system does not show it in /proc.
#[cfg(unix)]
fn path_of(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    let open = Path::new("/proc/self/fd");
    open.is_dir().then(|| std::fs::read_link(open.join(file.as_raw_fd().to_string())).ok())?
}

/// Properties that change when a file is written to.
#[cfg(unix)]
#[derive(Debug)]
struct Stamp {
    length: u64,
    /// Last modification of the content, seconds and nanoseconds.
    modified: (i64, i64),
    /// Last change of the inode, which no program can set.
    changed: (i64, i64),
    links: u64,
}

#[cfg(unix)]
impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata()?;
        Ok(Stamp {
            length: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            links: meta.nlink(),
        })
    }
}

/// The previous action of SIGBUS.
#[cfg(unix)]
static BEFORE: std::sync::OnceLock<Option<libc::sigaction>> = std::sync::OnceLock::new();

/// Installs [`on_bus_error`]. Not if SIGBUS is ignored: a program inherits ignored signals through `exec`, but not
/// handlers (execve(2)), and recorded programs should run as without a profiler.
#[cfg(unix)]
fn watch() {
    BEFORE.get_or_init(|| {
        // SAFETY: all zero bytes are a valid `sigaction`; the call only writes to it.
        let (asked, before) = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) == 0, before)
        };
        (asked && before.sa_sigaction != libc::SIG_IGN).then_some(before)
    });
    static SET: std::sync::Once = std::sync::Once::new();
    // After `BEFORE`, which the handler reads.
    SET.call_once(|| {
        if BEFORE.get().is_some_and(Option::is_some) {
            let handler: extern "C" fn(_, _, _) = on_bus_error;
            // SAFETY: all zero bytes are a `sigaction` with an empty mask; the handler has the signature for
            // SA_SIGINFO and calls only async-signal-safe functions. It runs on the signal stack, like Rust's own
            // handler, which it calls and which reports stack overflows.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
            }
        }
    });
}

/// Replaces a map of ours that has lost a page by zeros, and lets the thread continue; passes all other cases to
/// the previous action of SIGBUS. Allocates nothing and takes no lock (signal-safety(7)).
///
/// The whole map is replaced, not the page: the rest of the file has different content by now, and each map raises
/// one signal at most.
#[cfg(unix)]
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a live `siginfo_t` to a handler of SA_SIGINFO.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // If a process sent the signal, its pid and user are in place of the address (Linux), which is unlikely to be
    // in one of our maps; then one map is lost for nothing.
    if ranges::lose(at, put_zeros) {
        return;
    }
    let before = BEFORE.get().and_then(Option::as_ref);
    match before.filter(|before| before.sa_sigaction != libc::SIG_DFL) {
        // SAFETY: the system returned this address as that of a handler, and its flags state its signature.
        Some(before) => unsafe {
            if before.sa_flags & libc::SA_SIGINFO == 0 {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(before.sa_sigaction);
                handler(signal);
            } else {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(before.sa_sigaction);
                handler(signal, info, context);
            }
        },
        // SAFETY: all of these are allowed in a handler. The instruction runs again and its thread ends by the
        // signal; a signal that was sent is raised again, to be delivered when this returns.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if was_sent(code) {
                libc::kill(libc::getpid(), signal);
            }
        },
    }
}

/// Whether a process sent the signal with this code. The kernel's own codes are above 0 (sigaction(2)), and on
/// macOS below that of `kill` (`SI_USER`, 0x10001 in bsd/sys/signal.h).
#[cfg(unix)]
fn was_sent(code: libc::c_int) -> bool {
    code <= 0 || code > 0xffff
}

/// Replaces a map by zeros. Returns whether it succeeded.
#[cfg(unix)]
fn put_zeros(range: std::ops::Range<usize>) -> bool {
    let start = std::ptr::without_provenance_mut(range.start);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range is a whole map that a thread is reading, so it is not unmapped meanwhile and contains
    // nothing else. The new map replaces the old one atomically, and is read-only like it. mmap(2) is a plain
    // system call.
    let placed = unsafe { libc::mmap(start, range.len(), libc::PROT_READ, flags, -1, 0) };
    placed != libc::MAP_FAILED
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::binary::ImageBytes;
    use crate::binary::object::part;

    /// Longer than a page of any system.
    const BYTES: usize = 256 << 10;

    fn written() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; BYTES]).unwrap();
        (dir, path)
    }

    fn mapped(path: &Path) -> ImageBytes {
        ImageBytes::mapped(Map::new(File::open(path).unwrap()).unwrap())
    }

    fn to_write(path: &Path) -> File {
        File::options().write(true).open(path).unwrap()
    }

    /// Waits longer than a tick of the kernel's clock for file times.
    fn a_tick_later() {
        std::thread::sleep(Duration::from_millis(25));
    }

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeros_and_is_refused() {
        let (_dir, path) = written();
        let (bytes, brief) = (mapped(&path), Map::briefly(&File::open(&path).unwrap()).unwrap());
        let piece = part(&bytes, &(BYTES as u64 / 2..BYTES as u64));
        assert_eq!((bytes.bytes()[BYTES - 1], piece.bytes()[0]), (7, 7));
        assert!(bytes.unchanged().is_ok() && brief.unchanged().is_ok());
        to_write(&path).set_len(10).unwrap();
        // Also from several threads simultaneously.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(bytes.bytes()[BYTES / 2..].iter().all(|byte| *byte == 0)));
            }
        });
        assert!(matches!(bytes.unchanged(), Err(OpenError::Replaced)));
        assert!(matches!(piece.unchanged(), Err(OpenError::Replaced)));
        assert!(brief.unchanged().is_ok(), "no page of it was missed");
        assert_eq!(brief.as_ref()[BYTES - 1], 0);
        assert!(matches!(brief.unchanged(), Err(OpenError::Replaced)));
    }

    /// Resident bytes of a range, by mincore(2) of pages that only this map has.
    #[cfg(target_os = "linux")]
    fn resident_bytes(of: &[u8]) -> u64 {
        let at = format!("{:x}-", of.as_ptr().addr());
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let entry = smaps.split_once(&format!("\n{at}")).unwrap().1;
        let rss = entry.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        1024 * rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn released_pages_can_be_read_again() {
        let (_dir, path) = written();
        let bytes = mapped(&path);
        let sum = || bytes.bytes().iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let before = (sum(), resident_bytes(bytes.bytes()));
        assert_eq!(before, (7 * BYTES as u64, BYTES as u64));
        release_pages();
        // Other tests also release their pages.
        assert_eq!(resident_bytes(bytes.bytes()), 0);
        assert_eq!(sum(), before.0);
        assert!(bytes.unchanged().is_ok());
    }

    #[test]
    fn a_file_that_is_written_to_is_refused_whatever_its_length_and_time_say() {
        let (_dir, path) = written();
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        a_tick_later();
        let bytes = mapped(&path);
        assert!(bytes.unchanged().is_ok());
        let file = to_write(&path);
        (&file).write_all(&[8]).unwrap();
        assert!(matches!(bytes.unchanged(), Err(OpenError::Replaced)));
        file.set_modified(before).unwrap();
        assert!(matches!(bytes.unchanged(), Err(OpenError::Replaced)), "as by cp -p");
        assert!(mapped(&path).unchanged().is_ok(), "it is what it was when it was mapped");
    }

    #[test]
    fn an_unlinked_file_is_unchanged() {
        let (dir, path) = written();
        let bytes = mapped(&path);
        let paths_are_told = path_of(&File::open(&path).unwrap()).is_some();
        a_tick_later();
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(bytes.unchanged().is_ok() || !paths_are_told, "renamed");
        std::fs::remove_file(dir.path().join("other")).unwrap();
        assert!(bytes.unchanged().is_ok(), "removed");
        assert_eq!(bytes.bytes()[BYTES - 1], 7);
    }

    /// Environment variable that makes [`the_signal_of_others_is_theirs`] raise the signal, and how.
    const RAISE: &str = "STACKPROF_TEST_RAISES_SIGBUS";

    #[test]
    fn the_signal_of_others_is_theirs() {
        let (_dir, path) = written();
        match std::env::var(RAISE).as_deref() {
            Err(_) => {
                for how in ["map of others", "sent"] {
                    let mut test = Command::new(std::env::current_exe().unwrap());
                    test.args(["--exact", "binary::map::tests::the_signal_of_others_is_theirs"]);
                    let status = test.env(RAISE, how).output().unwrap().status;
                    assert_eq!(status.signal(), Some(libc::SIGBUS), "{how}: {status}");
                }
            }
            Ok(how) => {
                let ours = mapped(&path);
                let file = File::open(&path).unwrap();
                // SAFETY: read as plain bytes only; the test expects this to end the process.
                let others = unsafe { memmap2::Mmap::map(&file) }.unwrap();
                to_write(&path).set_len(0).unwrap();
                assert_eq!(ours.bytes()[BYTES - 1], 0);
                if how == "sent" {
                    // Twice: Rust's own handler uninstalls itself the first time.
                    // SAFETY: the calls take only a number.
                    unsafe { (libc::raise(libc::SIGBUS), libc::raise(libc::SIGBUS)) };
                }
                std::hint::black_box(others[BYTES - 1]);
            }
        }
    }
}
