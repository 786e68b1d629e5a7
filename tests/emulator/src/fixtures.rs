//! Compiling and linking the programs of tests/fixtures/macho for macOS, without an SDK.
//!
//! Input: a processor, an optimisation level, what becomes of frame pointers. Output: an
//! executable per program and two libraries, in a directory. Tools: clang-19, ld64.lld-19.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the programs.
pub const PROGRAMS: [&str; 7] =
    ["calls.c", "recursion.c", "tail.c", "stubs.c", "paths.c", "swift.c", "objects.cpp"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    Arm64,
    X86_64,
}

impl Arch {
    pub fn name(self) -> &'static str {
        match self {
            Arch::Arm64 => "arm64",
            Arch::X86_64 => "x86_64",
        }
    }
}

/// What becomes of frame pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FramePointers {
    /// `-fno-omit-frame-pointer`, the default on both processors.
    Kept,
    /// The same, but leaf functions may do without, as they do on arm64 at any rate.
    KeptButInLeaves,
    /// Kept, and return addresses are signed as in Apple's own arm64e code; arm64 only.
    KeptAndSigned,
    /// `-fomit-frame-pointer`: against the platform's ABI on arm64, but clang obeys.
    Omitted,
}

impl FramePointers {
    pub fn all(arch: Arch) -> impl Iterator<Item = FramePointers> {
        let all = [FramePointers::Kept, FramePointers::KeptButInLeaves, FramePointers::KeptAndSigned, FramePointers::Omitted];
        all.into_iter().filter(move |frames| arch == Arch::Arm64 || *frames != FramePointers::KeptAndSigned)
    }

    pub fn name(self) -> &'static str {
        match self {
            FramePointers::Kept => "kept",
            FramePointers::KeptButInLeaves => "leafless",
            FramePointers::KeptAndSigned => "signed",
            FramePointers::Omitted => "omitted",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            FramePointers::Kept => &["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
            FramePointers::KeptButInLeaves => &["-fno-omit-frame-pointer", "-momit-leaf-frame-pointer"],
            FramePointers::KeptAndSigned => {
                &["-fno-omit-frame-pointer", "-march=armv8.3-a", "-mbranch-protection=pac-ret"]
            }
            FramePointers::Omitted => &["-fomit-frame-pointer", "-momit-leaf-frame-pointer"],
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub arch: Arch,
    pub optimisation: &'static str,
    pub frames: FramePointers,
}

pub struct Built {
    pub dylib: PathBuf,
    /// Where threads begin.
    pub pthread: PathBuf,
    /// In the order of [`PROGRAMS`].
    pub programs: Vec<PathBuf>,
}

pub fn build(variant: Variant, into: &Path) -> Built {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/macho");
    std::fs::create_dir_all(into).unwrap();
    let object = |file: &str| {
        let object = into.join(file).with_extension("o");
        let mut clang = Command::new("clang-19");
        clang.arg("-target").arg(format!("{}-apple-macos11", variant.arch.name()));
        clang.arg(format!("-{}", variant.optimisation)).args(variant.frames.flags());
        clang.args(["-fno-stack-protector", "-fno-builtin", "-fswift-async-fp=always"]);
        if file.ends_with(".cpp") {
            // Virtual calls without the runtime type information of a C++ library.
            clang.args(["-fexceptions", "-fno-rtti", "-std=c++17"]);
        }
        clang.args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-command-line-argument", "-c"]);
        run(clang.arg(source.join(file)).arg("-o").arg(&object));
        object
    };
    let linker = || {
        let mut linker = Command::new("ld64.lld-19");
        linker.args(["-arch", variant.arch.name(), "-platform_version", "macos", "11.0", "11.0"]);
        linker.arg("-fixup_chains");
        linker
    };
    let dylib = into.join("libplugin.dylib");
    let name = ["-dylib", "-install_name", "@rpath/libplugin.dylib"];
    run(linker().args(name).arg(object("plugin.c")).arg("-o").arg(&dylib));
    let pthread = into.join("libsystem_pthread.dylib");
    let name = ["-dylib", "-install_name", "/usr/lib/system/libsystem_pthread.dylib"];
    let parts = [object("thread_start.S"), object("pthread.c")];
    run(linker().args(name).args(parts).arg("-o").arg(&pthread));
    let root = object("root.S");
    let program = |name: &&str| {
        let program = into.join(Path::new(name).file_stem().unwrap());
        let mut linker = linker();
        linker.args(["-e", "_run"]).arg(object(name));
        run(linker.arg(&root).arg(&dylib).arg("-o").arg(&program));
        program
    };
    Built { programs: PROGRAMS.iter().map(program).collect(), dylib, pthread }
}

/// What a tool prints.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
