//! Encodings around a profile: text other than UTF-8 (UTF-16 with a byte order mark, single bytes as Latin-1), and
//! the members of a gzip file.
//!
//! Windows shells write UTF-16; old tools and file names have the latter. Each byte of Latin-1 is a separate
//! character, so that distinct names stay distinct.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

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

// ---- The members of a gzip file, concatenated (RFC 1952, 2.2).
//
// Zero bytes after the last member are padding, as tapes and block devices leave it; gzip(1) ignores them,
// too. Other bytes there are refused: part of the profile may be among them.

/// The first bytes of each member.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Error for data after the last member.
const TRAILING: &str =
    "data after the end of the packed profile; unpack it with gzip -dc FILE > OUT, which ignores that";

/// Unpacks one member after the other.
pub(super) struct Members<R> {
    /// `None` before the next one begins.
    member: Option<GzDecoder<R>>,
    ended: bool,
}

impl<R: BufRead> Members<R> {
    /// Begins with the first member.
    pub(super) fn new(packed: R) -> Members<R> {
        Members { member: Some(GzDecoder::new(packed)), ended: false }
    }

    /// The packed bytes.
    pub(super) fn get_ref(&self) -> Option<&R> {
        self.member.as_ref().map(GzDecoder::get_ref)
    }

    /// Starts the next member; returns whether there is one.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(member) = self.member.as_mut() else { return Ok(false) };
        let packed = member.get_mut();
        let mut is_padded = false;
        let first = loop {
            let bytes = packed.fill_buf()?;
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            let Some(first) = bytes.get(zeros).copied().or(if bytes.is_empty() { None } else { Some(0) })
            else {
                break None;
            };
            packed.consume(zeros);
            is_padded |= zeros > 0;
            if first != 0 {
                break Some(first);
            }
        };
        match first {
            None => Ok(false),
            Some(first) if first == MAGIC[0] && !is_padded => {
                self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
                Ok(true)
            }
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, TRAILING)),
        }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = self.member.as_mut().filter(|_| !self.ended && !into.is_empty()) else {
                return Ok(0);
            };
            let read = member.read(into)?;
            if read > 0 {
                return Ok(read);
            }
            self.ended = !self.advance()?;
        }
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

#[cfg(test)]
mod gzip_tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(text).expect("written");
        packed.finish().expect("packed")
    }

    /// Unpacks through a buffer of this size.
    fn unpacked(packed: &[u8], buffer: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Members::new(io::BufReader::with_capacity(buffer, packed)).read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn members_and_padding_are_read_and_other_data_is_refused() {
        let (one, two) = (packed(b"main;a 1\n"), packed(b"main;b 2\n"));
        for buffer in [1, 2, 3, 10, 29, 30, 31, 4096] {
            let read = |parts: &[&[u8]]| unpacked(&parts.concat(), buffer);
            assert_eq!(read(&[&one]).expect("read"), b"main;a 1\n");
            assert_eq!(read(&[&one, &two]).expect("read"), b"main;a 1\nmain;b 2\n");
            assert_eq!(read(&[&one, &packed(b""), &two]).expect("read"), b"main;a 1\nmain;b 2\n");
            assert_eq!(read(&[&one, &two, &[0; 512]]).expect("read"), b"main;a 1\nmain;b 2\n");
            for trailing in [&b"garbage"[..], b"\0\0x", b"main;b 2\n"] {
                let error = read(&[&one, trailing]).expect_err("refused");
                assert_eq!(error.to_string(), TRAILING);
            }
            let cut = &one[..one.len() - 1];
            assert_eq!(read(&[cut]).expect_err("cut off").kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(read(&[&one, cut]).expect_err("cut off").kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
