//! Did it get slower? Several recordings of a program before a change, several after it, one verdict.
//!
//! ```text
//! measurements runs → CPU time of each run, whole and by function, in one unit; or why not
//! permutations every way to divide the runs, how far apart the sides are, many functions at once: p, q
//! interval     confidence intervals over runs
//! gain         gain of samples compared with the rest, its expected noise
//! detectable   the smallest growth that these runs could show
//! judge        all of these → a report; the rule for too few runs
//! verdict      the types of a report; where in the call tree it happened
//! report       the report as text, Markdown, JSON, JUnit XML, commands of GitHub Actions
//! ```
//!
//! All probabilities are over *runs*: samples of one run show how certain its own values are, not how much the next
//! run will differ. Same input and seed, same bytes. Not for comparing single profiles ([`diff`](crate::diff)), nor
//! for programs that do different work in each run.

pub mod detectable;
pub mod gain;
pub mod interval;
pub mod judge;
pub mod measurements;
pub mod permutations;
pub mod report;
pub mod verdict;

pub use judge::judge;
pub use measurements::{Incomparable, Measurements, check_side};
pub use verdict::{Options, Report, Verdict};

use crate::diff::stacks::Stacks;

/// Judges the runs of `stacks`, with `base_runs` base runs first.
///
/// # Errors
/// Which runs cannot be compared, and why.
pub fn check(
    stacks: &Stacks,
    base_runs: usize,
    different_names: bool,
    options: &Options,
) -> Result<Report, Incomparable> {
    let measurements = Measurements::of(stacks, base_runs, different_names)?;
    let mut report = judge(&measurements, options);
    detectable::add(&measurements, &mut report);
    let paths = verdict::CallPaths::of(stacks, &measurements);
    for function in &mut report.functions {
        if matches!(function.state, verdict::FunctionState::Slower | verdict::FunctionState::Moved) {
            function.place = paths.of_function(&function.name);
        }
    }
    let explained = report.functions.iter().any(|function| function.place.is_some());
    if report.total_grown && !explained {
        report.total_place = paths.of_total();
    }
    Ok(report)
}
