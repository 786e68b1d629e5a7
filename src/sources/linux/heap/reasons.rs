//! Why the allocations of a command could not be recorded, and the next step.
//!
//! Input: the program's file, and the reports of its processes; output: one line for people.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::own_allocator::{NEXT, OwnAllocator};
use crate::binary::files::map_regular;
use crate::sources::linux::{refusal, sys};
use crate::sources::pushed::AllocationLosses;

/// Why no allocations of a program were recorded.
#[must_use]
pub fn why_no_allocations(program: &OsStr, losses: &AllocationLosses, every_bytes: u64) -> String {
    let shown = program.display();
    let found = refusal::find_program(program);
    if losses.still_runs && (losses.programs == 0 || losses.refused.is_empty() && losses.malformed_rings == 0)
    {
        return "the recording ended before a sample was taken; record longer, or with a smaller --every"
            .to_owned();
    }
    if losses.programs == 0 {
        return match found.as_deref().map(LoadMethod::of) {
            Some(LoadMethod::Static) if !found.as_deref().is_some_and(names_malloc) => format!(
                "`{shown}` is linked statically and names no malloc: the heap shim is loaded by the dynamic linker, and \
                 probes need that name; a runtime with an allocator of its own (Go) has a heap profiler of its own"
            ),
            Some(LoadMethod::Static) => format!(
                "`{shown}` is linked statically, and the heap shim is loaded by the dynamic linker; link it \
                 dynamically, or record it while it runs: sudo stackprof heap --pid N"
            ),
            Some(LoadMethod::OtherRights) => format!(
                "`{shown}` gains rights when it starts (setuid, setgid or file capabilities), and the dynamic linker \
                 loads nothing into such programs; run it as its owner: sudo -u OWNER stackprof heap -- {shown} ..."
            ),
            Some(LoadMethod::OtherClass) => format!(
                "`{shown}` is built for another architecture than the heap shim; record its CPU time: \
                 stackprof -- {shown} ..."
            ),
            Some(LoadMethod::Dynamic) | None => format!(
                "the heap shim was not loaded: `{shown}` clears its environment, or starts what does (env -i, sudo); \
                 record the program itself"
            ),
        };
    }
    if let Some((why, processes)) = losses.refused.first() {
        return format!("{processes} of its processes could not report what they allocate: {why}");
    }
    if let Some(why) = &losses.ended_early {
        return why.clone();
    }
    if !losses.without_shim.is_empty() {
        let counted: Vec<String> =
            losses.without_shim.iter().map(|(why, count)| format!("{count} {why}")).collect();
        return format!(
            "some of its processes ran without the heap shim, at least {}; record that program itself",
            counted.join(", ")
        );
    }
    if losses.malformed_rings > 0 {
        return "what it reported was overwritten, by the program itself or another one".to_owned();
    }
    if let Some(own) = found.as_deref().and_then(OwnAllocator::of_path) {
        return format!("`{shown}` has {} ({}): {NEXT}", own.what, own.malloc);
    }
    if let Some(unseen) = losses.unseen.first() {
        return format!("{}: {}", unseen.functions, unseen.next);
    }
    match every_bytes {
        1 => "it allocated nothing by malloc".to_owned(),
        _ => format!(
            "it allocated little, and one allocation in {every_bytes} bytes is sampled; --every 1 takes each"
        ),
    }
}

/// How the system loads a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadMethod {
    Dynamic,
    Static,
    OtherRights,
    OtherClass,
}

impl LoadMethod {
    pub(super) fn of(path: &Path) -> LoadMethod {
        let gains_rights = fs::metadata(path).is_ok_and(|metadata| {
            let by_owner = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != sys::effective_uid();
            by_owner || metadata.mode() & libc::S_ISGID != 0 || sys::has_file_capabilities(path)
        });
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(64 << 10).read_to_end(&mut head));
        match read {
            _ if gains_rights => LoadMethod::OtherRights,
            Ok(_) => LoadMethod::of_head(&head),
            Err(_) => LoadMethod::Dynamic,
        }
    }

    /// Decides by the first bytes of a program; a script is loaded by its interpreter.
    pub(super) fn of_head(head: &[u8]) -> LoadMethod {
        const PT_INTERP: u32 = 3;
        if !head.starts_with(b"\x7fELF") {
            return LoadMethod::Dynamic;
        }
        let short = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_ne_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let long =
            |at: usize| usize::try_from(u64::from_ne_bytes(head.get(at..at + 8)?.try_into().ok()?)).ok();
        let own_machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        if head.get(4) != Some(&2) || short(18) != Some(own_machine) {
            return LoadMethod::OtherClass;
        }
        let has_interpreter = || {
            let (table, size, count) = (long(32)?, usize::from(short(54)?), usize::from(short(56)?));
            let mut headers = (0..count).map(|index| table.saturating_add(index * size));
            Some(headers.any(|at| half(at) == Some(PT_INTERP)))
        };
        if has_interpreter() == Some(true) { LoadMethod::Dynamic } else { LoadMethod::Static }
    }
}

/// Whether the symbols of a program may include `malloc`, where probes are set: names of a string table share ends.
fn names_malloc(path: &Path) -> bool {
    map_regular(path).is_ok_and(|program| memchr::memmem::find(program.bytes(), b"malloc\0").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a program with these program headers: type, and text of each.
    fn head(machine: u16, headers: &[(u32, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18..20].copy_from_slice(&machine.to_ne_bytes());
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&(headers.len() as u16).to_ne_bytes());
        let mut text_at = 64 + 56 * headers.len();
        for (kind, text) in headers {
            let mut header = [0; 56];
            header[..4].copy_from_slice(&kind.to_ne_bytes());
            header[8..16].copy_from_slice(&(text_at as u64).to_ne_bytes());
            header[32..40].copy_from_slice(&(text.len() as u64).to_ne_bytes());
            text_at += text.len();
            bytes.extend_from_slice(&header);
        }
        headers.iter().for_each(|(_, text)| bytes.extend_from_slice(text.as_bytes()));
        bytes
    }

    #[test]
    fn the_header_shows_how_a_program_is_loaded() {
        let own = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        let dynamic = head(own, &[(1, ""), (3, "/lib64/ld-linux-x86-64.so.2\0")]);
        for (bytes, expected) in [
            (dynamic.clone(), LoadMethod::Dynamic),
            (head(own, &[(1, ""), (3, "/lib/ld-musl-x86_64.so.1\0")]), LoadMethod::Dynamic),
            (head(own, &[(1, "")]), LoadMethod::Static),
            (head(40, &[(3, "/lib/ld.so")]), LoadMethod::OtherClass),
            (b"#!/bin/sh\n".to_vec(), LoadMethod::Dynamic),
        ] {
            assert_eq!(LoadMethod::of_head(&bytes), expected);
        }
        // Truncated or overwritten anywhere.
        for end in 0..dynamic.len() {
            let _ = LoadMethod::of_head(&dynamic[..end]);
        }
        for at in 0..dynamic.len() {
            let mut bytes = dynamic.clone();
            bytes[at] = 0xff;
            let _ = LoadMethod::of_head(&bytes);
        }
    }

    #[test]
    fn the_message_depends_on_the_reported_reason() {
        let losses = |programs| AllocationLosses { programs, ..AllocationLosses::default() };
        let why = |losses: &AllocationLosses| why_no_allocations(OsStr::new("/no/prog"), losses, 1 << 19);
        assert!(why(&losses(0)).starts_with("the heap shim was not loaded: `/no/prog` clears"));
        assert!(why(&losses(1)).ends_with("one allocation in 524288 bytes is sampled; --every 1 takes each"));
        let refused = AllocationLosses { refused: vec![("there is no space", 2)], ..losses(1) };
        assert_eq!(
            why(&refused),
            "2 of its processes could not report what they allocate: there is no space"
        );
        for programs in [0, 1] {
            let running = AllocationLosses { still_runs: true, ..losses(programs) };
            assert!(why(&running).starts_with("the recording ended before a sample was taken"));
        }
        let without = AllocationLosses { without_shim: vec![("linked statically", 1)], ..losses(1) };
        assert!(why(&without).contains("ran without the heap shim, at least 1 linked statically; record"));
        let other =
            AllocationLosses { ended_early: Some("it became another program".to_owned()), ..losses(1) };
        assert_eq!(why(&other), "it became another program");
    }
}
