//! The ring of one process: records that the heap shim wrote, copied out and checked.
//!
//! `Ring` reads, `RingClock` converts its times to those of the recording, `fill` makes a capture of a record.
//!
//! Input: a file that the recorded process can write to, truncate or fill with anything. Output: [`Record`]s.
//! Uses read and write system calls: access through a mapping would raise SIGBUS if the file was truncated.
#![allow(unsafe_code)]

#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use super::shared_memory::{
    AARCH64, Allocation, COMMITTED, DATA_OFFSET, DATA_SIZE_MAX, DATA_SIZE_MIN, DEFAULT_DATA_SIZE, Free, Kind,
    LostAllocations, MAGIC, Origin, PIECE_SIZE_MAX, RECORD_ALIGNMENT, REGISTERS, RESERVED, RingHeader,
    SHRINK_PAGE, SIZE_CLASSES, Word, X86_64, aarch64_register, flag, piece_size, x86_64_register,
};
use super::source::BoxPool;
use crate::addr::Avma;
use crate::arch::{self, Aarch64, Registers, UNKNOWN_REGISTER};
use crate::clock::{Clock, RealClock};
use crate::sources::Capture;

/// Bytes per read: several of the largest records.
const CHUNK_BYTES: usize = 256 << 10;
/// Pieces read at once from which on a ring is busy: its memory stays for the records that follow soon. The kernel
/// takes ten times as long to free and to provide a page as to write zeros to it.
const BUSY_PIECES: u64 = 2;
static ZEROS: [u8; PIECE_SIZE_MAX as usize] = [0; PIECE_SIZE_MAX as usize];

/// A record, copied out of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Memory was allocated.
    Allocation(Box<AllocationRecord>),
    /// Sampled memory was freed.
    Free {
        /// Monotonic clock.
        time_ns: u64,
        /// The block.
        address: u64,
        /// The thread.
        tid: u32,
    },
    /// A part of a sampled mapping was unmapped.
    Shrink {
        /// Monotonic clock.
        time_ns: u64,
        /// The mapping.
        address: u64,
        /// The thread.
        tid: u32,
        /// Bytes that were unmapped.
        bytes: u64,
    },
    /// The last free of this address is revoked.
    Restore {
        /// Monotonic clock.
        time_ns: u64,
        /// The block.
        address: u64,
        /// The thread.
        tid: u32,
    },
}

/// A sampled allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationRecord {
    /// Monotonic clock.
    pub time_ns: u64,
    /// The block.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// The thread.
    pub tid: u32,
    /// Registers of the caller when the allocator returns, in the shim's order.
    pub registers: [u64; REGISTERS],
    /// Stack bytes from the stack pointer upwards.
    pub stack: Vec<u8>,
    /// Its free will not be recorded.
    pub untracked: bool,
    /// The stack ends where these bytes end.
    pub stack_ends: bool,
    /// The list of images with the code of the stack.
    pub images: u32,
}

/// The processor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// x86_64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
}

/// Header of a ring: facts about its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Capacity for records, in bytes.
    pub data_size: u64,
    /// The pid that the process sees (in its namespace).
    pub pid: u32,
    /// Number of earlier rings of the process.
    pub sequence: u32,
    /// The process was forked: it may have copies of its parent's blocks.
    pub is_forked: bool,
    /// Its processor.
    pub processor: Processor,
    /// Its name when the ring was created.
    pub name: String,
    /// When the ring was created, monotonic clock.
    pub start_ns: u64,
}

/// Result of one read from a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes that can be read at once; 0 also before a record that is not committed.
    pub left: u64,
}

/// Why a ring cannot be read any further.
#[derive(Debug)]
pub enum RingError {
    /// Its content is not what the shim writes.
    Malformed(&'static str),
    /// A system call failed.
    System(io::Error),
}

impl From<io::Error> for RingError {
    fn from(error: io::Error) -> RingError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => RingError::Malformed("the file was truncated"),
            _ => RingError::System(error),
        }
    }
}

/// The ring of a process.
#[derive(Debug)]
pub struct Ring {
    file: File,
    header: Header,
    read: u64,
    /// Count up to which pieces have been released to the writers.
    given_back: u64,
    chunk: Vec<u8>,
    spare: BoxPool<AllocationRecord>,
}

impl Ring {
    /// Opens a ring; `None` while its process is still creating it.
    ///
    /// # Errors
    /// The file is not a ring of this layout, or cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Ring>, RingError> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(RingError::Malformed("it is no file"));
        }
        if file.metadata()?.len() < DATA_OFFSET as u64 {
            return Ok(None);
        }
        match word_at(&file, offset_of!(RingHeader, magic))? {
            0 => return Ok(None),
            MAGIC => fence(Ordering::Acquire),
            _ => return Err(RingError::Malformed("it is of another version")),
        }
        let header = read_header(&file)?;
        if file.metadata()?.len() < DATA_OFFSET as u64 + header.data_size {
            return Err(RingError::Malformed("it is shorter than it says"));
        }
        Ok(Some(Ring { file, header, read: 0, given_back: 0, chunk: Vec::new(), spare: BoxPool::new() }))
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Takes records of about `bytes_max` bytes at most. `ended`: the process is gone, so unfinished records
    /// will never be completed.
    ///
    /// # Errors
    /// The content is malformed: nothing more can be read. Records taken before that are in `into`.
    pub fn take(
        &mut self,
        ended: bool,
        bytes_max: u64,
        into: &mut Vec<Record>,
    ) -> Result<Progress, RingError> {
        let begin = self.read;
        // Read only once: otherwise a process that keeps writing would keep the reader here.
        let write = word_at(&self.file, offset_of!(RingHeader, write))?;
        let available = write.checked_sub(begin).filter(|_| write - self.given_back <= self.header.data_size);
        if available.is_none() || !write.is_multiple_of(RECORD_ALIGNMENT as u64) {
            return Err(RingError::Malformed("its positions do not fit together"));
        }
        fence(Ordering::Acquire);
        loop {
            let passed = self.read - begin;
            if self.read == write || passed >= bytes_max {
                break;
            }
            let used = self.take_chunk(write, ended, into)?;
            if used == 0 {
                return Ok(Progress { bytes: passed, left: 0 });
            }
        }
        Ok(Progress { bytes: self.read - begin, left: write - self.read })
    }

    /// Takes committed records without a gap, up to `write` or the end of the ring; returns their bytes.
    fn take_chunk(&mut self, write: u64, ended: bool, into: &mut Vec<Record>) -> Result<u64, RingError> {
        let data_size = self.header.data_size;
        let position = self.read & (data_size - 1);
        let whole = (write - self.read).min(data_size - position);
        let offset = DATA_OFFSET as u64 + position;
        self.chunk.resize(whole.min(CHUNK_BYTES as u64) as usize, 0);
        self.file.read_exact_at(&mut self.chunk, offset)?;
        let is_all = self.chunk.len() as u64 == whole;
        let (used, why) = committed(&self.chunk, ended, is_all);
        if !cfg!(target_arch = "x86_64") && used > 0 {
            // Weakly ordered processors may otherwise read records before their state words.
            fence(Ordering::Acquire);
            self.file.read_exact_at(&mut self.chunk[..used], offset)?;
        }
        let parsed = parse(&self.chunk[..used], &mut self.spare, into);
        self.read += used as u64;
        self.give_back()?;
        parsed.and(why.map_or(Ok(used as u64), |why| Err(RingError::Malformed(why))))
    }

    /// Zeroes the pieces that were read, because the reader recognizes unwritten records by zero words, and releases
    /// them to the writers.
    fn give_back(&mut self) -> io::Result<()> {
        let data_size = self.header.data_size;
        let piece = piece_size(data_size);
        let end = self.read - self.read % piece;
        if end == self.given_back {
            return Ok(());
        }
        let is_busy = end - self.given_back >= BUSY_PIECES * piece && data_size <= DEFAULT_DATA_SIZE;
        let mut at = self.given_back;
        while at < end {
            let position = at & (data_size - 1);
            let length = (end - at).min(data_size - position);
            match self.clear(DATA_OFFSET as u64 + position, length, is_busy) {
                // A pinned ring lost its memory to other files; there may be free space later.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                cleared => cleared?,
            }
            at += length;
        }
        fence(Ordering::Release);
        self.file.write_all_at(&end.to_ne_bytes(), offset_of!(RingHeader, read) as u64)?;
        self.given_back = end;
        Ok(())
    }

    /// Punches a hole, or writes zeros if the memory stays: the process needs it soon, or cannot get it again.
    fn clear(&self, offset: u64, length: u64, stays: bool) -> io::Result<()> {
        let is_pinned = || Ok::<_, io::Error>(word_at(&self.file, offset_of!(RingHeader, is_pinned))? != 0);
        if !stays && !is_pinned()? && punch_hole(&self.file, offset, length).is_ok() {
            fence(Ordering::SeqCst);
            // Unless the process pinned it before the hole was punched.
            if !is_pinned()? {
                return Ok(());
            }
        }
        let mut at = 0;
        while at < length {
            let bytes = &ZEROS[..(length - at).min(ZEROS.len() as u64) as usize];
            self.file.write_all_at(bytes, offset + at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Takes back an allocation record to reuse its memory.
    pub fn recycle(&mut self, allocation: Box<AllocationRecord>) {
        let capacity_bytes = allocation.stack.capacity();
        self.spare.put(allocation, capacity_bytes);
    }

    /// Sampled allocations that did not fit, by size class: count and bytes.
    #[must_use]
    pub fn lost_allocations(&self) -> Vec<(u64, u64)> {
        let mut classes = Vec::new();
        for class in 0..SIZE_CLASSES {
            let at = offset_of!(RingHeader, lost_allocations) + class * size_of::<LostAllocations>();
            let count = word_at(&self.file, at).unwrap_or(0);
            let bytes = word_at(&self.file, at + size_of::<u64>()).unwrap_or(0);
            if count > 0 {
                classes.push((count, bytes));
            }
        }
        classes
    }

    /// Frees that did not fit.
    #[must_use]
    pub fn lost_frees(&self) -> u64 {
        word_at(&self.file, offset_of!(RingHeader, lost_frees)).unwrap_or(0)
    }

    /// When the process began to exit, monotonic clock; `None` before, and if it ended without exit handlers.
    #[must_use]
    pub fn end_ns(&self) -> Option<u64> {
        word_at(&self.file, offset_of!(RingHeader, end_ns)).ok().filter(|end_ns| *end_ns > 0)
    }

    /// Unloads of images that may have begun; all of them if that is unknown.
    #[must_use]
    pub fn unloads(&self) -> u64 {
        word_at(&self.file, offset_of!(RingHeader, unloads)).unwrap_or(u64::MAX)
    }

    /// Allocations that threads lost while another thread created the ring.
    #[must_use]
    pub fn lost_before_ring(&self) -> u64 {
        word_at(&self.file, offset_of!(RingHeader, lost_before_ring)).unwrap_or(0)
    }

    /// Records lost because there was no space for them in the file system.
    #[must_use]
    pub fn no_space(&self) -> u64 {
        word_at(&self.file, offset_of!(RingHeader, no_space)).unwrap_or(0)
    }
}

#[cfg(target_os = "linux")]
fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: fallocate(2) of a descriptor that is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn word_at(file: &File, at: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn read_header(file: &File) -> Result<Header, RingError> {
    let mut bytes = [0; size_of::<RingHeader>()];
    file.read_exact_at(&mut bytes, 0)?;
    let long = |at| word(&bytes, at).unwrap_or(0);
    let short = |at| half(&bytes, at).unwrap_or(0);
    let data_size = long(offset_of!(RingHeader, data_size));
    if !data_size.is_power_of_two() || !(DATA_SIZE_MIN..=DATA_SIZE_MAX).contains(&data_size) {
        return Err(RingError::Malformed("invalid size"));
    }
    let at = offset_of!(RingHeader, comm);
    let name = bytes.get(at..at + 16).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Header {
        data_size,
        pid: short(offset_of!(RingHeader, pid)),
        sequence: short(offset_of!(RingHeader, sequence)),
        is_forked: short(offset_of!(RingHeader, origin)) == Origin::Fork as u32,
        processor: match short(offset_of!(RingHeader, processor)) {
            X86_64 => Processor::X86_64,
            AARCH64 => Processor::Aarch64,
            _ => return Err(RingError::Malformed("its processor is not known")),
        },
        name: String::from_utf8_lossy(name).into_owned(),
        start_ns: long(offset_of!(RingHeader, start_ns)),
    })
}

/// Bytes of the leading records that can be taken, and the fault in what follows. `ended`: skips unfinished
/// records. `is_all`: no record continues beyond these bytes.
fn committed(bytes: &[u8], ended: bool, is_all: bool) -> (usize, Option<&'static str>) {
    let mut used = 0;
    while used < bytes.len() {
        let Some(found) = word(bytes, used).map(Word::decode) else { break };
        let is_done = match found.state {
            COMMITTED => true,
            RESERVED => ended,
            0 => false,
            _ => return (used, Some("a record has no state")),
        };
        if !is_done {
            break;
        }
        let length = found.length as usize;
        if length == 0 || !length.is_multiple_of(RECORD_ALIGNMENT) {
            return (used, Some("a record has no length"));
        }
        if length > bytes.len() - used {
            let is_split = !is_all && used > 0;
            return (used, (!is_split).then_some("a record is longer than what is written"));
        }
        used += length;
    }
    (used, None)
}

/// Copies records out; each lies within the bytes.
fn parse(
    mut bytes: &[u8],
    spare: &mut BoxPool<AllocationRecord>,
    into: &mut Vec<Record>,
) -> Result<(), RingError> {
    while let Some(found) = word(bytes, 0).map(Word::decode) {
        let Some((record, rest)) = bytes.split_at_checked(found.length as usize) else { break };
        bytes = rest;
        // An ended process left it unfinished.
        if found.state != COMMITTED {
            continue;
        }
        let long = |at| word(record, at);
        match Kind::from_number(found.kind) {
            Some(Kind::Pad) => {}
            Some(Kind::Allocation) => {
                let mut allocation = spare.take().unwrap_or_default();
                let read = read_allocation(record, found.flags, &mut allocation);
                read.ok_or(RingError::Malformed("a record is too short"))?;
                into.push(Record::Allocation(allocation));
            }
            Some(kind @ (Kind::Free | Kind::Restore | Kind::Shrink)) => {
                let fields = (|| {
                    let time_ns = long(offset_of!(Free, time_ns))?;
                    Some((time_ns, long(offset_of!(Free, address))?, half(record, offset_of!(Free, tid))?))
                })();
                let (time_ns, address, tid) = fields.ok_or(RingError::Malformed("a record is too short"))?;
                into.push(match kind {
                    Kind::Restore => Record::Restore { time_ns, address, tid },
                    Kind::Shrink => {
                        let bytes = match half(record, offset_of!(Free, pages)).unwrap_or(0) {
                            u32::MAX => u64::MAX,
                            pages => u64::from(pages) * SHRINK_PAGE,
                        };
                        Record::Shrink { time_ns, address, tid, bytes }
                    }
                    _ => Record::Free { time_ns, address, tid },
                });
            }
            None => return Err(RingError::Malformed("a record is of no known kind")),
        }
    }
    Ok(())
}

fn read_allocation(record: &[u8], flags: u8, into: &mut AllocationRecord) -> Option<()> {
    for (index, register) in into.registers.iter_mut().enumerate() {
        *register = word(record, offset_of!(Allocation, registers) + index * size_of::<u64>())?;
    }
    let stack_size = half(record, offset_of!(Allocation, stack_size))? as usize;
    into.stack.clear();
    into.stack.extend_from_slice(record.get(size_of::<Allocation>()..)?.get(..stack_size)?);
    into.time_ns = word(record, offset_of!(Allocation, time_ns))?;
    into.address = word(record, offset_of!(Allocation, address))?;
    into.size = word(record, offset_of!(Allocation, size))?;
    into.tid = half(record, offset_of!(Allocation, tid))?;
    into.images = half(record, offset_of!(Allocation, images))?;
    into.untracked = flags & flag::UNTRACKED != 0;
    into.stack_ends = flags & flag::STACK_END != 0;
    Some(())
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

// ---- The clock of the recording beside the one of the rings.

/// Converts times of rings to those of the sampler.
pub(super) struct RingClock {
    sampler: RealClock,
    /// The clock of the rings at the sampler's 0.
    origin_ns: u64,
}

impl RingClock {
    /// `ring_ns`: the clock of the rings now.
    pub(super) fn new(sampler: RealClock, ring_ns: u64) -> RingClock {
        RingClock { origin_ns: ring_ns.saturating_sub(sampler.now_ns()), sampler }
    }

    /// The sampler's clock now.
    pub(super) fn now_ns(&self) -> u64 {
        self.sampler.now_ns()
    }

    /// The sampler's time at a time of the rings.
    pub(super) fn time_ns(&self, ring_ns: u64) -> u64 {
        ring_ns.saturating_sub(self.origin_ns)
    }

    /// The time of the rings at a time of the sampler.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn ring_ns(&self, time_ns: u64) -> u64 {
        self.origin_ns + time_ns
    }
}

// ---- The state of an allocation's caller, from the record of the shim.
//
// Input: a record; output: a capture to walk.

/// Fills a capture with the registers and the stack of an allocation; the program counter is the allocator's
/// return address.
pub(super) fn fill(capture: &mut Capture, record: &mut AllocationRecord, processor: Processor) {
    capture.reset();
    let known = &record.registers;
    capture.registers = match processor {
        Processor::Aarch64 => {
            use aarch64_register::{PC, SP, X19, X30};
            let mut x = [UNKNOWN_REGISTER; 31];
            x[19..30].copy_from_slice(&known[X19..X19 + 11]);
            x[30] = known[X30];
            Registers::Aarch64(Aarch64 { x, sp: known[SP], pc: known[PC] })
        }
        Processor::X86_64 => {
            use x86_64_register::{PC, R12, RBP, RBX, SP};
            let mut gpr = [UNKNOWN_REGISTER; 16];
            // rbx is number 3 in DWARF's order.
            (gpr[3], gpr[arch::X86_64::RBP], gpr[arch::X86_64::RSP]) = (known[RBX], known[RBP], known[SP]);
            gpr[12..16].copy_from_slice(&known[R12..R12 + 4]);
            Registers::X86_64(arch::X86_64 { gpr, rip: known[PC], fs_base: 0 })
        }
    };
    capture.stack_base = capture.registers.sp();
    let end = Avma(capture.stack_base.0.saturating_add(record.stack.len() as u64));
    capture.stack_limit = record.stack_ends.then_some(end);
    // The capture's buffer is reused for a later record.
    std::mem::swap(&mut capture.stack, &mut record.stack);
}
