//! Programs of the exactness harness, compiled from tests/fixtures/exact into the build directory. Programs
//! of missing compilers are skipped with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stackprof::arch::Arch;

use super::{Program, has};

/// Build and run options of a program. Defaults: all symbols bound at startup, stepped from its entry point,
/// in the long form only.
#[derive(Clone, Copy)]
struct Variant {
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    arguments: &'static [&'static str],
    lazy: bool,
    from_linker: bool,
    short: bool,
    exact_min: f64,
    in_pieces: bool,
}

/// Least share of exact boundaries in each program, by `auto` and `cfi`. The least exact, of
/// contexts, longjmps and exceptions only, are too short for more.
pub(crate) const EXACT_MIN: f64 = 0.995;

const fn variant(source: &'static str, compiler: &'static str, flags: &'static [&'static str]) -> Variant {
    Variant {
        source,
        compiler,
        flags,
        arguments: &[],
        lazy: false,
        from_linker: false,
        short: false,
        exact_min: EXACT_MIN,
        in_pieces: false,
    }
}

impl Variant {
    /// Bind symbols at their first call.
    const fn lazy(self) -> Variant {
        Variant { lazy: true, ..self }
    }

    /// Step from the dynamic linker's first instruction.
    const fn stepped_from_linker(self) -> Variant {
        Variant { from_linker: true, ..self }
    }

    /// Also in the short form.
    const fn short(self) -> Variant {
        Variant { short: true, ..self }
    }

    /// Sets the least exact share: without unwind information it is lower.
    const fn exact(self, exact_min: f64) -> Variant {
        Variant { exact_min, ..self }
    }

    /// Samples in pieces; sets the least exact share.
    const fn in_pieces(self, exact_min: f64) -> Variant {
        Variant { in_pieces: true, exact_min, ..self }
    }

    /// Its line in the report.
    fn group(&self) -> Option<&'static str> {
        match self.source {
            _ if self.in_pieces => Some("all deep frames verified in pieces"),
            "runs_on.c" => Some("all functions that run into the next one"),
            _ => None,
        }
    }

    /// Adds arguments.
    const fn with(self, arguments: &'static [&'static str]) -> Variant {
        Variant { arguments, ..self }
    }

    fn name(&self) -> String {
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        let arguments = self.arguments.first().map(|first| format!(" ({first})")).unwrap_or_default();
        let pieces = if self.in_pieces { ", in pieces" } else { "" };
        if self.compiler == INSTALLED {
            return format!("{}{arguments}{pieces}", self.source);
        }
        let binding = if self.lazy { "lazy" } else { "now" };
        let from = if self.from_linker { ", from ld.so" } else { "" };
        format!("{}{arguments} {}{flags} {binding}{from}{pieces}", self.source, self.compiler)
    }
}

/// For i386.
const M32: &str = "-m32";
/// Directory of kernel headers that no Debian package puts where `-m32` searches, except packages that
/// conflict with cross compilers.
const M32_INCLUDE: [&str; 2] = ["-idirafter", "/usr/include/x86_64-linux-gnu"];

const NO_ASYNC: &str = "-fno-asynchronous-unwind-tables";
const NO_TABLES: &str = "-fno-unwind-tables";
const NO_FP: &str = "-fomit-frame-pointer";
const FP: &str = "-fno-omit-frame-pointer";
const LEAF_FP: &str = "-mno-omit-leaf-frame-pointer";
const RUST_FP: &str = "-Cforce-frame-pointers=yes";

/// Least exact shares without unwind information: with and without symbols; JIT code with and without frame
/// pointers.
const BARE: f64 = 0.9;
const STRIPPED: f64 = 0.0;
const MADE: f64 = 0.9;
const MADE_WITHOUT_FP: f64 = 0.0;

/// Flags that place the next function directly after a call that does not return, without any other hint.
const NO_PADDING: [&str; 2] = ["-falign-functions=1", "-fno-toplevel-reorder"];
const RUNS_ON: f64 = 0.9;
const RUNS_ON_BARE: f64 = 0.5;

/// In pieces: stacks are incomplete until a list exists, and if outer frames change each time.
const PIECES: f64 = 0.5;

/// On i386, unwind rows of glibc's assembly are wrong in parts of `memcpy`; and while libgcc installs a
/// landing pad, some frame pointers, which more functions use there, cannot be distinguished from its
/// replacements. Incomplete there, and never wrong.
const NARROW: f64 = 0.985;

/// Marker in place of a compiler: the source is the path of an installed program.
const INSTALLED: &str = "";
/// Most boundaries of an installed program, in the long and the short form.
const INSTALLED_BOUNDARIES_MAX: u64 = 250_000;
const INSTALLED_BOUNDARIES_SHORT: u64 = 100_000;

const PERL: &str = r"my %n; for my $i (1..40) { my $w = sprintf('%05d', $i * 37 % 997); $n{$w} .= reverse $w; }
    my $t = join ',', sort { $n{$a} cmp $n{$b} } keys %n; $t =~ s/(\d)(\d)/$2$1/g; print $t";
const PYTHON: &str =
    "import json; print(json.dumps(sorted([{'n': i, 't': str(i * 37)} for i in range(99)], key=str)))";
const CARGO_TOML: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

const VARIANTS: [Variant; 112] = [
    variant("plain.c", "gcc", &["-O2"]).stepped_from_linker(),
    variant("plain.c", "gcc", &["-O2"]).lazy().stepped_from_linker().short(),
    variant("plain.c", "gcc", &["-O2", FP]),
    variant("plain.c", "gcc", &["-O2", FP]).lazy(),
    variant("plain.c", "gcc", &["-O0"]),
    variant("plain.c", "gcc", &["-O0"]).lazy(),
    variant("plain.c", "gcc", &["-O2", "-static"]).short(),
    variant("plain.c", "clang-19", &["-O2"]),
    variant("plain.c", "clang-19", &["-O2"]).lazy(),
    variant("plain.c", "clang-19", &["-O2", FP, LEAF_FP]),
    variant("signals.c", "gcc", &["-O2"]),
    variant("signals.c", "gcc", &["-O2"]).lazy(),
    variant("signals.c", "gcc", &["-O2", "-static"]).short(),
    variant("signals.c", "gcc", &["-O0"]).lazy(),
    variant("signals.c", "gcc", &["-O2"]).with(&["alt"]),
    variant("signals.c", "gcc", &["-O2"]).with(&["alt"]).lazy(),
    variant("signals.c", "gcc", &["-O2", "-static"]).with(&["alt"]).short(),
    variant("signals.c", "clang-19", &["-O0"]).with(&["alt"]).lazy(),
    variant("contexts.c", "gcc", &["-O2"]),
    variant("contexts.c", "gcc", &["-O2", "-static"]).short(),
    variant("contexts.c", "gcc", &["-O2", FP]).lazy(),
    variant("contexts.c", "clang-19", &["-O0"]).lazy(),
    variant("fibers.c", "gcc", &["-O2"]).short(),
    variant("fibers.c", "gcc", &["-O2", FP]).lazy(),
    variant("threads.c", "gcc", &["-O2", "-pthread"]),
    variant("threads.c", "gcc", &["-O2", "-pthread"]).lazy(),
    variant("threads.c", "gcc", &["-O2", "-pthread", "-static", "-DSTATIC"]).short(),
    variant("throws.cpp", "g++", &["-O2"]),
    variant("throws.cpp", "g++", &["-O2"]).lazy(),
    variant("throws.cpp", "g++", &["-O2", "-static-libstdc++", "-static-libgcc"]).short(),
    variant("throws.cpp", "g++", &["-O2", FP]),
    variant("throws.cpp", "g++", &["-O0"]).lazy(),
    variant("throws.cpp", "clang++-19", &["-O2"]).lazy(),
    variant("mixed.rs", "rustc", &["-O"]).short(),
    variant("mixed.rs", "rustc", &["-O"]).lazy(),
    variant("mixed.rs", "rustc", &["-O", RUST_FP]),
    variant("mixed.rs", "rustc", &["-O", "-Cpanic=unwind", "-Ctarget-cpu=native"]),
    variant("mixed.rs", "rustc", &[]),
    variant("bare.c", "gcc", &["-O2", NO_ASYNC, NO_TABLES, NO_FP]).exact(BARE),
    variant("bare.c", "gcc", &["-O2", NO_ASYNC, NO_TABLES, FP]).exact(BARE),
    variant("bare.c", "gcc", &["-Os", NO_ASYNC, NO_TABLES, NO_FP]).exact(BARE).short(),
    variant("bare.c", "gcc", &["-O0", NO_ASYNC, NO_TABLES]).exact(BARE),
    variant("bare.c", "gcc", &["-Os", NO_ASYNC, NO_TABLES, NO_FP, "-s"]).exact(STRIPPED).short(),
    variant("bare.c", "gcc", &["-O2", NO_ASYNC, NO_TABLES, FP, "-s"]).exact(STRIPPED),
    variant("bare.c", "gcc", &["-Os", NO_ASYNC, NO_TABLES, FP, "-s"]).exact(STRIPPED),
    variant("bare.c", "clang-19", &["-O3", NO_ASYNC, NO_TABLES, NO_FP]).exact(BARE),
    variant("bare.c", "clang-19", &["-O3", NO_ASYNC, NO_TABLES, FP]).exact(BARE),
    variant("bare.c", "clang-19", &["-Os", NO_ASYNC, NO_TABLES, NO_FP, "-s"]).exact(STRIPPED),
    variant("jit.c", "gcc", &["-O2"]).with(&["fp"]).exact(MADE).short(),
    variant("jit.c", "gcc", &["-O2"]).exact(MADE_WITHOUT_FP).short(),
    variant("plain.c", "gcc", &[M32, "-O2"]).exact(NARROW).stepped_from_linker(),
    variant("plain.c", "gcc", &[M32, "-O2"]).exact(NARROW).lazy().stepped_from_linker(),
    variant("plain.c", "gcc", &[M32, "-O2", FP]).exact(NARROW).short(),
    variant("plain.c", "gcc", &[M32, "-O2", FP]).exact(NARROW).lazy(),
    variant("plain.c", "gcc", &[M32, "-O0"]).exact(NARROW).lazy(),
    variant("plain.c", "gcc", &[M32, "-Os"]).exact(NARROW),
    variant("plain.c", "gcc", &[M32, "-O2", "-static"]).exact(NARROW).short(),
    variant("plain.c", "gcc", &[M32, "-O2", "-fno-pie", "-no-pie"]).exact(NARROW).lazy(),
    variant("plain.c", "clang-19", &[M32, "-O2"]).exact(NARROW).short(),
    variant("plain.c", "clang-19", &[M32, "-O2", FP, LEAF_FP]).exact(NARROW).lazy(),
    variant("plain.c", "clang-19", &[M32, "-O0"]).exact(NARROW),
    variant("plain.c", "clang-19", &[M32, "-Os"]).exact(NARROW),
    variant("signals.c", "gcc", &[M32, "-O2"]).exact(NARROW).lazy().short(),
    variant("signals.c", "gcc", &[M32, "-O2", "-static"]).exact(NARROW),
    variant("signals.c", "gcc", &[M32, "-O0"]).exact(NARROW),
    variant("signals.c", "gcc", &[M32, "-O2"]).exact(NARROW).with(&["alt"]).short(),
    variant("signals.c", "clang-19", &[M32, "-O0"]).exact(NARROW).with(&["alt"]).lazy(),
    variant("contexts.c", "gcc", &[M32, "-O2"]).exact(NARROW).short(),
    variant("contexts.c", "gcc", &[M32, "-O2", "-static"]).exact(NARROW),
    variant("contexts.c", "clang-19", &[M32, "-O0"]).exact(NARROW).lazy(),
    variant("threads.c", "gcc", &[M32, "-O2", "-pthread"]).exact(NARROW).lazy(),
    variant("threads.c", "gcc", &[M32, "-O2", "-pthread", "-static", "-DSTATIC"]).exact(NARROW).short(),
    variant("threads.c", "clang-19", &[M32, "-Os", "-pthread"]).exact(NARROW),
    variant("throws.cpp", "g++", &[M32, "-O2"]).exact(NARROW).lazy(),
    variant("throws.cpp", "g++", &[M32, "-O2", FP]).exact(NARROW).short(),
    variant("throws.cpp", "g++", &[M32, "-O0"]).exact(NARROW),
    variant("throws.cpp", "g++", &[M32, "-Os"]).exact(NARROW),
    variant("throws.cpp", "clang++-19", &[M32, "-O2"]).exact(NARROW).lazy(),
    variant("bare.c", "gcc", &[M32, "-O2", NO_ASYNC, NO_TABLES, NO_FP]).exact(BARE),
    variant("bare.c", "gcc", &[M32, "-O2", NO_ASYNC, NO_TABLES, FP]).exact(BARE).short(),
    variant("bare.c", "gcc", &[M32, "-Os", NO_ASYNC, NO_TABLES, NO_FP, "-s"]).exact(STRIPPED),
    variant("bare.c", "clang-19", &[M32, "-O3", NO_ASYNC, NO_TABLES, NO_FP]).exact(BARE),
    variant("/bin/ls", INSTALLED, &[]).with(&["-lR", "/usr/include/linux/netfilter"]).short(),
    variant("/usr/bin/sort", INSTALLED, &[]).with(&[CARGO_TOML]).short(),
    variant("/usr/bin/perl", INSTALLED, &[]).with(&["-e", PERL]).short(),
    variant("/usr/bin/xz", INSTALLED, &[]).with(&["-c", CARGO_TOML]),
    variant("/usr/bin/python3", INSTALLED, &[]).with(&["-S", "-c", PYTHON]),
    variant("deep.c", "gcc", &["-O2"]).in_pieces(PIECES).short(),
    variant("deep.c", "gcc", &["-O2", FP]).lazy().in_pieces(PIECES),
    variant("deep.c", "gcc", &["-O0"]).in_pieces(PIECES),
    variant("deep.c", "gcc", &["-Os", "-static"]).in_pieces(PIECES),
    variant("deep.c", "clang-19", &["-O2"]).in_pieces(PIECES),
    variant("deep.c", "gcc", &["-O2", NO_ASYNC, NO_TABLES, NO_FP]).in_pieces(STRIPPED),
    variant("plain.c", "gcc", &["-O2"]).lazy().in_pieces(PIECES),
    variant("signals.c", "gcc", &["-O2"]).with(&["alt"]).in_pieces(PIECES),
    variant("contexts.c", "gcc", &["-O2"]).in_pieces(PIECES),
    variant("fibers.c", "gcc", &["-O2"]).in_pieces(PIECES),
    variant("threads.c", "gcc", &["-O2", "-pthread"]).in_pieces(PIECES),
    variant("throws.cpp", "g++", &["-O2"]).in_pieces(PIECES).short(),
    variant("throws.cpp", "clang++-19", &["-O2"]).in_pieces(PIECES),
    variant("mixed.rs", "rustc", &["-O"]).in_pieces(PIECES),
    variant("/usr/bin/perl", INSTALLED, &[]).with(&["-e", PERL]).in_pieces(PIECES),
    variant("/usr/bin/python3", INSTALLED, &[]).with(&["-S", "-c", PYTHON]).in_pieces(PIECES),
    variant("runs_on.c", "gcc", &["-O2", NO_PADDING[0], NO_PADDING[1]]).exact(RUNS_ON).short(),
    variant("runs_on.c", "gcc", &["-O0", NO_PADDING[0], NO_PADDING[1]]).lazy().exact(RUNS_ON),
    variant("runs_on.c", "clang-19", &["-O2"]).exact(RUNS_ON),
    variant("runs_on.c", "gcc", &["-O2", NO_PADDING[0], NO_PADDING[1], NO_ASYNC, NO_TABLES])
        .exact(RUNS_ON_BARE)
        .short(),
    variant("runs_on.c", "gcc", &["-Os", NO_PADDING[0], NO_PADDING[1], NO_ASYNC, NO_TABLES])
        .exact(RUNS_ON_BARE),
    variant("runs_on.c", "gcc", &["-O2", NO_PADDING[0], NO_PADDING[1], NO_ASYNC, NO_TABLES, FP])
        .exact(RUNS_ON_BARE),
    variant("runs_on.c", "gcc", &["-O2", NO_PADDING[0], NO_ASYNC, NO_TABLES, "-s"]).exact(STRIPPED),
    variant("runs_on.c", "gcc", &["-O2", NO_PADDING[0], "-static", "-DSTATIC", NO_ASYNC, NO_TABLES])
        .exact(STRIPPED),
    variant("runs_on.c", "clang-19", &["-O2", NO_ASYNC, NO_TABLES, NO_FP]).exact(STRIPPED),
];

/// Compiles the programs of the long or the short form with names that contain one of the filters, or all
/// without filters; also returns skipped ones and why.
pub(crate) fn build(short: bool, filters: &[String]) -> (Vec<Program>, Vec<String>) {
    let (mut programs, mut left_out) = (Vec::new(), Vec::new());
    for variant in VARIANTS.iter().filter(|variant| variant.short || !short) {
        let name = variant.name();
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        match compile(variant, &name) {
            Ok(path) => {
                let signals = variant.source == "signals.c";
                programs.push(Program {
                    name,
                    path,
                    arch: if variant.flags.contains(&M32) { Arch::X86 } else { Arch::X86_64 },
                    arguments: variant.arguments.iter().map(|argument| (*argument).to_owned()).collect(),
                    bind_now: !variant.lazy,
                    from_entry: !variant.from_linker,
                    signal_every: signals.then_some(211),
                    exact_min: variant.exact_min,
                    in_pieces: variant.in_pieces,
                    group: variant.group(),
                    boundaries_max: match variant.compiler {
                        INSTALLED if short => INSTALLED_BOUNDARIES_SHORT,
                        INSTALLED => INSTALLED_BOUNDARIES_MAX,
                        _ => u64::MAX,
                    },
                });
            }
            Err(why) => left_out.push(format!("{name}: {why}")),
        }
    }
    (programs, left_out)
}

fn compile(variant: &Variant, name: &str) -> Result<PathBuf, String> {
    if variant.compiler == INSTALLED {
        let path = PathBuf::from(variant.source);
        return if path.exists() { Ok(path) } else { Err("not installed".to_owned()) };
    }
    if !has(variant.compiler) {
        return Err(format!("{} is not installed", variant.compiler));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exact").join(variant.source);
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exact");
    fs::create_dir_all(&into).map_err(|error| error.to_string())?;
    let path = into.join(name.replace([' ', '=', '/', ',', '(', ')'], "_"));
    // Renamed into place: another run may be executing the old one.
    let fresh =
        into.join(format!("{}.{}", path.file_name().unwrap_or_default().display(), std::process::id()));
    let mut command = Command::new(variant.compiler);
    if variant.compiler == "rustc" {
        command.args(["--edition", "2021"]);
        if variant.lazy {
            command.args(["-Zunstable-options", "-Crelro-level=partial"]).env("RUSTC_BOOTSTRAP", "1");
        }
    } else if variant.lazy {
        command.arg("-Wl,-z,lazy");
    }
    if variant.flags.contains(&M32) {
        command.args(M32_INCLUDE);
    }
    let output = command.args(variant.flags).arg("-o").arg(&fresh).arg(source).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(&fresh, &path).map_err(|error| error.to_string())?;
    Ok(path)
}
