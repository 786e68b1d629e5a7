//! Code of tests: bytes from an address on, of which nothing else is known.

use super::Code;
use crate::addr::Avma;

/// The address of the first byte, and the bytes.
pub(super) struct Text(pub(super) u64, pub(super) Vec<u8>);

impl Code for Text {
    fn is_code(&self, at: Avma) -> bool {
        self.code(at).is_some()
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.1.get(usize::try_from(at.0.checked_sub(self.0)?).ok()?..).filter(|code| !code.is_empty())
    }
}
