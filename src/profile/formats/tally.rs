//! What a reader did not understand of a file, and the one place that decides what follows.
//!
//! Input: each line or sample, understood or skipped with its place and reason. Output: remarks for
//! the user, or a refusal: in strict reading at the first that was skipped, always where more
//! than half were. Readers decide nothing; limits and broken containers are errors of their own.

use crate::error::{Error, ErrorKind, Result};

/// Why a line is skipped.
pub(super) const NO_STACK: &str = "expected \"stack count\"";

/// What a file is expected to be that is nothing known.
const EXPECTED: &str =
    "expected a profile (pprof, folded stacks, speedscope, Firefox, OTLP or text of perf script)";

/// Counts of one file.
#[derive(Debug)]
pub(super) struct Tally {
    file: String,
    unit: &'static str,
    understood: u64,
    skipped: u64,
    /// Place and reason of the first that was skipped.
    first: Option<String>,
    remarks: Vec<String>,
    /// Which of several values of a stack is wanted.
    value_type: Option<String>,
}

impl Tally {
    /// Of a file by the name that messages carry.
    pub(super) fn new(file: &str) -> Tally {
        Tally {
            file: file.to_owned(),
            unit: "line",
            understood: 0,
            skipped: 0,
            first: None,
            remarks: Vec::new(),
            value_type: None,
        }
    }

    /// Of several values of a stack this one is wanted.
    pub(super) fn with_value_type(self, value_type: Option<&str>) -> Tally {
        Tally { value_type: value_type.map(str::to_owned), ..self }
    }

    /// Which of several values of a stack is wanted.
    pub(super) fn value_type(&self) -> Option<&str> {
        self.value_type.as_deref()
    }

    /// Counts a line or sample that was understood.
    pub(super) fn understand(&mut self) {
        self.understood += 1;
    }

    /// Lines or samples that were understood.
    pub(super) fn understood(&self) -> u64 {
        self.understood
    }

    /// Counts a line that is skipped.
    pub(super) fn skip_line(&mut self, number: u64, why: &str) {
        self.skipped += 1;
        let file = &self.file;
        self.first.get_or_insert_with(|| format!("{file}:{number}: {why}"));
    }

    /// Counts a sample that is skipped; `why` says which and what is wrong with it.
    pub(super) fn skip_sample(&mut self, why: impl FnOnce() -> String) {
        self.unit = "sample";
        self.skipped += 1;
        if self.first.is_none() {
            self.first = Some(format!("{}: {}", self.file, why()));
        }
    }

    /// Notes what was read and left out by intent.
    pub(super) fn remark(&mut self, text: &str) {
        self.remarks.push(format!("{}: {text}", self.file));
    }

    /// The remarks on what was skipped or left out.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if more than half was skipped or, in strict reading, anything.
    pub(super) fn judge(mut self, strict: bool) -> Result<Vec<String>> {
        let Some(first) = self.first.take() else { return Ok(self.remarks) };
        let (skipped, unit) = (self.skipped, self.unit);
        let all = self.understood.saturating_add(skipped);
        let refused = |text: String| Err(Error::new(ErrorKind::Input, text));
        if skipped > self.understood {
            let next = if self.understood == 0 && first.ends_with(NO_STACK) {
                format!("; {EXPECTED}")
            } else {
                String::new()
            };
            return refused(match all {
                1 => format!("{first}{next}"),
                _ => format!("{first}; {skipped} of {all} {unit}s not understood{next}"),
            });
        }
        let plural = if skipped == 1 { "" } else { "s" };
        if strict {
            return refused(format!("{first}; {skipped} {unit}{plural} not understood (--strict)"));
        }
        self.remarks.insert(0, format!("{skipped} {unit}{plural} not understood, first: {first}"));
        Ok(self.remarks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(understood: u64, skipped: u64) -> Tally {
        let mut tally = Tally::new("a");
        (0..understood).for_each(|_| tally.understand());
        (0..skipped).for_each(|number| tally.skip_line(number + 3, "odd"));
        tally
    }

    #[test]
    fn what_was_skipped_is_told_or_refused() {
        assert_eq!(of(9, 0).judge(true).expect("all understood"), [""; 0]);
        assert_eq!(of(2, 2).judge(false).expect("half"), ["2 lines not understood, first: a:3: odd"]);
        assert_eq!(of(2, 1).judge(false).expect("less"), ["1 line not understood, first: a:3: odd"]);
        let refused = |tally: Tally, strict| tally.judge(strict).expect_err("refused").to_string();
        assert_eq!(refused(of(2, 1), true), "a:3: odd; 1 line not understood (--strict)");
        assert_eq!(refused(of(1, 2), false), "a:3: odd; 2 of 3 lines not understood");
        assert_eq!(refused(of(0, 1), false), "a:3: odd");
        // Folded stacks are what is taken to be nothing else.
        let mut text = Tally::new("a");
        text.skip_line(1, NO_STACK);
        assert_eq!(refused(text, false), format!("a:1: {NO_STACK}; {EXPECTED}"));
    }

    #[test]
    fn samples_are_told_by_their_reason() {
        let mut tally = Tally::new("a");
        tally.understand();
        tally.skip_sample(|| "sample 2 weighs -1".to_owned());
        tally.remark("2 events left out");
        assert_eq!(
            tally.judge(false).expect("half"),
            ["1 sample not understood, first: a: sample 2 weighs -1", "a: 2 events left out"]
        );
    }
}
