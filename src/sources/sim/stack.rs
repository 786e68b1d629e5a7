//! The memory of a simulated thread's stack: frame records, return addresses, locals.
//!
//! Input: a phase's frames. Output: bytes from the stack pointer up and registers that a frame pointer walk maps
//! back to exactly these frames.
//!
//! ```text
//! x86_64                              aarch64
//!   stack_top   (argc, environment)     stack_top
//!   locals of the root                  locals of the root     x29 = 0: no record
//!   return address in the root          locals of frame 1
//!   saved rbp = 0      <- rbp of 1      lr: return address in the root
//!   locals of frame 1                   saved x29 = 0          <- x29 of 1
//!   return address in frame 1           locals of frame 2
//!   saved rbp          <- rbp of 2      lr, saved x29          <- x29 of 2
//! ```
//! The root is like `_start`: it has no record, and its callee's record ends the chain.

use std::ops::Range;

use crate::addr::Avma;
use crate::arch::Arch;
use crate::arch::{Aarch64, RED_ZONE_BYTES, Registers, X86_64};

use super::config::{FunctionId, STACK_BYTES, SimPhase};
use super::images::Code;
use crate::rng;

/// Bits of a code pointer outside the signature.
pub(super) const ADDRESS_MASK: u64 = (1 << 48) - 1;
const PAGE_BYTES: u64 = 4096;

/// The location of a thread's stack.
#[derive(Clone, Debug)]
pub(super) struct StackPlace {
    /// Mapped memory.
    pub(super) mapped: Range<Avma>,
    /// Stack pointer at the thread's first instruction; there are no frames above it.
    pub(super) top: Avma,
}

impl StackPlace {
    /// The location of stack number `index`.
    pub(super) fn new(seed: u64, index: u64) -> StackPlace {
        let end = Avma(0x7ffc_0000_0000 - index * 2 * STACK_BYTES);
        let above = rng::hash(&[seed, index, 0x746f_7000]) % (PAGE_BYTES / 16) * 16;
        StackPlace { mapped: Avma(end.0 - STACK_BYTES)..end, top: Avma(end.0 - above) }
    }
}

/// The stack of a thread in one phase.
#[derive(Debug)]
pub(super) struct StackImage {
    place: StackPlace,
    sp: Avma,
    fp: u64,
    /// aarch64: the link register.
    lr: u64,
    leaf: FunctionId,
    frameless_leaf: bool,
    /// Bytes from the stack pointer to the end of the mapping.
    bytes: Vec<u8>,
    /// Return addresses from the leaf outward, without signatures.
    pub(super) returns: Vec<Avma>,
}

impl StackImage {
    /// Lays out the stack of `phase`. `sign` adds signatures to the return addresses in memory.
    pub(super) fn new(
        code: &Code,
        phase: &SimPhase,
        place: &StackPlace,
        seed: u64,
        sign: bool,
    ) -> StackImage {
        let mut sp = place.top.0;
        let mut fp = 0;
        let mut lr = 0;
        let mut words = Vec::new();
        let mut returns = Vec::new();
        let depth = phase.stack.len();
        let locals = |index: usize| phase.stack[index].local_bytes.next_multiple_of(16);
        sp -= locals(0);
        for callee in 1..depth {
            let address = code.return_address(phase.stack[callee - 1].function, phase.stack[callee].function);
            returns.push(address);
            let signature = if sign { rng::hash(&[seed, address.0, sp]) & !ADDRESS_MASK } else { 0 };
            let saved = address.0 | signature;
            let frameless = phase.frameless_leaf && callee == depth - 1;
            match code.arch {
                Arch::X86_64 | Arch::X86 => {
                    sp -= 8;
                    words.push((sp, saved));
                    if frameless {
                        break;
                    }
                    sp -= 8;
                    words.push((sp, fp));
                    fp = sp;
                    sp -= locals(callee);
                }
                Arch::Aarch64 | Arch::Arm => {
                    if frameless {
                        // A leaf that saves nothing also signs nothing.
                        lr = address.0;
                        sp -= locals(callee);
                        break;
                    }
                    sp -= locals(callee) + 16;
                    words.extend([(sp, fp), (sp + 8, saved)]);
                    fp = sp;
                    // The value that is still in lr before the function calls.
                    lr = saved;
                }
            }
        }
        returns.reverse();
        let leaf = phase.stack[depth - 1].function;
        let frameless_leaf = phase.frameless_leaf && depth > 1;
        if !frameless_leaf && rng::hash(&[seed, sp, fp]).is_multiple_of(2) {
            // The value left in lr after a call: an address in the function itself.
            lr = code.pc(leaf, false, rng::hash(&[seed, fp])).0;
        }
        let base = sp - RED_ZONE_BYTES;
        let mut bytes = Vec::with_capacity(usize::try_from(place.mapped.end.0 - base).unwrap_or(0));
        let mut at = base;
        while at < place.mapped.end.0 {
            bytes.extend_from_slice(&filler(code, place, rng::hash(&[seed, at, fp])).to_le_bytes());
            at += 8;
        }
        for (at, word) in words {
            let offset = usize::try_from(at - base).unwrap_or(usize::MAX);
            bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        StackImage { place: place.clone(), sp: Avma(sp), fp, lr, leaf, frameless_leaf, bytes, returns }
    }

    /// The program counter at the time `random`.
    pub(super) fn pc(&self, code: &Code, random: u64) -> Avma {
        code.pc(self.leaf, self.frameless_leaf, random)
    }

    /// The registers with this program counter; unused ones contain filler.
    pub(super) fn registers(&self, code: &Code, pc: Avma) -> Registers {
        let word = |number: u64| filler(code, &self.place, rng::hash(&[pc.0, number]));
        match code.arch {
            Arch::X86_64 | Arch::X86 => {
                let mut registers =
                    X86_64 { rip: pc.0, fs_base: self.place.mapped.start.0, ..X86_64::default() };
                (0..).zip(&mut registers.gpr).for_each(|(number, register)| *register = word(number));
                registers.gpr[X86_64::RBP] = self.fp;
                registers.gpr[X86_64::RSP] = self.sp.0;
                Registers::X86_64(registers)
            }
            Arch::Aarch64 | Arch::Arm => {
                let mut registers = Aarch64 { pc: pc.0, sp: self.sp.0, ..Aarch64::default() };
                (0..).zip(&mut registers.x).for_each(|(number, register)| *register = word(number));
                registers.x[Aarch64::FP] = self.fp;
                registers.x[Aarch64::LR] = self.lr;
                Registers::Aarch64(registers)
            }
        }
    }

    /// Start address of the bytes, below the stack pointer.
    pub(super) fn base(&self) -> Avma {
        Avma(self.sp.0 - RED_ZONE_BYTES)
    }

    /// Copies the bytes below the stack pointer and up to `stack_bytes` above it, at most to the stack's top.
    pub(super) fn copy_stack(&self, stack_bytes: usize, into: &mut Vec<u8>) {
        let used = usize::try_from(self.place.top - self.sp).unwrap_or(usize::MAX);
        let length = stack_bytes.min(used).saturating_add(RED_ZONE_BYTES as usize);
        into.clear();
        into.extend_from_slice(&self.bytes[..length.min(self.bytes.len())]);
    }

    /// Reads the stack's memory. Returns the number of bytes read.
    pub(super) fn read(&self, from: Avma, into: &mut [u8]) -> Option<usize> {
        if !self.place.mapped.contains(&from) {
            return None;
        }
        let count = usize::try_from(self.place.mapped.end - from).unwrap_or(usize::MAX).min(into.len());
        let below = usize::try_from(self.base().0.saturating_sub(from.0)).unwrap_or(usize::MAX).min(count);
        into[..below].fill(0);
        if below < count {
            let first = usize::try_from(from.0.saturating_sub(self.base().0)).ok()?;
            into[below..count].copy_from_slice(self.bytes.get(first..first + count - below)?);
        }
        Some(count)
    }
}

/// A typical word of locals: zero, small, on the stack, in the code, or anything.
fn filler(code: &Code, place: &StackPlace, random: u64) -> u64 {
    let value = random >> 8;
    match random % 8 {
        0 | 1 => 0,
        2 | 3 => value % 1000,
        4 => place.top.0 - value % 8192 / 8 * 8,
        5 | 6 => code.anywhere(value).0,
        _ => rng::mix(random),
    }
}
