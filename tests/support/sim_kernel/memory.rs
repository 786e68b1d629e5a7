//! The address space of a simulated task without its stacks: regions and reads.
//!
//! Stacks are generated when read (`stack.rs`); `task.rs` combines both.

use std::collections::BTreeMap;
use std::ops::Range;

pub const READ: i32 = 1;
pub const READ_WRITE: i32 = 3;
pub const READ_EXECUTE: i32 = 5;

/// A mapped range; zero beyond its bytes.
#[derive(Clone, Debug)]
pub struct Mapped {
    pub size: u64,
    pub protection: i32,
    pub tag: u32,
    /// The file for `proc_regionfilename`.
    pub file: Option<String>,
    pub bytes: Vec<u8>,
}

/// A region as returned by look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub start: u64,
    pub size: u64,
    pub protection: i32,
    pub tag: u32,
}

/// The regions, and the addresses for new ones.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub map: BTreeMap<u64, Mapped>,
    /// Shown as one submap at depth 0 of a region look-up.
    pub submap: Option<Range<u64>>,
    pub page: u64,
    next: u64,
}

impl Memory {
    pub fn new(page: u64, heap: u64) -> Memory {
        Memory { page, next: heap, ..Memory::default() }
    }

    /// Maps whole pages for `bytes` at `start`.
    pub fn place(&mut self, start: u64, bytes: Vec<u8>, protection: i32, file: Option<&str>) {
        assert!(start.is_multiple_of(self.page), "{start:#x} is no page");
        let size = (bytes.len() as u64).max(1).next_multiple_of(self.page);
        let file = file.map(str::to_owned);
        let above = self.map.range(start..start + size).next();
        assert!(above.is_none(), "{start:#x} is mapped already");
        self.map.insert(start, Mapped { size, protection, tag: 0, file, bytes });
    }

    /// Maps whole pages for data at any address, with a hole after them.
    pub fn allocate(&mut self, bytes: Vec<u8>) -> u64 {
        let start = self.next;
        let size = (bytes.len() as u64).max(1).next_multiple_of(self.page);
        self.next += size + self.page;
        self.place(start, bytes, READ_WRITE, None);
        start
    }

    /// Maps a text that ends with the last byte of its mapping, with a hole after it.
    pub fn allocate_text(&mut self, text: &str) -> u64 {
        let size = (text.len() as u64 + 1).next_multiple_of(self.page);
        let mut bytes = vec![0; size as usize - text.len() - 1];
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        self.allocate(bytes) + size - text.len() as u64 - 1
    }

    /// Unmaps the region at an address.
    pub fn free(&mut self, address: u64) {
        if let Some(found) = self.at(address) {
            self.map.remove(&found.start);
        }
    }

    /// The region at an address.
    pub fn at(&self, address: u64) -> Option<At> {
        let (start, mapped) = self.map.range(..=address).next_back()?;
        (address < start + mapped.size).then_some(at(*start, mapped))
    }

    /// The region at an address, or the next one above.
    pub fn from(&self, address: u64) -> Option<At> {
        self.at(address)
            .or_else(|| self.map.range(address..).next().map(|(start, mapped)| at(*start, mapped)))
    }

    /// Copies memory at `address`; all of `into` must lie in one region.
    pub fn copy(&self, address: u64, into: &mut [u8]) {
        let (start, mapped) = self.map.range(..=address).next_back().expect("a mapped address");
        let from = (address - start) as usize;
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = mapped.bytes.get(from + index).copied().unwrap_or(0);
        }
    }

    /// Writes like the target itself.
    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let (start, mapped) = self.map.range_mut(..=address).next_back().expect("a mapped address");
        let from = (address - start) as usize;
        assert!(from + bytes.len() <= mapped.size as usize, "{address:#x} is not mapped");
        if mapped.bytes.len() < from + bytes.len() {
            mapped.bytes.resize(from + bytes.len(), 0);
        }
        mapped.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

fn at(start: u64, mapped: &Mapped) -> At {
    At { start, size: mapped.size, protection: mapped.protection, tag: mapped.tag }
}
