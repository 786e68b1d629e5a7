//! What a program in the kernel copies of the memory of the thread that it interrupts, in the moment of a sample:
//! the instructions that write it into a ring, and the copies in order, for the samples to come.
//!
//! A record has time, address, thread and the number of bytes that could be read, 8 bytes each, then the bytes.

use hashbrown::HashMap;
use libc::pid_t;

use super::bpf::{
    CALL, JUMP_IF_EQUAL, LOAD_WORD, MOVE, MOVE_REGISTER, RINGBUF_RESERVE, RINGBUF_SUBMIT, STORE_DOUBLE,
    STORE_VALUE_DOUBLE, load_map, op,
};
use super::buffers::Pool;
use super::filter::TID;
use super::record::Id;

/// In front of the bytes.
pub(super) const HEADER_BYTES: usize = 32;
/// Where in it the number of bytes is.
pub(super) const LEN: i16 = 24;
/// Most nanoseconds between the time of a copy and that of its sample, of the same interrupt: half of the
/// shortest period and less. It takes about one thousand, longer on a machine that is held up.
pub(super) const APART_NS_MAX: u64 = 40_000;
/// Copies of samples that never come are kept for so long.
const KEPT_NS: u64 = 1_000_000_000;

/// Makes a record in r8 of the ring with this descriptor, for so many bytes from the address in r7 on, of
/// which none is read yet; r9 has the time. The last element is the place of a jump to be set, for when there
/// is no room.
pub(super) fn reserve(ring: i32, bytes: usize) -> (Vec<u64>, usize) {
    let mut program = load_map(1, ring).to_vec();
    program.extend([
        op(MOVE, 2, 0, 0, (HEADER_BYTES + bytes) as i32),
        op(MOVE, 3, 0, 0, 0),
        op(CALL, 0, 0, 0, RINGBUF_RESERVE),
    ]);
    let no_room = program.len();
    program.extend([
        op(JUMP_IF_EQUAL, 0, 0, 0, 0),
        op(MOVE_REGISTER, 8, 0, 0, 0),
        op(STORE_DOUBLE, 8, 9, 0, 0),
        op(STORE_DOUBLE, 8, 7, 8, 0),
        op(LOAD_WORD, 1, 10, TID, 0),
        op(STORE_DOUBLE, 8, 1, 16, 0),
        op(STORE_VALUE_DOUBLE, 8, 0, LEN, 0),
    ]);
    (program, no_room)
}

/// Hands the record in r8 over, without waking anybody (BPF_RB_NO_WAKEUP).
pub(super) const SUBMIT: [u64; 3] =
    [op(MOVE_REGISTER, 1, 8, 0, 0), op(MOVE, 2, 0, 0, 1), op(CALL, 0, 0, 0, RINGBUF_SUBMIT)];

/// Lets the jump at `from` lead to `to`.
pub(super) fn set_jump(program: &mut [u64], from: usize, to: usize) {
    let offset = (to - from - 1) as u16;
    program[from] = program[from] & !(0xffff << 16) | u64::from(offset) << 16;
}

/// What was copied of one stack at one moment.
#[derive(Debug, Default)]
pub(super) struct Copy {
    time_ns: u64,
    /// The address of the first byte.
    pub(super) from: u64,
    pub(super) bytes: Vec<u8>,
}

/// The copies that samples are still to come for, by thread, in the order of their times.
#[derive(Debug, Default)]
pub(super) struct Copies {
    of: HashMap<pid_t, Vec<Copy>>,
    spare: Pool<Vec<u8>>,
    /// The time of the last one.
    last_ns: u64,
}

impl Copies {
    /// Takes a piece as the program wrote it.
    pub(super) fn take(&mut self, record: &[u8]) {
        let word = |at: usize| {
            let bytes = record.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let header = (word(0), word(8), word(16), word(24));
        let (Some(time_ns), Some(address), Some(tid), Some(bytes)) = header else { return };
        let Ok(tid) = pid_t::try_from(tid) else { return };
        let end = HEADER_BYTES.saturating_add(bytes as usize);
        let Some(bytes) = record.get(HEADER_BYTES..end) else { return };
        self.last_ns = self.last_ns.max(time_ns);
        let copies = self.of.entry(tid).or_default();
        match copies.last_mut().filter(|last| last.time_ns == time_ns) {
            Some(last) if last.from.wrapping_add(last.bytes.len() as u64) == address => {
                last.bytes.extend_from_slice(bytes)
            }
            Some(_) => {}
            None => {
                let mut buffer = self.spare.take().unwrap_or_default();
                buffer.extend_from_slice(bytes);
                copies.push(Copy { time_ns, from: address, bytes: buffer });
            }
        }
    }

    /// What was copied at the moment of a sample.
    pub(super) fn of_sample(&mut self, id: Id) -> Option<Copy> {
        let copies = self.of.get_mut(&id.tid)?;
        let apart_ns = |copy: &Copy| copy.time_ns.abs_diff(id.time_ns);
        let nearest = copies.iter().enumerate().min_by_key(|(_, copy)| apart_ns(copy));
        let at = nearest.filter(|(_, copy)| apart_ns(copy) <= APART_NS_MAX).map(|(at, _)| at)?;
        // Those before it are of samples that were dropped.
        let mut of_it = None;
        for copy in copies.drain(..=at) {
            if let Some(before) = of_it.replace(copy) {
                self.spare.give_back(before.bytes);
            }
        }
        of_it
    }

    /// Takes the buffer of a copy back.
    pub(super) fn give_back(&mut self, copy: Copy) {
        self.spare.give_back(copy.bytes);
    }

    /// Ends a batch, and forgets copies whose samples never came; the bytes that are freed.
    pub(super) fn end_batch(&mut self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_without_samples_are_forgotten() {
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
