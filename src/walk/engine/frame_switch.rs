//! Instructions at which a thread's registers belong partly to one frame and partly to another. Each processor
//! detects its own (`intel/switch_instructions.rs`).

/// The state that the code at an address replaces while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) enum FrameSwitch {
    /// Nothing: all registers belong to the frame.
    No,
    /// The saved words of the frame, replaced by those of the frame with the landing pad: see
    /// [`LandingPad`](crate::walk::runtimes::libgcc::landing_pad::LandingPad).
    LandingPad,
    /// The registers: the caller may be that of another frame than the running one.
    Registers,
}
