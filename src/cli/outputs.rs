//! Writes a saved profile to each output, in its format.
//!
//! `Format` has the formats, by name and by the extension of a path.
//!
//! Input: the profile, the outputs, and options of pictures. Output: files, written atomically. Used by
//! recording and by rendering.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::args::{Destination, Output};
use super::embedded_code::EmbeddedCode;
use super::messages;
use crate::cli::file::{self, OutputFiles};
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::{self, Graph};
use crate::profile::formats::{firefox, folded, html, otlp, pprof, speedscope};
use crate::profile::{ByName, CallTree, Direction, Full, SavedProfile};

/// Options of formats.
#[derive(Clone, Debug)]
pub(super) struct Presentation {
    /// The flame graph, with its heading.
    pub(super) graph: Graph,
    /// The heading of pages, which have no second line.
    pub(super) page_title: String,
    /// The user's own heading, for formats with a field for it.
    pub(super) title: Option<String>,
    /// How the stacks were sampled, for formats with a field for it.
    pub(super) source: Option<String>,
    /// Embeds source and instructions in pages.
    pub(super) code: Option<EmbeddedCode>,
    /// `function (file:line)`.
    pub(super) lines: bool,
    /// One pprof sample per time.
    pub(super) pprof_timestamps: bool,
    /// Flame graphs start at leaf functions, with their callers on top of them.
    pub(super) reverse: bool,
}

/// Options that only some formats have.
pub(super) struct FormatOptions<'a> {
    /// Of flame graphs: they start at leaf functions.
    pub(super) reverse: bool,
    /// Of pprof: each sample has its time.
    pub(super) pprof_timestamps: bool,
    /// Of pages: where source files are.
    pub(super) source_directories: &'a [PathBuf],
}

/// Refuses options for formats that are not written: a reversed flame graph (other formats keep the order of a stack),
/// times in pprof, and source in pages; and a source directory that is not one.
///
/// # Errors
/// One line with the reason.
pub(super) fn check_options(options: &FormatOptions<'_>, outputs: &[Output]) -> Result<()> {
    let &FormatOptions { reverse, pprof_timestamps, source_directories } = options;
    if let Some(directory) = source_directories.first()
        && !outputs.iter().any(|output| output.format == Format::Html)
    {
        let directory = directory.display();
        let text = format!(
            "--source-dir `{directory}` adds source to pages, and no output is one; add -o FILE.html"
        );
        return Err(Error::new(ErrorKind::Usage, text));
    }
    for directory in source_directories {
        let why = match fs::metadata(directory) {
            Ok(about) if about.is_dir() => continue,
            Ok(_) => "not a directory".to_owned(),
            Err(error) => crate::error::io_text(&error).to_string(),
        };
        let text =
            format!("--source-dir `{}`: {why}; name the directory that has the source", directory.display());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if pprof_timestamps && !outputs.iter().any(|output| output.format == Format::Pprof) {
        let text = "--pprof-timestamps adds times to pprof, and no output is one; add -o FILE.pb.gz";
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if reverse && !outputs.iter().any(|output| output.format == Format::Svg) {
        let text = "--reverse turns flame graphs round, and no output is one; add -o FILE.svg";
        return Err(Error::new(ErrorKind::Usage, text));
    }
    Ok(())
}

/// What could not be written.
pub(super) struct Failure {
    /// Where it should have gone; none for a table or a line of the summary.
    output: Option<Destination>,
    error: Error,
}

impl Failure {
    pub(super) fn of(to: &Destination, error: Error) -> Failure {
        Failure { output: Some(to.clone()), error }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { output: None, error }
    }
}

/// Names of those of the `outputs` that have not failed.
pub(super) fn written<'o>(
    outputs: impl IntoIterator<Item = &'o Output>,
    failures: &[Failure],
) -> Vec<String> {
    let has_failed =
        |output: &&Output| failures.iter().any(|failure| failure.output.as_ref() == Some(&output.to));
    let done = outputs.into_iter().filter(|output| !has_failed(output));
    done.map(|output| output.to.as_path().display().to_string()).collect()
}

/// Prints all failures but the last one, which is returned.
///
/// # Errors
/// The last failure.
pub(super) fn report(mut failures: Vec<Failure>) -> Result<()> {
    let Some(last) = failures.pop() else { return Ok(()) };
    failures.iter().for_each(|failure| messages::error(&failure.error));
    Err(last.error)
}

/// Writes every output. One that cannot be written keeps no other from being written.
pub(super) fn write(
    files: &OutputFiles,
    saved: &SavedProfile,
    outputs: &[Output],
    shown: &Presentation,
) -> Vec<Failure> {
    // Shared by several outputs.
    let (mut by_name, mut bare) = (None, None);
    let mut failures = Vec::new();
    for output in outputs {
        let keeps_labels = matches!(output.format, Format::Pprof | Format::Otlp);
        if !keeps_labels && bare.is_none() && saved.has_labels() {
            match saved.without_labels() {
                Ok(without) => bare = Some(without),
                Err(full) => {
                    failures.push(Failure::of(&output.to, too_large(full)));
                    continue;
                }
            }
        }
        let saved = bare.as_ref().filter(|_| !keeps_labels).unwrap_or(saved);
        if let Err(error) = write_one(files, saved, output, shown, &mut by_name) {
            failures.push(Failure::of(&output.to, error));
        }
    }
    failures
}

fn too_large(full: Full) -> Error {
    Error::new(ErrorKind::Output, full.to_string()).caused_by(full)
}

/// Writes one output; `by_name` keeps the stacks for further folded ones.
fn write_one(
    files: &OutputFiles,
    saved: &SavedProfile,
    output: &Output,
    shown: &Presentation,
    by_name: &mut Option<ByName>,
) -> Result<()> {
    let to = &output.to;
    match output.format {
        Format::Folded => {
            let stacks = match by_name.take() {
                Some(stacks) => stacks,
                None => ByName::of(saved, shown.lines).map_err(too_large)?,
            };
            let written = write_to(files, to, &mut |out| folded::write(&stacks, out));
            *by_name = Some(stacks);
            written
        }
        Format::Svg => {
            if saved.total() == 0 && saved.about.is_heap() {
                return write_to(files, to, &mut |out| flamegraph::write_empty(&shown.graph, out));
            }
            let direction = if shown.reverse { Direction::FromLeaf } else { Direction::FromRoot };
            let least = shown.graph.min_width_percent / 100.0;
            let tree = CallTree::of(saved, shown.lines, direction, least).map_err(too_large)?;
            let node = |node: &crate::profile::views::call_tree::CallNode| flamegraph::Frame {
                depth: node.depth,
                name: tree.text(node.name),
                base: 0,
                new: node.total,
            };
            let nodes: Vec<flamegraph::Frame<'_>> = tree.nodes().iter().map(node).collect();
            let total = saved.total();
            write_to(files, to, &mut |out| flamegraph::write(&shown.graph, &nodes, total, out))
        }
        Format::Html => {
            let mut page =
                html::Page::of(saved, &shown.page_title, shown.source.as_deref()).map_err(too_large)?;
            if let Some(code) = &shown.code {
                page.embed(&mut code.reader()).map_err(too_large)?;
            }
            write_to(files, to, &mut |out| page.write(out))
        }
        Format::Pprof => {
            let write = if shown.pprof_timestamps { pprof::write::write_timed } else { pprof::write::write };
            write_to(files, to, &mut |out| write(saved, out))
        }
        Format::Speedscope => {
            write_to(files, to, &mut |out| speedscope::write(saved, shown.title.as_deref(), out))
        }
        Format::Firefox => write_to(files, to, &mut |out| firefox::write(saved, out)),
        Format::Otlp => {
            let is_packed = to.as_path().extension().is_some_and(|end| end.eq_ignore_ascii_case("gz"));
            write_to(files, to, &mut |out| otlp::write::write(saved, is_packed, out))
        }
    }
}

/// Writes one output; standard output is not closed.
///
/// # Errors
/// One line that names the output and the obstacle.
pub(super) fn write_to(
    files: &OutputFiles,
    to: &Destination,
    content: &mut dyn FnMut(&mut dyn io::Write) -> io::Result<()>,
) -> Result<()> {
    let limited = |out: &mut dyn io::Write| content(&mut LimitedWriter { out, left: OUTPUT_BYTES_MAX });
    match to {
        Destination::File(path) => files.write(path, limited),
        Destination::Stdout => file::write_stream("standard output", &mut io::stdout().lock(), limited),
    }
}

/// Longest output, bytes: stacks repeat names, and a small profile can have many.
const OUTPUT_BYTES_MAX: u64 = 2 << 30;

/// Refuses to write more than a number of bytes.
struct LimitedWriter<'o> {
    out: &'o mut dyn io::Write,
    left: u64,
}

impl io::Write for LimitedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            let why = "it would be longer than 2 GiB; --include, --root or -o FILE.pb.gz make it shorter";
            return Err(io::Error::other(why));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

// ---- The output formats, by name and by the extension of a path.

/// An output format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Interactive flame graph, one file for any browser.
    Svg,
    /// Folded stacks: `process;frame;frame COUNT`.
    Folded,
    /// One HTML page with flame graph, function table, callers and timeline.
    Html,
    /// pprof, gzipped.
    Pprof,
    /// speedscope JSON.
    Speedscope,
    /// Firefox Profiler JSON.
    Firefox,
    /// OTLP profiles, gzipped or not; experimental.
    Otlp,
}

/// Extensions and their formats. The longest match wins, so that `.speedscope.json` is not `.json`.
const EXTENSIONS: [(&str, &str); 11] = [
    (".speedscope.json", "speedscope"),
    (".firefox.json", "firefox"),
    (".otlp.gz", "otlp"),
    (".otlp", "otlp"),
    (".pb.gz", "pprof"),
    (".pprof", "pprof"),
    (".folded", "folded"),
    (".html", "html"),
    (".json", "json"),
    (".svg", "svg"),
    (".txt", "folded"),
];

/// A format that is reserved and cannot be written yet.
const RESERVED: &str = "json";

impl Format {
    /// Every format, in the order in which messages list them.
    pub const ALL: [Format; 7] = [
        Format::Svg,
        Format::Html,
        Format::Folded,
        Format::Pprof,
        Format::Speedscope,
        Format::Firefox,
        Format::Otlp,
    ];

    /// The name for `--format`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Svg => "svg",
            Format::Html => "html",
            Format::Folded => "folded",
            Format::Pprof => "pprof",
            Format::Speedscope => "speedscope",
            Format::Firefox => "firefox",
            Format::Otlp => "otlp",
        }
    }

    /// Whether it stores the times of samples; in pprof they are optional.
    #[must_use]
    pub fn keeps_times(self) -> bool {
        match self {
            Format::Html | Format::Firefox | Format::Otlp | Format::Speedscope => true,
            Format::Svg | Format::Folded | Format::Pprof => false,
        }
    }

    /// The usual extension, without the first dot.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Format::Svg => "svg",
            Format::Html => "html",
            Format::Folded => "folded",
            Format::Pprof => "pb.gz",
            Format::Speedscope => "speedscope.json",
            Format::Firefox => "firefox.json",
            Format::Otlp => "otlp",
        }
    }

    /// The format called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] with a list of the formats.
    pub fn from_name(name: &str) -> Result<Format> {
        if let Some(format) = Format::ALL.into_iter().find(|format| format.name() == name) {
            return Ok(format);
        }
        let names = Format::ALL.map(Format::name).join(", ");
        Err(Error::new(
            ErrorKind::Usage,
            match name {
                RESERVED => format!("format `{name}` is not in this version; one of {names}"),
                other => format!("no format is called `{other}`; one of {names}"),
            },
        ))
    }

    /// The format for a path's extension; `None` if the extension is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a reserved format.
    pub fn from_path(path: &Path) -> Result<Option<Format>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let known = EXTENSIONS.iter().find(|(extension, _)| name.ends_with(extension));
        known.map(|(_, format)| Format::from_name(format)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_output_beyond_the_limit_is_refused() {
        let mut written = Vec::new();
        let mut limited = LimitedWriter { out: &mut written, left: 5 };
        assert!(limited.write_all(b"abc").is_ok() && limited.write_all(b"de").is_ok());
        let refused = limited.write_all(b"f").map_err(|error| error.to_string());
        assert!(refused.is_err_and(|why| why.contains("longer than 2 GiB")));
        assert_eq!(written, b"abcde");
    }
}

#[cfg(test)]
mod format_tests {
    use super::*;

    #[test]
    fn the_extension_selects_the_format() {
        let format = |path: &str| Format::from_path(Path::new(path)).expect("a format of this version");
        assert_eq!(format("a.svg"), Some(Format::Svg));
        assert_eq!(format("dir.svg/A.SVG"), Some(Format::Svg));
        assert_eq!(format("a.html"), Some(Format::Html));
        assert_eq!(format("a.folded"), Some(Format::Folded));
        assert_eq!(format("a.b.txt"), Some(Format::Folded));
        assert_eq!(format("a.pb.gz"), Some(Format::Pprof));
        assert_eq!(format("a.pprof"), Some(Format::Pprof));
        assert_eq!(format("a.speedscope.json"), Some(Format::Speedscope));
        assert_eq!(format("a.firefox.json"), Some(Format::Firefox));
        assert_eq!(format("a.otlp"), Some(Format::Otlp));
        assert_eq!(format("a.OTLP.gz"), Some(Format::Otlp));
        assert_eq!(format("a.dat"), None);
        assert_eq!(format("svg"), None);
        assert_eq!(format(""), None);
    }

    #[test]
    fn names_and_extensions_agree() {
        for format in Format::ALL {
            assert_eq!(Format::from_name(format.name()).expect("known"), format);
            let path = format!("a.{}", format.extension());
            assert_eq!(Format::from_path(Path::new(&path)).expect("known"), Some(format));
        }
    }

    #[test]
    fn unknown_formats_are_refused_by_name() {
        const NAMES: &str = "svg, html, folded, pprof, speedscope, firefox, otlp";
        let error = Format::from_path(Path::new("a.json")).expect_err("not in this version");
        assert_eq!(error.to_string(), format!("format `json` is not in this version; one of {NAMES}"));
        assert_eq!(error.kind(), ErrorKind::Usage);
        let error = Format::from_name("png").expect_err("unknown");
        assert_eq!(error.to_string(), format!("no format is called `png`; one of {NAMES}"));
    }
}
