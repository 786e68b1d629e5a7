//! How the system loads a program: whether a preloaded library comes with it.
//!
//! Input: the program's file, hostile. Output: a [`LoadMethod`].

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sources::linux::sys;

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
}
