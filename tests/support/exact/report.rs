//! The tables of the exactness harness as text: outcomes in, lines out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use super::{Failure, Outcome, Score, WAYS, has};

/// Number of addresses to show with their instructions.
const WORST: usize = 20;
/// Bytes of code to show for each.
const BYTES_SHOWN: usize = 16;

/// A table with one line per program, exact / wrong / incomplete in percent for each method.
pub(crate) fn table(outcomes: &[(String, Outcome)]) -> String {
    let width = outcomes.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = format!("{:<width$} {:>9} {:>9}", "program", "compared", "untold");
    for (name, _) in WAYS {
        let _ = write!(out, "  {:<22}", format!("{name}: exact/wrong/inc."));
    }
    out.push('\n');
    for (name, outcome) in outcomes {
        line(&mut out, name, width, &outcome.scores);
    }
    line(&mut out, "all", width, &sum(outcomes));
    let groups: BTreeSet<&str> = outcomes.iter().filter_map(|(_, outcome)| outcome.group).collect();
    for group in groups {
        let of_group = outcomes.iter().filter(|(_, outcome)| outcome.group == Some(group));
        line(&mut out, group, width, &sum_of(of_group));
    }
    out.push_str(
        "untold: not complete, and said so, where the copied stack does not tell all frames (of auto)\n",
    );
    out
}

/// The scores of all programs together, one per method.
pub(crate) fn sum(outcomes: &[(String, Outcome)]) -> [Score; WAYS.len()] {
    sum_of(outcomes.iter())
}

fn sum_of<'a>(outcomes: impl Iterator<Item = &'a (String, Outcome)>) -> [Score; WAYS.len()] {
    let mut sum = [Score::default(); WAYS.len()];
    for (_, outcome) in outcomes {
        for (sum, score) in sum.iter_mut().zip(&outcome.scores) {
            sum.exact += score.exact;
            sum.wrong += score.wrong;
            sum.incomplete += score.incomplete;
            sum.untold += score.untold;
        }
    }
    sum
}

fn line(out: &mut String, name: &str, width: usize, scores: &[Score; WAYS.len()]) {
    let auto = &scores[WAYS.len() - 1];
    let _ = write!(out, "{name:<width$} {:>9} {:>9}", auto.all() + auto.untold, auto.untold);
    for score in scores {
        let share = |n: u64| 100.0 * n as f64 / score.all().max(1) as f64;
        let text =
            format!("{:.3}/{:.3}/{:.3}", share(score.exact), share(score.wrong), share(score.incomplete));
        let _ = write!(out, "  {text:<22}");
    }
    out.push('\n');
}

/// Failures by class: wrong but complete, and incomplete, for each method.
pub(crate) fn classes(outcomes: &[(String, Outcome)]) -> String {
    let mut classes: BTreeMap<&str, [Score; WAYS.len()]> = BTreeMap::new();
    for (_, outcome) in outcomes {
        for (way, failures) in outcome.failures.iter().enumerate() {
            for failure in failures.values() {
                let score = &mut classes.entry(failure.class).or_default()[way];
                score.wrong += failure.wrong;
                score.incomplete += failure.incomplete;
            }
        }
    }
    let mut out = format!("{:<24}", "failed at");
    for (name, _) in WAYS {
        let _ = write!(out, "  {:<18}", format!("{name}: wrong/inc."));
    }
    out.push('\n');
    for (class, scores) in classes {
        let _ = write!(out, "{class:<24}");
        for score in scores {
            let _ = write!(out, "  {:<18}", format!("{}/{}", score.wrong, score.incomplete));
        }
        out.push('\n');
    }
    out
}

/// The worst addresses of one method, with their instructions.
pub(crate) fn worst(outcomes: &[(String, Outcome)], way: usize) -> String {
    let mut all: BTreeMap<&(String, u64), Failure> = BTreeMap::new();
    for (_, outcome) in outcomes {
        for (place, failure) in &outcome.failures[way] {
            let entry =
                all.entry(place).or_insert_with(|| Failure { wrong: 0, incomplete: 0, ..failure.clone() });
            entry.wrong += failure.wrong;
            entry.incomplete += failure.incomplete;
        }
    }
    let mut worst: Vec<_> = all.into_iter().collect();
    worst.sort_by_key(|(_, failure)| std::cmp::Reverse((failure.wrong, failure.incomplete)));
    let mut out =
        format!("worst addresses of {}, {} of {}\n", WAYS[way].0, worst.len().min(WORST), worst.len());
    for ((path, svma), failure) in worst.into_iter().take(WORST) {
        let file = path.rsplit('/').next().unwrap_or(path);
        let _ = writeln!(
            out,
            "  {:>7} wrong {:>7} incomplete  {file}+{svma:#x} ({})\n      {}\n{}",
            failure.wrong,
            failure.incomplete,
            failure.class,
            failure.example,
            disassembly(path, *svma, &failure.code)
        );
    }
    out
}

/// The instructions at an address by an available disassembler; else their bytes.
fn disassembly(path: &str, svma: u64, code: &[u8]) -> String {
    let tools = ["objdump", "llvm-objdump", "llvm-objdump-19"];
    let range =
        [format!("--start-address={svma:#x}"), format!("--stop-address={:#x}", svma.saturating_add(12))];
    if Path::new(path).exists()
        && let Some(tool) = tools.into_iter().find(|tool| has(tool))
        && let Ok(output) =
            Command::new(tool).args(["-d", "-C", "--no-show-raw-insn"]).args(range).arg(path).output()
    {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().filter(|line| line.contains('\t') || line.ends_with(">:")).take(3);
        return lines.map(|line| format!("        {}\n", line.trim())).collect();
    }
    match code {
        [] => "        SKIP no instructions: the address is in no image\n".to_owned(),
        code => {
            let bytes: String = code.iter().take(BYTES_SHOWN).map(|byte| format!(" {byte:02x}")).collect();
            format!("       {bytes}\n")
        }
    }
}
