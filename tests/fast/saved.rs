//! Saved profiles: round trips through each format, without loss of anything that the format can express.
//!
//! Random profiles are generated from a seed that failures print; `STACKPROF_SEED` runs one.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::seeds::rounds::seeds;
use stackprof::profile::filter::{self, Filter};
use stackprof::profile::formats::detect;
use stackprof::profile::formats::{firefox, folded, otlp, pprof, speedscope};
use stackprof::profile::saved::Label;
use stackprof::profile::{
    About, ByName, Function, LabelValue, LabelsId, Line, Mapping, SavedBuilder, SavedProfile, StackRoot,
    TextId,
};
use stackprof::rng::Rng;

/// Names with all characters that the formats use as syntax.
const NAMES: [&str; 14] = [
    "main",
    "operator new(unsigned long)",
    "<a::B as c::D<'_>>::e::{closure#0}",
    "[incomplete]",
    "[waiting]",
    "[lib+0x1f40]",
    "io (17)",
    "x 12",
    "\"quoted\\\"",
    "日本語",
    "a<b>&c",
    "f(int) (a.c:7)",
    "# remark",
    "{",
];

fn for_each_seed(rounds: u64, mut check: impl FnMut(&mut Rng)) {
    for seed in seeds(1..rounds + 1) {
        struct Replay(u64);
        impl Drop for Replay {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    eprintln!("replay: STACKPROF_SEED={} cargo test --test fast", self.0);
                }
            }
        }
        let replay = Replay(seed);
        check(&mut Rng::new(replay.0));
    }
}

/// Folded lines; a name that could be a thread or a marker is one only where it can be.
fn random_folded(random: &mut Rng) -> String {
    let mut lines = BTreeMap::new();
    for _ in 0..1 + random.below(60) {
        let mut stack = vec![random.pick(&["work", "a b", "p (1)"]).to_string()];
        if random.below(3) == 0 {
            stack.push(format!("{} ({})", random.pick(&["io", "x y"]), random.below(4)));
        }
        if random.below(4) == 0 {
            stack.push("[incomplete]".to_owned());
        }
        // A name with its own marker would be read as one.
        let usual = |name: &str| !name.starts_with("[w") && name != "[incomplete]";
        stack.extend(
            (0..random.below(12)).map(|_| random.pick(&NAMES)).filter(|n| usual(n)).map(str::to_owned),
        );
        let bits = random.below(52);
        let count = 1 + random.within(0, (1u64 << bits) - 1);
        *lines.entry(stack.join(";")).or_insert(0u64) += count;
    }
    let mut lines: Vec<String> = lines.into_iter().map(|(stack, count)| format!("{stack} {count}")).collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

fn parsed(bytes: &[u8]) -> SavedProfile {
    detect::read(bytes, "memory", bytes.len() as u64).unwrap()
}

fn as_folded(saved: &SavedProfile) -> String {
    let mut out = Vec::new();
    folded::write(&ByName::of(saved, false).unwrap(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A format that is written and read back.
pub(crate) struct Format {
    pub(crate) name: &'static str,
    write: fn(&SavedProfile, &mut dyn Write) -> io::Result<()>,
    /// It keeps all that a profile can have, apart from times.
    is_lossless: bool,
    /// It keeps the time, weight and count of each sample.
    pub(crate) has_times: bool,
}

impl Format {
    pub(crate) fn written(&self, saved: &SavedProfile) -> Vec<u8> {
        let mut out = Vec::new();
        (self.write)(saved, &mut out).unwrap();
        out
    }
}

pub(crate) const FORMATS: [Format; 6] = [
    Format {
        name: "pprof",
        write: |saved, out| pprof::write::write(saved, out),
        is_lossless: true,
        has_times: false,
    },
    Format {
        name: "pprof with times",
        write: |saved, out| pprof::write::write_timed(saved, out),
        is_lossless: true,
        has_times: true,
    },
    Format {
        name: "OTLP",
        write: |saved, out| otlp::write::write(saved, false, out),
        is_lossless: true,
        has_times: true,
    },
    Format {
        name: "packed OTLP",
        write: |saved, out| otlp::write::write(saved, true, out),
        is_lossless: true,
        has_times: true,
    },
    Format {
        name: "speedscope",
        write: |saved, out| speedscope::write(saved, None, out),
        is_lossless: false,
        has_times: true,
    },
    Format {
        name: "firefox",
        write: |saved, out| firefox::write(saved, out),
        is_lossless: false,
        has_times: false,
    },
];

#[test]
fn folded_text_round_trips_through_every_format() {
    for_each_seed(300, |random| {
        let text = random_folded(random);
        let saved = parsed(text.as_bytes());
        assert_eq!(as_folded(&saved), text);
        for format in FORMATS {
            // The Firefox format counts in 31 bits, with at most 1024 samples per stack.
            if format.name == "firefox" && saved.total() >= 1 << 40 {
                continue;
            }
            let written = format.written(&saved);
            assert_eq!(written, format.written(&saved), "{}: same profile, same bytes", format.name);
            let is_packed = format.name.contains("pprof") || format.name.contains("packed");
            assert_eq!(written.starts_with(b"\x1f\x8b"), is_packed, "{}", format.name);
            let back = parsed(&written);
            assert_eq!(as_folded(&back), text, "{}", format.name);
            if format.is_lossless {
                assert_eq!(format.written(&back), written, "{}: written as it was", format.name);
            }
        }
    });
}

/// A profile with everything that a profile can have.
fn full() -> SavedProfile {
    let mut builder = SavedBuilder::new(About {
        hz: Some(997),
        time_unix_ns: Some(1_700_000_000_123_456_789),
        duration_ns: Some(5_000_000_000),
        pid: Some(4242),
        arch: Some("x86_64".into()),
        command: Some("./work --all".into()),
        launched: Some(true),
        idle: Some(true),
        lost: BTreeMap::from([("thread ended".into(), 3)]),
        incomplete: BTreeMap::from([("broken frame chain".into(), 7)]),
        ticks: Some(4985),
        comments: vec!["by hand".into()],
        version: Some("0.1.0".into()),
        ..About::default()
    });
    let mut text = |text: &str| builder.text(text).unwrap();
    let (work, io, lib, id) = (text("work"), text("io"), text("/lib/libx.so"), text("0123abcd"));
    let (outer, mangled, inner, file) =
        (text("space::outer"), text("_ZN5space5outerEv"), text("inner"), text("/src/a.c"));
    let mapping = Mapping { start: 0x7000, limit: 0x9000, file_offset: 0x1000, path: lib, build_id: id };
    let mapping = builder.mapping(mapping).unwrap();
    let outer =
        builder.function(Function { name: outer, system_name: mangled, file, start_line: 10 }).unwrap();
    let inner = builder.function(Function { name: inner, file, ..Function::default() }).unwrap();
    let lines = [Line { function: outer, line: 12 }, Line { function: inner, line: 3 }];
    let inlined = builder.frame(0x7123, Some(mapping), &lines).unwrap();
    let bare = builder.frame(0x7f00, Some(mapping), &[]).unwrap();
    let nowhere = builder.frame(u64::MAX, None, &[]).unwrap();
    let (tenant, acme, size, unit) = (
        builder.text("tenant").unwrap(),
        builder.text("acme").unwrap(),
        builder.text("size").unwrap(),
        builder.text("bytes").unwrap(),
    );
    let label = |key, value| Label { key, value };
    let labels =
        [LabelValue::Text(acme), LabelValue::Number(-4096, unit), LabelValue::Number(7, TextId::EMPTY)];
    let mut labels: Vec<Label> =
        [tenant, size, acme].into_iter().zip(labels).map(|(key, value)| label(key, value)).collect();
    let labelled = builder.labels(&mut labels).unwrap();
    for (count, (thread, complete, waiting)) in (1..).zip([
        (Some((io, u64::MAX)), true, false),
        (Some((io, 17)), false, false),
        (None, true, true),
        (None, false, true),
    ]) {
        let root = builder
            .root(StackRoot {
                process: work,
                thread,
                complete,
                waiting,
                labels: if waiting { LabelsId::NONE } else { labelled },
            })
            .unwrap();
        builder.add(root, &[inlined, bare, nowhere], count).unwrap();
        builder.add(root, &[inlined], 10 * count).unwrap();
        builder.add(root, &[], 100 * count).unwrap();
    }
    builder.finish()
}

/// The complete content of a profile as text.
fn content(saved: &SavedProfile) -> String {
    let mut lines = vec![format!("{:?}", saved.about)];
    saved.for_each_stack(|root, frames, count| {
        let text = |id| saved.text(id);
        let thread = root.thread.map(|(name, id)| (text(name), id));
        let mut line =
            format!("{} {thread:?} {} {} {count}", text(root.process), root.complete, root.waiting);
        let mut labels: Vec<String> = saved
            .labels(root.labels)
            .iter()
            .map(|label| match label.value {
                LabelValue::Text(value) => format!("{}: {}", text(label.key), text(value)),
                LabelValue::Number(number, unit) => format!("{}: {number} {}", text(label.key), text(unit)),
            })
            .collect();
        labels.sort();
        line += &format!(" {labels:?}");
        for frame in frames {
            let frame = &saved.frames()[*frame as usize];
            let mapping = frame.mapping.map(|mapping| saved.mappings()[mapping as usize]);
            let mapping = mapping.map(|m| (m.start, m.limit, m.file_offset, text(m.path), text(m.build_id)));
            line += &format!(" {:#x} {mapping:?}", frame.address);
            for at in saved.lines_of(frame) {
                let f = saved.function(at.function);
                let names = (text(f.name), text(f.system_name), text(f.file), f.start_line);
                line += &format!(" {names:?}:{}", at.line);
            }
        }
        lines.push(line);
    });
    lines[1..].sort();
    lines.join("\n")
}

#[test]
fn lossless_formats_keep_everything() {
    let saved = full();
    for format in FORMATS.iter().filter(|format| format.is_lossless) {
        assert_eq!(content(&parsed(&format.written(&saved))), content(&saved), "{}", format.name);
    }
}

#[test]
fn labels_are_kept_by_merges_and_filters_and_dropped_for_formats_without_them() {
    let saved = full();
    assert!(content(&saved).contains("[\"acme: 7 \", \"size: -4096 bytes\", \"tenant: acme\"]"));
    let mut builder = SavedBuilder::new(saved.about.clone());
    builder.add_stacks(&saved).unwrap();
    builder.merge(&saved).unwrap();
    let twice = builder.finish();
    assert_eq!(
        content(&twice).matches("tenant: acme").count(),
        content(&saved).matches("tenant: acme").count()
    );
    let matches = |name: &str| name == "inner";
    let filter = Filter { include: Some(&matches), ..Filter::default() };
    let (filtered, _) = filter::apply(&saved, &filter, false).unwrap();
    assert!(content(&filtered).contains("tenant: acme"));
    let bare = saved.without_labels().unwrap();
    assert!(!bare.has_labels() && !content(&bare).contains("tenant: acme"));
    assert_eq!((as_folded(&bare), bare.total()), (as_folded(&saved), saved.total()));
}

#[test]
fn every_format_keeps_stacks_threads_and_time() {
    let saved = full();
    for format in FORMATS {
        let back = parsed(&format.written(&saved));
        assert_eq!(as_folded(&back), as_folded(&saved));
        let with_lines = |saved: &SavedProfile| {
            let mut out = Vec::new();
            folded::write(&ByName::of(saved, true).unwrap(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(with_lines(&back), with_lines(&saved));
        assert_eq!((back.about.hz, back.about.pid), (Some(997), Some(4242)));
        // A comparison needs these.
        assert_eq!(back.about.lost, saved.about.lost);
        let extent = |about: &About| (about.launched, about.duration_ns, about.idle, about.time_unix_ns);
        assert_eq!(extent(&back.about), extent(&saved.about));
        assert_eq!(back.total(), saved.total());
        let waiting = |saved: &SavedProfile| {
            let mut sum = 0;
            saved.for_each_stack(|root, _, count| sum += if root.waiting { count } else { 0 });
            sum
        };
        assert_eq!(waiting(&back), waiting(&saved));
    }
}

#[test]
fn short_times_and_other_units_round_trip_through_every_format() {
    for (hz, unit) in [(Some(10_000_000), "samples"), (None, "bytes"), (None, "contentions")] {
        let mut builder =
            SavedBuilder::new(About { hz, unit: unit.to_owned(), idle: Some(true), ..About::default() });
        let process = builder.text("p").unwrap();
        for (count, waiting) in [(1, false), (2, true)] {
            let root = StackRoot {
                process,
                thread: None,
                complete: true,
                waiting,
                labels: stackprof::profile::LabelsId::NONE,
            };
            let root = builder.root(root).unwrap();
            let frame = builder.named_frame("f").unwrap();
            builder.add(root, &[frame], count).unwrap();
        }
        let saved = builder.finish();
        for format in FORMATS {
            let back = parsed(&format.written(&saved));
            assert_eq!((back.about.hz, back.about.unit.as_str()), (hz, unit));
            assert_eq!(content(&back).lines().count(), 3, "{}", content(&back));
        }
    }
}

#[test]
fn the_deepest_stack_round_trips_through_every_format() {
    let deepest = format!("p;io (7);[incomplete]{} 1\n", ";f".repeat(stackprof::profile::DEPTH_MAX));
    let saved = parsed(deepest.as_bytes());
    for format in FORMATS {
        assert_eq!(as_folded(&parsed(&format.written(&saved))), deepest, "{}", format.name);
    }
}

#[test]
fn merged_profiles_keep_their_processes_apart() {
    let (a, b) = (parsed(b"one;main 3\none;main;x 1\n"), parsed(b"two;main 4\none;main 5\n"));
    let mut builder = SavedBuilder::new(a.about.clone());
    builder.add_stacks(&a).unwrap();
    builder.merge(&b).unwrap();
    assert_eq!(as_folded(&builder.finish()), "one;main 8\none;main;x 1\ntwo;main 4\n");
    let mut builder = SavedBuilder::new(About { hz: Some(99), ..About::default() });
    let refused = builder.merge(&full()).unwrap_err();
    assert_eq!(refused.to_string(), "one was recorded at 99 Hz, the other at 997 Hz");
}
