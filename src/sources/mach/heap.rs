//! A command with allocations sampled by the heap shim, which dyld inserts, and the processes that it starts.
//!
//! Needs no right to a task: the shim writes records and image lists into files, which `crate::sources::heap`
//! reads. `MacProcess` answers what that asks of a process, `ImageList` reads the list, `why_no_allocations` says
//! why a program cannot be recorded.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attach::{SuspendedChild, describe};
use super::dyld::{
    EXECUTE, IMAGES_MAX, IN_SHARED_CACHE, SharedCache, TEXT_BYTES_MAX, identity_of, own_image,
};
use super::images::{MacFiles, own_cache, part_of_file};
use super::kernel::MachKernel;
use super::refusal::{self, CS_PLATFORM_BINARY, CS_RUNTIME, Facts, is_protected_path};
use super::task::exit_status;
use super::threads::MachClock;
use crate::addr::Avma;
use crate::arch::Arch;
use crate::binary::macho::{CPU_ARM64, CPU_X86_64, ImageIdentity};
use crate::binary::{Files, FormatError, ImageBytes, Mapping, OpenError};
use crate::clock::{Clock, RealClock};
use crate::error::{self, Error, ErrorKind};
use crate::sources::heap::directory::Directory;
use crate::sources::heap::recorded_process::{HeapProcess, RingFiles, read_image_list};
use crate::sources::heap::shared_memory::image_line::{CACHE, LOADED, UNLOADED};
use crate::sources::heap::source::HeapSource;
use crate::sources::pushed::AllocationLosses;
use crate::sources::{ExitStatus, Fault, HeapOptions, Observed, Process, SampleSource, signals};

/// Starts a command with the heap shim and runs `body` with its allocations.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) if it cannot be run or recorded,
/// [`ErrorKind::System`](crate::error::ErrorKind::System) if the shim cannot be stored anywhere.
pub fn with_heap_source<R>(
    kernel: &dyn MachKernel,
    command: &[OsString],
    shim: &[u8],
    options: HeapOptions,
    clock: RealClock,
    body: impl FnOnce(SampleSource<'_>) -> R,
) -> error::Result<R> {
    command.first().map_or(Ok(()), |program| check(kernel.arch(), program))?;
    let directory = Directory::make(shim, options)?;
    // This process must not be suspended while the command waits for it.
    let hold = signals::Hold::new();
    let mut child = SuspendedChild::start(kernel, command, &directory.environment())?;
    let pid = child.number();
    let process = Process {
        backend: "heap",
        backend_why: format!("one allocation in {} bytes, by a library that it loads", options.every_bytes),
        stops_hold_all: false,
        ..describe(kernel, &Facts::of(kernel, pid, true))
    };
    let signed = kernel.code_signing_flags(pid).unwrap_or(0);
    signals::enter(signals::Phase::Launch);
    child.go()?;
    drop(hold);
    let main = MacProcess::new(kernel, process, signed);
    let mut source = HeapSource::new(directory, options, main, clock);
    Ok(body(SampleSource::Pushed(&mut source)))
}

// ---- The images of a process as the heap shim lists them (`shared_memory::image_line`).
//
// Input: text that the process can have written itself. Output: images, sorted by address.

/// An image of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedImage {
    /// Address of its header, and bytes of `__TEXT`.
    load: u64,
    size: u64,
    /// The address of `__TEXT` that the file states, and its offset in the file.
    stated: u64,
    offset: u64,
    uuid: [u8; 16],
    file_type: u32,
    flags: u32,
    cpu_type: u32,
    cpu_subtype: u32,
    path: String,
}

/// The images of a process.
#[derive(Debug, Default)]
struct ImageList {
    /// By address.
    images: BTreeMap<u64, ListedImage>,
    cache: Option<SharedCache>,
}

impl ImageList {
    /// The images that are loaded after the last line, or before this unload. Lines of another form are skipped.
    fn parse(text: &[u8], before_unload: Option<u32>) -> ImageList {
        let mut list = ImageList::default();
        let mut unloads = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // The last line may be unfinished.
            let Some((kind, rest)) = line.strip_suffix(b"\n").and_then(<[u8]>::split_first) else { continue };
            match *kind {
                LOADED => list.add(ListedImage::parse(rest)),
                UNLOADED if before_unload == Some(unloads) => break,
                UNLOADED => {
                    unloads += 1;
                    if let Some(load) = Fields(rest).number(16) {
                        list.images.remove(&load);
                    }
                }
                CACHE => list.cache = parse_cache(rest),
                _ => {}
            }
        }
        list
    }

    fn add(&mut self, image: Option<ListedImage>) {
        let Some(image) = image else { return };
        // dyld reports an image twice where one is loaded while the shim starts.
        if self.images.len() < IMAGES_MAX || self.images.contains_key(&image.load) {
            self.images.insert(image.load, image);
        }
    }

    /// Path of the program.
    fn program(&self) -> Option<&str> {
        let program = self.images.values().find(|image| image.file_type == EXECUTE)?;
        Some(&program.path)
    }

    /// The code of all images.
    fn mappings(&self, out: &mut Vec<Mapping>) {
        out.clear();
        out.extend(self.images.values().map(|image| {
            Mapping::of_file(
                Avma(image.load)..Avma(image.load.saturating_add(image.size)),
                image.offset,
                image.path.clone(),
                identity_of(&image.uuid, image.stated, image.offset),
            )
        }));
    }

    /// The bytes of an image: from this process's own shared cache, or from its file.
    ///
    /// # Errors
    /// Why there are none.
    fn bytes(&self, kernel: &dyn MachKernel, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let image = self.images.get(&mapping.avma.start.0);
        let image = image.ok_or(OpenError::Unloaded)?;
        if image.flags & IN_SHARED_CACHE != 0 {
            let own =
                own_image(kernel, image.load, &image.path).filter(|own| own.macho.uuid == Some(image.uuid));
            let bytes = own.and_then(|own| own_cache(kernel, &own, self.cache));
            return bytes.ok_or(OpenError::Source("it is in another shared cache than that of stackprof"));
        }
        if image.uuid == [0; 16] {
            return Err(OpenError::Source("it has no UUID, by which its file is recognized"));
        }
        let (cpu_type, cpu_subtype) = (image.cpu_type, image.cpu_subtype);
        part_of_file(&image.path, &ImageIdentity { uuid: Some(image.uuid), cpu_type, cpu_subtype })
    }
}

/// Fields of a line, each behind a space.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.strip_prefix(b" ")?.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }

    fn number(&mut self, digits: usize) -> Option<u64> {
        let text = std::str::from_utf8(self.next(digits)?).ok()?;
        u64::from_str_radix(text, 16).ok()
    }

    fn half(&mut self) -> Option<u32> {
        u32::try_from(self.number(8)?).ok()
    }

    fn uuid(&mut self) -> Option<[u8; 16]> {
        let text = std::str::from_utf8(self.next(32)?).ok()?;
        u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
    }
}

impl ListedImage {
    fn parse(line: &[u8]) -> Option<ListedImage> {
        let mut fields = Fields(line);
        let image = ListedImage {
            load: fields.number(16)?,
            size: fields.number(16)?.min(TEXT_BYTES_MAX),
            stated: fields.number(16)?,
            offset: fields.number(16)?,
            uuid: fields.uuid()?,
            file_type: fields.half()?,
            flags: fields.half()?,
            cpu_type: fields.half()?,
            cpu_subtype: fields.half()?,
            path: String::from_utf8_lossy(fields.0.strip_prefix(b" ")?).into_owned(),
        };
        (image.size > 0).then_some(image)
    }
}

fn parse_cache(line: &[u8]) -> Option<SharedCache> {
    let mut fields = Fields(line);
    let base = fields.number(16)?;
    Some(SharedCache { uuid: fields.uuid()?, base })
}

// ---- One process with recorded allocations: its images are those that the shim lists.

/// Interval between checks whether a process still runs the program of its ring, nanoseconds.
const PROGRAM_CHECK_NS: u64 = 500_000_000;

/// A process with a ring, or one that will have one.
struct MacProcess<'k> {
    kernel: &'k dyn MachKernel,
    process: Process,
    ring: Option<RingFiles>,
    list: ImageList,
    /// Length of the file that the list was read from, and whether it is that of the exit.
    read: (u64, bool),
    /// When it last ran the program of its ring.
    program_checked_ns: u64,
    status: Option<ExitStatus>,
    /// Code signing flags of a started process.
    signed: u32,
}

impl<'k> MacProcess<'k> {
    /// A process, with its code signing flags.
    fn new(kernel: &'k dyn MachKernel, process: Process, signed: u32) -> MacProcess<'k> {
        MacProcess {
            kernel,
            process,
            ring: None,
            list: ImageList::default(),
            read: (0, false),
            program_checked_ns: 0,
            status: None,
            signed,
        }
    }

    fn pid(&self) -> i32 {
        self.process.pid.cast_signed()
    }

    /// Reads the list again if it has changed: the later file first.
    fn refresh(&mut self) {
        let Some(ring) = &self.ring else { return };
        let [begin, end] = &ring.images;
        let length = |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| metadata.len());
        let (path, state) = match (length(end), length(begin)) {
            // One that is shorter is being written.
            (Some(bytes), before) if bytes >= before.unwrap_or(0) => (end, (bytes, true)),
            (_, Some(bytes)) => (begin, (bytes, false)),
            _ => return,
        };
        if state != self.read
            && let Ok(text) = read_image_list(path)
        {
            self.list = ImageList::parse(&text, None);
            self.read = state;
        }
    }

    /// Whether it runs the program of its ring, as far as it is known.
    fn runs_program(&self) -> bool {
        let Some(listed) = self.list.program() else { return true };
        let Ok(current) = self.kernel.proc_pidpath(self.pid()) else { return true };
        // dyld has the path that the program was started with, the kernel that of the file.
        let whole = |path: &str| fs::canonicalize(path).ok();
        match (whole(listed), whole(&current)) {
            (Some(listed), Some(current)) => listed == current,
            _ => true,
        }
    }
}

impl HeapProcess for MacProcess<'_> {
    fn new_for(&self, pid: u32) -> Self {
        let process = Process { pid, command: String::new(), ..self.process.clone() };
        MacProcess::new(self.kernel, process, 0)
    }

    fn set_ring(&mut self, thread_name: &str, ring: RingFiles) {
        self.ring = Some(ring);
        (self.list, self.read) = (ImageList::default(), (0, false));
        self.refresh();
        let program = self.list.program().and_then(|path| path.rsplit('/').next());
        self.process.name = program.filter(|name| !name.is_empty()).unwrap_or(thread_name).to_owned();
    }

    fn listed(&mut self, before_unload: Option<u32>, out: &mut Vec<Mapping>) -> bool {
        let Some(ring) = &self.ring else { return false };
        let Ok(text) = read_image_list(&ring.images[0]) else { return false };
        self.list = ImageList::parse(&text, Some(before_unload.unwrap_or(0)));
        // To be read again for the current list.
        self.read = (0, false);
        self.list.mappings(out);
        !out.is_empty()
    }

    fn has_exited(&self) -> bool {
        self.status.is_some() || refusal::has_ended(self.kernel, self.pid())
    }

    fn has_left_program(&mut self, now_ns: u64, is_last: bool) -> bool {
        if self.ring.is_none() {
            return false;
        }
        if !is_last && now_ns < self.program_checked_ns.saturating_add(PROGRAM_CHECK_NS) {
            return false;
        }
        self.program_checked_ns = now_ns;
        self.refresh();
        !self.runs_program()
    }

    fn survivors(&self, directory: &Path) -> usize {
        #[cfg(target_vendor = "apple")]
        return super::xnu::processes_with(directory.as_os_str().as_encoded_bytes()).len();
        // Simulated kernels.
        #[cfg(not(target_vendor = "apple"))]
        {
            let _ = directory;
            0
        }
    }

    fn child_end(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = match self.kernel.wait_ended(self.pid()) {
                Ok(status) => status.map(exit_status),
                // Reaped by another thread, or the status of children is not kept.
                Err(_) => Some(ExitStatus::Unknown),
            };
        }
        self.status
    }

    /// Unknown: the process was reaped.
    fn last_name(&self) -> Option<String> {
        None
    }

    fn why_not_loaded(&self) -> Option<String> {
        of_signature(self.signed)
    }

    fn ring_clock_ns(&self) -> u64 {
        MachClock::new(self.kernel).now_ns()
    }
}

impl Observed for MacProcess<'_> {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(MacFiles::new(self.process.pid))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.refresh();
        self.list.mappings(out);
        if out.is_empty() { Err(Fault::Transient("it has not listed its images")) } else { Ok(()) }
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.list.bytes(self.kernel, mapping)
    }

    fn read_memory(&mut self, _from: Avma, _into: &mut [u8]) -> Result<usize, Fault> {
        Err(Fault::Transient("memory is not read without a right to the task"))
    }
}

// ---- Why the allocations of a command could not be recorded, and the next step.
//
// dyld ignores DYLD_INSERT_LIBRARIES, and removes it from the environment, in programs that the system protects:
// those of macOS, those with the hardened runtime unless an entitlement allows it, setuid and setgid ones
// (dyld-1378, DyldProcessConfig.cpp, `Security`).

/// Bytes of a script for its interpreter's line.
const SCRIPT_BYTES_MAX: u64 = 1024;

/// Refuses a program that macOS protects, of which nothing would be recorded, and nothing of what it starts; and one for
/// another processor, which dyld would end because it cannot load the shim.
///
/// # Errors
/// One line for a person.
fn check(arch: Arch, program: &OsStr) -> Result<(), Error> {
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
    if let Err(OpenError::Format(FormatError::NoProcessor)) = part_of_file(&path.to_string_lossy(), &own) {
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
fn of_signature(flags: u32) -> Option<String> {
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
mod image_list_tests {
    use super::*;

    fn loaded(load: u64, path: &str) -> String {
        format!(
            "+ {load:016x} 0000000000004000 0000000100000000 0000000000000000 00112233445566778899aabbccddeeff \
             00000002 00200085 01000007 00000003 {path}\n"
        )
    }

    #[test]
    fn the_list_has_what_is_loaded_after_the_last_line() {
        let text = [
            "c 00007ff800000000 000102030405060708090a0b0c0d0e0f\n".to_owned(),
            loaded(0x2000_0000, "/lib/b with space"),
            loaded(0x1000_0000, "/bin/prog"),
            loaded(0x3000_0000, "/lib/gone"),
            "- 0000000030000000\n".to_owned(),
            loaded(0x2000_0000, "/lib/b with space"),
            loaded(0x4000_0000, "/lib/unfinished").trim_end().to_owned(),
        ]
        .concat();
        let list = ImageList::parse(text.as_bytes(), None);
        let mut mappings = Vec::new();
        list.mappings(&mut mappings);
        let shown: Vec<_> = mappings
            .iter()
            .map(|mapping| (mapping.avma.start.0, mapping.avma.end.0, mapping.path.as_str()))
            .collect();
        assert_eq!(
            shown,
            [(0x1000_0000, 0x1000_4000, "/bin/prog"), (0x2000_0000, 0x2000_4000, "/lib/b with space")]
        );
        assert_eq!(list.program(), Some("/bin/prog"));
        let uuid = std::array::from_fn(|index| index as u8);
        assert_eq!(list.cache, Some(SharedCache { uuid, base: 0x7ff8_0000_0000 }));
        assert_eq!(mappings[0].identity, mappings[1].identity, "one UUID");
    }

    #[test]
    fn damaged_lists_are_read_as_far_as_they_go() {
        let whole = [loaded(0x1000, "/bin/prog"), "- 0000000000001000\n".to_owned()].concat().into_bytes();
        for at in 0..whole.len() {
            let _ = ImageList::parse(&whole[..at], None);
            for byte in [0, b'\n', b' ', 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = ImageList::parse(&damaged, None);
            }
        }
        let many: String = (0..IMAGES_MAX as u64 + 9).map(|number| loaded(number << 20, "/x")).collect();
        assert_eq!(ImageList::parse(many.as_bytes(), None).images.len(), IMAGES_MAX);
        let end = loaded(u64::MAX, "/end");
        let mut mappings = Vec::new();
        ImageList::parse(end.as_bytes(), None).mappings(&mut mappings);
        assert_eq!(mappings[0].avma, Avma(u64::MAX)..Avma(u64::MAX));
    }
}

#[cfg(test)]
mod reasons_tests {
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
