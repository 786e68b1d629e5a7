//! The sampler end to end: recordings of simulated processes against their actual behavior.
//!
//! Each recording is also checked for general invariants (`support/recording.rs`). Times are virtual: nothing
//! here sleeps. `STACKPROF_SEED=N` replays one seed.

#[path = "../../support/processes.rs"]
mod processes;
#[path = "../../support/recording.rs"]
pub mod recording;

mod budget;
mod changes;
mod faults;
mod pushed;
mod random;
mod shares;
mod stacks;
mod stopped;
mod times;
mod tree;
mod waits;
mod whole;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::folded;
use crate::seeds::rounds::{as_usual, seeds};
use processes::{
    ARCHES, FUNCTIONS, MS, SECOND, deep, f, image, mixed, mixed_with, names, phase, process, run, thread,
    wait,
};
use recording::{Recorded, Watched, options, record, record_with, replay, replay_sim};
use stackprof::arch::Arch;
use stackprof::error::ErrorKind;
use stackprof::recording::Frame;
use stackprof::sampler::{self, Options};
use stackprof::sources::sim::{
    FaultKind, FunctionId, SimActivity, SimConfig, SimExec, SimFault, SimPhase, SimThread,
};
use stackprof::sources::{Activity, ExitStatus, Fault, TargetEvent};
use stackprof::walk::StackEnd;

/// A seeded process with a late plugin that is used only once its loading was noticed: an image that replaces
/// another at its address has the old names until then (see
/// `an_image_replaced_at_its_address_keeps_its_names`).
fn seeded(seed: u64) -> SimConfig {
    let mut config = SimConfig::from_seed(seed);
    let late = |config: &SimConfig, thread: &SimThread| {
        let images = thread.script.iter().flat_map(|phase| &phase.stack).map(|frame| frame.function.image);
        images.map(|image| config.images[image].load_ns).max().filter(|load_ns| *load_ns > 0)
    };
    for index in 0..config.threads.len() {
        if let Some(load_ns) = late(&config, &config.threads[index]) {
            config.threads[index].start_ns = load_ns + 1_100 * MS;
        }
    }
    config
}

fn idle(hz: u32, seed: u64) -> Options {
    Options { idle: true, ..options(hz, seed) }
}
