//! Categories of the Firefox Profiler: the kind of code of a frame, or the subject of a marker.

use std::collections::HashSet;

use crate::escape::file_name;
use crate::profile::saved::{SavedProfile, StackRoot};

/// Names and colours; the numbers below are indices into `meta.categories`.
pub(super) const CATEGORIES: [(&str, &str); 7] = [
    ("Other", "grey"),
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("JIT", "magenta"),
    ("Library", "lightblue"),
    ("Event", "green"),
    ("Lost", "red"),
];
pub(super) const OTHER: u8 = 0;
pub(super) const USER: u8 = 1;
pub(super) const KERNEL: u8 = 2;
pub(super) const JIT: u8 = 3;
pub(super) const LIBRARY: u8 = 4;
pub(super) const EVENT: u8 = 5;
pub(super) const LOST: u8 = 6;

/// Length to which the kernel truncates process names.
const NAME_BYTES: usize = 15;

/// Files that are programs: processes of the profile have their names. A file has the same category in all
/// processes, since the viewer uses neither of two different categories of a frame.
pub(super) struct Programs<'s>(HashSet<&'s str>);

impl<'s> Programs<'s> {
    /// The programs of a profile.
    pub(super) fn of(saved: &'s SavedProfile) -> Programs<'s> {
        let name = |root: &StackRoot| saved.text(root.process);
        // Processes that share a name have a number after it.
        let names = saved.roots().iter().map(name).map(|name| name.split(" (").next().unwrap_or_default());
        Programs(names.filter(|name| !name.is_empty()).collect())
    }

    /// Whether a file is a program: `python3.11` is the program of the process `python3`.
    pub(super) fn has(&self, path: &str) -> bool {
        let file = file_name(path);
        if file.contains(".so") || file.ends_with(".dylib") {
            return false;
        }
        let is_of = |name: &&str| {
            let rest = file.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.is_empty() || name.len() >= NAME_BYTES || !rest.starts_with(char::is_alphabetic)
            })
        };
        self.0.iter().any(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::formats::folded_read;

    #[test]
    fn files_named_like_a_process_are_programs() {
        let folded = "python3 (7);a 1\nchrome_crashpad;b 2\nld;c 3\nR;d 1\n";
        let saved = folded_read::read(folded.as_bytes(), "a").expect("reads");
        let programs = Programs::of(&saved);
        for program in
            ["/usr/bin/python3.11", "/usr/lib/chrome_crashpad_handler", "/usr/bin/ld", "/usr/bin/R"]
        {
            assert!(programs.has(program), "{program}");
        }
        for library in ["/lib/ld-linux-x86-64.so.2", "/lib/libR.so", "/usr/bin/Rust", "/b/R.dylib", ""] {
            assert!(!programs.has(library), "{library}");
        }
    }
}
