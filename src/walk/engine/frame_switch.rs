//! Whether an instruction is one at which a thread's registers belong half to one frame and half to another. Which ones
//! are, each processor finds out (`intel/switching.rs`).

/// What the code at an address replaces while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::walk) enum FrameSwitch {
    /// Nothing: all registers belong to the frame.
    No,
    /// The words that the frame saved are being replaced by those of the frame with the
    /// landing pad: see [`LandingPad`](crate::walk::runtimes::libgcc::landing_pad::LandingPad).
    LandingPad,
    /// The registers: the caller may be that of another frame than the one that runs.
    Registers,
}
