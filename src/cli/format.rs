//! The output formats, by name and by the extension of a path.

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

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
