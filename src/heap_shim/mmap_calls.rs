//! The slow path of mmap, munmap and mremap, where mappings are recorded: anonymous ones are sampled like blocks of the
//! allocator, and freed page by page.
#![allow(unsafe_code)]

use super::mappings::{MappingTable, UnmapResult};
use super::process::{self, Settings, Status};
use super::real::{self, libc_function};
use super::ring::NoRoom;
use super::sample::{self, CallerRegisters};
use super::shared_memory::{Function, Kind, SHRINK_PAGE};
use super::system::{self, BlockedSignals, Thread};
use core::sync::atomic::{AtomicU64, Ordering};

const PROT_NONE: usize = 0;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MREMAP_FIXED: usize = 2;
const FAILED: usize = usize::MAX;
/// Longest wait for another call that unmaps the same addresses.
const WAIT_MAX_NS: u64 = 100_000_000;

/// Number of sampled mappings.
static SAMPLED: AtomicU64 = AtomicU64::new(0);

/// What a call maps and unmaps.
struct Change {
    /// Ranges that it unmaps if it succeeds.
    unmapped: [(u64, u64); 2],
    /// Size and function of the anonymous mapping that it makes.
    mapped: Option<(u64, Function)>,
}

/// Calls a function of libc, and records what it does.
///
/// # Safety
/// Called by an entry point with the program's arguments and an index into `LIBC_FUNCTIONS`.
pub unsafe extern "C" fn handle(arguments: &[usize; 6], registers: &CallerRegisters, index: u32) -> usize {
    let call = || real::call(index as usize, *arguments);
    let Some(table) = process::mappings() else { return call() };
    let Status::Recording(settings) = process::status() else { return call() };
    let Some(change) = parse_call(arguments, index as usize).filter(|_| !settings.is_stopped()) else {
        return call();
    };
    let _blocked = BlockedSignals::new();
    // A word of this call's frame: no other call has its address.
    let token = core::ptr::from_ref(&change).addr() as u64;
    let (mut is_known, mut gave_up) = (false, false);
    let mut until_ns = None;
    // Another call unmaps the same addresses; of much memory that takes milliseconds.
    let mut wait = || {
        // The system call might be forbidden.
        if process::is_filtered() {
            return false;
        }
        system::yield_now();
        let now_ns = system::now_ns();
        now_ns < *until_ns.get_or_insert(now_ns + WAIT_MAX_NS)
    };
    for (begin, end) in change.unmapped {
        let locked = table.lock_range(begin, end, token, &mut wait);
        (is_known, gave_up) = (is_known | locked.any, gave_up | locked.gave_up);
    }
    let result = call();
    // munmap returns an int: the upper half of its word can be anything.
    if result == FAILED || (index as usize == libc_function::munmap && result as i32 == -1) {
        table.unlock(token);
        return result;
    }
    let thread = Thread::current();
    if is_known {
        for (begin, end) in change.unmapped {
            table.unmap(begin, end, token, |unmapped| record_unmapped(thread, unmapped));
        }
        table.unlock(token);
    }
    if gave_up && let Some(ring) = process::ring() {
        ring.lose_free(NoRoom::Full);
    }
    // mremap is recorded if the old range was: mappings of files are not in the table.
    if let Some((size, function)) = change.mapped
        && (function == Function::Mmap || is_known)
    {
        record_mapped(settings, thread, table, registers, function, result as u64, size);
    }
    result
}

fn parse_call(arguments: &[usize; 6], index: usize) -> Option<Change> {
    const NOTHING: (u64, u64) = (0, 0);
    let [address, size, third, fourth, fifth, _] = *arguments;
    let range = |begin: usize, size: usize| {
        let (begin, size) = (begin as u64, pages(size as u64));
        // The call fails.
        if begin % system::page_size() != 0 { NOTHING } else { (begin, begin.saturating_add(size)) }
    };
    match index {
        libc_function::munmap => Some(Change { unmapped: [range(address, size), NOTHING], mapped: None }),
        libc_function::mremap => {
            let to = if fourth & MREMAP_FIXED != 0 { range(fifth, third) } else { NOTHING };
            let mapped = Some((third as u64, Function::Mremap));
            Some(Change { unmapped: [range(address, size), to], mapped })
        }
        _ => {
            let is_memory = fourth & MAP_ANONYMOUS != 0 && third != PROT_NONE;
            let is_fixed = fourth & MAP_FIXED != 0;
            let unmapped = [if is_fixed { range(address, size) } else { NOTHING }, NOTHING];
            let mapped = is_memory.then_some((size as u64, Function::Mmap));
            (is_memory || is_fixed).then_some(Change { unmapped, mapped })
        }
    }
}

fn pages(size: u64) -> u64 {
    size.checked_next_multiple_of(system::page_size()).unwrap_or(size)
}

fn record_mapped(
    settings: Settings,
    thread: Thread,
    table: &MappingTable,
    registers: &CallerRegisters,
    function: Function,
    begin: u64,
    size: u64,
) {
    let end = begin + pages(size);
    let is_due = sample::count_bytes(settings, thread, thread.bytes_to_sample(), size);
    // What an allocator maps is in its blocks, which are recorded. Return addresses may be signed (Arm).
    if !is_due || real::is_in_allocator((registers[super::entry::PC] & ((1 << 48) - 1)) as usize) {
        table.add(0, begin, end);
        return;
    }
    let block = begin + 1 + SAMPLED.fetch_add(1, Ordering::Relaxed) % (SHRINK_PAGE - 1);
    sample::record(settings, thread, registers, function, block, size, || table.add(block, begin, end));
}

fn record_unmapped(thread: Thread, unmapped: UnmapResult) {
    let Some(ring) = process::ring() else { return };
    let (block, pages) = match unmapped {
        // Another thread may report that, too, so it is no free, of which there is one.
        UnmapResult::All { block } => (block, u32::MAX),
        UnmapResult::Part { block, bytes } => {
            (block, u32::try_from(bytes / SHRINK_PAGE).unwrap_or(u32::MAX - 1))
        }
    };
    sample::push(&ring, thread, block, Kind::Shrink, pages);
}
