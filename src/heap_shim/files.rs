//! Names of the files that the process shares with stackprof, their directory, and memory for reading files.
#![allow(unsafe_code)]

use super::shared_memory::Refusal;
use super::system::Directory;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Path of the directory, a C string. Constant once SETUP is READY.
static PATH: Buffer<PATH_SIZE> = Buffer::new();
const PATH_SIZE: usize = 4096;
/// Device and inode of the directory: another one in its place is not used.
static DIRECTORY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Lock of `BUFFER`.
static BUFFER_IS_USED: AtomicBool = AtomicBool::new(false);
static BUFFER: Buffer<BUFFER_SIZE> = Buffer::new();
/// Size of the buffer.
pub const BUFFER_SIZE: usize = 4096;

/// Memory for data that is too large for the stack: programs allocate on small ones.
struct Buffer<const SIZE: usize>(core::cell::UnsafeCell<[u8; SIZE]>);

// SAFETY: used by the thread that set BUFFER_IS_USED, or that holds SETUP at BUSY.
unsafe impl<const SIZE: usize> Sync for Buffer<SIZE> {}

impl<const SIZE: usize> Buffer<SIZE> {
    const fn new() -> Self {
        Self(core::cell::UnsafeCell::new([0; SIZE]))
    }

    const fn pointer(&self) -> *mut u8 {
        self.0.get().cast()
    }
}

/// Sets the path of the directory, a C string. Called by the thread that holds SETUP at BUSY.
///
/// # Safety
/// A C string.
pub unsafe fn set_directory(directory: *const u8) -> Option<Directory> {
    let path = PATH.pointer();
    let mut length = 0;
    // SAFETY: up to the string's end, within the buffer.
    unsafe {
        while *directory.add(length) != 0 {
            if length >= PATH_SIZE - 1 {
                return None;
            }
            *path.add(length) = *directory.add(length);
            length += 1;
        }
    }
    Directory::open(path)
}

/// Notes which directory this is: [`open_directory`] uses no other one.
pub fn note_identity(directory: &Directory) -> Option<()> {
    for (at, number) in DIRECTORY.iter().zip(directory.identity()?) {
        at.store(number, Ordering::Relaxed);
    }
    Some(())
}

/// Why there is no ring.
pub enum RingError {
    /// A file with this name exists.
    Exists,
    /// Another reason.
    Refused(Refusal),
}

/// A part of a file name.
pub enum Part {
    Text(&'static str),
    Number(u32),
}

/// A file name, a C string.
pub type FileName = [u8; 48];

/// Joins the parts of a file name, which are short: there is room, and a zero stays.
pub fn file_name(parts: &[Part]) -> FileName {
    let mut name: FileName = [0; 48];
    let mut at = 0;
    let mut push = |byte: u8| {
        // A panic of the core library would need a personality function, which no library has.
        if let Some(to) = name.get_mut(at) {
            *to = byte;
            at += 1;
        }
    };
    for part in parts {
        match part {
            Part::Text(text) => text.bytes().for_each(&mut push),
            Part::Number(number) => {
                let mut divisor = 1_000_000_000;
                while divisor > 1 && number / divisor == 0 {
                    divisor /= 10;
                }
                while divisor > 0 {
                    push(b'0' + (number / divisor % 10) as u8);
                    divisor /= 10;
                }
            }
        }
    }
    name
}

/// The directory of the control file, if it is still at its path.
pub fn open_directory() -> Option<Directory> {
    let directory = Directory::open(PATH.pointer())?;
    let expected = DIRECTORY.each_ref().map(|number| number.load(Ordering::Relaxed));
    (directory.identity()? == expected).then_some(directory)
}

/// The name of a ring or of a file beside it.
pub const fn name(prefix: &'static str, pid: u32, sequence: u32) -> [Part; 4] {
    [Part::Text(prefix), Part::Number(pid), Part::Text("."), Part::Number(sequence)]
}

/// Memory for reading files, if no other thread uses it; [`release_buffer`] follows.
pub fn take_buffer() -> Option<*mut u8> {
    BUFFER_IS_USED
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| BUFFER.pointer())
}

/// Ends the use of the buffer.
pub fn release_buffer() {
    BUFFER_IS_USED.store(false, Ordering::Release);
}

/// In a child of fork, which has one thread: no other thread uses the buffer.
pub fn begin_child() {
    BUFFER_IS_USED.store(false, Ordering::Relaxed);
}
