//! How far a caller that a row leads to can be relied on.

/// How far a row that was read from instructions can be relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::walk) enum Proof {
    /// The row is right at this instruction, whatever the program does.
    #[default]
    Certain,
    /// The row holds if a call on the path returns, which is not known. If it does not, the instructions behind it
    /// belong to another path or to another function. A frame record or the call in front of the return address must
    /// lead to the same caller.
    NeedsConfirmation,
    /// The row counts from a frame pointer that another function may have set up. Only the target of the call in front of
    /// the return address decides whose it is.
    NeedsCall,
}
