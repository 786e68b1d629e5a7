//! Random input from seeds, for tests with damaged bytes. A failure prints the command that
//! replays it; see `rounds.rs` for what the environment may ask for.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "cpu_time.rs"]
pub(crate) mod cpu_time;
#[path = "rounds.rs"]
pub(crate) mod rounds;

use std::time::Duration;

use cpu_time::CpuTime;

/// Most CPU time for one seed, generous for a debug build.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(20);

/// xorshift64*: <https://vigna.di.unimi.it/ftp/papers/xorshift.pdf>.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of_seed(seed: u64) -> Random {
        // Small seeds differ in few bits: spread them.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Prints how to run a failed seed again.
struct Replay<'a> {
    test: &'a str,
    seed: u64,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, test) = (self.seed, self.test);
            eprintln!("replay: STACKPROF_SEED={seed} cargo test --test {} {test}", env!("CARGO_CRATE_NAME"));
        }
    }
}

/// Runs `check` with a seed, and fails if it takes too long.
pub(crate) fn with_seed(test: &str, seed: u64, check: impl FnOnce(&mut Random)) {
    let replay = Replay { test, seed };
    let started = CpuTime::start();
    check(&mut Random::of_seed(replay.seed));
    assert!(started.used() < TIME_MAX, "took {:?}", started.used());
}

/// The same for seeds from 1 on, `rounds` of them unless the environment says otherwise.
pub(crate) fn for_each_seed(test: &str, rounds: u64, mut check: impl FnMut(&mut Random)) {
    rounds::seeds(1..1 + rounds).for_each(|seed| with_seed(test, seed, &mut check));
}
