//! Walking on i386, with what `intel/` shares with x86_64. `methods.rs` says to the engine what there is at an
//! address, `records.rs` and `leaf.rs` walk by frame pointers; `start.rs` and `record.rs` know start code and prologues.
//!
//! What differs from x86_64: words of four bytes, no red zone, arguments on the stack (a function may
//! take them off when it returns), and calls of the next instruction, which ask for their own address.
//! There is no search of the stack.

mod leaf;
mod methods;
mod processor;
mod record;
mod records;
mod start;

use processor::{EAX, EBP, ESP, POINTER};

/// Code of tests.
#[cfg(test)]
mod text {
    use crate::addr::Avma;
    use crate::walk::Code;

    /// Code from 0x1000 on.
    pub(super) struct Text(pub(super) &'static [u8]);

    impl Code for Text {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.0.get(usize::try_from(at.0.checked_sub(0x1000)?).ok()?..).filter(|code| !code.is_empty())
        }
    }
}
