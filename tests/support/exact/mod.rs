//! Exactness: a program is single-stepped from its first to its last instruction, and at each boundary the
//! walk is compared with the shadow stack. Input: a [`Program`]. Output: a [`Score`] per unwinding method,
//! and the addresses where it failed.
//!
//! A walk that claims to be complete with frames other than the truth is `wrong`, one that does not claim it
//! `incomplete`. A handler on an alternate stack (`sigaltstack`) has callers elsewhere, read from the stopped
//! program. For some programs only part of each stack is copied, and the rest is verified in pieces
//! (`pieces.rs`). Some stacks cannot be read from memory: a program may have overwritten a return address or
//! a saved frame pointer (libgcc, while it installs a landing pad) or be between two stacks. A walk that says
//! there that it is incomplete is counted separately.

mod classes;
mod pieces;
pub(crate) mod programs;
mod ptrace;
pub(crate) mod report;
mod shadow;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use libc::pid_t;
use stackprof::addr::{Avma, LookupAvma};
use stackprof::arch::{Arch, Registers, X86, X86_64};
use stackprof::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use stackprof::clock::FakeClock;
use stackprof::images::Images;
use stackprof::images::{CodeMemory, JitCode, TargetCode};
use stackprof::walk::{self, Frames, Input, OuterStack, StackBytes, StackEnd, UnwindMethod, Unwinder};

use pieces::{Pieces, Walked};
use ptrace::{Stop, blocked_signals, read, registers};
pub(crate) use ptrace::{has, permitted};
use shadow::{Kind, Shadow, kind};

/// The unwinding methods, in the order of the report.
pub(crate) const WAYS: [(&str, UnwindMethod); 3] =
    [("fp", UnwindMethod::FramePointer), ("cfi", UnwindMethod::Cfi), ("auto", UnwindMethod::Auto)];

/// A program to step through.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// x86_64 or i386.
    pub(crate) arch: Arch,
    /// Bind all symbols at startup.
    pub(crate) bind_now: bool,
    /// Start at the program's entry point, not at the dynamic linker's.
    pub(crate) from_entry: bool,
    /// After the program's first SIGUSR1, send another one after each of this many instructions.
    pub(crate) signal_every: Option<u64>,
    /// Least share of exact boundaries with `cfi` and `auto`.
    pub(crate) exact_min: f64,
    /// Stop after this many boundaries.
    pub(crate) boundaries_max: u64,
    /// Copy only part of a stack, and the rest in pieces.
    pub(crate) in_pieces: bool,
    /// Group of programs: a line of the report.
    pub(crate) group: Option<&'static str>,
}

impl Program {
    /// Whether its code has unwind information.
    pub(crate) fn is_described(&self) -> bool {
        self.exact_min >= programs::EXACT_MIN
    }
}

/// Boundaries by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) exact: u64,
    pub(crate) wrong: u64,
    pub(crate) incomplete: u64,
    /// Reported as incomplete; the copied stack does not contain all frames.
    pub(crate) untold: u64,
}

impl Score {
    /// Boundaries with their stack in the copied bytes, or that were called complete.
    pub(crate) fn all(&self) -> u64 {
        self.exact + self.wrong + self.incomplete
    }
}

/// A place where an unwinding method failed: the frame without a caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure {
    pub(crate) class: &'static str,
    pub(crate) wrong: u64,
    pub(crate) incomplete: u64,
    /// One case: why the walk ended, its result, the truth.
    pub(crate) example: String,
    /// The bytes at that place, if known.
    pub(crate) code: Vec<u8>,
}

/// Results of a program.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) boundaries: u64,
    /// Frames of the shadow stack outside of code: bugs of the harness itself.
    pub(crate) untrue: u64,
    pub(crate) scores: [Score; WAYS.len()],
    /// See [`Program::group`].
    pub(crate) group: Option<&'static str>,
    /// Failures of each method by image path and stated address.
    pub(crate) failures: [BTreeMap<(String, u64), Failure>; WAYS.len()],
}

struct Thread {
    shadow: Shadow,
    stack_top: u64,
    /// Registers before the current instruction.
    before: Option<X86_64>,
    signal: i32,
}

impl Thread {
    fn new(arch: Arch, stack_top: u64) -> Thread {
        Thread { shadow: Shadow::new(arch.pointer_bytes()), stack_top, before: None, signal: 0 }
    }

    fn own(&self, sp: u64) -> bool {
        sp <= self.stack_top && self.stack_top - sp < 8 << 20
    }
}

struct Session<'a> {
    program: &'a Program,
    pid: i32,
    images: Images,
    jit: JitCode,
    images_changed: bool,
    /// Kind of each instruction seen.
    kinds: HashMap<u64, Kind>,
    unwinders: [Unwinder; WAYS.len()],
    stack: Vec<u8>,
    truth: Vec<LookupAvma>,
    frames: Frames,
    /// For samples in pieces.
    pieces: Option<Pieces<'a>>,
    outcome: Outcome,
}

/// Steps through programs, one per CPU at a time, and prints how long each took. Returns the results in
/// order.
pub(crate) fn run_all(programs: &[Program]) -> Vec<(String, Outcome)> {
    let outcomes: Vec<OnceLock<Outcome>> = programs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = &|cpu: usize| {
        ptrace::stay_on_cpu(cpu);
        while let Some((program, outcome)) = programs.iter().zip(&outcomes).nth(next.fetch_add(1, Relaxed)) {
            let begun = Instant::now();
            let boundaries = outcome.get_or_init(|| run(program)).boundaries;
            println!("{}: {boundaries} boundaries in {:.1} s", program.name, begun.elapsed().as_secs_f64());
        }
    };
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    thread::scope(|scope| (0..cpus).for_each(|cpu| drop(scope.spawn(move || work(cpu)))));
    let names = programs.iter().map(|program| program.name.clone());
    names.zip(outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap())).collect()
}

/// Steps through a program from its first instruction to its end.
fn run(program: &Program) -> Outcome {
    let mut environment = vec![("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")];
    if program.bind_now {
        environment.push(("LD_BIND_NOW", "1"));
    }
    let pid = ptrace::start(&program.path, &program.arguments, &environment);
    if program.from_entry {
        ptrace::run_to_entry(pid, program.arch);
    }
    let (clock, options) = (FakeClock::default(), pieces::options());
    let mut session = Session {
        program,
        pid,
        images: Images::default(),
        jit: JitCode::default(),
        images_changed: true,
        kinds: HashMap::new(),
        unwinders: Default::default(),
        stack: Vec::new(),
        truth: Vec::new(),
        frames: Frames::default(),
        pieces: program.in_pieces.then(|| Pieces::new(pid, program.arch, &clock, &options)),
        outcome: Outcome { group: program.group, ..Outcome::default() },
    };
    session.follow();
    session.outcome
}

impl Session<'_> {
    fn follow(&mut self) {
        let arch = self.program.arch;
        let first = registers(self.pid).unwrap();
        let mut threads = HashMap::from([(self.pid, Thread::new(self.program.arch, first.gpr[X86_64::RSP]))]);
        let (mut steps, mut signals_seen) = (0u64, false);
        let mut stopped = Some((self.pid, Stop::Step));
        while let Some((tid, stop)) = stopped.take().or_else(ptrace::wait) {
            let Some(now) = (stop != Stop::Gone).then(|| registers(tid)).flatten() else {
                threads.remove(&tid);
                self.in_pieces(|pieces, walked| pieces.thread_ended(tid, walked));
                if threads.is_empty() {
                    break;
                }
                continue;
            };
            let thread = threads.entry(tid).or_insert_with(|| Thread::new(arch, now.gpr[X86_64::RSP]));
            match stop {
                Stop::Signal(signal) => {
                    signals_seen |= signal == libc::SIGUSR1;
                    assert!(
                        [libc::SIGUSR1, libc::SIGUSR2].contains(&signal),
                        "{}: ended by signal {signal} at {:#x}",
                        self.program.name,
                        now.rip
                    );
                    thread.signal = signal;
                }
                // The instruction that creates a thread is not complete yet.
                Stop::Clone => {}
                Stop::Step | Stop::Gone => {
                    steps += 1;
                    self.stepped(thread, &now);
                    let due = self.program.signal_every.is_some_and(|every| steps.is_multiple_of(every));
                    if due && signals_seen && thread.signal == 0 {
                        thread.signal = libc::SIGUSR1;
                    }
                    self.compare(tid, thread, &now);
                    self.outcome.boundaries += 1;
                    if self.outcome.boundaries >= self.program.boundaries_max {
                        break;
                    }
                    thread.before = Some(now);
                }
            }
            let signal = thread.signal;
            if signal != 0 && stop == Stop::Step || matches!(stop, Stop::Signal(_)) {
                // Stepping with a signal stops at the handler's first instruction.
                thread.before = Some(now);
            }
            ptrace::step(tid, signal);
        }
        self.in_pieces(|pieces, walked| pieces.images_changed(walked));
        ptrace::kill(self.pid);
        while ptrace::wait().is_some_and(|(_, stop)| stop != Stop::Gone) {}
    }

    /// Updates the thread's shadow stack to the registers `now`.
    fn stepped(&mut self, thread: &mut Thread, now: &X86_64) {
        let Some(before) = thread.before else { return };
        let (pid, pointer) = (self.pid, self.program.arch.pointer_bytes());
        let word = |at: u64| {
            let mut bytes = [0; 8];
            read(pid, at, &mut bytes[..pointer as usize]);
            u64::from_le_bytes(bytes)
        };
        let top = thread.stack_top;
        let own = |sp: u64| sp <= top && top - sp < 8 << 20;
        // A blocked signal stays pending, and the instruction is executed instead.
        if std::mem::take(&mut thread.signal) != 0 && shadow::begins_handler(&before, now, pointer, word) {
            thread.shadow.interrupted(&before, now, own, word);
            return;
        }
        let kind = *self.kinds.entry(before.rip).or_insert_with(|| {
            let mut code = [0; 15];
            let len = read(pid, before.rip, &mut code);
            kind(&code[..len], pointer)
        });
        // mmap, mprotect, munmap; mmap2
        let maps = match pointer {
            8 => matches!(before.gpr[0], 9..=11),
            _ => matches!(before.gpr[0], 90 | 91 | 125 | 192),
        };
        if kind == Kind::Syscall && maps {
            self.images_changed = true;
            self.kinds.clear();
        }
        thread.shadow.step(kind, &before, now, own, word);
    }

    fn compare(&mut self, tid: pid_t, thread: &Thread, now: &X86_64) {
        if std::mem::take(&mut self.images_changed) {
            let (pid, mappings) = (self.pid, mappings(self.pid));
            if self.images.update(0, &mappings, &mut |mapping| bytes(pid, mapping)) {
                self.unwinders.iter_mut().for_each(Unwinder::images_changed);
            }
            self.jit.update(0, &mappings, &self.images);
            self.in_pieces(|pieces, walked| pieces.images_changed(walked));
        }
        let sp = now.gpr[X86_64::RSP];
        let end = if thread.own(sp) { thread.stack_top + 64 } else { (sp | 0xffff) + 1 };
        // Like a capture, with the bytes right below the stack pointer.
        let base = sp - self.program.arch.red_zone_bytes_max();
        self.stack.resize((end - base).min(512 << 10) as usize, 0);
        let len = read(self.pid, base, &mut self.stack);
        let stack = StackBytes { base: Avma(base), bytes: &self.stack[..len] };
        let narrow = self.program.arch == Arch::X86;
        let word = |slot: u64| match narrow {
            false => stack.word(Avma(slot)),
            true => {
                let from = usize::try_from(slot.checked_sub(base)?).ok()?;
                stack.bytes.get(from..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes).into())
            }
        };
        let memory = Memory(self.pid);
        let told = thread.shadow.truth(now.rip, word, &mut self.truth);
        self.outcome.untrue +=
            self.truth.iter().filter(|at| !self.images.of(0).contains(at.at())).count() as u64;
        if self.pieces.is_some() {
            let told = (std::mem::take(&mut self.truth), told);
            let bytes = std::mem::take(&mut self.stack);
            let (stack, top) = ((base, &bytes[..len]), thread.stack_top);
            self.in_pieces(|pieces, walked| {
                pieces.sample(tid, &Registers::X86_64(*now), stack, top, (&told.0, told.1), walked);
            });
            (self.truth, self.stack) = (told.0, bytes);
            return;
        }
        let blocked = if narrow { None } else { blocked_signals(tid) };
        for (index, (_, how)) in WAYS.into_iter().enumerate() {
            let unwinder = &mut self.unwinders[index];
            self.jit.begin_walk(u64::MAX);
            let pid = self.pid;
            let walked = loop {
                let mut read_code = |at: Avma, into: &mut [u8]| read(pid, at.0, into);
                let code_memory = CodeMemory::new(&mut read_code);
                let code =
                    TargetCode { images: self.images.of(0), jit: &self.jit, memory: Some(&code_memory) };
                // Stacks other than the copied one.
                let input = Input {
                    stack_top: Some(Avma(thread.stack_top)),
                    max_depth: 4096,
                    outer: (!narrow).then_some(&memory),
                    blocked_signals: blocked,
                    ..Input::new(stack, &code)
                };
                let registers = if narrow { narrowed(now) } else { Registers::X86_64(*now) };
                match walk::unwind(how, &registers, &input, unwinder, &mut self.frames) {
                    Ok(walked) => break walked,
                    Err(needs) => self.jit.read(needs, &mut |at, into| read(self.pid, at.0, into)),
                }
            };
            let score = &mut self.outcome.scores[index];
            let same = self.frames.addresses == self.truth;
            let complete = walked.ended.is_complete();
            let right_until = |told: usize| {
                told < self.truth.len() && self.frames.addresses.get(..told) == self.truth.get(..told)
            };
            let frame_pointers = || thread.shadow.told_by_frame_pointers(now, word);
            let untold = !complete && (right_until(told) || !same && right_until(frame_pointers()));
            match (complete, same) {
                (true, true) => score.exact += 1,
                (true, false) => score.wrong += 1,
                (false, _) if untold => score.untold += 1,
                (false, _) => score.incomplete += 1,
            }
            if !(complete && same || untold) {
                note(
                    &mut self.outcome.failures[index],
                    &self.images,
                    &self.truth,
                    &self.frames,
                    walked.ended,
                    complete,
                    self.program.arch,
                );
            }
        }
    }
}

impl<'a> Session<'a> {
    /// Applies `act` to the samples in pieces, if any, and scores the resulting walks.
    fn in_pieces(&mut self, act: impl FnOnce(&mut Pieces<'a>, &mut dyn FnMut(Walked<'_>))) {
        let Session { pieces: Some(pieces), outcome, images, program, .. } = self else { return };
        let mut walked = |walked: Walked<'_>| {
            let Walked { way, ended, frames, truth, told } = walked;
            let (same, complete) = (frames.addresses == truth, ended.is_complete());
            let found = frames.addresses.get(..told);
            let untold = !complete && told < truth.len() && found == truth.get(..told);
            let score = &mut outcome.scores[way];
            match (complete, same) {
                (true, true) => score.exact += 1,
                (true, false) => score.wrong += 1,
                (false, _) if untold => score.untold += 1,
                (false, _) => score.incomplete += 1,
            }
            if !(complete && same || untold) {
                note(&mut outcome.failures[way], images, truth, frames, ended, complete, program.arch);
            }
        };
        act(pieces, &mut walked);
    }
}

/// The current memory of the program.
struct Memory(pid_t);

impl OuterStack for Memory {
    fn word(&self, at: Avma, word_bytes: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let word = bytes.get_mut(..word_bytes)?;
        (read(self.0, at.0, word) == word_bytes).then(|| u64::from_le_bytes(bytes))
    }
}

/// The registers of an i386 thread, as the kernel shows them to a 64-bit program.
fn narrowed(now: &X86_64) -> Registers {
    // By DWARF number: eax ecx edx ebx esp ebp esi edi, in x86_64's numbering.
    let gpr = [0, 2, 1, 3, X86_64::RSP, X86_64::RBP, 4, 5].map(|number| now.gpr[number]);
    Registers::X86(X86 { gpr, eip: now.rip })
}

/// Records a failure at the last frame found.
#[allow(clippy::too_many_arguments)] // result, truth and place
fn note(
    failures: &mut BTreeMap<(String, u64), Failure>,
    images: &Images,
    truth: &[LookupAvma],
    frames: &Frames,
    ended: StackEnd,
    complete: bool,
    arch: Arch,
) {
    let found = &frames.addresses;
    let agree = truth.iter().zip(found).take_while(|(a, b)| a == b).count();
    let culprit = truth[agree.saturating_sub(1)].at();
    let place = images.locate(images.of(0).space(), culprit);
    let key =
        place.map_or(("[no image]".to_owned(), culprit.0), |place| (place.image.path.clone(), place.svma.0));
    let failure = failures.entry(key).or_default();
    if failure.class.is_empty() {
        failure.code =
            images.of(0).code(culprit).map(|code| code[..code.len().min(16)].to_vec()).unwrap_or_default();
        failure.class = classes::class(images, culprit, agree <= 1, arch);
        let tail = |list: &[LookupAvma]| {
            list.iter()
                .skip(agree.saturating_sub(1))
                .take(6)
                .map(|a| format!("{:x}", a.0))
                .collect::<Vec<_>>()
                .join(" ")
        };
        failure.example = format!(
            "{}; frame {agree} of {}: found {}, true {}",
            ended.reason(),
            truth.len(),
            tail(found),
            tail(truth)
        );
    }
    if complete {
        failure.wrong += 1;
    } else {
        failure.incomplete += 1;
    }
}

fn mappings(pid: i32) -> Vec<Mapping> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut found = Vec::new();
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let path = fields.get(5).copied().unwrap_or_default();
        if !fields[1].contains('x') {
            continue;
        }
        found.push(Mapping {
            avma: Avma(hex(start))..Avma(hex(end)),
            file_offset: hex(fields[2]),
            path: path.to_owned(),
            kind: match path {
                "[vdso]" => MappingKind::Vdso,
                path if path.starts_with('/') => MappingKind::File,
                _ => MappingKind::Anonymous,
            },
            identity: (0, fields[4].parse().unwrap()),
        });
    }
    found
}

fn bytes(pid: i32, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
    if mapping.kind == MappingKind::File {
        return fs::read(&mapping.path).map(ImageBytes::new).map_err(OpenError::from);
    }
    let mut bytes = vec![0; (mapping.avma.end - mapping.avma.start) as usize];
    let len = read(pid, mapping.avma.start.0, &mut bytes);
    bytes.truncate(len);
    Ok(ImageBytes::new(bytes))
}
