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
//! | `allocator` | the allocators of a process |
//! | `functions` | names of allocator functions, and what they do |
//! | `returns` | the instructions by which a function returns |
//! | `programs` | the BPF programs at the probes |
//! | `probe` | setting a probe |
//! | `cost` | cost of a probe |
//! | `images` | the images of the process at the times of its samples |
//! | `thread_registers` | registers in the records of programs |

mod allocator;
mod cost;
mod functions;
mod images;
mod probe;
mod programs;
mod returns;
mod thread_registers;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use hashbrown::HashMap;
use libc::pid_t;

use super::bpf::bpf_sys::{self, Array, CpuArray, ProgramRing};
use super::bpf::sample_filter::pid_namespace;
use super::events::cpus::possible_cpu_count;
use crate::binary::Mapping;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::linux::images::Maps;
use crate::sources::pushed::UnseenAllocator;
use crate::sources::{Capture, ThreadId};
pub(in crate::sources::linux) use allocator::is_c_library;
use allocator::{Allocator, Returns};
pub(in crate::sources::linux) use cost::ProbeCost;
pub(in crate::sources::linux) use images::TargetMappings;
use probe::Probe;
use programs::{ReturnKind, Shared};

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
    /// The last free of this block did not happen: `realloc` failed.
    Restored {
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
    pid: pid_t,
    /// Dropped before the data of their programs.
    probes: Vec<Probe>,
    allocators: Vec<Allocator>,
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
        let allocators = find_allocators(pid).map_err(failed)?;
        HeapProbes::set(pid, allocators, every_bytes).map_err(|error| {
            let next = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "; probes need root (CAP_BPF and CAP_PERFMON)",
                _ => "; does this kernel have uprobes (CONFIG_UPROBE_EVENTS) and BPF?",
            };
            failed(format!("{}{next}", io_text(&error)))
        })
    }

    fn set(pid: pid_t, allocators: Vec<Allocator>, every_bytes: u64) -> io::Result<HeapProbes> {
        let cpus = possible_cpu_count()?;
        let intervals_list = programs::intervals(every_bytes);
        let intervals = Array::create(8 * programs::INTERVALS, false)?;
        intervals.put(&intervals_list.iter().copied().flat_map(u64::to_ne_bytes).collect::<Vec<u8>>())?;
        let states = CpuArray::create(programs::STATE_BYTES, cpus)?;
        // Nothing is sampled until all probes are set, one after another.
        states.put(&programs::first_state(i64::MAX.cast_unsigned()).repeat(cpus))?;
        let ring = ProgramRing::create(RING_BYTES, programs::CALL_BYTES)?;
        let call_bytes = 8 * programs::CALL_WORDS;
        let maps = [bpf_sys::create_map_of(call_bytes, CALLS_MAX)?, bpf_sys::create_address_map(BLOCKS_MAX)?];
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
            pid,
            probes: Vec::new(),
            allocators,
            states,
            ring,
            _maps: maps,
            _intervals: intervals,
            calls: HashMap::new(),
            spare: Vec::new(),
            cost,
        };
        let mut number = 0;
        for allocator in &opened.allocators {
            let file = probe::mapped_file(pid, &allocator.mapping);
            let probes = &mut opened.probes;
            for function in &allocator.functions {
                let at_return = |kind| programs::at_return(kind, shared);
                match &function.returns {
                    Returns::Nowhere => {}
                    Returns::Trampoline => {
                        let program = at_return(ReturnKind::Trampoline);
                        probes.push(Probe::set(pid, &file, function.file_offset, true, &program)?);
                    }
                    Returns::Instructions(offsets) => {
                        let program = at_return(ReturnKind::Instruction);
                        for offset in offsets {
                            probes.push(Probe::set(pid, &file, *offset, false, &program)?);
                        }
                    }
                }
                number += 1;
                let entry = programs::at_entry(number, &function.function, shared);
                probes.push(Probe::set(pid, &file, function.file_offset, false, &entry)?);
            }
        }
        opened.states.put(&first_states(&intervals_list, cpus))?;
        Ok(opened)
    }

    /// Paths of the allocators' files, as seen by the process.
    pub(in crate::sources::linux) fn allocators(&self) -> impl Iterator<Item = &str> {
        self.allocators.iter().map(|allocator| allocator.mapping.path.as_str())
    }

    /// What is not seen: functions that cannot be followed, and allocators in files that the process has mapped since.
    pub(in crate::sources::linux) fn unseen(&self) -> Vec<UnseenAllocator> {
        let mut unseen: Vec<UnseenAllocator> = self.allocators.iter().filter_map(Allocator::unseen).collect();
        let is_known = |path: &str| self.allocators().any(|known| known == path);
        for new in find_allocators(self.pid).unwrap_or_default() {
            if !is_known(&new.mapping.path) {
                let name = new.mapping.path.rsplit('/').next().unwrap_or_default();
                unseen.push(UnseenAllocator {
                    functions: format!("the allocator of {name}"),
                    next: "loaded after the start: record again".to_owned(),
                });
            }
        }
        unseen
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

    /// Frees of sampled blocks whose records were lost for lack of room so far.
    #[must_use]
    pub(in crate::sources::linux) fn lost_frees(&self) -> u64 {
        self.total(programs::LOST_FREES)
    }

    /// Sampled allocations lost so: count and bytes of each class of sizes.
    pub(in crate::sources::linux) fn lost_allocations(&self) -> Vec<(u64, u64)> {
        let classes = (programs::LOST_SIZES..programs::STATE_BYTES as i16).step_by(16);
        let classes = classes.map(|class| (self.total(class), self.total(class + 8)));
        classes.filter(|(count, _)| *count > 0).collect()
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
        let HeapProbes { ring, calls, spare, .. } = self;
        let none = Capture::with_capacity(0);
        ring.drain(|record| {
            let Some(header) = Header::read(record) else { return };
            match header.kind {
                programs::CALLED => {
                    let mut capture = spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
                    let is_read = fill(&mut capture, record, header.stack_bytes).is_some();
                    if is_read {
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
                programs::RESTORED => {
                    take(HeapSample::Restored { at_ns: header.at_ns, block: header.block }, &none);
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

/// Initial state of each CPU: in the middle of an interval, since these are memoryless.
fn first_states(intervals: &[u64], cpus: usize) -> Vec<u8> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut random = crate::rng::Rng::new(seed.map_or(1, |time| time.as_nanos() as u64));
    let state = |_| programs::first_state(intervals[random.below(intervals.len())]);
    (0..cpus).flat_map(state).collect()
}

/// The allocators of a process, or the reason for finding none.
fn find_allocators(pid: pid_t) -> std::result::Result<Vec<Allocator>, String> {
    let mut maps = Maps::default();
    let mut mappings: Vec<Mapping> = Vec::new();
    maps.read(pid, &mut mappings).map_err(|fault| fault.to_string())?;
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.to_string_lossy();
    let found = Allocator::find(&mappings, &program, |mapping| maps.bytes(pid, mapping).ok());
    if found.is_empty() {
        let next = "its allocator has other names, or none that its files tell";
        return Err(format!("no file that it has mapped defines malloc and free; {next}"));
    }
    Ok(found)
}
