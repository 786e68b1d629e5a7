//! Golden files: outputs of simulated recordings, byte for byte, under tests/golden/.
//!
//! A missing or unused file is a failure. After an intended change: `STACKPROF_BLESS=1 cargo test --test fast
//! golden`, and review the difference; refused under `CI`. Masked as `*`, because they differ between
//! machines or releases: the program's version, its own CPU time, memory and times (`profiler_*`,
//! `symbolicate_s`, `write_s`), and `trie_bytes`, which depends on the processor's vector width.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the golden files, and the options of the run.
const RUNS: [(&str, &str); 4] = [
    ("sim-1", "--target sim:1 -o out.folded -o out.svg --stats out.json"),
    ("sim-2-idle", "--target sim:2 --idle -o out.folded --stats out.json"),
    ("sim-3-threads", "--target sim:3 --threads --hz 250 -o out.folded --stats out.json"),
    ("sim-4-reverse", "--target sim:4 -d 0.5 --reverse --title T -o out.folded -o out.svg --stats out.json"),
];

/// Dumps of the same processes; their standard output is the golden file.
const DUMPS: [&str; 4] = ["threads", "images", "symbols", "stacks"];

const MASKED: [&str; 9] = [
    "version",
    "trie_bytes",
    "profiler_cpu_s",
    "profiler_peak_rss_bytes",
    "recording_peak_rss_bytes",
    "recording_private_bytes",
    "recording_file_bytes",
    "symbolicate_s",
    "write_s",
];

#[test]
fn outputs_match_the_golden_files() {
    let made = generated();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if std::env::var_os("STACKPROF_BLESS").is_some() {
        assert!(
            std::env::var_os("CI").is_none(),
            "STACKPROF_BLESS is not for CI: goldens are read by a person"
        );
        bless(&directory, &made);
        return;
    }
    let mut wrong = Vec::new();
    for (name, text) in &made {
        match fs::read_to_string(directory.join(name)) {
            Ok(golden) if golden == *text => {}
            Ok(golden) => wrong.push(format!("tests/golden/{name}: {}", first_difference(&golden, text))),
            Err(error) => wrong.push(format!("tests/golden/{name}: {error}")),
        }
    }
    wrong.extend(golden_files(&directory).into_iter().filter_map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (!made.contains_key(&name)).then(|| format!("tests/golden/{name}: no run makes it any more"))
    }));
    assert!(
        wrong.is_empty(),
        "\n{}\nif this is intended: STACKPROF_BLESS=1 cargo test --test fast golden, then read `git diff`\n",
        wrong.join("\n")
    );
}

#[test]
fn only_varying_values_are_masked() {
    let json = "{\n  \"version\": \"0.1.0\",\n  \"ticks\": 5,\n  \"write_s\": 0.25,\n  \"outputs\": []\n}\n";
    assert_eq!(
        masked(json),
        "{\n  \"version\": \"*\",\n  \"ticks\": 5,\n  \"write_s\": \"*\",\n  \"outputs\": []\n}\n"
    );
    assert_eq!(first_difference("a\nb\n", "a\nc\n"), "line 2\n  golden: b\n  now:    c");
    assert_eq!(first_difference("a\n", "a\nb\n"), "line 2\n  golden: [end]\n  now:    b");
}

/// Every golden file as generated now.
fn generated() -> BTreeMap<String, String> {
    let mut made = BTreeMap::new();
    for (name, options) in RUNS {
        let place = tempfile::tempdir().unwrap();
        let output = program(place.path(), options);
        made.insert(format!("{name}.summary.txt"), output.1);
        for extension in ["folded", "svg", "json"] {
            if let Ok(text) = fs::read_to_string(place.path().join(format!("out.{extension}"))) {
                let text = if extension == "json" { masked(&text) } else { text };
                made.insert(format!("{name}.{extension}"), text);
            }
        }
    }
    for what in DUMPS {
        let output = program(Path::new("."), &format!("dump {what} --target sim:1"));
        made.insert(format!("dump-{what}.txt"), output.0);
    }
    made
}

/// Standard output and standard error of a run that must succeed.
fn program(directory: &Path, line: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackprof"));
    let output = command.args(line.split_whitespace()).current_dir(directory).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "stackprof {line}: {}\n{stdout}\n{stderr}", output.status);
    (stdout, stderr)
}

/// The statistics with `*` for varying values; top-level keys are indented by two spaces.
fn masked(json: &str) -> String {
    let line = |line: &str| {
        let key = MASKED.iter().find(|key| line.starts_with(&format!("  \"{key}\": ")));
        key.map_or_else(|| line.to_owned() + "\n", |key| format!("  \"{key}\": \"*\",\n"))
    };
    json.lines().map(line).collect()
}

fn first_difference(golden: &str, now: &str) -> String {
    let (mut golden, mut now) = (golden.lines(), now.lines());
    for number in 1.. {
        match (golden.next(), now.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                // Lines of a flame graph can be long.
                let shown = |line: Option<&str>| -> String {
                    line.map_or_else(|| "[end]".to_owned(), |line| line.chars().take(300).collect())
                };
                return format!("line {number}\n  golden: {}\n  now:    {}", shown(a), shown(b));
            }
        }
    }
    "line ends differ".to_owned()
}

fn golden_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with('.')).collect()
}

fn bless(directory: &Path, made: &BTreeMap<String, String>) {
    for path in golden_files(directory) {
        fs::remove_file(path).unwrap();
    }
    fs::create_dir_all(directory).unwrap();
    for (name, text) in made {
        fs::write(directory.join(name), text).unwrap();
    }
}
