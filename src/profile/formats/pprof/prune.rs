//! Frames dropped by a pprof profile: `drop_frames` and `keep_frames`.
//!
//! Input: the two regular expressions of a file, and the functions of each location. Output: the dropped
//! part. A function with a fully matching name is dropped with all its callees, unless it is to be kept, as
//! in `go tool pprof`. Names are matched without arguments.

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

use super::tables::Tables;
use crate::profile::formats::Malformed;
use crate::profile::formats::tally::Tally;
use crate::profile::texts::TextId;

/// Most bytes of a compiled expression: matching a byte costs up to its size.
const PATTERN_BYTES_MAX: usize = 1 << 16;
/// Parentheses in names that do not start arguments.
const IN_NAMES: [&str; 2] = ["(anonymous namespace)", "operator()"];

/// Dropped part of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DroppedFrames {
    Nothing,
    /// Its inner functions and their callees; this many outer ones are kept.
    Inner(usize),
    /// The location and its callees.
    All,
}

/// The two expressions, and the names that they drop.
#[derive(Default)]
pub(super) struct Prune {
    drop: Option<Regex>,
    keep: Option<Regex>,
    known: HashMap<TextId, bool>,
}

impl Prune {
    /// Compiles the expressions of a file; an invalid one drops nothing, which is reported.
    pub(super) fn new(tables: &Tables<'_>, tally: &mut Tally) -> Result<Prune, Malformed> {
        let mut is_sound = true;
        let mut pattern = |index: u64, of: &str| -> Result<Option<Regex>, Malformed> {
            let text = tables.string(index.cast_signed(), of)?;
            if text.is_empty() {
                return Ok(None);
            }
            let whole = RegexBuilder::new(&format!("^({text})$")).size_limit(PATTERN_BYTES_MAX).build();
            if whole.is_err() {
                tally.remark(&format!(
                    "{of} is no regular expression that can be used; no frames are dropped"
                ));
                is_sound = false;
            }
            Ok(whole.ok())
        };
        let drop = pattern(tables.drop_frames, "drop_frames")?;
        let keep = pattern(tables.keep_frames, "keep_frames")?;
        Ok(Prune { drop: drop.filter(|_| is_sound), keep, known: HashMap::new() })
    }

    /// The dropped part of a location, by the names of its functions, outermost first.
    pub(super) fn cut<'t>(&mut self, names: impl Iterator<Item = (TextId, &'t str)>) -> DroppedFrames {
        let Some(pattern) = &self.drop else { return DroppedFrames::Nothing };
        for (kept, (id, name)) in names.enumerate() {
            let is_dropped = *self.known.entry(id).or_insert_with(|| {
                let name = without_arguments(name);
                let is_kept = || self.keep.as_ref().is_some_and(|keep| keep.is_match(name));
                !name.is_empty() && pattern.is_match(name) && !is_kept()
            });
            match kept {
                _ if !is_dropped => {}
                0 => return DroppedFrames::All,
                kept => return DroppedFrames::Inner(kept),
            }
        }
        DroppedFrames::Nothing
    }
}

/// A function's name without arguments, and without PowerPC's leading dot.
fn without_arguments(name: &str) -> &str {
    let name = name.strip_prefix('.').unwrap_or(name);
    let mut from = 0;
    while let Some(rest) = name.get(from..) {
        let Some(at) = rest.find(['(', 'o']) else { break };
        let found = rest.get(at..).unwrap_or_default();
        from += at
            + match IN_NAMES.iter().find(|part| found.starts_with(**part)) {
                Some(part) => part.len(),
                None if found.starts_with('(') => return name.get(..from + at).unwrap_or(name),
                None => 1,
            };
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_not_part_of_a_name() {
        for (name, expected) in [
            ("malloc", "malloc"),
            (".malloc", "malloc"),
            ("a::f(int, void (*)(int))", "a::f"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("A::operator()(int) const", "A::operator()"),
            ("foo::o(", "foo::o"),
            ("main.(*T).run", "main."),
            ("", ""),
        ] {
            assert_eq!(without_arguments(name), expected);
        }
    }

    #[test]
    fn inlined_functions_are_cut_off() {
        let names = ["main", "inner", "malloc"];
        let cut = |drop: &str, keep: &str| {
            let compile = |text: &str| (!text.is_empty()).then(|| Regex::new(text).expect("compiles"));
            let mut prune = Prune { drop: compile(drop), keep: compile(keep), known: HashMap::new() };
            prune.cut((1..).map(TextId).zip(names))
        };
        assert_eq!(cut("^(malloc)$", ""), DroppedFrames::Inner(2));
        assert_eq!(cut("^(main|malloc)$", ""), DroppedFrames::All);
        assert_eq!(cut("^(main|malloc)$", "^main$"), DroppedFrames::Inner(2));
        assert_eq!(cut("^(m)$", ""), DroppedFrames::Nothing);
        assert_eq!(cut("", "^main$"), DroppedFrames::Nothing);
    }
}
