//! The programs of the exactness harness, compiled from tests/fixtures/exact into the
//! build directory. A compiler that is not installed leaves its programs out, said so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Program, has};

/// How one program is built and run.
struct Variant {
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    bind_now: bool,
    /// Also in the short form.
    short: bool,
}

const fn variant(
    source: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    bind_now: bool,
    short: bool,
) -> Variant {
    Variant { source, compiler, flags, bind_now, short }
}

const FP: &str = "-fno-omit-frame-pointer";
const NOW: bool = true;
const LAZY: bool = false;

const VARIANTS: [Variant; 29] = [
    variant("plain.c", "gcc", &["-O2"], NOW, false),
    variant("plain.c", "gcc", &["-O2"], LAZY, true),
    variant("plain.c", "gcc", &["-O2", FP], NOW, false),
    variant("plain.c", "gcc", &["-O2", FP], LAZY, false),
    variant("plain.c", "gcc", &["-O0"], NOW, false),
    variant("plain.c", "gcc", &["-O0"], LAZY, false),
    variant("plain.c", "gcc", &["-O2", "-static"], NOW, true),
    variant("plain.c", "clang-19", &["-O2"], NOW, false),
    variant("plain.c", "clang-19", &["-O2"], LAZY, false),
    variant("signals.c", "gcc", &["-O2"], NOW, false),
    variant("signals.c", "gcc", &["-O2"], LAZY, false),
    variant("signals.c", "gcc", &["-O2", "-static"], NOW, true),
    variant("signals.c", "gcc", &["-O0"], LAZY, false),
    variant("contexts.c", "gcc", &["-O2"], NOW, false),
    variant("contexts.c", "gcc", &["-O2", "-static"], NOW, true),
    variant("contexts.c", "gcc", &["-O2", FP], LAZY, false),
    variant("threads.c", "gcc", &["-O2", "-pthread"], NOW, false),
    variant("threads.c", "gcc", &["-O2", "-pthread"], LAZY, false),
    variant("threads.c", "gcc", &["-O2", "-pthread", "-static", "-DSTATIC"], NOW, true),
    variant("throws.cpp", "g++", &["-O2"], NOW, false),
    variant("throws.cpp", "g++", &["-O2"], LAZY, false),
    variant("throws.cpp", "g++", &["-O2", "-static-libstdc++", "-static-libgcc"], NOW, true),
    variant("throws.cpp", "g++", &["-O2", FP], NOW, false),
    variant("throws.cpp", "g++", &["-O0"], LAZY, false),
    variant("throws.cpp", "clang++-19", &["-O2"], LAZY, false),
    variant("mixed.rs", "rustc", &["-O"], NOW, false),
    variant("mixed.rs", "rustc", &["-O"], LAZY, true),
    variant("mixed.rs", "rustc", &["-O", "-Cforce-frame-pointers=yes"], NOW, false),
    variant("mixed.rs", "rustc", &[], NOW, false),
];

/// Compiles the programs of the long or the short form; also what was left out and why.
pub(crate) fn build(short: bool) -> (Vec<Program>, Vec<String>) {
    let (mut programs, mut left_out) = (Vec::new(), Vec::new());
    for variant in VARIANTS.iter().filter(|variant| variant.short || !short) {
        let binding = if variant.bind_now { "now" } else { "lazy" };
        let flags = variant.flags.iter().map(|flag| format!(" {flag}")).collect::<String>();
        let name = format!("{} {}{flags} {binding}", variant.source, variant.compiler);
        match compile(variant, &name) {
            Ok(path) => {
                let signals = variant.source == "signals.c";
                programs.push(Program {
                    name,
                    path,
                    arguments: Vec::new(),
                    bind_now: variant.bind_now,
                    signal_every: signals.then_some(211),
                    compare_every: if short { 7 } else { 3 },
                });
            }
            Err(why) => left_out.push(format!("{name}: {why}")),
        }
    }
    (programs, left_out)
}

fn compile(variant: &Variant, name: &str) -> Result<PathBuf, String> {
    if !has(variant.compiler) {
        return Err(format!("{} is not installed", variant.compiler));
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/exact").join(variant.source);
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exact");
    fs::create_dir_all(&into).map_err(|error| error.to_string())?;
    let path = into.join(name.replace([' ', '=', '/'], "_"));
    // Renamed into place: another run may be executing the old one.
    let fresh =
        into.join(format!("{}.{}", path.file_name().unwrap_or_default().display(), std::process::id()));
    let mut command = Command::new(variant.compiler);
    if variant.compiler == "rustc" {
        command.args(["--edition", "2021"]);
        if !variant.bind_now {
            command.args(["-Zunstable-options", "-Crelro-level=partial"]).env("RUSTC_BOOTSTRAP", "1");
        }
    } else if !variant.bind_now {
        command.arg("-Wl,-z,lazy");
    }
    let output = command.args(variant.flags).arg("-o").arg(&fresh).arg(source).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    fs::rename(&fresh, &path).map_err(|error| error.to_string())?;
    Ok(path)
}
