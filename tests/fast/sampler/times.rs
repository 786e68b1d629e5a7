//! Times of samples: they locate each thread's activity, weigh the same as the profile's counts, and keep the
//! memory limit.

use super::recording::check_times;
use super::*;
use stackprof::conversion::{self, ConversionOptions};
use stackprof::profile::formats::{detect, firefox};
use stackprof::profile::timeline::EventKind;
use stackprof::profile::{SavedProfile, TimedSample};

fn saved(recorded: &Recorded) -> SavedProfile {
    conversion::saved_profile(&recorded.profile, &recorded.names, ConversionOptions::default()).expect("fits")
}

/// Writes to the format with times, and reads it back.
fn read_again(saved: &SavedProfile) -> SavedProfile {
    let mut file = Vec::new();
    firefox::write(saved, &mut file).expect("a Vec takes everything");
    detect::read(file.as_slice(), "a.firefox.json", file.len() as u64).expect("reads")
}

/// Counts by stack.
fn counts(saved: &SavedProfile) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    saved.for_each_stack(|root, frames, count| {
        let mut name = format!("{:?} {}", root.thread.map(|(_, id)| id), root.complete);
        frames.iter().for_each(|frame| {
            saved.names_of(*frame, false, &mut |function| {
                name.push(';');
                name += function;
            });
        });
        *counts.entry(name).or_default() += count;
    });
    counts
}

/// The counts over time are those of the profile, and any range and the rest of the time add up to the whole.
pub(super) fn check_saved(saved: &SavedProfile) {
    let timeline = saved.timeline().expect("it has times");
    let over_time: u64 = timeline.counts().values().sum();
    assert_eq!(over_time, saved.total());
    for (node, count) in timeline.counts() {
        assert_eq!(count, saved.trie().count(node), "{node:?}");
    }
    let end_ns = saved.time_ns().expect("it has times");
    let (first, second) = (end_ns / 3, end_ns / 2 + 7);
    let mut sum: BTreeMap<String, u64> = BTreeMap::new();
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    for range in [0..first, first..second, second..u64::MAX] {
        let part = saved.in_time_range(&range).expect("fits").expect("it has times");
        counts(&part).into_iter().for_each(|(name, count)| *sum.entry(name).or_default() += count);
        part.about.lost.iter().for_each(|(why, count)| *lost.entry(why.clone()).or_default() += count);
    }
    assert_eq!((sum, lost), (counts(saved), saved.about.lost.clone()));
}

/// The weights by thread and stack.
fn weights(recorded: &Recorded) -> BTreeMap<(u64, u32), u64> {
    let mut sums = BTreeMap::new();
    for thread in recorded.profile.timeline.as_ref().expect("kept").threads() {
        for sample in thread.samples() {
            *sums.entry((thread.id, sample.node.0)).or_default() += sample.weight_ns;
        }
    }
    sums
}

#[test]
fn timed_samples_weigh_the_profiles_counts_at_any_detail() {
    let mut coarser = BTreeSet::new();
    for seed in seeds(1..21) {
        let _replay = replay_sim(seed);
        for options in [options(997, seed), idle(251, seed)] {
            let recorded = record(&seeded(seed), &options);
            check_saved(&saved(&recorded));
            check_saved(&read_again(&saved(&recorded)));
            let whole = weights(&recorded);
            for timeline_bytes in [20_000, 6_000] {
                let bounded = record(&seeded(seed), &Options { timeline_bytes, ..options.clone() });
                let timeline = bounded.profile.timeline.as_ref().expect("kept");
                assert!(timeline.memory_bytes() <= timeline_bytes + 64, "{}", timeline.memory_bytes());
                coarser.insert(format!("{:?}", timeline.detail()).split('(').next().map(str::to_owned));
                if !timeline.detail().is_times_only() && timeline.dropped_ns() == 0 {
                    assert_eq!(weights(&bounded), whole, "{timeline_bytes} bytes: {:?}", timeline.detail());
                    check_saved(&saved(&bounded));
                }
            }
        }
    }
    assert!(coarser.len() >= 3 || !as_usual(), "{coarser:?}");
}

/// 100 ms of f1, 50 ms of f2, 80 ms of waiting; another thread runs f3 in that pause.
fn phases() -> SimConfig {
    let main = vec![run(100_000, &[0, 1]), run(50_000, &[0, 2]), wait(80_000, &[0, 4])];
    let other = vec![wait(150_000, &[0, 4]), run(80_000, &[0, 3])];
    let mut config = process(ARCHES[0], 1, 2, vec![main, other]);
    (config.pause_ns, config.stop_latency_ns) = (0, 0);
    config
}

/// Activity of thread `index` of [`phases`] at a time.
fn true_leaf(index: u64, at_ns: u64) -> &'static str {
    match (index, at_ns % (230 * MS)) {
        (0, 0..100_000_000) => "f1",
        (0, 100_000_000..150_000_000) => "f2",
        (1, 150_000_000..) => "f3",
        _ => "wait",
    }
}

/// The leaf of a sample.
fn leaf(saved: &SavedProfile, sample: &TimedSample) -> String {
    use stackprof::profile::StackFrame;
    let mut name = String::new();
    if let Some(StackFrame::Frame(frame)) = sample.node.and_then(|node| saved.trie().key(node)) {
        saved.names_of(frame, false, &mut |function| function.clone_into(&mut name));
    }
    name
}

#[test]
fn phases_are_located_to_within_a_period() {
    let _replay = replay(1);
    let recorded = record(&phases(), &options(997, 1));
    let whole = saved(&recorded);
    let period_ns = SECOND / 997;
    for saved in [&whole, &read_again(&whole)] {
        let timeline = saved.timeline().expect("it has times");
        assert_eq!(timeline.threads.len(), 2);
        for (index, thread) in (0..).zip(&timeline.threads) {
            assert_eq!(thread.id, 4242 + index);
            for sample in &thread.samples {
                let (since_ns, at_ns) = (sample.since_ns(), sample.at_ns);
                let near = [at_ns.saturating_sub(period_ns / 2), at_ns, at_ns + 2_048];
                let leaf = leaf(saved, sample);
                assert!(
                    near.iter().any(|at_ns| true_leaf(index, *at_ns) == leaf),
                    "{leaf} of {index} at {at_ns}"
                );
                // CPU time after the last sample before a pause is in the first sample after it.
                assert!(at_ns - since_ns <= 2 * period_ns + period_ns / 4, "{leaf}: {since_ns} to {at_ns}");
            }
            // The pause is a gap of its length.
            let gaps = thread.samples.windows(2).map(|two| two[1].since_ns().saturating_sub(two[0].at_ns));
            let long: Vec<u64> = gaps.filter(|gap_ns| *gap_ns > 10 * MS).collect();
            let (pauses, pause_ns) = if index == 0 { (8, 80 * MS) } else { (8, 150 * MS) };
            assert_eq!(long.len(), pauses, "{long:?}");
            assert!(long.iter().all(|gap_ns| gap_ns.abs_diff(pause_ns) <= 2 * period_ns), "{long:?}");
        }
    }
    // Ranges of the program's phases contain only these.
    for round in 0..8 {
        let start = round * 230 * MS;
        for (phase, length, leaf) in [(0, 100, "f1"), (100, 50, "f2"), (150, 80, "f3")] {
            let range = start + phase * MS..start + (phase + length) * MS;
            let part = whole.in_time_range(&range).expect("fits").expect("it has times");
            let counts = counts(&part);
            let of_leaf: u64 =
                counts.iter().filter(|(name, _)| name.ends_with(leaf)).map(|(_, count)| count).sum();
            assert!(part.total() - of_leaf <= 2, "{leaf} {range:?}: {counts:?}");
            assert!(of_leaf.abs_diff(length * 997 / 1000) <= 4, "{leaf} {range:?}: {counts:?}");
        }
    }
}

#[test]
fn a_wait_is_an_interval_without_cpu_time() {
    let _replay = replay(1);
    let recorded = record(&phases(), &idle(997, 1));
    let saved = saved(&recorded);
    let timeline = saved.timeline().expect("it has times");
    for thread in &timeline.threads {
        let waits = |sample: &&TimedSample| leaf(&saved, sample) == "f4";
        let waited_ns: u64 = thread.samples.iter().filter(waits).map(|sample| sample.weight_ns).sum();
        let expected_ns = if thread.id == 4242 { 8 * 80 * MS } else { 9 * 150 * MS - 20 * MS };
        assert!(waited_ns.abs_diff(expected_ns) <= 40 * MS, "{}: {waited_ns}", thread.id);
        // Each moment belongs to one sample: the next one begins at its end.
        for two in thread.samples.windows(2) {
            assert!(two[1].since_ns().abs_diff(two[0].at_ns) <= 4 * 1024, "{two:?}");
        }
    }
}

#[test]
fn an_injected_loss_is_a_gap_at_its_time() {
    let _replay = replay(5);
    let period_ns = SECOND / 997;
    let mut config = process(ARCHES[0], 1, 2, vec![vec![run(10_000, &[0, 1])]]);
    config.faults = vec![SimFault { from_ns: SECOND, count: 100, ..SimFault::always(FaultKind::Unreadable) }];
    let recorded = record(&config, &options(997, 5));
    let whole = saved(&recorded);
    for saved in [&whole, &read_again(&whole)] {
        let timeline = saved.timeline().expect("it has times");
        let gaps: Vec<_> =
            timeline.losses.iter().filter(|loss| loss.is_gap() && loss.lost_ns > MS / 2).collect();
        assert_eq!(gaps.len(), 100);
        let gap = gaps[0].since_ns..gaps[99].at_ns;
        assert!(
            gap.start.abs_diff(SECOND) <= 2 * period_ns && gap.end.abs_diff(1_100 * MS) <= 3 * period_ns,
            "{gap:?}"
        );
        let in_gap =
            |sample: &&TimedSample| gap.contains(&(sample.at_ns + 2_048)) && gap.contains(&sample.since_ns());
        assert_eq!(timeline.threads[0].samples.iter().find(in_gap), None);
        // A cut has only the losses of its time.
        let lost = |range| {
            let part = saved.in_time_range(&range).expect("fits").expect("it has times");
            part.about.lost.values().sum::<u64>()
        };
        assert_eq!(lost(0..SECOND - 2 * MS), 0);
        assert!(lost(SECOND - 2 * MS..1_104 * MS).abs_diff(100) <= 3);
        assert!(lost(1_050 * MS..2 * SECOND).abs_diff(50) <= 3);
    }
}

#[test]
fn events_have_their_times() {
    let _replay = replay(3);
    let mut config = mixed(2);
    config.threads[1].exit_ns = Some(700 * MS);
    let late = image("/sim/libplugin.so", 0x7f00_0000_0000, "g", 2);
    config.images.push(stackprof::sources::sim::SimImage { load_ns: 900 * MS, ..late });
    let recorded = record(&config, &options(997, 3));
    let saved = saved(&recorded);
    for saved in [&saved, &read_again(&saved)] {
        let events = &saved.timeline().expect("it has times").events;
        let of = |kind| events.iter().find(|event| event.kind == kind).expect("it is there");
        let start = of(EventKind::ThreadStart);
        assert_eq!((start.thread, start.pid), (thread(3).0, 4242));
        assert!(start.at_ns.abs_diff(200 * MS) <= 2 * MS, "{start:?}");
        let end = of(EventKind::ThreadEnd);
        assert_eq!(end.thread, thread(1).0);
        assert!(end.at_ns.abs_diff(700 * MS) <= 2 * MS, "{end:?}");
        let load = of(EventKind::ImageLoad);
        assert_eq!(saved.text(load.text), "/sim/libplugin.so");
        assert!((900 * MS..2_000 * MS).contains(&load.at_ns), "{load:?}");
        assert_eq!(events.iter().filter(|event| event.kind == EventKind::ImageLoad).count(), 1);
        assert!(events.is_sorted_by_key(|event| event.at_ns));
    }
    check_times(&recorded.profile);
}
