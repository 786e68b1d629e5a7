//! The stack tail, above the bytes in a record: an event copies less than 64 KiB of a stack, since the length of a
//! record has 16 bits (include/uapi/linux/perf_event.h, `perf_event_header`). For threads with larger stacks, a
//! BPF program copies the following bytes in the same interrupt, into its own ring.
//!
//! Input: samples with full records. Output: the same samples with the following bytes. Both copies are from one
//! moment: they have the same thread and time, and overlap by bytes that must be equal.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashMap;
use libc::pid_t;

use super::super::bpf::bpf_sys::{self, ProgramRing};
use super::super::bpf::instructions::{ADD, JUMP, JUMP_UNLESS_EQUAL, LOAD_DOUBLE, STORE_VALUE_DOUBLE, op};
use super::super::bpf::memory_copies::{ADDRESS_IN_R7, Copies, CopyProgram, HEADER_BYTES, LEN};
use super::super::events::cpus::cpu_count;
use super::super::events::options::STACK_BYTES_MAX;
use super::super::ring::record::SampleId;
use crate::sources::Capture;

/// Bytes read at once, so that a copy ends at the end of memory, and reads per piece.
const PAGE_BYTES: usize = 4096;
const PIECE_PAGES: usize = 4;
const PIECE_BYTES: usize = PAGE_BYTES * PIECE_PAGES;
/// Maximum number of pieces in a copy: it takes some 25 us.
const PIECES_MAX: usize = 16;
/// Maximum size of a copy.
pub(in crate::sources::linux::perf) const TAIL_BYTES: u32 = (PIECE_BYTES * PIECES_MAX) as u32;
/// Ring size per CPU for some 30 ms of the largest copies at 997 Hz, two batches. Stacks that do not fit get no
/// tail, and if that is most of them, tails are disabled (`stack_size.rs`); the whole ring is resident from its
/// creation.
const RING_BYTES_OF_CPU: usize = 8 << 20;
const RING_BYTES_MAX: usize = 32 << 20;
/// A copy begins this far below the end of the highest record, for deeper samples.
const BELOW_BYTES: u64 = 16 << 10;
/// Minimum overlap of both copies.
const OVERLAP_BYTES: u64 = 64;
/// Maximum number of threads with large stacks; beyond it, all are dropped and found again.
const THREADS_MAX: u32 = 4096;

/// Copies the stack of the running thread from its address in the map `wanted`, if any. `ring` is the descriptor
/// of a [`ProgramRing`].
fn copy_program(wanted: i32, ring: i32) -> Vec<u64> {
    // r7: the address.
    let mut program = CopyProgram::of_threads_in(wanted, op(LOAD_DOUBLE, 7, 0, 0, 0));
    for _ in 0..PIECES_MAX {
        program.reserve(ring, PIECE_BYTES, ADDRESS_IN_R7);
        let mut to_last = Vec::new();
        for page in 0..PIECE_PAGES {
            program.read(HEADER_BYTES + page * PAGE_BYTES, PAGE_BYTES, 7);
            to_last.push(program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0)));
            program.extend([
                op(ADD, 7, 0, 0, PAGE_BYTES as i32),
                op(STORE_VALUE_DOUBLE, 8, 0, LEN, ((page + 1) * PAGE_BYTES) as i32),
            ]);
        }
        program.submit();
        let to_next = program.jump(op(JUMP, 0, 0, 0, 0));
        program.land(to_last);
        program.submit();
        program.end_by(op(JUMP, 0, 0, 0, 0));
        program.land([to_next]);
    }
    program.end()
}

/// Size of the ring for this many CPUs.
fn ring_bytes(cpus: usize) -> usize {
    (RING_BYTES_OF_CPU * cpus.next_power_of_two()).min(RING_BYTES_MAX)
}

/// Appends the bytes copied at the moment of a sample to its stack.
fn append(copies: &mut Copies, id: SampleId, capture: &mut Capture) {
    if let Some(copy) = copies.of_sample(id) {
        join(capture, copy.from, &copy.bytes);
        copies.give_back(copy);
    }
}

/// Appends the rest of `bytes`, copied from address `from`, to the stack, if both are equal where they overlap.
fn join(capture: &mut Capture, from: u64, bytes: &[u8]) {
    let base = capture.stack_base.0;
    let Some(end) = base.checked_add(capture.stack.len() as u64) else { return };
    let begin = base.max(from);
    if end.saturating_sub(begin) < OVERLAP_BYTES {
        return;
    }
    let at = |address: u64| (address - from) as usize;
    let (Some(same), Some(further)) = (bytes.get(at(begin)..at(end)), bytes.get(at(end)..)) else {
        return;
    };
    if capture.stack[(begin - base) as usize..] == *same {
        capture.stack.extend_from_slice(further);
    }
}

/// Copies of the upper parts of large stacks.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct StackTail {
    /// Start address of each thread's copy, in the kernel.
    wanted: OwnedFd,
    ring: ProgramRing,
    from: HashMap<pid_t, u64>,
    copies: Copies,
}

impl StackTail {
    /// Size of the ring, bytes.
    pub(in crate::sources::linux::perf) fn ring_bytes(&self) -> u64 {
        ring_bytes(cpu_count()) as u64
    }

    /// Creates a map and a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(in crate::sources::linux::perf) fn new() -> io::Result<StackTail> {
        let ring_bytes = ring_bytes(cpu_count());
        Ok(StackTail {
            wanted: bpf_sys::create_map(THREADS_MAX)?,
            ring: ProgramRing::create(ring_bytes, HEADER_BYTES + PIECE_BYTES)?,
            from: HashMap::new(),
            copies: Copies::default(),
        })
    }

    /// The program for samples that pass the filter.
    pub(in crate::sources::linux::perf) fn program(&self) -> Vec<u64> {
        copy_program(self.wanted.as_raw_fd(), self.ring.descriptor())
    }

    /// Reads the copies so far, after the rings of samples, so that those of all samples are included. Returns the
    /// number of freed buffer bytes.
    pub(in crate::sources::linux::perf) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let StackTail { ring, copies, .. } = self;
        ring.drain(|record| copies.take(record));
        freed
    }

    /// Completes the stack of a sample with a full record, and requests a tail with its thread's next samples.
    pub(in crate::sources::linux::perf) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        if capture.stack.len() < STACK_BYTES_MAX as usize {
            return;
        }
        let end = capture.stack_base.0.saturating_add(capture.stack.len() as u64);
        append(&mut self.copies, id, capture);
        let from = (end & !(PAGE_BYTES as u64 - 1)).saturating_sub(BELOW_BYTES);
        // Lower bytes are in the records of less deep samples.
        if self.from.get(&id.tid).is_some_and(|before| *before <= end.saturating_sub(OVERLAP_BYTES)) {
            return;
        }
        if self.from.len() >= THREADS_MAX as usize {
            self.from
                .drain()
                .for_each(|(tid, _)| bpf_sys::change_map(&self.wanted, tid.cast_unsigned(), None));
        }
        self.from.insert(id.tid, from);
        bpf_sys::change_map(&self.wanted, id.tid.cast_unsigned(), Some(from));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::bpf::filter_program::{self, FilterRule};
    use super::super::super::bpf::instructions::machine::Machine;
    use super::super::super::bpf::memory_copies::APART_NS_MAX;
    use super::*;
    use crate::addr::Avma;
    use crate::rng::Rng;

    const WANTED: i32 = 5;
    const RING: i32 = 6;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const AT: u64 = 0x7000_0000;

    /// A thread 77 with a stack of `bytes` from `AT` on; its copies begin at `from`.
    fn machine(bytes: usize, from: u64) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        machine.maps.push((WANTED, vec![(77, from)]));
        machine.ring = RING;
        let mut random = Rng::new(bytes as u64);
        machine.memory = (AT, (0..bytes).map(|_| random.below(256) as u8).collect());
        machine
    }

    fn program() -> Vec<u64> {
        filter_program::program(FilterRule::OfProcess(70), FIRST, &copy_program(WANTED, RING))
    }

    /// The stack of a sample at `time_ns` of the machine's thread, with this many stack bytes in its record from
    /// `sp` on.
    fn completed(machine: &Machine, sp: u64, stack_bytes: usize, time_ns: u64) -> Vec<u8> {
        let mut copies = Copies::default();
        machine.records.iter().for_each(|record| copies.take(record));
        let mut capture = Capture::with_capacity(0);
        let at = (sp - machine.memory.0) as usize;
        capture.stack_base = Avma(sp);
        capture.stack.extend_from_slice(&machine.memory.1[at..at + stack_bytes]);
        append(&mut copies, SampleId { pid: 70, tid: 77, time_ns, cpu: 0 }, &mut capture);
        capture.stack
    }

    #[test]
    fn a_stack_is_copied_to_the_end_of_memory() {
        for pages in [9, 20, 21, 23, 24, 40, 70] {
            let bytes = pages * PAGE_BYTES;
            let from = AT + 4 * PAGE_BYTES as u64;
            let mut machine = machine(bytes, from);
            assert_eq!(machine.run(&program()), 1);
            let stack = completed(&machine, AT + 0x128, 0x8000, machine.time_ns + 90);
            let whole = bytes.min(4 * PAGE_BYTES + TAIL_BYTES as usize);
            assert_eq!(stack, machine.memory.1[0x128..whole], "{pages} pages");
        }
    }

    #[test]
    fn nothing_is_copied_of_other_threads_or_without_room() {
        let mut other = machine(0x20000, AT);
        other.tgid = 71;
        assert_eq!(other.run(&program()), 0);
        let mut small = machine(0x20000, AT);
        small.tid = 78;
        assert_eq!(small.run(&program()), 1);
        assert!(other.records.is_empty() && small.records.is_empty());
        let mut full = machine(0x20000, AT);
        full.room = 2;
        assert_eq!(full.run(&program()), 1);
        assert_eq!(completed(&full, AT + 8, 0x1000, full.time_ns), full.memory.1[8..2 * PIECE_BYTES]);
    }

    #[test]
    fn only_copies_of_the_same_moment_are_appended() {
        let mut machine = machine(0x20000, AT + 0x4000);
        assert_eq!(machine.run(&program()), 1);
        let at_ns = machine.time_ns;
        let completed = |machine: &Machine, sp: u64, time_ns| completed(machine, sp, 0x8000, time_ns).len();
        assert_eq!(completed(&machine, AT, at_ns + APART_NS_MAX), 0x20000);
        assert_eq!(completed(&machine, AT, at_ns + APART_NS_MAX + 1), 0x8000, "of another sample");
        assert_eq!(completed(&machine, AT + 0x5000, at_ns), 0x1b000, "a record that begins in the copy");
        // The record ends below the copy, or hardly reaches it.
        machine.records.iter_mut().for_each(|record| record[8..10].copy_from_slice(&0x8000u16.to_le_bytes()));
        assert_eq!(completed(&machine, AT, at_ns), 0x8000);
    }

    #[test]
    fn copies_with_differing_bytes_are_not_joined() {
        let mut machine = machine(0x20000, AT + 0x4000);
        assert_eq!(machine.run(&program()), 1);
        machine.memory.1[0x7ff0] ^= 1;
        assert_eq!(completed(&machine, AT, 0x8000, machine.time_ns).len(), 0x8000);
    }

    #[test]
    fn hostile_records_append_nothing() {
        let mut random = Rng::new(11);
        let mut machine = machine(0x20000, AT + 0x4000);
        assert_eq!(machine.run(&program()), 1);
        for _ in 0..2_000 {
            let mut copies = Copies::default();
            for record in &machine.records {
                let mut record = record[..random.below(HEADER_BYTES + 4096)].to_vec();
                for _ in 0..random.below(4) {
                    let at = random.below(HEADER_BYTES).min(record.len().saturating_sub(1));
                    record.get_mut(at).into_iter().for_each(|byte| *byte = random.below(256) as u8);
                }
                copies.take(&record);
            }
            let mut capture = Capture::with_capacity(0);
            capture.stack_base = Avma(AT);
            capture.stack.extend_from_slice(&machine.memory.1[..0x8000]);
            append(
                &mut copies,
                SampleId { pid: 70, tid: 77, time_ns: machine.time_ns, cpu: 0 },
                &mut capture,
            );
            let known = capture.stack.len();
            assert_eq!(capture.stack[..known.min(0x8000)], machine.memory.1[..known.min(0x8000)]);
        }
    }
}
