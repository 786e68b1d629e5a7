//! BPF programs at the probes of an allocator: one at the entry of each function, one at its return.
//!
//! `at_entry` and `at_return` are the programs; `read` converts the registers in their records.
//!
//! Input: descriptors of maps and of a ring; output: eBPF instructions. Allocations are sampled by size: each CPU
//! counts down from a random number of bytes, exponential with the requested mean, and samples the allocation that
//! reaches 0. Its record has the registers and the stack of the call; a second record has the block, once the call
//! returns. A map holds the sampled blocks; frees of other blocks stop there.
//!
//! Another map holds the call in progress of each thread, sampled or not: what an allocator calls of its own functions,
//! or jumps to at its end, is a part of that call. Stack pointers tell them apart: the stack grows down, and a function
//! that is jumped to has that of the one that jumped.

#[cfg(test)]
mod tests;

use super::super::bpf::instructions::{
    ADD, ADD_REGISTER, AND, CALL, GET_PRANDOM_U32, JUMP, JUMP_IF_EQUAL, JUMP_IF_GREATER_SIGNED,
    JUMP_UNLESS_EQUAL, KTIME_GET_NS, LOAD_DOUBLE, LOAD_WORD, MAP_DELETE, MAP_LOOKUP, MAP_UPDATE, MOVE,
    MOVE_REGISTER, MULTIPLY_REGISTER, PROBE_READ_USER, RINGBUF_RESERVE, RINGBUF_SUBMIT, SHIFT_LEFT,
    SHIFT_RIGHT, STORE_DOUBLE, STORE_VALUE_DOUBLE, SUBTRACT_REGISTER, load_map, load_value, op,
};
use super::super::bpf::memory_copies::CopyProgram;
use super::allocator::ProbedFunction;
use crate::arch::Registers;
use crate::sources::AllocatorRole;
use crate::sources::linux::perf::bpf::sample_filter::{CONTEXT, TID, observer};

pub(super) use arch::COUNT;

/// Number of random intervals for programs to choose from: a power of two.
pub(super) const INTERVALS: usize = 4096;
/// Stack bytes in a record: the sum of these pieces, each read whole or not at all.
const STACK_PIECES: [i32; 7] = [8192, 4096, 2048, 1024, 512, 256, 128];
pub(super) const STACK_BYTES: usize = 16256;

/// A record is 8-byte words: kind, time, thread, block, bytes, bytes of stack; then registers, then the stack.
pub(super) const KIND: usize = 0;
pub(super) const TIME: usize = 8;
pub(super) const THREAD: usize = 16;
pub(super) const BLOCK: usize = 24;
pub(super) const BYTES: usize = 32;
pub(super) const STACK_LEN: usize = 40;
pub(super) const REGISTERS: usize = 48;
pub(super) const STACK: usize = REGISTERS + 8 * COUNT;
pub(super) const CALL_BYTES: usize = STACK + STACK_BYTES;

/// Kinds of records: a sampled call, its block, the free of a sampled block, the revocation of that.
pub(super) const CALLED: u64 = 1;
pub(super) const RETURNED: u64 = 2;
pub(super) const FREED: u64 = 3;
pub(super) const RESTORED: u64 = 4;

/// State of each CPU: probe hits at entries, bytes until the next sample, frees lost for lack of room, probe
/// hits at returns; then sampled allocations that were lost so, count and bytes by number of bits of the size.
pub(super) const ENTRIES: i16 = 0;
pub(super) const LEFT: i16 = 8;
pub(super) const LOST_FREES: i16 = 16;
pub(super) const RETURNS: i16 = 24;
pub(super) const LOST_SIZES: i16 = 32;
/// Most bits of the size of an allocation that can succeed.
const SIZE_BITS_MAX: i32 = 47;
/// Classes of sizes, more than there are: the kernel's verifier assumes any sum of the bits that are added up.
const SIZE_CLASSES: usize = 64;
pub(super) const STATE_BYTES: usize = LOST_SIZES as usize + 16 * SIZE_CLASSES;

/// A call in progress: stack pointer at its entry, time, number of the function, sampled bytes (0: not sampled), address
/// of the result (0: a register), sampled block that it frees unless it fails, return address (of functions that throw,
/// else 0).
pub(super) const CALL_WORDS: usize = 7;
const SP: i16 = 0;
const BEGUN: i16 = 8;
const FUNCTION: i16 = 16;
const SAMPLED: i16 = 24;
const RESULT_AT: i16 = 32;
const FREES: i16 = 40;
const RETURN_ADDRESS: i16 = 48;

/// A call that did not return within this time (17 ms) was left by longjmp, or by an exception: bits of nanoseconds.
const CALL_NS_MAX_BITS: i32 = 24;

/// Offsets on the program's stack, relative to r10.
const ZERO: i16 = -16;
const KEY: i16 = -24;
const VALUE: i16 = -32;
const STATE: i16 = -40;
const PROGRESS: i16 = STATE - 8 * CALL_WORDS as i16;

/// Descriptors shared by the programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    /// State of each CPU, [`STATE_BYTES`] under key 0.
    pub(super) states: i32,
    /// [`INTERVALS`] sampling intervals, in bytes.
    pub(super) intervals: i32,
    /// By thread: its call in progress.
    pub(super) calls: i32,
    /// By address: sampled live blocks.
    pub(super) blocks: i32,
    pub(super) ring: i32,
    /// Device and inode of the PID namespace.
    pub(super) namespace: (u64, u64),
}

/// Builds one of the programs. r6 holds the context; the state of the CPU is at [`STATE`].
struct Builder {
    shared: Shared,
    program: CopyProgram,
}

impl Builder {
    /// `counter`: counts the hits of the probe.
    fn new(shared: Shared, counter: i16) -> Builder {
        let mut program = CopyProgram::default();
        program.extend([op(MOVE_REGISTER, 6, CONTEXT, 0, 0), op(STORE_VALUE_DOUBLE, 10, 0, ZERO, 0)]);
        let mut builder = Builder { shared, program };
        builder.call_map(MAP_LOOKUP, shared.states, ZERO);
        builder.program.end_by(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
        builder.program.extend([op(STORE_DOUBLE, 10, 0, STATE, 0)]);
        builder.count(counter);
        builder
    }

    /// Calls a helper with a map and a key on the program's stack; MAP_UPDATE with the `value` there.
    fn call_map_with(&mut self, helper: i32, map: i32, key: i16, value: i16) {
        self.program.extend(load_map(1, map));
        self.program.extend([op(MOVE_REGISTER, 2, 10, 0, 0), op(ADD, 2, 0, 0, key.into())]);
        if helper == MAP_UPDATE {
            self.program.extend([
                op(MOVE_REGISTER, 3, 10, 0, 0),
                op(ADD, 3, 0, 0, value.into()),
                op(MOVE, 4, 0, 0, 0),
            ]);
        }
        self.program.extend([op(CALL, 0, 0, 0, helper)]);
    }

    fn call_map(&mut self, helper: i32, map: i32, key: i16) {
        self.call_map_with(helper, map, key, VALUE);
    }

    /// Increments a counter in the CPU's state.
    fn count(&mut self, number: i16) {
        self.program.extend([
            op(LOAD_DOUBLE, 1, 10, STATE, 0),
            op(LOAD_DOUBLE, 2, 1, number, 0),
            op(ADD, 2, 0, 0, 1),
            op(STORE_DOUBLE, 1, 2, number, 0),
        ]);
    }

    /// Reserves a record in r8 and writes the common words; returns the jump that is taken without room.
    fn reserve(&mut self, bytes: usize, kind: u64) -> usize {
        self.program.extend(load_map(1, self.shared.ring));
        self.program.extend([
            op(MOVE, 2, 0, 0, bytes as i32),
            op(MOVE, 3, 0, 0, 0),
            op(CALL, 0, 0, 0, RINGBUF_RESERVE),
        ]);
        let full = self.program.jump(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
        self.program.extend([
            op(MOVE_REGISTER, 8, 0, 0, 0),
            op(CALL, 0, 0, 0, KTIME_GET_NS),
            op(STORE_DOUBLE, 8, 0, TIME as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, KIND as i16, kind as i32),
            op(LOAD_WORD, 1, 10, TID, 0),
            op(STORE_DOUBLE, 8, 1, THREAD as i16, 0),
        ]);
        full
    }

    /// Counts an allocation of r7 bytes as lost.
    fn count_lost_allocation(&mut self) {
        self.program.extend([op(MOVE_REGISTER, 1, 7, 0, 0), op(MOVE, 2, 0, 0, 0)]);
        for bits in [31, 16, 8, 4, 2, 1] {
            let more = self.program.jump(op(JUMP_IF_GREATER_SIGNED, 1, 0, 0, ((1u32 << bits) - 1) as i32));
            let less = self.program.jump(op(JUMP, 0, 0, 0, 0));
            self.program.land([more]);
            self.program.extend([op(SHIFT_RIGHT, 1, 0, 0, bits), op(ADD, 2, 0, 0, bits)]);
            self.program.land([less]);
        }
        // Of the highest bit: the number of bits is one more, except of 0.
        let empty = self.program.jump(op(JUMP_IF_EQUAL, 1, 0, 0, 0));
        self.program.extend([op(ADD, 2, 0, 0, 1)]);
        self.program.land([empty]);
        self.program.extend([
            op(SHIFT_LEFT, 2, 0, 0, 4),
            op(LOAD_DOUBLE, 1, 10, STATE, 0),
            op(ADD_REGISTER, 1, 2, 0, 0),
            op(LOAD_DOUBLE, 2, 1, LOST_SIZES, 0),
            op(ADD, 2, 0, 0, 1),
            op(STORE_DOUBLE, 1, 2, LOST_SIZES, 0),
            op(LOAD_DOUBLE, 2, 1, LOST_SIZES + 8, 0),
            op(ADD_REGISTER, 2, 7, 0, 0),
            op(STORE_DOUBLE, 1, 2, LOST_SIZES + 8, 0),
        ]);
    }

    /// Submits the record in r8, without waking the reader (BPF_RB_NO_WAKEUP).
    fn submit(&mut self) {
        self.program.extend([
            op(MOVE_REGISTER, 1, 8, 0, 0),
            op(MOVE, 2, 0, 0, 1),
            op(CALL, 0, 0, 0, RINGBUF_SUBMIT),
        ]);
    }

    /// Begins the call in progress; ends if it is a part of one that is in progress already.
    fn begin_call(&mut self, number: usize, throws: bool) {
        self.program.extend([
            op(CALL, 0, 0, 0, KTIME_GET_NS),
            op(STORE_DOUBLE, 10, 0, PROGRESS + BEGUN, 0),
            op(MOVE_REGISTER, 9, 0, 0, 0),
            op(LOAD_DOUBLE, 7, 6, SP_OFFSET, 0),
            op(STORE_DOUBLE, 10, 7, PROGRESS + SP, 0),
            op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + FUNCTION, number as i32),
            op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + SAMPLED, 0),
            op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + RESULT_AT, 0),
            op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + FREES, 0),
            op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + RETURN_ADDRESS, 0),
        ]);
        if throws {
            self.read_word(PROGRESS + RETURN_ADDRESS, op(MOVE_REGISTER, 3, 7, 0, 0));
        }
        self.call_map(MAP_LOOKUP, self.shared.calls, TID);
        let none = self.program.jump(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
        self.program.extend([
            op(LOAD_DOUBLE, 1, 0, BEGUN, 0),
            op(SUBTRACT_REGISTER, 9, 1, 0, 0),
            op(SHIFT_RIGHT, 9, 0, 0, CALL_NS_MAX_BITS),
        ]);
        let old = self.program.jump(op(JUMP_UNLESS_EQUAL, 9, 0, 0, 0));
        self.program.extend([op(LOAD_DOUBLE, 1, 0, SP, 0), op(SUBTRACT_REGISTER, 1, 7, 0, 0)]);
        let within = self.program.jump(op(JUMP_IF_GREATER_SIGNED, 1, 0, 0, -1));
        let above = self.program.jump(op(JUMP, 0, 0, 0, 0));
        self.program.land([within]);
        let below = self.program.jump(op(JUMP_UNLESS_EQUAL, 1, 0, 0, 0));
        self.program.extend([op(LOAD_DOUBLE, 1, 0, FUNCTION, 0)]);
        let again = self.program.jump(op(JUMP_IF_EQUAL, 1, 0, 0, number as i32));
        self.program.land([below]);
        self.program.extend([op(LOAD_DOUBLE, 8, 0, RETURN_ADDRESS, 0)]);
        self.program.end_by(op(JUMP_IF_EQUAL, 8, 0, 0, 0));
        // Left by an exception, another function has put something else where its return address was.
        self.program.extend([op(STORE_VALUE_DOUBLE, 10, 0, KEY, 0)]);
        self.read_word(KEY, op(LOAD_DOUBLE, 3, 0, SP, 0));
        self.program.extend([op(LOAD_DOUBLE, 1, 10, KEY, 0), op(SUBTRACT_REGISTER, 1, 8, 0, 0)]);
        self.program.end_by(op(JUMP_IF_EQUAL, 1, 0, 0, 0));
        self.program.land([none, old, above, again]);
    }

    /// Reads a word of the program's memory into `to`. `address`: loads its address into r3.
    fn read_word(&mut self, to: i16, address: u64) {
        self.program.extend([
            address,
            op(MOVE_REGISTER, 1, 10, 0, 0),
            op(ADD, 1, 0, 0, to.into()),
            op(MOVE, 2, 0, 0, 8),
            op(CALL, 0, 0, 0, PROBE_READ_USER),
        ]);
    }

    /// Removes the block in an argument from the sampled ones, with a record if it was among them. `may_fail`: notes it in
    /// the call in progress.
    fn free(&mut self, block: usize, may_fail: bool) {
        self.program
            .extend([op(LOAD_DOUBLE, 7, 6, argument_offset(block), 0), op(STORE_DOUBLE, 10, 7, KEY, 0)]);
        self.call_map(MAP_DELETE, self.shared.blocks, KEY);
        // The helper returns 0 if the block was in the map.
        let other = self.program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0));
        if may_fail {
            self.program.extend([op(STORE_DOUBLE, 10, 7, PROGRESS + FREES, 0)]);
        }
        let full = self.record_block(FREED);
        let recorded = self.program.jump(op(JUMP, 0, 0, 0, 0));
        self.program.land([full]);
        self.count(LOST_FREES);
        self.program.land([other, recorded]);
    }

    /// Writes a record of the block in r7; returns the jump that is taken without room.
    fn record_block(&mut self, kind: u64) -> usize {
        let full = self.reserve(REGISTERS, kind);
        self.program.extend([
            op(STORE_DOUBLE, 8, 7, BLOCK as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, BYTES as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, STACK_LEN as i16, 0),
        ]);
        self.submit();
        full
    }

    /// Chooses whether the allocation of r7 bytes is sampled, and if so, the next interval and the call's record.
    fn sample(&mut self) {
        self.program.extend([op(MOVE_REGISTER, 1, 7, 0, 0), op(SHIFT_RIGHT, 1, 0, 0, SIZE_BITS_MAX)]);
        // No allocator has so much. Subtracted, a size with a sign would hide later allocations of the CPU.
        let impossible = self.program.jump(op(JUMP_UNLESS_EQUAL, 1, 0, 0, 0));
        self.program.extend([
            op(LOAD_DOUBLE, 9, 10, STATE, 0),
            op(LOAD_DOUBLE, 1, 9, LEFT, 0),
            op(SUBTRACT_REGISTER, 1, 7, 0, 0),
            op(STORE_DOUBLE, 9, 1, LEFT, 0),
        ]);
        let other = self.program.jump(op(JUMP_IF_GREATER_SIGNED, 1, 0, 0, 0));
        self.program.extend([
            op(CALL, 0, 0, 0, GET_PRANDOM_U32),
            op(AND, 0, 0, 0, INTERVALS as i32 - 1),
            op(SHIFT_LEFT, 0, 0, 0, 3),
        ]);
        self.program.extend(load_value(1, self.shared.intervals, 0));
        self.program.extend([
            op(ADD_REGISTER, 1, 0, 0, 0),
            op(LOAD_DOUBLE, 1, 1, 0, 0),
            op(STORE_DOUBLE, 9, 1, LEFT, 0),
        ]);
        let full = self.record_call();
        let recorded = self.program.jump(op(JUMP, 0, 0, 0, 0));
        self.program.land([full]);
        self.count_lost_allocation();
        self.program.land([impossible, other, recorded]);
        self.call_map_with(MAP_UPDATE, self.shared.calls, TID, PROGRESS);
    }

    /// Writes the record of a sampled call of r7 bytes; returns the jump that is taken without room.
    fn record_call(&mut self) -> usize {
        let full = self.reserve(CALL_BYTES, CALLED);
        self.program.extend([
            op(STORE_DOUBLE, 10, 7, PROGRESS + SAMPLED, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, BLOCK as i16, 0),
            op(STORE_DOUBLE, 8, 7, BYTES as i16, 0),
        ]);
        for word in 0..COUNT {
            let (from, to) = (8 * word as i16, (REGISTERS + 8 * word) as i16);
            self.program.extend([op(LOAD_DOUBLE, 1, 6, from, 0), op(STORE_DOUBLE, 8, 1, to, 0)]);
        }
        // A read is all or nothing, so the end of the stack is found by halving.
        self.program.extend([op(LOAD_DOUBLE, 7, 6, SP_OFFSET, 0), op(MOVE, 9, 0, 0, 0)]);
        for bytes in STACK_PIECES {
            self.program.extend([
                op(MOVE_REGISTER, 1, 8, 0, 0),
                op(ADD, 1, 0, 0, STACK as i32),
                op(ADD_REGISTER, 1, 9, 0, 0),
                op(MOVE, 2, 0, 0, bytes),
                op(MOVE_REGISTER, 3, 7, 0, 0),
                op(CALL, 0, 0, 0, PROBE_READ_USER),
                op(JUMP_UNLESS_EQUAL, 0, 0, 2, 0),
                op(ADD, 7, 0, 0, bytes),
                op(ADD, 9, 0, 0, bytes),
            ]);
        }
        self.program.extend([op(STORE_DOUBLE, 8, 9, STACK_LEN as i16, 0)]);
        self.submit();
        full
    }

    fn end(self) -> Vec<u64> {
        observer(self.shared.namespace, &self.program.end())
    }
}

/// The program at the entry of a function. `number`: another one for each function.
pub(super) fn at_entry(number: usize, function: &ProbedFunction, shared: Shared) -> Vec<u64> {
    let mut builder = Builder::new(shared, ENTRIES);
    let argument = |register: u8, number: usize| op(LOAD_DOUBLE, register, 6, argument_offset(number), 0);
    let bytes = match function.role {
        AllocatorRole::Free { block } => {
            builder.free(block, false);
            return builder.end();
        }
        AllocatorRole::Reallocate { bytes, .. }
        | AllocatorRole::Allocate { bytes }
        | AllocatorRole::AllocateItems { bytes, .. } => bytes,
    };
    builder.begin_call(number, function.throws);
    if let Some(result) = function.result {
        builder.program.extend([argument(1, result), op(STORE_DOUBLE, 10, 1, PROGRESS + RESULT_AT, 0)]);
    }
    if let AllocatorRole::Reallocate { block, .. } = function.role {
        builder.free(block, true);
    }
    builder.program.extend([argument(7, bytes)]);
    let items = match function.role {
        AllocatorRole::AllocateItems { count, .. } => Some(count),
        _ => function.items,
    };
    if let Some(count) = items {
        builder.program.extend([argument(1, count), op(MULTIPLY_REGISTER, 7, 1, 0, 0)]);
    }
    if let AllocatorRole::Reallocate { .. } = function.role {
        // A size of 0 frees and returns no block.
        let mut resizes = vec![builder.program.jump(op(JUMP_UNLESS_EQUAL, 7, 0, 0, 0))];
        if let Some(count) = items {
            // A product that overflows may be 0: it fails.
            builder.program.extend([argument(1, bytes)]);
            let is_none = builder.program.jump(op(JUMP_IF_EQUAL, 1, 0, 0, 0));
            builder.program.extend([argument(1, count)]);
            resizes.push(builder.program.jump(op(JUMP_UNLESS_EQUAL, 1, 0, 0, 0)));
            builder.program.land([is_none]);
        }
        builder.program.extend([op(STORE_VALUE_DOUBLE, 10, 0, PROGRESS + FREES, 0)]);
        builder.program.land(resizes);
    }
    builder.sample();
    builder.end()
}

/// Where the program of a return runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnKind {
    /// After the return, by the kernel's trampoline.
    Trampoline,
    /// At an instruction that returns.
    Instruction,
}

/// The program at the return of an allocating function.
pub(super) fn at_return(kind: ReturnKind, shared: Shared) -> Vec<u64> {
    let mut builder = Builder::new(shared, RETURNS);
    builder.call_map(MAP_LOOKUP, shared.calls, TID);
    builder.program.end_by(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
    // After the return of an inner call, the stack pointer is at most that of the outer one at its entry; after that of
    // the outer one it is above, where the return address was on the stack.
    let most = if kind == ReturnKind::Trampoline && cfg!(target_arch = "x86_64") { -1 } else { 0 };
    builder.program.extend([
        op(LOAD_DOUBLE, 1, 0, SP, 0),
        op(LOAD_DOUBLE, 2, 6, SP_OFFSET, 0),
        op(SUBTRACT_REGISTER, 1, 2, 0, 0),
    ]);
    builder.program.end_by(op(JUMP_IF_GREATER_SIGNED, 1, 0, 0, most));
    for word in [SAMPLED, RESULT_AT, FREES] {
        builder.program.extend([op(LOAD_DOUBLE, 1, 0, word, 0), op(STORE_DOUBLE, 10, 1, PROGRESS + word, 0)]);
    }
    builder.call_map(MAP_DELETE, shared.calls, TID);
    builder
        .program
        .extend([op(LOAD_DOUBLE, 9, 6, RESULT_OFFSET, 0), op(LOAD_DOUBLE, 3, 10, PROGRESS + RESULT_AT, 0)]);
    let in_register = builder.program.jump(op(JUMP_IF_EQUAL, 3, 0, 0, 0));
    // The register has an error number.
    builder.program.end_by(op(JUMP_UNLESS_EQUAL, 9, 0, 0, 0));
    builder.program.extend([op(STORE_VALUE_DOUBLE, 10, 0, KEY, 0)]);
    builder.read_word(KEY, op(LOAD_DOUBLE, 3, 10, PROGRESS + RESULT_AT, 0));
    builder.program.extend([op(LOAD_DOUBLE, 9, 10, KEY, 0)]);
    builder.program.land([in_register]);
    let succeeded = builder.program.jump(op(JUMP_UNLESS_EQUAL, 9, 0, 0, 0));
    builder.program.extend([op(LOAD_DOUBLE, 7, 10, PROGRESS + FREES, 0)]);
    builder.program.end_by(op(JUMP_IF_EQUAL, 7, 0, 0, 0));
    builder.program.extend([op(STORE_DOUBLE, 10, 7, KEY, 0), op(STORE_DOUBLE, 10, 7, VALUE, 0)]);
    builder.call_map(MAP_UPDATE, shared.blocks, KEY);
    let full = builder.record_block(RESTORED);
    builder.program.land([full]);
    builder.program.end_by(op(JUMP, 0, 0, 0, 0));
    builder.program.land([succeeded]);
    builder.program.extend([op(LOAD_DOUBLE, 7, 10, PROGRESS + SAMPLED, 0)]);
    builder.program.end_by(op(JUMP_IF_EQUAL, 7, 0, 0, 0));
    let full = builder.reserve(REGISTERS, RETURNED);
    builder.program.extend([
        op(STORE_DOUBLE, 8, 9, BLOCK as i16, 0),
        op(STORE_DOUBLE, 8, 7, BYTES as i16, 0),
        op(STORE_VALUE_DOUBLE, 8, 0, STACK_LEN as i16, 0),
        op(STORE_DOUBLE, 10, 9, KEY, 0),
        op(STORE_DOUBLE, 10, 7, VALUE, 0),
    ]);
    builder.call_map(MAP_UPDATE, shared.blocks, KEY);
    builder.submit();
    builder.program.end_by(op(JUMP, 0, 0, 0, 0));
    builder.program.land([full]);
    builder.count_lost_allocation();
    builder.end()
}

/// The state of a CPU with this many bytes until the next sample.
pub(super) fn first_state(left: u64) -> Vec<u8> {
    let mut state = vec![0; STATE_BYTES];
    state[LEFT as usize..LEFT as usize + 8].copy_from_slice(&left.to_ne_bytes());
    state
}

/// The intervals that programs choose from, with exactly this mean: means of the exponential distribution between
/// its quantiles. With a mean of 1 byte all are 1: every allocation is sampled.
pub(super) fn intervals(mean_bytes: u64) -> Vec<u64> {
    // ∫ −ln(1 − u) du.
    let integral = |u: f64| if u < 1.0 { (1.0 - u) * (1.0 - u).ln() + u } else { 1.0 };
    let parts = INTERVALS as f64;
    let mean = |index: usize| {
        parts * (integral((index + 1) as f64 / parts) - integral(index as f64 / parts)) * mean_bytes as f64
    };
    (0..INTERVALS)
        .map(|index| if mean_bytes == 1 { 1 } else { (mean(index).round() as u64).max(1) })
        .collect()
}

// ---- Thread registers as passed to a program at a probe: their offsets, and their conversion to the
// `Registers` of `arch`.
//
// Sources: arch/x86/include/uapi/asm/ptrace.h (`struct pt_regs`), arch/arm64/include/uapi/asm/ptrace.h (`struct
// user_pt_regs`); arguments by the System V ABI 3.2.3 and AAPCS64 6.8.

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::arch::{Registers, X86_64};

    /// Number of words in the structure.
    pub(crate) const COUNT: usize = 21;
    /// Indices of rdi, rsi, rdx and rcx.
    pub(super) const ARGUMENTS: [usize; 4] = [14, 13, 12, 11];
    /// rax.
    pub(super) const RESULT: usize = 10;
    pub(super) const SP: usize = 19;

    pub(super) fn from_words(words: &[u64; COUNT]) -> Registers {
        let [r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, _, ip, _, _, sp, _] = *words;
        let gpr = [ax, dx, cx, bx, si, di, bp, sp, r8, r9, r10, r11, r12, r13, r14, r15];
        Registers::X86_64(X86_64 { gpr, rip: ip, fs_base: 0 })
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use crate::arch::{Aarch64, Registers};

    /// Number of words in the structure.
    pub(crate) const COUNT: usize = 34;
    /// Indices of x0 to x3.
    pub(super) const ARGUMENTS: [usize; 4] = [0, 1, 2, 3];
    /// x0.
    pub(super) const RESULT: usize = 0;
    pub(super) const SP: usize = 31;

    pub(super) fn from_words(words: &[u64; COUNT]) -> Registers {
        let x = std::array::from_fn(|number| words[number]);
        Registers::Aarch64(Aarch64 { x, sp: words[31], pc: words[32] })
    }
}

/// Offset of a function argument in a program's context.
pub(super) const fn argument_offset(number: usize) -> i16 {
    arch::ARGUMENTS[number] as i16 * 8
}

/// Offset of the function result in a program's context.
pub(super) const RESULT_OFFSET: i16 = arch::RESULT as i16 * 8;

/// Offset of the stack pointer in a program's context.
pub(super) const SP_OFFSET: i16 = arch::SP as i16 * 8;

/// Reads registers from a record; `None` if it is too short.
pub(super) fn read(bytes: &[u8]) -> Option<Registers> {
    let mut words = [0; COUNT];
    for (index, word) in words.iter_mut().enumerate() {
        *word = u64::from_ne_bytes(bytes.get(8 * index..8 * index + 8)?.try_into().ok()?);
    }
    Some(arch::from_words(&words))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod thread_registers_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::addr::Avma;

    #[test]
    fn registers_have_the_order_of_the_kernel() {
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (100 + word).to_ne_bytes()).collect();
        let Registers::X86_64(registers) = read(&bytes).unwrap() else { panic!() };
        assert_eq!((registers.gpr[0], registers.gpr[5], registers.gpr[4]), (110, 114, 113));
        assert_eq!((registers.rip, read(&bytes).unwrap().sp()), (116, Avma(119)));
        assert_eq!((argument_offset(0), RESULT_OFFSET, SP_OFFSET), (112, 80, 152));
        assert!(read(&bytes[1..]).is_none());
    }
}
