//! A simulated program that is stepped by instructions, with real code, unwind information and memory, and that
//! changes its outer frames in every way that programs do.
//!
//! Calls, returns, tail calls; longjmp and exceptions, which leave many frames at once; fibers, which switch
//! stacks in a function that saves registers there; threads that end at any depth, and others that get their
//! stacks, and sometimes their ids; a library that is unloaded, and another one at its address; another program in
//! the same process. Memory is never cleared: return addresses of old frames remain between those of others.
//!
//! Input: a seed. Output: registers, memory and the true frames of each thread at any instruction, and changes of
//! threads and images; images are reported as of the change that was [`SteppedProcess::show`]n last.

mod code;

use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::{Arch, Registers, X86_64};
use crate::binary::{ImageBytes, Mapping, OpenError};
use crate::rng::Rng;
use crate::sources::{Capture, Fault, Observed, Process, ThreadId};

use code::{FIBER_ROOT, Image, Op, RBP, RSP, SWITCH, SWITCHED, THREAD_ROOT};

const MEMORY_AT: u64 = 0x7f55_0000_0000;
const STACK_BYTES: u64 = 128 << 10;
const STACKS: usize = 10;
const THREADS: usize = 2;
const FIBERS: usize = 3;
/// With less space than this, a stack gets no more frames.
const ROOM_BYTES: u64 = 24 << 10;
const PROGRAM_AT: Avma = Avma(0x5555_0000_0000);
const LIBRARY_AT: Avma = Avma(0x5555_0100_0000);

/// A change of the process.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A thread started, with this stack pointer.
    Started(ThreadId, Avma),
    /// A thread ended.
    Ended(ThreadId),
    /// The images changed: index of their list.
    Images(usize),
    /// The program was replaced: index of its list of images; all threads have ended.
    Exec(usize),
}

/// A function of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FunctionId {
    image: usize,
    function: usize,
}

/// A code location: an instruction of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodeLocation {
    of: FunctionId,
    at: usize,
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct Call {
    address: u64,
    /// Return location.
    place: CodeLocation,
    /// The registers after the return; `None` for a first function.
    registers: Option<[u64; 16]>,
}

#[derive(Clone, Debug, Default)]
struct Stack {
    calls: Vec<Call>,
    /// The stack pointer while another stack is used.
    sp: u64,
    used: bool,
}

#[derive(Clone, Debug)]
struct SteppedThread {
    id: u32,
    gpr: [u64; 16],
    place: CodeLocation,
    /// Its initial stack, its current one, and those of its fibers.
    own: usize,
    stack: usize,
    fibers: Vec<usize>,
    /// The target stack of the current switch.
    switches_to: usize,
    /// The call depth to reach.
    goal: usize,
}

/// A process with threads that run simulated code, one instruction at a time, from a seed.
pub(crate) struct SteppedProcess {
    process: Process,
    random: Rng,
    /// Start address and content of its memory.
    pub(crate) memory: (u64, Vec<u8>),
    stacks: Vec<Stack>,
    threads: Vec<SteppedThread>,
    next_id: u32,
    /// All images ever loaded, and the lists of those loaded at a time.
    images: Vec<Image>,
    lists: Vec<[usize; 2]>,
    shown: usize,
    /// The library is no longer called.
    closing: bool,
    changes: Vec<Change>,
}

impl SteppedProcess {
    /// A program with its first threads.
    pub(crate) fn new(seed: u64) -> SteppedProcess {
        let process = Process {
            pid: 70,
            name: "stepped".to_owned(),
            command: String::new(),
            arch: Arch::X86_64,
            backend: "sim",
            backend_why: String::new(),
            cpus: 1,
            address_mask: u64::MAX,
            fp_always: false,
            cfi: true,
            stops_interrupt_syscalls: true,
            stops_hold_all: false,
        };
        let bytes = STACKS as u64 * STACK_BYTES;
        let mut stepped = SteppedProcess {
            process,
            random: Rng::new(seed),
            memory: (MEMORY_AT, vec![0; bytes as usize]),
            stacks: vec![Stack::default(); STACKS],
            threads: Vec::new(),
            next_id: 70,
            images: Vec::new(),
            lists: Vec::new(),
            shown: 0,
            closing: false,
            changes: Vec::new(),
        };
        stepped.load([true, true]);
        for _ in 0..THREADS {
            stepped.begin_thread(None, None);
        }
        stepped
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Changes since the last call.
    pub(crate) fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Reports the images after a change from now on.
    pub(crate) fn show(&mut self, images: usize) {
        self.shown = images;
    }

    /// A thread's id, and its state as a sample of this many bytes: the stack with all of its frames.
    pub(crate) fn capture(&self, thread: usize, bytes: u64, truth: &mut Vec<LookupAvma>) -> (u32, Capture) {
        let thread = &self.threads[thread];
        let pc = self.address(thread.place);
        truth.clear();
        truth.push(CodeAddress::Pc(Avma(pc)).lookup());
        let calls = self.stacks[thread.stack].calls.iter().rev();
        truth.extend(calls.map(|call| CodeAddress::Return(Avma(call.address)).lookup()));
        let sp = thread.gpr[RSP];
        let bytes = bytes.min(self.end(thread.stack) - sp) as usize;
        let mut capture = Capture::with_capacity(bytes);
        capture.registers = Registers::X86_64(X86_64 { gpr: thread.gpr, rip: pc, fs_base: 0 });
        capture.stack_base = Avma(sp);
        capture.stack.extend_from_slice(&self.memory.1[(sp - MEMORY_AT) as usize..][..bytes]);
        (thread.id, capture)
    }

    /// The distance of a thread's outermost return address above the stack pointer.
    pub(crate) fn depth_bytes(&self, thread: usize) -> u64 {
        let thread = &self.threads[thread];
        let outermost = self.stacks[thread.stack].calls.first().and_then(|call| call.registers);
        outermost.map_or(0, |registers| (registers[RSP] - 8).saturating_sub(thread.gpr[RSP]))
    }

    /// Executes this many instructions of a thread.
    pub(crate) fn step(&mut self, thread: usize, instructions: u64) {
        if self.random.chance(1, 40) {
            self.threads[thread].goal = 4 + self.random.below(160);
        }
        for _ in 0..instructions {
            self.execute(thread);
        }
    }

    /// Ends a thread at any place; another one starts on a free stack, with an id that may be the same.
    pub(crate) fn replace_thread(&mut self, thread: usize) {
        let stack = self.threads[thread].own;
        let id = self.end_thread(thread);
        let again = self.random.chance(1, 2).then_some(id);
        let stack = self.random.chance(1, 2).then_some(stack);
        self.begin_thread(again, stack);
    }

    /// Stops new calls into the library, so that it can be unloaded soon.
    pub(crate) fn close_library(&mut self) {
        self.closing = true;
    }

    /// Unloads the library and loads another one at its address, if no frame is in it, or if `forced`: then its
    /// frames are left by longjmp, and fibers with frames in it end. Returns whether it was done.
    pub(crate) fn replace_library(&mut self, forced: bool) -> bool {
        let library = self.lists[self.lists.len() - 1][1];
        let uses = |stack: &Stack| stack.calls.iter().any(|call| call.place.of.image == library);
        for thread in 0..self.threads.len() {
            let SteppedThread { place, stack, own, .. } = self.threads[thread];
            let is_in_it = place.of.image == library || uses(&self.stacks[stack]);
            if is_in_it && (!forced || !self.long_jump(thread, 0, false)) {
                return false;
            }
            if stack != own && uses(&self.stacks[own]) {
                return false;
            }
            let (stacks, at) = (&mut self.stacks, &mut self.threads[thread]);
            let goes = |fiber: usize, stacks: &[Stack]| fiber != stack && uses(&stacks[fiber]);
            if at.fibers.iter().any(|fiber| goes(*fiber, stacks)) && !forced {
                return false;
            }
            at.fibers.retain(|fiber| {
                let stays = !goes(*fiber, stacks);
                stacks[*fiber].used = stays;
                stays
            });
            // It may be switching there.
            if !at.fibers.contains(&at.switches_to) {
                at.switches_to = own;
            }
        }
        self.load([false, true]);
        let list = self.lists.len() - 1;
        self.changes.push(Change::Images(list));
        self.closing = false;
        true
    }

    /// Replaces the program: all threads end, all code is replaced, the first thread starts again.
    pub(crate) fn exec(&mut self) {
        let id = self.threads[0].id;
        while !self.threads.is_empty() {
            self.end_thread(0);
        }
        self.load([true, true]);
        let list = self.lists.len() - 1;
        self.changes.push(Change::Exec(list));
        self.closing = false;
        self.begin_thread(Some(id), None);
        self.begin_thread(None, None);
    }

    /// Loads the program, the library, or both.
    fn load(&mut self, [program, library]: [bool; 2]) {
        let mut list = self.lists.last().copied().unwrap_or_default();
        for (place, wanted, at) in [(0, program, PROGRAM_AT), (1, library, LIBRARY_AT)] {
            if wanted {
                list[place] = self.images.len();
                let number = self.images.len() as u64;
                self.images.push(Image::new(at, number, place == 0, &mut self.random));
            }
        }
        self.lists.push(list);
    }

    fn program(&self) -> usize {
        self.lists[self.lists.len() - 1][0]
    }

    // ---- threads and stacks

    /// First address above a stack.
    fn end(&self, stack: usize) -> u64 {
        MEMORY_AT + (stack as u64 + 1) * STACK_BYTES
    }

    /// The initial stack pointer of a stack, for any thread.
    fn top(&self, stack: usize) -> u64 {
        self.end(stack) - 16 * (stack as u64 * 37 % 128)
    }

    /// Takes a free stack, this one if it is given.
    fn take_stack(&mut self, wanted: Option<usize>) -> usize {
        let free: Vec<usize> = (0..STACKS).filter(|stack| !self.stacks[*stack].used).collect();
        let stack = wanted.unwrap_or_else(|| free[self.random.below(free.len())]);
        self.stacks[stack] = Stack { used: true, ..Stack::default() };
        stack
    }

    fn begin_thread(&mut self, id: Option<u32>, stack: Option<usize>) {
        let id = id.unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id
        });
        let stack = self.take_stack(stack);
        let top = self.top(stack);
        let mut gpr = std::array::from_fn(|_| self.random.next());
        gpr[RSP] = top;
        let place = CodeLocation { of: FunctionId { image: self.program(), function: THREAD_ROOT }, at: 0 };
        let goal = 20 + self.random.below(140);
        let fibers = Vec::new();
        self.threads.push(SteppedThread {
            id,
            gpr,
            place,
            own: stack,
            stack,
            fibers,
            switches_to: stack,
            goal,
        });
        self.changes.push(Change::Started(ThreadId(id.into()), Avma(top)));
    }

    fn end_thread(&mut self, thread: usize) -> u32 {
        let thread = self.threads.remove(thread);
        self.stacks[thread.own].used = false;
        thread.fibers.iter().for_each(|fiber| self.stacks[*fiber].used = false);
        self.changes.push(Change::Ended(ThreadId(thread.id.into())));
        thread.id
    }

    /// The stack that a thread switches to next: an existing one, or that of a new fiber.
    fn next_stack(&mut self, thread: usize) -> usize {
        let SteppedThread { own, stack, ref fibers, .. } = self.threads[thread];
        let mut others = fibers.clone();
        others.push(own);
        others.retain(|other| *other != stack);
        if fibers.len() < FIBERS && self.random.chance(1, 3) || others.is_empty() {
            return self.begin_fiber(thread);
        }
        others[self.random.below(others.len())]
    }

    /// Prepares a stack like the switching function does: saved registers, then the return address.
    fn begin_fiber(&mut self, thread: usize) -> usize {
        let stack = self.take_stack(None);
        let top = self.top(stack);
        let place = CodeLocation { of: FunctionId { image: self.program(), function: FIBER_ROOT }, at: 0 };
        let address = self.address(place);
        let sp = top - 8 * (SWITCHED.len() as u64 + 1);
        for slot in (sp..top - 8).step_by(8) {
            let value = self.random.next();
            self.put(slot, value);
        }
        self.put(top - 8, address);
        self.stacks[stack].calls.push(Call { address, place, registers: None });
        self.stacks[stack].sp = sp;
        self.threads[thread].fibers.push(stack);
        stack
    }

    // ---- memory and code

    fn put(&mut self, at: u64, value: u64) {
        let at = (at - MEMORY_AT) as usize;
        self.memory.1[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn word(&self, at: u64) -> u64 {
        let at = (at - MEMORY_AT) as usize;
        self.memory.1[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    fn function(&self, of: FunctionId) -> &code::Function {
        &self.images[of.image].functions[of.function]
    }

    fn address(&self, place: CodeLocation) -> u64 {
        let image = &self.images[place.of.image];
        image.mapping.avma.start.0 + image.functions[place.of.function].instructions[place.at].0
    }

    /// A function to call, or to jump to.
    fn callee(&mut self) -> CodeLocation {
        let [program, library] = self.lists[self.lists.len() - 1];
        let image = if !self.closing && self.random.chance(1, 4) { library } else { program };
        let Image { first, ref functions, .. } = self.images[image];
        let function = first + self.random.below(functions.len() - first);
        CodeLocation { of: FunctionId { image, function }, at: 0 }
    }

    // ---- instructions

    fn push(&mut self, thread: usize, value: u64) {
        let sp = &mut self.threads[thread].gpr[RSP];
        *sp -= 8;
        let sp = *sp;
        self.put(sp, value);
    }

    fn pop(&mut self, thread: usize) -> u64 {
        let sp = self.threads[thread].gpr[RSP];
        self.threads[thread].gpr[RSP] = sp + 8;
        self.word(sp)
    }

    fn execute(&mut self, thread: usize) {
        let at = self.threads[thread].place;
        let (_, op) = self.function(at.of).instructions[at.at];
        let mut next = CodeLocation { at: at.at + 1, ..at };
        match op {
            Op::Nop => {}
            Op::Push(register) => self.push(thread, self.threads[thread].gpr[register]),
            Op::Pop(register) => self.threads[thread].gpr[register] = self.pop(thread),
            Op::SetFramePointer => self.threads[thread].gpr[RBP] = self.threads[thread].gpr[RSP],
            Op::Grow(bytes) => self.threads[thread].gpr[RSP] -= bytes,
            Op::Shrink(bytes) => self.threads[thread].gpr[RSP] += bytes,
            Op::LeaveTo(below) => {
                self.threads[thread].gpr[RSP] = self.threads[thread].gpr[RBP] - below;
            }
            Op::Allocate => {
                let has_room = self.room(thread) > ROOM_BYTES && self.random.chance(1, 4);
                let bytes = if has_room { 16 * self.random.below(64) as u64 } else { 0 };
                self.threads[thread].gpr[RSP] -= bytes;
            }
            Op::Set(register) => self.threads[thread].gpr[register] = self.value(thread),
            Op::Back => next.at = self.function(at.of).body,
            Op::Jump => next = self.callee(),
            Op::Call => match self.decide(thread) {
                Some(place) => next = place,
                None => return,
            },
            Op::Switch => {
                let SteppedThread { stack, switches_to, .. } = self.threads[thread];
                if stack != switches_to {
                    self.stacks[stack].sp = self.threads[thread].gpr[RSP];
                    self.threads[thread].stack = switches_to;
                    self.threads[thread].gpr[RSP] = self.stacks[switches_to].sp;
                }
            }
            Op::Return => {
                let address = self.pop(thread);
                let stack = self.threads[thread].stack;
                let call = self.stacks[stack].calls.pop().expect("a root does not return");
                assert_eq!(address, call.address, "the simulated program itself is wrong");
                next = call.place;
            }
        }
        self.threads[thread].place = next;
    }

    fn room(&self, thread: usize) -> u64 {
        let SteppedThread { stack, ref gpr, .. } = self.threads[thread];
        gpr[RSP] - (self.end(stack) - STACK_BYTES)
    }

    /// A random register value: numbers, stack addresses, return addresses, frame pointers of others.
    fn value(&mut self, thread: usize) -> u64 {
        let SteppedThread { stack, ref gpr, .. } = self.threads[thread];
        let calls = &self.stacks[stack].calls;
        let call = calls.get(self.random.below(calls.len()));
        match self.random.below(7) {
            0 => self.random.next() % 4096,
            1 => gpr[RSP] + 8 * self.random.below(2000) as u64,
            2 => call.map_or(0, |call| call.address),
            3..6 => call.and_then(|call| call.registers).map_or(0, |registers| registers[RBP]),
            _ => self.random.next(),
        }
    }

    /// Decides a thread's next action where it may call; `None` if that moved it to another place.
    fn decide(&mut self, thread: usize) -> Option<CodeLocation> {
        let SteppedThread { place, stack, goal, .. } = self.threads[thread];
        let behind = CodeLocation { at: place.at + 1, ..place };
        let function = self.function(place.of);
        let (exit, tail) = (function.exit, function.tail);
        let depth = self.stacks[stack].calls.len();
        let is_deep = depth > goal || self.room(thread) < ROOM_BYTES;
        match self.random.below(1000) {
            0 if depth > 1 && self.random.chance(1, 4) => {
                let far = self.random.below(depth);
                let by_exception = self.random.chance(1, 2);
                return if self.long_jump(thread, far, by_exception) { None } else { Some(behind) };
            }
            1..10 if depth > 2 => {
                // Most are caught nearby.
                let near = depth - 1 - self.random.below(depth.min(4));
                let by_exception = self.random.chance(1, 2);
                return if self.long_jump(thread, near, by_exception) { None } else { Some(behind) };
            }
            10..12 if !is_deep => {
                self.threads[thread].switches_to = self.next_stack(thread);
                let of = FunctionId { image: self.program(), function: SWITCH };
                return Some(self.call(thread, CodeLocation { of, at: 0 }));
            }
            12..60 if tail.is_some() && !is_deep => return tail.map(|at| CodeLocation { at, ..place }),
            60..200 => return Some(behind),
            _ => {}
        }
        let returns = exit.is_some() && self.random.chance(if is_deep { 9 } else { 4 }, 10);
        if returns {
            return exit.map(|at| CodeLocation { at, ..place });
        }
        if is_deep && self.room(thread) < ROOM_BYTES {
            return Some(behind);
        }
        let callee = self.callee();
        Some(self.call(thread, callee))
    }

    fn call(&mut self, thread: usize, callee: CodeLocation) -> CodeLocation {
        let SteppedThread { place, stack, gpr, .. } = self.threads[thread];
        let place = CodeLocation { at: place.at + 1, ..place };
        let address = self.address(place);
        self.stacks[stack].calls.push(Call { address, place, registers: Some(gpr) });
        self.push(thread, address);
        callee
    }

    /// Leaves all frames below this call: it returns once more, or an exception is caught after it. Returns
    /// whether it has a landing place for that.
    fn long_jump(&mut self, thread: usize, to: usize, by_exception: bool) -> bool {
        let stack = self.threads[thread].stack;
        let Some(call) = self.stacks[stack].calls.get(to).copied() else { return false };
        let Some(registers) = call.registers else { return false };
        let landing_pad = self.function(call.place.of).landing_pad.filter(|_| by_exception);
        let at = landing_pad.unwrap_or(call.place.at);
        self.stacks[stack].calls.truncate(to);
        let at_thread = &mut self.threads[thread];
        // Caller-saved registers have arbitrary values.
        let kept = [RBP, RSP, 3, 12, 13, 14, 15];
        kept.iter().for_each(|register| at_thread.gpr[*register] = registers[*register]);
        at_thread.place = CodeLocation { at, ..call.place };
        true
    }
}

impl Observed for SteppedProcess {
    fn process(&self) -> &Process {
        &self.process
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        out.clear();
        out.extend(self.lists[self.shown].iter().map(|image| self.images[*image].mapping.clone()));
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let image = self.images.iter().find(|image| image.mapping.identity == mapping.identity);
        let file = image.map(|image| image.file.clone());
        file.map(ImageBytes::new).ok_or(OpenError::Source("not on disk"))
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        let mut copy = |start: u64, bytes: &[u8]| {
            let at = usize::try_from(from.0.checked_sub(start)?).ok()?;
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Some(count)
        };
        let of_code = self.lists[self.lists.len() - 1].iter().find_map(|image| {
            let Image { mapping, text, .. } = &self.images[*image];
            copy(mapping.avma.start.0, text)
        });
        of_code.or_else(|| copy(MEMORY_AT, &self.memory.1)).ok_or(Fault::Transient("not mapped"))
    }
}
