//! How exact stack walks of 32-bit Arm are: real programs executed instruction by instruction.
//!
//! Compiles the programs of tests/fixtures/arm in many ways, runs each in an emulator, walks the stack
//! at every instruction boundary by every way of walking, and compares all addresses with the calls that
//! were really made. Prints a table, writes the worst addresses to a report, and fails below the bar.
//! scripts/exactness-arm.sh runs it.

mod build;
mod machine;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use stackprof::walk::UnwindMethod;

use build::{PROGRAMS, Variant, With};
use machine::Judged;

/// Exact boundaries of all, in 10,000: of the tables in bodies, of instructions with symbols and without,
/// and of the default everywhere.
const EXIDX_MIN: u64 = 9950;
const CODE_MIN: u64 = 9900;
const CODE_STRIPPED_MIN: u64 = 9500;
const AUTO_MIN: u64 = 9950;
/// Fewer boundaries were not measured.
const BOUNDARIES_MIN: u64 = 5000;

/// Each way of walking; the last one is told no status register, as by samples of the Linux kernel.
fn walks() -> impl Iterator<Item = (UnwindMethod, &'static str)> {
    UnwindMethod::ALL.into_iter().chain([(UnwindMethod::Auto, "untold")])
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: u64,
    exact: u64,
    bodies: u64,
    exact_bodies: u64,
    wrong_complete: u64,
    complete: u64,
}

impl Tally {
    fn add(&mut self, judged: &Judged, how: usize, only_own: bool) {
        if only_own && !judged.is_own {
            return;
        }
        let verdict = &judged.verdicts[how];
        self.all += 1;
        self.exact += u64::from(verdict.exact);
        self.bodies += u64::from(judged.is_body);
        self.exact_bodies += u64::from(judged.is_body && verdict.exact);
        self.complete += u64::from(verdict.exact && verdict.complete);
        self.wrong_complete += u64::from(!verdict.exact && verdict.complete);
    }

    fn plus(&mut self, other: &Tally) {
        self.all += other.all;
        self.exact += other.exact;
        self.bodies += other.bodies;
        self.exact_bodies += other.exact_bodies;
        self.complete += other.complete;
        self.wrong_complete += other.wrong_complete;
    }
}

fn share(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ if part == all => "100".to_owned(),
        _ => format!("{:.2}", (part as f64 / all as f64 * 1e4).floor() / 1e2),
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "exactness-arm".to_owned()));
    let only: Vec<String> = arguments.collect();
    // By build and way of walking: all boundaries, and those of the program's own functions.
    let mut tallies: BTreeMap<(String, usize), (Tally, Tally)> = BTreeMap::new();
    let mut worst: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for variant in Variant::all() {
        let named = format!("{} {}", variant.name(), variant.optimisation.to_lowercase());
        if !only.iter().all(|word| named.split(' ').any(|part| part == word)) {
            continue;
        }
        for program in PROGRAMS {
            let Some(built) = build::build(variant, program, &directory) else { continue };
            let outcome = machine::execute(&built);
            for (index, (_, name)) in walks().enumerate() {
                let (all, own) = tallies.entry((variant.name(), index)).or_default();
                for judged in &outcome.judged {
                    all.add(judged, index, false);
                    own.add(judged, index, true);
                    let verdict = &judged.verdicts[index];
                    let wanted = match name {
                        "auto" | "code" | "untold" => true,
                        "exidx" => variant.with == With::Exidx && judged.is_own && judged.is_body,
                        "cfi" => variant.with == With::Debug && judged.is_own && judged.is_body,
                        "fp" => variant.with == With::Apcs && judged.is_own && judged.is_body,
                        _ => false,
                    };
                    if !verdict.exact && (wanted || verdict.complete) {
                        let place = |pc: u64| match outcome.symbols.range(..=pc).next_back() {
                            Some((start, (name, _))) => format!("{name}+{:#x}", pc - start),
                            None => format!("{pc:#x}"),
                        };
                        let (depth, found) = verdict.differs_at;
                        let what = format!(
                            "{name}{} {program} {} depth {depth} found {}",
                            if verdict.complete { " WRONG" } else { "" },
                            place(judged.pc),
                            place(found),
                        );
                        let entry = worst.entry((named.clone(), what)).or_default();
                        entry.0 += 1;
                        entry.1 += u64::from(verdict.complete);
                    }
                }
            }
        }
    }
    let mut report = String::new();
    let mut listed: Vec<_> = worst.iter().collect();
    listed.sort_by_key(|(_, (count, wrong))| (std::cmp::Reverse(*wrong), std::cmp::Reverse(*count)));
    for ((variant, what), (count, wrong)) in &listed {
        writeln!(report, "{count:6} {wrong:6} {variant}: {what}").unwrap();
    }
    let path = directory.join("report.txt");
    std::fs::write(&path, report).unwrap();
    let failures = print(&tallies);
    println!("\nthe worst addresses: {}", path.display());
    for failure in &failures {
        println!("BELOW THE BAR: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the table; what is below the bar.
fn print(tallies: &BTreeMap<(String, usize), (Tally, Tally)>) -> Vec<String> {
    let mut failures = Vec::new();
    let mut builds: Vec<&String> = tallies.keys().map(|(build, _)| build).collect();
    builds.dedup();
    println!("per cent exact: all boundaries / bodies of the program's own functions / complete / wrong but complete");
    print!("{:22}{:>9}", "build", "n");
    walks().for_each(|(_, name)| print!(" | {name:>27}"));
    println!();
    let mut auto = Tally::default();
    for build in builds {
        let n = tallies[&(build.clone(), 0)].0.all;
        print!("{build:22}{n:>9}");
        for (index, (how, name)) in walks().enumerate() {
            let (all, own) = &tallies[&(build.clone(), index)];
            let cell = [share(all.exact, all.all), share(own.exact_bodies, own.bodies), share(all.complete, all.all)];
            print!(" | {:>6} {:>6} {:>6} {:>6}", cell[0], cell[1], cell[2], all.wrong_complete);
            let (part, of, min) = match (how, build.rsplit(' ').next().unwrap_or_default()) {
                (UnwindMethod::Exidx, "exidx") => (own.exact_bodies, own.bodies, EXIDX_MIN),
                (UnwindMethod::Code, "symbols") => (all.exact, all.all, CODE_MIN),
                (UnwindMethod::Code, "stripped") => (all.exact, all.all, CODE_STRIPPED_MIN),
                (UnwindMethod::FramePointer, "apcs") => (own.exact_bodies, own.bodies, 10_000),
                _ => (1, 1, 0),
            };
            if part * 10_000 < of * min || of == 0 {
                failures.push(format!("{build}, {name}: {} % exact, {} wanted", share(part, of), min as f64 / 100.0));
            }
            if all.wrong_complete > 0 {
                failures.push(format!("{build}, {name}: {} wrong and taken for complete", all.wrong_complete));
            }
            if name == "auto" {
                auto.plus(all);
            }
        }
        println!();
        if n < BOUNDARIES_MIN {
            failures.push(format!("{build}: {n} boundaries, {BOUNDARIES_MIN} wanted"));
        }
    }
    println!("auto, all builds: {} of {} exact ({} %)", auto.exact, auto.all, share(auto.exact, auto.all));
    if auto.exact * 10_000 < auto.all * AUTO_MIN {
        failures.push(format!("auto: {} % exact of all", share(auto.exact, auto.all)));
    }
    failures
}
