//! The kernel side of prefetching, simulated: the program in the interrupt of a sample, its map of lists and its
//! ring, and the source's handling of the records. Input: lists, and interrupted threads. Output: the ranges of
//! their samples.

use super::super::super::bpf::instructions::machine::Machine;
use super::super::super::bpf::memory_copies::Copies;
use super::{HEADER_BYTES, add_prefetched, list_bytes, read_program};
use crate::sources::Capture;
use crate::sources::linux::perf::bpf::sample_filter::{self, FilterRule};
use crate::sources::linux::perf::ring::SampleId;

const LISTS: i32 = 5;
const RING: i32 = 6;
const NAMESPACE: (u64, u64) = (4, 0xefff_fffc);

/// A kernel that samples the threads of one process.
pub(crate) struct SimKernel {
    machine: Machine,
    program: Vec<u64>,
    copies: Copies,
}

impl SimKernel {
    /// A kernel without lists.
    pub(crate) fn new(pid: u32) -> SimKernel {
        let mut machine = Machine::new(0, pid, NAMESPACE);
        machine.ring = RING;
        // The machine recognizes a map by its contents.
        machine.lists.push((LISTS, u32::MAX, list_bytes(&[]).to_vec()));
        let rule = FilterRule::OfProcess(pid.cast_signed());
        let program = sample_filter::program(rule, NAMESPACE, &read_program(LISTS, RING, None));
        SimKernel { machine, program, copies: Copies::default() }
    }

    /// Sets the ranges to prefetch with a thread's samples.
    pub(crate) fn set(&mut self, tid: u32, ranges: &[u64]) {
        let list = list_bytes(ranges).to_vec();
        match self.machine.lists.iter_mut().find(|(_, of, _)| *of == tid) {
            Some((.., known)) => *known = list,
            None => self.machine.lists.push((LISTS, tid, list)),
        }
    }

    /// The timer interrupt of a thread, with the memory of its process: base address and contents. `room`: number
    /// of further records that fit into the ring.
    pub(crate) fn interrupt(&mut self, tid: u32, time_ns: u64, memory: &mut (u64, Vec<u8>), room: usize) {
        let machine = &mut self.machine;
        (machine.tid, machine.time_ns, machine.room) = (tid, time_ns, machine.records.len() + room);
        std::mem::swap(&mut machine.memory, memory);
        assert_eq!(machine.run(&self.program), 1);
        std::mem::swap(&mut machine.memory, memory);
    }

    /// The records in the ring, each a time, an address, a thread, a length and bytes, for injecting faults.
    pub(crate) fn records(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.machine.records
    }

    /// Offset of the address of a record's first range.
    pub(crate) const FIRST_RANGE: usize = HEADER_BYTES;

    /// Reads the ring, like the source once per batch of samples.
    pub(crate) fn read(&mut self) {
        self.copies.end_batch();
        self.machine.records.drain(..).for_each(|record| self.copies.take(&record));
    }

    /// Adds its ranges to a sample.
    pub(crate) fn complete(&mut self, tid: u32, time_ns: u64, capture: &mut Capture) {
        let (pid, tid) = (self.machine.tgid.cast_signed(), tid.cast_signed());
        add_prefetched(&mut self.copies, SampleId { pid, tid, time_ns, cpu: 0 }, capture);
    }
}
