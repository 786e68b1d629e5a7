//! Allocations of a running process, sampled by uprobes on the functions of its allocator.
//!
//! Input: a process; output: sampled blocks with the registers and the stack of the call, and frees of these
//! blocks. Every allocator call hits a probe, sampled or not, so the cost is measured before the first one
//! ([`HeapProbes::cost`]) and accumulated by [`HeapProbes::held_ns`]. The kernel removes all probes when this is
//! dropped or when this process ends in any way. Earlier allocations are unknown; child processes are not
//! followed.
//!
//! | file | |
//! |---|---|
//! | `allocator` | the functions to probe |
//! | `programs` | the BPF programs at the probes |
//! | `probe` | setting a probe |
//! | `cost` | cost of a probe |
//! | `thread_registers` | registers in the records of programs |

mod allocator;
mod cost;
mod probe;
mod programs;
mod thread_registers;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashMap;
use libc::pid_t;

use super::bpf::bpf_sys::{self, Array, CpuArray, ProgramRing};
use super::bpf::sample_filter::pid_namespace;
use super::events::cpus::possible_cpu_count;
use crate::arch::Registers;
use crate::binary::Mapping;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::allocator::AllocatorRole;
use crate::sources::linux::images::Maps;
use crate::sources::{Capture, ThreadId};
use allocator::Allocator;
pub(in crate::sources::linux) use cost::ProbeCost;
use probe::Probe;
use programs::Shared;

/// Size of the ring: some hundreds of sampled calls.
const RING_BYTES: usize = 8 << 20;
/// Maximum number of calls in progress: one per thread.
const CALLS_MAX: u32 = 32_768;
/// Maximum number of sampled live blocks.
const BLOCKS_MAX: u32 = 1 << 20;

/// Event of a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) enum HeapSample {
    /// An allocation, with the capture of the call.
    Allocated {
        /// The calling thread.
        thread: ThreadId,
        /// Time (monotonic clock), nanoseconds.
        at_ns: u64,
        /// Address of the block.
        block: u64,
        /// Requested size.
        bytes: u64,
    },
    /// A free.
    Freed {
        /// Time (monotonic clock), nanoseconds.
        at_ns: u64,
        /// Address of the block.
        block: u64,
    },
}

/// A sampled call in progress.
#[derive(Debug)]
struct Call {
    at_ns: u64,
    bytes: u64,
    capture: Capture,
}

/// The probes in a process, and their records.
pub(in crate::sources::linux) struct HeapProbes {
    /// Dropped before the data of their programs.
    probes: Vec<Probe>,
    allocator: Allocator,
    states: CpuArray,
    ring: ProgramRing,
    _maps: [OwnedFd; 2],
    _intervals: Array,
    calls: HashMap<u32, Call>,
    spare: Vec<Capture>,
    cost: ProbeCost,
}

impl HeapProbes {
    /// Sets probes in a process, sampling its allocations every `every_bytes` on average (1: all).
    ///
    /// # Errors
    /// [`ErrorKind::Attach`] if the kernel refuses, or no allocator is found.
    pub(in crate::sources::linux) fn open(pid: u32, every_bytes: u64) -> Result<HeapProbes> {
        let failed =
            |why: String| Error::new(ErrorKind::Attach, format!("cannot follow the heap of {pid}: {why}"));
        let pid = pid_t::try_from(pid).map_err(|_| failed("it is no process".to_owned()))?;
        let allocator = find_allocator(pid).map_err(failed)?;
        HeapProbes::set(pid, allocator, every_bytes).map_err(|error| {
            let next = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "; probes need root (CAP_BPF and CAP_PERFMON)",
                _ => "; does this kernel have uprobes (CONFIG_UPROBE_EVENTS) and BPF?",
            };
            failed(format!("{}{next}", io_text(&error)))
        })
    }

    fn set(pid: pid_t, allocator: Allocator, every_bytes: u64) -> io::Result<HeapProbes> {
        let cpus = possible_cpu_count()?;
        let intervals_list = programs::intervals(every_bytes);
        let intervals = Array::create(8 * programs::INTERVALS, false)?;
        intervals.put(&intervals_list.iter().copied().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())?;
        let states = CpuArray::create(programs::STATE_BYTES, cpus)?;
        // Nothing is sampled until all probes are set, one after another.
        states.put(&[0, i64::MAX.cast_unsigned(), 0, 0].map(u64::to_ne_bytes).concat().repeat(cpus))?;
        let ring = ProgramRing::create(RING_BYTES, programs::CALL_BYTES)?;
        let maps = [bpf_sys::create_map(CALLS_MAX)?, bpf_sys::create_address_map(BLOCKS_MAX)?];
        let shared = Shared {
            states: states.descriptor().as_raw_fd(),
            intervals: intervals.descriptor().as_raw_fd(),
            calls: maps[0].as_raw_fd(),
            blocks: maps[1].as_raw_fd(),
            ring: ring.descriptor(),
            namespace: pid_namespace("self").ok_or(io::ErrorKind::Unsupported)?,
        };
        let cost = ProbeCost::measure(shared)?;
        let mut opened = HeapProbes {
            probes: Vec::new(),
            allocator,
            states,
            ring,
            _maps: maps,
            _intervals: intervals,
            calls: HashMap::new(),
            spare: Vec::new(),
            cost,
        };
        let file = probe::mapped_file(pid, &opened.allocator.mapping);
        for function in &opened.allocator.functions {
            let entry = programs::at_entry(function.role, shared);
            if !matches!(function.role, AllocatorRole::Free { .. }) {
                let at_return = programs::at_return(shared);
                opened.probes.push(Probe::set(pid, &file, function.file_offset, true, &at_return)?);
            }
            opened.probes.push(Probe::set(pid, &file, function.file_offset, false, &entry)?);
        }
        opened.states.put(&first_states(&intervals_list, cpus))?;
        Ok(opened)
    }

    /// Path of the allocator's file, as seen by the process.
    #[must_use]
    pub(in crate::sources::linux) fn allocator(&self) -> &str {
        &self.allocator.mapping.path
    }

    /// Measured cost of the probes per call.
    #[must_use]
    pub(in crate::sources::linux) fn cost(&self) -> ProbeCost {
        self.cost
    }

    /// Total time that threads of the process spent in probes, by the measured cost, nanoseconds.
    #[must_use]
    pub(in crate::sources::linux) fn held_ns(&self) -> u64 {
        let ProbeCost { entry_ns, return_ns } = self.cost;
        let (entries, returns) = (self.total(programs::ENTRIES), self.total(programs::RETURNS));
        entries.saturating_mul(entry_ns).saturating_add(returns.saturating_mul(return_ns))
    }

    /// Records lost for lack of room so far.
    #[must_use]
    pub(in crate::sources::linux) fn lost(&self) -> u64 {
        self.total(programs::LOST)
    }

    /// Sum of a counter over all CPUs.
    fn total(&self, number: i16) -> u64 {
        let values = self.states.get().unwrap_or_default();
        let of_cpu = |state: &[u8]| word(state, number as usize).unwrap_or(0);
        values.chunks_exact(programs::STATE_BYTES).map(of_cpu).sum()
    }

    /// Removes the probes, and with them the cost to the process.
    pub(in crate::sources::linux) fn remove(&mut self) {
        self.probes.clear();
    }

    /// Passes new records to `take`, in order for each block.
    pub(in crate::sources::linux) fn drain(&mut self, mut take: impl FnMut(HeapSample, &Capture)) {
        let HeapProbes { ring, calls, spare, allocator, .. } = self;
        let none = Capture::with_capacity(0);
        ring.drain(|record| {
            let Some(header) = Header::read(record) else { return };
            match header.kind {
                programs::CALLED => {
                    let mut capture = spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
                    let is_read = fill(&mut capture, record, header.stack_bytes).is_some();
                    // A call from another function of the allocator is part of the outer call.
                    if is_read && !returns_to(&capture).is_some_and(|at| allocator.contains(at)) {
                        let call = Call { at_ns: header.at_ns, bytes: header.bytes, capture };
                        spare.extend(calls.insert(header.thread, call).map(|before| before.capture));
                    } else {
                        spare.push(capture);
                    }
                }
                programs::RETURNED => {
                    let Some(call) = calls.remove(&header.thread) else { return };
                    let sample = HeapSample::Allocated {
                        thread: ThreadId(header.thread.into()),
                        at_ns: call.at_ns,
                        block: header.block,
                        bytes: call.bytes,
                    };
                    take(sample, &call.capture);
                    spare.push(call.capture);
                }
                programs::FREED => {
                    take(HeapSample::Freed { at_ns: header.at_ns, block: header.block }, &none);
                }
                _ => {}
            }
        });
    }
}

/// The words common to all records.
struct Header {
    kind: u64,
    at_ns: u64,
    thread: u32,
    block: u64,
    bytes: u64,
    stack_bytes: usize,
}

impl Header {
    fn read(record: &[u8]) -> Option<Header> {
        Some(Header {
            kind: word(record, programs::KIND)?,
            at_ns: word(record, programs::TIME)?,
            thread: word(record, programs::THREAD)? as u32,
            block: word(record, programs::BLOCK)?,
            bytes: word(record, programs::BYTES)?,
            stack_bytes: word(record, programs::STACK_LEN)? as usize,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Fills a capture with the registers and the stack of a record.
fn fill(capture: &mut Capture, record: &[u8], stack_bytes: usize) -> Option<()> {
    capture.reset();
    capture.registers = thread_registers::read(record.get(programs::REGISTERS..programs::STACK)?)?;
    capture.stack_base = capture.registers.sp();
    let stack = record.get(programs::STACK..programs::STACK.checked_add(stack_bytes)?)?;
    capture.stack.extend_from_slice(stack);
    Some(())
}

/// The return address of a function, from a capture at its entry.
fn returns_to(capture: &Capture) -> Option<u64> {
    match &capture.registers {
        Registers::Aarch64(aarch64) => Some(aarch64.x[crate::arch::Aarch64::LR]),
        _ => word(&capture.stack, 0),
    }
}

/// Initial state of each CPU: in the middle of an interval, since these are memoryless.
fn first_states(intervals: &[u64], cpus: usize) -> Vec<u8> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut random = crate::rng::Rng::new(seed.map_or(1, |time| time.as_nanos() as u64));
    let state = |_| [0, intervals[random.below(intervals.len())], 0, 0].map(u64::to_ne_bytes).concat();
    (0..cpus).flat_map(state).collect()
}

/// The allocator of a process, or the reason for finding none.
fn find_allocator(pid: pid_t) -> std::result::Result<Allocator, String> {
    let mut maps = Maps::default();
    let mut mappings: Vec<Mapping> = Vec::new();
    maps.read(pid, &mut mappings).map_err(|fault| fault.to_string())?;
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.to_string_lossy();
    let found = Allocator::find(&mappings, &program, |mapping| maps.bytes(pid, mapping).ok());
    found.ok_or_else(|| {
        let next = "its allocator has other names, or none that its files tell";
        format!("no file that it has mapped defines malloc and free; {next}")
    })
}
