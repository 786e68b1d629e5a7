//! Specification by a test: processes, programs, images, threads. No behavior.
//!
//! Times are nanoseconds of the task's own clock, which pauses while it is stopped.

use std::path::{Path, PathBuf};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Exists from the start.
pub const FROM_START: u64 = 0;

/// Role of an image for dyld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The program itself (MH_EXECUTE).
    Main,
    /// A library (MH_DYLIB).
    Dylib,
    /// dyld: not in infoArray.
    Dyld,
}

/// Which symbols an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Symbol table, function starts, exports trie.
    All,
    /// Function starts and exports trie.
    ExportsOnly,
    /// Function starts only.
    Stripped,
}

/// An image. Its functions are named in address order; a leading `~` means that the function makes no frame
/// record (it is always a leaf).
#[derive(Clone, Debug)]
pub struct SimImage {
    pub path: String,
    pub functions: Vec<String>,
    pub role: Role,
    /// In the shared cache.
    pub cached: bool,
    pub symbols: Symbols,
    /// When it is loaded; [`FROM_START`]: with the program.
    pub load_ns: u64,
    pub unload_ns: Option<u64>,
    /// Written there when the world is built; otherwise the file does not exist.
    pub disk: Option<PathBuf>,
    /// Overrides the UUID derived from the seed and the path.
    pub uuid: Option<[u8; 16]>,
    /// Symbols of a data segment, with their bytes.
    pub data: Vec<(String, Vec<u8>)>,
}

impl SimImage {
    fn new(role: Role, path: &str, functions: &[&str]) -> SimImage {
        SimImage {
            path: path.to_owned(),
            functions: functions.iter().map(|name| (*name).to_owned()).collect(),
            role,
            cached: false,
            symbols: Symbols::All,
            load_ns: FROM_START,
            unload_ns: None,
            disk: None,
            uuid: None,
            data: Vec::new(),
        }
    }
    /// The program.
    pub fn main(path: &str, functions: &[&str]) -> SimImage {
        SimImage::new(Role::Main, path, functions)
    }
    /// A library with its own memory.
    pub fn dylib(path: &str, functions: &[&str]) -> SimImage {
        SimImage::new(Role::Dylib, path, functions)
    }
    /// A library of the shared cache, without a file.
    pub fn cached(path: &str, functions: &[&str]) -> SimImage {
        SimImage { cached: true, ..SimImage::new(Role::Dylib, path, functions) }
    }
    /// dyld, in the shared cache.
    pub fn dyld(functions: &[&str]) -> SimImage {
        SimImage { cached: true, ..SimImage::new(Role::Dyld, "/usr/lib/dyld", functions) }
    }
    /// Loaded by dlopen at `load_ns`, unloaded by dlclose at `unload_ns`.
    #[must_use]
    pub fn during(mut self, load_ns: u64, unload_ns: Option<u64>) -> SimImage {
        self.load_ns = load_ns;
        self.unload_ns = unload_ns;
        self
    }
    /// Writes its file to `directory`, and uses that path.
    #[must_use]
    pub fn on_disk(mut self, directory: &Path) -> SimImage {
        let name = Path::new(&self.path).file_name().expect("an image has a file name");
        let file = directory.join(name);
        self.path = file.to_str().expect("a path that is text").to_owned();
        self.disk = Some(file);
        self
    }
    /// Adds a symbol to its data segment.
    #[must_use]
    pub fn data(mut self, symbol: &str, bytes: &[u8]) -> SimImage {
        self.data.push((symbol.to_owned(), bytes.to_vec()));
        self
    }
}

/// Activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// On a CPU.
    Run,
    /// TH_STATE_WAITING.
    Wait,
}

/// A phase of a thread: functions from the leaf outward, without those that start threads (they are added).
#[derive(Clone, Debug)]
pub struct Phase {
    pub doing: Doing,
    pub ns: u64,
    pub stack: Vec<String>,
}

/// How a thread was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// The first thread: `start` of dyld is its root.
    Main,
    /// A pthread: `thread_start`, `_pthread_start`.
    Pthread,
    /// By Mach calls only: no pthread, no handle, rooted in its first function.
    Bare,
}

/// Threads that share a CPU in turns of `slice_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    pub of: u64,
    pub place: u64,
    pub slice_ns: u64,
}

impl Turns {
    /// Time on the CPU up to a time of the task's clock.
    pub fn had(&self, ran_ns: u64) -> u64 {
        let (round_ns, begin_ns) = (self.of * self.slice_ns, self.place * self.slice_ns);
        ran_ns / round_ns * self.slice_ns + (ran_ns % round_ns).saturating_sub(begin_ns).min(self.slice_ns)
    }
    pub fn is_on(&self, ran_ns: u64) -> bool {
        ran_ns % (self.of * self.slice_ns) / self.slice_ns == self.place
    }
    /// Time since its current turn began.
    pub fn since(&self, ran_ns: u64) -> u64 {
        ran_ns % self.slice_ns
    }
}

/// A thread; its phases repeat until it exits.
#[derive(Clone, Debug)]
pub struct SimThread {
    pub name: String,
    pub birth: Birth,
    pub phases: Vec<Phase>,
    pub start_ns: u64,
    pub end_ns: Option<u64>,
    /// Label of its dispatch queue.
    pub queue: Option<String>,
    /// Number of suspensions by another debugger (thread_suspend).
    pub suspended_by_others: i32,
    /// Saved frame pointers have bit 60: Swift async frames.
    pub swift: bool,
    /// Bytes of locals in each frame, in addition to a varying part.
    pub locals: u64,
    /// The CPU that it shares; its phases advance only in its turns.
    pub turns: Option<Turns>,
}

impl SimThread {
    fn new(birth: Birth, name: &str) -> SimThread {
        SimThread {
            name: name.to_owned(),
            birth,
            phases: Vec::new(),
            start_ns: FROM_START,
            end_ns: None,
            queue: None,
            suspended_by_others: 0,
            swift: false,
            locals: 32,
            turns: None,
        }
    }
    pub fn main() -> SimThread {
        SimThread::new(Birth::Main, "")
    }
    pub fn pthread(name: &str) -> SimThread {
        SimThread::new(Birth::Pthread, name)
    }
    pub fn bare() -> SimThread {
        SimThread::new(Birth::Bare, "")
    }
    fn phase(mut self, doing: Doing, ns: u64, stack: &[&str]) -> SimThread {
        let stack = stack.iter().map(|name| (*name).to_owned()).collect();
        self.phases.push(Phase { doing, ns, stack });
        self
    }
    #[must_use]
    pub fn run(self, ns: u64, stack: &[&str]) -> SimThread {
        self.phase(Doing::Run, ns, stack)
    }
    #[must_use]
    pub fn wait(self, ns: u64, stack: &[&str]) -> SimThread {
        self.phase(Doing::Wait, ns, stack)
    }
    #[must_use]
    pub fn during(mut self, start_ns: u64, end_ns: Option<u64>) -> SimThread {
        self.start_ns = start_ns;
        self.end_ns = end_ns;
        self
    }
    #[must_use]
    pub fn queue(mut self, label: &str) -> SimThread {
        self.queue = Some(label.to_owned());
        self
    }
    #[must_use]
    pub fn suspended_by_others(mut self, count: i32) -> SimThread {
        self.suspended_by_others = count;
        self
    }
    #[must_use]
    pub fn turns(mut self, of: u64, place: u64, slice_ns: u64) -> SimThread {
        self.turns = Some(Turns { of, place, slice_ns });
        self
    }
}

/// A program: the content of a task.
#[derive(Clone, Debug, Default)]
pub struct SimProgram {
    pub path: String,
    pub images: Vec<SimImage>,
    pub threads: Vec<SimThread>,
}

impl SimProgram {
    pub fn new(path: &str) -> SimProgram {
        SimProgram { path: path.to_owned(), ..SimProgram::default() }
    }
    #[must_use]
    pub fn image(mut self, image: SimImage) -> SimProgram {
        self.images.push(image);
        self
    }
    #[must_use]
    pub fn thread(mut self, thread: SimThread) -> SimProgram {
        self.threads.push(thread);
        self
    }
}

/// The kernel's reports of CPU times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuTimes {
    Exact,
    /// As real ones: at context switches, every 10 ms, and when stopped.
    Lagging,
    /// Always 0.
    Zero,
    /// The calls fail with NOT_SUPPORTED; identifiers still work.
    Refused,
}

/// State of dyld when the world begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// Startup is complete.
    Done,
    /// It has not run: at these times the on-disk dyld lists the program, the dyld of the
    /// shared cache takes over (the structure moves), and libSystem is initialized.
    Stages { listed_ns: u64, moved_ns: u64, initialized_ns: u64 },
}

/// Exit of a process: a wait status as from `waitpid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub at_ns: u64,
    pub wait_status: i32,
}

/// A process.
#[derive(Clone, Debug)]
pub struct SimProcess {
    pub pid: i32,
    pub ppid: i32,
    pub uid: u32,
    pub name: String,
    pub args: Vec<String>,
    pub program: SimProgram,
    pub execs: Vec<(u64, SimProgram)>,
    /// How long task_for_pid fails after an exec.
    pub exec_gap_ns: u64,
    pub end: Option<End>,
    /// PROC_FLAG_*.
    pub flags: u32,
    /// CS_*.
    pub code_signing: u32,
    /// SSTOP throughout.
    pub job_stopped: bool,
    /// Created as a zombie: SZOMB, without a task.
    pub zombie: bool,
    /// task_for_pid succeeds with port 0.
    pub without_task: bool,
    pub cpu_times: CpuTimes,
    pub startup: Startup,
    /// Return addresses and link registers are signed (arm64).
    pub pac: bool,
    /// It and the profiler are built for arm64e: registers are signed, too.
    pub arm64e: bool,
    /// Depth 0 of vm_region_recurse shows the shared cache as a submap.
    pub submap: bool,
    /// Size reported by TASK_DYLD_INFO.
    pub info_size: u64,
    /// Spawned: this long after SIGCONT its exec is complete, and a task port obtained before goes dead.
    pub respawns_ns: Option<u64>,
}

/// PROC_FLAG_LP64.
pub const LP64: u32 = 0x10;
/// PROC_FLAG_ROSETTA.
pub const TRANSLATED: u32 = 0x200_0000;
/// CS_RUNTIME, CS_GET_TASK_ALLOW, CS_PLATFORM_BINARY.
pub const HARDENED: u32 = 0x1_0000;
pub const GET_TASK_ALLOW: u32 = 4;
pub const PLATFORM: u32 = 0x400_0000;

impl SimProcess {
    /// A process of user 501 with an empty program.
    pub fn new(pid: i32, name: &str) -> SimProcess {
        SimProcess {
            pid,
            ppid: 1,
            uid: 501,
            name: name.to_owned(),
            args: vec![name.to_owned()],
            program: SimProgram::new(&format!("/opt/sim/{name}")),
            execs: Vec::new(),
            exec_gap_ns: 200 * US,
            end: None,
            flags: LP64,
            code_signing: 0,
            job_stopped: false,
            zombie: false,
            without_task: false,
            cpu_times: CpuTimes::Exact,
            startup: Startup::Done,
            pac: false,
            arm64e: false,
            submap: false,
            info_size: 368,
            respawns_ns: None,
        }
    }
    #[must_use]
    pub fn image(mut self, image: SimImage) -> SimProcess {
        self.program.images.push(image);
        self
    }
    #[must_use]
    pub fn thread(mut self, thread: SimThread) -> SimProcess {
        self.program.threads.push(thread);
        self
    }
    /// Executes `program` at `at_ns`.
    #[must_use]
    pub fn exec(mut self, at_ns: u64, program: SimProgram) -> SimProcess {
        self.execs.push((at_ns, program));
        self
    }
    #[must_use]
    pub fn ends(mut self, at_ns: u64, wait_status: i32) -> SimProcess {
        self.end = Some(End { at_ns, wait_status });
        self
    }
    #[must_use]
    pub fn cpu_times(mut self, cpu_times: CpuTimes) -> SimProcess {
        self.cpu_times = cpu_times;
        self
    }
    #[must_use]
    pub fn startup(mut self, startup: Startup) -> SimProcess {
        self.startup = startup;
        self
    }
    #[must_use]
    pub fn pac(mut self) -> SimProcess {
        self.pac = true;
        self
    }
    /// Any other change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut SimProcess)) -> SimProcess {
        change(&mut self);
        self
    }
}
