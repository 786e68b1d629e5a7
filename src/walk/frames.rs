//! The frames found by a walk, with the method that found each, and the methods of walking.

use crate::addr::{Avma, CodeAddress, LookupAvma};

/// Methods of walking stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnwindMethod {
    /// Unwind information if there is any, otherwise code and frame pointers, and a stack scan as the last resort;
    /// every step checked.
    #[default]
    Auto,
    /// Frame pointers only (except for the caller of the leaf).
    FramePointer,
    /// Unwind information and the code of functions without it; on 32-bit Arm DWARF rows only.
    Cfi,
    /// The tables of 32-bit Arm's exception handling ABI only.
    Exidx,
    /// Instructions of functions only (prologue analysis); 32-bit Arm.
    Code,
    /// A stack scan only; 32-bit Arm.
    Scan,
}

impl UnwindMethod {
    /// Every method, with its name on the command line.
    pub const ALL: [(UnwindMethod, &'static str); 6] = [
        (UnwindMethod::Auto, "auto"),
        (UnwindMethod::FramePointer, "fp"),
        (UnwindMethod::Cfi, "cfi"),
        (UnwindMethod::Exidx, "exidx"),
        (UnwindMethod::Code, "code"),
        (UnwindMethod::Scan, "scan"),
    ];

    /// Whether the method exists only on 32-bit Arm.
    #[must_use]
    pub fn is_of_arm(self) -> bool {
        matches!(self, UnwindMethod::Exidx | UnwindMethod::Code | UnwindMethod::Scan)
    }
}

/// The source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The registers of the stopped thread.
    Context,
    /// DWARF unwind information of its callee.
    Cfi,
    /// Compact unwind information (Mach-O).
    Compact,
    /// The tables of 32-bit Arm's exception handling ABI, for its callee.
    Exidx,
    /// The instructions of its callee, which has no unwind information.
    Code,
    /// The frame record of its callee.
    FramePointer,
    /// A word on the stack that looks like a return address.
    Scan,
    /// The frame pushed by an exception of an M-profile core.
    Exception,
}

impl Method {
    /// Every method, in numeric order.
    pub const ALL: [Method; 8] = [
        Method::Context,
        Method::Cfi,
        Method::Compact,
        Method::Exidx,
        Method::Code,
        Method::FramePointer,
        Method::Scan,
        Method::Exception,
    ];

    /// The name in `dump stacks` and the statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Method::Context => "context",
            Method::Cfi => "cfi",
            Method::Compact => "compact",
            Method::Exidx => "exidx",
            Method::Code => "code",
            Method::FramePointer => "fp",
            Method::Scan => "scan",
            Method::Exception => "exception",
        }
    }
}

/// A walked stack, leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// Look-up address of each frame.
    pub addresses: Vec<LookupAvma>,
    /// Method that found each frame.
    pub methods: Vec<Method>,
}

impl Frames {
    /// Removes all frames; keeps the buffers.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.methods.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, address: CodeAddress, method: Method) {
        self.addresses.push(address.lookup());
        self.methods.push(method);
    }

    /// The return address of the last frame.
    pub(super) fn last_return(&self) -> CodeAddress {
        let lookup = self.addresses.last().map_or(0, |last| last.0);
        CodeAddress::Return(Avma(lookup.wrapping_add(1)))
    }

    /// Marks the last frame, pushed by its return address, as not called. A signal handler returns to the first
    /// instruction of the trampoline (signal(7)), and the first function of a context to that of
    /// `__start_context`: the code before it belongs to another function, or to none.
    pub(super) fn last_is_not_called(&mut self, address: CodeAddress) {
        if let (CodeAddress::Return(at), Some(last)) = (address, self.addresses.last_mut()) {
            *last = CodeAddress::Pc(at).lookup();
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.addresses.truncate(len);
        self.methods.truncate(len);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }
}
