//! Reads a file of any known format as a saved profile.
//!
//! `foreign_advice` and `json_advice` recognize files that are not profiles and say what to do.
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

use super::encoding::{self, Members};
use super::json::Extra;
use super::tally::Tally;
use super::{firefox, folded, otlp, perf_script, pprof, speedscope};
use crate::error::{Error, ErrorKind, Result, cannot_read, io_text};
use crate::saved::SavedProfile;

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
    if !head.starts_with(&encoding::MAGIC) {
        return unpacked(head, reader, name, tally);
    }
    let counted = CountingReader { inner: Cursor::new(head).chain(reader), consumed: 0 };
    let unpacking = Bounded { inner: Members::new(counted), packed_bytes, unpacked_bytes: 0 };
    let mut reader = BufReader::with_capacity(1 << 16, unpacking);
    let head = self::head(&mut reader, name)?;
    if head.starts_with(&encoding::MAGIC) {
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
    if let Some(advice) = unsupported_file_advice(&head, name) {
        return Err(refused(name, &advice));
    }
    if head.starts_with(&firefox::read::MAGIC) {
        let bytes = whole(head, rest, name, (JSON_BYTES_MAX, "JSON_BYTES_MAX"))?;
        let bytes = firefox::read::to_json(&bytes, JSON_BYTES_MAX as usize)
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
        folded::read_lines(Cursor::new(head.as_slice()).chain(rest), name, tally)
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
        return json_advice(has);
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

// ---- Unsupported files that users mistake for profiles: what each is, and what to do.
//
// One table, so that a new kind is one line.
const PICTURE: &str = "a picture cannot be read; render the profile that it was made of (.pb.gz, .folded)";

/// Advice on a file with this beginning; `name` is the file as a command line would name it.
pub(super) fn unsupported_file_advice(head: &[u8], name: &str) -> Option<String> {
    let starts = |magic: &[u8]| head.starts_with(magic);
    if starts(b"PERFILE2") || starts(b"2ELIFREP") || starts(b"PERFFILE") {
        // Input from a pipe has no name to pass to perf.
        let file = if name == "standard input" { "perf.data".to_owned() } else { quoted(name) };
        return Some(format!(
            "a recording of perf, which only perf reads; run: perf script -i {file} | stackprof render - -o FILE"
        ));
    }
    // A header of five words: 0, 3, 0, the period, 0.
    if starts(b"\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0") {
        return Some(format!(
            "a CPU profile of gperftools; run: go tool pprof -proto PROGRAM {} > out.pb.gz",
            quoted(name)
        ));
    }
    if starts(b"heap_v2/") {
        return Some(format!(
            "a heap profile of jemalloc; run: jeprof --collapsed PROGRAM {} > out.folded",
            quoted(name)
        ));
    }
    if is_heaptrack(head) {
        return Some(format!(
            "a recording of heaptrack; run: heaptrack_print -F out.folded {}",
            quoted(name)
        ));
    }
    let known: [(&[u8], &str); 15] = [
        (b"\x89PNG", PICTURE),
        (b"GIF8", PICTURE),
        (b"\xff\xd8\xff", PICTURE),
        (b"%PDF", PICTURE),
        (b"\x7fELF", "a program (ELF); to profile it, run: stackprof -- PROGRAM"),
        (b"\xcf\xfa\xed\xfe", "a program (Mach-O); to profile it, run: stackprof -- PROGRAM"),
        (
            b"FLR\0",
            "a recording of Java Flight Recorder; convert it with async-profiler: jfrconv FILE out.folded",
        ),
        (b"Nettrace", "a trace of .NET; run: dotnet-trace convert --format speedscope FILE"),
        (b"MOJ", "a recording of austin in its binary form (MOJO); run: mojo2austin FILE out.txt"),
        (
            b"memray\0",
            "a recording of memray; open it with memray flamegraph, or record: stackprof heap -- PROGRAM",
        ),
        (b"!<arch>", "an archive, expected a profile"),
        (b"PK\x03\x04", "a zip archive; unpack it, expected a profile"),
        (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it with unzstd"),
        (b"\xfd7zXZ\0", "packed with xz; unpack it with unxz"),
        (b"BZh", "packed with bzip2; unpack it with bunzip2"),
    ];
    if let Some((_, advice)) = known.iter().find(|(magic, _)| starts(magic)) {
        return Some((*advice).to_owned());
    }
    let text = String::from_utf8_lossy(head.get(..1024.min(head.len())).unwrap_or_default());
    text_advice(&text.trim_start().to_ascii_lowercase(), name)
}

/// What a text is that begins in this way, in lower case.
fn text_advice(text: &str, name: &str) -> Option<String> {
    // A function's name can begin with `<`, too.
    let is_markup = text.starts_with("<?xml") || text.starts_with("<!doctype");
    let is_svg = ["<svg ", "<svg>", "<svg\n"].iter().any(|tag| text.starts_with(tag));
    if is_svg || is_markup && text.contains("<svg") {
        return Some(PICTURE.to_owned());
    }
    if text.starts_with("<!doctype html") || text.starts_with("<html>") || text.starts_with("<html ") {
        return Some("a web page cannot be read; render the profile that it was made of".to_owned());
    }
    if text.starts_with("<?xml") {
        return Some(
            "XML, expected a profile (pprof, folded, speedscope, Firefox, OTLP or text of perf script)"
                .to_owned(),
        );
    }
    let legacy = [
        "goroutine profile: total",
        "threadcreate profile: total",
        "heap profile: ",
        "--- contention",
        "--- mutex:",
        "--- heapz",
    ];
    if legacy.iter().any(|head| text.starts_with(head)) {
        return Some(format!(
            "a profile as text (of Go with debug=1, of gperftools); run: go tool pprof -proto {} > out.pb.gz",
            quoted(name)
        ));
    }
    if text.starts_with("# to display the perf.data header info") {
        return Some(
            "a report of perf, which has no stacks; run: perf script | stackprof render - -o FILE".to_owned(),
        );
    }
    if text.starts_with("====") && text.contains("trace event information") {
        return Some("a report of perf c2c; run: perf script | stackprof render - -o FILE".to_owned());
    }
    if text.lines().take(4).any(is_traced_call) {
        return Some(
            "text of perf trace, which lists system calls; run: perf record -g, then perf script | stackprof render - \
             -o FILE"
                .to_owned(),
        );
    }
    let is_map =
        |line: &str| line.starts_with("@[") && !line.trim_end().ends_with(|c: char| c.is_ascii_digit());
    if text.lines().take(4).any(is_map) {
        return Some(
            "stacks of bpftrace; fold them with inferno-collapse-bpftrace or stackcollapse-bpftrace.pl"
                .to_owned(),
        );
    }
    if text.starts_with("desc: ") && text.contains("\ntime_unit: ") {
        return Some(
            "a heap profile of valgrind's massif; use ms_print, or record: stackprof heap -- PROGRAM"
                .to_owned(),
        );
    }
    if text.starts_with("# callgrind format") || text.starts_with("version: 1\ncreator: callgrind") {
        return Some("a profile of callgrind, which counts instructions; use callgrind_annotate".to_owned());
    }
    None
}

/// Begins with `v VERSION FILE_VERSION` in hexadecimal digits, and `X PROGRAM` on the second line.
fn is_heaptrack(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    let version = lines.next().and_then(|line| line.strip_prefix(b"v ")).unwrap_or_default();
    let is_version = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b' ';
    let program = lines.next().is_some_and(|line| line.starts_with(b"X "));
    !version.is_empty() && version.len() < 32 && version.iter().all(is_version) && program
}

/// `     0.000 ( 0.005 ms): ls/40 read(fd: 3, ...) = 832`, in lower case.
fn is_traced_call(line: &str) -> bool {
    let Some((at, rest)) = line.trim_start().split_once(" (") else { return false };
    let Some((took, call)) = rest.split_once(" ms): ") else { return false };
    let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
    is_number(at) && (took.trim().is_empty() || is_number(took)) && call.contains('(')
}

/// Quotes a file name for a command line.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | '+' | ',' | '=');
    match name.chars().all(plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

/// Advice on a JSON file with these top-level keys.
pub(super) fn json_advice(has: impl Fn(&str) -> bool) -> Option<&'static str> {
    if has("nodes") && (has("samples") || has("timeDeltas")) {
        return Some(
            "a CPU profile of V8 (.cpuprofile); open it in speedscope and export it from there, then render that",
        );
    }
    if has("resourceProfiles") {
        return Some(
            "OTLP as JSON; stackprof reads its binary form: give the collector's file exporter `format: proto`",
        );
    }
    if has("dhatFileVersion") {
        return Some(
            "a heap profile of valgrind's DHAT; open it in dh_view.html, or record: stackprof heap -- PROGRAM",
        );
    }
    if has("traceEvents") {
        return Some(
            "a trace of Chrome, which has events and no stacks; expected a speedscope or Firefox profile",
        );
    }
    None
}

// ---- Errors of a file with its name.

/// Error for a file that could not be read further.
pub(super) fn broken(name: &str, error: io::Error) -> Error {
    let what = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the packed data ends early; was it cut off?".to_owned(),
        io::ErrorKind::InvalidInput => format!("the packed data is damaged: {error}"),
        _ => io_text(&error),
    };
    refused(name, &what).caused_by(error)
}

pub(super) fn refused(name: &str, what: &str) -> Error {
    Error::new(ErrorKind::Input, format!("{name}: {what}"))
}

#[cfg(test)]
mod foreign_tests {
    use super::*;

    #[test]
    fn json_of_others_has_a_next_step() {
        for (key, expected) in
            [("resourceProfiles", "format: proto"), ("dhatFileVersion", "dh_view"), ("traceEvents", "Chrome")]
        {
            assert!(json_advice(|has| has == key).is_some_and(|advice| advice.contains(expected)), "{key}");
        }
        assert_eq!(json_advice(|_| false), None);
    }

    #[test]
    fn each_kind_has_a_next_step() {
        for (head, expected) in [
            (&b"PERFILE2\x68\0"[..], "perf script -i a.b | stackprof render - -o FILE"),
            (b"2ELIFREP", "perf script -i a.b"),
            (b"<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg width=\"1\">", "a picture cannot be read"),
            (b"  <svg>", "a picture cannot be read"),
            (b"<!DOCTYPE html><p>", "a web page cannot be read"),
            (b"\x89PNG\r\n", "a picture cannot be read"),
            (b"FLR\0\0\x02", "jfrconv"),
            (b"Nettrace\x14", "dotnet-trace convert"),
            (b"MOJ\x03", "mojo2austin"),
            (b"goroutine profile: total 5\n4 @ 0x1 0x2\n", "go tool pprof -proto a.b > out.pb.gz"),
            (
                b"\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\x27",
                "go tool pprof -proto PROGRAM a.b",
            ),
            (b"--- contention:\ncycles/second=1\n", "go tool pprof -proto a.b > out.pb.gz"),
            (b"# To display the perf.data header info, please use --header\n#\n", "run: perf script |"),
            (b"     0.000 ( 0.005 ms): ls/40 read(fd: 3) = 832\n", "text of perf trace"),
            (b"     0.000 (         ): ls/40 nanosleep(rqtp: 1) ...\n     0.100 ( 0.100 ms): ls/40 x(a: 1) = 0\n", "perf trace"),
            (b"=====\n            Trace Event Information\n", "perf c2c"),
            (b"\xfd7zXZ\0\0\x04", "unxz"),
            (b"heap_v2/524288\n  t*: 3: 4 [0: 0]\n", "jeprof --collapsed PROGRAM a.b > out.folded"),
            (b"desc: (none)\ncmd: ./app\ntime_unit: i\n", "massif"),
            (b"v 10500 3\nX ./app\nI 1000 ", "heaptrack_print -F out.folded a.b"),
            (b"memray\0\x0c", "memray"),
            (b"Attaching 1 probe...\n\n@[\n    f+1\n]: 5\n", "inferno-collapse-bpftrace"),
        ] {
            let found = unsupported_file_advice(head, "a.b").expect("known");
            assert!(found.contains(expected), "{found}");
        }
        let quoted = unsupported_file_advice(b"PERFILE2", "my file").expect("known");
        assert!(quoted.contains("perf script -i 'my file' |"), "{quoted}");
        for other in [
            &b"main;a 3\n"[..],
            b"",
            b"<unknown>;<svg as x>::f;a 3\n",
            b"@[a];b 3\n",
            b"a (x ms): f(1) 3\n",
            b"{}",
            b"v 1 3\nmain;a 3\n",
            b"v 1\n",
            b"\x0a\x04\x08\x01",
        ] {
            assert_eq!(unsupported_file_advice(other, "a"), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
