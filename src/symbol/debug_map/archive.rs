//! The members of a static library by name: `libfoo.a(bar.o)` of a debug map.
//!
//! Input: the bytes of an archive, hostile. Output: the bytes of a member. Not for: its index
//! of symbols.

use std::ops::Range;

use hashbrown::HashMap;
use object::read::archive::ArchiveFile;

use crate::image::object::part;
use crate::target::ImageBytes;

/// Most members of an archive; the largest static libraries have some ten thousand.
const MAX_MEMBERS: usize = 1 << 20;

/// An archive whose members are known.
#[derive(Debug)]
pub(super) struct Archive {
    bytes: ImageBytes,
    /// The members of each name, with the time of their last change.
    members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>>,
}

impl Archive {
    /// Reads the headers of the members, as far as they are sound.
    pub(super) fn read(bytes: ImageBytes) -> Result<Archive, String> {
        let data = bytes.bytes();
        let file = ArchiveFile::parse(data).map_err(|_| "not an archive")?;
        if file.is_thin() {
            return Err("a thin archive, which Apple's linkers do not have".to_owned());
        }
        let mut members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>> = HashMap::new();
        for member in file.members().take(MAX_MEMBERS) {
            let Ok(member) = member else { break };
            let (start, size) = member.file_range();
            let of_name = members.entry(member.name().to_vec()).or_default();
            of_name.push((start..start.saturating_add(size), member.date().unwrap_or(0)));
        }
        Ok(Archive { bytes, members })
    }

    /// The member of a name that was changed last at a time, in seconds since 1970; at any
    /// time if that is 0.
    pub(super) fn member(&self, name: &[u8], modified_s: u64) -> Result<ImageBytes, String> {
        let of_name = self.members.get(name).ok_or("the archive has no such member")?;
        let found = of_name.iter().find(|(_, date)| modified_s == 0 || *date == modified_s);
        let (range, _) = found.ok_or("it was changed after the image was linked; link it again")?;
        Ok(part(&self.bytes, range))
    }
}
