//! The path that a program was started by, such as `/usr/bin/redis-server`, if that is a link to
//! `redis-check-rdb`, the only path in its mappings.
//!
//! The kernel leaves the path of execve(2) in the program's memory (getauxval(3), `AT_EXECFN`); `argv[0]` and
//! the thread's name contain it, too. The program can change all three, so each is a guess that counts only
//! if it leads to the mapped file. Not for: libraries, which are named by their mappings.

use std::cell::OnceCell;
use std::fs;
use std::sync::Arc;

use libc::pid_t;

use super::files::TargetFiles;
use super::sys;
use crate::binary::{Mapping, MappingKind, ProgramPath};
use crate::sources::maps_line::without_deleted;
use crate::sources::proc_file;
use crate::sources::target_file::Patience;

/// `AT_EXECFN` (include/uapi/linux/auxvec.h).
const AT_EXECFN: u64 = 31;
/// Longest path (`PATH_MAX`, which counts the NUL), and most bytes read of a command line.
const PATH_BYTES_MAX: usize = 4096;
/// Directories to search for programs known by name only.
const DIRECTORIES: [&str; 5] = ["/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin", "/bin"];

/// The path that a process's program was started by, once determined.
#[derive(Clone, Debug, Default)]
pub(super) struct StartPath {
    /// Empty until determined.
    found: OnceCell<Option<Arc<ProgramPath>>>,
    /// Attempts made before the path was in the program's memory.
    tries: u32,
}

/// Most attempts to find that path.
const TRIES_MAX: u32 = 8;

impl StartPath {
    /// The path, if it is a link to the program's file: searched once, when that file is mapped. `name` is
    /// the process's.
    pub(super) fn of(
        &mut self,
        pid: pid_t,
        name: &str,
        files: &TargetFiles,
        patience: &Patience,
        mappings: &[Mapping],
    ) -> Option<Arc<ProgramPath>> {
        if self.found.get().is_none()
            && let Some(file) = program_file(pid, mappings)
        {
            let of_execve = path_of_execve(pid);
            let is_sure = of_execve.is_some();
            let guesses = guesses(pid, of_execve, name, &file.path);
            let identity = |path: &str| files.identity(patience, path).ok();
            let started_as = first_link(guesses, file, &identity);
            self.tries += 1;
            // The kernel maps the program before it writes that path.
            if is_sure || started_as.is_some() || self.tries >= TRIES_MAX {
                let path = |started_as| Arc::new(ProgramPath { file: file.path.clone(), started_as });
                let _ = self.found.set(started_as.map(path));
            }
        }
        self.found.get().cloned().flatten()
    }
}

/// The mapping of the program's own file, by /proc; for an exited process the lowest one, since the kernel
/// maps the program below its dynamic linker.
fn program_file(pid: pid_t, mappings: &[Mapping]) -> Option<&Mapping> {
    let mut files = mappings.iter().filter(|mapping| mapping.kind == MappingKind::File);
    let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { return files.next() };
    let exe = exe.to_string_lossy();
    // Paths in the kernel's records are relative to the root of a process (chroot(2)).
    files.clone().find(|file| *file.path == *exe).or_else(|| files.find(|file| exe.ends_with(&file.path)))
}

/// Absolute paths that the program may have been started by, most certain first.
fn guesses(pid: pid_t, of_execve: Option<String>, name: &str, file: &str) -> Vec<String> {
    let (file, _) = without_deleted(file);
    let beside = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let here = || fs::read_link(format!("/proc/{pid}/cwd")).ok();
    let mut guesses = Vec::new();
    for word in [of_execve, first_word(pid)].into_iter().flatten() {
        if word.starts_with('/') {
            guesses.push(word);
        } else if word.contains('/') {
            let word = word.trim_start_matches("./");
            guesses.extend(here().map(|here| format!("{}/{word}", here.to_string_lossy())));
        } else {
            guesses.push(format!("{beside}/{word}"));
        }
    }
    let directories = std::iter::once(beside).chain(DIRECTORIES);
    guesses.extend(directories.map(|directory| format!("{directory}/{name}")));
    guesses.dedup();
    guesses
}

/// The first guess that leads to the program's file, unless it has the file's own name.
fn first_link(
    guesses: Vec<String>,
    file: &Mapping,
    identity: &dyn Fn(&str) -> Option<(u64, u64)>,
) -> Option<String> {
    let (path, is_deleted) = without_deleted(&file.path);
    let name_of = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    // Some file systems report different identities in stat(2) and in mappings (overlayfs, btrfs); and a
    // program replaced while it runs was at the path of the new one.
    let at_its_path = std::cell::OnceCell::new();
    let is_file = |guess: &str| {
        let Some(found) = identity(guess) else { return false };
        found == file.identity || Some(found) == *at_its_path.get_or_init(|| identity(path))
    };
    let is_name = |guess: &&String| !matches!(&*name_of(guess), "" | "." | "..");
    for guess in guesses.iter().filter(is_name) {
        // The file's own path needs no search.
        let is_own = guess == path;
        if is_own || is_file(guess) {
            let is_other_name = !is_own && name_of(guess) != name_of(path);
            let mark = if is_deleted { " (deleted)" } else { "" };
            return is_other_name.then(|| format!("{guess}{mark}"));
        }
    }
    None
}

/// The path passed to execve(2), as currently in the process's memory.
fn path_of_execve(pid: pid_t) -> Option<String> {
    let auxv = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let at = execfn(&auxv)?;
    let mut bytes = Vec::new();
    sys::read_memory_into(pid, at, PATH_BYTES_MAX, &mut bytes).ok()?;
    text(&bytes)
}

/// The value of `AT_EXECFN` in the auxiliary vector of a 64-bit program: pairs of a type and a value.
fn execfn(auxv: &[u8]) -> Option<u64> {
    let (words, _) = auxv.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_EXECFN {
            return Some(value);
        }
    }
    None
}

/// `argv[0]`, as currently in the process's memory.
fn first_word(pid: pid_t) -> Option<String> {
    text(&proc_file::head(format!("/proc/{pid}/cmdline"), PATH_BYTES_MAX).ok()?)
}

/// The text before the first NUL; `None` without one.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(bytes.get(..end)?).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests;
