//! Seeded numbers for the simulated kernel: splitmix64 and a hash on the same mixing step.

/// The splitmix64 finaliser.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number out of several, depending on their order.
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(0x7369_6d6b_6572_6e65, |hash, part| mix(hash ^ mix(*part)))
}

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `low..=high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True `times` out of `out_of`.
    pub fn chance(&mut self, times: u64, out_of: u64) -> bool {
        self.next() % out_of < times
    }
}
