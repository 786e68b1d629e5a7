//! Cached facts about code addresses of 32-bit Arm: the row that leads to the caller, the method, and whether a
//! call returns there. Void when the images change.
//!
//! Priority of sources in `auto`: at a return address, which is in a function's body, DWARF rows, then the tables
//! of the exception handling ABI, then instructions. At a program counter, which may be in a prologue or an
//! epilogue that these do not describe, instructions come first. The frame record is last, since a function may
//! not keep one.

use std::collections::BTreeMap;

use super::frame::Frame;
use super::start::SignalFrame;
use super::{LR, SP, T32, call, entry, record, start};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Arm;
use crate::binary::frame_rule::{Cfa, Column, ExidxEntry, RowArm};
use crate::walk::frames::{Method, UnwindMethod};
use crate::walk::processor::{self, Processor};
use crate::walk::table::{Table, key, lookup_of};
use crate::walk::{Code, flow};

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
    pub(super) fn rule(&mut self, how: UnwindMethod, frame: &Frame, code: &dyn Code) -> Rule {
        let with_bit = frame.code_address();
        let key = key(match frame.address {
            CodeAddress::Pc(_) => CodeAddress::Pc(with_bit),
            CodeAddress::Return(_) => CodeAddress::Return(with_bit),
        });
        if let Some(rule) = self.rules[how as usize].get(key) {
            return rule;
        }
        let is_return = frame.address.is_return();
        let returns = is_return
            && (Arm::returns(with_bit, code)
                || Arm::is_sigreturn(code.code(frame.address.at()).unwrap_or_default()));
        let kind = if is_return && !returns { RuleKind::Unknown } else { self.find(how, frame, code) };
        let rule = Rule { kind, returns };
        if code.commit_dependencies(lookup_of(key)) {
            self.rules[how as usize].insert(key, rule);
        }
        rule
    }

    /// Whether the call before a return address may have led to a frame: into its function, or to one that jumps
    /// there. Otherwise a frame between them is missing.
    pub(super) fn may_have_called(&mut self, caller: &Frame, frame: &Frame, code: &dyn Code) -> bool {
        let Some(call::Call::To(target)) = call::before(caller.code_address(), code) else { return true };
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

    fn find(&mut self, how: UnwindMethod, frame: &Frame, code: &dyn Code) -> RuleKind {
        let (at, lookup) = (frame.address.at(), frame.address.lookup().at());
        let here = code.code(at).unwrap_or_default();
        if let Some(of) = start::sigreturn(here) {
            return self.keep(RowFacts { row: signal_frame(of), method: Method::Code, assumes: None });
        }
        let ends_thread = frame.address.is_return()
            && start::ends_thread(here)
            && flow::is_behind_own_call(frame.address, code);
        if ends_thread || is_in_first(lookup, code) {
            return RuleKind::Root;
        }
        match found(how, frame, code) {
            Some(found) if found.row.columns[usize::from(LR)] == Column::Undefined => RuleKind::Root,
            Some(found) => self.keep(found),
            // No caller: the address is reached only from the program's entry point.
            None if how != UnwindMethod::Scan && is_after_start(frame, code) => RuleKind::Root,
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
fn found(how: UnwindMethod, frame: &Frame, code: &dyn Code) -> Option<RowFacts> {
    let lookup = frame.address.lookup().at();
    let is_return = frame.address.is_return();
    let certain = |row: RowArm, method| Some(RowFacts { row, method, assumes: None });
    let by_cfi = || certain(processor::row::<Arm>(code, lookup)?, Method::Cfi);
    let by_exidx = || match code.exidx(lookup)?.1 {
        ExidxEntry::Row(row) => certain(*row, Method::Exidx),
        ExidxEntry::CannotUnwind | ExidxEntry::Refused => None,
    };
    let by_code = || by_code(frame, code);
    let by_record = || certain(record::row(entry_of(frame, code)?, code)?, Method::FramePointer);
    match how {
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
    match (before_return(), entry::row(at, is_return, code)) {
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
    start.or_else(|| entry::row(at, frame.address.is_return(), code).map(|(_, entry)| entry))
}

/// Whether the call before a return address (with its T32 bit) may lead to this entry.
pub(super) fn calls(address: Avma, entry: Avma, code: &dyn Code) -> bool {
    call::before(address, code) == Some(call::Call::To(entry))
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
