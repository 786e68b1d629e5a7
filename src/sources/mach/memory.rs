//! Reads memory of a task: all of a range, up to the first unreadable page, or up to a terminating NUL.
//!
//! `mach_vm_read_overwrite` reads all or nothing, so every read that may reach past the end of a mapping is
//! clipped at page ends. Addresses and lengths come from the target and may be anything.
//!
//! The kernel does not copy more than [`buffered_bytes`] at once: it makes the target's pages copy-on-write
//! and clips its map entries, and the target pays with a fault at each page that it writes next. So larger
//! reads are made in pieces.

use super::kernel::{Kern, KernReturn, MachKernel, Region, TaskPort};
use crate::arch::Arch;

/// Words of `vm_region_submap_info_64`.
const REGION_COUNT: u32 = 19;
/// Descends every submap.
pub(super) const DEEPEST: u32 = 1024;

/// Largest read that the kernel copies through its own buffer: KHEAP_MAX_SIZE (osfmk/kern/kalloc.h;
/// osfmk/vm/vm_map.c, `vm_map_copyin`).
const fn buffered_bytes(arch: Arch) -> usize {
    match arch {
        Arch::X86_64 | Arch::X86 => 16 << 10,
        Arch::Aarch64 | Arch::Arm => 32 << 10,
    }
}

/// Access to a task's memory.
#[derive(Clone, Copy)]
pub(super) struct Memory<'k> {
    pub(super) kernel: &'k dyn MachKernel,
    pub(super) task: TaskPort,
    page_bytes: u64,
    piece_bytes: usize,
}

impl<'k> Memory<'k> {
    pub(super) fn new(kernel: &'k dyn MachKernel, task: TaskPort) -> Memory<'k> {
        // 16 KiB on Apple silicon, 4 KiB on Intel; a translated process is refused.
        let page_bytes = kernel.page_size();
        let page_bytes = if page_bytes.is_power_of_two() { page_bytes.max(4096) } else { 4096 };
        Memory { kernel, task, page_bytes, piece_bytes: buffered_bytes(kernel.arch()) }
    }

    /// Fills all of `into`, or fails and leaves it in an undefined state.
    pub(super) fn exact(&self, at: u64, into: &mut [u8]) -> Kern<()> {
        if at.checked_add(into.len() as u64).is_none() {
            return Err(KernReturn::InvalidAddress);
        }
        for (piece, into) in (0..).zip(into.chunks_mut(self.piece_bytes)) {
            self.kernel.vm_read_overwrite(self.task, at + piece * self.piece_bytes as u64, into)?;
        }
        Ok(())
    }

    /// An array of bytes.
    pub(super) fn array<const N: usize>(&self, at: u64) -> Kern<[u8; N]> {
        let mut bytes = [0; N];
        self.exact(at, &mut bytes)?;
        Ok(bytes)
    }

    /// A little-endian word.
    pub(super) fn word(&self, at: u64) -> Kern<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Fills `into` from its start with as much as is readable in one piece; returns the length.
    pub(super) fn some(&self, at: u64, into: &mut [u8]) -> Kern<usize> {
        let mut failed = match self.exact(at, into) {
            Ok(()) => return Ok(into.len()),
            Err(failed) => failed,
        };
        let mut done = 0;
        while done < into.len() {
            let Some(from) = at.checked_add(done as u64) else { break };
            let length = usize::try_from(self.page_end(from) - from).unwrap_or(usize::MAX);
            if length == 0 {
                break;
            }
            let end = into.len().min(done.saturating_add(length));
            match self.exact(from, &mut into[done..end]) {
                Ok(()) => done = end,
                Err(why) => {
                    failed = why;
                    break;
                }
            }
        }
        if done == 0 { Err(failed) } else { Ok(done) }
    }

    /// `length` bytes, or fewer at the end of the memory.
    pub(super) fn bytes(&self, at: u64, length: usize) -> Kern<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = if length == 0 { 0 } else { self.some(at, &mut bytes)? };
        bytes.truncate(read);
        Ok(bytes)
    }

    /// A NUL-terminated text, cut at `max` bytes and at the end of the memory.
    pub(super) fn text(&self, at: u64, max: usize) -> Kern<String> {
        let mut bytes = Vec::new();
        while bytes.len() < max {
            let Some(from) = at.checked_add(bytes.len() as u64) else { break };
            let length = usize::try_from(self.page_end(from) - from).unwrap_or(usize::MAX);
            let begun = bytes.len();
            if length == 0 {
                // The last page has no end address.
                break;
            }
            bytes.resize(begun + length.min(max - begun), 0);
            if let Err(failed) = self.exact(from, &mut bytes[begun..]) {
                if begun == 0 {
                    return Err(failed);
                }
                bytes.truncate(begun);
                break;
            }
            if let Some(end) = bytes[begun..].iter().position(|byte| *byte == 0) {
                bytes.truncate(begun + end);
                break;
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The region at an address, or the next one above.
    pub(super) fn region(&self, at: u64) -> Kern<Region> {
        self.kernel.vm_region_recurse(self.task, at, DEEPEST, REGION_COUNT)
    }

    /// First address of the next page; the highest address in the last page.
    pub(super) fn page_end(&self, at: u64) -> u64 {
        self.page_start(at).saturating_add(self.page_bytes)
    }

    /// First address of the page.
    pub(super) fn page_start(&self, at: u64) -> u64 {
        at & !(self.page_bytes - 1)
    }

    /// Page size.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}
