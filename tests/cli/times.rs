//! Times of samples on the command line: parts of a recording in every output, profiles that cannot be cut,
//! comparisons of two parts.

use std::collections::BTreeMap;

use crate::support::{Place, Run};

/// A place with a recording of a simulated process, with times.
fn recorded(options: &str) -> Place {
    let place = Place::new();
    place.run(&format!("--target sim:3 -q {options} -o r.firefox.json -o r.pb.gz -o r.folded")).succeeds();
    place
}

/// The error line of a failed run.
fn line_of_failure(run: Run) -> String {
    assert!(run.code.is_some_and(|code| code > 0) && run.stdout.is_empty(), "{run}");
    assert!(run.stderr.lines().count() == 1, "{run}");
    run.stderr
}

/// Folded stacks as counts.
fn counts(folded: &str) -> BTreeMap<String, u64> {
    let line =
        |line: &str| line.rsplit_once(' ').map(|(stack, count)| (stack.to_owned(), count.parse().unwrap()));
    folded.lines().filter_map(line).collect()
}

fn sum(parts: &[BTreeMap<String, u64>]) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (stack, count) in parts.iter().flatten() {
        *sum.entry(stack.clone()).or_default() += count;
    }
    sum
}

#[test]
fn a_part_and_the_rest_add_up_in_every_format() {
    for options in ["", "--threads", "--idle", "--timeline-memory 64K --hz 10000 --max-stop 100"] {
        let place = recorded(options);
        let whole = counts(&place.read("r.folded"));
        let part = |form: &str, range: &str| {
            place.run(&format!("render -q r.firefox.json {range} -o part.{form}")).succeeds();
            counts(&place.run(&format!("render -q part.{form} -o -")).succeeds().stdout)
        };
        for form in ["folded", "pb.gz", "speedscope.json", "firefox.json"] {
            let parts =
                [part(form, "--to 800ms"), part(form, "--from 0.8s --to 1.25s"), part(form, "--from 1250ms")];
            assert!(parts.iter().all(|part| !part.is_empty()), "{options} {form}");
            assert_eq!(sum(&parts), whole, "{options} {form}");
        }
        let total: u64 = part("folded", "--to 800ms").values().sum();
        for form in ["svg", "html"] {
            place.run(&format!("render -q r.firefox.json --to 800ms -o part.{form}")).succeeds();
        }
        let grouped = match total {
            0..1000 => total.to_string(),
            _ => format!("{},{:03}", total / 1000, total % 1000),
        };
        assert!(
            place.read("part.svg").contains(&format!("all ({grouped} samples, 100%)")),
            "{options} {total}"
        );
    }
}

#[test]
fn time_range_and_thread_can_be_combined() {
    let place = recorded("--threads");
    let text = |line: &str| counts(&place.run(&format!("render -q {line} -o -")).succeeds().stdout);
    let thread = "--thread ^worker-1$";
    let threads = text("r.firefox.json");
    let name = threads.keys().find_map(|stack| stack.split(';').nth(1)).unwrap();
    let (name, _) = name.rsplit_once(" (").unwrap();
    let thread = thread.replace("worker-1", name);
    let both = sum(&[
        text(&format!("r.firefox.json --to 700ms {thread}")),
        text(&format!("r.firefox.json --from 700ms {thread}")),
    ]);
    assert_eq!(both, text(&format!("r.firefox.json {thread}")));
    assert!(both.keys().all(|stack| stack.contains(name)));
    // Filters keep the times.
    place.run(&format!("render -q r.firefox.json {thread} -o thread.firefox.json")).succeeds();
    assert_eq!(text("thread.firefox.json --to 700ms"), text(&format!("r.firefox.json --to 700ms {thread}")));
}

#[test]
fn every_format_with_times_is_cut_alike() {
    let forms = ["r.otlp", "r.otlp.gz", "r.speedscope.json", "r.firefox.json", "r.pb.gz"];
    for options in ["", "--threads", "--idle"] {
        let place = Place::new();
        let outputs = forms.map(|form| format!("-o {form}")).join(" ");
        place.run(&format!("--target sim:5 -q {options} --pprof-timestamps {outputs}")).succeeds();
        let cut = |form: &str| {
            let line = format!("render -q {form} --from 300ms --to 1.1s -o -");
            counts(&place.run(&line).succeeds().stdout)
        };
        let parts = forms.map(cut);
        let total: u64 = parts[0].values().sum();
        assert!(total > 100, "{options}: {total}");
        for (form, part) in forms.iter().zip(&parts) {
            assert_eq!(part, &parts[0], "{options} {form}");
        }
    }
}

#[test]
fn times_show_the_threads_of_a_merged_profile() {
    let (merged, apart) = (recorded(""), recorded("--threads"));
    let text = |place: &Place, line: &str| {
        counts(&place.run(&format!("render -q r.firefox.json {line} -o -")).succeeds().stdout)
    };
    let all = text(&merged, "--thread .");
    // Counts are rounded per stack, and separate threads have more stacks.
    let alike = |one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
        let count = |of: &BTreeMap<String, u64>, stack: &str| of.get(stack).copied().unwrap_or(0);
        let mut stacks = one.keys().chain(other.keys());
        assert!(
            stacks.all(|stack| count(one, stack).abs_diff(count(other, stack)) <= 2),
            "{one:?} {other:?}"
        );
    };
    alike(&all, &text(&apart, ""));
    let name = all.keys().find_map(|stack| stack.split(';').nth(1)).unwrap();
    let (_, id) = name.trim_end_matches(')').rsplit_once('(').unwrap();
    let one = format!("--thread {id} --to 900ms");
    alike(&text(&merged, &one), &text(&apart, &one));
}

#[test]
fn profiles_that_cannot_be_cut_get_the_next_step() {
    let place = recorded("");
    let refused = |line: &str| line_of_failure(place.run(&format!("render {line} -o -")));
    for file in ["r.pb.gz", "r.folded"] {
        assert_eq!(
            refused(&format!("{file} --from 1s")),
            format!(
                "stackprof: {file} has no times of samples; record with -o NAME.otlp.gz, which keeps them, and cut \
                 that\n"
            )
        );
    }
    let beyond = refused("r.firefox.json --from 20s --to 30s");
    assert!(beyond.starts_with("stackprof: --from: r.firefox.json is "), "{beyond}");
    assert!(beyond.ends_with(" s long, and the part begins at 20.0 s\n"), "{beyond}");
    assert_eq!(
        refused("r.firefox.json r.pb.gz --from 1s"),
        "stackprof: --from and --to: several profiles have no common time; render each by itself\n"
    );
    let place = Place::new();
    place.run("--target sim:3 -q --no-timeline -o r.firefox.json").succeeds();
    let none = line_of_failure(place.run("render r.firefox.json --from 1s -o -"));
    assert!(none.starts_with("stackprof: r.firefox.json has no times of samples; "), "{none}");
}

#[test]
fn two_parts_of_one_recording_are_compared() {
    let place = recorded("");
    let run = place
        .run("diff r.firefox.json --base 0s..800ms --new 800ms..1.6s -o d.html -o d.svg -o d.md -o d.folded")
        .succeeds();
    assert!(run.stdout.contains("r.firefox.json 0s..800ms"), "{run}");
    let part = |range: &str| {
        let folded = place.run(&format!("render -q r.firefox.json {range} -o -")).succeeds().stdout;
        counts(&folded).values().sum::<u64>()
    };
    let (base, new) = (part("--to 800ms"), part("--from 800ms --to 1.6s"));
    let columns = |column: usize| {
        let folded = place.read("d.folded");
        let number = |line: &str| line.rsplit(' ').nth(column).unwrap().parse::<f64>().unwrap();
        folded.lines().map(number).sum::<f64>()
    };
    assert_eq!((columns(1), columns(0)), (base as f64, new as f64));
    assert!(place.read("d.svg").contains("r.firefox.json 0s..800ms"), "{run}");
    let none = line_of_failure(place.run("diff r.pb.gz --base 0s..1s --new 1s..2s"));
    assert!(none.starts_with("stackprof: r.pb.gz has no times of samples; "), "{none}");
    let beyond = line_of_failure(place.run("diff r.firefox.json --base 0s..1s --new 50s..60s"));
    assert!(beyond.starts_with("stackprof: --new: r.firefox.json is "), "{beyond}");
}

#[test]
fn the_gate_refuses_a_part() {
    let place = recorded("");
    for form in ["pb.gz", "firefox.json", "speedscope.json"] {
        place.run(&format!("render -q r.firefox.json --to 1s -o part.{form}")).succeeds();
        let run = line_of_failure(place.run(&format!("gate --base part.{form} --new r.pb.gz")));
        let why = "is a part of the time of a recording (--from, --to); give the whole recording\n";
        assert_eq!(run, format!("stackprof: part.{form} {why}"));
    }
    // Merged with another one it is still refused.
    place.run("render -q part.pb.gz r.pb.gz -o both.pb.gz").succeeds();
    let run = line_of_failure(place.run("gate --base r.pb.gz --new both.pb.gz"));
    assert!(run.starts_with("stackprof: both.pb.gz is a part of the time"), "{run}");
}

#[test]
fn the_summary_describes_reduced_times() {
    let place = Place::new();
    let times = |options: &str| {
        let run = place.run(&format!("--target sim:3 {options} -o r.folded")).succeeds();
        run.stderr.lines().find_map(|line| line.strip_prefix("  times     ").map(str::to_owned))
    };
    assert_eq!(times("--no-timeline"), None);
    assert_eq!(times(""), None);
    let line = times("--timeline-memory 64K --hz 10000 --max-stop 100 --threads").unwrap();
    let (step, why) = line.strip_prefix("in steps of ").and_then(|rest| rest.split_once(": ")).unwrap();
    assert!(step.ends_with(" ms"), "{line}");
    assert_eq!(why, "--timeline-memory 64K is full; a larger one keeps more");
}

#[test]
fn threads_of_a_file_have_their_start_and_end() {
    let place = Place::new();
    // Threads that start and exit in an existing process.
    for seed in [1, 3, 8] {
        place.run(&format!("--target sim:{seed} --threads -q -o r.firefox.json -o r.otlp")).succeeds();
        place.run("render -q r.otlp -o back.firefox.json").succeeds();
        let lives = |name: &str| {
            let profile: serde_json::Value = serde_json::from_str(&place.read(name)).unwrap();
            let threads = profile["threads"].as_array().unwrap().iter();
            let life = |thread: &serde_json::Value| {
                (thread["tid"].as_u64(), (thread["registerTime"].clone(), thread["unregisterTime"].clone()))
            };
            threads.map(life).collect::<BTreeMap<_, _>>()
        };
        let (recorded, read) = (lives("r.firefox.json"), lives("back.firefox.json"));
        assert_eq!(read, recorded, "{seed}");
        assert!(recorded.values().any(|(begun, _)| begun.as_f64() == Some(0.0)), "{seed}: {recorded:?}");
    }
}

#[test]
fn speedscope_opens_the_heaviest_thread() {
    let place = recorded("--threads");
    for input in ["r.firefox.json", "r.pb.gz"] {
        place.run(&format!("render -q {input} -o a.speedscope.json")).succeeds();
        let file: serde_json::Value = serde_json::from_str(&place.read("a.speedscope.json")).unwrap();
        let total = |profile: &serde_json::Value| {
            let pairs =
                profile["weights"].as_array().unwrap().iter().zip(profile["samples"].as_array().unwrap());
            let worked = pairs.filter(|(_, stack)| !stack.as_array().unwrap().is_empty());
            worked.map(|(weight, _)| weight.as_f64().unwrap()).sum::<f64>()
        };
        let totals: Vec<f64> = file["profiles"].as_array().unwrap().iter().map(total).collect();
        assert!(totals.len() > 1, "{input}");
        let shown = totals[file["activeProfileIndex"].as_u64().unwrap() as usize];
        assert!(totals.iter().all(|total| *total <= shown + 1e-3), "{input}: {shown} of {totals:?}");
    }
}
