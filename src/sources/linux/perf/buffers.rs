//! Buffers reused from batch to batch. A backlog of a delayed reader makes them many times larger than batches
//! need; the end of each round frees what none of its batches used.
//!
//! A round is a number of batches, not a time: a peak once per round is kept, and batches that differ by less than
//! the slack cause no reallocation.

use crate::sources::Capture;

/// Batches per round: 2 to 15 s.
const ROUND_BATCHES: u32 = 128;
/// Buffers larger than this many times the peak of a round shrink. Growth alone doubles.
const SLACK: usize = 2;
/// Maximum total size of spare buffers in a pool: a backlog allocates and frees more.
const SPARE_BYTES_MAX: usize = 8 << 20;
/// Minimum capacity of buffers that shrink.
const ELEMENTS_MIN: usize = 16;

/// Peak use of the batches in a round.
#[derive(Clone, Copy, Debug)]
struct Peak(usize);

impl Peak {
    /// Number of elements that a buffer of this capacity keeps; `None` for all.
    fn kept(self, held: usize) -> Option<usize> {
        let peak = self.0.max(ELEMENTS_MIN);
        (held / SLACK > peak).then_some(peak + peak / 2)
    }

    /// Shrinks a buffer; returns the number of freed bytes.
    fn shrink<T>(self, buffer: &mut Vec<T>) -> usize {
        let before = buffer.capacity();
        if let Some(kept) = self.kept(before) {
            buffer.shrink_to(kept);
        }
        (before - buffer.capacity()) * size_of::<T>()
    }
}

/// Buffer use of the batches in a round so far.
#[derive(Debug, Default)]
pub(super) struct Usage {
    batches: u32,
    peak: usize,
}

impl Usage {
    /// Counts a batch that used this many elements; returns the peak at the end of a round.
    fn end_batch(&mut self, used: usize) -> Option<Peak> {
        self.peak = self.peak.max(used);
        self.batches += 1;
        (self.batches >= ROUND_BATCHES).then(|| Peak(std::mem::take(self).peak))
    }

    /// Counts a batch that used this many elements of `buffer`, and shrinks it if a round shows that it may be
    /// smaller. Returns the number of freed bytes.
    pub(super) fn shrink<T>(&mut self, buffer: &mut Vec<T>, used: usize) -> usize {
        self.end_batch(used).map_or(0, |peak| peak.shrink(buffer))
    }
}

/// Elements of a [`Pool`].
pub(crate) trait Buffer {
    /// Its large part.
    fn bytes(&mut self) -> &mut Vec<u8>;
}

impl Buffer for Vec<u8> {
    fn bytes(&mut self) -> &mut Vec<u8> {
        self
    }
}

impl Buffer for Box<Capture> {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.stack
    }
}

/// Spare buffers for later batches: as many, and as long, as those of the last round needed.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    spare: Vec<T>,
    /// Total capacity, and bytes freed in this batch.
    held: usize,
    freed: usize,
    /// This batch: number of buffers taken, and length of the longest.
    taken: usize,
    longest: usize,
    count: Usage,
    bytes: Usage,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        let (count, bytes) = (Usage::default(), Usage::default());
        Pool { spare: Vec::new(), held: 0, freed: 0, taken: 0, longest: 0, count, bytes }
    }
}

impl<T: Buffer> Pool<T> {
    /// Takes a spare buffer; `None` if the caller has to create one.
    pub(super) fn take(&mut self) -> Option<T> {
        self.taken += 1;
        let mut taken = self.spare.pop()?;
        self.held -= taken.bytes().capacity();
        Some(taken)
    }

    /// Takes the smallest spare buffer of at least this capacity, or else the largest.
    pub(super) fn take_of(&mut self, bytes: usize) -> Option<T> {
        let key = |buffer: &mut T| {
            let capacity = buffer.bytes().capacity();
            if capacity >= bytes { (0, capacity) } else { (1, usize::MAX - capacity) }
        };
        let best = (0..self.spare.len()).min_by_key(|at| key(&mut self.spare[*at]));
        if let Some(best) = best {
            let last = self.spare.len() - 1;
            self.spare.swap(best, last);
        }
        self.take()
    }

    /// Takes a buffer back and clears it.
    pub(super) fn give_back(&mut self, mut buffer: T) {
        self.longest = self.longest.max(buffer.bytes().len());
        buffer.bytes().clear();
        let bytes = buffer.bytes().capacity();
        if self.held + bytes > SPARE_BYTES_MAX {
            self.freed += bytes;
            return;
        }
        self.held += bytes;
        self.spare.push(buffer);
    }

    /// Ends a batch after its buffers are back; returns the number of freed bytes.
    pub(super) fn end_batch(&mut self) -> usize {
        let mut freed = 0;
        let freed_before = std::mem::take(&mut self.freed);
        if let Some(peak) = self.count.end_batch(std::mem::take(&mut self.taken))
            && let Some(kept) = peak.kept(self.spare.len())
        {
            // The first ones are unused for longest.
            let unused = self.spare.drain(..self.spare.len() - kept);
            freed += unused.map(|mut buffer| buffer.bytes().capacity()).sum::<usize>();
            self.spare.shrink_to(kept);
        }
        if let Some(peak) = self.bytes.end_batch(std::mem::take(&mut self.longest)) {
            freed += self.spare.iter_mut().map(|buffer| peak.shrink(buffer.bytes())).sum::<usize>();
        }
        self.held -= freed;
        freed + freed_before
    }
}

impl Pool<Box<Capture>> {
    /// A buffer for a sample, from the pool or new.
    pub(super) fn capture(&mut self) -> Box<Capture> {
        self.take().unwrap_or_else(|| Box::new(Capture::with_capacity(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Runs rounds of batches that use up to `most` buffers of up to `bytes` each, and one batch that uses all;
    /// returns the number of freed bytes.
    fn run(pool: &mut Pool<Vec<u8>>, rounds: u32, most: usize, bytes: usize) -> usize {
        let mut random = Rng::new(7);
        let mut freed = 0;
        for batch in 0..rounds * ROUND_BATCHES {
            let all = batch % ROUND_BATCHES == 0;
            let count = if all { most } else { random.within(1, most as u64) as usize };
            let mut taken: Vec<Vec<u8>> = (0..count).map(|_| pool.take().unwrap_or_default()).collect();
            for buffer in &mut taken {
                buffer.resize(if all { bytes } else { random.within(1, bytes as u64) as usize }, 1);
            }
            taken.into_iter().for_each(|buffer| pool.give_back(buffer));
            freed += pool.end_batch();
        }
        freed
    }

    fn held(pool: &Pool<Vec<u8>>) -> (usize, usize) {
        (pool.spare.len(), pool.spare.iter().map(Vec::capacity).max().unwrap_or(0))
    }

    #[test]
    fn after_a_backlog_a_pool_shrinks_to_ordinary_batches() {
        let mut pool = Pool::default();
        run(&mut pool, 1, 20, 4096);
        let ordinary = held(&pool);
        run(&mut pool, 1, 100, 65_536);
        assert_eq!(held(&pool).0, 100, "kept while it is needed");
        let freed = run(&mut pool, 2, 20, 4096);
        let (count, capacity) = held(&pool);
        assert!(count <= SLACK * ordinary.0 && capacity <= SLACK * 4096, "{count} of {capacity} bytes");
        assert!(freed > 4 << 20, "{freed}");
        assert_eq!(run(&mut pool, 2, 20, 4096), 0, "nothing more to free");
    }

    #[test]
    fn a_buffer_that_need_not_grow_is_preferred() {
        let mut pool = Pool::default();
        [4096, 100, 1000, 9000].into_iter().for_each(|bytes| pool.give_back(Vec::<u8>::with_capacity(bytes)));
        let taken =
            [900, 900, 20_000, 1, 1].map(|bytes| pool.take_of(bytes).map_or(0, |buffer| buffer.capacity()));
        assert_eq!((taken, pool.held), ([1000, 4096, 9000, 100, 0], 0));
    }

    #[test]
    fn spare_buffers_of_a_backlog_are_bounded() {
        let mut pool = Pool::default();
        let freed = run(&mut pool, 1, 1_000, 65_536);
        assert_eq!(pool.held, pool.spare.iter().map(Vec::capacity).sum::<usize>());
        assert!(
            pool.held <= SPARE_BYTES_MAX && pool.held > SPARE_BYTES_MAX - 65_536 * SLACK,
            "{}",
            pool.held
        );
        assert!(freed > 30 << 20, "{freed}");
        let freed = run(&mut pool, 2, 20, 4096);
        assert_eq!(pool.held, pool.spare.iter().map(Vec::capacity).sum::<usize>(), "{freed} freed");
        assert!(pool.held < 1 << 20);
    }

    #[test]
    fn ordinary_batches_neither_allocate_nor_free() {
        let mut pool = Pool::default();
        run(&mut pool, 1, 100, 4096);
        let addresses = |pool: &Pool<Vec<u8>>| {
            let mut all: Vec<_> =
                pool.spare.iter().map(|one| (one.as_ptr().addr(), one.capacity())).collect();
            all.sort_unstable();
            all
        };
        // By then each buffer has reached the maximum length.
        pool.spare.iter_mut().for_each(|one| one.reserve(4096));
        let before = addresses(&pool);
        for most in [100, 60, 90] {
            assert_eq!(run(&mut pool, 3, most, 4096), 0, "{most}");
            assert_eq!(addresses(&pool), before, "{most}");
        }
    }

    #[test]
    fn a_backlog_in_each_round_keeps_its_buffers() {
        let (mut usage, mut buffer) = (Usage::default(), Vec::<u64>::with_capacity(10_000));
        for batch in 0..10 * ROUND_BATCHES {
            let used = if batch % (ROUND_BATCHES - 1) == 0 { 9_000 } else { 10 };
            assert_eq!(usage.shrink(&mut buffer, used), 0);
        }
        let freed: usize = (0..2 * ROUND_BATCHES).map(|_| usage.shrink(&mut buffer, 10)).sum();
        assert_eq!(freed, (10_000 - buffer.capacity()) * size_of::<u64>());
        assert!(buffer.capacity() < 100);
    }

    #[test]
    fn a_buffer_that_only_grew_does_not_shrink() {
        for used in 1..2_000 {
            let (mut usage, mut buffer) = (Usage::default(), Vec::new());
            (0..used).for_each(|one| buffer.push(one));
            buffer.clear();
            let freed: usize = (0..3 * ROUND_BATCHES).map(|_| usage.shrink(&mut buffer, used)).sum();
            assert_eq!(freed, 0, "{used}");
        }
    }

    #[test]
    fn shrinking_keeps_the_contents() {
        let mut buffer: Vec<u32> = Vec::with_capacity(10_000);
        buffer.extend(0..1_000);
        Peak(0).shrink(&mut buffer);
        assert_eq!(buffer, (0..1_000).collect::<Vec<u32>>());
    }
}
