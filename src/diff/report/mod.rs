//! A comparison as text for the terminal, a page or a program.
//!
//! Input: a [`Comparison`]. Output: text. Only formats values.

pub mod folded;
pub mod json;
pub mod markdown;
pub mod text;

use super::compare::{Comparison, Measure, Pair, Side};
use super::loss::LOST_NOTED;
use crate::escape::escape_line;

/// A value for people: `0.39 s`, `12.3%`, `412`.
#[must_use]
pub fn value(value: f64, measure: Measure) -> String {
    match measure {
        Measure::Seconds => format!("{} s", digits(value)),
        Measure::Share => format!("{:.2}%", 100.0 * value),
        Measure::Samples => format!("{value:.0}"),
    }
}

/// A change with its sign: `+0.52 s`, `-1.20 pt`, `+12`. `pt` are percentage points.
#[must_use]
pub fn change(value: f64, measure: Measure) -> String {
    let sign = if value < 0.0 { '-' } else { '+' };
    let size = value.abs();
    match measure {
        Measure::Seconds => format!("{sign}{} s", digits(size)),
        Measure::Share => format!("{sign}{:.2} pt", 100.0 * size),
        Measure::Samples => format!("{sign}{size:.0}"),
    }
}

/// The change of a pair: `+133%`, `new`, `gone`, `=`.
#[must_use]
pub fn relative(base: f64, new: f64) -> String {
    match (base > 0.0, new > 0.0) {
        (false, false) => "=".to_owned(),
        (false, true) => "new".to_owned(),
        (true, false) => "gone".to_owned(),
        (true, true) => percent(new / base - 1.0),
    }
}

/// A relative change: `+5.2%`, `-0.4%`, `+133%`, `x12` from ten times on.
#[must_use]
pub fn percent(change: f64) -> String {
    let percent = 100.0 * change;
    if percent.is_infinite() {
        "new".to_owned()
    } else if percent >= 900.0 {
        format!("x{:.0}", change + 1.0)
    } else if percent.abs() >= 99.95 {
        format!("{percent:+.0}%")
    } else {
        // Not `-0.0%`.
        format!("{:+.1}%", if percent.abs() < 0.05 { 0.0 } else { percent })
    }
}

/// Seconds with three significant digits.
#[must_use]
pub fn digits(seconds: f64) -> String {
    match seconds.abs() {
        0.0..9.995 => format!("{seconds:.3}"),
        9.995..99.95 => format!("{seconds:.2}"),
        _ => format!("{seconds:.1}"),
    }
}

/// The name of the measure in a sentence.
#[must_use]
pub fn measure_words(comparison: &Comparison) -> &str {
    match comparison.measure {
        Measure::Seconds => "CPU seconds",
        Measure::Share => "shares of each profile",
        Measure::Samples => &comparison.unit,
    }
}

/// The line with the change of the whole.
#[must_use]
pub fn headline(comparison: &Comparison) -> String {
    let Comparison { base, new, .. } = comparison;
    let whole = comparison.whole();
    let counted = |count: u64| format!("{count} {}", comparison.unit);
    match comparison.measure {
        Measure::Share => format!("{} -> {}", counted(whole.base), counted(whole.new)),
        measure => {
            let (a, b) = (base.value(whole.base, measure), new.value(whole.new, measure));
            let change = relative(a, b);
            if measure == Measure::Samples {
                format!("{} -> {} ({change})", counted(whole.base), counted(whole.new))
            } else {
                format!("{} -> {} of CPU time ({change})", value(a, measure), value(b, measure))
            }
        }
    }
}

/// Notes for readers of the table, one line each.
#[must_use]
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let Comparison { base, new, .. } = comparison;
    if base.processes != new.processes {
        notes.push(format!(
            "the processes have different names: {} and {}",
            base.processes.join(", "),
            new.processes.join(", ")
        ));
    }
    if base.lost.apart(&new.lost) > LOST_NOTED {
        notes.push(format!(
            "lost: {} of base, {} of new; what was lost is in no sum and no function, so record both in the same way, as the same user",
            lost(base),
            lost(new)
        ));
    }
    // A larger difference in stacks without callers distorts the totals of callers.
    const INCOMPLETE_SHIFT: f64 = 0.05;
    let incomplete = (base.share(base.incomplete), new.share(new.incomplete));
    if (incomplete.0 - incomplete.1).abs() > INCOMPLETE_SHIFT {
        notes.push(format!(
            "stacks without their outer part: {:.1}% of base, {:.1}% of new; totals of outer functions are not comparable",
            100.0 * incomplete.0,
            100.0 * incomplete.1
        ));
    }
    for side in [base, new] {
        if side.waiting_left_out > 0 {
            notes.push(format!(
                "{}: {} samples of waiting threads left out (--idle takes them in)",
                escape_line(&side.source),
                side.waiting_left_out
            ));
        }
    }
    notes
}

/// The lost fraction of a side, and its main cause.
fn lost(side: &Side) -> String {
    if side.lost.counts.is_empty() {
        return "unknown".to_owned();
    }
    format!("{:.1}% ({})", 100.0 * side.lost.part, side.lost.main_reason())
}

/// At most `top` changed rows, and the number of further ones.
fn changed(comparison: &Comparison, top: usize) -> (Vec<&super::compare::Row>, usize) {
    let differs = |pair: Pair| comparison.change(pair) != 0.0;
    let rows: Vec<_> = comparison.rows.iter().filter(|row| differs(row.own) || differs(row.total)).collect();
    let more = rows.len().saturating_sub(top);
    (rows.into_iter().take(top).collect(), more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::compare::MeasureChoice;
    use crate::diff::stacks::tests::saved;
    use crate::diff::stacks::{Matching, Stacks};
    use crate::profile::About;

    /// Two whole commands of 100 samples each, plus these losses.
    fn lossy(base: u64, new: u64) -> Comparison {
        let mut stacks = Stacks::new(Matching::default());
        for (name, lost) in [("base", base), ("new", new)] {
            let lost = [("in the kernel, which may not be sampled".to_owned(), lost)];
            let about = About {
                hz: Some(100),
                launched: Some(true),
                lost: lost.into_iter().filter(|(_, counts)| *counts > 0).collect(),
                ..About::default()
            };
            stacks.add(name, &saved(about, "work", &[("main", 100)]), None).expect("fits");
        }
        Comparison::of(&stacks, MeasureChoice::Auto).expect("both have samples")
    }

    #[test]
    fn differing_losses_are_reported() {
        let note = "lost: 20.0% (in the kernel, which may not be sampled) of base, unknown of new; \
                    what was lost is in no sum and no function, so record both in the same way, as the same user";
        let unlike = lossy(25, 0);
        assert_eq!(notes(&unlike), [note]);
        assert!(text::text(&unlike, 9).contains(&format!("\nnote: {note}\n")));
        assert!(markdown::markdown(&unlike, 9).contains("Note: lost: 20.0% (in the kernel"));
        let json: serde_json::Value = serde_json::from_str(&json::json(&unlike)).expect("JSON");
        assert_eq!(json["notes"], serde_json::json!([note]));
        assert_eq!((&json["base"]["lost_share"], &json["new"]["lost_share"]), (&0.2.into(), &0.0.into()));
        assert_eq!(json["base"]["samples_lost"]["in the kernel, which may not be sampled"], 25);
        let [note] = &notes(&lossy(5, 2))[..] else { panic!("more than two points apart") };
        assert!(note.contains("of base, 2.0% (in the kernel, which may not be sampled) of new; "), "{note}");
        assert_eq!(notes(&lossy(67, 66)).len() + notes(&lossy(2, 0)).len() + notes(&lossy(0, 0)).len(), 0);
    }

    #[test]
    fn values_are_formatted_for_people() {
        assert_eq!(value(0.3914, Measure::Seconds), "0.391 s");
        assert_eq!(value(12.345, Measure::Seconds), "12.35 s");
        assert_eq!(value(0.1234, Measure::Share), "12.34%");
        assert_eq!(change(-0.012, Measure::Share), "-1.20 pt");
        assert_eq!(change(12.0, Measure::Samples), "+12");
        assert_eq!(relative(0.0, 1.0), "new");
        assert_eq!(relative(1.0, 0.0), "gone");
        assert_eq!(relative(1.0, 1.0004), "+0.0%");
        assert_eq!(relative(1.0, 2.4), "+140%");
        assert_eq!(relative(1.0, 12.0), "x12");
        assert_eq!(percent(-0.0001), "+0.0%");
        assert_eq!(percent(f64::INFINITY), "new");
    }
}
