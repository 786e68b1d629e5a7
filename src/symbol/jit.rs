//! Names of JIT code: the lines of `/tmp/perf-PID.map` (`JitNames`), the loads of a jitdump (`Load`), or else the
//! name of the runtime (`JitRuntimes`).
//!
//! Input: the files, hostile, and sorted addresses. Output: a name for each address, and the number of malformed
//! lines. Node (`--perf-basic-prof`), Java agents and .NET (`DOTNET_PerfMapEnabled=1`) write the map as they
//! compile, so it is read after the recording; of several lines for an address the last one counts, since code is
//! moved and replaced.
//!
//! Format of the map: `START SIZE name`, numbers in hex without prefix (Linux
//! `tools/perf/Documentation/jit-interface.txt`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::addr::Avma;
use crate::binary::mapping;
use crate::images::Images;

/// The content of a map.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JitNames<'t> {
    /// The name of each address.
    pub names: Vec<Option<&'t [u8]>>,
    /// Number of malformed lines.
    pub bad_lines: u64,
}

/// Finds the names of sorted, distinct addresses in the text of a map.
#[must_use]
pub fn names<'t>(text: &'t [u8], wanted: &[u64]) -> JitNames<'t> {
    let mut bad_lines = 0;
    let lines = text.split(|byte| *byte == b'\n').rev().enumerate();
    let functions = lines.filter_map(|(from_end, line)| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        let function = read(line);
        // The last line may be incomplete, since the program is still running.
        bad_lines += u64::from(function.is_none() && from_end > 0);
        function
    });
    let names = last_at(functions, wanted);
    JitNames { names, bad_lines }
}

/// The name of the last function at each address, from functions in reverse order: their start, end and name. The
/// addresses are sorted and distinct. Each function costs one search, and each address one change; no table is
/// built.
pub(super) fn last_at<'t>(
    functions: impl Iterator<Item = (u64, u64, &'t [u8])>,
    wanted: &[u64],
) -> Vec<Option<&'t [u8]>> {
    let mut names = vec![None; wanted.len()];
    // For each address: the next one without a name (a union-find with path halving).
    let mut next: Vec<u32> = (0..=wanted.len() as u32).collect();
    for (start, end, name) in functions {
        let mut at = wanted.partition_point(|address| *address < start) as u32;
        loop {
            while next[at as usize] != at {
                next[at as usize] = next[next[at as usize] as usize];
                at = next[at as usize];
            }
            if wanted.get(at as usize).is_none_or(|address| *address >= end) {
                break;
            }
            names[at as usize] = Some(name);
            next[at as usize] = at + 1;
        }
    }
    names
}

fn read(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b' ');
    let (start, size) = (hex(fields.next()?)?, hex(fields.next()?)?);
    let name = fields.next()?.trim_ascii();
    (!name.is_empty() && size > 0).then_some((start, start.checked_add(size)?, name))
}

fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| plain)?, 16).ok()
}

// ---- Names of JIT code: the loads in a `jit-PID.dump`.
//
// V8 (`--perf-prof`), CPython (`-X perf_jit`), Erlang and Java agents write it; they map a page of it as
// executable, by which it is found. Its other records (code, lines, unwind information) are ignored.
//
// Format: Linux `tools/perf/Documentation/jitdump-specification.txt`. The crate that reads it (linux-perf-data)
// brings six others for a list of two kinds of records.

/// `JiTD` in the byte order of the processor that wrote the file.
const MAGIC: u32 = 0x4a69_5444;
/// Size of the header, which states its own size, and of a record header: kind, size, time.
const HEADER_BYTES: usize = 40;
const RECORD_HEADER_BYTES: usize = 16;
/// Kinds of records.
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
/// Size of a load after its header: process, thread, vma, address, size, index; then the NUL-terminated name, and
/// the code.
const LOAD_BYTES: usize = 40;
/// Size of a move: process, thread, vma, old address, new address, size, index.
const MOVE_BYTES: usize = 48;

/// The address range where a function was loaded, or moved to (Avma).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load<'t> {
    /// The addresses of its code.
    pub code: Range<u64>,
    /// Its name.
    pub name: &'t [u8],
}

/// The loads of a file, in record order; `None` for another format, or another byte order. A truncated record ends
/// the list: the program may still be running.
#[must_use]
pub fn loads(file: &[u8]) -> Option<Vec<Load<'_>>> {
    let header_bytes = usize::try_from(u32_at(file, 8)?).ok()?;
    if u32_at(file, 0)? != MAGIC || header_bytes < HEADER_BYTES {
        return None;
    }
    let mut rest = file.get(header_bytes..)?;
    let mut loads = Vec::new();
    let mut by_index = HashMap::<u64, &[u8]>::new();
    while let Some(record) = next(&mut rest) {
        let of = &record[RECORD_HEADER_BYTES..];
        let load = match u32_at(record, 0) {
            Some(CODE_LOAD) => load(of, &mut by_index),
            Some(CODE_MOVE) => moved(of, &by_index),
            _ => None,
        };
        loads.extend(load.filter(|load| !load.code.is_empty() && !load.name.is_empty()));
    }
    Some(loads)
}

/// The next record, with its header.
fn next<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let bytes = usize::try_from(u32_at(rest, 4)?).ok()?;
    if bytes < RECORD_HEADER_BYTES {
        return None;
    }
    let (record, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(record)
}

fn load<'t>(of: &'t [u8], by_index: &mut HashMap<u64, &'t [u8]>) -> Option<Load<'t>> {
    let (start, size, index) = (u64_at(of, 16)?, u64_at(of, 24)?, u64_at(of, 32)?);
    let name = of.get(LOAD_BYTES..)?;
    let name = name.get(..memchr::memchr(0, name)?)?;
    by_index.insert(index, name);
    Some(Load { code: start..start.checked_add(size)?, name })
}

fn moved<'t>(of: &[u8], by_index: &HashMap<u64, &'t [u8]>) -> Option<Load<'t>> {
    let of = of.get(..MOVE_BYTES)?;
    let (start, size) = (u64_at(of, 24)?, u64_at(of, 32)?);
    let name = by_index.get(&u64_at(of, 40)?)?;
    Some(Load { code: start..start.checked_add(size)?, name })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

// ---- Names JIT code by its runtime: `[php jit]`.
//
// A library that compiles a little (regular expressions) counts only without a runtime.

/// Runtimes by prefixes of their executables, libraries and frameworks.
const RUNTIMES: [(&str, &[&str]); 20] = [
    ("java", &["libjvm.", "libj9jit"]),
    ("v8", &mapping::V8_IMAGES),
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

    fn check(text: &str, wanted: &[u64], expected: &[Option<&str>], bad_lines: u64) {
        let found = names(text.as_bytes(), wanted);
        let expected: Vec<_> = expected.iter().map(|name| name.map(str::as_bytes)).collect();
        assert_eq!(found, JitNames { names: expected, bad_lines }, "{text}");
    }

    #[test]
    fn the_last_line_for_an_address_counts() {
        check(
            "1000 10 old\n2000 20 LazyCompile:~f /a b.js:1\n1008 8 new\r\n",
            &[0xfff, 0x1000, 0x1007, 0x1008, 0x100f, 0x1010, 0x2000, 0x201f, 0x2020],
            &[
                None,
                Some("old"),
                Some("old"),
                Some("new"),
                Some("new"),
                None,
                Some("LazyCompile:~f /a b.js:1"),
                Some("LazyCompile:~f /a b.js:1"),
                None,
            ],
            0,
        );
    }

    #[test]
    fn other_lines_are_skipped_and_counted() {
        check(
            "x 10 f\n1000\n1000 g\n-1 5 h\n1000 10 \nffffffffffffffff 2 i\n\n1000 0 j\n1000 10000000000000000 k\n0x10 0x4 ok\n",
            &[0x11, 0x1000],
            &[Some("ok"), None],
            8,
        );
        // The last line may be incomplete.
        check("10 4 f\n20 4", &[0x10, 0x20], &[Some("f"), None], 0);
        check("", &[1], &[None], 0);
    }

    #[test]
    fn overlapping_lines_cost_no_more_than_others() {
        let line = "0 ffffffffffffff0 everything\n";
        let wanted: Vec<u64> = (0..50_000).collect();
        let started = crate::cpu_time::CpuTime::start();
        assert!(names(line.repeat(100_000).as_bytes(), &wanted).names.iter().all(Option::is_some));
        assert!(started.used().as_secs() < 10);
    }
}

#[cfg(test)]
pub(super) mod jitdump_tests {
    use super::*;

    /// A file with these records after its header.
    pub(crate) fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [MAGIC, 1, 40, 62, 0, 4242] {
            file.extend(word.to_ne_bytes());
        }
        file.extend([0; 16]);
        file.extend(records.concat());
        file
    }

    fn record(kind: u32, of: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(kind.to_ne_bytes());
        record.extend(((RECORD_HEADER_BYTES + of.len()) as u32).to_ne_bytes());
        record.extend(7_u64.to_ne_bytes());
        record.extend(of);
        record
    }

    fn words(words: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    /// A load of `size` bytes at `start`, with this index.
    pub(crate) fn a_load(start: u64, size: u64, index: u64, name: &str) -> Vec<u8> {
        let mut of = words(&[start, start, size, index]);
        of.extend(name.as_bytes());
        of.push(0);
        of.extend([0xc3; 16]);
        record(CODE_LOAD, &of)
    }

    fn a_move(from: u64, to: u64, size: u64, index: u64) -> Vec<u8> {
        record(CODE_MOVE, &words(&[to, from, to, size, index]))
    }

    fn shown(file: &[u8]) -> Option<Vec<(u64, u64, String)>> {
        let text = |load: Load<'_>| {
            (load.code.start, load.code.end, String::from_utf8_lossy(load.name).into_owned())
        };
        Some(loads(file)?.into_iter().map(text).collect())
    }

    #[test]
    fn loads_and_moves_are_in_the_order_of_the_file() {
        let lines = record(2, &[1; 100]);
        let file = file(&[
            a_load(0x1000, 0x20, 1, "f"),
            lines,
            a_load(0x2000, 0x10, 2, "g /a b.js:1"),
            a_move(0x1000, 0x3000, 0x20, 1),
            a_move(0x1000, 0x3000, 0x20, 9),
            a_load(0x4000, 0, 3, "empty"),
            a_load(0x5000, 1, 4, ""),
            a_load(u64::MAX, 2, 5, "beyond memory"),
        ]);
        let expected = [(0x1000, 0x1020, "f"), (0x2000, 0x2010, "g /a b.js:1"), (0x3000, 0x3020, "f")];
        let expected = expected.map(|(start, end, name)| (start, end, name.to_owned()));
        assert_eq!(shown(&file).as_deref(), Some(&expected[..]));
    }

    #[test]
    fn a_truncated_record_ends_the_list() {
        let file = file(&[a_load(0x1000, 0x20, 1, "f"), a_load(0x2000, 0x10, 2, "g")]);
        for bytes in 0..file.len() {
            let count = loads(&file[..bytes]).map(|loads| loads.len());
            assert!(count <= Some(1), "{bytes} bytes: {count:?}");
            assert_eq!(count.is_some(), bytes >= HEADER_BYTES, "{bytes} bytes");
        }
        assert_eq!(loads(&file).map(|loads| loads.len()), Some(2));
        // A record without a size has no successor.
        let mut endless = file.clone();
        endless[HEADER_BYTES + 4..][..4].fill(0);
        assert_eq!(loads(&endless), Some(Vec::new()));
        assert_eq!(loads(b"\x7fELF and more than forty bytes of something else"), None);
    }
}

#[cfg(test)]
mod runtime_tests {
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
