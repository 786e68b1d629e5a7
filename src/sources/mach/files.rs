//! Files of a macOS process: the file system is common to all, and Spotlight indexes dSYMs.

use std::process::{Command, Stdio};

use crate::binary::files::{self, Files};
use crate::binary::{ImageBytes, OpenError};
use crate::sources::LocalFiles;
use crate::sources::target_file::with_local;

/// Most dSYMs accepted from Spotlight for one UUID.
const KNOWN_MAX: usize = 64;

/// The files that a process sees.
#[derive(Debug)]
pub(super) struct MacFiles {
    pid: u32,
}

impl MacFiles {
    pub(super) fn new(pid: u32) -> MacFiles {
        MacFiles { pid }
    }
}

impl Files for MacFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        // A debug map can name thousands of object files, and macOS lets a process open 256.
        with_local(path, true, |file, copying| file.bytes_briefly(copying))
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        LocalFiles.modified_s(path)
    }

    fn list(&self, directory: &str) -> Vec<String> {
        LocalFiles.list(directory)
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        let path = format!("/tmp/perf-{}.map", self.pid);
        let content = with_local(&path, false, |file, copying| {
            file.check_trusted(None)?;
            file.read(files::JIT_MAP_BYTES_MAX, copying)
        });
        match content {
            Err(why) if why.is_not_found() => None,
            content => Some((path, content)),
        }
    }

    fn open_jit_dump(&self, path: &str) -> Result<ImageBytes, OpenError> {
        with_local(path, false, |file, copying| {
            file.check_trusted(None)?;
            file.bytes(copying)
        })
    }

    /// `mdfind` is Apple's client of the index; the only other interface needs Objective-C. Returns nothing
    /// if it is missing or refuses.
    fn known_by_uuid(&self, uuid: &[u8]) -> Vec<String> {
        let Ok(uuid) = <[u8; 16]>::try_from(uuid) else { return Vec::new() };
        let query = format!("com_apple_xcode_dsym_uuids == {}", dashed(&uuid));
        let found = Command::new("/usr/bin/mdfind").arg(query).stdin(Stdio::null()).output();
        let Ok(found) = found else { return Vec::new() };
        String::from_utf8_lossy(&found.stdout).lines().take(KNOWN_MAX).map(str::to_owned).collect()
    }
}

/// A UUID in its usual notation.
fn dashed(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02X}"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::dashed;

    #[test]
    fn formats_uuids_with_dashes() {
        assert_eq!(dashed(b"0123456789abcdef"), "30313233-3435-3637-3839-616263646566");
    }
}
