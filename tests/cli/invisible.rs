//! Names with invisible characters or terminal control sequences, through every format of a profile, every
//! report and every message: all are escaped.

use std::io::Read as _;

use crate::support::{Place, Run};

#[path = "../support/invisible.rs"]
mod characters;

use characters::{INVISIBLE, assert_visible, escaped};

const FORMS: [&str; 5] = ["o.svg", "o.folded", "o.pb.gz", "o.speedscope.json", "o.firefox.json"];

fn check(run: &Run) {
    assert_visible("standard output", &run.stdout);
    assert_visible("standard error", &run.stderr);
}

/// A profile of another program with the characters in each of its texts.
fn speedscope(leaf: &str) -> String {
    serde_json::json!({
        "shared": {"frames": [
            {"name": format!("main{INVISIBLE}"), "file": format!("/s/a{INVISIBLE}.c"), "line": 3},
            {"name": format!("{INVISIBLE}{leaf}"), "file": format!("a{INVISIBLE}"), "line": 4},
        ]},
        "profiles": [{"type": "sampled", "name": format!("p{INVISIBLE}"), "unit": "none", "startValue": 0,
            "endValue": 5, "samples": [[0, 1]], "weights": [500],
            "stackprof": {"process": format!("p{INVISIBLE}"), "thread": [format!("t{INVISIBLE}"), 7]}}],
        "stackprof": {"hz": null, "unit": format!("u{INVISIBLE}"), "time_unix_ns": null, "duration_ns": null,
            "pid": null, "arch": format!("a{INVISIBLE}"), "command": format!("c{INVISIBLE}"), "launched": null,
            "idle": null, "lost": {format!("l{INVISIBLE}"): 90}},
    })
    .to_string()
}

#[test]
fn every_profile_format_escapes_them() {
    let place = Place::new();
    let shown = escaped(INVISIBLE);
    place.write("in.json", &speedscope("leaf"));
    let title = format!("title{INVISIBLE}");
    for lines in [&[][..], &["--lines"][..]] {
        let mut words = vec!["render", "in.json", "--title", title.as_str()];
        words.extend(FORMS.iter().flat_map(|form| ["-o", form]).chain(lines.iter().copied()));
        let run = place.run_words(&words).succeeds();
        check(&run);
        // A note names the first characters of a long name.
        assert!(run.stderr.contains("p\\u{1}\\u{7}\\u{8}"), "{run}");
        let folded = place.read("o.folded");
        for form in FORMS {
            let bytes = std::fs::read(place.path(form)).unwrap();
            if form.ends_with(".gz") {
                let mut raw = Vec::new();
                flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut raw).unwrap();
                // Numbers between the texts may contain the bytes of the short ones.
                for c in INVISIBLE.chars().filter(|c| c.len_utf8() > 2) {
                    let c = c.to_string();
                    assert!(!raw.windows(c.len()).any(|window| window == c.as_bytes()), "{c:?} in {form}");
                }
                let leaf = format!("{shown}leaf");
                assert!(raw.windows(leaf.len()).any(|window| window == leaf.as_bytes()), "{form}");
            } else {
                let text = String::from_utf8(bytes).unwrap();
                assert_visible(form, &text);
                let shown = if form.ends_with(".json") { shown.replace('\\', "\\\\") } else { shown.clone() };
                assert!(text.contains(&format!("{shown}leaf")), "{form}: {text}");
            }
            // The same name gives the same text from any source.
            if form != "o.svg" && lines.is_empty() {
                let back = place.run(&format!("render -q {form} -o -")).succeeds();
                assert_eq!(back.stdout, folded, "{form}");
                // Folded stacks have no unit, and are compared with folded stacks.
                let base = if form == "o.folded" { "o.folded" } else { "in.json" };
                let diff = place.run(&format!("diff {base} {form}")).succeeds();
                check(&diff);
                assert!(diff.stdout.contains("no function differs"), "{form}: {diff}");
            }
        }
    }
}

#[test]
fn every_input_and_every_report_escapes_them() {
    let place = Place::new();
    let of_line: String = INVISIBLE.chars().filter(|c| *c != '\n').collect();
    // Spaces at the ends of lines and around perf's words are not part of a name.
    place.write("a.folded", &format!("p{of_line}q;t{of_line}t (7);m{of_line}m;only 400\n"));
    place.write(
        "a.perf",
        &format!("p{of_line}q 5/6 [001] 10.5: 250000 cycles:\n\t 55d0 m{of_line}m+0x10 (/b{of_line}b/c{of_line}c)\n\n").repeat(90),
    );
    let shown = escaped(&of_line);
    for input in ["a.folded", "a.perf"] {
        let run = place.run(&format!("render {input} -o -")).succeeds();
        check(&run);
        assert!(run.stdout.contains(&format!("m{shown}m")), "{run}");
    }
    place.write("base.json", &speedscope("one"));
    place.write("new.json", &speedscope("two"));
    let odd = format!("odd{}", of_line.replace('/', ""));
    std::fs::copy(place.path("new.json"), place.path(&odd)).unwrap();
    let run = place.run_words(&[
        "diff",
        "base.json",
        &odd,
        "-o",
        "d.md",
        "-o",
        "d.json",
        "-o",
        "d.folded",
        "-o",
        "d.svg",
        "--title",
        &odd,
    ]);
    let run = run.succeeds();
    check(&run);
    assert!(run.stdout.contains(&format!("odd{shown}")), "{run}");
    for file in ["d.md", "d.json", "d.folded", "d.svg"] {
        assert_visible(file, &place.read(file));
    }
    let read: serde_json::Value = serde_json::from_str(&place.read("d.json")).unwrap();
    assert_eq!(read["new"]["profile"], *odd, "a path is what it is");
    // Counts in an unknown unit are not judged; the refusal quotes the unit.
    let gate = place.run_words(&["gate", "--base", "base.json", "--new", &odd, "-o", "g.md", "-o", "g.json"]);
    check(&gate);
    assert_eq!(gate.code, Some(4), "{gate}");
}

#[test]
fn every_message_escapes_them() {
    let place = Place::new();
    let odd = format!("odd{INVISIBLE}");
    let shown = format!("odd{}", escaped(INVISIBLE));
    place.write("bad", "a b c\n");
    std::fs::copy(place.path("bad"), place.path(&odd)).unwrap();
    std::fs::create_dir(place.path(&format!("{odd}d"))).unwrap();
    let missing = format!("missing/{odd}.svg");
    for words in [
        &["render", &odd, "-o", "-"][..],
        &["render", &format!("{odd}d"), "-o", "-"],
        &["render", "bad", "-o", &missing],
        &["render", "bad", "--format", &odd],
        &["render", "bad", "--include", &format!("({odd}")],
        &["diff", &odd, "bad"],
        &["gate", "--new", &odd, "--base", "bad"],
        &["dump", &odd],
        &["dump", "symbols", "--pid", &odd],
        &["--gdb", &odd],
        &["--pid", &odd],
        &["--hz", &odd, "--", "true"],
        &[&format!("--{odd}")],
        &["completions", &odd],
        &["-q", "-o", "-", "--", &format!("./{odd}x")],
    ] {
        let run = place.run_words(words);
        assert!(matches!(run.code, Some(1 | 2)), "{run}");
        check(&run);
        assert_eq!(run.stderr.lines().count(), 1, "{run}");
        let is_name = run.stderr.contains("odd");
        assert!(!is_name || run.stderr.contains(&shown) || words[0].starts_with("--"), "{run}");
    }
}

/// A recording of the simulated process, with every way to name it.
#[test]
fn a_recording_escapes_them() {
    let place = Place::new();
    let odd = format!("odd{}", INVISIBLE.replace('/', ""));
    let (svg, stats) = (format!("{odd}.svg"), format!("{odd}.json"));
    let run =
        place.run_words(&["--target", "sim:1", "--title", &odd, "-o", &svg, "--stats", &stats]).succeeds();
    check(&run);
    assert!(run.stderr.contains(&format!("wrote     odd{}.svg", escaped(INVISIBLE))), "{run}");
    for file in [&svg, &stats] {
        assert_visible("an output", &place.read(file));
    }
    let stats: serde_json::Value = serde_json::from_str(&place.read(&stats)).unwrap();
    assert_eq!(stats["outputs"][0], *svg, "a path is what it is");
}
