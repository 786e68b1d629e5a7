//! Executing a program of 32-bit Arm one instruction at a time, and judging walks at each boundary.
//!
//! The truth is the calls that were executed: an activation begins where a call's target is reached, and
//! ends where its return address is, with the stack pointer that it began with, or where the stack pointer
//! has left it (`longjmp`). Nothing here looks at unwind information.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use stackprof::addr::Avma;
use stackprof::arch::{Arm, Registers};
use stackprof::binary::elf::Elf;
use stackprof::binary::{ImageBytes, Mapping};
use stackprof::images::Images;
use stackprof::walk::{self, Frames, UnwindMethod, StackBytes, Unwinder};
use unicorn_engine::{Arch as Cpu, Mode, Prot, RegisterARM as A, Unicorn};

use crate::build::{Built, run};

const MEMORY: std::ops::Range<u64> = 0..0x40_0000;
const STACK: std::ops::Range<u64> = 0x800_0000..0x810_0000;
const BOUNDARIES_MAX: usize = 30_000;
const STACK_BYTES: u64 = 256 << 10;

/// What a walk found at a boundary.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    pub exact: bool,
    pub complete: bool,
    /// What was found in place of the first frame that is wrong, and its depth.
    pub differs_at: (usize, u64),
}

/// Ways of walking: those that `--unwind` has, and the first of them without the status register.
pub const WALKS: usize = UnwindMethod::ALL.len() + 1;

/// A boundary, judged by every way of walking.
pub struct Judged {
    pub pc: u64,
    /// Bytes of stack that the activation has there.
    depth: u64,
    is_leaf: bool,
    /// In a function's body: between prologue and epilogue, or a leaf that has neither.
    pub is_body: bool,
    /// All of the stack is of functions that the program itself has.
    pub is_own: bool,
    pub verdicts: [Verdict; WALKS],
}

struct Activation {
    /// With the bit of T32.
    return_address: u64,
    sp: u64,
    is_own: bool,
    calls: Vec<[u64; 3]>,
    open: Vec<(u64, [u64; 3], bool, [Verdict; WALKS])>,
}

/// An instruction that was executed.
#[derive(Clone, Copy)]
struct Executed {
    at: u64,
    word: u32,
    is_t32: bool,
    is_call: bool,
    /// Whether it has a condition, its own or of the IT block that it is in.
    is_conditional: bool,
}

struct Run {
    images: Images,
    unwinders: Vec<Unwinder>,
    stack: Vec<Activation>,
    judged: Vec<Judged>,
    last: Option<Executed>,
    stop: u64,
    boundaries: usize,
    finished: bool,
    symbols: BTreeMap<u64, (String, bool)>,
    bytes: Vec<u8>,
}

pub struct Outcome {
    pub judged: Vec<Judged>,
    pub symbols: BTreeMap<u64, (String, bool)>,
}

pub fn execute(built: &Built) -> Outcome {
    let file = std::fs::read(&built.path).unwrap();
    let elf = Elf::parse(&file).unwrap();
    let symbols = symbols(&built.symbols, &built.own);
    let mut images = Images::default();
    let code = elf.segments.iter().find(|segment| segment.executable).expect("code");
    let length = code.file.end - code.file.start;
    let mapping = Mapping::of_file(Avma(code.svma.0)..Avma(code.svma.0 + length), code.file.start, built.path.display().to_string(), (1, 1));
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(file.clone())));
    let address = |wanted: &str| {
        let found = symbols.iter().find(|(_, (name, _))| name == wanted);
        *found.unwrap_or_else(|| panic!("{wanted} is no symbol")).0
    };
    let start = elf.entry.0;
    let sp = STACK.end - 0x100;
    let first = Activation { return_address: 0, sp, is_own: true, calls: Vec::new(), open: Vec::new() };
    let run = Run {
        images,
        unwinders: (0..WALKS).map(|_| Unwinder::default()).collect(),
        stack: vec![first],
        judged: Vec::new(),
        last: None,
        stop: address("stop"),
        boundaries: 0,
        finished: false,
        symbols,
        bytes: Vec::new(),
    };
    let mut machine = Unicorn::new_with_data(Cpu::ARM, Mode::ARM, run).unwrap();
    machine.mem_map(MEMORY.start, MEMORY.end - MEMORY.start, Prot::ALL).unwrap();
    machine.mem_map(STACK.start, STACK.end - STACK.start, Prot::ALL).unwrap();
    for segment in &elf.segments {
        let bytes = &file[segment.file.start as usize..segment.file.end as usize];
        machine.mem_write(segment.svma.0, bytes).unwrap();
    }
    machine.reg_write(A::SP, sp).unwrap();
    // Full access to coprocessors 10 and 11, and VFP enabled (DDI 0406, B1.11.3).
    let access = machine.reg_read(A::C1_C0_2).unwrap();
    machine.reg_write(A::C1_C0_2, access | 0xf << 20).unwrap();
    machine.reg_write(A::FPEXC, 1 << 30).unwrap();
    machine.add_code_hook(1, 0, at_boundary).unwrap();
    let ended = machine.emu_start(start, 0xffff_fffe, 0, 0);
    let pc = machine.pc_read().unwrap_or_default();
    let run = machine.get_data_mut();
    assert!(run.finished, "{}: {ended:?} at {pc:#x}", built.path.display());
    while let Some(activation) = run.stack.pop() {
        close(activation, &mut run.judged);
    }
    let mut judged = std::mem::take(&mut run.judged);
    without_early_returns(&mut judged, &run.symbols);
    Outcome { judged, symbols: std::mem::take(&mut run.symbols) }
}

/// Symbols of code by address, and whether the program itself has them.
fn symbols(file: &Path, own: &[String]) -> BTreeMap<u64, (String, bool)> {
    let mut symbols = BTreeMap::new();
    let own: HashMap<&str, ()> = own.iter().map(|name| (name.as_str(), ())).collect();
    for line in run(std::process::Command::new("arm-none-eabi-nm").arg(file)).lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [address, kind, name] = fields[..]
            && matches!(kind, "t" | "T" | "w" | "W")
            && !name.starts_with('$')
        {
            let at = u64::from_str_radix(address, 16).unwrap() & !1;
            symbols.insert(at, (name.to_owned(), own.contains_key(name) || name == "_start"));
        }
    }
    symbols
}

fn function_of(symbols: &BTreeMap<u64, (String, bool)>, pc: u64) -> (&str, bool) {
    symbols.range(..=pc).next_back().map_or(("", false), |(_, (name, own))| (name, *own))
}

fn close(activation: Activation, judged: &mut Vec<Judged>) {
    let is_leaf = activation.calls.is_empty();
    // A leaf's body is where its stack pointer is lowest, with the frame pointers that it has there for most of
    // the time: gcc sets them after the stack pointer in prologues, and moves them before it in epilogues.
    let lowest = activation.open.iter().map(|(_, frame, ..)| frame[0]).min();
    let mut boundaries: BTreeMap<[u64; 3], usize> = BTreeMap::new();
    for (_, frame, ..) in activation.open.iter().filter(|(_, frame, ..)| Some(frame[0]) == lowest) {
        *boundaries.entry(*frame).or_default() += 1;
    }
    let of_leaf = boundaries.into_iter().max_by_key(|(_, count)| *count).map(|(frame, _)| frame);
    for (pc, frame, is_own, verdicts) in activation.open {
        let is_body = if is_leaf { Some(frame) == of_leaf } else { activation.calls.contains(&frame) };
        let depth = activation.sp.saturating_sub(frame[0]);
        judged.push(Judged { pc, depth, is_leaf, is_body, is_own, verdicts });
    }
}

/// Takes out of the bodies what comes before a frame is made: an activation that returns early, of a function that
/// makes a frame in others, is in no body. Tables describe functions as they are with their frames.
fn without_early_returns(judged: &mut [Judged], symbols: &BTreeMap<u64, (String, bool)>) {
    let function = |pc: u64| symbols.range(..=pc).next_back().map_or(0, |(start, _)| *start);
    let mut frames: HashMap<u64, u64> = HashMap::new();
    for one in judged.iter().filter(|one| one.is_body && !one.is_leaf) {
        let least = frames.entry(function(one.pc)).or_insert(one.depth);
        *least = one.depth.min(*least);
    }
    for one in judged.iter_mut().filter(|one| one.is_leaf) {
        one.is_body &= frames.get(&function(one.pc)).is_none_or(|least| one.depth >= *least);
    }
}

/// Whether an instruction is a call, by its encoding.
fn is_call(word: u32, is_t32: bool) -> bool {
    if is_t32 {
        let (first, second) = (word as u16, (word >> 16) as u16);
        first & 0xf800 == 0xf000 && second & 0xc000 == 0xc000 || first & 0xff80 == 0x4780
    } else {
        word >> 28 == 0xf && word >> 25 & 7 == 5
            || word >> 28 < 0xf && word >> 24 & 0xf == 0xb
            || word & 0x0fff_fff0 == 0x012f_ff30
    }
}

/// Whether an instruction is a call because `mov lr, pc` stands in front of it: LLVM calls functions of A32 so
/// that do not return, with `b`.
fn links(last: Option<Executed>, word: u32, is_t32: bool) -> bool {
    let is_jump = word & 0x0f00_0000 == 0x0a00_0000 || word & 0x0fff_fff0 == 0x012f_ff10;
    !is_t32 && is_jump && last.is_some_and(|last| !last.is_t32 && last.word & 0x0fff_ffff == 0x01a0_e00f)
}

fn at_boundary(machine: &mut Unicorn<'_, Run>, pc: u64, length: u32) {
    let mut r = [0; 16];
    for (register, value) in (A::R0 as i32..=A::R12 as i32).zip(&mut r) {
        *value = machine.reg_read(register).unwrap() & 0xffff_ffff;
    }
    r[Arm::SP] = machine.reg_read(A::SP).unwrap() & 0xffff_ffff;
    r[Arm::LR] = machine.reg_read(A::LR).unwrap() & 0xffff_ffff;
    r[Arm::PC] = pc;
    let cpsr = machine.reg_read(A::CPSR).unwrap() as u32;
    let (sp, is_t32) = (r[Arm::SP], cpsr & 1 << 5 != 0);
    assert!((STACK.start..=STACK.end).contains(&sp), "sp {sp:#x} at {pc:#x}");
    let mut bytes = std::mem::take(&mut machine.get_data_mut().bytes);
    bytes.resize(STACK.end.min(sp + STACK_BYTES).saturating_sub(sp) as usize, 0);
    machine.mem_read(sp, &mut bytes).unwrap();
    let mut word = [0; 4];
    machine.mem_read(pc, &mut word[..length as usize]).unwrap();

    let run = machine.get_data_mut();
    let frame = [sp, r[7], r[11]];
    if let Some(Executed { at: last, word: executed, is_t32: was_t32, is_call, is_conditional }) = run.last {
        let size = if was_t32 && (executed as u16) >> 11 <= 0b11100 { 2 } else { 4 };
        let next = last + size;
        // What is called may stand behind the call: that of a function that does not return is a caller's last.
        if is_call && (pc != next || !is_conditional) {
            let is_own = run.stack.last().is_some_and(|top| top.is_own) && function_of(&run.symbols, pc).1;
            let return_address = next | u64::from(was_t32);
            run.stack.push(Activation { return_address, sp, is_own, calls: Vec::new(), open: Vec::new() });
        } else {
            let has_jumped = function_of(&run.symbols, last).0 == "longjmp"
                && function_of(&run.symbols, pc).0 != "longjmp";
            loop {
                let Some(top) = run.stack.last() else { break };
                let returned = top.return_address & !1 == pc && top.sp == sp;
                if run.stack.len() > 1
                    && (returned && !has_jumped || top.sp < sp || has_jumped && top.sp <= sp)
                {
                    let ended = run.stack.pop().expect("an activation");
                    close(ended, &mut run.judged);
                    if returned && !has_jumped {
                        break;
                    }
                } else {
                    break;
                }
            }
        }
    }
    let word = u32::from_le_bytes(word);
    let is_call = is_call(word, is_t32) || links(run.last, word, is_t32);
    if is_call
        && let Some(top) = run.stack.last_mut()
        && !top.calls.contains(&frame)
    {
        top.calls.push(frame);
    }
    // ITSTATE is in bits 15 to 10 and 26 to 25 (DDI 0406, B1.3.3).
    let is_conditional = if is_t32 { cpsr & 0x0600_fc00 != 0 } else { word >> 28 < 14 };
    run.last = Some(Executed { at: pc, word, is_t32, is_call, is_conditional });
    run.boundaries += 1;
    run.finished = pc == run.stop;
    if run.finished || run.boundaries == BOUNDARIES_MAX {
        run.finished = true;
        run.bytes = bytes;
        machine.emu_stop().unwrap();
        return;
    }
    // Of which frame the registers are is not decided there.
    let (name, is_own_function) = function_of(&run.symbols, pc);
    if name == "longjmp" {
        run.bytes = bytes;
        return;
    }
    let expected: Vec<u64> = std::iter::once(pc)
        .chain(run.stack.iter().skip(1).rev().map(|activation| (activation.return_address & !1) - 1))
        .collect();
    let code = run.images.of(0);
    let input = walk::Input {
        stack_limit: Some(Avma(STACK.end)),
        max_depth: 512,
        ..walk::Input::new(StackBytes { base: Avma(sp), bytes: &bytes }, &code)
    };
    let mut frames = Frames::default();
    let verdicts = std::array::from_fn(|index| {
        let (how, cpsr) = match UnwindMethod::ALL.get(index) {
            Some((how, _)) => (*how, Some(cpsr)),
            None => (UnwindMethod::Auto, None),
        };
        let registers = Registers::Arm(Arm { r, cpsr, m_profile: false });
        let walked = walk::unwind(how, &registers, &input, &mut run.unwinders[index], &mut frames).expect("all code is in images");
        let found: Vec<u64> = frames.addresses.iter().map(|address| address.0).collect();
        let right = expected.iter().zip(&found).take_while(|(expected, found)| expected == found).count();
        Verdict {
            exact: expected == found,
            complete: walked.ended.is_complete(),
            differs_at: (right, found.get(right).copied().unwrap_or(0)),
        }
    });
    let top = run.stack.last_mut().expect("an activation");
    let is_own = top.is_own && is_own_function;
    top.open.push((pc, frame, is_own, verdicts));
    run.bytes = bytes;
}
