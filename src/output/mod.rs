//! Outputs: what a finished profile is written as, and how a file gets onto the disk.
//!
//! Input: folded stacks (`folded.rs` makes them from frame names and counts).
//! Output: bytes into any writer. Nothing here knows of targets, tries or symbols,
//! and nothing here prints.

pub mod file;
pub mod folded;
pub mod svg;

use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// A form in which a profile can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Interactive flame graph, one file for any browser.
    Svg,
    /// Folded stacks: `process;frame;frame COUNT`.
    Folded,
}

/// Extensions and the format each one stands for. The longest match counts, so that
/// `.speedscope.json` is not `.json`.
const EXTENSIONS: [(&str, &str); 8] = [
    (".speedscope.json", "speedscope"),
    (".firefox.json", "firefox"),
    (".pb.gz", "pprof"),
    (".pprof", "pprof"),
    (".folded", "folded"),
    (".json", "json"),
    (".svg", "svg"),
    (".txt", "folded"),
];

/// Formats that the command line reserves and this version cannot write.
const RESERVED: [&str; 4] = ["pprof", "speedscope", "firefox", "json"];

impl Format {
    /// The name that `--format` takes; also the usual extension.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Svg => "svg",
            Format::Folded => "folded",
        }
    }

    /// The format called `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] naming the formats that exist.
    pub fn from_name(name: &str) -> Result<Format> {
        match name {
            "svg" => Ok(Format::Svg),
            "folded" => Ok(Format::Folded),
            reserved if RESERVED.contains(&reserved) => Err(Error::new(
                ErrorKind::Usage,
                format!("format `{reserved}` is not in this version; one of svg, folded"),
            )),
            other => Err(Error::new(
                ErrorKind::Usage,
                format!("no format is called `{other}`; one of svg, folded"),
            )),
        }
    }

    /// The format that a path's extension stands for; `None` when it tells nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when it stands for a format that is not in this version.
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
    fn the_extension_tells_the_format() {
        let format = |path: &str| Format::from_path(Path::new(path)).expect("a format of this version");
        assert_eq!(format("a.svg"), Some(Format::Svg));
        assert_eq!(format("dir.svg/A.SVG"), Some(Format::Svg));
        assert_eq!(format("a.folded"), Some(Format::Folded));
        assert_eq!(format("a.b.txt"), Some(Format::Folded));
        assert_eq!(format("a.dat"), None);
        assert_eq!(format("svg"), None);
        assert_eq!(format(""), None);
    }

    #[test]
    fn formats_of_later_versions_say_so() {
        for (path, name) in [
            ("a.pb.gz", "pprof"),
            ("a.speedscope.json", "speedscope"),
            ("a.firefox.json", "firefox"),
            ("a.json", "json"),
        ] {
            let error = Format::from_path(Path::new(path)).expect_err("not in this version");
            assert_eq!(
                error.to_string(),
                format!("format `{name}` is not in this version; one of svg, folded")
            );
            assert_eq!(error.kind(), ErrorKind::Usage);
        }
        let error = Format::from_name("png").expect_err("unknown");
        assert_eq!(error.to_string(), "no format is called `png`; one of svg, folded");
    }
}
