//! The members of a static library by name: `libfoo.a(bar.o)` in a debug map.
//!
//! Input: the bytes of an archive, hostile. Output: the bytes of a member. Not for: its symbol index.

use std::ops::Range;

use hashbrown::HashMap;
use object::read::archive::ArchiveFile;

use crate::binary::ImageBytes;
use crate::binary::object::part;
use crate::symbol::error::ObjectFileError;

/// Limit on members of an archive; the largest static libraries have some ten thousand.
const MEMBERS_MAX: usize = 1 << 20;

/// An archive with an index of its members.
#[derive(Debug)]
pub(super) struct Archive {
    bytes: ImageBytes,
    /// The members with each name, with their modification time.
    members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>>,
}

impl Archive {
    /// Reads the headers of the members, up to a malformed one.
    pub(super) fn read(bytes: ImageBytes) -> Result<Archive, ObjectFileError> {
        let data = bytes.bytes();
        let file = ArchiveFile::parse(data).map_err(|_| ObjectFileError::NotAnArchive)?;
        if file.is_thin() {
            return Err(ObjectFileError::ThinArchive);
        }
        let mut members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>> = HashMap::new();
        // Names are stored next to each other in the file, unless a malicious file makes many begin in a long one.
        let mut left = data.len();
        for member in file.members().take(MEMBERS_MAX) {
            let Ok(member) = member else { break };
            left = left.checked_sub(member.name().len()).ok_or(ObjectFileError::NamesOverlap)?;
            let (start, size) = member.file_range();
            let of_name = members.entry_ref(member.name()).or_default();
            of_name.push((start..start.saturating_add(size), member.date().unwrap_or(0)));
        }
        Ok(Archive { bytes, members })
    }

    /// The member with this name and modification time, in seconds since 1970; any time if that is 0.
    pub(super) fn member(&self, name: &[u8], modified_s: u64) -> Result<ImageBytes, ObjectFileError> {
        let of_name = self.members.get(name).ok_or(ObjectFileError::NoMember)?;
        let found = of_name.iter().find(|(_, date)| modified_s == 0 || *date == modified_s);
        let (range, _) = found.ok_or(ObjectFileError::Changed)?;
        Ok(part(&self.bytes, range))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn header(name: &str, size: usize) -> Vec<u8> {
        format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 644).into_bytes()
    }

    fn archive(names: &str, members: impl Iterator<Item = String>) -> ImageBytes {
        let mut bytes = [b"!<arch>\n".as_slice(), &header("//", names.len()), names.as_bytes()].concat();
        members.for_each(|name| bytes.extend(header(&name, 0)));
        ImageBytes::new(bytes)
    }

    #[test]
    fn members_have_the_names_of_the_table() {
        let names = "a_long_name_of_an_object_file.o/\nanother_long_name_of_one.o/\n\n";
        let archive = Archive::read(archive(names, ["/0", "/33", "b.o/"].map(str::to_owned).into_iter()));
        let archive = archive.unwrap();
        for name in ["a_long_name_of_an_object_file.o", "another_long_name_of_one.o", "b.o"] {
            assert!(archive.member(name.as_bytes(), 0).is_ok(), "{name}");
        }
    }

    #[test]
    fn overlapping_names_are_refused() {
        // Copied, they would take 32 GiB.
        let names = format!("{}/\n", "a".repeat(1 << 20));
        let members = (0..1 << 16).map(|index| format!("/{index}"));
        let refused = Archive::read(archive(&names, members)).unwrap_err();
        assert!(matches!(refused, ObjectFileError::NamesOverlap), "{refused}");
    }
}
