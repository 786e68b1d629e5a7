//! `gate` through the binary: exit codes, messages, refusals, outputs.

use serde_json::Value;
use stackprof::rng::Rng;

use crate::support::{Place, Run};

/// Writes a run of a program of 20 functions with noise, as folded text. `slow` is the additional cost of
/// function `f3`, as a fraction of the whole.
fn write_run(place: &Place, name: &str, process: &str, seed: u64, slow: f64) {
    let mut rng = Rng::new(seed);
    let factor = 1.0 + (rng.within(0, 80) as f64 - 40.0) / 1000.0;
    let mut text = String::new();
    for function in 0..20 {
        let share = 1.0 / 20.0 + if function == 3 { slow } else { 0.0 };
        let noise = 1.0 + (rng.within(0, 200) as f64 - 100.0) / 1000.0;
        let count = (2000.0 * share * factor * noise).round();
        text += &format!("{process};main;group{};f{function}::h{:016x} {count}\n", function % 3, rng.next());
    }
    place.write(name, &text);
}

/// Seven runs a side in directories `base` and `new`.
fn write_sides(place: &Place, slow: f64) {
    for side in ["base", "new"] {
        std::fs::create_dir_all(place.path(side)).unwrap();
    }
    for run in 0..7 {
        write_run(place, &format!("base/{run}.folded"), "work", run, 0.0);
        write_run(place, &format!("new/{run}.folded"), "work", 100 + run, slow);
    }
}

fn exits(run: Run, code: i32) -> Run {
    assert_eq!(run.code, Some(code), "{run}");
    run
}

#[test]
fn a_slower_function_fails_and_is_named_with_its_path() {
    let place = Place::new();
    write_sides(&place, 0.06);
    let run = exits(place.run("gate --base base --new new"), 3);
    let first = run.stdout.lines().next().unwrap();
    assert!(first.starts_with("REGRESSION: ") && first.contains("f3 got slower by 1"), "{run}");
    assert!(first.ends_with("(limit 5%)"), "{run}");
    assert!(
        run.stdout.contains("7 new against 7 base; permutation test over all 3432 permutations"),
        "{run}"
    );
    let table: Vec<&str> = run.stdout.lines().skip_while(|line| !line.ends_with("samples)")).collect();
    assert!(table[1].starts_with("slower ") && table[1].ends_with("  f3"), "{run}");
    assert!(table[2].ends_with("100% of it at work > main > group0 > f3"), "{run}");
    assert_eq!(run.stderr, "");
}

#[test]
fn unchanged_code_passes_and_quiet_prints_nothing() {
    let place = Place::new();
    write_sides(&place, 0.0);
    let run = exits(place.run("gate --base base --new new"), 0);
    assert!(run.stdout.starts_with("PASS: nothing got slower by more than 5%\n"), "{run}");
    let quiet = exits(place.run("gate -q --base base --new new"), 0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn reports_are_deterministic() {
    let place = Place::new();
    write_sides(&place, 0.06);
    let line = "gate --base base --new new --seed 3 -o a.json -o a.md --markdown summary";
    exits(place.run(line), 3);
    let (json, markdown) = (place.read("a.json"), place.read("a.md"));
    assert_eq!(markdown, place.read("summary"));
    assert!(
        markdown.starts_with("### ❌ REGRESSION: ") && markdown.contains("| slower | `f3` |"),
        "{markdown}"
    );
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["verdict"], &report["weak"]), (&"regression".into(), &false.into()));
    let first = &report["functions"][0];
    assert_eq!((&first["name"], &first["state"]), (&"f3".into(), &"slower".into()));
    let (low, high) = (&first["self"]["change_low"], &first["self"]["change_high"]);
    assert!(low.as_f64().unwrap() < 1.2 && high.as_f64().unwrap() > 1.2, "{json}");
    assert_eq!(first["where"]["path"], serde_json::json!(["work", "main", "group0", "f3"]));
    assert_eq!((&report["orders"], &report["orders_exact"]), (&3432.into(), &true.into()));
    let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    for key in
        ["alpha", "functions", "max_increase", "min_share", "runs_base", "seed", "total", "unit", "version"]
    {
        assert!(keys.contains(&key), "{key}");
    }
    exits(place.run(line), 3);
    assert_eq!((json, markdown), (place.read("a.json"), place.read("a.md")));
    let stdout = exits(place.run("gate --base base --new new --seed 3 -o -"), 3);
    assert_eq!(stdout.stdout, place.read("a.json"), "only the report on standard output");
}

#[test]
fn few_runs_give_a_weak_verdict() {
    let place = Place::new();
    write_sides(&place, 0.4);
    let run = exits(place.run("gate --base base/0.folded base/1.folded --new new/0.folded"), 3);
    assert!(run.stdout.starts_with("REGRESSION (weak: too few runs for a test): "), "{run}");
    assert!(run.stdout.contains("1 new against 2 base, too few for a test"), "{run}");
    let run = exits(place.run("gate --base base/0.folded --new base/1.folded"), 0);
    assert!(run.stdout.starts_with("PASS (weak: "), "{run}");
}

/// Writes runs of one function with these samples as `NAME0.folded`, `NAME1.folded`, ...
fn write_counts(place: &Place, name: &str, counts: &[u64]) -> String {
    let mut paths = Vec::new();
    for (run, count) in counts.iter().enumerate() {
        let path = format!("{name}{run}.folded");
        place.write(&path, &format!("work;main;f {count}\nwork;main;g {count}\n"));
        paths.push(path);
    }
    paths.join(" ")
}

#[test]
fn insignificant_growth_is_mentioned() {
    let place = Place::new();
    let one = (write_counts(&place, "b", &[1000]), write_counts(&place, "n", &[1180]));
    let five = (
        write_counts(&place, "base", &[600, 1400, 900, 1100, 1000]),
        write_counts(&place, "new", &[800, 1600, 1100, 1300, 1200]),
    );
    for (sides, start, total) in
        [(&one, "PASS (weak: too few runs for a test)", "+18.0%"), (&five, "PASS", "+20.0%")]
    {
        let (base, new) = sides;
        let run = exits(place.run(&format!("gate --base {base} --new {new} -o a.json -o a.md")), 0);
        let headline =
            format!("{start}: no growth beyond 5% that these runs can tell from noise (total {total})");
        assert_eq!(run.stdout.lines().next().unwrap(), headline, "{run}");
        assert!(run.stdout.lines().nth(1).unwrap().ends_with(": could be noise"), "{run}");
        let markdown = place.read("a.md");
        assert!(markdown.starts_with(&format!("### ✅ {headline}\n")), "{markdown}");
        assert!(markdown.contains(": could be noise\n"), "{markdown}");
        let report: Value = serde_json::from_str(&place.read("a.json")).unwrap();
        assert_eq!((&report["headline"], &report["verdict"]), (&headline.into(), &"pass".into()));
    }
    let run = exits(place.run(&format!("gate --base {} --new {} --max-increase 25%", five.0, five.1)), 0);
    let expected = "PASS: no growth beyond 25% that these runs can tell from noise (total +20.0%)\n";
    assert!(run.stdout.starts_with(expected), "{run}");
}

#[test]
fn the_required_number_of_runs_depends_on_alpha() {
    let place = Place::new();
    let (base, new) = (write_counts(&place, "base", &[1000; 6]), write_counts(&place, "new", &[1000; 6]));
    let line = format!("gate --base {base} --new {new} --false-alarms 0.1%");
    let run = exits(place.run(&line), 0);
    assert!(run.stdout.contains("record 7 or more a side"), "{run}");
    let run = exits(place.run("gate --base base0.folded --new new0.folded"), 0);
    assert!(run.stdout.contains("record 4 or more a side"), "{run}");
}

#[test]
fn incomparable_runs_are_refused_and_never_pass() {
    let place = Place::new();
    write_sides(&place, 0.0);
    write_run(&place, "other.folded", "other", 1, 0.0);
    place.write("empty.folded", "");
    place.write("few.folded", "work;main;f1 12\n");
    place.write("short.folded", "work;main;f1 300\n");
    place.write("no-profile", "this is no profile\n");
    std::fs::create_dir(place.path("nothing")).unwrap();
    place.run("-q --target sim:1 -o slow.pb.gz --hz 99").succeeds();
    place.run("-q --target sim:1 -o fast.pb.gz").succeeds();
    place.run("-q --target sim:1 -o rateless.folded").succeeds();
    for (line, code, part) in [
        ("--base base --new new empty.folded", 4, "empty.folded is empty; record it again"),
        ("--base base --new new few.folded", 4, "few.folded has only 12 samples, fewer than 20"),
        ("--base base --new new short.folded", 4, "short.folded has 300 samples where its side's median is"),
        ("--base base --new other.folded", 4, "other.folded of other; if they are the same program"),
        (
            "--base slow.pb.gz --new fast.pb.gz",
            4,
            "slow.pb.gz was recorded at 99 Hz and fast.pb.gz at 997 Hz",
        ),
        ("--base fast.pb.gz --new rateless.folded", 4, "rateless.folded has no sampling rate"),
        ("--base nothing --new new", 4, "--base: there are no files in `nothing`"),
        ("--base base base --new new", 2, "`base/0.folded` is given twice; each run is recorded by itself"),
        ("--base base/1.folded --new base/0.folded ./base/1.folded", 2, "`./base/1.folded` is given twice"),
        ("--base - --new -", 2, "`-` is given twice"),
        ("--base base --new gone.folded", 1, "cannot read `gone.folded`: no such file"),
        ("--base base --new no-profile", 1, "no-profile"),
    ] {
        let run = exits(place.run(&format!("gate {line} -o report.json")), code);
        assert!(run.stderr.contains(part) && run.stderr.lines().count() == 1, "{line}: {run}");
        assert_eq!(run.stdout, "", "{line}");
        assert!(!place.path("report.json").exists(), "{line}");
    }
    let cut = &std::fs::read(place.path("fast.pb.gz")).unwrap();
    std::fs::write(place.path("cut.pb.gz"), &cut[..cut.len() / 2]).unwrap();
    exits(place.run("gate --base fast.pb.gz --new cut.pb.gz"), 1);
    exits(place.run("gate --base base --new other.folded --allow-different-names"), 0);
}

#[test]
fn recordings_in_any_format_are_compared_by_duration() {
    let place = Place::new();
    for (name, seconds) in [("short", 1), ("long", 2)] {
        place
            .run(&format!("-q --target sim:1 -d {seconds} -o {name}.pb.gz -o {name}.firefox.json"))
            .succeeds();
    }
    let packed = exits(place.run("gate --base long.pb.gz --new short.pb.gz"), 3);
    assert!(packed.stdout.contains(" s/s of CPU time, +100%"), "{packed}");
    let firefox = exits(place.run("gate --base long.firefox.json --new short.firefox.json"), 3);
    assert_eq!(firefox.stdout, packed.stdout);
    assert!(packed.stdout.contains("note     CPU time is per second of recording"), "{packed}");
    // As written by another program.
    let mut foreign: Value = serde_json::from_str(&place.read("short.firefox.json")).unwrap();
    foreign.as_object_mut().unwrap().remove("stackprof").unwrap();
    for name in ["foreign.json", "other.json"] {
        place.write(name, &foreign.to_string());
    }
    let run = exits(place.run("gate --base short.pb.gz --new foreign.json"), 4);
    let why = "foreign.json has no duration, so its CPU time cannot be compared";
    assert!(run.stderr.contains(why) && run.stderr.lines().count() == 1, "{run}");
    // Alone, these files are assumed to be whole runs, and the report says so.
    let run = exits(place.run("gate --base foreign.json --new other.json"), 0);
    assert!(run.stdout.contains("note     files do not tell whether they are of whole commands"), "{run}");
}

#[test]
fn a_baseline_is_created_kept_and_replaced() {
    let place = Place::new();
    write_sides(&place, 0.06);
    let made = exits(place.run("gate --new base --update-baseline kept"), 0);
    assert!(made.stderr.contains("kept: 7 recordings kept as base"), "{made}");
    let names = || {
        let names = std::fs::read_dir(place.path("kept")).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 7);
    assert_eq!(names()[0], "base-001.pb.gz");
    let before = std::fs::read(place.path("kept/base-001.pb.gz")).unwrap();
    let run = exits(place.run("gate --base kept --new new --update-baseline kept"), 3);
    assert!(run.stderr.contains("kept stays as it is; to accept the change"), "{run}");
    assert_eq!(before, std::fs::read(place.path("kept/base-001.pb.gz")).unwrap());
    exits(place.run("gate --new new/0.folded new/1.folded --update-baseline kept"), 0);
    assert_eq!(names(), ["base-001.pb.gz", "base-002.pb.gz"]);
    exits(place.run("gate --base kept --new new --update-baseline kept"), 0);
    assert_eq!(names().len(), 7);
}

#[test]
fn a_baseline_has_only_runs_that_a_gate_accepts() {
    let place = Place::new();
    write_sides(&place, 0.0);
    exits(place.run("gate --new base --update-baseline kept"), 0);
    place.write("few.folded", "work;main;f1 12\n");
    let run = exits(place.run("gate --new few.folded --update-baseline kept"), 4);
    assert!(run.stderr.contains("few.folded has only 12 samples"), "{run}");
    assert_eq!(std::fs::read_dir(place.path("kept")).unwrap().count(), 7);
    // The old recordings there would be base together with the new ones.
    let run = exits(place.run("gate --base base --new new --update-baseline base"), 2);
    assert!(run.stderr.contains("` would stay part of the base; name a directory of its own"), "{run}");
    assert!(!place.path("base/base-001.pb.gz").exists());
}

#[test]
fn recordings_are_never_overwritten_by_a_report() {
    let place = Place::new();
    write_sides(&place, 0.0);
    let before = std::fs::read_to_string(place.path("base/0.folded")).unwrap();
    place.write("a.json", &before);
    place.write("a.folded", &before);
    for line in [
        "gate --base ./a.json --new new -o a.json",
        "gate --base base --new . -o ./a.json",
        "gate --base base --new ./a.json --markdown a.json",
        "diff ./a.json base/0.folded -o a.json",
        "render base/0.folded ./a.folded -o a.folded",
    ] {
        let run = exits(place.run(line), 2);
        assert!(run.stderr.contains("` is read and written; name another output"), "{line}: {run}");
        for file in ["a.json", "a.folded"] {
            assert_eq!(std::fs::read_to_string(place.path(file)).unwrap(), before, "{line}");
        }
    }
}
