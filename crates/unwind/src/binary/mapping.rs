//! Executable mappings of a process, and the bytes behind them: plain types that backends create and that images
//! and symbols read. `Mapping` is one mapping, `ImageBytes` the pieces of an image without a file; `contains_v8` tells by
//! its name whether an image contains V8.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::OpenError;
use super::map::Map;
use crate::addr::Avma;

/// The kind of a mapped code range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappingKind {
    /// A file, by its path in the target's view.
    File,
    /// Code the kernel maps into every process (Linux vDSO): readable from memory only.
    Vdso,
    /// Executable memory without a file: JIT code, trampolines.
    Anonymous,
    /// JIT code that its compiler registered through GDB's JIT interface (`images::GdbJit`).
    GdbJit,
}

impl MappingKind {
    /// The kind of a line of /proc/PID/maps. `[heap]` and the like have no inode, and `/memfd:…` has one.
    #[must_use]
    pub fn of(path: &str, inode: u64) -> MappingKind {
        if path == "[vdso]" {
            MappingKind::Vdso
        } else if inode != 0 && path.starts_with('/') {
            MappingKind::File
        } else {
            MappingKind::Anonymous
        }
    }
}

/// One executable range of a target's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub avma: Range<Avma>,
    /// File offset of its first byte.
    pub file_offset: u64,
    /// Path in the target's view, or the kernel's name in brackets; may be empty.
    pub path: String,
    /// Its kind.
    pub kind: MappingKind,
    /// Identity of the mapped file: device and inode. Zero if there is none.
    pub identity: (u64, u64),
}

impl Mapping {
    /// A mapping of a file.
    pub fn of_file(
        avma: Range<Avma>,
        file_offset: u64,
        path: impl Into<String>,
        identity: (u64, u64),
    ) -> Mapping {
        Mapping { avma, file_offset, path: path.into(), kind: MappingKind::File, identity }
    }

    /// Executable memory without a file.
    #[must_use]
    pub fn anonymous(avma: Range<Avma>) -> Mapping {
        let kind = MappingKind::Anonymous;
        Mapping { avma, file_offset: 0, path: String::new(), kind, identity: (0, 0) }
    }
}

/// The executable of a process that was started through a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPath {
    /// The path of its mappings.
    pub file: String,
    /// The absolute path that it was started by; it leads to that file.
    pub started_as: String,
}

/// Symbol data of a Mach-O image that was read from memory, each piece located by its load commands. Any of them
/// may be empty.
#[derive(Clone, Debug)]
pub struct Linkedit {
    /// `nlist_64` entries; their names are in `strings`.
    pub nlists: ImageBytes,
    /// NUL-terminated names by offset.
    pub strings: ImageBytes,
    /// Content of `LC_FUNCTION_STARTS`.
    pub function_starts: ImageBytes,
    /// Content of `LC_DYLD_EXPORTS_TRIE`.
    pub exports_trie: ImageBytes,
}

/// The bytes of an image: a mapped file, or memory read from the target.
#[derive(Clone)]
pub struct ImageBytes {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    first_offset: u64,
    linkedit: Option<Arc<Linkedit>>,
    /// The file that contains them, completely or as a part.
    file: Option<Arc<Map>>,
}

impl ImageBytes {
    /// Wraps a buffer.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> ImageBytes {
        ImageBytes { bytes: Arc::new(bytes), first_offset: 0, linkedit: None, file: None }
    }

    /// A memory-mapped file.
    pub fn mapped(file: Map) -> ImageBytes {
        let file = Arc::new(file);
        ImageBytes { bytes: Arc::clone(&file) as _, first_offset: 0, linkedit: None, file: Some(file) }
    }

    /// Marks these bytes as a part of `whole`: a change of its file applies to them.
    pub(super) fn part_of(self, whole: &ImageBytes) -> ImageBytes {
        ImageBytes { file: whole.file.clone(), ..self }
    }

    /// Checks that the file is unchanged since it was mapped; then all data read from it is valid. Costs a system
    /// call.
    ///
    /// # Errors
    /// [`OpenError::Replaced`]: it was written to meanwhile. Or a part of it could not be read.
    pub fn unchanged(&self) -> Result<(), OpenError> {
        self.file.as_ref().map_or(Ok(()), |file| file.unchanged())
    }

    /// The header and `__TEXT` of a Mach-O image in memory, and its symbols. `first_offset` is the file offset of
    /// `__TEXT`: 0, except in the shared cache.
    #[must_use]
    pub fn in_memory(self, first_offset: u64, linkedit: Linkedit) -> ImageBytes {
        ImageBytes { first_offset, linkedit: Some(Arc::new(linkedit)), ..self }
    }

    /// The bytes: of the whole file, or of `__TEXT`.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// The bytes from a file offset; empty outside.
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

// ---- Facts about V8 that a walker needs: which images contain it.
//
// V8 walks its own stacks at any call by frame pointers: the garbage collector must find each value of each frame
// (V8's src/execution/frames.cc, `StackFrameIterator`). So in a call from V8's JIT code, rbp certainly points to
// the frame record of the calling function, or, in code that functions return through, to one with V8's markers.

/// Prefixes of names of executables, libraries and frameworks that contain V8.
pub const V8_IMAGES: [&str; 9] =
    ["node", "libnode.", "libv8", "chrome", "chromium", "electron", "Electron", "libcef.", "deno"];

/// Whether an image of this name contains V8.
#[must_use]
pub fn contains_v8(image: &str) -> bool {
    V8_IMAGES.iter().any(|beginning| image.starts_with(beginning))
}
