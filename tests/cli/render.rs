//! `render`: converts, merges and filters saved profiles; its errors.

use crate::support::Place;

const FOLDED: &str = "work;io (17);main;read 3\nwork;io (18);main;parse;lex 40\nwork;main;parse 2\n";

#[test]
fn any_format_is_read_regardless_of_the_file_name() {
    let place = Place::new();
    place.write("a.folded", FOLDED);
    let all = "-o a.pb.gz -o a.speedscope.json -o a.firefox.json -o a.otlp -o a.otlp.gz -o a.svg -o -";
    let run = place.run(&format!("render a.folded {all}")).succeeds();
    assert_eq!(run.stdout, FOLDED);
    assert!(run.stderr.starts_with("stackprof: work: 45 samples in 3 stacks, wrote a.pb.gz, "), "{run}");
    for form in ["a.pb.gz", "a.speedscope.json", "a.firefox.json", "a.otlp", "a.otlp.gz"] {
        std::fs::rename(place.path(form), place.path("a.svg")).unwrap();
        let run = place.run("render a.svg -q -o -").succeeds();
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), (FOLDED, ""), "{form}");
    }
    let run = place.shell("$STACKPROF render -q - -o - < a.folded").succeeds();
    assert_eq!(run.stdout, FOLDED);
}

/// Every readable format.
const FORMS: [&str; 6] =
    ["r.pb.gz", "r.speedscope.json", "r.firefox.json", "r.otlp", "r.otlp.gz", "r.folded"];

#[test]
fn a_recording_round_trips_through_each_format() {
    let place = Place::new();
    let outputs = FORMS.map(|form| format!("-o {form}")).join(" ");
    for options in ["--threads --idle", "--threads", "", "--idle", "--no-timeline"] {
        place.run(&format!("--target sim:3 {options} -q {outputs}")).succeeds();
        let folded = place.read("r.folded");
        for form in FORMS {
            let back = place.run(&format!("render -q {form} -o -")).succeeds().stdout;
            assert_eq!(back, folded, "{form}, {options}");
        }
        let once = FORMS.map(|form| std::fs::read(place.path(form)).unwrap());
        place.run(&format!("--target sim:3 {options} -q {outputs}")).succeeds();
        let again = FORMS.map(|form| std::fs::read(place.path(form)).unwrap());
        assert!(once == again, "same run, same bytes");
    }
}

#[test]
fn times_round_trip_through_each_format_that_has_them() {
    let place = Place::new();
    let forms = ["r.otlp", "r.otlp.gz", "r.firefox.json", "r.speedscope.json", "r.pb.gz"];
    let outputs = forms.map(|form| format!("-o {form}")).join(" ");
    place.run(&format!("--target sim:3 --threads -q --pprof-timestamps -o r.folded {outputs}")).succeeds();
    let part = |form: &str, cut: &str| place.run(&format!("render -q {form} {cut} -o -")).succeeds().stdout;
    let sum = |text: &str| -> u64 {
        text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let whole = place.read("r.folded");
    for cut in ["--from 1s", "--to 1s", "--from 500ms --to 1500ms"] {
        let expected = part("r.otlp", cut);
        assert!((1..sum(&whole)).contains(&sum(&expected)), "{cut}: {} of {}", sum(&expected), sum(&whole));
        for form in forms {
            assert_eq!(part(form, cut), expected, "{form} {cut}");
        }
    }
    assert_eq!(sum(&part("r.otlp", "--from 1s")) + sum(&part("r.otlp", "--to 1s")), sum(&whole));
}

#[test]
fn profiles_of_this_repository_round_trip_through_each_format() {
    let place = Place::new();
    let outputs = FORMS.map(|form| format!("-o {form}")).join(" ");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut profiles = 0;
    for folder in ["symbol", "trie"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, place.path("in.pb.gz")).unwrap();
            place.run(&format!("render -q in.pb.gz {outputs}")).succeeds();
            let folded = place.run("render -q in.pb.gz -o -").succeeds().stdout;
            for form in FORMS {
                let back = place.run(&format!("render -q {form} -o -")).succeeds().stdout;
                assert!(back == folded, "{} as {form}", path.display());
            }
            profiles += 1;
        }
    }
    assert!(profiles > 0);
}

#[test]
fn leaves_below_a_deep_recursion_keep_their_counts() {
    let place = Place::new();
    let deep = "recurse;".repeat(1_000);
    let text = |times: u32| [5, 15, 30, 50].map(|n| format!("p;{deep}leaf_{n:02} {}\n", n * times)).concat();
    place.write("deep.folded", &text(1));
    assert_eq!(place.run("render -q deep.folded -o -").succeeds().stdout, text(1));
    place.run("render -q deep.folded -o deep.pb.gz").succeeds();
    assert_eq!(place.run("render -q deep.pb.gz deep.folded -o -").succeeds().stdout, text(2));
}

#[test]
fn profiles_are_merged_and_filtered() {
    let place = Place::new();
    place.write("a", FOLDED);
    place.write("b", "other;main 5\nwork;main;parse 1\n");
    let text = |line: &str| place.run(&format!("render -q {line} -o -")).succeeds().stdout;
    assert_eq!(
        text("a b"),
        "other;main 5\nwork;io (17);main;read 3\nwork;io (18);main;parse;lex 40\nwork;main;parse 3\n"
    );
    assert_eq!(text("a --thread ^io$"), "work;io (17);main;read 3\nwork;io (18);main;parse;lex 40\n");
    assert_eq!(text("a --thread 18"), "work;io (18);main;parse;lex 40\n");
    assert_eq!(text("a --include lex --include read"), text("a --thread io"));
    assert_eq!(text("a --exclude (lex|read)"), "work;main;parse 2\n");
    assert_eq!(text("a --root ^parse$"), "work;io (18);parse;lex 40\nwork;parse 2\n");
}

#[test]
fn shares_in_a_graph_are_of_the_whole_profile() {
    let place = Place::new();
    let small: String = (0..20_000).map(|n| format!("p;main;small{n} 1\n")).collect();
    place.write("leaves", &format!("p;main;hot 10000\n{small}"));
    place.run("render leaves --reverse -q -o a.svg").succeeds();
    let svg = place.read("a.svg");
    assert!(svg.contains("all (30,000 samples, 100%)") && svg.contains("hot (10,000 samples, 33.33%)"));
    // Each process is too narrow to be drawn.
    place.write("many", &(0..20_000).map(|n| format!("proc{n};a 1\n")).collect::<String>());
    place.run("render many -q -o b.svg").succeeds();
    assert!(place.read("b.svg").contains("all (20,000 samples, 100%)"));
}

#[test]
fn a_filtered_profile_describes_only_itself() {
    let place = Place::new();
    place.write("a", "aaa;main;x 5\nbbb;main;y 7\n");
    let run = place.run("render a --include ^y$ -o a.svg -o a.speedscope.json").succeeds();
    assert!(run.stderr.starts_with("stackprof: bbb: 7 samples in 1 stack, wrote "), "{run}");
    for file in ["a.svg", "a.speedscope.json"] {
        let text = place.read(file);
        assert!(text.contains("bbb") && !text.contains("aaa") && !text.contains(">x ("), "{file}");
    }
    let many: String = (0..9).map(|n| format!("process{n};main 1\n")).collect();
    place.write("many", &many);
    let run = place.run("render many -o many.svg").succeeds();
    assert!(run.stderr.contains("process4, …: 9 samples"), "{run}");
    place.write("long", &format!("{};main 1\n", "é".repeat(1000)));
    let run = place.run("render long -o long.svg").succeeds();
    assert!(run.stderr.contains(&format!(" {}…: 1 sample", "é".repeat(200))), "{run}");
}

#[test]
fn a_graph_is_the_same_from_a_recording_and_from_its_file() {
    let place = Place::new();
    for title in ["", "--title T"] {
        place.run(&format!("--target sim:3 -q --max-depth 5 {title} -o a.svg -o a.pb.gz")).succeeds();
        place.run(&format!("render a.pb.gz -q {title} -o b.svg")).succeeds();
        assert!(place.read("a.svg").contains(" incomplete stack"));
        assert_eq!(place.read("a.svg"), place.read("b.svg"));
    }
}

#[test]
fn reverse_without_a_graph_is_refused() {
    let place = Place::new();
    place.write("a", "work;main 5\n");
    for line in ["render a --reverse -o b.folded", "--target sim:1 --reverse -o b.folded"] {
        let run = place.run(line);
        assert_eq!(run.code, Some(2), "{run}");
        assert_eq!(
            run.stderr,
            "stackprof: --reverse turns flame graphs round, and no output is one; add -o FILE.svg\n"
        );
        assert!(!place.path("b.folded").exists());
    }
}

#[test]
fn a_filter_without_matches_is_named() {
    let place = Place::new();
    place.write("a", "work;main 5\n");
    place.write("empty", "\n");
    for (line, expected) in [
        ("a --include nobody", "--include `nobody` left nothing of 5 samples"),
        ("a --include main --exclude work", "--exclude `work` left nothing of 5 samples"),
        ("a --root nobody", "--root `nobody` left nothing of 5 samples"),
        (
            "a --thread x",
            "--thread `x` left nothing of 5 samples; the profile does not keep threads apart (record with --threads)",
        ),
        ("empty", "empty: the profile has no samples; record for longer, or with --idle"),
    ] {
        let run = place.run(&format!("render {line} -o out.folded"));
        assert_eq!(run.code, Some(4), "{run}");
        assert_eq!(run.stderr, format!("stackprof: {expected}\n"));
        assert!(!place.path("out.folded").exists());
    }
}

#[test]
fn other_files_are_refused_and_nothing_written() {
    let place = Place::new();
    place.write("a", "work;main 5\n");
    place.write("text", "hello world\n");
    place.write("json", "{\"a\": 1}");
    for hz in [99, 250] {
        place.run(&format!("--target sim:1 -q --hz {hz} -o {hz}.pb.gz")).succeeds();
    }
    for (line, expected) in [
        ("missing", "cannot read `missing`: no such file or directory; check the name"),
        (
            "a text",
            "text:1: expected \"stack count\"; expected a profile (pprof, folded stacks, speedscope, Firefox, OTLP or text of perf script)",
        ),
        ("json", "json: neither a speedscope profile (shared, profiles) nor one of Firefox (meta, threads)"),
        (
            "99.pb.gz 250.pb.gz",
            "`99.pb.gz` and `250.pb.gz` cannot be merged: one was recorded at 99 Hz, the other at 250 Hz; \
             render each by itself",
        ),
    ] {
        let run = place.run(&format!("render {line} -o out.svg"));
        assert_eq!(run.code, Some(1), "{run}");
        assert_eq!(run.stderr, format!("stackprof: {expected}\n"));
        assert!(!place.path("out.svg").exists());
    }
}

#[test]
fn invalid_parts_are_reported_or_refused() {
    let place = Place::new();
    place.write("a", "p;main 5\np;other\np;more 2\n");
    let told = "stackprof: 1 line not understood, first: a:2: expected \"stack count\"\n";
    let run = place.run("render -q a -o -").succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("p;main 5\np;more 2\n", told));
    let run = place.shell("$STACKPROF render -q - -o - < a").succeeds();
    assert!(run.stderr.contains("first: standard input:2: expected"), "{run}");
    let run = place.run("diff -q a a -o a.md").succeeds();
    assert_eq!(run.stderr, told.repeat(2));
    for line in ["render --strict a -o out.svg", "diff --strict a a"] {
        place.run(line).fails_with(1, &["a:2: expected \"stack count\"; 1 line not understood (--strict)"]);
    }
    assert!(!place.path("out.svg").exists());
    place.write("half", "p;main 5\np;other\np;more\n");
    let expected = "half:2: expected \"stack count\"; 2 of 3 lines not understood";
    place.run("render half -o out.svg").fails_with(1, &[expected]);
}

#[test]
fn unsupported_files_are_named_with_the_next_step() {
    let place = Place::new();
    place.write("perf.data", "PERFILE2h");
    place.write("x.svg", "<?xml version=\"1.0\"?>\n<svg version=\"1.1\"></svg>");
    place.write("gecko", r#"{"meta":{"interval":1},"threads":[{"name":"a","samples":{"schema":{},"data":[]},"stringTable":[]}]}"#);
    place.write("v8", r#"{"nodes":[],"startTime":1,"endTime":2,"samples":[],"timeDeltas":[]}"#);
    place.write("two", "p;main 5 6\np;other 1 0\n");
    for (file, expected) in [
        ("perf.data", "run: perf script -i perf.data | stackprof render - -o FILE"),
        ("x.svg", "a picture cannot be read"),
        ("gecko", "a Gecko profile"),
        ("v8", ".cpuprofile"),
        ("two", "a differential profile"),
    ] {
        place.run(&format!("render {file} -o -")).fails_with(1, &[&format!("stackprof: {file}: "), expected]);
    }
    for line in ["$STACKPROF render '' -o -", "$STACKPROF diff '' a"] {
        place.shell(line).fails_with(2, &["a profile's name is empty; name a file: stackprof "]);
    }
}

#[test]
fn cpu_time_of_a_firefox_file_matches_the_recording() {
    let place = Place::new();
    place.run("--target sim:3 --threads --idle --no-timeline -q -o a.folded -o a.firefox.json").succeeds();
    let json: serde_json::Value = serde_json::from_str(&place.read("a.firefox.json")).unwrap();
    let period_us = json["meta"]["interval"].as_f64().unwrap() * 1e3;
    let numbers = |column: &serde_json::Value| -> Vec<f64> {
        column.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let mut counts = 0.0;
    for thread in json["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        let weights = numbers(&samples["weight"]);
        let (cpu, deltas) = (numbers(&samples["threadCPUDelta"]), numbers(&samples["timeDeltas"]));
        // The first sample has no previous time.
        assert_eq!((weights[0], cpu[0], samples["stack"][0].is_null()), (0.0, 0.0, true));
        let mut now_us = 0.0;
        for ((weight, cpu), delta) in weights.iter().zip(&cpu).zip(&deltas).skip(1) {
            assert_eq!(*weight, 1.0);
            now_us += delta * 1e3;
            counts += weight;
            // A waiting thread uses none; the others have a period each, up to rounding.
            assert!(*cpu == 0.0 || (cpu - period_us).abs() < 1.5, "{cpu} of {period_us}");
        }
        assert!((now_us - (weights.len() - 1) as f64 * period_us).abs() < 1.0 + weights.len() as f64 * 0.01);
    }
    assert_eq!(counts, total(&place.read("a.folded")));
}

/// Counts of folded stacks.
fn total(folded: &str) -> f64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

#[test]
fn a_firefox_file_with_times_has_cpu_time_only_at_its_samples() {
    let place = Place::new();
    place.run("--target sim:3 --threads -q -o a.folded -o a.firefox.json").succeeds();
    let json: serde_json::Value = serde_json::from_str(&place.read("a.firefox.json")).unwrap();
    let numbers = |column: &serde_json::Value| -> Vec<f64> {
        column.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (mut counts, mut used_us, mut pauses) = (0.0, 0.0, 0);
    for thread in json["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        let weights = numbers(&samples["weight"]);
        let (cpu, deltas) = (numbers(&samples["threadCPUDelta"]), numbers(&samples["timeDeltas"]));
        assert_eq!((weights[0], cpu[0], samples["stack"][0].is_null()), (0.0, 0.0, true));
        for (at, ((weight, cpu), delta)) in weights.iter().zip(&cpu).zip(&deltas).enumerate().skip(1) {
            counts += weight;
            used_us += cpu;
            // A pause ends with a sample without a stack and CPU time.
            if *cpu == 0.0 {
                pauses += 1;
                assert!(samples["stack"][at].is_null() && *weight == 0.0 && *delta > 0.0, "{at}");
            } else {
                assert!(*cpu <= delta * 1e3 * 1.6 + 2_000.0, "{cpu} us of CPU time in {delta} ms");
            }
        }
    }
    let folded = total(&place.read("a.folded"));
    assert_eq!(counts, folded);
    assert!(
        (used_us * 997.0 / 1e6 - folded).abs() <= folded * 0.01 + 2.0,
        "{used_us} us for {folded} counts"
    );
    assert!(pauses > 10, "{pauses}");
}
