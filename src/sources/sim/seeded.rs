//! A random but sensible simulated process from a seed.
//!
//! Input: a seed. Output: a [`SimConfig`] that passes its own check. A seed gives the same process on every
//! platform; a changed generator gives others.

use crate::addr::Avma;
use crate::arch::Arch;
use crate::sources::ExitStatus;

use super::config::{
    FunctionId, SimActivity, SimConfig, SimExec, SimFrame, SimFunction, SimImage, SimPhase, SimThread,
};
use super::faults::{FaultKind, SimFault};
use crate::rng::{self, Rng};

const NAMES: [&str; 20] = [
    "parse", "read", "hash", "visit", "merge", "sort", "encode", "decode", "lookup", "insert", "split",
    "scan", "compress", "update", "render", "walk", "reduce", "filter", "copy", "apply",
];
const LIBRARIES: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];

impl SimConfig {
    /// A random but sensible process: 1 to 8 threads on 1 to 4 CPUs, 2 to 5 images (more after a plugin swap or an
    /// exec), stacks up to 60 deep, threads that start and end, a few faults (never a refusal or a panic), for 2
    /// to 4 virtual seconds.
    #[must_use]
    pub fn from_seed(seed: u64) -> SimConfig {
        config(seed)
    }
}

/// The process of a seed.
fn config(seed: u64) -> SimConfig {
    let mut rng = Rng::new(seed);
    let arch = if rng.chance(1, 2) { Arch::X86_64 } else { Arch::Aarch64 };
    let exit_ns = rng.within(2_000_000_000, 4_000_000_000);
    let cpus = usize(rng.within(1, 4));
    let mut config = SimConfig::new(arch, cpus, exit_ns);
    config.seed = seed;
    config.signed_returns = rng.chance(1, 2);
    config.exit = match rng.within(0, 9) {
        0 => ExitStatus::Signal(9),
        1 => ExitStatus::Code(3),
        _ => ExitStatus::Code(0),
    };
    images(&mut config, &mut rng);
    let libraries: Vec<usize> = (0..config.images.len()).collect();
    let plugin = rng.chance(1, 4);
    for index in 0..usize(rng.within(1, if plugin { 6 } else { 8 })) {
        let thread = thread(&mut rng, &config, &libraries, index);
        config.threads.push(thread);
    }
    if plugin {
        swap_plugin(&mut config, &mut rng, &libraries);
    }
    if rng.chance(1, 8) {
        replace_program(&mut config, &mut rng);
    }
    faults(&mut config, &mut rng);
    config
}

fn usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// 2 to 5 images with 5 to 40 functions in total; the first is the executable.
fn images(config: &mut SimConfig, rng: &mut Rng) {
    let count = usize(rng.within(2, 5));
    let functions = usize(rng.within(5, 40));
    for index in 0..count {
        let mut names = Vec::new();
        if index == 0 {
            names.extend(["_start".to_owned(), "thread_start".to_owned()]);
        }
        let own = functions / count + usize::from(index < functions % count);
        for number in names.len()..own.max(names.len() + 1) {
            names.push(format!("{}_{}_{number}", rng_name(rng), image_name(index)));
        }
        config.images.push(image(rng, index as u64, image_name(index), names));
    }
}

fn rng_name(rng: &mut Rng) -> &'static str {
    NAMES[usize(rng.within(0, NAMES.len() as u64 - 1))]
}

fn image_name(index: usize) -> &'static str {
    if index == 0 { "sim" } else { LIBRARIES[(index - 1) % LIBRARIES.len()] }
}

fn image(rng: &mut Rng, place: u64, name: &str, names: Vec<String>) -> SimImage {
    let path = if name == "sim" { "/sim/sim".to_owned() } else { format!("/sim/lib{name}.so") };
    let avma = 0x5500_0000_0000 + place * 0x1000_0000 + rng.within(16, 4096) * 4096;
    let mut image = SimImage::new(&path, Avma(avma), &[]);
    image.text_offset = rng.within(1, 3) * 4096;
    image.text_svma = image.text_offset + rng.within(1, 8) * 4096;
    let functions = names.into_iter().map(|name| SimFunction { name, code_bytes: rng.within(2, 64) * 16 });
    image.functions = functions.collect();
    image
}

/// A stack from `root` to a leaf, 1 to 60 frames deep, sharing frames with `before`.
fn stack(
    rng: &mut Rng,
    config: &SimConfig,
    images: &[usize],
    before: &[SimFrame],
    root: FunctionId,
) -> Vec<SimFrame> {
    let depth = match rng.within(0, 9) {
        0 => rng.within(1, 3),
        1..=6 => rng.within(4, 20),
        _ => rng.within(21, 60),
    };
    let shared = usize(rng.within(0, before.len() as u64));
    let mut functions: Vec<FunctionId> = before[..shared].iter().map(|frame| frame.function).collect();
    functions.truncate(usize(depth));
    if functions.is_empty() {
        functions.push(root);
    }
    while functions.len() < usize(depth) {
        let last = functions[functions.len() - 1];
        if functions.len() > 1 && rng.chance(1, 5) {
            functions.push(last); // recursion
            continue;
        }
        let image = images[usize(rng.within(0, images.len() as u64 - 1))];
        let first = if image == 0 { 2 } else { 0 };
        let function = usize(rng.within(first, config.images[image].functions.len() as u64 - 1));
        functions.push(FunctionId { image, function });
    }
    let mut frames: Vec<SimFrame> = functions
        .into_iter()
        .map(|function| SimFrame { function, local_bytes: local_bytes(config.seed, function) })
        .collect();
    // The first function has no caller and a small frame. With it, start code takes a few hundred bytes, with
    // frame records (aarch64) or without (x86_64).
    frames[0].local_bytes = frames[0].local_bytes.min(96);
    frames.iter_mut().take(2).for_each(|frame| frame.local_bytes = frame.local_bytes.min(256));
    frames
}

/// All frames of a function have one size; few are large.
fn local_bytes(seed: u64, function: FunctionId) -> u64 {
    let random = rng::hash(&[seed, function.image as u64, function.function as u64]);
    match random % 16 {
        0 => 2048,
        1 => 0,
        _ => 16 + (random >> 8) % 16 * 16,
    }
}

fn script(rng: &mut Rng, config: &SimConfig, images: &[usize], root: FunctionId) -> Vec<SimPhase> {
    // Some threads compute most of the time, some mostly wait.
    let busy = rng.within(1, 9);
    let mut phases: Vec<SimPhase> = Vec::new();
    for _ in 0..rng.within(1, 10) {
        let before = phases.last().map_or(&[][..], |phase| &phase.stack[..]);
        let stack = stack(rng, config, images, before, root);
        let (activity, duration_ns) = match rng.within(0, 99) {
            0 => (SimActivity::Stopped, rng.within(1_000_000, 50_000_000)),
            _ if rng.chance(busy, 10) => (SimActivity::Run, rng.within(20_000, 30_000_000)),
            _ => (SimActivity::Wait, rng.within(50_000, 40_000_000)),
        };
        let frameless_leaf = config.arch == Arch::Aarch64 && rng.chance(1, 4);
        phases.push(SimPhase { stack, activity, duration_ns, frameless_leaf });
    }
    phases
}

fn thread(rng: &mut Rng, config: &SimConfig, images: &[usize], index: usize) -> SimThread {
    let root = FunctionId { image: 0, function: usize::from(index > 0) };
    let name = if index == 0 { "sim".to_owned() } else { format!("worker-{index}") };
    let mut thread = SimThread::looping(&name, script(rng, config, images, root));
    if index > 0 {
        thread.name = thread.name.filter(|_| !rng.chance(1, 8));
        thread.stack_top_known = rng.chance(3, 4);
        if rng.chance(1, 3) {
            thread.start_ns = rng.within(1_000_000, config.exit_ns - 1);
        }
        if rng.chance(1, 3) {
            thread.exit_ns = Some(thread.start_ns + rng.within(1_000_000, 1_000_000_000));
        } else if rng.chance(1, 4) {
            thread.looping = false;
        }
    }
    thread
}

/// A plugin is unloaded and another one loaded at the same address; each has its own thread. The old one's ends
/// earlier, since it cannot end while it is stopped.
fn swap_plugin(config: &mut SimConfig, rng: &mut Rng, libraries: &[usize]) {
    let swap_ns = rng.within(config.exit_ns / 4, config.exit_ns / 2);
    for (index, name) in ["plugin_old", "plugin_new"].into_iter().enumerate() {
        let names =
            (0..rng.within(1, 4)).map(|number| format!("{}_{name}_{number}", rng_name(rng))).collect();
        let mut image = image(rng, 16, name, names);
        if index == 0 {
            image.unload_ns = Some(swap_ns);
        } else {
            image.text_avma = config.images[config.images.len() - 1].text_avma;
            image.load_ns = swap_ns;
        }
        config.images.push(image);
        let mut images = libraries.to_vec();
        images.push(config.images.len() - 1);
        let mut thread = thread(rng, config, &images, config.threads.len());
        let (start_ns, exit_ns) = if index == 0 { (0, Some(swap_ns - 100_000_000)) } else { (swap_ns, None) };
        (thread.start_ns, thread.exit_ns) = (start_ns, exit_ns);
        config.threads.push(thread);
    }
}

fn replace_program(config: &mut SimConfig, rng: &mut Rng) {
    let names = ["_start", "again", "and_again", "done"].map(str::to_owned).to_vec();
    let mut image = image(rng, 32, "replaced", names);
    image.after_exec = true;
    config.images.push(image);
    let new = config.images.len() - 1;
    let script = script(rng, config, &[new], FunctionId { image: new, function: 0 });
    config.exec = Some(SimExec { at_ns: rng.within(config.exit_ns / 2, config.exit_ns), script });
}

/// A few faults of kinds that leave a recording with most of its samples.
fn faults(config: &mut SimConfig, rng: &mut Rng) {
    let kinds = [
        FaultKind::DieBeforeInterrupt,
        FaultKind::DieBeforeCollect,
        FaultKind::ShortStack { bytes: 8 * usize(rng.within(0, 64)) },
        FaultKind::Unreadable,
        FaultKind::LongStop { pause_ns: rng.within(100_000, 5_000_000) },
        FaultKind::ClockJump { by_ns: rng.within(500_000, 20_000_000) },
        FaultKind::NoName,
        FaultKind::MappingsTransient,
        FaultKind::MemoryUnmapped,
    ];
    for _ in 0..rng.within(0, 4) {
        let kind = kinds[usize(rng.within(0, kinds.len() as u64 - 1))];
        let fault = SimFault::once(kind).after(rng.within(0, 500)).from_time(rng.within(0, config.exit_ns));
        config.faults.push(match kind {
            FaultKind::DieBeforeInterrupt | FaultKind::DieBeforeCollect => fault,
            FaultKind::NoName | FaultKind::MappingsTransient => SimFault::once(kind),
            _ => SimFault::rate(kind, 2_000),
        });
    }
}
