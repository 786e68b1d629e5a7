//! Simulated processes for the sampler's tests, defined in a line or two each.
//!
//! Output: [`SimConfig`]s of one image with the functions `f0` to `f39`. Function 0 is the root of every
//! stack.

use stackprof::addr::Avma;
use stackprof::arch::Arch;
use stackprof::sources::ThreadId;
use stackprof::sources::sim::{
    FunctionId, SimActivity, SimConfig, SimFault, SimFrame, SimImage, SimPhase, SimThread,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;
pub const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
pub const FUNCTIONS: usize = 40;

/// The number of the thread at an index in [`SimConfig::threads`].
pub fn thread(index: u64) -> ThreadId {
    ThreadId(4242 + index)
}

/// Function `n` of the first image.
pub fn f(function: usize) -> FunctionId {
    FunctionId { image: 0, function }
}

/// The names of functions of the first image.
pub fn names(functions: &[usize]) -> Vec<String> {
    functions.iter().map(|n| format!("f{n}")).collect()
}

pub fn phase(activity: SimActivity, us: u64, stack: &[usize]) -> SimPhase {
    SimPhase::new(activity, us * 1_000, &stack.iter().map(|n| f(*n)).collect::<Vec<_>>())
}

/// Uses `us` microseconds of CPU time.
pub fn run(us: u64, stack: &[usize]) -> SimPhase {
    phase(SimActivity::Run, us, stack)
}

/// Waits for `us` microseconds.
pub fn wait(us: u64, stack: &[usize]) -> SimPhase {
    phase(SimActivity::Wait, us, stack)
}

/// A stack of `depth` frames with `local_bytes` of locals each, ending in function `leaf`.
pub fn deep(activity: SimActivity, us: u64, depth: usize, local_bytes: u64, leaf: usize) -> SimPhase {
    let function = |level: usize| if level + 1 == depth { leaf } else { level % 7 };
    let frames = (0..depth).map(|level| SimFrame { function: f(function(level)), local_bytes });
    SimPhase { stack: frames.collect(), activity, duration_ns: us * 1_000, frameless_leaf: false }
}

/// A process with threads that loop over these scripts for `seconds`.
pub fn process(arch: Arch, cpus: usize, seconds: u64, scripts: Vec<Vec<SimPhase>>) -> SimConfig {
    let mut config = SimConfig::new(arch, cpus, seconds * SECOND);
    config.images.push(image("/sim/libalpha.so", 0x5500_0100_0000, "f", FUNCTIONS));
    for (number, script) in scripts.into_iter().enumerate() {
        config.threads.push(SimThread::looping(&format!("t{number}"), script));
    }
    config
}

/// An image with the functions `{prefix}0`, `{prefix}1` and so on.
pub fn image(path: &str, avma: u64, prefix: &str, functions: usize) -> SimImage {
    let names: Vec<String> = (0..functions).map(|n| format!("{prefix}{n}")).collect();
    SimImage::new(path, Avma(avma), &names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Four threads on two CPUs: one computes, one bursts, one alternates, one starts late.
pub fn mixed(seed: u64) -> SimConfig {
    let scripts = vec![
        vec![run(5_000, &[0, 1, 2]), run(3_000, &[0, 1, 3]), run(2_000, &[0, 4])],
        vec![run(300, &[0, 5, 6]), wait(2_000, &[0, 5, 7])],
        vec![run(2_500, &[0, 8]), wait(4_000, &[0, 8, 9]), run(1_500, &[0, 8, 10])],
        vec![run(4_000, &[0, 11, 12]), wait(3_000, &[0, 11, 13])],
    ];
    let mut config = process(ARCHES[(seed % 2) as usize], 2, 3, scripts);
    config.seed = seed;
    config.threads[3].start_ns = 200 * MS;
    config
}

/// [`mixed`] with a fault.
pub fn mixed_with(seed: u64, fault: SimFault) -> SimConfig {
    SimConfig { faults: vec![fault], ..mixed(seed) }
}
