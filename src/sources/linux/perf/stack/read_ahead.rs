//! Samples read from rings while a batch is walked. They wait in this process, so that rings have room, and count
//! like rings that fill up: less of each stack is copied.
//!
//! Input: sizes of stacks read. Output: whether more may be read, and the share of the limit in use.

/// Fill level at which rings are read ahead.
const READ_PER_MILLE: u32 = 400;
/// Maximum number of waiting bytes.
const BYTES_MAX: usize = 16 << 20;
/// Size of a sample without its stack.
const SAMPLE_BYTES: usize = 512;

/// Samples read but not yet processed.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    stack_bytes: usize,
    tail_bytes: usize,
}

impl ReadAhead {
    /// Adds a sample with this many bytes of a stack.
    pub(super) fn add(&mut self, stack_bytes: usize) {
        self.stack_bytes += stack_bytes + SAMPLE_BYTES;
    }

    /// Adds this many bytes of stack tails.
    pub(super) fn add_tails(&mut self, bytes: usize) {
        self.tail_bytes += bytes;
    }

    /// Called when all have been processed.
    pub(super) fn clear(&mut self) {
        *self = ReadAhead::default();
    }

    /// Whether to read rings this full.
    pub(super) fn reads(&self, fill_per_mille: u32) -> bool {
        fill_per_mille >= READ_PER_MILLE && self.stack_bytes.saturating_add(self.tail_bytes) < BYTES_MAX
    }

    /// Waiting bytes, per mille of the limit: only those in records, which can be made smaller.
    pub(super) fn stacks_per_mille(&self) -> u32 {
        (self.stack_bytes.saturating_mul(1000) / BYTES_MAX).min(1000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ring::pressure::Pressure;
    use super::super::backlog::Backlog;
    use super::*;

    const RING_BYTES: u32 = 4 << 20;

    /// A busy CPU, and long batches with this many ticks per sample. Returns the number of lost samples, and the
    /// maximum number of waiting bytes outside the ring; `polls`: whether the ring is polled at each tick.
    fn long_batches(ticks_of_sample: u32, polls: bool) -> (u32, usize) {
        let (mut backlog, mut ahead) = (Backlog::default(), ReadAhead::default());
        let (mut lost, mut most_bytes) = (0, 0);
        let (mut in_ring, mut samples_ahead, mut batch) = (0_u32, 0_u32, 0_u32);
        for tick in 0..3_000 {
            let stack_bytes = backlog.limit(60 << 10);
            let fits = RING_BYTES / (stack_bytes + 400);
            lost += u32::from(in_ring >= fits);
            in_ring = fits.min(in_ring + 1);
            let fill_per_mille = in_ring * 1000 / fits;
            // The program starts: each of its first samples takes long. Later the walks catch up.
            if tick >= 1_200 {
                batch = batch.saturating_sub(20);
            } else if tick % ticks_of_sample == 0 {
                batch = batch.saturating_sub(1);
            }
            let ends = batch == 0;
            if ends || polls && ahead.reads(fill_per_mille) {
                (0..in_ring).for_each(|_| ahead.add(stack_bytes as usize));
                samples_ahead += std::mem::take(&mut in_ring);
                most_bytes = most_bytes.max(ahead.stack_bytes);
                if ends {
                    ahead.clear();
                    batch = std::mem::take(&mut samples_ahead);
                }
                let pressure = Pressure { fill_per_mille, lost: false };
                backlog.read(pressure.with(ahead.stacks_per_mille()), stack_bytes);
            }
        }
        (lost, most_bytes)
    }

    #[test]
    fn a_long_batch_loses_no_samples_and_uses_bounded_memory() {
        for ticks_of_sample in [2, 4, 8, 16] {
            let (lost, most_bytes) = long_batches(ticks_of_sample, true);
            assert_eq!(lost, 0, "{ticks_of_sample} ticks a sample");
            assert!(most_bytes <= BYTES_MAX + RING_BYTES as usize, "{most_bytes}");
            let (lost, _) = long_batches(ticks_of_sample, false);
            assert!(lost > 0, "{ticks_of_sample} ticks a sample without reading ahead");
        }
    }

    #[test]
    fn waiting_samples_are_bounded() {
        let mut ahead = ReadAhead::default();
        assert!(ahead.reads(READ_PER_MILLE) && !ahead.reads(READ_PER_MILLE - 1));
        ahead.add(0);
        ahead.add_tails(BYTES_MAX - SAMPLE_BYTES - 1);
        assert!(ahead.reads(READ_PER_MILLE));
        assert_eq!(ahead.stacks_per_mille(), 0, "tails do not give way");
        ahead.add(1);
        assert!(!ahead.reads(1000));
        ahead.clear();
        assert!(ahead.reads(1000));
    }
}
