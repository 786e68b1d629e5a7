//! What was learned of each code address of aarch64: its row, packed. The mirror of the
//! x86_64 cache: direct-mapped, void when the images change.

use super::{FP, LR, SP};
use crate::addr::CodeAddress;
use crate::frame_rule::{AARCH64_PC, BodyRow, Cfa, Column, RowAarch64};
use crate::walk::frames::Method;
use crate::walk::unwind::body;
use crate::walk::unwind::flow::aarch64::Aarch64;
use crate::walk::{Code, root};

/// Entries, a power of two: 320 KiB.
const ENTRIES: usize = 4096;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Ordinary(Ordinary, Method),
    /// Index of a row of another form.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// Neither unwind information nor understandable code.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    rule: Rule,
}

/// See the top of this file. Made when first used: most targets are of another processor.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    entries: Box<[Entry]>,
    unusual: Vec<(RowAarch64, Method)>,
}

/// A key that no address has: addresses in user mode leave the upper bits alone.
const NO_KEY: u64 = u64::MAX;

impl Cache {
    pub(super) fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.key = NO_KEY);
        self.unusual.clear();
    }

    pub(super) fn unusual(&self, index: u16) -> Option<&(RowAarch64, Method)> {
        self.unusual.get(usize::from(index))
    }

    /// How the caller is found from an address.
    #[inline]
    pub(super) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        let is_return = matches!(address, CodeAddress::Return(_));
        let key = address.lookup().0 & (u64::MAX >> 1) | u64::from(is_return) << 63;
        let index = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % ENTRIES;
        match self.entries.get(index) {
            Some(entry) if entry.key == key => entry.rule,
            _ => self.learn(address, key, index, code),
        }
    }

    #[cold]
    fn learn(&mut self, address: CodeAddress, key: u64, index: usize, code: &dyn Code) -> Rule {
        if self.entries.is_empty() {
            self.entries = vec![Entry { key: NO_KEY, rule: Rule::Unknown }; ENTRIES].into();
        }
        let rule = self.find(address, code);
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Entry { key, rule };
        }
        rule
    }

    fn find(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        let (CodeAddress::Pc(at) | CodeAddress::Return(at)) = address;
        let lookup = address.lookup();
        let here = code.code(at).unwrap_or_default();
        // Before the rows: those of the vDSO's trampoline lead to the caller of what the
        // signal interrupted.
        if is_sigreturn(here) {
            return self.keep(signal_frame(), Method::Code);
        }
        if let Some(row) = code.row_aarch64(lookup) {
            return self.keep(row, Method::Cfi);
        }
        let said = match code.body(lookup) {
            Some(said) => match said.row {
                BodyRow::Aarch64(row) if row.signal => return self.keep(*row, body::method(said.compact)),
                BodyRow::Aarch64(row) => Some((*row, body::method(said.compact))),
                BodyRow::X86_64(_) => None,
            },
            None => None,
        };
        if said.is_none() && root::ends_thread(here) {
            return Rule::Root;
        }
        match body::row::<Aarch64, _>(address, said, code) {
            Some((row, method)) => self.keep(row, method),
            None => Rule::Unknown,
        }
    }

    fn keep(&mut self, row: RowAarch64, method: Method) -> Rule {
        if row.columns[LR] == Column::Undefined && row.columns[AARCH64_PC] == Column::Same {
            return Rule::Root;
        }
        if let Some(packed) = Ordinary::pack(&row) {
            return Rule::Ordinary(packed, method);
        }
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        self.unusual.push((row, method));
        Rule::Unusual((self.unusual.len() - 1) as u16)
    }
}

/// Whether code is the end of a signal handler on Linux: `mov x8, #139; svc #0`
/// (arch/arm64/kernel/vdso/sigreturn.S; musl and glibc have the same).
fn is_sigreturn(code: &[u8]) -> bool {
    code.starts_with(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4])
}

/// The row of that trampoline. The stack pointer is at `struct rt_sigframe`: 128 bytes of
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

const _: () = assert!(FP < LR && LR < SP && SP < AARCH64_PC && size_of::<Entry>() <= 80, "320 KiB");
