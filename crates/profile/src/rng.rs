//! Seeded numbers: a splitmix64 generator and a hash with the same mixing step. A leaf: the simulated process and
//! the resampling of `gate` must replay from one number.
//!
//! Input: a seed. Output: the same numbers on every platform. Not for cryptography.

/// The splitmix64 finaliser: spreads each input bit over all output bits.
#[must_use]
#[inline]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash of several numbers that depends on their order.
#[must_use]
#[inline]
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x5354_4143_4b50_524f, |hash, part| mix(hash ^ mix(*part)))
}

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator with a sequence that depends on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next number, all 64 bits.
    // Not an `Iterator`: the sequence never ends.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        number
    }

    /// A number in `low..=high`, with a slight, acceptable bias.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).saturating_add(1)
    }

    /// An index below `len`, with a slight, acceptable bias; 0 if `len` is 0.
    pub fn below(&mut self, len: usize) -> usize {
        if len == 0 { 0 } else { usize::try_from(self.next() % len as u64).unwrap_or(0) }
    }

    /// One of these elements, at random.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// True `times` out of `out_of`.
    pub fn chance(&mut self, times: u64, out_of: u64) -> bool {
        self.next() % out_of < times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of splitmix64 for seed 0 (Vigna, splitmix64.c).
        let mut rng = Rng::new(0);
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
        );
    }

    #[test]
    fn numbers_stay_in_range_and_reach_its_bounds() {
        let mut rng = Rng::new(7);
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[usize::try_from(rng.within(3, 6) - 3).expect("small")] = true;
        }
        assert_eq!(seen, [true; 4]);
        assert!(!rng.chance(0, 10) && rng.chance(10, 10));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
    }
}
