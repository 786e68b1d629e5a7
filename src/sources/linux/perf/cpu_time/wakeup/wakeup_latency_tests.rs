#![allow(clippy::unwrap_used)]
use super::*;
use crate::rng::Rng;

fn id(pid: pid_t, tid: pid_t, cpu: u32, time_ns: u64) -> SampleId {
    SampleId { pid, tid, time_ns, cpu }
}

fn clocks(at_ns: u64, cpu_ns: u64) -> ClockReadings {
    ClockReadings::from([(1, ClockReading { at_ns, cpu_ns })])
}

fn stack() -> Box<Capture> {
    Box::new(Capture::with_capacity(0))
}

/// Process 1 runs on CPU 0 in turns; its clock begins `early_ns` before each. Returns the measurement.
fn measured(early_ns: u64, seed: u64) -> (u64, i64) {
    let mut rng = Rng::new(seed);
    let mut latency = WakeupLatency::default();
    latency.begin(1_000, clocks(1_000, 500));
    let (mut now_ns, mut used_ns) = (1_000, 500);
    for turn in 0..200 {
        now_ns += rng.within(20_000, 90_000);
        latency.switched_out(id(0, 0, 0, now_ns), true);
        latency.switched_in(id(1, 11, 0, now_ns), false);
        // Another process occupies the other CPU throughout.
        latency.sampled(id(2, 22, 1, now_ns));
        let runs_ns = rng.within(10_000, 60_000);
        now_ns += runs_ns;
        used_ns += runs_ns + early_ns;
        if turn % 7 == 0 {
            assert!(latency.copied(id(1, 11, 0, now_ns), stack()).is_none());
        }
        assert!(latency.switched_out(id(1, 11, 0, now_ns), false).is_none());
        latency.switched_in(id(0, 0, 0, now_ns), true);
    }
    assert_eq!(latency.waits.len(), 29);
    latency.end(now_ns, clocks(now_ns, used_ns));
    let measured = latency.measured();
    assert_eq!(measured.len(), 1, "seed {seed}: {measured:?}");
    assert!(!latency.is_open() && measured[0].1 == used_ns - 500);
    (measured[0].1, measured[0].2)
}

#[test]
fn charged_time_is_the_clock_minus_the_time_on_cpus() {
    for seed in 0..20 {
        assert_eq!(measured(0, seed).1, 0, "seed {seed}");
        assert_eq!(measured(12_000, seed).1, 200 * 12_000, "seed {seed}");
    }
}

#[test]
fn time_on_cpus_is_cut_at_the_clock_readings() {
    let mut latency = WakeupLatency::default();
    latency.begin(100, clocks(100, 0));
    // On CPU 0 since before, on CPU 1 until after, on CPU 2 throughout and on CPU 3 never.
    latency.switched_out(id(1, 10, 0, 150), true);
    latency.switched_in(id(1, 11, 1, 180), false);
    latency.sampled(id(1, 12, 2, 160));
    latency.sampled(id(1, 12, 3, 90));
    latency.end(200, clocks(200, 175));
    assert_eq!(latency.measured(), [(1, 175, 175 - 50 - 20 - 100)]);
}

#[test]
fn the_time_of_a_switch_belongs_to_the_next_thread_unless_from_idle() {
    for direct in [true, false] {
        let mut latency = WakeupLatency::default();
        latency.begin(0, clocks(0, 0));
        for turn in 0..100 {
            let began_ns = turn * 10_000;
            // Another process until then. Copying a stack takes 600 ns, the switch 900 more.
            latency.copied(id(2, 22, 0, began_ns), stack());
            latency.switched_out(id(2, 22, 0, began_ns + 600), false);
            latency.switched_in(id(1, 11, 0, began_ns + 1_500), direct);
            latency.copied(id(1, 11, 0, began_ns + 5_000), stack());
            latency.switched_out(id(1, 11, 0, began_ns + 5_600), false);
            latency.switched_in(id(2, 22, 0, began_ns + 6_500), true);
        }
        latency.end(1_000_000, clocks(1_000_000, 500_000));
        assert_eq!(latency.measured(), [(1, 500_000, if direct { 0 } else { 150_000 })]);
    }
}

#[test]
fn intervals_with_missing_records_are_discarded() {
    let mut latency = WakeupLatency::default();
    latency.begin(100, clocks(100, 0));
    latency.switched_in(id(1, 11, 0, 120), false);
    latency.dropped = true;
    latency.end(200, clocks(200, 100));
    assert!(latency.measured().is_empty());
    latency.begin(300, clocks(300, 0));
    latency.abandon();
    assert!(latency.measured().is_empty() && !latency.is_open());
}

#[test]
fn a_stack_is_that_of_a_wait_only_if_the_thread_was_not_preempted() {
    let mut latency = WakeupLatency::default();
    latency.begin(0, clocks(0, 0));
    latency.copied(id(1, 11, 0, 10), stack());
    assert!(latency.switched_out(id(1, 11, 0, 11), true).is_some(), "it was preempted");
    latency.copied(id(1, 11, 0, 20), stack());
    assert!(latency.switched_out(id(1, 12, 0, 21), false).is_some(), "it is another's");
    latency.copied(id(1, 11, 0, 30), stack());
    assert!(latency.switched_out(id(1, 11, 0, 31), false).is_none());
    assert_eq!(latency.waits.len(), 1);
}

#[test]
fn intervals_open_periodically_and_end_after_their_length() {
    let mut latency = WakeupLatency::default();
    assert_eq!((latency.action(5), latency.ends_ns()), (IntervalAction::Open, None));
    latency.begin(5, ClockReadings::new());
    assert_eq!(latency.ends_ns(), Some(5 + INTERVAL_MIN_NS));
    assert_eq!(latency.action(5 + INTERVAL_MIN_NS - 1), IntervalAction::None);
    assert_eq!(latency.action(5 + INTERVAL_MIN_NS), IntervalAction::Close);
    latency.end(5 + INTERVAL_MIN_NS, ClockReadings::new());
    assert_eq!(
        latency.action(5 + INTERVAL_EVERY_NS),
        IntervalAction::None,
        "what it wrote is still to be read"
    );
    latency.measured();
    assert_eq!(latency.action(5 + INTERVAL_EVERY_NS - 1), IntervalAction::None);
    assert_eq!(latency.action(5 + INTERVAL_EVERY_NS), IntervalAction::Open);
}

#[test]
fn the_length_of_an_interval_adapts_to_the_rate_of_switches() {
    let mut latency = WakeupLatency::default();
    let mut interval = |switches: u64, ns: u64| {
        latency.begin(0, ClockReadings::new());
        for number in 0..switches {
            latency.switched_in(id(1, 11, 0, number), false);
        }
        latency.end(ns, ClockReadings::new());
        latency.measured();
        latency.interval_ns
    };
    assert_eq!(interval(0, INTERVAL_MIN_NS), INTERVAL_MAX_NS);
    assert_eq!(interval(SWITCHES_WANTED, 10_000_000), 10_000_000);
    assert_eq!(interval(SWITCHES_WANTED / 2, 10_000_000), 20_000_000);
    assert_eq!(interval(100 * SWITCHES_WANTED, 10_000_000), INTERVAL_MIN_NS);
    assert_eq!(interval(1, INTERVAL_MAX_NS), INTERVAL_MAX_NS);
}
