//! Allocations of a running process, sampled by uprobes at the functions of its allocator.
//!
//! Input: a process; output: sampled blocks with the registers and the stack of the call, and those of them that are freed.
//! Every call of the allocator runs into a probe, whether it is sampled or not, so the cost is measured before the first
//! one ([`HeapProbes::cost`]), and [`HeapProbes::held_ns`] adds it up. The kernel removes all probes when
//! this is dropped or when this process ends, however it ends. Blocks that were allocated before are not known; child
//! processes are not followed.
//!
//! | file | |
//! |---|---|
//! | `allocator` | whose functions are probed |
//! | `programs` | what runs in the kernel at a probe |
//! | `probe` | setting one |
//! | `cost` | what one costs |
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
use crate::sources::allocator::Role;
use crate::sources::linux::images::Maps;
use crate::sources::{Capture, ThreadId};
use allocator::Allocator;
pub(in crate::sources::linux) use cost::ProbeCost;
use probe::Probe;
use programs::Shared;

/// Bytes of the ring: some hundreds of sampled calls.
const RING_BYTES: usize = 8 << 20;
/// Calls that have not returned: one of each thread.
const CALLS_MAX: u32 = 32_768;
/// Sampled blocks that are not freed.
const BLOCKS_MAX: u32 = 1 << 20;

/// What happened to a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) enum HeapSample {
    /// It was allocated; the capture belongs to the call.
    Allocated {
        /// Who called.
        thread: ThreadId,
        /// When (monotonic clock), nanoseconds.
        at_ns: u64,
        /// Address of the block.
        block: u64,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// It was freed.
    Freed {
        /// When (monotonic clock), nanoseconds.
        at_ns: u64,
        /// Address of the block.
        block: u64,
    },
}

/// A sampled call that has not returned.
#[derive(Debug)]
struct Call {
    at_ns: u64,
    bytes: u64,
    capture: Capture,
}

/// The probes in a process, and what they have recorded.
pub(in crate::sources::linux) struct HeapProbes {
    /// They are removed before what their programs use is.
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
    /// Sets probes in a process, whose allocations are sampled every `every_bytes` in the mean (1: all).
    ///
    /// # Errors
    /// [`ErrorKind::Attach`]: what the kernel refuses, or that no allocator is found.
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
        // Nothing is sampled before all probes are set, one after the other.
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
            if !matches!(function.role, Role::Free { .. }) {
                let at_return = programs::at_return(shared);
                opened.probes.push(Probe::set(pid, &file, function.file_offset, true, &at_return)?);
            }
            opened.probes.push(Probe::set(pid, &file, function.file_offset, false, &entry)?);
        }
        opened.states.put(&first_states(&intervals_list, cpus))?;
        Ok(opened)
    }

    /// The path of the file that has the allocator, as the process sees it.
    #[must_use]
    pub(in crate::sources::linux) fn allocator(&self) -> &str {
        &self.allocator.mapping.path
    }

    /// What a call takes longer by its probes, as it was measured.
    #[must_use]
    pub(in crate::sources::linux) fn cost(&self) -> ProbeCost {
        self.cost
    }

    /// How long threads of the process were held by probes so far, by the measured cost, nanoseconds.
    #[must_use]
    pub(in crate::sources::linux) fn held_ns(&self) -> u64 {
        let ProbeCost { entry_ns, return_ns } = self.cost;
        let (entries, returns) = (self.total(programs::ENTRIES), self.total(programs::RETURNS));
        entries.saturating_mul(entry_ns).saturating_add(returns.saturating_mul(return_ns))
    }

    /// Records that found no room so far.
    #[must_use]
    pub(in crate::sources::linux) fn lost(&self) -> u64 {
        self.total(programs::LOST)
    }

    /// A number of all CPUs together.
    fn total(&self, number: i16) -> u64 {
        let values = self.states.get().unwrap_or_default();
        let of_cpu = |state: &[u8]| word(state, number as usize).unwrap_or(0);
        values.chunks_exact(programs::STATE_BYTES).map(of_cpu).sum()
    }

    /// Removes the probes: the process pays nothing from now on.
    pub(in crate::sources::linux) fn remove(&mut self) {
        self.probes.clear();
    }

    /// Gives `take` what was recorded since the last time, in order for each block.
    pub(in crate::sources::linux) fn drain(&mut self, mut take: impl FnMut(HeapSample, &Capture)) {
        let HeapProbes { ring, calls, spare, allocator, .. } = self;
        let none = Capture::with_capacity(0);
        ring.drain(|record| {
            let Some(header) = Header::read(record) else { return };
            match header.kind {
                programs::CALLED => {
                    let mut capture = spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
                    let is_read = fill(&mut capture, record, header.stack_bytes).is_some();
                    // What an allocator does by another of its functions is one call.
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

/// The words that all records have.
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

/// Makes a capture of the registers and the stack in a record.
fn fill(capture: &mut Capture, record: &[u8], stack_bytes: usize) -> Option<()> {
    capture.reset();
    capture.registers = thread_registers::read(record.get(programs::REGISTERS..programs::STACK)?)?;
    capture.stack_base = capture.registers.sp();
    let stack = record.get(programs::STACK..programs::STACK.checked_add(stack_bytes)?)?;
    capture.stack.extend_from_slice(stack);
    Some(())
}

/// The return address of the function at whose entry a capture was made.
fn returns_to(capture: &Capture) -> Option<u64> {
    match &capture.registers {
        Registers::Aarch64(aarch64) => Some(aarch64.x[crate::arch::Aarch64::LR]),
        _ => word(&capture.stack, 0),
    }
}

/// The first state of each CPU: it is in the middle of an interval, which has no memory.
fn first_states(intervals: &[u64], cpus: usize) -> Vec<u8> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut random = crate::rng::Rng::new(seed.map_or(1, |time| time.as_nanos() as u64));
    let state = |_| [0, intervals[random.below(intervals.len())], 0, 0].map(u64::to_ne_bytes).concat();
    (0..cpus).flat_map(state).collect()
}

/// The allocator of a process; why there is none.
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
