//! Writes output files atomically.
//!
//! `OutputFiles` checks outputs before a recording; `WritableOutput` is a checked output and writes it; `Problem`
//! words why one cannot be written.
//!
//! The content goes to a new file in the same directory, which is then renamed: an existing file survives every
//! failure. Devices and pipes (`/dev/stdout`, a FIFO) are written directly. The directory is opened when the output
//! is checked, and all later operations are relative to it. Under sudo, outputs are created with the rights of the
//! calling user; root's are used only in directories that no other user can change. Nothing here prints.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{self, Error, ErrorKind, io_text};
use crate::sources::output::{
    Caller, Goal, OutputPlace, Refusal, Resolved, Status, Trust, Unfinished, make_directories, open_file,
    resolve,
};
use crate::sources::{signals, startup};

/// The output files of a run; checked outputs stay open until they are written.
#[derive(Debug, Default)]
pub struct OutputFiles {
    caller: Option<Caller>,
    checked: Mutex<Vec<(PathBuf, WritableOutput)>>,
}

/// A writable output.
#[derive(Debug)]
enum WritableOutput {
    /// An open file of this process.
    Descriptor(File),
    /// A name in an open directory.
    Replace { place: OutputPlace, rights: Rights },
    /// The name of a file that is appended to.
    Append { place: OutputPlace, rights: Rights },
}

impl WritableOutput {
    /// Whether both replace the same file; pipes and devices are not replaced.
    fn replaces_same(&self, other: &WritableOutput) -> bool {
        let (WritableOutput::Replace { place, .. }, WritableOutput::Replace { place: other, .. }) =
            (self, other)
        else {
            return false;
        };
        place.is_same(other)
            && !place.existing().is_ok_and(|existing| existing.is_some_and(|file| is_direct(&file)))
    }
}

/// The rights that an output is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// Those of the user who called sudo, if any.
    Caller,
    /// Those of the process.
    Own,
}

/// Destination of an output's content.
enum OutputSink {
    /// A device or pipe, which cannot be replaced.
    Direct(File),
    /// A new file, renamed when complete.
    Whole(Unfinished),
}

impl OutputFiles {
    /// With the rights of the user who called sudo, if any.
    #[must_use]
    pub fn new() -> OutputFiles {
        OutputFiles::of(Caller::of_this_process())
    }

    /// With the rights of this user, if this process acts for one.
    fn of(caller: Option<Caller>) -> OutputFiles {
        OutputFiles { caller, checked: Mutex::default() }
    }

    /// Checks before a recording whether `path` can be written after it, and keeps its directory
    /// open until then. Leaves nothing behind.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path and the obstacle.
    pub fn check(&self, path: &Path) -> error::Result<()> {
        let checked = self.prepare(path)?;
        let mut all = self.checked();
        all.retain(|(other, _)| other != path);
        if let Some((other, _)) = all.iter().find(|(_, other)| checked.replaces_same(other)) {
            let why = format!("`{}` is the same file; each output needs its own", other.display());
            return Err(Problem::new(why).of(path));
        }
        all.push((path.to_owned(), checked));
        Ok(())
    }

    /// Opens a regular file that [`OutputFiles::write`] then appends to, or creates if it does not exist.
    /// Returns whether it is empty.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path and the obstacle.
    pub fn check_append(&self, path: &Path) -> error::Result<bool> {
        let opened = self.as_anyone(|trust| match resolve(path, Goal::File, trust) {
            Ok(Resolved::Place(place)) => {
                self.check_own(&place)?;
                match place.existing()? {
                    Some(_) => Ok(Ok(open_to_append(&place)?)),
                    None => check_room(&place).map(|()| Err(place)),
                }
            }
            Ok(Resolved::Descriptor(_)) => Err(Problem::not_regular()),
            Err(refusal) => Err(Problem::of_path(path, refusal)),
        });
        let (rights, opened) = opened.map_err(|problem| problem.of(path))?;
        let (is_empty, checked) = match opened {
            Ok(file) => {
                (file.metadata().is_ok_and(|metadata| metadata.len() == 0), WritableOutput::Descriptor(file))
            }
            Err(place) => (true, WritableOutput::Append { place, rights }),
        };
        self.checked().push((path.to_owned(), checked));
        Ok(is_empty)
    }

    /// Refuses a file that another output replaces: the appended text would be lost.
    fn check_own(&self, place: &OutputPlace) -> std::result::Result<(), Problem> {
        let all = self.checked();
        let is_same = |checked: &WritableOutput| matches!(checked, WritableOutput::Replace { place: other, .. } if other.is_same(place));
        match all.iter().find(|(_, checked)| is_same(checked)) {
            Some((other, _)) => {
                let why = format!("`{}` is the same file; each output needs its own", other.display());
                Err(Problem::new(why))
            }
            None => Ok(()),
        }
    }

    /// Whether all checked outputs are written with the rights of the user who called sudo.
    #[must_use]
    pub fn are_callers(&self) -> bool {
        self.checked().iter().all(|(_, checked)| match checked {
            WritableOutput::Descriptor(_) => true,
            WritableOutput::Replace { rights, .. } | WritableOutput::Append { rights, .. } => {
                *rights == Rights::Caller
            }
        })
    }

    /// Writes a file through `content`; an existing one is replaced only by a complete new one. A
    /// closed pipe is not an error.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path.
    pub fn write(
        &self,
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> error::Result<()> {
        let mut all = self.checked();
        let checked = all.iter().position(|(other, _)| other == path).map(|index| all.swap_remove(index).1);
        drop(all);
        let (place, rights, begun) = match checked {
            Some(checked) => self.begin(path, checked),
            None => self.begin(path, self.prepare(path)?),
        }?;
        let cannot = |error: io::Error| Problem::from(error).of(path);
        match begun {
            OutputSink::Direct(file) => closed_pipe_is_fine(write_through(&file, content)).map_err(cannot),
            OutputSink::Whole(new) => {
                write_through(new.file(), content).map_err(cannot)?;
                let Some(place) = place else { return Ok(()) };
                self.act(rights, || place.finish(new).map_err(Problem::from))
                    .map_err(|problem| problem.of(path))
            }
        }
    }

    /// Checks whether a directory can be created, or whether files can be created in an existing one.
    /// Leaves nothing behind.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path and the obstacle.
    pub fn check_directory(&self, path: &Path) -> error::Result<()> {
        let existing = path.ancestors().find(|ancestor| {
            let ancestor = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
            ancestor.symlink_metadata().is_ok()
        });
        // Any name: only its directory is checked.
        let inside = existing.unwrap_or(Path::new("")).join("stackprof");
        self.as_anyone(|trust| match resolve(&inside, Goal::Name, trust) {
            Ok(Resolved::Place(place)) => check_room(&place),
            Ok(Resolved::Descriptor(_)) => Err(Problem::of_kernel()),
            Err(refusal) => Err(Problem::of_path(&inside, refusal)),
        })
        .map(drop)
        .map_err(|problem| problem.of(path))
    }

    /// Creates a directory and its missing parents.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path.
    pub fn make_directories(&self, path: &Path) -> error::Result<()> {
        self.as_anyone(|trust| {
            make_directories(path, trust).map_err(|refusal| Problem::of_path(path, refusal))
        })
        .map(drop)
        .map_err(|problem| problem.of(path))
    }

    /// Removes a file; of a link, only the link.
    ///
    /// # Errors
    /// [`ErrorKind::Output`] naming the path.
    pub fn remove(&self, path: &Path) -> error::Result<()> {
        self.as_anyone(|trust| match resolve(path, Goal::Name, trust) {
            Ok(Resolved::Place(place)) => place.remove().map_err(Problem::from),
            Ok(Resolved::Descriptor(_)) => Ok(()),
            Err(refusal) => Err(Problem::of_path(path, refusal)),
        })
        .map(drop)
        .map_err(|problem| problem.of(path))
    }

    fn checked(&self) -> MutexGuard<'_, Vec<(PathBuf, WritableOutput)>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, path: &Path) -> error::Result<WritableOutput> {
        let prepared = self.as_anyone(|trust| match resolve(path, Goal::File, trust) {
            Ok(Resolved::Place(place)) => check_place(&place).map(|()| Ok(place)),
            Ok(Resolved::Descriptor(descriptor)) => Ok(Err(descriptor)),
            Err(refusal) => Err(Problem::of_path(path, refusal)),
        });
        match prepared {
            Ok((rights, Ok(place))) => Ok(WritableOutput::Replace { place, rights }),
            Ok((_, Err(descriptor))) => {
                let file = File::from(descriptor);
                check_open_file(&file).map_err(|problem| problem.of(path))?;
                Ok(WritableOutput::Descriptor(file))
            }
            Err(problem) => Err(problem.of(path)),
        }
    }

    fn begin(
        &self,
        path: &Path,
        checked: WritableOutput,
    ) -> error::Result<(Option<OutputPlace>, Rights, OutputSink)> {
        let (place, rights) = match checked {
            WritableOutput::Descriptor(file) => return Ok((None, Rights::Own, OutputSink::Direct(file))),
            WritableOutput::Append { place, rights } => {
                let opened =
                    self.act(rights, || open_to_append(&place)).map_err(|problem| problem.of(path))?;
                return Ok((None, rights, OutputSink::Direct(opened)));
            }
            WritableOutput::Replace { place, rights } => (place, rights),
        };
        // No file can be created in a removed directory; another one may have taken its place.
        let (place, rights) = match place.directory() {
            Ok(directory) if directory.links == 0 => match self.prepare(path)? {
                WritableOutput::Replace { place, rights } | WritableOutput::Append { place, rights } => {
                    (place, rights)
                }
                WritableOutput::Descriptor(file) => return Ok((None, Rights::Own, OutputSink::Direct(file))),
            },
            _ => (place, rights),
        };
        let begun = self.act(rights, || begin(&place)).map_err(|problem| problem.of(path))?;
        Ok((Some(place), rights, begun))
    }

    /// Runs `body` with these rights.
    fn act<R>(
        &self,
        rights: Rights,
        body: impl FnOnce() -> std::result::Result<R, Problem>,
    ) -> std::result::Result<R, Problem> {
        match &self.caller {
            Some(caller) if rights == Rights::Caller => {
                caller.act(body).unwrap_or_else(|error| Err(Problem::no_such_rights(caller.uid(), error)))
            }
            _ => body(),
        }
    }

    /// Runs `body` with the rights of the user who called sudo; if they do not suffice, with root's, provided
    /// only root can change where the path leads.
    fn as_anyone<R>(
        &self,
        body: impl Fn(Trust) -> std::result::Result<R, Problem>,
    ) -> std::result::Result<(Rights, R), Problem> {
        let denied = match self.act(Rights::Caller, || body(Trust::Anyone)) {
            Err(problem) if problem.is_denied() => problem,
            other => return other.map(|result| (Rights::Caller, result)),
        };
        let Some(caller) = &self.caller else { return Err(denied) };
        match body(Trust::Root) {
            Err(problem) if problem.is_untrusted() => Err(denied.with_caller(caller.uid())),
            other => other.map(|result| (Rights::Own, result)),
        }
    }
}

/// Opens the destination of the content as it is now.
fn begin(place: &OutputPlace) -> std::result::Result<OutputSink, Problem> {
    if place.is_proc() {
        if is_of_kernel(place)? {
            return Err(Problem::of_kernel());
        }
        if let Some((file, _)) = signals::await_reader(|| place.open())? {
            return Ok(OutputSink::Direct(file));
        }
    }
    if let Some(existing) = place.existing()?.filter(is_direct) {
        check_direct(&place.directory()?, &existing)?;
        // Anything else has been put there since the check, and is not written to.
        if let Some((file, opened)) = signals::await_reader(|| place.open())?
            && opened.identity == existing.identity
            && is_direct(&opened)
        {
            return Ok(OutputSink::Direct(file));
        }
    }
    place.create().map(OutputSink::Whole).map_err(Problem::in_directory)
}

/// Checks before a recording whether standard output can be written after it.
///
/// # Errors
/// [`ErrorKind::Output`]: it is closed, read-only, or full.
pub fn check_stdout() -> error::Result<()> {
    check_stdout_is_open()?;
    let checked = open_file(STDOUT).map_err(Problem::from).and_then(|file| check_open_file(&file.into()));
    checked.map_err(|problem| problem.of_stream("standard output"))
}

/// Checks whether this process began with a standard output. What is written to a closed one is lost without an
/// error: its descriptor was opened on /dev/null.
///
/// # Errors
/// [`ErrorKind::Output`]: it is closed.
pub fn check_stdout_is_open() -> error::Result<()> {
    if !startup::is_stdout_closed() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Output, "cannot write standard output: it is closed; name a file"))
}

/// File descriptor of standard output.
const STDOUT: i32 = 1;

/// Writes to an open stream (standard output) through `content`; `name` is for errors. A closed
/// pipe is not an error.
///
/// # Errors
/// [`ErrorKind::Output`] naming the stream.
pub fn write_stream(
    name: &str,
    stream: &mut dyn Write,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> error::Result<()> {
    closed_pipe_is_fine(write_through(stream, content)).map_err(|error| {
        let text = format!("cannot write {name}: {}", with_next_step(&error));
        Error::new(ErrorKind::Output, text).caused_by(error)
    })
}

fn write_through(out: impl Write, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(1 << 16, out);
    let written = content(&mut buffered).and_then(|()| buffered.flush());
    if written.is_err() {
        // Dropping a BufWriter would write the remaining bytes again.
        let _ = buffered.into_parts();
    }
    written
}

fn closed_pipe_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

// ---- Checks in advance whether an output can be written.
//
// A recording cannot be repeated at will, so known obstacles are reported before it: a directory where no file can
// be created, a pipe or device that may not be written, a full disk. Nothing is left behind, and no pipe is opened:
// its reader would take the close for end of file.

/// Free space that is required, bytes: file systems allocate blocks.
const ROOM_BYTES: usize = 4096;

/// Checks that a file with this name could be created, with room for data.
fn check_room(place: &OutputPlace) -> Result<(), Problem> {
    let new = place.create().map_err(Problem::in_directory)?;
    Ok(new.file().write_all(&[0; ROOM_BYTES])?)
}

/// Whether the name is that of a /proc file and not a link: writing to these files changes the
/// system or a process.
fn is_of_kernel(place: &OutputPlace) -> Result<bool, Problem> {
    Ok(place.existing()?.is_some_and(|existing| !existing.is_link()))
}

/// Checks that the target of a /proc link, an open file of a process, can be written.
fn check_proc(place: &OutputPlace) -> Result<(), Problem> {
    if is_of_kernel(place)? {
        return Err(Problem::of_kernel());
    }
    match place.target()? {
        Some(target) => check_kind(&target).and_then(|()| check_target(place, &target)),
        None => Err(Problem::of_kernel()),
    }
}

/// Refuses file types that are never written to.
fn check_kind(target: &Status) -> Result<(), Problem> {
    if target.is_block_device() {
        return Err(Problem::new("it is a disk; name a file"));
    }
    if target.is_socket() {
        return Err(Problem::new("it is a socket; name a file or a pipe"));
    }
    if target.is_directory() {
        return Err(Problem::new("it is a directory; name a file in it"));
    }
    Ok(())
}

/// Checks that an output that is not replaced may be written to and accepts data.
fn check_target(place: &OutputPlace, target: &Status) -> Result<(), Problem> {
    place.check_access()?;
    if target.is_character_device()
        && let Some((mut file, opened)) = place.open_at_once()?
        && opened.is_character_device()
    {
        // A full device refuses even an empty write.
        let _ = file.write(&[])?;
    }
    Ok(())
}

/// Checks that an open file of this process accepts data.
fn check_open_file(mut file: &File) -> Result<(), Problem> {
    if file.metadata()?.file_type().is_char_device() {
        let _ = file.write(&[])?;
    }
    Ok(())
}

/// Opens for appending a regular file that no other user has planted.
fn open_to_append(place: &OutputPlace) -> Result<File, Problem> {
    if place.is_proc() {
        return Err(Problem::not_regular());
    }
    // A device or pipe is not even opened.
    match place.existing()? {
        Some(existing) if !existing.is_regular() => return Err(Problem::not_regular()),
        _ => {}
    }
    let (file, opened) = place.append()?;
    if !opened.is_regular() {
        return Err(Problem::not_regular());
    }
    if OutputPlace::is_trusted(&place.directory()?, &opened) {
        Ok(file)
    } else {
        Err(Problem::foreign(opened.uid))
    }
}

/// Checks that an output can be written there.
fn check_place(place: &OutputPlace) -> Result<(), Problem> {
    if place.is_proc() {
        return check_proc(place);
    }
    let (directory, existing) = (place.directory()?, place.existing()?);
    match &existing {
        // Opening a FIFO would wait for its reader.
        Some(existing) if is_direct(existing) => {
            check_direct(&directory, existing)?;
            return check_target(place, existing);
        }
        // Renaming over a file does not check whether that file may be written; opening does.
        Some(existing) if existing.is_regular() => {
            place.ask()?;
            if !OutputPlace::may_replace(&directory, existing) {
                return Err(Problem::sticky(existing.uid));
            }
        }
        _ => {}
    }
    check_room(place)
}

/// Whether an existing file is written to instead of being replaced.
fn is_direct(existing: &Status) -> bool {
    !(existing.is_regular() || existing.is_link() || existing.is_directory())
}

fn check_direct(directory: &Status, existing: &Status) -> Result<(), Problem> {
    check_kind(existing)?;
    if OutputPlace::is_trusted(directory, existing) { Ok(()) } else { Err(Problem::planted(existing.uid)) }
}

// ---- Why an output cannot be written, with the next step.

/// The obstacle to an output.
#[derive(Debug)]
struct Problem {
    text: String,
    source: Option<io::Error>,
    is_untrusted: bool,
}

impl Problem {
    fn new(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), source: None, is_untrusted: false }
    }

    /// The path does not resolve.
    fn of_path(path: &Path, refusal: Refusal) -> Problem {
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
    fn in_directory(error: io::Error) -> Problem {
        let text = format!("no file can be made in its directory: {}", with_next_step(&error));
        Problem { source: Some(error), ..Problem::new(text) }
    }

    /// A sticky directory: only the owner may replace the file.
    fn sticky(owner: u32) -> Problem {
        Problem::new(format!(
            "only user {owner}, who owns it, may replace it in its directory; name another file"
        ))
    }

    /// A pipe or device that another user may have planted.
    fn planted(owner: u32) -> Problem {
        Problem::new(format!(
            "it is a pipe or device of user {owner} in a directory where everyone may put one; name another file"
        ))
    }

    /// A place in /proc where no file can be created or written.
    fn of_kernel() -> Problem {
        Problem::new("/proc is the kernel's and keeps no files; name a file elsewhere")
    }

    /// Only regular files can be appended to.
    fn not_regular() -> Problem {
        Problem::new("only a regular file is appended to; name one")
    }

    /// A file that another user may have planted.
    fn foreign(owner: u32) -> Problem {
        Problem::new(format!(
            "it is a file of user {owner} in a directory where everyone may put one; name another file"
        ))
    }

    /// The process cannot act as the user who called sudo.
    fn no_such_rights(uid: u32, error: io::Error) -> Problem {
        let text = format!(
            "cannot act as user {uid}, who called sudo: {}; unset SUDO_UID to write as root",
            io_text(&error)
        );
        Problem { source: Some(error), ..Problem::new(text) }
    }

    /// Neither the user who called sudo may write there, nor will root.
    fn with_caller(self, uid: u32) -> Problem {
        let why = self.source.as_ref().map_or_else(|| self.text.clone(), io_text);
        let text = format!("{why} to user {uid}, who called sudo; name a file where that user may write");
        Problem { text, ..self }
    }

    /// Whether other rights could help.
    fn is_denied(&self) -> bool {
        self.source.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether users other than root can change where the path leads.
    fn is_untrusted(&self) -> bool {
        self.is_untrusted
    }

    /// The error for the user.
    fn of(self, path: &Path) -> Error {
        self.of_stream(&format!("`{}`", path.display()))
    }

    /// The error of a stream, which has a name but no path.
    fn of_stream(self, name: &str) -> Error {
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
fn with_next_step(error: &io::Error) -> String {
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
mod refusal_tests {
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
