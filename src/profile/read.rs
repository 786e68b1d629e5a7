//! A file of any known format as a saved profile.
//!
//! What a file is, its content says; its name is for messages only. Input: bytes, hostile.
//! Output: [`Saved`], or one line that names the file and the place. Nothing is held that is
//! not in a limit: packed files by [`MAX_UNPACKED_BYTES`], formats by their own.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;

use super::saved::Saved;
use super::{firefox, folded_read, perf_script, pprof, speedscope};
use crate::error::{Error, ErrorKind, Result, io_text};

/// Most bytes of a pprof or JSON file, unpacked: these are read as a whole.
pub const MAX_UNPACKED_BYTES: u64 = 1 << 30;

/// Most that a packed text may be larger than its file. Text of stacks repeats itself: real
/// files reach 100; deflate itself ends at 1032.
pub const MAX_RATIO: u64 = 500;
/// Packed files are unpacked to this size whatever their ratio.
const RATIO_FREE_BYTES: u64 = 64 << 20;

/// Bytes at the front by which formats are told apart.
const HEAD_BYTES: u64 = 4096;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a file; `-` is standard input where the caller says so, not here.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that names the file and the place.
pub fn read_file(path: &Path) -> Result<Saved> {
    let name = path.display().to_string();
    let cannot =
        |error: &io::Error| Error::new(ErrorKind::Input, format!("cannot read `{name}`: {}", io_text(error)));
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let about = file.metadata().map_err(|error| cannot(&error))?;
    if about.is_dir() {
        return Err(Error::new(ErrorKind::Input, format!("`{name}` is a directory, expected a profile")));
    }
    // A pipe has no length; what it brings is bounded like a small file.
    let packed_bytes = if about.is_file() { about.len() } else { 0 };
    read(BufReader::with_capacity(1 << 16, file), &name, packed_bytes)
}

/// Reads a profile from anywhere; `name` is what errors call it, `packed_bytes` the length of
/// the file if it has one.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that names the file and the place.
pub fn read(mut reader: impl BufRead, name: &str, packed_bytes: u64) -> Result<Saved> {
    let head = head(&mut reader, name)?;
    if !head.starts_with(&GZIP) {
        return unpacked(head, reader, name);
    }
    let allowed = packed_bytes.saturating_mul(MAX_RATIO).max(RATIO_FREE_BYTES);
    let unpacking = Bounded { inner: MultiGzDecoder::new(Cursor::new(head).chain(reader)), left: allowed };
    let mut reader = BufReader::with_capacity(1 << 16, unpacking);
    let head = self::head(&mut reader, name)?;
    if head.starts_with(&GZIP) {
        return Err(refused(name, "it is packed twice; unpack it once"));
    }
    unpacked(head, reader, name)
}

/// The first bytes of a reader.
fn head(reader: &mut impl Read, name: &str) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    reader.take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| broken(name, &error))?;
    Ok(head)
}

fn unpacked(head: Vec<u8>, rest: impl BufRead, name: &str) -> Result<Saved> {
    let text = text_of(&head);
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    match text {
        None if is_binary(&head) => {
            let bytes = whole(head, rest, name)?;
            pprof::read::read(&bytes).map_err(|what| refused(name, &what))
        }
        Some(text) if perf_script::is_perf_script(text) => {
            perf_script::read(Cursor::new(head.as_slice()).chain(rest), name)
        }
        _ if first == Some(&b'{') => {
            let bytes = whole(head, rest, name)?;
            json(&bytes, name)
        }
        _ => folded_read::read(Cursor::new(head.as_slice()).chain(rest), name),
    }
}

/// The head as text, if it is one; its last character may be cut.
fn text_of(head: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x1b');
    text.chars().all(is_text).then_some(text)
}

/// Whether bytes that are no text begin as a protocol buffer with the fields of a profile.
fn is_binary(head: &[u8]) -> bool {
    let (Some(key), Some(_)) = (head.first(), head.get(1)) else { return false };
    let (field, wire) = (key >> 3, key & 7);
    (1..=15).contains(&field) && matches!(wire, 0 | 2)
}

/// Everything that is left, up to the limit.
fn whole(head: Vec<u8>, rest: impl Read, name: &str) -> Result<Vec<u8>> {
    let mut bytes = head;
    let room = MAX_UNPACKED_BYTES.saturating_sub(bytes.len() as u64);
    let read = rest.take(room + 1).read_to_end(&mut bytes).map_err(|error| broken(name, &error))?;
    if read as u64 > room {
        let limit = MAX_UNPACKED_BYTES >> 20;
        return Err(refused(name, &format!("larger than {limit} MiB unpacked (MAX_UNPACKED_BYTES)")));
    }
    Ok(bytes)
}

/// What the JSON formats have at their top; each has some of it.
#[derive(Deserialize)]
struct AnyJson<'a> {
    #[serde(borrow, default)]
    shared: Option<speedscope::Shared<'a>>,
    #[serde(borrow, default)]
    profiles: Option<Vec<speedscope::OneProfile<'a>>>,
    #[serde(borrow, default)]
    stackprof: Option<speedscope::Extra<'a>>,
    #[serde(borrow, default)]
    meta: Option<firefox::Meta<'a>>,
    #[serde(borrow, default)]
    threads: Option<Vec<firefox::Thread<'a>>>,
}

fn json(bytes: &[u8], name: &str) -> Result<Saved> {
    let any: AnyJson<'_> = serde_json::from_slice(bytes).map_err(|error| {
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        let place = format!("{name}:{}:{}", error.line(), error.column());
        Error::new(ErrorKind::Input, format!("{place}: {what}; expected a speedscope or Firefox profile"))
    })?;
    let saved =
        match any {
            AnyJson { shared: Some(shared), profiles: Some(profiles), stackprof, .. } => {
                speedscope::read(&shared, &profiles, stackprof.as_ref())
            }
            AnyJson { meta: Some(meta), threads: Some(threads), .. } => firefox::read(&meta, &threads),
            _ => Err("neither a speedscope profile (shared, profiles) nor one of Firefox (meta, threads)"
                .to_owned()),
        };
    saved.map_err(|what| refused(name, &what))
}

/// A reader that ends with an error when it gives more than it may.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            let text = format!("unpacked it is more than {MAX_RATIO} times larger (MAX_RATIO)");
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        Ok(read)
    }
}

fn broken(name: &str, error: &io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the packed data ends early; was it cut off?".to_owned(),
        io::ErrorKind::InvalidInput => format!("the packed data is damaged: {error}"),
        _ => io_text(error),
    };
    refused(name, &what)
}

fn refused(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::Input, format!("{name}: {what}"))
}
