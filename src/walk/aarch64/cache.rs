//! What was learned of each code address of aarch64: its row, packed, and whether a call
//! returns there. The mirror of the x86_64 cache; void when the images change.

use super::rule::{Kind, Ordinary, Rule};
use super::{LR, SP, first, start};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Aarch64;
use crate::binary::frame_rule::{AARCH64_PC, BodyRow, Cfa, Column, RowAarch64};
use crate::walk::frames::Method;
use crate::walk::processor::{Processor, begins_trampoline};
use crate::walk::table::{Table, key, lookup_of};
use crate::walk::{Code, body, flow};

/// Most rows of unusual form; beyond it the cache is emptied.
const UNUSUAL_MAX: usize = 1024;
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
        self.rules.retain(|key| !is_gone(lookup_of(key)));
    }

    pub(super) fn unusual(&self, index: u16) -> Option<&Unusual> {
        self.unusual.get(usize::from(index))
    }

    /// What is known of an address.
    #[inline]
    pub(super) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        let key = key(address);
        match self.rules.get(key) {
            Some(rule) => rule,
            None => self.learn(address, key, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, address: CodeAddress, key: u64, code: &dyn Code) -> Rule {
        if !code.may_follow(address.lookup().at()) {
            return Rule::default();
        }
        let (at, is_return) = (address.at(), address.is_return());
        let is_root = is_return && (first::is_in_goexit(at, code) || first::is_in_start_of_libdyld(at, code));
        // A handler of a signal returns to the trampoline, which did not call it.
        let returns = is_return
            && (Aarch64::returns(at, code)
                || Aarch64::is_sigreturn(code.code(at).unwrap_or_default())
                || is_root);
        let kind = match () {
            () if is_root => Kind::Root,
            () if is_return && !returns => Kind::Unknown,
            () if first::on_other_goroutine(address, code) => Kind::Fiber,
            () => self.find(address, code),
        };
        let rule = Rule { kind, returns };
        if !code.lacked() {
            code.learned(lookup_of(key));
            self.rules.insert(key, rule);
        }
        rule
    }

    fn find(&mut self, address: CodeAddress, code: &dyn Code) -> Kind {
        let at = address.at();
        let lookup = address.lookup().at();
        let here = code.code(at).unwrap_or_default();
        // Before the rows: those of the vDSO's trampoline lead to the caller of what the
        // signal interrupted.
        if Aarch64::is_sigreturn(here) {
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
        if said.is_none() && code.entry(at).is_some_and(|entry| start::is_start(entry, address, code)) {
            return Kind::Root;
        }
        if said.is_none() && Aarch64::ends_thread(here) && flow::is_behind_own_call(address, code) {
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
        let is_trampoline =
            row.signal && address.is_return() && begins_trampoline::<Aarch64, _>(address.at(), code);
        self.unusual.push(Unusual { row, method, is_trampoline });
        Kind::Unusual((self.unusual.len() - 1) as u16)
    }
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
