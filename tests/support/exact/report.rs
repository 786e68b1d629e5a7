//! The tables of the exactness harness as text: outcomes in, lines out.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

use super::{Failure, Outcome, Score, WAYS};

/// Addresses that are shown with their instructions.
const WORST: usize = 20;

/// A table with one line per program, exact / wrong / incomplete in percent for each way.
pub(crate) fn table(outcomes: &[(String, Outcome)]) -> String {
    let mut out = format!("{:<48} {:>9}", "program", "compared");
    for (name, _) in WAYS {
        let _ = write!(out, "  {:<22}", format!("{name}: exact/wrong/inc."));
    }
    out.push('\n');
    let mut sum = [Score::default(); WAYS.len()];
    for (name, outcome) in outcomes {
        line(&mut out, name, &outcome.scores);
        for (sum, score) in sum.iter_mut().zip(&outcome.scores) {
            sum.exact += score.exact;
            sum.wrong += score.wrong;
            sum.incomplete += score.incomplete;
        }
    }
    line(&mut out, "all", &sum);
    out
}

fn line(out: &mut String, name: &str, scores: &[Score]) {
    let _ = write!(out, "{name:<48} {:>9}", scores[0].all());
    for score in scores {
        let share = |n: u64| 100.0 * n as f64 / score.all().max(1) as f64;
        let text =
            format!("{:.3}/{:.3}/{:.3}", share(score.exact), share(score.wrong), share(score.incomplete));
        let _ = write!(out, "  {text:<22}");
    }
    out.push('\n');
}

/// Failures of one way of walking: by class, then the worst addresses.
pub(crate) fn failures(outcomes: &[(String, Outcome)], way: usize) -> String {
    let mut all: BTreeMap<&(String, u64), Failure> = BTreeMap::new();
    let mut classes: BTreeMap<&str, Score> = BTreeMap::new();
    for (_, outcome) in outcomes {
        for (place, failure) in &outcome.failures[way] {
            let entry =
                all.entry(place).or_insert_with(|| Failure { wrong: 0, incomplete: 0, ..failure.clone() });
            entry.wrong += failure.wrong;
            entry.incomplete += failure.incomplete;
            let class = classes.entry(failure.class).or_default();
            class.wrong += failure.wrong;
            class.incomplete += failure.incomplete;
        }
    }
    let mut out = format!("failures of {}: class, wrong but complete, incomplete\n", WAYS[way].0);
    for (class, score) in classes {
        let _ = writeln!(out, "  {class:<24} {:>8} {:>8}", score.wrong, score.incomplete);
    }
    let mut worst: Vec<_> = all.into_iter().collect();
    worst.sort_by_key(|(_, failure)| std::cmp::Reverse((failure.wrong + failure.incomplete, failure.wrong)));
    for ((path, svma), failure) in worst.into_iter().take(WORST) {
        let file = path.rsplit('/').next().unwrap_or(path);
        let _ = writeln!(
            out,
            "  {:>7} wrong {:>7} incomplete  {file}+{svma:#x} ({})\n      {}\n{}",
            failure.wrong,
            failure.incomplete,
            failure.class,
            failure.example,
            disassembly(path, *svma)
        );
    }
    out
}

fn disassembly(path: &str, svma: u64) -> String {
    let range = [format!("--start-address={svma:#x}"), format!("--stop-address={:#x}", svma + 12)];
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).args(range).arg(path).output();
    let Ok(output) = output else { return String::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter(|line| line.contains('\t') || line.ends_with(">:")).take(3);
    lines.map(|line| format!("        {}\n", line.trim())).collect::<String>()
}
