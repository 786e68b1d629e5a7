//! A copy of a few bytes of code, enough for one instruction or a pattern. Most words checked for a preceding call
//! are no return addresses, so these bytes are read without the surrounding code.

/// Size of a glance.
pub const GLANCE_BYTES: usize = 16;

/// The first bytes of code at an address, as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    bytes: [u8; GLANCE_BYTES],
    len: usize,
}

impl Glance {
    /// Copies the first of these bytes.
    #[must_use]
    pub fn of(code: &[u8]) -> Glance {
        let len = code.len().min(GLANCE_BYTES);
        let mut bytes = [0; GLANCE_BYTES];
        bytes[..len].copy_from_slice(&code[..len]);
        Glance { bytes, len }
    }

    /// The bytes; empty if there is no code, or it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
