//! Fractional counts: added up exactly, rounded at the end.
//!
//! Input: fractions of counts by node. Output: whole counts in the profile. Whole sums are unchanged; if
//! rounding would change shares, all counts are multiplied by a power of 1000 and the unit says so
//! (`millisamples`).

use std::collections::HashMap;

use crate::profile::builder::SavedBuilder;
use crate::profile::full::Full;
use crate::trie::NodeId;

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
    use crate::profile::about::About;
    use crate::profile::saved::StackRoot;

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
