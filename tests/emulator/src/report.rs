//! The figures: how many walks were exact, by program, variant and class of boundary.
//!
//! Input: judged boundaries. Output: a table, the wrong addresses with their instructions,
//! and what falls below the bar.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;


use crate::fixtures::{FramePointers, Variant, run};
use crate::load::Image;
use crate::machine::{Outcome, Verdict, must_be_exact};
use crate::shadow::Class;

/// Wrong addresses that are listed of a program, and of the whole.
const WORST: usize = 20;

/// Boundaries that all programs of a variant have at least of each class with a bar: fewer
/// were not measured.
const BOUNDARIES_MIN: u64 = 1000;

/// Of all boundaries of a processor and a treatment of frame pointers, those that `auto` walks
/// exactly at least, and those that any method walks wrongly and takes for complete at most.
const EXACT_PER_MILLE: u64 = 995;
const WRONG_ROOT_PER_10_000: u64 = 1;

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: u64,
    /// All addresses are right.
    exact: u64,
    /// The addresses are right, but the walk does not say that they are all.
    unfinished: u64,
    /// Ended as if complete, with wrong addresses.
    wrong_root: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.all += other.all;
        self.exact += other.exact;
        self.unfinished += other.unfinished;
        self.wrong_root += other.wrong_root;
    }

    fn share(&self) -> String {
        match self.all {
            0 => "-".to_string(),
            _ if self.exact == self.all => "100".to_string(),
            _ => format!("{:.2}", (self.exact as f64 / self.all as f64 * 1e4).floor() / 1e2),
        }
    }
}

/// One program, built one way, walked one way.
struct Row {
    program: &'static str,
    variant: Variant,
    method: &'static str,
    tallies: BTreeMap<Class, Tally>,
    wrong: Vec<Wrong>,
    signed: u64,
    walking: Duration,
}

/// An address whose walks were wrong, or right and not known to be complete.
struct Wrong {
    class: Class,
    count: u64,
    as_root: u64,
    place: String,
    instruction: String,
    /// Of one of the walks: where it went wrong, and how it ended.
    example: String,
}

#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    pub fn add(
        &mut self,
        program: &'static str,
        variant: Variant,
        method: &'static str,
        outcome: &Outcome,
        images: &[&Image],
    ) {
        let mut tallies: BTreeMap<Class, Tally> = BTreeMap::new();
        let mut wrong: BTreeMap<(u64, Class), (u64, u64, Verdict)> = BTreeMap::new();
        for judged in &outcome.judged {
            let (exact, root) = (judged.verdict.exact, judged.verdict.ended.is_complete());
            tallies.entry(judged.class).or_default().add(&Tally {
                all: 1,
                exact: exact.into(),
                unfinished: (exact && !root).into(),
                wrong_root: (!exact && root).into(),
            });
            if !(exact && root) {
                let counts = wrong.entry((judged.pc, judged.class)).or_insert((0, 0, judged.verdict));
                counts.0 += 1;
                counts.1 += u64::from(root);
                if !exact && counts.2.exact {
                    counts.2 = judged.verdict;
                }
            }
        }
        let instructions = if wrong.is_empty() { BTreeMap::new() } else { disassembly(images) };
        let mut wrong: Vec<Wrong> = wrong
            .into_iter()
            .map(|((pc, class), (count, as_root, verdict))| Wrong {
                example: example(&verdict, outcome),
                class,
                count,
                as_root,
                place: outcome.names[&pc].clone(),
                instruction: instructions.get(&pc).cloned().unwrap_or_default(),
            })
            .collect();
        wrong.sort_by_key(|wrong| std::cmp::Reverse(wrong.count));
        let (signed, walking) = (outcome.signed, outcome.walking);
        self.rows.push(Row { program, variant, method, tallies, wrong, signed, walking });
    }

    /// Exact shares in per cent, rounded down; 100 is all of them.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<10} {:<7} {:<3} {:<9} {:<4} {:>10}",
            "program", "cpu", "", "frames", "", "boundaries"
        );
        for class in Class::ALL {
            let _ = write!(out, " {:>9}", class.name());
        }
        let _ = writeln!(out, " {:>9} {:>10} {:>10}", "all", "false root", "unfinished");
        for row in &self.rows {
            line(&mut out, row.program, row.variant.optimisation, row, &row.tallies);
        }
        for group in self.groups() {
            line(&mut out, "ALL", "", group[0], &sum(&group));
        }
        out.push_str("\nworst addresses by processor, frame pointers and method:\n");
        for group in self.groups() {
            worst(&mut out, &group);
        }
        out
    }

    pub fn details(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            worst(&mut out, &[row]);
        }
        out
    }

    /// What must be exact and is not.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for group in self.groups() {
            let (arch, frames) = (group[0].variant.arch, group[0].variant.frames);
            if frames == FramePointers::KeptAndSigned && group.iter().all(|row| row.signed == 0) {
                failures.push(format!("{} {}: nothing was signed", arch.name(), frames.name()));
            }
            let mut all = Tally::default();
            sum(&group).values().for_each(|tally| all.add(tally));
            let whole = format!("{} {} {}", arch.name(), frames.name(), group[0].method);
            if group[0].method == "auto" && all.exact * 1000 < all.all * EXACT_PER_MILLE {
                failures.push(format!("{whole}: only {} of {} walks are exact", all.exact, all.all));
            }
            if all.wrong_root * 10_000 > all.all * WRONG_ROOT_PER_10_000 {
                failures.push(format!("{whole}: {} wrong walks ended as if complete", all.wrong_root));
            }
            for (class, tally) in sum(&group) {
                let what = format!("{whole} {}", class.name());
                if class == Class::Framed && tally.wrong_root > 0 {
                    failures.push(format!("{what}: {} wrong walks ended as if complete", tally.wrong_root));
                }
                if frames != FramePointers::Omitted && must_be_exact(arch, class) {
                    let wrong = tally.all - tally.exact;
                    if wrong + tally.unfinished > 0 {
                        failures.push(format!(
                            "{what}: {wrong} wrong, {} not complete, of {}",
                            tally.unfinished, tally.all
                        ));
                    }
                    if tally.all < BOUNDARIES_MIN {
                        failures.push(format!("{what}: only {} boundaries", tally.all));
                    }
                }
            }
        }
        failures
    }

    /// Per cent of exact walks of a class, over everything measured.
    pub fn exact_share(&self, class: Class) -> f64 {
        let rows: Vec<&Row> = self.rows.iter().collect();
        let tally = sum(&rows).get(&class).copied().unwrap_or_default();
        tally.exact as f64 / tally.all.max(1) as f64 * 100.0
    }

    /// Mean time of a walk, the read of the clock included.
    pub fn walk_ns(&self) -> u64 {
        let walks: u64 = self.rows.iter().flat_map(|row| row.tallies.values()).map(|tally| tally.all).sum();
        let time: Duration = self.rows.iter().map(|row| row.walking).sum();
        time.as_nanos() as u64 / walks.max(1)
    }

    /// Rows of one processor, treatment of frame pointers, and method.
    fn groups(&self) -> Vec<Vec<&Row>> {
        let mut groups: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
        for row in &self.rows {
            groups.entry((row.variant.arch, row.variant.frames, row.method)).or_default().push(row);
        }
        groups.into_values().collect()
    }
}

fn sum(rows: &[&Row]) -> BTreeMap<Class, Tally> {
    let mut sum: BTreeMap<Class, Tally> = BTreeMap::new();
    for (class, tally) in rows.iter().flat_map(|row| &row.tallies) {
        sum.entry(*class).or_default().add(tally);
    }
    sum
}

fn line(out: &mut String, program: &str, optimisation: &str, row: &Row, tallies: &BTreeMap<Class, Tally>) {
    let mut all = Tally::default();
    tallies.values().for_each(|tally| all.add(tally));
    let (arch, frames) = (row.variant.arch.name(), row.variant.frames.name());
    let _ = write!(
        out,
        "{program:<10} {arch:<7} {optimisation:<3} {frames:<9} {:<4} {:>10}",
        row.method, all.all
    );
    for class in Class::ALL {
        let _ = write!(out, " {:>9}", tallies.get(&class).copied().unwrap_or_default().share());
    }
    let _ = writeln!(out, " {:>9} {:>10} {:>10}", all.share(), all.wrong_root, all.unfinished);
}

fn worst(out: &mut String, rows: &[&Row]) {
    let mut wrong: Vec<(&Row, &Wrong)> =
        rows.iter().flat_map(|row| row.wrong.iter().map(|wrong| (*row, wrong))).collect();
    wrong.sort_by_key(|(_, wrong)| std::cmp::Reverse(wrong.count));
    for (row, wrong) in wrong.iter().take(WORST) {
        let variant = row.variant;
        let _ = writeln!(
            out,
            "  {:>7} not right, {:>7} of them as root: {:<9} {} {} {} {}: {} {}: {}; {}",
            wrong.count,
            wrong.as_root,
            wrong.class.name(),
            variant.arch.name(),
            variant.optimisation,
            variant.frames.name(),
            row.method,
            row.program,
            wrong.place,
            wrong.instruction,
            wrong.example,
        );
    }
    if wrong.len() > WORST {
        let _ = writeln!(out, "          and {} more addresses", wrong.len() - WORST);
    }
}

fn example(verdict: &Verdict, outcome: &Outcome) -> String {
    let (frame, found) = verdict.differs_at;
    let what = match (verdict.exact, outcome.names.get(&found)) {
        (true, _) => "all found".to_string(),
        (false, Some(name)) => format!("frame {frame} is {name}"),
        (false, None) => format!("frame {frame} is {found:#x}"),
    };
    format!("{what}, {}", verdict.ended.reason())
}

/// The instructions of the images, at their addresses in memory.
fn disassembly(images: &[&Image]) -> BTreeMap<u64, String> {
    let mut instructions = BTreeMap::new();
    for image in images {
        let text = run(Command::new("llvm-objdump-19").args(["-d", "--no-show-raw-insn"]).arg(&image.path));
        for line in text.lines() {
            let Some((address, instruction)) = line.trim().split_once(':') else { continue };
            if let Ok(address) = u64::from_str_radix(address, 16) {
                let instruction = instruction.split_whitespace().collect::<Vec<_>>().join(" ");
                instructions.insert(address + image.slide, instruction);
            }
        }
    }
    instructions
}
