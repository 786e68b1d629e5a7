//! The current images of one process, as the walker asks them (`ImageView`, which implements `Code`). Input: code
//! addresses. Output: bytes, functions, rows; tables are read once per image and kept.

use std::ops::Range;

use super::image::Image;
use super::space::{Region, Space};
use crate::addr::{Avma, Svma};
use crate::binary::cfi::Cfi;
use crate::binary::exidx::Exidx;
use crate::binary::frame_rule::{AnyRow, Body, COLUMNS, Column, Columns, ExidxEntry, FrameRule, Row};
use crate::binary::macho::unwind::Unwind;
use crate::binary::object::Object;
use crate::binary::pe::unwind;
use crate::walk::{Code, FilePlace};

/// Facts about frames come from unwind information, symbols and headers, whose tables are read once per image and kept.
/// Bounds of functions are clipped to the mapping.
impl Code for ImageView<'_> {
    fn is_code(&self, at: Avma) -> bool {
        ImageView::contains(self, at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        ImageView::code(self, at)
    }

    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        let region = self.space.find(at.0).filter(|region| !region.is_registered)?;
        // A file that is not an executable may be memory that a JIT compiler writes to.
        self.images.get(region.image as usize)?.object()?;
        let mapped = Avma(region.start)..Avma(region.end);
        Some(FilePlace { image: region.image, file_offset: region.file_offset, mapped })
    }

    fn row(&self, pc: Avma) -> Option<AnyRow> {
        let (image, svma) = self.at(pc)?;
        if let Some(functions) = image.pe_functions() {
            return Some(image.pe_stack_starts().row(svma, functions.row(svma)?).into());
        }
        let bytes = image.bytes.as_ref().ok()?.bytes();
        let cfi = image.cfi.get_or_init(|| Cfi::find(bytes));
        cfi.as_ref()?.any_row(bytes, svma)
    }

    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        let (image, svma) = self.at(pc)?;
        unwind::epilogue_row(image.object()?.pe()?, &image.pe_functions()?, svma)
    }

    fn is_t32(&self, pc: Avma) -> Option<bool> {
        let (image, svma) = self.at(pc)?;
        image.is_t32(svma)
    }

    fn exidx(&self, pc: Avma) -> Option<(Range<Avma>, ExidxEntry)> {
        let region = self.space.find(pc.0)?;
        let (image, svma) = self.at(pc)?;
        let entry = image.exidx_entry(svma)?;
        let start = pc.0.checked_sub(svma.0.checked_sub(entry.function.start.0)?)?.max(region.start);
        let end = pc.0.checked_add(entry.function.end.0.checked_sub(svma.0)?)?.min(region.end);
        Some((Avma(start)..Avma(end), entry.said))
    }

    fn describes_frames(&self, pc: Avma) -> bool {
        let Some((image, _)) = self.at(pc) else { return false };
        if let Some(macho) = image.object().and_then(Object::macho) {
            return image.unwind.get_or_init(|| Unwind::find(macho)).is_some();
        }
        let Ok(bytes) = &image.bytes else { return false };
        if image.pe_functions().is_some() {
            return true;
        }
        let bytes = bytes.bytes();
        image.cfi.get_or_init(|| Cfi::find(bytes)).is_some()
            || image.exidx.get_or_init(|| Exidx::find(bytes)).is_some()
    }

    fn body(&self, pc: Avma) -> Option<Body> {
        let (image, svma) = self.at(pc)?;
        let macho = image.object()?.macho()?;
        let unwind = image.unwind.get_or_init(|| Unwind::find(macho));
        unwind.as_ref()?.body(macho, image.bytes.as_ref().ok()?, svma)
    }

    fn begins_threads(&self, pc: Avma) -> Option<bool> {
        let (image, _) = self.at(pc)?;
        Some(image.object()?.macho()?.begins_threads(&image.name))
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        let region = self.space.find(pc.0)?;
        let object = self.images.get(region.image as usize)?.object()?;
        let offset = region.file_offset.checked_add(pc.0 - region.start)?;
        let bias = pc - Avma(object.svma_of(offset)?.0);
        Some(Avma(object.entry()?.0.wrapping_add(bias)))
    }

    fn described_function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.bounds(pc, Image::described_function)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.bounds(pc, Image::function)
    }
}

impl<'a> ImageView<'a> {
    /// The unwind rule at a code address in the packed form; `None` if it is unknown or does not fit that form.
    #[must_use]
    pub fn frame_rule(&self, pc: Avma) -> Option<FrameRule> {
        let by_table = || self.row(pc).and_then(<[Column; COLUMNS]>::row);
        self.row_in_epilogue(pc).or_else(by_table)?.ordinary()
    }

    /// Whether an address is in an image that contains V8. Code without rows there is V8's embedded builtins,
    /// which its compiler generated at build time.
    #[must_use]
    pub fn is_built_into_v8(&self, at: Avma) -> bool {
        self.at(at).is_some_and(|(image, _)| crate::binary::mapping::contains_v8(&image.name))
    }

    fn at(&self, pc: Avma) -> Option<(&'a Image, Svma)> {
        let region = self.space.find(pc.0)?;
        let image = self.images.get(region.image as usize)?;
        let offset = region.file_offset.checked_add(pc.0 - region.start)?;
        Some((image, image.object()?.svma_of(offset)?))
    }

    fn bounds(&self, pc: Avma, of: impl FnOnce(&Image, Svma) -> Option<Range<Svma>>) -> Option<Range<Avma>> {
        let region = self.space.find(pc.0)?;
        let image = self.images.get(region.image as usize)?;
        let offset = region.file_offset.checked_add(pc.0 - region.start)?;
        let svma = image.object()?.svma_of(offset)?;
        let function = of(image, svma)?;
        let start = pc.0.checked_sub(svma - function.start)?.max(region.start);
        let end = pc.0.checked_add(function.end - svma)?.min(region.end);
        Some(Avma(start)..Avma(end))
    }
}

// ---- The current images of one process: code look-ups and bytes.
// A view of [`Images`](super::Images).

/// The images of one process in its current address space.
#[derive(Clone, Copy, Debug)]
pub struct ImageView<'a> {
    /// The images of all processes.
    pub(super) images: &'a [Image],
    /// The current space.
    pub(super) space: &'a Space,
    /// Its number.
    pub(super) number: u32,
}

impl<'a> ImageView<'a> {
    /// The number of the current address space.
    #[must_use]
    #[inline]
    pub fn space(&self) -> u32 {
        self.number
    }

    /// Whether an address is in executable memory, as last updated.
    #[must_use]
    #[inline]
    pub fn contains(&self, avma: Avma) -> bool {
        self.space.find(avma.0).is_some()
    }

    /// The file's bytes from a code address to the end of its mapping (or of the file); `None` if they are
    /// unknown.
    #[must_use]
    pub fn code(&self, pc: Avma) -> Option<&'a [u8]> {
        let region = self.space.find(pc.0)?;
        // Registered code is in memory only.
        let image = self.images.get(region.image as usize).filter(|_| !region.is_registered)?;
        let bytes = image.bytes.as_ref().ok()?;
        let bytes = bytes.from_offset(region.file_offset.checked_add(pc.0 - region.start)?);
        let length = usize::try_from(region.end - pc.0).ok()?;
        bytes.get(..length.min(bytes.len())).filter(|bytes| !bytes.is_empty())
    }

    /// Addresses of the JIT descriptors (GDB's JIT interface) in the process.
    pub(crate) fn jit_descriptors(&self) -> Vec<Avma> {
        let descriptor = |region: &Region| {
            let image = self.images.get(region.image as usize)?;
            place(image, region, image.jit_descriptor()?)
        };
        let mut found: Vec<Avma> = self.space.regions.iter().filter_map(descriptor).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Address and size of the data of glibc's dynamic linker (`_rtld_global`) in the process.
    pub(super) fn loader_globals(&self) -> Option<(Avma, u64)> {
        self.space.regions.iter().find_map(|region| {
            let image = self.images.get(region.image as usize)?;
            let globals = image.loader_globals()?;
            Some((place(image, region, globals.svma)?, globals.bytes))
        })
    }
}

/// A stated address of an image in the process, by the code in a region of it.
fn place(image: &Image, region: &Region, svma: Svma) -> Option<Avma> {
    let end = region.file_offset.checked_add(region.end - region.start)?;
    let (offset, code) = image.object()?.code_in(&(region.file_offset..end))?;
    let bias = (region.start + (offset - region.file_offset)).wrapping_sub(code.0);
    Some(Avma(svma.0.wrapping_add(bias)))
}
