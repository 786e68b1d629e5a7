//! Memory in use by the callers of the allocator.
//!
//! `Leak` is a row of the table, `divide` tells sites apart by their callers; the last part has the bytes in use
//! over time of these callers.
//!
//! Input: a heap profile of a recording. Output: [`Leak`]s, the largest first. Allocation wrappers (operator new,
//! xmalloc, the containers of Rust and C++) are skipped: nobody looks for a leak in them. Those of the program are known
//! by their name and by what they call.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::escape::file_name;
use crate::heap::Estimate;
use crate::saved::{SavedProfile, UNKNOWN};
use crate::trie::NodeId;

/// Allocation wrappers, without their arguments.
const WRAPPERS: &[&str] = &[
    // Allocators themselves.
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    // The C library.
    "strdup",
    "strndup",
    "__strdup",
    "__strndup",
    "wcsdup",
    "asprintf",
    "vasprintf",
    "__asprintf",
    "__vasprintf",
    "__vasprintf_internal",
    "__asprintf_chk",
    "__vasprintf_chk",
    // gnulib and other programs.
    "xmalloc",
    "xcalloc",
    "xrealloc",
    "xreallocarray",
    "xzalloc",
    "xnmalloc",
    "xnrealloc",
    "x2nrealloc",
    "x2realloc",
    "xpalloc",
    "xmemdup",
    "xmemdup0",
    "xstrdup",
    "xstrndup",
    "xcharalloc",
    "ximalloc",
    "xizalloc",
    "emalloc",
    "ecalloc",
    "erealloc",
    "safe_malloc",
    "safe_calloc",
    "safe_realloc",
    "_obstack_begin",
    "_obstack_begin_1",
    "_obstack_newchunk",
    "_obstack_allocated_p",
    "checked_malloc",
    // GLib.
    "g_malloc",
    "g_malloc0",
    "g_malloc_n",
    "g_malloc0_n",
    "g_realloc",
    "g_realloc_n",
    "g_try_malloc",
    "g_try_malloc0",
    "g_try_realloc",
    "g_try_malloc_n",
    "g_slice_alloc",
    "g_slice_alloc0",
    "g_slice_copy",
    "g_strdup",
    "g_strndup",
    "g_memdup",
    "g_memdup2",
    "g_aligned_alloc",
    "g_aligned_alloc0",
    // redis, SQLite, CPython, OpenSSL, libxml2.
    "zmalloc",
    "zcalloc",
    "zrealloc",
    "zstrdup",
    "ztrymalloc_usable_internal",
    "ztrycalloc_usable_internal",
    "zmalloc_usable",
    "zrealloc_usable",
    "ztryrealloc_usable",
    "ztryrealloc_usable_internal",
    "sqlite3MemMalloc",
    "sqlite3MemRealloc",
    "mallocWithAlarm",
    "sqlite3Malloc",
    "sqlite3MallocZero",
    "sqlite3Realloc",
    "sqlite3DbMallocRaw",
    "sqlite3DbMallocRawNN",
    "sqlite3DbMallocZero",
    "sqlite3DbRealloc",
    "sqlite3DbStrDup",
    "sqlite3DbStrNDup",
    "dbMallocRawFinish",
    "PyMem_Malloc",
    "PyMem_Calloc",
    "PyMem_Realloc",
    "PyMem_RawMalloc",
    "PyMem_RawCalloc",
    "PyMem_RawRealloc",
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "_PyMem_RawMalloc",
    "_PyMem_RawCalloc",
    "_PyMem_RawRealloc",
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "CRYPTO_malloc",
    "CRYPTO_zalloc",
    "CRYPTO_realloc",
    "CRYPTO_strdup",
    "xmlStrdup",
    "xmlStrndup",
    // C++ and Rust.
    "operator new",
    "operator new[]",
    "_Znwm",
    "_Znam",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rdl_alloc",
    "__rdl_alloc_zeroed",
    "__rdl_realloc",
    "__rg_alloc",
    "exchange_malloc",
    "__cxa_allocate_exception",
];

/// Name prefixes of allocation wrappers.
const WRAPPER_BEGINNINGS: &[&str] = &[
    "alloc::",
    "<alloc::",
    "hashbrown::raw::",
    "<hashbrown::raw::",
    "core::",
    "<core::",
    // Standard libraries: their callers are of interest, and they call no user code in between.
    "std::",
    "<std::",
    "__gnu_cxx::",
    // Mangled names.
    "_ZNSt",
    "_ZNKSt",
    "_ZSt",
    "_ZNSa",
    "_ZNSs",
    "_ZN9__gnu_cxx",
];

/// Part of the names of Rust trait methods that allocate values of other types: `<str as
/// alloc::borrow::ToOwned>::to_owned`.
const WRAPPER_TRAITS: &str = " as alloc::";

/// Suffixes that compilers append to the name of a part of a function.
const SUFFIXES: [&str; 5] = [".part.", ".constprop.", ".isra.", ".cold", ".llvm."];

/// Words in the names of functions that allocate; others end with `alloc`.
const ALLOCATION_WORDS: &[&str] =
    &["strdup", "strndup", "memdup", "memalign", "allocate", "alloc0", "malloc0"];

/// Whether one of the words of a function's name, divided by case or by other characters than letters and digits, says
/// that it allocates.
fn is_named_like_a_wrapper(name: &str) -> bool {
    let bare = without_return_type(name).split('(').next().unwrap_or_default();
    // Without arguments of templates, which name other things.
    let (mut depth, mut function) = (0usize, String::new());
    for c in bare.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => function.push(c),
            _ => {}
        }
    }
    let function = function.rsplit("::").next().unwrap_or_default();
    let mut before = ' ';
    let mut words = vec![String::new()];
    for c in function.chars() {
        if !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            words.push(String::new());
        }
        before = c;
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.iter().any(|word| word.ends_with("alloc") || ALLOCATION_WORDS.contains(&word.as_str()))
}

/// Whether a function is an allocation wrapper of any program.
#[must_use]
pub fn is_wrapper(name: &str) -> bool {
    let end = SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).min().unwrap_or(name.len());
    let name = name.get(..end).unwrap_or(name);
    let name = without_return_type(name);
    // Arguments, but not those of `operator()`.
    let bare = name.split('(').next().unwrap_or_default();
    WRAPPERS.contains(&bare)
        || WRAPPER_BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || name.starts_with('<') && name.contains(WRAPPER_TRAITS)
}

/// The name of a C++ template function without the return type that its demangled form starts with.
fn without_return_type(name: &str) -> &str {
    let (mut depth, mut start) = (0usize, 0);
    for (at, c) in name.char_indices() {
        match c {
            '<' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && !name[..at].trim_end().ends_with("decltype") => break,
            '(' => depth += 1,
            ' ' if depth == 0 && !name[..at].ends_with("operator") => start = at + 1,
            _ => {}
        }
    }
    &name[start..]
}

/// Memory in use allocated by a chain of callers.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// Bytes.
    pub bytes: Estimate,
    /// Allocations.
    pub blocks: Estimate,
    /// The function that allocated, then its callers.
    pub callers: Vec<Caller>,
}

/// Files of the runtimes of C and C++, whose functions are passed over like wrappers: `name` or `name-VERSION`.
const RUNTIMES: &[&str] = &[
    "libc.so",
    "libc-",
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "libpthread",
    "libm.so",
];

/// Files of dynamic loaders.
const LOADERS: &[&str] = &["ld-linux", "ld-musl", "ld.so", "ld64.so", "ld-2"];

/// A frame of a stack, as the table of leaks sees it.
struct SeenFrame {
    caller: Caller,
    is_runtime: bool,
    is_loader: bool,
}

impl SeenFrame {
    /// Whether a thread begins here.
    fn is_start(&self) -> bool {
        self.is_loader || self.caller.name == "_start"
    }
}

impl SavedProfile {
    /// Memory in use by this many callers of the allocator, the most bytes first; `None`: by as many as tell sites apart,
    /// with their lines. Functions for which `skip` is true are skipped like [wrappers](is_wrapper). What runtimes allocate
    /// when they are loaded is no leak.
    #[must_use]
    pub fn leaks(&self, callers: Option<usize>, skip: &dyn Fn(&str) -> bool) -> Vec<Leak> {
        let Some(values) = self.values() else { return Vec::new() };
        let own = self.own_wrappers(skip);
        let is_passed = |name: &str| is_wrapper(name) || skip(name) || own.contains(name);
        let mut stacks = Vec::new();
        for (node, estimates) in values.inuse() {
            let mut frames = self.seen_from_leaf(node, callers.is_none());
            if frames.last().is_some_and(|frame| frame.is_loader)
                && frames.iter().all(|frame| frame.is_runtime || frame.is_loader)
            {
                continue;
            }
            if callers.is_none() {
                // What calls `main` tells nothing.
                let last = frames.iter().rposition(|frame| !frame.is_runtime && !frame.is_start());
                frames.truncate(last.map_or(frames.len(), |last| last + 1));
            }
            stacks.push((callers_of_allocator(frames, is_passed, callers.unwrap_or(usize::MAX)), estimates));
        }
        let sites = match callers {
            None => divide(stacks),
            Some(_) => {
                let mut by_callers: HashMap<Vec<Caller>, (Estimate, Estimate)> = HashMap::new();
                for (shown, (bytes, blocks)) in stacks {
                    let sum = by_callers.entry(shown).or_default();
                    sum.0.add(bytes);
                    sum.1.add(blocks);
                }
                by_callers.into_iter().collect()
            }
        };
        let is_any = |leak: &Leak| leak.bytes.value > 0.0 || leak.blocks.value > 0.0;
        let leaks = sites.into_iter().map(|(callers, (bytes, blocks))| Leak { bytes, blocks, callers });
        let mut leaks: Vec<Leak> = leaks.filter(is_any).collect();
        leaks.sort_by(|a, b| b.bytes.value.total_cmp(&a.bytes.value).then_with(|| a.callers.cmp(&b.callers)));
        leaks
    }

    /// Wrappers of the program itself: functions named like one that call nothing but wrappers in all stacks.
    pub(super) fn own_wrappers(&self, skip: &dyn Fn(&str) -> bool) -> HashSet<String> {
        let Some(values) = self.values() else { return HashSet::new() };
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut number_of = |name: String| {
            let next = numbers.len();
            *numbers.entry(name).or_insert(next)
        };
        let mut numbered = |node| self.names_from_leaf(node).into_iter().map(&mut number_of).collect();
        let stacks: Vec<Vec<usize>> = values.inuse().map(|(node, _)| numbered(node)).collect();
        // By number: whether it is a wrapper of any program, and whether it may be one of this program.
        let mut wrappers = vec![(false, false); numbers.len()];
        for (name, number) in &numbers {
            wrappers[*number] = (is_wrapper(name) || skip(name), is_named_like_a_wrapper(name));
        }
        // Each pass may find that what a wrapper calls is none.
        let mut is_changed = true;
        while std::mem::take(&mut is_changed) {
            for stack in &stacks {
                let is_passed = |number: &&usize| wrappers[**number].0 || wrappers[**number].1;
                let passed = stack.iter().take_while(is_passed).count();
                for number in stack.iter().skip(passed) {
                    is_changed |= std::mem::take(&mut wrappers[*number].1);
                }
            }
        }
        numbers.into_iter().filter(|(_, number)| wrappers[*number].1).map(|(name, _)| name).collect()
    }

    /// Names of the functions in a stack, the innermost first.
    fn names_from_leaf(&self, node: NodeId) -> Vec<String> {
        let mut frames = Vec::new();
        self.path_of(node, &mut frames);
        let mut names = Vec::new();
        for frame in &frames {
            self.names_of(*frame, false, &mut |name| names.push(name.to_owned()));
        }
        names.reverse();
        names
    }

    /// Names of this many callers of the allocator in a stack, the one that allocated first.
    pub(super) fn names_of_callers(
        &self,
        node: NodeId,
        callers: usize,
        skip: &dyn Fn(&str) -> bool,
    ) -> Vec<String> {
        let frames = self.seen_from_leaf(node, false);
        let callers = callers_of_allocator(frames, |name| is_wrapper(name) || skip(name), callers);
        callers.into_iter().map(|caller| caller.name).collect()
    }

    /// The functions of a stack, the innermost first, `with_lines` or with names only.
    fn seen_from_leaf(&self, node: NodeId, with_lines: bool) -> Vec<SeenFrame> {
        let mut frames = Vec::new();
        self.path_of(node, &mut frames);
        let mut seen = Vec::new();
        for number in &frames {
            let frame = self.frames().get(*number as usize);
            let mapping = frame.and_then(|frame| self.mappings().get(frame.mapping? as usize));
            let file = mapping.map_or("", |mapping| file_name(self.text(mapping.path)));
            let is_of = |names: &[&str]| names.iter().any(|name| file.starts_with(name));
            let (is_runtime, is_loader) = (is_of(RUNTIMES), is_of(LOADERS));
            let lines = frame.map_or(&[][..], |frame| self.lines_of(frame));
            if lines.is_empty() {
                self.names_of(*number, false, &mut |name| {
                    let caller = Caller { name: name.to_owned(), place: String::new() };
                    seen.push(SeenFrame { caller, is_runtime, is_loader });
                });
            }
            for line in lines {
                let function = self.function(line.function);
                let source = file_name(self.text(function.file));
                let place = match line.line {
                    _ if !with_lines || source.is_empty() => String::new(),
                    0 => source.to_owned(),
                    line => format!("{source}:{line}"),
                };
                let caller = Caller { name: self.name_of_line(line, false).into_owned(), place };
                seen.push(SeenFrame { caller, is_runtime, is_loader });
            }
        }
        seen.reverse();
        seen
    }
}

/// This many callers of the allocator, the one that allocated first. `is_passed`: by their names.
fn callers_of_allocator(
    frames: Vec<SeenFrame>,
    is_passed: impl Fn(&str) -> bool,
    callers: usize,
) -> Vec<Caller> {
    let passed = frames.iter().take_while(|frame| frame.is_runtime || is_passed(&frame.caller.name)).count();
    // A stack of only wrappers is attributed to them, and one that ends in a runtime to its function.
    let is_lost = frames.get(passed).is_none_or(|frame| frame.caller.name == UNKNOWN);
    let passed = match is_lost {
        true => frames.iter().take_while(|frame| is_passed(&frame.caller.name)).count(),
        false => passed,
    };
    let passed = if passed == frames.len() { 0 } else { passed };
    frames.into_iter().skip(passed).take(callers).map(|frame| frame.caller).collect()
}

// ---- Sites that allocate, told apart by as many callers as it takes.
//
// Stacks through one function are divided where its callers differ, if a second one has a part worth telling; what
// all callers of a row have in common is its chain.

/// Most frames that tell rows apart.
const FRAMES_MAX: usize = 6;
/// Frames of a row whose stacks are all the same.
const FRAMES_MIN: usize = 2;
/// Stacks are divided if the second part has this percentage of their bytes.
const PART_PERCENT: f64 = 10.0;

/// A function in the table of leaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller {
    /// Its name.
    pub name: String,
    /// `file:line`; empty if not known, or not asked for.
    pub place: String,
}

/// A stack: its callers of the allocator, the innermost first, and what it has in use.
pub(super) type SiteStack = (Vec<Caller>, (Estimate, Estimate));

/// Divides stacks into sites.
pub(super) fn divide(mut stacks: Vec<SiteStack>) -> Vec<SiteStack> {
    for (callers, _) in &mut stacks {
        // A recursion of any depth is one site.
        callers.dedup();
    }
    let mut sites = Vec::new();
    let mut waiting: Vec<(usize, Vec<SiteStack>)> =
        parts_at(0, stacks).into_values().map(|stacks| (1, stacks)).collect();
    while let Some((common, stacks)) = waiting.pop() {
        match (common..FRAMES_MAX).find(|depth| is_divided(*depth, &stacks)) {
            Some(depth) => {
                waiting.extend(parts_at(depth, stacks).into_values().map(|stacks| (depth + 1, stacks)));
            }
            None => sites.push(joined(common.max(FRAMES_MIN), stacks)),
        }
    }
    sites
}

fn parts_at(depth: usize, stacks: Vec<SiteStack>) -> BTreeMap<Option<Caller>, Vec<SiteStack>> {
    let mut parts: BTreeMap<Option<Caller>, Vec<SiteStack>> = BTreeMap::new();
    for stack in stacks {
        parts.entry(stack.0.get(depth).cloned()).or_default().push(stack);
    }
    parts
}

/// Whether a second caller at this depth has a part worth telling.
fn is_divided(depth: usize, stacks: &[SiteStack]) -> bool {
    let mut bytes: BTreeMap<Option<&Caller>, f64> = BTreeMap::new();
    for (callers, (space, _)) in stacks {
        *bytes.entry(callers.get(depth)).or_default() += space.value;
    }
    let all: f64 = bytes.values().sum();
    bytes.values().filter(|bytes| **bytes * 100.0 >= all * PART_PERCENT && **bytes > 0.0).count() > 1
}

/// One row: the frames that all stacks have in common, up to `frames`.
fn joined(frames: usize, stacks: Vec<SiteStack>) -> SiteStack {
    let mut sum = (Estimate::default(), Estimate::default());
    let mut shown: Option<Vec<Caller>> = None;
    for (callers, (bytes, blocks)) in stacks {
        sum.0.add(bytes);
        sum.1.add(blocks);
        shown = Some(match shown {
            None => callers.into_iter().take(frames).collect(),
            Some(shown) => {
                let same = shown.iter().zip(&callers).take_while(|(a, b)| a == b).count();
                shown.into_iter().take(same).collect()
            }
        });
    }
    (shown.unwrap_or_default(), sum)
}

// ---- Bytes in use over time, by the callers of the allocator in the table of leaks.

/// Callers with their own area: as many as there are distinguishable colors.
const AREAS: usize = 8;

impl SavedProfile {
    /// Groups the memory in use over time by this many callers of the allocator. Functions for which `skip` is true are
    /// skipped as in [`SavedProfile::leaks`].
    pub fn group_inuse(&mut self, callers: usize, skip: &dyn Fn(&str) -> bool) {
        let Some(mut history) = self.values.as_mut().and_then(|values| values.history.take()) else { return };
        let mut names: HashMap<NodeId, String> = HashMap::new();
        let own = self.own_wrappers(skip);
        for change in history.changes() {
            names.entry(change.node).or_insert_with(|| {
                let callers =
                    self.names_of_callers(change.node, callers, &|name| skip(name) || own.contains(name));
                if callers.is_empty() { UNKNOWN.to_owned() } else { callers.join(" < ") }
            });
        }
        history.set_areas(&names, AREAS);
        if let Some(values) = &mut self.values {
            values.set_history(Some(history));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::about::About;
    use crate::builder::SavedBuilder;
    use crate::saved::StackRoot;
    use crate::saved::{StackValues, ValueType};

    /// A heap profile of these stacks, outermost function first, with one block of a byte each.
    fn profile(stacks: &[&str]) -> SavedProfile {
        let mut builder = SavedBuilder::new(About { unit: "bytes".into(), ..About::default() });
        let process = builder.text("prog").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let types = [("inuse_objects", "count"), ("inuse_space", "bytes")];
        let types = types.map(|(kind, unit)| ValueType { kind: kind.into(), unit: unit.into() });
        let mut values = StackValues::new(types.to_vec());
        for stack in stacks {
            let frames: Vec<_> =
                stack.split(' ').map(|name| builder.named_frame(name).expect("fits")).collect();
            let node = builder.add(root, &frames, 1).expect("fits");
            let mut one = Estimate::default();
            one.value = 1.0;
            values.add_inuse(node, (one, one));
        }
        let mut saved = builder.finish();
        saved.values = Some(values);
        saved
    }

    fn rows(stacks: &[&str], skip: &dyn Fn(&str) -> bool) -> Vec<String> {
        let leaks = profile(stacks).leaks(Some(1), skip);
        let names = |leak: Leak| leak.callers.into_iter().map(|caller| caller.name).collect();
        let mut rows: Vec<String> = leaks.into_iter().map(names).collect();
        rows.sort();
        rows
    }

    #[test]
    fn wrappers_of_the_program_are_passed_over_if_they_only_allocate() {
        let stacks = [
            "main parse jv_string jv_string_alloc jv_mem_alloc malloc",
            "main load jv_mem_calloc calloc",
            // It also calls what is no wrapper.
            "main alloc_table fill malloc",
            "main grow alloc_table malloc",
            // It is a wrapper of one that is none.
            "main read allocTable alloc_table malloc",
            // A name alone does not make a wrapper, and a leaf is no caller.
            "main read_config malloc",
        ];
        let expected = ["alloc_table", "fill", "jv_string", "load", "read_config"];
        assert_eq!(rows(&stacks, &|_| false), expected);
        let skip = |name: &str| name == "fill";
        assert_eq!(rows(&stacks, &skip), ["grow", "jv_string", "load", "main", "read", "read_config"]);
        // A stack of only wrappers.
        assert_eq!(rows(&["node_alloc malloc"], &|_| false), ["malloc"]);
    }

    #[test]
    fn sites_have_as_many_callers_as_tell_them_apart() {
        let sites = |stacks: &[&str]| {
            let row = |leak: Leak| {
                let names: Vec<String> = leak.callers.into_iter().map(|caller| caller.name).collect();
                format!("{} {}", leak.bytes.value, names.join(" < "))
            };
            profile(stacks).leaks(None, &|_| false).into_iter().map(row).collect::<Vec<String>>()
        };
        let stacks = [
            "main load parse node malloc",
            "main load parse node malloc",
            "main more parse node malloc",
            "main cache malloc",
            "main work work work tree malloc",
            "main work tree malloc",
            "start lone malloc",
        ];
        let expected = [
            "2 node < parse < load",
            "2 tree < work",
            "1 cache < main",
            "1 lone < start",
            "1 node < parse < more",
        ];
        assert_eq!(sites(&stacks), expected);
        // A second caller that has next to nothing makes no row of its own.
        let mut many = vec!["main a shared malloc"; 30];
        many.push("main b shared malloc");
        assert_eq!(sites(&many), ["31 shared"]);
        assert_eq!(sites(&[]), Vec::<String>::new());
    }

    #[test]
    fn runtimes_are_passed_over_and_what_they_allocate_when_loaded_is_no_leak() {
        let frame = |name: &str, is_runtime, is_loader| SeenFrame {
            caller: Caller { name: name.into(), place: String::new() },
            is_runtime,
            is_loader,
        };
        let names = |frames: Vec<SeenFrame>| -> Vec<String> {
            let callers = callers_of_allocator(frames, is_wrapper, 2);
            callers.into_iter().map(|caller| caller.name).collect()
        };
        let stream =
            vec![frame("malloc", true, false), frame("fopen", true, false), frame("open_log", false, false)];
        assert_eq!(names(stream), ["open_log"]);
        let lost =
            vec![frame("malloc", true, false), frame("fopen", true, false), frame(UNKNOWN, false, false)];
        assert_eq!(names(lost), ["fopen", UNKNOWN]);
        assert_eq!(names(vec![frame("malloc", true, false)]), ["malloc"]);
    }

    #[test]
    fn names_of_wrappers_have_a_word_for_it() {
        for name in ["jv_mem_alloc", "pgalloc", "myMalloc", "Pool::alloc(int)", "dupStrdup", "ZMalloc"] {
            assert!(is_named_like_a_wrapper(name), "{name}");
        }
        for name in [
            "main",
            "load<my::Alloc>(int)",
            "node_new",
            "newspaper",
            "renew_all",
            "allocation",
            "mallocate",
            "alloc_pool::get(int)",
            "",
        ] {
            assert!(!is_named_like_a_wrapper(name), "{name}");
        }
    }

    #[test]
    fn wrappers_are_recognized_in_all_spellings() {
        for name in [
            "operator new(unsigned long)",
            "operator new[](unsigned long, std::nothrow_t const&)",
            "xmalloc",
            "xmalloc.part.0",
            "sqlite3Malloc",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::alloc::Global as core::alloc::Allocator>::allocate",
            "std::allocator_traits<std::allocator<int> >::allocate(std::allocator<int>&, unsigned long)",
            "std::vector<int>::push_back",
            "void std::__cxx11::basic_string<char, std::char_traits<char> >::_M_construct<char const*>(char const*, char const*)",
            "std::pair<std::_Rb_tree_iterator<std::pair<int const, A> >, bool> std::_Rb_tree<int, A>::_M_insert_unique<A>(A&&)",
            "std::_Rb_tree_node<A>* std::_Rb_tree<int, A>::_Alloc_node::operator()<A const&>(A const&) const",
            "__gnu_cxx::new_allocator<std::_Rb_tree_node<int> >::allocate(unsigned long, void const*)",
            "decltype ((std::allocator<A>{}.allocate)(1)) std::allocator_traits<std::allocator<A> >::allocate(A*)",
            "std::function<void (int)>::operator()(int) const",
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "<str as alloc::borrow::ToOwned>::to_owned",
            "core::iter::traits::iterator::Iterator::collect",
            "std::_MakeUniq<Node>::__single_object std::make_unique<Node, int>(int&&)",
        ] {
            assert!(is_wrapper(name), "{name}");
        }
        for name in [
            "main",
            "leak_malloc",
            "read_config(char const*)",
            "std::vector<int> read_config<int>(char const*)",
            "load<std::string>(std::string const&)",
            "mallocate",
            "(anonymous namespace)::load(std::string)",
            "std_load",
            "<app::Config as core::clone::Clone>::clone",
            "Cache::operator()(std::string)",
            "",
        ] {
            assert!(!is_wrapper(name), "{name}");
        }
    }
}
