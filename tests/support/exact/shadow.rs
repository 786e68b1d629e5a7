//! The truth about a thread's stack, from the instructions that it executed: calls push,
//! whatever raises the stack pointer above a return address takes it off. Input: each
//! instruction with the registers before and after it; output: the look-up addresses of
//! all frames. Knows nothing of unwind information or frame pointers.

use std::collections::HashMap;

use stackprof::addr::{Avma, CodeAddress};
use stackprof::registers::X86_64;

/// What an executed instruction was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Return,
    Syscall,
    Push,
    Other,
}

/// The kind and length of the instruction in `code`, as far as calls need it.
pub(crate) fn kind(code: &[u8]) -> Kind {
    let mut at = 0;
    while matches!(code.get(at), Some(0x66 | 0x67 | 0xf2 | 0xf3 | 0x3e | 0x2e | 0x40..=0x4f)) {
        at += 1;
    }
    match code.get(at..) {
        Some([0xe8, ..]) => Kind::Call,
        Some([0xff, modrm, ..]) if modrm >> 3 & 7 == 2 => Kind::Call,
        Some([0xc2 | 0xc3, ..]) => Kind::Return,
        Some([0x0f, 0x05, ..]) => Kind::Syscall,
        Some([0x50..=0x57, ..]) => Kind::Push,
        _ => Kind::Other,
    }
}

/// Whether `after` are the registers at the first instruction of a handler that interrupted
/// `before`: the kernel has left its frame at the stack pointer.
///
/// Source: Linux arch/x86/include/asm/sigframe.h (`struct rt_sigframe`: the return address,
/// then `struct ucontext`) and uapi/asm/sigcontext.h (rsp, rip).
pub(crate) fn begins_handler(before: &X86_64, after: &X86_64, word: impl Fn(u64) -> u64) -> bool {
    const SAVED_RSP: u64 = 8 + 40 + 15 * 8;
    const SAVED_RIP: u64 = 8 + 40 + 16 * 8;
    let sp = after.gpr[X86_64::RSP];
    sp != before.gpr[X86_64::RSP]
        && word(sp.wrapping_add(SAVED_RSP)) == before.gpr[X86_64::RSP]
        // A system call that begins anew is two bytes before.
        && matches!(before.rip.wrapping_sub(word(sp.wrapping_add(SAVED_RIP))), 0 | 2)
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where the return address is; for an interrupted frame, its stack pointer.
    slot: u64,
    address: CodeAddress,
    /// The stack that the frames below this one are on, where it is another.
    interrupted_on: Option<u64>,
}

/// The shadow stack of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    /// By stack: a program may have several (`makecontext`, `sigaltstack`).
    stacks: HashMap<u64, Vec<Entry>>,
    current: u64,
    /// The stack pointer moved to another stack that nothing was called on yet.
    fresh: bool,
    /// What was taken off last: code that switches stacks pushes it again.
    last: Option<Entry>,
    /// The stack pointer was loaded with that of another stack, whose top frame has no
    /// return address yet.
    between: bool,
}

/// Stacks other than a thread's first are told apart by this: the fixtures align them to it.
const STACK_ALIGN: u64 = 64 << 10;

impl Shadow {
    /// Takes one executed instruction into account. `own` tells whether an address is on
    /// the thread's own stack; `word` reads the target's memory.
    pub(crate) fn step(
        &mut self,
        kind: Kind,
        before: &X86_64,
        after: &X86_64,
        own: impl Fn(u64) -> bool,
        word: impl Fn(u64) -> u64,
    ) {
        let sp = after.gpr[X86_64::RSP];
        let stack = if own(sp) { 0 } else { sp / STACK_ALIGN + 1 };
        self.between &= !matches!(kind, Kind::Call | Kind::Return | Kind::Push | Kind::Syscall);
        if stack != self.current {
            self.between = kind == Kind::Other;
            self.current = stack;
            self.fresh = !self.stacks.contains_key(&stack) && stack != 0;
        }
        let entries = self.stacks.entry(stack).or_default();
        // A call that was interrupted before its first instruction is a call all the same.
        let called = kind == Kind::Call && sp == before.gpr[X86_64::RSP].wrapping_sub(8);
        while entries.last().is_some_and(|entry| match entry.address {
            CodeAddress::Return(_) => entry.slot < sp,
            // `rt_sigreturn` goes back to exactly what was interrupted.
            CodeAddress::Pc(pc) => {
                kind == Kind::Syscall && (entry.slot, pc.0) == (sp, after.rip) || entry.slot < sp
            }
        }) {
            self.last = entries.pop();
        }
        if called {
            let address = CodeAddress::Return(Avma(word(sp)));
            entries.push(Entry { slot: sp, address, interrupted_on: None });
        } else if self.fresh && kind == Kind::Return {
            // The first function of a context: `makecontext` laid out where it returns to.
            let address = CodeAddress::Return(Avma(word(sp)));
            entries.push(Entry { slot: sp, address, interrupted_on: None });
            self.fresh = false;
        } else if let Some(last) = self.last.filter(|last| last.slot == sp && kind == Kind::Push)
            && before.gpr[X86_64::RSP] == sp + 8
            && last.address == CodeAddress::Return(Avma(word(sp)))
        {
            entries.push(last);
            self.last = None;
        }
    }

    /// A signal handler begins: `after` are the registers at its first instruction.
    pub(crate) fn interrupted(
        &mut self,
        before: &X86_64,
        after: &X86_64,
        own: impl Fn(u64) -> bool,
        word: impl Fn(u64) -> u64,
    ) {
        let from = self.current;
        let sp = after.gpr[X86_64::RSP];
        self.current = if own(sp) { 0 } else { sp / STACK_ALIGN + 1 };
        let elsewhere = self.current != from;
        let entries = self.stacks.entry(self.current).or_default();
        if elsewhere {
            entries.clear();
        }
        let slot = if elsewhere { u64::MAX } else { before.gpr[X86_64::RSP] };
        entries.push(Entry {
            slot,
            address: CodeAddress::Pc(Avma(before.rip)),
            interrupted_on: elsewhere.then_some(from),
        });
        entries.push(Entry { slot: sp, address: CodeAddress::Return(Avma(word(sp))), interrupted_on: None });
        self.fresh = false;
    }

    /// The look-up addresses of all frames at a program counter, leaf first; also how many
    /// of them the memory of the stack that the thread is on tells. That is not all of them in
    /// a handler with a stack of its own, between two stacks, and where the program has
    /// overwritten a return address. `word` reads that memory.
    pub(crate) fn truth(&self, pc: u64, word: impl Fn(u64) -> Option<u64>, into: &mut Vec<u64>) -> usize {
        into.clear();
        into.push(pc);
        let mut stack = self.current;
        let (mut hops, mut told) = (0, self.between.then_some(1));
        'stacks: while let Some(entries) = self.stacks.get(&stack) {
            for entry in entries.iter().rev() {
                if let CodeAddress::Return(address) = entry.address
                    && told.is_none()
                    && word(entry.slot) != Some(address.0)
                {
                    told = Some(into.len());
                }
                into.push(entry.address.lookup().0);
                if let Some(other) = entry.interrupted_on
                    && hops < 8
                {
                    stack = other;
                    hops += 1;
                    told.get_or_insert(into.len());
                    continue 'stacks;
                }
            }
            break;
        }
        told.unwrap_or(into.len())
    }
}
