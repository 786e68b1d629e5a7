//! The slow path of the entry points: draws the next interval, calls the allocator, records the sampled
//! allocation, and the free of a sampled block.
#![allow(unsafe_code)]

use super::images::images;
use super::interval::draw;
use super::process::{self, RANDOM, Settings, Status};
use super::real;
use super::request::{self, Request};
use super::ring::{NoRoom, Ring};
use super::shared_memory::{
    Allocation, Free, Function, Kind, OTHER_STACK_SIZE, REGISTERS, allocation_length, flag,
};
use super::system::{self, BlockedSignals, Thread};

/// The caller's registers, as stored by an entry point.
pub type CallerRegisters = [u64; super::entry::REGISTER_COUNT];

/// Assumed size of a thread's own stack: the default of most systems, so that the next mapping below is a different
/// one.
pub const OWN_STACK_SIZE: u64 = 8 << 20;

/// More than any program allocates: the entry points no longer take the slow path.
const NEVER: u64 = 1 << 62;

/// Handles an allocation with at least the remaining size of the thread's interval, or the `realloc` of a block
/// that may be sampled. The entry point has subtracted its size.
///
/// # Safety
/// Called by an entry point with the program's arguments and the number of a `Function`.
pub unsafe extern "C" fn allocate(
    a: usize,
    b: usize,
    c: usize,
    registers: &CallerRegisters,
    function: u32,
) -> usize {
    let function = request::function(function);
    let request = Request::new(function, a, b, c);
    let block = |result: usize| match function {
        // An int: the upper half of the register is undefined.
        Function::PosixMemalign if result as i32 != 0 => 0,
        // SAFETY: the allocator has stored the block there.
        Function::PosixMemalign => unsafe { *(a as *const u64) },
        _ => result as u64,
    };
    handle(function, request, registers, || real::allocate(function, a, b, c), block)
}

/// Handles an allocation with more arguments, or a batch.
///
/// # Safety
/// Called by an entry point with the program's arguments and the index of the function.
#[cfg(target_vendor = "apple")]
pub unsafe extern "C" fn allocate_wide(
    arguments: &[usize; 6],
    registers: &CallerRegisters,
    index: u32,
) -> usize {
    let call = || real::call(index as usize, *arguments);
    if index as usize != real::index::malloc_zone_batch_malloc {
        let request = Request { old_block: 0, size: arguments[2] as u64 };
        return handle(Function::ZoneMemalign, request, registers, call, |result| result as u64);
    }
    let result = call();
    let Status::Recording(settings) = process::status() else { return result };
    let (thread, size) = (Thread::current(), arguments[1] as u64);
    let _blocked = BlockedSignals::new();
    // Its result is an unsigned int.
    for at in 0..result as u32 as usize {
        if count_bytes(settings, thread, thread.bytes_to_sample(), size) && !settings.is_stopped() {
            // SAFETY: the allocator has stored as many blocks there.
            let block = unsafe { *(arguments[2] as *const u64).add(at) };
            let insert = || process::blocks().is_some_and(|blocks| blocks.insert(block));
            record(settings, thread, registers, Function::ZoneMalloc, block, size, insert);
        }
    }
    result
}

fn handle(
    function: Function,
    Request { old_block, size }: Request,
    registers: &CallerRegisters,
    call: impl Fn() -> usize,
    block: impl Fn(usize) -> u64,
) -> usize {
    let thread = Thread::current();
    let before = thread.bytes_to_sample().wrapping_add(size);
    let sp = registers[super::entry::SP];
    // After null, the entry point calls an operator new that throws: an exception cannot pass this library.
    let pass = || if request::throws(function) { 0 } else { call() };
    // The allocator calls itself, or the handler of a fault allocates. A higher stack pointer means that
    // longjmp left the earlier call.
    if thread.active_sp() != 0 && sp <= thread.active_sp() {
        thread.set_bytes_to_sample(before);
        return pass();
    }
    let settings = match process::status() {
        Status::Recording(settings) => settings,
        Status::Later => {
            thread.set_bytes_to_sample(before);
            return pass();
        }
        Status::Off => {
            thread.set_bytes_to_sample(NEVER);
            return pass();
        }
    };
    let is_sampled = count_bytes(settings, thread, before, size);
    let is_tracked = old_block != 0 && process::blocks().is_some_and(|blocks| blocks.contains(old_block));
    if !is_sampled && !is_tracked {
        return pass();
    }

    let _blocked = BlockedSignals::new();
    let outer_sp = thread.active_sp();
    thread.set_active_sp(sp);
    // Before the allocator can give the block to another thread.
    let is_tracked = is_tracked && release(thread, old_block);
    let left = thread.bytes_to_sample();
    let result = call();
    // Without what the allocator counted by calling itself.
    thread.set_bytes_to_sample(left);
    let block = block(result);
    if block == 0 {
        // A size of 0 frees the block.
        if is_tracked && size != 0 {
            restore(thread, old_block);
        }
    } else if is_sampled && !settings.is_stopped() {
        let insert = || process::blocks().is_some_and(|blocks| blocks.insert(block));
        record(settings, thread, registers, function, block, size, insert);
    }
    thread.set_active_sp(outer_sp);
    result
}

/// Whether an allocation of this size is to be sampled, with `left` bytes until the next sample; takes it off them.
pub fn count_bytes(settings: Settings, thread: Thread, left: u64, size: u64) -> bool {
    let is_new = thread.generation() == 0;
    if is_new {
        thread.set_generation(process::generation());
    }
    let left = if is_new { draw(&RANDOM, settings.mean_bytes) } else { left };
    // Negative if a signal handler allocated after the entry point found that a sample is due.
    let is_sampled = (left as i64) < 0 || size >= left;
    thread.set_bytes_to_sample(if is_sampled { draw(&RANDOM, settings.mean_bytes) } else { left - size });
    is_sampled
}

/// Handles the free of a block that may be sampled.
///
/// # Safety
/// Called by an entry point with the program's argument.
pub unsafe extern "C" fn free(address: usize) {
    forget(address);
    real::free(address);
}

/// Handles the free of a block of a zone that may be sampled.
///
/// # Safety
/// Called by an entry point with the program's arguments.
#[cfg(target_vendor = "apple")]
pub unsafe extern "C" fn free_in_zone(zone: usize, address: usize) {
    forget(address);
    real::free_in_zone(zone, address);
}

/// Handles a function that frees a block that may be sampled, before it is called.
#[cfg(not(target_vendor = "apple"))]
pub extern "C" fn forget_block(address: usize) {
    forget(address);
}

/// Handles the free of a batch of blocks of a zone.
///
/// # Safety
/// Called in place of `malloc_zone_batch_free`, with the program's arguments.
#[cfg(target_vendor = "apple")]
pub unsafe extern "C" fn free_batch(zone: usize, blocks: *const usize, count: u32) {
    for at in 0..count as usize {
        // SAFETY: as many blocks are there.
        forget(unsafe { *blocks.add(at) });
    }
    real::call(real::index::malloc_zone_batch_free, [zone, blocks as usize, count as usize, 0, 0, 0]);
}

/// Records the free of a block that may be sampled, before the allocator gets it back.
fn forget(address: usize) {
    if process::blocks().is_some_and(|blocks| blocks.contains(address as u64)) {
        let _blocked = BlockedSignals::new();
        release(Thread::current(), address as u64);
    }
}

/// Records a sampled allocation. `track`: notes that its free is to be recorded, and returns whether it will be.
pub fn record(
    settings: Settings,
    thread: Thread,
    registers: &CallerRegisters,
    function: Function,
    address: u64,
    size: u64,
    track: impl FnOnce() -> bool,
) {
    let Some(ring) = settings.ring(size) else { return };
    refresh(thread);
    let sp = registers[super::entry::SP];
    let (low, base) = thread.stack();
    let (is_mapped, wanted) = stack_part(sp, low, base, settings.stack_size());
    let length = allocation_length(wanted);
    let room = match process::reserve(&ring, |ring| ring.reserve_allocation(length)) {
        Ok(room) => room,
        Err(why) => return ring.lose_allocation(size, why),
    };
    // At once, so that numbers follow the order of records, but for a few.
    let images = images(thread);
    let (to, _) = room.stack();
    let (copied, is_refused) = if is_mapped {
        // SAFETY: the thread's own stack, above its stack pointer; the buffer has that many bytes.
        unsafe { core::ptr::copy_nonoverlapping(sp as *const u8, to, wanted as usize) };
        (wanted as usize, false)
    } else {
        // SAFETY: the buffer has that many bytes; the stack pointer is the caller's.
        unsafe { system::copy_stack(sp, to, wanted as usize) }
    };
    let mut flags = 0;
    let end = sp.wrapping_add(copied as u64);
    if is_refused {
        flags |= flag::STACK_REFUSED;
    } else {
        if copied < wanted as usize || end == base {
            flags |= flag::STACK_END;
        }
        if !is_mapped {
            thread.add_to_stack(sp, end);
        }
    }
    if !track() {
        flags |= flag::UNTRACKED;
    }
    let mut all = [0; REGISTERS];
    all[..registers.len()].copy_from_slice(registers);
    let record = Allocation {
        word: 0,
        time_ns: system::now_ns(),
        address,
        size,
        tid: thread.tid(),
        function: function as u32,
        stack_size: copied as u32,
        images,
        registers: all,
    };
    room.commit_allocation(record, flags);
}

/// Whether the part of a stack to copy is known to be mapped, and its size: up to the base of the thread's own stack.
/// Other stacks (coroutines, alternate stacks) have no known base and are often in the heap, so less of them is copied.
fn stack_part(sp: u64, low: u64, base: u64, limit: u32) -> (bool, u32) {
    let above = base.wrapping_sub(sp);
    if base == 0 {
        (false, limit)
    } else if above < OWN_STACK_SIZE {
        (sp >= low, above.min(u64::from(limit)) as u32)
    } else {
        (false, limit.min(OTHER_STACK_SIZE))
    }
}

/// Updates the thread id after a fork.
fn refresh(thread: Thread) {
    if thread.generation() != process::generation() {
        thread.set_generation(process::generation());
    }
}

/// Removes a block from the set and records its free; false if another thread did so.
fn release(thread: Thread, address: u64) -> bool {
    let is_removed = process::blocks().is_some_and(|blocks| blocks.remove(address));
    if is_removed && let Some(ring) = process::ring() {
        push(&ring, thread, address, Kind::Free, 0);
    }
    is_removed
}

/// Adds a block to the set again because it was not freed.
fn restore(thread: Thread, address: u64) {
    let is_inserted = process::blocks().is_some_and(|blocks| blocks.insert(address));
    if let Some(ring) = process::ring() {
        push(&ring, thread, address, Kind::Restore, 0);
        if !is_inserted {
            ring.lose_free(NoRoom::Full);
        }
    }
}

/// Records a free, or one of some pages.
pub fn push(ring: &Ring, thread: Thread, address: u64, kind: Kind, pages: u32) {
    refresh(thread);
    let room = match process::reserve(ring, |ring| ring.reserve_free(kind)) {
        Ok(room) => room,
        Err(why) => return ring.lose_free(why),
    };
    let record = Free { word: 0, time_ns: system::now_ns(), address, tid: thread.tid(), pages };
    room.commit_free(record, kind);
}
