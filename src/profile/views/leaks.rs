//! Memory in use by the callers of the allocator.
//!
//! Input: a heap profile of a recording. Output: [`Leak`]s, the largest first. Allocation wrappers (operator new,
//! xmalloc, the containers of Rust and C++) are skipped: nobody looks for a leak in them.

use std::collections::HashMap;

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

/// Whether a function is an allocation wrapper.
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
        for (node, (bytes, blocks)) in values.inuse() {
            let shown = self.callers_of_allocator(node, callers, skip);
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

    /// This many callers of the allocator in a stack, the one that allocated first.
    pub(super) fn callers_of_allocator(
        &self,
        node: NodeId,
        callers: usize,
        skip: &dyn Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut frames = Vec::new();
        self.path_of(node, &mut frames);
        let mut names = Vec::new();
        for frame in &frames {
            self.names_of(*frame, false, &mut |name| names.push(name.to_owned()));
        }
        names.reverse();
        let passed = names.iter().take_while(|name| is_wrapper(name) || skip(name)).count();
        // A stack of only wrappers is attributed to them.
        let passed = if passed == names.len() { 0 } else { passed };
        names.drain(..).skip(passed).take(callers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
