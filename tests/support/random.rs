//! Seeded random choices for tests on running processes.

use stackprof::rng::Rng;

use super::rounds;

/// A generator of test choices; prints its seed, so that a failure can be replayed with `STACKPROF_SEED`.
pub(crate) struct Random(Rng);

impl Random {
    pub(crate) fn from_environment() -> Random {
        let seed = rounds::one_seed().unwrap_or_else(|| u64::from(std::process::id()));
        println!("STACKPROF_SEED={seed}");
        Random(Rng::new(seed))
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.next() % bound
    }
}
