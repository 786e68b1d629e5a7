//! The allocations of a running process, sampled by probes, as events.
//!
//! Input: a process and its probes; output: allocations and frees in order of time. Every call of the allocator costs
//! the process some microseconds. The slowdown has a limit: above it, the probes are removed.

use std::sync::Arc;
use std::time::Duration;

use libc::pid_t;

use super::process::AllocatingProcess;
use crate::binary::Mapping;
use crate::clock::{Clock, RealClock};
use crate::error::Result;
use crate::sources::heap::source::BoxPool;
use crate::sources::linux::clocks::{monotonic_ns, process_cpu_ns};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::perf::{HeapProbes, HeapSample, ProbeCost, TargetMappings};
use crate::sources::linux::proc::resident_bytes;
use crate::sources::linux::{proc, refusal, sys};
use crate::sources::pushed::{
    AllocationLosses, PushedSource, SampledAllocation, SampledFree, SourceEvent, StackUse, TimedEvent,
    UnseenAllocator,
};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

/// Interval between reads of the ring, nanoseconds.
const BATCH_NS: u64 = 20_000_000;
/// Interval between checks of the probes' cost, nanoseconds; the first check is earlier.
const JUDGED_NS: u64 = 1_000_000_000;
const FIRST_JUDGED_NS: u64 = 200_000_000;
/// Allocators named in the reason of the source.
const ALLOCATORS_SHOWN: usize = 3;

/// How a running process is probed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeOptions {
    /// Bytes per sample on average; 1 records each allocation.
    pub every_bytes: u64,
    /// Limit of the slowdown, percent of the process's CPU time.
    pub max_slowdown_percent: f64,
}

/// Allocations of a running process.
pub(crate) struct ProbedHeap {
    pid: pid_t,
    process: AllocatingProcess,
    probes: HeapProbes,
    /// `None`: the kernel does not record mappings.
    images: Option<TargetMappings>,
    /// Time of the current event.
    event_ns: u64,
    options: ProbeOptions,
    clock: RealClock,
    /// The monotonic clock at the sampler's 0.
    origin_ns: u64,
    began_ns: u64,
    judgement: Judgement,
    last_ns: u64,
    ended: bool,
    finished: bool,
    /// Resident memory at the start, and the most that there was more later.
    resident_bytes: u64,
    resident_more_bytes: u64,
    /// Allocators that the probes do not see, found at the end.
    unseen: Vec<UnseenAllocator>,
    /// Why the probes were removed early.
    ended_early: Option<String>,
    captures: BoxPool<Capture>,
}

/// Highest slowdown, percent: the cost of a probe is measured elsewhere, and may add up to more than the time that the
/// process has used.
const SLOWDOWN_MAX_PERCENT: f64 = 10_000.0;

/// A program whose probes take less than this part of the time that it does not wait for a CPU mostly sleeps: it is not
/// held up, percent.
const NEGLIGIBLE_PERCENT: f64 = 1.0;

/// Cost of the probes and times of the process at the last check.
#[derive(Clone, Copy, Debug, Default)]
struct Judgement {
    at_ns: u64,
    held_ns: u64,
    cpu_ns: u64,
    /// Time that its threads waited for a CPU.
    delayed_ns: u64,
}

impl Judgement {
    /// Slowdown between this check and a later one, percent of the CPU time without the probes, which includes their
    /// cost. While it waits for a CPU, a program does not run any slower.
    fn slowdown_percent(&self, later: &Judgement) -> f64 {
        let held_ns = later.held_ns.saturating_sub(self.held_ns) as f64;
        let cpu_ns = later.cpu_ns.saturating_sub(self.cpu_ns) as f64;
        let delayed_ns = later.delayed_ns.saturating_sub(self.delayed_ns);
        let free_ns = later.at_ns.saturating_sub(self.at_ns).saturating_sub(delayed_ns) as f64;
        let of = |own_ns: f64| (100.0 * held_ns / (own_ns - held_ns).max(1.0)).min(SLOWDOWN_MAX_PERCENT);
        let asleep = of(free_ns);
        if asleep < NEGLIGIBLE_PERCENT { asleep } else { of(cpu_ns) }
    }
}

impl ProbedHeap {
    /// Sets the probes.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) if there is no process to profile, or it cannot be
    /// probed.
    pub(crate) fn attach(pid: u32, options: ProbeOptions, clock: RealClock) -> Result<ProbedHeap> {
        let number = refusal::process_id(pid)?;
        refusal::check_process(number)?;
        let probes = HeapProbes::open(pid, options.every_bytes)?;
        let ProbeCost { entry_ns, return_ns } = probes.cost();
        let process = Process {
            backend: "probes",
            backend_why: format!(
                "uprobes in {}; a call of malloc takes up to {:.1} us longer, one of free {:.1} us",
                probes.allocators().take(ALLOCATORS_SHOWN).collect::<Vec<_>>().join(", "),
                (entry_ns + return_ns) as f64 / 1000.0,
                entry_ns as f64 / 1000.0
            ),
            stops_interrupt_syscalls: false,
            ..refusal::describe(number)
        };
        let mut process = AllocatingProcess::new(number, process, Arc::new(TargetFiles::of(number)));
        let images = TargetMappings::open(number).ok();
        // After its end, only the mappings read here are known.
        let _ = process.mappings(&mut Vec::new());
        let began_ns = clock.now_ns();
        let cpu_ns = process_cpu_ns(number).unwrap_or(0);
        Ok(ProbedHeap {
            pid: number,
            process,
            judgement: Judgement {
                at_ns: began_ns,
                held_ns: probes.held_ns(),
                cpu_ns,
                delayed_ns: proc::delayed_ns(number),
            },
            resident_bytes: resident_bytes(number).unwrap_or(0),
            resident_more_bytes: 0,
            unseen: Vec::new(),
            probes,
            images,
            event_ns: 0,
            options,
            origin_ns: monotonic_ns().saturating_sub(began_ns),
            clock,
            began_ns,
            last_ns: 0,
            ended: false,
            finished: false,
            ended_early: None,
            captures: BoxPool::new(),
        })
    }

    /// Notes how much memory the process has more than at the start.
    fn note_resident(&mut self) {
        let more = resident_bytes(self.pid).unwrap_or(0).saturating_sub(self.resident_bytes);
        self.resident_more_bytes = self.resident_more_bytes.max(more);
    }

    /// Removes the probes if they cost too much.
    ///
    /// # Errors
    /// [`Fault::Fatal`] if that is so from the beginning: then nothing useful was recorded.
    fn judge(&mut self, now_ns: u64) -> std::result::Result<(), Fault> {
        let is_first = self.judgement.at_ns == self.began_ns;
        let after_ns = if is_first { FIRST_JUDGED_NS } else { JUDGED_NS };
        if now_ns < self.judgement.at_ns + after_ns {
            return Ok(());
        }
        let cpu_ns = process_cpu_ns(self.pid).unwrap_or(self.judgement.cpu_ns);
        let delayed_ns = proc::delayed_ns(self.pid).max(self.judgement.delayed_ns);
        let judgement = Judgement { at_ns: now_ns, held_ns: self.probes.held_ns(), cpu_ns, delayed_ns };
        self.note_resident();
        let percent = self.judgement.slowdown_percent(&judgement);
        if percent > self.options.max_slowdown_percent {
            self.probes.remove();
            let why = format!(
                "it calls its allocator so often that probes slow it by about {percent:.0}%, more than --max-slowdown {}%",
                self.options.max_slowdown_percent
            );
            if is_first {
                let next = "start it with stackprof heap -- COMMAND, which costs less, or give a larger --max-slowdown";
                return Err(Fault::Fatal(format!("{why}; {next}")));
            }
            self.ended_early = Some(format!("{why}; a larger --max-slowdown lets it go on"));
            self.ended = true;
        }
        self.judgement = judgement;
        Ok(())
    }

    fn drain(&mut self, into: &mut Vec<TimedEvent>) {
        let ProbedHeap { probes, images, captures, origin_ns, last_ns, pid, .. } = self;
        let process = pid.unsigned_abs();
        probes.drain(|sample, captured| {
            let (thread, at_ns, event) = match sample {
                HeapSample::Allocated { thread, at_ns, block, bytes } => {
                    let mut capture = captures.take().unwrap_or_default();
                    fill(&mut capture, captured);
                    let allocation = SampledAllocation { block, bytes, untracked: false };
                    (thread, at_ns, SourceEvent::Allocation(allocation, capture))
                }
                HeapSample::Freed { at_ns, block } => {
                    let free = SampledFree { block, may_be_inherited: false };
                    (ThreadId(process.into()), at_ns, SourceEvent::Free(free))
                }
                HeapSample::Restored { at_ns, block } => {
                    (ThreadId(process.into()), at_ns, SourceEvent::Restore { block })
                }
            };
            // Records of one block are in order: the sampler sorts by time.
            let at_ns = at_ns.saturating_sub(*origin_ns).max(*last_ns + 1);
            *last_ns = at_ns;
            into.push(TimedEvent { at_ns, process, thread, event });
        });
        if let Some(images) = images {
            let thread = ThreadId(process.into());
            images.drain(|at_ns| {
                let (at_ns, event) = (at_ns.saturating_sub(*origin_ns), SourceEvent::ImagesChanged);
                into.push(TimedEvent { at_ns, process, thread, event });
            });
        }
    }
}

/// Fills a capture with the caller of a function from one at the function's entry: the state after its
/// return.
fn fill(capture: &mut Capture, entry: &Capture) {
    capture.reset();
    capture.registers = entry.after_return();
    capture.stack_base = capture.registers.sp();
    let address_bytes = capture.stack_base.0.wrapping_sub(entry.stack_base.0) as usize;
    capture.stack.extend_from_slice(entry.stack.get(address_bytes..).unwrap_or_default());
}

impl Observed for ProbedHeap {
    fn process(&self) -> &Process {
        self.process.process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.process)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> std::result::Result<(), Fault> {
        let Some(images) = &mut self.images else { return self.process.mappings(out) };
        out.clear();
        out.extend_from_slice(images.at(self.event_ns.saturating_add(self.origin_ns)));
        if out.is_empty() { Err(Fault::Gone) } else { Ok(()) }
    }
}

impl PushedSource for ProbedHeap {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        (process == self.pid.unsigned_abs()).then_some(self as &mut dyn Observed)
    }

    fn next_batch(
        &mut self,
        until_ns: u64,
        into: &mut Vec<TimedEvent>,
    ) -> std::result::Result<Option<u64>, Fault> {
        if self.finished {
            return Ok(None);
        }
        let mut now_ns = self.clock.now_ns();
        if !self.ended {
            std::thread::sleep(Duration::from_nanos(BATCH_NS.min(until_ns.saturating_sub(now_ns))));
            now_ns = self.clock.now_ns();
            self.judge(now_ns)?;
        }
        let is_gone = sys::kill(self.pid, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        self.drain(into);
        if is_gone {
            self.unseen = self.probes.unseen();
            let thread = ThreadId(self.pid.unsigned_abs().into());
            let event = SourceEvent::Exited(ExitStatus::Unknown);
            into.push(TimedEvent {
                at_ns: self.last_ns + 1,
                process: self.pid.unsigned_abs(),
                thread,
                event,
            });
        }
        self.finished = is_gone || self.ended;
        Ok((!self.finished).then_some(now_ns))
    }

    fn set_time(&mut self, at_ns: u64) {
        self.event_ns = at_ns;
    }

    fn end(&mut self) {
        self.note_resident();
        self.unseen = self.probes.unseen();
        self.probes.remove();
        self.ended = true;
    }

    fn walked(&mut self, _thread: ThreadId, capture: Box<Capture>, _needed: StackUse) {
        let capacity_bytes = capture.stack.capacity();
        self.captures.put(capture, capacity_bytes);
    }

    fn allocation_rate(&self) -> Option<u64> {
        Some(self.options.every_bytes)
    }

    fn allocation_losses(&self) -> AllocationLosses {
        AllocationLosses {
            allocations: self.probes.lost_allocations(),
            frees: self.probes.lost_frees(),
            unseen: self.unseen.clone(),
            resident_bytes: Some(self.resident_more_bytes),
            ended_early: self.ended_early.clone(),
            ..AllocationLosses::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;
    use crate::arch::{Registers, X86_64};

    #[test]
    fn the_caller_is_at_the_return_address() {
        let mut entry = Capture::with_capacity(0);
        let mut gpr = [0; 16];
        (gpr[X86_64::RSP], gpr[3]) = (0x7000, 33);
        entry.registers = Registers::X86_64(X86_64 { gpr, rip: 0x1000, fs_base: 0 });
        entry.stack_base = Avma(0x7000);
        entry.stack = [0x4010_u64, 0x5555].map(u64::to_le_bytes).concat();
        let mut caller = Capture::with_capacity(0);
        fill(&mut caller, &entry);
        assert_eq!((caller.registers.pc(), caller.registers.sp()), (Avma(0x4010), Avma(0x7008)));
        assert_eq!((caller.stack_base, caller.stack.len()), (Avma(0x7008), 8));
        entry.stack.clear();
        fill(&mut caller, &entry);
        assert!(caller.stack.is_empty(), "nothing could be read");
    }

    #[test]
    fn the_cost_of_probes_is_measured_by_the_cpu_time_of_the_program() {
        let before = Judgement { at_ns: 50, held_ns: 100, cpu_ns: 1000, delayed_ns: 7 };
        for (at_ns, held_ns, cpu_ns, delayed_ns, expected, why) in [
            (1150, 200, 2100, 7, 10.0, "one thread, all of the time"),
            (650, 200, 2100, 7, 10.0, "two threads"),
            (7050, 200, 2100, 5907, 10.0, "it waits for a CPU most of the time"),
            (7050, 200, 1200, 6807, 100.0, "a busy machine, and half of its time is that of the probes"),
            (2050, 200, 1200, 7, 100.0, "it sleeps, but not enough"),
            (100_050, 200, 1101, 7, 0.1001, "it sleeps nearly always"),
            (1150, 100, 1000, 7, 0.0, "it did nothing"),
            (150, 150, 1100, 7, 100.0, "half of its time"),
            (1050, 9000, 2000, 7, 10_000.0, "the cost of probes is estimated too high"),
            (50, 100, 1000, 7, 0.0, "no time has passed"),
        ] {
            let later = Judgement { at_ns, held_ns, cpu_ns, delayed_ns };
            let percent = before.slowdown_percent(&later);
            assert!((percent - expected).abs() < 1e-3, "{why}: {percent}");
        }
    }
}
