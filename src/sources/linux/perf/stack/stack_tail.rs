//! The stack tail, above the bytes in a record: an event copies less than 64 KiB of a stack, since the length of a
//! record has 16 bits (include/uapi/linux/perf_event.h, `perf_event_header`), and usually much less. A BPF program
//! copies more of it in the same interrupt, into its own ring:
//! - of new threads: what later samples need besides their records is then known, and prefetched (`prefetch.rs`);
//! - of threads whose outer frames change too often for that, as much as their last walks needed.
//!
//! Input: samples, and the stack use of their walks. Output: the same samples with the longer copy. Both are from one
//! moment: they have the same thread and time, and the bytes of the record begin the copy; where the page of the stack
//! pointer is not resident, both lack it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::super::bpf::bpf_sys::{self, ProgramRing};
use super::super::bpf::instructions::{
    ADD, ADD_REGISTER, AND, CALL, GET_CURRENT_TASK_BTF, JUMP, JUMP_IF_EQUAL, JUMP_UNLESS_EQUAL, LOAD_DOUBLE,
    MOVE, MOVE_REGISTER, STORE_DOUBLE, STORE_VALUE_DOUBLE, SUBTRACT_REGISTER, TASK_PT_REGS, op,
};
use super::super::bpf::memory_copies::{ADDRESS_IN_R7, Copies, CopyProgram, HEADER_BYTES, LEN};
use crate::sources::linux::perf::events::set::cpu_count;
use crate::sources::linux::perf::ring::SampleId;
use crate::sources::pushed::StackUse;
use crate::sources::{Capture, PrefetchedWords};

/// Bytes read at once, and in pages where that fails, so that a copy ends at the end of memory.
const PAGE_BYTES: usize = 4096;
const PIECE_PAGES: usize = 4;
const PIECE_BYTES: usize = PAGE_BYTES * PIECE_PAGES;
/// Maximum number of pieces in a copy: it takes some 100 us.
const PIECES_MAX: usize = 64;
/// A copy has one part in this many more than walks needed.
const HEADROOM_DIVISOR: usize = 2;
/// Maximum number of parts of a copy, each with half as many pieces as the one below it, and of pages between two
/// parts that are not resident: the frame of a function may have pages that were never touched.
const PARTS_MAX: usize = 3;
const HOLE_PAGES_MAX: usize = 16;
/// Place of a word below r10, beside those of the filter program.
const WORD: i16 = -24;
/// Ring size per CPU for 15 ms of copies of 256 KiB at 997 Hz, a batch. Stacks that do not fit get no tail. The
/// whole ring is resident from its creation.
const RING_BYTES_OF_CPU: usize = 4 << 20;
const RING_BYTES_MAX: usize = 16 << 20;
/// Minimum size of a stack in a record, to be found in the copy.
const RECORD_BYTES_MIN: usize = 64;
/// Maximum number of threads without a tail; beyond it, all are dropped and found again.
const THREADS_MAX: u32 = 16_384;
/// Walks per round, after which the size of a thread's tails follows their need.
const ROUND_WALKS: u32 = 3;
/// Incomplete walks with a tail, and no complete one that used it, after which a thread has none.
const FAILED_MAX: u32 = 32;
/// Minimum number of pieces of a tail, and growth where the tail does not suffice.
const PIECES_MIN: u32 = 4;
const GROWTH: u32 = 4;
/// Samples without a larger tail after a useless one: at first.
const FIRST_BACKOFF: u32 = 32;
/// At most.
const BACKOFF_MAX: u32 = 1 << 14;
/// Offset of the stack pointer in `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h,
/// arch/arm64/include/uapi/asm/ptrace.h), if known.
const SP: Option<i16> = if cfg!(target_arch = "x86_64") {
    Some(19 * 8)
} else if cfg!(target_arch = "aarch64") {
    Some(31 * 8)
} else {
    None
};

/// Copies the stack of the running thread: as many pieces as the map says, or all if the thread is not in the map.
/// `ring` is the descriptor of a [`ProgramRing`].
fn copy_program(pieces: i32, ring: i32, sp: i16) -> Vec<u64> {
    // r6: the number of pieces.
    let mut program = CopyProgram::of_all_threads(pieces, 6, PIECES_MAX as i32);
    // The registers of user mode, also in a system call.
    program.extend([
        op(CALL, 0, 0, 0, GET_CURRENT_TASK_BTF),
        op(MOVE_REGISTER, 1, 0, 0, 0),
        op(CALL, 0, 0, 0, TASK_PT_REGS),
        // r7: the address.
        op(LOAD_DOUBLE, 7, 0, sp, 0),
    ]);
    program.take_time();
    // To the next page: r2 is the distance. The first record shows the reader a new thread.
    let to_next_page = [
        op(MOVE_REGISTER, 1, 7, 0, 0),
        op(AND, 1, 0, 0, PAGE_BYTES as i32 - 1),
        op(MOVE, 2, 0, 0, PAGE_BYTES as i32),
        op(SUBTRACT_REGISTER, 2, 1, 0, 0),
    ];
    program.reserve(ring, PAGE_BYTES, ADDRESS_IN_R7);
    program.extend(to_next_page);
    program.read_r2(HEADER_BYTES, 7);
    let to_missing = program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0));
    program.extend(to_next_page);
    program.extend([op(STORE_DOUBLE, 8, 2, LEN, 0), op(ADD_REGISTER, 7, 2, 0, 0)]);
    program.submit_and_wake();
    let to_pieces = program.jump(op(JUMP, 0, 0, 0, 0));
    program.land([to_missing]);
    program.submit_and_wake();
    let mut to_next_part = vec![program.jump(op(JUMP, 0, 0, 0, 0))];
    program.land([to_pieces]);
    for part in 0..PARTS_MAX {
        let (mut to_pages, mut to_submit) = (Vec::new(), Vec::new());
        for _ in 0..PIECES_MAX >> part {
            program.end_by(op(JUMP_IF_EQUAL, 6, 0, 0, 0));
            program.extend([op(ADD, 6, 0, 0, -1)]);
            program.reserve(ring, PIECE_BYTES, ADDRESS_IN_R7);
            program.read(HEADER_BYTES, PIECE_BYTES, 7);
            to_pages.push(program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0)));
            program.extend([
                op(ADD, 7, 0, 0, PIECE_BYTES as i32),
                op(STORE_VALUE_DOUBLE, 8, 0, LEN, PIECE_BYTES as i32),
            ]);
            program.submit();
        }
        program.end_by(op(JUMP, 0, 0, 0, 0));
        program.land(to_pages);
        for page in 0..PIECE_PAGES - 1 {
            program.read(HEADER_BYTES + page * PAGE_BYTES, PAGE_BYTES, 7);
            to_submit.push(program.jump(op(JUMP_UNLESS_EQUAL, 0, 0, 0, 0)));
            program.extend([
                op(ADD, 7, 0, 0, PAGE_BYTES as i32),
                op(STORE_VALUE_DOUBLE, 8, 0, LEN, ((page + 1) * PAGE_BYTES) as i32),
            ]);
        }
        program.land(to_submit);
        program.submit();
        if part + 1 == PARTS_MAX {
            break;
        }
        program.land(std::mem::take(&mut to_next_part));
        // The next page that is resident begins the next part.
        program.extend([op(AND, 7, 0, 0, -(PAGE_BYTES as i32))]);
        let mut to_part = Vec::new();
        for _ in 0..HOLE_PAGES_MAX {
            program.extend([op(ADD, 7, 0, 0, PAGE_BYTES as i32)]);
            program.probe(WORD, 7);
            to_part.push(program.jump(op(JUMP_IF_EQUAL, 0, 0, 0, 0)));
        }
        program.end_by(op(JUMP, 0, 0, 0, 0));
        program.land(to_part);
    }
    program.end()
}

/// Size of the ring for this many CPUs.
fn ring_bytes(cpus: usize) -> usize {
    (RING_BYTES_OF_CPU * cpus.next_power_of_two()).min(RING_BYTES_MAX)
}

/// Replaces the stack of a sample by the copy made at the same moment, if that is longer, and adds the parts above it.
fn complete(copies: &mut Copies, id: SampleId, capture: &mut Capture) {
    let Some(mut copy) = copies.of_sample(id) else { return };
    let record = &capture.stack;
    let record_bytes = record.len();
    let end = capture.stack_base.0.saturating_add(record_bytes as u64);
    if copy.from == capture.stack_base.0 && record_bytes >= RECORD_BYTES_MIN {
        let same_bytes = record_bytes.min(copy.bytes.len());
        if record[..same_bytes] == copy.bytes[..same_bytes] {
            std::mem::swap(&mut capture.upper_stack, &mut copy.upper);
            if copy.bytes.len() > record_bytes {
                // The buffer of the record is small: it is not kept for copies.
                capture.stack = std::mem::take(&mut copy.bytes);
                capture.tail_bytes = capture.stack.len() - record_bytes;
            }
        }
    } else if copy.from > end {
        // The page of the stack pointer is not resident.
        std::mem::swap(&mut capture.upper_stack, &mut copy.upper);
        capture.upper_stack.push(copy.from, &copy.bytes);
    }
    copies.give_back(copy);
}

/// The size of a thread's stack tails.
#[derive(Debug)]
struct ThreadTail {
    /// Number of pieces; 0: no tail.
    pieces: u32,
    /// The most pieces that a walk of this round needed, and the number of its walks.
    needed: u32,
    walks: u32,
    /// Consecutive walks that needed no tail, and incomplete ones that had one.
    unneeded: u32,
    failed: u32,
    /// Truncated stacks to skip before the thread has tails again.
    skips: u32,
    /// The next number of walks that needed no tail after which it has none, or of `skips`; doubled each time.
    backoff: u32,
}

impl Default for ThreadTail {
    fn default() -> ThreadTail {
        let pieces = PIECES_MAX as u32;
        ThreadTail { pieces, needed: 0, walks: 0, unneeded: 0, failed: 0, skips: 0, backoff: FIRST_BACKOFF }
    }
}

impl ThreadTail {
    /// Records a walk that needed this much of a stack, of which the record held `usual_bytes` and the copy
    /// `copied_bytes`.
    fn note(&mut self, usual_bytes: usize, copied_bytes: usize, needed: StackUse) {
        if self.pieces == 0 {
            if needed.missed && self.skips > 0 {
                self.skips -= 1;
            } else if needed.missed {
                *self = ThreadTail { pieces: PIECES_MIN, backoff: self.back_off(), ..ThreadTail::default() };
            }
        } else if needed.missed || needed.unbounded {
            // A shorter copy was made before the size grew, or its ring was full: neither shows that more is needed.
            if copied_bytes >= self.pieces as usize * PIECE_BYTES || needed.unbounded {
                self.failed += 1;
                self.pieces = self.pieces.saturating_mul(GROWTH).clamp(PIECES_MIN, PIECES_MAX as u32);
            }
            if self.failed >= FAILED_MAX {
                (self.pieces, self.skips) = (0, self.backoff);
                self.backoff = self.back_off();
            }
        } else if let Some(bytes) = needed.besides_ranges {
            self.note_need(usual_bytes, bytes);
        }
    }

    /// Records a complete walk that read this many bytes besides prefetched ranges.
    fn note_need(&mut self, usual_bytes: usize, bytes: usize) {
        self.walks += 1;
        if bytes <= usual_bytes {
            self.unneeded += 1;
        } else {
            (self.unneeded, self.failed) = (0, 0);
            let pieces = (bytes + bytes / HEADROOM_DIVISOR)
                .div_ceil(PIECE_BYTES)
                .clamp(PIECES_MIN as usize, PIECES_MAX);
            self.needed = self.needed.max(pieces as u32);
        }
        if self.unneeded >= self.backoff {
            self.pieces = 0;
        } else if self.walks >= ROUND_WALKS {
            self.walks = 0;
            self.pieces = match std::mem::take(&mut self.needed) {
                0 => self.pieces,
                needed => needed,
            };
        }
    }

    fn back_off(&self) -> u32 {
        self.backoff.saturating_mul(2).min(BACKOFF_MAX)
    }

    /// Whether there are tails of a known size: a new thread has whole ones.
    fn is_sized(&self) -> bool {
        (1..PIECES_MAX as u32).contains(&self.pieces)
    }
}

/// Copies of the upper parts of stacks.
#[derive(Debug)]
pub(crate) struct StackTail {
    /// Number of pieces by thread, in the kernel.
    pieces: OwnedFd,
    ring: ProgramRing,
    threads: HashMap<pid_t, ThreadTail>,
    copies: Copies,
    /// Bytes of the last read.
    read_bytes: usize,
    /// Number of threads with tails of a known size.
    sized: usize,
}

impl StackTail {
    /// Size of the ring, bytes.
    pub(crate) fn ring_bytes(&self) -> u64 {
        ring_bytes(cpu_count()) as u64
    }

    /// Creates a map and a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if the registers of this processor are unknown.
    pub(crate) fn new() -> io::Result<StackTail> {
        if SP.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let ring_bytes = ring_bytes(cpu_count());
        let pieces = bpf_sys::create_map(THREADS_MAX)?;
        // An idle CPU has no stack of its own.
        bpf_sys::change_map(&pieces, 0, Some(0));
        Ok(StackTail {
            pieces,
            ring: ProgramRing::create(ring_bytes, HEADER_BYTES + PIECE_BYTES)?,
            threads: HashMap::new(),
            copies: Copies::default(),
            read_bytes: 0,
            sized: 0,
        })
    }

    /// The program for samples that pass the filter.
    pub(crate) fn program(&self) -> Vec<u64> {
        let (pieces, ring) = (self.pieces.as_raw_fd(), self.ring.descriptor());
        SP.map(|sp| copy_program(pieces, ring, sp)).unwrap_or_default()
    }

    /// Reads the copies so far, after the rings of samples, so that those of all samples are included. Returns the
    /// number of freed buffer bytes.
    pub(crate) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let StackTail { ring, copies, read_bytes, .. } = self;
        *read_bytes = 0;
        ring.peek(|record| copies.expect(record));
        ring.drain(|record| {
            *read_bytes += record.len();
            copies.take(record);
        });
        freed
    }

    /// Bytes of the last read.
    pub(crate) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Completes the stack of a sample.
    pub(crate) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        complete(&mut self.copies, id, capture);
    }

    /// Takes back the buffer of a capture with a tail.
    pub(crate) fn give_back(&mut self, capture: &mut Capture) {
        if capture.tail_bytes > 0 {
            self.copies.give_back_bytes(std::mem::take(&mut capture.stack));
        }
        // Rare, and too large to wait for the next one.
        if !capture.upper_stack.is_empty() {
            capture.upper_stack = PrefetchedWords::default();
        }
    }

    /// Records a walk of a thread's sample ([`ThreadTail::note`]).
    pub(crate) fn note(&mut self, tid: pid_t, usual_bytes: usize, copied_bytes: usize, needed: StackUse) {
        if self.threads.len() >= THREADS_MAX as usize && !self.threads.contains_key(&tid) {
            let pieces = &self.pieces;
            self.threads.drain().for_each(|(tid, _)| bpf_sys::change_map(pieces, tid.cast_unsigned(), None));
            self.sized = 0;
        }
        let thread = self.threads.entry(tid).or_default();
        let (pieces, counted) = (thread.pieces, thread.is_sized());
        thread.note(usual_bytes, copied_bytes, needed);
        self.sized = self.sized + usize::from(thread.is_sized()) - usize::from(counted);
        if pieces != thread.pieces {
            bpf_sys::change_map(&self.pieces, tid.cast_unsigned(), Some(thread.pieces.into()));
        }
    }

    /// Drops an exited thread: its number may be reused.
    pub(crate) fn forget(&mut self, tid: pid_t) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.sized -= usize::from(thread.is_sized());
            bpf_sys::change_map(&self.pieces, tid.cast_unsigned(), None);
        }
    }

    /// Whether threads that are not new have tails.
    pub(crate) fn is_needed_for_long(&self) -> bool {
        self.sized > 0
    }

    /// A descriptor that is readable while copies wait.
    pub(crate) fn descriptor(&self) -> c_int {
        self.ring.descriptor()
    }
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

    const PIECES: i32 = 5;
    const RING: i32 = 6;
    const SP_AT: i16 = 64;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const AT: u64 = 0x7000_0000;
    const SP: u64 = AT + 0x128;
    const PAGE: u64 = PAGE_BYTES as u64;

    /// A thread 77 with memory of `bytes` from `AT` on; its stack pointer is `SP`.
    fn machine(bytes: usize) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        machine.maps.push((PIECES, vec![(78, 0), (79, 2)]));
        machine.context = [vec![0; SP_AT as usize], SP.to_le_bytes().to_vec()].concat();
        machine.ring = RING;
        let mut random = Rng::new(bytes as u64);
        machine.memory = (AT, (0..bytes).map(|_| random.below(256) as u8).collect());
        machine
    }

    fn program() -> Vec<u64> {
        sample_filter::program(FilterRule::OfProcess(70), FIRST, &copy_program(PIECES, RING, SP_AT))
    }

    /// A sample at `time_ns` of the machine's thread, with this many stack bytes in its record from `sp` on.
    fn completed(machine: &Machine, sp: u64, stack_bytes: usize, time_ns: u64) -> Capture {
        let mut copies = Copies::default();
        machine.records.iter().for_each(|record| copies.expect(record));
        machine.records.iter().for_each(|record| copies.take(record));
        let mut capture = Capture::with_capacity(0);
        let at = (sp - machine.memory.0) as usize;
        capture.stack_base = Avma(sp);
        capture.stack.extend_from_slice(&machine.memory.1[at..at + stack_bytes]);
        complete(&mut copies, SampleId { pid: 70, tid: machine.tid as i32, time_ns, cpu: 0 }, &mut capture);
        assert_eq!(capture.usual_bytes(), stack_bytes);
        capture
    }

    #[test]
    fn a_stack_is_copied_to_the_end_of_memory() {
        for pages in [3, 4, 5, 9, 20, 21, 23, 24, 40, 270] {
            let mut machine = machine(pages * PAGE_BYTES);
            assert_eq!(machine.run(&program()), 1);
            let capture = completed(&machine, SP, 0x2000, machine.time_ns + 90);
            let whole = (pages * PAGE_BYTES).min(PAGE_BYTES + PIECES_MAX * PIECE_BYTES);
            assert_eq!(capture.stack, machine.memory.1[0x128..whole], "{pages} pages");
            assert!(capture.upper_stack.is_empty());
        }
    }

    #[test]
    fn as_much_is_copied_as_a_thread_needs() {
        let mut other = machine(0x20000);
        other.tgid = 71;
        assert_eq!(other.run(&program()), 0);
        let mut without = machine(0x20000);
        without.tid = 78;
        assert_eq!(without.run(&program()), 1);
        assert!(other.records.is_empty() && without.records.is_empty());
        let mut less = machine(0x20000);
        less.tid = 79;
        assert_eq!(less.run(&program()), 1);
        let capture = completed(&less, SP, 0x1000, less.time_ns);
        assert_eq!(capture.stack, less.memory.1[0x128..PAGE_BYTES + 2 * PIECE_BYTES]);
        less.missing = AT + 3 * PAGE..AT + 4 * PAGE;
        less.records.clear();
        assert_eq!(less.run(&program()), 1);
        let capture = completed(&less, SP, 0x1000, less.time_ns);
        assert_eq!((capture.stack.len(), capture.upper_stack.bytes()), (3 * PAGE_BYTES - 0x128, PIECE_BYTES));
        let mut full = machine(0x20000);
        full.room = 2;
        assert_eq!(full.run(&program()), 1);
        let capture = completed(&full, SP, 0x1000, full.time_ns);
        assert_eq!(capture.stack, full.memory.1[0x128..PAGE_BYTES + PIECE_BYTES]);
    }

    #[test]
    fn parts_above_missing_pages_are_copied() {
        let word = |machine: &Machine, at: u64| {
            let at = (at - AT) as usize;
            u64::from_le_bytes(machine.memory.1[at..at + 8].try_into().unwrap())
        };
        // The page of the stack pointer, one inside the first piece, and several in a later one.
        for (first, pages) in [(0, 1), (0, 3), (2, 1), (7, 16)] {
            let mut machine = machine(60 * PAGE_BYTES);
            machine.missing = AT + first * PAGE..AT + (first + pages) * PAGE;
            assert_eq!(machine.run(&program()), 1);
            let below = machine.missing.start.saturating_sub(SP) as usize;
            let capture = completed(&machine, SP, below.min(0x1000), machine.time_ns);
            assert_eq!(capture.stack.len(), below, "{:x?}", machine.missing);
            let upper = |at| capture.upper_stack.word(at, 8);
            for at in [machine.missing.end, machine.missing.end + 9 * PAGE + 8, AT + 60 * PAGE - 8] {
                assert_eq!(upper(at), Some(word(&machine, at)), "{at:x} above {:x?}", machine.missing);
            }
            assert_eq!(upper(machine.missing.end - 8), None);
        }
        let mut far = machine(60 * PAGE_BYTES);
        far.missing = AT + PAGE..AT + (2 + HOLE_PAGES_MAX as u64) * PAGE;
        assert_eq!(far.run(&program()), 1);
        assert!(completed(&far, SP, 0x100, far.time_ns).upper_stack.is_empty());
    }

    #[test]
    fn only_copies_of_the_same_moment_are_used() {
        let mut machine = machine(0x20000);
        assert_eq!(machine.run(&program()), 1);
        let at_ns = machine.time_ns;
        let completed =
            |machine: &Machine, sp: u64, time_ns| completed(machine, sp, 0x8000, time_ns).stack.len();
        assert_eq!(completed(&machine, SP, at_ns + APART_NS_MAX), 0x20000 - 0x128);
        assert_eq!(completed(&machine, SP, at_ns + APART_NS_MAX + 1), 0x8000, "of another sample");
        assert_eq!(completed(&machine, SP + 8, at_ns), 0x8000, "another stack pointer");
        machine.memory.1[0x7ff0] ^= 1;
        assert_eq!(completed(&machine, SP, at_ns), 0x8000, "other bytes");
    }

    #[test]
    fn hostile_records_change_no_byte_of_a_sample() {
        let mut random = Rng::new(11);
        let mut machine = machine(0x20000);
        machine.missing = AT + 9 * PAGE..AT + 11 * PAGE;
        assert_eq!(machine.run(&program()), 1);
        let record_of = 0x128..0x8000;
        for _ in 0..2_000 {
            let mut copies = Copies::default();
            for record in &machine.records {
                let mut record = record[..random.below(HEADER_BYTES + 4096)].to_vec();
                for _ in 0..random.below(4) {
                    let at = random.below(HEADER_BYTES).min(record.len().saturating_sub(1));
                    record.get_mut(at).into_iter().for_each(|byte| *byte = random.below(256) as u8);
                }
                if random.below(2) == 0 {
                    copies.expect(&record);
                }
                copies.take(&record);
            }
            let mut capture = Capture::with_capacity(0);
            capture.stack_base = Avma(SP);
            capture.stack.extend_from_slice(&machine.memory.1[record_of.clone()]);
            let id = SampleId { pid: 70, tid: 77, time_ns: machine.time_ns, cpu: 0 };
            complete(&mut copies, id, &mut capture);
            assert_eq!(*capture.usual_stack(), machine.memory.1[record_of.clone()]);
        }
    }

    const RECORD_BYTES: usize = 8_192;
    const TAIL_BYTES: usize = PIECES_MAX * PIECE_BYTES;

    /// A complete walk that read this much besides ranges.
    fn complete_with(bytes: usize) -> StackUse {
        StackUse { bytes, besides_ranges: Some(bytes), ..StackUse::default() }
    }

    const INCOMPLETE: StackUse = StackUse {
        bytes: 0,
        truncated: true,
        missed: true,
        needs_red_zone: false,
        unbounded: false,
        besides_ranges: None,
    };

    #[test]
    fn tails_have_what_walks_need() {
        let mut shallow = ThreadTail::default();
        (0..FIRST_BACKOFF).for_each(|_| shallow.note(RECORD_BYTES, TAIL_BYTES, complete_with(900)));
        assert_eq!(shallow.pieces, 0);
        let mut deep = ThreadTail::default();
        for _ in 0..ROUND_WALKS {
            assert_eq!(deep.pieces, PIECES_MAX as u32, "there is no list yet");
            deep.note(RECORD_BYTES, TAIL_BYTES, complete_with(600_000));
        }
        for bytes in [100_000, 2_000_000, 10_000] {
            (0..ROUND_WALKS).for_each(|_| deep.note(RECORD_BYTES, TAIL_BYTES, complete_with(bytes)));
            let needed = (bytes + bytes / 2).div_ceil(PIECE_BYTES) as u32;
            assert_eq!(deep.pieces, needed.clamp(PIECES_MIN, PIECES_MAX as u32), "{bytes}");
        }
        for copied_bytes in [0, PIECE_BYTES] {
            deep.note(RECORD_BYTES, copied_bytes, INCOMPLETE);
            assert_eq!((deep.pieces, deep.failed), (PIECES_MIN, 0), "its ring was full");
        }
        // Samples that were taken before the size grew do not show that it does not suffice.
        for _ in 0..10 * FAILED_MAX {
            deep.note(RECORD_BYTES, PIECES_MIN as usize * PIECE_BYTES, INCOMPLETE);
            assert_eq!((deep.pieces, deep.failed), (PIECES_MIN * GROWTH, 1));
        }
    }

    /// Chains that lead out of any stack.
    #[test]
    fn tails_that_complete_nothing_end() {
        let mut thread = ThreadTail::default();
        let mut tails = 0;
        for _ in 0..20_000 {
            tails += u32::from(thread.pieces > 0);
            thread.note(RECORD_BYTES, thread.pieces as usize * PIECE_BYTES, INCOMPLETE);
        }
        assert!(tails < 20 * FAILED_MAX, "{tails}");
    }

    /// Outer frames that change make prefetched words stale.
    #[test]
    fn stacks_have_tails_where_prefetching_does_not_suffice() {
        let (mut thread, mut truncated) = (ThreadTail::default(), 0);
        for walk in 0..20_000 {
            let has_tail = thread.pieces > 0;
            truncated += u32::from(!has_tail);
            // Each fourth has new outer frames.
            let bytes = if walk % 4 == 0 { 100_000 } else { 900 };
            let needed = if has_tail || bytes < RECORD_BYTES { complete_with(bytes) } else { INCOMPLETE };
            thread.note(RECORD_BYTES, thread.pieces as usize * PIECE_BYTES, needed);
        }
        assert_eq!(truncated, 0);
        // Deeper stacks for a moment cost no tails for ever.
        let mut tails = 0;
        for _ in 0..40_000 {
            tails += u32::from(thread.pieces > 0);
            thread.note(RECORD_BYTES, TAIL_BYTES, complete_with(900));
        }
        assert!(tails <= FIRST_BACKOFF, "{tails}");
    }

    #[test]
    fn the_kernel_accepts_the_program() {
        let tail = match StackTail::new() {
            Ok(tail) => tail,
            // The kernel also refuses processes that may not load programs.
            Err(error) => {
                return assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
            }
        };
        let whole = sample_filter::program(FilterRule::All, FIRST, &tail.program());
        bpf_sys::load_program(bpf_sys::ProgramKind::Event, &whole).unwrap();
    }
}
