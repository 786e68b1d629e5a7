//! One executable or library: its bytes and headers, and tables that are read on first use. Input: a file. Output:
//! functions, rows, the reason why it cannot be used.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use crate::addr::Svma;
use crate::binary::cfi::Cfi;
use crate::binary::elf::functions::Functions as ElfFunctions;
use crate::binary::elf::functions::{self, Definition};
use crate::binary::exidx::{Entry, Exidx};
use crate::binary::frame_rule::ExidxEntry;
use crate::binary::macho::Functions;
use crate::binary::macho::unwind::Unwind;
use crate::binary::object::Object;
use crate::binary::pe::unwind::{Functions as PeFunctions, StackStarts};
use crate::binary::{FormatError, ImageBytes, Mapping, MappingKind, OpenError};

/// The name of images that JIT compilers registered. Their path is the kernel's name of the memory.
const REGISTERED_NAME: &str = "[jit]";

/// The reason why addresses of an image cannot be named.
#[derive(Clone, Debug)]
pub enum ImageError {
    /// The bytes are unavailable: `deleted from disk since it was loaded`.
    Open(OpenError),
    /// The format is unknown: `neither ELF, Mach-O nor PE`.
    Format(FormatError),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::Open(error) => error.fmt(f),
            ImageError::Format(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ImageError::Open(error) => Some(error),
            ImageError::Format(error) => Some(error),
        }
    }
}

/// An executable or library that was loaded.
#[derive(Clone, Debug)]
pub struct Image {
    /// Path in the target's view, or the kernel's name in brackets.
    pub path: String,
    /// File name, or the kernel's name in brackets: `libc.so.6`, `[vdso]`.
    pub name: String,
    /// The symbolic link to this file that the program was started by.
    pub started_as: Option<String>,
    /// File, vDSO or registered code; anonymous memory has no image.
    pub kind: MappingKind,
    /// The file's bytes, or the reason why there are none.
    pub bytes: Result<ImageBytes, OpenError>,
    /// GNU build id or Mach-O UUID, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// Lowest stated address of the image; of a Mach-O image, the start of `__TEXT`.
    pub base_svma: Svma,
    pub(super) identity: (u64, u64),
    object: Result<Object, ImageError>,
    /// Read when a stack first leads to this image.
    pub(super) cfi: OnceLock<Option<Cfi>>,
    pub(super) exidx: OnceLock<Option<Exidx>>,
    pub(super) unwind: OnceLock<Option<Unwind>>,
    /// Read on first request: most images of a process are never on top of a stack.
    functions: OnceLock<Functions>,
    elf_functions: OnceLock<ElfFunctions>,
    /// Searched if a process has JIT code.
    jit_descriptor: OnceLock<Option<Svma>>,
    /// Functions of Windows where stacks begin.
    pe_stack_starts: OnceLock<StackStarts>,
}

/// The symbol of GDB's JIT interface (`gdb_jit.rs`), and its size in 64-bit programs.
const JIT_DESCRIPTOR: (&str, u64) = ("__jit_debug_descriptor", 24);

impl Image {
    /// Reads the headers of the file behind a mapping.
    #[must_use]
    pub fn open(mapping: &Mapping, bytes: Result<ImageBytes, OpenError>) -> Image {
        let object = match &bytes {
            Ok(bytes) => Object::parse(bytes.bytes()).map_err(ImageError::Format),
            Err(why) => Err(ImageError::Open(why.clone())),
        };
        let name = match mapping.kind {
            MappingKind::File => mapping.path.rsplit('/').next().unwrap_or_default(),
            MappingKind::Vdso | MappingKind::Anonymous => mapping.path.as_str(),
            MappingKind::GdbJit => REGISTERED_NAME,
        };
        Image {
            path: mapping.path.clone(),
            name: name.to_string(),
            started_as: None,
            kind: mapping.kind.clone(),
            build_id: object.as_ref().ok().and_then(Object::build_id).map(<[u8]>::to_vec),
            base_svma: object.as_ref().map(Object::base_svma).unwrap_or_default(),
            identity: mapping.identity,
            cfi: OnceLock::new(),
            exidx: OnceLock::new(),
            unwind: OnceLock::new(),
            functions: OnceLock::new(),
            elf_functions: OnceLock::new(),
            jit_descriptor: OnceLock::new(),
            pe_stack_starts: OnceLock::new(),
            bytes,
            object,
        }
    }

    /// The path that users know: the link that the program was started by, or else the file's path.
    #[must_use]
    pub fn shown_path(&self) -> &str {
        self.started_as.as_deref().unwrap_or(&self.path)
    }

    /// The name of the module in frames: `redis-server`, although `/usr/bin/redis-server` is a link to
    /// `redis-check-rdb`.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        let started_as = self.started_as.as_deref();
        started_as.map_or(&self.name, |path| path.rsplit('/').next().unwrap_or_default())
    }

    /// The bounds of the function at a stated address by the file's list of functions (Mach-O), or else by its
    /// unwind information; a split-off part of a function has its own. `None` if neither has it. The tables of
    /// 32-bit Arm merge neighbours with equal content: several functions may be one here, but not all that the
    /// tables lack.
    #[must_use]
    pub fn described_function(&self, svma: Svma) -> Option<Range<Svma>> {
        if let Some(macho) = self.object()?.macho() {
            let unwind = || self.unwind.get_or_init(|| Unwind::find(macho));
            let described = || unwind().as_ref()?.function(self.bytes.as_ref().ok()?, svma);
            return self.function(svma).or_else(described);
        }
        if let Some(functions) = self.pe_functions() {
            return functions.function(svma);
        }
        let described = self.last_function_of_cfi(svma).or_else(|| {
            let entry = self.exidx_entry(svma)?;
            (entry.said != ExidxEntry::CannotUnwind).then_some(entry.function)
        });
        described.filter(|function| function.contains(&svma))
    }

    /// The bounds, by unwind information, of the last function of an ELF or PE image that begins at or before a
    /// stated address. It may end before the address.
    #[must_use]
    pub fn last_described_function(&self, svma: Svma) -> Option<Range<Svma>> {
        if let Some(functions) = self.pe_functions() {
            return functions.last_function(svma);
        }
        self.last_function_of_cfi(svma).or_else(|| Some(self.exidx_entry(svma)?.function))
    }

    fn last_function_of_cfi(&self, svma: Svma) -> Option<Range<Svma>> {
        let bytes = self.bytes.as_ref().ok()?.bytes();
        self.cfi.get_or_init(|| Cfi::find(bytes)).as_ref()?.last_function(bytes, svma)
    }

    /// The entry at a stated address in the tables of 32-bit Arm's exception handling ABI.
    pub(super) fn exidx_entry(&self, svma: Svma) -> Option<Entry> {
        let bytes = self.bytes.as_ref().ok()?.bytes();
        self.exidx.get_or_init(|| Exidx::find(bytes)).as_ref()?.entry(bytes, svma)
    }

    /// The bounds of the function at a stated address, if the file lists its functions.
    pub(super) fn function(&self, svma: Svma) -> Option<Range<Svma>> {
        let bytes = self.bytes.as_ref().ok()?;
        match self.object()?.macho() {
            Some(macho) => self.functions.get_or_init(|| Functions::read(macho, bytes)).at(svma),
            None if self.pe_functions().is_some() => self.described_function(svma),
            None => {
                let bytes = bytes.bytes();
                self.elf_functions.get_or_init(|| ElfFunctions::read(bytes)).at(svma, bytes)
            }
        }
    }

    /// The function table of a PE image for x86_64, if it has one.
    pub(super) fn pe_functions(&self) -> Option<PeFunctions<'_>> {
        PeFunctions::find(self.object()?.pe()?, self.bytes.as_ref().ok()?.bytes())
    }

    /// Functions of a PE image where stacks of Windows begin.
    pub(super) fn pe_stack_starts(&self) -> &StackStarts {
        let find = || self.pe_functions().map(|functions| functions.stack_starts(&self.name));
        self.pe_stack_starts.get_or_init(|| find().unwrap_or_default())
    }

    /// Whether code at a stated address of 32-bit Arm is T32, if a symbol shows it.
    pub(super) fn is_t32(&self, svma: Svma) -> Option<bool> {
        let bytes = self.bytes.as_ref().ok()?;
        self.elf_functions.get_or_init(|| ElfFunctions::read(bytes.bytes())).is_t32(svma)
    }

    /// Stated address of the image's `__jit_debug_descriptor`, if it has one.
    pub(super) fn jit_descriptor(&self) -> Option<Svma> {
        let (name, size) = JIT_DESCRIPTOR;
        let find = || functions::of_size(self.bytes.as_ref().ok()?.bytes(), name, size);
        *self.jit_descriptor.get_or_init(find)
    }

    /// The data of a dynamic linker of glibc.
    pub(super) fn loader_globals(&self) -> Option<Definition> {
        let is_loader = self.name.starts_with("ld-") || self.name.starts_with("ld.so");
        let bytes = self.bytes.as_ref().ok().filter(|_| is_loader)?;
        functions::exported(bytes.bytes(), "_rtld_global")
    }

    /// The summary of the image's headers, if its format is supported.
    #[must_use]
    pub fn object(&self) -> Option<&Object> {
        self.object.as_ref().ok()
    }

    /// Why addresses of this image cannot be named; `None` if they can.
    #[must_use]
    pub fn problem(&self) -> Option<&ImageError> {
        self.object.as_ref().err()
    }

    /// The reason why the image's bytes differ from those that were loaded, if they do. Facts read before may then
    /// be wrong, except the headers. Costs a system call.
    #[must_use]
    pub fn overwritten(&self) -> Option<OpenError> {
        self.bytes.as_ref().ok()?.unchanged().err()
    }

    /// Stated address of the program's first instruction (ELF `e_entry`, Mach-O `LC_MAIN`).
    #[must_use]
    pub fn entry_svma(&self) -> Option<Svma> {
        self.object().and_then(Object::entry)
    }
}
