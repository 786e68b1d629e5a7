//! Reads a file of any known format as a saved profile.
//!
//! The content determines the format; the file name is for messages only. Input: bytes, hostile. Output:
//! [`SavedProfile`], or one line with the file and the position. All memory is bounded: packed files by
//! [`RATIO_MAX`] and [`SMALL_BYTES_MAX`], formats by their own limits.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::extra::Extra;
use super::failure::{broken, refused};
use super::gzip::{self, Members};
use super::tally::Tally;
use super::{encoding, firefox, folded_read, foreign, otlp, perf_script, pprof, speedscope};
use crate::error::{Error, ErrorKind, Result, cannot_read};
use crate::profile::saved::SavedProfile;

/// Most bytes of a pprof or OTLP file, unpacked: the whole file is read into memory.
pub const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of a JSON file, which is read into memory as a whole: short texts and numbers take up to ten
/// times their text in memory, so that this is 2.5 GiB in addition to the resulting profile.
pub const JSON_BYTES_MAX: u64 = 256 << 20;

/// Highest unpacking ratio. Stacks as text are repetitive: real files reach 100; the maximum of deflate is
/// 1032. Relative to the bytes read so far, not to the length of the file, so that a file that unpacks to
/// more is refused at its beginning.
pub const RATIO_MAX: u64 = 500;
/// Up to this unpacked size any ratio is accepted.
const RATIO_FREE_BYTES: u64 = 32 << 20;
/// Most unpacked bytes of a small packed file; one of more than 1/[`LARGE_RATIO_MAX`] of this is large.
/// Reading costs CPU time per unpacked byte.
pub const SMALL_BYTES_MAX: u64 = 96 << 20;
/// Highest unpacking ratio of a large packed file.
pub const LARGE_RATIO_MAX: u64 = 32;

/// Bytes to read for detecting the format.
const HEAD_BYTES: u64 = 4096;

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Handling of invalid lines and samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Invalid lines and samples are skipped and reported, up to half of them.
    #[default]
    Lenient,
    /// The first invalid one makes the file invalid.
    Strict,
}

/// A profile that was read, and remarks on it.
#[derive(Debug)]
pub struct ReadProfile {
    /// The profile.
    pub saved: SavedProfile,
    /// One line each: skipped and excluded parts.
    pub remarks: Vec<String>,
}

/// Reads a file; the caller handles `-` as standard input.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that has the file and the position.
pub fn read_file(path: &Path, strictness: Strictness) -> Result<ReadProfile> {
    read_file_of_type(path, strictness, None)
}

/// Reads a file like [`read_file`]; of several values of a stack, those of this type.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that has the file and the position.
pub fn read_file_of_type(
    path: &Path,
    strictness: Strictness,
    value_type: Option<&str>,
) -> Result<ReadProfile> {
    let name = path.display().to_string();
    let cannot = |error: io::Error| cannot_read(&name, error);
    let file = File::open(path).map_err(cannot)?;
    let about = file.metadata().map_err(cannot)?;
    if about.is_dir() {
        let text = format!("`{name}` is a directory, expected a profile; name a file in it");
        return Err(Error::new(ErrorKind::Input, text));
    }
    // A pipe has no length; its bytes are counted on arrival.
    let packed_bytes = if about.is_file() { about.len() } else { 0 };
    read_of_type(BufReader::with_capacity(1 << 16, file), &name, packed_bytes, strictness, value_type)
}

/// Reads a profile from any reader; `name` is for errors, `packed_bytes` the length of the file, or 0 if
/// unknown.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that has the file and the position.
pub fn read(reader: impl BufRead, name: &str, packed_bytes: u64) -> Result<SavedProfile> {
    read_with(reader, name, packed_bytes, Strictness::Lenient).map(|read| read.saved)
}

/// Reads a profile from any reader, with remarks on its invalid parts.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that has the file and the position.
pub fn read_with(
    reader: impl BufRead,
    name: &str,
    packed_bytes: u64,
    strictness: Strictness,
) -> Result<ReadProfile> {
    read_of_type(reader, name, packed_bytes, strictness, None)
}

/// Reads a profile from any reader like [`read_with`]; of several values of a stack, those of this type.
///
/// # Errors
/// [`ErrorKind::Input`] with a line that has the file and the position, or if it has no values of the type.
pub fn read_of_type(
    reader: impl BufRead,
    name: &str,
    packed_bytes: u64,
    strictness: Strictness,
    value_type: Option<&str>,
) -> Result<ReadProfile> {
    let mut tally = Tally::new(name).with_value_type(value_type);
    let saved = any(reader, name, packed_bytes, &mut tally)?;
    if let Some(wanted) = value_type.filter(|wanted| saved.about.value_type.as_deref() != Some(wanted)) {
        let what =
            format!("its stacks have one value, {}; --type {wanted} is for pprof and OTLP", saved.about.unit);
        return Err(refused(name, &what));
    }
    if let Some(remark) = saved.cut_names() {
        tally.remark(&remark);
    }
    let remarks = tally.judge(strictness == Strictness::Strict)?;
    Ok(ReadProfile { saved, remarks })
}

/// A profile, gzipped or not.
fn any(mut reader: impl BufRead, name: &str, packed_bytes: u64, tally: &mut Tally) -> Result<SavedProfile> {
    let head = head(&mut reader, name)?;
    if !head.starts_with(&gzip::MAGIC) {
        return unpacked(head, reader, name, tally);
    }
    let counted = CountingReader { inner: Cursor::new(head).chain(reader), consumed: 0 };
    let unpacking = Bounded { inner: Members::new(counted), packed_bytes, unpacked_bytes: 0 };
    let mut reader = BufReader::with_capacity(1 << 16, unpacking);
    let head = self::head(&mut reader, name)?;
    if head.starts_with(&gzip::MAGIC) {
        return Err(refused(name, "it is packed twice; unpack it once"));
    }
    unpacked(head, reader, name, tally)
}

/// The first bytes of a reader.
fn head(reader: &mut impl Read, name: &str) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    reader.take(HEAD_BYTES).read_to_end(&mut head).map_err(|error| broken(name, error))?;
    Ok(head)
}

fn unpacked(head: Vec<u8>, rest: impl BufRead, name: &str, tally: &mut Tally) -> Result<SavedProfile> {
    if encoding::is_utf16(&head) {
        let mut reader = encoding::utf16(Cursor::new(head).chain(rest));
        let head = self::head(&mut reader, name)?;
        return text_or_pprof(head, reader, name, tally);
    }
    text_or_pprof(head, rest, name, tally)
}

/// Reads a profile that is neither packed nor UTF-16.
fn text_or_pprof(
    mut head: Vec<u8>,
    rest: impl BufRead,
    name: &str,
    tally: &mut Tally,
) -> Result<SavedProfile> {
    // Windows editors and shells write a byte order mark.
    if head.starts_with(&BYTE_ORDER_MARK) {
        head.drain(..BYTE_ORDER_MARK.len());
    }
    if let Some(advice) = foreign::advice(&head, name) {
        return Err(refused(name, &advice));
    }
    if head.starts_with(&firefox::slabs::MAGIC) {
        let bytes = whole(head, rest, name, (JSON_BYTES_MAX, "JSON_BYTES_MAX"))?;
        let bytes = firefox::slabs::to_json(&bytes, JSON_BYTES_MAX as usize)
            .map_err(|why| refused(name, &why.to_string()).caused_by(why))?;
        return json(&bytes, name, tally);
    }
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    // Thread names can be any bytes.
    if perf_script::is_perf_script(&String::from_utf8_lossy(&head)) {
        perf_script::read_lines(Cursor::new(head.as_slice()).chain(rest), name, tally)
    } else if !is_text(&head) && pprof::is_pprof(&head, (head.len() as u64) < HEAD_BYTES) {
        let bytes = whole(head, rest, name, (UNPACKED_BYTES_MAX, "UNPACKED_BYTES_MAX"))?;
        let read = if otlp::is_otlp(&bytes) { otlp::read::read_samples } else { pprof::read::read_samples };
        read(&bytes, tally).map_err(|why| refused(name, &why.to_string()).caused_by(why))
    } else if first == Some(&b'{') {
        let bytes = whole(head, rest, name, (JSON_BYTES_MAX, "JSON_BYTES_MAX"))?;
        json(&bytes, name, tally)
    } else {
        folded_read::read_lines(Cursor::new(head.as_slice()).chain(rest), name, tally)
    }
}

/// Whether the head is text; its last character may be incomplete.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            let whole = head.get(..error.valid_up_to()).unwrap_or_default();
            std::str::from_utf8(whole).unwrap_or_default()
        }
        Err(_) => return false,
    };
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x1b'))
}

/// Reads the rest, up to a limit with a name for errors.
fn whole(head: Vec<u8>, rest: impl Read, name: &str, limit: (u64, &str)) -> Result<Vec<u8>> {
    let (limit, limit_name) = limit;
    let mut bytes = head;
    let room = limit.saturating_sub(bytes.len() as u64);
    let read = rest.take(room + 1).read_to_end(&mut bytes).map_err(|error| broken(name, error))?;
    if read as u64 > room {
        let limit = limit >> 20;
        return Err(refused(name, &format!("larger than {limit} MiB unpacked ({limit_name})")));
    }
    Ok(bytes)
}

/// Top-level keys of the JSON formats; each has some of them.
#[derive(Deserialize)]
struct AnyJson<'a> {
    #[serde(borrow, default)]
    shared: Option<Shared<'a>>,
    #[serde(borrow, default)]
    profiles: Option<Vec<speedscope::OneProfile<'a>>>,
    #[serde(borrow, default)]
    stackprof: Option<Extra<'a>>,
    #[serde(borrow, default)]
    meta: Option<firefox::Meta<'a>>,
    #[serde(borrow, default)]
    libs: Vec<firefox::Library<'a>>,
    #[serde(borrow, default)]
    threads: Option<Vec<firefox::Thread<'a>>>,
}

/// `shared`, a key of two formats: frames of speedscope, tables of the Firefox Profiler.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shared<'a> {
    #[serde(borrow, default)]
    frames: Option<Vec<speedscope::FileFrame<'a>>>,
    #[serde(default)]
    stack_table: Option<firefox::StackTable>,
    #[serde(default)]
    frame_table: Option<firefox::FrameTable>,
    #[serde(default)]
    func_table: Option<firefox::FuncTable>,
    #[serde(default)]
    resource_table: Option<firefox::ResourceTable>,
    #[serde(borrow, default)]
    string_array: Option<Vec<Cow<'a, str>>>,
}

impl Shared<'_> {
    fn tables(&self) -> firefox::Tables<'_> {
        firefox::Tables {
            stacks: self.stack_table.as_ref(),
            frames: self.frame_table.as_ref(),
            functions: self.func_table.as_ref(),
            resources: self.resource_table.as_ref(),
            names: self.string_array.as_deref(),
        }
    }
}

fn json(bytes: &[u8], name: &str, tally: &mut Tally) -> Result<SavedProfile> {
    let any: AnyJson<'_> = serde_json::from_slice(bytes).map_err(|error| {
        if let Some(advice) = advice(bytes) {
            return refused(name, advice);
        }
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        let place = format!("{name}:{}:{}", error.line(), error.column());
        Error::new(ErrorKind::Input, format!("{place}: {what}; expected a speedscope or Firefox profile"))
            .caused_by(error)
    })?;
    let saved = match any {
        AnyJson {
            shared: Some(Shared { frames: Some(frames), .. }),
            profiles: Some(profiles),
            stackprof,
            ..
        } => speedscope::read(&frames, &profiles, stackprof.as_ref(), tally),
        AnyJson { meta: Some(meta), threads: Some(threads), shared, stackprof, libs, .. } => {
            let shared = shared.unwrap_or_default();
            firefox::read(&meta, &threads, shared.tables(), &libs, stackprof.as_ref(), tally)
        }
        _ => Err(advice(bytes)
            .unwrap_or("neither a speedscope profile (shared, profiles) nor one of Firefox (meta, threads)")
            .into()),
    };
    saved.map_err(|why| refused(name, &why.to_string()).caused_by(why))
}

/// Advice on an unsupported JSON file.
fn advice(bytes: &[u8]) -> Option<&'static str> {
    let keys: HashMap<Cow<'_, str>, IgnoredAny> = serde_json::from_slice(bytes).ok()?;
    let has = |key: &str| keys.contains_key(key);
    if !(has("meta") && has("threads")) {
        return foreign::json_advice(has);
    }
    let ThreadKeys { threads } = serde_json::from_slice(bytes).ok()?;
    let is_gecko = threads.first().is_some_and(|thread| thread.contains_key("stringTable"));
    is_gecko.then_some(
        "a Gecko profile, the unprocessed form that Firefox records; open it at profiler.firefox.com, \
         save it there and render that file",
    )
}

/// Keys that identify unprocessed profiles of Firefox.
#[derive(Deserialize)]
struct ThreadKeys<'a> {
    #[serde(borrow)]
    threads: Vec<HashMap<Cow<'a, str>, IgnoredAny>>,
}

/// A reader that counts consumed bytes.
struct CountingReader<R> {
    inner: R,
    consumed: u64,
}

impl<R: BufRead> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.consumed = self.consumed.saturating_add(read as u64);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.consumed = self.consumed.saturating_add(amount as u64);
    }
}

/// Unpacks, with an error beyond the limits.
struct Bounded<R> {
    inner: Members<CountingReader<R>>,
    /// Length of the packed file, if known.
    packed_bytes: u64,
    unpacked_bytes: u64,
}

impl<R: BufRead> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(into)?;
        self.unpacked_bytes = self.unpacked_bytes.saturating_add(read as u64);
        let consumed = self.inner.get_ref().map_or(0, |packed| packed.consumed);
        let refused = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        if self.unpacked_bytes > consumed.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES) {
            return refused(format!("unpacked it is more than {RATIO_MAX} times larger (RATIO_MAX)"));
        }
        let packed_bytes = self.packed_bytes.max(consumed);
        if self.unpacked_bytes > packed_bytes.saturating_mul(LARGE_RATIO_MAX).max(SMALL_BYTES_MAX) {
            return refused(format!(
                "unpacked it is larger than {} MiB and more than {LARGE_RATIO_MAX} times larger than packed \
                 (SMALL_BYTES_MAX); unpack it with gunzip if it is to be read",
                SMALL_BYTES_MAX >> 20
            ));
        }
        Ok(read)
    }
}
