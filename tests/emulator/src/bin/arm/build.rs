//! Compiling and linking the programs of tests/fixtures/arm as firmware: gcc or clang, A32 or T32, with
//! and without unwind information. Input: a way of building; output: ELF files. Tools: the packages
//! gcc-arm-none-eabi, libnewlib-arm-none-eabi, libstdc++-arm-none-eabi-newlib, clang-19.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the programs.
pub const PROGRAMS: [&str; 15] = [
    "recursion.c", "leaf.c", "allocas.c", "vla.c", "jumps.c", "pointers.c", "tails.c", "floats.c", "varargs.c",
    "frames.c", "noreturn.c", "switches.c", "pressure.c", "objects.cpp", "objects-thrown.cpp",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compiler {
    Gcc,
    Clang,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    A32,
    T32,
}

/// What there is to unwind by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    /// The tables of the exception handling ABI.
    Exidx,
    /// `.debug_frame`.
    Debug,
    /// Symbols alone.
    Symbols,
    /// Nothing.
    Stripped,
    /// `-mapcs-frame`, and symbols.
    Apcs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    pub compiler: Compiler,
    pub isa: Isa,
    pub with: With,
    pub optimisation: &'static str,
}

impl Variant {
    pub fn all() -> Vec<Variant> {
        let mut all = Vec::new();
        for compiler in [Compiler::Gcc, Compiler::Clang] {
            for isa in [Isa::A32, Isa::T32] {
                for with in [With::Exidx, With::Debug, With::Symbols, With::Stripped, With::Apcs] {
                    // gcc has APCS frames for A32 only, clang has no such option.
                    if with == With::Apcs && (compiler, isa) != (Compiler::Gcc, Isa::A32) {
                        continue;
                    }
                    for optimisation in ["O0", "O2", "Os"] {
                        all.push(Variant { compiler, isa, with, optimisation });
                    }
                }
            }
        }
        all
    }

    /// The build without its optimisation.
    pub fn name(self) -> String {
        format!("{:?} {:?} {:?}", self.compiler, self.isa, self.with).to_lowercase()
    }
}

/// A program; its own functions by address, without the C library's.
pub struct Built {
    pub path: PathBuf,
    /// With the symbols, for names in reports.
    pub symbols: PathBuf,
    pub own: Vec<String>,
}

/// Builds a program; `None` if this variant has none.
pub fn build(variant: Variant, program: &str, into: &Path) -> Option<Built> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/arm");
    let file = program.replace("-thrown", "");
    // The one that is built with exceptions is only so where there are tables.
    if program != file && variant.with != With::Exidx {
        return None;
    }
    let directory = into.join(variant.name().replace(' ', "-")).join(variant.optimisation);
    std::fs::create_dir_all(&directory).unwrap();
    let at = |suffix: &str| directory.join(format!("{program}.{suffix}"));
    let is_cxx = file.ends_with(".cpp");
    let machine: &[&str] = match variant.isa {
        Isa::A32 => &["-mcpu=cortex-a9", "-mfpu=vfpv3-d16", "-mfloat-abi=hard", "-marm"],
        Isa::T32 => &["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-mthumb"],
    };
    let with: &[&str] = match variant.with {
        With::Exidx if program != file => &["-fexceptions", "-funwind-tables"],
        With::Exidx => &["-funwind-tables", "-fno-exceptions"],
        With::Debug => &["-g", "-fno-exceptions", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"],
        With::Symbols | With::Stripped => &["-fno-exceptions", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"],
        With::Apcs => &["-mapcs-frame", "-fno-exceptions", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables"],
    };
    let gcc = if is_cxx { "arm-none-eabi-g++" } else { "arm-none-eabi-gcc" };
    let mut compiler = match variant.compiler {
        Compiler::Gcc => Command::new(gcc),
        Compiler::Clang => {
            let mut clang = Command::new(if is_cxx { "clang++-19" } else { "clang-19" });
            let target = if variant.isa == Isa::A32 { "armv7a-none-eabihf" } else { "thumbv7em-none-eabihf" };
            clang.arg("-target").arg(target).args(["-isystem", "/usr/lib/arm-none-eabi/include"]);
            clang
        }
    };
    compiler.args(machine).arg(format!("-{}", variant.optimisation)).args(with);
    compiler.args(["-fno-stack-protector", "-c"]);
    if is_cxx {
        compiler.args(["-fno-rtti", "-fno-threadsafe-statics"]);
    }
    run(compiler.arg(source.join(&file)).arg("-o").arg(at("o")));
    let mut start = Command::new("arm-none-eabi-gcc");
    run(start.args(machine).arg("-c").arg(source.join("start.S")).arg("-o").arg(at("start.o")));
    let elf = at("elf");
    let mut linker = Command::new(gcc);
    linker.args(machine).args(["-nostartfiles", "--specs=nosys.specs", "-Wl,-Ttext=0x10000,--no-warn-rwx-segments"]);
    run(linker.arg(at("start.o")).arg(at("o")).arg("-o").arg(&elf));
    let own = run(Command::new("arm-none-eabi-nm").arg(at("o")));
    let own = own.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, kind, name] if kind.eq_ignore_ascii_case("t") || kind.eq_ignore_ascii_case("w") => Some(name.to_owned()),
        _ => None,
    });
    let own = own.filter(|name| !name.starts_with('$')).collect();
    let mut path = elf.clone();
    if variant.with == With::Stripped {
        path = at("stripped");
        run(Command::new("arm-none-eabi-objcopy").args(["-S", "-R", ".ARM.exidx", "-R", ".ARM.extab"]).arg(&elf).arg(&path));
    }
    Some(Built { path, symbols: elf, own })
}

/// What a tool prints.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
