//! The images as the walker sees them.

use std::ops::Range;

use super::history::Images;
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, Row, TableSays};
use crate::walk::{Code, FilePlace};

/// The code of the known images, for the walker.
#[derive(Clone, Copy, Debug)]
pub struct ImageCode<'a>(pub &'a Images);

impl Code for ImageCode<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.0.contains(at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.0.code(at)
    }

    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        let region = self.0.current().find(at.0).filter(|region| !region.is_registered)?;
        // A file that holds no program may be memory that a JIT compiler writes to.
        self.0.images.get(region.image as usize)?.object()?;
        let mapped = Avma(region.start)..Avma(region.end);
        Some(FilePlace { image: region.image, file_offset: region.file_offset, mapped })
    }

    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        self.0.row(lookup)
    }

    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        self.0.row_in_epilogue(pc)
    }

    fn is_t32(&self, pc: Avma) -> Option<bool> {
        self.0.is_t32(pc)
    }

    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, TableSays)> {
        self.0.exidx(lookup)
    }

    fn describes_frames(&self, lookup: Avma) -> bool {
        self.0.describes_frames(lookup)
    }

    fn body(&self, lookup: Avma) -> Option<Body> {
        self.0.body(lookup)
    }

    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        self.0.begins_threads(lookup)
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        self.0.entry(pc)
    }

    fn described_function(&self, lookup: Avma) -> Option<Range<Avma>> {
        self.0.described_function(lookup)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.0.function(pc)
    }
}
