//! `diff` through the binary: the table, its formats, and the choice of the measure.

use serde_json::Value;

use crate::support::Place;

const BASE: &str = "work;main;a::h0123456789abcdef 60\nwork;main;gone 40\nwork;main;[x.so+0x10] 100\n";
const NEW: &str = "work;main;a::hfedcba9876543210 60\nwork;main;fresh 240\nwork;main;[x.so+0x20] 100\n";

fn place() -> Place {
    let place = Place::new();
    place.write("old.folded", BASE);
    place.write("new.folded", NEW);
    place
}

#[test]
fn the_table_has_changes_and_the_measure() {
    let run = place().run("diff old.folded new.folded --absolute").succeeds();
    assert_eq!(
        run.stdout,
        "\
old.folded -> new.folded: 200 samples -> 400 samples (+100%)
compared by samples: as requested; the files have no sampling rates, taken for equal

 self base   self new     change            total base  total new     change  function
         0        240       +240      new            0        240       +240  fresh
        40          0        -40     gone           40          0        -40  gone
         0          0         +0        =          200        400       +200  main
"
    );
    let shares = place().run("diff old.folded new.folded").succeeds();
    assert!(shares.stdout.contains("compared by shares of each profile: "), "{shares}");
    assert!(shares.stdout.contains("    50.00%     25.00%  -25.00 pt   -50.0%"), "{shares}");
    let quiet = place().run("diff -q old.folded new.folded").succeeds();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn numbered_names_are_matched_unless_exact() {
    let folded = place().run("diff old.folded new.folded --absolute -o -").succeeds();
    assert_eq!(
        folded.stdout,
        "work;main;[x.so] 100 100\nwork;main;a 60 60\nwork;main;fresh 0 240\nwork;main;gone 40 0\n"
    );
    let exact = place().run("diff old.folded new.folded --absolute --no-normalize -o -").succeeds();
    assert_eq!(exact.stdout.lines().count(), 6, "{exact}");
    let scaled = place().run("diff old.folded new.folded --share -o -").succeeds();
    assert!(scaled.stdout.contains("work;main;gone 80 0\n"), "{scaled}");
}

#[test]
fn every_format_has_both_sides() {
    let place = place();
    place.run("diff -q old.folded new.folded -o d.svg -o d.folded -o d.md -o d.json").succeeds();
    let json: Value = serde_json::from_str(&place.read("d.json")).unwrap();
    assert_eq!((&json["compared_by"], &json["base"]["samples"]), (&"share".into(), &200.into()));
    let first = &json["functions"][0];
    assert_eq!((&first["name"], &first["self"]["new"]["samples"]), (&"fresh".into(), &240.into()));
    assert_eq!(first["total"]["base"]["share"], 0.0);
    assert_eq!(first["self"]["new"]["cpu_s"], Value::Null, "folded text tells no rate");
    assert!(place.read("d.md").contains("| `fresh` | 0.00% | 60.00% | +60.00 pt | new |"));
    let svg = place.read("d.svg");
    assert!(svg.trim_end().ends_with("</svg>"));
    for name in ["fresh", "gone", "[x.so]"] {
        assert!(svg.contains(name), "{name}");
    }
    let first = place.files();
    place.run("diff -q old.folded new.folded -o d.svg -o d.folded -o d.md -o d.json").succeeds();
    assert!(first == place.files(), "the same profiles, the same bytes");
}

#[test]
fn recordings_with_a_rate_are_compared_by_seconds() {
    let place = Place::new();
    place.run("-q --target sim:1 --hz 100 -o a.pb.gz").succeeds();
    place.run("-q --target sim:1 --hz 200 -o b.pb.gz").succeeds();
    let run = place.run("diff a.pb.gz b.pb.gz --absolute").succeeds();
    assert!(
        run.stdout.contains(" s of CPU time (")
            && run.stdout.contains("compared by CPU seconds: as requested"),
        "{run}"
    );
    let same = place.run("diff a.pb.gz a.pb.gz").succeeds();
    assert!(same.stdout.ends_with("\nno function differs\n"), "{same}");
}

#[test]
fn errors_are_one_line() {
    let place = place();
    place.write("empty.folded", "");
    place.write("bad.folded", "work;main x\n");
    for (line, code, part) in [
        ("diff old.folded", 2, "diff compares two profiles, 1 given"),
        ("diff old.folded empty.folded", 4, "empty.folded has no samples; record for longer"),
        ("diff old.folded gone.folded", 1, "cannot read `gone.folded`"),
        ("diff old.folded bad.folded", 1, "bad.folded"),
        ("diff old.folded new.folded -o no/where.svg", 1, "no/where.svg"),
    ] {
        let run = place.run(line);
        assert_eq!(run.code, Some(code), "{line}: {run}");
        assert!(run.stderr.contains(part) && run.stderr.lines().count() == 1, "{line}: {run}");
    }
}

#[test]
fn programs_with_different_names_are_matched_below_the_root() {
    let place = place();
    place.write("renamed.folded", &BASE.replace("work;", "work-2.0;"));
    let run = place.run("diff old.folded renamed.folded").succeeds();
    assert!(run.stdout.contains("note: the processes have different names: work and work-2.0"), "{run}");
    assert!(run.stdout.ends_with("\nno function differs\n"), "{run}");
}
