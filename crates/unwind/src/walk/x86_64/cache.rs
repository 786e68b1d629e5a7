//! Cached facts about code addresses on stacks: how to find the caller there, and whether a call returns there.
//! Input: code addresses; output: [`Rule`]s, and for the few frames that need them all saved registers ([`SavedRegisters`])
//! or a whole row. Void when the images change, except for facts about files, which processes share.
//!
//! `Cache` has the facts; `Rule` is a rule packed into one word.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::stack_base::{self, StackBase};
use super::{RBP, RSP};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::{AnyRow, Body, COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::engine::{CallRows, CalleeCache, FrameSwitch, Proof, SharedCallRows};
use crate::walk::frames::Method;
use crate::walk::image_facts::{ImageFacts, Scope, Table, key, lookup_of};
use crate::walk::intel::forward::{self, Callees, CodeEnd, SharedCallees};
use crate::walk::intel::{prologue, switch_instructions};
use crate::walk::processor::{self, Processor, begins_trampoline, row};
use crate::walk::runtimes::{self, go, hotspot};
use crate::walk::{Code, flow};

/// Limit on unusual rows; the cache is cleared when it is full.
const UNUSUAL_MAX: usize = 4096;

/// Cached facts about code addresses of x86_64.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    rules: Table<Rule>,
    saved: Table<SavedRegisters>,
    /// Rows of another form, and unreliable ordinary ones.
    unusual: Vec<UnusualRule>,
    pub(super) by_calls: CallRows<X86_64>,
    callees: Callees,
    shared: SharedRules,
    follow_limit: FollowLimit,
    /// Success of following calls in stack scans.
    pub(super) searches: FollowLimit,
}

/// Facts about an address of code in a file.
#[derive(Clone, Debug)]
struct SharedRule {
    rule: Rule,
    /// For an ordinary rule.
    saved: SavedRegisters,
    /// The row of an unusual rule.
    unusual: Option<Box<UnusualRule>>,
}

/// Facts about addresses of code in files.
type SharedRules = ImageFacts<(), SharedRule>;

/// Facts about code in files. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    rules: SharedRules,
    by_calls: SharedCallRows<X86_64>,
    callees: SharedCallees,
}

#[cfg(any(test, feature = "testing"))]
impl Shared {
    /// Number of rules.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }
}

/// Limits how much JIT code is followed, if nearly none of it leads to a caller (Racket's code keeps no frame
/// records, and its instructions do not show the stack pointer).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FollowLimit {
    /// Addresses without a caller minus those with one.
    balance: u32,
    /// Number of addresses followed.
    followed: u32,
}

impl FollowLimit {
    /// From this balance on, searches are short; the balance is capped at twice that.
    const BALANCE_MAX: u32 = 64;
    /// The reduction of the balance for an address with a certain caller. One with an uncertain caller reduces it
    /// by 1.
    pub(super) const CERTAIN_CALLER_CREDIT: u32 = 16;
    /// One in this many addresses gets a full search, to detect that code leads to callers again.
    const WHOLE_EACH: u32 = 16;

    /// Whether the search for the next address should be short.
    pub(super) fn is_short(&mut self) -> bool {
        self.followed = self.followed.wrapping_add(1);
        self.balance >= FollowLimit::BALANCE_MAX && !self.followed.is_multiple_of(FollowLimit::WHOLE_EACH)
    }

    /// Records an address; `credit` is 0 if no caller was found.
    pub(super) fn note(&mut self, credit: u32) {
        self.balance = match credit {
            0 => (self.balance + 1).min(2 * FollowLimit::BALANCE_MAX),
            credit => self.balance.saturating_sub(credit),
        };
    }
}

/// Facts about an address with the rule [`RuleKind::Unusual`].
#[derive(Clone, Debug)]
struct UnusualRule {
    row: Row,
    switch: FrameSwitch,
    /// A return address without a call: it calls nothing.
    not_called: bool,
    /// Whether other evidence must confirm the caller (`intel/call.rs`).
    proof: Proof,
    /// In the first function of a fiber.
    fiber: bool,
}

impl Cache {
    pub(super) fn new(Shared { rules, by_calls, callees }: &Shared) -> Cache {
        let (by_calls, callees) = (CallRows::new(by_calls), Callees::new(callees));
        Cache { shared: rules.clone(), by_calls, callees, ..Cache::default() }
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.saved.clear();
        self.unusual.clear();
        self.by_calls.clear();
        self.callees.clear();
    }

    /// The rule at an address.
    #[inline(always)]
    pub(crate) fn rule(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        match self.rules.get(key(address)) {
            Some(rule) => rule,
            None => self.learn(address, code),
        }
    }

    /// The row of a rule [`RuleKind::Unusual`]; valid until the next address is learned.
    pub(super) fn unusual(&self, rule: Rule) -> Option<&Row> {
        self.kept(rule).map(|kept| &kept.row)
    }

    /// What the code at a rule's address replaces while it runs; valid until the next address is learned.
    pub(super) fn switch(&self, rule: Rule) -> FrameSwitch {
        self.kept(rule).map_or(FrameSwitch::No, |kept| kept.switch)
    }

    /// Whether a rule certainly leads to the caller; valid until the next address is learned.
    pub(crate) fn proof(&self, rule: Rule) -> Proof {
        self.kept(rule).map_or(Proof::Certain, |kept| kept.proof)
    }

    /// Whether the rule is for a return address without a call: the signal trampoline, or the function that a
    /// context's first one returns to.
    pub(super) fn not_called(&self, rule: Rule) -> bool {
        self.kept(rule).is_some_and(|kept| kept.not_called)
    }

    /// Whether an unusual row marks the outermost frame.
    pub(super) fn is_root(&self, rule: Rule) -> bool {
        self.unusual(rule).is_some_and(|row| row.columns[RETURN_ADDRESS] == Column::Undefined)
    }

    /// Whether an address without a caller is in the first function of a fiber.
    pub(super) fn begins_fiber(&self, rule: Rule) -> bool {
        rule.kind() == RuleKind::Fiber || self.kept(rule).is_some_and(|kept| kept.fiber)
    }

    fn kept(&self, rule: Rule) -> Option<&UnusualRule> {
        self.unusual.get(rule.row()).filter(|_| rule.kind() == RuleKind::Unusual)
    }

    /// The places of the caller's registers at an address with an ordinary rule.
    pub(super) fn saved(&mut self, address: CodeAddress, code: &dyn Code) -> SavedRegisters {
        if let Some(saved) = self.saved.get(key(address)) {
            return saved;
        }
        // It was overwritten.
        self.learn(address, code);
        self.saved.get(key(address)).unwrap_or_default()
    }

    /// Whether a call precedes the address; for tests of stack words.
    pub(super) fn is_return(&mut self, address: Avma, code: &dyn Code) -> bool {
        self.rule(CodeAddress::Return(address), code).returns()
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        self.learn_with(address, code, true)
    }

    /// Learns an address. `marks`: a marker on the stack may make following the code unnecessary.
    pub(super) fn learn_with(&mut self, address: CodeAddress, code: &dyn Code, marks: bool) -> Rule {
        if !code.may_follow(address.lookup().at()) {
            return Rule::of_kind(RuleKind::Unknown);
        }
        let fact_key = self.shared.key(address, code).filter(|_| marks);
        if let Some(known) = fact_key.as_ref().and_then(|fact_key| self.shared.get(fact_key, ())) {
            return self.keep_shared(address, known);
        }
        let scope = fact_key.as_ref().map(|fact_key| Scope::new(code, fact_key.mapped.clone()));
        let code = scope.as_ref().map_or(code, |scope| scope);
        let is_jit = code.traits(address.lookup().at()).is_jit;
        if is_jit
            && address.is_return()
            && !X86_64::returns(address.at(), code)
            && !stack_base::may_be_returned_to(address.at(), code)
        {
            // Most words that point into JIT code, or memory mapped like it, need no more than that.
            let rule = Rule::of_kind(RuleKind::Unknown);
            self.rules.insert(key(address), rule);
            return rule;
        }
        self.callees.follow_little(is_jit && self.follow_limit.is_short());
        self.callees.begin_row();
        let (found, returns) = find(address, code, &mut self.callees, marks);
        let credit = match found {
            CallerRule::Nothing => 0,
            CallerRule::Unproved(..) => 1,
            _ => FollowLimit::CERTAIN_CALLER_CREDIT,
        };
        let proof = Proof::Certain;
        let (rule, saved) = match found {
            CallerRule::Row(row, method) => {
                let switch = switch_instructions::at::<X86_64>(address, &row, code);
                let not_called =
                    row.signal && address.is_return() && begins_trampoline::<X86_64>(address.at(), code);
                self.keep(UnusualRule { row: *row, switch, not_called, fiber: false, proof }, method)
            }
            CallerRule::Unproved(row, proof) => {
                let switch = switch_instructions::at::<X86_64>(address, &row, code);
                let kept = UnusualRule { row: *row, switch, not_called: false, fiber: false, proof };
                (self.keep_unusual(kept).read_from_code(), SavedRegisters::default())
            }
            CallerRule::Root => (Rule::of_kind(RuleKind::Root), SavedRegisters::default()),
            CallerRule::StackBase(StackBase { not_called: true, fiber }) => {
                let switch = FrameSwitch::No;
                let kept = UnusualRule { row: root_row(), switch, not_called: true, fiber, proof };
                (self.keep_unusual(kept), SavedRegisters::default())
            }
            CallerRule::StackBase(StackBase { fiber, .. }) => (
                Rule::of_kind(if fiber { RuleKind::Fiber } else { RuleKind::Root }),
                SavedRegisters::default(),
            ),
            CallerRule::Marked => (Rule::of_kind(RuleKind::Marked), SavedRegisters::default()),
            CallerRule::Nothing => (Rule::of_kind(RuleKind::Unknown), SavedRegisters::default()),
        };
        let rule = rule.returning(returns);
        if !code.commit_dependencies(lookup_of(key(address))) {
            return rule;
        }
        if is_jit {
            self.follow_limit.note(credit);
        }
        self.insert(address, rule, saved);
        let is_of_file = scope.is_some_and(|scope| !scope.is_left()) && !self.callees.is_exhausted();
        if let Some(fact_key) = fact_key.filter(|_| is_of_file) {
            let unusual = self.kept(rule).cloned().map(Box::new);
            let has_row = unusual.is_some();
            self.shared.insert(&fact_key, (), SharedRule { rule, saved, unusual }, has_row);
        }
        rule
    }

    fn insert(&mut self, address: CodeAddress, rule: Rule, saved: SavedRegisters) {
        self.rules.insert(key(address), rule);
        if rule.is_ordinary() {
            self.saved.insert(key(address), saved);
        }
    }

    /// Copies facts about the same code from another process.
    fn keep_shared(&mut self, address: CodeAddress, known: SharedRule) -> Rule {
        let SharedRule { mut rule, saved, unusual } = known;
        if let Some(unusual) = unusual {
            rule = rule.with_row(self.unusual_number(*unusual));
        }
        self.insert(address, rule, saved);
        rule
    }

    fn keep(&mut self, found: UnusualRule, method: Method) -> (Rule, SavedRegisters) {
        if found.row.columns[RETURN_ADDRESS] == Column::Undefined {
            return (Rule::of_kind(RuleKind::Root), SavedRegisters::default());
        }
        if found.switch == FrameSwitch::No
            && let Some(packed) = pack(&found.row, method)
        {
            return packed;
        }
        (self.keep_unusual(found), SavedRegisters::default())
    }

    fn keep_unusual(&mut self, unusual: UnusualRule) -> Rule {
        Rule::unusual(self.unusual_number(unusual))
    }

    fn unusual_number(&mut self, unusual: UnusualRule) -> u16 {
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        let number = self.unusual.len() as u16;
        self.unusual.push(unusual);
        number
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(super) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        let stays = |key: u64| !is_gone(lookup_of(key));
        self.rules.retain(stays);
        self.saved.retain(stays);
        self.by_calls.forget(is_gone);
    }
}

/// How to find the caller of a frame at an address.
#[allow(clippy::large_enum_variant, reason = "one at a time, never kept")]
enum CallerRule {
    Row(Box<Row>, Method),
    /// An uncertain row, derived from instructions.
    Unproved(Box<Row>, Proof),
    /// The thread's first function.
    Root,
    /// The first function of a stack other than a thread's.
    StackBase(StackBase),
    /// A return address in V8's code: a marker on the stack may show that there is a frame record.
    Marked,
    /// Neither unwind information nor decodable code.
    Nothing,
}

/// The rule at an address, and for a return address whether a call precedes it.
fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees, marks: bool) -> (CallerRule, bool) {
    let (at, is_return) = (address.at(), address.is_return());
    // The kernel emulates these entry points (arch/x86/entry/vsyscall/vsyscall_64.c): the only code is a return to
    // the caller.
    if !is_return && at.is_vsyscall() {
        return (CallerRule::Row(Box::new(entry_row()), Method::Code), false);
    }
    let follows_call = is_return && X86_64::returns(at, code);
    if let Some(first) = stack_base::at(address, code) {
        return (CallerRule::StackBase(first), follows_call || first.not_called);
    }
    let here = code.code(at).unwrap_or_default();
    let in_epilogue = if is_return { None } else { code.row_in_epilogue(at) };
    let row = in_epilogue.or_else(|| row::<X86_64>(code, address.lookup().at()));
    // Go's table does not describe its signal trampoline.
    let is_trampoline = X86_64::is_sigreturn(here) || !is_return && stack_base::is_in_sigreturn(at, code);
    if is_trampoline && row.as_ref().is_none_or(|row| !row.signal) {
        return (CallerRule::Row(Box::new(signal_frame()), Method::Code), is_return);
    }
    if let Some(row) = row {
        // Nothing was pushed before the call, so this is assembly. If it continues to the end of the thread, it is
        // the thread's first function, whatever the row says (`runtime.clone` of Go).
        let is_bare = row.cfa == Cfa::Register(super::RSP as u8, 8);
        if follows_call
            && is_bare
            && matches!(forward::follow::<X86_64>(at, true, code, callees), Some(CodeEnd::ExitsThread))
        {
            return (CallerRule::Root, true);
        }
        let on_stack_pointer = matches!(row.cfa, Cfa::Register(register, _) if register == super::RSP as u8);
        if (follows_call || !is_return) && on_stack_pointer && go::x86_64::on_other_goroutine(address, code) {
            return (CallerRule::StackBase(StackBase { not_called: false, fiber: true }), follows_call);
        }
        // A handler returns to `__restore_rt`, which begins one byte before itself for unwinders that look up
        // return addresses minus one (glibc, libc_sigaction.c).
        let returns = follows_call || (is_return && row.signal && code.is_code(at));
        let row = go::row(at, &row, code).unwrap_or(row);
        return (CallerRule::Row(Box::new(row), Method::Cfi), returns);
    }
    if let Some(begins_threads) = code.begins_threads(address.lookup().at()) {
        let found = match begins_threads && processor::marks_first::<X86_64>(address, code) {
            true => CallerRule::Root,
            false => in_macho(address, code),
        };
        return (found, follows_call);
    }
    if is_return && !follows_call {
        return (CallerRule::Nothing, false);
    }
    // C++ code next to V8 may have a word that looks like a marker by chance, and no record.
    let traits = code.traits(address.lookup().at());
    if marks && is_return && traits.is_jit && traits.keeps_frame_records {
        return (CallerRule::Marked, follows_call);
    }
    if code.entry(at).is_some_and(|entry| forward::is_start::<X86_64>(entry, address, code)) {
        return (CallerRule::Root, follows_call);
    }
    (in_bare_code(address, code, callees), follows_call)
}

/// The rule by instructions, for code without unwind information.
fn in_bare_code(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> CallerRule {
    let (at, is_return) = (address.at(), address.is_return());
    if let Some(row) = code.code(at).and_then(hotspot::interpreter_row).filter(|_| is_return) {
        return CallerRule::Row(Box::new(row), Method::Code);
    }
    let compiled = || hotspot::compiled_at(address.lookup().at(), code);
    // Certain for a return address: HotSpot finds the caller in the same way.
    if is_return && let Some(compiled) = compiled() {
        return CallerRule::Row(Box::new(compiled.row()), Method::Code);
    }
    let next_function = is_return && code.code(at).is_some_and(begins_function);
    let leads = match next_function {
        true => None,
        false => forward::follow::<X86_64>(at, is_return, code, callees),
    };
    let unproved = match leads {
        Some(CodeEnd::Returns(row, Proof::Certain)) => return CallerRule::Row(row, Method::Code),
        Some(CodeEnd::ExitsThread) => return CallerRule::Root,
        Some(CodeEnd::Returns(row, _)) if is_return && runtimes::is_trampoline_row(&row, at, code) => {
            return CallerRule::Row(row, Method::Code);
        }
        Some(CodeEnd::Returns(row, _)) => Some(row),
        None => None,
    };
    let since_entry =
        |function: Range<Avma>| flow::since_entry_on_all_paths::<X86_64>(function.start, at, is_return, code);
    // For return addresses this was looked up above.
    let compiled = if is_return { None } else { compiled() };
    let by_entry = match (code.function(address.lookup().at()), compiled) {
        (Some(function), _) => since_entry(function),
        // Instructions that remove the frame lead directly to the return, which is certain.
        (None, Some(compiled)) if compiled.has_frame(at) => {
            (!hotspot::may_have_left(at, code)).then(|| compiled.row())
        }
        (None, Some(compiled)) => since_entry(compiled.entry..at),
        (None, None) if callees.is_short() => {
            return unproved
                .map_or(CallerRule::Nothing, |row| CallerRule::Unproved(row, Proof::NeedsConfirmation));
        }
        (None, None) => {
            return match prologue::row_with::<X86_64>(unproved, at, is_return, code) {
                Some((row, Proof::Certain)) => CallerRule::Row(row, Method::Code),
                Some((row, proof)) => CallerRule::Unproved(row, proof),
                None => CallerRule::Nothing,
            };
        }
    };
    match (by_entry, unproved) {
        (Some(row), _) => CallerRule::Row(Box::new(row), Method::Code),
        (None, Some(row)) => CallerRule::Unproved(row, Proof::NeedsConfirmation),
        (None, None) => CallerRule::Nothing,
    }
}

/// The rule in a Mach-O image, with unwind information for function bodies.
fn in_macho(address: CodeAddress, code: &dyn Code) -> CallerRule {
    let said = match code.body(address.lookup().at()) {
        Some(Body { row: AnyRow::X86_64(row), compact }) => Some((*row, processor::method(compact))),
        _ => None,
    };
    let found = match said {
        Some((row, method)) if row.signal => Some((row, method)),
        said => processor::body_row::<X86_64>(address, said, code),
    };
    found.map_or(CallerRule::Nothing, |(row, method)| CallerRule::Row(Box::new(row), method))
}

/// The row of a function that has pushed nothing.
fn entry_row() -> Row {
    let mut row: Row = Row::new(Cfa::Register(super::RSP as u8, 8));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    row
}

/// A row that marks the outermost frame.
fn root_row() -> Row {
    let mut row: Row = Row::new(Cfa::Register(super::RSP as u8, 0));
    row.columns[RETURN_ADDRESS] = Column::Undefined;
    row
}

/// Whether code after a call is the next function or the padding before it: then the callee does not return.
fn begins_function(code: &[u8]) -> bool {
    const STARTS: [&[u8]; 6] =
        [&[0xf3, 0x0f, 0x1e, 0xfa], &[0x55], &[0x66, 0x2e, 0x0f, 0x1f], &[0x0f, 0x1f], &[0x90], &[0xcc]];
    STARTS.iter().any(|start| code.starts_with(start))
}

/// The row of a trampoline that calls `rt_sigreturn` with the context at the stack pointer.
/// Source: Linux arch/x86/include/asm/sigframe.h and uapi/asm/sigcontext.h; registers begin 40 bytes into `struct
/// ucontext`.
fn signal_frame() -> Row {
    // r8..r15 rdi rsi rbp rbx rdx rax rcx rsp rip, by DWARF number
    const SAVED: [usize; COLUMNS] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, RETURN_ADDRESS];
    let mut row: Row = Row::new(Cfa::Register(super::RSP as u8, 0));
    row.signal = true;
    for (index, column) in SAVED.into_iter().enumerate() {
        row.columns[column] = Column::At(40 + 8 * index as i64);
    }
    row
}

// ---- The rule for the caller of a frame, packed into one word, so that a table of many addresses stays in the
// processor's caches; and the rest of an ordinary row, which only rare frames need. Input: rows; output:
// [`Rule`], [`SavedRegisters`].

/// The kind of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RuleKind {
    /// Neither unwind information nor decodable code.
    #[default]
    Unknown = 0,
    /// An ordinary row with a CFA relative to rsp. With `c`, `r` and `b` for [`Rule::cfa`], [`Rule::return_at`]
    /// and [`Rule::frame_pointer_at`]: `(rip, sp, bp) = (*(sp + 8r), sp + 8c, *(sp + 8b))`, or unchanged `bp` if
    /// the function does not save it.
    StackPointer = 1,
    /// An ordinary row with a CFA relative to rbp: `(rip, sp, bp) = (*(bp + 8r), bp + 8c, *(bp + 8b))`. For a
    /// function with a frame record that is `(*(bp + 8), bp + 16, *bp)`.
    FramePointer = 2,
    /// A row of another form: relative to other registers, by an expression, or unreliable. [`Rule::row`] is its
    /// number.
    Unusual = 3,
    /// No caller: the thread's first function.
    Root = 4,
    /// No caller: the first function of a fiber.
    Fiber = 5,
    /// A return address in V8's code. Frames of its functions that call have a record with a marker below it: the
    /// stack shows whether it is there.
    Marked = 6,
}

/// The facts about a code address in one word: three 16-bit distances, the number of its [`RuleKind`] and flags.
/// Distances are in words from the base register of the CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule(u64);

impl Rule {
    const RETURN_AT: u32 = 16;
    const FRAME_POINTER_AT: u32 = 32;
    const KIND: u32 = 48;
    /// A call (or an equivalent) precedes the address.
    const RETURNS: u64 = 1 << 56;
    const SAVES_FRAME_POINTER: u64 = 1 << 57;
    /// The rule was derived from instructions, not from unwind information.
    const FROM_CODE: u64 = 1 << 58;
    /// The rule is from compact unwind information.
    const COMPACT: u64 = 1 << 59;
    /// CFA = rbp+16, the caller's rbp and the return address right below it.
    const RECORD: u64 = 1 << 60;
    /// Its kind is `StackPointer` or `FramePointer`.
    const ORDINARY: u64 = 1 << 61;
    /// Its kind is `StackPointer`.
    const ON_STACK_POINTER: u64 = 1 << 62;

    pub(super) fn of_kind(kind: RuleKind) -> Rule {
        let rule = Rule((kind as u64) << Rule::KIND);
        let ordinary = matches!(kind, RuleKind::StackPointer | RuleKind::FramePointer);
        rule.with(Rule::ORDINARY, ordinary).with(Rule::ON_STACK_POINTER, kind == RuleKind::StackPointer)
    }

    pub(super) fn unusual(row: u16) -> Rule {
        Rule(Rule::of_kind(RuleKind::Unusual).0 | u64::from(row))
    }

    /// This rule of kind `Unusual`, with another row number.
    pub(super) fn with_row(self, row: u16) -> Rule {
        Rule(self.0 & !u64::from(u16::MAX) | u64::from(row))
    }

    /// This rule, marked as derived from instructions.
    pub(super) fn read_from_code(self) -> Rule {
        self.with(Rule::FROM_CODE, true)
    }

    /// Number of the row of a rule of kind `Unusual`.
    pub(super) fn row(self) -> usize {
        usize::from(self.0 as u16)
    }

    pub(super) fn returning(self, returns: bool) -> Rule {
        self.with(Rule::RETURNS, returns)
    }

    fn with(self, flag: u64, set: bool) -> Rule {
        Rule(if set { self.0 | flag } else { self.0 & !flag })
    }

    fn with_words(self, shift: u32, words: i16) -> Rule {
        Rule(self.0 | u64::from(words.cast_unsigned()) << shift)
    }

    #[inline(always)]
    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> RuleKind {
        match self.0 >> Rule::KIND & 0xff {
            1 => RuleKind::StackPointer,
            2 => RuleKind::FramePointer,
            3 => RuleKind::Unusual,
            4 => RuleKind::Root,
            5 => RuleKind::Fiber,
            6 => RuleKind::Marked,
            _ => RuleKind::Unknown,
        }
    }

    /// Distance of the CFA.
    #[inline(always)]
    pub(crate) fn cfa(self) -> i64 {
        i64::from(self.0 as i16)
    }

    /// Distance of the saved return address.
    #[inline(always)]
    pub(super) fn return_at(self) -> i64 {
        i64::from((self.0 >> Rule::RETURN_AT) as i16)
    }

    /// Distance of the saved rbp, if it was saved.
    #[inline(always)]
    pub(super) fn frame_pointer_at(self) -> i64 {
        i64::from((self.0 >> Rule::FRAME_POINTER_AT) as i16)
    }

    /// For a return address: whether a call returns there.
    #[inline(always)]
    pub(super) fn returns(self) -> bool {
        self.has(Rule::RETURNS)
    }

    #[inline(always)]
    pub(super) fn saves_frame_pointer(self) -> bool {
        self.has(Rule::SAVES_FRAME_POINTER)
    }

    /// Whether rbp points to the frame record of the function.
    #[inline(always)]
    pub(super) fn is_record(self) -> bool {
        self.has(Rule::RECORD)
    }

    /// Whether the CFA of an ordinary rule is relative to rsp.
    #[inline(always)]
    pub(super) fn is_on_stack_pointer(self) -> bool {
        self.has(Rule::ON_STACK_POINTER)
    }

    /// The method for callers found by this rule.
    #[inline(always)]
    pub(crate) fn method(self) -> Method {
        if self.has(Rule::FROM_CODE) {
            Method::Code
        } else if self.has(Rule::COMPACT) {
            Method::Compact
        } else {
            Method::Cfi
        }
    }

    /// The method for callers found by an ordinary rule.
    #[inline(always)]
    pub(super) fn ordinary_method(self) -> Option<Method> {
        self.is_ordinary().then(|| self.method())
    }

    /// Whether the row has a CFA relative to rsp or rbp and the registers below it.
    #[inline(always)]
    pub(super) fn is_ordinary(self) -> bool {
        self.has(Rule::ORDINARY)
    }
}

/// Places of registers in an ordinary row that are no base of a CFA: rbx, r12 to r15, and rsi and rdi, which
/// Windows functions also preserve; in words from the base register of the row's CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedRegisters {
    at: [Option<i16>; SavedRegisters::REGISTERS.len()],
}

impl SavedRegisters {
    const REGISTERS: [u8; 7] = [3, 12, 13, 14, 15, 4, 5];

    /// Registers by DWARF number, with the place of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        let registers = SavedRegisters::REGISTERS.into_iter().zip(self.at);
        registers.filter_map(|(register, at)| Some((register.into(), at?.into())))
    }
}

/// Packs an ordinary row: a CFA relative to rsp or rbp, and callee-saved registers (System V AMD64 ABI, figure
/// 3.4; "x64 calling convention", Microsoft) at words below it.
pub(super) fn pack(row: &Row, method: Method) -> Option<(Rule, SavedRegisters)> {
    let (kind, offset) = match row.cfa {
        Cfa::Register(register, offset) if usize::from(register) == RSP => (RuleKind::StackPointer, offset),
        Cfa::Register(register, offset) if usize::from(register) == RBP => (RuleKind::FramePointer, offset),
        _ => return None,
    };
    // All registers of code interrupted by a signal are in its saved context.
    if row.signal {
        return None;
    }
    let words = |from_cfa: i64| {
        let bytes = offset.checked_add(from_cfa)?;
        i16::try_from(bytes / 8).ok().filter(|_| bytes % 8 == 0)
    };
    let Column::At(return_at) = row.columns[RETURN_ADDRESS] else { return None };
    let (cfa, return_at) = (words(0)?, words(return_at)?);
    let mut rule = Rule::of_kind(kind).with_words(0, cfa).with_words(Rule::RETURN_AT, return_at);
    let mut saved = SavedRegisters::default();
    for (register, column) in row.columns[..COLUMNS - 1].iter().enumerate() {
        let at = match column {
            Column::Same | Column::Undefined => continue,
            Column::At(at) => words(*at)?,
            _ => return None,
        };
        if register == RBP {
            rule = rule.with_words(Rule::FRAME_POINTER_AT, at).with(Rule::SAVES_FRAME_POINTER, true);
        } else {
            let known =
                SavedRegisters::REGISTERS.iter().position(|number| usize::from(*number) == register)?;
            saved.at[known] = Some(at);
        }
    }
    let is_record = kind == RuleKind::FramePointer
        && rule.saves_frame_pointer()
        && (rule.cfa(), rule.return_at(), rule.frame_pointer_at()) == (2, 1, 0);
    let rule = rule.with(Rule::RECORD, is_record).with(Rule::FROM_CODE, method == Method::Code);
    Some((rule.with(Rule::COMPACT, method == Method::Compact), saved))
}

#[cfg(test)]
mod rule_tests {
    use super::*;

    fn row(cfa: Cfa, columns: &[(usize, Column)]) -> Row {
        let mut row: Row = Row { cfa, columns: Default::default(), signal: false };
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        for (register, column) in columns {
            row.columns[*register] = column.clone();
        }
        row
    }

    fn on(register: usize, bytes: i64) -> Cfa {
        Cfa::Register(register as u8, bytes)
    }

    #[test]
    fn distances_are_relative_to_the_base_register_of_the_cfa() {
        let saved = [(3, Column::At(-32)), (RBP, Column::At(-16)), (15, Column::At(-24))];
        let (rule, saved) = pack(&row(on(RSP, 48), &saved), Method::Cfi).expect("an ordinary row");
        assert_eq!((rule.kind(), rule.cfa(), rule.return_at()), (RuleKind::StackPointer, 6, 5));
        assert_eq!((rule.saves_frame_pointer(), rule.frame_pointer_at()), (true, 4));
        assert_eq!(saved.iter().collect::<Vec<_>>(), [(3, 2), (15, 3)]);
        assert_eq!(
            (rule.method(), rule.returns(), rule.returning(true).returns()),
            (Method::Cfi, false, true)
        );
        let (rule, saved) = pack(&row(on(RBP, 16), &[]), Method::Code).expect("an ordinary row");
        assert_eq!((rule.kind(), rule.cfa(), rule.return_at()), (RuleKind::FramePointer, 2, 1));
        assert!(
            !rule.saves_frame_pointer()
                && saved == SavedRegisters::default()
                && rule.method() == Method::Code
        );
        let record = |at: i64| pack(&row(on(RBP, 16), &[(RBP, Column::At(at))]), Method::Cfi);
        let is_record = |at: i64| record(at).is_some_and(|(rule, _)| rule.is_record());
        assert!(is_record(-16) && !is_record(-24) && !rule.is_record());
    }

    #[test]
    fn a_rule_keeps_its_kind() {
        use RuleKind::*;
        for kind in [Unknown, StackPointer, FramePointer, Unusual, Root, Fiber, Marked] {
            let rule = Rule::of_kind(kind).returning(true);
            assert_eq!((rule.kind(), rule.returns(), rule.is_record()), (kind, true, false));
            assert_eq!(rule.is_ordinary(), [StackPointer, FramePointer].contains(&kind));
            assert_eq!(rule.is_on_stack_pointer(), kind == StackPointer);
        }
        assert_eq!(Rule::default(), Rule::of_kind(Unknown));
    }

    #[test]
    fn distances_keep_their_signs() {
        let far =
            pack(&row(on(RSP, -8), &[(RBP, Column::At(-16))]), Method::Compact).expect("an ordinary row").0;
        assert_eq!((far.cfa(), far.return_at(), far.frame_pointer_at()), (-1, -2, -3));
        assert_eq!((far.method(), far.is_record()), (Method::Compact, false));
    }

    #[test]
    fn rows_that_do_not_fit_are_not_packed() {
        let ordinary = row(on(RSP, 16), &[]);
        assert!(pack(&ordinary, Method::Cfi).is_some());
        for other in [
            Row { signal: true, ..ordinary.clone() },
            row(on(3, 16), &[]),
            row(Cfa::Expression([0x76, 0, 6].into()), &[]),
            row(on(RSP, 17), &[]),
            row(on(RSP, 8 << 15), &[]),
            row(on(RSP, i64::MAX), &[(3, Column::At(i64::MAX))]),
            row(on(RSP, 16), &[(RETURN_ADDRESS, Column::Is(0))]),
            row(on(RSP, 16), &[(3, Column::At(-12))]),
            row(on(RSP, 16), &[(3, Column::In(0))]),
            row(on(RSP, 16), &[(8, Column::At(-16))]),
            row(on(RSP, 16), &[(RSP, Column::At(-16))]),
        ] {
            assert_eq!(pack(&other, Method::Cfi), None, "{other:?}");
        }
    }

    #[test]
    fn the_number_of_an_unusual_row_survives() {
        for number in [0, 1, 0x7fff, 0x8000, u16::MAX] {
            assert_eq!(Rule::unusual(number).returning(true).row(), usize::from(number));
        }
    }
}
