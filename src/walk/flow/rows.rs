//! Builds rows from the state at an instruction: at the return of a function, or after following it from its
//! entry. Input: a [`FlowState`]; output: a [`Row`].

use super::state::{FlowState, RegisterOffset, Value};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::processor::{Processor, RowOf};

/// The row at the start of a path, from the state at the function's return: its stack pointer is the canonical
/// frame address, below which x86_64 calls put the return address.
pub(in crate::walk) fn row_at_return<P: Processor>(state: &FlowState) -> Option<RowOf<P>> {
    let sp = state.place(P::STACK_POINTER)?;
    let cfa = sp.plus(P::pushed_by_call());
    let mut row = Row::new(Cfa::Register(cfa.register, cfa.offset));
    let from = |place: RegisterOffset| {
        (place.register == cfa.register).then(|| place.offset.checked_sub(cfa.offset)).flatten()
    };
    for register in P::SAVED {
        let column = match state.get(*register) {
            Value::First(first) if first == *register => Some(Column::Same),
            Value::First(first) => Some(Column::In(first)),
            Value::Loaded(place) => from(place).map(Column::At),
            Value::At(place) => from(place).map(Column::Is),
            Value::Number(_) | Value::Unknown => None,
        };
        set_column::<P>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// The row at an instruction, from the state there after following the function from its entry. Its CFA is
/// relative to the first of `bases` with a known offset.
pub(in crate::walk) fn row_in_function<P: Processor>(state: &FlowState, bases: &[u8]) -> Option<RowOf<P>> {
    let above = P::pushed_by_call();
    // Bytes from the stack pointer at the entry to a register's current value: any number in hostile code.
    let depth = |register: u8| {
        let place = state.place(register)?;
        (place.register == P::STACK_POINTER).then_some(place.offset)
    };
    // A callee may pop its arguments (Swift's do), which the call does not show.
    let (base, offset) = bases.iter().find_map(|register| Some((*register, depth(*register)?)))?;
    let mut row = Row::new(Cfa::Register(base, above.checked_sub(offset)?));
    for register in P::SAVED {
        let first = Value::First(*register);
        let stored = || {
            let (place, _) = state.stores().find(|(_, value)| *value == first)?;
            let from_cfa = place.offset.checked_sub(above)?;
            (place.register == P::STACK_POINTER).then_some(Column::At(from_cfa))
        };
        // A stored register may have changed since, on another path: every call changes the link register. If the
        // stack pointer is unknown (an alloca) the frame is still there.
        let is_there = |column: &Column| match (column, depth(P::STACK_POINTER)) {
            (Column::At(at), Some(sp)) => above + at >= sp,
            (Column::At(_), None) => P::LINK.is_some() && base != P::STACK_POINTER,
            _ => false,
        };
        let copied = || P::SAVED.iter().find(|other| state.get(**other) == first).map(|n| Column::In(*n));
        let column = match state.get(*register) {
            value if value == first => stored().filter(is_there).or(Some(Column::Same)),
            _ => stored().or_else(copied),
        };
        set_column::<P>(&mut row, *register, column)?;
    }
    if P::LINK.is_none() {
        row.columns[P::RETURN_COLUMN] = Column::At(-P::pushed_by_call());
    }
    Some(row)
}

/// Sets the column of a register. Without the frame pointer or the return address there is no row; other registers
/// are only needed by rare rows of callers.
fn set_column<P: Processor>(row: &mut RowOf<P>, register: u8, column: Option<Column>) -> Option<()> {
    let needed = register == P::FRAME_POINTER || Some(register) == P::LINK;
    if column.is_none() && needed {
        return None;
    }
    *row.columns.as_mut().get_mut(usize::from(register))? = column.unwrap_or(Column::Undefined);
    Some(())
}
