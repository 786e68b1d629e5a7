//! The outputs of a recording: the requested ones, or one named after the process. Checks before recording
//! whether they can be written.

use std::fmt::Display;
use std::path::PathBuf;

use crate::cli::args::{Destination, Output};
use crate::cli::file::{OutputFiles, check_stdout};
use crate::cli::format::Format;
use crate::cli::outputs::check_options;
use crate::error::{Error, Result};

/// Whether writing there may wait for a reader: a pipe, a terminal, standard output.
pub(super) fn may_wait(to: &Destination) -> bool {
    match to {
        Destination::File(path) => {
            std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
        }
        Destination::Stdout => true,
    }
}

/// Where the profile goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destinations<'a> {
    /// Keeps the directories of outputs open until they are written.
    pub(super) files: &'a OutputFiles,
    /// Requested outputs; if empty, the default one, `stackprof-NAME-PID.svg`.
    pub(super) requested: &'a [Output],
    /// Format of the default output.
    pub(super) default_format: Format,
    /// The process is the built-in workload, which has its own default output name.
    pub(super) demo: bool,
}

impl Destinations<'_> {
    /// The outputs of a recording of this process.
    pub(super) fn outputs(&self, process: &str, pid: impl Display) -> Vec<Output> {
        if !self.requested.is_empty() {
            return self.requested.to_vec();
        }
        let (extension, pid) = (self.default_format.extension(), pid.to_string());
        let path = if self.demo {
            format!("stackprof-demo.{extension}")
        } else {
            // The placeholder for several processes has no number.
            let pid = if pid == "0" { String::new() } else { format!("-{pid}") };
            format!("stackprof-{}{pid}.{extension}", file_name(process))
        };
        vec![Output { to: Destination::File(path.into()), format: self.default_format }]
    }

    /// Checks everything that does not depend on the process; `stats` is the destination of the
    /// statistics.
    ///
    /// # Errors
    /// One line: an option for a format that is not written, a file that cannot be written.
    pub(super) fn check(
        &self,
        options: (bool, bool),
        source_directories: &[PathBuf],
        stats: Option<&Destination>,
    ) -> Result<()> {
        // The name of the default output is not known yet; its directory and its format are.
        let (process, pid) = ("NAME", "PID");
        check_options(options, source_directories, &self.outputs(process, pid))?;
        for to in self.requested.iter().map(|output| &output.to).chain(stats) {
            match to {
                Destination::File(path) => self.files.check(path)?,
                Destination::Stdout => check_stdout()?,
            }
        }
        self.check_default(process, pid)
    }

    /// Checks whether the default output can be written, if it is used.
    ///
    /// # Errors
    /// One line: the reason, and the next step.
    pub(super) fn check_default(&self, process: &str, pid: impl Display) -> Result<()> {
        if !self.requested.is_empty() {
            return Ok(());
        }
        self.outputs(process, pid)
            .iter()
            .try_for_each(|output| self.files.check(output.to.as_path()))
            .map_err(|error| {
                // The remedy is -o.
                let why = error.to_string();
                let why = why.strip_suffix("; name a file where you may write").unwrap_or(&why);
                Error::new(error.kind(), format!("{why}; name another output with -o FILE")).caused_by(error)
            })
    }
}

/// The name of a process as a part of a file name. A process can have any name; the file stays in
/// this directory.
fn file_name(process: &str) -> String {
    let name: String = process
        .chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+') { c } else { '_' })
        .take(64)
        .collect();
    if name.is_empty() { "process".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(
        requested: &[Output],
        default_format: Format,
        demo: bool,
        name: &str,
    ) -> Vec<(String, Format)> {
        let files = &OutputFiles::default();
        let outputs = Destinations { files, requested, default_format, demo }.outputs(name, 42);
        outputs.iter().map(|output| (output.to.as_path().display().to_string(), output.format)).collect()
    }

    #[test]
    fn the_default_output_names_the_process() {
        for (name, format, expected) in [
            ("work", Format::Svg, "stackprof-work-42.svg"),
            ("../../a b\n", Format::Svg, "stackprof-.._.._a_b_-42.svg"),
            ("", Format::Svg, "stackprof-process-42.svg"),
            ("w", Format::Folded, "stackprof-w-42.folded"),
            ("w", Format::Pprof, "stackprof-w-42.pb.gz"),
        ] {
            assert_eq!(outputs(&[], format, false, name), [(expected.to_owned(), format)]);
        }
        assert_eq!(outputs(&[], Format::Svg, true, "w"), [("stackprof-demo.svg".to_owned(), Format::Svg)]);
    }

    #[test]
    fn requested_outputs_replace_the_default() {
        let requested = [Output { to: Destination::File("a.svg".into()), format: Format::Svg }];
        assert_eq!(outputs(&requested, Format::Folded, false, "w"), [("a.svg".to_owned(), Format::Svg)]);
    }
}
