//! Lines of `/proc/PID/maps` (proc_pid_maps(5)), read here or through a stub. Hostile bytes in, plain values out.

use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};

/// The kernel's escape for a newline in a path; everything else is literal, a backslash included.
const NEWLINE: &str = "\\012";

/// A line: the mapping, and whether it is executable.
pub(super) struct MapsLine {
    pub(super) mapping: Mapping,
    pub(super) executable: bool,
    /// The path contains an escaped newline, or those characters literally.
    #[allow(dead_code, reason = "read on Linux only")]
    pub(super) is_ambiguous: bool,
}

impl MapsLine {
    /// `55d0c1a00000-55d0c1a21000 r-xp 00001000 fe:00 1234    /usr/bin/program`; `device`: its number, of the major and
    /// minor ones.
    pub(super) fn parse(line: &[u8], device: impl FnOnce(u64, u64) -> Option<u64>) -> Option<MapsLine> {
        let line = String::from_utf8_lossy(line);
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let executable = fields.next()?.as_bytes().get(2) == Some(&b'x');
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let file_offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode: u64 = fields.next()?.parse().ok()?;
        let escaped = fields.next().unwrap_or_default().trim_start();
        let path = escaped.replace(NEWLINE, "\n");
        // vsyscall is one page of emulated entry points above the user address space.
        if path == "[vsyscall]" {
            return None;
        }
        let kind = MappingKind::of(&path, inode);
        let identity = (device(hex(major)?, hex(minor)?)?, inode);
        let avma = Avma(hex(start)?)..Avma(hex(end)?);
        let is_ambiguous = kind == MappingKind::File && escaped.contains(NEWLINE);
        let mapping = Mapping { avma, file_offset, path, kind, identity };
        Some(MapsLine { mapping, executable, is_ambiguous })
    }
}

/// The path of a mapping without the mark of a deleted file, and whether it has one.
pub(super) fn without_deleted(path: &str) -> (&str, bool) {
    path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_addresses_offset_file_and_kind() {
        use MappingKind::{Anonymous, File, Vdso};
        for (line, expected) in [
            ("1000-2000 r--p 00000000 fe:00 77    /a b", Some((false, 0x1000, 0, "/a b", File, false))),
            ("2000-3000 r-xp 00021000 fe:00 77    /a b", Some((true, 0x2000, 0x21000, "/a b", File, false))),
            ("3000-4000 rwxp 00000000 00:00 0 ", Some((true, 0x3000, 0, "", Anonymous, false))),
            (
                "4000-5000 r-xp 00000000 00:01 9 /m (deleted)",
                Some((true, 0x4000, 0, "/m (deleted)", File, false)),
            ),
            ("5000-6000 r-xp 00000000 00:01 9 /m\\012n", Some((true, 0x5000, 0, "/m\nn", File, true))),
            ("6000-7000 r-xp 00000000 00:00 0    [vdso]", Some((true, 0x6000, 0, "[vdso]", Vdso, false))),
            ("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]", None),
            ("nonsense", None),
            ("", None),
        ] {
            let parsed = MapsLine::parse(line.as_bytes(), |major, minor| Some(major << 8 | minor));
            let shown = parsed.as_ref().map(|line| {
                let MapsLine { mapping, executable, is_ambiguous } = line;
                assert_eq!(mapping.avma.end.0 - mapping.avma.start.0, 0x1000);
                let path = mapping.path.as_str();
                (
                    *executable,
                    mapping.avma.start.0,
                    mapping.file_offset,
                    path,
                    mapping.kind.clone(),
                    *is_ambiguous,
                )
            });
            assert_eq!(shown, expected, "{line}");
            if line.contains("fe:00 77") {
                assert_eq!(parsed.map(|line| line.mapping.identity), Some((0xfe00, 77)));
            }
        }
        assert_eq!(without_deleted("/x (deleted)"), ("/x", true));
    }
}
