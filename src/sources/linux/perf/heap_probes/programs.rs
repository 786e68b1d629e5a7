//! BPF programs at the probes of an allocator: one at the entry of each function, one at its return.
//!
//! Input: descriptors of maps and of a ring; output: eBPF instructions. Allocations are sampled by size: each CPU
//! counts down from a random number of bytes, exponential with the requested mean, and samples the allocation that
//! reaches 0. Its record has the registers and the stack of the call; a second record has the block, once the call
//! returns. A map holds the sampled blocks; frees of other blocks stop there.

use super::super::bpf::filter_program::{CONTEXT, TID, observer};
use super::super::bpf::instructions::{
    ADD, ADD_REGISTER, AND, CALL, GET_PRANDOM_U32, JUMP_IF_EQUAL, JUMP_IF_GREATER_SIGNED, JUMP_UNLESS_EQUAL,
    KTIME_GET_NS, LOAD_DOUBLE, LOAD_WORD, MAP_DELETE, MAP_LOOKUP, MAP_UPDATE, MOVE, MOVE_REGISTER,
    MULTIPLY_REGISTER, PROBE_READ_USER, RINGBUF_RESERVE, RINGBUF_SUBMIT, SHIFT_LEFT, STORE_DOUBLE,
    STORE_VALUE_DOUBLE, SUBTRACT_REGISTER, load_map, load_value, op,
};
use super::super::bpf::memory_copies::CopyProgram;
use super::thread_registers::{self, RESULT_OFFSET, SP_OFFSET, argument_offset};
use crate::sources::allocator::AllocatorRole;

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
pub(super) const STACK: usize = REGISTERS + 8 * thread_registers::COUNT;
pub(super) const CALL_BYTES: usize = STACK + STACK_BYTES;

/// Kinds of records: a sampled call, its block, the free of a sampled block.
pub(super) const CALLED: u64 = 1;
pub(super) const RETURNED: u64 = 2;
pub(super) const FREED: u64 = 3;

/// State of each CPU: probe hits at entries, bytes until the next sample, records lost for lack of room, probe
/// hits at returns.
pub(super) const ENTRIES: i16 = 0;
pub(super) const LEFT: i16 = 8;
pub(super) const LOST: i16 = 16;
pub(super) const RETURNS: i16 = 24;
pub(super) const STATE_BYTES: usize = 32;

/// Offsets on the program's stack, relative to r10.
const ZERO: i16 = -16;
const KEY: i16 = -24;
const VALUE: i16 = -32;
const STATE: i16 = -40;

/// Descriptors shared by the programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    /// State of each CPU, [`STATE_BYTES`] under key 0.
    pub(super) states: i32,
    /// [`INTERVALS`] sampling intervals, in bytes.
    pub(super) intervals: i32,
    /// By thread: size requested by a sampled call in progress.
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

    /// Calls a helper with a map and a key on the program's stack.
    fn call_map(&mut self, helper: i32, map: i32, key: i16) {
        self.program.extend(load_map(1, map));
        self.program.extend([op(MOVE_REGISTER, 2, 10, 0, 0), op(ADD, 2, 0, 0, key.into())]);
        if helper == MAP_UPDATE {
            self.program.extend([
                op(MOVE_REGISTER, 3, 10, 0, 0),
                op(ADD, 3, 0, 0, VALUE.into()),
                op(MOVE, 4, 0, 0, 0),
            ]);
        }
        self.program.extend([op(CALL, 0, 0, 0, helper)]);
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

    /// Reserves a record in r8 and writes the common words; without room, counts it as lost and ends.
    fn reserve(&mut self, bytes: usize, kind: u64) {
        self.program.extend(load_map(1, self.shared.ring));
        self.program.extend([
            op(MOVE, 2, 0, 0, bytes as i32),
            op(MOVE, 3, 0, 0, 0),
            op(CALL, 0, 0, 0, RINGBUF_RESERVE),
        ]);
        let room = self.program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0));
        self.count(LOST);
        self.program.end_by(op(super::super::bpf::instructions::JUMP, 0, 0, 0, 0));
        self.program.land([room]);
        self.program.extend([
            op(MOVE_REGISTER, 8, 0, 0, 0),
            op(CALL, 0, 0, 0, KTIME_GET_NS),
            op(STORE_DOUBLE, 8, 0, TIME as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, KIND as i16, kind as i32),
            op(LOAD_WORD, 1, 10, TID, 0),
            op(STORE_DOUBLE, 8, 1, THREAD as i16, 0),
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

    /// Removes the block in an argument from the sampled ones, with a record if it was among them.
    fn free(&mut self, block: usize) {
        self.program
            .extend([op(LOAD_DOUBLE, 7, 6, argument_offset(block), 0), op(STORE_DOUBLE, 10, 7, KEY, 0)]);
        self.call_map(MAP_DELETE, self.shared.blocks, KEY);
        // The helper returns 0 if the block was in the map.
        let other = self.program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0));
        self.reserve(REGISTERS, FREED);
        self.program.extend([
            op(STORE_DOUBLE, 8, 7, BLOCK as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, BYTES as i16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, STACK_LEN as i16, 0),
        ]);
        self.submit();
        self.program.land([other]);
    }

    /// Ends unless the allocation of r7 bytes is sampled; otherwise chooses the next interval.
    fn sample(&mut self) {
        self.program.extend([
            op(LOAD_DOUBLE, 9, 10, STATE, 0),
            op(LOAD_DOUBLE, 1, 9, LEFT, 0),
            op(SUBTRACT_REGISTER, 1, 7, 0, 0),
            op(STORE_DOUBLE, 9, 1, LEFT, 0),
        ]);
        self.program.end_by(op(JUMP_IF_GREATER_SIGNED, 1, 0, 0, 0));
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
    }

    /// Writes the record of a sampled call of r7 bytes.
    fn record_call(&mut self) {
        self.program.extend([op(STORE_DOUBLE, 10, 7, VALUE, 0)]);
        self.call_map(MAP_UPDATE, self.shared.calls, TID);
        self.reserve(CALL_BYTES, CALLED);
        self.program
            .extend([op(STORE_VALUE_DOUBLE, 8, 0, BLOCK as i16, 0), op(STORE_DOUBLE, 8, 7, BYTES as i16, 0)]);
        for word in 0..thread_registers::COUNT {
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
    }

    fn end(self) -> Vec<u64> {
        observer(self.shared.namespace, &self.program.end())
    }
}

/// The program at the entry of a function.
pub(super) fn at_entry(role: AllocatorRole, shared: Shared) -> Vec<u64> {
    let mut builder = Builder::new(shared, ENTRIES);
    let argument = |register: u8, number: usize| op(LOAD_DOUBLE, register, 6, argument_offset(number), 0);
    let bytes = match role {
        AllocatorRole::Free { block } => {
            builder.free(block);
            return builder.end();
        }
        AllocatorRole::Reallocate { block, bytes } => {
            builder.free(block);
            bytes
        }
        AllocatorRole::Allocate { bytes } | AllocatorRole::AllocateItems { bytes, .. } => bytes,
    };
    builder.program.extend([argument(7, bytes)]);
    if let AllocatorRole::AllocateItems { count, .. } = role {
        builder.program.extend([argument(1, count), op(MULTIPLY_REGISTER, 7, 1, 0, 0)]);
    }
    builder.sample();
    builder.record_call();
    builder.end()
}

/// The program at the return of an allocating function.
pub(super) fn at_return(shared: Shared) -> Vec<u64> {
    let mut builder = Builder::new(shared, RETURNS);
    builder.call_map(MAP_LOOKUP, shared.calls, TID);
    builder.program.end_by(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
    builder.program.extend([op(LOAD_DOUBLE, 7, 0, 0, 0)]);
    builder.call_map(MAP_DELETE, shared.calls, TID);
    builder.program.extend([op(LOAD_DOUBLE, 9, 6, RESULT_OFFSET, 0)]);
    builder.program.end_by(op(JUMP_IF_EQUAL, 9, 0, 0, 0));
    builder.program.extend([op(STORE_DOUBLE, 10, 9, KEY, 0), op(STORE_DOUBLE, 10, 7, VALUE, 0)]);
    builder.call_map(MAP_UPDATE, shared.blocks, KEY);
    builder.reserve(REGISTERS, RETURNED);
    builder.program.extend([
        op(STORE_DOUBLE, 8, 9, BLOCK as i16, 0),
        op(STORE_DOUBLE, 8, 7, BYTES as i16, 0),
        op(STORE_VALUE_DOUBLE, 8, 0, STACK_LEN as i16, 0),
    ]);
    builder.submit();
    builder.end()
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

#[cfg(test)]
mod tests {
    use super::super::super::bpf::instructions::machine::Machine;
    use super::super::Header;
    use super::*;

    const SHARED: Shared =
        Shared { states: 11, intervals: 12, calls: 13, blocks: 14, ring: 15, namespace: (4, 0xefff_fffc) };
    const STACK_AT: u64 = 0x7000_0000;

    /// A machine with 5,000 bytes of stack.
    fn machine(every_bytes: u64) -> Machine {
        let mut machine = Machine::new(77, 70, SHARED.namespace);
        let state = [0, intervals(every_bytes)[INTERVALS / 2], 0, 0].map(u64::to_le_bytes).concat();
        let all = intervals(every_bytes).into_iter().flat_map(u64::to_le_bytes).collect();
        machine.lists = vec![(SHARED.states, 0, state), (SHARED.intervals, 0, all)];
        machine.maps = vec![(SHARED.calls, Vec::new())];
        machine.addresses = vec![(SHARED.blocks, Default::default())];
        machine.ring = SHARED.ring;
        machine.memory = (STACK_AT, (0..5000).map(|at| at as u8).collect());
        machine
    }

    /// The context of a call with these arguments, or of a return with this result.
    fn context(arguments: &[u64], result: u64) -> Vec<u8> {
        let mut words = vec![0; thread_registers::COUNT];
        for (number, argument) in arguments.iter().enumerate() {
            words[argument_offset(number) as usize / 8] = *argument;
        }
        if arguments.is_empty() {
            words[RESULT_OFFSET as usize / 8] = result;
        }
        words[SP_OFFSET as usize / 8] = STACK_AT;
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn call(machine: &mut Machine, role: AllocatorRole, arguments: &[u64]) {
        machine.context = context(arguments, 0);
        assert_eq!(machine.run(&at_entry(role, SHARED)), 0, "no other record is made");
    }

    fn call_and_return(machine: &mut Machine, role: AllocatorRole, arguments: &[u64], result: u64) {
        call(machine, role, arguments);
        machine.context = context(&[], result);
        assert_eq!(machine.run(&at_return(SHARED)), 0);
    }

    /// Kind, block and bytes of the records.
    fn records(machine: &mut Machine) -> Vec<(u64, u64, u64)> {
        let headers = machine.records.drain(..).filter_map(|record| Header::read(&record));
        headers.map(|header| (header.kind, header.block, header.bytes)).collect()
    }

    #[test]
    fn each_function_is_recorded_by_its_role() {
        let mut machine = machine(1);
        call_and_return(&mut machine, AllocatorRole::Allocate { bytes: 0 }, &[100], 0x5000);
        assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x5000, 100)]);
        call_and_return(&mut machine, AllocatorRole::AllocateItems { count: 0, bytes: 1 }, &[3, 50], 0x6000);
        assert_eq!(records(&mut machine), [(CALLED, 0, 150), (RETURNED, 0x6000, 150)]);
        call_and_return(
            &mut machine,
            AllocatorRole::Reallocate { block: 0, bytes: 1 },
            &[0x5000, 200],
            0x7000,
        );
        assert_eq!(records(&mut machine), [(FREED, 0x5000, 0), (CALLED, 0, 200), (RETURNED, 0x7000, 200)]);
        call(&mut machine, AllocatorRole::Free { block: 0 }, &[0x6000]);
        call(&mut machine, AllocatorRole::Free { block: 0 }, &[0x6000]);
        call(&mut machine, AllocatorRole::Free { block: 0 }, &[0]);
        assert_eq!(records(&mut machine), [(FREED, 0x6000, 0)], "a block that was sampled, once");
        call_and_return(&mut machine, AllocatorRole::Allocate { bytes: 0 }, &[100], 0);
        assert_eq!(records(&mut machine), [(CALLED, 0, 100)], "there was no memory");
    }

    #[test]
    fn the_stack_is_recorded_up_to_its_end() {
        let mut machine = machine(1);
        call(&mut machine, AllocatorRole::Allocate { bytes: 0 }, &[100]);
        let record = machine.records.pop().unwrap_or_default();
        let header = Header::read(&record).map(|header| header.stack_bytes);
        // 4,096 + 512 + 256 + 128 of 5,000.
        assert_eq!(header, Some(4992));
        assert!(record[STACK..STACK + 4992].iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn records_without_room_are_counted() {
        let mut machine = machine(1);
        machine.room = 0;
        call_and_return(&mut machine, AllocatorRole::Allocate { bytes: 0 }, &[100], 0x5000);
        let state = &machine.lists[0].2;
        assert_eq!((state[ENTRIES as usize], state[RETURNS as usize], state[LOST as usize]), (1, 1, 2));
    }

    #[test]
    fn samples_represent_all_bytes() {
        let mut machine = machine(4096);
        let (mut samples, mut bytes) = (0.0, 0);
        for round in 0..20_000u64 {
            let size = 16 + round * 7919 % 4000;
            call(&mut machine, AllocatorRole::Allocate { bytes: 0 }, &[size]);
            bytes += size;
            for (_, _, size) in records(&mut machine) {
                samples += size as f64 / (1.0 - (-(size as f64) / 4096.0).exp());
            }
        }
        // The standard error of ten thousand samples is 1 %.
        assert!((samples / bytes as f64 - 1.0).abs() < 0.04, "{samples} of {bytes}");
    }

    #[test]
    fn intervals_have_the_requested_mean() {
        for mean_bytes in [1, 4096, 512 << 10, 1 << 30] {
            let mean = intervals(mean_bytes).iter().sum::<u64>() as f64 / INTERVALS as f64;
            assert!((mean / mean_bytes as f64 - 1.0).abs() < 1e-4, "{mean} of {mean_bytes}");
        }
        assert_eq!(STACK_PIECES.iter().sum::<i32>() as usize, STACK_BYTES);
    }
}
