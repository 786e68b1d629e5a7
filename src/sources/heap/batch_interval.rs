//! When the rings are read next: soon enough that none overflows, and seldom.

/// Longest interval between reads, nanoseconds: a ring of the default size holds the allocations of ten times that.
const INTERVAL_MAX_NS: u64 = 50_000_000;
/// Shortest interval, while much is written.
const INTERVAL_MIN_NS: u64 = 1_000_000;
/// Longest interval at the beginning, while a program loads its libraries and starts others.
pub(super) const FIRST_INTERVAL_NS: u64 = 10_000_000;
const BEGINNING_NS: u64 = 500_000_000;
/// A ring is read again when this fraction is filled, at the rate of the previous batch.
const RING_SHARE: u64 = 8;

/// The interval between reads of the rings.
pub(super) struct BatchInterval {
    began_ns: u64,
    /// Time of the last read, and of the one before.
    read_ns: u64,
    passed_ns: u64,
    interval_ns: u64,
    /// The shortest time in which one of the rings read since then fills up to [`RING_SHARE`].
    fills_ns: u64,
}

impl BatchInterval {
    pub(super) fn new(now_ns: u64) -> BatchInterval {
        BatchInterval {
            began_ns: now_ns,
            read_ns: now_ns,
            passed_ns: 0,
            interval_ns: INTERVAL_MAX_NS,
            fills_ns: u64::MAX,
        }
    }

    /// Nanoseconds to wait from now on, at most until `until_ns`.
    pub(super) fn wait_ns(&self, now_ns: u64, until_ns: u64) -> u64 {
        let is_new = now_ns < self.began_ns + BEGINNING_NS;
        let interval_ns = self.interval_ns.min(if is_new { FIRST_INTERVAL_NS } else { INTERVAL_MAX_NS });
        interval_ns.min(until_ns.saturating_sub(now_ns))
    }

    /// All rings are read now.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.passed_ns = now_ns.saturating_sub(self.read_ns);
        self.read_ns = now_ns;
        self.fills_ns = u64::MAX;
    }

    /// A ring of this capacity had this many bytes.
    pub(super) fn note_ring(&mut self, bytes: u64, ring_bytes: u64) {
        let fills_ns = self.passed_ns.saturating_mul(ring_bytes / RING_SHARE).checked_div(bytes);
        self.fills_ns = self.fills_ns.min(fills_ns.unwrap_or(u64::MAX));
    }

    /// All rings were read.
    pub(super) fn finish(&mut self) {
        // Slows down step by step, because allocations come in bursts.
        let slower_ns = self.interval_ns.saturating_mul(2).min(INTERVAL_MAX_NS);
        self.interval_ns = self.fills_ns.min(slower_ns).max(INTERVAL_MIN_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_fastest_ring_sets_the_interval_and_silence_doubles_it() {
        let mut interval = BatchInterval::new(0);
        assert_eq!(interval.wait_ns(0, u64::MAX), 10 * MS, "at the beginning");
        assert_eq!(interval.wait_ns(600 * MS, u64::MAX), 50 * MS);
        assert_eq!(interval.wait_ns(600 * MS, 603 * MS), 3 * MS);
        interval.begin(600 * MS);
        interval.finish();
        // An eighth of 8000 bytes in 40 ms, and of 16 bytes in less than the least interval.
        for (rings, expected) in [
            (&[(0, 8000), (1000, 8000)][..], 40 * MS),
            (&[(1000, 16), (1000, 8000)], MS),
            (&[], 2 * MS),
            (&[(0, 8000)], 4 * MS),
        ] {
            let now_ns = interval.read_ns + 40 * MS;
            interval.begin(now_ns);
            for (bytes, ring_bytes) in rings {
                interval.note_ring(*bytes, *ring_bytes);
            }
            interval.finish();
            assert_eq!(interval.wait_ns(now_ns, u64::MAX), expected, "{rings:?}");
        }
    }
}
