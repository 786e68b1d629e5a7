//! Files in the mount namespace of a target, also after it has gone.
//!
//! The target's root directory is held open from the moment of attaching. Absolute links in
//! it are followed from that root (openat2(2), RESOLVE_IN_ROOT), not from ours.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use libc::pid_t;

use super::{proc, sys};
use crate::error::io_text;
use crate::target::files::{self, Files};
use crate::target::{ImageBytes, file};

/// The files of a target.
pub(super) struct TargetFiles {
    /// Its root directory; `None` if it could not be opened.
    root: Option<File>,
    /// Its process id as it sees itself, in the innermost namespace.
    own_pid: String,
    /// Who it runs as.
    uid: u32,
}

impl TargetFiles {
    /// Looks at a process that exists.
    pub(super) fn of(pid: pid_t) -> TargetFiles {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let innermost = proc::status_value(&status, "NSpid").and_then(|pids| pids.split_whitespace().last());
        TargetFiles {
            root: options.open(format!("/proc/{pid}/root")).ok(),
            own_pid: innermost.map_or_else(|| pid.to_string(), str::to_owned),
            uid: std::fs::metadata(format!("/proc/{pid}")).map_or(0, |meta| meta.uid()),
        }
    }

    fn open_file(&self, path: &str) -> Result<File, String> {
        let Some(root) = &self.root else {
            return Err("the root of the process cannot be opened".to_owned());
        };
        files::regular(sys::open_below(root, path).map_err(|error| io_text(&error))?)
    }
}

impl Files for TargetFiles {
    fn open(&self, path: &str) -> Result<ImageBytes, String> {
        let mapped = file::map(&self.open_file(path)?).map_err(|error| io_text(&error))?;
        Ok(ImageBytes::new(mapped))
    }

    fn modified_s(&self, path: &str) -> Option<u64> {
        files::modified_s(&self.open_file(path).ok()?.metadata().ok()?)
    }

    fn list(&self, directory: &str) -> Vec<String> {
        use std::os::fd::AsRawFd;
        let below = self.root.as_ref().and_then(|root| sys::open_below(root, directory).ok());
        below.map_or_else(Vec::new, |below| {
            files::list(Path::new(&format!("/proc/self/fd/{}", below.as_raw_fd())))
        })
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, String>)> {
        let path = format!("/tmp/perf-{}.map", self.own_pid);
        let opened = match self.open_file(&path) {
            Ok(opened) => opened,
            Err(why) if why == "no such file or directory" => return None,
            Err(why) => return Some((path, Err(why))),
        };
        // Anybody can write to /tmp: perf looks at the owner, too.
        let owner = opened.metadata().map_or(u32::MAX, |meta| meta.uid());
        let content = if owner == self.uid || owner == 0 {
            files::read_regular(&opened, files::MAX_JIT_MAP_BYTES)
        } else {
            Err(format!("it belongs to user {owner}, not to the process's; not trusted"))
        };
        Some((path, content))
    }
}
