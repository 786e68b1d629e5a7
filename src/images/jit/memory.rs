//! Reads a target's memory while it runs. Input: an address. Output: bytes, or that they cannot be read.

use std::cell::RefCell;
use std::fmt;

use crate::addr::Avma;

/// Reads memory from an address on. Returns the number of bytes read.
pub type Read<'a> = &'a mut dyn FnMut(Avma, &mut [u8]) -> usize;

/// The memory of a target, for walks.
pub struct CodeMemory<'a>(RefCell<Read<'a>>);

impl<'a> CodeMemory<'a> {
    /// Wraps a reader.
    pub fn new(read: Read<'a>) -> CodeMemory<'a> {
        CodeMemory(RefCell::new(read))
    }

    /// Reads from an address on.
    pub(super) fn read(&self, at: Avma, into: &mut [u8]) -> usize {
        self.0.borrow_mut()(at, into)
    }
}

impl fmt::Debug for CodeMemory<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CodeMemory")
    }
}
