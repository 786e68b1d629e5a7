//! The methods of a processor that the engine calls, beside [`Processor`].

use super::call_rows::CallRows;
use super::callee_cache::CalleeCache;
use super::frame_switch::FrameSwitch;
use super::proof::Proof;
use crate::addr::{Avma, CodeAddress};
use crate::walk::bounds::Failure;
use crate::walk::frame::Frame;
use crate::walk::frames::Method;
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

/// What a processor implements for the engine, beside [`Processor`].
pub(in crate::walk) trait Unwind: Processor {
    /// What it keeps about called functions; `()` if its rows need nothing of them.
    type Callees: CalleeCache;
    /// Whether a walk that ends at code without rows and without understood instructions ends as
    /// [`StackEnd::Undescribed`](crate::walk::StackEnd::Undescribed).
    const REPORTS_UNDESCRIBED: bool;
    /// Whether a frame record may be tried where a row of unusual form, read from code, leads to no caller.
    const RECORD_BESIDE_UNUSUAL: bool;

    /// What there is at an address, and for a return address whether a call returns there.
    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Self::Callees) -> (CallerRule<Self>, bool);

    /// Whether a row says that there is no caller.
    fn is_outermost(row: &RowOf<Self>) -> bool;

    /// Which registers or saved words are being replaced at an address with this row.
    fn switch(_address: CodeAddress, _row: &RowOf<Self>, _code: &dyn Code) -> FrameSwitch {
        FrameSwitch::No
    }

    /// The row at a program counter by its instructions alone, for what unwind information leads nowhere from.
    fn row_by_code(_pc: Avma, _code: &dyn Code, _callees: &mut Self::Callees) -> Option<Box<RowOf<Self>>> {
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
        _rows: &mut CallRows<Self>,
        _input: &Input<'_>,
    ) -> bool {
        false
    }

    /// Where a thread that has run no instruction yet continues; `None` for others.
    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma>;
}
