//! Memory of the interrupted thread, copied by BPF programs at a sample: the instructions that write it into a
//! ring, and the copies in time order.
//!
//! A record has time, address, thread and number of bytes read, 8 bytes each, then the bytes.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::buffers::Pool;
use super::instructions::{
    ADD, CALL, JUMP_IF_EQUAL, KTIME_GET_NS, LOAD_DOUBLE, LOAD_WORD, MAP_LOOKUP, MOVE, MOVE_REGISTER,
    PROBE_READ_USER, RINGBUF_RESERVE, RINGBUF_SUBMIT, STORE_DOUBLE, STORE_VALUE_DOUBLE, load_map, op,
};
use super::sample_filter::TID;
use crate::sources::PrefetchedWords;
use crate::sources::linux::perf::ring::SampleId;

/// Size of the record header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Header offset of the address.
const ADDRESS: i16 = 8;
/// Header offset of the number of bytes.
pub(crate) const LEN: i16 = 24;
/// Maximum time between a copy and its sample, which come from one interrupt, nanoseconds: less than half of the
/// shortest period. Typically about one thousand.
pub(crate) const APART_NS_MAX: u64 = 40_000;
/// Retention of copies without a sample.
const KEPT_NS: u64 = 1_000_000_000;

/// Stores r7 as the address of a record.
pub(crate) const ADDRESS_IN_R7: u64 = op(STORE_DOUBLE, 8, 7, ADDRESS, 0);

/// Stores this value as the address of a record.
pub(crate) const fn address(value: i32) -> u64 {
    op(STORE_VALUE_DOUBLE, 8, 0, ADDRESS, value)
}

/// Submits the record in r8, with these flags.
const fn submit(flags: i32) -> [u64; 3] {
    [op(MOVE_REGISTER, 1, 8, 0, 0), op(MOVE, 2, 0, 0, flags), op(CALL, 0, 0, 0, RINGBUF_SUBMIT)]
}

/// Builds a program that copies memory of the running thread: common steps and forward jumps. r9 holds the time,
/// r8 the record.
#[derive(Debug, Default)]
pub(crate) struct CopyProgram {
    instructions: Vec<u64>,
    /// Positions of jumps to the end.
    to_end: Vec<usize>,
}

impl CopyProgram {
    /// A program for threads with a value in the map; `load` sets r7 from the value at the address in r0.
    pub(crate) fn of_threads_in(map: i32, load: u64) -> CopyProgram {
        let mut program = CopyProgram::with_thread_in(map);
        program.end_by(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
        program.extend([load]);
        program.take_time();
        program
    }

    /// A program for all threads, except those with a 0 in the map: sets `register` to their value, or to `default`.
    pub(crate) fn of_all_threads(map: i32, register: u8, default: i32) -> CopyProgram {
        let mut program = CopyProgram::with_thread_in(map);
        program.extend([
            op(MOVE, register, 0, 0, default),
            op(JUMP_IF_EQUAL, 0, 0, 1, 0),
            op(LOAD_DOUBLE, register, 0, 0, 0),
        ]);
        program.end_by(op(JUMP_IF_EQUAL, register, 0, 0, 0));
        program
    }

    /// A program with the address of the running thread's value in the map, or 0, in r0.
    fn with_thread_in(map: i32) -> CopyProgram {
        let mut program = CopyProgram::default();
        program.extend(load_map(1, map));
        program.extend([
            op(MOVE_REGISTER, 2, 10, 0, 0),
            op(ADD, 2, 0, 0, TID.into()),
            op(CALL, 0, 0, 0, MAP_LOOKUP),
        ]);
        program
    }

    /// Appends instructions.
    pub(crate) fn extend(&mut self, instructions: impl IntoIterator<Item = u64>) {
        self.instructions.extend(instructions);
    }

    /// Appends a jump to the end of the program.
    pub(crate) fn end_by(&mut self, jump: u64) {
        let at = self.jump(jump);
        self.to_end.push(at);
    }

    /// Appends a forward jump, to be resolved by [`CopyProgram::land`].
    pub(crate) fn jump(&mut self, jump: u64) -> usize {
        self.instructions.push(jump);
        self.instructions.len() - 1
    }

    /// Resolves jumps to the next instruction.
    pub(crate) fn land(&mut self, jumps: impl IntoIterator<Item = usize>) {
        let here = self.instructions.len();
        for at in jumps {
            let offset = (here - at - 1) as u16;
            let jump = &mut self.instructions[at];
            *jump = *jump & !(0xffff << 16) | u64::from(offset) << 16;
        }
    }

    /// Stores the time in r9.
    pub(crate) fn take_time(&mut self) {
        self.extend([op(CALL, 0, 0, 0, KTIME_GET_NS), op(MOVE_REGISTER, 9, 0, 0, 0)]);
    }

    /// Reserves a record for this many bytes, in r8, in the ring with this descriptor, with no bytes read yet;
    /// ends the program if there is no room. `address`: the instruction that stores its address.
    pub(crate) fn reserve(&mut self, ring: i32, bytes: usize, address: u64) {
        self.extend(load_map(1, ring));
        self.extend([
            op(MOVE, 2, 0, 0, (HEADER_BYTES + bytes) as i32),
            op(MOVE, 3, 0, 0, 0),
            op(CALL, 0, 0, 0, RINGBUF_RESERVE),
        ]);
        self.end_by(op(JUMP_IF_EQUAL, 0, 0, 0, 0));
        self.extend([
            op(MOVE_REGISTER, 8, 0, 0, 0),
            op(STORE_DOUBLE, 8, 9, 0, 0),
            address,
            op(LOAD_WORD, 1, 10, TID, 0),
            op(STORE_DOUBLE, 8, 1, 16, 0),
            op(STORE_VALUE_DOUBLE, 8, 0, LEN, 0),
        ]);
    }

    /// Reads this many bytes of the thread's memory, from the address in a register, to offset `to` of the record;
    /// r0 is 0 on success.
    pub(crate) fn read(&mut self, to: usize, bytes: usize, from: u8) {
        self.extend([op(MOVE, 2, 0, 0, bytes as i32)]);
        self.read_r2(to, from);
    }

    /// Reads a word of the thread's memory, from the address in a register, to this place below r10; r0 is 0 on
    /// success.
    pub(crate) fn probe(&mut self, to: i16, from: u8) {
        self.extend([
            op(MOVE_REGISTER, 1, 10, 0, 0),
            op(ADD, 1, 0, 0, to.into()),
            op(MOVE, 2, 0, 0, 8),
            op(MOVE_REGISTER, 3, from, 0, 0),
            op(CALL, 0, 0, 0, PROBE_READ_USER),
        ]);
    }

    /// Reads as many bytes as r2 says, like [`CopyProgram::read`].
    pub(crate) fn read_r2(&mut self, to: usize, from: u8) {
        self.extend([
            op(MOVE_REGISTER, 1, 8, 0, 0),
            op(ADD, 1, 0, 0, to as i32),
            op(MOVE_REGISTER, 3, from, 0, 0),
            op(CALL, 0, 0, 0, PROBE_READ_USER),
        ]);
    }

    /// Submits the record in r8, without a wakeup (BPF_RB_NO_WAKEUP).
    pub(crate) fn submit(&mut self) {
        self.extend(submit(1));
    }

    /// Submits the record in r8, and wakes a reader that waits.
    pub(crate) fn submit_and_wake(&mut self) {
        self.extend(submit(0));
    }

    /// Returns the finished instructions.
    pub(crate) fn end(mut self) -> Vec<u64> {
        let to_end = std::mem::take(&mut self.to_end);
        self.land(to_end);
        self.instructions
    }
}

/// A copy of part of a stack at one moment.
#[derive(Debug, Default)]
pub(crate) struct Copy {
    time_ns: u64,
    /// Address of the first byte.
    pub(crate) from: u64,
    pub(crate) bytes: Vec<u8>,
    /// Further parts, above pages that are not resident: address and bytes.
    pub(crate) upper: PrefetchedWords,
}

impl Copy {
    fn end(&self) -> u64 {
        self.from.saturating_add(self.bytes.len() as u64)
    }
}

/// Copies that wait for their samples, by thread, in time order.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    of: HashMap<pid_t, Vec<Copy>>,
    /// Sizes of copies about to be taken, by time: each is written once, into a buffer that need not grow.
    sizes: HashMap<u64, usize>,
    spare: Pool<Vec<u8>>,
    /// Time of the last copy.
    last_ns: u64,
}

impl Copies {
    /// Notes the size of a record that is taken next.
    pub(crate) fn expect(&mut self, record: &[u8]) {
        if let Some((time_ns, _, _, bytes)) = parse(record) {
            *self.sizes.entry(time_ns).or_default() += bytes.len();
        }
    }

    /// Reads a record written by the program.
    pub(crate) fn take(&mut self, record: &[u8]) {
        let Some((time_ns, address, tid, bytes)) = parse(record) else { return };
        self.last_ns = self.last_ns.max(time_ns);
        let copies = self.of.entry(tid).or_default();
        match copies.last_mut().filter(|last| last.time_ns == time_ns) {
            Some(last) if last.bytes.is_empty() => {
                last.from = address;
                last.bytes.extend_from_slice(bytes);
            }
            Some(last) if last.upper.is_empty() && last.end() == address => {
                last.bytes.extend_from_slice(bytes);
            }
            Some(last) if last.end() <= address => last.upper.push(address, bytes),
            Some(_) => {}
            None => {
                let whole = self.sizes.remove(&time_ns).unwrap_or(bytes.len());
                let mut buffer = self.spare.take_of(whole).unwrap_or_default();
                buffer.reserve_exact(whole);
                buffer.extend_from_slice(bytes);
                copies.push(Copy { time_ns, from: address, bytes: buffer, ..Copy::default() });
            }
        }
    }

    /// The copy made at the moment of a sample.
    pub(crate) fn of_sample(&mut self, id: SampleId) -> Option<Copy> {
        let copies = self.of.get_mut(&id.tid)?;
        let apart_ns = |copy: &Copy| copy.time_ns.abs_diff(id.time_ns);
        let nearest = copies.iter().enumerate().min_by_key(|(_, copy)| apart_ns(copy));
        let at = nearest.filter(|(_, copy)| apart_ns(copy) <= APART_NS_MAX).map(|(at, _)| at)?;
        // Earlier copies belong to samples that were dropped.
        let mut of_it = None;
        for copy in copies.drain(..=at) {
            if let Some(before) = of_it.replace(copy) {
                self.spare.give_back(before.bytes);
            }
        }
        of_it
    }

    /// Takes back the buffer of a copy.
    pub(crate) fn give_back(&mut self, copy: Copy) {
        self.give_back_bytes(copy.bytes);
    }

    /// Takes back a buffer.
    pub(crate) fn give_back_bytes(&mut self, bytes: Vec<u8>) {
        // A buffer that became the stack of a sample comes back with that.
        if bytes.capacity() > 0 {
            self.spare.give_back(bytes);
        }
    }

    /// Ends a batch, and drops copies without samples; returns the number of freed bytes.
    pub(crate) fn end_batch(&mut self) -> usize {
        self.sizes.clear();
        let before_ns = self.last_ns.saturating_sub(KEPT_NS);
        let spare = &mut self.spare;
        self.of.retain(|_, copies| {
            let old = copies.iter().take_while(|copy| copy.time_ns < before_ns).count();
            copies.drain(..old).for_each(|copy| spare.give_back(copy.bytes));
            !copies.is_empty()
        });
        spare.end_batch()
    }
}

/// Time, address, thread and bytes of a record.
fn parse(record: &[u8]) -> Option<(u64, u64, pid_t, &[u8])> {
    let word = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let end = HEADER_BYTES.saturating_add(usize::try_from(word(LEN as usize)?).ok()?);
    Some((
        word(0)?,
        word(ADDRESS as usize)?,
        pid_t::try_from(word(16)?).ok()?,
        record.get(HEADER_BYTES..end)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_without_samples_are_dropped() {
        let mut copies = Copies::default();
        let record = [5u64, 0x7000, 77, 8, 1].map(u64::to_le_bytes).concat();
        copies.take(&record);
        copies.end_batch();
        assert_eq!(copies.of.len(), 1);
        copies.last_ns += KEPT_NS + 1;
        copies.end_batch();
        assert!(copies.of.is_empty());
    }
}
