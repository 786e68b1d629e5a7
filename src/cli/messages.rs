//! All writes to the terminal: results on standard output, everything else on standard error with a prefix.
//!
//! `Progress` is the line on standard error during a recording.
//!
//! Quoted text cannot control the terminal: the only control characters written are newlines. A closed pipe or
//! terminal is not a failure; a result that is lost for another reason (a full disk) is.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::text::{grouped, plural};
use super::{file, system};
use crate::error::{Error, Result};
use crate::escape::{escape_line, escape_lines};
use crate::live::Live;
use crate::sources::Role;

/// Line width if standard error is not a terminal: still readable in a log.
const WIDTH_DEFAULT: usize = 100;

/// Width of the terminal on standard error, characters; a default if it is none.
#[must_use]
pub fn width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(WIDTH_DEFAULT, |(width, _)| width.0.into())
}

/// Prints an error as one line.
pub fn error(error: &Error) {
    note(&error.to_string());
}

/// Prints a note as one line.
pub fn note(text: &str) {
    to_stderr(&format!("stackprof: {}\n", escape_line(text)));
}

/// Prints text with its own prefix and newlines (the closing summary).
pub fn block(text: &str) {
    to_stderr(&escape_lines(text));
}

/// Prints a result (help, version, dumps) on standard output.
///
/// # Errors
/// One line: it cannot be written.
pub fn result(text: &str) -> Result<()> {
    file::check_stdout_is_open()?;
    let text = escape_lines(text);
    file::write_stream("standard output", &mut std::io::stdout().lock(), |out| out.write_all(text.as_bytes()))
}

fn to_stderr(text: &str) {
    // A single write, so that lines of several processes do not interleave.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

// ---- The progress line on standard error during a recording. Input: the counters of [`Live`]. Output: one line, redrawn
// in place on a terminal only, and removed at the end. A separate thread draws it, so that the sampler never waits
// for a terminal.

/// Redraw interval: short enough to appear live, long enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(200);

/// The visible line; dropping it ends and clears it.
#[derive(Debug, Default)]
pub struct Progress {
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts the line for a process called `NAME (pid N)`; `limit` is `--duration`. Shows nothing
    /// if `quiet` or if standard error is not a terminal.
    #[must_use]
    pub fn start(live: Arc<Live>, process: String, limit: Option<Duration>, quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if quiet || bar.is_hidden() {
            return Progress::default();
        }
        let Ok(style) = ProgressStyle::with_template("{wide_msg}") else {
            return Progress::default();
        };
        bar.set_style(style);
        let process = escape_line(&process).into_owned();
        let (end, ended) = channel();
        let started = Instant::now();
        let draw = move || {
            system::restrict(Role::Watching);
            while ended.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                // A character in the last column may wrap.
                let width = width().saturating_sub(1);
                bar.set_message(line(&fields(&live, &process, started.elapsed(), limit), width));
            }
            bar.finish_and_clear();
        };
        match std::thread::Builder::new().name("progress".into()).spawn(draw) {
            Ok(thread) => Progress { drawing: Some((end, thread)) },
            // If no thread can be started, the recording continues without its progress line.
            Err(_) => Progress::default(),
        }
    }

    /// Ends and clears the line; returns when other text can be printed.
    pub fn finish(self) {}
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.drawing.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

/// A part of the line; the highest rank is dropped first on a narrow terminal.
struct Field {
    rank: u8,
    text: String,
}

/// The parts of the line after `elapsed`, in order.
fn fields(live: &Live, process: &str, elapsed: Duration, limit: Option<Duration>) -> Vec<Field> {
    let ticks = live.ticks.load(Ordering::Relaxed);
    let samples = live.samples.load(Ordering::Relaxed);
    let threads = live.threads.load(Ordering::Relaxed);
    let pause_ns = live.pause_ns.load(Ordering::Relaxed);
    let target_cpu_ns = live.target_cpu_ns.load(Ordering::Relaxed);

    let seconds = elapsed.as_secs_f64();
    let time = match limit {
        Some(limit) => format!("{seconds:.1}/{} s", limit.as_secs_f64()),
        None => format!("{seconds:.1} s"),
    };
    let samples_word = if samples == 1 { "sample" } else { "samples" };
    let mut fields = vec![
        Field { rank: 3, text: process.to_owned() },
        Field { rank: 0, text: time },
        Field { rank: 1, text: format!("{} {samples_word}", grouped(samples)) },
        Field { rank: 4, text: plural(threads, "thread") },
    ];
    // Allocations are sampled by bytes, without ticks.
    if seconds > 0.0 && ticks > 0 {
        fields.push(Field { rank: 5, text: format!("{:.1} Hz", ticks as f64 / seconds) });
    }
    if target_cpu_ns > 0 {
        let share = 100.0 * pause_ns as f64 / target_cpu_ns as f64;
        fields.push(Field { rank: 6, text: format!("paused {share:.1}%") });
    }
    fields.push(Field { rank: 2, text: "Ctrl-C ends".to_owned() });
    fields
}

/// As many whole fields as fit into `width` characters; rank 0 always stays.
fn line(fields: &[Field], width: usize) -> String {
    let with_ranks_to = |last: u8| {
        let texts = fields.iter().filter(|field| field.rank <= last).map(|field| field.text.as_str());
        texts.collect::<Vec<_>>().join("  ")
    };
    let last = fields.iter().map(|field| field.rank).max().unwrap_or(0);
    let fitting = (1..=last).rev().map(with_ranks_to).find(|line| line.chars().count() <= width);
    fitting.unwrap_or_else(|| with_ranks_to(0))
}

#[cfg(test)]
mod progress_tests {
    use super::*;

    fn shown(live: &Live, elapsed_ms: u64, limit_ms: Option<u64>, width: usize) -> String {
        let limit = limit_ms.map(Duration::from_millis);
        line(&fields(live, "work (pid 4242)", Duration::from_millis(elapsed_ms), limit), width)
    }

    #[test]
    fn a_narrow_terminal_drops_whole_fields() {
        let live = Live::default();
        live.ticks.store(12_363, Ordering::Relaxed);
        live.samples.store(12_365, Ordering::Relaxed);
        live.threads.store(4, Ordering::Relaxed);
        live.pause_ns.store(40_000_000, Ordering::Relaxed);
        live.target_cpu_ns.store(10_000_000_000, Ordering::Relaxed);
        for (width, expected) in [
            (
                120,
                "work (pid 4242)  12.4/20.5 s  12,365 samples  4 threads  997.0 Hz  paused 0.4%  Ctrl-C ends",
            ),
            (79, "work (pid 4242)  12.4/20.5 s  12,365 samples  4 threads  997.0 Hz  Ctrl-C ends"),
            (60, "work (pid 4242)  12.4/20.5 s  12,365 samples  Ctrl-C ends"),
            (40, "12.4/20.5 s  12,365 samples  Ctrl-C ends"),
            (39, "12.4/20.5 s  12,365 samples"),
            (12, "12.4/20.5 s"),
            (1, "12.4/20.5 s"),
        ] {
            assert_eq!(shown(&live, 12_400, Some(20_500), width), expected, "{width}");
        }
        let whole = "work (pid 4242)  12.4 s  12,365 samples  4 threads  997.0 Hz  paused 0.4%  Ctrl-C ends";
        assert_eq!(shown(&live, 12_400, None, 99), whole);
    }

    #[test]
    fn no_division_by_zero_before_the_first_tick() {
        let expected = "work (pid 4242)  0.0 s  0 samples  0 threads  Ctrl-C ends";
        assert_eq!(shown(&Live::default(), 0, None, 99), expected);
    }

    #[test]
    fn quiet_draws_nothing_and_ends_at_once() {
        let progress = Progress::start(Arc::new(Live::default()), "work".into(), None, true);
        assert!(progress.drawing.is_none());
        progress.finish();
    }
}
