//! A few bytes of code, copied: enough for one instruction or a pattern. Most words that are checked for a call in
//! front are no return addresses, so these bytes are read without the code around them.

/// Bytes of a glance.
pub const GLANCE_BYTES: usize = 16;

/// The first bytes of code at an address, as many as there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glance {
    bytes: [u8; GLANCE_BYTES],
    len: usize,
}

impl Glance {
    /// The first of these bytes.
    #[must_use]
    pub fn of(code: &[u8]) -> Glance {
        let len = code.len().min(GLANCE_BYTES);
        let mut bytes = [0; GLANCE_BYTES];
        bytes[..len].copy_from_slice(&code[..len]);
        Glance { bytes, len }
    }

    /// The bytes; none where there is no code, or it cannot be read.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
