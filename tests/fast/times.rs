//! Times of samples: times, weights and counts round-trip.

use crate::saved::FORMATS;
use stackprof::profile::formats::{detect, firefox, speedscope};
use stackprof::profile::{
    About, SavedBuilder, SavedProfile, StackRoot, ThreadTimeline, TimedSample, Timeline,
};

const PERIOD_NS: u64 = 1_000_000;

/// Time and weight of a sample, and which of three functions it was in; `None` for a lost stack.
type Taken = (u64, u64, Option<usize>);

/// Two threads: one with a pause of 80 ms, one that waits; samples that are not whole periods.
fn threads() -> [Vec<Taken>; 2] {
    let first = (1..=20).map(|n| (n * PERIOD_NS, PERIOD_NS, Some((n % 2) as usize)));
    let second = (1..=30).map(|n| (20 * PERIOD_NS + 80_000_000 + n * 700_001, 700_001, Some(1)));
    let lost = [(140_000_000, 2_000_000, None), (150_000_000, 1_500_000, Some(0))];
    let waits = (1..=10).map(|n| (5_000_000 + n * 3_000_000, 3_000_000, Some(2)));
    [first.chain(second).chain(lost).collect(), waits.collect()]
}

/// A profile with times, with or without separate threads.
fn saved(split_by_thread: bool) -> SavedProfile {
    let mut builder = SavedBuilder::new(About {
        hz: Some(1000),
        time_unix_ns: Some(1_700_000_000_123_456_789),
        duration_ns: Some(200_000_000),
        idle: Some(true),
        pid: Some(7),
        ..About::default()
    });
    let process = builder.text("work").unwrap();
    let frames = ["a", "b", "c"].map(|name| builder.named_frame(name).unwrap());
    let mut timeline = Timeline::default();
    for (id, taken) in (7u64..).zip(threads()) {
        let name = builder.text(&format!("t{id}")).unwrap();
        let mut samples = Vec::new();
        let mut sums = std::collections::BTreeMap::new();
        for (at_ns, weight_ns, function) in taken {
            let node = function.map(|function| {
                let thread = split_by_thread.then_some((name, id));
                let (waiting, complete) = (function == 2, function != 1);
                let root = builder
                    .root(StackRoot {
                        process,
                        thread,
                        complete,
                        waiting,
                        labels: stackprof::profile::LabelsId::NONE,
                    })
                    .unwrap();
                builder.add(root, &[frames[function]], 0).unwrap()
            });
            if let Some(node) = node {
                *sums.entry(node).or_insert(0) += weight_ns;
            }
            samples.push(TimedSample {
                at_ns,
                weight_ns,
                node,
                count: 0,
                cpu: (at_ns % 3 > 0).then_some((at_ns % 5) as u32),
            });
        }
        for (node, ns) in sums {
            builder.count(node, (ns + PERIOD_NS / 2) / PERIOD_NS).unwrap();
        }
        let begun_ns = 0;
        timeline.threads.push(ThreadTimeline {
            process,
            pid: Some(7),
            name,
            id,
            begun_ns,
            ended_ns: None,
            samples,
        });
    }
    builder.set_timeline(timeline);
    // A stack without times.
    let root = builder.root(StackRoot::of(process)).unwrap();
    if !split_by_thread {
        builder.add(root, &[frames[2], frames[0]], 5).unwrap();
    }
    builder.finish()
}

/// Each thread with its samples: time, weight, count, CPU, stack.
fn timed_samples(saved: &SavedProfile, with_cpu: bool) -> Vec<String> {
    let timeline = saved.timeline().expect("times");
    let mut lines = Vec::new();
    for thread in &timeline.threads {
        let name = format!(
            "{} {:?} {} {}",
            saved.text(thread.process),
            thread.pid,
            saved.text(thread.name),
            thread.id
        );
        for sample in &thread.samples {
            let mut stack = Vec::new();
            let mut at = sample.node;
            while let Some(here) = at {
                stack.extend(saved.trie().key(here).map(|key| match key {
                    stackprof::profile::StackFrame::Frame(frame) => {
                        let mut name = String::new();
                        saved.names_of(frame, false, &mut |text| name.push_str(text));
                        name
                    }
                    stackprof::profile::StackFrame::Root(root) => {
                        let root = &saved.roots()[root as usize];
                        format!("{:?} {} {}", root.thread.map(|t| t.1), root.complete, root.waiting)
                    }
                }));
                at = saved.trie().parent(here);
            }
            let cpu = sample.cpu.filter(|_| with_cpu);
            lines.push(format!(
                "{name}: {} {} {} {cpu:?} {stack:?}",
                sample.at_ns, sample.weight_ns, sample.count
            ));
        }
    }
    lines
}

fn back(bytes: &[u8]) -> SavedProfile {
    let read = detect::read_with(bytes, "memory", bytes.len() as u64, detect::Strictness::Strict).unwrap();
    assert_eq!(read.remarks, [""; 0]);
    read.saved
}

#[test]
fn times_weights_and_counts_round_trip() {
    for split_by_thread in [true, false] {
        let saved = saved(split_by_thread);
        for format in FORMATS.iter().filter(|format| format.has_times) {
            let form = format.name;
            let with_cpu = form != "speedscope";
            let expected = timed_samples(&saved, with_cpu);
            assert_eq!(expected.len(), 62);
            let back = back(&format.written(&saved));
            assert_eq!(timed_samples(&back, with_cpu), expected, "{form}");
            assert_eq!(back.total(), saved.total(), "{form}");
            assert_eq!(back.about.time_unix_ns, saved.about.time_unix_ns);
        }
    }
}

#[test]
fn firefox_files_have_every_count_at_its_time() {
    for split_by_thread in [true, false] {
        let saved = saved(split_by_thread);
        let mut out = Vec::new();
        firefox::write(&saved, &mut out).unwrap();
        let back = back(&out);
        assert_eq!(back.total(), saved.total());
        // The format has microseconds of CPU time, and no weight of a waiting thread besides its count.
        let place = |line: &String| {
            let mut words = line.split_once(": ").unwrap().1.splitn(5, ' ');
            let at_ns: u64 = words.next().unwrap().parse().unwrap();
            (at_ns.div_ceil(1000), words.nth(1).unwrap().to_owned())
        };
        let counted = |saved: &SavedProfile| {
            let mut places: Vec<_> =
                timed_samples(saved, false).iter().map(place).filter(|(_, count)| count != "0").collect();
            places.sort();
            places
        };
        let (ours, theirs) = (counted(&saved), counted(&back));
        for place in &ours {
            assert!(
                theirs.iter().any(|(at, count)| at.abs_diff(place.0) <= 1 && *count == place.1),
                "{place:?}"
            );
        }
    }
}

#[test]
fn a_pause_is_an_empty_stack_of_its_length() {
    let saved = saved(true);
    let mut out = Vec::new();
    speedscope::write(&saved, None, &mut out).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let profile = &file["profiles"][0];
    let samples = profile["samples"].as_array().unwrap();
    let weights = profile["weights"].as_array().unwrap();
    let mut now_ms = 0.0;
    let mut pauses = Vec::new();
    for (stack, weight) in samples.iter().zip(weights) {
        let weight = weight.as_f64().unwrap();
        if stack.as_array().unwrap().is_empty() {
            pauses.push((now_ms, now_ms + weight));
        }
        now_ms += weight;
    }
    assert!(
        pauses.iter().any(|(from, to)| (from - 20.0).abs() < 2.0 && (to - 100.0).abs() < 2.0),
        "20 to 100 ms: {pauses:?}"
    );
    // The axis ends with the last sample.
    assert!((profile["endValue"].as_f64().unwrap() - now_ms).abs() < 1e-6);
}

/// Stacks with counts above their times: a busy thread has no pause to compensate.
#[test]
fn weights_place_samples_at_their_times_and_add_up_to_counts() {
    let mut builder = SavedBuilder::new(About { hz: Some(1000), ..About::default() });
    let process = builder.text("work").unwrap();
    let root = builder.root(StackRoot::of(process)).unwrap();
    let (mut samples, mut counts) = (Vec::new(), Vec::new());
    for number in 0..400 {
        let frame = builder.named_frame(&format!("f{}", number / 4)).unwrap();
        // Each of four samples of 0.9 ms or 1.1 ms counts 4.
        let node = builder.add(root, &[frame], 1).unwrap();
        let weight_ns = if number < 300 { 900_000 } else { 1_300_000 };
        let at_ns = samples.last().map_or(0, |last: &TimedSample| last.at_ns) + weight_ns;
        samples.push(TimedSample { at_ns, weight_ns, node: Some(node), count: 1, cpu: None });
        counts.push(node);
    }
    let (id, begun_ns) = (7, 0);
    let thread = ThreadTimeline { process, pid: None, name: process, id, begun_ns, ended_ns: None, samples };
    builder.set_timeline(Timeline { threads: vec![thread.clone()], ..Timeline::default() });
    let saved = builder.finish();
    let mut out = Vec::new();
    speedscope::write(&saved, None, &mut out).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let (mut now_ms, mut ends, mut sums) = (0.0, Vec::new(), std::collections::BTreeMap::new());
    for profile in file["profiles"].as_array().unwrap() {
        let [stacks, weights] = ["samples", "weights"].map(|key| profile[key].as_array().unwrap());
        for (stack, weight) in stacks.iter().zip(weights) {
            now_ms += weight.as_f64().unwrap();
            let Some(frame) = stack[0].as_u64() else { continue };
            ends.push(now_ms);
            *sums.entry(frame).or_insert(0.0) += weight.as_f64().unwrap();
        }
    }
    for (end_ms, sample) in ends.iter().zip(&thread.samples) {
        let at_ms = sample.at_ns as f64 / 1e6;
        assert!(*end_ms < at_ms + 0.25 + 1e-6 && *end_ms > at_ms - 1.0, "ends at {end_ms}, was at {at_ms}");
    }
    assert_eq!(sums.len(), 100);
    assert!(sums.values().all(|sum| (sum - 4.0).abs() < 1e-6), "{sums:?}");
    assert_eq!(timed_samples(&back(&out), false), timed_samples(&saved, false));
}
