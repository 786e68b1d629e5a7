//! Implements the walker's trait `Code` for the images of a process. Input: code addresses. Output: bytes,
//! functions, rows.

use std::ops::Range;

use super::view::ImageView;
use crate::addr::Avma;
use crate::binary::frame_rule::{AnyRow, Body, ExidxEntry, Row};
use crate::walk::{Code, FilePlace};

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

    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        ImageView::row(self, lookup)
    }

    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        ImageView::row_in_epilogue(self, pc)
    }

    fn is_t32(&self, pc: Avma) -> Option<bool> {
        ImageView::is_t32(self, pc)
    }

    fn exidx(&self, lookup: Avma) -> Option<(Range<Avma>, ExidxEntry)> {
        ImageView::exidx(self, lookup)
    }

    fn describes_frames(&self, lookup: Avma) -> bool {
        ImageView::describes_frames(self, lookup)
    }

    fn body(&self, lookup: Avma) -> Option<Body> {
        ImageView::body(self, lookup)
    }

    fn begins_threads(&self, lookup: Avma) -> Option<bool> {
        ImageView::begins_threads(self, lookup)
    }

    fn entry(&self, pc: Avma) -> Option<Avma> {
        ImageView::entry(self, pc)
    }

    fn described_function(&self, lookup: Avma) -> Option<Range<Avma>> {
        ImageView::described_function(self, lookup)
    }

    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        ImageView::function(self, pc)
    }
}
