//! Time ranges of profiles: together with their complement they add up to the whole, also with
//! merged samples.

use std::collections::BTreeMap;

use super::super::filter::{self, Filter};
use super::super::{About, StackRoot, TextId};
use super::{Event, EventKind, Loss, ThreadTimeline, TimedSample, *};

const PERIOD_NS: u64 = 1_000_000;
const END_NS: u64 = 10_000_000_000;

/// Seeded random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, inclusive.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn below(&mut self, len: usize) -> usize {
        (self.next() % len as u64) as usize
    }
}

/// Adds a stack with one function and returns its node.
fn stack(builder: &mut SavedBuilder, function: &str, complete: bool, count: u64) -> NodeId {
    let process = builder.text("p").expect("fits");
    let root =
        StackRoot { process, thread: None, complete, waiting: false, labels: super::super::LabelsId::NONE };
    let root = builder.root(root).expect("fits");
    let frame = builder.named_frame(function).expect("fits");
    builder.add(root, &[frame], count).expect("fits")
}

/// A profile of two threads: single samples, long runs, waits, a stack with untimed counts.
fn profile(seed: u64) -> SavedProfile {
    let mut random = Random(seed);
    let mut builder = SavedBuilder::new(About {
        hz: Some(1000),
        duration_ns: Some(END_NS),
        lost: BTreeMap::from([("ring full".to_owned(), 700), ("never seen".to_owned(), 11)]),
        ..About::default()
    });
    let nodes: Vec<NodeId> = (0..4)
        .map(|number| {
            let count = random.within(1, 3000);
            stack(&mut builder, ["a", "b", "c", "d"][number], number != 2, count)
        })
        .collect();
    stack(&mut builder, "untimed", true, 123);
    let process = builder.text("p").expect("fits");
    let mut threads = Vec::new();
    for id in 1..=2 {
        let name = builder.text(&format!("t{id}")).expect("fits");
        let (mut at_ns, mut samples) = (0, Vec::new());
        while at_ns < END_NS - 2_000_000_000 {
            // A merged sample weighs up to a second.
            let weight_ns = [PERIOD_NS, 7, random.within(1, 1_000_000_000)][random.below(3)];
            at_ns += weight_ns + random.within(0, 50_000_000);
            let node = Some(nodes[random.below(4)]);
            samples.push(TimedSample { at_ns, weight_ns, node, count: 0, cpu: None });
        }
        threads.push(ThreadTimeline {
            process,
            pid: Some(1),
            name,
            id,
            begun_ns: 0,
            ended_ns: None,
            samples,
        });
    }
    let reason = builder.text("ring full").expect("fits");
    let losses = (0..5)
        .map(|_| {
            let since_ns = random.within(0, END_NS - 1_000_000_000);
            let at_ns = since_ns + random.within(0, 1_000_000_000);
            Loss { since_ns, at_ns, lost_ns: random.within(1, 300_000_000), reason }
        })
        .collect();
    let event = |at_ns| Event { at_ns, kind: EventKind::Exec, process, pid: 1, thread: 1, text: process };
    let events = vec![event(5), event(END_NS / 2), event(END_NS - 1)];
    builder.set_timeline(Timeline { step_ns: None, threads, losses, events });
    builder.finish()
}

/// Counts by stack, and losses by reason.
fn counts(saved: &SavedProfile) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let mut counts = BTreeMap::new();
    saved.for_each_stack(|root, frames, count| {
        let mut name = format!("{} ", root.complete);
        saved.names_of(frames[0], false, &mut |function| name += function);
        *counts.entry(name).or_default() += count;
    });
    (counts, saved.about.lost.clone())
}

/// Sums counts and losses of parts.
fn sum(parts: &[SavedProfile]) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let mut sums = (BTreeMap::new(), BTreeMap::new());
    for part in parts {
        let (stacks, lost) = counts(part);
        stacks.into_iter().for_each(|(name, count)| *sums.0.entry(name).or_default() += count);
        lost.into_iter().for_each(|(name, count)| *sums.1.entry(name).or_default() += count);
    }
    sums
}

#[test]
fn adjacent_parts_have_the_counts_of_the_whole() {
    for seed in 0..100 {
        let whole = profile(seed);
        let mut random = Random(seed + 1000);
        let mut ends = vec![0, u64::MAX];
        ends.extend((0..random.within(1, 6)).map(|_| random.within(0, END_NS)));
        ends.sort_unstable();
        ends.dedup();
        let parts: Vec<SavedProfile> = ends
            .windows(2)
            .map(|ends| whole.in_time_range(&(ends[0]..ends[1])).expect("fits").expect("it has times"))
            .collect();
        let (mut stacks, mut lost) = counts(&whole);
        // Untimed counts are lost to each part.
        let untimed = stacks.remove("true untimed").expect("it is there");
        lost.insert(WITHOUT_TIME.to_owned(), untimed);
        assert_eq!(sum(&parts), (stacks, lost), "seed {seed}: {ends:?}");
        let events: usize =
            parts.iter().map(|part| part.timeline().map_or(0, |times| times.events.len())).sum();
        assert_eq!(events, 3);
        for part in &parts {
            assert!(part.about.is_time_range);
            let timeline = part.timeline().expect("it has times");
            let incomplete: u64 = part.about.incomplete.values().sum();
            assert_eq!(incomplete, counts(part).0.get("false c").copied().unwrap_or(0));
            for sample in timeline.threads.iter().flat_map(|thread| &thread.samples) {
                assert!(sample.at_ns <= part.about.duration_ns.expect("known"), "seed {seed}");
            }
        }
    }
}

#[test]
fn merged_samples_are_split_at_the_range_ends() {
    let mut builder = SavedBuilder::new(About { hz: Some(1000), ..About::default() });
    let node = stack(&mut builder, "a", true, 1000);
    let process = builder.text("p").expect("fits");
    let sample =
        TimedSample { at_ns: 3_000_000_000, weight_ns: 1_000_000_000, node: Some(node), count: 0, cpu: None };
    let name = TextId::EMPTY;
    let thread = ThreadTimeline {
        process,
        pid: None,
        name,
        id: 1,
        begun_ns: 0,
        ended_ns: None,
        samples: vec![sample],
    };
    builder.set_timeline(Timeline { threads: vec![thread], ..Timeline::default() });
    let whole = builder.finish();
    let part = whole.in_time_range(&(2_250_000_000..2_500_000_000)).expect("fits").expect("it has times");
    assert!(part.total().abs_diff(250) <= 1, "{}", part.total());
    let samples = &part.timeline().expect("it has times").threads[0].samples;
    assert_eq!(samples.len(), 1);
    assert!(samples[0].at_ns.abs_diff(250_000_000) <= PERIOD_NS, "times count from the cut on");
    assert!(samples[0].weight_ns.abs_diff(250_000_000) <= PERIOD_NS);
    assert_eq!(whole.in_time_range(&(0..2_000_000_000)).expect("fits").expect("it has times").total(), 0);
}

#[test]
fn filters_keep_the_times_of_kept_stacks() {
    let whole = profile(7);
    let meant = |name: &str| name == "a" || name == "untimed";
    let filter = Filter { include: Some(&meant), ..Filter::default() };
    let (kept, _) = filter::apply(&whole, &filter, false).expect("fits");
    let timed: u64 = kept.timeline().expect("it has times").counts().values().sum();
    assert_eq!(timed + 123, kept.total());
    let cut_first =
        whole.in_time_range(&(1_000_000_000..4_000_000_000)).expect("fits").expect("it has times");
    let (cut_first, _) = filter::apply(&cut_first, &filter, false).expect("fits");
    let cut_last = kept.in_time_range(&(1_000_000_000..4_000_000_000)).expect("fits").expect("it has times");
    assert_eq!(counts(&cut_first).0, counts(&cut_last).0);
    assert!(cut_last.total() > 0);
}

#[test]
fn a_profile_without_times_has_no_time_ranges() {
    let mut builder = SavedBuilder::new(About::default());
    stack(&mut builder, "a", true, 5);
    let saved = builder.finish();
    assert!(saved.in_time_range(&(0..5)).expect("fits").is_none());
    assert_eq!(saved.time_ns(), None);
}
