//! The configuration of a simulated process: images, threads with scripts, times and faults.
//!
//! Plain data with public fields, so that a test states one exact situation;
//! `seeded.rs` makes a random one. Times are nanoseconds of the fake clock.

use crate::addr::Avma;
use crate::arch::Arch;
use crate::sources::ExitStatus;

use super::faults::SimFault;

/// Memory reserved for each stack; below the stack pointer it reads as zeros.
pub(super) const STACK_BYTES: u64 = 8 << 20;

/// A function of a simulated image: index of the image, index in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Index into [`SimConfig::images`].
    pub image: usize,
    /// Index into [`SimImage::functions`].
    pub function: usize,
}

/// A function: a name and a size, laid out one after the other in its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFunction {
    /// Symbol name.
    pub name: String,
    /// Bytes of code; rounded up to 16, at least 32.
    pub code_bytes: u64,
}

/// A fake module: an executable or library whose ELF file exists in memory only.
#[derive(Clone, Debug)]
pub struct SimImage {
    /// Path as the target sees it; its identity together with the index.
    pub path: String,
    /// Where its executable range is mapped: a multiple of 4096.
    pub text_avma: Avma,
    /// Stated address of the executable range, above `text_offset` and a multiple of
    /// 4096; different from the offset, so that mixing up the two shows.
    pub text_svma: u64,
    /// File offset of the executable range: a multiple of 4096, not 0.
    pub text_offset: u64,
    /// Its functions, in order of address, without gaps.
    pub functions: Vec<SimFunction>,
    /// Mapped from then on.
    pub load_ns: u64,
    /// Unmapped from then on. No stack may use it later.
    pub unload_ns: Option<u64>,
    /// Part of the program that an exec brings: mapped only after it. The others go with it.
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
    /// Whose frame.
    pub function: FunctionId,
    /// Bytes of locals in it; rounded up to 16.
    pub local_bytes: u64,
}

/// What a thread does in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimActivity {
    /// Computes: wants a CPU until it has used the phase's duration of CPU time.
    Run,
    /// Blocked for the phase's duration.
    Wait,
    /// Stopped by job control for the phase's duration.
    Stopped,
}

/// A stretch of a thread's life with one stack.
#[derive(Clone, Debug)]
pub struct SimPhase {
    /// Frames from the root (the thread's start function) to the leaf; at least one.
    pub stack: Vec<SimFrame>,
    /// What the thread does.
    pub activity: SimActivity,
    /// CPU time for [`SimActivity::Run`], else wall time; raised to [`SimPhase::MIN_NS`].
    pub duration_ns: u64,
    /// The leaf has no frame record: its return address is in the link register
    /// (aarch64) or on top of the stack (x86_64), and the frame pointer is its caller's.
    pub frameless_leaf: bool,
}

impl SimPhase {
    /// The shortest phase: a bound on events per virtual second.
    pub const MIN_NS: u64 = 1_000;

    /// A phase whose frames, root first, have 32 bytes of locals each.
    #[must_use]
    pub fn new(activity: SimActivity, duration_ns: u64, stack: &[FunctionId]) -> SimPhase {
        let stack = stack.iter().map(|function| SimFrame { function: *function, local_bytes: 32 }).collect();
        SimPhase { stack, activity, duration_ns, frameless_leaf: false }
    }
}

/// A simulated thread. The first of [`SimConfig::threads`] is the leader and has the
/// process id as its number; the others follow.
#[derive(Clone, Debug)]
pub struct SimThread {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Exists from then on; at 0, it was there before the profiler.
    pub start_ns: u64,
    /// Ends then at the latest; `None`: with its script or the process.
    pub exit_ns: Option<u64>,
    /// Phases, one after the other; at least one.
    pub script: Vec<SimPhase>,
    /// Starts over after the last phase; else the thread ends.
    pub looping: bool,
    /// The profiler knows where its stack begins.
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
    /// When; `u64::MAX` leaves it to [`super::FaultKind::Exec`].
    pub at_ns: u64,
    /// The leader's script after that, repeated; its functions belong to images with [`SimImage::after_exec`].
    pub script: Vec<SimPhase>,
}

/// A simulated process.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seeds what is not stated: words in locals, instants within functions, fault rates.
    pub seed: u64,
    /// Process id, and number of the first thread.
    pub pid: u32,
    /// Process name.
    pub name: String,
    /// Instruction set: x86_64 or aarch64. There is no simulated code of 32-bit processors; in place of
    /// one its relative of 64 bits is simulated, and named.
    pub arch: Arch,
    /// Return addresses on stacks carry a signature in their upper 16 bits (aarch64 only).
    pub signed_returns: bool,
    /// CPUs, at least 1.
    pub cpus: usize,
    /// How long a thread keeps a CPU that others want.
    pub slice_ns: u64,
    /// How often the CPU time of a running thread is brought up to date.
    pub accounting_tick_ns: u64,
    /// From a stop request to a running thread until it is stopped.
    pub stop_latency_ns: u64,
    /// From collecting a stopped thread until it runs again.
    pub pause_ns: u64,
    /// Listing the mappings takes this long; nothing by default.
    pub list_ns: u64,
    /// Images, also later ones.
    pub images: Vec<SimImage>,
    /// Threads, also later ones; the first exists from the start.
    pub threads: Vec<SimThread>,
    /// The process ends then.
    pub exit_ns: u64,
    /// How it ends.
    pub exit: ExitStatus,
    /// It replaces its program.
    pub exec: Option<SimExec>,
    /// The profiler is requested to end.
    pub terminate_ns: Option<u64>,
    /// What goes wrong.
    pub faults: Vec<SimFault>,
    /// Captures have the requested ranges of stacks.
    pub prefetches: bool,
}

impl SimConfig {
    /// The instruction set that is simulated.
    #[must_use]
    pub(super) fn simulated_arch(&self) -> Arch {
        match self.arch {
            Arch::X86_64 | Arch::X86 => Arch::X86_64,
            Arch::Aarch64 | Arch::Arm => Arch::Aarch64,
        }
    }

    /// A process without threads, images or faults on `cpus` CPUs that ends at
    /// `exit_ns` with code 0; the caller fills in the rest.
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

    /// Checks what the simulation relies on; the text names the first thing that is wrong.
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
