//! The target's code mappings and the files behind them.
//!
//! `Images` decides; the parsers below it read debugserver's list (`MachImage`), and a process's maps or its
//! dynamic loader's list.
//!
//! A path alone proves nothing: the stub may run on another machine. A local file is used only if its head
//! (ELF header, program headers, build id) equals the one in the target's memory; otherwise the file is read
//! through the stub, if that serves files while the target runs. Firmware has no head in memory, and RAM
//! changes: there code is compared.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::Value;

use super::description::attribute;
use super::memory::Range;
use super::session::Stub;
use super::tasks::Kernel;
use super::threads::System;
use super::transport::ConnectionError;
use crate::addr::{self, Avma, Svma};
use crate::binary::elf::{self, Elf};
use crate::binary::macho::{self, ImageIdentity};
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError, files};
use crate::error::{Error, ErrorKind, Result};
use crate::sources::LocalFiles;
use crate::sources::maps_line::{MapsLine, without_deleted};

/// Most bytes of a list of mappings or libraries, or of the auxiliary vector.
const LIST_BYTES_MAX: usize = 16 << 20;
/// Longest path.
const PATH_BYTES_MAX: usize = 4096;
/// Bytes of a file's head to compare.
const HEAD_BYTES: usize = 4096;
/// Bytes of code to compare if a file has no head in memory.
const CODE_BYTES: u64 = 256;
/// A vDSO is a few pages; if its end is unknown, this much is read.
const VDSO_BYTES: u64 = 8192;
const VDSO_BYTES_MAX: u64 = 1 << 20;
/// Largest file read through the stub, and limit of all of them together.
const FILE_BYTES_MAX: usize = 64 << 20;
const FILES_BYTES_MAX: usize = 256 << 20;

/// The file that `--exec` names.
#[derive(Clone, Debug)]
pub(super) struct Exec {
    path: String,
    bytes: ImageBytes,
    pub(super) elf: Elf,
    /// Its operating system, if that is one with readable tasks.
    pub(super) kernel: Option<Kernel>,
}

impl Exec {
    /// Opens the file.
    ///
    /// # Errors
    /// [`ErrorKind::Input`]: it cannot be read, or is not an ELF file.
    pub(super) fn open(path: &Path) -> Result<Exec> {
        let failed = |why: String| Error::new(ErrorKind::Input, format!("--exec {}: {why}", path.display()));
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let absolute = absolute.to_string_lossy().into_owned();
        let bytes =
            files::map_regular(Path::new(&absolute)).map_err(|why| failed(why.to_string()).caused_by(why))?;
        let elf = Elf::parse(bytes.bytes())
            .map_err(|why| failed(format!("{why}; an ELF file was expected")).caused_by(why))?;
        let kernel = (elf.machine == elf::ARM).then(|| Kernel::find(bytes.bytes())).flatten();
        Ok(Exec { path: absolute, bytes, elf, kernel })
    }

    /// Its file name.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Memory to compare with a file.
#[derive(Clone, Copy, Debug)]
struct Probe {
    range: Range,
    /// File offset of the same bytes.
    file_offset: u64,
    /// It is the program's entry point.
    is_entry: bool,
}

/// An open file, or why it could not be opened.
type OpenedFile = std::result::Result<ImageBytes, OpenError>;

/// The source of the list of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageSource {
    /// The kernel's list for a Linux process.
    Kernel,
    /// The auxiliary vector and the dynamic loader's list.
    Loader,
    /// debugserver's list, from macOS's dynamic loader.
    Dyld,
    /// The file that `--exec` names.
    Exec,
    Nobody,
}

/// The code of a target behind a stub, and the files with its bytes.
pub(super) struct Images {
    exec: Option<Exec>,
    system: System,
    /// Size of a pointer in the target.
    pointer_bytes: usize,
    source: Option<ImageSource>,
    /// Code mappings, sorted by address.
    pub(super) mappings: Vec<Mapping>,
    /// Address of the first byte of each file.
    heads: HashMap<(u64, u64), u64>,
    /// Identities of Mach-O images.
    mach: HashMap<(u64, u64), ImageIdentity>,
    bytes: HashMap<(String, (u64, u64)), std::result::Result<ImageBytes, OpenError>>,
    fetched_bytes: usize,
}

impl Images {
    pub(super) fn new(exec: Option<Exec>, system: System, pointer_bytes: usize) -> Images {
        Images {
            exec,
            system,
            pointer_bytes,
            source: None,
            mappings: Vec::new(),
            heads: HashMap::new(),
            mach: HashMap::new(),
            bytes: HashMap::new(),
            fetched_bytes: 0,
        }
    }

    /// Bytes of the program's file and its load bias; `None` without `--exec`.
    pub(super) fn exec(&self) -> Option<(&[u8], u64)> {
        let exec = self.exec.as_ref()?;
        // The second part of the identity is the load bias (`Images::add`).
        let mapping = self.mappings.iter().find(|mapping| mapping.path == exec.path)?;
        Some((exec.bytes.bytes(), mapping.identity.1))
    }

    /// Whether an address is in known code.
    pub(super) fn contains(&self, at: u64) -> bool {
        let after = self.mappings.partition_point(|mapping| mapping.avma.start.0 <= at);
        after.checked_sub(1).is_some_and(|index| at < self.mappings[index].avma.end.0)
    }

    /// Whether the list is the kernel's, so that its other facts about the process hold.
    pub(super) fn are_the_kernels(&self) -> bool {
        self.source == Some(ImageSource::Kernel)
    }

    /// The name of the first file.
    pub(super) fn first_name(&self) -> Option<String> {
        let file = self.mappings.iter().find(|mapping| mapping.kind == MappingKind::File)?;
        file.path.rsplit('/').next().map(str::to_owned)
    }

    /// Why a file differs from memory, if one does.
    pub(super) fn problem(&self) -> Option<OpenError> {
        let mut bytes = self.mappings.iter().map(|mapping| self.bytes(mapping));
        bytes.find_map(std::result::Result::err)
    }

    /// Forgets everything: another program runs.
    pub(super) fn forget(&mut self) {
        *self =
            Images { source: self.source, ..Images::new(self.exec.take(), self.system, self.pointer_bytes) };
    }

    /// Requests the current mappings, and the bytes of new ones. Returns whether anything changed. `pc` is
    /// the program counter of a thread; a list of the right process contains it.
    pub(super) fn learn(
        &mut self,
        stub: &mut Stub,
        pc: Option<u64>,
    ) -> std::result::Result<bool, ConnectionError> {
        let before = std::mem::take(&mut self.mappings);
        self.heads.clear();
        self.mach.clear();
        match self.source {
            Some(source) => drop(self.list(source, stub)?),
            None => {
                for source in [
                    ImageSource::Kernel,
                    ImageSource::Loader,
                    ImageSource::Dyld,
                    ImageSource::Exec,
                    ImageSource::Nobody,
                ] {
                    self.mappings.clear();
                    let listed = self.list(source, stub)?;
                    if source == ImageSource::Nobody
                        || listed && (source != ImageSource::Kernel || pc.is_none_or(|pc| self.contains(pc)))
                    {
                        self.source = Some(source);
                        break;
                    }
                }
            }
        }
        if self.mappings.is_empty() && !before.is_empty() {
            // The process is exiting; earlier samples are in the previous mappings.
            self.mappings = before;
            return Ok(false);
        }
        let changed = before != self.mappings;
        if changed {
            self.read_new(stub)?;
        }
        Ok(changed)
    }

    /// Fills the list from one source; returns whether that has one.
    fn list(&mut self, source: ImageSource, stub: &mut Stub) -> std::result::Result<bool, ConnectionError> {
        let listed = match source {
            ImageSource::Kernel => self.by_kernel(stub)?,
            ImageSource::Loader => self.by_loader(stub)?,
            ImageSource::Dyld => self.by_dyld(stub)?,
            ImageSource::Exec => self.by_exec(stub)?,
            ImageSource::Nobody => false,
        };
        sort(&mut self.mappings);
        Ok(listed)
    }

    fn by_kernel(&mut self, stub: &mut Stub) -> std::result::Result<bool, ConnectionError> {
        let Some(pid) = stub.run.pid.filter(|_| self.system == System::Linux) else { return Ok(false) };
        let Some(text) = stub.read_file(&format!("/proc/{pid}/maps"), LIST_BYTES_MAX)? else {
            return Ok(false);
        };
        for line in lines(&text) {
            if line.mapping.kind == MappingKind::File && line.mapping.file_offset == 0 {
                self.heads.insert(line.mapping.identity, line.mapping.avma.start.0);
            }
            if line.executable {
                self.mappings.push(line.mapping);
            }
        }
        Ok(!self.mappings.is_empty())
    }

    fn by_loader(&mut self, stub: &mut Stub) -> std::result::Result<bool, ConnectionError> {
        if self.system != System::Linux || !stub.offers.auxv {
            return Ok(false);
        }
        let auxv = stub.transfer("auxv", "", LIST_BYTES_MAX)?.unwrap_or_default();
        let auxv = Auxv::parse(&auxv, self.pointer_bytes);
        let mut path = None;
        if stub.offers.exec_file {
            let annex = stub.run.pid.filter(|_| stub.offers.multiprocess).map(|pid| format!("{pid:x}"));
            path = stub.transfer("exec-file", &annex.unwrap_or_default(), PATH_BYTES_MAX)?;
        }
        let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
        if let Some(entry) = auxv.entry {
            match (self.exec.clone(), path) {
                (Some(exec), _) => {
                    let bias = bias_by_entry(exec.elf.entry, entry);
                    self.add(&exec.path, &exec.elf, bias);
                }
                (None, Some(path)) => self.add_file(&path, |elf| bias_by_entry(elf.entry, entry)),
                (None, None) => {}
            }
        }
        if stub.offers.libraries_svr4
            && let Some(list) = stub.transfer("libraries-svr4", "", LIST_BYTES_MAX)?
        {
            for (path, bias) in libraries(&list) {
                self.add_file(&path, |_| bias);
            }
        }
        if let Some(vdso) = auxv.vdso {
            self.mappings.push(Mapping {
                avma: Avma(vdso)..Avma(vdso.saturating_add(VDSO_BYTES)),
                file_offset: 0,
                path: "[vdso]".to_owned(),
                kind: MappingKind::Vdso,
                identity: (0, 0),
            });
        }
        Ok(!self.mappings.is_empty())
    }

    fn by_dyld(&mut self, stub: &mut Stub) -> std::result::Result<bool, ConnectionError> {
        if self.system != System::Mach || !stub.offers.lldb {
            return Ok(false);
        }
        for image in images(&stub.call(QUESTION)?) {
            self.mach.insert(image.mapping.identity, image.wanted);
            self.mappings.push(image.mapping);
        }
        Ok(!self.mappings.is_empty())
    }

    fn by_exec(&mut self, stub: &mut Stub) -> std::result::Result<bool, ConnectionError> {
        let Some(exec) = self.exec.clone() else { return Ok(false) };
        // `Text=0;Data=0;Bss=0` or `TextSeg=0`: the load bias.
        let answer = stub.call(b"qOffsets")?;
        let text = String::from_utf8_lossy(&answer);
        let moved = text.split(';').find_map(|pair| match pair.split_once('=') {
            Some(("Text" | "TextSeg", digits)) => u64::from_str_radix(digits, 16).ok(),
            _ => None,
        });
        self.add(&exec.path, &exec.elf, moved.unwrap_or(0));
        Ok(!self.mappings.is_empty())
    }

    /// Adds the code of a file of this system, if it can be read.
    fn add_file(&mut self, path: &str, bias: impl FnOnce(&Elf) -> u64) {
        let Ok(bytes) = LocalFiles.open(path) else { return };
        if let Ok(elf) = Elf::parse(bytes.bytes()) {
            let bias = bias(&elf);
            self.add(path, &elf, bias);
        }
    }

    fn add(&mut self, path: &str, elf: &Elf, bias: u64) {
        // Device and inode are unknown: the address distinguishes files.
        let identity = (u64::MAX, bias);
        if self.system != System::Bare {
            self.heads.extend(head_of(elf, bias).map(|head| (identity, head)));
        }
        of_elf(elf, path, bias, identity, &mut self.mappings);
    }

    /// The bytes behind a mapping, as found when it was first listed.
    pub(super) fn bytes(&self, mapping: &Mapping) -> std::result::Result<ImageBytes, OpenError> {
        let known = self.bytes.get(&(mapping.path.clone(), mapping.identity));
        known.cloned().unwrap_or_else(|| Err(OpenError::Unloaded))
    }

    /// Finds the bytes of new mappings.
    fn read_new(&mut self, stub: &mut Stub) -> std::result::Result<(), ConnectionError> {
        let is_new = |mapping: &&Mapping| {
            mapping.kind != MappingKind::Anonymous
                && !self.bytes.contains_key(&(mapping.path.clone(), mapping.identity))
        };
        let mut new: Vec<Mapping> = self.mappings.iter().filter(is_new).cloned().collect();
        new.dedup_by(|one, other| (&one.path, one.identity) == (&other.path, other.identity));
        // Their memory, read in one batch.
        let probes: Vec<Vec<Probe>> = new.iter().map(|mapping| self.probes(mapping)).collect();
        let ranges: Vec<Range> = probes.iter().flatten().map(|probe| probe.range).collect();
        let mut read = stub.read_ranges(&ranges)?.into_iter();
        for (mapping, probes) in new.into_iter().zip(probes) {
            let memory: Vec<Vec<u8>> = read.by_ref().take(probes.len()).collect();
            let key = (mapping.path.clone(), mapping.identity);
            if self.bytes.contains_key(&key) {
                continue;
            }
            let bytes = match mapping.kind {
                MappingKind::Vdso => match memory.into_iter().next() {
                    Some(memory) if !memory.is_empty() => Ok(ImageBytes::new(memory)),
                    _ => Err(OpenError::Source("its memory cannot be read")),
                },
                _ => self.file_bytes(stub, &mapping, &probes, &memory)?,
            };
            self.bytes.insert(key, bytes);
        }
        Ok(())
    }

    /// The memory that shows whether a file is the mapped one.
    fn probes(&self, mapping: &Mapping) -> Vec<Probe> {
        let at = mapping.avma.start.0;
        let probe =
            |at, bytes, file_offset, is_entry| Probe { range: Range { at, bytes }, file_offset, is_entry };
        if self.mach.contains_key(&mapping.identity) {
            return Vec::new();
        }
        if mapping.kind == MappingKind::Vdso {
            return vec![probe(at, addr::len(&mapping.avma).min(VDSO_BYTES_MAX) as usize, 0, false)];
        }
        if let Some(head) = self.heads.get(&mapping.identity) {
            return vec![probe(*head, HEAD_BYTES, 0, false)];
        }
        let is_same = |other: &&Mapping| (&other.path, other.identity) == (&mapping.path, mapping.identity);
        // Headers are not code, and firmware is flashed without them.
        let parts = self.mappings.iter().filter(is_same).filter(|part| part.file_offset != 0);
        let mut probes: Vec<Probe> = parts
            .map(|part| {
                let bytes = addr::len(&part.avma).min(CODE_BYTES) as usize;
                probe(part.avma.start.0, bytes, part.file_offset, false)
            })
            .collect();
        if let Some(exec) = self.exec.as_ref().filter(|exec| exec.path == mapping.path) {
            // The last bit marks T32 there.
            let entry = if exec.elf.machine == elf::ARM { exec.elf.entry.0 & !1 } else { exec.elf.entry.0 };
            // The second part of the identity is the load bias (`Images::add`).
            let at = entry.wrapping_add(mapping.identity.1);
            let holds = |part: &&Mapping| part.avma.contains(&Avma(at));
            if let Some(part) = self.mappings.iter().filter(is_same).find(holds) {
                let left = (part.avma.end.0 - at).min(CODE_BYTES) as usize;
                probes.push(probe(at, left, part.file_offset + (at - part.avma.start.0), true));
            }
        }
        probes
    }

    /// The file behind a mapping with `memory` at its `probes`.
    fn file_bytes(
        &mut self,
        stub: &mut Stub,
        mapping: &Mapping,
        probes: &[Probe],
        memory: &[Vec<u8>],
    ) -> std::result::Result<OpenedFile, ConnectionError> {
        if let Some(wanted) = self.mach.get(&mapping.identity) {
            let opened =
                LocalFiles.open(&mapping.path).map_err(|why| OpenError::NotOnThisMachine(Arc::new(why)));
            return Ok(opened.and_then(|bytes| Ok(macho::choose(&bytes, wanted)?)));
        }
        let has_head = self.heads.contains_key(&mapping.identity);
        let same = |bytes: &ImageBytes| match has_head {
            true => memory.first().is_some_and(|head| elf::same_file(head, bytes.bytes())),
            false => is_same_code(probes, memory, bytes),
        };
        if let Some(exec) = &self.exec
            && (exec.path == mapping.path || has_head)
            && same(&exec.bytes)
        {
            return Ok(Ok(exec.bytes.clone()));
        }
        let (path, _) = without_deleted(&mapping.path);
        let why = match LocalFiles.open(path) {
            Ok(bytes) if same(&bytes) => return Ok(Ok(bytes)),
            Ok(_) => OpenError::Source("the file of that name here is another one"),
            Err(why) => OpenError::NotOnThisMachine(Arc::new(why)),
        };
        // The kernel's list has these four characters for a newline, and for themselves.
        if path.contains('\n')
            && let Ok(bytes) = LocalFiles.open(&path.replace('\n', "\\012"))
            && same(&bytes)
        {
            return Ok(Ok(bytes));
        }
        // Not while the target is stopped for it.
        if !stub.run.non_stop || self.fetched_bytes >= FILES_BYTES_MAX {
            return Ok(Err(why));
        }
        stub.without_limit();
        let Some(fetched) = stub.read_file(path, FILE_BYTES_MAX)? else { return Ok(Err(why)) };
        self.fetched_bytes += fetched.len();
        let fetched = ImageBytes::new(fetched);
        Ok(if same(&fetched) { Ok(fetched) } else { Err(OpenError::Replaced) })
    }
}

/// Whether the code of a file equals memory: at its entry point, and at the start of one of its parts. Not
/// all of them: RAM may hold variables, or not have its copy yet.
fn is_same_code(probes: &[Probe], memory: &[Vec<u8>], file: &ImageBytes) -> bool {
    let is_same = |(probe, memory): (&Probe, &Vec<u8>)| {
        let wanted = file.from_offset(probe.file_offset).get(..probe.range.bytes);
        !memory.is_empty() && wanted == Some(memory)
    };
    let pairs = || probes.iter().zip(memory);
    let mut parts = pairs().filter(|(probe, _)| !probe.is_entry).peekable();
    let entry = pairs().find(|(probe, _)| probe.is_entry).map(is_same);
    match parts.peek() {
        Some(_) => entry != Some(false) && parts.any(is_same),
        None => entry == Some(true),
    }
}

// ---- The images of a macOS process, as listed by debugserver: load addresses, files, and UUIDs, which
// distinguish images of one name. Hostile bytes in, plain values out; pure.
//
// Format: LLVM, lldb/docs/resources/lldbgdbremote.md, "jGetLoadedDynamicLibrariesInfos";
// lldb/tools/debugserver/source/MacOSX/MachProcess.mm, `FormatDynamicLibrariesIntoJSON`.

/// Request for all images, with their load commands.
pub(super) const QUESTION: &[u8] = b"jGetLoadedDynamicLibrariesInfos:{\"fetch_all_solibs\":true}";
/// Most images to keep.
const IMAGES_MAX: usize = 65_536;

/// An image: its code mapping and the identity of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachImage {
    pub(super) mapping: Mapping,
    pub(super) wanted: ImageIdentity,
}

/// The images in a reply, without those that lack a valid `__TEXT`.
pub(super) fn images(answer: &[u8]) -> Vec<MachImage> {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    let images = answer["images"].as_array().map(Vec::as_slice).unwrap_or_default();
    images.iter().take(IMAGES_MAX).filter_map(image).collect()
}

fn image(value: &Value) -> Option<MachImage> {
    let load = value["load_address"].as_u64()?;
    let segments = value["segments"].as_array()?;
    let text = segments.iter().find(|segment| segment["name"].as_str() == Some("__TEXT"))?;
    let end = Avma(load).checked_add(text["vmsize"].as_u64()?).filter(|end| end.0 > load)?;
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let header = &value["mach_header"];
    let uuid = value["uuid"].as_str().and_then(uuid);
    // Identity of the file, as there is no device and inode.
    let low = uuid.map_or(0, |uuid| u64::from_le_bytes(std::array::from_fn(|at| uuid[at])));
    let mapping = Mapping::of_file(
        Avma(load)..end,
        text["fileoff"].as_u64()?,
        value["pathname"].as_str()?.to_owned(),
        (load, low),
    );
    // The high byte of a subtype has capability bits (`CPU_SUBTYPE_MASK`).
    let cpu_subtype = number(&header["cpusubtype"]) & 0x00ff_ffff;
    let wanted = ImageIdentity { uuid, cpu_type: number(&header["cputype"]), cpu_subtype };
    Some(MachImage { mapping, wanted })
}

/// `E2A1C0DE-0000-4000-8000-0123456789AB`; all zero means none.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let bytes: [u8; 16] = super::link::decode(&digits)?.try_into().ok()?;
    (bytes != [0; 16]).then_some(bytes)
}

// ---- The code mappings of a process, from the stub's replies: the kernel's list (`/proc/PID/maps`), or the
// auxiliary vector and the dynamic loader's list. Hostile bytes in, plain values out; pure.

/// Most mappings, and most libraries, to keep.
const MAPPINGS_MAX: usize = 65_536;
/// Numbers of the auxiliary vector (include/uapi/linux/auxvec.h).
const AT_NULL: u64 = 0;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_SYSINFO_EHDR: u64 = 33;

/// The lines of `/proc/PID/maps`, without malformed ones.
fn lines(text: &[u8]) -> impl Iterator<Item = MapsLine> + '_ {
    let lines = text.split(|byte| *byte == b'\n').take(MAPPINGS_MAX);
    let parsed = lines.filter_map(|line| MapsLine::parse(line, |major, minor| Some(major << 32 | minor)));
    parsed.filter(|line| line.mapping.avma.start < line.mapping.avma.end)
}

/// Values of the auxiliary vector of a little-endian process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Auxv {
    /// Entry point of the program.
    pub(super) entry: Option<u64>,
    /// Load address of the dynamic loader.
    pub(super) loader: Option<u64>,
    /// Address of the vDSO.
    pub(super) vdso: Option<u64>,
}

impl Auxv {
    pub(super) fn parse(bytes: &[u8], pointer_bytes: usize) -> Auxv {
        let mut auxv = Auxv::default();
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        // Each entry is two words of the target's size: never zero bytes.
        let pointer_bytes = pointer_bytes.clamp(1, 8);
        for pair in bytes.chunks_exact(2 * pointer_bytes) {
            let value = Some(word(&pair[pointer_bytes..])).filter(|value| *value != 0);
            match word(&pair[..pointer_bytes]) {
                AT_NULL => break,
                AT_BASE => auxv.loader = value,
                AT_ENTRY => auxv.entry = value,
                AT_SYSINFO_EHDR => auxv.vdso = value,
                _ => {}
            }
        }
        auxv
    }
}

/// The dynamic loader's libraries: paths and load biases.
pub(super) fn libraries(xml: &[u8]) -> Vec<(String, u64)> {
    let mut reader = Reader::from_reader(xml);
    let mut found = Vec::new();
    // Parsing ends at damaged XML.
    while let Ok(event) = reader.read_event() {
        let element = match event {
            Event::Eof => break,
            Event::Start(element) | Event::Empty(element) => element,
            _ => continue,
        };
        if element.local_name().as_ref() != b"library" || found.len() == MAPPINGS_MAX {
            continue;
        }
        let path = attribute(&element, b"name").filter(|path| path.starts_with('/'));
        let added = attribute(&element, b"l_addr")
            .and_then(|text| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok());
        found.extend(path.zip(added));
    }
    found
}

/// Adds the code of an ELF file with this load `bias`. `identity` is the file's.
pub(super) fn of_elf(elf: &Elf, path: &str, bias: u64, identity: (u64, u64), out: &mut Vec<Mapping>) {
    for segment in elf.segments.iter().filter(|segment| segment.executable) {
        let start = Avma(segment.svma.0.wrapping_add(bias));
        let bytes = segment.file.end - segment.file.start;
        let Some(end) = start.checked_add(bytes).filter(|end| *end > start) else { continue };
        out.push(Mapping::of_file(start..end, segment.file.start, path, identity));
    }
}

/// Address of the first bytes of an ELF file, if they are loaded.
pub(super) fn head_of(elf: &Elf, bias: u64) -> Option<u64> {
    let first = elf.segments.iter().find(|segment| segment.file.start == 0)?;
    Some(first.svma.0.wrapping_add(bias))
}

/// Load bias of a program that was entered at `entry`.
pub(super) fn bias_by_entry(stated: Svma, entry: u64) -> u64 {
    entry.wrapping_sub(stated.0)
}

/// Sorts by address; of overlapping mappings the first is kept.
pub(super) fn sort(mappings: &mut Vec<Mapping>) {
    mappings.sort_by_key(|mapping| mapping.avma.start);
    let mut end = Avma(0);
    mappings.retain(|mapping| {
        let fits = mapping.avma.start >= end && mapping.avma.start < mapping.avma.end;
        if fits {
            end = mapping.avma.end;
        }
        fits
    });
}

#[cfg(test)]
mod mach_images_tests {
    use super::*;

    #[test]
    fn only_images_with_code_are_listed() {
        let answer = br#"{"images":[
            {"load_address":4294967296,"mod_date":0,"pathname":"/tmp/a","uuid":"01020304-0506-0708-090A-0B0C0D0E0F10",
             "mach_header":{"magic":4277009103,"cputype":16777228,"cpusubtype":0,"filetype":2,"flags":2097285},
             "segments":[{"name":"__PAGEZERO","vmaddr":0,"vmsize":4294967296,"fileoff":0,"filesize":0,"maxprot":0},
                         {"name":"__TEXT","vmaddr":4294967296,"vmsize":16384,"fileoff":0,"filesize":16384,"maxprot":5}]},
            {"load_address":18446744073709551615,"pathname":"/b","segments":[{"name":"__TEXT","vmsize":2,"fileoff":0}]},
            {"load_address":8,"pathname":"/c","segments":[]},
            {"load_address":8,"pathname":"/d"}, 7, null]}"#;
        let images = images(answer);
        assert_eq!(images.len(), 1);
        let MachImage { mapping, wanted } = &images[0];
        assert_eq!((mapping.avma.start.0, mapping.avma.end.0), (0x1_0000_0000, 0x1_0000_4000));
        assert_eq!(wanted.uuid, Some(std::array::from_fn(|at| at as u8 + 1)));
        assert_eq!(wanted.cpu_type, 0x0100_000c);
    }

    #[test]
    fn an_unparsable_list_is_empty() {
        for answer in [b"".as_slice(), b"E53", b"{", b"[]", br#"{"images":{}}"#] {
            assert_eq!(images(answer), []);
        }
        assert_eq!(uuid("00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(uuid("ä"), None);
    }
}

#[cfg(test)]
mod maps_tests {
    use super::*;

    #[test]
    fn lines_of_proc_maps_have_a_device_of_both_numbers_and_some_bytes() {
        let text = b"1000-2000 r-xp 00001000 fe:00 1234 /a\n3000-2000 r-xp 00000000 00:00 0 \nnonsense\n";
        let identities: Vec<_> = lines(text).map(|line| line.mapping.identity).collect();
        assert_eq!(identities, [(0xfe_0000_0000, 1234)]);
    }

    #[test]
    fn the_auxiliary_vector_ends_at_at_null() {
        let words = [9u64, 0x1040, 7, 0x7000, 33, 0, 0, 0, 9, 5];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(Auxv::parse(&bytes, 8), Auxv { entry: Some(0x1040), loader: Some(0x7000), vdso: None });
        assert_eq!(Auxv::parse(&bytes[..13], 8), Auxv::default());
        let narrow: Vec<u8> = words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect();
        assert_eq!(Auxv::parse(&narrow, 4), Auxv::parse(&bytes, 8));
    }

    #[test]
    fn parses_libraries_of_the_loader() {
        let xml = b"<library-list-svr4 version=\"1.0\" main-lm=\"0x7f\"><library name=\"/lib/libc.so.6\" lm=\"0x1\" \
            l_addr=\"0x7f1000\" l_ld=\"0x2\"/><library name=\"\" l_addr=\"0x1\"/></library-list-svr4>";
        assert_eq!(libraries(xml), [("/lib/libc.so.6".to_owned(), 0x7f_1000)]);
        assert_eq!(libraries(b"<library"), []);
    }
}
