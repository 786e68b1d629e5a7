//! Real files of other tools: totals and hottest functions are those that the owning tool tells.
//!
//! The files are in tests/fixtures/readers; `scripts/compare-readers.sh` makes such files anew and
//! compares all of their functions.

use std::collections::BTreeMap;

use crate::support::Place;

/// Total, unit, and the hottest function with its own count.
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

/// Figures of stackcollapse-perf.pl, which has periods; equal ones are samples.
#[test]
fn texts_of_perf_script() {
    read("perf-source-lines.txt", (12, "samples", "hot", 92_783_502 / 10_309_278));
    read("perf-without-stacks.txt", (40, "samples", "hot", 25));
    read("perf-periods.txt", (2224, "page-faults", "_dl_relocate_object", 2196));
    read("perf-tracepoint.txt", (4, "samples", "__schedule", 4));
    read("perf-tracepoint-without-stacks.txt", (8, "samples", "work", 4));
    read("perf-data-addresses.txt", (59, "samples", "_dl_relocate_object", 5));
}

/// The same recording of perf as the Firefox Profiler saves it: JSON, and binary columns. Figures of
/// profiler-cli.
#[test]
fn files_of_the_firefox_profiler() {
    read("firefox-shared.json", (60, "samples", "hot", 42));
    read("firefox-slabs.jslb", (60, "samples", "hot", 42));
}

/// What speedscope exports of it: its threads of one sample are counts. Figures of its importer.
#[test]
fn files_of_speedscope() {
    read("speedscope-mixed.speedscope.json", (674_276_000, "nanoseconds", "hot", 425_641_000));
}

/// Figures of `go tool pprof -top`.
#[test]
fn profiles_of_go() {
    read("go-cpu.pb.gz", (33, "samples", "main.hot", 22));
    read("go-heap.pb.gz", (9_630_269, "bytes", "main.allocate", 7_368_741));
    read("go-mutex.pb.gz", (957_627_529, "nanoseconds", "sync.(*Mutex).Unlock", 957_627_529));
}

/// Sums of the file's own numbers.
#[test]
fn files_of_py_spy() {
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
