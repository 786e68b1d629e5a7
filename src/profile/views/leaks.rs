//! Memory in use by the callers of the allocator.
//!
//! Input: a heap profile of a recording. Output: [`Leak`]s, the largest first. Allocation wrappers (operator new,
//! xmalloc, the containers of Rust and C++) are skipped: nobody looks for a leak in them. Those of the program are known
//! by their name and by what they call.

use std::collections::{HashMap, HashSet};

use crate::heap::Estimate;
use crate::profile::saved::SavedProfile;
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
    pub callers: Vec<String>,
}

impl SavedProfile {
    /// Memory in use by this many callers of the allocator, the most bytes first. Functions for which `skip` is true
    /// are skipped like [wrappers](is_wrapper).
    #[must_use]
    pub fn leaks(&self, callers: usize, skip: &dyn Fn(&str) -> bool) -> Vec<Leak> {
        let Some(values) = self.values() else { return Vec::new() };
        let mut by_callers: HashMap<Vec<String>, (Estimate, Estimate)> = HashMap::new();
        let own = self.own_wrappers(skip);
        for (node, (bytes, blocks)) in values.inuse() {
            let shown = self.callers_of_allocator(node, callers, &|name| skip(name) || own.contains(name));
            let sum = by_callers.entry(shown).or_default();
            sum.0.add(bytes);
            sum.1.add(blocks);
        }
        let is_any = |leak: &Leak| leak.bytes.value > 0.0 || leak.blocks.value > 0.0;
        let leaks = by_callers.into_iter().map(|(callers, (bytes, blocks))| Leak { bytes, blocks, callers });
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

    /// This many callers of the allocator in a stack, the one that allocated first.
    pub(super) fn callers_of_allocator(
        &self,
        node: NodeId,
        callers: usize,
        skip: &dyn Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut names = self.names_from_leaf(node);
        let passed = names.iter().take_while(|name| is_wrapper(name) || skip(name)).count();
        // A stack of only wrappers is attributed to them.
        let passed = if passed == names.len() { 0 } else { passed };
        names.drain(..).skip(passed).take(callers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::about::About;
    use crate::profile::builder::SavedBuilder;
    use crate::profile::saved::StackRoot;
    use crate::profile::values::{StackValues, ValueType};

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
        let leaks = profile(stacks).leaks(1, skip);
        let mut rows: Vec<String> = leaks.into_iter().map(|leak| leak.callers.concat()).collect();
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
