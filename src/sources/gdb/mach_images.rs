//! The images of a macOS process, as listed by debugserver: load addresses, files, and UUIDs, which
//! distinguish images of one name. Hostile bytes in, plain values out; pure.
//!
//! Format: LLVM, lldb/docs/resources/lldbgdbremote.md, "jGetLoadedDynamicLibrariesInfos";
//! lldb/tools/debugserver/source/MacOSX/MachProcess.mm, `FormatDynamicLibrariesIntoJSON`.

use serde_json::Value;

use crate::addr::Avma;
use crate::binary::macho::fat::ImageIdentity;
use crate::binary::{Mapping, MappingKind};

/// Request for all images, with their load commands.
pub(super) const QUESTION: &[u8] = b"jGetLoadedDynamicLibrariesInfos:{\"fetch_all_solibs\":true}";
/// Most images to keep.
const IMAGES_MAX: usize = 65_536;

/// An image: its code mapping and the identity of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachImage {
    pub(super) mapping: Mapping,
    pub(super) wanted: ImageIdentity,
}

/// The images in a reply, without those that lack a valid `__TEXT`.
pub(super) fn images(answer: &[u8]) -> Vec<MachImage> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let images = answer["images"].as_array().map(Vec::as_slice).unwrap_or_default();
    images.iter().take(IMAGES_MAX).filter_map(image).collect()
}

fn image(value: &Value) -> Option<MachImage> {
    let load = value["load_address"].as_u64()?;
    let segments = value["segments"].as_array()?;
    let text = segments.iter().find(|segment| segment["name"].as_str() == Some("__TEXT"))?;
    let end = Avma(load).checked_add(text["vmsize"].as_u64()?).filter(|end| end.0 > load)?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let header = &value["mach_header"];
    let uuid = value["uuid"].as_str().and_then(uuid);
    // Identity of the file, as there is no device and inode.
    let low = uuid.map_or(0, |uuid| u64::from_le_bytes(std::array::from_fn(|at| uuid[at])));
    let mapping = Mapping {
        avma: Avma(load)..end,
        file_offset: text["fileoff"].as_u64()?,
        path: value["pathname"].as_str()?.to_owned(),
        kind: MappingKind::File,
        identity: (load, low),
    };
    // The high byte of a subtype has capability bits (`CPU_SUBTYPE_MASK`).
    let cpu_subtype = number(&header["cpusubtype"]) & 0x00ff_ffff;
    let wanted = ImageIdentity { uuid, cpu_type: number(&header["cputype"]), cpu_subtype };
    Some(MachImage { mapping, wanted })
}

/// `E2A1C0DE-0000-4000-8000-0123456789AB`; all zero means none.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let bytes: [u8; 16] = super::hex::decode(&digits)?.try_into().ok()?;
    (bytes != [0; 16]).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_with_code_are_listed() {
        let answer = br#"{"images":[
            {"load_address":4294967296,"mod_date":0,"pathname":"/tmp/a","uuid":"01020304-0506-0708-090A-0B0C0D0E0F10",
             "mach_header":{"magic":4277009103,"cputype":16777228,"cpusubtype":0,"filetype":2,"flags":2097285},
             "segments":[{"name":"__PAGEZERO","vmaddr":0,"vmsize":4294967296,"fileoff":0,"filesize":0,"maxprot":0},
                         {"name":"__TEXT","vmaddr":4294967296,"vmsize":16384,"fileoff":0,"filesize":16384,"maxprot":5}]},
            {"load_address":18446744073709551615,"pathname":"/b","segments":[{"name":"__TEXT","vmsize":2,"fileoff":0}]},
            {"load_address":8,"pathname":"/c","segments":[]},
            {"load_address":8,"pathname":"/d"}, 7, null]}"#;
        let images = images(answer);
        assert_eq!(images.len(), 1);
        let MachImage { mapping, wanted } = &images[0];
        assert_eq!((mapping.avma.start.0, mapping.avma.end.0), (0x1_0000_0000, 0x1_0000_4000));
        assert_eq!(wanted.uuid, Some(std::array::from_fn(|at| at as u8 + 1)));
        assert_eq!(wanted.cpu_type, 0x0100_000c);
    }

    #[test]
    fn an_unparsable_list_is_empty() {
        for answer in [b"".as_slice(), b"E53", b"{", b"[]", br#"{"images":{}}"#] {
            assert_eq!(images(answer), []);
        }
        assert_eq!(uuid("00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(uuid("ä"), None);
    }
}
