//! Libraries of a profile, and the locations of its frames in them.
//!
//! Input: the mappings of a [`SavedProfile`]. Output: each library once, with the ids that the Firefox Profiler
//! uses, and for each frame its library and an address there.

use std::collections::HashMap;

use crate::escape::file_name;
use crate::saved::SavedProfile;
use crate::texts::TextId;

/// An executable or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// File name.
    pub name: String,
    /// Path, as the profile has it.
    pub path: String,
    /// Build id in hexadecimal digits; empty if unknown.
    pub build_id: String,
}

impl Library {
    /// The library id used by viewers: 33 digits derived from the build id (Breakpad's form: the first 16
    /// bytes as a GUID, and an age of 0), or from the path without one.
    #[must_use]
    pub fn debug_id(&self) -> String {
        let digit = |at: usize| self.build_id.get(at..at + 2);
        let bytes: Vec<u8> = (0..16)
            .map_while(|index| digit(index * 2).and_then(|text| u8::from_str_radix(text, 16).ok()))
            .collect();
        let mut guid = [0; 16];
        if bytes.is_empty() {
            guid = hash(&self.path).to_be_bytes();
        } else {
            guid.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
            // The fields of a GUID are numbers of four, two and two bytes.
            guid[..4].reverse();
            guid[4..6].reverse();
            guid[6..8].reverse();
        }
        let digits: String = guid.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("{digits}0")
    }
}

/// FNV-1a of 128 bits: identifies a path, not cryptographic.
fn hash(text: &str) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The libraries of a profile, and the locations of its frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Each library once.
    pub list: Vec<Library>,
    /// By frame of the profile: index in `list`, and offset from the lowest address of the library; `None`
    /// for a frame with only a name.
    pub frames: Vec<Option<(u32, u32)>>,
}

impl Libraries {
    /// Derives them from a profile, without its files: an address is the file offset, which is also the
    /// offset from the lowest address in most ELF executables and libraries.
    #[must_use]
    pub fn of(saved: &SavedProfile) -> Libraries {
        let mut libraries = Libraries::default();
        let mut known: HashMap<(TextId, TextId), u32> = HashMap::new();
        for frame in saved.frames() {
            let mapping = frame.mapping.and_then(|mapping| saved.mappings().get(mapping as usize));
            let place = mapping.filter(|mapping| mapping.path != TextId::EMPTY).and_then(|mapping| {
                let offset = u32::try_from(mapping.file_offset_of(frame.address)?).ok()?;
                let list = &mut libraries.list;
                let library = *known.entry((mapping.path, mapping.build_id)).or_insert_with(|| {
                    let path = saved.text(mapping.path);
                    list.push(Library {
                        name: file_name(path).to_owned(),
                        path: path.to_owned(),
                        build_id: saved.text(mapping.build_id).to_owned(),
                    });
                    list.len() as u32 - 1
                });
                Some((library, offset))
            });
            libraries.frames.push(place);
        }
        libraries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_ids_match_breakpad() {
        let of = |build_id: &str| {
            Library { name: "a".into(), path: "/b/a".into(), build_id: build_id.into() }.debug_id()
        };
        assert_eq!(of("0123456789abcdef00112233445566778899aabb"), "67452301AB89EFCD00112233445566770");
        assert_eq!(of("01"), "000000010000000000000000000000000");
        // Without one the path distinguishes libraries.
        assert_eq!(of("").len(), 33);
        assert_eq!(of(""), of("x"));
    }
}
