//! Real files of other tools: totals and hottest functions equal those of the original tool.
//!
//! The files are in tests/fixtures/readers.

use std::collections::BTreeMap;

use crate::support::{Place, folded};

/// Total, unit, and the hottest function with its self count.
type Told<'a> = (u64, &'a str, &'a str, u64);

fn read(file: &str, told: Told<'_>) {
    let place = Place::new();
    let path = format!("{}/tests/fixtures/readers/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(path, place.path("file")).unwrap();
    let run = place.run("render --strict file -o -").succeeds();
    let mut own: BTreeMap<&str, u64> = BTreeMap::new();
    for line in run.stdout.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        *own.entry(stack.rsplit(';').next().unwrap()).or_default() += count.parse::<u64>().unwrap();
    }
    let (total, unit, hottest, count) = told;
    assert_eq!(own.values().sum::<u64>(), total, "{file}: {run}");
    assert_eq!(own.iter().max_by_key(|(_, count)| **count), Some((&hottest, &count)), "{file}");
    assert!(run.stderr.contains(&format!(": {total} {unit} in ")), "{file}: {run}");
}

/// Expected values of stackcollapse-perf.pl, which uses periods; equal ones are samples.
#[test]
fn reads_texts_of_perf_script() {
    read("perf-source-lines.txt", (12, "samples", "hot", 92_783_502 / 10_309_278));
    read("perf-without-stacks.txt", (40, "samples", "hot", 25));
    read("perf-periods.txt", (2224, "page-faults", "_dl_relocate_object", 2196));
    read("perf-tracepoint.txt", (4, "samples", "__schedule", 4));
    read("perf-tracepoint-without-stacks.txt", (8, "samples", "work", 4));
    read("perf-data-addresses.txt", (59, "samples", "_dl_relocate_object", 5));
}

/// The same recording of perf as saved by the Firefox Profiler: JSON, and binary columns. Expected values of
/// profiler-cli.
#[test]
fn reads_files_of_the_firefox_profiler() {
    read("firefox-shared.json", (60, "samples", "hot", 42));
    read("firefox-slabs.jslb", (60, "samples", "hot", 42));
}

/// speedscope's export of it: its threads with one sample are counts. Expected values of its importer.
#[test]
fn reads_files_of_speedscope() {
    read("speedscope-mixed.speedscope.json", (674_276_000, "nanoseconds", "hot", 425_641_000));
}

/// Expected values of `go tool pprof -top`.
#[test]
fn reads_profiles_of_go() {
    read("go-cpu.pb.gz", (33, "samples", "main.hot", 22));
    read("go-heap.pb.gz", (9_630_269, "bytes", "main.allocate", 7_368_741));
    read("go-mutex.pb.gz", (957_627_529, "nanoseconds", "sync.(*Mutex).Unlock", 957_627_529));
}

/// Sums of the file's own numbers.
#[test]
fn reads_files_of_py_spy() {
    read("py-spy.txt", (117, "samples", "hot (work.py:5)", 92));
    read("py-spy.speedscope.json", (444_444_440, "nanoseconds", "hot", 282_828_280));
}

#[test]
fn source_lines_are_shown() {
    let place = Place::new();
    let path = format!("{}/tests/fixtures/readers/perf-source-lines.txt", env!("CARGO_MANIFEST_DIR"));
    let run = place.run(&format!("render -q --lines {path} -o -")).succeeds();
    assert!(run.stdout.contains(";hot (work.c:"), "{run}");
}

/// Frames that open and close, in two units of time: each stack has the time until the next event.
#[test]
fn an_evented_file_of_speedscope_has_the_sums_of_its_events() {
    let place = Place::new();
    place.write(
        "evented.json",
        r#"{"$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": "main"}, {"name": "parse"}, {"name": "write"}]},
            "profiles": [
              {"type": "evented", "name": "one", "unit": "milliseconds", "startValue": 0, "endValue": 10,
               "events": [{"type": "O", "frame": 0, "at": 0}, {"type": "O", "frame": 1, "at": 2},
                          {"type": "C", "frame": 1, "at": 7}, {"type": "O", "frame": 2, "at": 7},
                          {"type": "C", "frame": 2, "at": 8.5}, {"type": "C", "frame": 0, "at": 10}]},
              {"type": "evented", "name": "two", "unit": "microseconds", "startValue": 100, "endValue": 400,
               "events": [{"type": "O", "frame": 1, "at": 100}, {"type": "C", "frame": 1, "at": 350}]}]}"#,
    );
    let run = place.run("render --strict evented.json -o - -o a.svg").succeeds();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, count) in folded(&run.stdout) {
        let frames: Vec<&str> =
            stack.split(';').filter(|frame| ["main", "parse", "write"].contains(frame)).collect();
        *sums.entry(frames.join(";")).or_default() += count;
    }
    let expected =
        [("main", 3_500_000), ("main;parse", 5_000_000), ("main;write", 1_500_000), ("parse", 250_000)];
    assert_eq!(sums, expected.map(|(stack, ns)| (stack.to_owned(), ns)).into(), "{run}");
    assert!(run.stderr.contains(": 10250000 nanoseconds in "), "{run}");
    assert!(place.read("a.svg").contains("parse"), "{run}");
    let table = place.run("render evented.json --top 1").succeeds();
    assert!(table.stdout.contains("5,250,000"), "{table}");
}

/// Code without a symbol, as stackprof and other tools write it, keeps its module and its offset in each
/// format.
#[test]
fn frames_with_only_module_and_offset_are_kept() {
    let place = Place::new();
    let text = "p;[lib+0x1f40] 3\np;main;[lib+0x10] 4\np;main;[libz.so.1:fn+0x2b0];[lib+0x1f40] 5\n";
    place.write("a.folded", text);
    for output in ["b.pb.gz", "b.speedscope.json", "b.firefox.json", "b.folded"] {
        place.run(&format!("render -q --strict a.folded -o {output}")).succeeds();
        let back = place.run(&format!("render -q --strict {output} -o -")).succeeds();
        assert_eq!(back.stdout, text, "{output}: {back}");
    }
    let table = place.run("render a.folded --top").succeeds();
    for row in ["66.7%  8  66.7%  8  [lib+0x1f40]", "33.3%  4  33.3%  4  [lib+0x10]"] {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join("  ");
        assert!(table.stdout.lines().any(|line| words(line).starts_with(row)), "{row}: {table}");
    }
}
