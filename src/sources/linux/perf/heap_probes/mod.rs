//! Allocations of a running process, sampled by uprobes on the functions of its allocator (`HeapProbes`).
//!
//! Input: a process; output: sampled blocks with the registers and the stack of the call, and frees of these
//! blocks. Every allocator call hits a probe, sampled or not, so the cost is measured before the first one
//! ([`HeapProbes::cost`]) and accumulated by [`HeapProbes::held_ns`]. The kernel removes all probes when this is
//! dropped or when this process ends in any way. Earlier allocations are unknown; child processes are not followed.
//!
//! `Probe` is one probe, `ProbeCost` its cost, `TargetMappings` the images of the process at the times of its
//! samples. `allocator.rs` finds allocators and their functions, `programs.rs` has the BPF programs at the probes.
#![allow(unsafe_code)]

mod allocator;
mod programs;

use std::collections::VecDeque;
use std::ffi::CString;
use std::hint::black_box;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{fs, io};

use hashbrown::HashMap;
use libc::pid_t;
use perf_event_open_sys::bindings::perf_event_attr;

use super::bpf::bpf_sys::{self, Array, CpuArray, ProgramKind, ProgramRing};
use super::bpf::sample_filter::pid_namespace;
use super::events::attributes::mmap_attributes;
use super::events::set::{map_ring, online_cpus, possible_cpu_count};
use super::process::entry::MmapHistory;
use super::reorder::mapping;
use super::ring::sys::{self, Ring};
use super::ring::{self, PerfRecord};
use crate::binary::Mapping;
use crate::error::{self, Error, ErrorKind, io_text};
use crate::sources::linux::clocks::{monotonic_ns, thread_cpu_ns};
use crate::sources::linux::images::{Maps, link_to};
use crate::sources::pushed::UnseenAllocator;
use crate::sources::{Capture, ThreadId};
use allocator::{Allocator, Returns};
use programs::{ReturnKind, Shared};

pub(crate) use allocator::is_c_library;

/// Size of the ring: some hundreds of sampled calls.
const RING_BYTES: usize = 8 << 20;
/// Maximum number of calls in progress: one per thread.
const CALLS_MAX: u32 = 32_768;
/// Maximum number of sampled live blocks.
const BLOCKS_MAX: u32 = 1 << 20;

/// Event of a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapSample {
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
pub(crate) struct HeapProbes {
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
    pub(crate) fn open(pid: u32, every_bytes: u64) -> error::Result<HeapProbes> {
        let failed =
            |why: String| Error::new(ErrorKind::Attach, format!("cannot follow the heap of {pid}: {why}"));
        let pid = pid_t::try_from(pid).map_err(|_| failed("it is no process".to_owned()))?;
        let allocators = find_allocators(pid).map_err(failed)?;
        HeapProbes::set(pid, allocators, every_bytes).map_err(|error| {
            let next = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => "; probes need root (CAP_BPF and CAP_PERFMON)",
                Some(libc::ENOENT | libc::ESRCH) if kind().is_ok() => {
                    "; it ended or ran another program; try again"
                }
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
            let file = link_to(pid, &allocator.mapping);
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
    pub(crate) fn allocators(&self) -> impl Iterator<Item = &str> {
        self.allocators.iter().map(|allocator| allocator.mapping.path.as_str())
    }

    /// What is not seen: functions that cannot be followed, and allocators in files that the process has mapped since.
    pub(crate) fn unseen(&self) -> Vec<UnseenAllocator> {
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
    pub(crate) fn cost(&self) -> ProbeCost {
        self.cost
    }

    /// Total time that threads of the process spent in probes, by the measured cost, nanoseconds.
    #[must_use]
    pub(crate) fn held_ns(&self) -> u64 {
        let ProbeCost { entry_ns, return_ns } = self.cost;
        let (entries, returns) = (self.total(programs::ENTRIES), self.total(programs::RETURNS));
        entries.saturating_mul(entry_ns).saturating_add(returns.saturating_mul(return_ns))
    }

    /// Frees of sampled blocks whose records were lost for lack of room so far.
    #[must_use]
    pub(crate) fn lost_frees(&self) -> u64 {
        self.total(programs::LOST_FREES)
    }

    /// Sampled allocations lost so: count and bytes of each class of sizes.
    pub(crate) fn lost_allocations(&self) -> Vec<(u64, u64)> {
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
    pub(crate) fn remove(&mut self) {
        self.probes.clear();
    }

    /// Passes new records to `take`, in order for each block.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(HeapSample, &Capture)) {
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
    capture.registers = programs::read(record.get(programs::REGISTERS..programs::STACK)?)?;
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

// ---- Cost of a probe to the thread that hits it, measured on this process.
//
// The cost depends on the instruction under the probe: the kernel emulates a `push` and single-steps others
// (arch/x86/kernel/uprobes.c), which takes many times as long on a virtual machine. The function here begins with
// one of those, like `free` of glibc.

/// Calls per measurement: some milliseconds.
const CALLS: u32 = 2000;

/// The probed function. Its argument is in the register of the first one, the number of bytes: none.
// SAFETY: the instructions are a complete function of the C ABI: they change only rax, and return.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probed(bytes: u64) -> u64 {
    std::arch::naked_asm!("test rdi, rdi", "mov rax, rdi", "ret")
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
extern "C" fn probed(bytes: u64) -> u64 {
    black_box(bytes)
}

/// Cost of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeCost {
    /// At a function's entry, with a single-stepped instruction, nanoseconds.
    pub(crate) entry_ns: u64,
    /// At a function's return, nanoseconds.
    pub(crate) return_ns: u64,
}

impl ProbeCost {
    /// Measures the cost.
    ///
    /// # Errors
    /// The kernel's error for the first probe: a probe in the target would be refused, too.
    fn measure(shared: Shared) -> io::Result<ProbeCost> {
        measure(shared)
    }
}

fn measure(shared: Shared) -> io::Result<ProbeCost> {
    let at = probed as *const () as u64;
    let pid = std::process::id().cast_signed();
    let mut mappings: Vec<Mapping> = Vec::new();
    Maps::default().read(pid, &mut mappings).map_err(|fault| io::Error::other(fault.to_string()))?;
    let own = mappings.iter().find(|mapping| (mapping.avma.start.0..mapping.avma.end.0).contains(&at));
    let own = own.ok_or(io::ErrorKind::NotFound)?;
    let (file, offset) = (link_to(pid, own), at - own.avma.start.0 + own.file_offset);
    let each = |ns: u64| ns / u64::from(CALLS);
    let bare_ns = time_calls();
    let entry = programs::at_entry(0, &allocator::FUNCTIONS[0].1, shared);
    let at_entry = Probe::set(pid, &file, offset, false, &entry)?;
    let entered_ns = time_calls();
    let at_return =
        Probe::set(pid, &file, offset, true, &programs::at_return(ReturnKind::Trampoline, shared))?;
    let returned_ns = time_calls();
    drop((at_entry, at_return));
    Ok(ProbeCost {
        entry_ns: each(entered_ns.saturating_sub(bare_ns)),
        return_ns: each(returned_ns.saturating_sub(entered_ns)),
    })
}

/// CPU time of this thread: interrupts are not part of the cost.
fn time_calls() -> u64 {
    let begun_ns = thread_cpu_ns();
    for _ in 0..CALLS {
        black_box(probed(black_box(0)));
    }
    thread_cpu_ns().saturating_sub(begun_ns)
}

// ---- Uprobes: an instruction of a file that, in one process, runs a BPF program.
//
// Sources: perf_event_open(2) (`uprobe`, `config1` the path, `config2` the offset in the file), and
// Documentation/trace/uprobetracer.rst.

/// A probe, removed when this is dropped or this process ends.
#[derive(Debug)]
struct Probe(#[allow(dead_code, reason = "it is held, not read")] OwnedFd);

impl Probe {
    /// Sets a probe in the memory of one process, at a function's entry, or at its return if `returns`.
    ///
    /// # Errors
    /// The kernel's error: EACCES without CAP_PERFMON, ENOENT without uprobes.
    fn set(pid: pid_t, file: &str, file_offset: u64, returns: bool, program: &[u64]) -> io::Result<Probe> {
        let program = bpf_sys::load_program(ProgramKind::Probe, program)?;
        let path = CString::new(file).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut attributes = perf_event_attr {
            type_: kind()?,
            size: size_of::<perf_event_attr>() as u32,
            config: u64::from(returns),
            ..perf_event_attr::default()
        };
        attributes.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
        attributes.__bindgen_anon_4.probe_offset = file_offset;
        let event = sys::open(&attributes, pid, -1)?;
        sys::set_filter(&event, &program)?;
        sys::enable(&event)?;
        Ok(Probe(event))
    }
}

/// The event type of uprobes on this kernel.
fn kind() -> io::Result<u32> {
    let text = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

// ---- The executable memory of the probed process at the times of its samples: libraries are unloaded, and others
// take their addresses.
//
// No record reports that memory is unmapped; no sample has code there.

/// Size of the ring of a CPU: a thousand mappings, of all processes.
const MMAP_RING_BYTES: usize = 128 << 10;

/// A change of the mappings of code.
#[derive(Debug)]
enum Change {
    Mmap(Mapping),
    /// The whole list, as read from /proc.
    Read(Vec<Mapping>),
}

/// Mappings over time.
#[derive(Debug, Default)]
struct Timeline {
    /// Changes to come, by time (monotonic clock).
    due: VecDeque<(u64, Change)>,
    history: MmapHistory,
}

impl Timeline {
    /// Adds changes. Those of another CPU may be later than some of these.
    fn add(&mut self, changes: Vec<(u64, Change)>) {
        self.due.extend(changes);
        self.due.make_contiguous().sort_by_key(|(at_ns, _)| *at_ns);
    }

    /// The mappings at this time, which is not before an earlier one.
    fn at(&mut self, at_ns: u64) -> &[Mapping] {
        while self.due.front().is_some_and(|(from_ns, _)| *from_ns <= at_ns) {
            match self.due.pop_front() {
                Some((_, Change::Mmap(mapping))) => self.history.add(mapping),
                Some((_, Change::Read(list))) => self.history.replace(&list),
                None => {}
            }
        }
        self.history.list()
    }
}

/// The mappings of code of a process at the times of its samples.
#[derive(Debug)]
pub(crate) struct TargetMappings {
    pid: pid_t,
    /// Each ring, and its event.
    rings: Vec<(Ring, OwnedFd)>,
    scratch: Vec<u8>,
    maps: Maps,
    timeline: Timeline,
}

impl TargetMappings {
    /// Follows the mappings of a process from now on.
    ///
    /// # Errors
    /// The kernel's, for the first event or ring.
    pub(crate) fn open(pid: pid_t) -> io::Result<TargetMappings> {
        let mut rings = Vec::new();
        for cpu in online_cpus()? {
            let event = sys::open(&mmap_attributes(MMAP_RING_BYTES), -1, cpu)?;
            let ring = map_ring(&event, MMAP_RING_BYTES)?;
            sys::enable(&event)?;
            rings.push((ring, event));
        }
        let mut images = TargetMappings {
            pid,
            rings,
            scratch: Vec::new(),
            maps: Maps::default(),
            timeline: Timeline::default(),
        };
        if let Some(list) = images.read() {
            images.timeline.history.replace(&list);
        }
        Ok(images)
    }

    fn read(&mut self) -> Option<Vec<Mapping>> {
        let mut list = Vec::new();
        self.maps.read(self.pid, &mut list).is_ok().then_some(list)
    }

    /// Reads the records; calls `changed` with the time of each change (monotonic clock). All changes before a sample that
    /// was read earlier are among them.
    pub(crate) fn drain(&mut self, mut changed: impl FnMut(u64)) {
        let (mut changes, mut has_lost) = (Vec::new(), false);
        for (ring, _) in &mut self.rings {
            ring.drain(&mut self.scratch, |bytes| match ring::read(bytes) {
                Some((id, _, PerfRecord::Mmap(mmap))) if id.pid == self.pid => {
                    changes.extend(mapping(&mmap).map(|mapping| (id.time_ns, Change::Mmap(mapping))));
                }
                Some((_, _, PerfRecord::Lost(_))) => has_lost = true,
                _ => {}
            });
        }
        if has_lost && let Some(list) = self.read() {
            changes.push((monotonic_ns(), Change::Read(list)));
        }
        changes.iter().for_each(|(at_ns, _)| changed(*at_ns));
        self.timeline.add(changes);
    }

    /// The mappings at this time (monotonic clock), which is not before an earlier one.
    pub(crate) fn at(&mut self, at_ns: u64) -> &[Mapping] {
        self.timeline.at(at_ns)
    }
}

#[cfg(test)]
mod images_tests {
    use super::*;
    use crate::addr::Avma;

    fn library(name: &str) -> Mapping {
        Mapping::of_file(Avma(0x1000)..Avma(0x2000), 0, name, (1, name.len() as u64))
    }

    #[test]
    fn rings_are_read_one_after_the_other_and_mappings_replaced_in_order_of_time() {
        let mut timeline = Timeline::default();
        timeline.add(vec![(105, Change::Mmap(library("third"))), (100, Change::Read(vec![library("a")]))]);
        timeline.add(vec![(103, Change::Mmap(library("other")))]);
        for (at_ns, expected) in [(99, None), (100, Some("a")), (104, Some("other")), (200, Some("third"))] {
            let paths: Vec<&str> = timeline.at(at_ns).iter().map(|mapping| &*mapping.path).collect();
            assert_eq!(paths, Vec::from_iter(expected), "at {at_ns}");
        }
    }
}
