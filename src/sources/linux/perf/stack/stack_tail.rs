//! The stack tail, above the bytes in a record: an event copies less than 64 KiB of a stack, since the length of a
//! record has 16 bits (include/uapi/linux/perf_event.h, `perf_event_header`), and usually much less. A BPF program
//! copies the following bytes in the same interrupt, into its own ring:
//! - of the first samples of each thread, until one is walked: what later ones need is then known, and prefetched
//!   (`prefetch.rs`);
//! - of threads whose outer frames change too often for that.
//!
//! Input: samples, and the stack use of their walks. Output: the same samples with the following bytes. Both copies
//! are from one moment: they have the same thread and time, and overlap by bytes that must be equal.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::super::bpf::bpf_sys::{self, ProgramRing};
use super::super::bpf::instructions::{
    ADD, AND, CALL, GET_CURRENT_TASK_BTF, JUMP, JUMP_UNLESS_EQUAL, LOAD_DOUBLE, MOVE_REGISTER,
    STORE_VALUE_DOUBLE, TASK_PT_REGS, op,
};
use super::super::bpf::memory_copies::{ADDRESS_IN_R7, Copies, CopyProgram, HEADER_BYTES, LEN};
use super::super::events::cpus::cpu_count;
use super::super::ring::record::SampleId;
use crate::sources::Capture;
use crate::sources::pushed::StackUse;

/// Bytes read at once, so that a copy ends at the end of memory, and reads per piece.
const PAGE_BYTES: usize = 4096;
const PIECE_PAGES: usize = 4;
const PIECE_BYTES: usize = PAGE_BYTES * PIECE_PAGES;
/// Maximum number of pieces in a copy: it takes some 100 us.
const PIECES_MAX: usize = 64;
/// Maximum size of a copy.
pub(in crate::sources::linux::perf) const TAIL_BYTES: u32 = (PIECE_BYTES * PIECES_MAX) as u32;
/// Ring size per CPU for 15 ms of copies of 256 KiB at 997 Hz, a batch. Stacks that do not fit get no tail. The
/// whole ring is resident from its creation.
const RING_BYTES_OF_CPU: usize = 4 << 20;
const RING_BYTES_MAX: usize = 16 << 20;
/// Minimum overlap of both copies.
const OVERLAP_BYTES: u64 = 64;
/// Maximum number of threads without a tail; beyond it, all are dropped and found again.
const THREADS_MAX: u32 = 16_384;
/// Walks without a list to prefetch after which a new thread gets no tail.
const NEW_WALKS_MAX: u32 = 32;
/// Samples with a tail after prefetching did not suffice; doubled each time.
const FIRST_TAILS: u32 = 16;
const TAILS_MAX: u32 = 1 << 14;
/// Offset of the stack pointer in `struct pt_regs` (arch/x86/include/uapi/asm/ptrace.h,
/// arch/arm64/include/uapi/asm/ptrace.h), if known.
const SP: Option<i16> = if cfg!(target_arch = "x86_64") {
    Some(19 * 8)
} else if cfg!(target_arch = "aarch64") {
    Some(31 * 8)
} else {
    None
};

/// Copies the stack of the running thread above the `record_bytes` that its record holds, unless the thread is in
/// the map `without`. `ring` is the descriptor of a [`ProgramRing`].
fn copy_program(without: i32, ring: i32, record_bytes: u32, sp: i16) -> Vec<u64> {
    let mut program = CopyProgram::of_threads_not_in(without);
    // Also in a system call the registers of user mode.
    program.extend([
        op(CALL, 0, 0, 0, GET_CURRENT_TASK_BTF),
        op(MOVE_REGISTER, 1, 0, 0, 0),
        op(CALL, 0, 0, 0, TASK_PT_REGS),
        // r7: the address.
        op(LOAD_DOUBLE, 7, 0, sp, 0),
        op(ADD, 7, 0, 0, record_bytes as i32 - PAGE_BYTES as i32),
        op(AND, 7, 0, 0, -(PAGE_BYTES as i32)),
    ]);
    program.take_time();
    for piece in 0..PIECES_MAX {
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
        // The first piece shows the reader a new thread.
        let submit = if piece == 0 { CopyProgram::submit_and_wake } else { CopyProgram::submit };
        submit(&mut program);
        let to_next = program.jump(op(JUMP, 0, 0, 0, 0));
        program.land(to_last);
        submit(&mut program);
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
        capture.tail_bytes = further.len();
    }
}

/// When the stacks of a thread have tails.
#[derive(Debug)]
struct ThreadTail {
    /// Whether they have.
    copies: bool,
    /// Walks until they no longer have, and how many the next time.
    left: u32,
    next: u32,
    /// Whether the thread is no longer new.
    is_known: bool,
}

impl Default for ThreadTail {
    fn default() -> ThreadTail {
        ThreadTail { copies: true, left: NEW_WALKS_MAX, next: FIRST_TAILS, is_known: false }
    }
}

impl ThreadTail {
    /// Records a walk that needed this much of a stack, of which the record held `usual_bytes`.
    fn note(&mut self, usual_bytes: usize, needed: StackUse) {
        if needed.missed && !self.copies {
            (self.copies, self.left) = (true, self.next);
            self.next = self.next.saturating_mul(2).min(TAILS_MAX);
            return;
        }
        let fits = !needed.missed && needed.bytes <= usual_bytes;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 || !self.is_known && (fits || needed.unbounded) {
            (self.copies, self.is_known) = (false, true);
        }
    }

    /// Records a list to prefetch.
    fn note_list(&mut self) {
        if !self.is_known {
            (self.copies, self.is_known) = (false, true);
        }
    }
}

/// Copies of the upper parts of stacks.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct StackTail {
    /// Threads without tails, in the kernel.
    without: OwnedFd,
    ring: ProgramRing,
    threads: HashMap<pid_t, ThreadTail>,
    copies: Copies,
    /// Bytes of the last read.
    read_bytes: usize,
    /// Number of known threads with tails.
    known_with_tails: usize,
}

impl StackTail {
    /// Size of the ring, bytes.
    pub(in crate::sources::linux::perf) fn ring_bytes(&self) -> u64 {
        ring_bytes(cpu_count()) as u64
    }

    /// Creates a map and a ring in the kernel.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if the registers of this processor are unknown.
    pub(in crate::sources::linux::perf) fn new() -> io::Result<StackTail> {
        if SP.is_none() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let ring_bytes = ring_bytes(cpu_count());
        let without = bpf_sys::create_map(THREADS_MAX)?;
        // An idle CPU has no stack of its own.
        bpf_sys::change_map(&without, 0, Some(1));
        Ok(StackTail {
            without,
            ring: ProgramRing::create(ring_bytes, HEADER_BYTES + PIECE_BYTES)?,
            threads: HashMap::new(),
            copies: Copies::default(),
            read_bytes: 0,
            known_with_tails: 0,
        })
    }

    /// The program for samples that pass the filter, with this many bytes of a stack in their records.
    pub(in crate::sources::linux::perf) fn program(&self, record_bytes: u32) -> Vec<u64> {
        let (without, ring) = (self.without.as_raw_fd(), self.ring.descriptor());
        SP.map(|sp| copy_program(without, ring, record_bytes, sp)).unwrap_or_default()
    }

    /// Reads the copies so far, after the rings of samples, so that those of all samples are included. Returns the
    /// number of freed buffer bytes.
    pub(in crate::sources::linux::perf) fn read(&mut self) -> usize {
        let freed = self.copies.end_batch();
        let StackTail { ring, copies, read_bytes, .. } = self;
        *read_bytes = 0;
        ring.drain(|record| {
            *read_bytes += record.len();
            copies.take(record);
        });
        freed
    }

    /// Bytes of the last read.
    pub(in crate::sources::linux::perf) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Completes the stack of a sample.
    pub(in crate::sources::linux::perf) fn complete(&mut self, id: SampleId, capture: &mut Capture) {
        append(&mut self.copies, id, capture);
    }

    /// Records a walk of a thread's sample ([`ThreadTail::note`]).
    pub(in crate::sources::linux::perf) fn note(&mut self, tid: pid_t, usual_bytes: usize, needed: StackUse) {
        self.change(tid, |thread| thread.note(usual_bytes, needed));
    }

    /// Records that ranges of a thread's stack are prefetched.
    pub(in crate::sources::linux::perf) fn note_list(&mut self, tid: pid_t) {
        self.change(tid, ThreadTail::note_list);
    }

    fn change(&mut self, tid: pid_t, change: impl FnOnce(&mut ThreadTail)) {
        if self.threads.len() >= THREADS_MAX as usize && !self.threads.contains_key(&tid) {
            let without = &self.without;
            self.threads.drain().for_each(|(tid, _)| bpf_sys::change_map(without, tid.cast_unsigned(), None));
            self.known_with_tails = 0;
        }
        let thread = self.threads.entry(tid).or_default();
        let (copied, counted) = (thread.copies, thread.is_known && thread.copies);
        change(thread);
        let counts = thread.is_known && thread.copies;
        self.known_with_tails = self.known_with_tails + usize::from(counts) - usize::from(counted);
        if copied != thread.copies {
            bpf_sys::change_map(&self.without, tid.cast_unsigned(), (!thread.copies).then_some(1));
        }
    }

    /// Drops an exited thread: its number may be reused.
    pub(in crate::sources::linux::perf) fn forget(&mut self, tid: pid_t) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.known_with_tails -= usize::from(thread.is_known && thread.copies);
            if !thread.copies {
                bpf_sys::change_map(&self.without, tid.cast_unsigned(), None);
            }
        }
    }

    /// Whether threads that are not new have tails.
    pub(in crate::sources::linux::perf) fn is_needed_for_long(&self) -> bool {
        self.known_with_tails > 0
    }

    /// A descriptor that is readable while copies wait.
    pub(in crate::sources::linux::perf) fn descriptor(&self) -> c_int {
        self.ring.descriptor()
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

    const WITHOUT: i32 = 5;
    const RING: i32 = 6;
    const SP_AT: i16 = 64;
    const RECORD_BYTES: u32 = 0x2000;
    const FIRST: (u64, u64) = (4, 0xefff_fffc);
    const AT: u64 = 0x7000_0000;

    /// A thread 77 with a stack of `bytes` from `AT` on; its copies begin at `from`.
    fn machine(bytes: usize, from: u64) -> Machine {
        let mut machine = Machine::new(77, 70, FIRST);
        machine.maps.push((WITHOUT, vec![(78, 1)]));
        let sp = from + PAGE_BYTES as u64 - u64::from(RECORD_BYTES) + 0x128;
        machine.context = [vec![0; SP_AT as usize], sp.to_le_bytes().to_vec()].concat();
        machine.ring = RING;
        let mut random = Rng::new(bytes as u64);
        machine.memory = (AT, (0..bytes).map(|_| random.below(256) as u8).collect());
        machine
    }

    fn program() -> Vec<u64> {
        filter_program::program(
            FilterRule::OfProcess(70),
            FIRST,
            &copy_program(WITHOUT, RING, RECORD_BYTES, SP_AT),
        )
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
        for pages in [9, 20, 21, 23, 24, 40, 270] {
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
        let mut without = machine(0x20000, AT);
        without.tid = 78;
        assert_eq!(without.run(&program()), 1);
        assert!(other.records.is_empty() && without.records.is_empty());
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

    const fn needs(bytes: usize, truncated: bool) -> StackUse {
        StackUse { bytes, truncated, missed: truncated, needs_red_zone: false, unbounded: false }
    }

    #[test]
    fn stacks_have_tails_until_one_is_walked() {
        let mut shallow = ThreadTail::default();
        shallow.note(8_192, needs(900, false));
        assert!(!shallow.copies);
        let mut deep = ThreadTail::default();
        deep.note(8_192, needs(600_000, false));
        assert!(deep.copies, "there is no list yet");
        deep.note_list();
        assert!(!deep.copies);
        let mut without_list = ThreadTail::default();
        (0..NEW_WALKS_MAX).for_each(|_| without_list.note(8_192, needs(600_000, true)));
        assert!(!without_list.copies);
    }

    /// Outer frames that change make prefetched words stale.
    #[test]
    fn stacks_have_tails_where_prefetching_does_not_suffice() {
        let mut thread = ThreadTail::default();
        thread.note_list();
        let (mut truncated, mut copied) = (0, 0);
        for _ in 0..20_000 {
            let lacks = !thread.copies;
            truncated += u32::from(lacks);
            copied += u32::from(thread.copies);
            thread.note(8_192, needs(100_000, lacks));
            thread.note_list();
        }
        assert!(truncated <= 12, "{truncated}");
        // Deeper stacks for a moment cost no tails for ever.
        let before = copied;
        for _ in 0..40_000 {
            copied += u32::from(thread.copies);
            thread.note(8_192, needs(900, false));
        }
        assert!(copied - before <= TAILS_MAX, "{copied}");
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
        let whole = filter_program::program(FilterRule::All, FIRST, &tail.program(RECORD_BYTES));
        bpf_sys::load_program(bpf_sys::ProgramKind::Event, &whole).unwrap();
    }
}
