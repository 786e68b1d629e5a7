//! Linked Mach-O images without a dSYM: inlined functions and lines from the object files of the debug map,
//! compared with llvm-symbolizer's output for the dSYM of the same files; and the names of stubs, compared
//! with llvm-objdump's.
//!
//! Needs LLVM's compiler, linker, archiver, dsymutil and symbolizer; prints SKIP without.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use stackprof::binary::{Files, ImageBytes, OpenError};
use stackprof::sources::LocalFiles;
use stackprof::symbol::{ImageNames, Options, Style, name_addresses, sections};

use crate::skip::skip_without;

const A: &str = "
static inline __attribute__((always_inline)) int add(int a, int b) { return a * 3 + b; }
__attribute__((noinline)) static int work(int x) { return add(x, x + 1) ^ 5; }
int table[4] = {1, 2, 3, 4};
extern int puts(const char *); extern int rand(void); extern double sin(double);
int entry(int argc) { puts(\"a\"); return work(argc) + table[argc & 3] + rand() + (int)sin(argc); }
";
/// Functions in both languages, some that are in another file too, and a second one called `work`.
const B: &str = "
extern \"C\" int entry(int);
struct Shape { virtual int area(int) const = 0; };
struct Square : Shape { int area(int x) const override { return x * x; } };
template <class T> __attribute__((noinline)) T twice(T x) { T s = 0; for (T i = 0; i < x; i++) s += i * x; return s; }
static inline __attribute__((always_inline)) int mix(int a) { return twice(a) + (int)twice<long>(a); }
__attribute__((noinline)) static int work(int x) { return mix(x) - 1; }
extern \"C\" int other(int c) { Square s; return work(c) + entry(c) + s.area(c); }
";
/// The time recorded in the map and set on the files.
const LINKED_S: u64 = 1_700_000_000;

/// The real files, with times set by the tests.
struct Dated(BTreeMap<String, u64>);

impl Files for Dated {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        LocalFiles.open(path)
    }
    fn modified_s(&self, path: &str) -> Option<u64> {
        self.0.get(path).copied()
    }
}

/// Runs a program; `None` if it is not installed.
fn run(dir: &Path, program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).current_dir(dir).args(args).output().ok()?;
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

struct Built {
    dir: tempfile::TempDir,
    /// `ab.dylib`, linked from `a.o` and the member `b.o` of `libb.a`.
    image: Vec<u8>,
}

/// Builds for a processor, with absolute or relative paths in the map; or the name of the first missing tool.
fn build(cpu: &str, flags: &[&str], relative: bool) -> Result<Built, &'static str> {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    std::fs::write(at.join("a.c"), A).unwrap();
    std::fs::write(at.join("b.cpp"), B).unwrap();
    let target = format!("{cpu}-apple-macos11");
    let compile = |source, object| {
        let args =
            [&["-target", &target, "-O2", "-g", "-fno-rtti", "-c", source, "-o", object], flags].concat();
        run(at, "clang-19", &args).ok_or("clang-19")
    };
    compile("a.c", "a.o")?;
    compile("b.cpp", "b.o")?;
    // Archives keep the time of their members (U: unchanged).
    run(at, "touch", &["-d", &format!("@{LINKED_S}"), "b.o"]).ok_or("touch")?;
    run(at, "llvm-ar-19", &["rcsU", "libb.a", "b.o"]).ok_or("llvm-ar-19")?;
    let link =
        ["-arch", cpu, "-platform_version", "macos", "11", "11", "-dylib", "-undefined", "dynamic_lookup"];
    let link = [&link[..], &["-u", "_other", "-o", "ab.dylib", "a.o", "libb.a"]].concat();
    let prefix = format!("{}/", at.canonicalize().unwrap().display());
    let prefix = ["-oso_prefix", &prefix];
    let link = [&link[..], if relative { &prefix[..] } else { &[] }].concat();
    run(at, "ld64.lld-19", &link).ok_or("ld64.lld-19")?;
    let image = std::fs::read(at.join("ab.dylib")).unwrap();
    Ok(Built { dir, image })
}

/// Writes a time into the map: LLVM's linker leaves 0, Apple's does not.
fn date(image: &mut [u8], modified_s: u64) {
    const LC_SYMTAB: u32 = 2;
    let word = |image: &[u8], at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let mut at = 32;
    while word(image, at) != LC_SYMTAB {
        at += word(image, at + 4) as usize;
    }
    let (symbols, count) = (word(image, at + 8) as usize, word(image, at + 12) as usize);
    let mut dated = 0;
    for entry in image[symbols..symbols + count * 16].as_chunks_mut::<16>().0 {
        // N_OSO
        if entry[4] == 0x66 {
            entry[8..].copy_from_slice(&modified_s.to_le_bytes());
            dated += 1;
        }
    }
    assert_eq!(dated, 2);
}

fn text_addresses(image: &[u8]) -> Vec<u64> {
    let all = sections::all(image).unwrap();
    let text = all.iter().find(|section| section.name == "__text").unwrap();
    (text.svma..text.svma + text.size).step_by(4).collect()
}

fn name(built: &Built, image: &[u8], files: &dyn Files) -> ImageNames {
    let path = built.dir.path().join("ab.dylib");
    let options = Options { lines: true, style: Style::Mangled, files, ..Options::default() };
    name_addresses(path.to_str().unwrap(), ImageBytes::new(image.to_vec()), &text_addresses(image), &options)
}

/// For each address its functions, innermost first, with the file's name and the line.
fn chains(answer: &ImageNames) -> Vec<Vec<(String, String)>> {
    let of = |function: &stackprof::symbol::dwarf::LineInfo| {
        let file = function.file.as_deref().unwrap_or("??").rsplit('/').next().unwrap().to_owned();
        (function.name.as_deref().unwrap_or("??").to_owned(), format!("{file}:{}", function.line))
    };
    answer.names.iter().map(|chain| chain.as_ref().unwrap().iter().rev().map(of).collect()).collect()
}

/// llvm-symbolizer's output for the same addresses, from the dSYM.
fn symbolizer(built: &Built) -> Option<Vec<Vec<(String, String)>>> {
    let mut command = Command::new("llvm-symbolizer-19");
    command.args(["--no-demangle", "--inlines", "--functions=linkage", "--obj=ab.dylib"]);
    command.current_dir(built.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let lines: String =
        text_addresses(&built.image).iter().map(|address| format!("{address:#x}\n")).collect();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let block = |block: &str| {
        let lines: Vec<&str> = block.lines().collect();
        let of = |pair: &[&str]| {
            // Path, line and column.
            let place = pair[1].rsplit('/').next().unwrap().rsplit_once(':').unwrap().0.to_owned();
            (pair[0].to_owned(), place)
        };
        lines.chunks(2).map(of).collect()
    };
    Some(output.trim_end().split("\n\n").map(block).collect())
}

fn compare(cpu: &str, flags: &[&str], relative: bool) {
    let mut built = match build(cpu, flags, relative) {
        Ok(built) => built,
        Err(tool) => return skip_without(tool),
    };
    let prefix = format!("{}/", built.dir.path().canonicalize().unwrap().display());
    let dsymutil = ["ab.dylib", "--oso-prepend-path", &prefix];
    let dsymutil = if relative { &dsymutil[..] } else { &dsymutil[..1] };
    if run(built.dir.path(), "dsymutil-19", dsymutil).is_none() {
        return skip_without("dsymutil-19");
    }
    let Some(expected) = symbolizer(&built) else { return skip_without("llvm-symbolizer-19") };
    std::fs::remove_dir_all(built.dir.path().join("ab.dylib.dSYM")).unwrap();
    date(&mut built.image, LINKED_S);
    let a = built.dir.path().canonicalize().unwrap().join("a.o").to_str().unwrap().to_owned();
    let answer = name(&built, &built.image, &Dated(BTreeMap::from([(a, LINKED_S)])));
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
    let found = chains(&answer);
    assert!(found.iter().filter(|chain| chain.len() > 1).count() > 5, "{found:?}");
    let mut padding = 0;
    for ((address, ours), llvm) in text_addresses(&built.image).iter().zip(&found).zip(&expected) {
        // dsymutil ends the lines of a function before the padding after it.
        let is_padding = llvm.len() == 1 && llvm[0].1 == "??:0";
        padding += usize::from(is_padding);
        assert!(
            ours == llvm || is_padding && ours[0].0 == llvm[0].0,
            "{cpu} {flags:?} {address:#x}: {ours:?} {llvm:?}"
        );
    }
    assert_eq!(found.len(), expected.len());
    assert!(padding * 4 < found.len(), "{padding} of {}", found.len());
}

#[test]
fn object_files_have_the_same_information_as_the_dsym() {
    for cpu in ["arm64", "x86_64"] {
        for flags in [["-gdwarf-4"], ["-gdwarf-5"]] {
            compare(cpu, &flags, cpu == "arm64" && flags == ["-gdwarf-5"]);
        }
    }
}

#[test]
fn changed_object_files_are_refused_with_the_reason() {
    let mut built = match build("arm64", &[], false) {
        Ok(built) => built,
        Err(tool) => {
            return skip_without(tool);
        }
    };
    let inlined = |answer: &ImageNames, name: &str| {
        let functions = answer.names.iter().flatten().flatten();
        functions.into_iter().any(|function| function.name.as_deref() == Some(name))
    };
    let place = built.dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    let (a, b) = (format!("{place}/a.o"), format!("{place}/libb.a(b.o)"));
    let files = |modified_s| Dated(BTreeMap::from([(a.clone(), modified_s)]));
    let changed = "it was changed after the image was linked; link it again";

    // Without a time in the map, the files are not checked.
    let undated = name(&built, &built.image, &files(5));
    assert!(undated.problems.is_empty(), "{:?}", undated.problems);
    assert!(inlined(&undated, "add") && inlined(&undated, "_ZL3mixi"));

    date(&mut built.image, LINKED_S);
    let later = name(&built, &built.image, &files(LINKED_S + 1));
    assert_eq!(later.problems, [format!("{a}: {changed}")]);
    assert!(!inlined(&later, "add") && inlined(&later, "_ZL3mixi"));
    // Symbols need no debug information.
    assert!(inlined(&later, "work"));
    let unknown = name(&built, &built.image, &Dated(BTreeMap::new()));
    assert_eq!(unknown.problems, [format!("{a}: when it was changed cannot be told")]);

    // For an archive, the time of the member counts.
    date(&mut built.image, LINKED_S + 1);
    let member = name(&built, &built.image, &files(LINKED_S + 1));
    assert_eq!(member.problems, [format!("{b}: {changed}")]);
    assert!(inlined(&member, "add") && !inlined(&member, "_ZL3mixi"));

    date(&mut built.image, LINKED_S);
    std::fs::copy(built.dir.path().join("a.c"), built.dir.path().join("a.o")).unwrap();
    std::fs::remove_file(built.dir.path().join("libb.a")).unwrap();
    let gone = name(&built, &built.image, &files(LINKED_S));
    let expected = [format!("{a}: not a Mach-O object file"), format!("{b}: no such file or directory")];
    assert_eq!(gone.problems, expected);
}

#[test]
fn stubs_of_mach_o_are_named_after_their_targets() {
    for cpu in ["arm64", "x86_64"] {
        let built = match build(cpu, &[], false) {
            Ok(built) => built,
            Err(tool) => {
                return skip_without(tool);
            }
        };
        let args = ["--macho", "--indirect-symbols", "ab.dylib"];
        let Some(listed) = run(built.dir.path(), "llvm-objdump-19", &args) else {
            return skip_without("llvm-objdump-19");
        };
        // `Indirect symbols for (__TEXT,__stubs) 3 entries`, then address, index and name.
        let stubs = listed.split("Indirect symbols for ").find(|part| part.starts_with("(__TEXT,__stubs)"));
        let expected: BTreeMap<u64, String> = stubs
            .unwrap()
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let address = u64::from_str_radix(fields.first()?.strip_prefix("0x")?, 16).ok()?;
                Some((address, format!("{}@plt", fields.last()?.strip_prefix('_')?)))
            })
            .collect();
        let names: BTreeSet<&str> = expected.values().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(["puts@plt", "rand@plt", "sin@plt"]), "{listed}");

        let all = sections::all(&built.image).unwrap();
        let section = all.iter().find(|section| section.name == "__stubs").unwrap();
        let addresses: Vec<u64> = (section.svma..section.svma + section.size).collect();
        let bytes = ImageBytes::new(built.image.clone());
        let answer = name_addresses("/ab.dylib", bytes, &addresses, &Options::default());
        for (address, found) in addresses.iter().zip(&answer.names) {
            let expected = expected.range(..=address).next_back().unwrap().1;
            assert_eq!(found.as_ref().unwrap()[0].name.as_deref(), Some(expected.as_str()), "{address:#x}");
        }
    }
}
