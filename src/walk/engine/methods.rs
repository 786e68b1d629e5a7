//! The methods of a processor that the engine calls, in addition to [`Processor`].

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

/// How to find the caller of a frame at an address.
pub(in crate::walk) enum CallerRule<P: Processor> {
    Row(Box<RowOf<P>>, Method, Proof),
    /// The thread's first function.
    Root,
    /// The first function of a fiber, or its return address; `not_called`: nothing has returned there yet.
    Fiber {
        not_called: bool,
    },
    /// Neither unwind information nor decodable code.
    Nothing,
}

impl<P: Processor> CallerRule<P> {
    /// A rule with a row that certainly leads to the caller.
    pub(in crate::walk) fn certain(row: RowOf<P>, method: Method) -> CallerRule<P> {
        CallerRule::Row(Box::new(row), method, Proof::Certain)
    }
}

/// The engine's requirements for a processor, in addition to [`Processor`].
pub(in crate::walk) trait Unwind: Processor {
    /// Cached facts about called functions; `()` if rows do not depend on them.
    type Callees: CalleeCache;
    /// Whether a walk that ends at code without rows and without decodable instructions ends as
    /// [`StackEnd::NoUnwindInfo`](crate::walk::StackEnd::NoUnwindInfo).
    const REPORTS_UNDESCRIBED: bool;
    /// Whether a frame record may be tried if an unusual row, read from code, leads to no caller.
    const RECORD_BESIDE_UNUSUAL: bool;

    /// The rule at an address, and for a return address whether a call returns there.
    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Self::Callees) -> (CallerRule<Self>, bool);

    /// Whether a row marks the outermost frame.
    fn is_outermost(row: &RowOf<Self>) -> bool;

    /// The registers or saved words that are being replaced at an address with this row.
    fn switch(_address: CodeAddress, _row: &RowOf<Self>, _code: &dyn Code) -> FrameSwitch {
        FrameSwitch::No
    }

    /// The row at a program counter by its instructions alone, where unwind information fails.
    fn row_by_code(_pc: Avma, _code: &dyn Code, _callees: &mut Self::Callees) -> Option<Box<RowOf<Self>>> {
        None
    }

    /// The stack pointer and return address of a leaf's caller, if the leaf is at an instruction where it has no
    /// frame record; `None` if it has one.
    ///
    /// # Errors
    /// The return address cannot be read.
    fn without_record(leaf: &Frame<Self>, input: &Input<'_>) -> Result<Option<(u64, u64)>, Failure>;

    /// Whether a frame record certainly leads to the caller, although the code does not show that it keeps one.
    fn is_record_certain(from: &Frame<Self>, next: &Frame<Self>, input: &Input<'_>) -> bool;

    /// Whether the call before a caller's return address, or else a frame record, leads to that caller.
    fn is_called(
        _proof: Proof,
        _from: &Frame<Self>,
        _next: &Frame<Self>,
        _rows: &mut CallRows<Self>,
        _input: &Input<'_>,
    ) -> bool {
        false
    }

    /// The address where a thread continues that has run no instruction yet; `None` for other threads.
    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma>;
}
