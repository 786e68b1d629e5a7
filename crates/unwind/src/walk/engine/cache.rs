//! Cached rules for code addresses: how to find the caller of a frame there, and whether a call returns there.
//! Input: code addresses; output: [`Rule`]s, and the rows of unusual ones. Void when the images change, except for
//! facts about files, which processes share.
//!
//! `Cache` has them and `Rule` is one; `CallRows` are rows by the paths from the entry of a called function,
//! `CalleeCache` what a processor caches about called functions.

use std::fmt::Debug;

use hashbrown::HashMap;

use super::{CallerRule, FrameSwitch, Proof, Unwind};
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, Columns};
use crate::walk::frames::Method;
use crate::walk::image_facts::{ImageFacts, Scope, Table, key, lookup_of};
use crate::walk::processor::{Processor, RowOf, begins_trampoline};
use crate::walk::{Code, flow};

/// Limit on unusual rows; the cache is cleared when it is full.
const UNUSUAL_MAX: usize = 4096;
/// Limit on rows by instructions alone.
const BY_CODE_MAX: usize = 4096;

/// Cached facts about addresses of a processor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache<P: Unwind> {
    rules: Table<Rule>,
    unusual: Vec<UnusualRule<P>>,
    pub(super) by_calls: CallRows<P>,
    /// Rows by instructions at program counters where unwind information fails.
    by_code: HashMap<u64, Option<Box<RowOf<P>>>>,
    callees: P::Callees,
    shared: SharedRules<P>,
}

/// Facts about addresses of code in files: the rule, and the row of an unusual one.
type SharedRules<P> = ImageFacts<(), (Rule, Option<Box<UnusualRule<P>>>)>;

/// Facts about code in files. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared<P: Unwind> {
    rules: SharedRules<P>,
    by_calls: SharedCallRows<P>,
    callees: <P::Callees as CalleeCache>::Shared,
}

/// Facts about an address with the rule [`RuleKind::Unusual`].
#[derive(Clone, Debug)]
pub(crate) struct UnusualRule<P: Unwind> {
    pub row: RowOf<P>,
    pub method: Method,
    /// Whether the caller that the row leads to is reliable.
    pub switch: FrameSwitch,
    /// A signal trampoline: handlers return there, and it calls nothing.
    pub is_trampoline: bool,
    /// Whether other evidence must confirm the caller (`intel/call.rs`).
    pub proof: Proof,
}

impl<P: Unwind> Cache<P> {
    pub(super) fn new(Shared { rules, by_calls, callees }: &Shared<P>) -> Cache<P> {
        let (by_calls, callees) = (CallRows::new(by_calls), P::Callees::new(callees));
        Cache { shared: rules.clone(), by_calls, callees, ..Cache::default() }
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.unusual.clear();
        self.by_calls.clear();
        self.by_code.clear();
        self.callees.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rules.retain(|key| !is_gone(lookup_of(key)));
        self.by_calls.forget(is_gone);
        self.by_code.retain(|at, _| !is_gone(Avma(*at)));
    }

    /// The row of a rule [`RuleKind::Unusual`]; valid until the next address is learned.
    pub(crate) fn unusual(&self, index: u16) -> Option<&UnusualRule<P>> {
        self.unusual.get(usize::from(index))
    }

    /// The rule at an address.
    #[inline]
    pub(crate) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        let key = key(address);
        match self.rules.get(key) {
            Some(rule) => rule,
            None => self.learn(address, key, code),
        }
    }

    /// The row at a program counter by its instructions, where unwind information fails.
    pub(super) fn by_code(&mut self, pc: Avma, code: &dyn Code) -> Option<&RowOf<P>> {
        if self.by_code.len() >= BY_CODE_MAX {
            self.by_code.clear();
        }
        if !self.by_code.contains_key(&pc.0) {
            let row = P::row_by_code(pc, code, &mut self.callees);
            if !code.commit_dependencies(pc) {
                return None;
            }
            self.by_code.insert(pc.0, row);
        }
        self.by_code.get(&pc.0)?.as_deref()
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, address: CodeAddress, key: u64, code: &dyn Code) -> Rule {
        if !code.may_follow(address.lookup().at()) {
            return Rule::default();
        }
        let fact_key = self.shared.key(address, code);
        if let Some((rule, unusual)) = fact_key.as_ref().and_then(|fact_key| self.shared.get(fact_key, ())) {
            let kind = unusual.map_or(rule.kind, |unusual| self.keep_unusual(*unusual));
            let rule = Rule { kind, ..rule };
            self.rules.insert(key, rule);
            return rule;
        }
        let scope = fact_key.as_ref().map(|fact_key| Scope::new(code, fact_key.mapped.clone()));
        let code = scope.as_ref().map_or(code, |scope| scope);
        self.callees.begin_row();
        let (found, returns) = P::find(address, code, &mut self.callees);
        let kind = match found {
            CallerRule::Row(row, method, proof) => self.keep(address, row, method, proof, code),
            CallerRule::Root => RuleKind::Root,
            CallerRule::Fiber { not_called } => RuleKind::Fiber { not_called },
            CallerRule::Nothing => RuleKind::Unknown,
        };
        let rule = Rule { kind, returns };
        if code.commit_dependencies(lookup_of(key)) {
            self.rules.insert(key, rule);
            let is_of_file = scope.is_some_and(|scope| !scope.is_left()) && !self.callees.is_exhausted();
            if let Some(fact_key) = fact_key.filter(|_| is_of_file) {
                let unusual = match kind {
                    RuleKind::Unusual(index) => self.unusual(index).cloned().map(Box::new),
                    _ => None,
                };
                let has_row = unusual.is_some();
                self.shared.insert(&fact_key, (), (rule, unusual), has_row);
            }
        }
        rule
    }

    fn keep(
        &mut self,
        address: CodeAddress,
        row: Box<RowOf<P>>,
        method: Method,
        proof: Proof,
        code: &dyn Code,
    ) -> RuleKind {
        if P::is_outermost(&row) {
            return RuleKind::Root;
        }
        let switch = P::switch(address, &row, code);
        if switch == FrameSwitch::No
            && proof == Proof::Certain
            && let Some(packed) = OrdinaryRow::pack::<P>(&row)
        {
            return RuleKind::OrdinaryRow(packed, method);
        }
        let is_trampoline = row.signal && address.is_return() && begins_trampoline::<P>(address.at(), code);
        self.keep_unusual(UnusualRule { row: *row, method, switch, is_trampoline, proof })
    }

    fn keep_unusual(&mut self, unusual: UnusualRule<P>) -> RuleKind {
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        self.unusual.push(unusual);
        RuleKind::Unusual((self.unusual.len() - 1) as u16)
    }
}

// ---- The rule for the caller of a frame, packed, so that a table of many addresses is small. Input: rows; output:
// [`Rule`]. x86_64 packs tighter (`x86_64/cache.rs`).

/// An ordinary row saves at most x19 to x29 of aarch64; the return address is separate.
const SAVED_MAX: usize = 11;

/// A row with a CFA of register plus offset and saved registers below it. The caller's stack pointer is the CFA;
/// offsets of saved registers are in words from it. For a function with a frame record that is `(pc, sp, fp) =
/// (fp[1], fp + 2 words, fp[0])`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrdinaryRow {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    /// Offset of the return address; `None`: it is in the link register.
    pub return_words: Option<i16>,
    registers: [(u8, i16); SAVED_MAX],
}

impl OrdinaryRow {
    /// The saved registers with their offsets from the CFA in words.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    /// Packs a row; `None` if it is unusual.
    pub(super) fn pack<P: Processor>(row: &RowOf<P>) -> Option<OrdinaryRow> {
        let word = P::POINTER_BYTES.cast_signed();
        let words = |bytes: i64| i16::try_from(bytes / word).ok().filter(|_| bytes % word == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        let (pc, cfa_offset) = (P::Columns::COUNT - 1, i32::try_from(offset).ok()?);
        if row.signal || usize::from(cfa_register) >= pc {
            return None;
        }
        let mut packed = OrdinaryRow { cfa_offset, cfa_register, ..OrdinaryRow::default() };
        for (register, column) in row.columns.as_ref().iter().enumerate() {
            match column {
                Column::At(at) if register == P::RETURN_COLUMN => packed.return_words = Some(words(*at)?),
                // The stack pointer is the CFA in every row.
                Column::Is(0) if register == usize::from(P::STACK_POINTER) => {}
                Column::Same | Column::Undefined if register < pc => {}
                Column::Same if register != P::RETURN_COLUMN => {}
                Column::At(at) if register < pc && register != usize::from(P::STACK_POINTER) => {
                    let place = packed.registers.get_mut(usize::from(packed.saved))?;
                    *place = (register as u8, words(*at)?);
                    packed.saved += 1;
                }
                _ => return None,
            }
        }
        Some(packed)
    }
}

/// How to find the caller of a frame at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RuleKind {
    OrdinaryRow(OrdinaryRow, Method),
    /// Index of a row of another form, or of an unreliable one.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// The return address of a fiber's first function; `not_called`: nothing has returned there yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor decodable code.
    #[default]
    Unknown,
}

/// Facts about a code address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub kind: RuleKind,
    /// For a return address: a call precedes it, or signal handlers return there.
    pub returns: bool,
}

const _: () = assert!(size_of::<Rule>() <= 64);

// ---- Rows by the paths from a function's entry, the target of a call: they show where the callee's frame must be
// (see `intel/call.rs`). Cached, since the same calls occur on most stacks. Void when the images change,
// except for rows of files, which processes share.

/// Limit on cached rows.
const ROWS_MAX: usize = 4096;

/// An entry, an address, and whether a call has just returned there.
type Key = (u64, u64, bool);

/// Rows of code in files, by the distance from address to entry.
pub(crate) type SharedCallRows<P> = ImageFacts<u64, Option<Box<RowOf<P>>>>;

/// Bytes were missing: the result is not cached.
struct NotLasting;

/// Rows by entry and address.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallRows<P: Processor> {
    rows: HashMap<Key, Option<Box<RowOf<P>>>>,
    shared: SharedCallRows<P>,
}

impl<P: Processor> CallRows<P> {
    pub(crate) fn new(shared: &SharedCallRows<P>) -> CallRows<P> {
        CallRows { rows: HashMap::new(), shared: shared.clone() }
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rows.retain(|(_, at, _), _| !is_gone(Avma(*at)));
    }

    /// The row at `address` by the paths from `entry`.
    pub(crate) fn row(&mut self, entry: Avma, address: CodeAddress, code: &dyn Code) -> Option<&RowOf<P>> {
        if self.rows.len() >= ROWS_MAX {
            self.rows.clear();
        }
        let key = (entry.0, address.at().0, address.is_return());
        if !self.rows.contains_key(&key) {
            let row = self.learn(entry, address, code).ok()?;
            self.rows.insert(key, row);
        }
        self.rows.get(&key)?.as_deref()
    }

    /// The row by the paths, if they agree.
    fn learn(
        &self,
        entry: Avma,
        address: CodeAddress,
        code: &dyn Code,
    ) -> Result<Option<Box<RowOf<P>>>, NotLasting> {
        let (at, returned) = (address.at(), address.is_return());
        let since_entry =
            |code: &dyn Code| flow::since_entry_on_all_paths::<P>(entry, at, returned, code).map(Box::new);
        let from_entry = at.0.wrapping_sub(entry.0);
        let Some(fact_key) = self.shared.key(address, code) else {
            let row = since_entry(code);
            return if code.commit_dependencies(at) { Ok(row) } else { Err(NotLasting) };
        };
        if let Some(row) = self.shared.get(&fact_key, from_entry) {
            return Ok(row);
        }
        let scope = Scope::new(code, fact_key.mapped.clone());
        let row = since_entry(&scope);
        if !code.commit_dependencies(at) {
            return Err(NotLasting);
        }
        if !scope.is_left() {
            self.shared.insert(&fact_key, from_entry, row.clone(), row.is_some());
        }
        Ok(row)
    }
}

// ---- Facts that a processor caches about called functions, for its rows by instructions. Only processors that follow
// code past calls need it; the others use `()`.

/// Cached facts about called functions.
pub(crate) trait CalleeCache: Clone + Debug + Default {
    /// Facts about called functions in files, for all processes. Clones share it.
    type Shared: Clone + Debug + Default;

    /// A cache that shares its facts about files.
    fn new(shared: &Self::Shared) -> Self;

    /// Forgets facts about addresses.
    fn clear(&mut self);

    /// Begins another row, with a full budget of instructions for callees.
    fn begin_row(&mut self);

    /// Whether the last row used up its budget: with the facts cached since, the row may be more exact next time.
    fn is_exhausted(&self) -> bool;
}

impl CalleeCache for () {
    type Shared = ();

    fn new(_shared: &()) {}

    fn clear(&mut self) {}

    fn begin_row(&mut self) {}

    fn is_exhausted(&self) -> bool {
        false
    }
}
