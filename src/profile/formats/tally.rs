//! Counts the valid and invalid parts of a file, and decides what follows.
//!
//! Input: each line or sample, valid, or skipped with its position and reason. Output: remarks for the user,
//! or an error: in strict reading at the first skipped one, always if more than half were skipped. Readers
//! decide nothing; limits and broken containers are separate errors.

use crate::error::{Error, ErrorKind, Result};
use crate::profile::labels::LABEL_SETS_MAX;

/// Why a line is skipped.
pub(super) const NO_STACK: &str = "expected \"stack count\"";

/// Expectation for a file of unknown format.
const EXPECTED: &str =
    "expected a profile (pprof, folded stacks, speedscope, Firefox, OTLP or text of perf script)";

/// Counts of one file.
#[derive(Debug)]
pub(super) struct Tally {
    file: String,
    unit: &'static str,
    understood: u64,
    skipped: u64,
    /// Position and reason of the first skipped one.
    first: Option<String>,
    remarks: Vec<String>,
    /// Requested type among several values of a stack.
    value_type: Option<String>,
}

impl Tally {
    /// Returns an empty tally; `file` is the name for messages.
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

    /// Sets the requested type among several values of a stack.
    pub(super) fn with_value_type(self, value_type: Option<&str>) -> Tally {
        Tally { value_type: value_type.map(str::to_owned), ..self }
    }

    /// Requested type among several values of a stack.
    pub(super) fn value_type(&self) -> Option<&str> {
        self.value_type.as_deref()
    }

    /// Counts a valid line or sample.
    pub(super) fn understand(&mut self) {
        self.understood += 1;
    }

    /// Number of valid lines or samples.
    pub(super) fn understood(&self) -> u64 {
        self.understood
    }

    /// Counts a skipped line.
    pub(super) fn skip_line(&mut self, number: u64, why: &str) {
        self.skipped += 1;
        let file = &self.file;
        self.first.get_or_insert_with(|| format!("{file}:{number}: {why}"));
    }

    /// Counts a skipped sample; `why` returns its position and error.
    pub(super) fn skip_sample(&mut self, why: impl FnOnce() -> String) {
        self.unit = "sample";
        self.skipped += 1;
        if self.first.is_none() {
            self.first = Some(format!("{}: {}", self.file, why()));
        }
    }

    /// Adds a remark on a part that was excluded on purpose.
    pub(super) fn remark(&mut self, text: &str) {
        self.remarks.push(format!("{}: {text}", self.file));
    }

    /// Adds a remark on samples whose labels are left out.
    pub(super) fn remark_labels(&mut self, samples: u64) {
        if samples > 0 {
            self.remark(&format!(
                "labels of {samples} samples are left out: more than {LABEL_SETS_MAX} distinct ones"
            ));
        }
    }

    /// Returns the remarks on skipped or excluded parts.
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
    fn skipped_parts_are_reported_or_refused() {
        assert_eq!(of(9, 0).judge(true).expect("all understood"), [""; 0]);
        assert_eq!(of(2, 2).judge(false).expect("half"), ["2 lines not understood, first: a:3: odd"]);
        assert_eq!(of(2, 1).judge(false).expect("less"), ["1 line not understood, first: a:3: odd"]);
        let refused = |tally: Tally, strict| tally.judge(strict).expect_err("refused").to_string();
        assert_eq!(refused(of(2, 1), true), "a:3: odd; 1 line not understood (--strict)");
        assert_eq!(refused(of(1, 2), false), "a:3: odd; 2 of 3 lines not understood");
        assert_eq!(refused(of(0, 1), false), "a:3: odd");
        // Folded stacks are the fallback format.
        let mut text = Tally::new("a");
        text.skip_line(1, NO_STACK);
        assert_eq!(refused(text, false), format!("a:1: {NO_STACK}; {EXPECTED}"));
    }

    #[test]
    fn skipped_samples_are_reported_with_their_reason() {
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
