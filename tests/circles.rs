//! No circles of files: no file of src names one that names it in turn, through others or not.
//!
//! Input: the sources under src/ as text. Not a Rust parser: it knows `use`, paths that begin with `crate`, `super` or
//! `self`, and what a module hands on by `use`. A module that only hands a name on does not name it, and methods
//! are not looked up: `impl` blocks of a type may stand in files that name the file of the type.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Names are handed on from module to module this often at most.
const HANDED_ON_MAX: u32 = 8;

/// Modules by path (`walk::flow::paths`), with their text as far as it counts.
type Modules = BTreeMap<String, String>;

#[test]
fn no_files_stand_in_a_circle() {
    let mut modules = Modules::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut modules);
    assert!(modules.len() > 500, "too few files found: {}", modules.len());
    assert_eq!(circle(&edges(&modules)), None);
}

#[test]
fn circles_are_found() {
    let modules = |texts: &[(&str, &str)]| {
        let all = texts.iter().map(|(path, text)| ((*path).to_owned(), counted(text)));
        circle(&edges(&all.collect()))
    };
    let found =
        modules(&[("a", "mod b;"), ("a::b", "use super::c::X;"), ("a::c", "fn f() { crate::a::b::y() }")]);
    assert_eq!(found, Some(vec!["a::b".to_owned(), "a::c".to_owned()]));
    // A name that the parent hands on is of the file that has it.
    let handed_on = [("a", "mod b; mod c; pub use b::X;"), ("a::b", "struct X;"), ("a::c", "use super::X;")];
    assert_eq!(modules(&handed_on), None);
    let back = [
        ("a", "mod b; mod c; pub use b::{X, Y as Z};"),
        ("a::b", "use super::c;"),
        ("a::c", "use super::Z;"),
    ];
    assert!(modules(&back).is_some());
    // What is handed on and used is named; what is handed on alone is not.
    let shared = ("a::b", "use super::X;");
    assert_eq!(modules(&[("a", "mod b; struct X; pub use b::Y;"), shared]), None);
    assert!(modules(&[("a", "mod b; struct X(Y); pub use b::Y;"), shared]).is_some());
    // Tests, comments and who may see an item do not count.
    let text =
        "// crate::a::c\npub(in crate::a::c) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::c;\n}\n";
    assert_eq!(modules(&[("a", ""), ("a::b", text), ("a::c", "use super::b;")]), None);
}

/// Reads the files of a folder under src/.
fn collect(src: &Path, folder: &str, into: &mut Modules) {
    for entry in fs::read_dir(src.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type().unwrap().is_dir() {
            if name != "tests" {
                collect(src, &path, into);
            }
        } else if let Some(module) = path.strip_suffix(".rs") {
            let module = module.strip_suffix("/mod").unwrap_or(module).replace('/', "::");
            into.insert(module, counted(&fs::read_to_string(entry.path()).unwrap()));
        }
    }
    // Files of tests are declared under `cfg(test)`.
    let parents: Vec<(String, String)> =
        into.iter().map(|(path, text)| (path.clone(), text.clone())).collect();
    for (path, text) in parents {
        for module in text.split("#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split(';').next()) {
            into.retain(|other, _| !other.starts_with(&format!("{path}::{module}")));
        }
    }
}

/// A text without comments, inline tests and the places that visibility names.
fn counted(text: &str) -> String {
    let tests = |text: &str, start: &str| text.split(start).next().unwrap_or_default().to_owned();
    let text = tests(&tests(text, "#[cfg(test)]\nmod tests {"), "#[cfg(all(test");
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    while let Some(start) = text.find("pub(in ") {
        let end = start + text[start..].find(')').map_or(text.len() - start, |length| length + 1);
        text.replace_range(start..end, "pub");
    }
    text
}

/// Which modules each module names.
fn edges(modules: &Modules) -> BTreeMap<&str, BTreeSet<&str>> {
    let edge = |(module, text): (&'_ String, &String)| {
        let named =
            paths(&without_handed_on(text)).into_iter().filter_map(|path| resolve(modules, module, &path, 0));
        (module.clone(), named.filter(|named| named != module).collect::<BTreeSet<String>>())
    };
    let found: BTreeMap<String, BTreeSet<String>> = modules.iter().map(edge).collect();
    let own = |name: &String| modules.get_key_value(name).map(|(name, _)| name.as_str());
    let keys = modules.keys().map(String::as_str);
    keys.map(|key| (key, found[key].iter().filter_map(own).collect())).collect()
}

/// A text without names that it hands on by `pub use` and does not use itself.
fn without_handed_on(text: &str) -> String {
    let is_handed_on = |statement: &str| {
        let Some((before, tree)) = statement.rsplit_once("use ") else { return false };
        let line = before.trim_end().rsplit('\n').next().unwrap_or_default().trim_start();
        if !line.starts_with("pub") {
            return false;
        }
        let mut named = Vec::new();
        expand_with_names(tree.trim_end_matches(';'), &mut named);
        let words = |text: &str, name: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| *word == name).count()
        };
        named.iter().all(|(_, name)| words(text, name) == words(statement, name))
    };
    text.split_inclusive(';').filter(|statement| !is_handed_on(statement)).collect()
}

/// All that is named: what `use` names, and paths in code.
fn paths(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = String::new();
    for statement in text.split(';') {
        let begin = statement.rfind("use ").filter(|at| {
            let before = statement[..*at].trim_end();
            before.is_empty() || before.ends_with(['\n', '}', 'b', ')', ']'])
        });
        match begin {
            Some(at) => {
                code.push_str(&statement[..at]);
                expand("", &statement[at + "use ".len()..], &mut found);
            }
            None => code.push_str(statement),
        }
        code.push(';');
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_part(c)).map(|word| word.trim_matches(':'));
    let begins = |word: &&str| ["crate::", "super::", "self::"].iter().any(|start| word.starts_with(start));
    found.extend(words.filter(begins).map(str::to_owned));
    found
}

/// The paths of a tree that `use` names.
fn expand(before: &str, tree: &str, into: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return into.push(format!("{before}{}", path.trim()));
    };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&format!("{before}{head}"), &inner[start..at], into);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The module that has what a path in `module` names; `None` outside of src.
fn resolve(modules: &Modules, module: &str, path: &str, handed_on: u32) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").filter(|part| *part != "self").collect();
    let mut base: Vec<&str> = module.split("::").collect();
    match parts.first().copied() {
        Some("crate") => base.clear(),
        Some("super") => {}
        Some(first) if modules.contains_key(&format!("{module}::{first}")) || path.starts_with("self::") => {}
        _ => return None,
    }
    parts.retain(|part| match *part {
        "crate" => false,
        "super" => base.pop().is_none(),
        _ => true,
    });
    base.extend(parts);
    let name = base.last()?.to_string();
    while !base.is_empty() && !modules.contains_key(&base.join("::")) {
        base.pop();
    }
    match base.is_empty() {
        true => None,
        false if handed_on >= HANDED_ON_MAX => Some(base.join("::")),
        false => Some(owner(modules, base.join("::"), &name, handed_on + 1)),
    }
}

/// The file that a module has a name from, which it may only hand on.
fn owner(modules: &Modules, module: String, name: &str, times: u32) -> String {
    let mut trees = Vec::new();
    for statement in modules[&module].split(';') {
        if let Some((before, tree)) = statement.rsplit_once("use ")
            && before
                .trim_end()
                .rsplit('\n')
                .next()
                .is_some_and(|line| line.is_empty() || line.trim_start().starts_with("pub"))
        {
            expand_with_names(tree, &mut trees);
        }
    }
    let handed_on = trees.iter().find(|(_, known_as)| known_as == name);
    match handed_on.and_then(|(path, _)| resolve(modules, &module, path, times)) {
        Some(of) if of != module => of,
        _ => module,
    }
}

/// The paths of a tree, and what each is called there.
fn expand_with_names(tree: &str, into: &mut Vec<(String, String)>) {
    let mut paths = Vec::new();
    // `as` is the last part of such a path.
    expand("", &tree.replace(" as ", "::as::"), &mut paths);
    for path in paths {
        let (path, name) = match path.split_once("::as::") {
            Some((path, name)) => (path.to_owned(), name.to_owned()),
            None => (path.clone(), path.rsplit("::").next().unwrap_or_default().to_owned()),
        };
        into.push((path, name));
    }
}

/// Two or more modules that lead to each other, sorted; `None` if there are none.
fn circle(edges: &BTreeMap<&str, BTreeSet<&str>>) -> Option<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(at) = left.pop() {
            for next in edges.get(at.as_str()).into_iter().flatten() {
                if seen.insert((*next).to_owned()) {
                    left.push((*next).to_owned());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<String>> =
        edges.keys().map(|module| (*module, reached(module))).collect();
    let (first, _) = reach.iter().find(|(module, reached)| reached.contains(**module))?;
    let both = |other: &&&str| reach[**other].contains(*first) && reach[first].contains(**other);
    Some(reach.keys().filter(both).map(|module| (*module).to_owned()).collect())
}
