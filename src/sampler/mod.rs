//! The sampler: at each tick, which threads to stop; of each stop, a weighed stack in the
//! trie; of everything lost, a count by cause.
//!
//! Knows a target only through its traits and time only through the clock it is given, so a
//! simulated run is the same code. A *driver* has the captures: `stops.rs` polls, stops and
//! copies at each tick; `pushed.rs` is given what somebody else sampled. One [`Recorder`] weighs,
//! walks, inserts and accounts for what is lost, whoever drives it. Stacks are walked after their
//! threads run again.

mod budget;
mod captures;
mod deferred;
mod heap;
mod image_loads;
mod image_refresh;
mod jit_budget;
mod options;
mod poll_order;
mod prefetch;
mod prefetch_list;
mod processes;
pub mod pushed;
mod recorded_process;
mod recorder;
mod red_zone;
mod sample;
mod schedule;
mod stack_extent;
mod stack_size;
mod stack_walker;
mod stops;
mod target_processes;
mod thread;
mod thread_clock;
mod ticks;
mod tracks;
mod unsampled;
mod wait_sampling;
mod waits;
mod weighted_stacks;
mod weights;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::live::Live;
use crate::recording::Profile;
use crate::sources::{Fault, Target};
use stops::StopDriver;

pub use options::Options;
pub use recorded_process::{FIRST, ProcessIndex};
pub use recorder::Recorder;
pub use sample::Sample;
pub use stops::snapshot::{Snapshot, ThreadStack, snapshot};

/// Records a target until it ends, the time is over or `live` says stop.
///
/// # Errors
/// [`ErrorKind::System`] when the system fails in a way that leaves nothing to go on
/// with. A target that ends is no error: the profile so far is returned, and where the way to it was
/// lost its statistics say why.
pub fn record(target: &mut dyn Target, clock: &dyn Clock, options: &Options, live: &Live) -> Result<Profile> {
    let mut driver = StopDriver::new(target, clock, options, live);
    let ended = driver.record();
    live.answer();
    match ended {
        Ok(()) | Err(Fault::Gone) => Ok(driver.finish()),
        Err(Fault::Lost(why)) => {
            driver.cut_short(why);
            Ok(driver.finish())
        }
        Err(fault) => Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}"))),
    }
}
