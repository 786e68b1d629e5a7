//! What a thread showed at one moment.

use crate::sources::{Capture, ThreadId};

/// What a thread showed at one moment.
#[derive(Debug)]
pub struct Sample {
    /// Which thread.
    pub thread: ThreadId,
    /// Its registers and stack bytes: a box, since samples are moved from hand to hand.
    pub capture: Box<Capture>,
    /// When it was taken in, nanoseconds of the engine's clock.
    pub at_ns: u64,
    /// The thread waited when it was asked for this.
    pub waiting: bool,
    /// Of what it stands for, how much the thread was on no CPU, where wall-clock time is recorded: ready, or waiting
    /// between two polls; nanoseconds.
    pub off_cpu_ns: u64,
}
