//! `stackprof heap` with programs with known leaks, through the real binary and the real shim.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use stackprof::profile::SavedProfile;
use stackprof::profile::formats::detect::{self, Strictness};
use tempfile::TempDir;

use crate::support::{fixture, stackprof, try_compile};

/// A directory for outputs, and for the one that is shared with the command.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { dir: TempDir::new().unwrap() };
        fs::create_dir(place.runtime()).unwrap();
        place
    }

    fn runtime(&self) -> std::path::PathBuf {
        self.dir.path().join("runtime")
    }

    fn command(&self, options: &[&str], words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = stackprof();
        command.current_dir(self.dir.path()).env("XDG_RUNTIME_DIR", self.runtime());
        command.arg("heap").args(options).arg("--").args(words.iter().map(AsRef::as_ref));
        command
    }

    fn run(&self, options: &[&str], words: &[impl AsRef<OsStr>]) -> Output {
        self.command(options, words).stdin(Stdio::null()).output().unwrap()
    }

    /// Number of remaining shared directories.
    fn left(&self) -> usize {
        fs::read_dir(self.runtime()).unwrap().count()
    }

    fn saved(&self, name: &str, value_type: Option<&str>) -> SavedProfile {
        let path = self.dir.path().join(name);
        detect::read_file_of_type(&path, Strictness::Strict, value_type).unwrap().saved
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Counts of the stacks through a function.
fn below(saved: &SavedProfile, function: &str) -> u64 {
    let mut sum = 0;
    saved.for_each_stack(|_, frames, count| {
        let mut is_in = false;
        for frame in frames {
            saved.names_of(*frame, false, &mut |name| is_in |= name == function);
        }
        sum += if is_in { count } else { 0 };
    });
    sum
}

/// Leaks of each function: bytes and blocks.
const LEAKS: [(&str, u64, u64); 7] = [
    ("leak_config", 1000, 10),
    ("leak_cache", 21_000, 3),
    ("leak_list", 528, 11),
    ("load_all", 240, 5),
    ("load_more", 288, 6),
    ("leak_grown", 5120, 1),
    ("leak_aligned", 4096, 1),
];

#[test]
fn leaks_are_exact_and_named_at_each_depth_with_every_allocation_sampled() {
    let place = Place::new();
    let leaks = fixture("leaks");
    let options = ["--every", "1", "-o", "a.pb.gz", "--stats", "stats.json", "--callers", "3"];
    let output = place.run(&options, &[&leaks]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "done\n");
    let (space, objects) = (place.saved("a.pb.gz", None), place.saved("a.pb.gz", Some("inuse_objects")));
    assert_eq!(space.about.unit, "bytes");
    for (function, bytes, blocks) in LEAKS {
        assert_eq!(
            (below(&space, function), below(&objects, function)),
            (bytes, blocks),
            "{function}\n{said}"
        );
    }
    let allocated = place.saved("a.pb.gz", Some("alloc_space"));
    assert_eq!(below(&allocated, "churn"), (0..1000).map(|i| 64 + i).sum::<u64>());
    assert_eq!(below(&allocated, "leak_grown"), 10 * (1 << 10) - 10);
    let row = |bytes: &str, blocks: &str, who: &str| {
        let is_it = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.first() == Some(&bytes)
                && words.get(1) == Some(&blocks)
                && words[2..].join(" ").starts_with(who)
        };
        assert!(said.lines().any(is_it), "{bytes} {blocks} {who}\n{said}");
    };
    row("21,000", "3", "leak_cache < main");
    row("1,000", "10", "make_node < leak_config < main");
    row("288", "6", "make_node < leak_list < load_more");
    row("240", "5", "make_node < leak_list < load_all");
    row("4,096", "1", "leak_aligned < work <");
    row("5,120", "1", "leak_grown < main");
    let stats: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(place.dir.path().join("stats.json")).unwrap()).unwrap();
    let heap = &stats["heap"];
    for key in ["samples_lost", "frees_unknown", "frees_missing", "frees_lost", "records_malformed"] {
        assert_eq!(heap[key], 0, "{key}: {heap}");
    }
    assert_eq!(heap["inuse_space_error"], 0.0, "{heap}");
    assert_eq!(place.left(), 0);
    // Another function skipped.
    let output = place.run(&["--every", "1", "-o", "b.folded", "--skip", "^make_node$"], &[&leaks]);
    let said = text(&output.stderr);
    // As many callers as tell sites apart.
    let list = ["288", "6", "leak_list", "<", "load_more"];
    let is_list = |line: &str| line.split_whitespace().take(list.len()).eq(list);
    assert!(said.lines().any(is_list), "{said}");
    // Folded text has the bytes in use.
    let folded = fs::read_to_string(place.dir.path().join("b.folded")).unwrap();
    let is_cache = |line: &str| line.contains("leak_cache") && line.ends_with(" 21000");
    assert!(folded.lines().any(is_cache), "{folded}");
}

#[test]
fn the_peak_has_blocks_that_were_freed_later() {
    let place = Place::new();
    let leaks = fixture("leaks");
    let output = place.run(&["--every", "1", "--peak", "-o", "a.pb.gz"], &[&leaks]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let saved = place.saved("a.pb.gz", None);
    // The block that another thread frees at the end is there, and all leaks.
    assert_eq!(below(&saved, "xmalloc"), 10_000 + 1000 + 528, "{}", text(&output.stderr));
    assert_eq!(below(&saved, "churn"), 0);
    let render = |value_type| {
        let words = ["render", "a.pb.gz", "-o", "b.svg", "--type", value_type];
        text(&stackprof().current_dir(place.dir.path()).args(words).output().unwrap().stderr)
    };
    assert!(render("inuse_space").contains("KiB in use at the peak in "), "{}", render("inuse_space"));
    assert!(render("alloc_objects").contains(" allocations in "), "{}", render("alloc_objects"));
}

#[test]
fn child_processes_are_recorded_from_first_to_last_allocation() {
    let place = Place::new();
    let leaks = fixture("leaks");
    let leaks = leaks.to_str().unwrap();
    // Sequential, in the background, and by exec of the shell.
    let script = format!("{leaks} >&2; {leaks} >&2 & wait; exec {leaks}");
    let output = place.run(&["--every", "1", "-o", "a.pb.gz"], &["sh", "-c", &script]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let saved = place.saved("a.pb.gz", None);
    for (function, bytes, _) in LEAKS {
        assert_eq!(below(&saved, function), 3 * bytes, "{function}\n{said}");
    }
    assert_eq!(place.left(), 0);
}

#[test]
fn estimates_are_near_the_truth_and_show_their_error() {
    let place = Place::new();
    let leaks = fixture("leaks");
    let output = place.run(&["--every", "1K", "--type", "alloc_space", "-o", "a.folded"], &[&leaks]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let allocated = said.lines().find(|line| line.trim_start().starts_with("allocated")).unwrap_or_default();
    assert!(allocated.contains('±'), "{said}");
    let line = said.lines().next().unwrap_or_default();
    assert!(line.ends_with("(one in 1.0 KiB)"), "{said}");
}

#[test]
fn a_call_that_libc_hands_on_counts_once() {
    let place = Place::new();
    let calls = fixture("heap_calls");
    let words = [calls.to_str().unwrap(), "arrays"];
    let output = place.run(&["--every", "64K", "--type", "alloc_space", "-o", "a.pb.gz"], &words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The standard error of 125 MiB is 2 MiB; counted twice, it was 170 MiB.
    let bytes = below(&place.saved("a.pb.gz", Some("alloc_space")), "main");
    assert!(bytes.abs_diff(125 << 20) < 20 << 20, "{bytes}");
}

#[test]
fn unrecordable_commands_are_reported_with_the_reason() {
    let place = Place::new();
    let refused = |words: &[&str], expected: &str| {
        let output = place.run(&["-q", "--every", "1G", "-o", "a.folded"], words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{words:?}: {said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(place.left(), 0);
    };
    let flags = ["-static", "-pthread", "-O1"];
    let fixed = try_compile("leaks", "leaks-static", &flags).unwrap();
    refused(
        &[fixed.to_str().unwrap()],
        "is linked statically, and the heap shim is loaded by the dynamic linker",
    );
    refused(&["env", "-i", fixed.to_str().unwrap()], "which did not load the heap shim");
    // Small programs usually allocate less than the bytes per sample.
    refused(&["true"], "it allocated little");
    let output = place.run(&["-q", "-o", "a.folded"], &["/nonexistent"]);
    assert!(text(&output.stderr).contains("cannot run `/nonexistent`"));
    assert_eq!((output.status.code(), place.left()), (Some(1), 0));
}

#[test]
fn an_allocator_of_the_program_is_named_and_is_not_called_while_it_maps_memory() {
    let place = Place::new();
    let output = place.run(&["--every", "1", "-o", "a.folded"], &[fixture("heap_own_allocator")]);
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "done\n", "{said}");
    assert!(said.contains("has an allocator of its own (malloc)"), "{said}");
}

#[test]
fn unrecorded_survivors_are_reported() {
    let place = Place::new();
    let output = place.run(&["--every", "1", "-o", "a.folded"], &["env", "-i", "true"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("it became `true`, which did not load"), "{said}");
    // A daemon that has allocated before its parent ends.
    let leaks = fixture("leaks");
    let script = format!("mkfifo f; {} wait > f 2> /dev/null & read line < f; echo $!", leaks.display());
    let output = place.run(&["--every", "1", "-o", "a.folded"], &["sh", "-c", &script]);
    let said = text(&output.stderr);
    end(text(&output.stdout).trim().parse().unwrap());
    assert!(output.status.success() && said.contains("1 process that it started runs on"), "{said}");
}

#[test]
fn processes_without_the_shim_are_reported() {
    let place = Place::new();
    let fixed = try_compile("leaks", "leaks-static", &["-static", "-pthread", "-O1"]).unwrap();
    let script = format!("{} wait; true", fixed.display());
    let mut command = place.command(&["--every", "1", "-o", "a.folded"], &["sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "done\n");
    let shell = children_of(child.id())[0];
    let fixed = children_of(shell)[0];
    // At the end of the recording, it still runs.
    send(child.id(), libc::SIGINT);
    child.wait().unwrap();
    // It has the other end of the pipe, too.
    end(fixed);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("at least 1 process without the heap shim: 1 linked statically"), "{said}");
}

#[test]
fn the_shared_directory_is_removed_after_a_signal_and_by_the_run_after_a_kill() {
    let place = Place::new();
    let leaks = fixture("leaks");
    let begin = |place: &Place| {
        let words = [leaks.as_os_str(), OsStr::new("wait")];
        let mut command = place.command(&["--every", "1", "-o", "a.pb.gz"], &words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The program prints a line after all allocations.
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(line, "done\n");
        let commands = children_of(child.id());
        assert_eq!(commands.len(), 1);
        (child, commands[0])
    };
    let (mut child, command) = begin(&place);
    send(child.id(), libc::SIGINT);
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(place.left(), 0);
    end(command);
    assert_eq!(below(&place.saved("a.pb.gz", None), "leak_cache"), 21_000);

    let (mut child, command) = begin(&place);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.left(), 1);
    // The command is still running.
    assert!(Path::new(&format!("/proc/{command}")).exists());
    end(command);
    let output = place.run(&["--every", "1", "-o", "b.pb.gz"], &[&leaks]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.left(), 0);
}

#[test]
fn mappings_are_exact_on_request() {
    let place = Place::new();
    let mappings = fixture("mappings");
    let output = place.run(&["--every", "1", "--mmap", "-o", "a.pb.gz"], &[&mappings]);
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("missing"), "{said}");
    assert_eq!(text(&output.stdout), "done\n");
    let (space, objects) = (place.saved("a.pb.gz", None), place.saved("a.pb.gz", Some("inuse_objects")));
    let leaks = [
        ("leak_mapping", 3 << 20, 3),
        ("leak_part", 640 << 10, 1),
        ("leak_commit", 192 << 10, 1),
        ("leak_grown", 2 << 20, 1),
        ("churn", 0, 0),
        ("map_halves", 0, 0),
    ];
    for (function, bytes, blocks) in leaks {
        let found = (below(&space, function), below(&objects, function));
        assert_eq!(found, (bytes, blocks), "{function}\n{said}");
    }
    assert_eq!(below(&place.saved("a.pb.gz", Some("alloc_space")), "churn"), 100 * (64 << 10));
    let output = place.run(&["--every", "1", "-o", "b.pb.gz"], &[&mappings]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(below(&place.saved("b.pb.gz", Some("alloc_space")), "leak_mapping"), 0);
}

#[allow(unsafe_code, reason = "a signal has no safe call")]
fn send(pid: u32, signal: i32) {
    // SAFETY: kill(2) of a process that this test has started.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// Kills a process, and waits until its memory is released.
fn end(pid: u32) {
    send(pid, libc::SIGKILL);
    while !fs::read(format!("/proc/{pid}/maps")).unwrap_or_default().is_empty() {
        std::thread::yield_now();
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    listed.split_whitespace().map(|child| child.parse().unwrap()).collect()
}
