//! Names that survive a rebuild: without compiler-generated numbers and hashes.
//!
//! Input: a function's name in a profile. Output: the name by which it is matched between two profiles, and
//! counted in each. Not for display of single profiles: clones and closures of one function become one.
//!
//! | in the name | becomes | written by |
//! |---|---|---|
//! | `f::h0123456789abcdef` | `f` | Rust, legacy mangling |
//! | `core[846817f741e54dfd]::f` | `core::f` | Rust, v0 mangling |
//! | `{closure#3}`, `{{closure}}`, `{impl#2}`, `{shim:vtable#0}` | `{closure}`, `{impl}`, `{shim:vtable}` | Rust |
//! | `{lambda(int)#2}`, `{unnamed type#1}`, `'lambda3'(int)`, `$_4` | `{lambda(int)}`, `{unnamed type}`, `'lambda'(int)`, `$_` | C++ |
//! | `_GLOBAL__N_1`, `{anonymous}` | `(anonymous namespace)` | C++ |
//! | `f.llvm.123`, `f.cold`, `f.warm`, `f.part.0`, `f.constprop.0`, `f.isra.0`, `f.lto_priv.0`, `f.clone.0`, `f.localalias`, `f [clone .cold]` | `f` | LLVM, GCC, BOLT |
//! | `[libc.so.6+0x1f40]`, `[libc.so.6:fn+0x1f40]` | `[libc.so.6]` | stackprof |
//! | `f (file.rs:12)` | `f (file.rs)` | stackprof `--lines` |
//!
//! `f@plt` stays: the entry is different code from `f`. Between runs of one build, functions without a name keep
//! their start address: see `Builds`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::module_offset::ModuleOffset;

/// Clone suffixes with a required number; without one they end ordinary names, such as Go's `maps.clone`.
const NUMBERED: [&str; 6] = [".llvm", ".part", ".constprop", ".isra", ".lto_priv", ".clone"];
/// Clone suffixes with an optional number.
const BARE: [&str; 3] = [".cold", ".warm", ".localalias"];

/// The name by which a function is matched.
#[must_use]
pub fn normalize(name: &str) -> Cow<'_, str> {
    // Most names have none of these and are returned unchanged.
    if !name.contains(['[', '{', '.', '#', '$', '\''])
        && !name.contains("::h")
        && !name.contains("_GLOBAL__N_")
        && !name.ends_with(')')
    {
        return Cow::Borrowed(name);
    }
    if let Some(code) = ModuleOffset::parse(name) {
        return Cow::Owned(format!("[{}]", code.module()));
    }
    let (name, file) = split_line(name);
    let mut text = without_numbers(without_suffixes(name));
    if text.contains("_GLOBAL__N_") || text.contains("{anonymous}") {
        text = text.replace("{anonymous}", "(anonymous namespace)");
        text = replace_anonymous(&text);
    }
    if let Some(file) = file {
        text.push_str(" (");
        text.push_str(file);
        text.push(')');
    }
    Cow::Owned(text)
}

/// Splits `f (file.rs:12)` into the function and the file.
fn split_line(name: &str) -> (&str, Option<&str>) {
    let split = || {
        let (function, place) = name.strip_suffix(')')?.rsplit_once(" (")?;
        let (file, line) = place.rsplit_once(':')?;
        let is_line = !line.is_empty() && line.bytes().all(|b| b.is_ascii_digit());
        (is_line && !file.is_empty() && !file.ends_with(':')).then_some((function, file))
    };
    match split() {
        Some((function, file)) => (function, Some(file)),
        None => (name, None),
    }
}

fn without_suffixes(mut name: &str) -> &str {
    loop {
        let before = name;
        if let Some((function, clone)) = name.strip_suffix(']').and_then(|name| name.rsplit_once(" [clone "))
            && clone.starts_with('.')
        {
            name = function;
        }
        name = without_clone(name);
        if let Some((function, hash)) = name.rsplit_once("::h")
            && hash.len() == 16
            && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        {
            name = function;
        }
        if name.len() == before.len() {
            return name;
        }
    }
}

/// Removes clone suffixes: `f.part.0` is `f`. Never removes the whole name: `.cold` alone is a name.
fn without_clone(name: &str) -> &str {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let trimmed = name.trim_end_matches(is_number);
    let is_numbered = name.get(trimmed.len()..).is_some_and(|number| number.contains(|c: char| c != '.'));
    let of = |name: &str| {
        let numbered = NUMBERED.iter().filter(|_| is_numbered);
        let suffix = BARE.iter().chain(numbered).find(|suffix| name.ends_with(**suffix))?;
        Some(name.len() - suffix.len()).filter(|len| *len > 0)
    };
    match of(trimmed) {
        Some(len) => name.get(..len).unwrap_or(name),
        None => name,
    }
}

/// Removes `#3` before `}`, crate hashes in brackets, and the numbers of C++ lambdas.
fn without_numbers(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find(['#', '[', '{', '$', '\'']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let (kept, skipped) = replaced(from, text.chars().next_back());
        text.push_str(kept);
        rest = from.get(skipped..).unwrap_or_default();
    }
    text.push_str(rest);
    text
}

/// The replacement for the beginning of `from`, and the number of bytes replaced.
fn replaced(from: &str, before: Option<char>) -> (&str, usize) {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(number) = from.strip_prefix('#') {
        let len = digits(number);
        if len > 0 && number.get(len..).is_some_and(|rest| rest.starts_with('}')) {
            return ("", 1 + len);
        }
    }
    if let Some(hash) = from.strip_prefix('[') {
        let len = hash.bytes().take_while(u8::is_ascii_hexdigit).count();
        let behind_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if behind_name && (8..=16).contains(&len) && hash.get(len..).is_some_and(|rest| rest.starts_with(']'))
        {
            return ("", len + 2);
        }
    }
    if from.starts_with("{{closure}}") {
        return ("{closure}", "{{closure}}".len());
    }
    for lambda in ["$_", "'lambda"] {
        let len = from.strip_prefix(lambda).map_or(0, digits);
        if len > 0 {
            return (lambda, lambda.len() + len);
        }
    }
    let first = from.chars().next().map_or(0, char::len_utf8);
    (from.get(..first).unwrap_or_default(), first)
}

/// Replaces only whole components: inside a mangled name (`_ZN12_GLOBAL__N_15parseEv`) the end of the marker
/// is ambiguous.
fn replace_anonymous(name: &str) -> String {
    const MARK: &str = "_GLOBAL__N_";
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once(MARK) {
        text.push_str(before);
        if text.ends_with(is_word) {
            text.push_str(MARK);
            rest = after;
        } else {
            text.push_str("(anonymous namespace)");
            rest = after.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        }
    }
    text.push_str(rest);
    text
}

// ---- Functions without a name (`[libruby.so:fn+0x9dd20]`) are identified by their start address, which is the
// same only within one build. This module tracks the builds of the compared profiles.
//
// If a profile has no build ids (folded text, speedscope, Firefox), only the module is certain.

/// Builds by module.
#[derive(Clone, Debug, Default)]
pub struct Builds {
    /// By file name: the only build id, or `None` if there are several or one is unknown.
    modules: BTreeMap<String, Option<String>>,
}

impl Builds {
    /// Records a build of a module; an empty `id` means unknown. Returns whether matching of the module's
    /// functions has just become impossible.
    pub fn note(&mut self, module: &str, id: &str) -> bool {
        let known = (!id.is_empty()).then(|| id.to_owned());
        match self.modules.get_mut(module) {
            None => {
                self.modules.insert(module.to_owned(), known);
                false
            }
            Some(only) if *only == known => false,
            Some(only) => only.take().is_some(),
        }
    }

    /// Whether all profiles so far have the module from one build.
    #[must_use]
    pub fn is_one(&self, module: &str) -> bool {
        self.modules.get(module).is_some_and(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn check(name: &str, expected: &str) {
        assert_eq!(normalize(name), expected, "{name}");
        assert_eq!(normalize(expected), expected, "the result stays as it is");
    }

    #[test]
    fn compiler_generated_numbers_are_removed() {
        check("core::fmt::write::h0123456789abcdef", "core::fmt::write");
        check("core[846817f741e54dfd]::slice::sort", "core::slice::sort");
        check(
            "<alloc[1a2b3c4d5e6f7a8b]::vec::Vec<u8> as a[0123456789abcdef]::T>::f",
            "<alloc::vec::Vec<u8> as a::T>::f",
        );
        check("work::run::{closure#3}", "work::run::{closure}");
        check("work::run::{{closure}}::h00000000deadbeef", "work::run::{closure}");
        check("work::{impl#12}::go::{closure#0}::{closure#1}", "work::{impl}::go::{closure}::{closure}");
        check("core::ops::FnOnce::call_once::{shim:vtable#0}", "core::ops::FnOnce::call_once::{shim:vtable}");
        check(
            "main::{lambda(int, char)#2}::operator()(int, char) const",
            "main::{lambda(int, char)}::operator()(int, char) const",
        );
        check("run()::$_4::operator()() const", "run()::$_::operator()() const");
        check("run()::'lambda3'(int)", "run()::'lambda'(int)");
        check("{unnamed type#1}::f", "{unnamed type}::f");
        check("a::_GLOBAL__N_1::f", "a::(anonymous namespace)::f");
        check("{anonymous}::f(int)", "(anonymous namespace)::f(int)");
    }

    #[test]
    fn clones_become_their_function() {
        for clone in [
            "f.cold",
            "f.cold.3",
            "f.part.0",
            "f.constprop.0",
            "f.isra.0",
            "f.llvm.1234567890123",
            "f.lto_priv.0",
            "f.part.0.isra.0",
            "f.isra.0.cold",
            "f.warm",
            "f.clone.0",
            "f.localalias.2",
            "f [clone .cold]",
            "f [clone .isra.0] [clone .part.1]",
        ] {
            check(clone, "f");
        }
        check("f(int) [clone .constprop.0]", "f(int)");
        check("a::b::h0123456789abcdef.llvm.77", "a::b");
    }

    #[test]
    fn addresses_and_lines_are_removed_and_files_kept() {
        check("[libc.so.6+0x1f40]", "[libc.so.6]");
        check("[libc.so.6:fn+0x1f40]", "[libc.so.6]");
        assert_eq!(normalize("[a+0x1+0xff]"), "[a+0x1]", "the last offset is ours");
        check("run (main.rs:12)", "run (main.rs)");
        check("run::{closure#1} (main.rs:12)", "run::{closure} (main.rs)");
    }

    #[test]
    fn other_names_are_unchanged() {
        for name in [
            "main",
            "memcpy@plt",
            "maps.clone",
            "runtime.clone",
            "main.part",
            "_ZN12_GLOBAL__N_15parseEv",
            "_ZN12_GLOBAL__N_16renderEv",
            "[unknown]",
            "[incomplete]",
            "operator new[](unsigned long)",
            "f(int [4])",
            "f(char const (&) [12345678])",
            "<[u8; 4] as T>::f",
            "std::__cxx11::f[abi:cxx11](int)",
            "::h",
            "a::hash",
            "a::h0123",
            ".cold",
            "x.1",
            "f#1",
            "{#}",
            "'",
            "$_",
            "std::vector<int>::push_back(int&&)",
            "f (a::b)",
            "_start",
            "é[",
            "a.b.c",
        ] {
            check(name, name);
        }
    }

    #[test]
    fn arbitrary_text_is_harmless() {
        let pieces = [
            "[",
            "]",
            "{",
            "}",
            "#",
            "1",
            "::h",
            "é",
            "$_",
            "'lambda",
            ".cold",
            ".",
            " (",
            ":",
            ")",
            "_GLOBAL__N_",
            "0123456789abcdef",
        ];
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let mut name = String::new();
            for _ in 0..8 {
                name.push_str(rng.pick(&pieces));
            }
            let once = normalize(&name).into_owned();
            assert!(once.len() <= name.len() + 8 * "(anonymous namespace)".len(), "{name}");
        }
    }
}

#[cfg(test)]
mod builds_tests {
    use super::*;

    #[test]
    fn a_second_or_unknown_build_ends_the_matching_of_functions() {
        let mut builds = Builds::default();
        assert!(!builds.is_one("a.so"));
        assert!(!builds.note("a.so", "01") && !builds.note("a.so", "01") && !builds.note("b.so", "01"));
        assert!(builds.is_one("a.so") && builds.is_one("b.so"));
        assert!(builds.note("a.so", "02") && !builds.is_one("a.so"));
        assert!(!builds.note("a.so", "01") && !builds.is_one("a.so"), "it stays so");
        assert!(builds.note("b.so", "") && !builds.is_one("b.so"));
        assert!(!builds.note("c.so", "") && !builds.note("c.so", "01") && !builds.is_one("c.so"));
    }
}
