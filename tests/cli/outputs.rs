//! Results of a recording: the files, their owners, their agreement with each other and with the statistics.
//! The process is simulated, so the numbers are the same on any machine.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::Value;

use crate::skip::skip;
use crate::support::{Place, folded, is_root, total};

/// The keys of `--stats`, in the documented order.
const KEYS: [&str; 50] = [
    "version",
    "command",
    "pid",
    "process",
    "arch",
    "backend",
    "backend_why",
    "hz_requested",
    "hz_achieved",
    "duration_s",
    "ticks",
    "ticks_late",
    "ticks_late_wakeup",
    "ticks_spared",
    "samples_pushed",
    "waits",
    "stops",
    "stops_let_go",
    "stops_not_on_cpu",
    "samples",
    "samples_idle_reused",
    "samples_effective",
    "threads_seen",
    "processes_seen",
    "stacks_complete",
    "stacks_incomplete",
    "frames_by_method",
    "samples_lost",
    "distinct_stacks",
    "trie_nodes",
    "trie_bytes",
    "addresses_unique",
    "addresses_looked_up",
    "addresses_named",
    "pause_ns",
    "stood_ns",
    "held_up_ns",
    "target_cpu_s",
    "machine_idle_share",
    "profiler_cpu_s",
    "profiler_peak_rss_bytes",
    "recording_peak_rss_bytes",
    "recording_private_bytes",
    "recording_file_bytes",
    "rings_bytes",
    "stacks_bytes",
    "symbolicate_s",
    "write_s",
    "still_runs",
    "exit_status",
];

/// The top-level keys in the order of the text (a parsed map loses it).
fn keys(json: &str) -> Vec<&str> {
    let top = json.lines().filter(|line| line.starts_with("  \""));
    top.filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect()
}

fn number(stats: &Value, key: &str) -> u64 {
    stats[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", stats[key]))
}

/// Between fork and exec the new process is as large as its parent, and the system records that as its peak.
#[cfg(target_os = "linux")]
#[test]
fn the_reported_memory_is_the_profilers() {
    let large = std::hint::black_box(vec![1_u8; 300 << 20]);
    let place = Place::new();
    place.run("-q --target sim:1 -o a.folded --stats s.json").succeeds();
    let stats: Value = serde_json::from_str(&place.read("s.json")).unwrap();
    let bytes = number(&stats, "profiler_peak_rss_bytes");
    assert!((1 << 20..200 << 20).contains(&bytes), "{bytes} bytes, started by {} of memory", large.len());
}

#[test]
fn several_outputs_and_the_statistics_agree() {
    for seed in [1, 2, 3] {
        for options in ["", "--idle", "--threads", "--idle --threads --max-depth 5"] {
            let place = Place::new();
            let line =
                format!("--target sim:{seed} {options} -o a.svg -o a.folded -o b.txt -o - --stats s.json");
            let run = place.run(&line).succeeds();
            assert_eq!(
                place.files().into_keys().collect::<Vec<_>>(),
                ["a.folded", "a.svg", "b.txt", "s.json"]
            );
            let text = place.read("a.folded");
            assert_eq!((&text, &text), (&run.stdout, &place.read("b.txt")), "{run}");

            let lines: Vec<&str> = text.lines().collect();
            let mut sorted = lines.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(lines, sorted, "sorted bytewise, each once");
            let stacks = folded(&text);
            assert!(stacks.iter().all(|(stack, count)| *count > 0 && stack.starts_with("sim;")), "{text}");
            if options.contains("--threads") {
                let named = |stack: &str| stack.split(';').nth(1).is_some_and(|frame| frame.ends_with(')'));
                assert!(stacks.iter().all(|(stack, _)| named(stack)), "{text}");
            }

            let json = place.read("s.json");
            let stats: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(keys(&json), [&KEYS[..], &["outputs"]].concat());
            assert_eq!(number(&stats, "samples"), total(&text), "{json}");
            assert_eq!(number(&stats, "addresses_looked_up"), number(&stats, "addresses_unique"), "{json}");
            assert!(number(&stats, "addresses_named") <= number(&stats, "addresses_unique"), "{json}");
            assert!(number(&stats, "distinct_stacks") >= stacks.len() as u64, "{json}");
            assert!(number(&stats, "trie_nodes") >= number(&stats, "distinct_stacks"), "{json}");
            assert!(number(&stats, "samples_idle_reused") <= number(&stats, "samples"), "{json}");
            assert!((1..=number(&stats, "samples")).contains(&number(&stats, "samples_effective")), "{json}");
            let idle = options.contains("--idle");
            assert!(idle || number(&stats, "samples_idle_reused") == 0, "{json}");
            assert_eq!(stats["outputs"], serde_json::json!(["a.svg", "a.folded", "b.txt", "-"]));
            assert_eq!(stats["version"], env!("CARGO_PKG_VERSION"));
            assert_eq!((&stats["hz_requested"], &stats["process"]), (&997.into(), &"sim".into()));
            assert_eq!(stats["exit_status"], Value::Null, "not a command that was launched");
            let achieved = number(&stats, "ticks") as f64 / stats["duration_s"].as_f64().unwrap();
            assert!((stats["hz_achieved"].as_f64().unwrap() - achieved).abs() < 0.001, "{json}");
            let pause = |key: &str| number(&stats["pause_ns"], key);
            assert!(pause("p50") <= pause("p90") && pause("p90") <= pause("p99"), "{json}");
            assert!(pause("p99") <= pause("max") && pause("max") <= pause("total"), "{json}");
            let incomplete = stats["stacks_incomplete"].as_object().unwrap().values();
            let incomplete: u64 = incomplete.filter_map(Value::as_u64).sum();
            let walked = number(&stats, "stacks_complete") + incomplete;
            assert_eq!(walked, number(&stats, "samples"), "{json}");
            let shown = stacks.iter().filter(|(stack, _)| stack.contains(";[incomplete]"));
            assert_eq!(incomplete > 0, shown.count() > 0, "{json}");

            let svg = place.read("a.svg");
            let samples = format!("total_samples=\"{}\"", total(&text));
            assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"), "whole");
            assert!(svg.contains(&samples), "{samples}");
            assert!(svg.contains("sim (pid 4242)"));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for options in ["", "--idle --threads", "--reverse --hz 100 --title T"] {
        let (first, second) = (Place::new(), Place::new());
        for seed in [1, 7, u64::MAX] {
            let line = format!("-q --target sim:{seed} {options} -o a.folded -o a.svg");
            first.run(&line).succeeds();
            second.run(&line).succeeds();
            assert!(!first.read("a.folded").is_empty());
            assert_eq!(first.read("a.folded"), second.read("a.folded"), "{line}");
            assert_eq!(first.read("a.svg"), second.read("a.svg"), "{line}");
        }
    }
    for what in ["threads", "images", "symbols", "stacks"] {
        let dump = || Place::new().run(&format!("dump {what} --target sim:1")).succeeds();
        assert!(dump().stdout.lines().count() > 1, "{}", dump());
        assert_eq!(dump().stdout, dump().stdout, "{what}");
    }
}

#[test]
fn the_default_output_is_a_flame_graph_named_after_the_process() {
    let place = Place::new();
    let run = place.run("--target sim:1").succeeds();
    assert_eq!(place.files().into_keys().collect::<Vec<_>>(), ["stackprof-sim-4242.svg"]);
    assert!(run.stderr.contains("  wrote     stackprof-sim-4242.svg\n"), "{run}");
    assert_eq!(run.stdout, "");
    place.run("--target sim:1 --format folded").succeeds();
    assert!(total(&place.read("stackprof-sim-4242.folded")) > 0);
}

#[test]
fn the_summary_is_printed_unless_quiet() {
    let place = Place::new();
    let run = place.run("--target sim:1 -o a.folded").succeeds();
    let first = run.stderr.lines().next().unwrap();
    let samples = total(&place.read("a.folded"));
    assert!(first.starts_with(&format!("stackprof: sim (pid 4242): {samples} samples of ")), "{run}");
    assert!(first.contains(" threads in ") && first.contains(" of 997 Hz"), "{run}");
    for label in ["  hottest   ", "  stacks    ", "  names     ", "  pause     ", "  wrote     a.folded"] {
        assert!(run.stderr.lines().any(|line| line.starts_with(label)), "{label:?}: {run}");
    }
    assert!(run.stderr.contains(" addresses\n"), "{run}");
    assert!(run.stderr.contains(" per stop"), "{run}");
    assert!(!run.stderr.contains('\u{1b}') && !run.stderr.contains('\r'), "no terminal, no drawing: {run}");

    let quiet = place.run("-q --target sim:1 -o a.folded").succeeds();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let stdout = place.run("--target sim:1 -o -").succeeds();
    assert_eq!(stdout.stdout, place.read("a.folded"), "only the profile on standard output");
}

#[test]
fn options_of_the_graph_take_effect() {
    let place = Place::new();
    place.run_words(&["-q", "--target", "sim:1", "--title", "A <b> & \"c\"", "-o", "a.svg"]);
    let svg = place.read("a.svg");
    assert!(svg.contains("A &lt;b&gt; &amp; "), "escaped");
    place.run("-q --target sim:1 -o wide.svg --min-width 20").succeeds();
    assert!(place.read("wide.svg").len() < svg.len(), "fewer frames");
    place.run("-q --target sim:1 -o reverse.svg --reverse").succeeds();
    assert_ne!(place.read("reverse.svg"), svg);
    for (options, expected) in [
        ("--colors blue-orange", "orange: own work, blue: calls others"),
        ("--dark", "stop-color=\"#1b1d21\""),
    ] {
        place.run(&format!("-q --target sim:1 -o look.svg {options}")).succeeds();
        assert!(place.read("look.svg").contains(expected) && !svg.contains(expected), "{options}");
    }
    let depth = |line: &str| {
        let run = place.run(line).succeeds();
        folded(&run.stdout).iter().map(|(stack, _)| stack.split(';').count()).max().unwrap()
    };
    assert!(depth("-q --target sim:1 -o -") > 6);
    assert!(depth("-q --target sim:1 -o - --max-depth 4") <= 6, "process, [incomplete] and 4 frames");
}

#[test]
fn under_sudo_outputs_belong_to_the_caller() {
    if !is_root() {
        return skip("only root can give a file away");
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.path("."), Some(1234), Some(1235)).unwrap();
    place.write("kept.folded", "of root, and stays so");
    let owner = |name: &str| {
        let metadata = fs::metadata(place.path(name)).unwrap();
        (metadata.uid(), metadata.gid())
    };
    let mut command = place.command();
    command.env("SUDO_UID", "1234").env("SUDO_GID", "1235");
    command.args(["--target", "sim:1", "-o", "a.svg", "-o", "a.folded", "--stats", "s.json"]);
    crate::support::run(command).succeeds();
    for name in ["a.svg", "a.folded", "s.json"] {
        assert_eq!(owner(name), (1234, 1235), "{name}");
    }
    // Without sudo that user could not write to it.
    let mut command = place.command();
    command.env("SUDO_UID", "1234").env("SUDO_GID", "1235");
    command.args(["-q", "--target", "sim:1", "-o", "kept.folded"]);
    crate::support::run(command).fails_with(1, &["cannot write `kept.folded`: permission denied"]);
    assert_eq!((owner("kept.folded"), place.read("kept.folded").as_str()), ((0, 0), "of root, and stays so"));
    place.run("-q --target sim:1 -o b.svg").succeeds();
    assert_eq!(owner("b.svg"), (0, 0), "no sudo, no other owner");
}

#[test]
fn devices_and_odd_names_are_valid_outputs() {
    let place = Place::new();
    let run = place.run("-q --target sim:1 --format folded -o /dev/stdout").succeeds();
    assert!(total(&run.stdout) > 0);
    place.run("-q --target sim:1 --format svg -o /dev/null").succeeds();
    place.run_words(&["-q", "--target", "sim:1", "-o", "a b\u{e9}.svg"]).succeeds();
    assert_eq!(place.files().into_keys().collect::<Vec<_>>(), ["a b\u{e9}.svg"]);
}

#[cfg(unix)]
#[test]
fn two_outputs_to_one_file_are_refused_in_any_spelling() {
    let place = Place::new();
    place.write("in.folded", "p;f 1\n");
    std::fs::create_dir(place.path("sub")).unwrap();
    std::fs::write(place.path("a.svg"), "").unwrap();
    std::os::unix::fs::symlink("a.svg", place.path("link.svg")).unwrap();
    for other in ["./a.svg", "sub/../a.svg", "link.svg"] {
        let run = place.run(&format!("render in.folded -o a.svg -o {other}"));
        assert_eq!(run.code, Some(1), "{run}");
        assert!(run.stderr.ends_with("`a.svg` is the same file; each output needs its own\n"), "{run}");
    }
    place.run("render in.folded -o a.svg -o b.svg -o /dev/null --format svg").succeeds();
}
