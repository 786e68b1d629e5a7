//! Counts the valid and invalid parts of a file, and decides what follows.
//!
//! `Tally` counts, `Malformed` is an error without the file's name, `Fractions` adds fractional counts up exactly.
//!
//! Input: each line or sample, valid, or skipped with its position and reason. Output: remarks for the user,
//! or an error: in strict reading at the first skipped one, always if more than half were skipped. Readers
//! decide nothing; limits and broken containers are separate errors.

use std::collections::HashMap;
use std::fmt;

use crate::builder::SavedBuilder;
use crate::error::{self, Error, ErrorKind};
use crate::saved::{Full, LABEL_SETS_MAX, SavedProfile};
use crate::trie::NodeId;

/// Why a line is skipped.
pub(super) const NO_STACK: &str = "expected \"stack count\"";

/// Expectation for a file of unknown format.
const EXPECTED: &str =
    "expected a profile (pprof, folded stacks, speedscope, Firefox, OTLP or text of perf script)";

/// Counts of one file.
#[derive(Debug)]
pub(crate) struct Tally {
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

    /// Reads a profile and judges what was counted.
    pub(super) fn judged(
        read: impl FnOnce(&mut Tally) -> Result<SavedProfile, Malformed>,
    ) -> Result<SavedProfile, Malformed> {
        let mut tally = Tally::new("profile");
        let saved = read(&mut tally)?;
        tally.judge(false).map(|_| saved).map_err(|why| Malformed::from(why.to_string()))
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
    pub(super) fn judge(mut self, strict: bool) -> error::Result<Vec<String>> {
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

// ---- Errors of a file without its name: a line for people, and the cause.

/// An error and its position in a file, as a line for people without the name of the file.
#[derive(Debug)]
pub struct Malformed {
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Malformed {
    /// A line about another error, which is kept as its source.
    pub(super) fn caused_by(
        text: String,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Malformed {
        Malformed { text, source: Some(Box::new(source)) }
    }

    /// Prefixes the error with its position: `thread 3: ...`.
    pub(super) fn at(self, place: impl fmt::Display) -> Malformed {
        Malformed { text: format!("{place}: {}", self.text), ..self }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Malformed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&**self.source.as_ref()?)
    }
}

impl From<String> for Malformed {
    fn from(text: String) -> Malformed {
        Malformed { text, source: None }
    }
}

impl From<&str> for Malformed {
    fn from(text: &str) -> Malformed {
        Malformed::from(text.to_owned())
    }
}

impl From<Full> for Malformed {
    fn from(full: Full) -> Malformed {
        Malformed::caused_by(full.to_string(), full)
    }
}

// ---- Fractional counts: added up exactly, rounded at the end.
//
// Whole sums are unchanged; if rounding would change shares, all counts are multiplied by a power of 1000 and the
// unit says so (`millisamples`).

/// Tolerance for a sum of decimal fractions that is a whole number.
const WHOLE_ENOUGH: f64 = 1e-6;
/// Fraction of the total that rounding may change.
const ERROR_MAX: f64 = 1e-3;
/// Factors for counts, and the resulting prefixes of the unit.
const SCALES: [(u64, &str); 4] = [(1, ""), (1_000, "milli"), (1_000_000, "micro"), (1_000_000_000, "nano")];
/// Largest total that may be multiplied further.
const TOTAL_MAX: f64 = 1e18;

/// The fractions of a profile.
#[derive(Debug, Default)]
pub(super) struct Fractions {
    /// By node: a fraction from 0 to below 1.
    rests: HashMap<u32, f64>,
}

impl Fractions {
    /// Adds `whole` counts and a fraction from 0 to below 1 to a node.
    pub(super) fn add(
        &mut self,
        builder: &mut SavedBuilder,
        node: NodeId,
        whole: u64,
        fraction: f64,
    ) -> Result<(), Full> {
        builder.count(node, whole)?;
        if fraction <= 0.0 {
            return Ok(());
        }
        let rest = self.rests.entry(node.0).or_default();
        *rest += fraction;
        if *rest >= 1.0 {
            *rest -= 1.0;
            builder.count(node, 1)?;
        }
        Ok(())
    }

    /// Adds any number; false, without effect, if it is negative, not finite or too large.
    pub(super) fn add_number(
        &mut self,
        builder: &mut SavedBuilder,
        node: NodeId,
        value: f64,
    ) -> Result<bool, Full> {
        // 2^64 is the first value that does not fit.
        if !(0.0..18_446_744_073_709_551_616.0).contains(&value) {
            return Ok(false);
        }
        let whole = value.floor();
        self.add(builder, node, whole as u64, value - whole)?;
        Ok(true)
    }

    /// Rounds all counts.
    pub(super) fn finish(mut self, builder: &mut SavedBuilder) -> Result<(), Full> {
        for (node, rest) in &mut self.rests {
            if *rest > 1.0 - WHOLE_ENOUGH {
                builder.count(NodeId(*node), 1)?;
                *rest = 0.0;
            }
        }
        self.rests.retain(|_, rest| *rest > WHOLE_ENOUGH);
        if self.rests.is_empty() {
            return Ok(());
        }
        let total = builder.so_far().total() as f64 + self.rests.values().sum::<f64>();
        let fits = |(factor, _): &&(u64, &str)| *factor == 1 || total * (*factor as f64) < TOTAL_MAX;
        let is_exact = |(factor, _): &&(u64, &str)| {
            let factor = *factor as f64;
            let error: f64 =
                self.rests.values().map(|rest| (rest * factor - (rest * factor).round()).abs()).sum();
            error <= total * factor * ERROR_MAX
        };
        let mut scales = SCALES.iter().filter(fits);
        let chosen = scales.clone().find(is_exact).or_else(|| scales.next_back());
        let (factor, prefix) = chosen.copied().unwrap_or((1, ""));
        if factor > 1 {
            for node in 0..builder.so_far().trie().node_count() as u32 {
                let count = builder.so_far().trie().count(NodeId(node));
                builder.count(NodeId(node), count.saturating_mul(factor - 1))?;
            }
            let unit = format!("{prefix}{}", builder.about().unit);
            builder.about().unit = unit;
        }
        for (node, rest) in &self.rests {
            builder.count(NodeId(*node), (rest * factor as f64).round() as u64)?;
        }
        Ok(())
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

#[cfg(test)]
mod fractions_tests {
    use super::*;
    use crate::about::About;
    use crate::saved::StackRoot;

    /// Counts and unit of stacks with these numbers.
    fn counts(numbers: &[&[f64]]) -> (Vec<u64>, String) {
        let mut builder = SavedBuilder::new(About::default());
        let mut fractions = Fractions::default();
        let mut nodes = Vec::new();
        for (index, numbers) in numbers.iter().enumerate() {
            let process = builder.text(&format!("p{index}")).expect("fits");
            let root = StackRoot::of(process);
            let root = builder.root(root).expect("fits");
            let node = builder.root_node(root).expect("fits");
            nodes.push(node);
            for number in *numbers {
                assert!(fractions.add_number(&mut builder, node, *number).expect("fits"), "{number}");
            }
        }
        fractions.finish(&mut builder).expect("fits");
        let saved = builder.finish();
        (nodes.iter().map(|node| saved.trie().count(*node)).collect(), saved.about.unit)
    }

    #[test]
    fn rounding_keeps_shares() {
        let of = |numbers: &[&[f64]]| counts(numbers);
        assert_eq!(of(&[&[1.0], &[2.0]]), (vec![1, 2], "samples".to_owned()));
        assert_eq!(of(&[&[0.4; 5], &[0.6; 5]]), (vec![2, 3], "samples".to_owned()));
        assert_eq!(of(&[&[0.1; 10], &[0.3; 10]]), (vec![1, 3], "samples".to_owned()));
        assert_eq!(of(&[&[1.5], &[2.5]]), (vec![1500, 2500], "millisamples".to_owned()));
        assert_eq!(of(&[&[0.000_04], &[0.000_08]]), (vec![40, 80], "microsamples".to_owned()));
        assert_eq!(of(&[&[1e6, 0.25], &[1.0]]), (vec![1_000_000, 1], "samples".to_owned()));
    }

    #[test]
    fn invalid_numbers_are_not_counted() {
        let mut builder = SavedBuilder::new(About::default());
        for number in [-1.0, f64::NAN, f64::INFINITY, 18_446_744_073_709_551_616.0] {
            let mut fractions = Fractions::default();
            assert!(!fractions.add_number(&mut builder, NodeId(0), number).expect("fits"), "{number}");
        }
    }
}
