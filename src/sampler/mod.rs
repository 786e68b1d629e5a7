//! The sampler: decides at each tick which threads to stop, turns each stop into a weighted stack in the trie, and
//! counts every loss by cause.
//!
//! It knows a target only through its traits and time only through the given clock, so a simulated run uses the
//! same code. A *driver* supplies captures: `stops.rs` polls, stops and copies at each tick; `pushed.rs` receives
//! samples taken by another party. For either driver, one [`Recorder`] weighs, walks, inserts and accounts for
//! losses. Stacks are walked after their threads run again.

mod budget;
mod captures;
mod deferred_samples;
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
mod stack_groups;
mod stack_size;
mod stack_walker;
mod stops;
mod target_processes;
mod thread;
mod thread_clock;
mod ticks;
mod unsampled_time;
mod wait_sampling;
mod waits;
mod weighted_stacks;
mod weights;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::live::Live;
use crate::recording::Recording;
use crate::sources::{Fault, Target};
use stops::StopDriver;

pub use options::Options;
pub use recorded_process::{FIRST, ProcessIndex};
pub use recorder::Recorder;
pub use sample::Sample;
pub use stops::snapshot::{Snapshot, ThreadStack, snapshot};

/// Records a target until it ends, the time is over or `live` requests a stop.
///
/// # Errors
/// [`ErrorKind::System`] when a system failure makes it impossible to continue. The end of the target is no error:
/// the profile so far is returned, and if the connection to it was lost, the statistics say why.
pub fn record(
    target: &mut dyn Target,
    clock: &dyn Clock,
    options: &Options,
    live: &Live,
) -> Result<Recording> {
    let mut driver = StopDriver::new(target, clock, options, live);
    let ended = driver.record();
    live.acknowledge_stop();
    match ended {
        Ok(()) | Err(Fault::Gone) => Ok(driver.finish()),
        Err(Fault::Lost(why)) => {
            driver.cut_short(why);
            Ok(driver.finish())
        }
        Err(fault) => Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}"))),
    }
}
