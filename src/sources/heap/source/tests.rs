//! Tests the source with real processes and rings that a test writes like the shim.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};

use super::super::recorded_process::RingFiles;
use super::*;
use crate::addr::Avma;
use crate::sources::heap::recorded_process::READ_BYTES_MAX;
use crate::sources::heap::ring::AllocationRecord;
use crate::sources::heap::ring::tests::{DATA_SIZE, RingWriter};
use crate::sources::heap::shared_memory::{FREE_LENGTH, Kind, RING_PREFIX, RingHeader};
use crate::sources::linux::heap::{AllocatingProcess, process_of};

const OPTIONS: HeapOptions = HeapOptions { every_bytes: 1, seed: 0, records_mappings: false };

/// A sleeping command, and its source.
struct Recording {
    command: Child,
    source: HeapSource<AllocatingProcess>,
    _place: tempfile::TempDir,
}

impl Recording {
    fn new() -> Recording {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::make_in(place.path(), "/shim.so".into(), OPTIONS).unwrap();
        let command = Command::new("sleep").arg("600").spawn().unwrap();
        let main = process_of(command.id());
        let source = HeapSource::new(directory, OPTIONS, main, RealClock::new());
        Recording { command, source, _place: place }
    }

    fn ring(&self, pid: u32, sequence: u32) -> RingWriter {
        RingWriter::new(self.source.directory.path(), pid, sequence, "prog")
    }

    /// Events until one matches.
    fn events_until(&mut self, wanted: impl Fn(&SourceEvent) -> bool) -> Vec<TimedEvent> {
        let mut events = Vec::new();
        while !events.iter().any(|event: &TimedEvent| wanted(&event.event)) {
            let more = self.source.next_batch(u64::MAX, &mut events).unwrap();
            assert!(more.is_some() || events.iter().any(|event| wanted(&event.event)), "{events:?}");
        }
        events
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

fn record(number: u64, time_ns: u64) -> AllocationRecord {
    AllocationRecord {
        time_ns,
        address: number << 12,
        size: 10 * number,
        tid: 77,
        registers: std::array::from_fn(|index| 0x1000 + index as u64),
        stack: vec![number as u8; 64],
        untracked: false,
        stack_ends: true,
        images: 0,
    }
}

/// Text of an event, for comparisons.
fn named(event: &TimedEvent) -> String {
    match &event.event {
        SourceEvent::Allocation(allocation, _) => format!("allocation of {}", allocation.bytes),
        SourceEvent::Free(free) => format!("free of {:x}", free.block),
        SourceEvent::Shrink { block, bytes } => format!("{bytes} bytes of {block:x}"),
        SourceEvent::Restore { block } => format!("restore of {block:x}"),
        SourceEvent::ProcessStarted { name } => format!("start of {name}"),
        SourceEvent::Exec { name } => format!("exec of {}", name.as_deref().unwrap_or_default()),
        SourceEvent::ProcessEnded { .. } => "end".to_owned(),
        SourceEvent::ImagesChanged | SourceEvent::ImagesMayHaveChanged => "images".to_owned(),
        SourceEvent::ThreadEnded { .. } => format!("end of {}", event.thread.0),
        other => format!("{other:?}"),
    }
}

#[test]
fn records_become_ordered_events_with_the_callers_state() {
    let mut recording = Recording::new();
    let pid = recording.command.id();
    let mut ring = recording.ring(pid, 0);
    // Mapped, as the shim does: the process runs the program of this ring.
    let now_ns = recording.source.main().process().ring_clock_ns();
    ring.allocate(&record(1, now_ns));
    // From another thread, with a clock that is behind, and one far ahead.
    ring.free(Kind::Free, (now_ns - 1_000_000, 1 << 12, 78));
    ring.free(Kind::Restore, (now_ns, 1 << 12, 78));
    ring.allocate(&record(2, u64::MAX));
    ring.free(Kind::Shrink, (now_ns, 2 << 12, 1));
    ring.free(Kind::Free, (now_ns, 2 << 12, 1));
    let events =
        recording.events_until(|event| matches!(event, SourceEvent::Free(free) if free.block == 2 << 12));
    let names: Vec<String> = events.iter().map(named).collect();
    let expected = [
        "exec of prog",
        "images",
        "allocation of 10",
        "free of 1000",
        "restore of 1000",
        "allocation of 20",
        "0 bytes of 2000",
        "free of 2000",
    ];
    assert_eq!(names, expected);
    assert!(events.windows(2).all(|two| two[0].at_ns < two[1].at_ns), "{events:?}");
    let now_ns = recording.source.clock.now_ns();
    assert!(events.iter().all(|event| event.at_ns <= now_ns + 10 && event.process == pid));
    let SourceEvent::Allocation(_, capture) = &events[2].event else { panic!("{:?}", events[2]) };
    assert_eq!(events[2].thread, ThreadId(77));
    assert_eq!((capture.stack.clone(), capture.stack_base), (vec![1; 64], capture.registers.sp()));
    assert_eq!(capture.stack_limit, Some(Avma(capture.stack_base.0 + 64)));
    #[cfg(target_arch = "x86_64")]
    {
        use crate::arch::{Registers, UNKNOWN_REGISTER};
        let Registers::X86_64(registers) = &capture.registers else { panic!("{:?}", capture.registers) };
        assert_eq!((registers.rip, registers.gpr[7], registers.gpr[6]), (0x1007, 0x1006, 0x1001));
        assert_eq!((registers.gpr[3], registers.gpr[12], registers.gpr[15]), (0x1000, 0x1002, 0x1005));
        assert_eq!(registers.gpr[0], UNKNOWN_REGISTER);
    }
}

#[test]
fn a_sample_has_the_images_of_its_moment() {
    let mut recording = Recording::new();
    let pid = recording.command.id();
    let mut ring = recording.ring(pid, 0);
    // Two libraries, one after the other at an address, and another one loaded later.
    let write_list = |name: &str, libraries: &[(u64, &str)]| {
        let line = |(address, name): &(u64, &str)| {
            format!("{address:x}-{:x} r-xp 00000000 08:01 {} /{name}.so\n", address + 0x1000, name.len())
        };
        let text: String = libraries.iter().map(line).collect();
        std::fs::write(recording.source.directory.path().join(format!("maps.{pid}.0{name}")), text).unwrap();
    };
    write_list("", &[(0x1000, "libc")]);
    write_list(".0", &[(0x1000, "libc"), (0x5000, "first")]);
    write_list(".end", &[(0x1000, "libc"), (0x5000, "second"), (0x9000, "other")]);
    ring.unload(1);
    // Before the unload, after it, and of a thread that was preempted before it.
    for (number, images) in [(1, 0), (3, 1), (5, 0)] {
        ring.allocate(&AllocationRecord { images, ..record(number, number) });
    }
    let is_last = |event: &SourceEvent| matches!(event, SourceEvent::Allocation(last, _) if last.bytes == 50);
    let events = recording.events_until(is_last);
    let mut found = Vec::new();
    for event in &events {
        recording.source.set_time(event.at_ns);
        let process = recording.source.observed(pid).unwrap();
        let mut mappings = Vec::new();
        process.mappings(&mut mappings).unwrap();
        if let SourceEvent::Allocation(allocation, _) = &event.event {
            let names: Vec<String> = mappings.into_iter().map(|mapping| mapping.path).collect();
            found.push((allocation.bytes, names.join(" ")));
        }
    }
    let expected =
        [(10, "/libc.so /first.so"), (30, "/libc.so /second.so /other.so"), (50, "/libc.so /first.so")];
    assert_eq!(found, expected.map(|(bytes, names)| (bytes, names.to_owned())));
    // Each change is reported before the sample.
    let names: Vec<String> = events.iter().map(named).filter(|name| !name.starts_with("exec")).collect();
    assert_eq!(names.iter().filter(|name| *name == "images").count(), 3, "{names:?}");
    // There was no room for a list: what the process has had from the beginning until later is certain.
    ring.unload(3);
    ring.allocate(&AllocationRecord { images: 2, ..record(6, 6) });
    let is_last = |event: &SourceEvent| matches!(event, SourceEvent::Allocation(last, _) if last.bytes == 60);
    let at_ns = recording.events_until(is_last).last().unwrap().at_ns;
    recording.source.set_time(at_ns);
    let mut mappings = Vec::new();
    recording.source.observed(pid).unwrap().mappings(&mut mappings).unwrap();
    assert_eq!(mappings.iter().map(|mapping| &mapping.path).collect::<Vec<_>>(), ["/libc.so"]);
}

#[test]
fn a_second_program_of_a_process_has_a_second_ring() {
    let mut recording = Recording::new();
    let pid = recording.command.id();
    let mut first = recording.ring(pid, 0);
    first.allocate(&record(1, 5));
    let mut second = recording.ring(pid, 1);
    second.allocate(&record(2, 1));
    first.free(Kind::Free, (6, 1 << 12, 3));
    let events =
        recording.events_until(|event| matches!(event, SourceEvent::Allocation(of, _) if of.bytes == 20));
    let names: Vec<String> = events.iter().map(named).collect();
    assert_eq!(
        names,
        [
            "exec of prog",
            "images",
            "allocation of 10",
            "free of 1000",
            "end of 3",
            "end of 77",
            "exec of prog",
            "images",
            "allocation of 20"
        ]
    );
    assert!(events.windows(2).all(|two| two[0].at_ns < two[1].at_ns), "{events:?}");
}

#[test]
fn a_child_is_reported_from_its_ring_to_its_end_and_its_files_are_removed() {
    let mut recording = Recording::new();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = child.id();
    let mut ring = recording.ring(pid, 0);
    ring.allocate(&record(3, 1));
    let events = recording.events_until(|event| matches!(event, SourceEvent::Allocation(..)));
    assert_eq!(events.iter().map(named).collect::<Vec<_>>(), ["start of prog", "images", "allocation of 30"]);
    recording.source.processes.get_mut(&pid).unwrap().process_mut().trust_program();
    ring.free(Kind::Free, (2, 3 << 12, 1));
    child.kill().unwrap();
    child.wait().unwrap();
    let events = recording.events_until(|event| matches!(event, SourceEvent::ProcessEnded { .. }));
    assert_eq!(
        events.iter().map(named).collect::<Vec<_>>(),
        ["free of 3000", "end of 1", "end of 77", "end"]
    );
    // Its images are available until its events have been processed.
    assert!(recording.source.observed(pid).is_some() && ring.path.exists());
    while recording.source.observed(pid).is_some() {
        recording.source.next_batch(u64::MAX, &mut Vec::new()).unwrap();
    }
    assert!(!ring.path.exists());
}

/// Two processes, one after the other; the first freed so many blocks before its allocation.
fn two_processes(frees: u64) -> (Recording, Vec<RingWriter>) {
    let recording = Recording::new();
    let now_ns = recording.source.main().process().ring_clock_ns();
    let data_size = (2 * frees * u64::from(FREE_LENGTH)).next_power_of_two().max(DATA_SIZE);
    let mut rings = Vec::new();
    for (number, frees) in [(1, frees), (2, 0)] {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let place = recording.source.directory.path();
        let mut ring = RingWriter::with_size(place, (child.id(), 0), "prog", data_size);
        (0..frees).for_each(|_| ring.free(Kind::Free, (now_ns + 1, 5 << 12, 1)));
        // Events at one time are reported a nanosecond apart.
        ring.allocate(&record(number, now_ns + number * 1_000_000));
        rings.push(ring);
    }
    (recording, rings)
}

/// Names of ends and allocations in the order in which the watermark releases them.
fn release_order(recording: &mut Recording) -> Vec<String> {
    let (mut waiting, mut names) = (Vec::new(), Vec::new());
    while names.iter().filter(|name| *name == "end").count() < 2 {
        let watermark_ns = recording.source.next_batch(u64::MAX, &mut waiting).unwrap().unwrap();
        waiting.sort_by_key(|event: &TimedEvent| event.at_ns);
        let due = waiting.partition_point(|event| event.at_ns < watermark_ns);
        names.extend(waiting.drain(..due).map(|event| named(&event)));
    }
    names.retain(|name| name == "end" || name.starts_with("allocation"));
    names
}

#[test]
fn the_end_of_a_process_is_processed_before_later_events_of_others() {
    let (mut recording, _rings) = two_processes(0);
    assert_eq!(release_order(&mut recording), ["allocation of 10", "end", "allocation of 20", "end"]);
}

/// One read does not take all of a ring.
#[test]
fn events_of_a_full_ring_are_processed_before_later_events_of_others() {
    let (mut recording, _rings) = two_processes(3 * READ_BYTES_MAX / u64::from(FREE_LENGTH));
    assert_eq!(release_order(&mut recording), ["allocation of 10", "end", "allocation of 20", "end"]);
}

#[test]
fn a_ring_after_a_malformed_one_is_read_at_once_and_at_the_end() {
    for drains in [false, true] {
        let (mut recording, rings) = two_processes(0);
        let path = &rings[0].path;
        let later = path.with_extension("1");
        std::fs::write(&later, std::fs::read(path).unwrap()).unwrap();
        let put = |path: &Path, at: usize, bytes: &[u8]| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(bytes, at as u64).unwrap();
        };
        put(&later, offset_of!(RingHeader, sequence), &1u32.to_ne_bytes());
        put(path, offset_of!(RingHeader, data_size), &3u64.to_ne_bytes());
        if drains {
            recording.source.end();
            let mut events = Vec::new();
            while recording.source.next_batch(u64::MAX, &mut events).unwrap().is_some() {}
            let allocations = events.iter().map(named).filter(|name| name.starts_with("allocation"));
            assert_eq!(allocations.count(), 2);
        } else {
            let expected = ["allocation of 10", "end", "allocation of 20", "end"];
            assert_eq!(release_order(&mut recording), expected);
        }
    }
}

/// Whoever may write to the directory can announce a ring that never begins.
#[test]
fn a_ring_without_content_does_not_hold_back_other_processes() {
    let (mut recording, _rings) = two_processes(0);
    let place = recording.source.directory.path().to_owned();
    for sequence in [1, 2] {
        std::fs::write(place.join(format!("{RING_PREFIX}{}.{sequence}", std::process::id())), [0; 8192])
            .unwrap();
    }
    assert_eq!(release_order(&mut recording), ["allocation of 10", "end", "allocation of 20", "end"]);
}

#[test]
fn a_process_ends_when_it_began_to_exit_or_else_when_it_was_last_known_to_run() {
    let mut recording = Recording::new();
    for begins_to_exit in [true, false] {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let mut ring = recording.ring(child.id(), 0);
        ring.allocate(&record(1, recording.source.main().process().ring_clock_ns()));
        recording.events_until(|event| matches!(event, SourceEvent::Allocation(..)));
        recording.source.processes.get_mut(&child.id()).unwrap().process_mut().trust_program();
        recording.source.next_batch(u64::MAX, &mut Vec::new()).unwrap();
        let alive_ns = recording.source.processes[&child.id()].alive_ns();
        if begins_to_exit {
            ring.end(recording.source.clock.ring_ns(alive_ns) - 1000);
        }
        // Its parent does not wait for it.
        child.kill().unwrap();
        let events = recording.events_until(|event| matches!(event, SourceEvent::ProcessEnded { .. }));
        let end_ns = events.last().unwrap().at_ns;
        // It was seen again before the signal arrived.
        let seen_ns = recording.source.processes[&child.id()].alive_ns();
        let expected_ns = if begins_to_exit { alive_ns - 1000 } else { seen_ns };
        assert!((expected_ns..expected_ns + 10).contains(&end_ns), "{end_ns}, {alive_ns}, {seen_ns}");
        child.wait().unwrap();
    }
}

#[test]
fn images_of_an_exited_process_are_those_copied_by_the_shim() {
    let recording = Recording::new();
    let pid = recording.command.id();
    // Until its program is mapped.
    let is_code = |line: &str| line.contains(" r-xp ") && line.contains(" /");
    let text = loop {
        let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        if text.lines().any(is_code) {
            break text;
        }
    };
    let [begin, end] = recording.source.directory.maps(pid, 0);
    let mut process = recording.source.main().process().new_for(pid);
    let ring = RingFiles { name: format!("{RING_PREFIX}{pid}.0"), images: [begin.clone(), end.clone()] };
    process.set_ring("prog", ring);
    let mut list = Vec::new();
    // The process exists, and does not map the ring: it runs another program by now.
    assert!(process.mappings(&mut list).is_err());
    std::fs::write(&begin, &text).unwrap();
    assert!(process.listed(None, &mut list));
    // Which libraries are mapped by now depends on timing.
    assert!(list.iter().any(|mapping| mapping.path.starts_with('/')), "{list:?}");
    // What it had at its exit.
    std::fs::write(&end, "1000-2000 r-xp 00000000 08:01 5 /bin/late\n").unwrap();
    process.mappings(&mut list).unwrap();
    assert_eq!(list.iter().map(|mapping| mapping.path.as_str()).collect::<Vec<_>>(), ["/bin/late"]);
    // The file may contain anything.
    std::fs::write(&end, [0xff; 4000]).unwrap();
    assert!(process.mappings(&mut list).is_err());
}

#[test]
fn an_overwritten_ring_is_counted_and_abandoned() {
    let mut recording = Recording::new();
    let pid = recording.command.id();
    let ring = recording.ring(pid, 0);
    let file = std::fs::File::options().write(true).open(&ring.path).unwrap();
    file.set_len(70_000).unwrap();
    while recording.source.allocation_losses().malformed_rings == 0 {
        recording.source.next_batch(0, &mut Vec::new()).unwrap();
    }
    recording.command.kill().unwrap();
    let events = recording.events_until(|event| matches!(event, SourceEvent::Exited(_)));
    assert_eq!(events.len(), 1);
    assert_eq!(recording.source.allocation_losses().malformed_rings, 1);
}

#[test]
fn the_end_of_the_command_ends_the_recording_after_its_last_record() {
    let mut recording = Recording::new();
    let pid = recording.command.id();
    let mut ring = recording.ring(pid, 0);
    ring.allocate(&record(1, 1));
    let mut next = recording.ring(pid, 1);
    next.allocate(&record(2, 1));
    recording.command.kill().unwrap();
    let events = recording.events_until(|event| matches!(event, SourceEvent::Exited(_)));
    let names: Vec<String> = events.iter().map(named).collect();
    let expected = [
        "exec of prog",
        "images",
        "allocation of 10",
        "end of 77",
        "exec of prog",
        "images",
        "allocation of 20",
        "Exited(Signal(9))",
    ];
    assert_eq!(names, expected);
    assert!(recording.source.next_batch(u64::MAX, &mut Vec::new()).unwrap().is_none());
}
