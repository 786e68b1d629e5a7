//! Random input from seeds, for tests with damaged bytes. A failure prints the command that replays it;
//! `rounds.rs` describes the environment variables.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "cpu_time.rs"]
pub(crate) mod cpu_time;
#[path = "rounds.rs"]
pub(crate) mod rounds;

use std::time::Duration;

use cpu_time::CpuTime;
use stackprof::rng::Rng;

/// Most CPU time for one seed, generous for a debug build.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(20);

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
pub(crate) fn with_seed(test: &str, seed: u64, check: impl FnOnce(&mut Rng)) {
    let replay = Replay { test, seed };
    let started = CpuTime::start();
    check(&mut Rng::new(replay.seed));
    assert!(started.used() < TIME_MAX, "took {:?}", started.used());
}

/// [`with_seed`] for seeds from 1 on, `rounds` of them unless the environment changes it.
pub(crate) fn for_each_seed(test: &str, rounds: u64, mut check: impl FnMut(&mut Rng)) {
    rounds::seeds(1..1 + rounds).for_each(|seed| with_seed(test, seed, &mut check));
}
