//! The engine end to end: recordings of simulated processes against what they really did.

#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

#[path = "support/processes.rs"]
mod processes;
#[path = "support/recording.rs"]
mod recording;

use processes::*;
use recording::*;
use stackprof::target::sim::*;

#[test]
fn sweep() {
    let mut bad = 0;
    for seed in seeds(0..60) {
        let r = std::panic::catch_unwind(|| {
            let _replay = replay_sim(seed);
            let config = SimConfig::from_seed(seed);
            let recorded = record(&config, &options(997, seed));
            recorded.check_balance();
        });
        bad += usize::from(r.is_err());
    }
    assert_eq!(bad, 0);
}
