//! The driver for samples that somebody else takes: a kernel that writes them into buffers, one
//! for each CPU, and tells of them in batches.
//!
//! Input: records that come late, and between threads in any order; output: what the recorder
//! makes of them in the order of their times. Time is that of the records: no clock runs here.

use std::cell::Cell;

use super::postponed::{Due, Rewalk};
use super::recorder::{Recorder, Sample};
use super::{Options, Result};
use crate::addr::Avma;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::live::Live;
use crate::recording::Profile;
use crate::sources::{Capture, Fault, Look, Observed, ThreadId};
use crate::walk::Frames;

/// Stack bytes that the source may be asked to copy at most: it decides itself.
const WINDOW_MAX_BYTES: usize = 64 << 10;

/// Something that happened, and when, nanoseconds of the source's clock.
#[derive(Debug)]
pub struct Record {
    /// When.
    pub at_ns: u64,
    /// To which thread.
    pub thread: ThreadId,
    /// What.
    pub what: What,
}

/// What a [`Record`] tells.
#[derive(Debug)]
pub enum What {
    /// A thread was seen first.
    Started {
        /// Stack pointer at its first instruction, where that is known.
        stack_top: Option<Avma>,
        /// What it had used by then.
        look: Look,
        /// It ran already when the recording began.
        found: bool,
    },
    /// Its registers and stack bytes; `look` in it is what it had used by then.
    Sampled(Box<Capture>),
    /// A sample that could not be taken, for this reason.
    Missed(Look, &'static str),
    /// It ended, or the recording did; all that it used, where that is known, and for what
    /// reason the rest of it is lost.
    Ended(Option<u64>, &'static str),
    /// The process runs another program; all other threads have ended.
    Exec,
    /// The images of the process have changed.
    ImagesChanged,
}

/// A process whose samples are pushed.
pub trait PushedSource: Observed {
    /// Appends the records that are there, waiting for some. Records of one thread are in their
    /// order. Gives the time up to which nothing more will come, or `None` at the end.
    ///
    /// # Errors
    /// [`Fault::Gone`] when the process has ended, others when the source fails.
    fn next_batch(&mut self, into: &mut Vec<Record>) -> std::result::Result<Option<u64>, Fault>;

    /// Images and names are asked as they were at this time, from now on.
    fn go_to(&mut self, at_ns: u64);
}

/// The time of the record that is being taken in.
#[derive(Debug, Default)]
struct RecordTime(Cell<u64>);

impl Clock for RecordTime {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

/// Records what a source pushes until it ends or `live` says stop.
///
/// # Errors
/// [`ErrorKind::System`] when the source fails. A process that ends is no error.
pub fn record(source: &mut dyn PushedSource, options: &Options, live: &Live) -> Result<Profile> {
    let time = RecordTime::default();
    let mut driver = PushedDriver {
        time: &time,
        recorder: Recorder::new(&time, options),
        frames: Frames::default(),
        spare: Vec::new(),
    };
    let mut waiting: Vec<Record> = Vec::new();
    while !live.shall_stop() {
        let told_until_ns = match source.next_batch(&mut waiting) {
            Ok(told_until_ns) => told_until_ns,
            Err(Fault::Gone) => None,
            Err(fault) => {
                return Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}")));
            }
        };
        // What one thread tells stays in its order, since this sort is stable.
        waiting.sort_by_key(|record| (record.at_ns, record.thread));
        let due = told_until_ns.map_or(waiting.len(), |told_until_ns| {
            waiting.partition_point(|record| record.at_ns < told_until_ns)
        });
        for record in waiting.drain(..due) {
            driver.take(source, record);
        }
        if told_until_ns.is_none() {
            break;
        }
    }
    // After the wish to stop, what was told already is taken in still.
    for record in waiting {
        driver.take(source, record);
    }
    driver.walk_postponed(source, Due::All);
    Ok(driver.recorder.finish(source))
}

struct PushedDriver<'a> {
    time: &'a RecordTime,
    recorder: Recorder<'a>,
    frames: Frames,
    spare: Vec<Capture>,
}

impl PushedDriver<'_> {
    fn take(&mut self, process: &mut dyn PushedSource, record: Record) {
        let Record { at_ns, thread, what } = record;
        self.time.0.set(at_ns);
        process.go_to(at_ns);
        match what {
            What::Started { stack_top, look, found } => {
                self.recorder.add_thread(process, thread, stack_top, look, found);
            }
            What::Sampled(capture) => {
                let look = capture.look;
                let Some(counts) = self.recorder.weigh(thread, look) else { return };
                let sample = Sample { thread, capture: *capture, at_ns, waiting: false };
                self.recorder.take(process, sample, counts, WINDOW_MAX_BYTES, &mut self.frames);
                self.walk_postponed(process, Due::ImagesRead);
            }
            What::Missed(look, reason) => {
                let counts = self.recorder.weigh(thread, Some(look));
                self.recorder.lose(reason, counts.unwrap_or(0));
            }
            What::Ended(cpu_ns, reason) => {
                self.walk_postponed(process, Due::ThreadEnded(thread));
                self.recorder.remove_thread(thread, cpu_ns, reason);
            }
            What::Exec => {
                self.walk_postponed(process, Due::All);
                self.recorder.begin_program();
            }
            What::ImagesChanged => {
                self.recorder.read_images(process);
            }
        }
        self.spare.clear();
    }

    /// Walks samples that waited for images.
    fn walk_postponed(&mut self, process: &mut dyn PushedSource, due: Due) {
        let (frames, spare) = (&mut self.frames, &mut self.spare);
        let mut rewalk = Rewalk { window_max_bytes: WINDOW_MAX_BYTES, frames, spare };
        self.recorder.walk_postponed(process, due, &mut rewalk);
    }
}
