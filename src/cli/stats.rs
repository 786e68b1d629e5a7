//! The statistics of a recording as JSON (`--stats`): the numbers of the closing summary for
//! scripts. Input: the profile's counters and the run's figures. Output: one object with the stable
//! keys of the CLI contract, in its order. Measures nothing itself.
//!
//! `HeapFigures` are those of a heap recording.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::escape::escape_json;
use crate::recording::Stats;
use crate::sources::{ExitStatus, Process};
use crate::walk::Method;

/// State of a launched command at the end of its recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandState {
    /// It has ended, or none was launched.
    #[default]
    Ended,
    /// It is still running.
    Runs,
    /// `--kill-after` ended it.
    Killed,
    /// It is still running after SIGKILL by `--kill-after`.
    Survived,
}

impl CommandState {
    /// Whether it is still running.
    #[must_use]
    pub fn still_runs(self) -> bool {
        matches!(self, CommandState::Runs | CommandState::Survived)
    }
}

/// Numbers of a run that are not in the profile's own counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFigures {
    /// We launched the command, so its exit status is reported.
    pub launched: bool,
    /// State of that command.
    pub command: CommandState,
    /// The user for whom sudo or doas ran the command as root, without `--as`.
    pub user_behind_root: Option<String>,
    /// What makes the recording nearly worthless.
    pub(super) problem: Option<String>,
    /// The functions with the most self counts, as the summary shows them.
    pub hottest: Option<String>,
    /// Figures of a heap recording.
    pub(super) heap: Option<HeapFigures>,
    /// Resolution of sample times as in the summary, if not every sample has its own.
    pub times: Option<String>,
    /// Distinct stacks in the trie.
    pub distinct_stacks: u64,
    /// Nodes of the trie.
    pub trie_nodes: u64,
    /// Memory of the trie, bytes.
    pub trie_bytes: u64,
    /// Distinct code addresses in the trie.
    pub addresses_unique: u64,
    /// Symbol lookups.
    pub addresses_looked_up: u64,
    /// Addresses with a name.
    pub addresses_named: u64,
    /// CPU time of the profiler itself, seconds.
    pub profiler_cpu_s: f64,
    /// Peak memory of the profiler itself, bytes.
    pub profiler_peak_rss_bytes: u64,
    /// Memory of the profiler itself at the end of the recording, before symbolication.
    pub memory: Memory,
    /// Time to read images and symbolicate addresses, seconds.
    pub symbolicate_s: f64,
    /// Time to write the outputs, seconds.
    pub write_s: f64,
    /// Outputs as the user named them; `-` is standard output.
    pub outputs: Vec<String>,
}

/// Memory of the profiler itself at the end of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Peak resident memory so far, bytes.
    pub peak_bytes: u64,
    /// Resident private memory, bytes, if the system reports it.
    pub private_bytes: Option<u64>,
    /// Resident mapped files, bytes, if the system reports it: also in the page cache.
    pub file_bytes: Option<u64>,
}

/// Achieved ticks per second; 0 for a recording of zero length.
#[must_use]
fn hz_achieved(stats: &Stats) -> f64 {
    if stats.duration_ns == 0 { 0.0 } else { stats.ticks as f64 * 1e9 / stats.duration_ns as f64 }
}

/// Frames by unwind method; methods without frames are left out.
pub fn frames_by_method(stats: &Stats) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = Method::ALL.iter().zip(stats.frames_by_method);
    counts.filter(|(_, count)| *count > 0).map(|(method, count)| (method.name(), count))
}

/// The JSON text, with a newline.
#[must_use]
pub fn json(process: &Process, hz: u32, stats: &Stats, figures: &RunFigures) -> String {
    // A heap recording has no ticks.
    let has_ticks = figures.heap.is_none();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        command: &process.command,
        pid: process.pid,
        process: &process.name,
        arch: process.arch.name(),
        backend: process.backend,
        backend_why: &process.backend_why,
        hz_requested: has_ticks.then_some(hz),
        hz_achieved: has_ticks.then(|| rounded(hz_achieved(stats))),
        duration_s: seconds(stats.duration_ns),
        ticks: has_ticks.then_some(stats.ticks),
        ticks_late: stats.ticks_late,
        ticks_late_wakeup: stats.ticks_late_wakeup,
        ticks_spared: stats.ticks_skipped,
        samples_pushed: stats.samples_pushed,
        waits: stats.waits,
        stops: stats.stops,
        stops_let_go: stats.stops_released_waiting,
        stops_not_on_cpu: stats.stops_not_on_cpu,
        samples: stats.samples,
        samples_idle_reused: stats.samples_idle_reused,
        samples_effective: stats.samples_effective,
        threads_seen: stats.threads_seen,
        processes_seen: stats.processes_seen,
        stacks_complete: stats.stacks_complete,
        stacks_incomplete: &stats.stacks_incomplete,
        frames_by_method: frames_by_method(stats).collect(),
        samples_lost: &stats.samples_lost,
        heap: figures.heap.as_ref(),
        distinct_stacks: figures.distinct_stacks,
        trie_nodes: figures.trie_nodes,
        trie_bytes: figures.trie_bytes,
        addresses_unique: figures.addresses_unique,
        addresses_looked_up: figures.addresses_looked_up,
        addresses_named: figures.addresses_named,
        pause_ns: Pause {
            p50: stats.pause.quantile_ns(0.5),
            p90: stats.pause.quantile_ns(0.9),
            p99: stats.pause.quantile_ns(0.99),
            max: stats.pause.max_ns(),
            total: stats.pause.total_ns(),
        },
        stood_ns: stats.stopped_ns,
        held_up_ns: stats.held_up_ns,
        target_cpu_s: seconds(stats.target_cpu_ns),
        machine_idle_share: stats.machine_idle.map(rounded),
        profiler_cpu_s: rounded(figures.profiler_cpu_s),
        profiler_peak_rss_bytes: figures.profiler_peak_rss_bytes,
        recording_peak_rss_bytes: figures.memory.peak_bytes,
        recording_private_bytes: figures.memory.private_bytes,
        recording_file_bytes: figures.memory.file_bytes,
        rings_bytes: stats.rings_bytes,
        stacks_bytes: stats.stacks_bytes,
        symbolicate_s: rounded(figures.symbolicate_s),
        write_s: rounded(figures.write_s),
        still_runs: figures.command.still_runs(),
        exit_status: stats.exit_status.filter(|_| figures.launched),
        outputs: &figures.outputs,
    };
    // Serializing numbers, strings and maps with string keys into memory cannot fail.
    let mut text = serde_json::to_string_pretty(&report).unwrap_or_default();
    text.push('\n');
    escape_json(&text).into_owned()
}

/// Nanoseconds as seconds: an integer below 2^53 is exact before the division.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Rounds to the resolution of our clocks.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// The field order is the key order.
#[derive(Serialize)]
struct Report<'a> {
    version: &'a str,
    command: &'a str,
    pid: u32,
    process: &'a str,
    arch: &'a str,
    backend: &'a str,
    backend_why: &'a str,
    hz_requested: Option<u32>,
    hz_achieved: Option<f64>,
    duration_s: f64,
    ticks: Option<u64>,
    ticks_late: u64,
    ticks_late_wakeup: Option<u64>,
    /// Skipped by --max-stop.
    ticks_spared: u64,
    samples_pushed: u64,
    waits: u64,
    stops: u64,
    /// Stops of threads that had begun to wait, released at once.
    stops_let_go: u64,
    stops_not_on_cpu: u64,
    samples: u64,
    samples_idle_reused: u64,
    samples_effective: u64,
    threads_seen: u64,
    processes_seen: u64,
    stacks_complete: u64,
    stacks_incomplete: &'a BTreeMap<&'static str, u64>,
    frames_by_method: BTreeMap<&'static str, u64>,
    samples_lost: &'a BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heap: Option<&'a HeapFigures>,
    distinct_stacks: u64,
    trie_nodes: u64,
    trie_bytes: u64,
    addresses_unique: u64,
    addresses_looked_up: u64,
    addresses_named: u64,
    pause_ns: Pause,
    /// How long threads were stopped, nanoseconds.
    stood_ns: u64,
    held_up_ns: u64,
    target_cpu_s: f64,
    machine_idle_share: Option<f64>,
    profiler_cpu_s: f64,
    profiler_peak_rss_bytes: u64,
    recording_peak_rss_bytes: u64,
    recording_private_bytes: Option<u64>,
    recording_file_bytes: Option<u64>,
    rings_bytes: u64,
    stacks_bytes: u64,
    symbolicate_s: f64,
    write_s: f64,
    still_runs: bool,
    #[serde(serialize_with = "exit_status")]
    exit_status: Option<ExitStatus>,
    outputs: &'a [String],
}

#[derive(Serialize)]
struct Pause {
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
    total: u64,
}

fn exit_status<S: Serializer>(status: &Option<ExitStatus>, serializer: S) -> Result<S::Ok, S::Error> {
    match status {
        Some(ExitStatus::Code(code)) => serializer.serialize_i32(*code),
        Some(ExitStatus::Signal(signal)) => serializer.collect_str(&format_args!("signal {signal}")),
        Some(ExitStatus::Unknown) | None => serializer.serialize_none(),
    }
}

// ---- Figures of a heap recording, as `--stats` writes them. docs/json.md explains them.

/// Heap statistics for `--stats`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HeapFigures {
    pub(super) every_bytes: u64,
    pub(super) moment: &'static str,
    pub(super) samples: u64,
    pub(super) inuse_space: u64,
    pub(super) inuse_space_error: f64,
    pub(super) inuse_space_interval: [u64; 2],
    pub(super) inuse_objects: u64,
    pub(super) inuse_objects_error: f64,
    pub(super) inuse_objects_interval: [u64; 2],
    pub(super) alloc_space: u64,
    pub(super) alloc_space_error: f64,
    pub(super) alloc_space_interval: [u64; 2],
    pub(super) alloc_objects: u64,
    pub(super) alloc_objects_error: f64,
    pub(super) alloc_objects_interval: [u64; 2],
    pub(super) churn_space: u64,
    pub(super) churn_objects: u64,
    pub(super) peak_space: u64,
    pub(super) frees: u64,
    pub(super) frees_unknown: u64,
    pub(super) frees_missing: u64,
    pub(super) frees_lost: u64,
    pub(super) samples_lost: u64,
    pub(super) samples_lost_bytes: u64,
    pub(super) samples_early: u64,
    pub(super) samples_untracked: u64,
    pub(super) records_malformed: u64,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::arch::Arch;

    /// A process on Linux.
    pub(crate) fn process() -> Process {
        Process {
            pid: 4242,
            name: "work".into(),
            command: "./work \"x\"".into(),
            arch: Arch::X86_64,
            backend: "ptrace",
            backend_why: String::new(),
            cpus: 2,
            address_mask: u64::MAX,
            fp_always: false,
            cfi: true,
            stops_interrupt_syscalls: true,
            stops_hold_all: false,
        }
    }

    fn stats() -> Stats {
        let mut stats = Stats {
            duration_ns: 10_000_000_000,
            ticks: 9968,
            ticks_late: 3,
            ticks_skipped: 2,
            stops: 9970,
            stops_released_waiting: 12,
            stops_not_on_cpu: 5,
            stopped_ns: 11,
            held_up_ns: 6,
            samples: 9970,
            samples_idle_reused: 1,
            samples_effective: 9960,
            threads_seen: 4,
            processes_seen: 1,
            stacks_complete: 9951,
            stacks_incomplete: BTreeMap::from([("deeper than copied", 14), ("broken frame chain", 5)]),
            frames_by_method: [10, 40, 0, 0, 0, 0, 0, 0],
            samples_lost: BTreeMap::from([("thread ended", 2)]),
            target_cpu_ns: 9_990_000_000,
            rings_bytes: 8,
            stacks_bytes: 9,
            exit_status: Some(ExitStatus::Code(3)),
            ..Stats::default()
        };
        stats.pause.add(7);
        stats.pause.add(9);
        stats
    }

    #[test]
    fn the_object_has_the_keys_of_the_contract_in_order() {
        let figures = RunFigures {
            launched: true,
            command: CommandState::Ended,
            user_behind_root: None,
            problem: None,
            hottest: None,
            heap: None,
            distinct_stacks: 10,
            trie_nodes: 20,
            trie_bytes: 30,
            times: None,
            addresses_unique: 312,
            addresses_looked_up: 312,
            addresses_named: 310,
            profiler_cpu_s: 0.123_456_789,
            profiler_peak_rss_bytes: 1 << 20,
            memory: Memory { peak_bytes: 900, private_bytes: Some(500), file_bytes: None },
            symbolicate_s: 0.5,
            write_s: 0.25,
            outputs: vec!["a.svg".into(), "-".into()],
        };
        let expected = format!(
            r#"{{
  "version": "{}",
  "command": "./work \"x\"",
  "pid": 4242,
  "process": "work",
  "arch": "x86_64",
  "backend": "ptrace",
  "backend_why": "",
  "hz_requested": 997,
  "hz_achieved": 996.8,
  "duration_s": 10.0,
  "ticks": 9968,
  "ticks_late": 3,
  "ticks_late_wakeup": null,
  "ticks_spared": 2,
  "samples_pushed": 0,
  "waits": 0,
  "stops": 9970,
  "stops_let_go": 12,
  "stops_not_on_cpu": 5,
  "samples": 9970,
  "samples_idle_reused": 1,
  "samples_effective": 9960,
  "threads_seen": 4,
  "processes_seen": 1,
  "stacks_complete": 9951,
  "stacks_incomplete": {{
    "broken frame chain": 5,
    "deeper than copied": 14
  }},
  "frames_by_method": {{
    "cfi": 40,
    "context": 10
  }},
  "samples_lost": {{
    "thread ended": 2
  }},
  "distinct_stacks": 10,
  "trie_nodes": 20,
  "trie_bytes": 30,
  "addresses_unique": 312,
  "addresses_looked_up": 312,
  "addresses_named": 310,
  "pause_ns": {{
    "p50": 7,
    "p90": 9,
    "p99": 9,
    "max": 9,
    "total": 16
  }},
  "stood_ns": 11,
  "held_up_ns": 6,
  "target_cpu_s": 9.99,
  "machine_idle_share": null,
  "profiler_cpu_s": 0.123457,
  "profiler_peak_rss_bytes": 1048576,
  "recording_peak_rss_bytes": 900,
  "recording_private_bytes": 500,
  "recording_file_bytes": null,
  "rings_bytes": 8,
  "stacks_bytes": 9,
  "symbolicate_s": 0.5,
  "write_s": 0.25,
  "still_runs": false,
  "exit_status": 3,
  "outputs": [
    "a.svg",
    "-"
  ]
}}
"#,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(json(&process(), 997, &stats(), &figures), expected);
    }

    #[test]
    fn only_a_launched_command_has_an_exit_status() {
        for (launched, status, expected) in [
            (true, Some(ExitStatus::Code(0)), "0"),
            (true, Some(ExitStatus::Signal(9)), "\"signal 9\""),
            (true, Some(ExitStatus::Unknown), "null"),
            (true, None, "null"),
            (false, Some(ExitStatus::Code(3)), "null"),
        ] {
            let stats = Stats { exit_status: status, ..stats() };
            let figures = RunFigures { launched, ..RunFigures::default() };
            let text = json(&process(), 997, &stats, &figures);
            assert!(text.contains(&format!("\"exit_status\": {expected},")), "{launched} {status:?}");
        }
    }

    #[test]
    fn a_recording_of_zero_length_is_still_json() {
        let text = json(&process(), 997, &Stats::default(), &RunFigures::default());
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["hz_achieved"], 0.0);
        assert_eq!(value["pause_ns"]["p99"], 0);
    }
}
