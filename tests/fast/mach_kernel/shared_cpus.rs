//! More ready threads than CPUs: samples show where threads use their time, not where they lost their CPU.

use super::recorded::{HZ, Recorded, Replay, options, recorded};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

/// A process with threads that share CPUs in turns of `slice_ns`: each computes, and ends its turn by waking
/// the next one, so that it is in `mach_msg2_trap` while it is ready.
fn in_turns(pid: i32, threads: u64, slice_ns: u64) -> SimProcess {
    let mut process = canned(pid).with(|process| process.program.threads.truncate(1));
    // The main thread waits for all.
    process.program.threads[0] = SimThread::main().wait(SECOND, &["mach_msg2_trap", "mach_msg", "main"]);
    for number in 0..threads {
        let part = |percent: u64| slice_ns * percent / 100;
        let thread = SimThread::pthread(&format!("t{number}"))
            .run(part(3), &["mach_msg2_trap", "mach_msg", "w6", "w5"])
            .run(part(62), &["z1", "z0", "w5"])
            .run(part(30), &["z4", "z0", "w5"])
            .run(slice_ns - part(3) - part(62) - part(30), &["__psynch_cvwait", "_pthread_cond_wait", "w5"])
            .turns(threads, number, slice_ns);
        process = process.thread(thread);
    }
    process
}

/// Share of the samples with this leaf, and of the time.
fn shares(recorded: &Recorded, leaf: &str) -> (f64, f64) {
    let has = |names: &[String]| names.last().is_some_and(|last| last == leaf);
    let shown: u64 = recorded.stacks.iter().filter(|((_, _, n), _)| has(n)).map(|(_, count)| count).sum();
    let real: u64 = recorded.truth.iter().filter(|((_, n), _)| has(n)).map(|(_, ns)| ns).sum();
    let total = recorded.stacks.values().sum::<u64>() as f64;
    (shown as f64 / total, real as f64 / recorded.truth.values().sum::<u64>() as f64)
}

#[test]
fn shares_match_the_time_on_cpus() {
    eprintln!("threads  slice, us  leaf               samples, %  time, %");
    // Eight polls before a hold take 12 us, a fifth of a turn of 60 us: some of the threads that got their
    // CPU in that time are excluded. With turns of about the interval between two ticks a sample weighs the
    // time since the previous one: late parts weigh more than early ones.
    for (threads, slice_us, tolerance) in [(2, 60, 0.03), (8, 60, 0.09), (24, 5_000, 0.04), (2, 350, 0.09)] {
        for times in [CpuTimes::Exact, CpuTimes::Lagging] {
            for seed in seeds(0..2) {
                let _replay = Replay(seed);
                let process = in_turns(500, threads, slice_us * US).cpu_times(times);
                let world = World::arm64(seed).process(process).with(|world| world.ncpu = 2);
                let (_, recorded) = recorded(world, &options(4_000));
                recorded.check_exact();
                for leaf in ["z1", "z4", "mach_msg2_trap", "__psynch_cvwait"] {
                    let (shown, real) = shares(&recorded, leaf);
                    let (percent, of_time) = (shown * 100.0, real * 100.0);
                    eprintln!("{threads:>7}  {slice_us:>9}  {leaf:<17}  {percent:>10.1}  {of_time:>7.1}");
                    assert!(
                        (shown - real).abs() < tolerance,
                        "{threads} threads, {slice_us} us, {times:?}: {leaf} has {percent:.1} % of the samples \
                         and {of_time:.1} % of the time"
                    );
                }
                let real = recorded.truth.values().sum::<u64>() as f64 * f64::from(HZ) / 1e9;
                let told = (recorded.profile.stats.samples + recorded.lost()) as f64;
                assert!((told - real).abs() < 0.02 * real + 30.0, "{told} counts for {real}");
            }
        }
    }
}
