#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use crate::sources::linux::attach;
use crate::sources::linux::files::TargetFiles;
use crate::sources::{Chosen, Observed};

/// A process that is there, and a thread of it that is not.
fn pid() -> pid_t {
    std::process::id().cast_signed()
}
const TID: pid_t = 1 << 30;

fn id(tid: pid_t, time_ns: u64, cpu: u32) -> Id {
    Id { pid: pid(), tid, time_ns, cpu }
}

/// Of one process, with the waits of its threads.
fn told() -> Told {
    let choice = ProcessFilter::new(Chosen { pids: vec![std::process::id()], ..Chosen::default() });
    let mut main = ProcessEntry::new(attach::describe(pid()), Arc::new(TargetFiles::of(pid())));
    main.told = true;
    let mut told = Told::new(choice, main, 0, 1_000_000, true);
    told.switched = Some(ContextSwitches::new(false, None));
    told
}

/// What was told, in the order in which the engine takes it.
fn in_order(mut records: Vec<Record>) -> Vec<Record> {
    records.sort_by_key(|record| (record.at_ns, record.process, record.thread));
    records
}

#[test]
fn a_thread_has_ended_when_its_last_wait_is_told() {
    let (mut told, mut records) = (told(), Vec::new());
    told.take(id(TID, 5, 0), PerfRecord::Sample(Sample::EMPTY));
    told.take(id(TID, 10, 0), PerfRecord::SwitchOut { preempted: false });
    // That it got its CPU again was dropped.
    told.take(id(TID, 1000, 0), PerfRecord::Exit);
    // Batches that follow each other fast: the end was read, and is not settled.
    for settled_ns in [500, 600, 700, u64::MAX] {
        told.finish_batch(true, settled_ns, &mut records);
    }
    let of_it = in_order(records).into_iter().filter(|record| record.thread == ThreadId(TID as u64));
    let whats: Vec<What> = of_it.map(|record| record.what).collect();
    let started = whats.iter().filter(|what| matches!(what, What::Started { .. })).count();
    assert_eq!(started, 1, "{whats:?}");
    assert!(whats.iter().any(|what| matches!(what, What::WaitLost { .. })), "{whats:?}");
    assert!(matches!(whats.last(), Some(What::Ended(..))), "{whats:?}");
}

#[test]
fn a_thread_without_a_number_is_no_thread() {
    let (mut told, mut records) = (told(), Vec::new());
    // It ended on another CPU, or what told of its end was dropped.
    told.take(id(NOBODY, 20, 0), PerfRecord::Sample(Sample::EMPTY));
    told.take(id(NOBODY, 30, 0), PerfRecord::SwitchOut { preempted: true });
    told.take(id(NOBODY, 40, 0), PerfRecord::SwitchIn { direct: false });
    told.take(id(NOBODY, 50, 0), PerfRecord::SwitchOut { preempted: false });
    told.take(id(NOBODY, 60, 1), PerfRecord::SwitchOut { preempted: false });
    told.finish_batch(true, 1000, &mut records);
    told.end_waits(2000, &mut records);
    let others: Vec<&Record> = records
        .iter()
        .filter(|record| {
            record.thread != ThreadId(u64::from(std::process::id())) && record.thread != ThreadId(0)
        })
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let missed = records.iter().filter(|record| matches!(record.what, What::Missed(_, LEAVER))).count();
    assert_eq!(missed, 1, "{records:?}");
}

/// That it became another program was not told: where records are missing it is asked.
#[test]
fn after_records_were_dropped_processes_are_looked_at() {
    let choice = ProcessFilter::new(Chosen { pids: vec![std::process::id()], ..Chosen::default() });
    let process = crate::sources::Process { name: "sh".to_owned(), ..attach::describe(pid()) };
    let mut main = ProcessEntry::new(process, Arc::new(TargetFiles::of(pid())));
    main.told = true;
    let (mut told, mut records) = (Told::new(choice, main, 0, 1_000_000, true), Vec::new());
    told.finish_batch(true, u64::MAX, &mut records);
    told.finish_batch(true, u64::MAX, &mut records);
    assert!(records.is_empty(), "{records:?}");
    for round in 0..2 {
        told.take(id(pid(), 10, 0), PerfRecord::Lost(1));
        told.finish_batch(true, u64::MAX, &mut records);
        told.finish_batch(true, u64::MAX, &mut records);
        let named = records.drain(..).find_map(|record| match record.what {
            What::Exec { name } => name,
            _ => None,
        });
        let own = attach::describe(pid()).name;
        assert_eq!(named, (round == 0).then_some(own), "once, and not again at once");
    }
}

/// Samples do not come on one CPU, while they do on another.
#[test]
fn each_cpu_is_throttled_on_its_own() {
    let mut told = told();
    told.switched = None;
    told.take(id(TID, 1_000_000, 0), PerfRecord::Throttle);
    told.take(id(TID, 5_000_000, 1), PerfRecord::Throttle);
    told.take(id(TID, 4_000_000, 0), PerfRecord::Unthrottle);
    told.take(id(TID, 7_000_000, 1), PerfRecord::Unthrottle);
    told.take(id(TID, 9_000_000, 1), PerfRecord::Unthrottle);
    assert_eq!(told.dropped, 3 + 2);
}

fn dropped(records: Vec<Record>) -> u64 {
    let dropped = |what| if let What::Dropped(samples, _) = what { samples } else { 0 };
    records.into_iter().map(|record| dropped(record.what)).sum()
}

#[test]
fn samples_that_were_dropped_wait_for_those_that_show_whose_they_were() {
    let (mut told, mut records) = (told(), Vec::new());
    told.switched = None;
    told.note_dropped(5, 1_000_000);
    told.finish_batch(false, 10, &mut records);
    assert_eq!((told.dropped, dropped(std::mem::take(&mut records))), (5, 0));
    told.take(id(TID, 20, 0), PerfRecord::Sample(Sample::EMPTY));
    told.finish_batch(false, 30, &mut records);
    assert_eq!((told.dropped, dropped(records)), (0, 5));
}

/// The record comes in the name of the thread that is named, whoever wrote it.
#[test]
fn a_name_that_comes_after_the_first_sample_is_told() {
    let (mut told, mut records) = (told(), Vec::new());
    told.switched = None;
    for (time_ns, name) in [(10, "late"), (30, "last")] {
        told.take(id(TID, time_ns, 0), PerfRecord::Sample(Sample::EMPTY));
        told.finish_batch(false, time_ns + 1, &mut records);
        told.take(id(TID, time_ns + 2, 1), PerfRecord::Comm { name: name.as_bytes(), exec: false });
        told.finish_batch(false, time_ns + 10, &mut records);
    }
    let named = in_order(records).into_iter().filter_map(|record| match record.what {
        What::Named { name } => Some((record.thread, name)),
        _ => None,
    });
    let thread = ThreadId(TID as u64);
    let named: Vec<_> = named.collect();
    assert_eq!(named, [(thread, "late".to_owned()), (thread, "last".to_owned())]);
    let of_it = told.members.get_mut(&pid()).map(|member| member.thread_name(thread));
    assert_eq!(of_it, Some(Some("last".to_owned())));
}

/// It may have ended before anybody can ask for its name.
#[test]
fn a_thread_has_the_name_of_the_one_that_started_it() {
    let (mut told, mut records) = (told(), Vec::new());
    told.switched = None;
    let creator = pid();
    told.take(id(creator, 5, 0), PerfRecord::Comm { name: b"creator", exec: false });
    told.take(id(TID, 10, 0), PerfRecord::Fork { parent: pid(), creator });
    told.take(id(TID + 1, 20, 0), PerfRecord::Fork { parent: pid(), creator: TID });
    told.take(id(TID, 30, 0), PerfRecord::Comm { name: b"own", exec: false });
    told.finish_batch(false, 40, &mut records);
    let mut name = |tid: pid_t| {
        let thread = ThreadId(tid as u64);
        told.members.get_mut(&pid()).and_then(|member| member.thread_name(thread))
    };
    assert_eq!(name(TID).as_deref(), Some("own"));
    assert_eq!(name(TID + 1).as_deref(), Some("creator"));
}

#[test]
fn samples_that_did_not_fit_stand_for_the_distance_of_ticks_on_their_cpu() {
    let (mut told, mut records) = (told(), Vec::new());
    told.grid.changed(0, 1_000_000, &[(0, 800_000), (1, 1_250_000)]);
    told.take(id(TID, 900_000, 0), PerfRecord::Sample(Sample::EMPTY));
    // What records tell is of all records.
    told.take(id(TID, 950_000, 0), PerfRecord::Lost(1_000));
    told.take_lost(Some(vec![(0, 30), (1, 20), (0, 10)]), 950_000);
    told.finish_batch(false, u64::MAX, &mut records);
    assert_eq!(dropped(records), (40 * 806_451 + 20 * 1_265_625) / 1_000_000);
}

#[test]
fn where_nobody_counts_samples_there_are_as_many_among_lost_records_as_among_others() {
    let (mut told, mut records) = (told(), Vec::new());
    for time_ns in 0..99 {
        let record = if time_ns % 10 == 0 {
            PerfRecord::Sample(Sample::EMPTY)
        } else {
            PerfRecord::SwitchIn { direct: false }
        };
        told.take(id(TID, time_ns, 0), record);
    }
    told.take(id(TID, 99, 0), PerfRecord::Lost(1_000));
    told.take_lost(None, 100);
    told.finish_batch(false, u64::MAX, &mut records);
    assert_eq!(dropped(records), 100);
}

/// Many started by wanted ones, in any order, and by others.
#[test]
fn those_that_were_started_are_known_before_their_records_are_sifted() {
    let choice = ProcessFilter::new(Chosen { pids: vec![5], children: true, ..Chosen::default() });
    let main = ProcessEntry::new(attach::describe(pid()), Arc::new(TargetFiles::of(pid())));
    let mut told = Told::new(choice, main, 0, 1_000_000, true);
    for (child, parent) in [(8, 7), (7, 6), (6, 5), (20, 19), (5, 5)] {
        told.take(
            Id { pid: child, tid: child, ..Id::default() },
            PerfRecord::Fork { parent, creator: parent },
        );
    }
    let mut started = told.started_by(&[5]);
    started.sort_unstable();
    assert_eq!(started, [6, 7, 8]);
    assert!(told.started_by(&[5, 6, 7, 8]).is_empty());
}

/// What rings still hold from before says nothing of a new size of the window.
#[test]
fn each_stack_tells_by_which_window_it_was_copied() {
    let mut told = told();
    told.switched = None;
    (told.window, told.window_since_ns) = (3, 100);
    for time_ns in [50, 99, 100, 150] {
        told.take(id(TID, time_ns, 0), PerfRecord::Sample(Sample::EMPTY));
    }
    let windows = told.batch.iter().map(|(_, happened)| match happened {
        Event::Sampled(capture) => capture.window,
        other => panic!("{other:?}"),
    });
    assert_eq!(windows.collect::<Vec<_>>(), [2, 2, 3, 3]);
}
