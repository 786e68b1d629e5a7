#![allow(clippy::unwrap_used)]
use super::*;
use crate::rng::Rng;

fn id(pid: pid_t, tid: pid_t, cpu: u32, time_ns: u64) -> Id {
    Id { pid, tid, time_ns, cpu }
}

fn clocks(at_ns: u64, cpu_ns: u64) -> Clocks {
    Clocks::from([(1, Asked { at_ns, cpu_ns })])
}

fn stack() -> Box<Capture> {
    Box::new(Capture::with_capacity(0))
}

/// Process 1 runs on CPU 0 in turns; its clock begins `early_ns` before each. The share found.
fn measured(early_ns: u64, seed: u64) -> (u64, i64) {
    let mut rng = Rng::new(seed);
    let mut woken = WakeupLatency::default();
    woken.begin(1_000, clocks(1_000, 500));
    let (mut now_ns, mut used_ns) = (1_000, 500);
    for turn in 0..200 {
        now_ns += rng.within(20_000, 90_000);
        woken.switched_out(id(0, 0, 0, now_ns), true);
        woken.switched_in(id(1, 11, 0, now_ns), false);
        // Another process has the other CPU all the time.
        woken.sampled(id(2, 22, 1, now_ns));
        let runs_ns = rng.within(10_000, 60_000);
        now_ns += runs_ns;
        used_ns += runs_ns + early_ns;
        if turn % 7 == 0 {
            assert!(woken.copied(id(1, 11, 0, now_ns), stack()).is_none());
        }
        assert!(woken.switched_out(id(1, 11, 0, now_ns), false).is_none());
        woken.switched_in(id(0, 0, 0, now_ns), true);
    }
    assert_eq!(woken.waits.len(), 29);
    woken.end(now_ns, clocks(now_ns, used_ns));
    let measured = woken.measured();
    assert_eq!(measured.len(), 1, "seed {seed}: {measured:?}");
    assert!(!woken.is_open() && measured[0].1 == used_ns - 500);
    (measured[0].1, measured[0].2)
}

#[test]
fn time_from_before_a_thread_runs_is_what_its_clock_has_more_than_its_turns() {
    for seed in 0..20 {
        assert_eq!(measured(0, seed).1, 0, "seed {seed}");
        assert_eq!(measured(12_000, seed).1, 200 * 12_000, "seed {seed}");
    }
}

#[test]
fn turns_are_cut_where_the_clocks_were_asked() {
    let mut woken = WakeupLatency::default();
    woken.begin(100, clocks(100, 0));
    // On CPU 0 since before, on CPU 1 until after, on CPU 2 throughout and on CPU 3 never.
    woken.switched_out(id(1, 10, 0, 150), true);
    woken.switched_in(id(1, 11, 1, 180), false);
    woken.sampled(id(1, 12, 2, 160));
    woken.sampled(id(1, 12, 3, 90));
    woken.end(200, clocks(200, 175));
    assert_eq!(woken.measured(), [(1, 175, 175 - 50 - 20 - 100)]);
}

#[test]
fn the_time_of_a_switch_is_the_next_threads_unless_the_cpu_had_nothing_to_do() {
    for direct in [true, false] {
        let mut woken = WakeupLatency::default();
        woken.begin(0, clocks(0, 0));
        for turn in 0..100 {
            let began_ns = turn * 10_000;
            // Another process until then. Copying a stack takes 600 ns, the switch 900 more.
            woken.copied(id(2, 22, 0, began_ns), stack());
            woken.switched_out(id(2, 22, 0, began_ns + 600), false);
            woken.switched_in(id(1, 11, 0, began_ns + 1_500), direct);
            woken.copied(id(1, 11, 0, began_ns + 5_000), stack());
            woken.switched_out(id(1, 11, 0, began_ns + 5_600), false);
            woken.switched_in(id(2, 22, 0, began_ns + 6_500), true);
        }
        woken.end(1_000_000, clocks(1_000_000, 500_000));
        assert_eq!(woken.measured(), [(1, 500_000, if direct { 0 } else { 150_000 })]);
    }
}

#[test]
fn windows_with_records_missing_count_for_nothing() {
    let mut woken = WakeupLatency::default();
    woken.begin(100, clocks(100, 0));
    woken.switched_in(id(1, 11, 0, 120), false);
    woken.dropped = true;
    woken.end(200, clocks(200, 100));
    assert!(woken.measured().is_empty());
    woken.begin(300, clocks(300, 0));
    woken.abandon();
    assert!(woken.measured().is_empty() && !woken.is_open());
}

#[test]
fn a_stack_is_where_a_thread_waits_only_if_it_left_by_itself() {
    let mut woken = WakeupLatency::default();
    woken.begin(0, clocks(0, 0));
    woken.copied(id(1, 11, 0, 10), stack());
    assert!(woken.switched_out(id(1, 11, 0, 11), true).is_some(), "it was preempted");
    woken.copied(id(1, 11, 0, 20), stack());
    assert!(woken.switched_out(id(1, 12, 0, 21), false).is_some(), "it is another's");
    woken.copied(id(1, 11, 0, 30), stack());
    assert!(woken.switched_out(id(1, 11, 0, 31), false).is_none());
    assert_eq!(woken.waits.len(), 1);
}

#[test]
fn a_window_opens_now_and_then_and_ends_when_it_was_long_enough() {
    let mut woken = WakeupLatency::default();
    assert_eq!((woken.turn(5), woken.ends_ns()), (Turn::Open, None));
    woken.begin(5, Clocks::new());
    assert_eq!(woken.ends_ns(), Some(5 + WINDOW_MIN_NS));
    assert_eq!(woken.turn(5 + WINDOW_MIN_NS - 1), Turn::Nothing);
    assert_eq!(woken.turn(5 + WINDOW_MIN_NS), Turn::Close);
    woken.end(5 + WINDOW_MIN_NS, Clocks::new());
    assert_eq!(woken.turn(5 + DISTANCE_NS), Turn::Nothing, "what it wrote is still to be read");
    woken.measured();
    assert_eq!(woken.turn(5 + DISTANCE_NS - 1), Turn::Nothing);
    assert_eq!(woken.turn(5 + DISTANCE_NS), Turn::Open);
}

#[test]
fn a_window_is_as_long_as_the_switches_that_are_wanted_take() {
    let mut woken = WakeupLatency::default();
    let mut window = |switches: u64, ns: u64| {
        woken.begin(0, Clocks::new());
        for number in 0..switches {
            woken.switched_in(id(1, 11, 0, number), false);
        }
        woken.end(ns, Clocks::new());
        woken.measured();
        woken.window_ns
    };
    assert_eq!(window(0, WINDOW_MIN_NS), WINDOW_MAX_NS);
    assert_eq!(window(SWITCHES_WANTED, 10_000_000), 10_000_000);
    assert_eq!(window(SWITCHES_WANTED / 2, 10_000_000), 20_000_000);
    assert_eq!(window(100 * SWITCHES_WANTED, 10_000_000), WINDOW_MIN_NS);
    assert_eq!(window(1, WINDOW_MAX_NS), WINDOW_MAX_NS);
}
