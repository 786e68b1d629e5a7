//! How the caller of a frame is found, packed into one word, so that a table of many
//! addresses stays in the processor's caches; and the rest of an ordinary row, which only
//! rare frames need. Input: rows; output: [`Rule`], [`Saved`].

use super::{RBP, RSP};
use crate::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::frames::Method;

/// What leads from a frame to its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Neither unwind information nor understandable code.
    #[default]
    Unknown,
    /// An ordinary row whose CFA is counted from rsp.
    StackPointer,
    /// The same, from rbp.
    FramePointer,
    /// A row of another form; [`Rule::row`] is its number.
    Unusual,
    /// Nothing: the thread's first function.
    Root,
}

/// What is known of a code address. Distances are words from the register that the CFA is
/// counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    /// Where the CFA is.
    pub cfa: i16,
    /// Where the return address was saved.
    pub return_at: i16,
    /// Where rbp was saved, if it was.
    pub frame_pointer_at: i16,
    pub kind: Kind,
    flags: u8,
}

impl Rule {
    /// A call (or what stands for one) is in front of the address.
    const RETURNS: u8 = 1;
    const SAVES_FRAME_POINTER: u8 = 2;
    /// The rule was read from instructions, not from unwind information.
    const FROM_CODE: u8 = 4;
    /// It was read from compact unwind information.
    const COMPACT: u8 = 8;
    /// CFA = rbp+16, the caller's rbp and the return address right below it.
    const RECORD: u8 = 16;

    pub(super) fn of_kind(kind: Kind) -> Rule {
        Rule { kind, ..Rule::default() }
    }

    pub(super) fn unusual(row: u16) -> Rule {
        Rule { cfa: row.cast_signed(), ..Rule::of_kind(Kind::Unusual) }
    }

    /// Number of the row of a rule of kind `Unusual`.
    pub(super) fn row(self) -> usize {
        self.cfa.cast_unsigned().into()
    }

    pub(super) fn returning(self, returns: bool) -> Rule {
        self.with(Rule::RETURNS, returns)
    }

    fn with(self, flag: u8, set: bool) -> Rule {
        Rule { flags: if set { self.flags | flag } else { self.flags & !flag }, ..self }
    }

    /// For a return address: whether a call returns there.
    #[inline(always)]
    pub(super) fn returns(self) -> bool {
        self.flags & Rule::RETURNS != 0
    }

    #[inline(always)]
    pub(super) fn saves_frame_pointer(self) -> bool {
        self.flags & Rule::SAVES_FRAME_POINTER != 0
    }

    /// Whether rbp points to the frame record of the function.
    #[inline(always)]
    pub(super) fn is_record(self) -> bool {
        self.flags & Rule::RECORD != 0
    }

    /// How a caller that it leads to was found.
    #[inline(always)]
    pub(super) fn method(self) -> Method {
        match self.flags & (Rule::FROM_CODE | Rule::COMPACT) {
            0 => Method::Cfi,
            Rule::COMPACT => Method::Compact,
            _ => Method::Code,
        }
    }

    /// The same of an ordinary rule.
    #[inline(always)]
    pub(super) fn ordinary_method(self) -> Option<Method> {
        self.is_ordinary().then(|| self.method())
    }

    /// Whether it is a row with a CFA on rsp or rbp, below which the registers lie.
    #[inline(always)]
    pub(super) fn is_ordinary(self) -> bool {
        matches!(self.kind, Kind::StackPointer | Kind::FramePointer)
    }
}

const _: () = assert!(size_of::<Rule>() == 8);

/// Where an ordinary row has the registers that no ordinary row counts its CFA from: rbx and
/// r12 to r15, words from the register that its own CFA is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Saved {
    at: [Option<i16>; Saved::REGISTERS.len()],
}

impl Saved {
    const REGISTERS: [u8; 5] = [3, 12, 13, 14, 15];

    /// Registers by DWARF number, and where each is.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, i16)> {
        let registers = Saved::REGISTERS.into_iter().zip(self.at);
        registers.filter_map(|(register, at)| Some((register.into(), at?)))
    }
}

/// Packs a row of the ordinary form: a CFA on rsp or rbp, and registers that the callee keeps
/// (System V AMD64 ABI, figure 3.4) at words below it.
pub(super) fn pack(row: &Row, method: Method) -> Option<(Rule, Saved)> {
    let (kind, offset) = match row.cfa {
        Cfa::Register(register, offset) if usize::from(register) == RSP => (Kind::StackPointer, offset),
        Cfa::Register(register, offset) if usize::from(register) == RBP => (Kind::FramePointer, offset),
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
    let mut rule = Rule { cfa: words(0)?, return_at: words(return_at)?, ..Rule::of_kind(kind) };
    let mut saved = Saved::default();
    for (register, column) in row.columns[..COLUMNS - 1].iter().enumerate() {
        let at = match column {
            Column::Same | Column::Undefined => continue,
            Column::At(at) => words(*at)?,
            _ => return None,
        };
        if register == RBP {
            rule.frame_pointer_at = at;
            rule = rule.with(Rule::SAVES_FRAME_POINTER, true);
        } else {
            let known = Saved::REGISTERS.iter().position(|number| usize::from(*number) == register)?;
            saved.at[known] = Some(at);
        }
    }
    let is_record = kind == Kind::FramePointer
        && rule.saves_frame_pointer()
        && (rule.cfa, rule.return_at, rule.frame_pointer_at) == (2, 1, 0);
    let rule = rule.with(Rule::RECORD, is_record).with(Rule::FROM_CODE, method == Method::Code);
    Some((rule.with(Rule::COMPACT, method == Method::Compact), saved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cfa: Cfa, columns: &[(usize, Column)]) -> Row {
        let mut row = Row { cfa, columns: Default::default(), signal: false };
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
        assert_eq!((rule.kind, rule.cfa, rule.return_at), (Kind::StackPointer, 6, 5));
        assert_eq!((rule.saves_frame_pointer(), rule.frame_pointer_at), (true, 4));
        assert_eq!(saved.iter().collect::<Vec<_>>(), [(3, 2), (15, 3)]);
        assert_eq!(
            (rule.method(), rule.returns(), rule.returning(true).returns()),
            (Method::Cfi, false, true)
        );
        let (rule, saved) = pack(&row(on(RBP, 16), &[]), Method::Code).expect("an ordinary row");
        assert_eq!((rule.kind, rule.cfa, rule.return_at), (Kind::FramePointer, 2, 1));
        assert!(!rule.saves_frame_pointer() && saved == Saved::default() && rule.method() == Method::Code);
        let record = |at: i64| pack(&row(on(RBP, 16), &[(RBP, Column::At(at))]), Method::Cfi);
        let is_record = |at: i64| record(at).is_some_and(|(rule, _)| rule.is_record());
        assert!(is_record(-16) && !is_record(-24) && !rule.is_record());
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
