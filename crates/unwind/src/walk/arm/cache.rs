//! Cached facts about code addresses of 32-bit Arm: the row that leads to the caller, the method, and whether a
//! call returns there. Void when the images change.
//!
//! `Cache` has the facts, `Rule` is one; `before` reads the call before a return address, and `row` searches the
//! entry of a function without a symbol.
//!
//! Priority of sources in `auto`: at a return address, which is in a function's body, DWARF rows, then the tables
//! of the exception handling ABI, then instructions. At a program counter, which may be in a prologue or an
//! epilogue that these do not describe, instructions come first. The frame record is last, since a function may
//! not keep one.

use std::collections::BTreeMap;

use super::instructions::{signed, target};
use super::unwinder::{self, Frame};
use super::{LR, SP, SignalFrame, T32};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Arm;
use crate::binary::frame_rule::{Cfa, Column, ExidxEntry, RowArm};
use crate::walk::frames::{Method, UnwindMethod};
use crate::walk::image_facts::{Table, key, lookup_of};
use crate::walk::processor::{self, Processor};
use crate::walk::{Code, arm, flow};

/// Limit on cached rows; the cache is cleared when it is full.
const ROWS_MAX: usize = 1 << 14;
/// Limit on pairs of addresses with cached facts.
const PAIRS_MAX: usize = 1 << 12;
/// Limit on bytes of paths between two addresses.
const PATH_BYTES_MAX: u64 = 4096;

/// Cached facts about code addresses of 32-bit Arm.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    rules: [Table<Rule>; UnwindMethod::ALL.len()],
    rows: Vec<RowFacts>,
    /// Whether a call's target may jump into another function.
    jumps: Answers,
    /// Whether paths from one address lead to another without saving the link register.
    paths: Answers,
}

/// Facts about pairs of addresses.
#[derive(Clone, Debug, Default)]
struct Answers(BTreeMap<(Avma, Avma), bool>);

impl Answers {
    /// The cached answer, or else the result of `find`, which is cached unless code was missing.
    fn of(&mut self, pair: (Avma, Avma), code: &dyn Code, find: impl FnOnce() -> bool) -> bool {
        if let Some(answer) = self.0.get(&pair) {
            return *answer;
        }
        let answer = find();
        if code.commit_dependencies(pair.1) {
            if self.0.len() >= PAIRS_MAX {
                self.0.clear();
            }
            self.0.insert(pair, answer);
        }
        answer
    }
}

/// A row, and facts about it.
#[derive(Clone, Debug)]
pub(super) struct RowFacts {
    pub row: RowArm,
    pub method: Method,
    /// The assumed entry of the function, if only a search found it: the row is certain only if the caller calls
    /// exactly this address.
    pub assumes: Option<Avma>,
}

/// Facts about a code address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rule {
    pub kind: RuleKind,
    /// For a return address: a call precedes it.
    pub returns: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RuleKind {
    /// Index of a row.
    Row(u32),
    /// The thread's first function.
    Root,
    #[default]
    Unknown,
}

impl Cache {
    pub(super) fn clear(&mut self) {
        self.rules.iter_mut().for_each(Table::clear);
        self.rows.clear();
        self.jumps.0.clear();
        self.paths.0.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rules.iter_mut().for_each(|rules| rules.retain(|key| !is_gone(lookup_of(key))));
        self.jumps.0.clear();
        self.paths.0.clear();
    }

    pub(super) fn row(&self, index: u32) -> Option<&RowFacts> {
        self.rows.get(index as usize)
    }

    /// The rule at the address of a frame.
    pub(super) fn rule(&mut self, unwind_method: UnwindMethod, frame: &Frame, code: &dyn Code) -> Rule {
        let with_bit = frame.code_address();
        let key = key(match frame.address {
            CodeAddress::Pc(_) => CodeAddress::Pc(with_bit),
            CodeAddress::Return(_) => CodeAddress::Return(with_bit),
        });
        if let Some(rule) = self.rules[unwind_method as usize].get(key) {
            return rule;
        }
        let is_return = frame.address.is_return();
        let returns = is_return
            && (Arm::returns(with_bit, code)
                || Arm::is_sigreturn(code.code(frame.address.at()).unwrap_or_default()));
        let kind =
            if is_return && !returns { RuleKind::Unknown } else { self.find(unwind_method, frame, code) };
        let rule = Rule { kind, returns };
        if code.commit_dependencies(lookup_of(key)) {
            self.rules[unwind_method as usize].insert(key, rule);
        }
        rule
    }

    /// Whether the call before a return address may have led to a frame: into its function, or to one that jumps
    /// there. Otherwise a frame between them is missing.
    pub(super) fn may_have_called(&mut self, caller: &Frame, frame: &Frame, code: &dyn Code) -> bool {
        let Some(Call::To(target)) = call_before(caller.code_address(), code) else { return true };
        let Some(function) = code.function(frame.address.lookup().at()) else { return true };
        if function.contains(&Avma(target.0 & !T32)) {
            return true;
        }
        let find = || flow::may_jump_into::<Arm>(target, function.start, code);
        self.jumps.of((target, function.start), code, find)
    }

    /// Whether paths from a call's target lead to a program counter without saving the return address. Both
    /// addresses include the T32 bit.
    pub(super) fn leads_to(&mut self, target: Avma, pc: Avma, code: &dyn Code) -> bool {
        if pc.0.wrapping_sub(target.0) > PATH_BYTES_MAX {
            return false;
        }
        self.paths.of((target, pc), code, || flow::arrives::<Arm>(target, pc, false, code))
    }

    fn find(&mut self, unwind_method: UnwindMethod, frame: &Frame, code: &dyn Code) -> RuleKind {
        let (at, lookup) = (frame.address.at(), frame.address.lookup().at());
        let here = code.code(at).unwrap_or_default();
        if let Some(of) = arm::sigreturn(here) {
            return self.keep(RowFacts { row: signal_frame(of), method: Method::Code, assumes: None });
        }
        let ends_thread = frame.address.is_return()
            && arm::ends_thread(here)
            && flow::is_behind_own_call(frame.address, code);
        if ends_thread || is_in_first(lookup, code) {
            return RuleKind::Root;
        }
        match found(unwind_method, frame, code) {
            Some(found) if found.row.columns[usize::from(LR)] == Column::Undefined => RuleKind::Root,
            Some(found) => self.keep(found),
            // No caller: the address is reached only from the program's entry point.
            None if unwind_method != UnwindMethod::Scan && is_after_start(frame, code) => RuleKind::Root,
            None => RuleKind::Unknown,
        }
    }

    fn keep(&mut self, found: RowFacts) -> RuleKind {
        if self.rows.len() >= ROWS_MAX {
            self.clear();
        }
        self.rows.push(found);
        RuleKind::Row((self.rows.len() - 1) as u32)
    }
}

/// Whether an address is in the program's entry function.
fn is_in_first(lookup: Avma, code: &dyn Code) -> bool {
    let entry = code.entry(lookup).map(|entry| Avma(entry.0 & !T32));
    let function = code.function(lookup);
    function.zip(entry).is_some_and(|(function, entry)| function.contains(&entry))
}

/// Whether a frame is on a path from the entry point of a program without symbols.
fn is_after_start(frame: &Frame, code: &dyn Code) -> bool {
    let lookup = frame.address.lookup().at();
    let is_return = frame.address.is_return();
    code.function(lookup).is_none()
        && code
            .entry(lookup)
            .is_some_and(|entry| flow::arrives::<Arm>(entry, frame.code_address(), is_return, code))
}

/// The row by one method.
fn found(unwind_method: UnwindMethod, frame: &Frame, code: &dyn Code) -> Option<RowFacts> {
    let lookup = frame.address.lookup().at();
    let is_return = frame.address.is_return();
    let certain = |row: RowArm, method| Some(RowFacts { row, method, assumes: None });
    let by_cfi = || certain(processor::row::<Arm>(code, lookup)?, Method::Cfi);
    let by_exidx = || match code.exidx(lookup)?.1 {
        ExidxEntry::Row(row) => certain(*row, Method::Exidx),
        ExidxEntry::CannotUnwind | ExidxEntry::Refused => None,
    };
    let by_code = || by_code(frame, code);
    let by_record = || certain(unwinder::row(entry_of(frame, code)?, code)?, Method::FramePointer);
    match unwind_method {
        UnwindMethod::Auto if is_return => by_cfi().or_else(by_exidx).or_else(by_code).or_else(by_record),
        UnwindMethod::Auto => by_code().or_else(by_cfi).or_else(by_exidx).or_else(by_record),
        UnwindMethod::Cfi => by_cfi(),
        UnwindMethod::Exidx => by_exidx(),
        UnwindMethod::Code => by_code(),
        // The leaf may not have created its record yet.
        UnwindMethod::FramePointer if is_return => by_record(),
        UnwindMethod::FramePointer => by_code().or_else(by_record),
        UnwindMethod::Scan => None,
    }
}

/// The row by instructions.
fn by_code(frame: &Frame, code: &dyn Code) -> Option<RowFacts> {
    let (at, lookup) = (frame.code_address(), frame.address.lookup().at());
    let is_return = frame.address.is_return();
    let found = |row, assumes| RowFacts { row, method: Method::Code, assumes };
    let before_return = || flow::before_return::<Arm>(at, is_return, code);
    if let Some(function) = code.function(lookup) {
        let entry = Avma(function.start.0 | at.0 & T32);
        let row = flow::since_entry_on_all_paths::<Arm>(entry, at, is_return, code);
        return row.or_else(before_return).map(|row| found(row, None));
    }
    match (before_return(), row(at, is_return, code)) {
        (Some(row), Some((other, entry))) if !flow::is_same_frame::<Arm>(&row, &other) => {
            // One of the two followed code that is never executed.
            Some(found(row, Some(entry)))
        }
        (Some(row), _) => Some(found(row, None)),
        (None, Some((row, entry))) => Some(found(row, Some(entry))),
        (None, None) => None,
    }
}

/// The entry of a frame's function, with the T32 bit; `None` if unknown.
fn entry_of(frame: &Frame, code: &dyn Code) -> Option<Avma> {
    let (at, lookup) = (frame.code_address(), frame.address.lookup().at());
    let start = code.function(lookup).map(|function| Avma(function.start.0 | at.0 & T32));
    start.or_else(|| row(at, frame.address.is_return(), code).map(|(_, entry)| entry))
}

/// Whether the call before a return address (with its T32 bit) may lead to this entry.
pub(super) fn calls(address: Avma, entry: Avma, code: &dyn Code) -> bool {
    call_before(address, code) == Some(Call::To(entry))
}

/// The row of the signal trampoline: the registers are 32 bytes into `struct ucontext`.
/// Source: Linux arch/arm/kernel/signal.c, arch/arm/include/asm/ucontext.h,
/// arch/arm/include/uapi/asm/sigcontext.h.
fn signal_frame(of: SignalFrame) -> RowArm {
    const REGISTERS_AT: i64 = 32;
    const SIGINFO_BYTES: i64 = 128;
    let at = match of {
        SignalFrame::Old => REGISTERS_AT,
        SignalFrame::Rt => SIGINFO_BYTES + REGISTERS_AT,
    };
    let mut row = RowArm::new(Cfa::Register(SP, 0));
    for (number, column) in (0..).zip(&mut row.columns) {
        *column = Column::At(at + 4 * number);
    }
    row.signal = true;
    row
}

// ---- Whether an address is a return address of a 32-bit Arm call: decided by the instruction before it. The
// lowest bit of addresses marks T32.
//
// Encodings: DDI 0406, A8.8.25 (BL, BLX with an offset) and A8.8.26 (BLX with a register).

/// The target of the call before a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// This address, with its T32 bit.
    To(Avma),
    /// The address in a register.
    Anywhere,
}

/// The call before a return address; `None` if there is none.
pub(super) fn call_before(address: Avma, code: &dyn Code) -> Option<Call> {
    if address.0 & T32 != 0 { in_t32(Avma(address.0 & !T32), code) } else { in_a32(address, code) }
}

fn half(at: u64, code: &dyn Code) -> Option<u16> {
    code.code(Avma(at))?.first_chunk().map(|half| u16::from_le_bytes(*half))
}

fn word(at: u64, code: &dyn Code) -> Option<u32> {
    code.code(Avma(at))?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn in_t32(at: Avma, code: &dyn Code) -> Option<Call> {
    let last = at.0.checked_sub(2)?;
    if !code.is_code(Avma(last)) {
        return None;
    }
    // The code is unknown.
    let Some(second) = half(last, code) else { return Some(Call::Anywhere) };
    // blx, blxns
    if second & 0xff80 == 0x4780 {
        return Some(Call::Anywhere);
    }
    let from = at.0.checked_sub(4)?;
    let first = half(from, code)?;
    if first & 0xf800 != 0xf000 || second & 0xc000 != 0xc000 {
        return None;
    }
    let (high, sign) = (u32::from(first), u32::from(first >> 10 & 1));
    let (i1, i2) = [13, 11].map(|bit| u32::from(u32::from(second >> bit & 1) == sign)).into();
    let offset = sign << 24 | i1 << 23 | i2 << 22 | (high & 0x3ff) << 12 | u32::from(second & 0x7ff) << 1;
    let to_t32 = second >> 12 & 1 == 1;
    let base = if to_t32 { from + 4 } else { (from & !3) + 4 };
    Some(Call::To(Avma(target(base, signed(offset, 25)).0 | if to_t32 { T32 } else { 0 })))
}

fn in_a32(at: Avma, code: &dyn Code) -> Option<Call> {
    let from = at.0.checked_sub(4).filter(|from| from.is_multiple_of(4))?;
    if !code.is_code(Avma(from)) {
        return None;
    }
    let Some(call) = word(from, code) else { return Some(Call::Anywhere) };
    let offset = signed(call & 0xff_ffff, 24) * 4;
    match (call >> 28, call >> 24 & 0xf) {
        (0xf, 0xa | 0xb) => {
            let half = i64::from(call >> 24 & 1) * 2;
            Some(Call::To(Avma(target(from + 8, offset + half).0 | T32)))
        }
        (0xf, _) => None,
        (_, 0xb) => Some(Call::To(target(from + 8, offset))),
        _ if call & 0x0fff_fff0 == 0x012f_ff30 => Some(Call::Anywhere),
        // Before Armv5T: mov lr, pc, then bx, mov pc or ldr pc.
        _ => {
            let jumps = call & 0x0fff_fff0 == 0x012f_ff10
                || call & 0x0fff_fff0 == 0x01a0_f000
                || call & 0x0c10_f000 == 0x0410_f000;
            // LLVM's calls of noreturn functions.
            let branches = call >> 24 == 0xea;
            let links = || word(from.checked_sub(4)?, code).map(|word| word & 0x0fff_ffff == 0x01a0_e00f);
            match (branches, jumps) {
                (true, _) if links() == Some(true) => Some(Call::To(target(from + 8, offset))),
                (_, true) if links() == Some(true) => Some(Call::Anywhere),
                _ => None,
            }
        }
    }
}

// ---- The possible entry of a function without a symbol: searches backward from an address for instructions that
// save the link register.
//
// Matching bytes may be data, or belong to another function: so paths from there must reach the address, and the
// result is certain only if the caller calls exactly that entry.

/// Limit on bytes searched before an address.
const SEARCHED_MAX: u64 = 4096;
/// Limit on entries tried.
const TRIES_MAX: u32 = 4;

/// The row at `at` and the assumed entry of its function: the nearest instructions before it that save the link
/// register and from which paths reach it. `returned`: a call has just returned.
pub(super) fn row(at: Avma, returned: bool, code: &dyn Code) -> Option<(RowArm, Avma)> {
    let mut tries_left = TRIES_MAX;
    let (start, before) = code_before(Avma(at.0 & !T32), code)?;
    let is_t32 = at.0 & T32 != 0;
    let step = if is_t32 { 2 } else { 4 };
    // The instruction at the address itself comes first.
    let mut index = before.len() / step * step;
    while let Some(previous) = index.checked_sub(step) {
        index = previous;
        let saves = if is_t32 { saves_link_t32(before, index) } else { saves_link_a32(before, index) };
        if !saves {
            continue;
        }
        tries_left = tries_left.checked_sub(1)?;
        while let Some(earlier) = index.checked_sub(step) {
            let extends =
                if is_t32 { goes_before_t32(before, earlier) } else { goes_before_a32(before, earlier) };
            if !extends {
                break;
            }
            index = earlier;
        }
        let entry = Avma((start + index as u64).0 | at.0 & T32);
        if let Some(row) = flow::since_entry_on_all_paths::<Arm>(entry, at, returned, code) {
            return Some((row, entry));
        }
    }
    None
}

/// The longest known code before an address, including the word there.
fn code_before(at: Avma, code: &dyn Code) -> Option<(Avma, &[u8])> {
    let mut back = SEARCHED_MAX;
    loop {
        if let Some(from) = at.0.checked_sub(back).map(Avma)
            && let Some(bytes) = code.code(from)
        {
            let length = usize::try_from(back).ok()?.checked_add(4)?;
            return Some((from, &bytes[..length.min(bytes.len())]));
        }
        back = back.checked_sub(64)?;
    }
}

fn entry_half(bytes: &[u8], index: usize) -> Option<u16> {
    bytes.get(index..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn entry_word(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.get(index..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn saves_link_t32(bytes: &[u8], index: usize) -> bool {
    match (entry_half(bytes, index), entry_half(bytes, index + 2)) {
        // push {..., lr}
        (Some(first), _) if first & 0xff00 == 0xb500 => true,
        (Some(0xe92d), Some(list)) => list & 0x4000 != 0,
        // str lr, [sp, #-4]!
        (Some(0xf84d), Some(0xed04)) => true,
        // strd rN, lr, [sp, #-M]!
        (Some(0xe96d), Some(second)) => second >> 8 & 0xf == 14,
        _ => false,
    }
}

fn saves_link_a32(bytes: &[u8], index: usize) -> bool {
    entry_word(bytes, index).is_some_and(|word| word & 0xffff_4000 == 0xe92d_4000 || word == 0xe52d_e004)
}

/// Whether an instruction may precede the save: variadic functions push their arguments first, or reserve space.
fn goes_before_t32(bytes: &[u8], index: usize) -> bool {
    entry_half(bytes, index).is_some_and(|half| half & 0xfff0 == 0xb400 || half & 0xff80 == 0xb080)
}

fn goes_before_a32(bytes: &[u8], index: usize) -> bool {
    // push {r0-r3}; mov ip, sp; sub sp, sp, #N
    entry_word(bytes, index).is_some_and(|word| {
        word & 0xffff_fff0 == 0xe92d_0000 || word == 0xe1a0_c00d || word & 0xffff_f000 == 0xe24d_d000
    })
}
