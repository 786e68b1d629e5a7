//! The current images of one process: code look-ups and bytes.
//!
//! A view of [`Images`](super::Images); `frames.rs` has the unwind information, `code.rs` implements the walker's
//! trait.

use super::image::Image;
use super::space::{Region, Space};
use crate::addr::{Avma, Svma};

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
