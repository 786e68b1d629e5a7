//! Fat (universal) files: one file with a Mach-O image for each of several processors.
//!
//! Input: a whole file, hostile, and the identity of the wanted image. Output: the bytes of that image. Thin files
//! pass through the same check, so the caller need not distinguish them. Not for: archives, or the content of the
//! image.
//!
//! Format: `<mach-o/fat.h>` of xnu; big-endian for any processor.

use std::ops::Range;

use object::macho::{FatArch32, FatArch64};
use object::read::macho::{FatArch, MachOFatFile};

use super::{MachO, SUBTYPE_BITS};
use crate::binary::object::part;
use crate::binary::{FormatError, ImageBytes};

/// Limit on images in one file. Java class files begin with the same magic number, followed by a version of at
/// least 45 in place of this count.
pub const IMAGES_MAX: u32 = 32;

/// The identity of the wanted image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageIdentity {
    /// UUID of the loaded image, sufficient by itself. A file may contain arm64 and arm64e code with completely
    /// different addresses, and the caller cannot guess which one runs.
    pub uuid: Option<[u8; 16]>,
    /// `cputype`, if there is no UUID.
    pub cpu_type: u32,
    /// `cpusubtype`, if there is no UUID and several images have the type.
    pub cpu_subtype: u32,
}

/// Selects the wanted image of a fat or thin file.
///
/// # Errors
/// [`FormatError::OtherUuid`], [`FormatError::NoProcessor`], or an invalid file.
pub fn choose(bytes: &ImageBytes, wanted: &ImageIdentity) -> Result<ImageBytes, FormatError> {
    let data = bytes.bytes();
    let slices = slices(data)?;
    let head = |slice: &Slice| MachO::parse(data.get(clipped(&slice.range, data.len()))?).ok();
    if let Some(uuid) = wanted.uuid {
        let found = slices.iter().find(|slice| head(slice).is_some_and(|macho| macho.uuid == Some(uuid)));
        let found = found.ok_or(FormatError::OtherUuid)?;
        return Ok(part(bytes, &found.range));
    }
    let fits = |slice: &&Slice| slice.cpu_type == wanted.cpu_type;
    let exactly = slices.iter().filter(fits).find(|slice| slice.cpu_subtype == wanted.cpu_subtype);
    let found = exactly.or_else(|| slices.iter().find(fits)).ok_or(FormatError::NoProcessor)?;
    Ok(part(bytes, &found.range))
}

/// One image of a fat file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// `cputype`.
    pub cpu_type: u32,
    /// `cpusubtype` without its capability bits.
    pub cpu_subtype: u32,
    /// Its stated bytes in the file; all offsets inside are relative to its start.
    pub range: Range<u64>,
}

/// The images of a fat file in file order; a thin file is one image.
///
/// # Errors
/// The file is neither, or invalid.
pub fn slices(bytes: &[u8]) -> Result<Vec<Slice>, FormatError> {
    if !is_fat(bytes) {
        let macho = MachO::parse(bytes)?;
        let range = 0..bytes.len() as u64;
        return Ok(vec![Slice { cpu_type: macho.cpu_type, cpu_subtype: macho.cpu_subtype, range }]);
    }
    match bytes[3] {
        0xbe => read::<FatArch32>(bytes),
        _ => read::<FatArch64>(bytes),
    }
}

/// Whether a file has the magic number of fat files.
pub(crate) fn is_fat(bytes: &[u8]) -> bool {
    match bytes {
        [0xca, 0xfe, 0xba, 0xbe | 0xbf, count @ ..] => {
            count.first_chunk().is_some_and(|count| u32::from_be_bytes(*count) <= IMAGES_MAX)
        }
        _ => false,
    }
}

fn read<Arch: FatArch>(bytes: &[u8]) -> Result<Vec<Slice>, FormatError> {
    let file = MachOFatFile::<Arch>::parse(bytes)?;
    let slice = |arch: &Arch| {
        let (offset, size) = arch.file_range();
        let cpu_subtype = arch.cpusubtype().0 & SUBTYPE_BITS;
        Slice { cpu_type: arch.cputype().0, cpu_subtype, range: offset..offset.saturating_add(size) }
    };
    Ok(file.arches().iter().map(slice).collect())
}

fn clipped(range: &Range<u64>, length: usize) -> Range<usize> {
    let clip = |offset: u64| usize::try_from(offset).unwrap_or(length).min(length);
    let end = clip(range.end);
    clip(range.start).min(end)..end
}
