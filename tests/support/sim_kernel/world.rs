//! Worlds: kernels built from a test's specification, and predefined ones.

use std::collections::BTreeMap;
use std::fs;

use stackprof::arch::Arch;

use super::SimKernel;
use super::cost::Costs;
use super::faults::{Answer, FaultPlan, Happening, Which};
use super::images::Plan;
use super::ports::Names;
use super::spec::{MS, SimImage, SimProcess, SimThread, US};
use super::state::{OwnCache, State};
use stackprof::rng::Rng;

/// The user who owns the profiler and, by default, its targets.
pub const USER: u32 = 501;

/// A world under construction: user 501, who may debug; no process.
#[derive(Clone, Debug)]
pub struct World {
    pub arch: Arch,
    pub seed: u64,
    pub euid: u32,
    pub entitled: bool,
    pub translated: bool,
    pub ncpu: i32,
    pub own_cache: OwnCache,
    pub overshoot_ns: u64,
    pub begins_in_background: bool,
    pub interrupt_waits: u64,
    pub costs: Costs,
    pub processes: Vec<SimProcess>,
    pub launchable: Option<SimProcess>,
    pub faults: FaultPlan,
}

impl World {
    pub fn new(arch: Arch, seed: u64) -> World {
        World {
            arch,
            seed,
            euid: USER,
            entitled: true,
            translated: false,
            ncpu: 8,
            own_cache: OwnCache::Same,
            overshoot_ns: 20 * US,
            begins_in_background: false,
            interrupt_waits: 0,
            costs: Costs::default(),
            processes: Vec::new(),
            launchable: None,
            faults: FaultPlan::default(),
        }
    }
    pub fn arm64(seed: u64) -> World {
        World::new(Arch::Aarch64, seed)
    }
    pub fn x86_64(seed: u64) -> World {
        World::new(Arch::X86_64, seed)
    }
    #[must_use]
    pub fn process(mut self, process: SimProcess) -> World {
        self.processes.push(process);
        self
    }
    /// Adds a process for `spawn_suspended` to find by its name or path.
    #[must_use]
    pub fn launchable(mut self, process: SimProcess) -> World {
        self.launchable = Some(process);
        self
    }
    #[must_use]
    pub fn own_cache(mut self, own_cache: OwnCache) -> World {
        self.own_cache = own_cache;
        self
    }
    #[must_use]
    pub fn answer(mut self, which: Which, answer: Answer) -> World {
        self.faults.answers.push((which, answer));
        self
    }
    #[must_use]
    pub fn happens(mut self, before_call: u64, what: Happening) -> World {
        self.faults.happenings.push((before_call, what));
        self
    }
    /// Sets the costs of calls.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> World {
        self.costs = costs;
        self
    }
    /// Any other change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut World)) -> World {
        change(&mut self);
        self
    }

    /// Builds the kernel; writes the files of images that have one.
    pub fn build(self) -> SimKernel {
        let mut state = State {
            arch: self.arch,
            plan: Plan::of(self.arch),
            seed: self.seed,
            now_ns: 1_000 * MS,
            rng: Rng::new(self.seed),
            calls: Vec::new(),
            by_method: BTreeMap::new(),
            faults: self.faults,
            names: Names::default(),
            placed: BTreeMap::new(),
            placed_next: 0x5_0000_0000,
            placed_peak: 0,
            tokens_made: 0,
            procs: BTreeMap::new(),
            tasks: Vec::new(),
            violations: Vec::new(),
            repeats: Vec::new(),
            launchable: self.launchable,
            next_thread_id: 0x1_0000_1000 + self.seed % 1000,
            next_pid: 9000,
            euid: self.euid,
            pid: 4000,
            entitled: self.entitled,
            translated: self.translated,
            ncpu: self.ncpu,
            own_cache: self.own_cache,
            overshoot_ns: self.overshoot_ns,
            begins_in_background: self.begins_in_background,
            is_interactive: false,
            virtual_copies: 0,
            interrupt_waits: self.interrupt_waits,
            costs: self.costs,
            delays: Vec::new(),
            patience_until_ns: u64::MAX,
            interrupted: None,
            killed: false,
            torn_until: BTreeMap::new(),
            held_since_ns: None,
            longest_hold_ns: 0,
            held_ns: 0,
            holds: 0,
            captured: BTreeMap::new(),
        };
        for process in self.processes {
            state.add_process(process, false, false);
        }
        for placed in state.tasks.iter().flat_map(|task| &task.images.placed) {
            if let Some(file) = &placed.image.disk {
                fs::write(file, &placed.file).expect("the image's file can be written");
            }
        }
        SimKernel::of(state)
    }
}

/// A process of one thread that is always busy in `work`, called by `main`.
pub fn busy(pid: i32) -> SimProcess {
    SimProcess::new(pid, "work")
        .image(SimImage::main("/opt/sim/work", &["main", "work"]))
        .thread(SimThread::main().run(10 * MS, &["work", "main"]))
}

/// Four threads and six images: one computes, one bursts, one waits, one runs sometimes deep down. Depths of
/// 5 to 40 frames.
pub fn canned(pid: i32) -> SimProcess {
    let functions = |prefix: &str, count: usize| -> Vec<String> {
        (0..count).map(|index| format!("{prefix}{index}")).collect()
    };
    let image = |make: fn(&str, &[&str]) -> SimImage, path: &str, names: &[String]| {
        make(path, &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let work = functions("w", 12);
    let zip = functions("z", 8);
    let deep: Vec<&str> = (0..36).map(|level| zip[level % 8].as_str()).chain(["w9", "w8"]).collect();
    let mut main = image(SimImage::main, "/opt/sim/canned", &work);
    main.functions.push("main".to_owned());
    SimProcess::new(pid, "canned")
        .image(main)
        .image(image(SimImage::dylib, "/opt/sim/libzip.dylib", &zip))
        .image(SimImage::cached("/usr/lib/libc++.1.dylib", &["sort", "~strlen_leaf", "push_back"]))
        .image(SimImage::cached(
            "/usr/lib/system/libsystem_kernel.dylib",
            &["~mach_msg2_trap", "~__psynch_cvwait", "~__semwait_signal", "mach_msg"],
        ))
        .image(SimImage::cached(
            "/usr/lib/system/libsystem_pthread.dylib",
            &["start_wqthread", "thread_start", "_pthread_start", "_pthread_cond_wait"],
        ))
        .image(
            SimImage::cached(
                "/usr/lib/system/libdispatch.dylib",
                &["_dispatch_client_callout", "_dispatch_lane_serial_drain"],
            )
            .data("dispatch_queue_offsets", &[6, 0, super::QUEUE_LABEL as u8, 0, 8, 0]),
        )
        .image(SimImage::dyld(&["_dyld_start", "start", "dlopen"]))
        .thread(
            SimThread::main()
                .run(4 * MS, &["sort", "w2", "w1", "main"])
                .run(3 * MS, &["strlen_leaf", "w3", "w1", "main"])
                .run(2 * MS, &["w4", "w1", "main"]),
        )
        .thread(
            SimThread::pthread("burst")
                .run(2 * MS, &["z1", "z0", "w5"])
                .wait(5 * MS, &["__psynch_cvwait", "_pthread_cond_wait", "z2", "z0", "w5"]),
        )
        .thread(
            SimThread::pthread("waiter")
                .queue("com.example.waiter")
                .wait(50 * MS, &["mach_msg2_trap", "mach_msg", "w6", "_dispatch_client_callout"]),
        )
        .thread(SimThread::pthread("deep").run(3 * MS, &deep).wait(4 * MS, &["__semwait_signal", "w10"]))
}

/// [`canned`], with threads that start and exit and plugins that are loaded and unloaded, for `for_ms`
/// milliseconds.
pub fn seeded(pid: i32, seed: u64, for_ms: u64) -> SimProcess {
    let mut rng = Rng::new(seed ^ 0x7365_6564);
    let mut process = canned(pid);
    let mut at_ms = 1;
    while at_ms < for_ms {
        at_ms += rng.within(3, 25);
        let end_ms = at_ms + rng.within(1, 60);
        let mut thread = SimThread::pthread(if rng.chance(1, 3) { "" } else { "short" });
        thread = match rng.within(0, 2) {
            0 => thread.run(rng.within(100, 3_000) * US, &["z3", "z0", "w7"]),
            1 => thread
                .run(rng.within(50, 900) * US, &["push_back", "w11"])
                .wait(rng.within(100, 4_000) * US, &["__psynch_cvwait", "_pthread_cond_wait", "w11"]),
            _ => thread.wait(9 * MS, &["mach_msg2_trap", "mach_msg", "w7"]),
        };
        let thread = thread.during(at_ms * MS + rng.within(0, 999) * US, Some(end_ms * MS));
        process = process.thread(thread);
        if rng.chance(1, 6) {
            let number = process.program.images.len();
            let name = format!("plugin_{number}");
            let plugin = SimImage::dylib(&format!("/opt/sim/{name}.bundle"), &[&name])
                .during(at_ms * MS, rng.chance(2, 3).then_some(end_ms * MS));
            process = process.image(plugin);
        }
    }
    process
}
