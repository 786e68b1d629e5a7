//! Output files: written whole or not at all.
//!
//! The content goes to a temporary file in the same directory, which then takes the
//! name: whatever was there before survives every failure. Devices and pipes
//! (`/dev/stdout`, a FIFO) are written directly. Under sudo a new file belongs to the
//! user who asked. Nothing here prints.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, ErrorKind, Result, io_text};

/// How a path is written.
#[derive(Debug)]
enum WriteMode {
    /// A new file in `directory` that takes the name `path`; links are already followed.
    Renamed { path: PathBuf, directory: PathBuf },
    /// Something that cannot be replaced: a device, a pipe, an already open descriptor.
    Direct,
}

/// Writes a file through `content`; an existing one is replaced only by a whole new one.
/// A pipe whose reader has gone is not an error.
///
/// # Errors
/// [`ErrorKind::Output`] naming the path.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    match write_mode(path)? {
        WriteMode::Direct => {
            // Appending, because `/dev/stdout` may be a file that holds somebody's output.
            let file =
                OpenOptions::new().append(true).open(path).map_err(|error| cannot_write(path, error))?;
            closed_pipe_is_fine(write_through(file, content).map(drop))
                .map_err(|error| cannot_write(path, error))
        }
        WriteMode::Renamed { path: real, directory } => {
            let (file, temporary) =
                Temporary::create(&directory).map_err(|error| cannot_create(path, error))?;
            let file = write_through(file, content).map_err(|error| cannot_write(path, error))?;
            keep_owner_and_mode(&file, &real);
            drop(file);
            temporary.rename_to(&real).map_err(|error| cannot_write(path, error))
        }
    }
}

/// Writes to an open stream (standard output) through `content`; `name` is for errors.
/// A reader that has gone is not an error.
///
/// # Errors
/// [`ErrorKind::Output`] naming the stream.
pub fn write_stream(
    name: &str,
    stream: &mut dyn Write,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let mut buffered = BufWriter::new(stream);
    let written = content(&mut buffered).and_then(|()| buffered.flush());
    if written.is_err() {
        // Dropping a BufWriter would write the rest once more.
        let _ = buffered.into_parts();
    }
    closed_pipe_is_fine(written).map_err(|error| {
        Error::new(ErrorKind::Output, format!("cannot write {name}: {}", io_text(&error))).caused_by(error)
    })
}

/// Finds out before a recording whether `path` can be written after it. Leaves nothing behind.
///
/// # Errors
/// [`ErrorKind::Output`] naming the path and what stands in the way.
pub fn check_writable(path: &Path) -> Result<()> {
    match write_mode(path)? {
        // Opening a FIFO would wait for its reader.
        WriteMode::Direct => Ok(()),
        WriteMode::Renamed { directory, .. } => {
            Temporary::create(&directory).map(drop).map_err(|error| cannot_create(path, error))
        }
    }
}

fn write_through(file: File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut buffered = BufWriter::with_capacity(1 << 16, file);
    match content(&mut buffered).and_then(|()| buffered.flush()) {
        Ok(()) => buffered.into_inner().map_err(io::IntoInnerError::into_error),
        Err(error) => {
            // Dropping a BufWriter would write the rest once more.
            let _ = buffered.into_parts();
            Err(error)
        }
    }
}

fn closed_pipe_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn refuse(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Output, format!("cannot write `{}`: {why}", path.display()))
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    refuse(path, &io_text(&error)).caused_by(error)
}

/// The temporary file could not be made: say so of its directory, which the user knows.
fn cannot_create(path: &Path, error: io::Error) -> Error {
    refuse(path, &format!("no file can be made in its directory: {}", io_text(&error))).caused_by(error)
}

fn write_mode(path: &Path) -> Result<WriteMode> {
    // `/dev/stdout` and `/proc/self/fd/1` are links to whatever is open there: replacing
    // that file by name would leave the open one empty.
    if path.starts_with("/dev/fd") || path.starts_with("/proc") || is_standard_stream(path) {
        return Ok(WriteMode::Direct);
    }
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(refuse(path, "it is a directory; name a file in it")),
        Ok(metadata) if !metadata.is_file() => Ok(WriteMode::Direct),
        Ok(_) => {
            // Renaming over a file asks nobody whether that file may be written; opening
            // does, and lets the kernel apply its rules for links in shared directories.
            OpenOptions::new().write(true).open(path).map_err(|error| cannot_write(path, error))?;
            let real = if is_link { fs::canonicalize(path) } else { Ok(path.to_path_buf()) };
            renamed(path, real.map_err(|error| cannot_write(path, error))?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_link => {
            Err(refuse(path, "it is a symbolic link to a file that does not exist"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => renamed(path, path.to_path_buf()),
        Err(error) => Err(cannot_write(path, error)),
    }
}

fn is_standard_stream(path: &Path) -> bool {
    path == Path::new("/dev/stdout") || path == Path::new("/dev/stderr")
}

fn renamed(asked: &Path, path: PathBuf) -> Result<WriteMode> {
    let ends_in_slash = asked.as_os_str().as_encoded_bytes().ends_with(b"/");
    if ends_in_slash || asked.file_name().is_none() {
        return Err(refuse(asked, "a file name is expected"));
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    match fs::metadata(&directory) {
        Ok(metadata) if metadata.is_dir() => Ok(WriteMode::Renamed { path, directory }),
        Ok(_) => Err(refuse(asked, &format!("`{}` is not a directory", directory.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(refuse(asked, &format!("the directory `{}` does not exist", directory.display())))
        }
        Err(error) => Err(cannot_write(asked, error)),
    }
}

/// A file that disappears unless it gets its final name.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    fn create(directory: &Path) -> io::Result<(File, Temporary)> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // A process with our pid may have been killed and have left its file; then the next number is free.
        let mut tries = 0;
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            // The final name takes no part: it may already be as long as a name can be.
            let path = directory.join(format!(".stackprof-{}-{number}.tmp", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, Temporary { path, renamed: false })),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A replaced file keeps its permissions and owner; a new one under sudo belongs to the
/// user who called sudo. Best effort: a file system without owners is no reason to
/// lose a recording.
#[cfg(unix)]
fn keep_owner_and_mode(file: &File, replaces: &Path) {
    use std::os::unix::fs::{MetadataExt, fchown};

    let before = fs::metadata(replaces).ok();
    // A file just made belongs to the effective user.
    let root = file.metadata().is_ok_and(|metadata| metadata.uid() == 0);
    let owner = match &before {
        Some(before) => Some((before.uid(), before.gid())),
        None => sudo_owner(|name| std::env::var(name).ok()),
    };
    if root && let Some((uid, gid)) = owner {
        let _ = fchown(file, Some(uid), Some(gid));
    }
    if let Some(before) = before {
        let _ = file.set_permissions(before.permissions());
    }
}

#[cfg(not(unix))]
fn keep_owner_and_mode(_file: &File, _replaces: &Path) {}

/// User and group that called sudo, from its environment.
pub(super) fn sudo_owner(variable: impl Fn(&str) -> Option<String>) -> Option<(u32, u32)> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    Some((number("SUDO_UID")?, number("SUDO_GID")?))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    fn put(path: &Path, text: &str) -> Result<()> {
        write(path, |out| out.write_all(text.as_bytes()))
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path).expect("readable")
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_made_replaced_and_nothing_else_is_left() {
        let directory = directory();
        let path = directory.path().join("a.svg");
        put(&path, "one").expect("made");
        put(&path, "two").expect("replaced");
        check_writable(&path).expect("writable");
        assert_eq!(content(&path), "two");
        assert_eq!(names(directory.path()), ["a.svg"]);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_no_temporary() {
        let directory = directory();
        let path = directory.path().join("a.svg");
        put(&path, "old").expect("made");
        let error = write(&path, |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::from_raw_os_error(28))
        })
        .expect_err("the disk is full");
        assert_eq!(error.to_string(), format!("cannot write `{}`: no space left on device", path.display()));
        assert_eq!(error.kind(), ErrorKind::Output);
        assert_eq!(content(&path), "old");
        assert_eq!(names(directory.path()), ["a.svg"]);
    }

    #[test]
    fn a_panic_leaves_no_temporary() {
        let directory = directory();
        let path = directory.path().join("a.svg");
        let panicked = std::panic::catch_unwind(|| write(&path, |_| panic!("while writing")));
        assert!(panicked.is_err());
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn what_cannot_be_written_is_known_before() {
        let directory = directory();
        let file = directory.path().join("file");
        put(&file, "x").expect("made");
        symlink("nowhere", directory.path().join("dangling")).expect("linked");
        for (path, expected) in [
            ("", "it is a directory; name a file in it"),
            ("missing/a.svg", "missing` does not exist"),
            ("file/a.svg", "not a directory"),
            ("new/", "a file name is expected"),
            ("dangling", "it is a symbolic link to a file that does not exist"),
        ] {
            let path = directory.path().join(path);
            let checked = check_writable(&path).expect_err(expected).to_string();
            assert!(checked.contains(expected), "{checked}");
            assert!(checked.starts_with(&format!("cannot write `{}`: ", path.display())), "{checked}");
            assert_eq!(put(&path, "x").expect_err(expected).to_string(), checked);
        }
        assert!(check_writable(Path::new("")).is_err());
        assert!(check_writable(Path::new("..")).is_err());
        assert_eq!(names(directory.path()), ["dangling", "file"]);
    }

    #[test]
    fn a_link_stays_a_link() {
        let directory = directory();
        let (real, link) = (directory.path().join("real.svg"), directory.path().join("link.svg"));
        put(&real, "old").expect("made");
        symlink("real.svg", &link).expect("linked");
        put(&link, "new").expect("written");
        assert_eq!(content(&real), "new");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(names(directory.path()), ["link.svg", "real.svg"]);
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        let directory = directory();
        let path = directory.path().join("a.svg");
        put(&path, "old").expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
        put(&path, "new").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_name_of_full_length_is_written() {
        let directory = directory();
        let path = directory.path().join("n".repeat(255));
        put(&path, "x").expect("written");
        assert_eq!(content(&path), "x");
    }

    #[test]
    fn devices_are_written_and_stay() {
        put(Path::new("/dev/null"), "x").expect("written");
        check_writable(Path::new("/dev/null")).expect("writable");
        check_writable(Path::new("/dev/stdout")).expect("writable");
        assert!(!fs::metadata("/dev/null").expect("there").is_file());
        if cfg!(target_os = "linux") {
            let error = put(Path::new("/dev/full"), "x").expect_err("full");
            assert_eq!(error.to_string(), "cannot write `/dev/full`: no space left on device");
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        write_stream("standard output", &mut Closed, |out| out.write_all(b"x")).expect("fine");
        let mut full = [0u8; 1];
        let error = write_stream("standard output", &mut &mut full[..], |out| out.write_all(b"xy"))
            .expect_err("no room");
        assert!(error.to_string().starts_with("cannot write standard output: "), "{error}");
    }

    #[test]
    fn the_user_behind_sudo_is_found() {
        let environment = |uid: &'static str, gid: &'static str| {
            sudo_owner(move |name| match name {
                "SUDO_UID" => Some(uid.to_string()),
                "SUDO_GID" => Some(gid.to_string()),
                _ => None,
            })
        };
        assert_eq!(environment("1000", "100"), Some((1000, 100)));
        assert_eq!(environment("x", "100"), None);
        assert_eq!(sudo_owner(|_| None), None);
    }
}
