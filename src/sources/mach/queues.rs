//! The label of the dispatch queue that a thread works for.
//!
//! Input: a thread's `dispatch_qaddr`. Output: a label. libdispatch publishes the offset of the label in a
//! queue for debuggers: `dispatch_queue_offsets`, an array of 16-bit numbers (libdispatch
//! src/queue_internal.h; lldb's SystemRuntimeMacOSX reads it in the same way).

use super::memory::Memory;
use super::threads::Thread;

/// Name of the array in the exports of libdispatch.
pub(super) const OFFSETS_SYMBOL: &[u8] = b"_dispatch_queue_offsets";
/// File name of libdispatch.
pub(super) const LIBRARY: &str = "/libdispatch.dylib";

/// First version with a pointer to the label's text.
const FIRST_VERSION: u16 = 4;
const POINTER_BYTES: u16 = 8;
const LABEL_BYTES_MAX: usize = 256;

/// Offset of the label in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LabelOffset(u16);

/// Reads the offset of labels from the array at `offsets_avma`.
pub(super) fn label_offset(memory: &Memory<'_>, offsets_avma: u64) -> Option<LabelOffset> {
    // version, label, label_size
    let bytes: [u8; 6] = memory.array(offsets_avma).ok()?;
    let number = |index: usize| u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
    (number(0) >= FIRST_VERSION && number(2) == POINTER_BYTES).then_some(LabelOffset(number(1)))
}

/// The label of the queue that a thread currently works for.
pub(super) fn label(memory: &Memory<'_>, thread: &Thread, offset: LabelOffset) -> Option<String> {
    let queue = memory.word(thread.dispatch_queue()?).ok().filter(|queue| *queue != 0)?;
    let text = memory.word(queue.checked_add(offset.0.into())?).ok().filter(|text| *text != 0)?;
    memory.text(text, LABEL_BYTES_MAX).ok().filter(|label| !label.is_empty())
}
