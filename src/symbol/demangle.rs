//! Mangled name → readable name: Rust (legacy and v0), C++ (Itanium ABI), and Swift through the caller's
//! [`Demangler`].
//!
//! `demangle` is that; `shorten` leaves the arguments of templates and generics out.
//!
//! Input: a name from a file, hostile. Output: the readable name, or the unchanged name if its mangling is unknown
//! or it exceeds a limit. Not for: escaping for output formats, D, or MSVC names.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Limit on the length of a mangled name, in bytes.
pub const MANGLED_BYTES_MAX: usize = 16 * 1024;

/// Limit on the length of a readable name, in bytes; longer ones remain mangled. By back references, short names
/// can expand without bounds.
pub const DEMANGLED_BYTES_MAX: usize = 64 * 1024;

/// Depth of nested C++ constructs.
const DEPTH_MAX: u32 = 128;

/// Demangles Swift names; `None` for unknown ones. The only complete demangler is in the Swift runtime, so these
/// names are readable only on systems that have it.
pub type Demangler = fn(&str) -> Option<String>;

/// Demangles a symbol's name, except Swift's. See [`demangle_with`].
#[must_use]
pub fn demangle(name: impl AsRef<[u8]>) -> String {
    demangle_with(name, |_| None)
}

/// Demangles a symbol's name. Bytes that are not UTF-8 are replaced.
///
/// Rust hashes and the return types of C++ templates are omitted. Parts that compilers split off or specialize are
/// marked like in `c++filt`: `fill(int*) [clone .cold]`; the number that ThinLTO appends (`.llvm.123`) differs
/// from build to build and is removed.
#[must_use]
pub fn demangle_with(name: impl AsRef<[u8]>, swift: Demangler) -> String {
    let name = match std::str::from_utf8(name.as_ref()) {
        Ok(name) => name,
        Err(_) => return String::from_utf8_lossy(name.as_ref()).into_owned(),
    };
    if is_swift(name) && name.len() <= MANGLED_BYTES_MAX {
        let readable = swift(name).filter(|readable| readable.len() <= DEMANGLED_BYTES_MAX);
        return readable.filter(|readable| !readable.is_empty()).unwrap_or_else(|| name.to_owned());
    }
    let name = without_version(without_abi(name));
    let (stem, clones) = split_clones(name);
    let (mut out, open, close) = match readable(stem) {
        Some(readable) => (readable, " [clone .", "]"),
        None => (stem.to_string(), ".", ""),
    };
    for clone in clones {
        out.extend([open, clone, close]);
    }
    out
}

/// Swift 5 and 4 (`$s`, `$S`), embedded Swift (`$e`), Swift 4 before its ABI was stable (`_T0`), and macros; with
/// or without Mach-O's leading underscore (swift/docs/ABI/Mangling.rst).
fn is_swift(name: &str) -> bool {
    let plain = name.strip_prefix('_').unwrap_or(name);
    ["$s", "$S", "$e"].iter().any(|prefix| plain.starts_with(prefix))
        || name.starts_with("_T0")
        || name.starts_with("@__swiftmacro_")
}

fn readable(name: &str) -> Option<String> {
    if name.len() > MANGLED_BYTES_MAX {
        return None;
    }
    let mut out = Bounded { text: String::new() };
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        write!(out, "{rust:#}").ok()?;
    } else if name.starts_with("_Z") || name.starts_with("_GLOBAL_") {
        let options = ParseOptions::default().recursion_limit(DEPTH_MAX);
        let cpp = BorrowedSymbol::new_with_options(name.as_bytes(), &options).ok()?;
        let options = DemangleOptions::new().no_return_type().recursion_limit(DEPTH_MAX);
        cpp.structured_demangle(&mut out, &options).ok()?;
    }
    (!out.text.is_empty()).then_some(out.text)
}

/// A string that does not grow beyond [`DEMANGLED_BYTES_MAX`].
struct Bounded {
    text: String,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > DEMANGLED_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Removes the version from `memcpy@@GLIBC_2.14` and `memcpy@GLIBC_2.2.5` (older linkers write it into the names
/// of `.symtab`).
fn without_version(name: &str) -> &str {
    let is_version = |text: &str| {
        let text = text.strip_prefix('@').unwrap_or(text);
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte))
    };
    match name.split_once('@') {
        Some((stem, version)) if !stem.is_empty() && is_version(version) => stem,
        _ => name,
    }
}

/// Removes the calling convention from names of Go's assembly functions: if both are linked, `runtime.newproc`
/// directly calls `runtime.newproc.abi0`, or is an alias of it (go/src/cmd/compile/abi-internal.md; `cmd/link`
/// adds the suffix).
fn without_abi(name: &str) -> &str {
    name.strip_suffix(".abi0").filter(|stem| stem.contains('.')).unwrap_or(name)
}

/// Splits off the suffixes that compilers append to a function's name when they clone or split it: `.cold`,
/// `.part.0`, `.constprop.0`, `.isra.0`, `.lto_priv.0` (GCC), `.llvm.123`, `.__uniq.123` (LLVM). Returns the stem
/// and the suffixes, each a word with its number.
fn split_clones(name: &str) -> (&str, Vec<&str>) {
    const WORDS: [&str; 9] =
        ["cold", "part", "constprop", "isra", "lto_priv", "localalias", "clone", "llvm", "__uniq"];
    let mut stem = name;
    let mut clones = Vec::new();
    while let Some((before, last)) = stem.rsplit_once('.') {
        let number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (before, word) = before.rsplit_once('.').filter(|_| number).unwrap_or((before, last));
        if before.is_empty() || !WORDS.contains(&word) {
            break;
        }
        clones.push(&stem[before.len() + 1..]);
        stem = before;
    }
    clones.reverse();
    clones.retain(|clone| !clone.starts_with("llvm."));
    (stem, clones)
}

// ---- Readable names without the arguments of templates and generics: `std::vector<int, std::allocator<int>
// >::push_back(int const&)` → `std::vector<..>::push_back(..)`.

/// Shortens the text in `<…>` after a name, and the parameters.
///
/// Unchanged are operators (`operator<`, `operator->`, `operator()`), and Rust's `<T as Trait>::f` and `{impl#0}`,
/// in which the brackets are most of the name.
#[must_use]
pub fn shorten(name: &str) -> String {
    let bytes = name.as_bytes();
    let closings = closings(bytes);
    let mut out = String::with_capacity(name.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &name[at..];
        if let Some(operator) = operator(name, at) {
            out.push_str(operator);
            at += operator.len();
            continue;
        }
        let opens = match bytes[at] {
            // After a letter: arguments. At the start or after `::<`: part of a Rust path.
            b'<' => at > 0 && (is_word(bytes[at - 1]) || rest_is_turbofish(name, at)),
            b'(' => at > 0 && !rest.starts_with("(anonymous namespace)"),
            _ => false,
        };
        let close = closings[at].map(|close| close as usize);
        if let Some(close) = close.filter(|close| opens && *close > at + 1) {
            out.push_str(if bytes[at] == b'<' { "<..>" } else { "(..)" });
            at = close + 1;
        } else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..len]);
            at += len;
        }
    }
    out
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'}') || byte >= 0x80
}

fn rest_is_turbofish(name: &str, at: usize) -> bool {
    name[..at].ends_with("::") && at > 2
}

/// `operator` and its signs, if a word starts here.
fn operator(name: &str, at: usize) -> Option<&str> {
    let rest = &name[at..];
    let after = rest.strip_prefix("operator")?;
    if at > 0 && is_word(name.as_bytes()[at - 1]) {
        return None;
    }
    let signs = if after.starts_with("()") || after.starts_with("[]") {
        2
    } else {
        after.bytes().take_while(|byte| b"<>=-!+*/%&|^~,".contains(byte)).count()
    };
    // `operator<<int>`: shift with arguments is written with a space; take at most `<=>`.
    (signs > 0).then(|| &rest[.."operator".len() + signs.min(3)])
}

/// For each opening bracket the index of its closing one; `None` for all other bytes. Computed for all at once:
/// one by one is quadratic in names that open many and close none.
fn closings(bytes: &[u8]) -> Vec<Option<u32>> {
    let mut closings = vec![None; bytes.len()];
    let mut open = Vec::new();
    let mut before = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' => open.push(index),
            b'>' if before == b'-' => {}
            b'>' | b')' => {
                if let Some(opened) = open.pop() {
                    closings[opened] = u32::try_from(index).ok();
                }
            }
            _ => {}
        }
        before = byte;
    }
    closings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mangled: &str, readable: &str) {
        assert_eq!(demangle(mangled.as_bytes()), readable, "{mangled}");
    }

    #[test]
    fn rust_names_lose_their_hash() {
        check("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", "core::ptr::drop_in_place");
        check(
            "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE",
            "<Test + 'static as foo::Bar<Test>>::bar",
        );
        check("_RNvC6_123foo3bar", "123foo::bar");
        check("_RNvCs1234_7mycrate4main", "mycrate::main");
        check(
            "_RNvMsr_NtCs3ssYzQotkvD_3std4pathNtB5_7PathBuf3newCs15kBYyAo9fc_7mycrate",
            "<std::path::PathBuf>::new",
        );
    }

    #[test]
    fn go_names_lose_their_calling_convention() {
        check("runtime.newproc.abi0", "runtime.newproc");
        check("crypto/sha256.block.abi0", "crypto/sha256.block");
        check("x.abi0", "x.abi0");
        check("noticed.abi00", "noticed.abi00");
        check(".abi0", ".abi0");
    }

    #[test]
    fn cpp_names_have_parameters_but_no_return_type() {
        check("_ZN5space3fooEibc", "space::foo(int, bool, char)");
        check("_Z3addIiET_S0_S0_", "add<int>(int, int)");
        check("_ZN3FooC1Ev", "Foo::Foo()");
        check(
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
        );
    }

    #[test]
    fn other_names_are_unchanged() {
        for name in
            ["main", "_start", "_Z", "_R", "_ZN", "__libc_start_main", "a.b.c", "operator@", "@x", "caml_x$1"]
        {
            check(name, name);
        }
        assert_eq!(demangle(b"caf\xe9"), "caf\u{fffd}");
        assert_eq!(demangle(b""), "");
    }

    #[test]
    fn swift_names_are_passed_to_the_demangler() {
        fn fake(name: &str) -> Option<String> {
            match name {
                "$sdamaged" => None,
                "$sempty" => Some(String::new()),
                "$slong" => Some("x".repeat(DEMANGLED_BYTES_MAX + 1)),
                name => Some(format!("<{name}>")),
            }
        }
        let check = |mangled: &str, readable: &str| assert_eq!(demangle_with(mangled, fake), readable);
        // Versions and clones are not split off: `@` and `.` may be part of the name.
        for name in
            ["$s4main3fooyyF", "_$s4main3fooyyF", "$S4main", "_T04main", "$e4main", "@__swiftmacro_4main"]
        {
            check(name, &format!("<{name}>"));
            assert_eq!(demangle(name), name);
        }
        check("$s4main3fooyyFTY0_.resume.0", "<$s4main3fooyyFTY0_.resume.0>");
        for name in ["$sdamaged", "$sempty", "$slong", "$x", "T04main", "s4main", "main", "$"] {
            check(name, name);
        }
        let long = format!("$s{}", "a".repeat(MANGLED_BYTES_MAX));
        check(&long, &long);
        check("_ZN5space3fooEi", "space::foo(int)");
    }

    #[test]
    fn versions_are_removed() {
        check("memcpy@@GLIBC_2.14", "memcpy");
        check("memcpy@GLIBC_2.2.5", "memcpy");
        check("_ZN5space3fooEi@@LIB_1.0", "space::foo(int)");
    }

    #[test]
    fn clones_are_marked() {
        check("_ZN5space3fooEi.cold", "space::foo(int) [clone .cold]");
        check("_ZN5space3fooEi.part.0", "space::foo(int) [clone .part.0]");
        check("_ZN5space3fooEi.constprop.0.isra.2", "space::foo(int) [clone .constprop.0] [clone .isra.2]");
        check("_ZN5space3fooEi.llvm.1234567890", "space::foo(int)");
        check("_ZN5space3fooEi.cold.llvm.12AF", "space::foo(int) [clone .cold]");
        check(
            "_ZN4core3ptr13drop_in_place17h0123456789abcdefE.llvm.77.cold",
            "core::ptr::drop_in_place [clone .cold]",
        );
        check("fill.llvm.77.part.3", "fill.part.3");
        check("_RNvC6_123foo3bar.lto_priv.3", "123foo::bar [clone .lto_priv.3]");
        check("fill.constprop.0", "fill.constprop.0");
        check("fill.llvm.123", "fill");
        check(".cold", ".cold");
    }

    #[test]
    fn hostile_names_remain_mangled_and_take_no_time() {
        let started = crate::cpu_time::CpuTime::start();
        let long = format!("_ZN{}E", "1a".repeat(MANGLED_BYTES_MAX));
        check(&long, &long);
        let deep = format!("_Z1f{}i", "P".repeat(8000));
        check(&deep, &deep);
        let deep = format!("_RNvC1a1f{}", "T".repeat(10_000));
        check(&deep, &deep);
        // Each type is a pair of the next one: 2^11 words if expanded.
        let pairs: String = ["T0_", "T1_", "T2_", "T3_", "T4_", "T5_", "T6_", "T7_", "T8_", "T9_", "TA_"]
            .map(|next| format!("St4pairI{next}{next}E"))
            .concat();
        let doubling = format!("_Z1fI{pairs}iEvT_");
        check(&doubling, &doubling);
        assert!(started.used().as_secs() < 5, "{:?}", started.used());
    }
}

#[cfg(test)]
mod short_name_tests {
    use super::shorten;

    #[test]
    fn arguments_become_dots() {
        for (long, short) in [
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<..>::push_back(..)",
            ),
            ("f()", "f()"),
            ("main", "main"),
            ("a::b<c>::d<e>(f<g>) const", "a::b<..>::d<..>(..) const"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f(..)"),
            ("x::operator<(x const&)", "x::operator<(..)"),
            ("x::operator()(int) const", "x::operator()(..) const"),
            ("x::operator->()", "x::operator->()"),
            (
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
                "<alloc::vec::Vec<..> as core::ops::Drop>::drop",
            ),
            ("core::iter::map::<u8, fn(u8) -> u8>", "core::iter::map::<..>"),
            ("f<(int)1>(x) [clone .cold]", "f<..>(..) [clone .cold]"),
            ("-[NSThread main]", "-[NSThread main]"),
            ("broken<a", "broken<a"),
            ("broken<a>>::b<c>", "broken<..>>::b<..>"),
            ("", ""),
            ("é<é>é", "é<..>é"),
        ] {
            assert_eq!(shorten(long), short, "{long}");
        }
    }

    #[test]
    fn unclosed_brackets_cost_no_more_than_others() {
        let name = "a<".repeat(32 * 1024);
        let started = crate::cpu_time::CpuTime::start();
        assert!((0..40).all(|_| shorten(&name) == name));
        assert!(started.used().as_secs() < 10);
    }
}
