//! Deep frames verified in pieces: a sample has only part of the stack, and the words above are those of the
//! pieces that earlier walks requested, read at the same boundary. It is walked after the program has
//! continued, as in the sampler.
//!
//! Input: a stopped thread and the true frames; output: for each unwinding method, why the walk ended and
//! what it found.

use std::collections::{HashMap, HashSet, VecDeque};

use libc::pid_t;
use stackprof::addr::{Avma, LookupAvma};
use stackprof::arch::{Arch, Registers};
use stackprof::binary::{ImageBytes, Mapping, OpenError};
use stackprof::clock::FakeClock;
use stackprof::sampler::{FIRST, Options, Recorder, Sample};
use stackprof::sources::{
    Activity, Capture, Fault, Observed, PREFETCH_RANGE_BYTES, Process, ThreadId, ThreadStatus,
};
use stackprof::walk::{Frames, StackEnd};

use super::{WAYS, ptrace};

/// Bytes copied above the stack pointer.
const COPIED_BYTES: usize = 384;
/// A boundary is walked this many boundaries later.
const LATE: usize = 23;
/// Time from one boundary to the next, nanoseconds of the recorders' clock.
const PASSED_NS: u64 = 100_000;
/// Most stack bytes for a recorder.
const STACK_MAX_BYTES: usize = 64 << 10;

/// A boundary that has not been walked.
struct Waiting {
    tid: pid_t,
    captures: [Capture; WAYS.len()],
    truth: Vec<LookupAvma>,
    /// Number of frames that memory shows.
    told: usize,
}

/// Result of a walk.
pub(super) struct Walked<'a> {
    pub(super) way: usize,
    pub(super) ended: StackEnd,
    pub(super) frames: &'a Frames,
    pub(super) truth: &'a [LookupAvma],
    pub(super) told: usize,
}

/// The program as a sampler sees it.
struct Traced(Process);

/// A recorder for each method, and the pieces that they requested for each thread.
pub(super) struct Pieces<'a> {
    process: Traced,
    clock: &'a FakeClock,
    recorders: Vec<Recorder<'a>>,
    lists: [HashMap<pid_t, Vec<u64>>; WAYS.len()],
    threads: HashSet<pid_t>,
    waiting: VecDeque<Waiting>,
    frames: Frames,
}

/// The options of the recorders, one for each method.
pub(super) fn options() -> Vec<Options> {
    let of = |unwind| Options {
        hz: 997,
        duration_ns: None,
        idle: false,
        off_cpu: false,
        linger_ns: 0,
        threads: false,
        timeline_bytes: 0,
        max_depth: 4096,
        unwind,
        seed: 1,
        block_age_min_ns: 0,
        max_stop: 1.0,
    };
    WAYS.iter().map(|(_, how)| of(*how)).collect()
}

impl<'a> Pieces<'a> {
    pub(super) fn new(pid: pid_t, arch: Arch, clock: &'a FakeClock, options: &'a [Options]) -> Pieces<'a> {
        let process = Process {
            pid: pid as u32,
            name: "stepped".to_owned(),
            command: String::new(),
            arch,
            backend: "ptrace",
            backend_why: String::new(),
            cpus: 1,
            address_mask: u64::MAX,
            fp_always: false,
            cfi: true,
            stops_interrupt_syscalls: true,
            stops_hold_all: false,
        };
        Pieces {
            clock,
            recorders: options.iter().map(|options| Recorder::new(clock, options, &process)).collect(),
            process: Traced(process),
            lists: Default::default(),
            threads: HashSet::new(),
            waiting: VecDeque::new(),
            frames: Frames::default(),
        }
    }

    /// Takes a sample of a stopped thread: `stack` has the bytes from `base`, the first `below` of them below
    /// the stack pointer. Walks boundaries that are due.
    pub(super) fn sample(
        &mut self,
        tid: pid_t,
        registers: &Registers,
        (base, stack): (u64, &[u8]),
        stack_top: u64,
        (truth, told): (&[LookupAvma], usize),
        walked: &mut dyn FnMut(Walked<'_>),
    ) {
        if self.threads.insert(tid) {
            let status = ThreadStatus { cpu_ns: 0, switches: 0, activity: Activity::Running };
            for recorder in &mut self.recorders {
                let id = ThreadId(tid as u64);
                recorder.add_thread(FIRST, &mut self.process, id, Some(Avma(stack_top)), status, false);
            }
        }
        let below = registers.arch().red_zone_bytes_max() as usize;
        let blocked_signals = ptrace::blocked_signals(tid);
        let captures = std::array::from_fn(|way| {
            let mut capture = Capture::with_capacity(COPIED_BYTES);
            capture.registers = *registers;
            capture.stack_base = Avma(base);
            capture.stack.extend_from_slice(&stack[..stack.len().min(below + COPIED_BYTES)]);
            for start in self.lists[way].get(&tid).into_iter().flatten() {
                let copied = start.checked_sub(base).and_then(|from| stack.get(from as usize..));
                let mut bytes = [0; PREFETCH_RANGE_BYTES];
                let is_read = match copied.and_then(|rest| rest.first_chunk()) {
                    Some(piece) => {
                        bytes = *piece;
                        true
                    }
                    None => ptrace::read(tid, *start, &mut bytes) == PREFETCH_RANGE_BYTES,
                };
                if is_read {
                    capture.prefetched.push(*start, &bytes);
                }
            }
            if !capture.prefetched.is_empty() {
                capture.prefetched.blocked_signals = blocked_signals;
            }
            capture
        });
        self.waiting.push_back(Waiting { tid, captures, truth: truth.to_vec(), told });
        self.clock.advance(PASSED_NS);
        if self.waiting.len() > LATE {
            self.walk(walked);
        }
    }

    /// Walks the oldest pending boundary; returns whether there was one.
    fn walk(&mut self, walked: &mut dyn FnMut(Walked<'_>)) -> bool {
        let Some(Waiting { tid, captures, truth, told }) = self.waiting.pop_front() else { return false };
        for (way, capture) in captures.into_iter().enumerate() {
            let sample = Sample {
                thread: ThreadId(tid as u64),
                capture: Box::new(capture),
                libraries: None,
                at_ns: 0,
                waiting: false,
                off_cpu_ns: 0,
            };
            let (process, frames) = (&mut self.process, &mut self.frames);
            let (ended, pieces) =
                self.recorders[way].take_prefetched(process, sample, STACK_MAX_BYTES, frames);
            if let Some(pieces) = pieces {
                self.lists[way].insert(tid, pieces.to_vec());
            }
            let ended = ended.expect("no table is full, and no sample waits for images");
            walked(Walked { way, ended, frames: &self.frames, truth: &truth, told });
        }
        true
    }

    /// Updates the images after all pending boundaries were sampled.
    pub(super) fn images_changed(&mut self, walked: &mut dyn FnMut(Walked<'_>)) {
        while self.walk(walked) {}
        for recorder in &mut self.recorders {
            recorder.read_images(FIRST, &mut self.process);
        }
    }

    /// Handles the exit of a thread; its number may be reused.
    pub(super) fn thread_ended(&mut self, tid: pid_t, walked: &mut dyn FnMut(Walked<'_>)) {
        while self.walk(walked) {}
        if self.threads.remove(&tid) {
            for recorder in &mut self.recorders {
                recorder.remove_thread(ThreadId(tid as u64), None, "thread ended");
            }
        }
    }
}

impl Observed for Traced {
    fn process(&self) -> &Process {
        &self.0
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        *out = super::mappings(self.0.pid as pid_t);
        if out.is_empty() { Err(Fault::Gone) } else { Ok(()) }
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        super::bytes(self.0.pid as pid_t, mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        match ptrace::read(self.0.pid as pid_t, from.0, into) {
            0 => Err(Fault::Transient("not mapped")),
            read => Ok(read),
        }
    }
}
