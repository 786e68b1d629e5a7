//! Cached rules for code addresses: how to find the caller of a frame there, and whether a call returns there.
//! Input: code addresses; output: [`Rule`]s, and the rows of unusual ones. Void when the images change, except for
//! facts about files, which processes share.

use hashbrown::HashMap;

use super::call_rows::{CallRows, SharedCallRows};
use super::callee_cache::CalleeCache;
use super::frame_switch::FrameSwitch;
use super::methods::{CallerRule, Unwind};
use super::proof::Proof;
use super::rule::{OrdinaryRow, Rule, RuleKind};
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::frames::Method;
use crate::walk::image_facts::{ImageFacts, Scope};
use crate::walk::processor::{RowOf, begins_trampoline};
use crate::walk::table::{Table, key, lookup_of};

/// Limit on unusual rows; the cache is cleared when it is full.
const UNUSUAL_MAX: usize = 4096;
/// Limit on rows by instructions alone.
const BY_CODE_MAX: usize = 4096;

/// Cached facts about addresses of a processor.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Cache<P: Unwind> {
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
pub(in crate::walk) struct Shared<P: Unwind> {
    rules: SharedRules<P>,
    by_calls: SharedCallRows<P>,
    callees: <P::Callees as CalleeCache>::Shared,
}

/// Facts about an address with the rule [`RuleKind::Unusual`].
#[derive(Clone, Debug)]
pub(in crate::walk) struct UnusualRule<P: Unwind> {
    pub row: RowOf<P>,
    pub method: Method,
    /// Whether the caller that the row leads to is reliable.
    pub switch: FrameSwitch,
    /// A signal trampoline: handlers return there, and it calls nothing.
    pub is_trampoline: bool,
    /// Whether other evidence must confirm the caller (`intel/call_check.rs`).
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
    pub(in crate::walk) fn unusual(&self, index: u16) -> Option<&UnusualRule<P>> {
        self.unusual.get(usize::from(index))
    }

    /// The rule at an address.
    #[inline]
    pub(in crate::walk) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
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
