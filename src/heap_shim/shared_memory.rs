//! The memory that the heap shim shares with stackprof: one control file, and one ring of records per recorded
//! process. Both programs compile this file; it uses only `core`.
//!
//! The directory (mode 0700, its path in `STACKPROF_HEAP`) holds:
//!
//! | file | written by | content |
//! |---|---|---|
//! | `control` | stackprof, before the command starts | [`Control`], [`CONTROL_SIZE`] bytes, the rest zero |
//! | `ring.PID.N` | the shim, at a process's first sample | [`RingHeader`], at [`DATA_OFFSET`] the records |
//! | `maps.PID.N` | the shim, before that ring's magic number | Linux: /proc/self/maps at that time; macOS: [`image_line`]s, and those of images that are loaded later |
//! | `maps.PID.N.end` | the shim, when the process exits | /proc/self/maps at the exit, if the process reached it |
//! | `maps.PID.N.K` | the shim, before the unload number K (from 0), if a sample has named it | Linux: /proc/self/maps at that time |
//!
//! PID is the result of `getpid()` in the process; N counts from 0 and is the first free number, so that a program
//! started by `execve` in the same process gets the next one.
//!
//! # Ring
//!
//! `RingHeader::write` and `RingHeader::read` are byte counts that only increase; a position is `DATA_OFFSET + (count
//! & (data_size - 1))`. A writer reserves space by compare-and-swap on a count in private memory, of which `write` is a copy,
//! stores the record's [`Word`] as [`RESERVED`] at once, fills the record and stores the word as [`COMMITTED`] (release).
//! Writers take nothing from the file but `read`, which they check. Records begin at multiples
//! of [`RECORD_ALIGNMENT`] and do not wrap: [`Kind::Pad`] fills the end of the ring.
//!
//! The reader begins at 0 and loads the word of each record (acquire). If it is 0 or reserved, there is nothing to
//! read yet; if it is committed, the reader copies the record and continues after it. It **zeroes whole pieces** that
//! it has passed, and then stores the count after them in `read` (release): a piece has [`piece_size`] bytes. After
//! the process has ended, a reserved record was never finished and is skipped by its length; a zero word before
//! `write` ends the ring. The reader never truncates the file (the process would get SIGBUS); it unlinks it.
//!
//! # Memory of a ring
//!
//! The file is sparse: a ring takes memory only for unread records. A writer has the kernel populate the next piece
//! before it enters it; if there is no space for it, the record is lost (`no_space`), and
//! the program never gets the SIGBUS that a store to an unbacked page raises. The reader punches holes where it
//! zeroes, unless the ring is busy (the memory is needed again soon) or `is_pinned`: then all of it was populated in
//! advance. After punching a hole it checks again: if the ring was pinned meanwhile, the reader backs the piece again
//! before it releases it through `read`.
//!
//! Order: a free is in the ring before the allocator gets the block back, an allocation after the allocator returned
//! it and before the program has it. So the records of one address are in order.
//!
//! A full ring loses the record, unless `Control::wait_ns` lets its writer wait: `RingHeader::lost_allocations`, `lost_frees`. The last eighth of the ring is for
//! frees only. A lost allocation is not in the set of sampled blocks, so its free has no record.
//!
//! The recorded program controls what the shim writes: the reader checks each length.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// Environment variable with the directory's path.
pub const DIRECTORY_VARIABLE: &str = "STACKPROF_HEAP";

/// Name of the control file in the directory.
pub const CONTROL_NAME: &str = "control";

/// File name prefix of rings; `PID.N` follows.
pub const RING_PREFIX: &str = "ring.";

/// File name prefix of copies of /proc/self/maps; `PID.N` or `PID.N.end` follows.
pub const MAPS_PREFIX: &str = "maps.";

/// A line of the image list of a macOS process: an image was loaded or unloaded, or there is a shared cache.
///
/// ```text
/// + LOAD SIZE STATED OFFSET UUID TYPE FLAGS CPU SUBTYPE PATH
/// - LOAD
/// c BASE UUID
/// ```
///
/// Numbers are hexadecimal with all their digits: 16, or 8 of the last four. LOAD, SIZE, STATED and OFFSET are the address
/// of the segment `__TEXT`, its size, the address that the file states, and its offset in the file; TYPE, FLAGS, CPU
/// and SUBTYPE are fields of the header (mach-o/loader.h). A UUID has 32 digits, all 0 without one. Newlines in a path
/// are written as `?`.
pub mod image_line {
    /// An image was loaded.
    pub const LOADED: u8 = b'+';
    /// It was unloaded.
    pub const UNLOADED: u8 = b'-';
    /// The shared cache.
    pub const CACHE: u8 = b'c';
    /// Longest path, MAXPATHLEN; others are cut.
    pub const PATH_MAX: usize = 1024;
}

/// First word of `Control` and of `RingHeader`: "sp-heap" and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sp-heap\x05");

/// Size of the control file, bytes.
pub const CONTROL_SIZE: usize = 4096;

/// Offset of the records in a ring; a multiple of every page size.
pub const DATA_OFFSET: usize = 65536;

/// Alignment of records and of their lengths.
pub const RECORD_ALIGNMENT: usize = 16;

/// The largest `Control::stack_size`: buffers of 64 KiB on a stack are common, and callers lie above them.
pub const STACK_SIZE_MAX: u32 = 131_072;

/// The smallest `Control::data_size`. Stacks are shortened so that a record takes
/// at most a quarter of the data.
pub const DATA_SIZE_MIN: u64 = 4096;

/// The largest `Control::data_size`.
pub const DATA_SIZE_MAX: u64 = 1 << 32;

/// Default size of the records in a ring: with the set of sampled blocks below 8 MB.
pub const DEFAULT_DATA_SIZE: u64 = 4 << 20;

/// Most bytes of a stack other than the thread's own: a coroutine's, an alternate stack.
pub const OTHER_STACK_SIZE: u32 = 16384;

/// Slots of the set of sampled blocks at the default rate: 512 KiB of memory. Each sampled live block takes
/// one; when half of the slots are used, further blocks are recorded with [`flag::UNTRACKED`].
pub const DEFAULT_SET_SLOTS: u64 = 1 << 16;

/// The largest `Control::set_slots`: 2 GiB of address space, populated by memory only where used.
pub const SET_SLOTS_MAX: u64 = 1 << 28;

/// The settings that stackprof passes to the shim, and reports of processes without a ring. All
/// processes map it.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// [`MAGIC`].
    pub magic: u64,
    /// Mean number of bytes between samples; 1 records every allocation.
    pub mean_bytes: u64,
    /// Bytes of records in each ring: a power of two, [`DATA_SIZE_MIN`] to [`DATA_SIZE_MAX`].
    pub data_size: u64,
    /// Slots of the set of sampled blocks: a power of two, 64 to [`SET_SLOTS_MAX`].
    pub set_slots: u64,
    /// Most bytes of stack per sample: a multiple of 16, at most [`STACK_SIZE_MAX`].
    pub stack_size: u32,
    /// Nonzero stops all recording: sampled allocations are lost without being counted.
    pub is_stopped: AtomicU32,
    /// Seed of the sampling intervals; 0 takes one from the clock. Two runs of a single-threaded program
    /// with the same seed sample the same allocations.
    pub seed: u64,
    /// Number of programs (processes that called `execve`) that loaded the shim. 0 after the command ran: it
    /// is statically linked, runs with other privileges, or its environment was cleared.
    pub programs: AtomicU64,
    /// Number of processes that took a sample and could not create a ring, by [`Refusal`].
    pub refusals: [AtomicU64; 8],
    /// Number of seccomp filters of stackprof itself (`Seccomp_filters` in /proc/self/status), plus 1. A program that
    /// starts with more is not recorded: the shim's system calls could kill it. 0: not compared.
    pub seccomp_filters: u64,
    /// Nonzero: anonymous mappings are recorded, too.
    pub records_mappings: u64,
    /// Libraries that were loaded with RTLD_DEEPBIND or into another namespace: their calls do not reach the shim.
    pub unseen_libraries: AtomicU64,
    /// Peak memory of the largest process with such a library that has reached its exit, bytes.
    pub peak_with_unseen: AtomicU64,
    /// How long a writer waits for room in a full ring while the reader makes none, nanoseconds; 0: not at all.
    pub wait_ns: u64,
    /// Set by a writer that has waited in vain, cleared by the reader each time it reads: while it is set, no writer waits.
    pub is_stalled: AtomicU32,
    /// Zero.
    pub reserved: u32,
}

/// Why a process has no ring: the index into `Control::refusals`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file could not be created: no access to the directory, no free descriptor.
    Create = 0,
    /// No space for the file, or above the process's file size limit (`RLIMIT_FSIZE`).
    Space = 1,
    /// No address space.
    Map = 2,
    /// `Control` has values that this layout does not allow.
    Control = 3,
    /// The process restricts its system calls, and had no ring before.
    Filtered = 4,
}

/// Origin of a ring's process.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By `execve`: no block is older than the ring.
    Program = 1,
    /// By `fork`: it has copies of its parent's blocks, and their frees have no record. Every block in its
    /// ring was allocated after the fork.
    Fork = 2,
}

/// Lost allocations of one size class: they did not fit into the ring.
#[repr(C)]
#[derive(Debug)]
pub struct LostAllocations {
    /// Number of sampled allocations.
    pub count: AtomicU64,
    /// Their bytes, unweighted.
    pub bytes: AtomicU64,
}

/// Number of size classes of lost allocations.
pub const SIZE_CLASSES: usize = 64;

/// The header of a ring. Fields that are not atomic are constant once `magic` is [`MAGIC`].
#[repr(C)]
#[derive(Debug)]
pub struct RingHeader {
    /// [`MAGIC`], stored last (release); 0 before.
    pub magic: AtomicU64,
    /// Bytes of records, a power of two; the file has `DATA_OFFSET` more.
    pub data_size: u64,
    /// `Control::mean_bytes` of this process.
    pub mean_bytes: u64,
    /// CLOCK_MONOTONIC when the ring was created (macOS: CLOCK_UPTIME_RAW).
    pub start_ns: u64,
    /// Result of `getpid()` in the process.
    pub pid: u32,
    /// N of the file's name.
    pub sequence: u32,
    /// An [`Origin`].
    pub origin: u32,
    /// [`X86_64`] or [`AARCH64`].
    pub processor: u32,
    /// After a fork: `getpid()` of the nearest ancestor with a ring, or else of the one that called
    /// `execve`; 0 if this process did.
    pub parent_pid: u32,
    /// N of that ancestor's ring; meaningless if `parent_has_ring` is 0.
    pub parent_sequence: u32,
    /// Whether that ancestor has a ring.
    pub parent_has_ring: u32,
    /// `Control::stack_size` of this process.
    pub stack_size: u32,
    /// The thread's name when the ring was created (Linux), padded with zeros.
    pub comm: [u8; 16],
    /// Keeps `write` off the constant fields' cache line.
    pub padding: [u64; 6],
    /// Bytes reserved since the ring was created: a copy for the reader.
    pub write: AtomicU64,
    /// Keeps `read` off the cache line of `write`.
    pub write_padding: [u64; 15],
    /// Bytes released by the reader: a multiple of the piece size. Only the reader writes it.
    pub read: AtomicU64,
    /// Keeps the counters off the cache line of `read`.
    pub read_padding: [u64; 15],
    /// Number of frees of sampled blocks that did not fit: those blocks are not live, although no record says
    /// so.
    pub lost_frees: AtomicU64,
    /// How many of the lost allocations were lost while another thread created the ring.
    pub lost_before_ring: AtomicU64,
    /// CLOCK_MONOTONIC when the shim's destructor ran; 0 before, and if the process ended without.
    /// Records may follow: exit handlers allocate.
    pub end_ns: AtomicU64,
    /// How many of the lost allocations and frees were lost because there was no space for the next
    /// piece.
    pub no_space: AtomicU64,
    /// Nonzero: the process makes no system calls, or its kernel cannot populate pieces: the reader punches no
    /// holes.
    pub is_pinned: AtomicU64,
    /// Unloads of images that may have begun; those before it have been listed if there were samples.
    pub unloads: AtomicU64,
    /// Zero.
    pub reserved: [u64; 2],
    /// Allocations that did not fit, by [`size_class`].
    pub lost_allocations: [LostAllocations; SIZE_CLASSES],
}

/// `RingHeader::processor` of x86_64. Its registers are those of [`x86_64_register`].
pub const X86_64: u32 = 62;

/// `RingHeader::processor` of aarch64. Its registers are those of [`aarch64_register`].
pub const AARCH64: u32 = 183;

/// Type of a record.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Padding: skip its length. Only the word is valid.
    Pad = 1,
    /// [`Allocation`], then `stack_size` bytes of stack, then padding.
    Allocation = 2,
    /// [`Free`]: a sampled block is freed.
    Free = 3,
    /// [`Free`]: `realloc` failed; the block of the last `Free` with this address is still live.
    Restore = 4,
    /// [`Free`]: a part of a sampled mapping was unmapped.
    Shrink = 5,
}

impl Kind {
    /// The kind with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Pad),
            2 => Some(Self::Allocation),
            3 => Some(Self::Free),
            4 => Some(Self::Restore),
            5 => Some(Self::Shrink),
            _ => None,
        }
    }
}

/// State of a record that is being written.
pub const RESERVED: u8 = 1;

/// State of a readable record.
pub const COMMITTED: u8 = 2;

/// Flag bits of a record.
pub mod flag {
    /// The set of sampled blocks had no slot: the free of this block will have no record.
    pub const UNTRACKED: u8 = 1;
    /// The stack bytes end before `Control::stack_size`, and there may be more: the system refused to copy
    /// (Linux), or copies all or nothing (macOS).
    pub const STACK_REFUSED: u8 = 2;
    /// The stack ends with its bytes: at its base, or at the end of mapped memory.
    pub const STACK_END: u8 = 4;
}

/// The first eight bytes of a record: length << 32 | flags << 16 | kind << 8 | state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Length of the record with this word, bytes: a multiple of `RECORD_ALIGNMENT`.
    pub length: u32,
    /// See [`flag`].
    pub flags: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// 0, [`RESERVED`] or [`COMMITTED`].
    pub state: u8,
}

impl Word {
    /// Encodes the word for storage.
    pub const fn encode(self) -> u64 {
        (self.length as u64) << 32 | (self.flags as u64) << 16 | (self.kind as u64) << 8 | self.state as u64
    }

    /// Decodes a stored word.
    pub const fn decode(word: u64) -> Self {
        Self {
            length: (word >> 32) as u32,
            flags: (word >> 16) as u8,
            kind: (word >> 8) as u8,
            state: word as u8,
        }
    }
}

/// The allocation function that a program called.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `malloc`.
    Malloc = 1,
    /// `calloc`.
    Calloc = 2,
    /// `realloc`, also of a null pointer.
    Realloc = 3,
    /// `reallocarray`.
    Reallocarray = 4,
    /// `posix_memalign`.
    PosixMemalign = 5,
    /// `aligned_alloc`.
    AlignedAlloc = 6,
    /// `memalign`.
    Memalign = 7,
    /// `valloc`.
    Valloc = 8,
    /// `pvalloc`.
    Pvalloc = 9,
    /// `malloc_zone_malloc` (macOS): the zone, then the size.
    ZoneMalloc = 10,
    /// `malloc_zone_calloc`.
    ZoneCalloc = 11,
    /// `malloc_zone_realloc`.
    ZoneRealloc = 12,
    /// `malloc_zone_memalign`.
    ZoneMemalign = 13,
    /// `malloc_zone_valloc`.
    ZoneValloc = 14,
    /// `mmap` of anonymous memory.
    Mmap = 15,
    /// `mremap`.
    Mremap = 16,
    /// `operator new(size)` of an allocator that has one of its own.
    New = 17,
    /// `operator new[](size)`.
    NewArray = 18,
    /// `operator new(size, alignment)`.
    NewAligned = 19,
    /// `operator new[](size, alignment)`.
    NewArrayAligned = 20,
    /// `operator new(size, nothrow)`. Each is four after the one that throws.
    NewNothrow = 21,
    /// `operator new[](size, nothrow)`.
    NewArrayNothrow = 22,
    /// `operator new(size, alignment, nothrow)`.
    NewAlignedNothrow = 23,
    /// `operator new[](size, alignment, nothrow)`.
    NewArrayAlignedNothrow = 24,
    /// `mallocx` of jemalloc.
    Mallocx = 25,
    /// `rallocx` of jemalloc.
    Rallocx = 26,
}

/// Number of registers in a record.
pub const REGISTERS: usize = 16;

/// Indexes into `Allocation::registers` on x86_64; the rest is zero.
pub mod x86_64_register {
    /// rbx.
    pub const RBX: usize = 0;
    /// rbp.
    pub const RBP: usize = 1;
    /// r12; r13, r14 and r15 follow.
    pub const R12: usize = 2;
    /// rsp after the allocation function's return.
    pub const SP: usize = 6;
    /// The return address.
    pub const PC: usize = 7;
}

/// Indexes into `Allocation::registers` on aarch64; the rest is zero.
pub mod aarch64_register {
    /// x19; x20 to x29 follow.
    pub const X19: usize = 0;
    /// x30 at the call: the return address.
    pub const X30: usize = 11;
    /// The stack pointer at the call.
    pub const SP: usize = 12;
    /// The return address, from x30; a signed one keeps its signature.
    pub const PC: usize = 13;
}

/// A sampled allocation. The stack bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// A [`Word`].
    pub word: u64,
    /// CLOCK_MONOTONIC after the allocator returned (macOS: CLOCK_UPTIME_RAW).
    pub time_ns: u64,
    /// The block; never null. Of a mapping an address in its first page: another one for each that begins there, since
    /// parts of an older one may still exist.
    pub address: u64,
    /// Bytes that the program requested.
    pub size: u64,
    /// Thread id (macOS: the low half of `pthread_threadid_np`).
    pub tid: u32,
    /// A [`Function`].
    pub function: u32,
    /// Bytes of stack that follow, from the register SP upwards.
    pub stack_size: u32,
    /// The list of images that has the code of the stack. List K is `maps.PID.N.K`, on macOS what the list has before that
    /// `-` line. If `RingHeader::unloads` is not above K, no image of it has been unloaded, and it is what is mapped now.
    pub images: u32,
    /// Registers of the function's **caller** after the return. PC is a return address: the call
    /// instruction ends there.
    pub registers: [u64; REGISTERS],
}

/// A freed sampled block, a part of one, or a free that is undone.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// A [`Word`].
    pub word: u64,
    /// CLOCK_MONOTONIC (macOS: CLOCK_UPTIME_RAW).
    pub time_ns: u64,
    /// The block.
    pub address: u64,
    /// The thread.
    pub tid: u32,
    /// Of [`Kind::Shrink`] the unmapped pages of [`SHRINK_PAGE`] bytes, `u32::MAX` for all that is left; else 0.
    pub pages: u32,
}

/// Unit of `Free::pages`: the smallest page size.
pub const SHRINK_PAGE: u64 = 4096;

/// Length of an allocation record with this many bytes of stack.
pub const fn allocation_length(stack_size: u32) -> u32 {
    (size_of::<Allocation>() as u32 + stack_size).next_multiple_of(RECORD_ALIGNMENT as u32)
}

/// Length of a free record.
pub const FREE_LENGTH: u32 = size_of::<Free>() as u32;

/// Index into `RingHeader::lost_allocations` for a size: its number of bits.
pub const fn size_class(size: u64) -> usize {
    let bits = (u64::BITS - size.leading_zeros()) as usize;
    if bits < SIZE_CLASSES { bits } else { SIZE_CLASSES - 1 }
}

/// Bytes that are populated and released at once: a multiple of every page size, less in the rings of
/// tests.
pub const fn piece_size(data_size: u64) -> u64 {
    if data_size / 8 < PIECE_SIZE_MAX { data_size / 8 } else { PIECE_SIZE_MAX }
}

/// The largest piece size.
pub const PIECE_SIZE_MAX: u64 = 65536;

/// Bytes of a ring that allocations may fill; frees may fill all.
pub const fn allocation_limit(data_size: u64) -> u64 {
    data_size - data_size / 8
}

const _: () = assert!(size_of::<Control>() <= CONTROL_SIZE);
const _: () = assert!(size_of::<RingHeader>() <= DATA_OFFSET);
const _: () = assert!(size_of::<Free>() == 32 && size_of::<Allocation>() == 176);
const _: () = assert!(core::mem::offset_of!(RingHeader, write) == 128);
const _: () = assert!(core::mem::offset_of!(RingHeader, read) == 256);
const _: () = assert!(core::mem::offset_of!(RingHeader, lost_frees) == 384);
const _: () = assert!(core::mem::offset_of!(RingHeader, lost_allocations) == 448);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_encoding_and_decoding() {
        for word in [
            Word { length: 0, flags: 0, kind: 0, state: 0 },
            Word { length: 16, flags: 0, kind: Kind::Pad as u8, state: COMMITTED },
            Word { length: u32::MAX, flags: 255, kind: 255, state: 255 },
        ] {
            assert_eq!(Word::decode(word.encode()), word);
        }
        assert_eq!(Word::decode(0).state, 0);
    }

    #[test]
    fn record_lengths_keep_the_alignment() {
        assert_eq!(allocation_length(0), 176);
        assert_eq!(allocation_length(1), 192);
        assert_eq!(allocation_length(17), 208);
        assert_eq!(FREE_LENGTH as usize % RECORD_ALIGNMENT, 0);
    }

    #[test]
    fn each_size_has_a_class() {
        assert_eq!([size_class(0), size_class(1), size_class(2), size_class(3)], [0, 1, 2, 2]);
        assert_eq!([size_class(u64::MAX), size_class(1 << 62), size_class(1 << 20)], [63, 63, 21]);
    }
}
