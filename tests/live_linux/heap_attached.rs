//! `stackprof heap` of running targets: a process with probes, the firmware of a board with
//! breakpoints.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

#[cfg(target_arch = "x86_64")]
use crate::boards::{firmware, silent_board};
use crate::support::{Fixture, PATIENCE, fixture, is_root, live, not_here, stackprof};

/// A heap recording: its stacks with the bytes in use, and its messages.
struct HeapRecorded {
    folded: String,
    said: String,
}

impl HeapRecorded {
    /// Bytes in use below a function.
    fn below(&self, function: &str) -> u64 {
        let of_it = self.folded.lines().filter_map(|line| line.rsplit_once(' '));
        let of_it = of_it.filter(|(stack, _)| stack.split(';').any(|frame| frame == function));
        of_it.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).sum()
    }

    /// Whether the table of leaks has this row.
    fn has_row(&self, row: &str) -> bool {
        self.said.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == row)
    }
}

/// Runs `stackprof heap` to its end.
fn record(options: &[&str], meanwhile: impl FnOnce(u32)) -> HeapRecorded {
    let place = TempDir::new().unwrap();
    let mut command = stackprof();
    command.current_dir(place.path()).arg("heap").args(options).args(["-o", "out.folded"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    meanwhile(child.id());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 4)), "{said}");
    let folded = fs::read_to_string(place.path().join("out.folded")).unwrap_or_default();
    HeapRecorded { folded, said }
}

/// Repeats the recording until `shows` is true: allocations before all probes are set are missed.
#[track_caller]
fn record_until(record: impl Fn() -> HeapRecorded, shows: impl Fn(&HeapRecorded) -> bool) -> HeapRecorded {
    let begun = Instant::now();
    loop {
        let recorded = record();
        if shows(&recorded) {
            return recorded;
        }
        assert!(begun.elapsed() < PATIENCE, "{}\n{}", recorded.said, recorded.folded);
    }
}

/// Number of open perf events of a process.
fn events_of(pid: u32) -> usize {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let leads_to = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    leads_to.filter(|path| path.as_os_str() == "anon_inode:[perf_event]").count()
}

/// malloc, calloc, realloc, reallocarray, memalign, posix_memalign, valloc and pvalloc with their returns, and free.
const PROBES: usize = 17;

#[test]
fn leaks_of_a_running_process_are_exact_with_probes() {
    if !live() {
        return;
    }
    if !is_root() || !std::path::Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        return not_here("probes need root and a kernel with uprobes");
    }
    let program = fixture("heap_attached");
    let recorded = record_until(
        || {
            let mut target = Fixture::run(&mut Command::new(&program));
            target.line("ready");
            let pid = target.pid().to_string();
            let options = ["--pid", &pid, "--every", "1", "--callers", "2", "--max-slowdown", "1000000"];
            record(&options, |profiler| {
                crate::support::wait_for("all probes to be set", || {
                    events_of(profiler) >= PROBES
                        || !std::path::Path::new(&format!("/proc/{profiler}/exe")).exists()
                });
                target.go();
                assert!(target.finish().0.success(), "the target did not end as it does alone");
            })
        },
        |recorded| recorded.below("leak_config") == 1000,
    );
    for (function, bytes) in [
        ("leak_config", 1000),
        ("leak_cache", 21_000),
        ("leak_grown", 5120),
        ("leak_aligned", 18_000),
        ("leak_failed", 700),
    ] {
        assert_eq!(recorded.below(function), bytes, "{function}\n{}", recorded.said);
    }
    assert_eq!((recorded.below("churn"), recorded.below("lend")), (0, 0), "{}", recorded.said);
    for row in ["21,000 3 leak_cache < main", "1,000 10 make_node < leak_config", "5,120 1 leak_grown < main"]
    {
        assert!(recorded.has_row(row), "{row}\n{}", recorded.said);
    }
}

#[cfg(target_arch = "x86_64")] // as for the boards
#[test]
fn leaks_of_firmware_are_exact_and_named_three_callers_up() {
    if !live() {
        return;
    }
    let Some(elf) = firmware("heap-m3", "gcc", &["-O2"]) else { return };
    let Some(stub) =
        silent_board("lm3s6965evb", &elf, &["-S", "-semihosting-config", "enable=on,target=native"])
    else {
        return;
    };
    // It is stopped before its first instruction, and exits by itself.
    let options = ["--gdb", &stub.place, "--exec", elf.to_str().unwrap(), "--callers", "3"];
    let recorded = record(&options, |_| {});
    for (function, bytes) in [("receive", 160), ("configure", 200), ("write_log", 200), ("borrow", 0)] {
        assert_eq!(recorded.below(function), bytes, "{function}\n{}", recorded.said);
    }
    for row in [
        "160 4 make_buffer < make_packet < receive",
        "200 2 make_table < configure < main",
        "200 1 append < write_log < main",
    ] {
        assert!(recorded.has_row(row), "{row}\n{}", recorded.said);
    }
}
