//! The sampler: at each tick, which threads to stop; of each stop, a weighed stack in the
//! trie; of everything lost, a count by cause.
//!
//! Knows a target only through its traits and time only through the clock it is given, so a
//! simulated run is the same code. A *driver* has the captures: `stops.rs` looks, stops and
//! copies at each tick; `pushed.rs` is given what somebody else sampled. One [`Recorder`] weighs,
//! walks, inserts and accounts for what is lost, whoever drives it. Stacks are walked after their
//! threads run again.

mod budget;
mod decide;
mod deferred;
mod image_loads;
mod image_refresh;
mod jit_budget;
mod lifecycle;
mod prefetch;
mod process;
mod process_cpu;
pub mod pushed;
mod recorder;
mod red_zone;
mod sleeping;
mod snapshot;
mod stack_size;
mod stops;
mod suspension;
mod thread;
mod ticks;
mod times;
mod wait_sampling;
mod waits;
mod weights;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::live::Live;
use crate::recording::Profile;
use crate::sources::{Fault, Target};
use crate::walk::UnwindMethod;
use stops::StopDriver;

pub use process::{FIRST, ProcessIndex};
pub use recorder::{Recorder, Sample};
pub use snapshot::{Snapshot, ThreadStack, snapshot};

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// After the wish to stop, how long the end of the process is waited for, nanoseconds.
    pub linger_ns: u64,
    /// Ticks per second.
    pub hz: u32,
    /// End after this long; `None`: when the process ends or the wish to stop comes.
    pub duration_ns: Option<u64>,
    /// Also record waiting threads: weights are wall-clock time.
    pub idle: bool,
    /// Record waiting threads alone, where the source tells of waits.
    pub off_cpu: bool,
    /// Keep the stacks of each thread apart. Otherwise all threads share one root: memory
    /// then does not grow with the number of threads that come and go.
    pub threads: bool,
    /// Memory for the times of samples, bytes; 0 to keep none.
    pub timeline_bytes: usize,
    /// Frames kept per stack.
    pub max_depth: usize,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Seed of the ticks' jitter.
    pub seed: u64,
    /// Share of its time that the target may stand still: 0.02 is 2 %, 1 or more no limit.
    pub max_stop: f64,
}

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
            driver.recorder.stats.cut_short = Some(why);
            Ok(driver.finish())
        }
        Err(fault) => Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}"))),
    }
}
