//! The members of a gzip file, concatenated (RFC 1952, 2.2).
//!
//! Zero bytes after the last member are padding, as tapes and block devices leave it; gzip(1) ignores them,
//! too. Other bytes there are refused: part of the profile may be among them.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

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
