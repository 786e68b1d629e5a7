//! The rule for the caller of a frame, packed into one word, so that a table of many addresses stays in the
//! processor's caches; and the rest of an ordinary row, which only rare frames need. Input: rows; output:
//! [`Rule`], [`SavedProfile`].

use super::{RBP, RSP};
use crate::binary::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::frames::Method;

/// The kind of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) enum RuleKind {
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
pub(in crate::walk) struct Rule(u64);

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
    pub(in crate::walk) fn kind(self) -> RuleKind {
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
    pub(in crate::walk) fn cfa(self) -> i64 {
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
    pub(in crate::walk) fn method(self) -> Method {
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
pub(super) struct SavedProfile {
    at: [Option<i16>; SavedProfile::REGISTERS.len()],
}

impl SavedProfile {
    const REGISTERS: [u8; 7] = [3, 12, 13, 14, 15, 4, 5];

    /// Registers by DWARF number, with the place of each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        let registers = SavedProfile::REGISTERS.into_iter().zip(self.at);
        registers.filter_map(|(register, at)| Some((register.into(), at?.into())))
    }
}

/// Packs an ordinary row: a CFA relative to rsp or rbp, and callee-saved registers (System V AMD64 ABI, figure
/// 3.4; "x64 calling convention", Microsoft) at words below it.
pub(super) fn pack(row: &Row, method: Method) -> Option<(Rule, SavedProfile)> {
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
    let mut saved = SavedProfile::default();
    for (register, column) in row.columns[..COLUMNS - 1].iter().enumerate() {
        let at = match column {
            Column::Same | Column::Undefined => continue,
            Column::At(at) => words(*at)?,
            _ => return None,
        };
        if register == RBP {
            rule = rule.with_words(Rule::FRAME_POINTER_AT, at).with(Rule::SAVES_FRAME_POINTER, true);
        } else {
            let known = SavedProfile::REGISTERS.iter().position(|number| usize::from(*number) == register)?;
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
mod tests {
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
            !rule.saves_frame_pointer() && saved == SavedProfile::default() && rule.method() == Method::Code
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
