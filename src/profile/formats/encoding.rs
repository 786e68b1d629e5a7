//! Text other than UTF-8: UTF-16 with a byte order mark, and single bytes as Latin-1.
//!
//! Windows shells write the former; old tools and file names have the latter. Each byte of Latin-1 is a
//! separate character, so that distinct names stay distinct.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

/// Decodes bytes as UTF-8, else as Latin-1.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// Byte order of UTF-16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// Whether a head begins with a byte order mark of UTF-16.
pub(super) fn is_utf16(head: &[u8]) -> bool {
    order(head).is_some()
}

fn order(head: &[u8]) -> Option<Order> {
    match head {
        [0xff, 0xfe, ..] => Some(Order::Little),
        [0xfe, 0xff, ..] => Some(Order::Big),
        _ => None,
    }
}

/// Converts a reader of UTF-16 with its mark to one of UTF-8. Invalid units become U+FFFD.
pub(super) fn utf16<R: Read>(reader: R) -> impl BufRead {
    BufReader::with_capacity(
        1 << 16,
        Utf16 { inner: reader, order: None, rest: Vec::new(), text: Vec::new(), at: 0 },
    )
}

struct Utf16<R> {
    inner: R,
    order: Option<Order>,
    /// Bytes of an incomplete character.
    rest: Vec<u8>,
    /// Decoded text, and the start of its unread part.
    text: Vec<u8>,
    at: usize,
}

impl<R: Read> Utf16<R> {
    /// Decodes more; false at the end.
    fn decode(&mut self) -> io::Result<bool> {
        const BLOCK_BYTES: usize = 1 << 14;
        let known = self.rest.len();
        self.rest.resize(known + BLOCK_BYTES, 0);
        let read = match self.inner.read(self.rest.get_mut(known..).unwrap_or_default()) {
            Ok(read) => read.min(BLOCK_BYTES),
            Err(error) => {
                self.rest.truncate(known);
                return Err(error);
            }
        };
        self.rest.truncate(known + read);
        if self.order.is_none() {
            if self.rest.len() < 2 && read > 0 {
                return Ok(true);
            }
            self.order = Some(order(&self.rest).unwrap_or(Order::Little));
            self.rest.drain(..2.min(self.rest.len()));
        }
        let order = self.order.unwrap_or(Order::Little);
        let unit = |pair: &[u8]| match (pair, order) {
            ([a, b], Order::Little) => u16::from_le_bytes([*a, *b]),
            ([a, b], Order::Big) => u16::from_be_bytes([*a, *b]),
            // Half a unit at the end.
            _ => 0xfffd,
        };
        let mut end = if read == 0 { self.rest.len() } else { self.rest.len() & !1 };
        // The second unit of a surrogate pair may follow.
        if read > 0
            && let Some(last) = end.checked_sub(2).and_then(|at| self.rest.get(at..end))
            && (0xd800..0xdc00).contains(&unit(last))
        {
            end -= 2;
        }
        let units = self.rest.get(..end).unwrap_or_default().chunks(2).map(unit);
        self.text.clear();
        self.at = 0;
        for c in char::decode_utf16(units) {
            let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        self.rest.drain(..end);
        Ok(read > 0)
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.text.len() {
            if !self.decode()? && self.text.is_empty() {
                return Ok(0);
            }
        }
        let left = self.text.get(self.at..).unwrap_or_default();
        let len = left.len().min(into.len());
        if let (Some(to), Some(from)) = (into.get_mut(..len), left.get(..len)) {
            to.copy_from_slice(from);
        }
        self.at += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns one byte at a time.
    struct Bytes<'a>(&'a [u8]);

    impl Read for Bytes<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into.get_mut(..1).unwrap_or_default())
        }
    }

    #[test]
    fn utf16_of_both_orders_becomes_utf8() {
        let text = format!("main;é {} 3\n", "🔥".repeat(9000));
        let encoded = |bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
            std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(bytes).collect()
        };
        for bytes in [encoded(u16::to_le_bytes), encoded(u16::to_be_bytes)] {
            assert!(is_utf16(&bytes));
            let mut whole = String::new();
            utf16(bytes.as_slice()).read_to_string(&mut whole).expect("reads");
            assert_eq!(whole, text);
            let mut pieces = String::new();
            utf16(Bytes(&bytes)).read_to_string(&mut pieces).expect("reads");
            assert_eq!(pieces, text);
        }
    }

    #[test]
    fn broken_utf16_ends() {
        for (bytes, expected) in [
            (&b"\xff\xfe"[..], ""),
            (b"\xff", "\u{fffd}"),
            (b"\xff\xfea", "\u{fffd}"),
            (b"\xff\xfe\x00\xd8", "\u{fffd}"),
            (b"\xff\xfe\x00\xd8a\x00", "\u{fffd}a"),
            (b"", ""),
        ] {
            let mut out = String::new();
            utf16(bytes).read_to_string(&mut out).expect("reads");
            // An incomplete mark is no mark.
            let expected = if bytes == b"\xff" { "" } else { expected };
            assert_eq!(out, expected, "{bytes:?}");
        }
    }

    #[test]
    fn other_bytes_are_latin_1() {
        assert_eq!(text(b"caf\xe9"), "café");
        assert_eq!(text("café".as_bytes()), "café");
    }
}
