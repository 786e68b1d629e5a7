//! The configuration of a simulated process: images, threads with scripts, times and faults.
//!
//! Plain data with public fields, so that a test can state one exact situation; the last part generates random ones
//! from a seed. `Faults` injects and counts the faults. Times are nanoseconds of the fake clock.

use std::rc::Rc;

use super::ledger::SimLedger;
use crate::addr::Avma;
use crate::arch::Arch;
use crate::rng::{self, Rng};
use crate::sources::{ExitStatus, ThreadId};

/// Memory reserved per stack; below the stack pointer it reads as zeros.
pub(super) const STACK_BYTES: u64 = 8 << 20;

/// A function of a simulated image: image index, function index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Index into [`SimConfig::images`].
    pub image: usize,
    /// Index into [`SimImage::functions`].
    pub function: usize,
}

/// A function: name and size; functions are laid out one after the other in their image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFunction {
    /// Symbol name.
    pub name: String,
    /// Bytes of code; rounded up to 16, at least 32.
    pub code_bytes: u64,
}

/// A fake module: an executable or library with an ELF file that exists only in memory.
#[derive(Clone, Debug)]
pub struct SimImage {
    /// Path in the target's view; with the index, its identity.
    pub path: String,
    /// Address of its executable range: a multiple of 4096.
    pub text_avma: Avma,
    /// Stated address of the executable range, above `text_offset` and a multiple of 4096; different from the
    /// offset, to expose mix-ups of the two.
    pub text_svma: u64,
    /// File offset of the executable range: a multiple of 4096, not 0.
    pub text_offset: u64,
    /// Its functions, in address order, without gaps.
    pub functions: Vec<SimFunction>,
    /// Time of mapping.
    pub load_ns: u64,
    /// Time of unmapping. No stack may use it later.
    pub unload_ns: Option<u64>,
    /// Part of the program started by an exec: mapped only after it. The others are unmapped then.
    pub after_exec: bool,
}

impl SimImage {
    /// An image mapped for the whole run, with functions of 64 bytes.
    #[must_use]
    pub fn new(path: &str, text_avma: Avma, functions: &[&str]) -> SimImage {
        let functions =
            functions.iter().map(|name| SimFunction { name: (*name).to_owned(), code_bytes: 64 }).collect();
        SimImage {
            path: path.to_owned(),
            text_avma,
            text_svma: 0x3000,
            text_offset: 0x1000,
            functions,
            load_ns: 0,
            unload_ns: None,
            after_exec: false,
        }
    }
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimFrame {
    /// Function of the frame.
    pub function: FunctionId,
    /// Bytes of its locals; rounded up to 16.
    pub local_bytes: u64,
}

/// The activity of a thread in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimActivity {
    /// Computes: needs a CPU until it has used the phase's duration of CPU time.
    Run,
    /// Blocked for the phase's duration.
    Wait,
    /// Stopped by job control for the phase's duration.
    Stopped,
}

/// A period of a thread's life with one stack.
#[derive(Clone, Debug)]
pub struct SimPhase {
    /// Frames from the root (the thread's start function) to the leaf; at least one.
    pub stack: Vec<SimFrame>,
    /// The thread's activity.
    pub activity: SimActivity,
    /// CPU time for [`SimActivity::Run`], else wall time; raised to [`SimPhase::MIN_NS`].
    pub duration_ns: u64,
    /// The leaf has no frame record: its return address is in the link register (aarch64) or on top of the stack
    /// (x86_64), and the frame pointer is its caller's.
    pub frameless_leaf: bool,
}

impl SimPhase {
    /// The shortest phase; bounds events per virtual second.
    pub const MIN_NS: u64 = 1_000;

    /// A phase with these frames, root first, of 32 bytes of locals each.
    #[must_use]
    pub fn new(activity: SimActivity, duration_ns: u64, stack: &[FunctionId]) -> SimPhase {
        let stack = stack.iter().map(|function| SimFrame { function: *function, local_bytes: 32 }).collect();
        SimPhase { stack, activity, duration_ns, frameless_leaf: false }
    }
}

/// A simulated thread. The first of [`SimConfig::threads`] is the leader and has the process id as its thread id;
/// the others follow.
#[derive(Clone, Debug)]
pub struct SimThread {
    /// Its name, if any.
    pub name: Option<String>,
    /// Start time; at 0, it existed before the profiler.
    pub start_ns: u64,
    /// Latest end; `None`: ends with its script or the process.
    pub exit_ns: Option<u64>,
    /// Phases, one after the other; at least one.
    pub script: Vec<SimPhase>,
    /// Starts over after the last phase; otherwise the thread ends.
    pub looping: bool,
    /// The profiler knows its initial stack pointer.
    pub stack_top_known: bool,
}

impl SimThread {
    /// A thread that loops over `script` from the start to the end of the process.
    #[must_use]
    pub fn looping(name: &str, script: Vec<SimPhase>) -> SimThread {
        SimThread {
            name: Some(name.to_owned()),
            start_ns: 0,
            exit_ns: None,
            script,
            looping: true,
            stack_top_known: true,
        }
    }
}

/// The process replaces its program: the leader continues, all other threads end.
#[derive(Clone, Debug)]
pub struct SimExec {
    /// Time; `u64::MAX` leaves it to [`super::FaultKind::Exec`].
    pub at_ns: u64,
    /// The leader's script afterwards, repeated; its functions belong to images with [`SimImage::after_exec`].
    pub script: Vec<SimPhase>,
}

/// A simulated process.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed for unspecified data: words in locals, program counters within functions, fault rates.
    pub seed: u64,
    /// Process id, and id of the first thread.
    pub pid: u32,
    /// Process name.
    pub name: String,
    /// Instruction set: x86_64 or aarch64. 32-bit processors have no simulated code; the related 64-bit one is
    /// simulated and reported instead.
    pub arch: Arch,
    /// Return addresses on stacks have a signature in their upper 16 bits (aarch64 only).
    pub signed_returns: bool,
    /// CPUs, at least 1.
    pub cpus: usize,
    /// Time slice of a thread on a CPU that others need.
    pub slice_ns: u64,
    /// Interval of CPU time updates for a running thread.
    pub accounting_tick_ns: u64,
    /// Latency from a stop request to the stop of a running thread.
    pub stop_latency_ns: u64,
    /// Time from collecting a stopped thread until it runs again.
    pub pause_ns: u64,
    /// Duration of listing the mappings; 0 by default.
    pub list_ns: u64,
    /// Images, including later ones.
    pub images: Vec<SimImage>,
    /// Threads, including later ones; the first exists from the start.
    pub threads: Vec<SimThread>,
    /// End of the process.
    pub exit_ns: u64,
    /// Exit status.
    pub exit: ExitStatus,
    /// Replacement of its program.
    pub exec: Option<SimExec>,
    /// Time of a request to end the profiler.
    pub terminate_ns: Option<u64>,
    /// Injected faults.
    pub faults: Vec<SimFault>,
    /// Captures include the requested stack ranges.
    pub prefetches: bool,
}

impl SimConfig {
    /// The simulated instruction set.
    #[must_use]
    pub(super) fn simulated_arch(&self) -> Arch {
        match self.arch {
            Arch::X86_64 | Arch::X86 => Arch::X86_64,
            Arch::Aarch64 | Arch::Arm => Arch::Aarch64,
        }
    }

    /// A process without threads, images or faults on `cpus` CPUs that ends at `exit_ns` with code 0; the caller
    /// fills in the rest.
    #[must_use]
    pub fn new(arch: Arch, cpus: usize, exit_ns: u64) -> SimConfig {
        SimConfig {
            seed: 1,
            pid: 4242,
            name: "sim".to_owned(),
            arch,
            signed_returns: false,
            cpus,
            slice_ns: 3_000_000,
            accounting_tick_ns: 4_000_000,
            stop_latency_ns: 2_000,
            pause_ns: 8_000,
            list_ns: 0,
            images: Vec::new(),
            threads: Vec::new(),
            exit_ns,
            exit: ExitStatus::Code(0),
            exec: None,
            terminate_ns: None,
            faults: Vec::new(),
            prefetches: false,
        }
    }

    /// This process without faults.
    #[must_use]
    pub fn without_faults(mut self) -> SimConfig {
        self.faults.clear();
        self
    }

    /// This process with a frame record in every function, so that frame pointers alone walk every stack.
    #[must_use]
    pub fn with_frame_pointers(mut self) -> SimConfig {
        let scripts = self.threads.iter_mut().map(|thread| &mut thread.script);
        for phase in scripts.chain(self.exec.iter_mut().map(|exec| &mut exec.script)).flatten() {
            phase.frameless_leaf = false;
        }
        self
    }

    /// Checks the assumptions of the simulation; the text names the first violation.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.cpus == 0 || self.slice_ns == 0 || self.accounting_tick_ns == 0 {
            return Err("a simulated process needs a CPU, a slice and an accounting tick".to_owned());
        }
        if self.threads.first().is_none_or(|leader| leader.start_ns != 0) {
            return Err("the first simulated thread must exist from the start".to_owned());
        }
        for image in &self.images {
            let aligned =
                [image.text_avma.0, image.text_svma, image.text_offset].iter().all(|a| a % 4096 == 0);
            if !aligned || image.text_offset == 0 || image.text_svma < image.text_offset {
                return Err(format!("`{}`: text not at whole pages or not behind the head", image.path));
            }
            if image.functions.is_empty() || image.text_avma.0 < image.text_svma {
                return Err(format!("`{}`: no functions, or mapped too low", image.path));
            }
        }
        let scripts = self.threads.iter().map(|thread| &thread.script);
        for script in scripts.chain(self.exec.iter().map(|exec| &exec.script)) {
            if script.is_empty() || script.iter().any(|phase| phase.stack.is_empty()) {
                return Err("a simulated thread needs phases, and a phase a stack".to_owned());
            }
            for frame in script.iter().flat_map(|phase| &phase.stack) {
                let FunctionId { image, function } = frame.function;
                if self.images.get(image).and_then(|image| image.functions.get(function)).is_none() {
                    return Err(format!("no function {function} in simulated image {image}"));
                }
            }
            for phase in script {
                let bytes: u64 =
                    phase.stack.iter().map(|f| f.local_bytes.saturating_add(32)).fold(0, u64::saturating_add);
                if bytes > STACK_BYTES / 2 {
                    return Err(format!("a simulated stack of {bytes} bytes does not fit"));
                }
            }
        }
        Ok(())
    }
}

// ---- The faults of a simulated process: kinds, times and rates.
//
// Each injected fault is counted by name in the ledger, so that a test can distinguish "handled" from "never
// tried".

/// The kind of a fault. The occasion is in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The thread dies after it was listed and polled (interrupt).
    DieBeforeInterrupt,
    /// The thread dies while it is stopped, before it is collected (capture).
    DieBeforeCollect,
    /// The stack's memory ends after this many bytes (capture).
    ShortStack {
        /// Bytes that can be read.
        bytes: usize,
    },
    /// Registers or stack cannot be read at all (capture).
    Unreadable,
    /// The thread is stopped for this long instead of [`super::SimConfig::pause_ns`] (capture).
    LongStop {
        /// Duration of the stop.
        pause_ns: u64,
    },
    /// The profiler panics while the thread is stopped (capture).
    Panic,
    /// The profiler itself gets no CPU for this long; no thread is stopped for it (return of an event).
    ClockJump {
        /// Distance of the clock jump.
        by_ns: u64,
    },
    /// The process ends (interrupt).
    Exit,
    /// The process replaces its program, if it has a [`super::SimExec`] (interrupt).
    Exec,
    /// The thread's name cannot be read (thread name).
    NoName,
    /// The list of mappings is refused (mappings).
    MappingsDenied,
    /// The list of mappings is changing (mappings).
    MappingsTransient,
    /// The image's file no longer exists (image bytes).
    ImageDeleted,
    /// The memory is unmapped during the read (read memory).
    MemoryUnmapped,
}

impl FaultKind {
    /// Its name in [`SimLedger::faults`].
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::DieBeforeInterrupt => "die before interrupt",
            FaultKind::DieBeforeCollect => "die before collect",
            FaultKind::ShortStack { .. } => "short stack",
            FaultKind::Unreadable => "unreadable",
            FaultKind::LongStop { .. } => "long stop",
            FaultKind::Panic => "panic",
            FaultKind::ClockJump { .. } => "clock jump",
            FaultKind::Exit => "exit",
            FaultKind::Exec => "exec",
            FaultKind::NoName => "no name",
            FaultKind::MappingsDenied => "mappings denied",
            FaultKind::MappingsTransient => "mappings transient",
            FaultKind::ImageDeleted => "image deleted",
            FaultKind::MemoryUnmapped => "memory unmapped",
        }
    }
}

/// A fault and its occasions.
#[derive(Clone, Copy, Debug)]
pub struct SimFault {
    /// Its kind.
    pub kind: FaultKind,
    /// Earliest time.
    pub from_ns: u64,
    /// Only for this thread, if the occasion has one.
    pub thread: Option<ThreadId>,
    /// Number of occasions skipped first.
    pub skip: u64,
    /// Limit on injections.
    pub count: u64,
    /// Probability at each remaining occasion, in millionths.
    pub per_million: u32,
}

impl SimFault {
    /// A fault at the first occasion only.
    #[must_use]
    pub fn once(kind: FaultKind) -> SimFault {
        SimFault { kind, from_ns: 0, thread: None, skip: 0, count: 1, per_million: 1_000_000 }
    }

    /// A fault at every occasion.
    #[must_use]
    pub fn always(kind: FaultKind) -> SimFault {
        SimFault { count: u64::MAX, ..SimFault::once(kind) }
    }

    /// A random fault at `per_million` of a million occasions.
    #[must_use]
    pub fn rate(kind: FaultKind, per_million: u32) -> SimFault {
        SimFault { per_million, ..SimFault::always(kind) }
    }

    /// The fault, from `from_ns` on.
    #[must_use]
    pub fn from_time(self, from_ns: u64) -> SimFault {
        SimFault { from_ns, ..self }
    }

    /// The fault, after `skip` occasions.
    #[must_use]
    pub fn after(self, skip: u64) -> SimFault {
        SimFault { skip, ..self }
    }

    /// The fault, for one thread only.
    #[must_use]
    pub fn of_thread(self, thread: ThreadId) -> SimFault {
        SimFault { thread: Some(thread), ..self }
    }
}

/// The faults of a running simulation.
#[derive(Debug)]
pub(super) struct Faults {
    plan: Vec<SimFault>,
    rng: Rng,
    ledger: Rc<SimLedger>,
}

impl Faults {
    pub(super) fn new(plan: Vec<SimFault>, seed: u64, ledger: Rc<SimLedger>) -> Faults {
        Faults { plan, rng: Rng::new(seed ^ 0x6661_756c_7473), ledger }
    }

    /// At an occasion for the faults that `pick` selects: the value of the first one injected.
    pub(super) fn take<T>(
        &mut self,
        thread: Option<ThreadId>,
        now_ns: u64,
        pick: impl Fn(FaultKind) -> Option<T>,
    ) -> Option<T> {
        for fault in &mut self.plan {
            let Some(value) = pick(fault.kind) else { continue };
            let elsewhere = fault.thread.is_some() && thread.is_some() && fault.thread != thread;
            if elsewhere || now_ns < fault.from_ns || fault.count == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if fault.per_million < 1_000_000 && !self.rng.chance(fault.per_million.into(), 1_000_000) {
                continue;
            }
            fault.count = fault.count.saturating_sub(u64::from(fault.count != u64::MAX));
            self.ledger.fault_happened(fault.kind.name());
            return Some(value);
        }
        None
    }

    /// [`Faults::take`] for a fault without a value.
    pub(super) fn happens(&mut self, kind: FaultKind, thread: Option<ThreadId>, now_ns: u64) -> bool {
        self.take(thread, now_ns, |planned| (planned == kind).then_some(())).is_some()
    }
}

// ---- A random but sensible simulated process from a seed.
//
// A seed gives the same process on every platform; a changed generator gives others.

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
