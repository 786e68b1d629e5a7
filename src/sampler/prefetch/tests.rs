//! Tests of prefetched stacks: simulated threads whose outer frames change between and after samples.

use std::collections::VecDeque;

use super::super::processes::FIRST;
use super::super::recorder::unknown_status;
use super::super::{Options, Recorder, Sample};
use super::*;
use crate::addr::CodeAddress;
use crate::arch::Arch;
use crate::clock::FakeClock;
use crate::rng::Rng;
use crate::sources::sim::{FunctionId, SimActivity, SimConfig, SimImage, SimPhase, SimTarget, SimThread};
use crate::sources::{StopOutcome, Target, TargetEvent, ThreadId};
use crate::walk::Frames;

#[cfg(target_os = "linux")]
mod stepped;

const MS: u64 = 1_000_000;
const THREAD: ThreadId = ThreadId(4242);
const FUNCTIONS: usize = 24;
/// Bytes copied of each stack.
const COPIED_BYTES: usize = 4 << 10;

#[test]
fn of_other_stacks_the_memory_around_the_words_is_prefetched() {
    let mut capture = Capture::with_capacity(0);
    capture.stack_base = Avma(0x10_0000);
    let own = [(0x10_2000, 8), (0x10_2010, 8), (0x10_8000, 8)];
    assert_eq!(cover_stacks(own.to_vec(), &capture), cover(own.to_vec()));
    // Two stacks with words less than a page apart.
    let other = [(0x7000_1038, 8), (0x7000_1120, 8), (0x9000_0ff8, 8)];
    let below = |at: u64, end: u64| ((at - BELOW_BYTES) & !63..end).step_by(64);
    let expected: Vec<u64> = below(0x7000_1038, 0x7000_1128).chain(below(0x9000_0ff8, 0x9000_1000)).collect();
    assert_eq!(cover_stacks(other.to_vec(), &capture), expected);
    // As much as a list holds: without the memory below, then without that between.
    let every = |count: u64, bytes: u64| (0..count).map(|word| (0x7000_0000 + word * bytes, 8)).collect();
    let full = PREFETCH_RANGES_MAX as u64;
    assert_eq!(cover_stacks(every(full, 64), &capture).first(), Some(&0x7000_0000));
    assert_eq!(cover_stacks(every(full, 128), &capture).len(), full as usize);
    assert!(cover_stacks(vec![(0, 8), (u64::MAX - 7, 8)], &capture).len() < 128);
}

/// A process with a thread that goes through these stacks: function and size of locals of each frame, outermost
/// first.
fn process(seed: u64, stacks: &[Vec<(usize, u64)>]) -> SimConfig {
    let mut config = SimConfig::new(Arch::X86_64, 1, 1_000_000 * MS);
    (config.seed, config.prefetches) = (seed, true);
    let names: Vec<String> = (0..FUNCTIONS).map(|number| format!("f{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    config.images.push(SimImage::new("/sim/libdeep.so", Avma(0x5500_0100_0000), &names));
    let script = stacks.iter().map(|stack| {
        let functions = stack.iter().map(|(function, _)| FunctionId { image: 0, function: *function });
        let mut phase = SimPhase::new(SimActivity::Run, 7 * MS, &functions.collect::<Vec<_>>());
        for (frame, (_, bytes)) in phase.stack.iter_mut().zip(stack) {
            frame.local_bytes = *bytes;
        }
        phase
    });
    let mut thread = SimThread::looping("deep", script.collect());
    thread.stack_top_known = true;
    config.threads.push(thread);
    config
}

/// Stacks that share most outer frames: some have other functions in the same places, others the same functions in
/// other places, and some end within the copied bytes.
fn stacks(random: &mut Rng) -> Vec<Vec<(usize, u64)>> {
    let frame = |random: &mut Rng| {
        let bytes = match random.below(30) {
            0 => 100_000 + 16 * random.below(30_000) as u64,
            _ => 16 * random.below(30) as u64,
        };
        (random.below(FUNCTIONS), bytes)
    };
    let outer: Vec<(usize, u64)> = (0..20 + random.below(60)).map(|_| frame(random)).take(90).collect();
    let mut all = Vec::new();
    for _ in 0..2 + random.below(6) {
        let mut stack = outer.clone();
        for _ in 0..random.below(3) {
            let at = random.below(stack.len());
            match random.below(4) {
                0 => stack[at].0 = random.below(FUNCTIONS),
                1 => stack[at].1 += 16,
                2 => stack.truncate(at.max(1)),
                _ => stack.insert(at, frame(random)),
            }
        }
        let inner = random.below(40);
        stack.extend((0..inner).map(|_| (random.below(FUNCTIONS), 16 * random.below(20) as u64)));
        let mut bytes = 0;
        stack.retain(|(_, locals)| {
            bytes += locals + 32;
            bytes < 3 << 20
        });
        all.push(stack);
    }
    all
}

fn options() -> Options {
    Options {
        hz: 997,
        duration_ns: None,
        idle: false,
        off_cpu: false,
        linger_ns: 0,
        threads: true,
        max_depth: 1024,
        timeline_bytes: 0,
        block_age_min_ns: 0,
        unwind: crate::walk::UnwindMethod::Auto,
        seed: 1,
        max_stop: 1.0,
    }
}

/// Returns how many of the samples were complete. Lists reach the source up to `late` samples after they were
/// made. Every complete stack must be the true one.
fn sample(config: SimConfig, samples: u32, late: usize, random: &mut Rng) -> u32 {
    let clock = FakeClock::default();
    let seed = config.seed;
    let mut target = SimTarget::new(config, clock.clone());
    let ledger = target.ledger();
    let options = options();
    let mut recorder = Recorder::new(&clock, &options, target.process());
    let mut threads = Vec::new();
    target.threads(&mut threads);
    recorder.add_thread(FIRST, &mut target, THREAD, threads[0].1, unknown_status(), true);
    recorder.read_images(FIRST, &mut target);
    recorder.walker().set_may_prefetch(target.prefetches());
    let mut frames = Frames::default();
    let mut lists: VecDeque<Option<Vec<u64>>> = VecDeque::new();
    let mut complete = 0;
    for number in 0..samples {
        clock.advance(MS + random.below(MS as usize) as u64);
        target.interrupt(THREAD, COPIED_BYTES, false).expect("it lives");
        let mut capture = Box::<Capture>::default();
        loop {
            match target.next(u64::MAX, &mut capture).expect("it lives") {
                TargetEvent::Stopped { outcome: StopOutcome::Captured, .. } => break,
                TargetEvent::Timeout => panic!("no stop"),
                _ => {}
            }
        }
        let truth = ledger.last_capture().expect("just captured").addresses;
        // Memory changes before it is read again.
        clock.advance(random.below(12 * MS as usize) as u64);
        let sample =
            Sample { thread: THREAD, capture, libraries: None, at_ns: 0, waiting: false, off_cpu_ns: 0 };
        let taken = recorder.add_sample(&mut target, sample, 1, 1 << 20, &mut frames);
        if taken.stack.is_some_and(|(_, ended)| ended.is_complete()) {
            complete += 1;
            let is_pc = |depth: usize, at: Avma| match depth {
                0 => CodeAddress::Pc(at),
                _ => CodeAddress::Return(at),
            };
            let truth = truth.iter().enumerate().map(|(depth, at)| is_pc(depth, *at).lookup());
            assert_eq!(frames.addresses, truth.collect::<Vec<_>>(), "seed {seed}, sample {number}");
        }
        lists.push_back(recorder.new_ranges(THREAD).map(<[u64]>::to_vec));
        while lists.len() > late {
            if let Some(list) = lists.pop_front().flatten() {
                target.prefetch(THREAD, &list);
            }
        }
    }
    complete
}

#[test]
fn complete_stacks_are_true_despite_changes_between_and_after_samples() {
    let (mut complete, mut all) = (0, 0);
    for seed in 0..60 {
        let mut random = Rng::new(seed);
        let config = process(seed, &stacks(&mut random));
        let late = random.below(60);
        complete += sample(config, 250, late, &mut random);
        all += 250;
    }
    assert!(complete * 2 > all, "{complete} of {all}");
}

#[test]
fn a_frame_larger_than_any_copy_is_walked_through() {
    let mut random = Rng::new(3);
    let mut stack: Vec<(usize, u64)> = (0..100).map(|number| (number % FUNCTIONS, 160)).collect();
    stack[70].1 = 540 << 10;
    assert!(sample(process(1, &[stack.clone()]), 100, 0, &mut random) >= 98);
    let config = SimConfig { prefetches: false, ..process(1, &[stack]) };
    assert_eq!(sample(config, 20, 0, &mut random), 0, "nothing is prefetched");
}

#[test]
fn an_outdated_list_leaves_stacks_incomplete() {
    // Return addresses of other functions in the same places.
    let of = |first: usize| -> Vec<(usize, u64)> {
        (0..100).map(|number| ((first + number * 5) % FUNCTIONS, 160)).collect()
    };
    let mut random = Rng::new(4);
    let complete = sample(process(1, &[of(0), of(1), of(2)]), 200, 20, &mut random);
    assert!(complete >= 150, "{complete}: places are the same, and words are read anew");
}

#[test]
fn ranges_cover_all_words_and_touch_no_unneeded_page() {
    let mut random = Rng::new(5);
    for _ in 0..300 {
        let base = 0x7000_0000 + 8 * random.below(1 << 14) as u64;
        let words: Vec<(u64, usize)> = (0..1 + random.below(80))
            .map(|_| (base + 4 * random.below(4_000) as u64, [4, 8][random.below(2)]))
            .collect();
        let ranges = cover(words.clone());
        let page = |at: u64| at / PAGE_BYTES;
        for (at, bytes) in &words {
            let held = ranges.iter().any(|start| (*start..=*start + 64 - *bytes as u64).contains(at));
            assert!(held, "{at:#x} of {bytes}");
        }
        for start in &ranges {
            let used = |page_at: u64| {
                let of = |(at, bytes): &(u64, usize)| {
                    page(*at) <= page_at && page(*at + *bytes as u64 - 1) >= page_at
                };
                words.iter().any(of)
            };
            assert!(used(page(*start)) && used(page(*start + 63)), "{start:#x}");
        }
        assert!(ranges.is_sorted());
    }
}
