//! The scope of a function: the namespaces, modules and classes around its entry, for names without a mangled
//! form. GCC emits none for names with internal linkage (static functions, anonymous namespaces, lambdas); if
//! compilers emit line tables only (`-g1`, `line-tables-only`) there are no entries around a function either, and
//! its name remains plain.
//!
//! Input: entries of units, hostile. Output: the prefixes of their names. An entry does not refer to its parent,
//! so a unit is read again up to the last requested entry; only if there is one.

use gimli::{AttributeValue, DwLang, DwTag, UnitOffset, constants as c};
use hashbrown::HashMap;

use super::{EntryKey, NameReader, Texts};
use crate::symbol::dwarf::budget::{Budget, Result};
use crate::symbol::dwarf::unit::Unit;
use crate::symbol::table::NAME_BYTES_MAX;

/// Limit on nested scopes; real names have up to ten.
const AROUND_MAX: usize = 32;
/// Typical size of an entry in most files, in bytes.
const ENTRY_BYTES: u64 = 8;

/// An entry around another.
#[derive(Clone, Copy, Debug)]
struct Scope {
    entry: UnitOffset,
    tag: DwTag,
}

/// The prefixes of entries' names, for example `outer::(anonymous namespace)::`. Entries without a scope are
/// omitted.
pub(super) fn of(
    names: &mut NameReader<'_, '_, '_>,
    wanted: &[EntryKey],
    texts: &Texts<'_>,
) -> HashMap<EntryKey, String> {
    let mut by_unit = wanted.to_vec();
    by_unit.sort_unstable();
    by_unit.dedup();
    let mut found = HashMap::new();
    for same in by_unit.chunk_by(|a, b| a.0 == b.0) {
        let entries: Vec<UnitOffset> = same.iter().map(|(_, entry)| *entry).collect();
        let Some((_, unit)) = names.unit(same[0].0) else { continue };
        let mut around = EnclosingScopes { separator: "::", of: Vec::new() };
        // Malformed data ends the pass; earlier results are kept.
        let _ = around.read(unit, &entries, names.budget);
        for (entry, scopes) in around.of {
            let text = text(names, same[0].0, &scopes, around.separator, texts);
            if !text.is_empty() {
                found.insert((same[0].0, entry), text);
            }
        }
    }
    found
}

/// The scopes around entries of a unit.
struct EnclosingScopes {
    separator: &'static str,
    of: Vec<(UnitOffset, Vec<Scope>)>,
}

impl EnclosingScopes {
    /// Reads a unit up to the last of `wanted`, which are sorted.
    fn read(&mut self, unit: &Unit<'_>, wanted: &[UnitOffset], budget: &Budget<'_>) -> Result<()> {
        let mut wanted = wanted.iter().peekable();
        let mut entries = unit.entries_raw(None)?;
        let mut around: Vec<(isize, Scope)> = Vec::new();
        // Depth where a jump restarts.
        let mut base = 0;
        while let Some(&&next) = wanted.peek().filter(|_| !entries.is_empty()) {
            let (entry, depth) = (entries.next_offset(), base + entries.next_depth());
            let Some(abbrev) = entries.read_abbreviation()? else { continue };
            budget.spend(1 + abbrev.attributes().len() as u64 / ENTRY_BYTES)?;
            while around.last().is_some_and(|(around, _)| *around >= depth) {
                around.pop();
            }
            // A wanted offset in the middle of another entry is invalid.
            while wanted.next_if(|wanted| **wanted < entry).is_some() {}
            if wanted.next_if(|wanted| **wanted == entry).is_some() {
                let first = around.len().saturating_sub(AROUND_MAX);
                self.of.push((entry, around[first..].iter().map(|(_, scope)| *scope).collect()));
            }
            let (mut sibling, mut language) = (None, None);
            for spec in abbrev.attributes() {
                match spec.name() {
                    c::DW_AT_sibling | c::DW_AT_language => match entries.read_attribute(*spec)?.value() {
                        AttributeValue::UnitRef(to) => sibling = Some(to),
                        AttributeValue::Language(of) => language = Some(of),
                        _ => {}
                    },
                    _ => entries.skip_attributes(std::slice::from_ref(spec))?,
                }
            }
            if let Some(language) = language.filter(|_| depth == 0) {
                match separator(language) {
                    Some(separator) => self.separator = separator,
                    None => return Ok(()),
                }
            }
            let next = wanted.peek().map_or(next, |next| **next);
            if let Some(sibling) = sibling.filter(|to| *to > entries.next_offset() && *to <= next) {
                entries = unit.entries_raw(Some(sibling))?;
                base = depth;
            } else if abbrev.has_children() && is_scope(abbrev.tag()) {
                around.push((depth, Scope { entry, tag: abbrev.tag() }));
            }
        }
        Ok(())
    }
}

/// A language's separator of names; `None` if functions have no scope.
fn separator(language: DwLang) -> Option<&'static str> {
    match language {
        c::DW_LANG_C89 | c::DW_LANG_C | c::DW_LANG_C99 | c::DW_LANG_C11 | c::DW_LANG_C17 => None,
        c::DW_LANG_ObjC | c::DW_LANG_Mips_Assembler => None,
        c::DW_LANG_Ada83 | c::DW_LANG_Ada95 | c::DW_LANG_Ada2005 | c::DW_LANG_Ada2012 => Some("."),
        c::DW_LANG_D | c::DW_LANG_Java | c::DW_LANG_Kotlin | c::DW_LANG_Go => Some("."),
        c::DW_LANG_Swift | c::DW_LANG_Zig | c::DW_LANG_OCaml | c::DW_LANG_Haskell => Some("."),
        _ => Some("::"),
    }
}

fn is_scope(tag: DwTag) -> bool {
    is_type(tag) || matches!(tag, c::DW_TAG_namespace | c::DW_TAG_module | c::DW_TAG_subprogram)
}

fn is_type(tag: DwTag) -> bool {
    matches!(
        tag,
        c::DW_TAG_class_type
            | c::DW_TAG_structure_type
            | c::DW_TAG_union_type
            | c::DW_TAG_interface_type
            | c::DW_TAG_enumeration_type
    )
}

/// The names of the scopes around an entry, outermost first, each followed by the separator.
fn text(
    names: &mut NameReader<'_, '_, '_>,
    unit: super::InUnit,
    scopes: &[Scope],
    separator: &str,
    texts: &Texts<'_>,
) -> String {
    // Functions in functions (GNU C, Fortran, Ada) remain plain; only types in functions do not.
    let last = scopes.iter().rposition(|scope| scope.tag != c::DW_TAG_subprogram);
    let mut parts: Vec<String> = Vec::new();
    let mut bytes = 0;
    for scope in scopes[..last.map_or(0, |last| last + 1)].iter().rev() {
        let (name, _) = names.follow((unit, scope.entry));
        let part = match (name.linkage, name.plain) {
            (Some(linkage), _) => texts.readable(linkage),
            (None, Some(plain)) => String::from_utf8_lossy(plain).into_owned(),
            (None, None) if scope.tag == c::DW_TAG_namespace => "(anonymous namespace)".to_owned(),
            (None, None) if is_type(scope.tag) => "(anonymous class)".to_owned(),
            (None, None) => continue,
        };
        bytes += part.len() + separator.len();
        if bytes > NAME_BYTES_MAX {
            break;
        }
        parts.push(part);
        // A mangled name includes its scope.
        if name.linkage.is_some() {
            break;
        }
    }
    parts.into_iter().rev().flat_map(|part| [part, separator.to_owned()]).collect()
}
