//! Reads memory of running processes. Input: a thread, an address. Output: bytes.

use std::io;

use libc::pid_t;

use crate::sources::linux::sys;

/// Reads memory of processes.
pub(in crate::sources::linux::perf) trait TargetMemory {
    /// Reads up to `len` bytes from this address into a buffer, replacing its content; returns how many.
    ///
    /// # Errors
    /// The system's error if not even the first byte can be read.
    fn read(&self, tid: pid_t, from: u64, len: usize, into: &mut Vec<u8>) -> io::Result<usize>;
}

/// The memory of this machine's processes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sources::linux::perf) struct SystemMemory;

impl TargetMemory for SystemMemory {
    fn read(&self, tid: pid_t, from: u64, len: usize, into: &mut Vec<u8>) -> io::Result<usize> {
        sys::read_memory_into(tid, from, len, into)
    }
}
