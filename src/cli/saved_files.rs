//! Reads a saved profile from a path or standard input, with the name that messages call it.

use std::io;
use std::path::Path;

use crate::error::Result;
use crate::profile::{Saved, read};

/// The profile and its name for people; `-` is standard input.
///
/// # Errors
/// One line that names the file and the place.
pub(super) fn read(path: &Path) -> Result<(String, Saved)> {
    if path == Path::new("-") {
        let name = "standard input";
        return Ok((name.to_owned(), read::read(io::stdin().lock(), name, 0)?));
    }
    Ok((path.display().to_string(), read::read_file(path)?))
}
