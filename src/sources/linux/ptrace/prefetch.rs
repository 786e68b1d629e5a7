//! Reads prefetched ranges of a stopped thread's stack. Input: the addresses of ranges. Output: the readable
//! bytes.

use libc::pid_t;

use super::sys;
use crate::sources::{PREFETCH_RANGE_BYTES, PrefetchedWords};

const PAGE_BYTES: u64 = 4096;

/// Reads ranges of the memory of a thread into the buffers of an earlier read.
pub(super) fn read(tid: pid_t, starts: &[u64], into: &mut PrefetchedWords) {
    into.clear();
    let ranges = ranges(starts);
    let mut left = &ranges[..];
    let mut bytes = Vec::new();
    while !left.is_empty() {
        // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
        if sys::read_ranges(tid, left, &mut bytes).is_err() {
            bytes.clear();
        }
        let mut rest = &bytes[..];
        let mut read = 0;
        for (start, len) in left.iter().take(sys::RANGES_MAX) {
            let Some((range, above)) = rest.split_at_checked(*len) else { break };
            into.push(*start, range);
            (rest, read) = (above, read + 1);
        }
        // Skips the range that could not be read.
        let failed = usize::from(read < left.len().min(sys::RANGES_MAX));
        left = left.get(read + failed..).unwrap_or_default();
    }
}

/// Merges ranges: those in one page are read at once, with the bytes between them.
fn ranges(starts: &[u64]) -> Vec<(u64, usize)> {
    let mut ranges: Vec<(u64, usize)> = Vec::new();
    for start in starts {
        let end = start.saturating_add(PREFETCH_RANGE_BYTES as u64);
        match ranges.last_mut() {
            Some((first, len)) if (end - 1) / PAGE_BYTES == *first / PAGE_BYTES => {
                *len = (*len).max((end - *first) as usize);
            }
            _ => ranges.push((*start, PREFETCH_RANGE_BYTES)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_in_one_page_are_merged() {
        let starts = [0x1000, 0x1020, 0x1f00, 0x1fc8, 0x3000, 0x4100];
        let expected = [(0x1000, 0xf40), (0x1fc8, 64), (0x3000, 64), (0x4100, 64)];
        assert_eq!(ranges(&starts), expected);
    }

    #[test]
    fn an_unreadable_range_does_not_affect_the_others() {
        let bytes: Vec<u8> = (0..=255).cycle().take(8 * 4096).collect();
        let start = bytes.as_ptr() as u64;
        let mut prefetched = PrefetchedWords::default();
        // Nothing is mapped in the first page, and the last address is invalid.
        let wanted = [0x40, start, start + 0x3001, start + 0x7f00, 0xffff_ffff_ffff_ffc0];
        read(std::process::id().cast_signed(), &wanted, &mut prefetched);
        for at in &wanted[1..4] {
            let offset = (at - start) as usize;
            let word = u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
            assert_eq!(prefetched.word(*at, 8), Some(word), "{offset:#x}");
        }
        assert_eq!((prefetched.word(0x40, 8), prefetched.word(start + 0x2000, 8)), (None, None));
    }
}
