//! Why the allocations of a command could not be recorded, and the next step.
//!
//! Input: the program's file, its code signing flags, and the reports of its processes; output: one line for people.
//!
//! dyld ignores DYLD_INSERT_LIBRARIES, and removes it from the environment, in programs that the system protects: those
//! of macOS, those with the hardened runtime unless an entitlement allows it, setuid and setgid ones (dyld-1378,
//! DyldProcessConfig.cpp, `Security`).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::arch::Arch;
use crate::binary::macho::fat::ImageIdentity;
use crate::binary::macho::{CPU_ARM64, CPU_X86_64};
use crate::binary::{FormatError, OpenError};
use crate::error::{Error, ErrorKind};
use crate::sources::mach::images::part_of_file;
use crate::sources::mach::refusal::{CS_PLATFORM_BINARY, CS_RUNTIME, is_protected_path};
use crate::sources::pushed::AllocationLosses;

/// Bytes of a script for its interpreter's line.
const SCRIPT_BYTES_MAX: u64 = 1024;

/// Refuses a program that macOS protects, of which nothing would be recorded, and nothing of what it starts; and one for
/// another processor, which dyld would end because it cannot load the shim.
///
/// # Errors
/// One line for a person.
pub(super) fn check(arch: Arch, program: &OsStr) -> Result<(), Error> {
    let Some(path) = find(program) else { return Ok(()) };
    let refuse = |why: String| {
        Err(Error::new(ErrorKind::Attach, format!("cannot record `{}`: {why}", program.display())))
    };
    if let Some(interpreter) = interpreter(&path).filter(|path| is_protected(path)) {
        return refuse(format!(
            "{} runs it, which System Integrity Protection guards: dyld loads no library into it, nor into what it \
             starts; record the program that the script starts",
            interpreter.display()
        ));
    }
    if is_protected(&path) {
        return refuse(format!(
            "System Integrity Protection guards {}: dyld loads no library into it; record a build of your own, or one \
             from Homebrew or another place outside /System and /usr",
            path.display()
        ));
    }
    let cpu_type = if arch == Arch::Aarch64 { CPU_ARM64 } else { CPU_X86_64 };
    let own = ImageIdentity { uuid: None, cpu_type, cpu_subtype: 0 };
    if let Err(OpenError::Unfit(FormatError::NoProcessor)) = part_of_file(&path.to_string_lossy(), &own) {
        return refuse(format!(
            "it has no code for the processor of this stackprof, {}, so that it could not load the heap shim; use a build \
             that has",
            arch.name()
        ));
    }
    Ok(())
}

fn is_protected(path: &Path) -> bool {
    fs::canonicalize(path).ok().as_deref().unwrap_or(path).to_str().is_some_and(is_protected_path)
}

/// A program's file, as a shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return Some(path.to_owned());
    }
    let list = std::env::var_os("PATH")?;
    std::env::split_paths(&list).map(|directory| directory.join(path)).find(|path| path.is_file())
}

/// The program that runs a script.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(SCRIPT_BYTES_MAX).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    Some(PathBuf::from(line.split_whitespace().next()?))
}

/// Why a program with these code signing flags does not load the shim.
pub(super) fn of_signature(flags: u32) -> Option<String> {
    if flags & CS_PLATFORM_BINARY != 0 {
        return Some(
            "it is a program of macOS, into which dyld loads no library; record a build of your own"
                .to_owned(),
        );
    }
    (flags & CS_RUNTIME != 0).then(|| {
        "it is signed with the hardened runtime, under which dyld loads no library; sign a copy of it without: \
         codesign --force --sign - COPY"
            .to_owned()
    })
}

/// Why no allocations of a program were recorded.
#[must_use]
pub fn why_no_allocations(program: &OsStr, losses: &AllocationLosses, every_bytes: u64) -> String {
    let shown = program.display();
    if losses.still_runs && losses.refused.is_empty() && losses.malformed_rings == 0 {
        return "the recording ended before a sample was taken; record longer, or with a smaller --every"
            .to_owned();
    }
    if let Some((why, processes)) = losses.refused.first() {
        return format!("{processes} of its processes could not report what they allocate: {why}");
    }
    if let Some(why) = &losses.ended_early {
        return why.clone();
    }
    if losses.programs == 0 {
        let gains_rights = find(program)
            .and_then(|path| fs::metadata(path).ok())
            .is_some_and(|metadata| metadata.mode() & 0o6000 != 0);
        return if gains_rights {
            format!(
                "`{shown}` is setuid or setgid, and dyld loads no library into such programs; run a copy without"
            )
        } else {
            format!(
                "the heap shim was not loaded: `{shown}` clears its environment, or starts what does (env -i, sudo, \
                 programs of macOS); record the program itself"
            )
        };
    }
    if losses.malformed_rings > 0 {
        return "what it reported was overwritten, by the program itself or another one".to_owned();
    }
    match every_bytes {
        1 => "it allocated nothing by malloc".to_owned(),
        _ => format!(
            "it allocated little, and one allocation in {every_bytes} bytes is sampled; --every 1 takes each"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn programs_of_the_system_and_their_scripts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text =
            |program: &Path| check(Arch::Aarch64, program.as_os_str()).map_err(|error| error.to_string());
        // The shell is below /usr or /bin on every system.
        let script = folder.path().join("script");
        fs::write(&script, "#! /bin/sh -e\nexit\n").unwrap();
        assert!(text(&script).unwrap_err().contains("sh runs it, which System Integrity Protection guards"));
        let shell = text(Path::new("/bin/sh")).unwrap_err();
        assert!(shell.starts_with("cannot record `/bin/sh`: System Integrity Protection guards"), "{shell}");
        assert!(text(Path::new("sh")).is_err());
        let own = folder.path().join("own");
        fs::write(&own, b"\xcf\xfa\xed\xfe").unwrap();
        assert!(text(&own).is_ok() && text(Path::new("/no/such/file")).is_ok());
        assert!(text(Path::new("no-such-program-anywhere")).is_ok());
        fs::write(&own, "#!\n").unwrap();
        assert!(text(&own).is_ok());
        // A fat file with code for Intel alone (mach-o/fat.h).
        let words: [u32; 7] = [0xcafe_babe, 1, CPU_X86_64, 3, 28, 4, 0];
        fs::write(&own, [words.map(u32::to_be_bytes).as_flattened(), b"code"].concat()).unwrap();
        assert!(text(&own).unwrap_err().contains("no code for the processor of this stackprof"));
        assert!(check(Arch::X86_64, own.as_os_str()).is_ok());
    }

    #[test]
    fn the_message_depends_on_the_signature_and_the_reports() {
        let losses = |programs| AllocationLosses { programs, ..AllocationLosses::default() };
        let why = |losses: &AllocationLosses| why_no_allocations(OsStr::new("/no/prog"), losses, 1 << 19);
        assert!(why(&losses(0)).starts_with("the heap shim was not loaded: `/no/prog` clears"));
        assert!(why(&losses(1)).ends_with("one allocation in 524288 bytes is sampled; --every 1 takes each"));
        let ended_early = of_signature(CS_RUNTIME);
        assert!(
            why(&AllocationLosses { ended_early, ..losses(0) }).contains("codesign --force --sign - COPY")
        );
        assert!(of_signature(CS_PLATFORM_BINARY | CS_RUNTIME).unwrap().contains("program of macOS"));
        assert_eq!(of_signature(4), None);
        let running = AllocationLosses { still_runs: true, ..losses(0) };
        assert!(why(&running).starts_with("the recording ended before a sample was taken"));
    }
}
