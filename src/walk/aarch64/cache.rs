//! What was learned of each code address of aarch64: its row, packed, and whether a call
//! returns there. The mirror of the x86_64 cache; void when the images change.

use super::instructions::Aarch64;
use super::{FP, LR, SP};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{AARCH64_PC, BodyRow, Cfa, Column, RowAarch64};
use crate::walk::frames::Method;
use crate::walk::table::Table;
use crate::walk::{Code, body, call, root};

/// Most rows of unusual form; beyond it the cache is emptied.
const UNUSUAL_MAX: usize = 1024;
/// An ordinary row saves at most x19 to x29; the return address is apart.
const SAVED_MAX: usize = 11;

/// A row whose CFA is a register plus a number and whose registers lie below it, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordinary {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    /// Where the return address is; `None`: in the link register.
    pub link_words: Option<i16>,
    registers: [(u8, i16); SAVED_MAX],
}

impl Ordinary {
    /// The saved registers, and where they are, in words from the CFA.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    fn pack(row: &RowAarch64) -> Option<Ordinary> {
        let words = |bytes: i64| i16::try_from(bytes / 8).ok().filter(|_| bytes % 8 == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        if row.signal || usize::from(cfa_register) > SP || row.columns[AARCH64_PC] != Column::Same {
            return None;
        }
        let mut packed =
            Ordinary { cfa_offset: i32::try_from(offset).ok()?, cfa_register, ..Ordinary::default() };
        for (register, column) in row.columns[..=SP].iter().enumerate() {
            match column {
                Column::Same | Column::Undefined => {}
                Column::At(at) if register == LR => packed.link_words = Some(words(*at)?),
                Column::At(at) if register != SP => {
                    *packed.registers.get_mut(usize::from(packed.saved))? = (register as u8, words(*at)?);
                    packed.saved += 1;
                }
                _ => return None,
            }
        }
        Some(packed)
    }
}

/// How the caller of a frame at an address is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    Ordinary(Ordinary, Method),
    /// Index of a row of another form.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown,
}

/// What is known of a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub kind: Kind,
    /// For a return address: a call is in front of it.
    pub returns: bool,
}

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    rules: Table<Rule>,
    unusual: Vec<Unusual>,
}

/// What is known of an address with a row of another form.
#[derive(Clone, Debug)]
pub(super) struct Unusual {
    pub row: RowAarch64,
    pub method: Method,
    /// Handlers of signals return there, and nothing is called from there.
    pub is_trampoline: bool,
}

impl Cache {
    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.unusual.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rules.retain(|key| !is_gone(Avma(key & !(1 << 63))));
    }

    pub(super) fn unusual(&self, index: u16) -> Option<&Unusual> {
        self.unusual.get(usize::from(index))
    }

    /// What is known of an address.
    #[inline]
    pub(super) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        // As on x86_64: another key for a return address, with a bit that user addresses lack.
        let key = match address {
            CodeAddress::Pc(at) => at.0,
            CodeAddress::Return(at) => at.0.wrapping_sub(1) ^ 1 << 63,
        };
        match self.rules.get(key) {
            Some(rule) => rule,
            None => self.learn(address, key, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, address: CodeAddress, key: u64, code: &dyn Code) -> Rule {
        let (at, is_return) = match address {
            CodeAddress::Pc(at) => (at, false),
            CodeAddress::Return(at) => (at, true),
        };
        // A handler of a signal returns to the trampoline, which did not call it.
        let returns = is_return
            && (call::returns_aarch64(at, code)
                || call::is_sigreturn_aarch64(code.code(at).unwrap_or_default()));
        let kind = if is_return && !returns { Kind::Unknown } else { self.find(address, code) };
        let rule = Rule { kind, returns };
        if !code.lacked() {
            self.rules.insert(key, rule);
        }
        rule
    }

    fn find(&mut self, address: CodeAddress, code: &dyn Code) -> Kind {
        let (CodeAddress::Pc(at) | CodeAddress::Return(at)) = address;
        let lookup = address.lookup();
        let here = code.code(at).unwrap_or_default();
        // Before the rows: those of the vDSO's trampoline lead to the caller of what the
        // signal interrupted.
        if call::is_sigreturn_aarch64(here) {
            return self.keep(address, signal_frame(), Method::Code, code);
        }
        if let Some(row) = code.row_aarch64(lookup) {
            return self.keep(address, row, Method::Cfi, code);
        }
        let said = match code.body(lookup) {
            Some(said) => match said.row {
                BodyRow::Aarch64(row) if row.signal => {
                    return self.keep(address, *row, body::method(said.compact), code);
                }
                BodyRow::Aarch64(row) => Some((*row, body::method(said.compact))),
                BodyRow::X86_64(_) => None,
            },
            None => None,
        };
        if said.is_none() && root::ends_thread(here) {
            return Kind::Root;
        }
        match body::row::<Aarch64, _>(address, said, code) {
            Some((row, method)) => self.keep(address, row, method, code),
            None => Kind::Unknown,
        }
    }

    fn keep(&mut self, address: CodeAddress, row: RowAarch64, method: Method, code: &dyn Code) -> Kind {
        if row.columns[LR] == Column::Undefined && row.columns[AARCH64_PC] == Column::Same {
            return Kind::Root;
        }
        if let Some(packed) = Ordinary::pack(&row) {
            return Kind::Ordinary(packed, method);
        }
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        let is_trampoline = row.signal && begins_trampoline(address, code);
        self.unusual.push(Unusual { row, method, is_trampoline });
        Kind::Unusual((self.unusual.len() - 1) as u16)
    }
}

/// Whether a handler's return address is the first instruction of a trampoline: see x86_64.
fn begins_trampoline(address: CodeAddress, code: &dyn Code) -> bool {
    let CodeAddress::Return(at) = address else { return false };
    call::is_sigreturn_aarch64(code.code(at).unwrap_or_default()) || !call::returns_aarch64(at, code)
}

/// The row of the trampoline of signals. The stack pointer is at `struct rt_sigframe`: 128 bytes of
/// siginfo, then the context, whose registers begin 184 bytes into it.
/// Source: Linux arch/arm64/kernel/signal.c and include/uapi/asm/{ucontext,sigcontext}.h.
fn signal_frame() -> RowAarch64 {
    const REGISTERS_AT: i64 = 128 + 184;
    let mut row = RowAarch64::new(Cfa::Register(SP as u8, 0));
    for (number, column) in (0..).zip(&mut row.columns) {
        *column = Column::At(REGISTERS_AT + 8 * number);
    }
    row.signal = true;
    row
}

const _: () = assert!(FP < LR && LR < SP && SP < AARCH64_PC && size_of::<Rule>() <= 64);
