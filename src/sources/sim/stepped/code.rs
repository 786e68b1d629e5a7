//! The code of a stepped program: functions of real instructions, with a row of unwind information for each.
//!
//! Input: a seed. Output: an ELF file, and the effects of each function's instructions. Frames are relative to the
//! stack pointer or to a frame pointer, save some callee-saved registers, and change them.

use crate::addr::Avma;
use crate::arch::{Arch, X86_64};
use crate::binary::Mapping;
use crate::leb128::put_unsigned;
use crate::rng::Rng;

use super::super::config::{SimFunction, SimImage};
use super::super::images;

const RBX: usize = 3;
pub(super) const RBP: usize = X86_64::RBP;
pub(super) const RSP: usize = X86_64::RSP;
const RETURN_ADDRESS: u8 = 16;
/// Registers saved by `switch`, in push order.
pub(super) const SWITCHED: [usize; 6] = [RBP, RBX, 12, 13, 14, 15];

/// The effect of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// No relevant effect.
    Nop,
    /// Pushes a register.
    Push(usize),
    /// Pops a register.
    Pop(usize),
    /// rbp = rsp
    SetFramePointer,
    /// rsp -= bytes
    Grow(u64),
    /// rsp += bytes
    Shrink(u64),
    /// rsp = rbp - bytes
    LeaveTo(u64),
    /// rsp -= a variable size
    Allocate,
    /// Sets a register to another value.
    Set(usize),
    /// Calls a random function.
    Call,
    /// Jumps back to the start of the body.
    Back,
    /// Switches the stack pointer to another stack.
    Switch,
    /// Returns.
    Return,
    /// A tail call to another function, with the same caller.
    Jump,
}

/// A function: the offsets of its instructions from the image's first, and the indexes of its parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Function {
    pub(super) instructions: Vec<(u64, Op)>,
    pub(super) body: usize,
    /// Removes the frame and returns.
    pub(super) exit: Option<usize>,
    /// Removes the frame and jumps.
    pub(super) tail: Option<usize>,
    /// Landing pad of exceptions.
    pub(super) landing_pad: Option<usize>,
}

/// Indexes of an image's special functions.
pub(super) const THREAD_ROOT: usize = 0;
pub(super) const FIBER_ROOT: usize = 1;
pub(super) const SWITCH: usize = 2;
/// Index of the first ordinary function in an image where threads begin, and in others.
pub(super) const FIRST_OF_PROGRAM: usize = 3;

/// An image with its layout.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) mapping: Mapping,
    pub(super) file: Vec<u8>,
    pub(super) text: Vec<u8>,
    pub(super) functions: Vec<Function>,
    /// Index of the first ordinary function.
    pub(super) first: usize,
}

impl Image {
    /// An image at an address, with a number that is unique in the program. `begins_threads`: it contains the
    /// first functions of threads and fibers, and the one that switches stacks.
    pub(super) fn new(at: Avma, number: u64, begins_threads: bool, random: &mut Rng) -> Image {
        let mut assembler = Assembler::default();
        // Not at the start of the text, like after a .plt.
        assembler.text.resize(64, 0xcc);
        if begins_threads {
            assembler.root(random);
            assembler.root(random);
            assembler.switch();
        }
        for _ in 0..24 {
            assembler.ordinary(random);
        }
        assembler.text.resize(assembler.text.len().next_multiple_of(4096), 0xcc);
        let Assembler { text, functions, ranges, .. } = assembler;
        let mut image = SimImage::new(&format!("/sim/stepped-{number}"), at, &[]);
        let name = |index: usize| SimFunction { name: format!("f{number}_{index}"), code_bytes: 0 };
        image.functions = (0..functions.len()).map(name).collect();
        let eh_frame = eh_frame(image.text_svma, &ranges);
        let starts: Vec<_> = ranges.iter().map(|(range, _)| range.clone()).collect();
        let file = images::elf(Arch::X86_64, &image, &starts, &text, &eh_frame, number);
        let mapping =
            Mapping::of_file(at..at + text.len() as u64, image.text_offset, image.path, (0x51, number));
        let first = if begins_threads { FIRST_OF_PROGRAM } else { 0 };
        Image { mapping, file, text, functions, first }
    }
}

/// Assembles instructions and their rows, one function after the other.
#[derive(Default)]
struct Assembler {
    text: Vec<u8>,
    functions: Vec<Function>,
    /// The range of each function, and the instructions of its FDE.
    ranges: Vec<(std::ops::Range<u64>, Vec<u8>)>,
    /// The current function, and the size of its frame above the stack pointer.
    function: Function,
    rows: Vec<u8>,
    start: usize,
    row_at: usize,
    frame_bytes: u64,
    by_frame_pointer: bool,
}

impl Assembler {
    fn begin(&mut self) {
        self.text.resize(self.text.len().next_multiple_of(16), 0xcc);
        (self.function, self.rows) = (Function::default(), Vec::new());
        (self.start, self.row_at) = (self.text.len(), self.text.len());
        (self.frame_bytes, self.by_frame_pointer) = (8, false);
    }

    fn end(&mut self) {
        self.functions.push(std::mem::take(&mut self.function));
        self.ranges.push((self.start as u64..self.text.len() as u64, std::mem::take(&mut self.rows)));
    }

    /// The index of the next instruction.
    fn here(&self) -> usize {
        self.function.instructions.len()
    }

    fn emit(&mut self, op: Op, bytes: &[u8]) {
        self.function.instructions.push((self.text.len() as u64, op));
        self.text.extend_from_slice(bytes);
    }

    /// Changes the row from here on.
    fn row(&mut self, instructions: &[u8]) {
        let passed = self.text.len() - self.row_at;
        if passed > 0 {
            // DW_CFA_advance_loc2
            self.rows.push(0x03);
            self.rows.extend_from_slice(&(passed as u16).to_le_bytes());
        }
        self.row_at = self.text.len();
        self.rows.extend_from_slice(instructions);
    }

    /// Grows the frame above the stack pointer by this many bytes.
    fn grow(&mut self, bytes: i64) {
        self.frame_bytes = self.frame_bytes.wrapping_add_signed(bytes);
        if !self.by_frame_pointer {
            let mut row = vec![0x0e];
            put_unsigned(self.frame_bytes, &mut row);
            self.row(&row);
        }
    }

    fn push(&mut self, register: usize) {
        let code = [0x41, 0x50 | (register & 7) as u8];
        match register {
            8.. => self.emit(Op::Push(register), &code),
            _ => self.emit(Op::Push(register), &[0x50 | number(register)]),
        }
        self.grow(8);
        // DW_CFA_offset, in words of 8 bytes
        self.row(&[0x80 | register as u8, (self.frame_bytes / 8) as u8]);
    }

    fn pop(&mut self, register: usize) {
        let code = [0x41, 0x58 | (register & 7) as u8];
        match register {
            8.. => self.emit(Op::Pop(register), &code),
            _ => self.emit(Op::Pop(register), &[0x58 | number(register)]),
        }
        self.grow(-8);
    }

    /// A body with calls, like all bodies.
    fn body(&mut self, saved: &[usize], allocates: bool, random: &mut Rng) {
        self.function.body = self.here();
        for _ in 0..3 + random.below(4) {
            match random.below(5) {
                0 => self.emit(Op::Nop, &[0x89, 0xca]), // mov %ecx,%edx
                1 if allocates && random.chance(1, 3) => self.emit(Op::Allocate, &[0x48, 0x29, 0xc4]),
                1 | 2 if !saved.is_empty() => {
                    let register = saved[random.below(saved.len())];
                    // mov %rcx,register
                    let prefix = if register < 8 { 0x48 } else { 0x49 };
                    let modrm = 0xc8 | number(register) & 7;
                    self.emit(Op::Set(register), &[prefix, 0x89, modrm]);
                }
                _ => self.call(random),
            }
        }
        self.call(random);
        self.emit(Op::Nop, &[0x89, 0xca]);
        self.emit(Op::Back, &[0xeb, 0xfe]);
    }

    fn call(&mut self, random: &mut Rng) {
        if random.chance(1, 2) {
            return self.emit(Op::Call, &[0xff, 0xd0]);
        }
        // To the start of the text, for any callee.
        let distance = -(self.text.len() as i32 + 5) + 64;
        let [a, b, c, d] = distance.to_le_bytes();
        self.emit(Op::Call, &[0xe8, a, b, c, d]);
    }

    /// The first function of a stack, which has no caller.
    fn root(&mut self, random: &mut Rng) {
        self.begin();
        // DW_CFA_undefined
        self.row(&[0x07, RETURN_ADDRESS]);
        self.emit(Op::Grow(24), &[0x48, 0x83, 0xec, 24]);
        self.grow(24);
        self.body(&[], false, random);
        self.end();
    }

    /// Saves callee-saved registers, switches to another stack, and restores the registers saved there.
    fn switch(&mut self) {
        self.begin();
        SWITCHED.iter().for_each(|register| self.push(*register));
        self.emit(Op::Nop, &[0x48, 0x89, 0x27]); // mov %rsp,(%rdi)
        self.emit(Op::Switch, &[0x48, 0x8b, 0x26]); // mov (%rsi),%rsp
        SWITCHED.iter().rev().for_each(|register| self.pop(*register));
        self.emit(Op::Return, &[0xc3]);
        self.end();
        // Code right after a load of the stack pointer is assumed to be part of the switch.
        self.text.resize(self.text.len() + 128, 0xcc);
    }

    fn ordinary(&mut self, random: &mut Rng) {
        self.begin();
        let by_frame_pointer = random.chance(1, 2);
        let mut saved: Vec<usize> =
            [RBX, 12, 13, 14, 15].into_iter().filter(|_| random.chance(1, 3)).collect();
        if !by_frame_pointer && random.chance(1, 2) {
            saved.insert(random.below(saved.len() + 1), RBP);
        }
        if by_frame_pointer {
            self.push(RBP);
            self.emit(Op::SetFramePointer, &[0x48, 0x89, 0xe5]);
            self.by_frame_pointer = true;
            self.row(&[0x0d, RBP as u8]); // DW_CFA_def_cfa_register
        }
        saved.iter().for_each(|register| self.push(*register));
        let words = match random.below(40) {
            0 => 200 + random.below(1200),
            // Many frames have one size: other functions get the addresses of unloaded ones.
            _ => 2 * random.below(4),
        };
        // Calls are made with a 16-byte aligned stack pointer.
        let bytes = 8 * words as u64 + (self.frame_bytes + 8 * words as u64) % 16;
        if bytes > 0 {
            let [a, b, c, d] = (bytes as u32).to_le_bytes();
            self.emit(Op::Grow(bytes), &[0x48, 0x81, 0xec, a, b, c, d]);
            self.grow(bytes as i64);
        }
        self.body(&saved, by_frame_pointer, random);
        let full = self.frame_bytes;
        for tail in [false, true] {
            self.row(&[0x0a]); // DW_CFA_remember_state
            let begin = self.here();
            self.take_frame_off(by_frame_pointer, bytes, &saved);
            match tail {
                false => self.emit(Op::Return, &[0xc3]),
                true => self.emit(Op::Jump, &[0xff, 0xe0]),
            }
            let part = if tail { &mut self.function.tail } else { &mut self.function.exit };
            *part = Some(begin);
            self.row(&[0x0b]); // DW_CFA_restore_state
            (self.frame_bytes, self.by_frame_pointer) = (full, by_frame_pointer);
        }
        self.function.landing_pad = Some(self.here());
        self.emit(Op::Nop, &[0x89, 0xca]);
        self.emit(Op::Back, &[0xeb, 0xfe]);
        self.end();
    }

    fn take_frame_off(&mut self, by_frame_pointer: bool, bytes: u64, saved: &[usize]) {
        if by_frame_pointer {
            let below = 8 * saved.len() as u64;
            self.emit(Op::LeaveTo(below), &[0x48, 0x8d, 0x65, (below as u8).wrapping_neg()]);
        } else if bytes > 0 {
            let [a, b, c, d] = (bytes as u32).to_le_bytes();
            self.emit(Op::Shrink(bytes), &[0x48, 0x81, 0xc4, a, b, c, d]);
            self.grow(-(bytes as i64));
        }
        saved.iter().rev().for_each(|register| self.pop(*register));
        if by_frame_pointer {
            self.pop(RBP);
            self.row(&[0x0c, RSP as u8, 8]); // DW_CFA_def_cfa
        }
    }
}

/// The instruction number of a register by its DWARF number.
fn number(register: usize) -> u8 {
    match register {
        RBX => 3,
        RBP => 5,
        other => other as u8,
    }
}

/// The section for these functions: a CIE, and an FDE with 8-byte addresses for each of them.
fn eh_frame(text_svma: u64, ranges: &[(std::ops::Range<u64>, Vec<u8>)]) -> Vec<u8> {
    let mut section = Vec::new();
    let mut entry = |id: u32, body: &[u8]| {
        let bytes = (4 + body.len()).next_multiple_of(8) + 4;
        section.extend_from_slice(&(bytes as u32).to_le_bytes());
        let start = section.len();
        // 0 for a CIE; for an FDE the distance back to its CIE.
        let id = if id == 0 { 0 } else { start as u32 };
        section.extend_from_slice(&id.to_le_bytes());
        section.extend_from_slice(body);
        section.resize(start + bytes, 0);
    };
    // Version 1, no augmentation, code by bytes, data by -8; CFA = rsp + 8, the return address right below.
    entry(0, &[1, 0, 1, 0x78, RETURN_ADDRESS, 0x0c, RSP as u8, 8, 0x80 | RETURN_ADDRESS, 1]);
    for (range, rows) in ranges {
        let mut body = (text_svma + range.start).to_le_bytes().to_vec();
        body.extend_from_slice(&(range.end - range.start).to_le_bytes());
        body.extend_from_slice(rows);
        entry(1, &body);
    }
    section.extend_from_slice(&[0; 4]);
    section
}
