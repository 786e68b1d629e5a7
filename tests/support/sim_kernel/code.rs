//! The code of simulated images: positions and bytes of functions, and possible program counters and return
//! addresses in them.
//!
//! Functions have a prologue, calls, an epilogue, and after it a call that does not return; `__unwind_info`
//! describes their bodies, as compilers do. Nothing executes them. The stack pointer is anywhere below the
//! record: the prologue allocates an unknown number of bytes, as for `alloca`. `thread_start` is that of
//! libpthread (src/pthread_asm.s), without unwind information.

use std::ops::Range;

use stackprof::arch::Arch;

use super::spec::SimImage;
use stackprof::rng::hash;

/// Offset of the first function in `__TEXT`: after the header and the commands.
pub const FIRST: u64 = 0x1000;

/// The unwind information of an image: `__unwind_info` in linkers' form, with one page. Format: LLVM
/// libunwind, include/mach-o/compact_unwind_encoding.h.
fn unwind_info(arch: Arch, functions: &[Function]) -> Vec<u8> {
    let encoding = |function: &Function| match (arch, function.kind) {
        (_, Kind::ThreadStart | Kind::StartOfLibdyld) => 0,
        (Arch::Aarch64 | Arch::Arm, Kind::Framed) => 0x0400_0000,
        (Arch::Aarch64 | Arch::Arm, Kind::Frameless) => 0x0200_0000,
        (Arch::X86_64 | Arch::X86, Kind::Framed) => 0x0100_0000,
        // Only the return address.
        (Arch::X86_64 | Arch::X86, Kind::Frameless) => 0x0201_0000,
    };
    let first = functions.first().map_or(FIRST, |function| function.range.start) as u32;
    let end = functions.last().map_or(FIRST, |function| function.range.end) as u32;
    // version; no common encodings, no personalities; an index of two at 28; a regular page at 52
    let mut words = vec![1, 28, 0, 28, 0, 28, 2, first, 52, 0, end, 0, 0];
    words.extend([2, 8 | (functions.len() as u32) << 16]);
    for function in functions {
        words.extend([function.range.start as u32, encoding(function)]);
    }
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect()
}

/// Stack layout of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Framed,
    Frameless,
    ThreadStart,
    /// `main` returns to it before macOS 12, and nothing calls it (dyld 852, src/start_glue.s).
    StartOfLibdyld,
}

/// A function, in bytes from the start of `__TEXT`.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub range: Range<u64>,
    pub kind: Kind,
}

/// The functions of an image.
#[derive(Clone, Debug)]
pub struct Code {
    pub arch: Arch,
    pub functions: Vec<Function>,
    /// Size of `__TEXT`, in whole pages.
    pub size: u64,
    pub unwind_info: Vec<u8>,
    seed: u64,
}

impl Code {
    pub fn new(arch: Arch, seed: u64, page: u64, image: &SimImage) -> Code {
        let mut at = FIRST;
        let mut functions = Vec::new();
        for (index, name) in image.functions.iter().enumerate() {
            let bytes = 64 + hash(&[seed, image.path.len() as u64, index as u64]) % 24 * 16;
            let kind = match name.strip_prefix('~') {
                Some(_) => Kind::Frameless,
                None if name == "thread_start" => Kind::ThreadStart,
                None if name == "start" && image.path.ends_with("/libdyld.dylib") => Kind::StartOfLibdyld,
                None => Kind::Framed,
            };
            let name = name.trim_start_matches('~').to_owned();
            functions.push(Function { name, range: at..at + bytes, kind });
            at += bytes;
        }
        let unwind_info = unwind_info(arch, &functions);
        let size = (at + unwind_info.len() as u64).next_multiple_of(page);
        Code { arch, functions, size, unwind_info, seed }
    }

    /// End of the last function.
    pub fn end(&self) -> u64 {
        self.functions.last().map_or(FIRST, |function| function.range.end)
    }

    /// `__TEXT` as bytes, zeros before the first function.
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = vec![0; self.size as usize];
        let mut put = |at: u64, bytes: &[u8]| text[at as usize..][..bytes.len()].copy_from_slice(bytes);
        for function in &self.functions {
            let Range { start, end } = function.range;
            let parts = Parts::of(self.arch, function.kind);
            for at in (start..end).step_by(parts.nop.len()) {
                put(at, parts.nop);
            }
            put(start, parts.prologue);
            put(end - parts.epilogue.len() as u64, parts.epilogue);
            if function.kind == Kind::Framed {
                for after in self.calls(function) {
                    put(after - parts.call, &call(self.arch, after, start));
                }
            }
        }
        put(self.end(), &self.unwind_info);
        text
    }

    /// Return addresses of a function's calls; the last one is its end.
    fn calls(&self, function: &Function) -> Vec<u64> {
        let parts = Parts::of(self.arch, function.kind);
        let body = function.range.start + parts.prologue.len() as u64;
        let end = function.range.end - parts.epilogue.len() as u64;
        let count = (end - body) / parts.call;
        (1..=count).map(|number| body + number * parts.call).chain([function.range.end]).collect()
    }

    /// A program counter: with a frame record in place, or anywhere in a function without one.
    pub fn pc(&self, function: usize, random: u64) -> u64 {
        let function = &self.functions[function];
        let parts = Parts::of(self.arch, function.kind);
        match function.kind {
            Kind::StartOfLibdyld => function.range.start + parts.nop.len() as u64,
            Kind::Frameless => {
                let step = parts.nop.len() as u64;
                function.range.start + random % ((function.range.end - function.range.start) / step) * step
            }
            Kind::ThreadStart => function.range.start,
            Kind::Framed => {
                let calls = self.calls(function);
                calls[random as usize % (calls.len() - 1)] - parts.call
            }
        }
    }

    /// The return address of a call from `caller`; `callee` is any number for the called function. Sometimes
    /// the first byte after the caller, as after a call that does not return.
    pub fn return_address(&self, caller: usize, callee: u64) -> u64 {
        let function = &self.functions[caller];
        let random = hash(&[self.seed, caller as u64, callee]);
        match (function.kind, self.arch) {
            (Kind::ThreadStart, Arch::Aarch64) => function.range.start + 8,
            (Kind::ThreadStart, Arch::X86_64) => function.range.start + 15,
            (Kind::StartOfLibdyld, Arch::Aarch64) => function.range.start + 4,
            (Kind::StartOfLibdyld, Arch::X86_64) => function.range.start + 1,
            _ => {
                let calls = self.calls(function);
                let last = calls.len() - 1;
                calls[if random.is_multiple_of(16) { last } else { (random >> 8) as usize % last }]
            }
        }
    }
}

/// Code fragments of functions.
struct Parts {
    nop: &'static [u8],
    prologue: &'static [u8],
    /// Includes the call after it.
    epilogue: &'static [u8],
    /// Bytes of a call.
    call: u64,
}

impl Parts {
    fn of(arch: Arch, kind: Kind) -> Parts {
        let (nop, prologue, epilogue, call): (&[u8], &[u8], &[u8], _) = match (arch, kind) {
            // push %rbp, mov %rsp,%rbp, sub %rax,%rsp; leave, ret
            (Arch::X86_64 | Arch::X86, Kind::Framed) => {
                (&[0x90], &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xc4], &[0xc9, 0xc3, 0xe8, 0, 0, 0, 0], 5)
            }
            (Arch::X86_64 | Arch::X86, Kind::Frameless) => (&[0x90], &[], &[0xc3], 5),
            // push $0, push %rbp, mov %rsp,%rbp, sub $16,%rsp, call, ud2: it is `thread_start+15`
            // in crash reports.
            (Arch::X86_64 | Arch::X86, Kind::ThreadStart) => {
                const CODE: &[u8] =
                    &[0x6a, 0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
                (&[0x90], CODE, &[], 5)
            }
            // stp x29,x30,[sp,#-16]!, mov x29,sp, sub sp,sp,x16; mov sp,x29, ldp, ret
            (Arch::Aarch64 | Arch::Arm, Kind::Framed) => (
                &[0x1f, 0x20, 0x03, 0xd5],
                &[0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, 0xff, 0x63, 0x30, 0xcb],
                &[0xbf, 0x03, 0x00, 0x91, 0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6, 0, 0, 0, 0x94],
                4,
            ),
            (Arch::Aarch64 | Arch::Arm, Kind::Frameless) => {
                (&[0x1f, 0x20, 0x03, 0xd5], &[], &[0xc0, 0x03, 0x5f, 0xd6], 4)
            }
            // nop, mov %eax,%edi, call exit, hlt
            (Arch::X86_64 | Arch::X86, Kind::StartOfLibdyld) => {
                (&[0x90], &[0x90, 0x89, 0xc7, 0xe8, 0, 0, 0, 0, 0xf4], &[], 5)
            }
            // nop, bl exit, brk #3
            (Arch::Aarch64 | Arch::Arm, Kind::StartOfLibdyld) => (
                &[0x1f, 0x20, 0x03, 0xd5],
                &[0x1f, 0x20, 0x03, 0xd5, 0, 0, 0, 0x94, 0x60, 0, 0x20, 0xd4],
                &[],
                4,
            ),
            // stp xzr,xzr,[sp,#-16]!, bl, brk
            (Arch::Aarch64 | Arch::Arm, Kind::ThreadStart) => (
                &[0x1f, 0x20, 0x03, 0xd5],
                &[0xff, 0x7f, 0xbf, 0xa9, 0, 0, 0, 0x94, 0x20, 0, 0x20, 0xd4],
                &[],
                4,
            ),
        };
        Parts { nop, prologue, epilogue, call }
    }
}

/// A call that returns to `after`.
fn call(arch: Arch, after: u64, target: u64) -> Vec<u8> {
    let distance = target.wrapping_sub(after).cast_signed() as i32;
    match arch {
        Arch::X86_64 | Arch::X86 => [&[0xe8], distance.to_le_bytes().as_slice()].concat(),
        Arch::Aarch64 | Arch::Arm => {
            let word = 0x9400_0000 | (distance + 4).cast_unsigned() >> 2 & 0x03ff_ffff;
            word.to_le_bytes().to_vec()
        }
    }
}
