//! Files of the directory that the process shares with stackprof (Linux).

use super::{AT_FDCWD, EINTR, O_RDONLY, PAGE_SIZE, call, map, number, open, populate, unmap};
use crate::files::FileName;
use crate::shared_memory::Refusal;
use core::ptr::null;

const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NONBLOCK: usize = 0o4000;
#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: usize = 0o200_000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: usize = 0o400_000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: usize = 0o40_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: usize = 0o100_000;
const EEXIST: isize = 17;
const EOPNOTSUPP: isize = 95;
const ENOSYS: isize = 38;
const MADV_DONTFORK: usize = 10;
const RLIMIT_FSIZE: usize = 1;
const MAP_SHARED: usize = 1;

/// Closes a descriptor at its end.
pub(super) struct Descriptor(pub(super) isize);

impl Descriptor {
    pub(super) fn new(descriptor: isize) -> Option<Self> {
        (descriptor >= 0).then_some(Self(descriptor))
    }

    /// Its file.
    fn status(&self) -> Option<FileStatus> {
        // `struct stat` (asm/stat.h).
        let mut stat = [0u64; 18];
        if call!(FSTAT, self.0, &raw mut stat) < 0 {
            return None;
        }
        let (mode, user) = if cfg!(target_arch = "x86_64") {
            (stat[3] as u32, (stat[3] >> 32) as u32)
        } else {
            (stat[2] as u32, stat[3] as u32)
        };
        Some(FileStatus { identity: [stat[0], stat[1]], mode, user, size: stat[6] })
    }

    /// Its file, if it belongs to root or to the user that this process runs as, who alone can write to it.
    fn trusted_status(&self) -> Option<FileStatus> {
        let user = call!(GETEUID) as u32;
        self.status().filter(|file| (file.user == 0 || file.user == user) && file.mode & 0o022 == 0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        call!(CLOSE, self.0);
    }
}

struct FileStatus {
    identity: [u64; 2],
    mode: u32,
    user: u32,
    size: u64,
}

/// Why there is no ring.
pub enum RingError {
    /// A file with this name exists.
    Exists,
    /// Another reason.
    Refused(Refusal),
}

/// An open directory.
pub struct Directory(Descriptor);

impl Directory {
    /// Opens the directory at a path, a C string.
    pub fn open(path: *const u8) -> Option<Self> {
        let directory = Descriptor::new(open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
        directory.map(Self)
    }

    /// Device and inode, if the directory belongs to root or to the user that this process runs as, who alone can change it.
    pub fn identity(&self) -> Option<[u64; 2]> {
        self.0.trusted_status().map(|status| status.identity)
    }

    fn open_file(&self, name: &FileName, flags: usize) -> isize {
        open(self.0.0 as usize, name.as_ptr(), flags | O_NOFOLLOW | O_NONBLOCK)
    }

    /// Reads the beginning of a file; returns the number of bytes.
    pub fn read(&self, name: &FileName, buffer: *mut u8, size: usize) -> usize {
        let file = Descriptor::new(self.open_file(name, O_RDONLY));
        file.map_or(0, |file| call!(READ, file.0, buffer, size).max(0) as usize)
    }

    /// Permanently maps a file of at least this size, if the directory and the file belong to root or to the user that this
    /// process runs as.
    pub fn map_control(&self, name: &FileName, size: usize) -> Option<*mut u8> {
        const S_IFMT: u32 = 0o170_000;
        const S_IFREG: u32 = 0o100_000;
        self.identity()?;
        let file = Descriptor::new(self.open_file(name, O_RDWR))?;
        let status = file.trusted_status()?;
        let is_control = status.mode & S_IFMT == S_IFREG && status.size >= size as u64;
        if is_control { map(size, MAP_SHARED, file.0) } else { None }
    }

    /// Creates a file of zeros, and maps it; a child of fork does not inherit the mapping. Returns whether all of it has
    /// space: a store to another page could raise SIGBUS before it is populated. The first page has space. `is_sparse`: the
    /// other pages need none.
    pub fn make_ring(
        &self,
        name: &FileName,
        size: usize,
        is_sparse: bool,
    ) -> Result<(*mut u8, bool), RingError> {
        // Above this limit the kernel would send SIGXFSZ.
        if file_size_limit() < size as u64 {
            return Err(RingError::Refused(Refusal::Space));
        }
        let descriptor = self.open_file(name, O_RDWR | O_CREAT | O_EXCL);
        if descriptor == -EEXIST {
            return Err(RingError::Exists);
        }
        let file = Descriptor::new(descriptor).ok_or(RingError::Refused(Refusal::Create))?;
        let mapped = if call!(FTRUNCATE, file.0, size) == 0 {
            map(size, MAP_SHARED, file.0).ok_or(Refusal::Map)
        } else {
            Err(Refusal::Space)
        };
        let mapped = mapped.and_then(|address| {
            let is_populated = !(is_sparse && populate(address, PAGE_SIZE));
            let has_space = !is_populated || allocate(file.0, size);
            if !has_space || call!(MADVISE, address, size, MADV_DONTFORK) < 0 {
                unmap(address, size);
                return Err(if has_space { Refusal::Map } else { Refusal::Space });
            }
            Ok((address, is_populated))
        });
        mapped.map_err(|refusal| {
            call!(UNLINKAT, self.0.0, name.as_ptr(), 0);
            RingError::Refused(refusal)
        })
    }

    /// Copies /proc/self/maps into a new file, at most `limit` bytes of it.
    pub fn copy_maps(&self, name: &FileName, buffer: *mut u8, buffer_size: usize, limit: usize) {
        if file_size_limit() < limit as u64 {
            return;
        }
        let maps = open(AT_FDCWD, c"/proc/self/maps".as_ptr().cast(), O_RDONLY);
        let (Some(from), Some(to)) =
            (Descriptor::new(maps), Descriptor::new(self.open_file(name, O_RDWR | O_CREAT | O_EXCL)))
        else {
            return;
        };
        let mut total = 0;
        while total < limit {
            let length = call!(READ, from.0, buffer, buffer_size.min(limit - total));
            if length <= 0 {
                break;
            }
            let mut written = 0;
            while written < length {
                let result = call!(WRITE, to.0, buffer.wrapping_add(written as usize), length - written);
                if result <= 0 {
                    return;
                }
                written += result;
            }
            total += length as usize;
        }
    }
}

fn file_size_limit() -> u64 {
    let mut limit = [u64::MAX; 2];
    call!(PRLIMIT64, 0, RLIMIT_FSIZE, null::<u64>(), &raw mut limit);
    limit[0]
}

fn allocate(descriptor: isize, size: usize) -> bool {
    static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    let result = loop {
        let result = call!(FALLOCATE, descriptor, 0, 0, size);
        if result != -EINTR {
            break result;
        }
    };
    if result != -EOPNOTSUPP && result != -ENOSYS {
        return result == 0;
    }
    let mut at = 0;
    while at < size {
        let written = call!(PWRITE64, descriptor, ZEROS.as_ptr(), ZEROS.len().min(size - at), at);
        if written <= 0 && written != -EINTR {
            return false;
        }
        at += written.max(0) as usize;
    }
    true
}
