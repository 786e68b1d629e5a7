//! Checks in advance whether an output can be written.
//!
//! A recording cannot be repeated at will, so known obstacles are reported before it: a directory where no file can
//! be created, a pipe or device that may not be written, a full disk. Nothing is left behind, and no pipe is opened:
//! its reader would take the close for end of file.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;

use super::refusal::Problem;
use crate::sources::output::{OutputPlace, Status};

/// Free space that is required, bytes: file systems allocate blocks.
const ROOM_BYTES: usize = 4096;

/// Whether a file with this name could be created, with room for data.
pub(super) fn check_room(place: &OutputPlace) -> Result<(), Problem> {
    let new = place.create().map_err(Problem::in_directory)?;
    Ok(new.file().write_all(&[0; ROOM_BYTES])?)
}

/// Whether the name is that of a /proc file and not a link: writing to these files changes the
/// system or a process.
pub(super) fn is_of_kernel(place: &OutputPlace) -> Result<bool, Problem> {
    Ok(place.existing()?.is_some_and(|existing| !existing.is_link()))
}

/// Whether the target of a /proc link, an open file of a process, can be written.
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

/// Whether an output that is not replaced may be written to and accepts data.
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

/// Whether an open file of this process accepts data.
pub(super) fn check_open_file(mut file: &File) -> Result<(), Problem> {
    if file.metadata()?.file_type().is_char_device() {
        let _ = file.write(&[])?;
    }
    Ok(())
}

/// Opens for appending a regular file that no other user has planted.
pub(super) fn open_to_append(place: &OutputPlace) -> Result<File, Problem> {
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

/// Whether an output can be written there.
pub(super) fn check_place(place: &OutputPlace) -> Result<(), Problem> {
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
pub(super) fn is_direct(existing: &Status) -> bool {
    !(existing.is_regular() || existing.is_link() || existing.is_directory())
}

pub(super) fn check_direct(directory: &Status, existing: &Status) -> Result<(), Problem> {
    check_kind(existing)?;
    if OutputPlace::is_trusted(directory, existing) { Ok(()) } else { Err(Problem::planted(existing.uid)) }
}
