//! The frames that a walk found, each with how it was found, and the methods of walking.

use crate::addr::{Avma, CodeAddress, LookupAvma};

/// How stacks are walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnwindMethod {
    /// Unwind information where it exists, code and frame pointers where it does not, and a
    /// search of the stack as the last resort; every step checked.
    #[default]
    Auto,
    /// Frame pointers only (but for the caller of the leaf).
    FramePointer,
    /// Unwind information and the code of functions without it; on 32-bit Arm DWARF rows only.
    Cfi,
    /// The tables of 32-bit Arm's exception handling ABI only.
    Exidx,
    /// What the instructions of functions say only (prologue analysis); 32-bit Arm.
    Code,
    /// A search of the stack only; 32-bit Arm.
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

    /// Whether only 32-bit Arm is walked so.
    #[must_use]
    pub fn is_of_arm(self) -> bool {
        matches!(self, UnwindMethod::Exidx | UnwindMethod::Code | UnwindMethod::Scan)
    }
}

/// How a frame was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The registers of the stopped thread.
    Context,
    /// DWARF unwind information of its callee.
    Cfi,
    /// Compact unwind information (Mach-O).
    Compact,
    /// The tables of 32-bit Arm's exception handling ABI, of its callee.
    Exidx,
    /// The instructions of its callee, which has no unwind information.
    Code,
    /// The frame record of its callee.
    FramePointer,
    /// A word on the stack that looks like a return address.
    Scan,
    /// What an exception of an M-profile core left on the stack.
    Exception,
}

impl Method {
    /// Every method, in the order of their numbers.
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
    /// Where each frame's code is looked up.
    pub addresses: Vec<LookupAvma>,
    /// How each was found.
    pub methods: Vec<Method>,
}

impl Frames {
    /// Forgets all of them; the buffers stay.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.methods.clear();
    }

    #[inline]
    pub(super) fn push(&mut self, address: CodeAddress, method: Method) {
        self.addresses.push(address.lookup());
        self.methods.push(method);
    }

    /// The return address by which the last frame was pushed.
    pub(super) fn last_return(&self) -> CodeAddress {
        let lookup = self.addresses.last().map_or(0, |last| last.0);
        CodeAddress::Return(Avma(lookup.wrapping_add(1)))
    }

    /// Says that the last frame, which was pushed by its return address, called nothing. The
    /// handler of a signal returns to the first instruction of the trampoline (signal(7)), and
    /// so does the first function of a context to that of `__start_context`: the code in front
    /// of it belongs to another function, or to none.
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
