//! Search for debug information, and refusals: build ids, packages of split DWARF, dSYMs, and the perf map of
//! a live JIT compiler.
#![cfg(target_os = "linux")]

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Command;

use stackprof::binary::{Files, ImageBytes, OpenError};
use stackprof::symbol::{ImageNames, Options, Style, name_addresses, sections};

use crate::skip::{skip, skip_without};

const SOURCE: &str = "
static inline __attribute__((always_inline)) int add(int a, int b) { return a * 3 + b; }
__attribute__((noinline)) static int work(int x) { return add(x, x + 1) ^ 5; }
int main(int argc, char **argv) { (void)argv; return work(argc); }
";

/// Files by their full path.
#[derive(Default)]
struct InMemory(HashMap<String, Vec<u8>>);

impl Files for InMemory {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.0.get(path).map(|bytes| ImageBytes::new(bytes.clone())).ok_or(OpenError::Source("no such file"))
    }
}

/// Files of the system outside of a target's own, empty root.
struct Outside(InMemory);

impl Files for Outside {
    fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Source("no such file or directory"))
    }

    fn open_outside(&self, path: &str) -> Result<ImageBytes, OpenError> {
        self.0.open(path)
    }
}

fn run(dir: &Path, program: &str, args: &[&str]) -> Option<()> {
    let output = Command::new(program).current_dir(dir).args(args).output().ok()?;
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// Compiles the program, strips it, and keeps the debug information: (directory, stripped, debug).
fn stripped(flags: &[&str]) -> (tempfile::TempDir, Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.c"), SOURCE).unwrap();
    let args = [&["-O2", "-g", "-o", "a.out", "a.c", "-Wl,--build-id=sha1"], flags].concat();
    run(dir.path(), "cc", &args).expect("`cc` is needed by this test");
    run(dir.path(), "objcopy", &["--only-keep-debug", "a.out", "debug"]).expect("`objcopy` is needed");
    run(dir.path(), "objcopy", &["-S", "a.out", "stripped"]).unwrap();
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (stripped, debug) = (read("stripped"), read("debug"));
    (dir, stripped, debug)
}

fn build_id_path(bytes: &[u8]) -> String {
    let all = sections::all(bytes).unwrap();
    let note = all.iter().find(|section| section.name == ".note.gnu.build-id").unwrap();
    let id: String = note.bytes[16..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])
}

fn name(path: &str, bytes: &[u8], files: &dyn Files) -> ImageNames {
    let all = sections::all(bytes).unwrap();
    let text = all.iter().find(|section| section.name == ".text").unwrap();
    let addresses: Vec<u64> = (text.svma..text.svma + text.size).collect();
    let options = Options { lines: true, files, ..Options::default() };
    name_addresses(path, ImageBytes::new(bytes.to_vec()), &addresses, &options)
}

/// Whether some address is in `add`, inlined into `work`, with its line.
fn knows_the_inlined(answer: &ImageNames) -> bool {
    let mut chains = answer.names.iter().flatten();
    chains.any(|chain| match chain.as_slice() {
        [.., outer, inner] => {
            outer.name.as_deref() == Some("work")
                && inner.name.as_deref() == Some("add")
                && (inner.line, outer.line) == (2, 3)
                && inner.file.as_deref().is_some_and(|file| file.ends_with("/a.c"))
        }
        _ => false,
    })
}

#[test]
fn a_debug_file_is_found_by_build_id() {
    let (_dir, stripped, debug) = stripped(&[]);
    let files = InMemory(HashMap::from([(build_id_path(&stripped), debug)]));
    let answer = name("/usr/bin/a", &stripped, &files);
    assert!(knows_the_inlined(&answer), "{answer:?}");
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
    assert!(!knows_the_inlined(&name("/usr/bin/a", &stripped, &InMemory::default())));
}

#[test]
fn a_target_in_a_chroot_uses_debug_files_outside_of_it() {
    let (_dir, stripped, debug) = stripped(&[]);
    let path = build_id_path(&stripped);
    let outside = |debug: &[u8]| Outside(InMemory(HashMap::from([(path.clone(), debug.to_vec())])));
    assert!(knows_the_inlined(&name("/usr/bin/a", &stripped, &outside(&debug))));
    let (_dir, _, other) = self::stripped(&["-DOTHER", "-O1"]);
    let answer = name("/usr/bin/a", &stripped, &outside(&other));
    assert!(!knows_the_inlined(&answer));
    let [problem] = answer.problems.as_slice() else { panic!("{:?}", answer.problems) };
    assert!(problem.starts_with(&format!("{path}: it is of another build")), "{problem}");
    // Only files of the target's own root may be next to the program.
    let beside = Outside(InMemory(HashMap::from([("/usr/bin/a.debug".to_owned(), debug)])));
    assert!(!knows_the_inlined(&name("/usr/bin/a", &stripped, &beside)));
}

#[test]
fn a_debug_file_of_another_build_is_refused_with_the_reason() {
    let (_dir, image, _) = stripped(&[]);
    let (_other_dir, _, other) = stripped(&["-DOTHER", "-O1"]);
    let path = build_id_path(&image);
    let answer = name("/usr/bin/a", &image, &InMemory(HashMap::from([(path.clone(), other)])));
    assert!(!knows_the_inlined(&answer));
    let [problem, ..] = answer.problems.as_slice() else { panic!("{:?}", answer.problems) };
    assert!(problem.starts_with(&format!("{path}: it is of another build (build id ")), "{problem}");
}

#[test]
fn a_debug_link_to_a_file_of_the_same_build_id_needs_no_checksum() {
    let answer = |flags: &[&str]| {
        let (dir, _, whole) = stripped(flags);
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        run(dir.path(), "objcopy", &["--add-gnu-debuglink=debug", "stripped"]).unwrap();
        // As distributions do.
        run(dir.path(), "objcopy", &["--compress-debug-sections", "debug"]).unwrap();
        assert_ne!(read("debug"), whole);
        let files = InMemory([("/usr/bin/debug".to_owned(), read("debug"))].into());
        name("/usr/bin/a.out", &read("stripped"), &files)
    };
    assert!(knows_the_inlined(&answer(&[])));
    let unsure = answer(&["-Wl,--build-id=none"]);
    assert!(!knows_the_inlined(&unsure));
    assert!(unsure.problems.iter().any(|why| why.contains("its checksum")), "{:?}", unsure.problems);
}

#[test]
fn reads_split_files_and_packages() {
    let (dir, _, _) = stripped(&["-gdwarf-5", "-gsplit-dwarf"]);
    let image = std::fs::read(dir.path().join("a.out")).unwrap();
    let dwo = std::fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.path());
    let dwo =
        dwo.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "dwo")).unwrap();
    let place = dir.path().canonicalize().unwrap();
    let dwo_path = place.join(dwo.file_name().unwrap()).to_str().unwrap().to_owned();
    let files = InMemory(HashMap::from([(dwo_path.clone(), std::fs::read(&dwo).unwrap())]));
    assert!(knows_the_inlined(&name("/usr/bin/a", &image, &files)));
    // Without it, the lines are known, and the missing file is reported.
    let without = name("/usr/bin/a", &image, &InMemory::default());
    assert!(without.problems.contains(&format!("{dwo_path}: no such file")), "{:?}", without.problems);
    assert!(without.names.iter().flatten().any(|chain| chain[0].line > 0));

    // A package of DWARF 4: binutils' `dwp` supports no other, and llvm-dwp 19 does not terminate on GCC's
    // DWARF 5.
    let (dir, _, _) = stripped(&["-gdwarf-4", "-gsplit-dwarf"]);
    if run(dir.path(), "dwp", &["-e", "a.out", "-o", "a.dwp"]).is_none() {
        return skip_without("dwp");
    }
    let image = std::fs::read(dir.path().join("a.out")).unwrap();
    let package = std::fs::read(dir.path().join("a.dwp")).unwrap();
    let files = InMemory(HashMap::from([("/usr/bin/a.dwp".to_owned(), package)]));
    let answer = name("/usr/bin/a", &image, &files);
    assert!(knows_the_inlined(&answer), "{:?}", answer.problems);
}

#[test]
fn stubs_are_named_after_their_targets() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\nint main(int c, char **v) { return atoi(v[0]) + abs(c) + rand(); }\n";
    std::fs::write(dir.path().join("a.c"), source).unwrap();
    for flags in [["-Wl,-z,lazy", "-fcf-protection=none"], ["-Wl,-z,now", "-fcf-protection=full"]] {
        if run(dir.path(), "cc", &["-O1", "-o", "a.out", "a.c", flags[0], flags[1], "-fplt"]).is_none() {
            panic!("`cc` is needed by this test");
        }
        let bytes = std::fs::read(dir.path().join("a.out")).unwrap();
        let all = sections::all(&bytes).unwrap();
        let stubs = all.iter().filter(|section| section.name.starts_with(".plt"));
        let addresses: Vec<u64> =
            stubs.flat_map(|section| section.svma..section.svma + section.size).collect();
        let answer = name_addresses("/a", ImageBytes::new(bytes), &addresses, &Options::default());
        for function in ["rand@plt", "atoi@plt", "strtol@plt"] {
            let named = |chain: &Vec<_>| {
                let first: &stackprof::symbol::dwarf::LineInfo = &chain[0];
                first.name.as_deref() == Some(function)
            };
            let count = answer.names.iter().flatten().filter(|chain| named(chain)).count();
            // `atoi` may be a macro for `strtol`.
            assert!(count >= 8 || function != "rand@plt", "{function}: {count} {flags:?}");
        }
    }
}

/// Functions with Swift names: outermost, inlined, and a stub.
const SWIFT: &str = r#"
int called(int) __asm__("_$s4main6calledyyF");
static inline __attribute__((always_inline)) int inner(int x) { return called(x) * 3; }
int outer(int x) __asm__("_$s4main5outeryyF");
int outer(int x) { return inner(x) + 1; }
"#;

#[test]
fn swift_names_are_demangled_by_the_runtime() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.c"), SWIFT).unwrap();
    let args = ["-O1", "-g", "-shared", "-fPIC", "-Wl,-z,lazy", "-o", "a.so", "a.c"];
    run(dir.path(), "cc", &args).expect("`cc` is needed by this test");
    let bytes = std::fs::read(dir.path().join("a.so")).unwrap();
    let all = sections::all(&bytes).unwrap();
    let code = all.iter().filter(|section| section.name == ".text" || section.name.starts_with(".plt"));
    let addresses: Vec<u64> = code.flat_map(|section| section.svma..section.svma + section.size).collect();
    let found = |options: &Options<'_>| -> HashSet<String> {
        let answer = name_addresses("/a.so", ImageBytes::new(bytes.clone()), &addresses, options);
        let functions = answer.names.into_iter().flatten().flatten();
        functions.filter_map(|function| function.name.map(|name| name.to_string())).collect()
    };
    let names =
        found(&Options { swift: |name| Some(format!("main.{}()", name.len())), ..Options::default() });
    for name in ["main.17()", "main.18()@plt", "inner"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    assert!(names.iter().all(|name| !name.contains('$')), "{names:?}");
    // Without a Swift runtime, or on request, they stay mangled.
    let mangled = Options { style: Style::Mangled, swift: |_| Some("x".to_owned()), ..Options::default() };
    for options in [Options::default(), mangled] {
        assert!(found(&options).contains("_$s4main5outeryyF"), "{:?}", found(&options));
    }
}

/// A program that generates code, records it in /tmp/perf-PID.map, and runs it.
#[cfg(target_arch = "x86_64")]
const JIT: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    /* xor eax,eax; 1: inc eax; cmp eax,200000000; jne 1b; ret */
    static const unsigned char code[] = {0x31,0xc0,0xff,0xc0,0x3d,0x00,0xc2,0xeb,0x0b,0x75,0xf7,0xc3};
    unsigned char *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(page, code, sizeof code);
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    fprintf(map, "%lx 100 LazyCompile:*old\nnot a line\n%lx %zx LazyCompile:*spin /a.js:3\n",
            (unsigned long)page, (unsigned long)page, sizeof code);
    fclose(map);
    for (int i = 0; i < 8; i++) ((void (*)(void))page)();
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn code_of_a_jit_compiler_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("jit.c"), JIT).unwrap();
    run(dir.path(), "cc", &["-O1", "-o", "jit", "jit.c"]).expect("`cc` is needed by this test");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stackprof"));
    let output = command.current_dir(dir.path()).args(["-v", "-o", "-", "--", "./jit"]).output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() && said.contains("cannot") {
        return skip(&said);
    }
    assert!(out.contains(";LazyCompile:*spin /a.js:3 "), "{out}{said}");
    assert!(!out.contains("LazyCompile:*old"), "{out}");
    let pid = said.split("(pid ").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let note = format!("/tmp/perf-{pid}.map: 1 lines are not `START SIZE name`, and were skipped");
    assert!(said.contains(&note), "{said}");
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
}

/// Builds a dylib and its dSYM with LLVM's tools; the name of one that is missing.
fn dylib_with_dsym(dir: &Path) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    std::fs::write(dir.join("a.c"), SOURCE.replace("int main", "int entry")).unwrap();
    let steps: [(&'static str, &[&str]); 3] = [
        ("clang-19", &["-target", "arm64-apple-macos11", "-O2", "-g", "-c", "a.c", "-o", "a.o"]),
        (
            "ld64.lld-19",
            &["-arch", "arm64", "-platform_version", "macos", "11", "11", "-dylib", "-o", "a.dylib", "a.o"],
        ),
        ("dsymutil-19", &["a.dylib"]),
    ];
    for (program, args) in steps {
        run(dir, program, args).ok_or(program)?;
    }
    let read = |path: &str| std::fs::read(dir.join(path)).unwrap();
    Ok((read("a.dylib"), read("a.dylib.dSYM/Contents/Resources/DWARF/a.dylib")))
}

#[test]
fn a_dsym_next_to_the_binary_is_used_if_its_uuid_matches() {
    let dir = tempfile::tempdir().unwrap();
    let (image, dsym) = match dylib_with_dsym(dir.path()) {
        Ok(made) => made,
        Err(program) => return skip_without(program),
    };
    let path = "/Users/x/a.dylib.dSYM/Contents/Resources/DWARF/a.dylib".to_owned();
    let all = sections::all(&image).unwrap();
    let text = all.iter().find(|section| section.name == "__text").unwrap();
    let addresses: Vec<u64> = (text.svma..text.svma + text.size).step_by(4).collect();
    let name = |dsym: Vec<u8>| {
        let files = InMemory(HashMap::from([(path.clone(), dsym)]));
        let options = Options { lines: true, files: &files, ..Options::default() };
        name_addresses("/Users/x/a.dylib", ImageBytes::new(image.clone()), &addresses, &options)
    };
    let answer = name(dsym.clone());
    assert!(knows_the_inlined(&answer), "{answer:?}");
    // LC_UUID: command 0x1b, size 24.
    let at = dsym.windows(8).position(|window| window == [0x1b, 0, 0, 0, 24, 0, 0, 0]).unwrap();
    let mut other = dsym;
    other[at + 8] ^= 1;
    let answer = name(other);
    assert!(!knows_the_inlined(&answer));
    let [problem, ..] = answer.problems.as_slice() else { panic!("{:?}", answer.problems) };
    assert!(problem.starts_with(&format!("{path}: it is of another build (UUID ")), "{problem}");
}
