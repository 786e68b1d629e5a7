//! The live line on standard error while a recording runs. Input: the counters of
//! [`Live`]; output: one line that is redrawn in place, on a terminal only, and gone at
//! the end. A thread of its own draws, so that the sampler never waits for a terminal.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::system;
use super::text::{grouped, plural};
use crate::escape::escape_line;
use crate::live::Live;
use crate::sources::Role;

/// Between two drawings: often enough to look alive, rare enough to cost nothing.
const REDRAW: Duration = Duration::from_millis(200);

/// The line while it is shown; dropping it ends and clears it.
#[derive(Debug, Default)]
pub struct Progress {
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts the line for a process called `NAME (pid N)`; `limit` is `--duration`.
    /// Shows nothing when `quiet` or when standard error is no terminal.
    #[must_use]
    pub fn start(live: Arc<Live>, process: String, limit: Option<Duration>, quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if quiet || bar.is_hidden() {
            return Progress::default();
        }
        // A narrow terminal cuts the numbers, never the way out.
        let Ok(style) = ProgressStyle::with_template("{wide_msg}  (Ctrl-C ends)") else {
            return Progress::default();
        };
        bar.set_style(style);
        let process = escape_line(&process).into_owned();
        let (end, ended) = channel();
        let started = Instant::now();
        let draw = move || {
            system::restrict(Role::Watching);
            while ended.recv_timeout(REDRAW) == Err(RecvTimeoutError::Timeout) {
                bar.set_message(line(&live, &process, started.elapsed(), limit));
            }
            bar.finish_and_clear();
        };
        match std::thread::Builder::new().name("progress".into()).spawn(draw) {
            Ok(thread) => Progress { drawing: Some((end, thread)) },
            // Where no thread can be started, the recording goes on without its progress line.
            Err(_) => Progress::default(),
        }
    }

    /// Ends and clears the line; returns when the terminal is free for other text.
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

/// The text of the line after `elapsed`.
fn line(live: &Live, process: &str, elapsed: Duration, limit: Option<Duration>) -> String {
    let ticks = live.ticks.load(Ordering::Relaxed);
    let samples = live.samples.load(Ordering::Relaxed);
    let threads = live.threads.load(Ordering::Relaxed);
    let pause_ns = live.pause_ns.load(Ordering::Relaxed);
    let target_cpu_ns = live.target_cpu_ns.load(Ordering::Relaxed);

    let seconds = elapsed.as_secs_f64();
    let mut text = format!("stackprof: {process}  {seconds:.1} ");
    if let Some(limit) = limit {
        text += &format!("of {} ", limit.as_secs_f64());
    }
    let samples_word = if samples == 1 { "sample" } else { "samples" };
    text += &format!("s  {} {samples_word}  {}", grouped(samples), plural(threads, "thread"));
    if seconds > 0.0 {
        text += &format!("  {:.1} Hz", ticks as f64 / seconds);
    }
    if target_cpu_ns > 0 {
        text += &format!("  paused {:.1} %", 100.0 * pause_ns as f64 / target_cpu_ns as f64);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_it_goes() {
        let live = Live::default();
        live.ticks.store(12_363, Ordering::Relaxed);
        live.samples.store(12_365, Ordering::Relaxed);
        live.threads.store(4, Ordering::Relaxed);
        live.pause_ns.store(40_000_000, Ordering::Relaxed);
        live.target_cpu_ns.store(10_000_000_000, Ordering::Relaxed);
        let elapsed = Duration::from_millis(12_400);
        assert_eq!(
            line(&live, "work (pid 4242)", elapsed, None),
            "stackprof: work (pid 4242)  12.4 s  12,365 samples  4 threads  997.0 Hz  paused 0.4 %"
        );
        assert_eq!(
            line(&live, "work (pid 4242)", elapsed, Some(Duration::from_millis(20_500))),
            "stackprof: work (pid 4242)  12.4 of 20.5 s  12,365 samples  4 threads  997.0 Hz  paused 0.4 %"
        );
    }

    #[test]
    fn before_the_first_tick_nothing_is_divided() {
        assert_eq!(
            line(&Live::default(), "work (pid 1)", Duration::ZERO, None),
            "stackprof: work (pid 1)  0.0 s  0 samples  0 threads"
        );
    }

    #[test]
    fn quiet_draws_nothing_and_ends_at_once() {
        let progress = Progress::start(Arc::new(Live::default()), "work".into(), None, true);
        assert!(progress.drawing.is_none());
        progress.finish();
    }
}
