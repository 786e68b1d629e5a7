//! Results of a live test's recording: stacks, statistics, messages. A failed check prints all of it.

use std::fmt::Display;
use std::process::ExitStatus;

/// A line of the folded output.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    /// Root first; the first is the process name.
    pub(crate) frames: Vec<String>,
    pub(crate) count: u64,
}

impl Stack {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame == name)
    }

    /// Whether it is called complete.
    pub(crate) fn is_complete(&self) -> bool {
        !self.has("[incomplete]")
    }

    /// Number of occurrences of a function.
    pub(crate) fn times(&self, name: &str) -> usize {
        self.frames.iter().filter(|frame| *frame == name).count()
    }

    /// Whether these functions call each other in this order somewhere on it.
    pub(crate) fn has_path<S: AsRef<str>>(&self, names: &[S]) -> bool {
        let same = |frames: &[String]| frames.iter().zip(names).all(|(frame, name)| frame == name.as_ref());
        self.frames.windows(names.len()).any(same)
    }

    pub(crate) fn leaf(&self) -> &str {
        self.frames.last().map_or("", String::as_str)
    }
}

/// Results of a run of stackprof.
pub(crate) struct Recorded {
    pub(crate) command: String,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) folded: String,
    pub(crate) stacks: Vec<Stack>,
    pub(crate) svg: String,
    /// Names of all files in the output directory.
    pub(crate) files: Vec<String>,
    pub(crate) stats: serde_json::Value,
}

impl Recorded {
    /// Panics with `what` and all facts about the run unless `holds`.
    #[track_caller]
    pub(crate) fn check(&self, holds: bool, what: impl Display) {
        let lines: Vec<&str> = self.folded.lines().collect();
        let shown = lines.iter().take(60).map(|line| {
            let cut = line.char_indices().nth(400).map_or(line.len(), |(index, _)| index);
            format!("  {}\n", &line[..cut])
        });
        assert!(
            holds,
            "{what}\ncommand: {}\nstatus: {}\nstderr:\n{}stdout:\n{}stacks ({} lines):\n{}stats: {:#}",
            self.command,
            self.status,
            self.stderr,
            self.stdout,
            lines.len(),
            shown.collect::<String>(),
            self.stats
        );
    }

    /// Panics unless stackprof exited as it should after writing a profile.
    #[track_caller]
    pub(crate) fn check_success(&self) {
        self.check(self.status.success(), "stackprof failed");
    }

    /// Whether nothing was sampled because the target was too short.
    pub(crate) fn is_empty(&self) -> bool {
        self.status.code() == Some(4)
    }

    /// Panics unless samples and losses add up to the process's CPU time by its clock, to within a period of
    /// each thread.
    #[track_caller]
    pub(crate) fn check_sum(&self) {
        let hz = self.figure("hz_requested");
        let (used, reported) = (self.figure("target_cpu_s") * hz, (self.total() + self.lost()) as f64);
        self.check(
            (used - reported).abs() <= 2.0 + self.figure("threads_seen"),
            format!("{reported} counts of {used}"),
        );
    }

    /// Whether there is a stack selected by `which`.
    pub(crate) fn shows(&self, which: impl Fn(&Stack) -> bool) -> bool {
        self.stacks.iter().any(which)
    }

    /// Panics if a stack is selected by `which`.
    #[track_caller]
    pub(crate) fn check_none(&self, what: impl Display, which: impl Fn(&Stack) -> bool) {
        let found = self.stacks.iter().find(|stack| which(stack));
        self.check(found.is_none(), format!("{what}: {found:?}"));
    }

    /// Samples of stacks that are incomplete for this reason.
    pub(crate) fn incomplete(&self, reason: &str) -> u64 {
        self.stats["stacks_incomplete"][reason].as_u64().unwrap_or(0)
    }

    /// Sum of the counts of the stacks selected by `which`.
    pub(crate) fn count(&self, which: impl Fn(&Stack) -> bool) -> u64 {
        self.stacks.iter().filter(|stack| which(stack)).map(|stack| stack.count).sum()
    }

    /// Sum of all counts.
    pub(crate) fn total(&self) -> u64 {
        self.count(|_| true)
    }

    /// A number of the statistics.
    #[track_caller]
    pub(crate) fn figure(&self, key: &str) -> f64 {
        let value = self.stats[key].as_f64();
        self.check(value.is_some(), format!("no number `{key}` in the statistics"));
        value.unwrap_or_default()
    }

    /// Lost counts of all causes with a weight.
    pub(crate) fn lost(&self) -> u64 {
        self.stats["samples_lost"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum()
    }
}
