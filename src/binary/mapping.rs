//! Executable mappings of a process, and the bytes behind them: plain types that backends create and that images and
//! symbols read.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::OpenError;
use super::map::Map;
use crate::addr::Avma;

/// What a mapped range of code is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// A file, as the target sees its path.
    File,
    /// Code the kernel maps into every process (Linux vDSO): readable from memory only.
    Vdso,
    /// Executable memory without a file: JIT code, trampolines.
    Anonymous,
    /// JIT code that its compiler registered with debuggers (`images::GdbJit`).
    Registered,
}

/// One executable range of a target's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where it is.
    pub avma: Range<Avma>,
    /// Offset in the file of its first byte.
    pub file_offset: u64,
    /// Path as the target sees it, or the kernel's name in brackets; may be empty.
    pub path: String,
    /// What it is.
    pub kind: MappingKind,
    /// The file's identity as mapped: device and inode. Zero where there is none.
    pub identity: (u64, u64),
}

/// The executable of a process that was started by another path: a link to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPath {
    /// The path that its mappings have.
    pub file: String,
    /// The absolute path that it was started by; it leads to that file.
    pub started_as: String,
}

/// What names the functions of a Mach-O image that was read from memory, each piece where
/// its load commands have another place for it. Any of them may be empty.
#[derive(Clone, Debug)]
pub struct Linkedit {
    /// `nlist_64` entries; their names are in `strings`.
    pub nlists: ImageBytes,
    /// Names by offset, each ended by NUL.
    pub strings: ImageBytes,
    /// Content of `LC_FUNCTION_STARTS`.
    pub function_starts: ImageBytes,
    /// Content of `LC_DYLD_EXPORTS_TRIE`.
    pub exports_trie: ImageBytes,
}

/// The bytes of an image: a mapped file, or what was read from the target's memory.
#[derive(Clone)]
pub struct ImageBytes {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    first_offset: u64,
    linkedit: Option<Arc<Linkedit>>,
    /// The file that they are in, all or a part of it.
    file: Option<Arc<Map>>,
}

impl ImageBytes {
    /// Wraps a buffer.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> ImageBytes {
        ImageBytes { bytes: Arc::new(bytes), first_offset: 0, linkedit: None, file: None }
    }

    /// A memory-mapped file.
    pub(crate) fn mapped(file: Map) -> ImageBytes {
        let file = Arc::new(file);
        ImageBytes { bytes: Arc::clone(&file) as _, first_offset: 0, linkedit: None, file: Some(file) }
    }

    /// These bytes as a part of `whole`: what happens to its file happens to these.
    pub(super) fn part_of(self, whole: &ImageBytes) -> ImageBytes {
        ImageBytes { file: whole.file.clone(), ..self }
    }

    /// Whether the file still has what it had when it was mapped; all that was read of it before is
    /// right then. Costs a system call.
    ///
    /// # Errors
    /// [`OpenError::Replaced`]: it was written to meanwhile. Or a part of it could not be read.
    pub fn unchanged(&self) -> Result<(), OpenError> {
        self.file.as_ref().map_or(Ok(()), |file| file.unchanged())
    }

    /// The header and `__TEXT` of a Mach-O image as they are in memory, and its symbols.
    /// `first_offset` is where `__TEXT` begins in its file: 0, except in the shared cache.
    #[must_use]
    pub fn in_memory(self, first_offset: u64, linkedit: Linkedit) -> ImageBytes {
        ImageBytes { first_offset, linkedit: Some(Arc::new(linkedit)), ..self }
    }

    /// The bytes: of the whole file, or of `__TEXT`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The bytes from an offset in the file on; empty outside.
    #[must_use]
    #[inline]
    pub fn from_offset(&self, file_offset: u64) -> &[u8] {
        let offset =
            file_offset.checked_sub(self.first_offset).and_then(|offset| usize::try_from(offset).ok());
        offset.and_then(|offset| self.bytes().get(offset..)).unwrap_or_default()
    }

    /// The symbols of an image that was read from memory; those of a file are in its bytes.
    #[must_use]
    pub fn linkedit(&self) -> Option<&Linkedit> {
        self.linkedit.as_deref()
    }
}

impl fmt::Debug for ImageBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageBytes({} bytes)", self.bytes().len())
    }
}
