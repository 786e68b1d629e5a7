//! How a frame finds its caller at one instruction: a leaf that image and walk share.

/// A row of unwind information in the only form that compilers use for ordinary code:
/// the canonical frame address (CFA, the stack pointer before the call) is a register
/// plus an offset, and what was saved lies at offsets from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRule {
    /// What the CFA is counted from.
    pub base: CfaBase,
    /// Bytes from there to the CFA.
    pub cfa_offset: i64,
    /// Where the caller's frame pointer was saved, bytes from the CFA; `None`: it is in
    /// its register still.
    pub frame_pointer_at: Option<i64>,
    /// Where the return address is, bytes from the CFA; `None`: there is no caller.
    pub return_at: Option<i64>,
}

/// The register that a CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfaBase {
    /// Stack pointer.
    StackPointer,
    /// Frame pointer.
    FramePointer,
}
