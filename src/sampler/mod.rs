//! The sampler: decides at each tick which threads to stop, turns each stop into a weighted stack in the trie, and
//! counts every loss by cause.
//!
//! It knows a target only through its traits and time only through the given clock, so a simulated run uses the
//! same code. A *driver* supplies captures: `stops.rs` polls, stops and copies at each tick; `pushed.rs` receives
//! samples taken by another party. For either driver, one [`Recorder`] weighs, walks, inserts and accounts for
//! losses. Stacks are walked after their threads run again. [`record`] is the entry, [`Options`] its options.

mod budget;
mod captures;
mod image_refresh;
mod prefetch;
mod processes;
pub mod pushed;
mod recorder;
mod schedule;
mod stack_size;
mod stack_walker;
mod stops;
mod thread_clock;
mod waits;
mod weights;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::live::Live;
use crate::recording::Recording;
use crate::sources::{Fault, Target};
use crate::walk::UnwindMethod;
use stops::StopDriver;

pub use captures::Sample;
pub use processes::{FIRST, ProcessIndex};
pub use recorder::Recorder;
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

// ---- Recording options.

/// Recording options.
#[derive(Clone, Debug)]
pub struct Options {
    /// After a requested stop, how long to wait for the process to end, nanoseconds.
    pub linger_ns: u64,
    /// Ticks per second.
    pub hz: u32,
    /// Duration of the recording; `None`: until the process ends or a stop is requested.
    pub duration_ns: Option<u64>,
    /// Also record waiting threads: weights are wall-clock time.
    pub idle: bool,
    /// Record only waiting threads, if the source reports waits.
    pub off_cpu: bool,
    /// Keep the stacks of each thread apart. Otherwise all threads share one root, so memory does not grow with
    /// the number of short-lived threads.
    pub threads: bool,
    /// Memory for sample times, bytes; 0 keeps none.
    pub timeline_bytes: usize,
    /// Maximum frames kept per stack.
    pub max_depth: usize,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Seed of the ticks' jitter.
    pub seed: u64,
    /// Maximum share of time that the target may be stopped: 0.02 is 2 %, 1 or more no limit.
    pub max_stop: f64,
    /// Allocated blocks count as in use at the end if they are at least this old, nanoseconds.
    pub block_age_min_ns: u64,
}
