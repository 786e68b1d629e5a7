#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::perf::process::entry::ProcessEntry;
use crate::sources::linux::perf::process::filter::ProcessFilter;
use crate::sources::linux::perf::stack::stack_size::EventStackSize;
use crate::sources::linux::refusal;
use crate::sources::{Observed, Process, ProcessSelection};

const PERIOD_NS: u64 = 1_000_000;
const BY_CLOCK: BatchOptions = BatchOptions { by_clock: true, last: false };
const BY_PERIODS: BatchOptions = BatchOptions { by_clock: false, last: false };
const LAST: BatchOptions = BatchOptions { by_clock: true, last: true };

/// Pid of an existing process, without the test's thread.
fn pid() -> pid_t {
    std::process::id().cast_signed()
}
const TID: pid_t = 1 << 30;

fn id(tid: pid_t, time_ns: u64, cpu: u32) -> SampleId {
    SampleId { pid: pid(), tid, time_ns, cpu }
}

/// A pipeline for this process.
fn pipeline_of(process: Process, records_waits: bool) -> Pipeline {
    let filter = ProcessFilter::new(ProcessSelection {
        pids: vec![std::process::id()],
        ..ProcessSelection::default()
    });
    let main = ProcessEntry::new(process, Arc::new(TargetFiles::of(pid())));
    let mut processes = ProcessTable::new(filter, main, records_waits);
    processes.begin(false);
    Pipeline::new(
        System::machine(),
        processes,
        CpuTime::new(pid(), PERIOD_NS, false),
        Stacks::new(true, EventStackSize::new()),
        records_waits.then(|| WaitRecorder::new(false, None)),
        0,
    )
}

fn pipeline() -> Pipeline {
    pipeline_of(refusal::describe(pid()), false)
}

/// A pipeline that records waits.
fn pipeline_with_waits() -> Pipeline {
    pipeline_of(refusal::describe(pid()), true)
}

/// The reported events, in the order in which the sampler processes them.
fn in_order(mut records: Vec<TimedEvent>) -> Vec<TimedEvent> {
    records.sort_by_key(|record| (record.at_ns, record.process, record.thread));
    records
}

#[test]
fn a_thread_ends_after_its_last_wait_is_reported() {
    let (mut pipeline, mut records) = (pipeline_with_waits(), Vec::new());
    pipeline.push_record(id(TID, 5, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(TID, 10, 0), PerfRecord::SwitchOut { preempted: false });
    // The record that it got its CPU again was dropped.
    pipeline.push_record(id(TID, 1000, 0), PerfRecord::Exit);
    // Batches in quick succession: the exit was read, and is after the watermark.
    for watermark_ns in [500, 600, 700, 1500] {
        pipeline.flush(BY_CLOCK, watermark_ns, &mut records);
    }
    pipeline.flush(LAST, u64::MAX, &mut records);
    let of_it = in_order(records).into_iter().filter(|record| record.thread == ThreadId(TID as u64));
    let whats: Vec<SourceEvent> = of_it.map(|record| record.event).collect();
    let started = whats.iter().filter(|event| matches!(event, SourceEvent::ThreadStarted { .. })).count();
    assert_eq!(started, 1, "{whats:?}");
    assert!(whats.iter().any(|event| matches!(event, SourceEvent::WaitLost { .. })), "{whats:?}");
    assert!(matches!(whats.last(), Some(SourceEvent::ThreadEnded { .. })), "{whats:?}");
}

/// Whether samples and waits come between the start and the end of their threads.
fn are_of_running_threads(records: Vec<TimedEvent>) -> bool {
    let mut running = std::collections::BTreeSet::new();
    in_order(records).into_iter().all(|TimedEvent { thread, event, .. }| match event {
        SourceEvent::ThreadStarted { .. } => {
            running.insert(thread);
            true
        }
        SourceEvent::ThreadEnded { .. } => {
            running.remove(&thread);
            true
        }
        SourceEvent::Sample(_)
        | SourceEvent::Missed(..)
        | SourceEvent::Wait { .. }
        | SourceEvent::WaitLost { .. } => running.contains(&thread),
        _ => true,
    })
}

/// The exec is reported with the batch, and the wait before it with the next one.
#[test]
fn a_wait_before_an_exec_starts_no_thread_of_the_new_program() {
    let (mut pipeline, mut records) = (pipeline_with_waits(), Vec::new());
    pipeline.push_record(id(pid(), 5, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(pid(), 10, 0), PerfRecord::SwitchOut { preempted: false });
    pipeline.push_record(id(pid(), 600, 0), PerfRecord::SwitchIn { direct: false });
    pipeline.push_record(id(pid(), 700, 0), PerfRecord::Comm { name: b"next", exec: true });
    pipeline.flush(BY_PERIODS, 500, &mut records);
    pipeline.push_record(id(pid(), 900, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(BY_PERIODS, 1000, &mut records);
    let sampled = records.iter().filter(|record| matches!(record.event, SourceEvent::Sample(_))).count();
    let waited = records.iter().filter(|record| matches!(record.event, SourceEvent::WaitLost { .. })).count();
    assert_eq!((sampled, waited), (2, 1), "{records:?}");
    assert!(are_of_running_threads(records));
}

/// The record of the exec was lost but /proc shows it, and the thread has waited since before.
#[test]
fn a_thread_that_waits_through_an_exec_starts_with_the_new_program() {
    let process = Process { name: "sh".to_owned(), ..refusal::describe(pid()) };
    let (mut pipeline, mut records) = (pipeline_of(process, true), Vec::new());
    pipeline.push_record(id(pid(), 5, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(pid(), 10, 0), PerfRecord::SwitchOut { preempted: false });
    pipeline.push_record(id(TID, 700, 1), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(TID, 710, 1), PerfRecord::Lost(1));
    for _ in 0..2 {
        pipeline.flush(LAST, u64::MAX, &mut records);
    }
    pipeline.end_waits(2000, &mut records);
    assert!(records.iter().any(|record| matches!(record.event, SourceEvent::Exec { .. })), "{records:?}");
    assert!(records.iter().any(|record| matches!(record.event, SourceEvent::WaitLost { .. })), "{records:?}");
    assert!(are_of_running_threads(records));
}

#[test]
fn a_thread_without_a_number_is_not_reported() {
    let (mut pipeline, mut records) = (pipeline_with_waits(), Vec::new());
    // It ended on another CPU, or the record of its end was dropped.
    pipeline.push_record(id(EXITED_TID, 20, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(EXITED_TID, 30, 0), PerfRecord::SwitchOut { preempted: true });
    pipeline.push_record(id(EXITED_TID, 40, 0), PerfRecord::SwitchIn { direct: false });
    pipeline.push_record(id(EXITED_TID, 50, 0), PerfRecord::SwitchOut { preempted: false });
    pipeline.push_record(id(EXITED_TID, 60, 1), PerfRecord::SwitchOut { preempted: false });
    pipeline.flush(BY_CLOCK, 1000, &mut records);
    pipeline.end_waits(2000, &mut records);
    let others: Vec<&TimedEvent> = records
        .iter()
        .filter(|record| {
            record.thread != ThreadId(u64::from(std::process::id())) && record.thread != ThreadId(0)
        })
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let missed =
        records.iter().filter(|record| matches!(record.event, SourceEvent::Missed(_, EXITED))).count();
    assert_eq!(missed, 1, "{records:?}");
}

/// The record of the exec was lost; /proc shows it.
#[test]
fn after_lost_records_processes_are_rescanned() {
    let process = Process { name: "sh".to_owned(), ..refusal::describe(pid()) };
    let (mut pipeline, mut records) = (pipeline_of(process, false), Vec::new());
    pipeline.flush(LAST, u64::MAX, &mut records);
    pipeline.flush(LAST, u64::MAX, &mut records);
    assert!(records.is_empty(), "{records:?}");
    for round in 0..2 {
        pipeline.push_record(id(pid(), 10, 0), PerfRecord::Lost(1));
        pipeline.flush(LAST, u64::MAX, &mut records);
        pipeline.flush(LAST, u64::MAX, &mut records);
        let named = records.drain(..).find_map(|record| match record.event {
            SourceEvent::Exec { name } => name,
            _ => None,
        });
        let own = refusal::describe(pid()).name;
        assert_eq!(named, (round == 0).then_some(own), "once, and not again at once");
    }
}

fn dropped(records: Vec<TimedEvent>) -> u64 {
    let dropped = |event| if let SourceEvent::Dropped(samples, _) = event { samples } else { 0 };
    records.into_iter().map(|record| dropped(record.event)).sum()
}

#[test]
fn dropped_samples_wait_for_those_that_show_their_process() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.add_lost(Some(vec![(0, 5)]));
    pipeline.flush(BY_PERIODS, 10, &mut records);
    assert_eq!(dropped(std::mem::take(&mut records)), 0);
    pipeline.push_record(id(TID, 20, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(BY_PERIODS, 30, &mut records);
    assert_eq!(dropped(records), 5);
}

#[test]
fn throttled_samples_have_their_own_loss_reason() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.push_record(id(TID, 1_000_000, 0), PerfRecord::Throttle);
    pipeline.push_record(id(TID, 4_000_000, 0), PerfRecord::Unthrottle);
    pipeline.add_lost(Some(vec![(0, 2)]));
    pipeline.push_record(id(TID, 5_000_000, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(BatchOptions { by_clock: false, last: true }, u64::MAX, &mut records);
    let lost = records.into_iter().filter_map(|record| match record.event {
        SourceEvent::Dropped(samples, reason) => Some((samples, reason)),
        _ => None,
    });
    assert_eq!(lost.collect::<Vec<_>>(), [(2, KERNEL_DROPPED), (3, THROTTLED)]);
}

/// The record names the thread, whoever wrote it.
#[test]
fn a_name_set_after_the_first_sample_is_reported() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    for (time_ns, name) in [(10, "late"), (30, "last")] {
        pipeline.push_record(id(TID, time_ns, 0), PerfRecord::Sample(Sample::EMPTY));
        pipeline.flush(BY_PERIODS, time_ns + 1, &mut records);
        pipeline
            .push_record(id(TID, time_ns + 2, 1), PerfRecord::Comm { name: name.as_bytes(), exec: false });
        pipeline.flush(BY_PERIODS, time_ns + 10, &mut records);
    }
    let named = in_order(records).into_iter().filter_map(|record| match record.event {
        SourceEvent::ThreadNamed { name } => Some((record.thread, name)),
        _ => None,
    });
    let thread = ThreadId(TID as u64);
    let named: Vec<_> = named.collect();
    assert_eq!(named, [(thread, "late".to_owned()), (thread, "last".to_owned())]);
    let of_it = pipeline.processes.get_mut(pid()).map(|process| process.thread_name(thread));
    assert_eq!(of_it, Some(Some("last".to_owned())));
}

/// It may end before its name can be read.
#[test]
fn a_thread_inherits_the_name_of_its_creator() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    let creator = pid();
    pipeline.push_record(id(creator, 5, 0), PerfRecord::Comm { name: b"creator", exec: false });
    pipeline.push_record(id(TID, 10, 0), PerfRecord::Fork { parent: pid(), creator });
    pipeline.push_record(id(TID + 1, 20, 0), PerfRecord::Fork { parent: pid(), creator: TID });
    pipeline.push_record(id(TID, 30, 0), PerfRecord::Comm { name: b"own", exec: false });
    pipeline.flush(BY_PERIODS, 40, &mut records);
    let mut name = |tid: pid_t| {
        let thread = ThreadId(tid as u64);
        pipeline.processes.get_mut(pid()).and_then(|process| process.thread_name(thread))
    };
    assert_eq!(name(TID).as_deref(), Some("own"));
    assert_eq!(name(TID + 1).as_deref(), Some("creator"));
}

#[test]
fn dropped_samples_weigh_the_period_of_their_cpu() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.cpu_time.set_periods(0, &[(0, 800_000), (1, 1_250_000)]);
    pipeline.push_record(id(TID, 900_000, 0), PerfRecord::Sample(Sample::EMPTY));
    // This counts records of all kinds.
    pipeline.push_record(id(TID, 950_000, 0), PerfRecord::Lost(1_000));
    pipeline.add_lost(Some(vec![(0, 30), (1, 20), (0, 10)]));
    pipeline.flush(BatchOptions { by_clock: false, last: true }, u64::MAX, &mut records);
    assert_eq!(dropped(records), (40 * 806_451 + 20 * 1_265_625) / 1_000_000);
}

/// Threads that ran before the recording, or with a lost record, have no known start.
#[test]
fn a_thread_has_its_recorded_start() {
    let mut pipeline = pipeline_of(refusal::describe(pid()), false);
    let mut records = Vec::new();
    pipeline.push_record(id(TID, 100, 0), PerfRecord::Fork { parent: pid(), creator: pid() });
    pipeline.push_record(id(TID, 400, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(pid(), 500, 1), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(LAST, u64::MAX, &mut records);
    let starts: Vec<(u64, Option<u64>)> = in_order(records)
        .into_iter()
        .filter_map(|record| match record.event {
            SourceEvent::ThreadStarted { started_ns, .. } => Some((record.thread.0, started_ns)),
            _ => None,
        })
        .collect();
    assert_eq!(starts, [(TID as u64, Some(100)), (pid() as u64, None)]);
}

#[test]
fn a_sample_has_its_cpu() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.push_record(id(TID, 100, 3), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(BY_PERIODS, 200, &mut records);
    let cpus: Vec<_> = records
        .into_iter()
        .filter_map(|record| match record.event {
            SourceEvent::Sample(capture) => Some(capture.cpu),
            _ => None,
        })
        .collect();
    assert_eq!(cpus, [Some(3)]);
}

/// Exit times of ended threads.
fn exits(records: &[TimedEvent]) -> Vec<(u64, Option<u64>)> {
    let exit = |record: &TimedEvent| match record.event {
        SourceEvent::ThreadEnded { exited_ns, .. } => Some((record.thread.0, exited_ns)),
        _ => None,
    };
    records.iter().filter_map(exit).collect()
}

/// It is reported after later events of other threads.
#[test]
fn a_thread_ends_at_its_own_exit() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.push_record(id(TID, 100, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(TID, 150, 0), PerfRecord::Exit);
    pipeline.push_record(id(pid(), 900, 1), PerfRecord::Sample(Sample::EMPTY));
    pipeline.flush(BY_PERIODS, 1000, &mut records);
    assert_eq!(exits(&records), []);
    pipeline.flush(BY_PERIODS, 2000, &mut records);
    assert_eq!(exits(&records), [(TID as u64, Some(150))]);
}

#[test]
fn threads_that_exit_in_the_last_batch_have_ended() {
    let (mut pipeline, mut records) = (pipeline(), Vec::new());
    pipeline.push_record(id(TID, 100, 0), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(TID, 150, 0), PerfRecord::Exit);
    pipeline.push_record(id(pid(), 160, 1), PerfRecord::Sample(Sample::EMPTY));
    pipeline.push_record(id(pid(), 170, 1), PerfRecord::Exit);
    pipeline.flush(LAST, u64::MAX, &mut records);
    let mut exits = exits(&records);
    exits.sort_unstable();
    assert_eq!(exits, [(pid() as u64, Some(170)), (TID as u64, Some(150))]);
    assert_eq!(pipeline.processes.exited_ns(pid()), Some(170));
}
