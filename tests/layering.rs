//! The architecture as a test: which module may name which, where `unsafe`, printing and
//! `cfg(target_os)` may stand, and how long a file may be.
//!
//! Input: the sources under src/, crates/, tests/ and benches/ as text. Every rule is a function
//! from a path and a text to complaints, so that each one is also tried on a text that
//! breaks it. Not a Rust parser: literals, braces and `mod` are all it knows.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use regex_lite::{Captures, Regex};

/// Module, and the paths below `crate` that it may name; all that begin with one of them are allowed; `rng` is for tests.
/// Each names only modules listed before it, so there is no circle. The command line may name everything, and nothing may
/// name it.
const ALLOWED: [(&str, &[&str]); 26] = [
    ("addr", &[]),
    ("error", &[]),
    ("escape", &[]),
    ("clock", &[]),
    ("interruption", &[]),
    ("leb128", &[]),
    ("live", &[]),
    ("module_offset", &[]),
    ("rng", &[]),
    ("trie", &["rng"]),
    ("arch", &["addr"]),
    ("heap", &["rng", "trie"]),
    ("profile", &["error", "escape", "heap", "module_offset", "rng", "trie"]),
    ("binary", &["addr", "error", "leb128", "rng"]),
    ("disassembly", &["addr", "binary", "rng"]),
    // binary: to compare the head of a file with what is mapped.
    ("sources", &["addr", "arch", "binary", "clock", "error", "interruption", "leb128", "live", "rng"]),
    ("walk", &["addr", "arch", "binary::frame_rule", "leb128", "rng"]),
    (
        "images",
        &[
            "addr",
            "binary",
            "walk::Code",
            "walk::CodeTraits",
            "walk::FilePlace",
            "walk::Glance",
            "walk::GLANCE_BYTES",
            "walk::NeedsBytes",
        ],
    ),
    (
        "recording",
        &[
            "addr",
            // Files of processes that made code, for its names.
            "binary::FileUser",
            "binary::Files",
            "heap",
            "images",
            "leb128",
            "rng",
            "sources::ExitStatus",
            "sources::Process",
            "sources::pushed::AllocationLosses",
            "trie",
            // The methods that found frames are counted.
            "walk::Method",
        ],
    ),
    // Debug files are opened through `Files`, as the target sees them.
    (
        "symbol",
        &[
            "addr",
            "binary",
            "images",
            "leb128",
            "module_offset",
            "recording::Frame",
            "recording::Root",
            "rng",
            "trie::FrameId",
        ],
    ),
    (
        "sampler",
        &[
            "addr",
            "arch",
            "binary",
            "clock",
            "error",
            "heap",
            "images",
            "live",
            "recording",
            "rng",
            "sources",
            "trie",
            "walk",
        ],
    ),
    // images, symbol: source and instructions of a profile's code.
    ("server", &["addr", "binary", "disassembly", "images", "profile", "rng", "symbol"]),
    ("conversion", &["heap", "profile", "recording", "symbol::Names", "trie"]),
    ("flamegraph", &["error", "escape"]),
    ("diff", &["escape", "module_offset", "profile", "rng", "trie"]),
    ("gate", &["diff", "escape", "module_offset", "profile", "rng", "trie"]),
];

const LINES_MAX: usize = 900;

/// A library of its own, that other programs load, and the build script that compiles it.
const SHIM: &str = "src/heap_shim/";

/// Modules that only tests have; not checked.
const FOR_TESTS: [&str; 3] = ["cpu_time", "rounds", "skip"];

/// Where files are mapped into memory.
const MAPS_FILES: &str = "crates/unwind/src/binary/map.rs";

/// Files that may ask which system they are for, beside src/sources.
const SYSTEM_FILES: [&str; 1] = ["src/cli/system.rs"];

#[test]
fn modules_name_only_those_listed_before_them() {
    check_all(&["src", "crates/unwind/src", "crates/profile/src"], edges_not_allowed);
}

#[test]
fn no_modules_stand_in_a_circle() {
    for (at, (module, allowed)) in ALLOWED.iter().enumerate() {
        for path in *allowed {
            let named = path.split("::").next().unwrap_or_default();
            assert!(ALLOWED[..at].iter().any(|(above, _)| *above == named), "`{module}` names `{named}`");
        }
    }
}

#[test]
fn unsafe_stands_in_sources_and_says_why_it_is_sound() {
    check_all(&["src", "crates/unwind/src", "crates/profile/src"], unsafe_without_reason);
}

#[test]
fn only_sources_know_the_system() {
    check_all(&["src", "crates/unwind/src", "crates/profile/src"], system_outside_sources);
}

#[test]
fn only_the_command_line_prints_and_exits() {
    check_all(&["src", "crates/unwind/src", "crates/profile/src"], printing_outside_cli);
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    check_all(&["src", "crates", "tests", "benches"], too_long_or_without_purpose);
}

#[test]
fn documents_name_files_that_exist() {
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents = BTreeMap::new();
    for root in ["docs", "tests", "scripts", "packaging"] {
        collect(base, root, ".md", &mut documents);
    }
    for entry in fs::read_dir(base).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            documents.insert(name, fs::read_to_string(entry.path()).unwrap());
        }
    }
    assert!(documents.len() > 10, "too few documents found: {}", documents.len());
    let exists = |path: &str| base.join(path).exists();
    let mut complaints: Vec<String> =
        documents.iter().flat_map(|(path, text)| not_there(path, text, exists)).collect();
    let mut sources = BTreeMap::new();
    for root in ["src", "crates", "tests", "benches"] {
        collect(base, root, ".rs", &mut sources);
    }
    complaints.extend(ends_of_no_path(&documents["ARCHITECTURE.md"], sources.keys()));
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Paths in documents begin with one of these, or are relative to the document.
const ROOTS: [&str; 5] = ["src/", "crates/", "tests/", "scripts/", "benches/"];

/// Files and test programs that a document names and that are not there.
fn not_there(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_part = |c: char| c.is_alphanumeric() || "/._-".contains(c);
        let mut before = "";
        for word in line.split(|c| !is_part(c)).filter(|word| !word.is_empty()) {
            let name = word.trim_end_matches(['.', '/']);
            // Of another project, or of this one from the folder that the document is in.
            let is_ours =
                ROOTS.iter().any(|root| name.starts_with(root)) && !line.contains(&format!("{name}*"));
            let found = || {
                [name.to_owned(), format!("{name}.rs"), format!("{folder}/{name}")]
                    .iter()
                    .any(|path| exists(path))
            };
            if is_ours && !found() {
                complaints.push(format!("{path}:{number}: there is no {name}"));
            }
            if before == "--test"
                && !exists(&format!("tests/{name}.rs"))
                && !exists(&format!("tests/{name}/main.rs"))
            {
                complaints.push(format!("{path}:{number}: there is no test program {name}"));
            }
            before = word;
        }
    }
    complaints
}

/// Files and folders that the code map names from a folder on (`` `ring/mod.rs` ``, `` `walk/` ``) and that are not there.
fn ends_of_no_path<'p>(text: &str, paths: impl Iterator<Item = &'p String> + Clone) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_path = name.ends_with(".rs") || name.ends_with('/');
            if !is_path
                || ROOTS.iter().any(|root| name.starts_with(root))
                || name.contains([' ', '{', '*', '('])
                || name.contains("NAME")
            {
                continue;
            }
            let part = format!("/{name}");
            let there = |path: &&String| {
                let path = format!("/{path}");
                path.ends_with(&part) || (part.ends_with('/') && path.contains(&part))
            };
            if paths.clone().find(there).is_none() {
                complaints.push(format!("ARCHITECTURE.md:{number}: no path ends with {name}"));
            }
        }
    }
    complaints
}

fn check_all(roots: &[&str], rule: fn(&str, &str) -> Vec<String>) {
    let mut files = BTreeMap::new();
    for root in roots {
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), root, ".rs", &mut files);
    }
    assert!(files.len() > 5, "too few sources found below {roots:?}: {}", files.len());
    let complaints: Vec<String> = files.iter().flat_map(|(path, text)| rule(path, text)).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The files below a folder that end so, and what is in them.
fn collect(base: &Path, directory: &str, ending: &str, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(base.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            // tests/fuzz is a crate of its own, and what cargo builds there is not ours.
            if !(entry.file_name() == "target" && path.starts_with("tests/")) {
                collect(base, &path, ending, into);
            }
        } else if path.ends_with(ending) {
            into.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

// ---- rules

fn edges_not_allowed(path: &str, text: &str) -> Vec<String> {
    let Some(first) = module_path(path).first().map(|name| (*name).to_owned()) else { return Vec::new() };
    let module = room(path, first);
    let module = module.split("::").next().unwrap_or_default().to_owned();
    if module == "cli" || path.starts_with(SHIM) {
        return Vec::new();
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == module) else {
        return vec![format!("{path}: module `{module}` is not in the table of tests/layering.rs")];
    };
    let mut complaints = Vec::new();
    if path.starts_with("src/") && path != "src/lib.rs" {
        let bare = bare(text);
        let names = found(&bare, r"\buse (?:::)?(?:unwind|profile)\b");
        complaints
            .extend(names.map(|(line, ..)| format!("{path}:{line}: name the libraries' rooms as `crate::`")));
    }
    for (line, named) in crate_paths(path, text) {
        let named = room(path, named);
        let below = |prefix: &str| named == prefix || named.starts_with(&format!("{prefix}::"));
        if FOR_TESTS.iter().any(|name| named.starts_with(name)) {
            continue;
        }
        if !below(&module) && !allowed.iter().any(|prefix| below(prefix)) {
            complaints.push(format!("{path}:{line}: `{module}` may not use `crate::{named}`"));
        }
    }
    complaints
}

fn unsafe_without_reason(path: &str, text: &str) -> Vec<String> {
    if !text.contains("unsafe") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let uses: Vec<usize> = found(&bare(text), r"\bunsafe\b").map(|(line, ..)| line).collect();
    let allows = text.contains("#![allow(unsafe_code)]");
    let mut complaints = Vec::new();
    if allows && uses.is_empty() {
        complaints.push(format!("{path}: allows unsafe code and has none"));
    }
    for line in uses {
        let may = path.starts_with("src/sources/") || path.starts_with(SHIM) || path == MAPS_FILES;
        if !may || !allows {
            complaints.push(format!(
                "{path}:{line}: `unsafe` belongs in a file of src/sources, or {MAPS_FILES}, with #![allow(unsafe_code)]"
            ));
        }
        // The comment stands right above the statement, which may have begun some lines before.
        let above = lines[..line - 1].iter().rev().map(|line| line.trim());
        let statement = above.skip_while(|line| {
            !line.starts_with("//") && !line.is_empty() && !line.ends_with([';', '{', '}'])
        });
        let mut comment = statement.take_while(|line| line.starts_with("//"));
        if !comment.any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
            complaints.push(format!("{path}:{line}: `unsafe` without a SAFETY comment above it"));
        }
    }
    complaints
}

fn system_outside_sources(path: &str, text: &str) -> Vec<String> {
    let may = path.starts_with("src/sources/") || path.starts_with(SHIM) || SYSTEM_FILES.contains(&path);
    if may || is_test_file(path) || !text.contains("target_") {
        return Vec::new();
    }
    // `#[cfg(all(test, target_os = ..))]` in front of a test that needs one system's files.
    let for_a_test =
        |line: usize| text.lines().nth(line - 1).is_some_and(|line| line.contains("cfg(all(test,"));
    let bare = without_tests(text);
    let uses = found(&bare, r"\btarget_(?:os|vendor)\b").filter(|(line, ..)| !for_a_test(*line));
    uses.map(|(line, what, _)| format!("{path}:{line}: `{what}` belongs in src/sources or {SYSTEM_FILES:?}"))
        .collect()
}

fn printing_outside_cli(path: &str, text: &str) -> Vec<String> {
    if is_test_file(path) || path == "src/heap_shim/build.rs" {
        return Vec::new();
    }
    let bare = without_tests(text);
    let mut complaints: Vec<String> = found(&bare, r"\b(?:e?print(?:ln)?|dbg)!")
        .map(|(line, what, _)| format!("{path}:{line}: `{what}`: cli/messages.rs prints"))
        .collect();
    if !path.starts_with("src/cli/") {
        // A method of that name is of a command that is started.
        let streams = found(&bare, r"(?:^|[^.\w])std(?:out|err)\(|\bprocess::exit");
        let complain = |line| format!("{path}:{line}: only the command line prints and exits");
        complaints.extend(streams.map(|(line, ..)| complain(line)));
    }
    complaints
}

fn too_long_or_without_purpose(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        complaints.push(format!("{path}: {lines} lines; more than {LINES_MAX} are to be split"));
    }
    // A file of unit tests is explained by the file it tests.
    if !text.starts_with("//!") && !is_test_file(path) {
        complaints.push(format!("{path}: does not begin with `//!` and what it is for"));
    }
    complaints
}

/// Unit tests in a file of their own, or in a folder of such.
fn is_test_file(path: &str) -> bool {
    (path.starts_with("src/") || path.starts_with("crates/"))
        && (path.ends_with("tests.rs") || path.contains("/tests/"))
}

// ---- reading Rust, as far as the rules need it

/// Rust without comments and literals; lines stay lines.
fn bare(text: &str) -> String {
    static PARTS: LazyLock<Regex> = LazyLock::new(|| {
        let raw = r###"r##"(?s:.*?)"##|r#"(?s:.*?)"#|\br"[^"]*""###;
        let others = r#"//[^\n]*|/\*(?s:.*?)\*/|"(?:\\(?s:.)|[^"\\])*"|'(?:\\[^\n]+?|[^\\'\n])'"#;
        Regex::new(&format!("{raw}|{others}")).unwrap()
    });
    let lines = |part: &Captures<'_>| "\n".repeat(part[0].matches('\n').count());
    PARTS.replace_all(text, lines).into_owned()
}

/// The blocks of inline modules of [`bare`] text whose names end so.
fn modules(bare: &str, ending: &str) -> Vec<Range<usize>> {
    let heads = Regex::new(&format!(r"\bmod \w*{ending} \{{")).unwrap();
    let block = |start: usize| {
        let mut depth = 1;
        let end = bare[start..].find(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        start..end.map_or(bare.len(), |end| start + end)
    };
    heads.find_iter(bare).map(|head| block(head.end())).collect()
}

/// [`bare`] text without unit tests.
fn without_tests(text: &str) -> String {
    let mut bare = bare(text);
    for tests in modules(&bare, "tests").into_iter().rev() {
        let lines = "\n".repeat(bare[tests.clone()].matches('\n').count());
        bare.replace_range(tests, &lines);
    }
    bare
}

/// Line, text and end of each match.
fn found<'t>(text: &'t str, pattern: &str) -> impl Iterator<Item = (usize, &'t str, usize)> {
    let matches: Vec<_> = Regex::new(pattern).unwrap().find_iter(text).collect();
    let (mut at, mut line) = (0, 1);
    matches.into_iter().map(move |part| {
        line += text[at..part.end() - 1].matches('\n').count();
        at = part.end() - 1;
        (line, part.as_str(), part.end())
    })
}

/// A path below the root of the file's crate as the table has it: `trie::X` stays; other modules of crates/profile get
/// `profile::` in front.
fn room(file: &str, path: String) -> String {
    let first = path.split("::").next().unwrap_or_default();
    let is_room = ALLOWED.iter().any(|(name, _)| *name == first) || FOR_TESTS.contains(&first);
    if file.starts_with("crates/profile/") && !is_room { format!("profile::{path}") } else { path }
}

/// The modules of its crate that a file stands for: `src/sources/sim/mod.rs` is `sources`, `sim`.
fn module_path(path: &str) -> Vec<&str> {
    let path = path.trim_start_matches("crates/unwind/").trim_start_matches("crates/profile/");
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    path.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main")).collect()
}

/// Every path that begins at the crate's root, by `crate::` or by enough `super::`, with
/// its line; a `use` of several is several.
fn crate_paths(path: &str, text: &str) -> Vec<(usize, String)> {
    let (bare, depth) = (bare(text), module_path(path).len());
    let inline = modules(&bare, "");
    let mut paths = Vec::new();
    for (line, root, end) in found(&bare, r"\b(?:crate|(?:super::)*super)::") {
        let around = inline.iter().filter(|module| module.contains(&end)).count();
        if root == "crate::" || root.matches("super").count() >= depth + around {
            let mut of_root = Vec::new();
            flatten(&bare[end..], "", &mut of_root);
            paths.extend(of_root.into_iter().map(|path| (line, path)));
        }
    }
    paths
}

/// Reads one path or group behind `path`; returns what follows.
fn flatten<'t>(rest: &'t str, path: &str, out: &mut Vec<String>) -> &'t str {
    if let Some(mut group) = rest.strip_prefix('{') {
        loop {
            group = group.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
            match group.strip_prefix('}') {
                None if !group.is_empty() => group = flatten(group, path, out),
                after => return after.unwrap_or_default(),
            }
        }
    }
    let is_name = |c: char| c.is_alphanumeric() || "_*$".contains(c);
    let (name, after) = rest.split_at(rest.find(|c: char| !is_name(c)).unwrap_or(rest.len()));
    assert!(!name.is_empty(), "no path: {}", rest.lines().next().unwrap_or_default());
    let path = match path {
        _ if name == "self" => path.to_owned(),
        "" => name.to_owned(),
        _ => format!("{path}::{name}"),
    };
    match after.strip_prefix("::") {
        Some(next) if !next.starts_with('<') => flatten(next, &path, out),
        _ => {
            out.push(path);
            after.strip_prefix(" as ").map_or(after, |alias| alias.trim_start_matches(is_name))
        }
    }
}

// ---- each rule is seen to fail

#[test]
fn a_wrong_edge_is_found_however_it_is_written() {
    for text in [
        "use crate::sources::Target;",
        "use crate::{addr::Avma, sources::{self, sim::SimTarget}};",
        "fn f() { crate::sources::g(); }",
        "use super::super::sources;",
        "mod tests { use super::super::super::sources as t; }",
    ] {
        let complaints = edges_not_allowed("crates/unwind/src/walk/fp.rs", text);
        assert!(!complaints.is_empty() && complaints[0].contains("`walk` may not use"), "{text}");
    }
    for text in [
        "use crate::addr::{Avma, CodeAddress};",
        "use super::StackEnd; mod tests { use super::super::StackEnd; }",
        "// crate::sources\n/* crate::sources */ const A: (&str, char) = (\"crate::sources\", '\"');",
        "const B: &str = r#\"\" crate::sources\"#; fn f<'a>(a: &'a str) {}",
        "pub(crate) fn f() {}",
    ] {
        assert_eq!(edges_not_allowed("crates/unwind/src/walk/fp.rs", text), Vec::<String>::new());
    }
    assert_eq!(edges_not_allowed("src/recording/mod.rs", "use crate::sources::{Process, Target};").len(), 1);
    assert_eq!(edges_not_allowed("crates/profile/src/flamegraph/mod.rs", "use crate::cli::text;").len(), 1);
    assert_eq!(edges_not_allowed("src/sampler/mod.rs", "use ::unwind::walk::Frames;").len(), 1);
    assert_eq!(edges_not_allowed("src/sampler/mod.rs", "use profile::saved::Frame;").len(), 1);
    assert_eq!(edges_not_allowed("src/later.rs", "").len(), 1);
}

#[test]
fn wrong_places_and_missing_reasons_are_found() {
    let sound = "#![allow(unsafe_code)]\nfn f() {\n    // SAFETY: it is.\n    // Twice.\n    let x =\n        unsafe { g() };\n}\n";
    assert_eq!(unsafe_without_reason("src/sources/linux/sys.rs", sound), Vec::<String>::new());
    assert_eq!(unsafe_without_reason("crates/unwind/src/walk/fp.rs", sound).len(), 1);
    for text in [
        "#![allow(unsafe_code)]\nfn f() {\n    unsafe { g() };\n}\n",
        "#![allow(unsafe_code)]\n// SAFETY: of another.\nlet a = 1;\nunsafe { g() };\n",
        "#![allow(unsafe_code)]\nfn f() {}\n",
    ] {
        assert_eq!(unsafe_without_reason("src/sources/linux/sys.rs", text).len(), 1, "{text}");
    }
    let system = "#[cfg(target_os = \"linux\")]\nfn f() {}\n";
    assert_eq!(system_outside_sources("src/walk/mod.rs", system).len(), 1);
    assert_eq!(system_outside_sources("src/cli/system.rs", system).len(), 0);
    assert_eq!(system_outside_sources("src/walk/mod.rs", &format!("mod tests {{ {system} }}")).len(), 0);
    for text in ["println!(\"x\")", "std::io::stderr()", "std::process::exit(1)"] {
        assert_eq!(printing_outside_cli("src/sampler/mod.rs", text).len(), 1, "{text}");
        assert_eq!(printing_outside_cli("src/walk/mod.rs", &format!("mod tests {{ {text} }}")).len(), 0);
    }
    assert_eq!(printing_outside_cli("src/cli/record.rs", "eprintln!()").len(), 1);
    assert_eq!(printing_outside_cli("src/sources/a.rs", "command.stdout(to)").len(), 0);
    assert_eq!(too_long_or_without_purpose("src/a.rs", &"//! x\n".repeat(LINES_MAX + 1)).len(), 1);
    assert_eq!(too_long_or_without_purpose("src/a.rs", "fn f() {}").len(), 1);
}

#[test]
fn names_of_files_that_are_gone_are_found() {
    let exists = |path: &str| ["tests/fast/main.rs", "src/walk/mod.rs", "docs/src/a.md"].contains(&path);
    let complaints = |text: &str| not_there("docs/a.md", text, exists);
    assert_eq!(complaints("`src/walk/mod.rs`, `src/walk/mod`; cargo test --test fast"), [""; 0]);
    assert_eq!(complaints("see (src/a.md)"), [""; 0], "from the folder of the document");
    assert_eq!(complaints("one\n`src/walk/gone.rs`."), ["docs/a.md:2: there is no src/walk/gone.rs"]);
    assert_eq!(complaints("--test golden"), ["docs/a.md:1: there is no test program golden"]);
    let paths = ["src/cli/mod.rs".to_owned()];
    assert_eq!(ends_of_no_path("`cli/mod.rs` `cli/` `a b.rs`", paths.iter()), Vec::<String>::new());
    assert_eq!(ends_of_no_path("`cli/gone.rs` `i/`", paths.iter()).len(), 2);
}
