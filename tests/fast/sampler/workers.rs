//! Threads that cannot be stopped, such as the kernel's io_uring workers: their CPU time is in the process's
//! clock but in no thread's, and is reported as lost.

use super::*;
use crate::pass_on::pass_on;
use stackprof::clock::{Clock, FakeClock};
use stackprof::sources::sim::SimTarget;
use stackprof::sources::{Observed, Target};

/// A simulated process with workers that use a fraction of a CPU.
struct WithWorkers<'a> {
    target: &'a mut SimTarget,
    clock: FakeClock,
}

/// Workers use one CPU divided by this.
const PART: u64 = 4;

impl Observed for WithWorkers<'_> {
    pass_on! { target: process }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.target)
    }
}

impl Target for WithWorkers<'_> {
    pass_on! { target: threads poll interrupt next waits_at }

    fn process_cpu_ns(&mut self, _process: u32) -> Option<u64> {
        let threads_ns: u64 = self.target.truth().values().sum();
        Some(threads_ns + self.clock.now_ns() / PART)
    }
}

#[test]
fn cpu_time_of_unknown_threads_is_reported_as_lost() {
    let _replay = replay(5);
    let scripts =
        vec![vec![run(700, &[0, 1]), wait(300, &[0, 2])], vec![run(50, &[0, 3]), wait(950, &[0, 4])]];
    let config = process(Arch::X86_64, 2, 10, scripts);
    let options = options(997, 5);
    let recorded = record_with(&config, &options, |target, clock, live| {
        let mut target = WithWorkers { target, clock: clock.clone() };
        sampler::record(&mut target, clock, &options, live)
    });
    let recorded = recorded.expect("the recording ends well");
    let workers = recorded.counts(recorded.now_ns / PART);
    let lost = recorded.lost_by("used by threads that could not be sampled") as f64;
    // CPU time of running threads since they were last polled, and a count for each.
    let slack = recorded.counts(2 * 4 * MS) + 3.0;
    assert!((lost - workers).abs() <= slack, "{lost} counts are lost, {workers:.1} were used by workers");
    let told = (recorded.profile.stats.samples + recorded.lost()) as f64;
    let real = recorded.true_counts() + workers;
    assert!((told - real).abs() <= slack, "{told} counts and losses for {real:.1}");
    let target_cpu = recorded.counts(recorded.profile.stats.target_cpu_ns);
    assert!((target_cpu - real).abs() <= slack, "{target_cpu:.1} counts of CPU time, {real:.1} used");
}

#[test]
fn wall_clock_time_is_of_known_threads() {
    let _replay = replay(6);
    let scripts = vec![vec![run(700, &[0, 1]), wait(300, &[0, 2])]];
    let config = process(Arch::X86_64, 2, 3, scripts);
    let options = idle(997, 6);
    let recorded = record_with(&config, &options, |target, clock, live| {
        let mut target = WithWorkers { target, clock: clock.clone() };
        sampler::record(&mut target, clock, &options, live)
    });
    let recorded = recorded.expect("the recording ends well");
    assert_eq!(recorded.lost_by("used by threads that could not be sampled"), 0);
}
