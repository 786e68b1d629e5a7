//! x86_64: the caller of the leaf frame.
//!
//! `walk` does that; `leaf` is the leaf of a thread whose system call ends its function.
//!
//! In the body of a function with a frame pointer the caller is in the frame record at rbp. In a leaf function
//! without one (compilers omit it even with frame pointers enabled), on entry, between the two instructions of the
//! prologue and at `ret` rbp belongs to the caller: following it alone would lose the caller. The unwind
//! information of the leaf's function decides; without it the code (see `record.rs`).

use super::{record, stack_base};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::binary::frame_rule::{CfaBase, FrameRule};
use crate::walk::fp::{self, Facts};
use crate::walk::image_facts::Table;
use crate::walk::input::STACK_BYTES_MAX;
use crate::walk::processor::row;
use crate::walk::{Code, Input, StackEnd, WalkResult, flow};

/// Cached facts about instructions where threads were stopped. Void when the images change.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaves(Table<Leaf>);

/// Facts about an instruction where a thread was stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Leaf {
    /// The ordinary form of its unwind information.
    rule: Option<FrameRule>,
    /// Bytes from the stack pointer to the return address, if the code shows that there is no
    /// frame record.
    unframed_return_at: Option<u64>,
}

impl Leaves {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.0.retain(|pc| !is_gone(Avma(pc)));
    }

    /// Bytes from the stack pointer to the return address of a leaf, if its code shows that it has no frame record.
    pub(super) fn unframed_return_at(&mut self, address: CodeAddress, code: &dyn Code) -> Option<u64> {
        match address {
            CodeAddress::Pc(pc) => self.leaf(pc, code).unframed_return_at,
            CodeAddress::Return(_) => None,
        }
    }

    fn leaf(&mut self, pc: Avma, code: &dyn Code) -> Leaf {
        if let Some(leaf) = self.0.get(pc.0) {
            return leaf;
        }
        let slot = record::unframed_return_slot(pc, Avma(0), code);
        let leaf = Leaf { rule: rule(pc, code), unframed_return_at: slot.map(|slot| slot.0) };
        if code.commit_dependencies(pc) {
            self.0.insert(pc.0, leaf);
        }
        leaf
    }
}

/// The unwind information at an instruction, in ordinary form.
fn rule(pc: Avma, code: &dyn Code) -> Option<FrameRule> {
    code.row_in_epilogue(pc).or_else(|| row::<X86_64>(code, pc))?.ordinary()
}

/// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
pub(super) fn walk(
    registers: &X86_64,
    input: &Input<'_>,
    facts: &mut Facts,
    leaves: &mut Leaves,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    let leaf_address = leaf(registers, input.code);
    let pc = leaf_address.at();
    let sp = Avma(registers.gpr[X86_64::RSP]);
    // Between the mark and the push in a Swift async function's prologue rbp itself is marked.
    let frame_pointer = registers.gpr[X86_64::RBP] & input.address_mask;
    out.push(shown(leaf_address, registers).lookup());
    let leaf = leaves.leaf(pc, input.code);
    if let Some(rule) = leaf.rule {
        if rule.return_at.is_none() {
            return WalkResult { ended: StackEnd::Root, reached: sp };
        }
        match step(&rule, sp, frame_pointer, input, facts) {
            Step::To(caller) if out.len() < input.max_depth => {
                out.push(caller.lookup);
                let (at, sp, called_from) = (caller.frame_pointer, caller.sp, Some(caller.address));
                return fp::follow::<X86_64>(at, sp, called_from, input, facts, out);
            }
            Step::To(_) => return WalkResult { ended: StackEnd::DepthLimit, reached: sp },
            Step::OutsideCopy => return WalkResult { ended: StackEnd::DeeperThanCopied, reached: sp },
            Step::NotFollowed => {}
        }
    }
    let leaf_return = leaf
        .unframed_return_at
        .and_then(|bytes| input.read::<u64>(sp + bytes))
        .map(Avma)
        .and_then(|address| Some((address, facts.lookup::<X86_64>(address, input.code)?)))
        .filter(|_| out.len() < input.max_depth);
    if let Some((_, lookup)) = leaf_return {
        out.push(lookup);
    }
    let called_from = leaf_return.map(|(address, _)| address);
    fp::follow::<X86_64>(frame_pointer, sp, called_from, input, facts, out)
}

/// The caller of the leaf frame.
struct Caller {
    address: Avma,
    lookup: LookupAvma,
    sp: Avma,
    frame_pointer: u64,
}

/// The result of a rule.
enum Step {
    To(Caller),
    /// The frame is larger than the copied part of the stack.
    OutsideCopy,
    /// The result cannot be a caller: the rule does not fit these registers.
    NotFollowed,
}

fn step(rule: &FrameRule, sp: Avma, frame_pointer: u64, input: &Input<'_>, facts: &mut Facts) -> Step {
    let base = match rule.base {
        CfaBase::StackPointer => sp.0,
        CfaBase::FramePointer => frame_pointer,
    };
    let cfa = base.checked_add_signed(rule.cfa_offset).filter(|cfa| *cfa > sp.0);
    let slot = |at: i64| cfa?.checked_add_signed(at).map(Avma);
    let Some((cfa, return_slot)) = cfa.zip(rule.return_at.and_then(slot)) else { return Step::NotFollowed };
    let Some(word) = input.read::<u64>(return_slot) else {
        let near = return_slot > sp
            && return_slot - sp < STACK_BYTES_MAX
            && input.stack_limit.is_none_or(|limit| return_slot < limit);
        return if near { Step::OutsideCopy } else { Step::NotFollowed };
    };
    let address = Avma(word);
    let frame_pointer = match rule.frame_pointer_at {
        Some(at) => slot(at).and_then(|slot| input.read::<u64>(slot)),
        None => Some(frame_pointer),
    };
    // The byte before a return address is code; the address itself may be its end.
    match frame_pointer.zip(facts.lookup::<X86_64>(address, input.code)) {
        Some((frame_pointer, lookup)) => Step::To(Caller { address, lookup, sp: Avma(cfa), frame_pointer }),
        None => Step::NotFollowed,
    }
}

// ---- The leaf of a thread in a system call that ends its function: the program counter follows the `syscall`
// instruction, so it is in the next function or in none.
//
// The instruction stores its end in rcx (Intel SDM volume 2, SYSCALL), and the kernel reports that during the call.
// A thread that reaches the next function by a call has another value there.

const SYSCALL: &[u8] = &[0x0f, 0x05];
const RCX: usize = 2;

/// The address for walking from the leaf: the program counter, or the current system call if it ends a function.
#[inline]
pub(super) fn leaf(registers: &X86_64, code: &dyn Code) -> CodeAddress {
    let pc = Avma(registers.rip);
    let rcx = registers.gpr[RCX];
    // rcx of a sleeping thread is unknown.
    if rcx != pc.0 && rcx != UNKNOWN_REGISTER {
        return CodeAddress::Pc(pc);
    }
    CodeAddress::Pc(last_instruction(pc, code).unwrap_or(pc))
}

/// The `syscall` instruction before an address, if it is the last one of its function.
fn last_instruction(pc: Avma, code: &dyn Code) -> Option<Avma> {
    let at = Avma(pc.0.checked_sub(SYSCALL.len() as u64)?);
    let is_syscall = code.glance(at).bytes().starts_with(SYSCALL);
    (is_syscall && ends_function(at, pc, code)).then_some(at)
}

fn ends_function(at: Avma, pc: Avma, code: &dyn Code) -> bool {
    if stack_base::is_in_sigreturn(at, code) {
        return true;
    }
    match flow::function_around(at, code).or_else(|| code.described_function(at)) {
        Some(function) => !function.contains(&pc),
        None => !code.is_code(pc) || row::<X86_64>(code, at).is_some() && row::<X86_64>(code, pc).is_none(),
    }
}

/// The address at which the leaf's code is shown: inside the instruction, one byte before the program counter.
pub(super) fn shown(leaf: CodeAddress, registers: &X86_64) -> CodeAddress {
    match leaf.at().0 == registers.rip {
        true => leaf,
        false => CodeAddress::Return(Avma(registers.rip)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::binary::frame_rule::{AnyRow, Cfa, Column, RETURN_ADDRESS, Row};
    use crate::walk::StackBytes;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;
    const STACK: u64 = 0x7fff_0000_1000;

    /// gcc -O1 -fno-omit-frame-pointer:
    const FUNCTION: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, // +00 endbr64
        0x55, //                   +04 push %rbp
        0x48, 0x89, 0xe5, //       +05 mov %rsp,%rbp
        0x89, 0xf8, //             +08 mov %edi,%eax
        0x5d, //                   +0a pop %rbp
        0xc3, //                   +0b ret
    ];

    fn text() -> Text {
        Text::new(TEXT, FUNCTION)
    }

    /// The caller's record is at STACK+0x40; `words` start at the stack pointer.
    fn addresses(offset: u64, rbp: u64, words: &[u64]) -> Vec<u64> {
        let mut bytes = vec![0u8; 0x60];
        for (index, word) in words.iter().enumerate() {
            bytes[index * 8..index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[0x48..0x50].copy_from_slice(&(TEXT + 2).to_le_bytes());
        let mut registers = X86_64 { rip: TEXT + offset, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = STACK;
        registers.gpr[X86_64::RBP] = rbp;
        let stack = StackBytes { base: Avma(STACK), bytes: &bytes };
        let text = text();
        let input = Input { max_depth: 64, ..Input::new(stack, &text) };
        let mut out = Vec::new();
        assert_eq!(
            walk(&registers, &input, &mut Facts::default(), &mut Leaves::default(), &mut out).ended,
            StackEnd::Root
        );
        out.iter().map(|address| address.0 - TEXT).collect()
    }

    #[test]
    fn every_instruction_of_a_small_function_shows_its_caller_once() {
        let caller = STACK + 0x40;
        let returns = TEXT + 9;
        for entry in [0, 4, 0xb] {
            assert_eq!(addresses(entry, caller, &[returns]), [entry, 8, 1], "at +{entry:#x}");
        }
        assert_eq!(addresses(5, caller, &[caller, returns]), [5, 8, 1], "after push %rbp");
        for body in [8, 0xa] {
            assert_eq!(addresses(body, STACK, &[caller, returns]), [body, 8, 1], "at +{body:#x}");
        }
    }

    #[test]
    fn a_word_outside_code_is_no_return_address() {
        assert_eq!(addresses(0, STACK + 0x40, &[0x1234]), [0, 1]);
    }

    fn row(rule: &FrameRule) -> AnyRow {
        let base = match rule.base {
            CfaBase::StackPointer => X86_64::RSP,
            CfaBase::FramePointer => X86_64::RBP,
        };
        let mut row: Row = Row::new(Cfa::Register(base as u8, rule.cfa_offset));
        row.columns[X86_64::RBP] = rule.frame_pointer_at.map_or(Column::Same, Column::At);
        row.columns[RETURN_ADDRESS] = rule.return_at.map_or(Column::Undefined, Column::At);
        row.into()
    }

    #[track_caller]
    fn check_ruled(rule: FrameRule, rbp: u64, words: &[u64], expected: &[u64], ended: StackEnd) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut registers = X86_64 { rip: TEXT + 8, ..X86_64::default() };
        registers.gpr[X86_64::RSP] = STACK;
        registers.gpr[X86_64::RBP] = rbp;
        let stack = StackBytes { base: Avma(STACK), bytes: &bytes };
        let code = text().with_row(Some(row(&rule)));
        let input = Input { max_depth: 64, ..Input::new(stack, &code) };
        let mut out = Vec::new();
        let walked = walk(&registers, &input, &mut Facts::default(), &mut Leaves::default(), &mut out);
        let relative: Vec<u64> = out.iter().map(|address| address.0 - TEXT).collect();
        assert_eq!((relative.as_slice(), walked.ended), (expected, ended));
    }

    /// CFA = base + offset, the return address just below it.
    fn rule(base: CfaBase, cfa_offset: i64, frame_pointer_at: Option<i64>) -> FrameRule {
        FrameRule { base, cfa_offset, frame_pointer_at, return_at: Some(-8) }
    }

    #[test]
    fn a_leaf_function_without_a_frame_keeps_its_caller() {
        // [rsp] return address of the leaf; the caller's record follows.
        let words = [TEXT + 9, STACK + 0x20, TEXT + 5, 0xdead, 0, TEXT + 2];
        let bare = rule(CfaBase::StackPointer, 8, None);
        check_ruled(bare, STACK + 8, &words, &[8, 8, 4, 1], StackEnd::Root);
    }

    #[test]
    fn a_function_that_uses_rbp_otherwise_restores_it() {
        // sub $8,%rsp; push %rbp: locals, the caller's rbp, the return address.
        let words = [0xdead, STACK + 0x18, TEXT + 9, 0, TEXT + 2];
        let uses_rbp = rule(CfaBase::StackPointer, 24, Some(-16));
        check_ruled(uses_rbp, 0x1234, &words, &[8, 8, 1], StackEnd::Root);
    }

    #[test]
    fn an_ordinary_frame_has_the_same_caller_by_rule_and_record() {
        let words = [0xdead, STACK + 0x18, TEXT + 9, 0, TEXT + 2];
        let framed = rule(CfaBase::FramePointer, 16, Some(-16));
        check_ruled(framed, STACK + 8, &words, &[8, 8, 1], StackEnd::Root);
    }

    #[test]
    fn a_rule_may_lead_above_the_copy_nowhere_or_to_the_end() {
        let large = rule(CfaBase::StackPointer, 0x4000, None);
        check_ruled(large, STACK, &[0, TEXT + 9], &[8], StackEnd::DeeperThanCopied);
        let backwards = rule(CfaBase::StackPointer, -64, None);
        check_ruled(backwards, STACK, &[0, TEXT + 9], &[8, 8], StackEnd::Root);
        let overflow = rule(CfaBase::FramePointer, i64::MAX, Some(i64::MIN));
        check_ruled(overflow, u64::MAX, &[0, TEXT + 9], &[8], StackEnd::BrokenFrameChain);
        let first = FrameRule { return_at: None, ..large };
        check_ruled(first, 0x1234, &[0, TEXT + 9], &[8], StackEnd::Root);
    }

    /// `push %rbp; mov %rsp,%rbp` at 0x1000, and a count of requests.
    struct CountingCode(Cell<u32>);

    impl Code for CountingCode {
        fn is_code(&self, _: Avma) -> bool {
            false
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            (at.0 == 0x1000).then_some(&[0x55, 0x48, 0x89, 0xe5])
        }
        fn row(&self, pc: Avma) -> Option<AnyRow> {
            self.0.set(self.0.get() + 1);
            (pc.0 == 0x1000).then(|| row(&rule(CfaBase::StackPointer, 8, None)))
        }
    }

    #[test]
    fn a_leafs_rule_and_code_are_cached() {
        let (code, mut leaves) = (CountingCode(Cell::new(0)), Leaves::default());
        for _ in 0..3 {
            let leaf = leaves.leaf(Avma(0x1000), &code);
            assert_eq!((leaf.rule.map(|rule| rule.cfa_offset), leaf.unframed_return_at), (Some(8), Some(0)));
            let other = leaves.leaf(Avma(0x1001), &code);
            assert_eq!((other.rule, other.unframed_return_at), (None, None));
        }
        assert_eq!(code.0.get(), 2);
    }
}

#[cfg(test)]
mod syscall_tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// mov $15,%eax; syscall, and the next function; like musl's, without unwind information. Then mov $39,%eax;
    /// syscall; ret.
    const CODE: &[u8] = &[
        0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, // +00
        0x55, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // +07
        0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3, // +0f
    ];
    fn text() -> Text {
        Text::new(TEXT, CODE).with_functions(&[0, 7, 15])
    }

    fn found(pc: u64, rcx: u64) -> (u64, u64) {
        let mut registers = X86_64 { rip: TEXT + pc, ..X86_64::default() };
        registers.gpr[RCX] = rcx;
        let leaf = leaf(&registers, &text());
        (leaf.at().0 - TEXT, shown(leaf, &registers).lookup().0 - TEXT)
    }

    #[test]
    fn a_system_call_that_ends_a_function_is_not_in_the_next_one() {
        // In rt_sigreturn, and in exit.
        assert_eq!(found(7, TEXT + 7), (5, 6));
        assert_eq!(found(15, TEXT + 15), (13, 14));
        assert_eq!(found(15, UNKNOWN_REGISTER), (13, 14));
        // The first instruction of the next function: reached by a call with another rcx.
        assert_eq!(found(7, 0), (7, 7));
        assert_eq!(found(15, TEXT), (15, 15));
        // Inside a function, and without a system call.
        assert_eq!(found(22, TEXT + 22), (22, 22));
        assert_eq!(found(8, TEXT + 8), (8, 8));
    }

    #[test]
    fn addresses_at_the_ends_of_memory_are_unchanged() {
        for at in [0, 1, TEXT, u64::MAX] {
            let mut registers = X86_64 { rip: at, ..X86_64::default() };
            registers.gpr[RCX] = at;
            assert_eq!(leaf(&registers, &text()), CodeAddress::Pc(Avma(at)));
        }
    }
}
