//! The code of simulated images: where functions lie, their bytes, and which addresses in
//! them a program counter or a return address may have.
//!
//! Functions have a prologue and an epilogue, because a walker tells by them whether the
//! leaf has a frame record; the code between is filler that nothing executes.

use std::ops::Range;

use stackprof::target::Arch;

use super::rng::hash;
use super::spec::SimImage;

/// Where the first function lies in `__TEXT`: behind the header and the commands.
pub const FIRST: u64 = 0x1000;

/// A function, in bytes from the start of `__TEXT`.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub range: Range<u64>,
    pub frameless: bool,
}

/// The functions of an image.
#[derive(Clone, Debug)]
pub struct Code {
    pub arch: Arch,
    pub functions: Vec<Function>,
    /// Size of `__TEXT`, in whole pages.
    pub size: u64,
    seed: u64,
}

impl Code {
    pub fn new(arch: Arch, seed: u64, page: u64, image: &SimImage) -> Code {
        let mut at = FIRST;
        let mut functions = Vec::new();
        for (index, name) in image.functions.iter().enumerate() {
            let bytes = 64 + hash(&[seed, image.path.len() as u64, index as u64]) % 24 * 16;
            functions.push(Function {
                name: name.trim_start_matches('~').to_owned(),
                range: at..at + bytes,
                frameless: name.starts_with('~'),
            });
            at += bytes;
        }
        Code { arch, functions, size: at.next_multiple_of(page), seed }
    }

    /// End of the last function.
    pub fn end(&self) -> u64 {
        self.functions.last().map_or(FIRST, |function| function.range.end)
    }

    /// `__TEXT` as bytes, zeros before the first function.
    pub fn bytes(&self) -> Vec<u8> {
        let (nop, prologue, epilogue, ret): (&[u8], &[u8], &[u8], &[u8]) = match self.arch {
            // nop; push %rbp, mov %rsp,%rbp; pop %rbp; ret
            Arch::X86_64 => (&[0x90], &[0x55, 0x48, 0x89, 0xe5], &[0x5d], &[0xc3]),
            // nop; stp x29,x30,[sp,#-16]!, mov x29,sp; ldp x29,x30,[sp],#16; ret
            Arch::Aarch64 => (
                &[0x1f, 0x20, 0x03, 0xd5],
                &[0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91],
                &[0xfd, 0x7b, 0xc1, 0xa8],
                &[0xc0, 0x03, 0x5f, 0xd6],
            ),
        };
        let mut text = vec![0; self.size as usize];
        for function in &self.functions {
            let (start, end) = (function.range.start as usize, function.range.end as usize);
            for (byte, filler) in text[start..end].iter_mut().zip(nop.iter().cycle()) {
                *byte = *filler;
            }
            let body = end - ret.len();
            text[body..end].copy_from_slice(ret);
            if !function.frameless {
                text[start..start + prologue.len()].copy_from_slice(prologue);
                text[body - epilogue.len()..body].copy_from_slice(epilogue);
            }
        }
        text
    }

    /// A program counter: where a frame record is in place, or anywhere in a function
    /// that makes none. (x86_64: at its `ret`, the only place where a walker without
    /// unwind information can see that.)
    pub fn pc(&self, function: usize, random: u64) -> u64 {
        let Function { range, frameless, .. } = &self.functions[function];
        let bytes = range.end - range.start;
        let at = match (self.arch, frameless) {
            (Arch::X86_64, true) => bytes - 1,
            (Arch::Aarch64, true) => random % (bytes / 4) * 4,
            (Arch::X86_64, false) => 4 + random % (bytes - 6),
            (Arch::Aarch64, false) => 8 + random % ((bytes - 16) / 4) * 4,
        };
        range.start + at
    }

    /// The return address that a call from `caller` leaves; `callee` is any number for
    /// the function called. Sometimes the first byte after the caller, as behind a call
    /// that does not return.
    pub fn return_address(&self, caller: usize, callee: u64) -> u64 {
        let Function { name, range, .. } = &self.functions[caller];
        let bytes = range.end - range.start;
        let random = hash(&[self.seed, caller as u64, callee]);
        match self.arch {
            // libpthread, pthread_asm.s: `bl __pthread_start` is its second instruction.
            Arch::Aarch64 if name == "thread_start" => range.start + 8,
            _ if random.is_multiple_of(16) => range.end,
            Arch::X86_64 => range.start + 9 + (random >> 8) % (bytes - 9),
            Arch::Aarch64 => range.start + 12 + (random >> 8) % ((bytes - 12) / 4) * 4,
        }
    }
}
