//! What was learned of each code address of i386: its row, packed, and whether a call returns there.
//! The mirror of the x86_64 cache; void when the images change.

use std::ops::Range;

use hashbrown::HashMap;

use super::rule::{Kind, Ordinary, Rule};
use super::{ESP, POINTER, start};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86;
use crate::binary::frame_rule::{Cfa, Column, RowX86, X86_COLUMNS, X86_RETURN_ADDRESS};
use crate::walk::frames::Method;
use crate::walk::intel::SinceEntry;
use crate::walk::intel::forward::{self, Callees, Leads, Proof};
use crate::walk::intel::prologue;
use crate::walk::intel::switching::{self, Switch};
use crate::walk::processor::{Processor, begins_trampoline};
use crate::walk::table::{Table, key, lookup_of};
use crate::walk::{Code, flow};

/// Most rows of unusual form; beyond it the cache is emptied.
const UNUSUAL_MAX: usize = 4096;
/// Most rows that were found from an entry.
const CONFIRMED_MAX: usize = 4096;

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Cache {
    rules: Table<Rule>,
    unusual: Vec<Unusual>,
    /// Rows at addresses, program counters or not, by the ways from an entry.
    confirmed: HashMap<(u64, u64, bool), Option<Box<RowX86>>>,
    /// Rows at program counters by instructions, in spite of unwind information.
    by_code: HashMap<u64, Option<Box<RowX86>>>,
    callees: Callees,
}

/// What is known of an address whose rule is of kind `Unusual`.
#[derive(Clone, Debug)]
pub(super) struct Unusual {
    pub row: RowX86,
    pub method: Method,
    /// Whether the caller that it leads to can be relied on.
    pub switch: Switch,
    /// Handlers of signals return there, and nothing is called from there.
    pub is_trampoline: bool,
    /// Whether something else must lead to the same caller (`confirm.rs`).
    pub proof: Proof,
}

impl Cache {
    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.unusual.clear();
        self.confirmed.clear();
        self.by_code.clear();
        self.callees.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rules.retain(|key| !is_gone(lookup_of(key)));
        self.confirmed.retain(|(_, at, _), _| !is_gone(Avma(*at)));
        self.by_code.retain(|at, _| !is_gone(Avma(*at)));
    }

    pub(super) fn unusual(&self, index: u16) -> Option<&Unusual> {
        self.unusual.get(usize::from(index))
    }

    /// What is known of an address.
    #[inline]
    pub(super) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        match self.rules.get(key(address)) {
            Some(rule) => rule,
            None => self.learn(address, code),
        }
    }

    /// The row at a program counter by the ways to a return, where they are certain, or by all those from
    /// where its function begins: for what unwind information leads nowhere from. That of glibc's
    /// assembly is not always right (the CFA behind a return in the middle of `memcpy`).
    pub(super) fn by_code(&mut self, pc: Avma, code: &dyn Code) -> Option<&RowX86> {
        if self.by_code.len() >= CONFIRMED_MAX {
            self.by_code.clear();
        }
        if !self.by_code.contains_key(&pc.0) {
            let since_entry = || {
                let function = code.described_function(pc)?;
                flow::since_entry_on_all_ways::<X86, _>(function.start, pc, false, code).map(Box::new)
            };
            let row = match forward::follow::<X86, X86_COLUMNS>(pc, false, code, &mut self.callees) {
                Some(Leads::Back(row, Proof::Certain)) => Some(row),
                _ => since_entry(),
            };
            if code.lacked() {
                return None;
            }
            self.by_code.insert(pc.0, row);
        }
        self.by_code.get(&pc.0)?.as_deref()
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        if !code.may_follow(address.lookup().at()) {
            return Rule::default();
        }
        let (found, returns) = find(address, code, &mut self.callees);
        let kind = match found {
            Found::Row(row, method, proof) => self.keep(address, row, method, proof, code),
            Found::Root => Kind::Root,
            Found::Context { not_called } => Kind::Fiber { not_called },
            Found::Nothing => Kind::Unknown,
        };
        let rule = Rule { kind, returns };
        if !code.lacked() {
            self.rules.insert(key(address), rule);
        }
        rule
    }

    fn keep(
        &mut self,
        address: CodeAddress,
        row: Box<RowX86>,
        method: Method,
        proof: Proof,
        code: &dyn Code,
    ) -> Kind {
        if row.columns[X86_RETURN_ADDRESS] == Column::Undefined {
            return Kind::Root;
        }
        let switch = switching::at::<X86, X86_COLUMNS>(address, &row, code);
        if switch == Switch::No
            && proof == Proof::Certain
            && let Some(packed) = Ordinary::pack(&row)
        {
            return Kind::Ordinary(packed, method);
        }
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        let is_trampoline =
            row.signal && address.is_return() && begins_trampoline::<X86, _>(address.at(), code);
        self.unusual.push(Unusual { row: *row, method, switch, is_trampoline, proof });
        Kind::Unusual((self.unusual.len() - 1) as u16)
    }
}

impl SinceEntry<X86_COLUMNS> for Cache {
    fn since_entry(&mut self, entry: Avma, address: CodeAddress, code: &dyn Code) -> Option<&RowX86> {
        let (at, returned) = (address.at(), address.is_return());
        if self.confirmed.len() >= CONFIRMED_MAX {
            self.confirmed.clear();
        }
        let key = (entry.0, at.0, returned);
        if !self.confirmed.contains_key(&key) {
            let row = flow::since_entry_on_all_ways::<X86, _>(entry, at, returned, code);
            if code.lacked() {
                return None;
            }
            self.confirmed.insert(key, row.map(Box::new));
        }
        self.confirmed.get(&key)?.as_deref()
    }
}

/// How the caller of a frame at an address is found.
enum Found {
    Row(Box<RowX86>, Method, Proof),
    /// The thread's first function.
    Root,
    /// What the first function of a fiber returns to; `not_called`: has not returned to yet.
    Context {
        not_called: bool,
    },
    /// Neither unwind information nor understandable code.
    Nothing,
}

/// What there is at an address, and for a return address, whether a call is in front of it.
fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (Found, bool) {
    let (at, is_return) = (address.at(), address.is_return());
    let follows_call = is_return && X86::returns(at, code);
    if let Some(into) = start::into_context(at, code) {
        let not_called = is_return && into == 0;
        return (Found::Context { not_called }, follows_call || not_called);
    }
    if !is_return && start::is_pc_thunk(at, code) {
        return (Found::Row(Box::new(bare()), Method::Code, Proof::Certain), false);
    }
    let here = code.code(at).unwrap_or_default();
    let row = code.row_x86(address.lookup().at());
    if let Some(context) = start::context_at(here)
        && row.as_ref().is_none_or(|row| !row.signal)
    {
        return (Found::Row(Box::new(signal_frame(context)), Method::Code, Proof::Certain), is_return);
    }
    if let Some(row) = row {
        // As on x86_64: where nothing was pushed when it called, and it goes on to the end of the
        // thread, it is where that began.
        let below = is_below_stack_pointer(&row);
        if (row == bare() || below) && (follows_call || !is_return) {
            // Assembly of glibc's pushes, and its rows do not say so, or count the wrong way: string
            // functions, contexts (sysdeps/i386/strchr.S, setcontext.S of glibc 2.36).
            match in_bare_code(address, code, callees) {
                Found::Root if is_return => return (Found::Root, true),
                Found::Row(by_code, method, proof)
                    if by_code.cfa != row.cfa && (below || proof == Proof::Certain) =>
                {
                    return (Found::Row(by_code, method, proof), follows_call);
                }
                _ => {}
            }
        }
        // A handler returns to the vDSO's trampoline, whose row begins one byte before it for
        // unwinders that look up return addresses minus one (vdso32/sigreturn.S).
        let returns = follows_call || (is_return && row.signal && code.is_code(at));
        return (Found::Row(Box::new(row), Method::Cfi, Proof::Certain), returns);
    }
    if is_return && !follows_call {
        return (Found::Nothing, false);
    }
    if code.entry(at).is_some_and(|entry| forward::is_start::<X86, X86_COLUMNS>(entry, address, code)) {
        return (Found::Root, follows_call);
    }
    (in_bare_code(address, code, callees), follows_call)
}

/// Whether a row says that the return address is below the stack pointer, where nothing is kept.
fn is_below_stack_pointer(row: &RowX86) -> bool {
    let (Cfa::Register(register, cfa), Column::At(at)) = (&row.cfa, &row.columns[X86_RETURN_ADDRESS]) else {
        return false;
    };
    !row.signal && usize::from(*register) == ESP && cfa.saturating_add(*at) < 0
}

/// The row of a function that has pushed nothing.
fn bare() -> RowX86 {
    let mut row = RowX86::new(Cfa::Register(ESP as u8, POINTER.cast_signed()));
    row.columns[X86_RETURN_ADDRESS] = Column::At(-POINTER.cast_signed());
    row
}

/// What the instructions tell where there is no unwind information.
fn in_bare_code(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> Found {
    let (at, is_return) = (address.at(), address.is_return());
    let next_function = is_return && code.code(at).is_some_and(begins_function);
    let leads = match next_function {
        true => None,
        false => forward::follow::<X86, X86_COLUMNS>(at, is_return, code, callees),
    };
    let unproved = match leads {
        Some(Leads::Back(row, Proof::Certain)) => return Found::Row(row, Method::Code, Proof::Certain),
        Some(Leads::ToExit) => return Found::Root,
        Some(Leads::Back(row, _)) => Some(row),
        None => None,
    };
    let since_entry =
        |function: Range<Avma>| flow::since_entry_on_all_ways::<X86, _>(function.start, at, is_return, code);
    let told = match code.function(address.lookup().at()) {
        Some(function) => since_entry(function),
        None => {
            let row = prologue::row_with::<X86, X86_COLUMNS>(unproved, at, is_return, code);
            return row.map_or(Found::Nothing, |(row, proof)| Found::Row(row, Method::Code, proof));
        }
    };
    match (told, unproved) {
        (Some(row), _) => Found::Row(Box::new(row), Method::Code, Proof::Certain),
        (None, Some(row)) => Found::Row(row, Method::Code, Proof::Wanted),
        (None, None) => Found::Nothing,
    }
}

/// Whether code after a call is none that the call returns to, but the next function or
/// the padding before it: the callee does not return.
fn begins_function(code: &[u8]) -> bool {
    // endbr32; push %ebp; lea 0(%esi,%eiz,1),%esi and nops, which pad; int3
    const STARTS: [&[u8]; 8] = [
        &[0xf3, 0x0f, 0x1e, 0xfb],
        &[0x55],
        &[0x8d, 0xb4, 0x26],
        &[0x8d, 0x74, 0x26],
        &[0x66, 0x90],
        &[0x0f, 0x1f],
        &[0x90],
        &[0xcc],
    ];
    STARTS.iter().any(|start| code.starts_with(start))
}

/// The row of a trampoline that gives back the registers which lie `context` bytes above the stack
/// pointer. Source: Linux arch/x86/include/uapi/asm/sigcontext.h (`struct sigcontext_32`).
fn signal_frame(context: i64) -> RowX86 {
    // edi esi ebp esp ebx edx ecx eax by DWARF number, from byte 16 on; eip lies at 56.
    const SAVED: [usize; 8] = [7, 6, 5, 4, 3, 2, 1, 0];
    let mut row = RowX86::new(Cfa::Register(ESP as u8, 0));
    row.signal = true;
    for (index, column) in SAVED.into_iter().enumerate() {
        row.columns[column] = Column::At(context + 16 + 4 * index as i64);
    }
    row.columns[X86_RETURN_ADDRESS] = Column::At(context + 56);
    row
}
