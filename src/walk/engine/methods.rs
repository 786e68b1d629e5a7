//! The methods of a processor that the engine walks: what it asks beside what [`Processor`] says.

use crate::addr::{Avma, CodeAddress};
use crate::walk::bounds::Failure;
use crate::walk::frame::Frame;
use crate::walk::frames::Method;
use crate::walk::intel::SinceEntry;
use crate::walk::intel::forward::{Callees, Proof};
use crate::walk::intel::switching::Switch;
use crate::walk::processor::{Processor, RowOf};
use crate::walk::{Code, Input};

/// How the caller of a frame at an address is found.
pub(in crate::walk) enum CallerRule<P: Processor> {
    Row(Box<RowOf<P>>, Method, Proof),
    /// The thread's first function.
    Root,
    /// The first function of a fiber, or what that returns to; `not_called`: has not returned to yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor understandable code.
    Nothing,
}

impl<P: Processor> CallerRule<P> {
    /// A row that leads to the caller for certain.
    pub(in crate::walk) fn certain(row: RowOf<P>, method: Method) -> CallerRule<P> {
        CallerRule::Row(Box::new(row), method, Proof::Certain)
    }
}

/// What the engine asks of a processor beside what [`Processor`] says.
pub(in crate::walk) trait Unwind: Processor {
    /// Whether a stack that ends at code of which nothing is known says so ([`StackEnd::Undescribed`]).
    const TELLS_UNDESCRIBED: bool;
    /// Whether a frame record may lead on where a row of unusual form, read from code, does not.
    const RECORD_BESIDE_UNUSUAL: bool;

    /// What there is at an address, and for a return address whether a call returns there.
    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (CallerRule<Self>, bool);

    /// Whether a row says that there is no caller.
    fn is_outermost(row: &RowOf<Self>) -> bool;

    /// What is switched at an address with this row.
    fn switch(_address: CodeAddress, _row: &RowOf<Self>, _code: &dyn Code) -> Switch {
        Switch::No
    }

    /// The row at a program counter by its instructions alone, for what unwind information leads nowhere from.
    fn row_by_code(_pc: Avma, _code: &dyn Code, _callees: &mut Callees) -> Option<Box<RowOf<Self>>> {
        None
    }

    /// The stack pointer and the return address of the caller of a leaf that is at an instruction where it has no
    /// frame record; `None` where it has one.
    ///
    /// # Errors
    /// Why the return address cannot be read.
    fn without_record(leaf: &Frame<Self>, input: &Input<'_>) -> Result<Option<(u64, u64)>, Failure>;

    /// Whether a frame record, which was followed from code that is not seen to keep one, leads to the caller for
    /// certain.
    fn is_record_certain(from: &Frame<Self>, next: &Frame<Self>, input: &Input<'_>) -> bool;

    /// Whether the call in front of a caller's return address, or else a frame record, leads to that caller.
    fn is_called(
        _proof: Proof,
        _from: &Frame<Self>,
        _next: &Frame<Self>,
        _rows: &mut dyn SinceEntry<Self>,
        _input: &Input<'_>,
    ) -> bool {
        false
    }

    /// Where a thread goes on that has run nothing yet; `None` for others.
    fn goes_on_at(&self, code: &dyn Code) -> Option<Avma>;
}
