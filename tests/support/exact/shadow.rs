//! The true stack of a thread, from its executed instructions: calls push, and raising the stack pointer
//! above a return address pops it. Input: each instruction with the registers before and after it; output:
//! the look-up addresses of all frames. Independent of unwind information and frame pointers.

use std::collections::{HashMap, HashSet};

use stackprof::addr::{Avma, CodeAddress, LookupAvma};
use stackprof::arch::X86_64;

/// Kind of an executed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Return,
    Syscall,
    Push,
    /// To an address in a register or memory.
    Jump,
    Other,
}

/// The kind of the instruction in `code`, as far as calls need it; `pointer` is the size of an address.
pub(crate) fn kind(code: &[u8], pointer: u64) -> Kind {
    let mut at = 0;
    let is_prefix = |byte: u8| match byte {
        0x66 | 0x67 | 0xf2 | 0xf3 | 0x3e | 0x2e => true,
        0x40..=0x4f => pointer == 8,
        0x64 | 0x65 => pointer == 4,
        _ => false,
    };
    while code.get(at).is_some_and(|byte| is_prefix(*byte)) {
        at += 1;
    }
    match code.get(at..) {
        // A call of the next instruction is not a call: it reads the program counter, which is then popped.
        Some([0xe8, 0, 0, 0, 0, ..]) if pointer == 4 => Kind::Other,
        // int $0x80, sysenter
        Some([0xcd, 0x80, ..] | [0x0f, 0x34, ..]) if pointer == 4 => Kind::Syscall,
        Some([0xe8, ..]) => Kind::Call,
        Some([0xff, modrm, ..]) if modrm >> 3 & 7 == 2 => Kind::Call,
        Some([0xff, modrm, ..]) if modrm >> 3 & 7 == 4 => Kind::Jump,
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
/// then `struct ucontext`; of 32 bits also `struct sigframe`) and uapi/asm/sigcontext.h (rsp, rip).
pub(crate) fn begins_handler(
    before: &X86_64,
    after: &X86_64,
    pointer: u64,
    word: impl Fn(u64) -> u64,
) -> bool {
    /// Offsets of the saved stack pointer and program counter.
    const LONG: [(u64, u64); 1] = [(8 + 40 + 15 * 8, 8 + 40 + 16 * 8)];
    /// With siginfo, and without.
    const NARROW: [(u64, u64); 2] = [(164 + 28, 164 + 56), (8 + 28, 8 + 56)];
    let sp = after.gpr[X86_64::RSP];
    let places = if pointer == 8 { LONG.as_slice() } else { &NARROW };
    sp != before.gpr[X86_64::RSP]
        && places.iter().any(|(saved_sp, saved_pc)| {
            word(sp.wrapping_add(*saved_sp)) == before.gpr[X86_64::RSP]
                // A restarted system call is two bytes before.
                && matches!(before.rip.wrapping_sub(word(sp.wrapping_add(*saved_pc))), 0 | 2)
        })
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Address of the return address; for an interrupted frame, its stack pointer.
    slot: u64,
    address: CodeAddress,
    /// rbp of the caller at the call.
    frame_pointer: u64,
    /// The stack of the frames below this one, if different.
    interrupted_on: Option<u64>,
    /// The return address is that of a function without a call: the trampoline of signals, the start of a
    /// context.
    not_called: bool,
}

/// The shadow stack of one thread.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    /// Size of an address.
    pointer: u64,
    /// By stack: a program may have several (`makecontext`, `sigaltstack`).
    stacks: HashMap<u64, Vec<Entry>>,
    current: u64,
    /// The stack pointer moved to another stack without calls so far.
    fresh: bool,
    /// The last popped entry: code that switches stacks pushes it again.
    last: Option<Entry>,
    /// The stack pointer was loaded with that of another stack, with no return address in its top frame yet.
    between: bool,
    /// By return address of a call and stack pointer after its return: the number of entries its stack had
    /// before.
    calls: HashMap<(u64, u64), usize>,
}

/// Stacks other than a thread's first are distinguished by this alignment, which the fixtures use.
const STACK_ALIGN: u64 = 64 << 10;

impl Shadow {
    /// Returns the shadow stack of a thread with addresses of this size.
    pub(crate) fn new(pointer: u64) -> Shadow {
        let stacks = HashMap::new();
        Shadow {
            pointer,
            stacks,
            current: 0,
            fresh: false,
            last: None,
            between: false,
            calls: HashMap::new(),
        }
    }

    /// Processes one executed instruction. `own`: whether an address is on the thread's own stack; `word`
    /// reads the target's memory.
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
            self.between = matches!(kind, Kind::Other | Kind::Jump);
            self.current = stack;
            self.fresh = !self.stacks.contains_key(&stack) && stack != 0;
        }
        let entries = self.stacks.entry(stack).or_default();
        // A call that was interrupted before its first instruction still counts.
        let frame_pointer = before.gpr[X86_64::RBP];
        let called = kind == Kind::Call && sp == before.gpr[X86_64::RSP].wrapping_sub(self.pointer);
        while entries.last().is_some_and(|entry| match entry.address {
            CodeAddress::Return(_) => entry.slot < sp,
            // `rt_sigreturn` returns to exactly the interrupted code.
            CodeAddress::Pc(pc) => {
                kind == Kind::Syscall && (entry.slot, pc.0) == (sp, after.rip) || entry.slot < sp
            }
        }) {
            self.last = entries.pop();
        }
        // A longjmp: `setjmp` returns again, possibly below the arguments of the abandoned calls.
        if kind == Kind::Jump
            && let Some(depth) = self.calls.get(&(after.rip, sp))
        {
            entries.truncate(*depth);
        }
        let pushed = before.gpr[X86_64::RSP] == sp.wrapping_add(self.pointer) && kind == Kind::Push;
        if called {
            let address = CodeAddress::Return(Avma(word(sp)));
            self.calls.insert((word(sp), sp.wrapping_add(self.pointer)), entries.len());
            entries.push(Entry { slot: sp, address, frame_pointer, interrupted_on: None, not_called: false });
            self.fresh = false;
        } else if self.fresh && kind == Kind::Return {
            // The first function of a context: `makecontext` has prepared its return address.
            let address = CodeAddress::Return(Avma(word(sp)));
            entries.push(Entry { slot: sp, address, frame_pointer, interrupted_on: None, not_called: true });
            self.fresh = false;
        } else if self.fresh && pushed && entries.is_empty() {
            // The same for the trampoline of a fiber. If `swapcontext` pushes its return address, the return
            // pops it again.
            let address = CodeAddress::Return(Avma(word(sp)));
            entries.push(Entry { slot: sp, address, frame_pointer, interrupted_on: None, not_called: true });
        } else if let Some(last) = self.last.filter(|last| last.slot == sp && kind == Kind::Push)
            && before.gpr[X86_64::RSP] == sp + self.pointer
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
        let frame_pointer = before.gpr[X86_64::RBP];
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
            frame_pointer,
            interrupted_on: elsewhere.then_some(from),
            not_called: false,
        });
        let address = CodeAddress::Return(Avma(word(sp)));
        entries.push(Entry { slot: sp, address, frame_pointer, interrupted_on: None, not_called: true });
        self.fresh = false;
    }

    /// The look-up addresses of all frames at a program counter, leaf first; and how many of them the current
    /// stack's memory shows. That is not all of them in a handler on an alternate stack, between two stacks,
    /// and if the program has overwritten a return address. `word` reads that memory.
    pub(crate) fn truth(
        &self,
        pc: u64,
        word: impl Fn(u64) -> Option<u64>,
        into: &mut Vec<LookupAvma>,
    ) -> usize {
        into.clear();
        into.push(CodeAddress::Pc(Avma(pc)).lookup());
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
                into.push(match entry.address {
                    CodeAddress::Return(address) if entry.not_called => CodeAddress::Pc(address).lookup(),
                    address => address.lookup(),
                });
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
    /// The number of frames that are visible if the program has overwritten a saved frame pointer: its value
    /// at the call is neither in a register nor in the stack below the return address. `usize::MAX`
    /// otherwise.
    pub(crate) fn told_by_frame_pointers(
        &self,
        registers: &X86_64,
        word: impl Fn(u64) -> Option<u64>,
    ) -> usize {
        let sp = registers.gpr[X86_64::RSP];
        let entries = self.stacks.get(&self.current).map(Vec::as_slice).unwrap_or_default();
        let mut at = sp;
        let mut seen: HashSet<u64> = registers.gpr.into_iter().collect();
        for (index, entry) in entries.iter().rev().enumerate() {
            while at <= entry.slot && entry.slot - sp < STACK_ALIGN {
                seen.extend(word(at));
                at += self.pointer;
            }
            if !seen.contains(&entry.frame_pointer) {
                return index + 2;
            }
        }
        usize::MAX
    }
}

#[cfg(test)]
#[allow(dead_code)] // the benchmark that shares this file has no test harness
mod tests {
    use super::*;

    const STACK: u64 = 0x7fff_0000_2000;

    fn at(rip: u64, rsp: u64) -> X86_64 {
        let mut registers = X86_64 { rip, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = rsp;
        registers
    }

    /// Calls from `from` to `to`; the return address is five bytes later.
    fn call(shadow: &mut Shadow, memory: &mut HashMap<u64, u64>, from: u64, to: u64, rsp: u64) {
        memory.insert(rsp - 8, from + 5);
        let word = |at: u64| memory.get(&at).copied().unwrap_or(0);
        shadow.step(Kind::Call, &at(from, rsp), &at(to, rsp - 8), |_| true, word);
    }

    #[test]
    fn a_blocked_signal_is_ignored() {
        let before = at(0x40_1000, STACK);
        let handler = at(0x40_2000, STACK - 0x400);
        let frame = [(STACK - 0x400 + 168, STACK), (STACK - 0x400 + 176, 0x40_1000)];
        let word = |at: u64| frame.iter().find(|(place, _)| *place == at).map_or(0, |(_, word)| *word);
        assert!(begins_handler(&before, &handler, 8, word));
        // The instruction was executed: a push, or one that does not change the stack.
        assert!(!begins_handler(&before, &at(0x40_1001, STACK - 8), 8, |_| 0));
        assert!(!begins_handler(&before, &at(0x40_1003, STACK), 8, word));
    }

    #[test]
    fn a_return_address_counts_until_it_is_overwritten() {
        let (mut shadow, mut memory, mut truth) = (Shadow::new(8), HashMap::new(), Vec::new());
        call(&mut shadow, &mut memory, 0x1000, 0x2000, STACK);
        call(&mut shadow, &mut memory, 0x2010, 0x3000, STACK - 0x40);
        let told = shadow.truth(0x3000, |at| memory.get(&at).copied(), &mut truth);
        assert_eq!((told, truth.as_slice()), (3, &[0x3000, 0x2014, 0x1004].map(LookupAvma)[..]));
        memory.insert(STACK - 8, 0x9999);
        assert_eq!(shadow.truth(0x3000, |at| memory.get(&at).copied(), &mut truth), 2);
        assert_eq!(truth, [0x3000, 0x2014, 0x1004].map(LookupAvma));
        // Return from the inner one.
        let word = |at: u64| memory.get(&at).copied().unwrap_or(0);
        shadow.step(Kind::Return, &at(0x3005, STACK - 0x48), &at(0x2015, STACK - 0x40), |_| true, word);
        shadow.truth(0x2015, |_| None, &mut truth);
        assert_eq!(truth, [0x2015, 0x1004].map(LookupAvma));
    }

    #[test]
    fn a_saved_frame_pointer_is_in_a_register_or_on_the_stack() {
        let (mut shadow, mut memory) = (Shadow::new(8), HashMap::new());
        let mut caller = at(0x1000, STACK);
        caller.gpr[X86_64::RBP] = STACK + 0x30;
        memory.insert(STACK - 8, 0x1005u64);
        let mut callee = at(0x2000, STACK - 8);
        callee.gpr[X86_64::RBP] = STACK + 0x30;
        shadow.step(Kind::Call, &caller, &callee, |_| true, |_| 0x1005);
        let told = |registers: &X86_64, memory: &HashMap<u64, u64>| {
            shadow.told_by_frame_pointers(registers, |at| memory.get(&at).copied())
        };
        assert_eq!(told(&callee, &memory), usize::MAX);
        let mut later = at(0x2008, STACK - 16);
        memory.insert(STACK - 16, STACK + 0x30);
        assert_eq!(told(&later, &memory), usize::MAX, "pushed");
        memory.insert(STACK - 16, STACK + 0x90);
        assert_eq!(told(&later, &memory), 2, "and overwritten");
        later.gpr[3] = STACK + 0x30;
        assert_eq!(told(&later, &memory), usize::MAX);
    }

    #[test]
    fn recognises_calls_of_the_next_instruction_and_of_32_bit_kernels() {
        assert_eq!(kind(&[0xe8, 0, 0, 0, 0], 4), Kind::Other);
        assert_eq!(kind(&[0xe8, 0, 0, 0, 0], 8), Kind::Call);
        assert_eq!(kind(&[0x65, 0xff, 0x15, 0x10, 0, 0, 0], 4), Kind::Call);
        assert_eq!((kind(&[0xcd, 0x80], 4), kind(&[0x41, 0x53], 4)), (Kind::Syscall, Kind::Other));
    }
}
