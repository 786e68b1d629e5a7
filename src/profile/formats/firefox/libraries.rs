//! Libraries of a profile, and where in them its frames are: for viewers that ask a symbol server for names, source
//! and instructions.

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{Frame, LibraryHandle, LibraryInfo, Profile};

/// An executable or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// File name.
    pub name: String,
    /// Path, as the profile has it.
    pub path: String,
    /// Build id in hexadecimal digits; empty if it is not known.
    pub build_id: String,
}

impl Library {
    /// The id that viewers call it by: 33 digits made of the build id (Breakpad's form: the first 16 bytes as a GUID,
    /// and an age of 0), or of the path where there is none.
    #[must_use]
    pub fn debug_id(&self) -> String {
        let digit = |at: usize| self.build_id.get(at..at + 2);
        let bytes: Vec<u8> = (0..16)
            .map(|index| digit(index * 2).and_then(|text| u8::from_str_radix(text, 16).ok()))
            .map_while(|byte| byte)
            .collect();
        let mut guid = [0; 16];
        if bytes.is_empty() {
            guid = hash(&self.path).to_be_bytes();
        } else {
            guid[..bytes.len()].copy_from_slice(&bytes);
            // The fields of a GUID are numbers of four, two and two bytes.
            guid[..4].reverse();
            guid[4..6].reverse();
            guid[6..8].reverse();
        }
        let digits: String = guid.iter().map(|byte| format!("{byte:02X}")).collect();
        format!("{digits}0")
    }

    fn info(&self) -> LibraryInfo {
        LibraryInfo {
            name: self.name.clone(),
            debug_name: self.name.clone(),
            path: self.path.clone(),
            debug_path: self.path.clone(),
            debug_id: DebugId::from_breakpad(&self.debug_id()).unwrap_or_default(),
            code_id: Some(self.build_id.clone()).filter(|id| !id.is_empty()),
            arch: None,
            symbol_table: None,
        }
    }
}

/// FNV-1a of 128 bits: which path it was, not a secret.
fn hash(text: &str) -> u128 {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The libraries of a profile, and where its frames are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Each once.
    pub list: Vec<Library>,
    /// By frame of the profile: index in `list`, and bytes from the lowest address of the library; `None` for a frame
    /// that is a name only.
    pub frames: Vec<Option<(u32, u32)>>,
}

/// Libraries in a file that is being written.
pub(super) struct Placed<'l> {
    libraries: &'l Libraries,
    handles: Vec<LibraryHandle>,
}

impl<'l> Placed<'l> {
    pub(super) fn new(profile: &mut Profile, libraries: &'l Libraries) -> Placed<'l> {
        let handles = libraries.list.iter().map(|library| profile.add_lib(library.info())).collect();
        Placed { libraries, handles }
    }

    /// The address of a frame.
    pub(super) fn of(&self, frame: u32) -> Option<Frame> {
        let (library, offset) = self.libraries.frames.get(frame as usize).copied().flatten()?;
        let handle = self.handles.get(library as usize).copied()?;
        // Look-up addresses are inside the instruction that calls.
        Some(Frame::RelativeAddressFromAdjustedReturnAddress(handle, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_ids_are_those_of_breakpad() {
        let of = |build_id: &str| {
            Library { name: "a".into(), path: "/b/a".into(), build_id: build_id.into() }.debug_id()
        };
        assert_eq!(of("0123456789abcdef00112233445566778899aabb"), "67452301AB89EFCD00112233445566770");
        assert_eq!(of("01"), "000000010000000000000000000000000");
        // Without one the path tells libraries apart.
        assert_eq!(of("").len(), 33);
        assert_eq!(of(""), of("x"));
        assert!(DebugId::from_breakpad(&of("")).is_ok());
    }
}
