//! The images of a process as the heap shim lists them (`shared_memory::image_line`).
//!
//! Input: text that the process can have written itself. Output: images, sorted by address.

use std::collections::BTreeMap;

use crate::addr::Avma;
use crate::binary::macho::fat::ImageIdentity;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::heap::shared_memory::image_line::{CACHE, LOADED, UNLOADED};
use crate::sources::mach::dyld::{
    EXECUTE, IMAGES_MAX, IN_SHARED_CACHE, SharedCache, TEXT_BYTES_MAX, identity_of, own_image,
};
use crate::sources::mach::images::{own_cache, part_of_file};
use crate::sources::mach::kernel::MachKernel;

/// An image of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedImage {
    /// Address of its header, and bytes of `__TEXT`.
    load: u64,
    size: u64,
    /// The address of `__TEXT` that the file states, and its offset in the file.
    stated: u64,
    offset: u64,
    uuid: [u8; 16],
    file_type: u32,
    flags: u32,
    cpu_type: u32,
    cpu_subtype: u32,
    path: String,
}

/// The images of a process.
#[derive(Debug, Default)]
pub(super) struct ImageList {
    /// By address.
    images: BTreeMap<u64, ListedImage>,
    cache: Option<SharedCache>,
}

impl ImageList {
    /// The images that are loaded after the last line, or before this unload. Lines of another form are skipped.
    pub(super) fn parse(text: &[u8], before_unload: Option<u32>) -> ImageList {
        let mut list = ImageList::default();
        let mut unloads = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // The last line may be unfinished.
            let Some((kind, rest)) = line.strip_suffix(b"\n").and_then(<[u8]>::split_first) else { continue };
            match *kind {
                LOADED => list.add(ListedImage::parse(rest)),
                UNLOADED if before_unload == Some(unloads) => break,
                UNLOADED => {
                    unloads += 1;
                    if let Some(load) = Fields(rest).number(16) {
                        list.images.remove(&load);
                    }
                }
                CACHE => list.cache = parse_cache(rest),
                _ => {}
            }
        }
        list
    }

    fn add(&mut self, image: Option<ListedImage>) {
        let Some(image) = image else { return };
        // dyld reports an image twice where one is loaded while the shim starts.
        if self.images.len() < IMAGES_MAX || self.images.contains_key(&image.load) {
            self.images.insert(image.load, image);
        }
    }

    /// Path of the program.
    pub(super) fn program(&self) -> Option<&str> {
        let program = self.images.values().find(|image| image.file_type == EXECUTE)?;
        Some(&program.path)
    }

    /// The code of all images.
    pub(super) fn mappings(&self, out: &mut Vec<Mapping>) {
        out.clear();
        out.extend(self.images.values().map(|image| Mapping {
            avma: Avma(image.load)..Avma(image.load.saturating_add(image.size)),
            file_offset: image.offset,
            path: image.path.clone(),
            kind: MappingKind::File,
            identity: identity_of(&image.uuid, image.stated, image.offset),
        }));
    }

    /// The bytes of an image: from this process's own shared cache, or from its file.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn bytes(&self, kernel: &dyn MachKernel, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let image = self.images.get(&mapping.avma.start.0);
        let image = image.ok_or(OpenError::Unloaded)?;
        if image.flags & IN_SHARED_CACHE != 0 {
            let own =
                own_image(kernel, image.load, &image.path).filter(|own| own.macho.uuid == Some(image.uuid));
            let bytes = own.and_then(|own| own_cache(kernel, &own, self.cache));
            return bytes.ok_or(OpenError::Because("it is in another shared cache than that of stackprof"));
        }
        if image.uuid == [0; 16] {
            return Err(OpenError::Because("it has no UUID, by which its file is recognized"));
        }
        let (cpu_type, cpu_subtype) = (image.cpu_type, image.cpu_subtype);
        part_of_file(&image.path, &ImageIdentity { uuid: Some(image.uuid), cpu_type, cpu_subtype })
    }
}

/// Fields of a line, each behind a space.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.strip_prefix(b" ")?.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn number(&mut self, digits: usize) -> Option<u64> {
        let text = std::str::from_utf8(self.next(digits)?).ok()?;
        u64::from_str_radix(text, 16).ok()
    }

    fn half(&mut self) -> Option<u32> {
        u32::try_from(self.number(8)?).ok()
    }

    fn uuid(&mut self) -> Option<[u8; 16]> {
        let text = std::str::from_utf8(self.next(32)?).ok()?;
        u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
    }
}

impl ListedImage {
    fn parse(line: &[u8]) -> Option<ListedImage> {
        let mut fields = Fields(line);
        let image = ListedImage {
            load: fields.number(16)?,
            size: fields.number(16)?.min(TEXT_BYTES_MAX),
            stated: fields.number(16)?,
            offset: fields.number(16)?,
            uuid: fields.uuid()?,
            file_type: fields.half()?,
            flags: fields.half()?,
            cpu_type: fields.half()?,
            cpu_subtype: fields.half()?,
            path: String::from_utf8_lossy(fields.0.strip_prefix(b" ")?).into_owned(),
        };
        (image.size > 0).then_some(image)
    }
}

fn parse_cache(line: &[u8]) -> Option<SharedCache> {
    let mut fields = Fields(line);
    let base = fields.number(16)?;
    Some(SharedCache { uuid: fields.uuid()?, base })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(load: u64, path: &str) -> String {
        format!(
            "+ {load:016x} 0000000000004000 0000000100000000 0000000000000000 00112233445566778899aabbccddeeff \
             00000002 00200085 01000007 00000003 {path}\n"
        )
    }

    #[test]
    fn the_list_has_what_is_loaded_after_the_last_line() {
        let text = [
            "c 00007ff800000000 000102030405060708090a0b0c0d0e0f\n".to_owned(),
            loaded(0x2000_0000, "/lib/b with space"),
            loaded(0x1000_0000, "/bin/prog"),
            loaded(0x3000_0000, "/lib/gone"),
            "- 0000000030000000\n".to_owned(),
            loaded(0x2000_0000, "/lib/b with space"),
            loaded(0x4000_0000, "/lib/unfinished").trim_end().to_owned(),
        ]
        .concat();
        let list = ImageList::parse(text.as_bytes(), None);
        let mut mappings = Vec::new();
        list.mappings(&mut mappings);
        let shown: Vec<_> = mappings
            .iter()
            .map(|mapping| (mapping.avma.start.0, mapping.avma.end.0, mapping.path.as_str()))
            .collect();
        assert_eq!(
            shown,
            [(0x1000_0000, 0x1000_4000, "/bin/prog"), (0x2000_0000, 0x2000_4000, "/lib/b with space")]
        );
        assert_eq!(list.program(), Some("/bin/prog"));
        let uuid = std::array::from_fn(|index| index as u8);
        assert_eq!(list.cache, Some(SharedCache { uuid, base: 0x7ff8_0000_0000 }));
        assert_eq!(mappings[0].identity, mappings[1].identity, "one UUID");
    }

    #[test]
    fn damaged_lists_are_read_as_far_as_they_go() {
        let whole = [loaded(0x1000, "/bin/prog"), "- 0000000000001000\n".to_owned()].concat().into_bytes();
        for at in 0..whole.len() {
            let _ = ImageList::parse(&whole[..at], None);
            for byte in [0, b'\n', b' ', 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = ImageList::parse(&damaged, None);
            }
        }
        let many: String = (0..IMAGES_MAX as u64 + 9).map(|number| loaded(number << 20, "/x")).collect();
        assert_eq!(ImageList::parse(many.as_bytes(), None).images.len(), IMAGES_MAX);
        let end = loaded(u64::MAX, "/end");
        let mut mappings = Vec::new();
        ImageList::parse(end.as_bytes(), None).mappings(&mut mappings);
        assert_eq!(mappings[0].avma, Avma(u64::MAX)..Avma(u64::MAX));
    }
}
