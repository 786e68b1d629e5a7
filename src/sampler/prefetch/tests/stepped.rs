//! Prefetched stacks of a stepped program on a simulated kernel: whatever the program does to its outer frames
//! between samples, or between a sample and its walk, a stack reported as complete is the true one.
//!
//! The program (`sources/sim/stepped`) executes real code with real unwind information. The kernel (`SimKernel`)
//! runs the BPF program that reads the ranges; records get lost, arrive without a sample, or late. Samples are
//! walked in batches, long after memory has changed, and lists reach the kernel later still. `STACKPROF_ROUNDS=60`
//! makes a million samples.
use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

use super::super::super::{Recorder, Sample};
use super::options;
use crate::addr::LookupAvma;
use crate::clock::FakeClock;
use crate::rng::Rng;
use crate::sampler::processes::FIRST;
use crate::sampler::recorder::unknown_status;
use crate::sources::linux::SimKernel;
use crate::sources::sim::stepped::{Change, SteppedProcess};
use crate::sources::{Capture, Observed, PREFETCH_RANGE_BYTES, ThreadId};
use crate::walk::Frames;

/// Samples of each seed.
const SAMPLES: u64 = 2_000;
/// Minimum distance of interrupts of one thread, nanoseconds: twice the maximum distance of a copy from its
/// sample.
const APART_NS_MIN: u64 = 81_000;
/// Size of a range in a record: address and bytes.
const ENTRY_BYTES: usize = 8 + PREFETCH_RANGE_BYTES;

/// Faults of the kernel, or of the reader of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Words are read after the sample's moment.
    LaterWords,
    /// Words come from an earlier sample of the thread.
    EarlierWords,
    /// Words of an exited thread are attributed to its successor with the same number.
    WordsOfPredecessor,
    /// Ranges are placed at an address other than that they were read from.
    MovedRanges,
    /// The replacement of code by other code in its place is not reported.
    UntoldImages,
    /// An exec is not reported.
    UntoldExec,
}

/// Counts of samples.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    samples: u64,
    complete: u64,
    /// Samples with an outermost return address that was prefetched, not copied.
    by_prefetch: u64,
    wrong: u64,
}

enum Event {
    Changed(Change),
    Sampled { tid: u32, time_ns: u64, capture: Box<Capture>, truth: Vec<LookupAvma>, depth_bytes: u64 },
}

/// The kernel and its faults.
struct Kernel {
    kernel: SimKernel,
    fault: Option<Fault>,
    /// The last records of each thread.
    last: HashMap<u32, Vec<Vec<u8>>>,
    /// Threads that reuse the number of an exited one.
    successors: HashSet<u32>,
    ended: HashSet<u32>,
}

impl Kernel {
    fn note(&mut self, change: &Change) {
        match change {
            Change::Ended(ThreadId(id)) => {
                self.ended.insert(*id as u32);
            }
            Change::Started(ThreadId(id), _) if self.ended.contains(&(*id as u32)) => {
                self.successors.insert(*id as u32);
            }
            _ => {}
        }
    }

    /// Interrupts a thread at this time, for this sample.
    fn interrupt(
        &mut self,
        sampled: (u32, &Capture),
        time_ns: u64,
        program: &mut SteppedProcess,
        random: &mut Rng,
    ) {
        let (tid, capture) = sampled;
        let takes_old = match self.fault {
            Some(Fault::EarlierWords) => random.chance(1, 2),
            Some(Fault::WordsOfPredecessor) => self.successors.contains(&tid),
            _ => false,
        };
        if takes_old {
            for record in self.last.get(&tid).into_iter().flatten() {
                let mut record = record.clone();
                record[..8].copy_from_slice(&time_ns.to_le_bytes());
                self.kernel.records().push(record);
            }
            return;
        }
        // Sometimes the ring has no room, or room for part of the ranges.
        let room = if random.chance(1, 8) { random.below(3) } else { usize::MAX >> 1 };
        let before = self.kernel.records().len();
        self.kernel.interrupt(tid, time_ns, &mut program.memory, room);
        let records = &mut self.kernel.records()[before..];
        if self.fault == Some(Fault::MovedRanges) {
            let copied_until = capture.stack_base.0 + capture.stack.len() as u64;
            let by = 16 * (1 + random.below(4)) as u64;
            for record in records.iter_mut() {
                for entry in record[SimKernel::FIRST_RANGE..].chunks_exact_mut(ENTRY_BYTES) {
                    let start = entry.first_chunk().map_or(0, |start| u64::from_le_bytes(*start));
                    if start >= copied_until && random.chance(1, 8) {
                        entry[..8].copy_from_slice(&(start + by).to_le_bytes());
                    }
                }
            }
        }
        let keeps = match self.fault {
            Some(Fault::EarlierWords) => true,
            Some(Fault::WordsOfPredecessor) => !self.successors.contains(&tid),
            _ => false,
        };
        if keeps {
            self.last.insert(tid, records.to_vec());
        }
    }
}

/// Samples the program of a seed. With a fault in the sampling, stops at the first wrong stack.
fn run(seed: u64, fault: Option<Fault>) -> Outcome {
    let mut random = Rng::new(!seed);
    let mut program = SteppedProcess::new(seed);
    let mut kernel = Kernel {
        kernel: SimKernel::new(program.process().pid),
        fault,
        last: HashMap::new(),
        successors: HashSet::new(),
        ended: HashSet::new(),
    };
    let clock = FakeClock::default();
    let options = options();
    let mut recorder = Recorder::new(&clock, &options, program.process());
    recorder.read_images(FIRST, &mut program);
    let (late, batch) = (random.below(3), 1 + random.below(8) as u64);
    let copied = 256 << random.below(4);
    let mut lists: VecDeque<Vec<(u32, Vec<u64>)>> = VecDeque::new();
    let mut events = Vec::new();
    let (mut outcome, mut frames) = (Outcome::default(), Frames::default());
    let (mut time_ns, mut closing) = (1_000_000_000, 0);
    for _ in 0..SAMPLES {
        let passed_ns = APART_NS_MIN + random.below(900_000) as u64;
        time_ns += passed_ns;
        clock.advance(passed_ns);
        change(&mut program, &mut closing, &mut random);
        for change in program.changes() {
            kernel.note(&change);
            events.push(Event::Changed(change));
        }
        let thread = random.below(program.threads());
        let most = [3, 30, 200, 600][random.below(4)];
        program.step(thread, 1 + random.below(most) as u64);
        let mut truth = Vec::new();
        let depth_bytes = program.depth_bytes(thread);
        let (tid, capture) = program.capture(thread, copied, &mut truth);
        if fault == Some(Fault::LaterWords) && random.chance(1, 2) {
            program.step(thread, 1 + random.below(most) as u64);
        }
        // The BPF program runs in the same interrupt, shortly before the sample is written; rarely the machine is
        // delayed.
        let apart_ns = if random.chance(1, 40) { random.below(80_000) } else { random.below(3_000) };
        kernel.interrupt((tid, &capture), time_ns, &mut program, &mut random);
        // Samples that do not fit into the ring are lost, but not their ranges.
        if !random.chance(1, 8) {
            let time_ns = time_ns + apart_ns as u64;
            events.push(Event::Sampled { tid, time_ns, capture: Box::new(capture), truth, depth_bytes });
        }
        time_ns += apart_ns as u64;
        if !random.chance(1, batch) {
            continue;
        }
        kernel.kernel.read();
        let mut new = Vec::new();
        for event in events.drain(..) {
            match event {
                Event::Changed(change) => apply(&change, &mut recorder, &mut program, fault),
                Event::Sampled { tid, time_ns, mut capture, truth, depth_bytes } => {
                    kernel.kernel.complete(tid, time_ns, &mut capture);
                    let is_beyond = depth_bytes >= capture.stack.len() as u64;
                    let thread = ThreadId(tid.into());
                    let sample =
                        Sample { thread, capture, libraries: None, at_ns: 0, waiting: false, off_cpu_ns: 0 };
                    let (ended, ranges) =
                        recorder.take_prefetched(&mut program, sample, 64 << 10, &mut frames);
                    new.extend(ranges.map(|ranges| (tid, ranges.to_vec())));
                    outcome.samples += 1;
                    if ended.is_some_and(|ended| ended.is_complete()) {
                        outcome.complete += 1;
                        outcome.by_prefetch += u64::from(is_beyond);
                        let is_true = frames.addresses == truth;
                        outcome.wrong += u64::from(!is_true);
                        if !is_true && fault.is_some() {
                            return outcome;
                        }
                        assert!(
                            is_true,
                            "complete but wrong, sample {}: found {:x?}, true {truth:x?}\n\
                             replay: STACKPROF_SEED={seed} cargo test --lib prefetch::tests::stepped",
                            outcome.samples, frames.addresses,
                        );
                    }
                }
            }
        }
        lists.push_back(new);
        while lists.len() > late {
            lists.pop_front().into_iter().flatten().for_each(|(tid, list)| kernel.kernel.set(tid, &list));
        }
    }
    outcome
}

/// Sometimes a thread ends and another one begins, a library is replaced by another one, or another program
/// begins.
fn change(program: &mut SteppedProcess, closing: &mut u32, random: &mut Rng) {
    if random.chance(1, 200) {
        let thread = random.below(program.threads());
        program.replace_thread(thread);
    }
    if random.chance(1, 600) {
        program.exec();
        *closing = 0;
    }
    if *closing == 0 && random.chance(1, 300) {
        program.close_library();
        *closing = 1;
    }
    if *closing > 0 {
        *closing = if program.replace_library(*closing > 40) { 0 } else { *closing + 1 };
    }
}

/// Applies a change like the driver of pushed samples.
fn apply(change: &Change, recorder: &mut Recorder<'_>, program: &mut SteppedProcess, fault: Option<Fault>) {
    match *change {
        Change::Started(id, top) => {
            recorder.add_thread(FIRST, program, id, Some(top), unknown_status(), false);
        }
        Change::Ended(id) => recorder.remove_thread(id, None, "ended"),
        Change::Images(_) if fault == Some(Fault::UntoldImages) => {}
        Change::Exec(_) if fault == Some(Fault::UntoldExec) => {}
        Change::Images(list) => {
            program.show(list);
            recorder.read_images(FIRST, program);
        }
        Change::Exec(list) => {
            program.show(list);
            recorder.begin_program(FIRST, None);
            recorder.read_images(FIRST, program);
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures of the long form")]
fn no_complete_stack_is_wrong_however_outer_frames_change() {
    let mut all = Outcome::default();
    for seed in crate::rounds::seeds(0..10) {
        let Outcome { samples, complete, by_prefetch, wrong } = run(seed, None);
        all.samples += samples;
        all.complete += complete;
        all.by_prefetch += by_prefetch;
        all.wrong += wrong;
    }
    println!("{all:?}");
    if crate::rounds::as_usual() {
        assert!(all.complete * 3 > all.samples && all.by_prefetch * 8 > all.samples, "too few: {all:?}");
    }
}

#[test]
fn faults_of_the_sampling_are_detected() {
    let faults = [
        Fault::LaterWords,
        Fault::EarlierWords,
        Fault::WordsOfPredecessor,
        Fault::MovedRanges,
        Fault::UntoldImages,
        Fault::UntoldExec,
    ];
    let is_found = |fault: &Fault| (0..16).any(|seed| run(seed, Some(*fault)).wrong > 0);
    let missed: Vec<&Fault> = faults.iter().filter(|fault| !is_found(fault)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
