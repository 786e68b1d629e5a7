//! Recordings of real processes through the command line: the demo from end to end, the reported exit of a
//! launched command, Ctrl-C.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::programs::kill;
use crate::support::{Place, Run, busy, can_trace, folded, total};

#[test]
fn the_demo_shows_its_four_functions() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let run = place.run("demo --stats s.json -o a.folded -o a.svg").succeeds();
    let text = place.read("a.folded");
    let stats: Value = serde_json::from_str(&place.read("s.json")).unwrap();
    let stacks = folded(&text);
    let samples_in = |function: &str| -> u64 {
        let inside = |stack: &str| stack.split(';').any(|frame| frame.ends_with(function));
        stacks.iter().filter(|(stack, _)| inside(stack)).map(|(_, count)| count).sum()
    };
    let all = total(&text);
    // Two threads for three seconds; on a busy machine they get little of that.
    assert!(all > 100, "{run}");
    for (function, percent) in [
        ("burn_50_percent", 50.0),
        ("burn_30_percent", 30.0),
        ("burn_15_percent", 15.0),
        ("burn_5_percent", 5.0),
    ] {
        // Seven standard deviations for this many stacks: the variance is larger if a stack represents
        // several samples.
        let figure = |key: &str| stats[key].as_u64().unwrap();
        let stopped = figure("stops") - figure("stops_let_go") - figure("stops_not_on_cpu");
        let taken = stopped.max(figure("samples_pushed"));
        let tolerance = 7.0 * (percent * (100.0 - percent) / all.min(taken) as f64).sqrt();
        let share = 100.0 * samples_in(function) as f64 / all as f64;
        assert!((share - percent).abs() <= tolerance, "{function}: {share:.1}% of {all} samples: {run}");
        assert!(place.read("a.svg").contains(function), "{function}");
    }
    assert!(run.stderr.contains("% stackprof::cli::demo::burn_50_percent"), "{run}");
    let recursion = |stack: &str| stack.split(';').filter(|frame| frame.ends_with("::recurse")).count();
    assert!(stacks.iter().any(|(stack, _)| recursion(stack) == 13), "12 calls below the first: {text}");
    assert_eq!(stats["samples"], all);
    assert_eq!((&stats["threads_seen"], &stats["exit_status"]), (&2.into(), &0.into()), "{stats}");
    assert_eq!(stats["addresses_looked_up"], stats["addresses_unique"]);
    let backends: &[&str] = if cfg!(target_vendor = "apple") { &["mach"] } else { &["perf_event", "ptrace"] };
    assert!(backends.contains(&stats["backend"].as_str().unwrap()), "{stats}");
}

#[test]
fn the_exit_status_of_the_command_is_reported() {
    if !can_trace() {
        return;
    }
    for (end, status, line) in [
        ("exit 3", Value::from(3), "  exit      the command ended with status 3\n"),
        ("kill -9 $$", Value::from("signal 9"), "  exit      the command was ended by signal 9 (SIGKILL)\n"),
        ("exit 0", Value::from(0), ""),
    ] {
        let place = Place::new();
        let script = format!("{}; {end}", busy(100_000));
        let run = place.run_words(&["--stats", "s.json", "--", "sh", "-c", &script]).succeeds();
        let stats: Value = serde_json::from_str(&place.read("s.json")).unwrap();
        assert_eq!(stats["exit_status"], status, "{run}");
        assert!(run.stderr.contains(line), "{run}");
        assert_eq!(run.stderr.contains("  exit  "), !line.is_empty(), "{run}");
        assert!(stats["command"].as_str().unwrap().starts_with("sh -c i=0"), "{stats}");
        // The default output's name contains the process's name and number.
        let output = format!("stackprof-sh-{}.svg", stats["pid"]);
        assert_eq!(stats["outputs"], Value::from(vec![output.clone()]));
        assert!(place.files().contains_key(&output), "{run}");
    }
}

#[test]
fn the_streams_of_the_command_are_unchanged() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let script = format!("read line; {}; echo \"out $line\"; echo err >&2", busy(100_000));
    let run = place.shell(&format!("echo in | \"$STACKPROF\" -q -o a.folded -- sh -c '{script}'")).succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("out in\n", "err\n"));
    assert!(total(&place.read("a.folded")) > 0);
}

#[test]
fn the_first_interrupt_ends_the_recording_and_writes_it() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    // An endless command, which prints its number after working for a while.
    let script = format!("{}; echo $$; exec >/dev/null 2>&1; while :; do :; done", busy(100_000));
    let mut command = place.command();
    command.args(["--stats", "s.json", "-o", "a.folded", "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    kill("INT", child.id());
    let run = Run::new("an endless command, interrupted".to_owned(), child.wait_with_output().unwrap());
    kill("KILL", line.trim());
    let run = run.succeeds();
    assert!(run.stderr.contains("  wrote     a.folded\n"), "{run}");
    let stats: Value = serde_json::from_str(&place.read("s.json")).unwrap();
    assert_eq!(
        (&stats["exit_status"], &stats["pid"]),
        (&Value::Null, &line.trim().parse().unwrap()),
        "{run}"
    );
    assert_eq!(stats["samples"], total(&place.read("a.folded")));
}

#[test]
fn dump_shows_a_running_process() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    // Until the shell's child has become `sleep` and sleeps.
    let script = "sleep 600 & pid=$!; \
                  until \"$STACKPROF\" dump stacks --pid $pid 2>/dev/null | grep -q '(sleep) waiting'; do :; done; \
                  for what in threads images symbols stacks; do \
                  \"$STACKPROF\" dump $what --pid $pid || echo \"failed: $what\" >&2; done; kill $pid";
    let run = place.shell(script).succeeds();
    assert_eq!(run.stderr, "", "{run}");
    for text in ["waiting", "sleep", "build id", "/sleep", "(sleep) waiting", "#0 "] {
        assert!(run.stdout.contains(text), "{text:?}: {run}");
    }
}

#[test]
fn dump_writes_names_as_requested() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    // A Rust program that runs long enough: stackprof itself, waiting for input.
    let mut waiting = place.command();
    waiting.args(["render", "-", "-o", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut waiting = waiting.stderr(Stdio::null()).spawn().unwrap();
    let pid = waiting.id();
    let script = format!(
        "for how in '' --short-names --mangled; do echo \"names $how\"; \
         \"$STACKPROF\" dump symbols --pid {pid} $how | grep 'cli.*render.*run' | head -n 40; done"
    );
    let run = place.shell(&script);
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let part =
        |from: &str| run.stdout.split("names ").find_map(|part| part.strip_prefix(from)).unwrap_or_default();
    assert!(part("\n").contains("stackprof::cli::render::run"), "{run}");
    assert!(part("--short-names\n").contains("stackprof::cli::render::run"), "{run}");
    let mangled = part("--mangled\n");
    assert!(mangled.contains("9stackprof3cli6render3run") && !mangled.contains("::"), "{run}");
}
