//! The code of the target and the bytes behind it.
//!
//! A path alone proves nothing: the stub may run on another machine. A file here is taken only if its
//! head (ELF header, program headers, build id) is the one that is in the target's memory, and if it
//! is not here it is read through the stub, where that serves files while the target runs.

use std::path::Path;

use hashbrown::HashMap;

use super::broken::Broken;
use super::maps::{self, Auxv};
use super::memory::Range;
use super::session::Stub;
use super::waits::System;
use crate::addr::{self, Avma};
use crate::binary::elf::{self, Elf};
use crate::binary::{Files, ImageBytes, LocalFiles, Mapping, MappingKind};
use crate::error::{Error, ErrorKind, Result};

/// Longest list of mappings, of libraries and of the auxiliary vector.
const MAX_LIST_BYTES: usize = 16 << 20;
/// Longest path.
const MAX_PATH_BYTES: usize = 4096;
/// Bytes of a file's head that are compared.
const HEAD_BYTES: usize = 4096;
/// Bytes of code that are compared where a file has no head in memory.
const CODE_BYTES: u64 = 256;
/// A vDSO is a few pages; where its end is not told, so much is read.
const VDSO_BYTES: u64 = 8192;
const MAX_VDSO_BYTES: u64 = 1 << 20;
/// Largest file that is read through the stub, and all of them together.
const MAX_FILE_BYTES: usize = 64 << 20;
const MAX_FILES_BYTES: usize = 256 << 20;

/// The program as `--exec` names it.
#[derive(Clone, Debug)]
pub(super) struct Exec {
    path: String,
    bytes: ImageBytes,
    pub(super) elf: Elf,
}

impl Exec {
    /// Opens the file.
    ///
    /// # Errors
    /// [`ErrorKind::Input`]: it cannot be read, or is no ELF file.
    pub(super) fn open(path: &Path) -> Result<Exec> {
        let failed = |why: String| Error::new(ErrorKind::Input, format!("--exec {}: {why}", path.display()));
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let absolute = absolute.to_string_lossy().into_owned();
        let bytes = LocalFiles.open(&absolute).map_err(&failed)?;
        let elf =
            Elf::parse(bytes.bytes()).map_err(|why| failed(format!("{why}; an ELF file was expected")))?;
        Ok(Exec { path: absolute, bytes, elf })
    }

    /// Its file name.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Who tells where code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The kernel's list of a Linux process.
    Kernel,
    /// The auxiliary vector and the dynamic loader's list.
    Loader,
    /// The file that `--exec` names.
    Exec,
    Nobody,
}

/// See the top of this file.
pub(super) struct Images {
    exec: Option<Exec>,
    system: System,
    /// Bytes of an address of the target.
    pointer_bytes: usize,
    way: Option<Way>,
    /// What is mapped as code, by address.
    pub(super) mappings: Vec<Mapping>,
    /// Where the first byte of each file is.
    heads: HashMap<(u64, u64), u64>,
    bytes: HashMap<(String, (u64, u64)), std::result::Result<ImageBytes, String>>,
    fetched_bytes: usize,
}

impl Images {
    pub(super) fn new(exec: Option<Exec>, system: System, pointer_bytes: usize) -> Images {
        Images {
            exec,
            system,
            pointer_bytes,
            way: None,
            mappings: Vec::new(),
            heads: HashMap::new(),
            bytes: HashMap::new(),
            fetched_bytes: 0,
        }
    }

    /// Whether an address is in code that is known.
    pub(super) fn contains(&self, at: u64) -> bool {
        let after = self.mappings.partition_point(|mapping| mapping.avma.start.0 <= at);
        after.checked_sub(1).is_some_and(|index| at < self.mappings[index].avma.end.0)
    }

    /// Whether the list is that of the kernel, so that what else it tells of the process holds.
    pub(super) fn are_the_kernels(&self) -> bool {
        self.way == Some(Way::Kernel)
    }

    /// The name of the first file.
    pub(super) fn first_name(&self) -> Option<String> {
        let file = self.mappings.iter().find(|mapping| mapping.kind == MappingKind::File)?;
        file.path.rsplit('/').next().map(str::to_owned)
    }

    /// Why a file is not what is in memory, if one is not.
    pub(super) fn problem(&self) -> Option<String> {
        let mut bytes = self.mappings.iter().map(|mapping| self.bytes(mapping));
        bytes.find_map(std::result::Result::err)
    }

    /// Another program runs: nothing that was known holds.
    pub(super) fn forget(&mut self) {
        *self = Images { way: self.way, ..Images::new(self.exec.take(), self.system, self.pointer_bytes) };
    }

    /// Asks what is mapped now, and for the bytes of what is new; whether anything changed. `pc` is
    /// where a thread stands, which a list of the right process has.
    pub(super) fn learn(&mut self, stub: &mut Stub, pc: Option<u64>) -> std::result::Result<bool, Broken> {
        let before = std::mem::take(&mut self.mappings);
        self.heads.clear();
        match self.way {
            Some(way) => drop(self.list(way, stub)?),
            None => {
                for way in [Way::Kernel, Way::Loader, Way::Exec, Way::Nobody] {
                    self.mappings.clear();
                    let listed = self.list(way, stub)?;
                    if way == Way::Nobody
                        || listed && (way != Way::Kernel || pc.is_none_or(|pc| self.contains(pc)))
                    {
                        self.way = Some(way);
                        break;
                    }
                }
            }
        }
        if self.mappings.is_empty() && !before.is_empty() {
            // It is on its way out; what was there is what samples of before are in.
            self.mappings = before;
            return Ok(false);
        }
        let changed = before != self.mappings;
        if changed {
            self.read_new(stub)?;
        }
        Ok(changed)
    }

    /// Fills the list in one way; whether there was one.
    fn list(&mut self, way: Way, stub: &mut Stub) -> std::result::Result<bool, Broken> {
        let listed = match way {
            Way::Kernel => self.by_kernel(stub)?,
            Way::Loader => self.by_loader(stub)?,
            Way::Exec => self.by_exec(stub)?,
            Way::Nobody => false,
        };
        maps::sort(&mut self.mappings);
        Ok(listed)
    }

    fn by_kernel(&mut self, stub: &mut Stub) -> std::result::Result<bool, Broken> {
        let Some(pid) = stub.run.pid.filter(|_| self.system == System::Linux) else { return Ok(false) };
        let Some(text) = stub.read_file(&format!("/proc/{pid}/maps"), MAX_LIST_BYTES)? else {
            return Ok(false);
        };
        for line in maps::lines(&text) {
            if line.mapping.kind == MappingKind::File && line.mapping.file_offset == 0 {
                self.heads.insert(line.mapping.identity, line.mapping.avma.start.0);
            }
            if line.executable {
                self.mappings.push(line.mapping);
            }
        }
        Ok(!self.mappings.is_empty())
    }

    fn by_loader(&mut self, stub: &mut Stub) -> std::result::Result<bool, Broken> {
        if self.system != System::Linux || !stub.offers.auxv {
            return Ok(false);
        }
        let auxv = stub.transfer("auxv", "", MAX_LIST_BYTES)?.unwrap_or_default();
        let auxv = Auxv::parse(&auxv, self.pointer_bytes);
        let mut path = None;
        if stub.offers.exec_file {
            let annex = stub.run.pid.filter(|_| stub.offers.multiprocess).map(|pid| format!("{pid:x}"));
            path = stub.transfer("exec-file", &annex.unwrap_or_default(), MAX_PATH_BYTES)?;
        }
        let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
        if let Some(entry) = auxv.entry {
            match (self.exec.clone(), path) {
                (Some(exec), _) => {
                    let bias = maps::bias_by_entry(exec.elf.entry, entry);
                    self.add(&exec.path, &exec.elf, bias);
                }
                (None, Some(path)) => self.add_file(&path, |elf| maps::bias_by_entry(elf.entry, entry)),
                (None, None) => {}
            }
        }
        if stub.offers.libraries_svr4
            && let Some(list) = stub.transfer("libraries-svr4", "", MAX_LIST_BYTES)?
        {
            for (path, bias) in maps::libraries(&list) {
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

    fn by_exec(&mut self, stub: &mut Stub) -> std::result::Result<bool, Broken> {
        let Some(exec) = self.exec.clone() else { return Ok(false) };
        // `Text=0;Data=0;Bss=0` or `TextSeg=0`: how far it was moved when it was loaded.
        let answer = stub.call(b"qOffsets")?;
        let text = String::from_utf8_lossy(&answer);
        let moved = text.split(';').find_map(|pair| match pair.split_once('=') {
            Some(("Text" | "TextSeg", digits)) => u64::from_str_radix(digits, 16).ok(),
            _ => None,
        });
        self.add(&exec.path, &exec.elf, moved.unwrap_or(0));
        Ok(!self.mappings.is_empty())
    }

    /// Adds the code of a file of this system, if it can be read here.
    fn add_file(&mut self, path: &str, bias: impl FnOnce(&Elf) -> u64) {
        let Ok(bytes) = LocalFiles.open(path) else { return };
        if let Ok(elf) = Elf::parse(bytes.bytes()) {
            let bias = bias(&elf);
            self.add(path, &elf, bias);
        }
    }

    fn add(&mut self, path: &str, elf: &Elf, bias: u64) {
        // No device and inode are told: where it lies tells files apart.
        let identity = (u64::MAX, bias);
        self.heads.extend(maps::head_of(elf, bias).map(|head| (identity, head)));
        maps::of_elf(elf, path, bias, identity, &mut self.mappings);
    }

    /// The bytes behind a mapping, as they were found when it was first listed.
    pub(super) fn bytes(&self, mapping: &Mapping) -> std::result::Result<ImageBytes, String> {
        let known = self.bytes.get(&(mapping.path.clone(), mapping.identity));
        known.cloned().unwrap_or_else(|| Err("unloaded in the meantime".to_owned()))
    }

    /// Finds the bytes of what is listed and not known.
    fn read_new(&mut self, stub: &mut Stub) -> std::result::Result<(), Broken> {
        let is_new = |mapping: &&Mapping| {
            mapping.kind != MappingKind::Anonymous
                && !self.bytes.contains_key(&(mapping.path.clone(), mapping.identity))
        };
        let mut new: Vec<Mapping> = self.mappings.iter().filter(is_new).cloned().collect();
        new.dedup_by(|one, other| (&one.path, one.identity) == (&other.path, other.identity));
        // What their first bytes are in memory, all in one go.
        let range = |mapping: &Mapping| match mapping.kind {
            MappingKind::Vdso => Range {
                at: mapping.avma.start.0,
                bytes: addr::len(&mapping.avma).min(MAX_VDSO_BYTES) as usize,
            },
            _ => match self.heads.get(&mapping.identity) {
                Some(head) => Range { at: *head, bytes: HEAD_BYTES },
                None => Range { at: mapping.avma.start.0, bytes: CODE_BYTES as usize },
            },
        };
        let ranges: Vec<Range> = new.iter().map(range).collect();
        let heads = stub.read_ranges(&ranges)?;
        for (mapping, head) in new.into_iter().zip(heads) {
            let key = (mapping.path.clone(), mapping.identity);
            if self.bytes.contains_key(&key) {
                continue;
            }
            let bytes = match mapping.kind {
                MappingKind::Vdso if head.is_empty() => Err("its memory cannot be read".to_owned()),
                MappingKind::Vdso => Ok(ImageBytes::new(head)),
                _ => self.file_bytes(stub, &mapping, &head)?,
            };
            self.bytes.insert(key, bytes);
        }
        Ok(())
    }

    /// The file behind a mapping whose first bytes in memory are `memory`.
    fn file_bytes(
        &mut self,
        stub: &mut Stub,
        mapping: &Mapping,
        memory: &[u8],
    ) -> std::result::Result<std::result::Result<ImageBytes, String>, Broken> {
        let has_head = self.heads.contains_key(&mapping.identity);
        let same = |bytes: &ImageBytes| match has_head {
            true => elf::same_file(memory, bytes.bytes()),
            false => is_same_code(mapping, memory, bytes),
        };
        if let Some(exec) = &self.exec
            && (exec.path == mapping.path || has_head)
            && same(&exec.bytes)
        {
            return Ok(Ok(exec.bytes.clone()));
        }
        let path = mapping.path.strip_suffix(" (deleted)").unwrap_or(&mapping.path);
        let why = match LocalFiles.open(path) {
            Ok(bytes) if same(&bytes) => return Ok(Ok(bytes)),
            Ok(_) => "the file of that name here is another one".to_owned(),
            Err(why) => format!("not here: {why}"),
        };
        // Not while the target stands for it.
        if !stub.run.non_stop || self.fetched_bytes >= MAX_FILES_BYTES {
            return Ok(Err(why));
        }
        stub.without_limit();
        let Some(fetched) = stub.read_file(path, MAX_FILE_BYTES)? else { return Ok(Err(why)) };
        self.fetched_bytes += fetched.len();
        let fetched = ImageBytes::new(fetched);
        Ok(if same(&fetched) { Ok(fetched) } else { Err("replaced on disk since it was loaded".to_owned()) })
    }
}

/// Whether the code of a file is what is in memory where it should be.
fn is_same_code(mapping: &Mapping, memory: &[u8], file: &ImageBytes) -> bool {
    let code = file.from_offset(mapping.file_offset);
    let bytes = addr::len(&mapping.avma).min(CODE_BYTES) as usize;
    bytes > 0 && memory.get(..bytes).is_some_and(|memory| code.get(..bytes) == Some(memory))
}
