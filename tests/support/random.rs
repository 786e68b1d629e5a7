//! Choices of tests on running processes, which a seed repeats.

use super::rounds;

/// A generator of test choices whose seed is printed, so that a failure can be replayed
/// with `STACKPROF_SEED`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn from_environment() -> Random {
        let seed = rounds::one_seed().unwrap_or_else(|| u64::from(std::process::id()));
        println!("STACKPROF_SEED={seed}");
        Random(seed)
    }

    /// A number below `bound` (splitmix64).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
