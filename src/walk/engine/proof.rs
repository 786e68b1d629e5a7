//! Reliability of the caller that a row leads to.

/// Reliability of a row that was derived from instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) enum Proof {
    /// The row is right at this instruction, whatever the program does.
    #[default]
    Certain,
    /// The row holds if a call on the path returns, which is unknown. If it does not, the instructions after it
    /// belong to another path or another function. A frame record or the call before the return address must
    /// confirm the caller.
    NeedsConfirmation,
    /// The CFA is relative to a frame pointer that another function may have set up. Only the target of the call
    /// before the return address decides.
    NeedsCall,
}
