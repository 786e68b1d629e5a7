//! Tests the model with simulated programs with known heaps.

use super::*;
use crate::rng::mix;

/// A seeded random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = mix(self.0);
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// A program that allocates at several sites, sampled at a rate.
struct Program {
    random: Random,
    model: HeapModel,
    rate: SamplingRate,
    next_block: u64,
    now_ns: u64,
}

const PROCESS: u32 = 7;

impl Program {
    fn new(seed: u64, every_bytes: u64) -> Program {
        let rate = SamplingRate::new(every_bytes);
        let model = HeapModel::new(rate);
        Program { random: Random(seed), model, rate, next_block: 4096, now_ns: 1 }
    }

    /// Allocates, and returns the block.
    fn allocate(&mut self, site: u32, bytes: u64) -> u64 {
        self.now_ns += 10;
        self.next_block += 16;
        if self.random.unit() <= self.rate.probability(bytes) {
            self.model.allocate(PROCESS, self.next_block, bytes, self.now_ns, Some(NodeId(site)));
        }
        self.next_block
    }

    fn free(&mut self, block: u64) {
        self.now_ns += 10;
        // As the shim does: frees of unsampled blocks are not reported.
        if self.model.live.get(&PROCESS).is_some_and(|live| live.contains_key(&block)) {
            self.model.free(PROCESS, block, self.now_ns, false);
        }
    }
}

/// Thirty sites with 16 B to 16 MiB per allocation; some free a part of it.
fn run_thirty_sites(seed: u64, every_bytes: u64) -> (HeapValues, Vec<(u64, u64)>) {
    let mut program = Program::new(seed, every_bytes);
    let mut truth = vec![(0, 0); 30];
    for site in 0..30u32 {
        let bytes = 16u64 << (site * 20 / 29);
        let total = (1 << 20 << (site % 5)).max(bytes);
        for number in 0..total / bytes {
            let block = program.allocate(site, bytes);
            if site % 3 == 1 && number % 2 == 0 || site % 7 == 6 {
                program.free(block);
            } else {
                truth[site as usize].0 += bytes;
                truth[site as usize].1 += 1;
            }
        }
    }
    (program.model.values(Moment::End), truth)
}

#[test]
fn the_true_value_of_a_site_is_in_its_interval() {
    let (mut inside, mut all) = ([0, 0], 0);
    let mut sum_of_errors = 0.0;
    for seed in 1..=20 {
        let (values, truth) = run_thirty_sites(seed, 512 << 10);
        for (site, (bytes, blocks)) in truth.iter().enumerate() {
            let known = values.nodes.iter().find(|known| known.node == NodeId(site as u32));
            let nothing = Sum::default().estimates(values.rate, None);
            let (of_bytes, of_blocks) = known.map_or(nothing, |known| known.inuse);
            let holds = |estimate: Estimate, value: u64| {
                let (low, high) = estimate.interval();
                u32::from(low <= value as f64 && value as f64 <= high)
            };
            inside[0] += holds(of_bytes, *bytes);
            inside[1] += holds(of_blocks, *blocks);
            all += 1;
        }
        let true_bytes: u64 = truth.iter().map(|(bytes, _)| bytes).sum();
        sum_of_errors += (values.inuse.0.value - true_bytes as f64) / values.inuse.0.standard_error();
    }
    assert!(inside.iter().all(|inside| inside * 100 >= all * 95), "{inside:?} of {all}");
    // Unbiased: the mean of twenty errors, each with standard deviation 1.
    assert!((sum_of_errors / 20.0).abs() < 0.7, "{sum_of_errors}");
}

/// Coverage of the intervals of sites and of totals, for bytes and for blocks, in use and allocated, with `--every 4K`
/// and sites with 1 to 20 expected samples. `sizes` draws the size of a block of a site.
fn coverage(runs: u64, sizes: fn(&mut Random, u64) -> u64) -> [[(u32, u32); 4]; 2] {
    const SITES: u64 = 30;
    let mut covered = [[(0, 0); 4]; 2];
    for seed in 1..=runs {
        let mut program = Program::new(mix(seed), 4096);
        let mut truth = vec![[0u64; 4]; SITES as usize];
        for (site, of_site) in truth.iter_mut().enumerate() {
            let each = 16 << (site % 9);
            let samples = 1 + (site as u64 * 7 + seed) % 20;
            for number in 0..samples * 4096 / each {
                let bytes = sizes(&mut program.random, each);
                let block = program.allocate(site as u32, bytes);
                let is_freed = number % 3 == 0;
                if is_freed {
                    program.free(block);
                }
                let part = u64::from(!is_freed);
                let values = [part * bytes, part, bytes, 1];
                of_site.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        let mut note = |row: usize,
                        (inuse, allocated): ((Estimate, Estimate), (Estimate, Estimate)),
                        truth: [u64; 4]| {
            for (at, estimate) in [inuse.0, inuse.1, allocated.0, allocated.1].into_iter().enumerate() {
                let (low, high) = estimate.interval();
                let (inside, all) = &mut covered[row][at];
                *inside += u32::from(low <= truth[at] as f64 && truth[at] as f64 <= high);
                *all += 1;
            }
        };
        let values = program.model.values(Moment::End);
        for (site, truth) in truth.iter().enumerate() {
            let nothing = NodeSums::default();
            let sums = program.model.nodes.get(site).unwrap_or(&nothing);
            let of = |sum: &Sum| sum.estimates(program.rate, sums.bytes_min);
            note(0, (of(&sums.live), of(&sums.allocated)), *truth);
        }
        let total = truth.iter().fold([0; 4], |mut sums, site| {
            sums.iter_mut().zip(site).for_each(|(sum, value)| *sum += value);
            sums
        });
        note(1, (values.inuse, values.allocated), total);
    }
    covered
}

#[test]
fn intervals_hold_for_few_samples_of_sites_and_for_totals() {
    const RUNS: u64 = 200;
    let same: fn(&mut Random, u64) -> u64 = |_, each| each;
    let mixed: fn(&mut Random, u64) -> u64 = |random, each| each << random.below(4);
    for (name, sizes) in [("same", same), ("mixed", mixed)] {
        let covered = coverage(RUNS, sizes);
        for (inside, all) in covered.iter().flatten() {
            assert!(inside * 100 >= all * 95, "{name}, seeds 1 to {RUNS}: {covered:?}");
        }
    }
}

#[test]
fn any_number_of_small_blocks_may_be_without_a_sample() {
    const RUNS: u64 = 200;
    const EVERY: u64 = 1024;
    for small in [8, 16, 24, 48, 200] {
        for expected_samples in [0.2, 0.6, 1.2, 1.8, 2.5, 2.9, 4.0, 7.0] {
            for large in [0, 1, 30] {
                let blocks = (expected_samples * EVERY as f64 / small as f64) as u64;
                let truth = [blocks * small + large * 2 * EVERY, blocks + large];
                let mut inside = [[0; 2]; 2];
                for seed in 1..=RUNS {
                    let mut program = Program::new(mix(seed * 4099 + small * 64 + large), EVERY);
                    for bytes in [(blocks, small), (large, 2 * EVERY)] {
                        (0..bytes.0).for_each(|_| _ = program.allocate(1, bytes.1));
                    }
                    let values = program.model.values(Moment::End);
                    let nothing = Sum::default().estimates(values.rate, None);
                    let row = values.nodes.first().map_or(nothing, |known| known.inuse);
                    for (row, estimates) in [row, values.inuse].into_iter().enumerate() {
                        for (at, estimate) in [estimates.0, estimates.1].into_iter().enumerate() {
                            let (low, high) = estimate.interval();
                            inside[row][at] += u64::from(low <= truth[at] as f64 && truth[at] as f64 <= high);
                        }
                    }
                }
                // 19 of 20, less two standard deviations of as many runs.
                let holds = inside.iter().flatten().all(|inside| inside * 100 >= RUNS * 92);
                let why = format!("{blocks} of {small} B, {large} of {} B, seeds 1 to {RUNS}", 2 * EVERY);
                assert!(holds, "{why}: rows and totals, bytes and blocks: {inside:?}");
            }
        }
    }
}

#[test]
fn lost_samples_and_frees_widen_the_interval() {
    for (every, losses) in [(1, 1.0), (4096, 2.0)] {
        let mut model = HeapModel::new(SamplingRate::new(every));
        (0..1000).for_each(|block| model.allocate(1, block, 8192, block, Some(NodeId(1))));
        let known = model.values(Moment::End);
        let (value, weight) = (known.inuse.0.value, known.inuse.0.value / 1000.0);
        let mut values = known.clone();
        values.add_losses(&[(0, 0), (300, 300 * 8192)], 0);
        let (low, high) = values.inuse.0.interval();
        assert_eq!(low, known.inuse.0.interval().0, "{every}");
        assert!(high >= value + 300.0 * weight && high < value + (300.0 + 50.0 * losses) * weight, "{high}");
        assert!(values.inuse.1.interval().1 >= 1300.0 && values.allocated.1.interval().1 >= 1300.0);
        let mut values = known.clone();
        values.add_losses(&[], 400);
        assert!(values.inuse.0.interval().0 <= value - 400.0 * weight);
        assert_eq!(values.inuse.0.interval().1, known.inuse.0.interval().1);
        assert_eq!(values.allocated, known.allocated);
        values.add_losses(&[(u64::MAX, u64::MAX)], u64::MAX);
        assert_eq!(values.inuse.0.interval().0, 0.0);
        assert!(values.inuse.0.interval().1.is_finite());
    }
}

#[test]
fn the_reported_error_of_the_total_is_the_actual_one() {
    let within = (1..=200u64).filter(|seed| {
        let mut program = Program::new(seed * 77, 64 << 10);
        for number in 0..4000u64 {
            program.allocate((number % 9) as u32, 24 + number % 3 * 40_000);
        }
        let truth: u64 = (0..4000u64).map(|number| 24 + number % 3 * 40_000).sum();
        let allocated = program.model.values(Moment::End).allocated.0;
        (allocated.value - truth as f64).abs() <= 1.96 * allocated.standard_error()
    });
    let within = within.count();
    assert!((180..=199).contains(&within), "{within} of 200");
}

#[test]
fn a_rate_of_one_byte_is_exact() {
    let (values, truth) = run_thirty_sites(3, 1);
    for known in &values.nodes {
        let (bytes, blocks) = truth[known.node.0 as usize];
        let [_, _, inuse_objects, inuse_space, ..] = known.values;
        assert_eq!((inuse_space, inuse_objects), (bytes, blocks), "site {}", known.node.0);
        assert_eq!(known.inuse.0.interval(), (bytes as f64, bytes as f64));
    }
    assert_eq!(values.inuse.0.standard_error(), 0.0);
}

/// Computes the peak by copying all nodes at each new maximum.
#[test]
fn the_peak_is_the_state_with_the_most_bytes_in_use() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut model = HeapModel::new(SamplingRate::new(1));
        let (mut live, mut by_node): (Vec<(u32, u64, u32, u64)>, _) = (Vec::new(), [0u64; 5]);
        let (mut peak, mut at_peak) = (0, [0u64; 5]);
        for step in 0..400u64 {
            let process = 1 + random.below(2) as u32;
            match random.below(7) {
                0 if step > 100 && random.below(10) == 0 => {
                    model.end_process(process, step);
                    for (_, _, node, bytes) in live.extract_if(.., |(of, ..)| *of == process) {
                        by_node[node as usize] -= bytes;
                    }
                }
                0..=2 if !live.is_empty() => {
                    let at = random.below(live.len() as u64) as usize;
                    let (process, block, node, bytes) = live.swap_remove(at);
                    by_node[node as usize] -= bytes;
                    model.free(process, block, step, false);
                }
                _ => {
                    let (node, bytes) = (random.below(5) as u32, 1 + random.below(1000));
                    model.allocate(process, step + 1, bytes, step, Some(NodeId(node)));
                    live.push((process, step + 1, node, bytes));
                    by_node[node as usize] += bytes;
                    if by_node.iter().sum::<u64>() > peak {
                        peak = by_node.iter().sum();
                        at_peak = by_node;
                    }
                }
            }
        }
        let values = model.values(Moment::Peak);
        assert_eq!(values.peak_bytes, peak, "seed {seed}");
        for known in values.nodes {
            let expected = at_peak[known.node.0 as usize];
            assert_eq!(known.values[ValueKind::InuseSpace as usize], expected, "seed {seed}");
        }
    }
}

#[test]
fn what_is_left_of_a_block_keeps_its_weight() {
    let rate = SamplingRate::new(4096);
    let (node, weight) = (Some(NodeId(0)), rate.weight_of_rest(8192, 2048));
    let mut model = HeapModel::new(rate);
    model.allocate(1, 0x1000, 8192, 1, node);
    model.shrink(1, 0x1000, 4096, 2);
    model.shrink(1, 0x1000, 2048, 3);
    model.shrink(1, 0x2000, 2048, 4);
    let values = model.values(Moment::End);
    assert_eq!(values.total(ValueKind::InuseSpace), weight.bytes);
    assert_eq!(values.total(ValueKind::InuseSpace), (2048.0 / rate.probability(8192)).round() as u64);
    assert_eq!(values.total(ValueKind::AllocSpace), rate.weight(8192).bytes);
    assert_eq!((values.peak_bytes, values.peak_at_ns), (rate.weight(8192).bytes, 1));
    model.free(1, 0x1000, 5, false);
    assert_eq!(model.values(Moment::End).total(ValueKind::InuseSpace), 0);
}

#[test]
fn unfreed_blocks_of_a_process_are_in_use_at_its_end() {
    let mut model = HeapModel::new(SamplingRate::new(1));
    let node = Some(NodeId(2));
    model.allocate(1, 0x10, 100, 0, node);
    model.allocate(2, 0x10, 30, 0, node);
    model.free(2, 0x10, 5, false);
    model.end_process(1, 8);
    // Another program uses the same addresses.
    model.allocate(1, 0x10, 7, 9, node);
    model.free(1, 0x10, 9 + CHURN_NS, false);
    let values = model.values(Moment::End);
    assert_eq!(values.totals, [3, 137, 1, 100, 1, 30]);
    assert_eq!((values.peak_bytes, model.live_bytes()), (130, 0));
    assert_eq!(model.values(Moment::Peak).total(ValueKind::InuseSpace), 130);
}

#[test]
fn young_blocks_are_in_use_at_no_end() {
    let mut model = HeapModel::new(SamplingRate::new(1)).with_age_min_ns(10);
    let node = Some(NodeId(1));
    for process in [1, 2] {
        model.allocate(process, 0x10, 100, 0, node);
        model.allocate(process, 0x20, 30, 5, node);
    }
    // The process that ends, and the one that is recorded until the end.
    model.end_process(1, 10);
    assert_eq!(model.values(Moment::End).total(ValueKind::InuseSpace), 230);
    model.forget_young(14);
    let values = model.values(Moment::End);
    assert_eq!(values.total(ValueKind::InuseSpace), 200);
    assert_eq!((values.total(ValueKind::InuseObjects), values.peak_bytes), (2, 260));
}

#[test]
fn a_block_of_which_nothing_is_left_is_freed_once() {
    let mut model = HeapModel::new(SamplingRate::new(1));
    for block in [0x1000, 0x9000] {
        model.allocate(1, block, 8192, 1, Some(NodeId(1)));
        model.shrink(1, block, 4096, 2);
        model.shrink(1, block, u64::MAX, 3);
        model.shrink(1, block, u64::MAX, 4);
    }
    let values = model.values(Moment::End);
    assert_eq!((values.total(ValueKind::InuseObjects), values.total(ValueKind::InuseSpace)), (0, 0));
    assert_eq!(values.counters, Counters { allocations: 2, frees: 2, ..Counters::default() });
}

#[test]
fn inconsistent_events_are_counted() {
    let mut model = HeapModel::new(SamplingRate::new(1));
    model.allocate(1, 0x10, 8, 0, Some(NodeId(1)));
    // Its free was lost.
    model.allocate(1, 0x10, 16, 1, Some(NodeId(2)));
    model.free(1, 0x10, 2, false);
    // Freed twice, and never allocated.
    model.free(1, 0x10, 3, false);
    model.free(9, 0x10, 3, false);
    model.allocate(1, 0x20, 1, 4, None);
    model.free(1, 0x20, 5, false);
    let values = model.values(Moment::End);
    let expected = Counters {
        allocations: 3,
        frees: 2,
        frees_unknown: 2,
        frees_missing: 1,
        stacks_lost: 1,
        ..Counters::default()
    };
    assert_eq!(values.counters, expected);
    assert_eq!(values.totals, [2, 24, 0, 0, 1, 16]);

    // A block whose free was lost is in use until its address is used again.
    let mut model = HeapModel::new(SamplingRate::new(1));
    model.allocate(1, 0x10, 8, 0, Some(NodeId(1)));
    model.allocate(1, 0x10, 4, 50_000_000, Some(NodeId(2)));
    let history = model.values(Moment::End).history;
    let last = |node| {
        history
            .changes
            .iter()
            .filter(|change| change.node == NodeId(node))
            .map(|change| change.by_bytes)
            .sum::<i64>()
    };
    assert_eq!([last(1), last(2)], [0, 4]);
}

#[test]
fn restoring_a_free_leaves_everything_unchanged() {
    let mut model = HeapModel::new(SamplingRate::new(4096));
    model.allocate(1, 0x10, 100_000, 0, Some(NodeId(1)));
    let before = model.values(Moment::End);
    model.free(1, 0x10, 5, false);
    assert_ne!(model.values(Moment::End).totals, before.totals);
    model.restore(1, 0x10);
    // Except for the times of the history.
    let but_for_history = |values| HeapValues { history: LiveHistory::default(), ..values };
    let before = but_for_history(before);
    assert_eq!(but_for_history(model.values(Moment::End)), before);
    // No block at this address was freed.
    model.restore(1, 0x10);
    model.restore(2, 0x10);
    assert_eq!(but_for_history(model.values(Moment::End)), before);
    model.free(1, 0x10, 2 * CHURN_NS, false);
    assert_eq!(model.values(Moment::End).total(ValueKind::InuseSpace), 0);
}

#[test]
fn frees_of_inherited_copies_do_not_affect_the_parent() {
    let mut model = HeapModel::new(SamplingRate::new(1));
    model.allocate(1, 0x10, 64, 0, Some(NodeId(1)));
    model.free(2, 0x10, 1, true);
    model.allocate_untracked(7, Some(NodeId(1)));
    let values = model.values(Moment::End);
    assert_eq!((values.counters.frees_inherited, values.counters.untracked), (1, 1));
    assert_eq!(values.totals, [2, 71, 1, 64, 0, 0]);
}
