//! Files of /proc that a process makes as long as it likes: `cmdline`, `environ` (prctl(2), PR_SET_MM_MAP), `maps`
//! and `smaps`.
//!
//! Input: a path. Output: its first bytes, whether it contains some bytes, or its lines, in memory that does not
//! depend on the file's length.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes read at a time. The kernel gives at most a page of `maps` and `environ` to each read.
const PIECE_BYTES: usize = 64 << 10;

/// Most bytes searched in a file: execve(2) lets arguments and environment have 6 MiB together, 65,530 mappings of
/// ordinary files have 10 MiB.
const SEARCHED_BYTES_MAX: usize = 64 << 20;

/// Longest line: a path (`PATH_MAX`) of which each byte may be escaped by four, after numbers.
const LINE_BYTES_MAX: usize = 4 * 4096 + 256;

/// The first bytes of a file, at most so many.
///
/// # Errors
/// The system's error.
pub(super) fn head(path: impl AsRef<Path>, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(bytes_max as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Whether a file contains these bytes.
///
/// # Errors
/// The system's error; [`io::ErrorKind::FileTooLarge`] if they are not in as much of it as is searched.
pub(super) fn contains(path: impl AsRef<Path>, needle: &[u8]) -> io::Result<bool> {
    is_in(File::open(path)?, needle)
}

fn is_in(mut from: impl Read, needle: &[u8]) -> io::Result<bool> {
    let mut piece = vec![0; PIECE_BYTES + needle.len()];
    let (mut held, mut searched) = (0, 0);
    while searched < SEARCHED_BYTES_MAX {
        let read = read_some(&mut from, &mut piece[held..])?;
        if read == 0 {
            return Ok(needle.is_empty());
        }
        searched += read;
        let end = held + read;
        if memchr::memmem::find(&piece[..end], needle).is_some() {
            return Ok(true);
        }
        // It may begin in this piece and end in the next one.
        held = needle.len().saturating_sub(1).min(end);
        piece.copy_within(end - held..end, 0);
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

/// Calls `each` with the lines of a file until it breaks, without those that are too long, and without those after as
/// much as is searched.
///
/// # Errors
/// The system's error; lines before it have been passed on.
pub(super) fn for_each_line(
    path: impl AsRef<Path>,
    each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    split(File::open(path)?.take(SEARCHED_BYTES_MAX as u64), b'\n', each)
}

/// Calls `each` with the variables of an environment, with the exceptions of [`for_each_line`].
///
/// # Errors
/// As there.
pub(super) fn for_each_variable(path: impl AsRef<Path>, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let each = |variable: &[u8]| {
        each(variable);
        ControlFlow::Continue(())
    };
    split(File::open(path)?.take(SEARCHED_BYTES_MAX as u64), 0, each)
}

fn split(
    mut from: impl Read,
    separator: u8,
    mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES.max(LINE_BYTES_MAX)];
    // `piece[..held]` begins a line; `is_rest`: it began before and is too long.
    let (mut held, mut is_rest) = (0, false);
    loop {
        let read = read_some(&mut from, &mut piece[held..])?;
        let end = held + read;
        let mut begin = 0;
        while let Some(length) = memchr::memchr(separator, &piece[begin..end]) {
            let is_whole = !std::mem::take(&mut is_rest) && length <= LINE_BYTES_MAX;
            if is_whole && each(&piece[begin..begin + length]).is_break() {
                return Ok(());
            }
            begin += length + 1;
        }
        if read == 0 {
            if !is_rest && begin < end {
                let _ = each(&piece[begin..end]);
            }
            return Ok(());
        }
        held = end - begin;
        if held > LINE_BYTES_MAX {
            (held, is_rest) = (0, true);
        }
        piece.copy_within(end - held..end, 0);
    }
}

fn read_some(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Gives a few bytes to each read, then nothing, or without end.
    struct Slow<'t> {
        text: &'t [u8],
        step: usize,
        endless: bool,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.text.is_empty() && self.endless {
                into.fill(b'a');
                return Ok(into.len());
            }
            let count = self.step.min(self.text.len()).min(into.len());
            into[..count].copy_from_slice(&self.text[..count]);
            self.text = &self.text[count..];
            Ok(count)
        }
    }

    #[test]
    fn bytes_are_found_wherever_pieces_end() {
        for step in 1..20 {
            let of = |text, needle: &[u8]| is_in(Slow { text, step, endless: false }, needle).unwrap();
            assert!(of(b"A=1\0LD_PRELOAD=/x/heap.so\0", b"/x/heap.so"), "{step}");
            assert!(of(b"aaaaab", b"aaab") && !of(b"aaaaab", b"aabb") && !of(b"", b"a"), "{step}");
        }
    }

    #[test]
    fn a_file_without_end_is_given_up() {
        let endless = || Slow { text: b"head", step: 3, endless: true };
        assert_eq!(is_in(endless(), b"zz").unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(is_in(endless(), b"head").unwrap());
        assert!(endless().take(1 << 20).read_to_end(&mut Vec::new()).is_ok());
    }

    #[test]
    fn lines_are_those_of_the_text_wherever_pieces_end() {
        let long = vec![b'l'; LINE_BYTES_MAX];
        let longer = vec![b'm'; 3 * PIECE_BYTES];
        let text = [&b"a\n\nbcd\n"[..], &long, b"\n", &longer, b"\n", b"end\n", &longer, b"x\nlast"].concat();
        for step in [1, 2, 3, 1000, LINE_BYTES_MAX, PIECE_BYTES, usize::MAX] {
            let mut lines = Vec::new();
            let from = Slow { text: &text, step, endless: false };
            let push = |line: &[u8]| {
                lines.push(line.to_vec());
                ControlFlow::Continue(())
            };
            split(from, b'\n', push).unwrap();
            let expected: [&[u8]; 6] = [b"a", b"", b"bcd", &long, b"end", b"last"];
            assert_eq!(lines, expected, "{step}");
            // A break is the end, wherever the line ends.
            let (mut from, mut last) = (Slow { text: &text, step, endless: true }, Vec::new());
            let is_last = |line: &[u8]| {
                last = line.to_vec();
                if line == b"bcd" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            split(&mut from, b'\n', is_last).unwrap();
            assert_eq!(last, b"bcd", "{step}");
        }
    }
}
