//! Reads memory of a task: all of a range, up to the first unreadable page, or up to a terminating NUL.
//!
//! `Memory` reads; `Stack` knows the end of a thread's stack and copies its bytes.
//!
//! `mach_vm_read_overwrite` reads all or nothing, so every read that may reach past the end of a mapping is
//! clipped at page ends. Addresses and lengths come from the target and may be anything.
//!
//! The kernel does not copy more than [`buffered_bytes`] at once: it makes the target's pages copy-on-write
//! and clips its map entries, and the target pays with a fault at each page that it writes next. So larger
//! reads are made in pieces.

use std::ops::Range;

use super::kernel::{Kern, KernReturn, MachKernel, Region, TaskPort};
use crate::arch::{Arch, RED_ZONE_BYTES};

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

// ---- Finds the end of a thread's stack, and copies the bytes from the stack pointer up to there.
//
// A read past the end of the stack fails as a whole. So its end is found once for each thread, while it
// runs: from its pthread structure, or else from the regions of the task. A thread on another stack (a
// coroutine's, a signal handler's), or with an unknown end, gets the readable bytes up to a page end.

/// Distance below the `thread_handle` (the TSD base) of the stack's bounds: `stackaddr`, the high end, then
/// `stackbottom` (libpthread src/offsets_internal.h; private, so the values are used only if they enclose the
/// stack pointer).
const BOUNDS_BELOW_HANDLE: u64 = 48;
/// Largest plausible stack: macOS limits main threads to 64 MiB, and no known program has threads with a
/// gigabyte.
const STACK_BYTES_MAX: u64 = 4 << 30;
/// VM_MEMORY_STACK (mach/vm_statistics.h).
const TAG_STACK: u32 = 30;
/// Most adjacent regions of one stack: main stacks are often split in two.
const REGIONS_MAX: u32 = 64;
const READABLE: i32 = 1;
/// Attempts to query regions on a system that refuses.
const REGION_TRIES: u8 = 3;

/// Known stacks of a thread.
#[derive(Debug, Default)]
pub(super) struct Stack {
    is_read: bool,
    /// From its pthread structure.
    own: Option<Range<u64>>,
    /// Another stack that it was seen on.
    other: Option<Range<u64>>,
    regions_refused: u8,
}

impl Stack {
    /// Reads the thread's pthread structure, once. `handle` is 0 for a thread without.
    pub(super) fn read_bounds(&mut self, memory: &Memory<'_>, handle: u64) {
        if std::mem::replace(&mut self.is_read, true) || handle < BOUNDS_BELOW_HANDLE {
            return;
        }
        let Ok([high, low]) = memory.array::<16>(handle - BOUNDS_BELOW_HANDLE).map(words) else { return };
        if low < high && high - low <= STACK_BYTES_MAX {
            self.own = Some(low..high);
        }
    }

    /// First address after the stack that `sp` is on, if known.
    pub(super) fn limit(&self, sp: u64) -> Option<u64> {
        let around = |stack: &&Range<u64>| stack.start <= sp && sp <= stack.end;
        self.own.iter().chain(&self.other).find(around).map(|stack| stack.end)
    }

    /// Start of the red zone below the stack pointer, if that is known to be stack memory; else the stack
    /// pointer.
    pub(super) fn red_zone(&self, sp: u64) -> u64 {
        let below = sp.saturating_sub(RED_ZONE_BYTES);
        let is_own = self.own.as_ref().is_some_and(|own| own.start <= below && sp <= own.end);
        if is_own { below } else { sp }
    }

    /// Fills `into` from `sp` up, and cuts it to the readable bytes. The thread must be stopped.
    pub(super) fn copy(&mut self, memory: &Memory<'_>, sp: u64, into: &mut Vec<u8>) -> Kern<()> {
        let limit = self.limit(sp).unwrap_or(u64::MAX);
        into.truncate(usize::try_from(limit - sp).unwrap_or(usize::MAX));
        if into.is_empty() {
            return Ok(());
        }
        // Whatever the code: pagers return others, too.
        let Err(failed) = memory.exact(sp, into) else { return Ok(()) };
        // The assumed end was wrong, or none was known.
        *self = Stack { is_read: true, own: None, other: None, ..*self };
        let readable = readable(memory, sp, into).ok_or(failed)?;
        into.truncate(readable);
        self.other = Some(memory.page_start(sp)..sp + readable as u64);
        Ok(())
    }

    /// Queries the end of the stack that `sp` is on; the thread may run.
    pub(super) fn learn(&mut self, memory: &Memory<'_>, sp: u64) {
        if self.limit(sp).is_some() || self.regions_refused >= REGION_TRIES {
            return;
        }
        let Ok(first) = memory.region(sp) else {
            self.regions_refused += 1;
            return;
        };
        let mut end = first.address.saturating_add(first.size);
        if first.address > sp || end <= sp || first.protection & READABLE == 0 {
            return;
        }
        for _ in 1..REGIONS_MAX {
            // It returns the next region if there is none at the address.
            let above = memory.region(end).ok().filter(|above| {
                above.address == end && above.protection & READABLE != 0 && above.user_tag == TAG_STACK
            });
            let Some(above) = above.filter(|above| above.size > 0 && first.user_tag == TAG_STACK) else {
                break;
            };
            end = end.saturating_add(above.size);
        }
        self.other = Some(first.address..end);
    }
}

/// Length of `into` that is readable from `sp` up, by bisection in whole pages from the first page end on;
/// fills that part.
fn readable(memory: &Memory<'_>, sp: u64, into: &mut [u8]) -> Option<usize> {
    let first = usize::try_from(memory.page_end(sp) - sp).ok()?;
    let page_bytes = usize::try_from(memory.page_bytes()).ok()?;
    // In pages after the first; this many are known to fail.
    let mut fails = into.len().saturating_sub(first).div_ceil(page_bytes);
    let mut works = None;
    if fails == 0 {
        return None;
    }
    let mut pages = 0;
    loop {
        let length = first + pages * page_bytes;
        match memory.exact(sp, into.get_mut(..length)?) {
            Ok(()) => works = Some(pages),
            Err(_) => fails = pages,
        }
        let begin = works.map_or(0, |works| works + 1);
        if begin >= fails {
            return works.map(|pages| first + pages * page_bytes);
        }
        pages = begin + (fails - begin) / 2;
    }
}

fn words(bytes: [u8; 16]) -> [u64; 2] {
    let (low, high) = bytes.split_at(8);
    [low, high].map(|word| word.try_into().map_or(0, u64::from_le_bytes))
}
