//! Stack bytes that BPF programs copy in the interrupt of a sample, into rings of their own: the words above the
//! event's copy that walks of the thread need (`BpfPrefetch`), and the red zone below it (`RedZone`).
//!
//! Input: for each thread, the addresses of the ranges. Output: its samples with these ranges. Each range carries
//! its address, so it is correct whichever list the kernel had at that moment.

#[cfg(test)]
pub(crate) mod sim_kernel;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashSet;
use libc::pid_t;

use super::super::bpf::bpf_sys::{self, ProgramRing};
use super::super::bpf::instructions::{
    ADD, CALL, GET_CURRENT_TASK, JUMP_IF_EQUAL, LOAD_DOUBLE, MOVE, MOVE_REGISTER, PROBE_READ_KERNEL,
    STORE_DOUBLE, STORE_VALUE_DOUBLE, op,
};
use super::super::bpf::memory_copies::{Copies, CopyProgram, HEADER_BYTES, LEN, address};
use crate::sources::linux::perf::bpf::instructions::{self, AND, JUMP_UNLESS_EQUAL};
use crate::sources::linux::perf::bpf::memory_copies::ADDRESS_IN_R7;
use crate::sources::linux::perf::bpf::sample_filter::CONTEXT;
use crate::sources::linux::perf::events::set::cpu_count;
use crate::sources::linux::perf::ring::SampleId;
use crate::sources::{Capture, PREFETCH_RANGE_BYTES, PREFETCH_RANGES_MAX};

/// Size of a range in a record: address and bytes.
const ENTRY_BYTES: usize = 8 + PREFETCH_RANGE_BYTES;
/// Ranges per record: more waste room, fewer take more records.
const RECORD_RANGES: usize = 32;
const RECORD_BYTES: usize = HEADER_BYTES + RECORD_RANGES * ENTRY_BYTES;
const RECORDS_MAX: usize = PREFETCH_RANGES_MAX / RECORD_RANGES;
/// Size of a list in the kernel: addresses, then zeros.
const LIST_BYTES: usize = PREFETCH_RANGES_MAX * 8;
/// Maximum number of threads with a list; beyond it, all lists are dropped.
const THREADS_MAX: u32 = 256;
/// Ring size per CPU for some 25 of the largest samples; ranges that do not fit are not prefetched.
const RING_BYTES_OF_CPU: usize = 1 << 20;
const RING_BYTES_MAX: usize = 16 << 20;

/// Marks the thread's blocked signals, in place of a range's address.
const BLOCKED_SIGNALS: u64 = 1;

/// Reads the ranges on the running thread's list in the map `lists`, if any. `ring` is the descriptor of a
/// [`ProgramRing`]. The address of a record is its index among those of its sample. `blocked_at`: offset of the
/// blocked signals in the kernel's structure of a thread; they take the place of the first range, and the last one
/// of a full list is not read.
fn read_program(lists: i32, ring: i32, blocked_at: Option<i32>) -> Vec<u64> {
    let shift = usize::from(blocked_at.is_some());
    // r7: the list; r6: the address.
    let mut program = CopyProgram::of_threads_in(lists, op(MOVE_REGISTER, 7, 0, 0, 0));
    for record in 0..RECORDS_MAX {
        let first = if record == 0 { shift } else { 0 };
        let in_list = |range: usize| ((record * RECORD_RANGES + range - shift) * 8) as i16;
        program.extend([op(LOAD_DOUBLE, 6, 7, in_list(first), 0)]);
        program.end_by(op(JUMP_IF_EQUAL, 6, 0, 0, 0));
        let place = address((record * RECORD_RANGES * ENTRY_BYTES) as i32);
        program.reserve(ring, RECORD_RANGES * ENTRY_BYTES, place);
        let mut to_submit = Vec::new();
        if let Some(blocked_at) = blocked_at.filter(|_| record == 0) {
            program.extend([
                op(CALL, 0, 0, 0, GET_CURRENT_TASK),
                op(MOVE_REGISTER, 3, 0, 0, 0),
                op(ADD, 3, 0, 0, blocked_at),
                op(MOVE_REGISTER, 1, 8, 0, 0),
                op(ADD, 1, 0, 0, (HEADER_BYTES + 8) as i32),
                op(MOVE, 2, 0, 0, size_of::<u64>() as i32),
                op(CALL, 0, 0, 0, PROBE_READ_KERNEL),
                op(MOVE, 6, 0, 0, BLOCKED_SIGNALS as i32),
                op(JUMP_IF_EQUAL, 0, 0, 1, 0),
                op(MOVE, 6, 0, 0, 0),
                op(STORE_DOUBLE, 8, 6, HEADER_BYTES as i16, 0),
                op(STORE_VALUE_DOUBLE, 8, 0, LEN, ENTRY_BYTES as i32),
            ]);
        }
        for range in first..RECORD_RANGES {
            let entry = HEADER_BYTES + range * ENTRY_BYTES;
            program.extend([op(LOAD_DOUBLE, 6, 7, in_list(range), 0)]);
            to_submit.push(program.jump(op(JUMP_IF_EQUAL, 6, 0, 0, 0)));
            program.read(entry + 8, PREFETCH_RANGE_BYTES, 6);
            program.extend([
                // An unreadable range gets address 0.
                op(JUMP_IF_EQUAL, 0, 0, 1, 0),
                op(MOVE, 6, 0, 0, 0),
                op(STORE_DOUBLE, 8, 6, entry as i16, 0),
                op(STORE_VALUE_DOUBLE, 8, 0, LEN, ((range + 1) * ENTRY_BYTES) as i32),
            ]);
        }
        program.land(to_submit);
        program.submit();
    }
    program.end()
}

/// A list in the kernel's format.
fn list_bytes(ranges: &[u64]) -> [u8; LIST_BYTES] {
    let mut list = [0; LIST_BYTES];
    for (entry, start) in list.as_chunks_mut().0.iter_mut().zip(ranges) {
        *entry = start.to_le_bytes();
    }
    list
}

/// Adds the ranges read at the moment of a sample.
fn add_prefetched(copies: &mut Copies, id: SampleId, capture: &mut Capture) {
    let Some(copy) = copies.of_sample(id) else { return };
    for entry in copy.bytes.chunks_exact(ENTRY_BYTES) {
        let Some((start, bytes)) = entry.split_first_chunk() else { continue };
        match u64::from_le_bytes(*start) {
            0 => {}
            BLOCKED_SIGNALS => {
                let signals = bytes.first_chunk().map(|signals| u64::from_le_bytes(*signals));
                capture.prefetched.blocked_signals = signals;
            }
            start => capture.prefetched.push(start, bytes),
        }
    }
    // They are from another moment after all.
    if capture.prefetched.contradict(capture.stack_base.0, &capture.stack) {
        capture.prefetched.clear();
    }
    copies.give_back(copy);
}

/// Prefetches ranges of threads' stacks with each of their samples.
#[derive(Debug)]
pub(crate) struct BpfPrefetch {
    /// The ranges of each thread, in the kernel.
    lists: OwnedFd,
    ring: ProgramRing,
    threads: HashSet<pid_t>,
    copies: Copies,
    /// Offset of the blocked signals in the kernel's structure of a thread, if BTF describes it.
    blocked_at: Option<i32>,
}

impl BpfPrefetch {
    /// Creates a map and a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub(crate) fn new() -> io::Result<BpfPrefetch> {
        let ring_bytes = (RING_BYTES_OF_CPU * cpu_count().next_power_of_two()).min(RING_BYTES_MAX);
        Ok(BpfPrefetch {
            lists: bpf_sys::create_map_of(LIST_BYTES, THREADS_MAX)?,
            ring: ProgramRing::create(ring_bytes, RECORD_BYTES)?,
            threads: HashSet::new(),
            copies: Copies::default(),
            blocked_at: instructions::member_offset("task_struct", "blocked"),
        })
    }

    /// The program for samples that pass the filter.
    pub(crate) fn program(&self) -> Vec<u64> {
        read_program(self.lists.as_raw_fd(), self.ring.descriptor(), self.blocked_at)
    }

    /// Sets the ranges to prefetch with a thread's samples.
    pub(crate) fn set(&mut self, tid: pid_t, ranges: &[u64]) {
        if self.threads.len() >= THREADS_MAX as usize && !self.threads.contains(&tid) {
            let lists = &self.lists;
            self.threads.drain().for_each(|tid| bpf_sys::remove_from_map(lists, tid.cast_unsigned()));
        }
        self.threads.insert(tid);
        bpf_sys::put_in_map(&self.lists, tid.cast_unsigned(), &list_bytes(ranges));
    }

    /// Whether any thread has a list.
    pub(crate) fn has_lists(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Reads the prefetched ranges so far, after the rings of samples, so that those of all samples are included.
    /// Returns the number of freed buffer bytes.
    pub(crate) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let BpfPrefetch { ring, copies, .. } = self;
        ring.drain(|record| copies.take(record));
        freed
    }

    /// Adds its ranges to a sample.
    pub(crate) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        add_prefetched(&mut self.copies, id, capture);
    }
}

// ---- The red zone: an event copies a stack from the stack pointer up. Leaf functions of x86_64 may keep words in
// the 128 bytes below (System V ABI for x86_64, 3.2.2), and unwind rows of some locate the caller's stack pointer
// there (OpenSSL's SHA-512 by AVX). A BPF program copies these bytes in the same interrupt, into its own ring.
//
// The program sees the registers of the interrupted code, so only samples in user mode have a red zone: rows need
// nothing below the stack pointer of a thread in a system call.

/// Size of a copy.
const RED_ZONE_BYTES: usize = 128;
/// Some 6,000 copies: seconds.
const RING_BYTES: usize = 1 << 20;
/// Offsets of code segment and stack pointer in `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h).
const CS: i16 = 17 * 8;
const SP: i16 = 19 * 8;
/// The privilege level bits in the code segment, and their value for user mode.
const LEVEL: i32 = 3;

/// Whether this processor has a red zone in use.
pub(crate) const HERE: bool = cfg!(target_arch = "x86_64");

/// Copies the red zone. `ring` is the descriptor of a [`ProgramRing`].
fn copy_program(ring: i32) -> Vec<u64> {
    let mut program = CopyProgram::default();
    program.extend([op(LOAD_DOUBLE, 1, CONTEXT, CS, 0), op(AND, 1, 0, 0, LEVEL)]);
    program.end_by(op(JUMP_UNLESS_EQUAL, 1, 0, 0, LEVEL));
    // r7: the address.
    program.extend([op(LOAD_DOUBLE, 7, CONTEXT, SP, 0), op(ADD, 7, 0, 0, -(RED_ZONE_BYTES as i32))]);
    program.take_time();
    program.reserve(ring, RED_ZONE_BYTES, ADDRESS_IN_R7);
    program.read(HEADER_BYTES, RED_ZONE_BYTES, 7);
    program.extend([
        op(JUMP_UNLESS_EQUAL, 0, 0, 1, 0),
        op(STORE_VALUE_DOUBLE, 8, 0, LEN, RED_ZONE_BYTES as i32),
    ]);
    program.submit();
    program.end()
}

/// Copies of red zones.
#[derive(Debug)]
pub(crate) struct RedZone {
    ring: ProgramRing,
    copies: Copies,
}

impl RedZone {
    /// Creates a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if this processor has no red zone.
    pub(crate) fn new() -> io::Result<RedZone> {
        if !HERE {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(RedZone {
            ring: ProgramRing::create(RING_BYTES, HEADER_BYTES + RED_ZONE_BYTES)?,
            copies: Copies::default(),
        })
    }

    /// The program for samples that pass the filter.
    pub(crate) fn program(&self) -> Vec<u64> {
        copy_program(self.ring.descriptor())
    }

    /// Reads the copies so far, after the rings of samples, so that those of all samples are included. Returns the
    /// number of freed buffer bytes.
    pub(crate) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let RedZone { ring, copies } = self;
        ring.drain(|record| copies.take(record));
        freed
    }

    /// Prepends the bytes copied at the moment of a sample to its stack.
    pub(crate) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        prepend(&mut self.copies, id, capture);
    }
}

fn prepend(copies: &mut Copies, id: SampleId, capture: &mut Capture) {
    let Some(copy) = copies.of_sample(id) else { return };
    if copy.from.checked_add(copy.bytes.len() as u64) == Some(capture.stack_base.0)
        && !capture.stack.is_empty()
    {
        capture.stack.splice(..0, copy.bytes.iter().copied());
        capture.stack_base.0 = copy.from;
    }
    copies.give_back(copy);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::bpf::instructions::machine::Machine;
    use super::super::super::bpf::memory_copies::APART_NS_MAX;
    use super::*;
    use crate::addr::Avma;
    use crate::rng::Rng;
    use crate::sources::linux::perf::bpf::sample_filter::{self, FilterRule};

    const LISTS: i32 = 5;
    const RING: i32 = 6;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const AT: u64 = 0x7000_0000;

    /// A thread 77 with a stack from `AT` on, and a list of its ranges.
    fn machine(ranges: &[u64]) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        let mut list: Vec<u8> = ranges.iter().flat_map(|start| start.to_le_bytes()).collect();
        list.resize(LIST_BYTES, 0);
        machine.lists.push((LISTS, 77, list));
        machine.ring = RING;
        let mut random = Rng::new(ranges.len() as u64);
        machine.memory = (AT, (0..0x20000).map(|_| random.below(256) as u8).collect());
        machine
    }

    fn program() -> Vec<u64> {
        sample_filter::program(FilterRule::OfProcess(70), FIRST, &read_program(LISTS, RING, None))
    }

    /// A sample of the machine with its ranges.
    fn completed(machine: &Machine, time_ns: u64, stack_bytes: usize) -> Capture {
        let mut copies = Copies::default();
        machine.records.iter().for_each(|record| copies.take(record));
        let mut capture = Capture::with_capacity(0);
        capture.stack_base = Avma(AT);
        capture.stack.extend_from_slice(&machine.memory.1[..stack_bytes]);
        add_prefetched(&mut copies, SampleId { pid: 70, tid: 77, time_ns, cpu: 0 }, &mut capture);
        capture
    }

    fn word(machine: &Machine, at: u64) -> u64 {
        let from = (at - AT) as usize;
        u64::from_le_bytes(machine.memory.1[from..from + 8].try_into().unwrap())
    }

    #[test]
    fn all_ranges_on_the_list_are_read() {
        for count in [1, 2, 31, 32, 33, 64, 65, 511, 512] {
            let starts: Vec<u64> = (0..count).map(|range| AT + 0x1000 + range * 200).collect();
            let mut machine = machine(&starts);
            assert_eq!(machine.run(&program()), 1);
            assert_eq!(machine.records.len(), (count as usize).div_ceil(RECORD_RANGES));
            let capture = completed(&machine, machine.time_ns + 900, 0x800);
            assert_eq!(capture.prefetched.bytes(), count as usize * PREFETCH_RANGE_BYTES);
            for start in starts {
                assert_eq!(capture.prefetched.word(start, 8), Some(word(&machine, start)));
                assert_eq!(capture.prefetched.word(start + 56, 8), Some(word(&machine, start + 56)));
                assert_eq!(capture.prefetched.word(start + 64, 8), None);
            }
        }
    }

    #[test]
    fn blocked_signals_are_read_with_the_ranges() {
        for (count, at, blocked) in [
            (1, 64, Some(0x55)),
            (31, 64, Some(0x55)),
            (32, 64, Some(0x55)),
            (511, 64, Some(0x55)),
            (40, 72, None),
        ] {
            let starts: Vec<u64> = (0..count).map(|range| AT + 0x1000 + range * 200).collect();
            let mut machine = machine(&starts);
            machine.task = [vec![0; 64], 0x55u64.to_le_bytes().to_vec()].concat();
            let program = sample_filter::program(
                FilterRule::OfProcess(70),
                FIRST,
                &read_program(LISTS, RING, Some(at)),
            );
            assert_eq!(machine.run(&program), 1);
            let capture = completed(&machine, machine.time_ns + 900, 0x800);
            assert_eq!(capture.prefetched.blocked_signals, blocked);
            assert_eq!(capture.prefetched.bytes(), count as usize * PREFETCH_RANGE_BYTES);
            for start in starts {
                assert_eq!(capture.prefetched.word(start + 56, 8), Some(word(&machine, start + 56)));
            }
        }
    }

    #[test]
    fn unreadable_ranges_are_skipped() {
        let mut machine = machine(&[AT - 0x40, AT + 0x100, AT + 0x1_fff0, AT + 0x200]);
        assert_eq!(machine.run(&program()), 1);
        let ranges = completed(&machine, machine.time_ns, 0x10).prefetched;
        assert_eq!(ranges.bytes(), 2 * PREFETCH_RANGE_BYTES);
        for at in [0x100, 0x200] {
            assert_eq!(ranges.word(AT + at, 8), Some(word(&machine, AT + at)));
        }
    }

    #[test]
    fn threads_without_a_list_and_rings_without_room_have_none() {
        let mut other = machine(&[AT]);
        other.tid = 78;
        assert_eq!(other.run(&program()), 1);
        let mut full = machine(&[AT]);
        full.room = 0;
        assert_eq!(full.run(&program()), 1);
        assert!(other.records.is_empty() && full.records.is_empty());
        let mut half = machine(&(0..64).map(|range| AT + range * 64).collect::<Vec<_>>());
        half.room = 1;
        assert_eq!(half.run(&program()), 1);
        assert_eq!(
            completed(&half, half.time_ns, 0).prefetched.bytes(),
            RECORD_RANGES * PREFETCH_RANGE_BYTES
        );
    }

    #[test]
    fn ranges_of_another_moment_are_discarded() {
        let mut machine = machine(&[AT + 0x100, AT + 0x4000]);
        assert_eq!(machine.run(&program()), 1);
        let at_ns = machine.time_ns;
        assert!(!completed(&machine, at_ns + APART_NS_MAX, 0x800).prefetched.is_empty());
        assert!(completed(&machine, at_ns + APART_NS_MAX + 1, 0x800).prefetched.is_empty());
        // The contents differ where both overlap.
        machine.memory.1[0x120] ^= 1;
        assert!(completed(&machine, at_ns, 0x800).prefetched.is_empty());
    }

    #[test]
    fn the_kernel_accepts_the_program() {
        let mut prefetch = match BpfPrefetch::new() {
            Ok(prefetch) => prefetch,
            // The kernel also refuses processes that may not load programs.
            Err(error) => {
                return assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
            }
        };
        prefetch.set(77, &[AT, AT + 64]);
        let whole = sample_filter::program(FilterRule::All, FIRST, &prefetch.program());
        bpf_sys::load_program(bpf_sys::ProgramKind::Event, &whole).unwrap();
    }
}

#[cfg(test)]
mod red_zone_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::addr::Avma;
    use crate::sources::linux::perf::bpf::instructions::machine::Machine;
    use crate::sources::linux::perf::bpf::sample_filter::{self, FilterRule};

    const RING: i32 = 6;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const SP_NOW: u64 = 0x7000_0100;

    /// A thread 77 with memory around its stack pointer, interrupted in code of this privilege level.
    fn machine(level: u64) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        machine.ring = RING;
        machine.memory = (SP_NOW - 0x100, (0..0x200).map(|at| at as u8).collect());
        machine.context = (0..21)
            .flat_map(|word| {
                match word * 8 {
                    CS => 0x30 | level,
                    SP => SP_NOW,
                    _ => 0xdead,
                }
                .to_le_bytes()
            })
            .collect();
        machine
    }

    fn completed(machine: &Machine, time_ns: u64) -> Capture {
        let mut copies = Copies::default();
        machine.records.iter().for_each(|record| copies.take(record));
        let mut capture = Capture::with_capacity(0);
        capture.stack_base = Avma(SP_NOW);
        capture.stack.extend_from_slice(&machine.memory.1[0x100..0x140]);
        prepend(&mut copies, SampleId { pid: 70, tid: 77, time_ns, cpu: 0 }, &mut capture);
        capture
    }

    fn program() -> Vec<u64> {
        sample_filter::program(FilterRule::OfProcess(70), FIRST, &copy_program(RING))
    }

    #[test]
    fn the_red_zone_is_prepended() {
        let mut machine = machine(3);
        assert_eq!(machine.run(&program()), 1);
        let capture = completed(&machine, machine.time_ns + 900);
        assert_eq!(capture.stack_base, Avma(SP_NOW - RED_ZONE_BYTES as u64));
        assert_eq!(capture.stack, machine.memory.1[0x80..0x140]);
        let capture = completed(&machine, machine.time_ns + 500_000);
        assert_eq!(capture.stack_base, Avma(SP_NOW), "of another sample");
    }

    #[test]
    fn nothing_is_copied_in_kernel_mode_without_room_or_if_unmapped() {
        for (level, room, from) in [(0, 9, 0x100), (3, 0, 0x100), (3, 9, 0x40)] {
            let mut machine = machine(level);
            machine.room = room;
            machine.memory.0 = SP_NOW - from;
            assert_eq!(machine.run(&program()), 1);
            let mut copies = Copies::default();
            machine.records.iter().for_each(|record| copies.take(record));
            let mut capture = Capture::with_capacity(0);
            capture.stack_base = Avma(SP_NOW);
            capture.stack.push(7);
            prepend(
                &mut copies,
                SampleId { pid: 70, tid: 77, time_ns: machine.time_ns, cpu: 0 },
                &mut capture,
            );
            assert_eq!(
                (capture.stack_base, capture.stack),
                (Avma(SP_NOW), vec![7]),
                "{level} {room} {from:x}"
            );
        }
    }
}
