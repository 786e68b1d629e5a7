//! The images as the walker sees them.

use std::ops::Range;

use super::process_images::ProcessImages;
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, Row, TableSays};
use crate::walk::{Code, FilePlace};

impl Code for ProcessImages<'_> {
    fn is_code(&self, at: Avma) -> bool {
        ProcessImages::contains(self, at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        ProcessImages::code(self, at)
    }

    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        let region = self.space.find(at.0).filter(|region| !region.is_registered)?;
        // A file that holds no program may be memory that a JIT compiler writes to.
        self.images.get(region.image as usize)?.object()?;
        let mapped = Avma(region.start)..Avma(region.end);
        Some(FilePlace { image: region.image, file_offset: region.file_offset, mapped })
    }

    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        ProcessImages::row(self, lookup)
    }

    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        ProcessImages::row_in_epilogue(self, pc)
    }

    fn is_t32(&self, pc: Avma) -> Option<bool> {
        ProcessImages::is_t32(self, pc)
    }

    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, TableSays)> {
        ProcessImages::exidx(self, lookup)
    }

    fn describes_frames(&self, lookup: Avma) -> bool {
        ProcessImages::describes_frames(self, lookup)
    }

    fn body(&self, lookup: Avma) -> Option<Body> {
        ProcessImages::body(self, lookup)
    }

    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        ProcessImages::begins_threads(self, lookup)
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        ProcessImages::entry(self, pc)
    }

    fn described_function(&self, lookup: Avma) -> Option<Range<Avma>> {
        ProcessImages::described_function(self, lookup)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        ProcessImages::function(self, pc)
    }
}
