//! The configuration of a simulated process: images, threads with scripts, times and faults.
//!
//! Plain data with public fields, so that a test can state one exact situation; `seeded.rs` generates random ones.
//! Times are nanoseconds of the fake clock.

use crate::addr::Avma;
use crate::arch::Arch;
use crate::sources::ExitStatus;

use super::faults::SimFault;

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
