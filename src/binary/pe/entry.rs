//! An entry of the function table (`.pdata`): bytes in, addresses out.

/// A `RUNTIME_FUNCTION`: addresses relative to the image base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address.
    pub begin: u32,
    /// First address after it.
    pub end: u32,
    /// Address of its unwind information.
    pub info: u32,
}

impl Entry {
    /// Reads an entry; `None` if it is malformed.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Entry> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Entry { begin: word(0)?, end: word(4)?, info: word(8)? }).filter(|entry| entry.begin < entry.end)
    }
}
