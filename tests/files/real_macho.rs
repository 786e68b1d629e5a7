//! Real macOS programs, downloaded by `scripts/check-macho-symbols.sh`.

use std::path::{Path, PathBuf};

/// The directory in `STACKPROF_MACHO_DIR` and all files below it, in order; without it, prints SKIP.
pub(crate) fn files() -> Option<(PathBuf, Vec<PathBuf>)> {
    let Some(dir) = std::env::var_os("STACKPROF_MACHO_DIR") else {
        // Not a failure under STACKPROF_NO_SKIP: the script is the gate, and needs a network.
        eprintln!("SKIP: STACKPROF_MACHO_DIR is not set; scripts/check-macho-symbols.sh sets it");
        return None;
    };
    let mut files = Vec::new();
    find(Path::new(&dir), &mut files);
    files.sort();
    Some((dir.into(), files))
}

fn find(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            find(&entry.path(), into);
        } else if entry.file_type().unwrap().is_file() {
            into.push(entry.path());
        }
    }
}
