//! Finds the supplementary file shared by several debug files: `dwz -m` moves common entries there.
//!
//! Input: a debug file, hostile, and [`Files`]. Output: the file that it refers to, if both were written together.
//! Not for: reading it (see `dwarf`).
//!
//! Formats: `.gnu_debugaltlink` is a path and a build id (dwz(1)); `.debug_sup` of DWARF 5, 7.3.6, is a path and a
//! checksum that the other file repeats.

use std::borrow::Cow;

use super::{OPENED_BY, build_id_path, mismatch, section};
use crate::binary::{Files, ImageBytes};
use crate::leb128::take_unsigned;
use crate::symbol::error::DebugFileError;

/// The proof that a file is the right one.
enum Mark<'a> {
    BuildId(&'a [u8]),
    Checksum(&'a [u8]),
}

/// Finds the file; `None` if there is no reference, or no match, which is added to `problems`.
pub(super) fn find(
    debug: &ImageBytes,
    debug_path: &str,
    files: &dyn Files,
    problems: &mut Vec<String>,
) -> Option<ImageBytes> {
    let (path, mark) = named(debug.bytes())?;
    let directory = debug_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let stated = if path.starts_with('/') { path.into_owned() } else { format!("{directory}/{path}") };
    let by_id = match mark {
        Mark::BuildId(id) => build_id_path(id),
        Mark::Checksum(_) => None,
    };
    let mut why = Vec::new();
    for path in std::iter::once(stated).chain(by_id) {
        let fits = |file: ImageBytes| match mark {
            Mark::BuildId(id) => mismatch(file.bytes(), id).map(|()| file),
            Mark::Checksum(sum) => match supplement(file.bytes()) {
                Some(found) if found.is_the_common_file && found.checksum == sum => Ok(file),
                _ => Err(DebugFileError::OtherSupplement),
            },
        };
        for open in OPENED_BY {
            match open(files, &path).map_err(DebugFileError::from).and_then(fits) {
                Ok(file) => return Some(file),
                Err(reason) => why.push(format!("{path}: {reason}")),
            }
        }
        why.dedup();
    }
    problems.push(why.join(", "));
    None
}

/// The path in a debug file, and the mark of the file there.
fn named(debug: &[u8]) -> Option<(Cow<'_, str>, Mark<'_>)> {
    if let Some(link) = section(debug, ".gnu_debugaltlink") {
        let end = link.iter().position(|byte| *byte == 0)?;
        let (path, id) = (link.get(..end)?, link.get(end + 1..)?);
        return Some((String::from_utf8_lossy(path), Mark::BuildId(id)));
    }
    let found = supplement(debug).filter(|found| !found.is_the_common_file)?;
    Some((String::from_utf8_lossy(found.path), Mark::Checksum(found.checksum)))
}

struct Supplement<'a> {
    is_the_common_file: bool,
    path: &'a [u8],
    checksum: &'a [u8],
}

/// Reads `.debug_sup`.
fn supplement(file: &[u8]) -> Option<Supplement<'_>> {
    let (head, rest) = section(file, ".debug_sup")?.split_first_chunk::<3>()?;
    let [5, 0, is_the_common_file] = *head else { return None };
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (path, mut rest) = (rest.get(..end)?, rest.get(end + 1..)?);
    let length = usize::try_from(take_unsigned(&mut rest)?).ok()?;
    Some(Supplement { is_the_common_file: is_the_common_file != 0, path, checksum: rest.get(..length)? })
}
