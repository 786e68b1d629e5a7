//! The walker: registers + copied stack bytes in, code addresses and why it ended out.
//!
//! Pure: no OS calls, no clock, no allocation except growth of the caller's buffer.
//! `fp.rs` follows the frame records; `x86_64.rs` and `aarch64.rs` mirror each other
//! and know what each architecture keeps where; `root.rs` knows how the outermost
//! frame of a thread is recognised. Unwinding by CFI plugs in beside `fp.rs`.

pub mod aarch64;
pub mod fp;
pub mod root;
pub mod x86_64;

use crate::addr::Avma;

/// Bytes copied from a thread's stack, from its stack pointer upward.
#[derive(Clone, Copy, Debug)]
pub struct StackBytes<'a> {
    /// Address of the first byte (the stack pointer).
    pub base: Avma,
    /// The copied window.
    pub bytes: &'a [u8],
}

impl StackBytes<'_> {
    /// The little-endian word at `at`, or `None` outside the window.
    #[must_use]
    #[inline]
    pub fn word(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.0.checked_sub(self.base.0)?).ok()?;
        let bytes = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The first address after the window.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.base + self.bytes.len() as u64
    }
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// At the thread's outermost frame: the stack is complete.
    Root,
    /// The next frame lies above the copied window.
    WindowRanOut,
    /// A frame record that cannot be one (misaligned, not above the last, null return address).
    BadFrame,
    /// `--max-depth` frames were found.
    DepthLimit,
}

impl Ended {
    /// Words for the summary: `14 window ran out`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Ended::Root => "complete",
            Ended::WindowRanOut => "window ran out",
            Ended::BadFrame => "bad frame",
            Ended::DepthLimit => "depth limit",
        }
    }
}
