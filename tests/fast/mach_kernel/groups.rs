//! Number of threads to copy in one hold of a task: pauses by the simulated kernel's cost model, for the
//! table in docs/decisions/mach-holds-the-task.md.

use stackprof::live::Live;
use stackprof::sampler::{self, Options};
use stackprof::sources::mach::MachTarget;
use stackprof::sources::{Observed, Target};

use super::recorded::options;
use crate::pass_on::pass_on;
use crate::sim_kernel::*;

/// A target with stops collected in groups of another size.
struct InGroups<'k>(MachTarget<'k>, usize);

impl Observed for InGroups<'_> {
    pass_on! { 0: process }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.0)
    }
}

impl Target for InGroups<'_> {
    pass_on! { 0: threads poll interrupt next }

    fn stops_at_once(&self) -> usize {
        self.1
    }
}

/// The longest hold in microseconds, and the share of the time in which the task is held.
fn held(threads: usize, group: usize) -> (f64, f64) {
    let mut process = busy(500);
    for index in 1..threads {
        process = process.thread(SimThread::pthread(&format!("t{index}")).run(10 * MS, &["work"]));
    }
    let kernel = World::arm64(1).process(process).with(|world| world.ncpu = 64).build();
    let mut target = InGroups(MachTarget::attach(&kernel, 500).expect("attached"), group);
    let clock = target.0.clock();
    // Cost of holds without a limit.
    let options = Options { max_stop: 1.0, ..options(500) };
    let profile = sampler::record(&mut target, &clock, &options, &Live::default()).expect("recorded");
    drop(target);
    let report = kernel.report();
    assert!(report.is_clean(), "{report}");
    // Each stop of a hold has the length of the whole hold.
    let held_ns = profile.stats.pause.total_ns() as f64 * report.holds as f64 / profile.stats.stops as f64;
    (report.longest_hold_ns as f64 / 1e3, held_ns / profile.stats.duration_ns as f64)
}

#[test]
fn few_long_holds_cost_less_than_many_short_ones() {
    eprintln!("threads  group  longest hold, us  held, % of the time");
    let mut shares = Vec::new();
    for threads in [1, 4, 8, 16, 32] {
        for group in [1, 4, 16] {
            let (longest_us, share) = held(threads, group);
            eprintln!("{threads:>7}  {group:>5}  {longest_us:>16.1}  {:>19.1}", share * 100.0);
            shares.push(share);
        }
    }
    for by_group in shares.chunks(3).skip(2) {
        assert!(by_group[2] < by_group[1] && by_group[1] < by_group[0], "{by_group:?}");
    }
}
