//! Names JIT code by its runtime: `[php jit]`.
//!
//! Input: the kernel's name of its memory, and the names of the images of the process. Output: the runtime, if
//! known: by the memory's name, else by the loaded runtime, both names if there are two. A library that compiles a
//! little (regular expressions) counts only without a runtime. Not for: names of functions (see `jit`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::addr::Avma;
use crate::binary::v8;
use crate::images::Images;

/// Runtimes by prefixes of their executables, libraries and frameworks.
const RUNTIMES: [(&str, &[&str]); 20] = [
    ("java", &["libjvm.", "libj9jit"]),
    ("v8", &v8::IMAGES),
    ("luajit", &["luajit", "libluajit"]),
    ("erlang", &["beam."]),
    ("dotnet", &["libcoreclr.", "libclrjit."]),
    ("mono", &["libmono", "mono-sgen"]),
    ("spidermonkey", &["libmozjs", "libxul."]),
    ("javascriptcore", &["libjavascriptcore", "libJavaScriptCore", "JavaScriptCore", "bun"]),
    ("pypy", &["pypy", "libpypy"]),
    ("ruby", &["ruby", "libruby"]),
    ("php", &["opcache.so", "php", "libphp"]),
    ("julia", &["libjulia"]),
    ("guile", &["libguile"]),
    ("qemu", &["qemu-"]),
    ("wasmtime", &["wasmtime", "libwasmtime"]),
    ("hhvm", &["hhvm"]),
    ("luau", &["luau"]),
    // These keep all of their compiled code in their heaps.
    ("racket", &["racket", "libracket"]),
    ("chez", &["chez", "scheme", "petite"]),
    ("sbcl", &["sbcl"]),
];

/// Libraries that compile parts of programs.
const LIBRARIES: [(&str, &[&str]); 4] =
    [("llvm", &["libLLVM"]), ("pcre2", &["libpcre2"]), ("pcre", &["libpcre."]), ("orc", &["liborc-"])];

/// Names that runtimes give their memory.
const LABELS: [(&str, &str); 4] = [
    ("doublemapper", "dotnet"), // coreclr, doublemapping.cpp
    ("v8", "v8"),
    ("js-executable-memory", "spidermonkey"), // ProcessExecutableMemory.cpp
    ("zend", "php"),
];

/// Memory that PHP's compiler shares with its other processes (zend_shared_alloc.c).
const SHARED: [&str; 4] = ["/dev/zero", "/dev/shm/", "/SYSV", "/anon_hugepage"];

/// The runtimes of a process's JIT code, each memory examined once.
#[derive(Debug)]
pub struct JitRuntimes<'i> {
    images: &'i Images,
    /// By address space and name of the memory.
    known: BTreeMap<(u32, &'i str), Option<Arc<str>>>,
}

impl<'i> JitRuntimes<'i> {
    /// The runtimes of the process with these images.
    #[must_use]
    pub fn new(images: &'i Images) -> JitRuntimes<'i> {
        JitRuntimes { images, known: BTreeMap::new() }
    }

    /// The name of JIT code at an address, if its runtime is known.
    pub fn name(&mut self, space: u32, avma: Avma) -> Option<Arc<str>> {
        let images = self.images;
        let label = images.jit_memory(space, avma)?;
        let known = self.known.entry((space, label)).or_insert_with(|| {
            let loaded: Vec<&str> = images.images_in(space).map(|image| image.name.as_str()).collect();
            name(label, loaded.iter().copied()).map(Arc::from)
        });
        known.clone()
    }
}

/// The name of JIT code in memory with this name, in a process with these images; `None` if its runtime is
/// unknown.
#[must_use]
pub fn name<'i>(label: &str, images: impl Iterator<Item = &'i str> + Clone) -> Option<String> {
    let loaded = |runtimes: &[(&'static str, &[&str])]| -> Vec<&'static str> {
        let is = |beginnings: &[&str]| {
            images.clone().any(|image| beginnings.iter().any(|beginning| image.starts_with(beginning)))
        };
        runtimes.iter().filter(|(_, beginnings)| is(beginnings)).map(|(name, _)| *name).collect()
    };
    let of_shared = |label: &str| SHARED.iter().any(|start| label.starts_with(start));
    let runtimes = loaded(&RUNTIMES);
    if of_shared(label) && runtimes.contains(&"php") {
        return Some("[php jit]".to_owned());
    }
    let told = label
        .strip_prefix("/memfd:")
        .or_else(|| label.strip_prefix("[anon:")?.strip_suffix(']'))
        .or_else(|| label.strip_prefix("[anon_shmem:")?.strip_suffix(']'));
    if let Some(told) = told.filter(|told| !told.is_empty()) {
        let known = LABELS.iter().find(|(start, _)| told.starts_with(start));
        return Some(known.map_or_else(|| format!("[{told}]"), |(_, runtime)| format!("[{runtime} jit]")));
    }
    let makers = if runtimes.is_empty() { loaded(&LIBRARIES) } else { runtimes };
    (!makers.is_empty()).then(|| format!("[{} jit]", makers.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(label: &str, images: &[&str], expected: Option<&str>) {
        assert_eq!(name(label, images.iter().copied()).as_deref(), expected, "{label} {images:?}");
    }

    #[test]
    fn the_images_decide_the_runtime() {
        check("", &["java", "libjvm.so", "libc.so.6"], Some("[java jit]"));
        check("", &["node"], Some("[v8 jit]"));
        check("", &["nodejs", "libnode.so.108"], Some("[v8 jit]"));
        check("", &["beam.smp", "libc.so.6"], Some("[erlang jit]"));
        check("", &["nginx", "libluajit-5.1.so.2", "libpcre2-8.so.0"], Some("[luajit jit]"));
        check("", &["nginx", "libpcre2-8.so.0.11.0"], Some("[pcre2 jit]"));
        check("", &["libjvm.so", "libluajit-5.1.so.2"], Some("[java or luajit jit]"));
        check("", &["racket", "libc.so.6"], Some("[racket jit]"));
        check("", &["chezscheme"], Some("[chez jit]"));
        check("", &["sbcl"], Some("[sbcl jit]"));
        check("", &["work", "libc.so.6"], None);
        check("[heap]", &["work"], None);
    }

    #[test]
    fn the_name_of_the_memory_has_priority() {
        check("/dev/zero", &["php8.2", "opcache.so", "libpcre2-8.so.0"], Some("[php jit]"));
        check("", &["php8.2", "opcache.so"], Some("[php jit]"));
        check("/dev/zero", &["work"], None);
        check("/memfd:doublemapper", &["dotnet", "libcoreclr.so"], Some("[dotnet jit]"));
        check("/memfd:shader cache", &["libLLVM-15.so.1"], Some("[shader cache]"));
        check("[anon:v8]", &["work"], Some("[v8 jit]"));
        check("[anon:]", &["work"], None);
    }
}
