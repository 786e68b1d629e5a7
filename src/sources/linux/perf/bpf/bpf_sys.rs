//! System calls for BPF programs: loading, maps, rings. Input: plain values. Output: owned descriptors, bytes of a
//! ring.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::super::ring::sys;

/// Calls bpf(2) with a prefix of `union bpf_attr`; returns its result.
///
/// # Safety
/// Pointers in the attributes must be live for as long as the command needs them, and writable where it writes.
unsafe fn bpf<T>(command: c_int, attributes: &mut T) -> libc::c_long {
    // SAFETY: `attributes` is live during the call, and the size passed is its own; the caller guarantees the
    // rest.
    unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>() as libc::c_uint) }
}

/// Converts the result of a command that returns no value.
fn done(returned: libc::c_long) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `union bpf_attr` for BPF_PROG_LOAD, up to the last member used (include/uapi/linux/bpf.h); the rest may be
/// omitted (kernel/bpf/syscall.c, `bpf_check_uarg_tail_zero`).
#[repr(C)]
struct LoadProgram {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
}

/// Type of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProgramKind {
    /// Filters samples of events (BPF_PROG_TYPE_PERF_EVENT).
    Event,
    /// Runs at a probe (BPF_PROG_TYPE_KPROBE).
    Probe,
    /// Runs when called by [`run_program`] (BPF_PROG_TYPE_SYSCALL).
    Call,
}

/// Loads a program.
///
/// # Errors
/// Errors of bpf(2): EPERM without CAP_BPF, ENOSYS if the kernel has none.
pub(crate) fn load_program(kind: ProgramKind, instructions: &[u64]) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: c_int = 5;
    const BPF_F_SLEEPABLE: u32 = 1 << 4;
    let (program_type, flags) = match kind {
        ProgramKind::Event => (7, 0),
        ProgramKind::Probe => (2, 0),
        ProgramKind::Call => (31, BPF_F_SLEEPABLE),
    };
    let mut load = LoadProgram {
        program_type,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags,
    };
    // SAFETY: the pointers in `load` (instructions, a literal) are live during the call, which retains neither.
    let fd = unsafe { bpf(BPF_PROG_LOAD, &mut load) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { sys::owned_fd(fd) }
}

/// `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct RunProgram {
    program: u32,
    returned: u32,
    data: [u32; 2],
    data_at: [u64; 2],
    repeat: u32,
    duration: u32,
    context: [u32; 2],
    context_at: [u64; 2],
}

/// Runs a [`ProgramKind::Call`] program once.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn run_program(program: &OwnedFd) -> io::Result<()> {
    const BPF_PROG_TEST_RUN: c_int = 10;
    let mut run = RunProgram { program: program.as_raw_fd().cast_unsigned(), ..RunProgram::default() };
    // SAFETY: `run` contains no pointers.
    done(unsafe { bpf(BPF_PROG_TEST_RUN, &mut run) })
}

/// `union bpf_attr` for BPF_MAP_CREATE, up to the last member used.
#[repr(C)]
struct CreateMap {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// `union bpf_attr` for BPF_MAP_UPDATE_ELEM, BPF_MAP_LOOKUP_ELEM and BPF_MAP_DELETE_ELEM.
#[repr(C)]
struct ChangeMap {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Creates a map from numbers to numbers (BPF_MAP_TYPE_HASH), with room for this many entries.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn create_map(max_entries: u32) -> io::Result<OwnedFd> {
    create_map_of(8, max_entries)
}

/// Creates a map from numbers to values of this size (BPF_MAP_TYPE_HASH), with room for this many entries.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn create_map_of(value_bytes: usize, max_entries: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_HASH: u32 = 1;
    let value_size = value_bytes as u32;
    create(CreateMap { map_type: BPF_MAP_TYPE_HASH, key_size: 4, value_size, max_entries, flags: 0 })
}

/// Creates a map from addresses to numbers (BPF_MAP_TYPE_HASH), filled by programs and allocated as it grows.
///
/// # Errors
/// Errors of bpf(2).
pub(crate) fn create_address_map(max_entries: u32) -> io::Result<OwnedFd> {
    const BPF_MAP_TYPE_HASH: u32 = 1;
    const BPF_F_NO_PREALLOC: u32 = 1;
    let flags = BPF_F_NO_PREALLOC;
    create(CreateMap { map_type: BPF_MAP_TYPE_HASH, key_size: 8, value_size: 8, max_entries, flags })
}

fn create(mut create: CreateMap) -> io::Result<OwnedFd> {
    const BPF_MAP_CREATE: c_int = 0;
    // SAFETY: `create` contains no pointers.
    let fd = unsafe { bpf(BPF_MAP_CREATE, &mut create) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { sys::owned_fd(fd) }
}

/// Sets or removes the value of a key. A full map or a missing key is ignored.
pub(crate) fn change_map(map: &OwnedFd, key: u32, value: Option<u64>) {
    const BPF_MAP_UPDATE_ELEM: c_int = 2;
    const BPF_MAP_DELETE_ELEM: c_int = 3;
    let command = if value.is_some() { BPF_MAP_UPDATE_ELEM } else { BPF_MAP_DELETE_ELEM };
    let mut change = ChangeMap {
        map: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: &raw const key as u64,
        value: value.as_ref().map_or(0, |value| &raw const *value as u64),
        flags: 0,
    };
    // SAFETY: `change` points to a key of 4 and a value of 8 bytes, the sizes set by `create_map`; both are live
    // during the call, which retains neither.
    unsafe { bpf(command, &mut change) };
}

/// Sets the value of a key, in a map created for values of `N` bytes. A full map is ignored.
pub(crate) fn put_in_map<const N: usize>(map: &OwnedFd, key: u32, value: &[u8; N]) {
    const BPF_MAP_UPDATE_ELEM: c_int = 2;
    let map = map.as_raw_fd().cast_unsigned();
    let mut change =
        ChangeMap { map, padding: 0, key: &raw const key as u64, value: value.as_ptr() as u64, flags: 0 };
    // SAFETY: `change` points to a key of 4 bytes and a value, both live during the call, which retains neither;
    // the caller guarantees that the map was created for values of `N` bytes.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut change) };
}

/// Removes a key from a map. A missing key is ignored.
pub(crate) fn remove_from_map(map: &OwnedFd, key: u32) {
    change_map(map, key, None);
}

/// Reads or writes the value of key 0. `value` points to `bytes` owned by the caller, live and, for a command that
/// reads, writable; the kernel copies `value_bytes`.
fn exchange(map: &OwnedFd, command: c_int, value: u64, bytes: usize, value_bytes: usize) -> io::Result<()> {
    // The kernel copies the size of the value, whatever the size of the buffer.
    if bytes != value_bytes {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let key: u32 = 0;
    let map = map.as_raw_fd().cast_unsigned();
    let mut change = ChangeMap { map, padding: 0, key: &raw const key as u64, value, flags: 0 };
    // SAFETY: the key of 4 bytes and the value, with its length checked above and borrowed by the caller (mutably
    // for commands that read), are live during the call, which retains neither.
    done(unsafe { bpf(command, &mut change) })
}

/// A single value shared with programs (BPF_MAP_TYPE_ARRAY).
#[derive(Debug)]
pub(crate) struct Array {
    map: OwnedFd,
    value_bytes: usize,
}

impl Array {
    /// Creates the array. `constant`: read-only for programs, and constant to the verifier once frozen.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn create(value_bytes: usize, constant: bool) -> io::Result<Array> {
        const BPF_MAP_TYPE_ARRAY: u32 = 2;
        const BPF_F_RDONLY_PROG: u32 = 1 << 7;
        let flags = if constant { BPF_F_RDONLY_PROG } else { 0 };
        let (map_type, value_size) = (BPF_MAP_TYPE_ARRAY, value_bytes as u32);
        let map = create(CreateMap { map_type, key_size: 4, value_size, max_entries: 1, flags })?;
        Ok(Array { map, value_bytes })
    }

    /// Its descriptor, for programs.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.map
    }

    /// Sets the value, of the size given at creation.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn put(&self, value: &[u8]) -> io::Result<()> {
        const BPF_MAP_UPDATE_ELEM: c_int = 2;
        exchange(&self.map, BPF_MAP_UPDATE_ELEM, value.as_ptr() as u64, value.len(), self.value_bytes)
    }

    /// Reads the value, of the size given at creation.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn get(&self, value: &mut [u8]) -> io::Result<()> {
        const BPF_MAP_LOOKUP_ELEM: c_int = 1;
        exchange(&self.map, BPF_MAP_LOOKUP_ELEM, value.as_mut_ptr() as u64, value.len(), self.value_bytes)
    }

    /// Freezes the value.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn freeze(&self) -> io::Result<()> {
        const BPF_MAP_FREEZE: c_int = 22;
        let mut map = self.map.as_raw_fd().cast_unsigned();
        // SAFETY: the descriptor is this command's only argument.
        done(unsafe { bpf(BPF_MAP_FREEZE, &mut map) })
    }
}

/// One value per CPU, changed by programs (BPF_MAP_TYPE_PERCPU_ARRAY).
#[derive(Debug)]
pub(crate) struct CpuArray {
    map: OwnedFd,
    /// Total size of the values of all CPUs.
    bytes: usize,
}

impl CpuArray {
    /// Creates the array. `value_bytes`: a multiple of 8, the kernel's rounding of sizes. `cpus`: number of
    /// possible CPUs.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn create(value_bytes: usize, cpus: usize) -> io::Result<CpuArray> {
        const BPF_MAP_TYPE_PERCPU_ARRAY: u32 = 6;
        let value_size = value_bytes as u32;
        let map_type = BPF_MAP_TYPE_PERCPU_ARRAY;
        let map = create(CreateMap { map_type, key_size: 4, value_size, max_entries: 1, flags: 0 })?;
        Ok(CpuArray { map, bytes: value_bytes.next_multiple_of(8) * cpus })
    }

    /// Its descriptor, for programs.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.map
    }

    /// Sets the values of all CPUs, concatenated.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn put(&self, values: &[u8]) -> io::Result<()> {
        const BPF_MAP_UPDATE_ELEM: c_int = 2;
        exchange(&self.map, BPF_MAP_UPDATE_ELEM, values.as_ptr() as u64, values.len(), self.bytes)
    }

    /// The values of all CPUs, concatenated.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn get(&self) -> io::Result<Vec<u8>> {
        const BPF_MAP_LOOKUP_ELEM: c_int = 1;
        let mut values = vec![0; self.bytes];
        exchange(&self.map, BPF_MAP_LOOKUP_ELEM, values.as_mut_ptr() as u64, self.bytes, self.bytes)?;
        Ok(values)
    }
}

/// A ring that programs write (BPF_MAP_TYPE_RINGBUF; kernel/bpf/ringbuf.c): a page with the consumer position, one
/// with the producer position, then the data, mapped twice in succession.
#[derive(Debug)]
pub(crate) struct ProgramRing {
    map: OwnedFd,
    /// The consumer page, writable by this process.
    read: NonNull<u8>,
    /// The producer page, followed by the data.
    written: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
    /// Mapped size of the second copy of the data: the largest record that can run over the end.
    again_bytes: usize,
}

/// Flags in the length of a record: being written; discarded.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Header of a record: its length, and a number of the kernel.
const HEADER_BYTES: usize = 8;

impl ProgramRing {
    /// Creates a ring of `data_bytes`, a power of two of at least a page, for records of at most `record_bytes`.
    ///
    /// # Errors
    /// Errors of bpf(2): EINVAL before Linux 5.8.
    pub(crate) fn create(data_bytes: usize, record_bytes: usize) -> io::Result<ProgramRing> {
        const BPF_MAP_TYPE_RINGBUF: u32 = 27;
        let max_entries = data_bytes as u32;
        let map = create(CreateMap {
            map_type: BPF_MAP_TYPE_RINGBUF,
            key_size: 0,
            value_size: 0,
            max_entries,
            flags: 0,
        })?;
        let page_bytes = sys::page_bytes();
        let read = map_at(&map, 0, page_bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        // The kernel populates the whole mapping at once, and each page counts as resident once per mapping.
        let again_bytes = (HEADER_BYTES + record_bytes).next_multiple_of(page_bytes).min(data_bytes);
        match map_at(&map, page_bytes, page_bytes + data_bytes + again_bytes, libc::PROT_READ) {
            Ok(written) => Ok(ProgramRing { map, read, written, page_bytes, data_bytes, again_bytes }),
            Err(error) => {
                // SAFETY: exactly the mapping made above, to which no other pointer exists.
                unsafe { libc::munmap(read.as_ptr().cast(), page_bytes) };
                Err(error)
            }
        }
    }

    /// Its descriptor, for programs.
    pub(crate) fn descriptor(&self) -> c_int {
        self.map.as_raw_fd()
    }

    /// Passes each available record to `take`, and frees its space.
    pub(crate) fn drain(&mut self, take: impl FnMut(&[u8])) {
        self.read(true, take);
    }

    /// Passes each available record to `take`, and keeps it.
    pub(crate) fn peek(&mut self, take: impl FnMut(&[u8])) {
        self.read(false, take);
    }

    fn read(&mut self, frees: bool, mut take: impl FnMut(&[u8])) {
        // SAFETY: both pages are mapped, readable and aligned as long as `self` lives, and begin with the u64
        // position; the consumer page, which only this process changes, is writable.
        let (consumed, written) = unsafe {
            (
                AtomicU64::from_ptr(self.read.as_ptr().cast()),
                AtomicU64::from_ptr(self.written.as_ptr().cast()),
            )
        };
        let end = written.load(Ordering::Acquire);
        let mut at = consumed.load(Ordering::Relaxed);
        let mapped_bytes = self.data_bytes + self.again_bytes;
        // SAFETY: this much of the data is mapped after the producer page as long as `self` lives. The kernel does
        // not write between the two positions, except for the length of a record in progress, which is read
        // atomically and before its contents; the consumer position is advanced below, after the last use of
        // `data`.
        let data =
            unsafe { std::slice::from_raw_parts(self.written.as_ptr().add(self.page_bytes), mapped_bytes) };
        while at < end {
            let from = at as usize & (self.data_bytes - 1);
            // SAFETY: records, and thus their lengths, are aligned to 8 and lie within the mapped data; the kernel
            // changes a length as an atomic word (`bpf_ringbuf_commit`).
            let length = unsafe { AtomicU32::from_ptr(data.as_ptr().add(from).cast_mut().cast()) };
            let length = length.load(Ordering::Acquire);
            if length & BUSY != 0 {
                break;
            }
            let bytes = (length & !DISCARDED) as usize;
            let Some(record) = data.get(from + HEADER_BYTES..from + HEADER_BYTES + bytes) else { break };
            if length & DISCARDED == 0 {
                take(record);
            }
            at += (HEADER_BYTES + bytes).next_multiple_of(8) as u64;
        }
        if frees {
            consumed.store(at, Ordering::Release);
        }
    }
}

fn map_at(map: &OwnedFd, offset: usize, bytes: usize, protection: c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address chosen by the kernel; the caller owns it.
    let at = unsafe {
        let offset = offset as libc::off_t;
        libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_raw_fd(), offset)
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(io::Error::last_os_error)
}

impl Drop for ProgramRing {
    fn drop(&mut self) {
        // SAFETY: exactly the mappings made by `create`; no borrow of them remains.
        unsafe {
            libc::munmap(self.read.as_ptr().cast(), self.page_bytes);
            libc::munmap(self.written.as_ptr().cast(), self.page_bytes + self.data_bytes + self.again_bytes);
        }
    }
}
