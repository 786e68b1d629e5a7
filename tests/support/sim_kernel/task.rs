//! A simulated task: memory, threads, images and suspensions of one program.

use super::dyld::{Dyld, Op};
use super::images::{Images, Plan};
use super::memory::{At, Memory, READ_WRITE};
use super::spec::{Birth, CpuTimes, Doing, FROM_START, Role, SimImage, SimProcess, SimProgram, Startup};
use super::stack::{self, Made, Wanted};
use super::thread::{StackPlace, Stretch, Thread};
use stackprof::rng::hash;

const STACK_TAG: u32 = 30;
const STACK_BYTES: u64 = 512 << 10;
const MAIN_STACK_BYTES: u64 = 8 << 20;
/// Distance of pthread stacks.
const SLOT_BYTES: u64 = 1 << 20;
/// libpthread: the TSD is at offset 224 of the structure, the ends of the stack at 176 and 184.
const TSD: u64 = 224;
/// `__PTK_LIBDISPATCH_KEY0`, the current queue, is TSD slot 20.
const QUEUE_SLOT: u64 = 20 * 8;
/// Offset of the label pointer in a simulated queue, as in `dispatch_queue_offsets`.
pub const QUEUE_LABEL: u16 = 0x78;
/// Room for the pthread structure above a stack.
const PTHREAD_BYTES: u64 = 0x1000;

/// A task.
#[derive(Clone, Debug)]
pub struct Task {
    pub pid: i32,
    pub plan: Plan,
    pub seed: u64,
    pub alive: bool,
    /// Time of its death, on the clock of the world.
    pub died_ns: u64,
    /// Its own clock: time that it was not stopped.
    pub ran_ns: u64,
    /// Time of its last stop, on its own clock.
    pub last_stop_ns: u64,
    /// Suspensions by the client.
    pub tokens: Vec<u64>,
    /// Incremented by each call while it runs.
    pub epoch: u64,
    pub memory: Memory,
    pub images: Images,
    pub threads: Vec<Thread>,
    pub dyld: Dyld,
    pub cpu_times: CpuTimes,
    pub pac: bool,
    pub is_arm64e: bool,
    pub info_size: u64,
}

/// The libraries of every program, in the shared cache.
pub fn system_images() -> Vec<SimImage> {
    let offsets: Vec<u8> = [6u16, QUEUE_LABEL, 8].iter().flat_map(|word| word.to_le_bytes()).collect();
    vec![
        SimImage::cached(
            "/usr/lib/system/libsystem_kernel.dylib",
            &["~mach_msg2_trap", "~__psynch_cvwait", "~__semwait_signal", "~__workq_kernreturn", "mach_msg"],
        ),
        SimImage::cached(
            "/usr/lib/system/libsystem_pthread.dylib",
            &["start_wqthread", "thread_start", "_pthread_start", "_pthread_wqthread", "_pthread_cond_wait"],
        ),
        SimImage::cached(
            "/usr/lib/system/libdispatch.dylib",
            &["_dispatch_call_block_and_release", "_dispatch_client_callout", "_dispatch_lane_serial_drain"],
        )
        .data("dispatch_queue_offsets", &offsets),
        SimImage::dyld(&["_dyld_start", "start", "dlopen"]),
    ]
}

impl Task {
    /// A task with a program; `first_id` is the number of its first thread. `ticks` is the current time for
    /// dyld's timestamps.
    pub fn new(
        plan: Plan,
        seed: u64,
        cache_seed: u64,
        process: &SimProcess,
        program: &SimProgram,
        first_id: u64,
        ticks: u64,
    ) -> Task {
        let mut all = program.images.clone();
        if !all.iter().any(|image| image.role == Role::Dyld) {
            all.extend(system_images());
        }
        let stages = matches!(process.startup, Startup::Stages { .. });
        if stages {
            // The one on disk is the same build: the same UUID, code and symbols.
            let dyld = all.iter().find(|image| image.role == Role::Dyld).expect("added above");
            all.push(SimImage { cached: false, ..dyld.clone() });
        }
        let images = Images::place(&plan, seed, cache_seed, &all);
        let mut memory = Memory::new(plan.page, plan.heap);
        if let Some(cache) = &images.cache {
            for (start, bytes, protection) in &cache.regions {
                memory.place(*start, bytes.clone(), *protection, None);
            }
            memory.submap = process.submap.then(|| cache.range.clone());
        }
        let mut task = Task {
            pid: process.pid,
            plan,
            seed,
            alive: true,
            died_ns: 0,
            ran_ns: 0,
            last_stop_ns: 0,
            tokens: Vec::new(),
            epoch: 0,
            memory,
            images,
            threads: Vec::new(),
            dyld: Dyld::default(),
            cpu_times: process.cpu_times,
            pac: process.pac,
            is_arm64e: process.arm64e,
            info_size: process.info_size,
        };
        task.start_dyld(&all, process.startup, ticks);
        task.start_threads(program, process.startup, first_id);
        task
    }

    fn start_dyld(&mut self, all: &[SimImage], startup: Startup, ticks: u64) {
        let role = |role: Role| move |image: &&(usize, &SimImage)| image.1.role == role;
        let indexed: Vec<(usize, &SimImage)> = all.iter().enumerate().collect();
        let dyld = &mut self.dyld;
        dyld.dyld = indexed.iter().find(role(Role::Dyld)).map(|(index, _)| *index);
        let main = indexed.iter().filter(role(Role::Main));
        let others = indexed.iter().filter(|(_, image)| image.role == Role::Dylib);
        let initial = main.chain(others).filter(|(_, image)| image.load_ns == FROM_START);
        dyld.initial = initial.map(|(index, _)| *index).collect();
        let mut pending: Vec<(u64, Op)> = Vec::new();
        for (index, image) in &indexed {
            if image.load_ns != FROM_START {
                pending.push((image.load_ns, Op::Load(vec![*index])));
            }
            pending.extend(image.unload_ns.map(|at| (at, Op::Unload(vec![*index]))));
        }
        match startup {
            Startup::Done => dyld.ready(&mut self.memory, &self.images, ticks),
            Startup::Stages { listed_ns, moved_ns, initialized_ns } => {
                let disk = all.len() - 1;
                dyld.disk_dyld = Some(disk);
                for (start, bytes, protection) in &self.images.placed[disk].regions {
                    let file = Some("/usr/lib/dyld");
                    self.memory.place(*start, bytes.clone(), *protection, file);
                }
                if let Some(main) = dyld.initial.first().copied() {
                    dyld.map(&mut self.memory, &self.images, main);
                }
                dyld.before(&mut self.memory);
                let stages = [Op::Listed, Op::Moved, Op::Initialized];
                pending.extend([listed_ns, moved_ns, initialized_ns].into_iter().zip(stages));
            }
        }
        pending.sort_by_key(|(at, _)| *at);
        dyld.pending = pending.into();
    }

    fn start_threads(&mut self, program: &SimProgram, startup: Startup, first_id: u64) {
        // Slots of pthread stacks, with the time from when each is free.
        let mut slots: Vec<u64> = Vec::new();
        let mut order: Vec<usize> = (0..program.threads.len()).collect();
        order.sort_by_key(|index| program.threads[*index].start_ns);
        for (number, index) in order.into_iter().enumerate() {
            let spec = &program.threads[index];
            assert!(!spec.phases.is_empty(), "a thread does nothing");
            let roots: &[&str] = match spec.birth {
                Birth::Main => &["start"],
                Birth::Pthread => &["_pthread_start", "thread_start"],
                Birth::Bare => &[],
            };
            let stretch = |doing: Doing, ns: u64, names: Vec<&str>| Stretch {
                doing,
                ns,
                frames: names.iter().map(|name| self.images.function(name)).collect(),
                names: names.iter().rev().map(|name| (*name).to_owned()).collect(),
            };
            let phases = spec.phases.iter().map(|phase| {
                let names = phase.stack.iter().map(String::as_str).chain(roots.iter().copied());
                stretch(phase.doing, phase.ns.max(1), names.collect())
            });
            let mut stretches: Vec<Stretch> = phases.collect();
            let cycle_ns = stretches.iter().map(|stretch| stretch.ns).sum();
            let mut boot_ns = 0;
            if let (Some(disk), Startup::Stages { moved_ns, .. }, Birth::Main) =
                (self.dyld.disk_dyld, startup, spec.birth)
            {
                boot_ns = moved_ns;
                let frames = vec![self.images.function_in(disk, "start")];
                let names = vec!["start".to_owned()];
                stretches.push(Stretch { doing: Doing::Run, ns: moved_ns, frames, names });
            }
            let end_ns = spec.end_ns.unwrap_or(u64::MAX);
            let (stack, structure) = match spec.birth {
                Birth::Main => (self.main_stack(), self.memory.allocate(vec![0; PTHREAD_BYTES as usize])),
                _ => {
                    let free = slots.iter().position(|free_ns| *free_ns <= spec.start_ns);
                    let slot = free.unwrap_or(slots.len());
                    slots.resize(slots.len().max(slot + 1), 0);
                    slots[slot] = end_ns;
                    let place = self.slot(slot as u64, spec.birth);
                    (place, place.high)
                }
            };
            let queue = spec.queue.as_ref().map_or(0, |label| {
                let text = self.memory.allocate_text(label);
                let mut queue = vec![0xa5; 0x100];
                queue[QUEUE_LABEL.into()..QUEUE_LABEL as usize + 8].copy_from_slice(&text.to_le_bytes());
                self.memory.allocate(queue)
            });
            let bare = spec.birth == Birth::Bare;
            let handle = if bare { 0 } else { structure + TSD };
            let thread = Thread {
                thread_id: first_id + number as u64,
                name: spec.name.clone(),
                birth: spec.birth,
                stretches,
                cycle_ns,
                boot_ns,
                start_ns: spec.start_ns,
                end_ns,
                stack,
                handle,
                qaddr: if bare { 0 } else { handle + QUEUE_SLOT },
                queue,
                suspended_by_others: spec.suspended_by_others,
                swift: spec.swift,
                locals: spec.locals,
                turns: spec.turns,
                dispatched_in: 0,
                dispatch_ns: 0,
                made: None,
            };
            if spec.birth == Birth::Main {
                let bytes = structure_bytes(&thread);
                self.memory.write(structure, &bytes);
            }
            self.threads.push(thread);
        }
    }

    fn main_stack(&self) -> StackPlace {
        let low = self.plan.main_stack + hash(&[self.seed, 21]) % 256 * self.plan.page;
        let high = low + MAIN_STACK_BYTES;
        StackPlace { guard: low - 4 * self.plan.page, low, high, end: high, tag: STACK_TAG }
    }

    fn slot(&self, slot: u64, birth: Birth) -> StackPlace {
        let guard = self.plan.stacks + slot * SLOT_BYTES;
        let low = guard + self.plan.page;
        let end = low + STACK_BYTES + self.plan.page.max(PTHREAD_BYTES);
        // A different memory tag for a thread not created by the pthread library.
        let tag = if birth == Birth::Bare { 0 } else { STACK_TAG };
        StackPlace { guard, low, high: end - PTHREAD_BYTES, end, tag }
    }

    /// Whether a suspension of the client holds it.
    pub fn is_held(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Living threads, in order of creation.
    pub fn living(&self) -> impl Iterator<Item = (usize, &Thread)> {
        let alive = self.alive;
        self.threads.iter().enumerate().filter(move |(_, thread)| alive && thread.is_alive(self.ran_ns))
    }

    pub fn on_cpus(&self) -> u64 {
        self.living().filter(|(_, thread)| thread.is_on_cpu(self.ran_ns)).count() as u64
    }

    /// The region at an address, or the next one above.
    pub fn region_from(&self, address: u64) -> Option<At> {
        let mut best = self.memory.from(address);
        for (_, thread) in self.living() {
            for part in parts(thread, self.plan.page) {
                let better = best.is_none_or(|best| part.start < best.start);
                if part.start + part.size > address && better {
                    best = Some(part);
                }
            }
        }
        best
    }

    /// Reads memory; the error is a hole (`None`) or the protection.
    pub fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Option<i32>> {
        let mut done = 0;
        while done < into.len() {
            let at = address.checked_add(done as u64).ok_or(None)?;
            let region = self.region_from(at).filter(|region| region.start <= at).ok_or(None)?;
            if region.protection & 1 == 0 {
                return Err(Some(region.protection));
            }
            let length = (into.len() - done).min((region.start + region.size - at) as usize);
            let piece = &mut into[done..done + length];
            let owner = self.living().find(|(_, thread)| (thread.stack.low..thread.stack.end).contains(&at));
            match owner.map(|(index, _)| index) {
                Some(index) => self.read_stack(index, at, piece),
                None => self.memory.copy(at, piece),
            }
            done += length;
        }
        Ok(())
    }

    fn read_stack(&mut self, index: usize, address: u64, into: &mut [u8]) {
        self.stack(index);
        let thread = &self.threads[index];
        let made = thread.made.as_ref().expect("just made");
        let structure = if address + into.len() as u64 > thread.stack.high && thread.handle != 0 {
            structure_bytes(thread)
        } else {
            Vec::new()
        };
        for (at, byte) in (address..).zip(into) {
            let (bytes, base) = if at < thread.stack.high {
                (&made.bytes, made.base)
            } else {
                (&structure, thread.stack.high)
            };
            let offset = at.checked_sub(base).and_then(|offset| usize::try_from(offset).ok());
            *byte = offset.and_then(|offset| bytes.get(offset)).copied().unwrap_or(0);
        }
    }

    /// The current stack of a thread: it changes with each call while the thread runs.
    pub fn stack(&mut self, index: usize) -> &Made {
        let thread = &self.threads[index];
        let moment = thread.at(self.ran_ns);
        let stretch = &thread.stretches[moment.stretch];
        let runs = thread.is_on_cpu(self.ran_ns);
        let moving = if runs { self.epoch + 1 } else { 0 };
        let key = hash(&[self.seed, thread.thread_id, moment.stretch as u64, moving]);
        // Consecutive epochs never give the same first frames.
        let key = if runs { key - key % 31 + moving % 31 } else { key };
        if thread.made.as_ref().is_none_or(|made| made.key != key) {
            let made = stack::make(&Wanted {
                arch: self.plan.arch,
                images: &self.images,
                frames: &stretch.frames,
                birth: thread.birth,
                high: thread.stack.high,
                key,
                locals: thread.locals,
                pac: self.pac,
                swift: thread.swift,
            });
            self.threads[index].made = Some(made);
        }
        self.threads[index].made.as_ref().expect("just made")
    }
}

/// The pthread structure of a thread.
fn structure_bytes(thread: &Thread) -> Vec<u8> {
    let mut bytes = vec![0; PTHREAD_BYTES as usize];
    let mut put = |offset: u64, word: u64| {
        bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
    };
    put(TSD - 48, thread.stack.high);
    put(TSD - 40, thread.stack.low);
    put(TSD, thread.handle - TSD);
    put(TSD + QUEUE_SLOT, thread.queue);
    bytes
}

/// The regions of a stack: the guard, and the stack; two for the main thread's.
fn parts(thread: &Thread, page: u64) -> Vec<At> {
    let StackPlace { guard, low, end, tag, .. } = thread.stack;
    let at = |start: u64, end: u64, protection| At { start, size: end - start, protection, tag };
    let mut parts = vec![at(guard, low, 0)];
    if thread.birth == Birth::Main {
        let split = end - 2 * page;
        parts.extend([at(low, split, READ_WRITE), at(split, end, READ_WRITE)]);
    } else {
        parts.push(at(low, end, READ_WRITE));
    }
    parts
}
