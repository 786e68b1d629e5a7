//! How the caller of a frame is found, packed into one word, so that a table of many
//! addresses stays in the processor's caches; and the rest of an ordinary row, which only
//! rare frames need. Input: rows; output: [`Rule`], [`Saved`].

use super::{RBP, RSP};
use crate::binary::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::frames::Method;

/// What leads from a frame to its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) enum RuleKind {
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown = 0,
    /// An ordinary row whose CFA is counted from rsp. With `c`, `r` and `b` for [`Rule::cfa`],
    /// [`Rule::return_at`] and [`Rule::frame_pointer_at`]: `(rip, sp, bp) = (*(sp + 8r), sp + 8c,
    /// *(sp + 8b))`, or `bp` as it is where the function does not save it.
    StackPointer = 1,
    /// An ordinary row whose CFA is counted from rbp: `(rip, sp, bp) = (*(bp + 8r), bp + 8c, *(bp + 8b))`. Where a
    /// function keeps a frame record that is `(*(bp + 8), bp + 16, *bp)`.
    FramePointer = 2,
    /// A row of another form: from other registers, by an expression, or not to be relied on.
    /// [`Rule::row`] is its number.
    Unusual = 3,
    /// Nothing: the thread's first function.
    Root = 4,
    /// Nothing: the first function of a fiber.
    Fiber = 5,
    /// A call returns there into code that V8 made, whose frames keep a record below which a mark is, if they are
    /// those of functions that call: whether it is there shows on the stack.
    Marked = 6,
}

/// What is known about a code address, in one word: three distances of 16 bits, the number of
/// its [`RuleKind`] and flags. Distances are words from the register that the CFA is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) struct Rule(u64);

impl Rule {
    const RETURN_AT: u32 = 16;
    const FRAME_POINTER_AT: u32 = 32;
    const KIND: u32 = 48;
    /// A call (or what serves as one) is in front of the address.
    const RETURNS: u64 = 1 << 56;
    const SAVES_FRAME_POINTER: u64 = 1 << 57;
    /// The rule was read from instructions, not from unwind information.
    const FROM_CODE: u64 = 1 << 58;
    /// It was read from compact unwind information.
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

    /// This rule of kind `Unusual`, whose row has another number.
    pub(super) fn with_row(self, row: u16) -> Rule {
        Rule(self.0 & !u64::from(u16::MAX) | u64::from(row))
    }

    /// This rule, read from instructions.
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

    /// Where the CFA is.
    #[inline(always)]
    pub(in crate::walk) fn cfa(self) -> i64 {
        i64::from(self.0 as i16)
    }

    /// Where the return address was saved.
    #[inline(always)]
    pub(super) fn return_at(self) -> i64 {
        i64::from((self.0 >> Rule::RETURN_AT) as i16)
    }

    /// Where rbp was saved, if it was.
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

    /// Whether the CFA of an ordinary rule is counted from rsp.
    #[inline(always)]
    pub(super) fn is_on_stack_pointer(self) -> bool {
        self.has(Rule::ON_STACK_POINTER)
    }

    /// How a caller that it leads to was found.
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

    /// How the caller is found by an ordinary rule.
    #[inline(always)]
    pub(super) fn ordinary_method(self) -> Option<Method> {
        self.is_ordinary().then(|| self.method())
    }

    /// Whether it is a row with a CFA on rsp or rbp, below which the registers lie.
    #[inline(always)]
    pub(super) fn is_ordinary(self) -> bool {
        self.has(Rule::ORDINARY)
    }
}

/// Where an ordinary row has the registers that no ordinary row counts its CFA from: rbx, r12 to r15, and rsi and
/// rdi, which functions of Windows give back too; words from the register that its own CFA is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    at: [Option<i16>; Saved::REGISTERS.len()],
}

impl Saved {
    const REGISTERS: [u8; 7] = [3, 12, 13, 14, 15, 4, 5];

    /// Registers by DWARF number, and where each is.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        let registers = Saved::REGISTERS.into_iter().zip(self.at);
        registers.filter_map(|(register, at)| Some((register.into(), at?.into())))
    }
}

/// Packs a row of the ordinary form: a CFA on rsp or rbp, and registers that the callee keeps
/// (System V AMD64 ABI, figure 3.4; "x64 calling convention", Microsoft) at words below it.
pub(super) fn pack(row: &Row, method: Method) -> Option<(Rule, Saved)> {
    let (kind, offset) = match row.cfa {
        Cfa::Register(register, offset) if usize::from(register) == RSP => (RuleKind::StackPointer, offset),
        Cfa::Register(register, offset) if usize::from(register) == RBP => (RuleKind::FramePointer, offset),
        _ => return None,
    };
    // What a signal interrupted has all its registers in its saved context.
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
    let mut saved = Saved::default();
    for (register, column) in row.columns[..COLUMNS - 1].iter().enumerate() {
        let at = match column {
            Column::Same | Column::Undefined => continue,
            Column::At(at) => words(*at)?,
            _ => return None,
        };
        if register == RBP {
            rule = rule.with_words(Rule::FRAME_POINTER_AT, at).with(Rule::SAVES_FRAME_POINTER, true);
        } else {
            let known = Saved::REGISTERS.iter().position(|number| usize::from(*number) == register)?;
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
    fn distances_are_counted_from_the_register_of_the_cfa() {
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
        assert!(!rule.saves_frame_pointer() && saved == Saved::default() && rule.method() == Method::Code);
        let record = |at: i64| pack(&row(on(RBP, 16), &[(RBP, Column::At(at))]), Method::Cfi);
        let is_record = |at: i64| record(at).is_some_and(|(rule, _)| rule.is_record());
        assert!(is_record(-16) && !is_record(-24) && !rule.is_record());
    }

    #[test]
    fn a_rule_has_the_kind_it_was_made_with() {
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
    fn distances_have_their_signs() {
        let far =
            pack(&row(on(RSP, -8), &[(RBP, Column::At(-16))]), Method::Compact).expect("an ordinary row").0;
        assert_eq!((far.cfa(), far.return_at(), far.frame_pointer_at()), (-1, -2, -3));
        assert_eq!((far.method(), far.is_record()), (Method::Compact, false));
    }

    #[test]
    fn what_does_not_fit_is_not_packed() {
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
