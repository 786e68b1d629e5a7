//! Boxes with a buffer, for reuse: samples and records are handed on in their boxes.

/// Boxes with a long buffer that are kept, and boxes in all.
const LONG_MAX: usize = 64;
const BOXES_MAX: usize = 4096;
const LONG_BYTES: usize = 4096;

/// Boxes for reuse.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "they are handed on in their boxes")]
pub(super) struct BoxPool<T>(Vec<Box<T>>);

impl<T> BoxPool<T> {
    pub(super) const fn new() -> BoxPool<T> {
        BoxPool(Vec::new())
    }

    pub(super) fn take(&mut self) -> Option<Box<T>> {
        self.0.pop()
    }

    /// Takes one back whose buffer has this capacity, unless there are enough.
    pub(super) fn put(&mut self, item: Box<T>, capacity_bytes: usize) {
        let is_short = capacity_bytes <= LONG_BYTES;
        if self.0.len() < if is_short { BOXES_MAX } else { LONG_MAX } {
            self.0.push(item);
        }
    }
}
