//! The kernel takes the samples by events of threads, which those inherit that are started: what an ordinary user
//! has at levels 1 and 2 of kernel.perf_event_paranoid. Several processes, each with its time.

use crate::by_kernel::{HZ, Somebody, sampled_alone};
use crate::by_kernel_refused::Setting;
use crate::by_kernel_tree::{tree, under, used_s};
use crate::support::{Fixture, Recorded, record_by};

/// Runs `check` where somebody has events of their threads only: with the kernel's part, and without it.
fn at_each_level(check: impl Fn(&Somebody, &str)) {
    let Some(_one) = sampled_alone() else { return };
    let Some(somebody) = Somebody::new() else { return };
    let Some(paranoid) = Setting::of("/proc/sys/kernel/perf_event_paranoid") else { return };
    for level in ["1", "2"] {
        paranoid.set(level).unwrap();
        check(&somebody, level);
    }
}

#[track_caller]
fn check_threads(recorded: &Recorded, level: &str) {
    recorded.check_success();
    let expected =
        if level == "1" { "user and kernel, for each thread" } else { "user code only, for each thread" };
    recorded.check(recorded.stats["backend_why"] == expected, "by other events");
}

/// Processes that end before a sample, that are started while the events are opened anew, that start others at once.
#[test]
fn what_a_tree_of_processes_used_is_counted_or_told_to_be_lost() {
    at_each_level(|somebody, level| {
        let program = somebody.fixture("tree");
        let one = somebody.copy(&tree("one"));
        let one = one.to_str().unwrap();
        for arguments in
            [&["chain", "60", "20000"][..], &["200", "2", "1000", one], &["12", "3", "60000", one]]
        {
            let mut words = vec!["--source", "perf", "--hz", "997", "--", program.to_str().unwrap()];
            words.extend(arguments);
            let recorded = record_by(somebody.run(&somebody.stackprof()), words).wait();
            check_threads(&recorded, level);
            let (children_s, own_s) = used_s(&recorded);
            let used_s = children_s + own_s;
            let accounted = (recorded.total() + recorded.lost()) as f64 / HZ / used_s;
            let known = recorded.figure("target_cpu_s") / used_s;
            println!("level {level}, {arguments:?}: {accounted:.3} of {used_s:.3} s, {known:.3} known");
            // What a process uses on its way out, when it has no events any more, is some 50 us.
            recorded
                .check((0.9..1.04).contains(&accounted), format!("{accounted} of its time is accounted for"));
            recorded.check((0.9..1.04).contains(&known), format!("{known} of its time is known"));
        }
    });
}

#[test]
fn what_an_attached_process_has_started_before_is_sampled_from_the_beginning() {
    at_each_level(|somebody, level| {
        let mut target = Fixture::run(somebody.run(&somebody.fixture("tree")).args(["fork", "0.4"]));
        target.line("ready");
        let pid = target.pid().to_string();
        let words = ["--source", "perf", "--hz", "997", "--children", "--pid", &pid];
        let running = record_by(somebody.run(&somebody.stackprof()), words);
        running.wait_attached(target.pid());
        target.go();
        target.done();
        let recorded = running.interrupt();
        check_threads(&recorded, level);
        // Of what is lost where the kernel may not be sampled nearly all is the clock that `burn_for` asks.
        let (counts, lost) = (under(&recorded, "tree", "burn_for") as f64 / HZ, recorded.lost() as f64 / HZ);
        println!("level {level}: {counts:.3} s and {lost:.3} s lost of 0.8");
        recorded.check((counts / 0.8 - 1.0).abs() < 0.15, format!("{counts} s of two processes' 0.8"));
        recorded.check(lost < 0.1, format!("{lost} s of 0.8 are lost"));
        recorded.check(recorded.figure("processes_seen") == 2.0, "another number of processes");
    });
}
