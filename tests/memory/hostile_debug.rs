//! Damaged debug information: no panic, no hang, no memory out of proportion.
//!
//! Real DWARF, debug links, packed sections and JIT maps are mutated from seeds
//! (`support/seeds.rs`). Needs `cc`, `objcopy` and `xz`.
#![cfg(target_os = "linux")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use stackprof::binary::unpack::{self, RATIO_MAX, XZ_DICTIONARY_MAX};
use stackprof::binary::{Files, ImageBytes, OpenError};
use stackprof::symbol::sections::{self, Section};
use stackprof::symbol::{Options, Style, jit, name_addresses};

use crate::memory;
use crate::seeds;
use crate::skip::{installed, skip, skip_without};
use stackprof::rng::Rng;

/// Memory for each byte of a file and of what it unpacks to, and for any file.
const MEMORY_FACTOR: usize = 32;
const MEMORY_LEAST: usize = 8 << 20;

/// Runs `check` for each seed; fails if one takes too long, or more memory than `allowed` and
/// what is usual.
fn for_each_seed(test: &'static str, rounds: u64, allowed: usize, mut check: impl FnMut(&mut Rng)) {
    seeds::for_each_seed(test, rounds, |random| {
        let used = memory::peak_of(|| check(random));
        assert!(used <= allowed + MEMORY_LEAST, "took {used} bytes, {allowed} are allowed");
    });
}

const SOURCE: &str = r#"
struct node { struct node *next; int value; };
static inline __attribute__((always_inline)) int add(int a, int b) { return a * 3 + b; }
static inline __attribute__((always_inline)) int twice(int a) { int r = add(a, a); return r + add(r, 1); }
__attribute__((noinline)) int sum(struct node *node) {
    int total = 0;
    for (; node; node = node->next) { if (node->value & 1) { total += twice(node->value); } else total -= add(total, 2); }
    return total;
}
__attribute__((noinline)) static int other(int x) { return twice(x) ^ twice(x + 1); }
int main(int argc, char **argv) { (void)argv; struct node n = {0, argc}; return sum(&n) + other(argc); }
"#;

/// Compiles the program; returns its bytes, with the directory that other files are left in.
fn build(flags: &[&str]) -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    run(dir.path(), "cc", &[&["-O2", "-g", "-o", "a.out", "a.c"], flags].concat());
    let bytes = std::fs::read(dir.path().join("a.out")).unwrap();
    (dir, bytes)
}

fn run(dir: &Path, program: &str, args: &[&str]) {
    let output = Command::new(program).current_dir(dir).args(args).output();
    let output = output.unwrap_or_else(|_| panic!("{program} is needed by this test"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Files by path, from memory.
#[derive(Default)]
struct InMemory(HashMap<String, Vec<u8>>);

impl Files for InMemory {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        let name = path.rsplit('/').next().unwrap_or_default();
        self.0.get(name).map(|bytes| ImageBytes::new(bytes.clone())).ok_or(OpenError::Source("no such file"))
    }
}

fn exercise(bytes: &[u8], files: &InMemory, addresses: &[u64]) -> Vec<Vec<String>> {
    let options = Options { lines: true, style: Style::Short, files, threads: 2, ..Options::default() };
    let named = name_addresses("/nowhere/a.out", ImageBytes::new(bytes.to_vec()), addresses, &options);
    let texts = named.names.into_iter().map(|name| {
        let functions = name.unwrap_or_default().into_iter();
        functions.map(|function| function.name.unwrap_or_default().to_string()).collect()
    });
    texts.collect()
}

fn text_addresses(bytes: &[u8]) -> Vec<u64> {
    let all = sections::all(bytes).unwrap();
    let text = all.iter().find(|section| section.name == ".text").unwrap();
    (text.svma..text.svma + text.size).collect()
}

/// Damages bytes, mostly in sections whose name has `part` in it.
fn damage(bytes: &mut [u8], places: &[std::ops::Range<usize>], random: &mut Rng) {
    for _ in 0..1 + random.below(12) {
        let place = match places {
            [] => 0..bytes.len(),
            places => places[random.below(places.len())].clone(),
        };
        if place.is_empty() {
            continue;
        }
        let at = place.start + random.below(place.len());
        let interesting = [0u8, 1, 0x7f, 0x80, 0xff, 0xfe];
        match random.below(4) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = interesting[random.below(interesting.len())],
            _ => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                bytes[at..end].fill(interesting[random.below(interesting.len())]);
            }
        }
    }
}

fn places(bytes: &[u8], is_it: impl Fn(&Section<'_>) -> bool) -> Vec<std::ops::Range<usize>> {
    let all = sections::all(bytes).unwrap();
    let of = |section: &Section<'_>| {
        let start = section.bytes.as_ptr().addr() - bytes.as_ptr().addr();
        start..start + section.bytes.len()
    };
    let found: Vec<_> =
        all.iter().filter(|section| !section.bytes.is_empty() && is_it(section)).map(of).collect();
    assert!(!found.is_empty(), "nothing to damage");
    found
}

fn mutations(test: &'static str, rounds: u64, flags: &[&str]) {
    let (dir, bytes) = build(flags);
    mutate(test, rounds, &dir, bytes, flags.iter().any(|flag| flag.starts_with("-gz")));
}

fn mutate(test: &'static str, rounds: u64, dir: &tempfile::TempDir, bytes: Vec<u8>, packed: bool) {
    let _alone = memory::alone();
    let mut files = InMemory::default();
    for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".dwo") {
            files.0.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    let addresses = text_addresses(&bytes);
    // Undamaged, it says what was inlined: otherwise nothing below would be tried.
    let found = exercise(&bytes, &files, &addresses);
    assert!(found.iter().any(|chain| chain.ends_with(&["twice".to_owned(), "add".to_owned()])), "{found:?}");
    let places = places(&bytes, |section| section.name.starts_with(".debug"));
    let factor = MEMORY_FACTOR + if packed { RATIO_MAX as usize } else { 0 };
    for_each_seed(test, rounds, bytes.len() * factor, |random| {
        let mut damaged = bytes.clone();
        damage(&mut damaged, &places, random);
        exercise(&damaged, &files, &addresses);
        if let Some((name, dwo)) = files.0.iter().next() {
            let mut dwo = dwo.clone();
            damage(&mut dwo, &[], random);
            exercise(&bytes, &InMemory(HashMap::from([(name.clone(), dwo)])), &addresses);
        }
    });
}

#[test]
fn damaged_dwarf_4() {
    mutations("damaged_dwarf_4", 300, &["-gdwarf-4"]);
}

#[test]
fn damaged_dwarf_5() {
    mutations("damaged_dwarf_5", 300, &["-gdwarf-5"]);
}

#[test]
fn damaged_split_dwarf() {
    mutations("damaged_split_dwarf", 200, &["-gdwarf-5", "-gsplit-dwarf"]);
}

#[test]
fn damaged_packed_dwarf() {
    mutations("damaged_packed_dwarf", 150, &["-gdwarf-5", "-gz=zlib"]);
    // Older compilers know no zstd.
    let (dir, _) = build(&["-gdwarf-5"]);
    let with_zstd = ["objcopy", "llvm-objcopy-19", "llvm-objcopy"].iter().any(|objcopy| {
        let mut command = Command::new(objcopy);
        command.current_dir(dir.path()).args(["--compress-debug-sections=zstd", "a.out", "packed"]);
        command.output().is_ok_and(|output| output.status.success())
    });
    if with_zstd {
        let bytes = std::fs::read(dir.path().join("packed")).unwrap();
        mutate("damaged_packed_dwarf", 150, &dir, bytes, true);
    } else {
        skip("no objcopy here knows zstd");
    }
}

#[test]
fn damaged_symbols_in_xz() {
    if installed(&["xz"]).is_none() {
        return;
    }
    let _alone = memory::alone();
    let (dir, bytes) = build(&[]);
    run(dir.path(), "objcopy", &["--only-keep-debug", "--strip-debug", "a.out", "mini"]);
    run(dir.path(), "xz", &["-k", "mini"]);
    run(dir.path(), "objcopy", &["-S", "--add-section", ".gnu_debugdata=mini.xz", "a.out", "stripped"]);
    let stripped = std::fs::read(dir.path().join("stripped")).unwrap();
    let addresses = text_addresses(&bytes);
    let found = exercise(&stripped, &InMemory::default(), &addresses);
    assert!(found.contains(&vec!["sum".to_owned()]), "{found:?}");
    let places = places(&stripped, |section| section.name == ".gnu_debugdata");
    let allowed = stripped.len() * RATIO_MAX as usize + XZ_DICTIONARY_MAX;
    for_each_seed("damaged_symbols_in_xz", 300, allowed, |random| {
        let mut damaged = stripped.clone();
        damage(&mut damaged, &places, random);
        exercise(&damaged, &InMemory::default(), &addresses);
    });
    // A bomb: 256 MiB of zeros in some 40 KiB.
    std::fs::write(dir.path().join("zeros"), vec![0; 256 << 20]).unwrap();
    run(dir.path(), "xz", &["-0", "zeros"]);
    let bomb = std::fs::read(dir.path().join("zeros.xz")).unwrap();
    let used = memory::peak_of(|| assert!(unpack::xz(&bomb).is_err()));
    assert!(
        used < bomb.len() * RATIO_MAX as usize * 3 + MEMORY_LEAST + XZ_DICTIONARY_MAX,
        "{used} of {}",
        bomb.len()
    );
}

#[test]
fn damaged_debug_links() {
    let _alone = memory::alone();
    let (dir, bytes) = build(&["-Wl,--build-id=none"]);
    run(dir.path(), "objcopy", &["--only-keep-debug", "a.out", "a.debug"]);
    run(dir.path(), "objcopy", &["-S", "--add-gnu-debuglink=a.debug", "a.out", "stripped"]);
    let stripped = std::fs::read(dir.path().join("stripped")).unwrap();
    let debug = std::fs::read(dir.path().join("a.debug")).unwrap();
    let files = InMemory(HashMap::from([("a.debug".to_owned(), debug.clone())]));
    let addresses = text_addresses(&bytes);
    let found = exercise(&stripped, &files, &addresses);
    assert!(found.iter().any(|chain| chain.ends_with(&["twice".to_owned(), "add".to_owned()])), "{found:?}");
    // A debug file that was changed has another checksum.
    let mut other = debug.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    let found = exercise(&stripped, &InMemory(HashMap::from([("a.debug".to_owned(), other)])), &addresses);
    assert!(found.iter().all(|chain| !chain.contains(&"add".to_owned())), "{found:?}");
    let places = places(&stripped, |section| section.name == ".gnu_debuglink");
    for_each_seed("damaged_debug_links", 200, (stripped.len() + debug.len()) * MEMORY_FACTOR, |random| {
        let mut damaged = stripped.clone();
        damage(&mut damaged, &places, random);
        exercise(&damaged, &files, &addresses);
    });
}

/// Runs one of the tools that only some machines have; `None` if it is not installed.
fn run_if_there(dir: &Path, program: &str, args: &[&str]) -> Option<()> {
    Command::new(program).arg("--version").output().ok()?;
    run(dir, program, args);
    Some(())
}

/// A Mach-O library and the files with its DWARF: an object file, and one in an archive.
fn with_debug_map(dir: &Path) -> Option<(Vec<u8>, InMemory)> {
    std::fs::write(dir.join("a.c"), SOURCE).unwrap();
    let renamed = [
        ("int other", "int another"),
        ("other(argc)", "another(argc)"),
        ("int main", "int entry"),
        ("sum", "more"),
    ];
    let other = renamed.iter().fold(SOURCE.to_owned(), |source, (from, to)| source.replace(from, to));
    std::fs::write(dir.join("b.c"), other).unwrap();
    for (source, object) in [("a.c", "a.o"), ("b.c", "b.o")] {
        let args = ["-target", "arm64-apple-macos11", "-O2", "-g", "-c", source, "-o", object];
        run_if_there(dir, "clang-19", &args)?;
    }
    run_if_there(dir, "llvm-ar-19", &["rcs", "libb.a", "b.o"])?;
    let link = ["-arch", "arm64", "-platform_version", "macos", "11", "11", "-dylib", "-u", "_entry"];
    run_if_there(dir, "ld64.lld-19", &[&link[..], &["-o", "a.dylib", "a.o", "libb.a"]].concat())?;
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let files = HashMap::from(["a.o", "libb.a"].map(|name| (name.to_owned(), read(name))));
    Some((read("a.dylib"), InMemory(files)))
}

#[test]
fn damaged_debug_maps() {
    let _alone = memory::alone();
    let dir = tempfile::tempdir().unwrap();
    let Some((image, files)) = with_debug_map(dir.path()) else {
        return skip_without("ld64.lld-19");
    };
    let all = sections::all(&image).unwrap();
    let code = all.iter().find(|section| section.name == "__text").unwrap();
    let addresses: Vec<u64> = (code.svma..code.svma + code.size).collect();
    let found = exercise(&image, &files, &addresses);
    for outer in ["other", "another"] {
        assert!(found.iter().any(|chain| *chain == [outer, "twice"]), "{found:?}");
    }
    // The symbol table is what the file ends with, and the commands say where.
    let steering = [32..2048, code.bytes.as_ptr().addr() - image.as_ptr().addr()..image.len()];
    let bytes = image.len() + files.0.values().map(Vec::len).sum::<usize>();
    for_each_seed("damaged_debug_maps", 300, bytes * MEMORY_FACTOR, |random| {
        let mut damaged = image.clone();
        damage(&mut damaged, &steering, random);
        exercise(&damaged, &files, &addresses);
        for name in ["a.o", "libb.a"] {
            let mut object = files.0[name].clone();
            damage(&mut object, &[], random);
            let mut files = InMemory(files.0.clone());
            files.0.insert(name.to_owned(), object);
            exercise(&image, &files, &addresses);
        }
    });
}

#[test]
fn damaged_common_files() {
    let _alone = memory::alone();
    for flags in [&[][..], &["-5"]] {
        let (dir, image) = build(&["-gdwarf-5", "-Wl,--build-id"]);
        std::fs::copy(dir.path().join("a.out"), dir.path().join("b.out")).unwrap();
        let args = [flags, &["-m", "common", "a.out", "b.out"]].concat();
        if run_if_there(dir.path(), "dwz", &args).is_none() {
            return skip_without("dwz");
        }
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let (bytes, common) = (read("a.out"), read("common"));
        assert_ne!(bytes, image);
        let addresses = text_addresses(&bytes);
        let files = InMemory(HashMap::from([("common".to_owned(), common.clone())]));
        let found = exercise(&bytes, &files, &addresses);
        assert!(
            found.iter().any(|chain| chain.ends_with(&["twice".to_owned(), "add".to_owned()])),
            "{found:?}"
        );
        let link = places(&bytes, |section| matches!(&*section.name, ".gnu_debugaltlink" | ".debug_sup"));
        for_each_seed("damaged_common_files", 150, (bytes.len() + common.len()) * MEMORY_FACTOR, |random| {
            let mut damaged = bytes.clone();
            damage(&mut damaged, &link, random);
            exercise(&damaged, &files, &addresses);
            let mut other = common.clone();
            damage(&mut other, &[], random);
            exercise(&bytes, &InMemory(HashMap::from([("common".to_owned(), other)])), &addresses);
        });
    }
}

#[test]
fn maps_of_any_bytes() {
    let _alone = memory::alone();
    let wanted: Vec<u64> = (0..4096).map(|index| index * 16).collect();
    for_each_seed("maps_of_any_bytes", 200, 1 << 20, |random| {
        let mut text = Vec::new();
        for _ in 0..random.below(300) {
            let line = format!("{:x} {:x} f{}\n", random.below(1 << 17), random.below(300), random.below(9));
            text.extend(line.into_bytes());
        }
        if !text.is_empty() {
            damage(&mut text, &[], random);
        }
        let found = jit::names(&text, &wanted);
        assert_eq!(found.names.len(), wanted.len());
    });
}

#[test]
fn jitdumps_of_any_bytes() {
    let _alone = memory::alone();
    const RECORD_HEADER_BYTES: usize = 16;
    for_each_seed("jitdumps_of_any_bytes", 2_000, 1 << 20, |random| {
        let mut dump = Vec::new();
        dump.extend([0x4a69_5444_u32, 1, 40, 62].map(u32::to_ne_bytes).concat());
        dump.resize(40, 0);
        for _ in 0..random.below(30) {
            // A load, or a move of one: process and thread, vma, and what differs; a name and code.
            let kind = random.below(2) as u32;
            let mut record = vec![0; 16];
            let words: [u64; 4] = std::array::from_fn(|_| random.below(1 << 10) as u64);
            record.extend(words.map(u64::to_ne_bytes).concat());
            record.extend(b"f\0\xc3\xc3\xc3\xc3\xc3\xc3");
            dump.extend(kind.to_ne_bytes());
            dump.extend(((RECORD_HEADER_BYTES + record.len()) as u32).to_ne_bytes());
            dump.extend([0; 8]);
            dump.extend(record);
        }
        damage(&mut dump, &[], random);
        let loads = jit::loads(&dump).unwrap_or_default();
        let inside = |load: &jit::Load<'_>| dump.as_ptr_range().contains(&load.name.as_ptr());
        assert!(loads.len() <= dump.len() / RECORD_HEADER_BYTES && loads.iter().all(inside), "{loads:?}");
    });
}
