//! Timelines: reading back, behavior at the memory limit, memory per sample.

use std::collections::BTreeMap;

use super::{UNIT_BITS, *};
use crate::trie::NodeId;

const HZ: u32 = 997;
const PERIOD_NS: u64 = 1_000_000_000 / 997;

/// Seeded numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, inclusive.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn below(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }
}

/// A sample on an unknown CPU.
fn sample(at_ns: u64, node: NodeId, weight_ns: u64) -> TimedSample {
    TimedSample { at_ns, node, weight_ns, cpu: None }
}

/// A thread that sometimes changes its stack and its CPU, pauses, and has samples with weights near a period.
fn run(seed: u64, samples: usize) -> Vec<TimedSample> {
    let mut random = Random(seed);
    let (mut at_ns, mut node, mut cpu) = (random.within(0, 1 << 30), 0, None);
    (0..samples)
        .map(|_| {
            if random.within(0, 20) == 0 {
                at_ns += random.within(0, 300_000_000);
            }
            at_ns += PERIOD_NS - 20_000 + random.within(0, 40_000);
            if random.within(0, 3) == 0 {
                node = 1 + random.within(0, 5) as u32;
            }
            if random.within(0, 9) == 0 {
                cpu = (random.within(0, 9) > 0).then(|| random.within(0, 255) as u32);
            }
            let weight_ns = PERIOD_NS - 30_000 + random.within(0, 60_000);
            TimedSample { at_ns, node: NodeId(node), weight_ns, cpu }
        })
        .collect()
}

fn by_node(samples: &[TimedSample]) -> BTreeMap<u32, u64> {
    let mut sums = BTreeMap::new();
    for sample in samples {
        *sums.entry(sample.node.0).or_default() += sample.weight_ns;
    }
    sums
}

#[test]
fn samples_are_read_back_to_a_microsecond() {
    for seed in 0..50 {
        let samples = run(seed, 500);
        let mut timeline = Timeline::new(1000, HZ, DEFAULT_MEMORY_BYTES);
        let thread = timeline.add_thread(7, 7, 1000, true);
        for sample in &samples {
            timeline.add_sample(thread, TimedSample { at_ns: sample.at_ns + 1000, ..*sample });
        }
        let back = timeline.threads()[0].samples();
        assert_eq!(back.len(), samples.len());
        for (back, sample) in back.iter().zip(&samples) {
            assert_eq!((back.node, back.cpu), (sample.node, sample.cpu));
            assert!(sample.at_ns - back.at_ns < UNIT_NS);
            assert!(back.weight_ns.abs_diff(sample.weight_ns) < UNIT_NS);
        }
        let sum = |samples: &[TimedSample]| samples.iter().map(|sample| sample.weight_ns).sum::<u64>();
        assert!(sum(&samples) - sum(&back) < UNIT_NS, "seed {seed}: weights drift");
        assert_eq!(timeline.detail(), Detail::Samples);
    }
}

#[test]
fn a_sample_takes_less_than_eight_bytes() {
    for (seed, samples) in [(1, 100_000), (2, 10_000)] {
        let mut timeline = Timeline::new(0, HZ, DEFAULT_MEMORY_BYTES);
        let thread = timeline.add_thread(7, 7, 0, true);
        for sample in run(seed, samples) {
            timeline.add_sample(thread, sample);
        }
        let bytes = timeline.memory_bytes() as f64 / samples as f64;
        assert!(bytes < 8.0, "{bytes} bytes a sample");
    }
}

/// Runs of one stack, with their CPU if it was a single one.
#[test]
fn merged_samples_have_a_cpu_only_if_it_is_common() {
    let bound = 1000;
    let mut timeline = Timeline::new(0, HZ, bound);
    let thread = timeline.add_thread(7, 7, 0, true);
    for at in 1..=3000 {
        let (node, cpu) = (NodeId(1 + at as u32 / 1000), if at < 1000 { 3 } else { at as u32 / 10 % 2 });
        timeline
            .add_sample(thread, TimedSample { cpu: Some(cpu), ..sample(at * PERIOD_NS, node, PERIOD_NS) });
        if timeline.detail() == Detail::Runs {
            break;
        }
        assert_eq!(timeline.detail(), Detail::Samples);
    }
    let samples = timeline.threads()[0].samples();
    assert_eq!(samples.first().map(|first| (first.node, first.cpu)), Some((NodeId(1), Some(3))));
    let mut timeline = Timeline::new(0, HZ, bound);
    let thread = timeline.add_thread(7, 7, 0, true);
    for at in 1..=3000 {
        let cpu = Some(at as u32 / 10 % 2);
        timeline.add_sample(thread, TimedSample { cpu, ..sample(at * PERIOD_NS, NodeId(1), PERIOD_NS) });
        if timeline.detail() == Detail::Runs {
            break;
        }
    }
    assert_eq!(timeline.threads()[0].samples().first().map(|first| first.cpu), Some(None));
}

#[test]
fn late_samples_are_sorted() {
    let mut timeline = Timeline::new(0, HZ, DEFAULT_MEMORY_BYTES);
    let thread = timeline.add_thread(7, 7, 0, true);
    for at_ns in [5_000_000, 9_000_000, 2_000_000, 7_000_000] {
        timeline.add_sample(thread, sample(at_ns, NodeId(3), 1_000_000));
    }
    let times: Vec<u64> =
        timeline.threads()[0].samples().iter().map(|sample| sample.at_ns / 1_000_000).collect();
    assert_eq!(times, [1, 4, 6, 8]);
}

#[test]
fn the_limit_holds_and_every_stack_keeps_its_weight() {
    for seed in 0..8 {
        let bound = 50_000;
        let mut timeline = Timeline::new(0, HZ, bound);
        let mut sent = Vec::new();
        let threads: Vec<_> = (0..3).map(|id| timeline.add_thread(id, 7, 0, true)).collect();
        for (thread, samples) in
            threads.iter().zip([run(seed, 20_000), run(seed + 100, 20_000), run(seed + 200, 9)])
        {
            for sample in &samples {
                timeline.add_sample(*thread, *sample);
                assert!(timeline.memory_bytes() <= bound + 64, "seed {seed}");
            }
            sent.push(samples);
        }
        assert!(matches!(timeline.detail(), Detail::Steps(_)), "{:?}", timeline.detail());
        for (thread, sent) in timeline.threads().iter().zip(&sent) {
            let back = thread.samples();
            assert!(back.is_sorted_by_key(|sample| sample.at_ns));
            let (back_by, sent_by) = (by_node(&back), by_node(sent));
            assert_eq!(back_by.keys().collect::<Vec<_>>(), sent_by.keys().collect::<Vec<_>>());
            for (node, sent_ns) in &sent_by {
                let visits = sent.iter().filter(|sample| sample.node.0 == *node).count() as u64;
                assert!(
                    back_by[node].abs_diff(*sent_ns) <= (visits + 1) * UNIT_NS,
                    "seed {seed}, node {node}"
                );
            }
        }
    }
}

#[test]
fn times_are_kept_when_stacks_do_not_fit() {
    let bound = 1500;
    let mut timeline = Timeline::new(0, HZ, bound);
    let thread = timeline.add_thread(7, 7, 0, true);
    let samples = run(5, 50_000);
    for sample in &samples {
        timeline.add_sample(thread, *sample);
        assert!(timeline.memory_bytes() <= bound + 64);
    }
    assert!(matches!(timeline.detail(), Detail::TimesOnly(_)), "{:?}", timeline.detail());
    let back = timeline.threads()[0].samples();
    let sum = |samples: &[TimedSample]| samples.iter().map(|sample| sample.weight_ns).sum::<u64>();
    assert!(sum(&samples) - sum(&back) < 2 * UNIT_NS);
}

#[test]
fn a_pause_is_not_merged() {
    let mut timeline = Timeline::new(0, HZ, 4000);
    let thread = timeline.add_thread(7, 7, 0, true);
    // 20 samples of one stack, a pause of 80 ms, 20 more.
    for count in 1..=40 {
        let pause_ns = if count > 20 { 80_000_000 } else { 0 };
        timeline.add_sample(thread, sample(count * PERIOD_NS + pause_ns, NodeId(1), PERIOD_NS));
    }
    timeline.detail = Detail::Runs;
    timeline.reduce();
    let back = timeline.threads()[0].samples();
    assert_eq!(back.len(), 2);
    assert!(back[0].at_ns.abs_diff(20 * PERIOD_NS) < UNIT_NS);
    assert!(back[0].weight_ns.abs_diff(20 * PERIOD_NS) < 21 * UNIT_NS);
    assert!((back[1].at_ns - back[1].weight_ns).abs_diff(20 * PERIOD_NS + 80_000_000) < 22 * UNIT_NS);
}

#[test]
fn losses_keep_their_cause_and_time() {
    let mut timeline = Timeline::new(500, HZ, DEFAULT_MEMORY_BYTES);
    timeline.add_loss("ring full", 7_000_500, 10_000_500, 3_000_000);
    timeline.add_loss("rest", 0, 30_000_500, 2_000_000);
    timeline.add_loss("other", 19_000_500, 20_000_500, 1_000_000);
    let losses = [
        Loss { reason: "ring full", since_ns: 7_000_000, at_ns: 10_000_000, lost_ns: 3_000_000 },
        Loss { reason: "other", since_ns: 19_000_000, at_ns: 20_000_000, lost_ns: 1_000_000 },
        Loss { reason: "rest", since_ns: 0, at_ns: 30_000_000, lost_ns: 2_000_000 },
    ];
    assert_eq!(timeline.losses(), losses);
}

#[test]
fn the_limit_holds_for_losses_and_events() {
    let bound = 20_000;
    let mut timeline = Timeline::new(0, HZ, bound);
    for number in 1..100_000u64 {
        let at_ns = number * 1_000_000;
        timeline.add_loss(["a", "b"][(number % 2) as usize], at_ns - 1_000, at_ns, 1_000);
        timeline.add_event(EventKind::Exec, 7, at_ns, "program");
        assert!(timeline.memory_bytes() <= bound + 64, "{number}");
    }
    let mut lost = BTreeMap::new();
    timeline.losses().iter().for_each(|loss| *lost.entry(loss.reason).or_insert(0) += loss.lost_ns);
    assert_eq!(lost, BTreeMap::from([("a", 49_999_000), ("b", 50_000_000)]));
    assert_eq!(timeline.events().len() as u64 + timeline.events_dropped(), 99_999);
    assert!(timeline.events().len() > 20);
}

#[test]
fn earlier_times_move_to_the_beginning() {
    let mut timeline = Timeline::new(1_000, HZ, DEFAULT_MEMORY_BYTES);
    timeline.add_thread(7, 7, 2_000, true);
    timeline.begin(5_000);
    let thread = timeline.add_thread(8, 7, 6_000, false);
    timeline.end_thread(thread, 9_000);
    let of = |thread: &ThreadTimeline| (thread.begun_ns, thread.ended_ns, thread.preexisting);
    assert_eq!(
        timeline.threads().iter().map(of).collect::<Vec<_>>(),
        [(0, None, true), (1_000, Some(4_000), false)]
    );
}

#[test]
fn threads_beyond_the_limit_are_counted_as_dropped() {
    let mut timeline = Timeline::new(0, HZ, 10_000);
    let mut refused = 0;
    for id in 0..200 {
        let thread = timeline.add_thread(id, 7, 0, true);
        refused += u64::from(thread.is_none());
        timeline.add_sample(thread, sample(1_000_000, NodeId(1), 1000));
    }
    assert!(refused > 0);
    assert_eq!(timeline.dropped_ns(), refused * 1000);
    assert_eq!(timeline.threads().len() as u64, 200 - refused);
}

#[test]
fn ten_minutes_of_two_hundred_threads_fit_and_keep_their_weights() {
    const THREADS: u64 = 200;
    const SECONDS: u64 = 600;
    let bound = 1 << 20;
    let mut timeline = Timeline::new(0, HZ, bound);
    let threads: Vec<_> = (0..THREADS).map(|id| timeline.add_thread(id, 7, 0, false)).collect();
    let mut random = Random(1);
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut steps = Vec::new();
    for at in 1..=SECONDS * u64::from(HZ) {
        // Two CPUs that switch threads every few milliseconds.
        for cpu in 0..2 {
            let thread = (at / 5 * 7 + cpu * 3) % THREADS;
            let node = NodeId(1 + random.below(50) as u32);
            timeline.add_sample(threads[thread as usize], sample(at * PERIOD_NS, node, PERIOD_NS));
            *sent.entry(thread).or_default() += PERIOD_NS;
        }
        assert!(timeline.memory_bytes() <= bound + 64, "{} at {at}", timeline.memory_bytes());
        if steps.last() != timeline.detail().step_ns().as_ref() {
            steps.extend(timeline.detail().step_ns());
        }
    }
    // The resolution is halved, and never restored.
    assert!(steps.len() >= 2 && steps.windows(2).all(|two| two[1] == 2 * two[0]), "{steps:?}");
    for thread in timeline.threads() {
        let back: u64 = thread.samples().iter().map(|sample| sample.weight_ns).sum();
        assert!(sent[&thread.id] - back < 2 * UNIT_NS, "{}", thread.id);
    }
}

#[test]
fn unseen_starts_and_running_threads_have_no_time() {
    let mut timeline = Timeline::new(1_000, 1000, 1 << 20);
    let [seen, unseen, running] = [1, 2, 3].map(|id| timeline.add_thread(id, 1, 9_000, false));
    timeline.set_start(seen, Some(4_000));
    timeline.set_start(unseen, None);
    timeline.end_thread(seen, 11_000);
    timeline.close();
    timeline.end_thread(running, 12_000);
    let of = |thread: &ThreadTimeline| (thread.begun_ns, thread.ended_ns, thread.preexisting);
    let threads: Vec<_> = timeline.threads().iter().map(of).collect();
    assert_eq!(threads, [(3_000, Some(10_000), false), (8_000, None, true), (8_000, None, false)]);
}

/// An exiting thread is sampled shortly after its exit was recorded.
#[test]
fn a_thread_ends_after_its_start_and_its_last_sample() {
    let mut timeline = Timeline::new(0, HZ, 1 << 20);
    let [sampled, unsampled] = [1, 2].map(|id| timeline.add_thread(id, 1, 5 << UNIT_BITS, false));
    timeline.add_sample(sampled, sample(9 << UNIT_BITS, NodeId(1), PERIOD_NS));
    timeline.end_thread(sampled, 8 << UNIT_BITS);
    timeline.end_thread(unsampled, 4 << UNIT_BITS);
    let ends: Vec<_> = timeline.threads().iter().map(|thread| thread.ended_ns).collect();
    assert_eq!(ends, [Some(9 << UNIT_BITS), Some(5 << UNIT_BITS)]);
}

#[test]
fn reducing_parts_separately_keeps_the_whole() {
    let samples = run(3, 50_000);
    let mut kept = ThreadSamples::default();
    samples.iter().for_each(|sample| kept.push(*sample));
    let step_ns = 4 * PERIOD_NS;
    kept.reduce(PERIOD_NS / 2, Detail::Steps(step_ns));
    let reduced = kept.by_time();
    assert!(reduced.len() < samples.len() / 2, "{}", reduced.len());
    let (all, left) = (by_node(&samples), by_node(&reduced));
    assert_eq!(all.keys().collect::<Vec<_>>(), left.keys().collect::<Vec<_>>());
    let sum = |sums: &BTreeMap<u32, u64>| sums.values().sum::<u64>();
    assert!(sum(&all) - sum(&left) < UNIT_NS);
    // A stack occurs once in a step, even across the boundary of two parts.
    let mut seen = std::collections::BTreeSet::new();
    for sample in &reduced {
        assert!(seen.insert((sample.at_ns / step_ns, sample.node)), "twice in a step: {sample:?}");
    }
}
