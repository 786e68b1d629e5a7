//! Why an output cannot be written, with the next step.

use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind, io_text};
use crate::sources::output::Refusal;

/// The obstacle to an output.
#[derive(Debug)]
pub(super) struct Problem {
    text: String,
    source: Option<io::Error>,
    is_untrusted: bool,
}

impl Problem {
    pub(super) fn new(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), source: None, is_untrusted: false }
    }

    /// The path does not resolve.
    pub(super) fn of_path(path: &Path, refusal: Refusal) -> Problem {
        let directory = || match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.display().to_string(),
            _ => ".".to_owned(),
        };
        match refusal {
            Refusal::System(error) => error.into(),
            Refusal::NoDirectory if path.is_symlink() => {
                Problem::new("it is a symbolic link into a directory that does not exist")
            }
            Refusal::NoDirectory => Problem::new(format!("the directory `{}` does not exist", directory())),
            Refusal::NotDirectory => Problem::new(format!("`{}` is not a directory", directory())),
            Refusal::Directory => Problem::new("it is a directory; name a file in it"),
            Refusal::NoName => Problem::new("a file name is expected"),
            Refusal::Dangling => Problem::new("it is a symbolic link to a file that does not exist"),
            Refusal::Link(owner) => Problem::new(format!(
                "it leads through a symbolic link of user {owner}, which is not followed; name the file itself"
            )),
            Refusal::Untrusted => Problem {
                is_untrusted: true,
                ..Problem::new("not every directory of the path is root's alone; name a file elsewhere")
            },
        }
    }

    /// The new file could not be created: names its directory, which the user knows.
    pub(super) fn in_directory(error: io::Error) -> Problem {
        let text = format!("no file can be made in its directory: {}", with_next_step(&error));
        Problem { source: Some(error), ..Problem::new(text) }
    }

    /// A sticky directory: only the owner may replace the file.
    pub(super) fn sticky(owner: u32) -> Problem {
        Problem::new(format!(
            "only user {owner}, who owns it, may replace it in its directory; name another file"
        ))
    }

    /// A pipe or device that another user may have planted.
    pub(super) fn planted(owner: u32) -> Problem {
        Problem::new(format!(
            "it is a pipe or device of user {owner} in a directory where everyone may put one; name another file"
        ))
    }

    /// A place in /proc where no file can be created or written.
    pub(super) fn of_kernel() -> Problem {
        Problem::new("/proc is the kernel's and keeps no files; name a file elsewhere")
    }

    /// Only regular files can be appended to.
    pub(super) fn not_regular() -> Problem {
        Problem::new("only a regular file is appended to; name one")
    }

    /// A file that another user may have planted.
    pub(super) fn foreign(owner: u32) -> Problem {
        Problem::new(format!(
            "it is a file of user {owner} in a directory where everyone may put one; name another file"
        ))
    }

    /// The process cannot act as the user who called sudo.
    pub(super) fn no_such_rights(uid: u32, error: io::Error) -> Problem {
        let text = format!(
            "cannot act as user {uid}, who called sudo: {}; unset SUDO_UID to write as root",
            io_text(&error)
        );
        Problem { source: Some(error), ..Problem::new(text) }
    }

    /// Neither the user who called sudo may write there, nor will root.
    pub(super) fn with_caller(self, uid: u32) -> Problem {
        let why = self.source.as_ref().map_or_else(|| self.text.clone(), io_text);
        let text = format!("{why} to user {uid}, who called sudo; name a file where that user may write");
        Problem { text, ..self }
    }

    /// Whether other rights could help.
    pub(super) fn is_denied(&self) -> bool {
        self.source.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether users other than root can change where the path leads.
    pub(super) fn is_untrusted(&self) -> bool {
        self.is_untrusted
    }

    /// The error for the user.
    pub(super) fn of(self, path: &Path) -> Error {
        self.of_stream(&format!("`{}`", path.display()))
    }

    /// The error of a stream, which has a name but no path.
    pub(super) fn of_stream(self, name: &str) -> Error {
        let error = Error::new(ErrorKind::Output, format!("cannot write {name}: {}", self.text));
        match self.source {
            Some(source) => error.caused_by(source),
            None => error,
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem { text: with_next_step(&error), source: Some(error), is_untrusted: false }
    }
}

/// Text for EBADF.
const NOT_OPEN: &str = "bad file descriptor: it is not open for writing; name a file";

/// The text of an error with the next step.
pub(super) fn with_next_step(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let next = match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => "; free some there, or name a file elsewhere",
        Kind::FileTooLarge => "; raise the limit (ulimit -f), or name a file elsewhere",
        Kind::ReadOnlyFilesystem => "; name a file elsewhere",
        Kind::PermissionDenied => "; name a file where you may write",
        Kind::InvalidFilename => "; name a shorter one",
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            "; raise the limit: ulimit -n 1024"
        }
        // A directory of /proc accepts no new files.
        Kind::NotFound => "; name a file elsewhere",
        _ if error.raw_os_error() == Some(libc::ELOOP) => "; a link leads to itself: name the file",
        _ if error.raw_os_error() == Some(libc::EBADF) => return NOT_OPEN.to_owned(),
        _ if error.raw_os_error() == Some(libc::EIO) => "; name a file elsewhere",
        _ => "",
    };
    format!("{}{next}", io_text(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_names_the_next_step() {
        for (errno, expected) in [
            (libc::ENOSPC, "no space left on device; free some there, or name a file elsewhere"),
            (libc::EFBIG, "file too large; raise the limit (ulimit -f), or name a file elsewhere"),
            (libc::EROFS, "read-only file system; name a file elsewhere"),
            (libc::EACCES, "permission denied; name a file where you may write"),
            (libc::EIO, "; name a file elsewhere"),
            (libc::EDQUOT, "; free some there, or name a file elsewhere"),
            (libc::ENAMETOOLONG, "; name a shorter one"),
            (libc::EBADF, NOT_OPEN),
        ] {
            let error = Problem::from(io::Error::from_raw_os_error(errno)).of(Path::new("a.svg"));
            assert!(error.to_string().starts_with("cannot write `a.svg`: "), "{error}");
            assert!(error.to_string().ends_with(expected), "{error}");
        }
    }
}
